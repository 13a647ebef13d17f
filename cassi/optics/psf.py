"""Point-spread functions, means around a pixel, and where a dispersion curve puts the bands."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor


def gaussian_psf(sigma: float, *, reach: float = 4.0) -> Tensor:
    """A Gaussian averaged over each pixel, for `BlurredCASSI`: odd number of taps, float64, sum 1.

        p[t] = (erf((t + 1/2) / (sqrt(2) sigma)) - erf((t - 1/2) / (sqrt(2) sigma))) / 2,   |t| <= reach * sigma

    Args:
        sigma: standard deviation [pixel], > 0.
        reach: half width in standard deviations.

    Raises:
        ValueError: sigma or reach not positive.

    Example:
        >>> gaussian_psf(0.5, reach=2.0)
        tensor([0.1577, 0.6845, 0.1577], dtype=torch.float64)
    """
    if not (sigma > 0 and reach > 0):
        raise ValueError(f"sigma and reach must be positive, got {sigma} and {reach}")
    half = math.ceil(reach * sigma)
    edges = torch.erf((torch.arange(2 * half + 2, dtype=torch.float64) - half - 0.5) / (math.sqrt(2) * sigma))
    psf = edges.diff()
    return psf / psf.sum()


def local_mean(image: np.ndarray, known: np.ndarray, width: float) -> np.ndarray:
    """Mean around each pixel by a Gaussian of this standard deviation, of known pixels (1, else 0) alone."""
    mean: np.ndarray = ndimage.gaussian_filter(image * known, width)
    filled: np.ndarray = mean / np.maximum(ndimage.gaussian_filter(known, width), 1e-6)
    return filled


def shifts_from_dispersion(
    wavelengths: Sequence[float], table_wavelengths: Sequence[float], table_shifts: Sequence[float]
) -> tuple[float, ...]:
    """Displacement of each band [pixel] from a dispersion curve d(lambda) given as a table, linear in between.

    Args:
        wavelengths: center of each band [nm].
        table_wavelengths: where the curve is known [nm], at least two, strictly increasing or decreasing.
        table_shifts: displacement there [pixel].

    Returns:
        One real number a band, for `BlurredCASSI`.

    Raises:
        ValueError: tables of different lengths, not monotonic, or a band outside the table.

    Example:
        >>> shifts_from_dispersion([450, 500, 600], [450, 550, 650], [0.0, 10.0, 16.0])
        (0.0, 5.0, 13.0)
    """
    at, table, shifts = (np.asarray(v, dtype=float) for v in (wavelengths, table_wavelengths, table_shifts))
    if table.ndim != 1 or table.shape != shifts.shape or len(table) < 2:
        raise ValueError(
            f"the table must be two lists of one length, at least 2, got {table.shape} wavelengths and "
            f"{shifts.shape} shifts"
        )
    if table[0] > table[-1]:
        table, shifts = table[::-1], shifts[::-1]
    if not (np.diff(table) > 0).all():
        raise ValueError("the wavelengths of the table must increase or decrease strictly; sort them, drop repetitions")
    if not ((at >= table[0]) & (at <= table[-1])).all():
        raise ValueError(
            f"a band lies outside the dispersion table ({table[0]:g} to {table[-1]:g} nm): bands span {at.min():g} to "
            f"{at.max():g} nm; extend the table"
        )
    return tuple(float(d) for d in np.interp(at, table, shifts))
