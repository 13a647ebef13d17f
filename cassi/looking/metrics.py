"""How far an estimate is from the truth, and whether what is left in the data looks like noise.

Every function takes torch tensors or NumPy arrays, computes in float64 one band at a time (so that a cube costs a
few band-sized buffers, not copies of itself) and returns plain floats. Nothing is clipped: the benchmark of the field
clips the estimate to [0, 1] first, and the caller who wants that number does the same.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Array = Tensor | np.ndarray
Convention = Literal["mean-of-bands", "cube", "rounded-8bit"]
Border = Literal["valid", "zero"]

_WINDOW, _SIGMA, _K1, _K2 = 11, 1.5, 0.01, 0.03  # Wang et al. 2004, section III-C


class Whiteness(NamedTuple):
    """Lag-1 autocorrelations of a residual; white noise stays within `limit` nineteen times out of twenty."""

    vertical: float
    horizontal: float
    limit: float


def psnr(estimate: Array, truth: Array, *, peak: float = 1.0, convention: Convention = "mean-of-bands") -> float:
    """Peak signal-to-noise ratio in dB, in one of the three conventions of the field.

    With MSE_c the mean squared error of band c and L the peak:

    - ``"mean-of-bands"``: ``mean_c 10 log10(L^2 / MSE_c)``, the figure of most published tables;
    - ``"cube"``: ``10 log10(L^2 / mean_c MSE_c)``, one error for the whole cube. Never above the first (Jensen),
      and below it by a decibel or more where one band is much worse than the others;
    - ``"rounded-8bit"``: as the first, on ``round(256 x / L)`` with peak 255, which is what the evaluation code shared
      by most trained networks computes (``torch_psnr`` of the MST toolbox). The factor 256 against the peak 255 takes
      0.03 dB from the first figure, and the rounding hides errors below half a grey level.

    Args:
        estimate: (..., H, W) in the unit of `truth`; every leading axis counts as bands.
        truth: the same shape.
        peak: L, the largest value a pixel can have, in the unit of `truth`.
        convention: which of the three.

    Returns:
        Decibel; ``inf`` where a band (or the cube) is reproduced exactly, ``nan`` where the estimate has NaN.

    Raises:
        ValueError: shapes differ, fewer than two axes, nothing to compare, `peak` not positive, unknown convention.

    Example:
        >>> truth = torch.zeros(28, 64, 64)
        >>> round(psnr(truth + 0.1, truth), 6)
        20.0
    """
    if convention not in get_args(Convention):
        raise ValueError(f"convention must be one of {', '.join(get_args(Convention))}, got {convention!r}")
    errors = _band_errors(estimate, truth, peak, rounded=convention == "rounded-8bit")
    if convention == "cube":
        errors = [math.fsum(errors) / len(errors)]
    return math.fsum(_decibel(e) for e in errors) / len(errors)


def band_psnr(estimate: Array, truth: Array, *, peak: float = 1.0) -> list[float]:
    """Peak signal-to-noise ratio of each band, 10 log10(L^2 / MSE_c); their mean is `psnr`.

    Args:
        estimate, truth, peak: as for `psnr`, which also raises the same errors.

    Returns:
        Decibel, one number a band.

    Example:
        >>> [round(v) for v in band_psnr(torch.tensor([0.1, 0.01]).view(2, 1, 1), torch.zeros(2, 1, 1))]
        [20, 40]
    """
    return [_decibel(e) for e in _band_errors(estimate, truth, peak)]


def ssim(estimate: Array, truth: Array, *, peak: float = 1.0, border: Border = "valid") -> float:
    """Structural similarity, mean over pixels and bands.

    With means ``m``, variances ``v`` and covariance ``c`` under an 11 x 11 Gaussian window of sigma 1.5 px
    (population moments, weights summing to 1), ``C1 = (0.01 L)^2`` and ``C2 = (0.03 L)^2``:

        SSIM = (2 m_a m_b + C1) (2 c_ab + C2) / ((m_a^2 + m_b^2 + C1) (v_a + v_b + C2))

    Z. Wang et al., "Image quality assessment: from error visibility to structural similarity", IEEE Transactions on
    Image Processing 13 (2004), equation 13.

    Args:
        estimate: (..., H, W) in the unit of `truth`; every leading axis counts as bands.
        truth: the same shape.
        peak: L, the largest value a pixel can have, in the unit of `truth`.
        border: ``"valid"`` averages over the pixels whose window lies inside the picture (the paper's code, and
            scikit-image with ``gaussian_weights=True, sigma=1.5, use_sample_covariance=False``); ``"zero"`` pads both
            pictures with five zeros and averages over all pixels (the PyTorch code by which the networks of the field
            are evaluated). They differ by some 0.001.

    Returns:
        At most 1, which only equal pictures reach.

    Raises:
        ValueError: shapes differ, fewer than two axes, nothing to compare, `peak` not positive, unknown border rule,
            or a picture smaller than the window.

    Example:
        >>> truth = torch.rand(4, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> round(ssim(truth, truth), 6)
        1.0
    """
    estimate_bands, truth_bands = _bands(estimate, truth)
    _check_peak(peak)
    if border not in get_args(Border):
        raise ValueError(f"border must be one of {', '.join(get_args(Border))}, got {border!r}")
    height, width = truth_bands.shape[-2:]
    if border == "valid" and min(height, width) < _WINDOW:
        raise ValueError(
            f"SSIM needs pictures of at least {_WINDOW} x {_WINDOW} px, got {height} x {width}: "
            "its window does not fit; use border='zero'"
        )
    offset = torch.arange(_WINDOW, dtype=torch.float64, device=truth_bands.device) - _WINDOW // 2
    window = torch.exp(-0.5 * (offset / _SIGMA) ** 2)
    window = window / window.sum()
    pad = _WINDOW // 2 if border == "zero" else 0
    c1, c2 = _K1**2, _K2**2
    total = 0.0
    for a, b in zip(estimate_bands, truth_bands, strict=True):
        a, b = a.double() / peak, b.double() / peak
        moments = torch.stack([a, b, a * a, b * b, a * b]).unsqueeze(1)
        moments = F.conv2d(moments, window.view(1, 1, 1, -1), padding=(0, pad))
        mean_a, mean_b, square_a, square_b, product = F.conv2d(moments, window.view(1, 1, -1, 1), padding=(pad, 0))[
            :, 0
        ]
        cross = mean_a * mean_b
        powers = mean_a.square() + mean_b.square()
        similarity = (2 * cross + c1) * (2 * (product - cross) + c2)
        similarity /= (powers + c1) * (square_a + square_b - powers + c2)
        total += similarity.mean().item()
    return total / len(truth_bands)


def sam(estimate: Array, truth: Array) -> float:
    """Mean spectral angle in degrees: the angle between estimated and true spectrum, averaged over the pixels.

        angle = arccos(<a, b> / (|a| |b|)) = 2 atan2(| |b| a - |a| b |, | |b| a + |a| b |)

    The second form (W. Kahan, "How futile are mindless assessments of roundoff in floating-point computation?",
    2006) is the one computed: it keeps its digits at small angles, where arccos loses half of them.
    Blind to brightness: scaling a spectrum by a positive factor changes nothing.

    A pixel whose *true* spectrum is zero has no direction and is left out of the mean. A pixel where only the
    *estimate* is zero counts 90 degrees.

    Args:
        estimate: (..., C, H, W) in any unit.
        truth: the same shape.

    Returns:
        Degrees in [0, 180]; ``nan`` where every true spectrum is zero.

    Raises:
        ValueError: shapes differ, fewer than three axes, nothing to compare.

    Example:
        >>> truth = torch.rand(28, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> sam(3 * truth, truth) < 1e-5
        True
    """
    angles, known = _angles(estimate, truth)
    return float(np.degrees(angles[known].mean().item())) if known.any() else math.nan


def spectral_angles(estimate: Array, truth: Array) -> Tensor:
    """The angle between estimated and true spectrum at each pixel, whose mean is `sam`.

    Args:
        estimate, truth: (..., C, H, W), as for `sam`, which also raises the same errors.

    Returns:
        (..., H, W) float64 in degrees; NaN where the true spectrum is zero.

    Example:
        >>> one, other = torch.tensor([1.0, 0.0]).view(2, 1, 1), torch.tensor([1.0, 1.0]).view(2, 1, 1)
        >>> round(spectral_angles(one, other).item())
        45
    """
    angles, known = _angles(estimate, truth)
    return torch.where(known, torch.rad2deg(angles), math.nan)


def _angles(estimate: Array, truth: Array) -> tuple[Tensor, Tensor]:
    """Angles [rad] (..., H, W), and where there is a true direction."""
    a, b = _pair(estimate, truth, min_axes=3)
    found = []
    for one_a, one_b in zip(a.reshape(-1, *a.shape[-3:]), b.reshape(-1, *b.shape[-3:]), strict=True):
        norm_a, norm_b = (_norm(cube) for cube in (one_a, one_b))
        difference, sum_ = torch.zeros_like(norm_a), torch.zeros_like(norm_a)
        for band_a, band_b in zip(one_a, one_b, strict=True):
            u, v = band_a.double() * norm_b, band_b.double() * norm_a
            difference += (u - v).square()
            sum_ += (u + v).square()
        angle = 2 * torch.atan2(difference.sqrt(), sum_.sqrt())
        found.append((torch.where(norm_a == 0, math.pi / 2, angle), norm_b > 0))
    shape = (*b.shape[:-3], *b.shape[-2:])
    return torch.stack([f[0] for f in found]).reshape(shape), torch.stack([f[1] for f in found]).reshape(shape)


def score(
    cube: Array, *, truth: Array | None = None, mean_band: Array | None = None, peak: float = 1.0
) -> dict[str, float]:
    """How close a cube comes to the truth, in the convention of the field: estimate clipped to [0, peak], peak 1.

    Args:
        cube: (..., C, H, W).
        truth: the same shape, in [0, peak]; gives "psnr" [dB], "ssim" and "sam" [degrees].
        mean_band: (H, W), the true mean over bands; gives "mean_band_psnr" [dB].
        peak: the largest value a pixel can have.

    Returns:
        The figures that can be had, by name; without truth an empty dictionary.

    Raises:
        ValueError: shapes that differ.

    Example:
        >>> score(torch.full((3, 16, 16), 0.75), mean_band=torch.full((16, 16), 0.25))["mean_band_psnr"]  # 20 log10 2
        6.020599913279624
    """
    scores: dict[str, float] = {}
    if truth is not None:
        estimate, true = torch.as_tensor(cube).clamp(0, peak), torch.as_tensor(truth)
        scores["psnr"] = psnr(estimate, true, peak=peak)
        scores["ssim"] = ssim(estimate, true, peak=peak, border="valid" if min(true.shape[-2:]) >= 11 else "zero")
        scores["sam"] = sam(estimate, true)
    if mean_band is not None:
        mean = torch.as_tensor(cube).mean(-3).clamp(0, peak)
        scores["mean_band_psnr"] = psnr(mean, torch.as_tensor(mean_band).expand_as(mean), peak=peak)
    return scores


def residual_whiteness(residual: Array, weights: Array | None = None) -> Whiteness:
    """Lag-1 autocorrelations of a residual along both axes: about 0 for white noise, positive for structure left over.

    With s = sqrt(w) r, and sums over the detector pixels (pairs of neighbors) whose weights are not 0:

        vertical   = mean(s[i, j] s[i+1, j]) / mean(s[i, j]^2)
        horizontal = mean(s[i, j] s[i, j+1]) / mean(s[i, j]^2)

    The mean of the residual is not removed: noise has none, so an offset is structure and shows as correlation. A fit
    that swallows noise leaves negative values. For n white samples each value is nearly normal with variance 1 / n
    (Bartlett's formula), hence ``limit = 1.96 / sqrt(n)``.

    Args:
        residual: (..., H, W'), ``y - Phi x`` in any unit; leading axes are frames.
        weights: inverse variances that whiten the residual, >= 0 and of a shape that broadcasts to `residual`;
            0 leaves a pixel out. None: 1, and 0 where the residual is not finite.

    Returns:
        `Whiteness(vertical, horizontal, limit)`; a value is 0 where no pair of pixels is left or the residual is 0.

    Raises:
        ValueError: fewer than two axes, or negative weights.

    Example:
        >>> noise = torch.randn(256, 310, generator=torch.Generator().manual_seed(0))
        >>> abs(residual_whiteness(noise).vertical) < 0.02
        True
    """
    r = torch.as_tensor(residual).double()
    if r.ndim < 2:
        raise ValueError(f"residual must end in (height, width), got shape {tuple(r.shape)}: give a picture")
    if weights is None:
        seen = r.isfinite().double()
        r = torch.where(seen > 0, r, 0)
    else:
        w = torch.as_tensor(weights, device=r.device).double().expand_as(r)
        if (w < 0).any():
            raise ValueError(f"weights must be >= 0, got {w.min().item():g}: they are inverse variances")
        r = r * w.sqrt()
        seen = (w > 0).double()
    count = seen.sum().item()
    power = r.square().sum().item() / count if count else 0.0

    def correlation(ahead: Tensor, behind: Tensor, seen_pairs: Tensor) -> float:
        pairs = seen_pairs.sum().item()
        return (ahead * behind).sum().item() / pairs / power if pairs and power else 0.0

    return Whiteness(
        vertical=correlation(r[..., 1:, :], r[..., :-1, :], seen[..., 1:, :] * seen[..., :-1, :]),
        horizontal=correlation(r[..., 1:], r[..., :-1], seen[..., 1:] * seen[..., :-1]),
        limit=1.96 / math.sqrt(count) if count else math.inf,
    )


def _pair(estimate: Array, truth: Array, *, min_axes: int) -> tuple[Tensor, Tensor]:
    a, b = torch.as_tensor(estimate), torch.as_tensor(truth)
    if a.shape != b.shape:
        raise ValueError(
            f"estimate and truth must have one shape, got {tuple(a.shape)} and {tuple(b.shape)}: "
            "select the same bands and pixels"
        )
    if b.ndim < min_axes:
        wanted = "(bands, height, width)" if min_axes == 3 else "(height, width)"
        raise ValueError(f"estimate and truth must end in {wanted}, got shape {tuple(b.shape)}")
    if b.numel() == 0:
        raise ValueError(f"estimate and truth must not be empty, got shape {tuple(b.shape)}")
    return a.detach().to(b.device), b.detach()


def _bands(estimate: Array, truth: Array) -> tuple[Tensor, Tensor]:
    a, b = _pair(estimate, truth, min_axes=2)
    return a.reshape(-1, *a.shape[-2:]), b.reshape(-1, *b.shape[-2:])


def _norm(cube: Tensor) -> Tensor:
    """Length of each spectrum, band by band, so that no float64 copy of the cube is made."""
    total = torch.zeros(cube.shape[-2:], dtype=torch.float64, device=cube.device)
    for band in cube:
        total += band.double().square()
    return total.sqrt()


def _band_errors(estimate: Array, truth: Array, peak: float, *, rounded: bool = False) -> list[float]:
    """Mean squared error of each band relative to the peak; `rounded` to 8 bits as `psnr` says."""
    estimate_bands, truth_bands = _bands(estimate, truth)
    _check_peak(peak)
    errors = []
    for a, b in zip(estimate_bands, truth_bands, strict=True):
        a, b = a.double() / peak, b.double() / peak
        if rounded:
            a, b = (256 * a).round() / 255, (256 * b).round() / 255
        errors.append((a - b).square().mean().item())
    return errors


def _decibel(error: float) -> float:
    return math.inf if error == 0 else -10 * math.log10(error)


def _check_peak(peak: float) -> None:
    if not (math.isfinite(peak) and peak > 0):
        raise ValueError(f"peak must be positive, got {peak}: it is the largest value a pixel can have")
