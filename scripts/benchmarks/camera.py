"""What calibration, alignment and more snapshots are worth, as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from benchmarks.quality import NOISES, Scene, add_noise, simulated_scenes
from cassi.calibration.estimate import Calibration, calibrate
from cassi.calibration.found_camera import find_camera
from cassi.files import read_cube
from cassi.looking.metrics import psnr
from cassi.optics.measurement import Measurement
from cassi.optics.multi_shot import MultiShot
from cassi.optics.other_cameras import double_disperser, video_camera
from cassi.optics.protocol import Camera
from cassi.optics.single_disperser import CASSI
from cassi.running.front_door import reconstruct
from cassi.simulation.camera import random_mask
from cassi.simulation.optical_bench import Bench, simulate_bench
from cassi.simulation.scene import procedural_scene
from cassi.solvers.gap import gap_tv


def camera(data: Path | None = None, *, report: Callable[[str], None] = print) -> str:
    """Run everything and return it as Markdown.

    Args:
        data: folder with kaist/*.h5, cave/*.mat and cave_train/*.h5; without it wrong masks are not measured.
        report: called with one line of progress at a time.
    """
    parts = [bench_table(report), cameras_table(report)]
    if data is not None:
        parts.append(mismatch_table(data, report))
    return "\n\n".join(parts)


def bench_table(report: Callable[[str], None]) -> str:
    """A simulated bench: the cube with the calibrated camera, the true one, and the drawn one."""
    lines = ["| bench | calibrated [dB] | true camera [dB] | no calibration [dB] |", "|---|---|---|---|"]
    for seed in range(3):
        bench = simulate_bench(generator=torch.Generator().manual_seed(seed))
        found = calibrate(bench.dark, bench.flat, bench.mask_frames, bench.mask_wavelengths)
        cells = [_likeness(m, bench) for m in _views(bench, found)]
        lines.append(f"| seed {seed} | " + " | ".join(f"{value:.2f}" for value in cells) + " |")
        report(lines[-1])
    return "\n".join(lines)


def _views(bench: Bench, found: Calibration) -> tuple[Measurement, Measurement, Measurement]:
    """The snapshot seen through the calibration, the true camera, and the aperture as drawn without any correction."""
    y, bad = found.correct(bench.snapshot)
    calibrated = Measurement(
        y=y,
        mask=found.mask,
        shifts=found.shifts,
        wavelengths=found.wavelengths,
        bad_pixels=bad,
        gain=found.gain,
        read_noise=found.read_noise,
    )
    # the aperture as it lies, over the two pixels that the light of a band spreads over
    true_mask = ndimage.convolve1d(bench.mask, [0.25, 0.5, 0.25], axis=1).astype(np.float32)
    true = replace(calibrated, mask=true_mask, shifts=bench.shifts, wavelengths=bench.wavelengths)
    raw = bench.snapshot.astype(np.float32) - float(np.median(bench.dark))
    return calibrated, true, Measurement(y=raw, mask=bench.design, shifts=bench.shifts)


def _likeness(m: Measurement, bench: Bench) -> float:
    """PSNR at the best common scale: without calibration the cube has no unit."""
    cube, truth = reconstruct(m).cube, torch.as_tensor(bench.cube)
    scale = (cube * truth).sum() / cube.square().sum()
    return psnr((scale * cube).clamp(0, 1), truth.clamp(0, 1))


def cameras_table(report: Callable[[str], None], *, size: int = 128, num_bands: int = 16) -> str:
    """Each kind of camera with one snapshot and with two, GAP-TV, noise-free."""
    generator = torch.Generator().manual_seed(0)
    scene = procedural_scene(size, size, torch.linspace(450, 650, num_bands), generator=generator)
    shifts = tuple(range(0, 2 * num_bands, 2))

    def mask(width: int = size) -> Tensor:
        return random_mask(size, width, generator=generator)

    wide = size + max(shifts)
    kinds: dict[str, tuple[CASSI, CASSI]] = {
        "single disperser": (CASSI(mask(), shifts), CASSI(mask(), shifts)),
        "double disperser": (double_disperser(mask(wide), shifts), double_disperser(mask(wide), shifts)),
        "video": (
            video_camera(torch.stack([mask() for _ in shifts])),
            video_camera(torch.stack([mask() for _ in shifts])),
        ),
    }
    first = kinds["single disperser"][0]
    kinds["single disperser, prism turned for the second"] = (first, CASSI(mask(), tuple(-d for d in shifts)))
    lines = ["| camera | one snapshot [dB] | two [dB] |", "|---|---|---|"]
    for name, shots in kinds.items():
        one, two = (_gap_tv_psnr(A, A.forward(scene), scene) for A in (shots[0], MultiShot(shots)))
        lines.append(f"| {name} | {one:.2f} | {two:.2f} |")
        report(lines[-1])
    return "\n".join(lines)


def mismatch_table(data: Path, report: Callable[[str], None]) -> str:
    """What the default loses where the mask is not the one it was given, to the same with the true one."""
    lines = ["| scene | mismatch | noise | true camera [dB] | found [dB] | given [dB] | lost |", "|" + "---|" * 7]
    lost: dict[tuple[str, str], list[float]] = {}
    for scene in _mismatched_scenes(data):
        for mismatch, kind in MISMATCHES.items():
            for noise in ("clean", "10,000 e"):
                case = scene.with_mask(kind, None if noise == "clean" else NOISES[noise])
                if case is None:
                    continue
                given, true = case
                found = find_camera(given).in_place(given)
                best, after, before = (scene.psnr(reconstruct(m, camera="as-given").cube) for m in (true, found, given))
                lost.setdefault((mismatch, noise), []).append(best - after)
                cells = " | ".join(f"{value:.2f}" for value in (best, after, before, best - after))
                lines.append(f"| {scene.name} | {mismatch} | {noise} | {cells} |")
                report(lines[-1])
    lines += ["", "| mismatch | noise | lost on average [dB] | at most |", "|---|---|---|---|"]
    lines += [f"| {m} | {n} | {np.mean(v):.2f} | {max(v):.2f} |" for (m, n), v in lost.items()]
    return "\n".join(lines)


@dataclass(frozen=True)
class Mismatch:
    """How the mask that took the snapshot differs from the one in the file; lengths [pixel], rotation [degree]."""

    dx: float = 0.0
    dy: float = 0.0
    rotation: float = 0.0
    magnification: float = 1.0
    blur: float = 0.0
    contrast: float = 1.0

    def of(self, mask: Tensor) -> Tensor:
        """The mask that takes the snapshot."""
        moved = moved_mask(
            mask, dx=self.dx, dy=self.dy, rotation=self.rotation, magnification=self.magnification
        ).numpy()
        blurred = ndimage.gaussian_filter(moved, self.blur) if self.blur else moved
        level = float(mask.mean())
        return torch.as_tensor(level + self.contrast * (blurred - level)).clamp(min=0)

    def undone(self, mask: Tensor) -> Tensor | None:
        """A mask that becomes the given one by this; None where detail would have to be invented."""
        if self.blur or self.contrast != 1:
            return None
        turn, zoom = math.radians(self.rotation), self.magnification
        dx = -(math.cos(turn) * self.dx - math.sin(turn) * self.dy) / zoom
        dy = -(math.cos(turn) * self.dy + math.sin(turn) * self.dx) / zoom
        return moved_mask(mask, dx=dx, dy=dy, rotation=-self.rotation, magnification=1 / zoom)


MISMATCHES = {
    "moved by 1 px": Mismatch(dx=1.0),
    "turned by 0.4 degrees": Mismatch(rotation=0.4),
    "0.5 px, 0.2 degrees, 0.2 %": Mismatch(dx=0.5, dy=0.5, rotation=0.2, magnification=1.002),
    "blurred by 0.7 px": Mismatch(blur=0.7),
    "contrast 0.8": Mismatch(contrast=0.8),
    "all together": Mismatch(1.0, 0.5, 0.2, 1.002, 0.7, 0.8),
}


@dataclass(frozen=True)
class _Mismatched:
    """A scene of which the cube is known, or a snapshot of which the true mask is (and the mean over the bands)."""

    scene: Scene

    @property
    def name(self) -> str:
        return self.scene.name

    def with_mask(self, kind: Mismatch, full_well: float | None) -> tuple[Measurement, Measurement] | None:
        """The snapshot with the mask of a file, and with what becomes of that one where the snapshot is taken."""
        mask, shifts, cube = self.scene.A.mask, self.scene.A.shifts, self.scene.cube
        given = kind.undone(mask) if cube is None else mask
        if given is None:
            return None
        true, taken = kind.of(given), self.scene
        if cube is not None:
            A = CASSI(true, shifts)
            taken = Scene(self.name, A, A.forward(cube), cube=cube)
        y = add_noise(taken, full_well).y.numpy()
        first, second = (Measurement(y=y, mask=mask.numpy(), shifts=shifts) for mask in (given, true))
        return first, second

    def psnr(self, x: Tensor) -> float:
        """Of the cube, or of the mean over its bands."""
        if self.scene.cube is not None:
            return psnr(x.clamp(0, 1), self.scene.cube)
        return psnr(x.mean(0), self.scene.mean_band)


def _mismatched_scenes(data: Path) -> Iterator[_Mismatched]:
    """KAIST's snapshots, CAVE's cubes, and two easy scenes, whose smooth faces show what is lost."""
    scenes = [scene for scene in simulated_scenes(data) if scene.name != "procedural"]
    mask, shifts = scenes[0].A.mask, scenes[0].A.shifts
    yield from map(_Mismatched, scenes)
    for name in ("superballs", "face"):
        cube = torch.from_numpy(read_cube(data / "cave_train" / f"{name}.h5")[0][-28:, 128:384, 128:384].copy())
        cube /= cube.max()
        A = CASSI(mask, shifts)
        yield _Mismatched(Scene(f"CAVE {name}", A, A.forward(cube), cube=cube))


def moved_mask(mask: Tensor, *, dx: float, dy: float, rotation: float, magnification: float = 1.0) -> Tensor:
    """The mask in another pose, by quintic splines (the search has Fourier and cubic ones); mirrored at its border."""
    height, width = mask.shape
    turn = math.radians(rotation)
    inverse = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]]) / magnification
    center = np.array([(height - 1) / 2, (width - 1) / 2])
    offset = center - inverse @ (center + np.array([dy, dx]))
    border = 20
    wide = np.pad(mask.double().numpy(), border, mode="reflect")
    moved = ndimage.affine_transform(wide, inverse, offset + border, output_shape=mask.shape, order=5).clip(0)
    return torch.as_tensor(moved).float()


def _gap_tv_psnr(A: Camera, y: Tensor, cube: Tensor) -> float:
    return psnr(gap_tv(A, y, tv_weight=0.3 * float(cube.mean()), num_iters=60).x.clamp(0, 1), cube)
