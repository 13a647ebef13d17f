"""The training loop: examples made on the device, a loss at every stage, Muon and AdamW, mean weights, checkpoints."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import pickle
import time
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from tqdm.auto import tqdm

from cassi.files.atomic import replacing
from cassi.kernels.caller import undisturbed
from cassi.priors.learned import KINDS, LearnedPrior, Size, load_prior, packed, shipped_weights
from training.cameras import AnyCamera, OneCamera, load_masks, read_camera
from training.chance import Chance
from training.examples import Examples, draw_examples
from training.looks import TURNS, Looks
from training.scenes import Scenes, load_scenes

MUON, FEW = 5 / 3, 5.0  # steps of kernels between the outer layers, and of the data step's few numbers, times AdamW's
LOG_EVERY = 50  # steps
SAVE_EVERY = 60.0  # seconds
MAX_FAILED = 0.1  # share of looks whose errors are not finite: of one the gradient is left out, many end a training
BAR = "{desc} {percentage:3.0f}%|{bar}| {n:.1f} of {total:.1f} min [{remaining} left]"
PEAKS = {"H100": 989.0, "H200": 989.0, "A100": 312.0, "L40": 181.0, "4090": 165.0}  # bfloat16 [TFLOP/s]
LICENCES = {
    False: "free for any use: trained on data whose licences allow it, see MODEL_CARD.md",
    True: "for research: trained with CAVE, for which no licence is stated, see MODEL_CARD.md",
}


@dataclass(frozen=True)
class Settings:
    """Of a training.

    Attributes:
        data: folder of scenes and masks.
        output: folder of the checkpoint and of what is made of it.
        minutes: of training, those of a checkpoint that is resumed included; the step falls to 0 over them.
        cameras: in a step.
        scenes: for each camera; they are worked on together, which is what a GPU needs.
        rate: of learning, at most.
        size: height and width of an example [pixel].
        seed: of network and examples.
        device: of network and examples.
        weights: to begin with.
        stages: of a new network.
        start_iters: of the first cube.
        non_local: share of the looks whose first cube the non-local prior continues.
        camera: file of the one camera to train for; any camera if not given.
        measured: with measured cubes too, whose weights are for research.
        limit: of photographs, for a quick try.
    """

    data: Path
    output: Path
    minutes: float
    cameras: int = 1
    scenes: int = 4
    rate: float = 8e-4
    size: tuple[int, int] = (64, 96)
    seed: int = 0
    device: str = "cpu"
    weights: str | Path | None = None
    stages: int = 4
    start_iters: int = 40
    non_local: float = 0.0
    camera: Path | None = None
    measured: bool = False
    limit: int | None = None

    def cameras_to_draw(self) -> AnyCamera | OneCamera:
        """That examples are photographed with."""
        if self.camera is not None:
            return read_camera(self.camera)
        return AnyCamera(load_masks(self.data, max(self.size)) if self.measured else [])


@dataclass
class Progress:
    """How far a training has come: steps, examples seen, seconds, and the curve of the error."""

    step: int = 0
    seen: int = 0
    seconds: float = 0.0
    curve: list[dict[str, Any]] = field(default_factory=list)


def new_prior(size: Size, seed: int) -> LearnedPrior:
    """One that has not been trained."""
    torch.manual_seed(seed)
    return LearnedPrior(size)


def with_turns(prior: LearnedPrior) -> LearnedPrior:
    """The same with numbers of its own for each turn, which for turns that it does not know are those of its last."""
    grown, turns = LearnedPrior(replace(prior.size, turns=TURNS)), prior.size.turns
    new = prior.state_dict()
    for name in ("net.stage_bias", "log_tau", "log_floor"):
        of_turns = list(new[name].chunk(turns))
        new[name] = torch.cat([*of_turns, *[of_turns[-1]] * TURNS][:TURNS])
    grown.load_state_dict(new)
    return grown


def optimizers(prior: LearnedPrior, rate: float) -> tuple[torch.optim.Muon, torch.optim.AdamW]:
    """Muon for kernels between the outer layers, each as a matrix that shares its memory, AdamW for all else.

    The factor of Muon makes its elements as large as AdamW's steps (Liu et al., 2025).

    Raises:
        RuntimeError: this torch has no Muon.
    """
    if not hasattr(torch.optim, "Muon"):
        raise RuntimeError(f"training needs torch 2.9 or later, got {torch.__version__}: pip install 'cassi[train]'")
    matrices = []
    for name, p in prior.named_parameters():
        if p.ndim == 4 and _is_hidden(name):
            matrix = nn.Parameter(p.detach().flatten(1))
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            matrix.grad = p.grad.flatten(1)  # a view, too: gradients are added in place
            matrices.append(matrix)
    few = [prior.log_tau, prior.log_floor]
    hidden = {m.data_ptr() for m in matrices} | {p.data_ptr() for p in few}
    others = [p for p in prior.parameters() if p.data_ptr() not in hidden]
    muon = torch.optim.Muon(matrices, lr=MUON * rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    groups = [{"params": others, "times": 1.0}, {"params": few, "times": FEW, "weight_decay": 0.0}]
    return muon, torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99), weight_decay=1e-3)


def mean_of_all(x: Tensor) -> Tensor:
    """The mean over the processes that train together, in place of x."""
    if dist.is_initialized():
        dist.all_reduce(x)
        x /= dist.get_world_size()
    return x


class Training:
    """A training that can be stopped at any time and resumed from its checkpoint.

    Several processes of `torch.distributed` train one network: each draws examples of its own, and a step is along the
    mean of their gradients. The first one writes.

    Args:
        settings: see `Settings`.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.device = settings, torch.device(settings.device)
        settings.output.mkdir(parents=True, exist_ok=True)
        if self.device.index is not None:
            torch.cuda.set_device(self.device)  # streams and graphs are those of the current one
        torch.backends.cudnn.benchmark = self.device.type == "cuda"  # sizes are few, and looks are many
        self.rank, self.processes = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.progress = Progress()
        saved = self._saved()
        if saved is not None:
            prior = LearnedPrior(Size(**saved["size"]))
        elif settings.weights is not None:
            prior = with_turns(load_prior(settings.weights))
        else:
            prior = new_prior(Size(stages=settings.stages, light=1, turns=TURNS), settings.seed)
        self.prior = prior.to(self.device).train().requires_grad_(True)
        seed = settings.seed, self.rank, 0 if saved is None else saved["progress"]["step"]
        self.looks = Looks(self.prior, 1 / settings.cameras, settings.start_iters, seed)
        self.muon, self.adam = optimizers(self.prior, settings.rate)
        self.mean = copy.deepcopy(self.prior).eval().requires_grad_(False)  # over steps
        if saved is not None:
            self.prior.load_state_dict(saved["prior"])
            self.adam.load_state_dict(saved["adam"])
            self.muon.load_state_dict(saved["muon"])
            self.mean.load_state_dict(saved["mean"])
            self.progress = Progress(**saved["progress"])
        others = [self.rank, self.progress.step] if self.rank else []  # draw examples of their own
        self.chance = Chance([settings.seed, *others], self.device)
        if saved is not None and not self.rank:
            self.chance.restore(saved["chance"])

    @property
    def checkpoint(self) -> Path:
        return self.settings.output / "checkpoint.pt"

    @property
    def kind(self) -> str:
        """What tells its checkpoint from others: the data, and the camera where it is one."""
        s = self.settings
        camera = "" if s.camera is None else hashlib.sha256(s.camera.read_bytes()).hexdigest()
        return f"{'measured' if s.measured else 'free'} {camera}"

    def _saved(self) -> dict[str, Any] | None:
        """The checkpoint, if there is one; ValueError where it is damaged, or of another version, camera or data."""
        if not self.checkpoint.exists():
            return None
        try:
            saved: dict[str, Any] = torch.load(self.checkpoint, map_location="cpu", weights_only=True)
            same = saved["kind"] == self.kind
            LearnedPrior(Size(**saved["size"])).load_state_dict(saved["prior"])
        except (RuntimeError, EOFError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
            raise ValueError(f"{self.checkpoint} is damaged, or of another version; remove it ({error!r})") from error
        if not same:
            raise ValueError(f"{self.checkpoint} is of a training for another camera or data; choose another --output")
        return saved

    @cached_property
    def scenes(self) -> Scenes:
        """What examples are made of, once it is read."""
        s = self.settings
        return load_scenes(s.data, self.device, measured=s.measured, seed=s.seed, limit=s.limit)

    @undisturbed
    def run(self, *, bar: bool = False, seconds: float = math.inf) -> None:
        """Train until the minutes are over, or after these `seconds` in all; a checkpoint every minute and at the end.

        Raises:
            FloatingPointError: the training diverged; the last checkpoint is left as it was.
            FileNotFoundError, ValueError: see `load_scenes`.
        """
        p, s = self.progress, self.settings
        end = min(60 * s.minutes, seconds)
        if p.seconds >= end:
            return
        camera, scenes, components = s.cameras_to_draw(), self.scenes, self.prior.size.components

        def draw() -> Examples:
            return draw_examples(self.chance, scenes, camera, s.scenes, s.size, components, s.non_local)

        shown = tqdm(total=s.minutes, initial=p.seconds / 60, desc="training", disable=not bar, bar_format=BAR)
        saved = last = logged = time.monotonic()
        sums, failed = torch.zeros(self.prior.size.stages + 2, device=self.device), torch.zeros((), device=self.device)
        steps, pixels, operations = 0, 0, 0
        while p.seconds < end:
            for _ in range(s.cameras):
                e, errors = self.looks.next(draw)
                finite = errors.isfinite().all()
                sums += torch.where(finite, errors, 0) / s.cameras
                failed += ~finite
                p.seen += self.processes * len(e.y)
                pixels += self.processes * len(e.y) * math.prod(s.size)
                operations += self.processes * self.looks.operations[e.shifts, e.y.shape]
            self._step()
            steps += 1
            if steps == LOG_EVERY and self.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
            now = time.monotonic()
            passed = float(mean_of_all(torch.tensor(min(now - last, 60.0))))  # no more: the machine may have slept
            last = now
            shown.update(min(passed / 60, s.minutes - p.seconds / 60))
            p.seconds += passed
            over = p.seconds >= end
            logs, saves = steps == LOG_EVERY or over, over or now - saved > SAVE_EVERY
            if (saves or logs) and float(failed) > 2 + MAX_FAILED * steps * s.cameras:
                raise FloatingPointError(f"the training diverged before step {p.step}; take a smaller --rate")
            if logs:
                means = [round(v, 3) for v in (sums / (steps - failed / s.cameras).clamp(min=1)).tolist()]
                p.curve.append(
                    {
                        "minutes": round(p.seconds / 60, 2), "step": p.step, "seen": p.seen, "errors": means,
                        "failed": int(failed),
                        "pixels_per_s": round(pixels / (now - logged)),
                        "tflop_per_s": round(operations / (now - logged) / 1e12, 3),
                    }
                )  # fmt: skip
                if not self.rank:
                    tqdm.write(json.dumps(p.curve[-1]))
                sums, failed = torch.zeros_like(sums), torch.zeros_like(failed)
                steps, pixels, operations, logged = 0, 0, 0, now
            if saves:
                saved = now
                if not self.rank:
                    self.save()
        shown.close()

    def _step(self) -> None:
        """One step along the gradient, of norm 1 at most; of one that is not finite nothing is left."""
        grads = [p.grad for p in self.prior.parameters() if p.grad is not None]
        if self.processes > 1:
            mean = mean_of_all(torch.cat([grad.flatten() for grad in grads])).split([grad.numel() for grad in grads])
            torch._foreach_copy_(grads, [part.view_as(grad) for part, grad in zip(mean, grads, strict=True)])
        norm = torch.stack(torch._foreach_norm(grads)).norm()
        for grad in grads:
            grad.nan_to_num_(0, 0, 0)
        torch._foreach_mul_(grads, torch.where(norm.isfinite(), norm.clamp(min=1).reciprocal(), 0))
        rate = self._rate()
        for group in self.adam.param_groups:
            group["lr"] = group["times"] * rate
        for group in self.muon.param_groups:
            group["lr"] = MUON * rate
        self.adam.step()
        self.muon.step()
        torch._foreach_zero_(grads)  # recorded looks add to them
        self.progress.step += 1
        weight = 1 - min(0.998, (1 + self.progress.step) / (20 + self.progress.step))
        torch._foreach_lerp_(list(self.mean.parameters()), [p.detach() for p in self.prior.parameters()], weight)

    def _rate(self) -> float:
        """Up over 100 steps, then straight down to a fiftieth over the minutes."""
        fall = 1 - 0.98 * min(1.0, self.progress.seconds / (60 * self.settings.minutes))
        return self.settings.rate * fall * min(1.0, (self.progress.step + 1) / 100)

    def save(self) -> None:
        """The checkpoint, its weights, and its curve as JSON lines, each whole or not at all."""
        state = {
            "size": asdict(self.prior.size), "kind": self.kind, "prior": self.prior.state_dict(),
            "mean": self.mean.state_dict(), "adam": self.adam.state_dict(), "muon": self.muon.state_dict(),
            "chance": self.chance.state(), "progress": asdict(self.progress),
        }  # fmt: skip
        with replacing(self.checkpoint, overwrite=True) as path:
            torch.save(state, path)
        self.export(self.settings.output / "weights.safetensors")
        with replacing(self.settings.output / "curve.jsonl", overwrite=True) as path:
            path.write_text("".join(json.dumps(point) + "\n" for point in self.progress.curve), encoding="utf-8")

    def export(self, path: Path) -> str:
        """The running mean of the weights as a file for `--weights`; returns its SHA-256."""
        weights = self.settings.weights
        data = packed(self.mean, licence=LICENCES[self.settings.measured or is_for_research(weights)])
        with replacing(path, overwrite=True) as target:
            target.write_bytes(data)
        return hashlib.sha256(data).hexdigest()


def is_for_research(weights: str | Path | None) -> bool:
    """Whether weights to begin with may be used for research only: what comes of them may not be used for more."""
    if weights is None:
        return False
    with safe_open(shipped_weights(weights) if weights in KINDS else weights, framework="pt") as file:
        return (file.metadata() or {}).get("licence", "").startswith("for research")


def described(device: torch.device) -> str:
    """The device in words, with the bfloat16 operations a second that a GPU is sold with, where they are known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{torch.get_num_threads()} threads"
    peak = next((value for part, value in PEAKS.items() if part in name), None)
    return name if peak is None else f"{name}, at most {peak:.0f} TFLOP/s"


def _is_hidden(name: str) -> bool:
    """Whether a kernel lies between first and last layer, where steps should be orthogonal."""
    return not any(part in name for part in ("enter", "leave", ".up"))
