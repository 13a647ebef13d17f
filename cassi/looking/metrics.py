"""Scores of an estimate against the truth, and a test whether a residual looks like noise.

Every function takes torch tensors or NumPy arrays, computes in float64 one band at a time (so that a cube needs only a
few band-sized buffers) and returns plain floats. Nothing is clipped; `score`, whose numbers the program prints, clips
the estimate to [0, peak] first, as tables of the field usually do.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.caller import undisturbed
from cassi.looking.color import Array

_WINDOW, _SIGMA, _K1, _K2 = 11, 1.5, 0.01, 0.03  # Wang et al. 2004, section III-C


class Whiteness(NamedTuple):
    """The result of `residual_whiteness`."""

    vertical: float
    horizontal: float
    limit: float


@undisturbed
def psnr(estimate: Array, truth: Array, *, peak: float = 1.0) -> float:
    """Peak signal-to-noise ratio in dB, the mean over bands, as in most published tables.

        mean_c 10 log10(L^2 / MSE_c),  MSE_c the mean squared error of band c, L the peak

    Args:
        estimate: (..., H, W) in the unit of `truth`; every leading axis counts as bands.
        truth: the same shape.
        peak: L, the largest value a pixel can have, in the unit of `truth`.

    Returns:
        Decibel; ``inf`` if a band is exact, ``nan`` if the estimate has NaN.

    Raises:
        ValueError: shapes differ, fewer than two axes, empty arrays, or `peak` not positive.

    Example:
        >>> truth = torch.zeros(28, 64, 64)
        >>> round(psnr(truth + 0.1, truth), 6)
        20.0
    """
    decibels = band_psnr(estimate, truth, peak=peak)
    return math.fsum(decibels) / len(decibels)


def band_psnr(estimate: Array, truth: Array, *, peak: float = 1.0) -> list[float]:
    """Peak signal-to-noise ratio of each band [dB], whose mean is `psnr`."""
    errors = [(a - b).square().mean().item() for a, b in _bands(estimate, truth, peak)]
    return [math.inf if error == 0 else -10 * math.log10(error) for error in errors]


@undisturbed
def ssim(estimate: Array, truth: Array, *, peak: float = 1.0) -> float:
    """Structural similarity, mean over pixels and bands; 1 only for equal pictures.

    With means ``m``, variances ``v`` and covariance ``c`` under an 11 x 11 Gaussian window of sigma 1.5 px
    (population moments, weights summing to 1), ``C1 = (0.01 L)^2`` and ``C2 = (0.03 L)^2``:

        SSIM = (2 m_a m_b + C1) (2 c_ab + C2) / ((m_a^2 + m_b^2 + C1) (v_a + v_b + C2))

    Z. Wang et al., "Image quality assessment: from error visibility to structural similarity", IEEE Transactions on
    Image Processing 13 (2004), equation 13. The mean is over pixels whose window is inside the picture, as in the
    code of the paper; pictures smaller than the window are padded with five zeros. Arguments and errors as for `psnr`.

    Example:
        >>> truth = torch.rand(4, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> round(ssim(truth, truth), 6)
        1.0
    """
    window = torch.exp(-0.5 * ((torch.arange(_WINDOW, dtype=torch.float64) - _WINDOW // 2) / _SIGMA) ** 2)
    window = window / window.sum()
    c1, c2 = _K1**2, _K2**2
    similar = []
    for a, b in _bands(estimate, truth, peak):
        pad = _WINDOW // 2 if min(a.shape) < _WINDOW else 0
        moments = torch.stack([a, b, a * a, b * b, a * b]).unsqueeze(1)
        across, along = (window.to(a.device).view(shape) for shape in ((1, 1, 1, -1), (1, 1, -1, 1)))
        moments = F.conv2d(F.conv2d(moments, across, padding=(0, pad)), along, padding=(pad, 0))
        mean_a, mean_b, square_a, square_b, product = moments[:, 0]
        cross, powers = mean_a * mean_b, mean_a.square() + mean_b.square()
        above = (2 * cross + c1) * (2 * (product - cross) + c2)
        similar.append((above / ((powers + c1) * (square_a + square_b - powers + c2))).mean().item())
    return math.fsum(similar) / len(similar)


def sam(estimate: Array, truth: Array) -> float:
    """Mean spectral angle in degrees: the angle between estimated and true spectrum, averaged over the pixels.

        angle = arccos(<a, b> / (|a| |b|)) = 2 atan2(| |b| a - |a| b |, | |b| a + |a| b |)

    The second form (W. Kahan, "How futile are mindless assessments of roundoff in floating-point computation?", 2006)
    is computed: it is precise at small angles, where arccos loses half its digits. The scale of a spectrum does not
    matter. Pixels whose *true* spectrum is zero are excluded; an *estimate* of zero counts as 90 degrees.

    Args:
        estimate, truth: (..., C, H, W) in any unit.

    Returns:
        Degrees in [0, 180]; ``nan`` if every true spectrum is zero.

    Raises:
        ValueError: shapes differ, fewer than three axes, or empty arrays.

    Example:
        >>> truth = torch.rand(28, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> sam(3 * truth, truth) < 1e-5
        True
    """
    return float(spectral_angles(estimate, truth).nanmean())


def spectral_angles(estimate: Array, truth: Array) -> Tensor:
    """The angles at each pixel whose mean is `sam`: (..., H, W) float64 [degrees]; NaN where the truth is zero."""
    a, b = _pair(estimate, truth)
    angles = []
    for one_a, one_b in zip(a.reshape(-1, *a.shape[-3:]), b.reshape(-1, *b.shape[-3:]), strict=True):
        norm_a, norm_b = (sum(band.double().square() for band in cube).sqrt() for cube in (one_a, one_b))
        difference, total = torch.zeros_like(norm_a), torch.zeros_like(norm_a)
        for band_a, band_b in zip(one_a, one_b, strict=True):
            u, v = band_a.double() * norm_b, band_b.double() * norm_a
            difference += (u - v).square()
            total += (u + v).square()
        angle = torch.where(norm_a == 0, math.pi / 2, 2 * torch.atan2(difference.sqrt(), total.sqrt()))
        angles.append(torch.where(norm_b > 0, torch.rad2deg(angle), math.nan))
    return torch.stack(angles).reshape(*b.shape[:-3], *b.shape[-2:])


def peak_of(truth: np.ndarray, origin: object = None) -> float:
    """The peak L of a truth: 1, or what was 1 before it was brought to the unit of its snapshot (`origin` of that
    measurement), or its brightest value, if larger."""
    one = origin.get("truth_peak") if isinstance(origin, Mapping) else None
    return max(one if isinstance(one, float) and math.isfinite(one) else 1.0, float(np.nanmax(truth)))


@undisturbed
def score(
    cube: Array, *, truth: Array | None = None, mean_band: Array | None = None, peak: float = 1.0
) -> dict[str, float]:
    """Scores of a cube against the truth, with the usual convention: estimate clipped to [0, peak], peak 1.

    The truth (..., C, H, W) gives "psnr" [dB], "ssim" and "sam" [degrees], `mean_band` (H, W), the true mean over
    bands, "mean_band_psnr" [dB].
    """
    scores: dict[str, float] = {}
    if truth is not None:
        estimate, true = torch.as_tensor(cube).clamp(0, peak), torch.as_tensor(truth)
        scores["psnr"] = psnr(estimate, true, peak=peak)
        scores["ssim"] = ssim(estimate, true, peak=peak)
        scores["sam"] = sam(estimate, true)
    if mean_band is not None:
        mean = torch.as_tensor(cube).mean(-3).clamp(0, peak)
        scores["mean_band_psnr"] = psnr(mean, torch.as_tensor(mean_band).expand_as(mean), peak=peak)
    return scores


def residual_whiteness(residual: Array) -> Whiteness:
    """Lag-1 autocorrelations of a residual along both axes: about 0 for white noise, positive for remaining structure.

    With means over the finite detector pixels and pairs of neighbors:

        vertical   = mean(r[i, j] r[i+1, j]) / mean(r[i, j]^2)
        horizontal = mean(r[i, j] r[i, j+1]) / mean(r[i, j]^2)

    The mean is not removed: noise has none, an offset is structure. Overfitting gives negative values. For n white
        samples each value is nearly normal with variance 1 / n (Bartlett's formula), hence the limit 1.96 / sqrt(n). A
        value is 0 without a pair of finite pixels, or for a residual of zeros.

    Args:
        residual: (..., H, W'), ``y - Phi x`` in any unit; leading axes are frames.

    Example:
        >>> noise = torch.randn(256, 310, generator=torch.Generator().manual_seed(0))
        >>> abs(residual_whiteness(noise).vertical) < 0.02
        True
    """
    r = torch.as_tensor(residual).double()
    power = r[r.isfinite()].square().mean().item()

    def correlation(ahead: Tensor, behind: Tensor) -> float:
        products = ahead * behind
        products = products[products.isfinite()]
        return products.mean().item() / power if products.numel() and power else 0.0

    count = int(r.isfinite().sum())
    return Whiteness(
        vertical=correlation(r[..., 1:, :], r[..., :-1, :]),
        horizontal=correlation(r[..., 1:], r[..., :-1]),
        limit=1.96 / math.sqrt(count) if count else math.inf,
    )


def _pair(estimate: Array, truth: Array) -> tuple[Tensor, Tensor]:
    a, b = torch.as_tensor(estimate), torch.as_tensor(truth)
    if a.shape != b.shape:
        both = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"estimate and truth must have one shape, got {both}: select the same bands and pixels")
    if b.ndim < 2 or b.numel() == 0:
        raise ValueError(f"estimate and truth must be pictures (bands, height, width), got shape {tuple(b.shape)}")
    return a.detach().to(b.device), b.detach()


def _bands(estimate: Array, truth: Array, peak: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Each band of both, float64, relative to the peak."""
    a, b = _pair(estimate, truth)
    if not (math.isfinite(peak) and peak > 0):
        raise ValueError(f"peak must be positive, got {peak}: it is the largest value a pixel can have")
    for x, t in zip(a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:]), strict=True):
        yield x.double() / peak, t.double() / peak
