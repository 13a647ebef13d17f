"""A simulated optical bench: what a camera's owner captures for its calibration, a snapshot, and the truth behind it.

The light is continuous and the optics fall between the pixels: several wavelengths to a band, several points to a
pixel, dispersion that is not linear, and a coded aperture off the pixel grid. No operator of this package takes part,
so a calibration that recovers the camera does not merely invert its own model.
"""

from __future__ import annotations

import math
import os
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

FINE = 2  # points per pixel, each way
PER_BAND = 4  # wavelengths per band
BIT_DEPTH = 12
FULL_WELL = 15_000.0  # electrons at full scale
READ_NOISE = 5.0  # electrons
DARK_LEVEL = 60.0  # counts


@dataclass(frozen=True)
class Bench:
    """The frames of a simulated bench, 12-bit counts in uint16, and what they were made from.

    Attributes:
        dark: (N, H, W') frames without light.
        flat: (N, H, W') frames of even white light with the coded aperture taken out.
        mask_frames: (L, H, W'), the coded aperture under narrow-band light of `mask_wavelengths` (L,) [nm].
        slit_frames: (L, H, W'), a slit across the dispersion, 1 pixel wide, in place of the aperture under that light.
        snapshot: (H, W'), the scene.
        cube: (C, H, W), the truth: light of each band at each scene pixel, in units of a white surface's.
        wavelengths: (C,) [nm] of the bands, displaced by `shifts` [pixel].
        mask: (H, W), the coded aperture as it lies on the detector; `design` as drawn.
        counts_per_unit: of the cube's light through an open element, in counts.
        hot_pixels, dead_pixels: (H, W') bool.
        blur: standard deviation along the dispersion at the shortest and the longest wavelength [pixel].
    """

    dark: np.ndarray
    flat: np.ndarray
    mask_frames: np.ndarray
    mask_wavelengths: np.ndarray
    slit_frames: np.ndarray
    snapshot: np.ndarray
    cube: np.ndarray
    wavelengths: np.ndarray
    shifts: tuple[int, ...]
    mask: np.ndarray
    design: np.ndarray
    counts_per_unit: float
    hot_pixels: np.ndarray
    dead_pixels: np.ndarray
    blur: tuple[float, float]


def dispersion(wavelengths: np.ndarray, *, num_bands: int, first: float, last: float) -> np.ndarray:
    """Displacement of light of these wavelengths [nm] from that of the `first` [pixel].

        d(lambda) = a (lambda - first) + b (1 / first^2 - 1 / lambda^2)

    A grating and a prism in one: a and b make 2.3 pixels a band at `first` and 1.8 at `last`, a band being
    (last - first) / (num_bands - 1).
    """
    width = (last - first) / (num_bands - 1)
    slopes = np.array([2.3, 1.8]) / width
    a, b = np.linalg.solve(np.array([[1, 2 / first**3], [1, 2 / last**3]]), slopes)
    return np.asarray(a * (wavelengths - first) + b * (1 / first**2 - 1 / wavelengths**2))


