"""What calibration, alignment and more snapshots are worth, as Markdown."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from benchmarks.quality import NOISES, Scene, add_noise, real_captures, simulated_scenes
from benchmarks.side import window
from cassi.calibration.estimate import Calibration, calibrate
from cassi.looking.metrics import psnr
from cassi.optics.measurement import Measurement
from cassi.optics.multi_shot import MultiShot
from cassi.optics.other_cameras import double_disperser, video_camera
from cassi.optics.protocol import Camera
from cassi.optics.single_disperser import CASSI
from cassi.running.reconstruct import reconstruct
from cassi.self_calibration.found_camera import FoundCamera
from cassi.self_calibration.search import align, find_camera
from cassi.simulation.camera import random_mask
from cassi.simulation.optical_bench import Bench, simulate_bench
from cassi.simulation.scene import procedural_scene
from cassi.solvers.gap import gap_tv

TARGETS = {"dx": 0.1, "dy": 0.1, "rotation": 0.05, "step": 0.003}


def camera(data: Path | None = None, *, trials: int = 6, report: Callable[[str], None] = print) -> str:
    """Run everything and return it as Markdown.

    Args:
        data: folder with kaist/*.h5, cave/*.mat, cave_train/*.h5 and real captures; without it neither alignment nor
            wrong masks are measured.
        trials: random poses a scene.
        report: called with one line of progress at a time.
    """
    parts = [bench_table(report), cameras_table(report)]
    if data is not None:
        parts += [alignment_table(data, trials, report), captures_table(data, report), mismatch_table(data, report)]
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


def alignment_table(data: Path, trials: int, report: Callable[[str], None]) -> str:
    """Random poses of the published mask, found from one snapshot, and the decibels they cost and regain."""
    heading = (
        "| scene | dx [px] | dy [px] | rotation [deg] | step | seconds | misaligned [dB] | aligned [dB] "
        "| pose known [dB] | regained |"
    )
    lines = [heading, "|" + "---|" * 10]
    worst = dict.fromkeys(TARGETS, 0.0)
    random = np.random.default_rng(0)
    shares = []
    for name, mask, cube in _benchmark_scenes(data):
        shifts = tuple(range(0, 2 * len(cube), 2))
        for _ in range(trials):
            dx, dy, turn, stretch = random.uniform(-1, 1, 4) * (2, 2, 0.5, 0.03)
            y = photograph(mask, cube, shifts, dx=dx, dy=dy, rotation=turn, stretch=stretch)
            # what a camera in this pose gives if it is known: its own mask, dispersion on whole pixels
            moved = moved_mask(mask, dx=dx, dy=dy, rotation=turn)
            known = photograph(mask, cube, shifts, dx=dx, dy=dy, rotation=turn)
            best = _gap_tv_psnr(CASSI(moved, shifts), known, cube)
            start = time.perf_counter()
            found = align(y, mask, shifts)
            seconds = time.perf_counter() - start
            before = _gap_tv_psnr(CASSI(mask, shifts), y, cube)
            after = _gap_tv_psnr(CASSI(torch.as_tensor(found.mask), found.shifts), y, cube, found)
            shares.append((after - before) / (best - before))
            errors = {
                "dx": found.model.right.get("1", 0.0) - dx,
                "dy": found.model.down.get("1", 0.0) - dy,
                "rotation": found.turn - turn,
                "step": found.dispersion - stretch,
            }
            worst = {key: max(worst[key], abs(error)) for key, error in errors.items()}
            lines.append(
                f"| {name} | {dx:+.2f} ({errors['dx']:+.3f}) | {dy:+.2f} ({errors['dy']:+.3f}) "
                f"| {turn:+.2f} ({errors['rotation']:+.3f}) | {100 * stretch:+.2f} % ({100 * errors['step']:+.2f} %) "
                f"| {seconds:.1f} | {before:.2f} | {after:.2f} | {best:.2f} | {100 * shares[-1]:.0f} % |"
            )
            report(lines[-1])
    largest = ", ".join(f"{key} {value:.4f} (target {TARGETS[key]})" for key, value in worst.items())
    mean = 100 * float(np.mean(shares))
    lines += ["", f"In brackets the error. Largest: {largest}. Regained on average: {mean:.0f} % of the decibels lost."]
    return "\n".join(lines)


def captures_table(data: Path, report: Callable[[str], None]) -> str:
    """Real captures: what alignment changes, and the error at pixels held out."""
    lines = ["| capture | found | held-out error before | after | seconds |", "|---|---|---|---|---|"]
    for capture in real_captures(data):
        start = time.perf_counter()
        found = align(capture.y, capture.A.mask, capture.A.shifts)
        before, after = ("" if found.errors is None else f"{100 * error:.2f} %" for error in found.errors or (0, 0))
        lines.append(f"| {capture.name} | {found.message} | {before} | {after} | {time.perf_counter() - start:.0f} |")
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
                cubes = (reconstruct(m, camera="as-given").cube for m in (true, found, given))
                best, after, before = map(scene.scene.psnr, cubes)
                lost.setdefault((mismatch, noise), []).append(best - after)
                cells = " | ".join(f"{value:.2f}" for value in (best, after, before, best - after))
                lines.append(f"| {scene.scene.name} | {mismatch} | {noise} | {cells} |")
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


BORDER = 4  # beyond which no mismatch reaches [pixel]
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

    def with_mask(self, kind: Mismatch, full_well: float | None) -> tuple[Measurement, Measurement] | None:
        """The snapshot with the mask of a file, and with what becomes of that one where the snapshot is taken."""
        mask, shifts, cube = self.scene.A.mask, self.scene.A.shifts, self.scene.cube
        given = kind.undone(mask) if cube is None else mask
        if given is None:
            return None
        true, taken = kind.of(given), self.scene
        if cube is None:  # what lies beyond the given mask is that of the snapshot, which was taken long ago
            inner = slice(BORDER, -BORDER)
            known, true = true[inner, inner], mask.clone()
            true[inner, inner] = known
        else:
            A = CASSI(true, shifts)
            taken = Scene(self.scene.name, A, A.forward(cube), cube=cube)
        y = add_noise(taken, full_well).y.numpy()
        first, second = (Measurement(y=y, mask=mask.numpy(), shifts=shifts) for mask in (given, true))
        return first, second


def _mismatched_scenes(data: Path) -> Iterator[_Mismatched]:
    """KAIST's snapshots, CAVE's cubes, and an easy scene, whose smooth faces show what is lost."""
    scenes = [scene for scene in simulated_scenes(data) if scene.name != "procedural"]
    mask, shifts = scenes[0].A.mask, scenes[0].A.shifts
    yield from map(_Mismatched, scenes)
    cube = window(data, "superballs", 256)
    A = CASSI(mask, shifts)
    yield _Mismatched(Scene("CAVE superballs", A, A.forward(cube), cube=cube))


def photograph(
    mask: Tensor,
    cube: Tensor,
    shifts: tuple[int, ...],
    *,
    dx: float = 0.0,
    dy: float = 0.0,
    rotation: float = 0.0,
    stretch: float = 0.0,
) -> Tensor:
    """A snapshot by a misaligned camera, by quintic splines: `align` uses cubic ones."""
    height, width = mask.shape
    moved = moved_mask(mask, dx=dx, dy=dy, rotation=rotation).double().numpy()
    span = max(shifts)
    y = np.zeros((height, width + span + 8))  # light that a stretched spectrum carries beyond the detector is lost
    for band, d in zip(cube.double().numpy(), shifts, strict=True):
        light = np.pad(moved * band, ((0, 0), (0, span + 8)))
        y += ndimage.shift(light, (0, d * (1 + stretch)), order=5)
    return torch.as_tensor(y[:, : width + span]).float()


def moved_mask(mask: Tensor, *, dx: float, dy: float, rotation: float, magnification: float = 1.0) -> Tensor:
    """The mask in another pose, by quintic splines (the search has cubic ones).

    Beyond its border it goes on with the elements of its other end, which no search knows there. No element lets more
    than all of the light pass, or less than none.
    """
    height, width = mask.shape
    turn = math.radians(rotation)
    inverse = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]]) / magnification
    center = np.array([(height - 1) / 2, (width - 1) / 2])
    offset = center - inverse @ (center + np.array([dy, dx]))
    border = 20
    wide = np.pad(mask.double().numpy(), border, mode="wrap")
    moved = ndimage.affine_transform(wide, inverse, offset + border, output_shape=mask.shape, order=5)
    return torch.as_tensor(moved).float().clamp(mask.min(), mask.max())


def _benchmark_scenes(data: Path) -> Iterator[tuple[str, Tensor, Tensor]]:
    """True cubes of the size of the published mask, with that mask."""
    scenes = list(simulated_scenes(data))
    mask = next(scene.A.mask for scene in scenes if scene.mean_band is not None)
    for scene in scenes:
        if scene.cube is not None and scene.cube.shape[-2:] == mask.shape:
            yield scene.name, mask, scene.cube


def _gap_tv_psnr(A: Camera, y: Tensor, cube: Tensor, camera: FoundCamera | None = None) -> float:
    x = gap_tv(A, y, tv_weight=0.3 * float(cube.mean()), num_iters=60).x
    return psnr((x if camera is None else camera.register(x)).clamp(0, 1), cube)
