"""What the detector counts without light, subtracted from captures of it."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np

from cassi.calibration.frames_on_disk import read_frames
from cassi.errors import InputError
from cassi.files.frames import find_files
from cassi.optics.measurement import Measurement

ROUNDING = 1e-5  # of the mean of float32 values


def read_dark(path: str | os.PathLike[str]) -> np.ndarray:
    """The mean of dark frames, float64, counts as stored: of a file with one or a stack, of a folder, or a pattern.

    Raises:
        InputError: a file that cannot be read, frames of different sizes, or values that are no numbers.
    """
    frames = read_frames(find_files(path))
    if not np.isfinite(frames).all():
        raise InputError(f"{path}: the dark frame holds NaN or Inf; expected counts")
    return np.asarray(frames.mean(0, dtype=np.float64))


def less_dark(m: Measurement, dark: np.ndarray) -> Measurement:
    """A measurement less what the detector counts without light: y - (D - b) / s, with b + s y as it is stored.

    Args:
        m: of one snapshot, or several.
        dark: D, (H, W') as the detector has it, in the unit of the stored values: counts where these are counts.

    Raises:
        InputError: a frame of another size, or one that is no darker than the measurement.
    """
    D = np.asarray(dark, dtype=np.float64)
    D = D.mean(0) if D.ndim == 3 else D
    D = D.T if m.transposed else D
    if D.shape != m.y.shape[-2:]:
        raise InputError(
            f"the dark frame is {D.shape} pixels, the measurement {m.y.shape[-2:]}; capture both with the same region "
            "of the detector"
        )
    b, s = m.stored
    bright = b + s * float(m.y.mean(dtype=np.float64))
    if not D.mean() < (1 - ROUNDING) * bright:
        raise InputError(
            f"the dark frame is no darker than the measurement, {D.mean():.4g} and {bright:.4g} on average; are they "
            "swapped, or of another exposure or bit depth? Capture it with the shutter closed"
        )
    y = (m.y - (D - b) / s).astype(np.float32)
    note = f"a dark frame was subtracted, {D.mean():.4g} on average, {D.std():.3g} from pixel to pixel"
    origin = {**m.origin, "dark": float(D.mean())}
    return replace(m, y=y, stored=(float(D.mean()), s), notes=(*m.notes, note), origin=origin)
