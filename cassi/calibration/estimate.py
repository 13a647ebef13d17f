"""From frames captured on the bench to a calibrated camera: one file that makes counts into a measurement.

Three kinds of frames go in: without light (dark), of even light without the coded aperture (flat), and of the coded
aperture under narrow-band light of known wavelengths. What comes out corrects a frame and says where each band falls
on the detector and through which mask.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import ndimage

from cassi.calibration.dispersion import Dispersion, fit_dispersion
from cassi.errors import InputError, Note
from cassi.files import Entry, file_sha256, open_container, write_arrays
from cassi.files.scaling import BIT_DEPTHS, read_leading
from cassi.kernels.caller import undisturbed
from cassi.optics.measurement import Measurement
from cassi.optics.outliers import remove_outliers
from cassi.optics.psf import local_mean

# what the file of a calibration holds
ARRAYS = ("mask", "shifts", "wavelengths", "dark", "flat", "bad_pixels")
DISPERSION = ("coefficients", "wavelengths", "measured", "across")
NUMBERS = ("saturation", "scale", "gain", "read_noise")
MISPLACED = 0.5  # a picture this far from the fitted dispersion is reported [pixel]
CLOSED = 3e-3  # transmission, of the brightest, below which an element counts as closed: Phi^+ divides by it


@dataclass(frozen=True, eq=False)
class Calibration:
    """A calibrated camera.

    Attributes:
        mask: (C, H, W) float32, transmission of the aperture for each band, as it is imaged on the detector.
        shifts: C whole displacements of the bands [pixel].
        wavelengths: (C,) [nm], the bands' centers.
        dark: (H, W') counts without light.
        flat: (H, W') relative response of the pixels, mean 1.
        bad_pixels: (H, W') bool, hot or dead.
        saturation: count from which a pixel says nothing.
        scale: counts per unit of the measurement, which is 1 at saturation.
        gain: electrons per unit of the measurement, or None where a single flat frame did not tell.
        read_noise: standard deviation [electron], or None likewise.
        dispersion: the fitted curve.
    """

    mask: np.ndarray
    shifts: tuple[int, ...]
    wavelengths: np.ndarray
    dark: np.ndarray
    flat: np.ndarray
    bad_pixels: np.ndarray
    saturation: float
    scale: float
    gain: float | None
    read_noise: float | None
    dispersion: Dispersion

    def correct(self, frame: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Counts (..., H, W') to a measurement: y = (k - dark) / (flat scale), 0 at bad pixels.

        Returns y, float32, and its bad pixels, bool, the saturated ones among them.

        Raises:
            InputError: a frame of another size.
        """
        counts = np.asarray(frame)
        if counts.shape[-2:] != self.dark.shape:
            raise InputError(
                f"the frame is {counts.shape[-2:]} pixels, the calibration {self.dark.shape}; "
                "capture both with the same region of the detector and the same binning"
            )
        bad = self.bad_pixels | (counts >= self.saturation)
        y = (counts - self.dark) / (self.flat * self.scale)
        return np.where(bad, 0, y).astype(np.float32), bad

    def __repr__(self) -> str:
        """One line: bands and mask."""
        return f"<Calibration: {len(self.shifts)} bands, {self.mask.shape[1]} x {self.mask.shape[2]} px>"

    def summary(self) -> list[str]:
        """What was found, a line each."""
        curve = self.dispersion
        lines = [
            f"dispersion: {np.ptp(curve.measured):.2f} px from {curve.wavelengths[0]:g} to {curve.wavelengths[-1]:g} "
            f"nm, polynomial with {len(curve.coefficients)} coefficients leaves at most "
            f"{np.abs(curve.residuals).max():.3f} px, across it {np.ptp(curve.across):.3f} px",
            f"bands: {len(self.shifts)} from {self.wavelengths[0]:.1f} to {self.wavelengths[-1]:.1f} nm, "
            f"{abs(self.shifts[1] - self.shifts[0])} px apart",
            f"mask: {self.mask.shape[1]} x {self.mask.shape[2]} px, mean transmission {self.mask.mean():.3f}",
            f"detector: {np.count_nonzero(self.bad_pixels)} bad pixels, dark level {np.median(self.dark):.1f} of "
            f"{self.saturation:g} counts",
        ]
        if np.abs(curve.residuals).max() > MISPLACED:
            lines.insert(1, "the dispersion fits badly: is the wavelength of a picture wrong, or are there too few?")
        if self.gain is not None and self.read_noise is not None:
            lines.append(
                f"noise: {self.gain / self.scale:.2f} electrons a count, read noise {self.read_noise:.1f} electrons"
            )
        return lines

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it to HDF5, whole or not at all.

        Raises:
            OutputError: see `cassi.files.write_arrays`.
        """
        arrays = {name: np.asarray(getattr(self, name)) for name in ARRAYS}
        arrays |= {f"dispersion/{name}": np.asarray(getattr(self.dispersion, name)) for name in DISPERSION}
        attributes = {"kind": "cassi calibration", **{name: getattr(self, name) for name in NUMBERS}}
        return write_arrays(path, arrays, axes={"mask": "CHW"}, attributes=attributes, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Calibration:
        """Read what `save` wrote.

        Raises:
            InputError: no such file, damaged, or no calibration.
        """
        container = open_container(Path(path))
        entries = {entry.name: entry for entry in container.entries}
        names = [*ARRAYS, *(f"dispersion/{name}" for name in DISPERSION)]
        missing = [n for n in names if n not in entries] + [n for n in NUMBERS[:2] if n not in container.attributes]
        if missing:
            what = f"{path}: no calibration, '{missing[0]}' is missing; make one with calibrate.py, or give a camera"
            raise InputError(f"{what} as mask", cures=("mask",))
        if "line_spread/sigma" in entries or ("remainders" in entries and container.read(entries["remainders"]).any()):
            raise InputError(f"{path}: holds a blur or bands between pixels, as earlier versions found; recalibrate")
        values = {name: container.read(entries[name]) for name in names}
        numbers: dict[str, float | None] = dict.fromkeys(NUMBERS)
        for name in NUMBERS:
            if name in container.attributes:
                number = np.asarray(container.attributes[name])
                least = 0.0 if name == "read_noise" else np.finfo(float).tiny
                if number.size != 1 or number.dtype.kind not in "iuf" or not least <= number.item() < np.inf:
                    raise InputError(f"{path}: '{name}' must be one positive number, got {number!r}")
                numbers[name] = float(number.item())
        mask, shifts = values["mask"].astype(np.float32), tuple(int(d) for d in values["shifts"])
        if mask.ndim != 3 or not shifts:
            raise InputError(f"{path}: mask must be (C, H, W) with C = {len(shifts)} shifts, got {mask.shape}")
        height, width = mask.shape[1:]
        expected: dict[str, tuple[int, ...]] = {"mask": (len(shifts), height, width), "wavelengths": (len(shifts),)}
        expected |= dict.fromkeys(("dark", "flat", "bad_pixels"), (height, width + max(shifts) - min(shifts)))
        for name, shape in expected.items():
            if values[name].shape != shape or not np.isfinite(values[name]).all():
                raise InputError(f"{path}: '{name}' must be finite and {shape}, got {values[name].shape}")
        return cls(
            mask=mask,
            shifts=shifts,
            bad_pixels=values["bad_pixels"].astype(bool),
            dispersion=Dispersion(*(values[f"dispersion/{name}"] for name in DISPERSION)),
            **{name: values[name] for name in ("wavelengths", "dark", "flat")},  # type: ignore[arg-type]
            **numbers,  # type: ignore[arg-type]
        )


@undisturbed
def calibrate(
    dark: np.ndarray, flat: np.ndarray, mask_frames: np.ndarray, mask_wavelengths: Sequence[float] | np.ndarray, *,
    step: float | None = None, num_bands: int | None = None, order: int = 3, bit_depth: int | None = None,
) -> Calibration:  # fmt: skip
    """Make a calibrated camera of captured frames.

    Dark and flat frames are averaged; a pixel whose dark level or response lies far off its neighbors' is bad, and is
    filled from them wherever an image is needed. The displacement of the mask's image between every two
    wavelengths (`image_shift`) gives the dispersion, by least squares over all pairs, and the fit its curve. The mask
    of a band is what the nearest two captured wavelengths show, blur of the optics and all, moved to where the band
    falls, in proportion to how near they are, and averaged over the `step` pixels that its light spreads over.

    Args:
        dark: (H, W') or (N, H, W') counts without light.
        flat: (H, W') or (N, H, W') counts of even white light without the coded aperture. With two frames or more the
            gain and the read noise are estimated too.
        mask_frames: (L, H, W') counts of the coded aperture under narrow-band light, each with any exposure.
        mask_wavelengths: (L,) [nm], at least 2, different.
        step: dispersion between neighboring bands [pixel], whole and > 0, so that every band falls on whole pixels and
            the operator is exact; 2 where neither this nor `num_bands` is given.
        num_bands: C; as many as cover the captured wavelengths if not given.
        order: highest power of the dispersion's polynomial; at most L - 1 is used.
        bit_depth: of the counts; without it the smallest of 8, 10, 12, 14, 16 that holds the brightest.

    Raises:
        InputError: frames that do not fit together or show nothing, wavelengths that are unusable, or bands that the
            dispersion does not hold.

    Example:
        >>> from cassi.simulation.optical_bench import simulate_bench
        >>> b = simulate_bench(64, 64, num_bands=8, generator=torch.Generator().manual_seed(0))
        >>> found = calibrate(b.dark, b.flat, b.mask_frames, b.mask_wavelengths)
        >>> found.shifts
        (0, 2, 4, 6, 8, 10, 12, 14)
    """
    frames = _stack("mask", mask_frames)
    darks, flats = (_stack(name, one, frames.shape[1:]) for name, one in (("dark", dark), ("flat", flat)))
    light = np.asarray(mask_wavelengths, dtype=np.float64).reshape(-1)
    if len(light) != len(frames):
        raise InputError(f"{len(frames)} mask frames but {len(light)} wavelengths; give one per frame")
    if not np.isfinite(light).all() or (light <= 0).any() or len(np.unique(light)) != len(light):
        raise InputError(f"the wavelengths of the mask frames must be positive and all different, got {light}")
    if len(light) < 2:
        raise InputError("one mask frame says nothing about the dispersion; capture it at two wavelengths or more")
    rising = np.argsort(light)
    frames, light = frames[rising], light[rising]
    largest = float(max(stack.max() for stack in (darks, flats, frames)))
    depths = BIT_DEPTHS if bit_depth is None else (bit_depth,)
    full_scale = next((float(2**depth - 1) for depth in depths if largest <= 2**depth - 1), None)
    if full_scale is None:
        raise InputError(f"counts up to {largest:g} do not fit into {depths[-1]} bits")
    level = darks.mean(0)
    response = flats.mean(0) - level
    bad = _bad_pixels(level, response)
    if bad.mean() > 0.5:
        raise InputError(
            f"{100 * bad.mean():.0f} % of the pixels are hot or dead; the flat must be brighter than the dark"
        )
    level, response = _fill(level, bad), _fill(response, bad)
    scale = full_scale - float(np.median(level))
    response = response / response.mean()
    gain, read_noise = _noise(darks, flats, level, bad, scale)

    cleaned = np.stack([_fill((frame - level) / response, bad | (frame >= full_scale)) for frame in frames])
    means, brightest = cleaned.mean((1, 2)), np.percentile(cleaned, 99.5, axis=(1, 2))
    if not ((means > 0) & (brightest > 0)).all():
        raise InputError("a mask frame shows no light above the dark level; check its exposure")
    # exposures made equal, and the open elements about 1
    transmissions = cleaned / means[:, None, None] * float((means / brightest).mean())
    curve = fit_dispersion(transmissions, light, order=order)
    step, displacements = _place_bands(curve, step, num_bands)
    wavelengths = curve.wavelength(displacements)
    span = int(np.ptp(displacements))
    columns = frames.shape[-1] - span
    if columns < 1:
        raise InputError(f"the bands span {span} px, more than the detector's {frames.shape[-1]} columns")
    mask = np.stack(
        [
            _mask_at(transmissions, curve, light, int(d), float(w), step)[:, first : first + columns].clip(0)
            for d, w, first in zip(displacements, wavelengths, displacements - displacements.min(), strict=True)
        ]
    )
    mask[mask < CLOSED * mask.max()] = 0
    return Calibration(
        mask=mask.astype(np.float32),
        shifts=tuple(int(d) for d in displacements),
        wavelengths=wavelengths,
        dark=level,
        flat=response,
        bad_pixels=bad,
        saturation=full_scale,
        scale=scale,
        gain=gain,
        read_noise=read_noise,
        dispersion=curve,
    )


def read_calibrated(
    path: str | os.PathLike[str], calibration: Calibration, *, key: str | None = None, frames: int | slice | None = None
) -> Measurement:
    """Read a captured snapshot as a measurement: counts corrected, mask, shifts and the rest from the calibration.

    Args:
        path: file with raw counts (H, W') or (N, H, W').
        calibration: of the camera it was captured with.
        key: name of the array in its file, where it is none of the usual ones.
        frames: of a stack, one frame (an int, gives (H, W')) or a slice; only these are read.

    Returns:
        The `Measurement`; saturated pixels count as bad, in a stack for all of its frames.

    Raises:
        InputError: a file that cannot be read, of another size than the calibration, or without such a frame.
    """
    entry = _counts(path, key)
    counts = read_leading(entry, 0 if len(entry.shape) == 3 else None, frames)
    y, bad = calibration.correct(counts)
    bad = np.asarray(bad.any(axis=tuple(range(bad.ndim - 2))))
    note = Note(f"dark and flat corrected, {100 * bad.mean():.2f} % of the pixels are bad or saturated", "counts")
    m = Measurement(
        y=y,
        mask=calibration.mask,
        shifts=calibration.shifts,
        wavelengths=calibration.wavelengths,
        bad_pixels=bad,
        unit="of full scale above black",
        scale=calibration.scale,
        gain=calibration.gain,
        read_noise=calibration.read_noise,
        notes=(note,),
        source=Path(path).name,
        sha256=file_sha256(path),
        origin={"mask": "frames of a calibration", "wavelengths": "that calibration", "calibrated": True},
    )
    return remove_outliers(m)


def calibrated_frame_count(path: str | os.PathLike[str], *, key: str | None = None) -> int | None:
    """The number of frames of a stack of raw counts, without reading them, or None for a single snapshot.

    Args and Raises as for `read_calibrated`.
    """
    entry = _counts(path, key)
    return entry.shape[0] if len(entry.shape) == 3 else None


def _counts(path: str | os.PathLike[str], key: str | None) -> Entry:
    """Where the raw counts are."""
    entry, _ = open_container(Path(path)).pick("measurement", key)
    if len(entry.shape) not in (2, 3):
        raise InputError(f"{path}: '{entry.name}' must be (H, W') or (N, H, W'), got {entry.shape}")
    return entry


def _stack(name: str, frames: np.ndarray, size: tuple[int, ...] | None = None) -> np.ndarray:
    stack = np.asarray(frames, dtype=np.float64)
    stack = stack[None] if stack.ndim == 2 else stack
    if stack.ndim != 3 or 0 in stack.shape:
        raise InputError(f"{name} frames must be (H, W') or (N, H, W'), got {stack.shape}")
    if size is not None and stack.shape[1:] != size:
        raise InputError(
            f"{name} frames are {stack.shape[1:]} pixels, mask frames {size}; capture all with the same region of the "
            "detector"
        )
    if not np.isfinite(stack).all():
        raise InputError(f"{name} frames hold NaN or Inf, expected counts")
    return stack


def _bad_pixels(level: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Dark levels 6 standard deviations off their neighbors', or 10 counts; responses half or one and a half theirs."""
    off = level - ndimage.median_filter(level, 5, mode="nearest")
    hot = np.abs(off) > max(6 * 1.4826 * float(np.median(np.abs(off - np.median(off)))), 10.0)
    usual = ndimage.median_filter(response, 7, mode="nearest")
    odd = np.abs(response - usual) > 0.5 * usual
    return np.asarray(hot | odd | (response < 0.02 * np.median(response)) | (response <= 0))


def _fill(image: np.ndarray, bad: np.ndarray) -> np.ndarray:
    """The image with bad pixels replaced by the mean of the good ones around."""
    if not bad.any():
        return image
    good = (~bad).astype(float)
    filled = np.where(bad, image[~bad].mean() if good.any() else 0.0, image)
    for sigma in (30.0, 3.0, 0.7):  # further away only where nothing good is near
        near = bad & (ndimage.gaussian_filter(good, sigma) > 1e-3)
        filled[near] = local_mean(np.where(good, image, 0), good, sigma)[near]
    return filled


def _noise(
    darks: np.ndarray, flats: np.ndarray, level: np.ndarray, bad: np.ndarray, scale: float
) -> tuple[float | None, float | None]:
    """Gain [electron per unit of y] and read noise [electron] by photon transfer: var k = (k - dark) / gain + var dark.

    (J. R. Janesick, Photon Transfer, SPIE Press 2007.) From the variance between frames, so two of each are needed.
    """
    if len(darks) < 2 or len(flats) < 2:
        return None, None
    light = flats - level
    light = light * (light[:, ~bad].mean() / light[:, ~bad].mean(1))[:, None, None]  # a lamp may drift
    dark_variance = float(darks[:, ~bad].var(0, ddof=1).mean())
    excess = float(light[:, ~bad].var(0, ddof=1).mean()) - dark_variance
    if not excess > 0:
        return None, None
    per_count = float(light[:, ~bad].mean()) / excess
    return per_count * scale, per_count * math.sqrt(dark_variance)


def _place_bands(curve: Dispersion, step: float | None, num_bands: int | None) -> tuple[int, np.ndarray]:
    """The step, and the displacement of each band, both whole."""
    first, last = curve.wavelengths[[0, -1]]
    reach = float(np.diff(curve(curve.wavelengths[[0, -1]]))[0])
    if num_bands is not None and num_bands < 2:
        raise InputError(f"the number of bands must be at least 2, got {num_bands}")
    if step is None:
        step = 2 if num_bands is None else max(1, round(abs(reach) / (num_bands - 1)))
    if not (step > 0 and float(step).is_integer()):
        raise InputError(
            f"the step between bands must be positive and whole, got {step:g} px: then no band falls between pixels; "
            "its sign is measured"
        )
    count = math.floor(abs(reach) / step + 0.5) + 1 if num_bands is None else num_bands
    if count < 2:
        raise InputError(
            f"the light moves {abs(reach):.2f} px from {first:g} to {last:g} nm, less than a step of {step:g} px: no "
            "bands; check that the mask frames show dispersion, or take a smaller step"
        )
    return int(step), (1 if reach >= 0 else -1) * int(step) * np.arange(count)


def _mask_at(
    images: np.ndarray, curve: Dispersion, light: np.ndarray, displacement: int, wavelength: float, width: int
) -> np.ndarray:
    """The mask of a band on the detector, (H, W')."""
    after = int(np.clip(np.searchsorted(light, wavelength), 1, len(light) - 1))
    share = float(np.clip((wavelength - light[after - 1]) / (light[after] - light[after - 1]), 0, 1))
    row = share * curve.across[after] + (1 - share) * curve.across[after - 1]
    total = np.zeros_like(images[0])
    for weight, n in ((1 - share, after - 1), (share, after)):
        if weight > 0:
            image = ndimage.shift(images[n], (row - curve.across[n], 0), order=3, mode="nearest")
            total += weight * _spread(image, displacement - curve.measured[n], width)
    return np.asarray(total)


def _spread(image: np.ndarray, displacement: float, width: int) -> np.ndarray:
    """Rows moved to the right and averaged over `width` pixels, both real numbers, in the Fourier domain."""
    border = math.ceil(abs(displacement) + width) + 16
    padded = np.pad(image, ((0, 0), (border, border)), mode="edge")
    f = np.fft.rfftfreq(padded.shape[1])
    moved = np.fft.irfft(
        np.fft.rfft(padded) * np.exp(-2j * np.pi * f * displacement) * np.sinc(f * width), padded.shape[1]
    )
    return np.asarray(moved[:, border:-border])
