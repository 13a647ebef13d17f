"""The two kernels behind every camera: shift-and-sum and its adjoint.

In eager torch the sum is one fused multiply-add per band over the whole batch, directly into a slice of the result; the
adjoint is one product with a view that holds all bands.
"""

import ctypes
import itertools
import mmap
import sys
from functools import partial

import torch
from torch import Tensor

from cassi.kernels import cpu
from cassi.kernels.dispatch import kernels
from cassi.kernels.linear import is_tracked, linear_map

_IN_CACHE = 3 << 19  # bytes up to which a snapshot stays in the L2 cache
_MAPPED = 32 << 20  # bytes from which glibc maps and unmaps every block; smaller blocks it reuses
_MADVISE = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None


def detector_width(width: int, shifts: tuple[int, ...]) -> int:
    """Detector columns that `width` scene columns are spread over: W' = W + max d - min d."""
    return width + max(shifts) - min(shifts)


def shift_sum(x: Tensor, mask: Tensor, shifts: tuple[int, ...], *, scale: Tensor | None = None) -> Tensor:
    """Shear masked bands and sum them, (..., C, H, W) -> (..., H, W'): y[i, j + d_c - d_min] += m_c[i, j] x_c[i, j].

    Args:
        x: (..., C, H, W), floating point.
        mask: (H, W) or (C, H, W), dtype and device of `x`.
        shifts: C integers d_c [pixel].
        scale: (H, W'), factor of the result.

    Raises:
        ValueError: inconsistent shapes.

    Example:
        >>> shift_sum(torch.ones(2, 1, 2), torch.ones(1, 2), (0, 1))
        tensor([[1., 2., 1.]])
    """
    _check(mask, shifts, "x", x, (len(shifts), *mask.shape[-2:]))
    if not is_tracked(x, mask, scale):
        return _shift_sum(x, mask, shifts, scale)
    if is_tracked(mask):
        x, mask = x * mask, _ones(mask)
    y = linear_map(x, partial(shift_sum, mask=mask, shifts=shifts), partial(shift_back, mask=mask, shifts=shifts))
    return y if scale is None else y * scale


def shift_back(y: Tensor, mask: Tensor, shifts: tuple[int, ...], *, scale: Tensor | None = None) -> Tensor:
    """The adjoint of `shift_sum`: x_c[i, j] = m_c[i, j] y[i, j + d_c - d_min]; y is multiplied by `scale` first.

    Example:
        >>> shift_back(torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 2), (0, 1))
        tensor([[[1., 2.]],
        <BLANKLINE>
                [[2., 3.]]])
    """
    _check(mask, shifts, "y", y, (*mask.shape[-2:-1], detector_width(mask.shape[-1], shifts)))
    if not is_tracked(y, mask, scale):
        return _shift_back(y, mask, shifts, scale)
    learned = is_tracked(mask)
    open_mask = _ones(mask) if learned else mask
    back, forth = (partial(function, mask=open_mask, shifts=shifts) for function in (shift_back, shift_sum))
    x = linear_map(y if scale is None else y * scale, back, forth)
    return x * mask if learned else x


def _check(mask: Tensor, shifts: tuple[int, ...], name: str, tensor: Tensor, end: tuple[int, ...]) -> None:
    if mask.ndim not in (2, 3) or (mask.ndim == 3 and len(mask) != len(shifts)):
        raise ValueError(f"mask must be (H, W) or ({len(shifts)}, H, W), got {tuple(mask.shape)}")
    if tuple(tensor.shape[-len(end) :]) != end:
        raise ValueError(f"{name} must end in {end}, got {tuple(tensor.shape)}")


def _ones(mask: Tensor) -> Tensor:
    return torch.ones(mask.shape, dtype=mask.dtype, device=mask.device)


def _shift_sum(x: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None) -> Tensor:
    *batch, _, height, width = x.shape
    y = _on_huge_pages(x.new_empty((*batch, height, detector_width(width, shifts))))
    x = x if x.is_cpu else x.contiguous()  # a copy is cheaper than one launch per band
    fast = kernels(x, mask, scale, y)
    if fast is not None:
        fast.shift_sum(x, mask, shifts, scale, y)
        return y
    y.zero_()
    for x_c, m_c, d in zip(x.unbind(-3), mask.expand(x.shape[-3:]), shifts, strict=True):
        y[..., d - min(shifts) : d - min(shifts) + width].addcmul_(x_c, m_c)
    return y if scale is None else y.mul_(scale)


def _shift_back(y: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None) -> Tensor:
    *batch, height, _ = y.shape
    width = mask.shape[-1]
    x = _on_huge_pages(y.new_empty((*batch, len(shifts), height, width)))
    y = y if y.is_cpu else y.contiguous()
    steps = {b - a for a, b in itertools.pairwise(shifts)}
    # equal steps to the right make the bands one strided view of y; a single product with it is faster than the kernel
    # as long as the snapshot stays in the cache, else every band would be read from memory
    even = len(steps) == 1 and min(steps) > 0
    small = height * y.shape[-1] * y.element_size() <= _IN_CACHE
    fast = kernels(y, mask, scale, x)
    if fast is not None and not (fast is cpu and even and small):
        fast.shift_back(y, mask, shifts, scale, x)
        return x
    if scale is not None:
        y = y * scale
    if even:
        windows = y.unfold(-1, width, min(steps)).movedim(-2, -3)
    else:
        windows = torch.stack([y[..., d - min(shifts) : d - min(shifts) + width] for d in shifts], -3)
    return torch.mul(windows, mask, out=x)


def _on_huge_pages(tensor: Tensor) -> Tensor:
    """Ask Linux to back a large new CPU tensor by 2 MiB pages; return the tensor.

    Otherwise each 4 KiB costs a page fault on the first write, which takes longer than these kernels.
    """
    size = tensor.numel() * tensor.element_size()
    if _MADVISE is not None and tensor.device.type == "cpu" and size >= _MAPPED:
        page = mmap.PAGESIZE
        start = -(-tensor.data_ptr() // page) * page
        _MADVISE(ctypes.c_void_p(start), ctypes.c_size_t((tensor.data_ptr() + size - start) // page * page), 14)
    return tensor