def simulate_bench(
    height: int = 128,
    width: int = 128,
    *,
    num_bands: int = 28,
    step: int = 2,
    first: float = 450.0,
    last: float = 650.0,
    num_mask_frames: int = 5,
    misalignment: tuple[float, float] = (0.4, -0.3),
    num_frames: int = 4,
    blur: tuple[float, float] = (0.0, 0.0),
    generator: torch.Generator,
) -> Bench:
    """Build a bench and capture everything on it.

    A detector pixel with relative response g, dark level k_0 and light of n electrons per exposure reads
    k = clip(round(k_0 + Poisson(g n) / q + read noise), 0, 4095), q = 15000 / 4095 electrons a count. The response has
    vignetting, dust and a spread of 1 %; one pixel in a thousand is hot, one in two thousand is dead.

    Args:
        height, width: of the scene [pixel], at least 32.
        num_bands: C, at least 2.
        step: dispersion between the bands that the truth is given in [pixel], at least 1.
        first, last: shortest and longest wavelength of the mask frames [nm].
        num_mask_frames: L, at least 2, evenly spaced in wavelength.
        misalignment: (dx, dy) of the coded aperture against the pixel grid [pixel].
        num_frames: N dark and flat frames each, at least 1.
        blur: standard deviation of the Gaussian by which the optics behind the aperture smear light along the
            dispersion, at `first` and at `last`, linear in between [pixel], >= 0.
        generator: source of randomness (CPU).

    Raises:
        ValueError: a number out of range, or more bands of `step` pixels than the dispersion holds.
    """
    for name, value, low in (
        ("height", height, 32), ("width", width, 32), ("num_bands", num_bands, 2), ("step", step, 1),
    ):  # fmt: skip
        if value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}")
    random = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    span = step * (num_bands - 1)
    columns = width + span

    # wavelengths: those of the bands and, finer, those that light comes in; the filter passes half a band more
    grid = np.linspace(first - 60, last + 60, 20_001)
    travel = dispersion(grid, num_bands=num_bands, first=first, last=last)
    if span > travel[-1]:
        raise ValueError(f"{num_bands} bands of {step} px span {span} px, dispersion only {travel[-1]:.0f} px")
    centers = np.interp(step * np.arange(num_bands), travel, grid)
    edges = np.interp(step * (np.arange(num_bands + 1) - 0.5), travel, grid)
    light = np.linspace(edges[0], edges[-1], PER_BAND * num_bands + 1)
    light = (light[1:] + light[:-1]) / 2
    # each fine wavelength carries an equal share of the spectrum; a band's light is what falls between its edges
    share = num_bands / len(light)

    scene = procedural_scene(FINE * height, FINE * width, torch.as_tensor(light), generator=generator).numpy()
    design = random_mask(height, width, generator=generator).numpy()
    aperture = np.kron(design, np.ones((FINE, FINE)))
    dx, dy = misalignment
    moved = ndimage.shift(
        ndimage.gaussian_filter(aperture, 0.5 * FINE), (FINE * dy, FINE * dx), order=3, mode="nearest"
    )
    aperture = moved.clip(0, 1)

    def image(pictures: Sequence[np.ndarray], wavelengths: np.ndarray) -> np.ndarray:
        """What falls on the detector when each picture (fine grid) is moved by its dispersion, and smeared; (H, W')."""
        length = FINE * columns + 64
        frequencies = np.fft.rfftfreq(length)
        total = np.zeros((FINE * height, len(frequencies)), dtype=complex)
        moves = FINE * dispersion(wavelengths, num_bands=num_bands, first=first, last=last)
        sigmas = FINE * np.interp(wavelengths, (first, last), blur)
        for picture, move, sigma in zip(pictures, moves, sigmas, strict=True):
            transfer = np.exp(-2j * np.pi * frequencies * move - 2 * (np.pi * frequencies * sigma) ** 2)
            total += np.fft.rfft(picture, n=length) * transfer
        fine = np.fft.irfft(total, n=length)[:, : FINE * columns]
        return np.asarray(_bin(fine).clip(0))

    bands = np.digitize(light, edges) - 1
    cube = np.stack([_bin(scene[bands == c].sum(0)) * share for c in range(num_bands)])
    snapshot = image([aperture * picture * share for picture in scene], light)
    mask_wavelengths = np.linspace(first, last, num_mask_frames)
    mask_frames = [image([aperture], wavelength[None]) for wavelength in mask_wavelengths]
    slit = np.zeros_like(aperture)
    slit[:, FINE * (width // 2) : FINE * (width // 2 + 1)] = 1
    slit_frames = [image([slit], wavelength[None]) for wavelength in mask_wavelengths]

    response = _response(height, columns, random)
    dead = random.random(response.shape) < 5e-4
    hot = (random.random(response.shape) < 1e-3) & ~dead
    spread = random.normal(0, 1.5, (1, columns))
    offset = DARK_LEVEL + spread + np.where(hot, random.uniform(300, 2500, hot.shape), 0)
    response = np.where(dead, 0.02, response)

    def capture(signal: np.ndarray, *, peak: float) -> np.ndarray:
        """One frame whose brightest corner of the light reaches `peak` of full scale."""
        light = signal / signal.max() * peak * FULL_WELL * response if peak else signal
        electrons = random.poisson(light) + random.normal(0, READ_NOISE, signal.shape)
        counts = np.rint(offset + electrons * (2**BIT_DEPTH - 1) / FULL_WELL)
        return np.asarray(counts.clip(0, 2**BIT_DEPTH - 1), dtype=np.uint16)

    black, white = np.zeros((height, columns)), np.ones((height, columns))
    return Bench(
        dark=np.stack([capture(black, peak=0.0) for _ in range(num_frames)]),
        flat=np.stack([capture(white, peak=0.8) for _ in range(num_frames)]),
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
        blur=blur,
        # captured last: the frames before it do not depend on it
        slit_frames=np.stack([capture(frame, peak=0.8) for frame in slit_frames]),
    )


def write_bench(folder: str | os.PathLike[str], bench: Bench) -> list[Path]:
    """Write a bench as its owner would find it, whole or not at all: a file a frame, wavelengths in a text file.

    dark_*, flat_*, mask_* and slit_* (a PNG of 16 bits a frame; the last two in the order of wavelengths.txt [nm]) and
    snapshot. Apart from these, to compare with: uncalibrated.h5, the snapshot with the aperture as drawn and the bands
    where the design has them, and truth.h5, with the aperture as it lies, the cube and its wavelengths. Returns the
    files.

    Raises:
        InputError: a folder with something in it.
    """
    whole = Path(folder)
    if whole.exists() and (not whole.is_dir() or any(whole.iterdir())):
        raise InputError(f"{whole}: exists and is not an empty folder; choose another name")
    whole.parent.mkdir(parents=True, exist_ok=True)
    named = {"dark": bench.dark, "flat": bench.flat, "mask": bench.mask_frames, "slit": bench.slit_frames}
    pictures = {f"{kind}_{number:02d}": one for kind, frames in named.items() for number, one in enumerate(frames, 1)}
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
        (place / "wavelengths.txt").write_text("".join(f"{w:.3f}\n" for w in bench.mask_wavelengths))
        write_measurement(place / "uncalibrated.h5", design)
        write_measurement(place / "truth.h5", truth, attributes=stated)
        names = sorted(path.name for path in place.iterdir())
    return [whole / name for name in names]


def _bin(fine: np.ndarray) -> np.ndarray:
    """Mean over the points of each pixel."""
    height, width = (n // FINE for n in fine.shape)
    return np.asarray(fine.reshape(height, FINE, width, FINE).mean((1, 3)))


def _response(height: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """Vignetting, dust on the sensor, and the spread of the pixels; at most about 1."""
    i, j = np.mgrid[:height, :columns]
    radius = np.hypot(i - height / 2, j - columns / 2) / math.hypot(height / 2, columns / 2)
    response = 1 - 0.3 * radius**2
    for _ in range(8):
        row, column, size = random.uniform(0, height), random.uniform(0, columns), random.uniform(2, 5)
        shadow = random.uniform(0.1, 0.3) * np.exp(-((i - row) ** 2 + (j - column) ** 2) / (2 * size**2))
        response *= 1 - shadow
    return np.asarray(response * random.normal(1, 0.01, response.shape))
