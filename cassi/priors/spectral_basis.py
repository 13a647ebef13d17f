"""Smooth spectra as a prior: a cube is the sum of a few coefficient images times smooth spectra.

    x = B^T z,    x (C, H, W),   z (K, H, W),   B (K, C) with orthonormal rows

The rows of B are ordered from slow to fast, so that coefficient 0 is the brightness of the scene and the others its
color. Reflectances vary slowly with wavelength (Parkkinen, Hallikainen & Jaaskelainen, JOSA A 6, 318 (1989): eight
components describe the Munsell colors). Images of color are simpler than the brightness, and a spatial prior
should weigh them accordingly: `coefficient_weights`.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def smooth_basis(bands: int | Sequence[float] | np.ndarray, num_components: int) -> Tensor:
    """The slowest K cosines over the spectral axis, made orthonormal on the given bands.

        B ~ cos(pi k t_c),  k = 0 .. K - 1,   t_c = (c + 1/2) / C for equally spaced bands (the DCT-II vectors);
        for wavelengths lambda_c,  t_c = 1 / (2 C) + (1 - 1/C) (lambda_c - lambda_min) / (lambda_max - lambda_min)

    Args:
        bands: the number of bands C, or their C wavelengths [nm] in any order and spacing, all different.
        num_components: K; more than C gives C.

    Returns:
        (K, C) float64, rows orthonormal, row 0 constant in c.

    Raises:
        ValueError: fewer than one band or component, or wavelengths that repeat or are not finite.

    Example:
        >>> B = smooth_basis(28, 8)
        >>> torch.allclose(B @ B.T, torch.eye(8, dtype=torch.float64))
        True
    """
    wavelengths = None if isinstance(bands, int | np.integer) else np.asarray(bands, dtype=np.float64)
    count = int(bands) if isinstance(bands, int | np.integer) else len(bands)
    if count < 1 or num_components < 1:
        raise ValueError(f"need at least one band and one component, got {count} bands and {num_components} components")
    t = (np.arange(count) + 0.5) / count
    if wavelengths is not None and (not np.isfinite(wavelengths).all() or len(np.unique(wavelengths)) < count):
        raise ValueError("wavelengths must be finite and all different; pass the number of bands if they are unknown")
    if wavelengths is not None and count > 1:
        spread = (wavelengths - wavelengths.min()) / np.ptp(wavelengths)
        t = 1 / (2 * count) + (1 - 1 / count) * spread
    cosines = np.cos(np.pi * np.arange(min(num_components, count))[:, None] * t)
    q, r = np.linalg.qr(cosines.T)
    rows: np.ndarray = np.ascontiguousarray((q * np.sign(np.diag(r))).T)
    return torch.from_numpy(rows)


def principal_basis(covariance: Tensor, num_components: int) -> Tensor:
    """The constant spectrum and the K - 1 strongest eigenvectors of a spectral covariance, strongest first.

    The constant spectrum comes first, so that coefficient 0 is always the brightness.

    Args:
        covariance: (C, C), symmetric positive semi-definite; of a library of spectra or of a first reconstruction.
        num_components: K; more than C gives C.

    Returns:
        (K, C) float64, rows orthonormal.

    Raises:
        ValueError: covariance not square, or not finite.
    """
    if covariance.ndim != 2 or covariance.shape[0] != covariance.shape[1]:
        raise ValueError(f"covariance must be (C, C), got {tuple(covariance.shape)}")
    covariance = covariance.double().cpu()
    if not bool(torch.isfinite(covariance).all()):
        raise ValueError("covariance holds NaN or Inf")
    bands = covariance.shape[0]
    brightness = torch.full((bands, 1), 1 / math.sqrt(bands), dtype=torch.float64)
    color = torch.eye(bands, dtype=torch.float64) - brightness @ brightness.T
    _, vectors = torch.linalg.eigh(color @ covariance @ color)
    rest = vectors.flip(1)[:, : min(num_components, bands) - 1]
    basis, _ = torch.linalg.qr(torch.cat([brightness, rest], 1))
    signs = torch.where(basis.sum(0) < 0, -1.0, 1.0)
    rows: Tensor = basis * signs
    return rows.T.contiguous()


def coefficient_weights(num_components: int, device: torch.device | None = None) -> Tensor:
    """Relative cost of a gradient of coefficient k: 0.6, 1, 1.5, 2, 3, 4, 5 ...

    The brightness carries nearly all the detail of a scene, so detail is cheapest there; fast spectral structure has
    almost none of its own. The same weights serve every scene.

    Returns:
        (K,) float64, on the device, by default the CPU.

    Example:
        >>> coefficient_weights(6)
        tensor([0.6000, 1.0000, 1.5000, 2.0000, 3.0000, 4.0000], dtype=torch.float64)
    """
    half = torch.arange(1, num_components + 1, dtype=torch.float64, device=device) / 2
    return torch.maximum(half, 2 * half - 2).clamp(min=0.6)


def resolution(basis: Tensor, wavelengths: np.ndarray) -> np.ndarray:
    """The resolution of a basis (K, C) at each of its wavelengths (C,) [nm], (C,) [nm], at least the gap between bands.

    The full width at half maximum of the spectrum that it makes of a line in band c, B^T B e_c. Of K cosines over a
    range L it is 1.2 L / K (Dirichlet's kernel).

    Example:
        >>> nm = np.linspace(400.0, 700.0, 301)
        >>> round(float(np.median(resolution(smooth_basis(nm, 10), nm))))
        37
    """
    order = np.argsort(wavelengths)
    nm, B = np.asarray(wavelengths, dtype=np.float64)[order], basis.double().cpu().numpy()[:, order]
    lines, gaps = B.T @ B, np.abs(np.gradient(nm)) if len(nm) > 1 else np.zeros(1)
    widths = np.empty(len(nm))
    for c, line in enumerate(lines):
        above = line >= line[c] / 2
        ends = []
        for side in (1, -1):
            last = c
            while 0 <= last + side < len(nm) and above[last + side]:
                last += side
            beyond = last + side
            if 0 <= beyond < len(nm):
                share = (line[last] - line[c] / 2) / (line[last] - line[beyond])
                ends.append(abs(nm[last] + share * (nm[beyond] - nm[last]) - nm[c]))
        widths[c] = 2 * float(np.mean(ends)) if ends else np.ptp(nm)
    spans = np.empty(len(nm))
    spans[order] = np.maximum(widths, gaps)
    return spans


def analyse(x: Tensor, basis: Tensor) -> Tensor:
    """z = B x: the coefficient images (..., K, H, W) of a cube (..., C, H, W)."""
    return torch.einsum("kc,...chw->...khw", basis.to(x), x)


def synthesise(z: Tensor, basis: Tensor) -> Tensor:
    """x = B^T z: the cube (..., C, H, W) of coefficient images (..., K, H, W)."""
    return torch.einsum("kc,...khw->...chw", basis.to(z), z)
