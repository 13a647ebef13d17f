"""What a camera hands over: one snapshot or a stack of them, with mask, shifts and noise."""

import math
from dataclasses import dataclass

import numpy as np

from cassi.errors import InputError
from cassi.optics.geometry import Shifts

MASK_SIZES = (1e-6, 1e6)  # the largest value of a mask lies between


@dataclass(frozen=True)
class Measurement:
    """What a file says about one snapshot or a stack of them, ready for the operator.

    Attributes:
        y: measurement (H, W') or (N, H, W'), float32, in `unit`.
        mask: coded aperture (H, W), or one per band (C, H, W), float32, >= 0.
        shifts: displacement d_c of each band on the detector [pixel], C integers, or floats for sub-pixel dispersion.
        wavelengths: (C,) float64 [nm], or None where unknown.
        cube: the truth (C, H, W) or (N, C, H, W), float32, or None.
        mean_band: true mean over the bands (H, W), float32, or None.
        bad_pixels: bool (H, W'), True where the detector says nothing (dead, hot, saturated in any frame), or None.
        unit: unit of `y` in words.
        scale: stored counts per unit of `y`.
        gain: electrons per unit of `y`, or None where unknown.
        read_noise: standard deviation of the read noise [electrons], or None where unknown.
        notes: what was inferred or changed, one plain sentence each.
        source: name of the file.
        sha256: its SHA-256, hexadecimal.
    """

    y: np.ndarray
    mask: np.ndarray
    shifts: Shifts
    wavelengths: np.ndarray | None = None
    cube: np.ndarray | None = None
    mean_band: np.ndarray | None = None
    bad_pixels: np.ndarray | None = None
    unit: str = "as in the file"
    scale: float = 1.0
    gain: float | None = None
    read_noise: float | None = None
    notes: tuple[str, ...] = ()
    source: str = ""
    sha256: str = ""


def check_arrays(m: Measurement) -> None:
    """Check what a Measurement made by hand, or arrays, may get wrong; files were checked when they were read."""
    if not np.isfinite(m.mask).all():
        raise InputError("the mask holds NaN or Inf")
    if not m.mask.any():
        raise InputError("the mask is zero everywhere: no light reaches the detector")
    if not MASK_SIZES[0] <= np.abs(m.mask).max() <= MASK_SIZES[1]:
        raise InputError(
            f"the mask's largest value is {np.abs(m.mask).max():.3g}, expected a transmission, about 0 to 1; divide it "
            "by its largest value"
        )
    bad = m.bad_pixels
    if bad is not None and (bad.dtype != bool or bad.shape != m.y.shape[-2:]):
        raise InputError(
            f"bad_pixels must be bool {m.y.shape[-2:]}, one per detector pixel, got {bad.dtype} {bad.shape}"
        )
    if bad is not None and bad.all():
        raise InputError("every detector pixel is marked bad")
    if not np.isfinite(m.y if bad is None else m.y[..., ~bad]).all():
        raise InputError("the measurement holds NaN or Inf; mark those pixels in bad_pixels")
    if m.gain is not None and not (math.isfinite(m.gain) and m.gain > 0):
        raise InputError(f"the gain must be positive [electrons per unit of the measurement], got {m.gain}")
    if m.read_noise is not None and not (math.isfinite(m.read_noise) and m.read_noise >= 0):
        raise InputError(f"the read noise must be >= 0 [electrons], got {m.read_noise}")
