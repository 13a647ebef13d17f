"""How good weights are on scenes that were never trained with: CAVE windows and KAIST snapshots, and their table.

Quick start and network alone, without the rest of the default solver, through the grey KAIST mask with a step of 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import scipy.io
import torch
from torch import Tensor

from cassi.evidence.held_out import HELD_OUT
from cassi.looking.metrics import psnr
from cassi.optics.detector import object_levels
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import smooth_basis, synthesise
from cassi.solvers.unrolled import corrections
from training.chance import Chance
from training.quick_start import quick_start
from training.scenes import read_cubes

# First row and column of windows of 256 x 256 pixels.
WINDOWS = (
    ("beads", 0, 0), ("beads", 256, 200), ("egyptian_statue", 128, 128), ("paints", 100, 40), ("paints", 250, 250),
    ("pompoms", 128, 128), ("face", 150, 120), ("photo_and_face", 60, 200),
)  # fmt: skip
SIDE, NUM_BANDS, STEP = 256, 28, 2
NOISE = (None, 10_000, 1_000)  # electrons in the brightest pixel


@dataclass(frozen=True)
class Score:
    """PSNR [dB] of a scene: after the quick start, after each stage of the network, and at its end."""

    scene: str
    electrons: int | None
    values: tuple[float, ...]


def evaluate(
    prior: LearnedPrior, data: Path, device: torch.device, *, start_iters: int, side: int = SIDE,
    report: Callable[[str], None] | None = None,
) -> list[Score]:  # fmt: skip
    """Scores of all scenes that the folder holds, windows cut to `side`.

    Raises:
        FileNotFoundError: none there, or no mask.
    """
    path = data / "kaist" / "scene01.h5"
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there, whose mask windows are seen through")
    with h5py.File(path) as file:
        mask = torch.from_numpy(file["mask"][()]).float()
    scores = []

    def add(name: str, electrons: int | None, values: tuple[float, ...]) -> None:
        scores.append(Score(name, electrons, values))
        if report is not None:
            report(f"{name}, {electrons or 'no noise'}: {values[0]:.2f} dB, then {values[-1]:.2f} dB")

    prior = prior.on(device)
    for name, cube in windows(data):
        x = cube[:, :side, :side].to(device)
        A = CASSI.from_step(mask[: x.shape[1], : x.shape[2]].to(device), STEP, NUM_BANDS)
        for electrons in NOISE:
            y, chance = A.forward(x), Chance(0, device)
            if electrons is not None:
                unit = float(y.max()) / electrons
                y = y + (y * unit).sqrt() * chance.normal(*y.shape)
            found = cubes(prior, A, y, chance, start_iters)
            add(name, electrons, tuple(psnr(z.clamp(0, 1).cpu(), x.cpu()) for z in found))
    for path in sorted((data / "kaist").glob("scene*.h5")):
        with h5py.File(path) as file:
            y, truth = (torch.from_numpy(file[name][()]).float() for name in ("measurement", "mean_band"))
        A = CASSI.from_step(mask.to(device), STEP, NUM_BANDS)
        found = cubes(prior, A, y.to(device), Chance(0, device), start_iters)
        add(f"KAIST {path.stem[-2:]} (mean band)", None, tuple(psnr(z.mean(0).clamp(0, 1).cpu(), truth) for z in found))
    return scores


def cubes(prior: LearnedPrior, A: CASSI, y: Tensor, chance: Chance, start_iters: int) -> Iterator[Tensor]:
    """The cube (C, H, W) after the quick start, after each stage, and at the end; the noise is not given."""
    seen = (chance.uniform(*y.shape) >= HELD_OUT).float()
    B = smooth_basis(A.num_bands, prior.size.components).to(y)
    with torch.no_grad():
        start, variance = quick_start(A, y, B, seen, num_iters=start_iters)
        yield synthesise(start, B)
        level = object_levels(A, y).view(1, 1, 1)
        for z in corrections(A, y, B, prior, start, variance, level):
            yield synthesise(z, B)


def windows(data: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and cube (28, H, W) of maximum 1 of every window there is."""
    for name, i, j in WINDOWS:
        if (data / "cave_train" / f"{name}.h5").exists():
            (cube,) = read_cubes(data / "cave_train", [name])
            x = (cube[-NUM_BANDS:, i : i + SIDE, j : j + SIDE].astype(np.float32) / 255) ** 2
            yield f"{name} ({i}, {j})", torch.from_numpy(x / x.max())
    for name in ("cloth", "feathers"):
        if (path := data / "cave" / f"{name}.mat").exists():
            x = scipy.io.loadmat(path)["Omsi"].astype(np.float32).transpose(2, 0, 1)[-NUM_BANDS:]
            yield f"CAVE {name}", torch.from_numpy(np.ascontiguousarray(x / x.max()))


def table(scores: list[Score]) -> str:
    """Markdown: PSNR after the quick start and after the network, for each noise, and their means."""
    heads = ["no noise" if electrons is None else f"{electrons:,} e" for electrons in NOISE]
    lines = ["| PSNR [dB], start / network | " + " | ".join(heads) + " |", "|---" * (1 + len(NOISE)) + "|"]
    by_scene: dict[str, dict[int | None, Score]] = {}
    for score in scores:
        by_scene.setdefault(score.scene, {})[score.electrons] = score
    for scene, found in by_scene.items():
        cells = [f"{s.values[0]:.2f} / {s.values[-1]:.2f}" if (s := found.get(e)) else "" for e in NOISE]
        lines.append(f"| {scene} | " + " | ".join(cells) + " |")
    for group in ("", "KAIST"):
        means = []
        for electrons in NOISE:
            of = [s.values for s in scores if s.electrons == electrons and s.scene.startswith("KAIST") == bool(group)]
            means.append(f"{np.mean([v[0] for v in of]):.2f} / {np.mean([v[-1] for v in of]):.2f}" if of else "")
        if any(means):
            lines.append(f"| mean of {group or 'windows'} | " + " | ".join(means) + " |")
    return "\n".join(lines)
