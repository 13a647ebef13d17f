"""Whether the uncertainty is an error bar: how many true errors lie within it, scene by scene."""

from __future__ import annotations

import itertools
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.quality import NOISES, READ_NOISE
from benchmarks.twin import CAMERAS, ERRORS, SCENES, STEP, wrong
from cassi.optics.detector import detect
from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.running.reconstruct import reconstruct
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

# Windows of scenes on which the constants of `cassi.choice.uncertainty` were chosen, which are no test of it.
FITTED = frozenset(
    ["beads", "clay", "face", "glass_tiles", "jelly_beans", "paints", "photo_and_face", "stuffed_toys", "watercolors"]
)  # fmt: skip
WINDOWS = 20
SIZE = 128
BANDS = 28
TWIN_SEED = 5


@dataclass(frozen=True)
class Coverage:
    """Shares of the voxels whose true error lies within one and within two standard deviations.

    Attributes:
        case: noise and mask.
        within: of all voxels.
        dark, bright, edge: of the third of the voxels that is darkest, that is brightest, and the tenth that lies on
            the steepest places of the true cube.
    """

    scene: str
    case: str
    within: tuple[float, float]
    dark: tuple[float, float]
    bright: tuple[float, float]
    edge: tuple[float, float]


def coverage(data: Path | None = None, *, quick: bool = False, report: Callable[[str], None] = print) -> str:
    """Reconstruct known scenes with uncertainty, through masks that are exact and wrong, and count; returns Markdown.

    Args:
        data: folder with cave_train/*.h5; without it windows of the painted scene are taken.
        quick: two windows of the painted scene, small, through exact masks.
        report: called with one line of progress at a time.
    """
    rows: list[Coverage] = []
    for case, name, m, cube in snapshots(None if quick else data, quick):
        rows.append(covered(case, name, m, cube))
        report(f"{name:28} {case:36} {_cell(rows[-1].within)}")
    return table(rows)


def snapshots(data: Path | None, quick: bool) -> Iterator[tuple[str, str, Measurement, Tensor]]:
    """Case, name, snapshot and true cube: windows with three noises, then through wrong masks, then simulated captures
    (`benchmarks.twin`); errors of masks are white."""
    size = 48 if quick else SIZE
    for name, cube, mask in windows(data, 2 if quick else WINDOWS, size):
        exact = mask.double().numpy()
        cases = [(f"{noise}, mask exact", exact, full_well) for noise, full_well in NOISES.items()]
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        for error in () if quick else ERRORS[1:]:
            true = wrong(exact, error * float(exact.max()), "white", rng)
            cases.append((f"10,000 e, wrong by {error:.0%}", true, 1e4))
        for case, true, full_well in cases:
            yield case, name, capture(cube, exact, true, full_well, 1), cube
    for (camera, (make, nm, electrons)), (name, scene) in itertools.product(CAMERAS.items(), SCENES.items()):
        for error in () if quick else ERRORS:
            rng = np.random.default_rng(TWIN_SEED)
            mask, cube = make(rng, size), torch.as_tensor(scene(rng, size, nm), dtype=torch.float32)
            true = wrong(mask, error, "white", rng)
            case = f"simulated, {'mask exact' if error == 0 else f'wrong by {error:.0%}'}"
            yield case, f"{name}, {camera}", capture(cube, mask, true, electrons, TWIN_SEED, nm), cube


def capture(
    cube: Tensor, mask: np.ndarray, true: np.ndarray, full_well: float | None, seed: int, nm: np.ndarray | None = None
) -> Measurement:
    """A snapshot through the `true` mask, given with the other one."""
    shifts = tuple(range(0, STEP * len(cube), STEP))
    y = CASSI(torch.as_tensor(true, dtype=torch.float32), shifts).forward(cube)
    if full_well is not None:
        y = detect(y, full_well=full_well, read_noise=READ_NOISE, generator=torch.Generator().manual_seed(seed)).y
    return Measurement(y=y.numpy(), mask=mask.astype(np.float32), shifts=shifts, wavelengths=nm)


