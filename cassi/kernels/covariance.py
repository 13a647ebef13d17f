"""Second moments of spectra, S = sum over images and pixels of (x - mean)(x - mean)^T, without a copy of the images."""

import torch
from torch import Tensor
from torch.nn.functional import linear  # a b^T: one call where torch.mm needs a second for the transpose

_CHUNK = 2**18  # elements rearranged at a time, so that they stay in the cache
_PREPARED = 2**16  # elements centered at a time
_SPECTRA = 2**12  # but at least this many spectra: thinner matrix products are slow


def covariance_sum(x: Tensor, *, mean: Tensor | None = None) -> Tensor:
    """Sum over images and pixels of the outer product of each spectrum with itself.

        S[c, d] = sum over n, h, w of (x[n, c, h, w] - mean[c]) (x[n, d, h, w] - mean[d])

    `covariance_sum(x, mean=pixel_mean(x)) / (N * H * W)` is the covariance. Differentiable in x and mean.

    Args:
        x: (N, C, H, W) or (C, H, W), floating point, not empty.
        mean: (C,), subtracted from every spectrum first.

    Raises:
        ValueError, TypeError: wrong rank, size or type.

    Example:
        >>> covariance_sum(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(1, 2, 1, 2))
        tensor([[ 5., 11.],
                [11., 25.]])
    """
    _check(x)
    bands = x.shape[-3]
    if mean is not None and tuple(mean.shape) != (bands,):
        raise ValueError(f"mean must be ({bands},), one number per band, got {tuple(mean.shape)}")
    x = x if x.ndim == 4 else x[None]
    offset = None if mean is None else mean.to(x.dtype)[:, None, None]
    if torch.is_grad_enabled() and (x.requires_grad or (mean is not None and mean.requires_grad)):
        z = x if offset is None else x - offset
        return torch.einsum("nchw,ndhw->cd", z, z)
    if offset is None:
        return _gram_sum(x)
    # each part is centered just before the product
    rows = max(1, min(x.shape[2], _PREPARED // (bands * x.shape[3]))) if x.is_cpu else x.shape[2]
    images = max(1, _PREPARED // (bands * rows * x.shape[3])) if x.is_cpu else len(x)
    total = x.new_zeros(bands, bands)
    for some in torch.split(x, images):
        for part in torch.split(some, rows, 2):
            total += _gram_sum(part - offset)
    return total


def pixel_mean(x: Tensor) -> Tensor:
    """The mean spectrum (C,) over images and pixels of x (N, C, H, W) or (C, H, W).

    Example:
        >>> pixel_mean(torch.tensor([1.0, 2.0, 3.0, 5.0]).view(2, 1, 2))
        tensor([1.5000, 4.0000])
    """
    _check(x)
    return x.mean((-2, -1) if x.ndim == 3 else (0, 2, 3))


def _check(x: Tensor) -> None:
    if x.ndim not in (3, 4) or not x.numel():
        raise ValueError(f"x must be (N, C, H, W) or (C, H, W) and not empty, got {tuple(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"x must be floating point, got {x.dtype}; convert it with .float()")


def _gram_sum(x: Tensor) -> Tensor:
    """The uncentered sum for x (N, C, H, W), by whichever of two products is faster for its shape, in parts."""
    n, c, h, w = x.shape
    length = h * w
    if n == 1:  # one matrix, already contiguous
        columns = x.reshape(c, length)
        return linear(columns, columns)
    if length == 1:
        rows = x.reshape(n, c)
        return torch.mm(rows.t(), rows)
    total = x.new_zeros(c, c)
    if c * length > 448 and 2 * length >= c:
        for z in torch.split(x.flatten(2), max(1, 2**20 // (c * c))):  # the products, part x C x C, stay in the cache
            total += torch.bmm(z, z.mT).sum(0)
    else:
        for part in torch.split(x, max(1, _CHUNK // (c * length), _SPECTRA // length)):
            columns = part.transpose(0, 1).flatten(1)
            total += linear(columns, columns)
    return total
