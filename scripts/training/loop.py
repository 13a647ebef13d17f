"""The training loop: examples made on the fly, a loss, Muon and AdamW, a running mean of the weights, checkpoints."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import pickle
import signal
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from multiprocessing import connection, parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing, nn
from tqdm.auto import tqdm

from cassi.priors.learned import LearnedPrior, Size, load_prior, save_prior
from training.examples import AnyCamera, Examples, OneCamera, draw_examples, load_masks, read_camera
from training.looks import Looks
from training.scenes import load_scenes

MUON, FEW = 5 / 3, 5.0  # steps of kernels between the outer layers, and of the data step's few numbers, times AdamW's
# Examples of late, and how many looks one that is drawn stands for: a sixth of the time goes into new ones. With makers
# there are as many looks as there is time for.
POOL, LOOKS = 192, 3
# For three examples that are drawn, one more is what the network made of one before; at most so often in a row.
OWN, TURNS = 1 / 3, 2
LOG_EVERY = 50  # steps
BAR = "{desc} {percentage:3.0f}%|{bar}| {n:.1f} of {total:.1f} min [{remaining} left]"


@dataclass(frozen=True)
class Settings:
    """Of a training.

    Attributes:
        data: folder of scenes and masks.
        output: folder of the checkpoint and of what is made of it.
        minutes: of training, those of a checkpoint that is gone on from counted in; the step falls to 0 over them.
        processes: that share a batch.
        cameras: in a batch, for each process.
        scenes: for each camera; they are worked on together, which is what a GPU needs.
        rate: of learning, at most.
        size: height and width of an example [pixel].
        seed: of network, examples and their order.
        device: of network and examples.
        weights: to begin with.
        stages: of a network that is begun anew.
        camera: file of the one camera to train for; any camera if not given.
        makers: further processes, each on one CPU core, that draw the examples of each process; 0: it does so itself.
    """

    data: Path
    output: Path
    minutes: float
    processes: int = 1
    cameras: int = 2
    scenes: int = 1
    rate: float = 5e-4
    size: tuple[int, int] = (80, 160)
    seed: int = 0
    device: str = "cpu"
    weights: Path | None = None
    stages: int = 4
    camera: Path | None = None
    makers: int = 0

    def cameras_to_draw(self) -> AnyCamera | OneCamera:
        """That examples are photographed with."""
        return AnyCamera(load_masks(self.data, max(self.size))) if self.camera is None else read_camera(self.camera)


@dataclass
class Progress:
    """How far a training has come: steps, examples seen, seconds, and the curve of the error."""

    step: int = 0
    seen: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)


def new_prior(size: Size, seed: int) -> LearnedPrior:
    """One that has not been trained."""
    torch.manual_seed(seed)
    return LearnedPrior(size)


class Muon:
    """Momentum whose matrices are made orthogonal before each step (Jordan et al., 2024), for kernels as matrices.

        m <- 0.95 m + 0.05 g,   w <- w - 0.2 rate sqrt(max(rows, columns)) U V^T,   0.05 g + 0.95 m = U S V^T

    U V^T by five Newton-Schulz steps; the factor makes its elements as large as AdamW's steps (Liu et al., 2025).
    """

    def __init__(self, kernels: list[nn.Parameter]) -> None:
        alike: dict[torch.Size, list[nn.Parameter]] = {}
        for p in kernels:
            alike.setdefault(p.shape, []).append(p)
        self.groups = list(alike.values())  # worked on together
        self.momentum = [torch.zeros_like(torch.stack([p.detach().flatten(1) for p in group])) for group in self.groups]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for group, m in zip(self.groups, self.momentum, strict=True):
            grad = torch.stack([p.grad.flatten(1) for p in group if p.grad is not None])
            m.lerp_(grad, 0.05)
            w = grad.lerp(m, 0.95)
            X = w / (w.norm(dim=(1, 2), keepdim=True) + 1e-12)
            for _ in range(5):
                G = X @ X.mT
                X = 3.4445 * X + (-4.775 * G + 2.0315 * G @ G) @ X
            for p, step in zip(group, X, strict=True):
                p.mul_(1 - 0.01 * rate).add_(step.view_as(p), alpha=-0.2 * rate * math.sqrt(max(step.shape)))


class Makers:
    """Processes that draw examples while this one trains, with the mean of its weights in memory that all share.

    Each draws from seeds of its own; in which order examples arrive, and with which weights they were made, depends on
    the machine. Each has a pipe of its own, whose end tells that its maker has ended, in the middle of a message too.
    """

    def __init__(self, settings: Settings, prior: LearnedPrior, step: int, rank: int) -> None:
        self.prior = copy.deepcopy(prior).cpu()
        self.prior.share_memory()
        context = multiprocessing.get_context("spawn")
        self.pipes: list[Any] = []
        self.processes = []
        for k in range(settings.makers):
            here, there = context.Pipe(duplex=False)
            seed = [settings.seed, step, rank, k + 1]
            process = context.Process(target=_make, args=(settings, seed, self.prior, there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def told(self, mean: LearnedPrior) -> None:
        """The running mean of the weights as it is now."""
        self.prior.load_state_dict(mean.state_dict())

    def take(self, *, wait: bool) -> list[Examples]:
        """What was made meanwhile; at least one camera's where they are waited for."""
        found: list[Examples] = []
        for pipe in connection.wait(self.pipes, None if wait else 0):
            try:
                found += pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                raise RuntimeError(
                    "a process that draws examples has ended; its error stands above, or it was killed: is there too "
                    "little memory for so many --makers?"
                ) from None
        return found

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
            process.join()


