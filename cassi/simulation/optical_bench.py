"""A simulated optical bench: calibration frames, a snapshot, and the ground truth.

The light is continuous and the optics are not aligned with the pixels: there are several wavelengths per band and
several points per pixel, the dispersion is nonlinear, and the coded aperture is off the pixel grid. No operator of this
package is used, so that a calibration which recovers the camera does not merely invert its own model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from scipy import ndimage

from cassi.errors import InputError
from cassi.files import write_measurement
from cassi.files.atomic import replacing
from cassi.optics.measurement import Measurement
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.types import PathLike

FIRST, LAST = 450.0, 650.0  # shortest and longest wavelength of the mask frames [nm]
MASK_FRAMES = 5  # evenly spaced in wavelength
FRAMES = 4  # of dark and of flat frames
MISALIGNMENT = 0.4, -0.3  # of the coded aperture on the pixel grid, to the right and down [pixel]
FINE = 2  # points per pixel along each axis
PER_BAND = 4  # wavelengths per band
BIT_DEPTH = 12
FULL_WELL = 15_000.0  # electrons at full scale
READ_NOISE = 5.0  # electrons
DARK_LEVEL = 60.0  # counts


@dataclass(frozen=True)
class Bench:
    """The frames of a simulated bench, 12-bit counts in uint16, and the ground truth."""

    dark: np.ndarray  # (N, H, W') without light
    flat: np.ndarray  # (N, H, W') of uniform white light without the coded aperture
    mask_frames: np.ndarray  # (L, H, W'), the coded aperture under narrow-band light
    mask_wavelengths: np.ndarray  # (L,) [nm], of that light
    snapshot: np.ndarray  # (H, W'), the scene
    cube: np.ndarray  # (C, H, W), the truth: light of each band at each scene pixel, relative to a white surface
    wavelengths: np.ndarray  # (C,) [nm] of the bands
    shifts: tuple[int, ...]  # their displacements [pixel]
    mask: np.ndarray  # (H, W), the coded aperture as projected on the detector
    design: np.ndarray  # (H, W), as drawn
    counts_per_unit: float  # of light of the cube through an open element
    hot_pixels: np.ndarray  # (H, W') bool
    dead_pixels: np.ndarray


def dispersion(wavelengths: np.ndarray, num_bands: int) -> np.ndarray:
    """Displacement of light of these wavelengths [nm] relative to 450 nm [pixel].

        d(lambda) = a (lambda - 450) + b (1 / 450^2 - 1 / lambda^2)

    A grating and a prism combined: a and b give 2.3 pixels per band at 450 nm and 1.8 at 650 nm, where a band is
    200 / (num_bands - 1) nm.
    """
    slopes = np.array([2.3, 1.8]) * (num_bands - 1) / (LAST - FIRST)
    a, b = np.linalg.solve(np.array([[1, 2 / FIRST**3], [1, 2 / LAST**3]]), slopes)
    return np.asarray(a * (wavelengths - FIRST) + b * (1 / FIRST**2 - 1 / wavelengths**2))


def simulate_bench(
    height: int = 128, width: int = 128, *, num_bands: int = 28, step: int = 2, generator: torch.Generator
) -> Bench:
    """Simulate a bench and all its frames.

    A detector pixel with relative response g, dark level k_0 and light of n electrons per exposure reads
    k = clip(round(k_0 + Poisson(g n) / q + read noise), 0, 4095), q = 15000 / 4095 electrons per count. The response
    has vignetting, dust and a spread of 1 %; one pixel in a thousand is hot, one in two thousand is dead.

    Args:
        height, width: of the scene [pixel], at least 32.
        num_bands: C, at least 2.
        step: dispersion between the bands of the truth [pixel], at least 1.
        generator: source of randomness (CPU).

    Raises:
        ValueError: a number is out of range, or the bands span more pixels than the dispersion.
    """
    if min(height, width) < 32 or num_bands < 2 or step < 1:
        what = "a bench needs at least 32 x 32 pixels, 2 bands and a step of 1 px"
        raise ValueError(f"{what}, got {height} x {width} pixels, {num_bands} bands and a step of {step} px")
    random = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    span = step * (num_bands - 1)
    columns = width + span

    # wavelengths of the bands and, finer, of the light; the filter extends half a band further at either end
    grid = np.linspace(FIRST - 60, LAST + 60, 20_001)
    travel = dispersion(grid, num_bands)
    if span > travel[-1]:
        raise ValueError(f"{num_bands} bands of {step} px span {span} px, dispersion only {travel[-1]:.0f} px")
    centers = np.interp(step * np.arange(num_bands), travel, grid)
    edges = np.interp(step * (np.arange(num_bands + 1) - 0.5), travel, grid)
    # within a band evenly spaced; a white surface sends as much light into each of them
    light = (edges[:-1, None] + np.diff(edges)[:, None] * (np.arange(PER_BAND) + 0.5) / PER_BAND).ravel()
    share = 1 / PER_BAND

    scene = procedural_scene(FINE * height, FINE * width, torch.as_tensor(light), generator=generator).numpy()
    design = random_mask(height, width, generator=generator).numpy()
    aperture = np.kron(design, np.ones((FINE, FINE)))
    dx, dy = MISALIGNMENT
    aperture = ndimage.gaussian_filter(aperture, 0.5 * FINE)
    aperture = ndimage.shift(aperture, (FINE * dy, FINE * dx), order=3, mode="nearest").clip(0, 1)

    def image(pictures: Sequence[np.ndarray], wavelengths: np.ndarray) -> np.ndarray:
        """The light on the detector when each picture (fine grid) is displaced by its dispersion, (H, W')."""
        length = FINE * columns + 64
        frequencies = np.fft.rfftfreq(length)
        total = np.zeros((FINE * height, len(frequencies)), dtype=complex)
        moves = FINE * dispersion(wavelengths, num_bands)
        for picture, move in zip(pictures, moves, strict=True):
            total += np.fft.rfft(picture, n=length) * np.exp(-2j * np.pi * frequencies * move)
        fine = np.fft.irfft(total, n=length)[:, : FINE * columns]
        return np.asarray(_bin(fine).clip(0))

    cube = np.stack([_bin(band.mean(0)) for band in np.split(scene, num_bands)])
    snapshot = image([aperture * picture * share for picture in scene], light)
    mask_wavelengths = np.linspace(FIRST, LAST, MASK_FRAMES)
    mask_frames = [image([aperture], wavelength[None]) for wavelength in mask_wavelengths]

    response = _response(height, columns, random)
    dead = random.random(response.shape) < 5e-4
    hot = (random.random(response.shape) < 1e-3) & ~dead
    spread = random.normal(0, 1.5, (1, columns))
    offset = DARK_LEVEL + spread + np.where(hot, random.uniform(300, 2500, hot.shape), 0)
    response = np.where(dead, 0.02, response)

    def capture(signal: np.ndarray, *, peak: float) -> np.ndarray:
        """One frame whose brightest light reaches the fraction `peak` of full scale."""
        light = signal / signal.max() * peak * FULL_WELL * response if peak else signal
        electrons = random.poisson(light) + random.normal(0, READ_NOISE, signal.shape)
        counts = np.rint(offset + electrons * (2**BIT_DEPTH - 1) / FULL_WELL)
        return np.asarray(counts.clip(0, 2**BIT_DEPTH - 1), dtype=np.uint16)

    black, white = np.zeros((height, columns)), np.ones((height, columns))
    return Bench(
        dark=np.stack([capture(black, peak=0.0) for _ in range(FRAMES)]),
        flat=np.stack([capture(white, peak=0.8) for _ in range(FRAMES)]),
        mask_frames=np.stack([capture(frame, peak=0.8) for frame in mask_frames]),
        mask_wavelengths=mask_wavelengths,
        snapshot=capture(snapshot, peak=0.85),
        cube=cube.astype(np.float32),
        wavelengths=centers,
        shifts=tuple(range(0, step * num_bands, step)),
        mask=_bin(aperture).astype(np.float32),
        design=design,
        counts_per_unit=0.85 * (2**BIT_DEPTH - 1) / float(snapshot.max()),
        hot_pixels=hot,
        dead_pixels=dead,
    )


def write_bench(folder: PathLike, bench: Bench) -> list[Path]:
    """Write the files of a bench, whole or not at all, and return them.

    A 16-bit PNG per frame: dark_*, flat_*, mask_* (in the order of wavelengths.txt [nm]) and snapshot. For comparison,
    uncalibrated.h5 has the snapshot with the aperture and bands as designed, and truth.h5 the aperture as projected,
    the cube and its wavelengths.

    Raises:
        InputError: the folder is not empty.
    """
    whole = Path(folder)
    if whole.exists() and (not whole.is_dir() or any(whole.iterdir())):
        raise InputError(f"{whole}: exists and is not an empty folder; choose another name")
    whole.parent.mkdir(parents=True, exist_ok=True)
    named = {"dark": bench.dark, "flat": bench.flat, "mask": bench.mask_frames}
    pictures = {f"{kind}_{k:02d}": frame for kind, frames in named.items() for k, frame in enumerate(frames, 1)}
    y = bench.snapshot.astype(np.float32)
    design = Measurement(y, bench.design, bench.shifts, unit="counts")
    truth = Measurement(y, bench.mask, bench.shifts, bench.wavelengths, cube=bench.cube, unit="counts")
    stated = {"counts_per_unit": bench.counts_per_unit, "bit_depth": BIT_DEPTH}
    if whole.exists():
        whole.rmdir()
    with replacing(whole) as place:
        place.mkdir()
        for name, frame in (pictures | {"snapshot": bench.snapshot}).items():
            Image.fromarray(frame).save(place / f"{name}.png")
        (place / "wavelengths.txt").write_text("".join(f"{w:.3f}\n" for w in bench.mask_wavelengths), encoding="utf-8")
        write_measurement(place / "uncalibrated.h5", design)
        write_measurement(place / "truth.h5", truth, attributes=stated)
        names = sorted(path.name for path in place.iterdir())
    return [whole / name for name in names]


def _bin(fine: np.ndarray) -> np.ndarray:
    """The mean over the points of each pixel."""
    height, width = (n // FINE for n in fine.shape)
    return np.asarray(fine.reshape(height, FINE, width, FINE).mean((1, 3)))


def _response(height: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """Vignetting, dust on the sensor, and pixel-to-pixel variation; at most about 1."""
    i, j = np.mgrid[:height, :columns]
    radius = np.hypot(i - height / 2, j - columns / 2) / math.hypot(height / 2, columns / 2)
    response = 1 - 0.3 * radius**2
    for _ in range(8):
        row, column, size = random.uniform(0, height), random.uniform(0, columns), random.uniform(2, 5)
        shadow = random.uniform(0.1, 0.3) * np.exp(-((i - row) ** 2 + (j - column) ** 2) / (2 * size**2))
        response *= 1 - shadow
    return np.asarray(response * random.normal(1, 0.01, response.shape))
