"""Gaussian spectra as a prior: the mean and covariance of the spectrum of a pixel, assumed or learned from cubes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cassi.kernels.covariance import covariance_sum, pixel_mean


class SpectralPrior(NamedTuple):
    """What is expected of a pixel's spectrum before it is measured, in units of the scene's mean level."""

    mean: Tensor  # (C,) float64
    covariance: Tensor  # (C, C) float64, symmetric positive semi-definite

    def scaled(self, level: float) -> SpectralPrior:
        """The same in the unit of a cube whose mean is `level`."""
        return SpectralPrior(self.mean * level, self.covariance * level**2)


def smooth_spectral_prior(
    bands: int | Sequence[float] | np.ndarray,
    level: float = 1.0,
    *,
    brightness: float = 0.7,
    color: float = 0.7,
    length: float = 0.15,
) -> SpectralPrior:
    """A grey mean, pixels that differ in brightness, and colors that vary slowly over wavelength.

        mean_c = level
        S_cd   = level^2 (brightness^2 + color^2 exp(-(t_c - t_d)^2 / (2 length^2)))

    where t runs from 0 to 1 over the bands, in order of wavelength where they are given: the squared-exponential
    covariance of Gaussian processes (Rasmussen & Williams, "Gaussian Processes for Machine Learning", 2006, eq. 4.9).

    Args:
        bands: the number of bands C, or their C wavelengths [nm], finite.
        level: mean of the cube, > 0, see `cassi.optics.detector.brightness`.
        brightness: standard deviation of the brightness over pixels, relative to the level.
        color: standard deviation of the rest, relative to the level.
        length: over which the color changes, as a share of the spectral range, > 0.

    Raises:
        ValueError: fewer than one band, wavelengths not finite, or a negative or zero scale.

    Example:
        >>> mean, covariance = smooth_spectral_prior(3, 2.0, brightness=1.0, color=0.0)
        >>> mean.tolist(), covariance[0].tolist()
        ([2.0, 2.0, 2.0], [4.0, 4.0, 4.0])
    """
    if not (level > 0 and length > 0 and brightness >= 0 and color >= 0):
        raise ValueError(
            "level and length must be positive, brightness and color >= 0, "
            f"got {level}, {length}, {brightness} and {color}"
        )
    axis = np.arange(bands, dtype=np.float64) if isinstance(bands, int) else np.asarray(bands, dtype=np.float64)
    if axis.ndim != 1 or axis.size < 1 or not np.isfinite(axis).all():
        raise ValueError(f"bands must be a number >= 1 or a list of finite wavelengths, got {bands}")
    t = torch.from_numpy((axis - axis.min()) / (np.ptp(axis) or 1.0))
    kernel = torch.exp(-((t[:, None] - t) ** 2) / (2 * length**2))
    return SpectralPrior(torch.full_like(t, level), level**2 * (brightness**2 + color**2 * kernel))


def library_spectral_prior(
    cubes: Sequence[Tensor], *, resample: Sequence[Tensor | None] | None = None
) -> SpectralPrior:
    """Mean and covariance over all pixels of a library of cubes, each taken at mean level 1 and with the same say.

        mean = 1/K sum_k R_k mean_k,    S = 1/K sum_k R_k (S_k + mean_k mean_k^T) R_k^T - mean mean^T

    Args:
        cubes: (C, H, W) or (N, C, H, W) each, any unit, mean > 0.
        resample: R_k (C', C) a cube, from its bands to those wanted, see `resampling`; None leaves its bands.

    Raises:
        ValueError: no cube, a cube whose mean is not positive, or cubes of different numbers of bands.
    """
    if not cubes:
        raise ValueError("a library needs at least one cube")
    if resample is None:
        resample = [None] * len(cubes)
    means, moments = [], []
    for x, R in zip(cubes, resample, strict=True):
        mean = pixel_mean(x, accumulate=torch.float64)
        level = float(mean.mean())
        if not level > 0:
            raise ValueError(f"the mean of a library cube must be positive, got {level}")
        pixels = x.numel() // len(mean)
        S = covariance_sum(x, mean=mean, accumulate=torch.float64) / (pixels * level**2)
        mean = mean / level
        if R is not None:
            mean, S = R @ mean, R @ S @ R.T
        means.append(mean)
        moments.append(S + torch.outer(mean, mean))
    counts = sorted({len(mean) for mean in means})
    if len(counts) > 1:
        raise ValueError(f"all cubes must have the same bands, got {counts} bands; give wavelengths to resample them")
    mean = torch.stack(means).mean(0)
    return SpectralPrior(mean, torch.stack(moments).mean(0) - torch.outer(mean, mean))


def resampling(have: Sequence[float] | np.ndarray, want: Sequence[float] | np.ndarray) -> Tensor:
    """The matrix R (C', C) float64 that takes spectra from one list of wavelengths to another, linear in between.

    Args:
        have: C wavelengths [nm], any order, all different.
        want: C' wavelengths [nm] within the range of `have`, or outside by at most half a band.

    Raises:
        ValueError: a wavelength outside that range.
    """
    known, asked = np.asarray(have, dtype=np.float64), np.asarray(want, dtype=np.float64)
    low, high = known.min(), known.max()
    slack = 0.5 * (high - low) / max(1, known.size - 1)
    if asked.min() < low - slack or asked.max() > high + slack:
        raise ValueError(
            f"bands from {asked.min():g} to {asked.max():g} nm are wanted, the cube has {low:g} to {high:g} nm; "
            "take a cube that covers them"
        )
    order = np.argsort(known)
    R = np.stack([np.interp(asked, known[order], one[order]) for one in np.eye(known.size)], axis=1)
    return torch.from_numpy(R)
