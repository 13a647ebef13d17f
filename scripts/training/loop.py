"""The training loop: examples made beside it, a loss, Muon and AdamW, a running mean of the weights, checkpoints."""

from __future__ import annotations

import functools
import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from cassi.priors.learned import LearnedPrior, Size, load_prior, save_prior
from cassi.solvers.unrolled import unrolled
from training.examples import Examples, draw_examples, read_examples, write_examples
from training.scenes import load_scenes

FILE = 16  # cameras in a file of examples
MUON, FEW = 5 / 3, 5.0  # steps of kernels between the outer layers, and of the data step's few numbers, times AdamW's


@dataclass(frozen=True)
class Settings:
    """Of a training.

    Attributes:
        minutes: of training, those of a checkpoint that is gone on from counted in; the step falls to 0 over them.
        cameras: in a batch.
        scenes: for each camera; they are worked on together, which is what a GPU needs.
        rate: of learning, at most.
        rows, height, width: rows of an example that are looked at, and its size [pixel].
        seed: of network, examples and their order.
    """

    minutes: float
    cameras: int = 4
    scenes: int = 1
    rate: float = 6e-4
    rows: int = 64
    height: int = 96
    width: int = 128
    seed: int = 0


@dataclass
class Progress:
    """How far a training has come: steps, examples seen, seconds, and the curve of the gain."""

    step: int = 0
    seen: int = 0
    seconds: float = 0.0
    curve: list[dict[str, float]] = field(default_factory=list)


@dataclass
class Pool:
    """Examples in a folder, of which there may be more every time one looks.

    Attributes:
        folder: of the files.
        groups: what has been read.
        read: names of the files that it was read from.
    """

    folder: Path
    groups: list[Examples] = field(default_factory=list)
    read: set[str] = field(default_factory=set)

    def refresh(self, most: int | None = None) -> int:
        """Read files that are new, at most so many; returns how many there were."""
        new = [path for path in sorted(self.folder.glob("*.pt")) if path.name not in self.read][:most]
        for path in new:
            self.groups += read_examples(path)
            self.read.add(path.name)
        return len(new)


