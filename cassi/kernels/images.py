"""Images displaced along a vector field, by a sparse matrix and its transpose, and blurred."""

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.convolution import correlate_rows

with warnings.catch_warnings():  # torch warns once that the format is in beta
    warnings.simplefilter("ignore", UserWarning)
    torch.eye(1).to_sparse_csr()


def displacement_matrix(v: Tensor) -> Tensor:
    """W with (W x)(p) = x(p + v(p)) for an image x (H, W) as a vector and v (2, H, W) [pixel], down and to the right.

    Catmull-Rom cubic interpolation: each row has 4 x 4 weights that sum to 1; edge pixels are replicated beyond the
    border (Keys, IEEE Transactions on Acoustics, Speech, and Signal Processing 29, 1153 (1981), a = -1/2). Sparse
    CSR.
    """
    if v.ndim != 3 or len(v) != 2:
        raise ValueError(f"v must be (2, H, W), got {tuple(v.shape)}")
    height, width = v.shape[-2:]
    i = torch.arange(height, dtype=v.dtype, device=v.device)[:, None] + v[0]
    j = torch.arange(width, dtype=v.dtype, device=v.device) + v[1]
    (rows, a), (columns, b) = _taps(i, height), _taps(j, width)
    source = (rows[:, None] * width + columns[None]).flatten(0, 1)  # (16, H, W)
    weights = (a[:, None] * b[None]).flatten(0, 1)
    target = torch.arange(height * width, device=v.device).view(height, width).expand_as(source)
    indices = torch.stack([target.reshape(-1), source.reshape(-1)])
    size = (height * width, height * width)
    return torch.sparse_coo_tensor(indices, weights.reshape(-1), size, check_invariants=False).to_sparse_csr()


def transpose(W: Tensor) -> Tensor:
    """W^T, also in CSR."""
    matrix: Tensor = W.to_sparse_coo()  # type: ignore[no-untyped-call]
    return matrix.transpose(0, 1).coalesce().to_sparse_csr()


def displace(x: Tensor, W: Tensor) -> Tensor:
    """W x for each image of x (..., H, W); W^T x with the result of `transpose`."""
    images = x.reshape(-1, W.shape[1])
    return (W @ images.T).T.reshape(x.shape).contiguous()


def _taps(place: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The 4 pixels around each position along an axis, clamped to it, and their weights, (4, H, W)."""
    first = place.clamp(0, length - 1).floor()
    f = place.clamp(0, length - 1) - first
    weights = torch.stack([-f + 2 * f**2 - f**3, 2 - 5 * f**2 + 3 * f**3, f + 4 * f**2 - 3 * f**3, f**3 - f**2]) / 2
    pixels = torch.stack([(first + t).clamp(0, length - 1).long() for t in (-1, 0, 1, 2)])
    return pixels, weights


def gaussian_blur(images: Tensor, sigma: float, border: str = "reflect") -> Tensor:
    """Images (N, H, W) convolved with a Gaussian; mirrored at the border, or 0 beyond it ("constant")."""
    radius = min(math.ceil(3 * sigma), min(images.shape[-2:]) - 1)
    t = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    taps = torch.exp(-0.5 * (t / sigma) ** 2)
    taps = taps / taps.sum()
    if not images.is_cpu:
        padded = F.pad(images[:, None], (radius,) * 4, mode=border)
        return F.conv2d(F.conv2d(padded, taps.view(1, 1, -1, 1)), taps.view(1, 1, 1, -1))[:, 0]
    for _ in range(2):  # along the rows, then the columns: a tenth of the time of `conv2d`
        rows = F.pad(images, (radius, radius), mode=border).flatten(0, 1)
        images = correlate_rows(rows, taps).view(images.shape).mT.contiguous()
    return images
