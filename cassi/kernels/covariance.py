"""Second moments of spectra: sums over images and pixels of x x^T, without a copy of the images.

S[c, d] = sum over n, h, w of (x[n, c, h, w] - mean[c]) (x[n, d, h, w] - mean[d])
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear  # a b^T: one call where torch.mm needs a second for the transpose

_CHUNK = 2**18  # elements that are rearranged at a time: they stay in cache
_PREPARED = 2**16  # elements that are converted or centered at a time
_SPECTRA = 2**12  # or so many spectra, if these are more: thinner products are slow


def covariance_sum(x: Tensor, *, mean: Tensor | None = None, accumulate: torch.dtype | None = None) -> Tensor:
    """Sum over images and pixels of the outer product of the spectrum with itself: S = sum (x - mean)(x - mean)^T.

    `covariance_sum(x, mean=pixel_mean(x)) / (N * H * W)` is the covariance. Only chunks are ever copied.

    Args:
        x: (N, C, H, W) or (C, H, W), floating point.
        mean: (C,), taken off every spectrum first; see `pixel_mean`.
        accumulate: floating-point type of products and sums, default that of x.

    Returns:
        (C, C), symmetric, of type `accumulate`; differentiable in x and mean.

    Raises:
        ValueError: x of another rank or empty, or mean not (C,).
        TypeError: x or accumulate not floating point.

    Example:
        >>> covariance_sum(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 2, 1, 2))
        tensor([[ 5., 11.],
                [11., 25.]])
    """
    if mean is None and accumulate is None:
        # a small sum takes 5 microseconds: no more checks than needed
        if x.ndim == 4 and x.is_floating_point() and not x.requires_grad and x.numel():
            return _gram_sum(x)
        _check(x)
        if not (x.requires_grad and torch.is_grad_enabled()):
            return _gram_sum(x if x.ndim == 4 else x[None])
    _check(x)
    z = _flat(x)
    if mean is not None and tuple(mean.shape) != (z.shape[1],):
        raise ValueError(f"mean must be ({z.shape[1]},), one number a band, got {tuple(mean.shape)}")
    if accumulate is not None and not accumulate.is_floating_point:
        raise TypeError(f"accumulate must be a floating-point type, got {accumulate}; use torch.float64")
    dtype = x.dtype if accumulate is None else accumulate
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, mean)):
        centered = z.to(dtype) if mean is None else z.to(dtype) - mean.to(dtype)[:, None]
        return torch.einsum("ncl,ndl->cd", centered, centered)
    return _gram_sum_prepared(z, mean, dtype)


def pixel_mean(x: Tensor, *, accumulate: torch.dtype | None = None) -> Tensor:
    """The mean spectrum over images and pixels.

    Args:
        x: (N, C, H, W) or (C, H, W), floating point.
        accumulate: floating-point type of the sums, default that of x.

    Returns:
        (C,), of type `accumulate`.

    Raises:
        ValueError: as `covariance_sum`.

    Example:
        >>> pixel_mean(torch.tensor([1.0, 2.0, 3.0, 5.0]).view(2, 1, 2))
        tensor([1.5000, 4.0000])
    """
    _check(x)
    return _flat(x).mean((0, 2), dtype=accumulate)


def _check(x: Tensor) -> None:
    if x.ndim not in (3, 4) or not x.numel():
        raise ValueError(f"x must be (N, C, H, W) or (C, H, W) and not empty, got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}; convert it with .float()")


def _flat(x: Tensor) -> Tensor:
    return x.flatten(2) if x.ndim == 4 else x.flatten(1)[None]


def _gram_sum(x: Tensor) -> Tensor:
    """sum_n z_n z_n^T of images z_n (C, L), by the faster of two products for the shape, some images at a time."""
    n, c, h, w = x.shape
    length = h * w
    if n == 1:  # one matrix as it lies in memory
        columns = x.reshape(c, length)
        return linear(columns, columns)
    if length == 1:
        rows = x.reshape(n, c)
        return torch.mm(rows.t(), rows)
    if c * length > 448 and 2 * length >= c:
        part, product = 2**20 // (c * c), _of_images  # the products, part x C x C, stay in cache
    else:
        part, product = max(_CHUNK // (c * length), _SPECTRA // length), _of_columns
    part = max(1, part)
    total = product(x if n <= part else x[:part])
    for start in range(part, n, part):
        total += product(x[start : start + part])
    return total


def _of_images(x: Tensor) -> Tensor:
    z = x.flatten(2)
    return torch.bmm(z, z.mT).sum(0)


def _of_columns(x: Tensor) -> Tensor:
    columns = x.transpose(0, 1).flatten(1)
    return linear(columns, columns)


def _gram_sum_prepared(z: Tensor, mean: Tensor | None, dtype: torch.dtype) -> Tensor:
    """The same with each chunk converted and centered on its way into the product."""
    n, c, length = z.shape
    total = z.new_zeros(c, c, dtype=dtype)
    size = _PREPARED if z.is_cpu else z.numel()
    images = max(1, size // (c * length))
    pixels = max(1, size // (c * images))
    offset = None if mean is None else mean.to(dtype)[:, None, None]
    for first in range(0, n, images):
        for start in range(0, length, pixels):
            part = z[first : first + images, :, start : start + pixels].transpose(0, 1).to(dtype)
            columns = (part if offset is None else part - offset).reshape(c, -1)
            total.addmm_(columns, columns.t())
    return total