def leave_with_parent() -> None:
    """In a process that makes examples: end when that which asked for them has, however it did, and not by Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())  # one between processes is left behind by a process that is ended
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def make_file(
    data: Path, folder: Path, number: int, settings: Settings, components: int, weights: Path | None = None
) -> Path:
    """Make one file of examples, unless it is there already.

    What is in it depends on its number, the seed and the weights, which correct the later starts of each camera.
    """
    path = folder / f"{settings.seed:02d}-{number:05d}.pt"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        rng, scenes = np.random.default_rng([settings.seed, number]), _scenes(data)
        size = settings.height, settings.width
        prior = _prior(weights) if weights else None
        drawn = [draw_examples(rng, scenes, settings.scenes, *size, components, prior) for _ in range(FILE)]
        write_examples(path, [e for starts in drawn for e in starts])
    return path


_scenes = functools.cache(load_scenes)
_prior = functools.cache(load_prior)


def new_prior(size: Size, seed: int) -> LearnedPrior:
    """One that has not been trained."""
    torch.manual_seed(seed)
    return LearnedPrior(size)


def loss_of(prior: LearnedPrior, e: Examples) -> Tensor:
    """Error of the corrected coefficients relative to their start's, root mean square: below 1 is a gain. (N,)

    The basis is orthonormal, so this is the error of the cube but for what no smooth basis describes. The floor, 0.3 %
    of the brightness, keeps examples out that are solved already.
    """
    _, z = unrolled(e.camera, e.y, e.basis, prior, e.start, variance=e.variance)
    floor = 1e-5 * e.truth[:, 0].square().mean((1, 2))
    after, before = ((v - e.truth).square().sum(1).mean((1, 2)) for v in (z, e.start))
    return ((after + floor) / (before + floor)).sqrt()


class Muon:
    """Momentum whose matrices are made orthogonal before each step (Jordan et al., 2024), for kernels as matrices.

        m <- 0.95 m + 0.05 g,   w <- w - 0.2 rate sqrt(max(rows, columns)) U V^T,   0.05 g + 0.95 m = U S V^T

    U V^T by five Newton-Schulz steps; the factor makes its elements as large as AdamW's steps (Liu et al., 2025).
    """

    def __init__(self, kernels: list[nn.Parameter]) -> None:
        self.kernels = kernels
        self.momentum = [torch.zeros_like(p) for p in kernels]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for p, m in zip(self.kernels, self.momentum, strict=True):
            if p.grad is None:
                continue
            m.lerp_(p.grad, 0.05)
            w = p.grad.lerp(m, 0.95).flatten(1)
            X = w / (w.norm() + 1e-12)
            for _ in range(5):
                G = X @ X.T
                X = 3.4445 * X + (-4.775 * G + 2.0315 * G @ G) @ X
            p.mul_(1 - 0.01 * rate).add_(X.view_as(p), alpha=-0.2 * rate * math.sqrt(max(w.shape)))
            p.grad = None


class Training:
    """A training that can be stopped at any time and gone on with from its checkpoint.

    Args:
        folder: of the checkpoint, its log and its figure; made if needed.
        prior: to begin with, where there is no checkpoint yet.
        settings: see `Settings`.
        device: for the network.
    """

    def __init__(self, folder: Path, prior: LearnedPrior, settings: Settings, device: torch.device) -> None:
        self.folder, self.settings, self.device = folder, settings, device
        folder.mkdir(parents=True, exist_ok=True)
        self.progress = Progress()
        there = self.checkpoint.exists()
        saved = torch.load(self.checkpoint, map_location=device, weights_only=True) if there else None
        self.prior = (prior if saved is None else LearnedPrior(Size(**saved["size"]))).to(device)
        self.prior.train().requires_grad_(True)
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
        self.mean = {name: value.clone() for name, value in self.prior.state_dict().items()}
        if saved is not None:
            self.prior.load_state_dict(saved["prior"])
            self.adam.load_state_dict(saved["adam"])
            for m, value in zip(self.muon.momentum, saved["muon"], strict=True):
                m.copy_(value)
            self.mean = dict(saved["mean"])
            self.progress = Progress(**saved["progress"])

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.pt"

    def run(self, pool: Pool, *, bar: bool = False, report: Callable[[str], None] = print) -> None:
        """Train until the minutes are over; a checkpoint every minute and at the end."""
        p, settings = self.progress, self.settings
        rng = np.random.default_rng([settings.seed, p.step])
        before, began = p.seconds, time.monotonic()
        saved, gains = began, []
        limit = 60 * settings.minutes
        with tqdm(total=limit / 60, initial=before / 60, desc="training", unit="min", disable=not bar) as shown:
            while p.seconds < limit:
                for _ in range(settings.cameras):
                    e = pool.groups[int(rng.integers(len(pool.groups)))].turned(rng, settings.rows).to(self.device)
                    loss = loss_of(self.prior, e)
                    (loss.mean() / settings.cameras).backward()
                    gains.append(-20 * loss.detach().log10().mean())
                    p.seen += len(e)
                self._step(self._rate())
                passed = before + time.monotonic() - began
                shown.update(min(passed - p.seconds, limit - p.seconds) / 60)
                p.seconds = passed
                if len(gains) >= 50 * settings.cameras or p.seconds >= limit:
                    gain = float(torch.stack(gains).mean())
                    p.curve.append({"minutes": round(p.seconds / 60, 3), "seen": p.seen, "gain": round(gain, 4)})
                    report(json.dumps(p.curve[-1]))
                    gains = []
                    pool.refresh(4)
                if p.seconds >= limit or time.monotonic() - saved > 60:
                    self.save()
                    saved = time.monotonic()

    def _step(self, rate: float) -> None:
        nn.utils.clip_grad_norm_(self.prior.parameters(), 0.5)
        for group in self.adam.param_groups:
            group["lr"] = group["times"] * rate
        self.adam.step()
        self.muon.step(MUON * rate)
        self.prior.zero_grad()
        self.progress.step += 1
        weight = 1 - min(0.998, (1 + self.progress.step) / (20 + self.progress.step))
        with torch.no_grad():
            for name, value in self.prior.state_dict().items():
                self.mean[name].lerp_(value, weight)

    def save(self) -> None:
        """The checkpoint, whole or not at all."""
        partial = self.checkpoint.with_suffix(".partial")
        state = {
            "size": asdict(self.prior.size),
            "prior": self.prior.state_dict(),
            "mean": self.mean,
            "adam": self.adam.state_dict(),
            "muon": self.muon.momentum,
            "progress": asdict(self.progress),
        }
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def export(self, path: Path) -> str:
        """The running mean of the weights as a file for `--weights`; returns its SHA-256."""
        prior = LearnedPrior(self.prior.size)
        prior.load_state_dict(self.mean)
        return save_prior(prior, path)

    def draw(self, path: Path) -> None:
        """A figure of the gain over the start against minutes of training."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.subplots()
        axes.plot([c["minutes"] for c in self.progress.curve], [c["gain"] for c in self.progress.curve])
        axes.set(xlabel="training [min]", ylabel="gain over the start, training examples [dB]")
        axes.grid(alpha=0.3)
        partial = path.with_suffix(".partial")
        figure.savefig(partial, dpi=150, format="png")
        partial.replace(path)

    def _rate(self) -> float:
        """Up over 100 steps, then straight down to a fiftieth over the minutes."""
        fall = 1 - 0.98 * min(1.0, self.progress.seconds / (60 * self.settings.minutes))
        return self.settings.rate * fall * min(1.0, (self.progress.step + 1) / 100)


def _hidden(name: str) -> bool:
    """Whether a kernel lies between first and last layer, where steps should be orthogonal."""
    return not any(part in name for part in ("enter", "leave", ".up."))
