"""Quality side by side: every solver on every scene there is, clean and noisy, and held-out pixels of real captures."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.choice.automatic import reconstruct_auto
from cassi.evidence.held_out import Split
from cassi.looking.metrics import psnr, sam, ssim
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.detector import black_level_of, brightness, detect
from cassi.optics.psf import gaussian_psf
from cassi.optics.single_disperser import CASSI
from cassi.running.arguments import open_files
from cassi.settings import Settings
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.solvers.admm import admm_tv
from cassi.solvers.gap import gap_tv
from cassi.solvers.least_squares import least_squares

WEIGHTS = (0.05, 0.1, 0.2)  # of the GAP-TV loop; the best is chosen with the truth, which no user has
READ_NOISE = 5.0  # electrons
NOISES: dict[str, float | None] = {"clean": None, "10,000 e": 1e4, "1,000 e": 1e3}


@dataclass(frozen=True)
class Scene:
    """A snapshot to reconstruct, with what is known of the truth: a cube, the mean over its bands, or nothing."""

    name: str
    A: CASSI
    y: Tensor
    cube: Tensor | None = None
    mean_band: Tensor | None = None

    def psnr(self, x: Tensor) -> float:
        """Of the cube, clipped to [0, 1], peak 1; where it is not known, of the mean over its bands."""
        x = x.cpu().clamp(0, 1)
        if self.cube is not None:
            return psnr(x, self.cube)
        if self.mean_band is None:
            raise ValueError(f"scene {self.name} has no truth to compare with")
        return psnr(x.mean(0, keepdim=True), self.mean_band[None])


@dataclass(frozen=True)
class Row:
    """One solver on one scene."""

    scene: str
    noise: str
    solver: str
    seconds: float
    psnr: float
    ssim: float | None
    sam: float | None


def quality(
    data: Path | None = None, *, quick: bool = False, weights: str | None = None,
    report: Callable[[str], None] = print,
) -> str:  # fmt: skip
    """Run the comparison and return it as Markdown.

    Args:
        data: folder with kaist/*.h5, cave/*.mat and real captures; the project's own procedural scene is always there.
        quick: the procedural scene alone, small.
        weights: only the automatic solver, with these weights, on eight windows of CAVE scenes too.
        report: called with one line of progress at a time.
    """
    rows: list[Row] = []
    scenes = list(simulated_scenes(None if quick else data, size=96 if quick else 256))
    if weights is not None:
        settings = open_files(Settings(weights=weights))
        for scene, noise in itertools.product([*scenes, *windows(scenes, None if quick else data)], NOISES):
            noisy = add_noise(scene, NOISES[noise])
            name = f"auto, {weights}"
            rows.append(measure(noisy, noise, name, lambda s: reconstruct_auto(s.A, s.y, settings=settings).result.x))
            report(_line(rows[-1]))
        return f"{_psnr_table(rows)}\n\n{_detail_table(rows)}"
    for scene in scenes:
        for noise, full_well in NOISES.items():
            noisy = add_noise(scene, full_well)
            auto, loop = in_turns(noisy, noise)
            others = (measure(noisy, noise, name, solve) for name, solve in OTHERS.items())
            for row in itertools.chain((auto,), others, (loop,)):
                rows.append(row)
                report(_line(row))
    parts = [_psnr_table(rows), _gain_table(rows), _detail_table(rows)]
    parts.append(blur_table({s.name: s.cube for s in scenes if s.cube is not None}, report=report))
    captures = [] if quick or data is None else list(real_captures(data))
    if captures:
        parts.append(held_out_table(captures, report=report))
    return "\n\n".join(parts)


def in_turns(scene: Scene, noise: str) -> tuple[Row, Row]:
    """The automatic solver and the GAP-TV loop, one after the other for each of the loop's weights.

    Machines change their pace, so the two are timed side by side; seconds are the median of the three runs. Of the
    loop the cube with the best weight counts, of the automatic solver the first (all three are the same).
    """
    auto, loop = [], []
    for w in WEIGHTS:
        auto.append(measure(scene, noise, "auto", lambda s: reconstruct_auto(s.A, s.y).result.x))
        loop.append(measure(scene, noise, "GAP-TV loop", lambda s, w=w: scikit_image_gap_tv(s, w)))  # type: ignore[misc]

    def timed(row: Row, runs: list[Row]) -> Row:
        return replace(row, seconds=float(np.median([run.seconds for run in runs])))

    return timed(auto[0], auto), timed(max(loop, key=lambda row: row.psnr), loop)


OTHERS: dict[str, Callable[[Scene], Tensor]] = {  # the package's other solvers with default settings
    "least-squares": lambda s: least_squares(s.A, s.y).x,
    "gap-tv": lambda s: gap_tv(s.A, s.y, tv_weight=0.3 * brightness(s.A, s.y)).x,
    "admm-tv": lambda s: admm_tv(s.A, s.y, tv_weight=0.03 * brightness(s.A, s.y) * float(s.A.gram_diag().mean())).x,
}


def scikit_image_gap_tv(scene: Scene, weight: float, *, num_iters: int = 50, tv_iters: int = 5) -> Tensor:
    """Accelerated GAP-TV as published: float64 numpy, scikit-image's Chambolle denoiser started anew each time."""
    from skimage.restoration import denoise_tv_chambolle

    mask = scene.A.mask.double().numpy()
    y, shifts, width = scene.y.double().numpy(), scene.A.shifts, mask.shape[-1]

    def forward(x: np.ndarray, m: np.ndarray) -> np.ndarray:
        total = np.zeros_like(y)
        for c, d in enumerate(shifts):
            total[:, d - min(shifts) : d - min(shifts) + width] += m * x[c]
        return total

    def adjoint(r: np.ndarray) -> np.ndarray:
        return np.stack([mask * r[:, d - min(shifts) : d - min(shifts) + width] for d in shifts])

    gram = forward(np.ones(scene.A.cube_shape), mask**2)
    gram[gram == 0] = 1
    x, b = adjoint(y), np.zeros_like(y)
    for _ in range(num_iters):
        y_x = forward(x, mask)
        b += y - y_x
        x = x + adjoint((b - y_x) / gram)
        x = denoise_tv_chambolle(x, weight, max_num_iter=tv_iters, channel_axis=0)  # type: ignore[no-untyped-call]
    return torch.from_numpy(x).float()


def measure(scene: Scene, noise: str, name: str, solve: Callable[[Scene], Tensor]) -> Row:
    """Time a solver and compare its cube, clipped to [0, 1], with the truth; peak 1."""
    start = time.perf_counter()
    x = solve(scene)
    seconds = time.perf_counter() - start
    x, cube = x.clamp(0, 1), scene.cube
    details = (None, None) if cube is None else (ssim(x, cube), sam(x, cube))
    return Row(scene.name, noise, name, seconds, scene.psnr(x), *details)


def add_noise(scene: Scene, full_well: float | None) -> Scene:
    """Photon noise at this many electrons at the brightest pixel, and read noise; the seed is fixed."""
    if full_well is None:
        return scene
    generator = torch.Generator().manual_seed(1)
    noisy = detect(scene.y, full_well=full_well, read_noise=READ_NOISE, generator=generator)
    return replace(scene, y=noisy.y)


def simulated_scenes(data: Path | None, *, size: int = 256) -> Iterator[Scene]:
    """KAIST snapshots (mean band known), CAVE cubes through the KAIST mask, and the procedural scene."""
    generator = torch.Generator().manual_seed(0)
    truth = procedural_scene(size, size, np.linspace(450, 650, 28).tolist(), generator=generator)
    A = CASSI.from_step(random_mask(size, size, generator=generator), step=2, num_bands=28)
    yield Scene("procedural", A, A.forward(truth), cube=truth)
    if data is None:
        return
    from cassi.files import read_cube, read_measurement

    mask: Tensor | None = None
    for path in sorted((data / "kaist").glob("*.h5")):
        m = read_measurement(path)
        mask = torch.from_numpy(m.mask)
        A = CASSI.from_step(mask, step=2, num_bands=len(m.shifts))
        mean_band = None if m.mean_band is None else torch.from_numpy(m.mean_band)
        yield Scene(f"KAIST {path.stem[-2:].lstrip('0')}", A, torch.from_numpy(m.y), mean_band=mean_band)
    if mask is None:
        return
    for path in sorted((data / "cave").glob("*.mat")):
        cube = torch.from_numpy(read_cube(path)[0][-28:].copy())
        cube /= cube.max()
        A = CASSI.from_step(mask[: cube.shape[1], : cube.shape[2]].clone(), step=2, num_bands=28)
        yield Scene(f"CAVE {path.stem}", A, A.forward(cube), cube=cube)


def windows(scenes: Sequence[Scene], data: Path | None) -> Iterator[Scene]:
    """Windows of 256 x 256 pixels of CAVE scenes that no weights were trained with, through the mask of KAIST."""
    from training.evaluate import windows

    A = next((scene.A for scene in scenes if scene.name.startswith("KAIST")), None)
    for name, cube in windows(data) if data is not None and A is not None else ():
        if not name.startswith("CAVE"):
            yield Scene(name, A, A.forward(cube), cube=cube)


def real_captures(data: Path) -> Iterator[Scene]:
    """Photographs by real instruments, less their black level; nobody knows the truth."""
    from cassi.files import read_measurement

    for folder, num_bands in (("tsa_real", 28), ("smem_real", 24)):
        for path in sorted((data / folder).glob("*.mat")):
            if path.stem != "mask":
                m = read_measurement(path, mask=data / folder / "mask.mat", num_bands=num_bands)
                A = CASSI(torch.from_numpy(m.mask), tuple(int(d) for d in m.shifts))
                y = torch.from_numpy(m.y)
                yield Scene(f"{folder.split('_')[0]} {path.stem}", A, y - black_level_of(A, y))


def blur_table(cubes: dict[str, Tensor], *, report: Callable[[str], None]) -> str:
    """What knowing blur and sub-pixel dispersion is worth, on the middle of each cube."""
    lines = ["| scene | right camera [dB] | whole shifts, no blur [dB] | gain [dB] |", "|---|---|---|---|"]
    for name, cube in cubes.items():
        top, left = (max(0, (n - 96) // 2) for n in cube.shape[1:])
        right, wrong = blur_gain(cube[:, top : top + 96, left : left + 96].contiguous())
        lines.append(f"| {name} | {right:.2f} | {wrong:.2f} | {right - wrong:+.2f} |")
        report(lines[-1])
    return (
        "Snapshots through optics that blur by 1 px (standard deviation) and disperse by 1.7 px a band, reconstructed "
        "by `auto` with that camera and with the nearest whole shifts; 96 x 96 pixels\n\n" + "\n".join(lines)
    )


def blur_gain(cube: Tensor, *, step: float = 1.7, sigma: float = 1.0, noise: float = 1e-3) -> tuple[float, float]:
    """PSNR [dB] of the same snapshot reconstructed with the camera that took it, and with whole shifts and no blur.

    Args:
        cube: truth (C, H, W) in [0, 1], float32.
        step: dispersion [pixel a band].
        sigma: of the Gaussian blur along the dispersion [pixel].
        noise: standard deviation added to the snapshot.
    """
    bands, height, width = cube.shape
    generator = torch.Generator().manual_seed(0)
    mask = random_mask(height, width, generator=generator)
    right = BlurredCASSI(mask, tuple(step * c for c in range(bands)), psf=gaussian_psf(sigma))
    wrong = CASSI(mask, tuple(round(step * c) for c in range(bands)))
    y = right.forward(cube)
    y = y + noise * torch.randn(y.shape, generator=generator)
    y_wrong = F.pad(y, (0, wrong.detector_width - y.shape[1]))  # a negative pad crops
    found = [reconstruct_auto(camera, seen).result.x for camera, seen in ((right, y), (wrong, y_wrong))]
    return psnr(found[0].clamp(0, 1), cube), psnr(found[1].clamp(0, 1), cube)


def held_out_table(captures: list[Scene], *, report: Callable[[str], None]) -> str:
    """|y - Phi x| / |y| over 2 % of the pixels that no solver saw; of GAP-TV the best of three weights."""
    lines = ["| real capture | auto | s | GAP-TV, best weight | s | least squares |", "|---" * 6 + "|"]
    for scene in captures:
        split = Split.of(scene.A, scene.y, 1)

        def error(solve: Callable[[CASSI, Tensor], Tensor], split: Split = split) -> tuple[float, float]:
            start = time.perf_counter()
            x = solve(split.A_train, split.y_train)
            return split.error(x), time.perf_counter() - start

        found = [error(lambda A, y: reconstruct_auto(A, y).result.x)]
        weights = [w * brightness(split.A_train, split.y_train) for w in (0.1, 0.3, 0.6, 1.2)]
        found.append(min(error(lambda A, y, w=w: gap_tv(A, y, tv_weight=w).x) for w in weights))  # type: ignore[misc]
        cells = " | ".join(f"{value:.2%} | {seconds:.1f}" for value, seconds in found)
        lines.append(f"| {scene.name} | {cells} | {error(lambda A, y: least_squares(A, y).x)[0]:.2%} |")
        report(lines[-1])
    return "Error at held-out pixels of real captures (no truth is known)\n\n" + "\n".join(lines)


def _line(row: Row) -> str:
    return f"{row.scene:14} {row.noise:9} {row.solver:14} {row.psnr:6.2f} dB {row.seconds:7.1f} s"


def _psnr_table(rows: list[Row]) -> str:
    """PSNR by scene and solver, a line a scene and noise level."""
    names = list(dict.fromkeys(row.solver for row in rows))
    lines = ["| scene | noise | " + " | ".join(names) + " |", "|---|---" + "|---" * len(names) + "|"]
    for scene, noise in dict.fromkeys((row.scene, row.noise) for row in rows):
        found = {row.solver: row for row in rows if (row.scene, row.noise) == (scene, noise)}
        cells = " | ".join(f"{found[n].psnr:.2f} ({found[n].seconds:.1f} s)" for n in names)
        lines.append(f"| {scene} | {noise} | {cells} |")
    return (
        "PSNR [dB] and seconds; KAIST: mean over bands only. GAP-TV loop: best of three weights; it and auto timed "
        "in turns, three times, median\n\n" + "\n".join(lines)
    )


def _gain_table(rows: list[Row]) -> str:
    """How far the automatic solver is ahead of the loop."""
    lines = [
        "| noise | scenes | mean gain of auto [dB] | worst [dB] | time / loop, mean | at most |",
        "|---|---|---|---|---|---|",
    ]
    for noise in dict.fromkeys(row.noise for row in rows):
        for family in dict.fromkeys(row.scene.split()[0] for row in rows):
            chosen = [r for r in rows if r.noise == noise and r.scene.split()[0] == family]
            auto = {r.scene: r for r in chosen if r.solver == "auto"}
            loop = {r.scene: r for r in chosen if r.solver == "GAP-TV loop"}
            gains = [auto[s].psnr - loop[s].psnr for s in auto]
            ratio = max(auto[s].seconds / loop[s].seconds for s in auto)
            mean_ratio = np.mean([auto[s].seconds / loop[s].seconds for s in auto])
            cells = f"{np.mean(gains):+.2f} | {min(gains):+.2f} | {mean_ratio:.2f} | {ratio:.2f}"
            lines.append(f"| {noise} | {family} ({len(gains)}) | {cells} |")
    return "Gain of the automatic solver over the GAP-TV loop with its best weight\n\n" + "\n".join(lines)


def _detail_table(rows: list[Row]) -> str:
    """SSIM and SAM where the true cube is known."""
    lines = ["| scene | noise | solver | PSNR [dB] | SSIM | SAM [degrees] |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {r.scene} | {r.noise} | {r.solver} | {r.psnr:.2f} | {r.ssim:.3f} | {r.sam:.1f} |"
        for r in rows
        if r.ssim is not None and r.sam is not None
    ]
    return "Scenes whose true cube is known\n\n" + "\n".join(lines)
