"""The shift-sum and its inverse as they are usually written: what `cassi.kernels.shift_sum` is compared with.

Three ways to write y[..., j + d_c - d_min] += z_c[..., j] for masked bands z = m x, (..., C, H, W) -> (..., H, W'),
from the public thread that asks how such a loop of tensor additions can be made faster: the loop itself, a convolution
with one-hot kernels, and a scatter-add. They are here for tests and benchmarks; nothing else uses them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.shift_sum import detector_width


def sum_by_slices(z: Tensor, shifts: tuple[int, ...]) -> Tensor:
    """Method 1, the loop: add each band into its slice of y.

    Args:
        z: (..., C, H, W).
        shifts: C integers d_c [pixel].

    Returns:
        (..., H, W').

    Example:
        >>> sum_by_slices(torch.ones(2, 1, 2), (0, 1))
        tensor([[1., 2., 1.]])
    """
    d_min, width = min(shifts), z.shape[-1]
    y = z.new_zeros((*z.shape[:-3], z.shape[-2], detector_width(width, shifts)))
    for c, d in enumerate(shifts):
        y[..., d - d_min : d - d_min + width] += z[..., c, :, :]
    return y


def sum_by_convolution(z: Tensor, shifts: tuple[int, ...]) -> Tensor:
    """Method 2: a convolution along the rows with a kernel of C channels, each one-hot at the shift of its band.

    Args and result as for `sum_by_slices`; one batch axis at most.
    """
    spread = max(shifts) - min(shifts)
    kernel = z.new_zeros((1, len(shifts), 1, spread + 1))
    for c, d in enumerate(shifts):
        kernel[0, c, 0, max(shifts) - d] = 1
    batched = z if z.ndim == 4 else z[None]
    y = F.conv2d(batched, kernel, padding=(0, spread))[:, 0]
    return y if z.ndim == 4 else y[0]


def sum_by_scatter(z: Tensor, shifts: tuple[int, ...]) -> Tensor:
    """Method 3: one `scatter_add_` along the rows of all bands.

    Args and result as for `sum_by_slices`.
    """
    height, width = z.shape[-2:]
    columns = torch.arange(width, device=z.device) + _offsets(shifts, z.device)[:, None]
    index = columns[:, None, :].expand(len(shifts), height, width).movedim(0, -2).reshape(height, -1)
    rows = z.movedim(-3, -2).reshape(*z.shape[:-3], height, -1)
    y = z.new_zeros((*z.shape[:-3], height, detector_width(width, shifts)))
    return y.scatter_add_(-1, index.expand(rows.shape), rows)


def back_by_slices(y: Tensor, shifts: tuple[int, ...], width: int) -> Tensor:
    """The transposed sum, z_c[..., j] = y[..., j + d_c - d_min], by stacking slices: the thread's `shift_back`.

    Args:
        y: (..., H, W').
        shifts: C integers d_c [pixel].
        width: W.

    Returns:
        (..., C, H, W).
    """
    d_min = min(shifts)
    return torch.stack([y[..., d - d_min : d - d_min + width] for d in shifts], dim=-3)


def overlap_count(mask: Tensor, shifts: tuple[int, ...]) -> Tensor:
    """alpha: how many bands reach each detector pixel, (H, W')."""
    return sum_by_slices(torch.ones_like(mask).expand(len(shifts), *mask.shape[-2:]), shifts)


def inverse_by_division(y: Tensor, mask: Tensor, shifts: tuple[int, ...], alpha: Tensor) -> Tensor:
    """The thread's inverse, shift_back(y / alpha) / mask: share each pixel among its bands and undo the mask.

    A right inverse of y = shift_sum(m x) where no mask element is 0, but not the pseudo-inverse: that one is
    m shift_back(y / shift_sum(m^2)), and the two agree only where the mask is 1 throughout.

    Args:
        y: (..., H, W').
        mask: (H, W) or (C, H, W), nowhere 0.
        shifts: C integers d_c [pixel].
        alpha: (H, W'), `overlap_count`.

    Returns:
        (..., C, H, W).
    """
    return back_by_slices(y / alpha, shifts, mask.shape[-1]) / mask


def data_step_naive(x: Tensor, y: Tensor, mask: Tensor, shifts: tuple[int, ...], gram: Tensor) -> Tensor:
    """x + Phi^T [(y - Phi x) / gram], each operation a new tensor: the data step as the loops of the field have it."""
    misfit = y - sum_by_slices(mask * x, shifts)
    return x + mask * back_by_slices(misfit / gram, shifts, mask.shape[-1])


def _offsets(shifts: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([d - min(shifts) for d in shifts], device=device)