def windows(data: Path | None, count: int, size: int) -> list[tuple[str, Tensor, Tensor]]:
    """Name, true cube (maximum 1) and mask of each window; half of the masks are random, half pieces of a real one."""
    if data is None:
        draw_from = torch.Generator().manual_seed(3)
        nm = np.linspace(450, 650, BANDS).tolist()
        painted = [procedural_scene(size, size, nm, generator=draw_from) for _ in range(count)]
        return [(f"painted {k}", cube, random_mask(size, size, generator=draw_from)) for k, cube in enumerate(painted)]
    paths = [path for path in sorted((data / "cave_train").glob("*.h5")) if path.stem not in FITTED]
    if not paths:
        raise ValueError(f"no cave_train/*.h5 in {data}")
    real = _real_mask(data)
    made = []
    for k in range(count):
        path = paths[k % len(paths)]
        name = f"{path.stem} {1 + k // len(paths)}"
        draw = np.random.default_rng(zlib.crc32(name.encode()))
        cube = _window(path, size, draw)
        mask = random_mask(size, size, generator=torch.Generator().manual_seed(k))
        if real is not None and k % 2:
            i, j = (int(draw.integers(0, n - size + 1)) for n in real.shape)
            mask = real[i : i + size, j : j + size].clone()
        made.append((name, cube, mask))
    return made


def _window(path: Path, size: int, draw: np.random.Generator) -> Tensor:
    """Of four windows drawn, the one with the most contrast: much of these scenes is black cloth."""
    import h5py

    with h5py.File(path) as file:
        stored = file["cube_sqrt"]
        corners = [tuple(int(draw.integers(0, n - size + 1)) for n in stored.shape[1:]) for _ in range(4)]
        cubes = [(torch.from_numpy(stored[-BANDS:, i : i + size, j : j + size]).float() / 255) ** 2 for i, j in corners]
    cube = max(cubes, key=lambda c: float(c.std()))
    return cube / cube.max()


def _real_mask(data: Path) -> Tensor | None:
    from scipy.io import loadmat

    path = data / "tsa_real" / "mask.mat"
    return torch.from_numpy(loadmat(path)["mask"].astype(np.float32)) if path.is_file() else None


def covered(case: str, name: str, m: Measurement, cube: Tensor) -> Coverage:
    """One snapshot, by the whole default."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = reconstruct(m, uncertainty=True)
    if found.uncertainty is None:
        raise RuntimeError("no uncertainty was made")
    error, sigma = ((t.double().numpy()) for t in ((found.cube - cube).abs(), found.uncertainty))
    truth = cube.double().numpy()
    slopes = np.gradient(truth, axis=(1, 2))
    steep = slopes[0] ** 2 + slopes[1] ** 2

    def share(chosen: np.ndarray) -> tuple[float, float]:
        return float((error <= sigma)[chosen].mean()), float((error <= 2 * sigma)[chosen].mean())

    low, high = np.quantile(truth, (1 / 3, 2 / 3))
    return Coverage(
        name,
        case,
        share(np.ones(truth.shape, bool)),
        share(truth <= low),
        share(truth >= high),
        share(steep >= np.quantile(steep, 0.9)),
    )


def table(rows: list[Coverage]) -> str:
    """Pooled, by kind of voxel."""
    lines = [
        "Share of the voxels [%] whose true error lies within one / two standard deviations; a normal distribution "
        f"has 68 / 95. {len({row.scene for row in rows})} scenes, step {STEP}, that no constant was chosen on\n",
        "| noise and mask | all voxels | dark third | bright third | edges (steepest tenth) | window by window |",
        "|---" * 6 + "|",
    ]
    for case in dict.fromkeys(row.case for row in rows):
        own = [row for row in rows if row.case == case]
        kinds = [np.mean([getattr(row, kind) for row in own], 0) for kind in ("within", "dark", "bright", "edge")]
        each = 100 * np.array([row.within for row in own])
        spread = ", ".join(f"{low:.0f} to {high:.0f}" for low, high in zip(each.min(0), each.max(0), strict=True))
        lines.append(f"| {case} | {' | '.join(map(_cell, kinds))} | {spread} |")
    return "\n".join(lines)


def _cell(shares: tuple[float, float] | np.ndarray) -> str:
    return f"{100 * shares[0]:.1f} / {100 * shares[1]:.1f}"
