"""The filters of a mosaic sensor, from frames captured on the bench: what each transmits at each wavelength."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cassi.calibration.estimate import _bad_pixels, _stack
from cassi.errors import InputError
from cassi.files import write_arrays
from cassi.optics.other_cameras import Mosaic


class FilterResponse(NamedTuple):
    """A calibrated mosaic sensor, as a file of a camera holds it."""

    mask: np.ndarray  # (C, H, W) float32, the transmission of each pixel's filter
    response: np.ndarray  # (K, C), of each filter, 1 at most
    wavelengths: np.ndarray  # (C,) [nm]
    sensitivity: np.ndarray  # (H, W), of each pixel beside others of its filter, 1 on average
    bad_pixels: np.ndarray  # (H, W) bool, hot or dead

    def summary(self) -> list[str]:
        """What was found, a line each."""
        best = self.wavelengths[self.response.argmax(1)]
        return [
            f"{len(self.response)} filters at {len(self.wavelengths)} wavelengths, most sensitive at "
            f"{', '.join(f'{nm:g}' for nm in best)} nm",
            f"detector: {np.count_nonzero(self.bad_pixels)} bad pixels, sensitivity {self.sensitivity.std():.1%} (std)",
        ]

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the file of a camera, for --mask; OutputError as of `cassi.files.write_arrays`."""
        arrays = {**self._asdict(), "shifts": np.zeros(len(self.mask), np.int64)}
        stated = {"mask_error": 0.0, "camera_kind": "mosaic"}
        return write_arrays(path, arrays, axes={"mask": "CHW"}, attributes=stated, overwrite=overwrite)


def calibrate_filters(
    dark: np.ndarray, flat: np.ndarray, frames: np.ndarray, wavelengths: Sequence[float] | np.ndarray,
    pattern: np.ndarray, *, offset: Sequence[int] = (0, 0),
) -> FilterResponse:  # fmt: skip
    """Measure what the filters of a mosaic sensor transmit.

        s = (flat - dark) / (its median over the pixels of the filter),    R_kl = mean over those of (f_l - dark) / s

    Args:
        dark: (H, W) or (N, H, W) counts without light; flat: in even white light.
        frames: (L, H, W) counts f_l in even narrow-band light, as bright at each of these `wavelengths` (L,) [nm].
        pattern, offset: see `cassi.Mosaic.from_pattern`.

    Raises:
        InputError: frames that do not fit together, are saturated, or show no light; a pattern that is none.
    """
    frames = _stack("mask", frames)
    size = (frames.shape[1], frames.shape[2])
    darks, flats = (_stack(name, one, size) for name, one in (("dark", dark), ("flat", flat)))
    filters = Mosaic.from_pattern(pattern, size, offset=offset).mask.numpy() > 0
    light = np.asarray(wavelengths, dtype=np.float64).reshape(-1)
    if len(light) != len(frames) or len(np.unique(light)) != len(frames):
        raise InputError(f"{len(frames)} mask frames need as many different wavelengths, got {light}")
    level = darks.mean(0)
    even = flats.mean(0) - level
    usual = np.array([np.median(even[k]) for k in filters])
    if not (usual > 0).all():
        raise InputError(f"the flat frames show no light behind filter {int(np.argmin(usual))}; expose them longer")
    s = even / usual[filters.argmax(0)]
    bad = _bad_pixels(level, s)
    s = np.where(bad, 1, s / s[~bad].mean())
    order = np.argsort(light)
    each = [((frames[order] - level) / s)[:, k & ~bad] for k in filters]  # (L, n) of each filter
    spread = sum(float(one.var(1).sum()) * one.shape[1] for one in each)
    if 2 * spread > np.concatenate(each, 1).var(1).sum() * np.count_nonzero(~bad):
        raise InputError("in narrow-band light pixels of one filter differ as those of all: another pattern?")
    R = np.array([one.mean(1) for one in each]).clip(0)
    if not (R.any(0).all() and R.any(1).all()):
        raise InputError("a filter or a wavelength shows no light above the dark level; check pattern and exposure")
    R = (R / R.max()).astype(np.float32)
    mask = Mosaic.from_pattern(pattern, size, R, offset=offset).mask.numpy()
    return FilterResponse(mask, R, light[order], s.astype(np.float32), bad)