def _make(settings: Settings, seed: list[int], prior: LearnedPrior, pipe: Connection) -> None:
    """Draw examples without end."""
    _leave_with_parent()
    torch.set_num_threads(1)
    if hasattr(os, "nice"):
        os.nice(10)  # the training itself is not to wait for a core
    rng, scenes, camera = np.random.default_rng(seed), load_scenes(settings.data), settings.cameras_to_draw()
    while True:
        pipe.send_bytes(pickle.dumps(draw_examples(rng, scenes, camera, settings.scenes, settings.size, prior)))


class Training:
    """A training that can be stopped at any time and gone on with from its checkpoint.

    Each of `processes` holds the same network and draws examples of its own; the mean of their gradients is what all of
    them step along.

    Args:
        settings: see `Settings`.
        rank: of this process.
    """

    def __init__(self, settings: Settings, rank: int = 0) -> None:
        self.settings, self.rank, self.device = settings, rank, torch.device(settings.device)
        settings.output.mkdir(parents=True, exist_ok=True)
        self.progress = Progress()
        saved = self._saved()
        if saved is not None:
            prior = LearnedPrior(Size(**saved["size"]))
        elif settings.weights is not None:
            prior = load_prior(settings.weights)
        else:
            prior = new_prior(Size(stages=settings.stages), settings.seed)
        self.prior = prior.to(self.device).train().requires_grad_(True)
        inner = [p for n, p in self.prior.named_parameters() if p.ndim == 4 and _hidden(n)]
        few = [self.prior.log_tau, self.prior.log_floor]
        others = [p for p in self.prior.parameters() if not any(p is q for q in [*inner, *few])]
        self.muon = Muon(inner)
        self.adam = torch.optim.AdamW(
            [{"params": others, "times": 1.0}, {"params": few, "times": FEW, "weight_decay": 0.0}],
            lr=settings.rate,
            betas=(0.9, 0.99),
            weight_decay=1e-3,
        )
        self.mean = copy.deepcopy(self.prior).eval().requires_grad_(False)  # over steps; examples are drawn with it
        if saved is not None:
            self.prior.load_state_dict(saved["prior"])
            self.adam.load_state_dict(saved["adam"])
            for m, value in zip(self.muon.momentum, saved["muon"], strict=True):
                m.copy_(value)
            self.mean.load_state_dict(saved["mean"])
            self.progress = Progress(**saved["progress"])

    @property
    def checkpoint(self) -> Path:
        return self.settings.output / "checkpoint.pt"

    @property
    def camera(self) -> str:
        """What tells its file from others; empty of any camera."""
        return "" if self.settings.camera is None else hashlib.sha256(self.settings.camera.read_bytes()).hexdigest()

    def _saved(self) -> dict[str, Any] | None:
        """The checkpoint, if there is one; ValueError where it is damaged, of another version or of another camera."""
        if not self.checkpoint.exists():
            return None
        try:
            saved: dict[str, Any] = torch.load(self.checkpoint, map_location=self.device, weights_only=True)
            same = saved["camera"] == self.camera
            if any(m.ndim != 3 for m in saved["muon"]):
                raise KeyError("the momentum of kernels alike together")
        except (RuntimeError, EOFError, KeyError, TypeError, AttributeError, pickle.UnpicklingError) as error:
            raise ValueError(f"{self.checkpoint} is damaged, or of another version; remove it ({error!r})") from error
        if not same:
            raise ValueError(f"{self.checkpoint} is of a training for another camera; choose another --output")
        return saved

    def run(self, *, bar: bool = False) -> None:
        """Train until the minutes are over; a checkpoint every minute and at the end."""
        makers = Makers(self.settings, self.mean, self.progress.step, self.rank) if self.settings.makers else None
        try:
            self._run(makers, bar)
        finally:
            if makers is not None:
                makers.close()

    def _run(self, makers: Makers | None, bar: bool) -> None:
        p, s = self.progress, self.settings
        rng = np.random.default_rng([s.seed, p.step, self.rank])
        camera = s.cameras_to_draw()
        scenes = load_scenes(s.data) if makers is None else None
        pool: deque[Examples] = deque(maxlen=POOL)
        shown = tqdm(total=s.minutes, initial=p.seconds / 60, desc="training", disable=not bar, bar_format=BAR)
        if makers is not None:
            makers.told(self.mean)
            pool.extend(e.to(self.device) for e in makers.take(wait=True))
        limit, last, saved = 60 * s.minutes, time.monotonic(), -math.inf
        looks, sums, steps, due, own = Looks(self.prior, 1 / s.cameras), torch.zeros(3, device=self.device), 0, 0, 0.0
        while p.seconds < limit:
            seen = 0
            for _ in range(s.cameras):
                drawn: list[Examples] = []
                if makers is not None:
                    drawn = makers.take(wait=False)
                elif scenes is not None and due == 0:
                    drawn = draw_examples(rng, scenes, camera, s.scenes, s.size, self.mean)
                due += LOOKS * len(drawn) - 1
                own += OWN * len(drawn)
                pool.extend(e.to(self.device) for e in drawn)
                e = pool[int(rng.integers(len(pool)))].turned(rng, along=camera.along)
                numbers, ended = looks(e)
                seen += len(e.y)
                sums[:2] += numbers / s.cameras
                if own >= 1 and ended.turns <= TURNS:
                    pool.append(ended)
                    own -= 1
            now = time.monotonic()
            seconds = self._shared(min(now - last, 60.0))  # no more: the machine may have slept
            last = now
            sums[2] += self._step(self._rate())
            shown.update(min(seconds, limit - p.seconds) / 60)
            p.seconds += seconds
            p.seen += seen * s.processes
            steps += 1
            saves = self.rank == 0 and (p.seconds >= limit or time.monotonic() - saved > 60)
            logs = steps == LOG_EVERY or p.seconds >= limit
            if (saves or logs) and not bool(sums.isfinite().all()):
                raise FloatingPointError(f"the training diverged before step {p.step}; take a smaller --rate")
            if logs:
                loss_mean, gain_mean, _ = (sums / steps).tolist()
                point = {"minutes": round(p.seconds / 60, 2), "seen": p.seen, "error": round(loss_mean, 3)}
                p.curve.append(point | {"gain": round(gain_mean, 3)})
                if self.rank == 0:
                    tqdm.write(json.dumps(p.curve[-1]))
                sums, steps = torch.zeros_like(sums), 0
                if makers is not None:
                    makers.told(self.mean)
            if saves:
                self.save()
                saved = time.monotonic()
        shown.close()

    def _shared(self, seconds: float) -> float:
        """Gradients become the mean over the processes; returns the mean of their seconds."""
        if self.settings.processes == 1:
            return seconds
        grads = [p.grad for p in self.prior.parameters() if p.grad is not None]
        flat = torch.cat([*(g.flatten() for g in grads), grads[0].new_tensor([seconds])]).cpu()
        dist.all_reduce(flat)
        flat = (flat / self.settings.processes).to(self.device)
        for g, mean in zip(grads, flat[:-1].split([g.numel() for g in grads]), strict=True):
            g.copy_(mean.view_as(g))
        return float(flat[-1])

    def _step(self, rate: float) -> Tensor:
        """One step of this rate; returns the norm of the gradient."""
        norm = nn.utils.clip_grad_norm_(self.prior.parameters(), 1.0)
        for group in self.adam.param_groups:
            group["lr"] = group["times"] * rate
        self.adam.step()
        self.muon.step(MUON * rate)
        self.prior.zero_grad(set_to_none=False)  # recorded looks add to them where they are
        self.progress.step += 1
        weight = 1 - min(0.998, (1 + self.progress.step) / (20 + self.progress.step))
        torch._foreach_lerp_(list(self.mean.parameters()), [p.detach() for p in self.prior.parameters()], weight)
        return norm

    def save(self) -> None:
        """The checkpoint, whole or not at all."""
        partial = self.checkpoint.with_suffix(".partial")
        state = {
            "size": asdict(self.prior.size),
            "camera": self.camera,
            "prior": self.prior.state_dict(),
            "mean": self.mean.state_dict(),
            "adam": self.adam.state_dict(),
            "muon": self.muon.momentum,
            "progress": asdict(self.progress),
        }
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def export(self, path: Path) -> str:
        """The running mean of the weights as a file for `--weights`; returns its SHA-256."""
        return save_prior(self.mean, path)

    def _rate(self) -> float:
        """Up over 100 steps, then straight down to a fiftieth over the minutes."""
        fall = 1 - 0.98 * min(1.0, self.progress.seconds / (60 * self.settings.minutes))
        return self.settings.rate * fall * min(1.0, (self.progress.step + 1) / 100)


def train(rank: int, settings: Settings, meeting: str, bar: bool) -> None:
    """One process of a training: `rank` of `settings.processes`, which meet at a file."""
    if settings.processes > 1 or settings.makers:
        torch.set_num_threads(1)
    if (device := torch.device(settings.device)).index is not None:
        torch.cuda.set_device(device)  # where streams and graphs are made
    tqdm.set_lock(threading.RLock())  # not one of all processes, which those that are ended would leave behind
    if settings.processes > 1:
        _leave_with_parent()
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=settings.processes)
    Training(settings, rank).run(bar=bar and rank == 0)
    if settings.processes > 1:
        dist.destroy_process_group()


def _leave_with_parent() -> None:
    """End when the process that asked for this one has, however it did, and not by Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _hidden(name: str) -> bool:
    """Whether a kernel lies between first and last layer, where steps should be orthogonal."""
    return not any(part in name for part in ("enter", "leave", ".up"))
