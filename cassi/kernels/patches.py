"""Patches of an image and their sum: unfold and fold for any image size and stride.

Patches start at r_i = 0, s, 2 s ...; where the stride misses the end of the image, one more patch ends there. So every
pixel is covered without padding. With corners on the stride alone
`extract_patches(x, p, s).reshape(B, p * p, -1)` is `torch.nn.functional.unfold`.
"""

from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.linear import linear_map


def extract_patches(x: Tensor, size: int, stride: int = 1) -> Tensor:
    """All patches of an image: P[..., u, v, i, j] = x[..., r_i + u, c_j + v].

    Args:
        x: (..., H, W), floating point.
        size: side of a patch p [pixel].
        stride: distance between neighboring patches [pixel], at most the size.

    Returns:
        (..., p, p, n_h, n_w), contiguous: pixel within the patch first, patch position last, as in `F.unfold`.

    Raises:
        ValueError: x of fewer than two axes, or patches that do not fit it.

    Example:
        >>> extract_patches(torch.arange(8.0).view(2, 4), 2)[0, :, 0]
        tensor([[0., 1., 2.],
                [1., 2., 3.]])
    """
    if x.ndim < 2:
        raise ValueError(f"x must be (..., H, W), got {tuple(x.shape)}; add the missing axes")
    for length in x.shape[-2:]:
        _count(length, size, stride)
    return linear_map(
        x,
        partial(_extract, size=size, stride=stride),
        partial(_aggregate, shape=(x.shape[-2], x.shape[-1]), stride=stride),
    )


def aggregate_patches(patches: Tensor, shape: tuple[int, int], stride: int = 1) -> Tensor:
    """Sum overlapping patches (..., p, p, n_h, n_w) back into an image (..., H, W): the adjoint of `extract_patches`.

        x[..., r, c] = sum over all (u, v, i, j) with r_i + u = r, c_j + v = c of P[..., u, v, i, j]

    A mean with weights w is `aggregate_patches(w * P, ...) / aggregate_patches(w, ...)`. Patches are divided into
    blocks of stride x stride; all blocks at the same position in their patch are added in one pass over contiguous
    rows, ceil(p / s)^2 passes in all. Below a few thousand numbers per pass, `F.fold` is used: it needs fewer calls.

    Raises:
        ValueError: the rank, size or number of patches does not match shape and stride.

    Example:
        >>> aggregate_patches(extract_patches(torch.ones(3, 4), 2), (3, 4))
        tensor([[1., 2., 2., 1.],
                [2., 4., 4., 2.],
                [1., 2., 2., 1.]])
    """
    if patches.ndim < 4 or patches.shape[-4] != patches.shape[-3]:
        raise ValueError(f"patches must be (..., p, p, n_h, n_w), got {tuple(patches.shape)}; add the missing axes")
    size, grid = patches.shape[-3], patches.shape[-2:]
    expected = tuple(sum(_count(length, size, stride)) for length in shape)
    if expected != grid:
        what = f"an image of {tuple(shape)} has {expected} patches of {size} x {size} at stride {stride}"
        raise ValueError(f"{what}, got {tuple(grid)}; use the shape and stride of the extraction")
    return linear_map(
        patches, partial(_aggregate, shape=shape, stride=stride), partial(_extract, size=size, stride=stride)
    )


def _count(length: int, size: int, stride: int) -> tuple[int, bool]:
    """Number of patches at multiples of the stride along an axis, and whether one more is needed at the end."""
    if size < 1 or stride < 1:
        raise ValueError(f"patch size and stride must be at least 1, got {size} and {stride}")
    if stride > size:
        raise ValueError(f"stride {stride} is larger than the patch, {size}, and leaves pixels out; use a smaller one")
    if size > length:
        raise ValueError(f"a patch of {size} pixels does not fit an axis of {length}; use a smaller patch or padding")
    return (length - size) // stride + 1, (length - size) % stride != 0


def _parts(length: int, size: int, stride: int) -> list[tuple[slice, slice]]:
    """What patches at multiples of the stride cover of an axis, and its end if they miss that, with their places."""
    n, is_missed = _count(length, size, stride)
    end = slice(length - size, length), slice(n, n + 1)
    return [(slice(0, (n - 1) * stride + size), slice(0, n)), *[end] * is_missed]


def _extract(x: Tensor, size: int, stride: int) -> Tensor:
    shape = x.shape[-2:]
    patches = x.new_empty((*x.shape[:-2], size, size, *(sum(_count(length, size, stride)) for length in shape)))
    for (rows, i), (columns, j) in product(*(_parts(length, size, stride) for length in shape)):
        windows = x[..., rows, columns].unfold(-2, size, stride).unfold(-2, size, stride)
        patches[..., i, j] = windows.movedim((-4, -3), (-2, -1))
    return patches


def _aggregate(patches: Tensor, shape: tuple[int, int], stride: int) -> Tensor:
    size = patches.shape[-3]
    flat = patches.reshape(-1, size, size, *patches.shape[-2:])
    each = list(product(*(_parts(length, size, stride) for length in shape)))
    x = _overlap_add(flat, stride) if len(each) == 1 else flat.new_zeros(len(flat), *shape)
    for (rows, i), (columns, j) in each if len(each) > 1 else ():
        x[:, rows, columns] += _overlap_add(flat[..., i, j], stride)
    return x.reshape(*patches.shape[:-4], *shape)


def _overlap_add(patches: Tensor, s: int) -> Tensor:
    """The sum of patches (B, p, p, n_h, n_w) at multiples of the stride, and as large as they reach."""
    batch, size, _, n_h, n_w = patches.shape
    shape = ((n_h - 1) * s + size, (n_w - 1) * s + size)
    blocks = -(-size // s)
    if size == s:  # no overlap
        return patches.permute(0, 3, 1, 4, 2).clone(memory_format=torch.contiguous_format).view(batch, *shape)
    if patches.numel() < 6000 * blocks**2:
        return F.fold(patches.reshape(batch, size**2, n_h * n_w), shape, size, stride=s)[:, 0]
    rows, columns = n_h + blocks - 1, n_w + blocks - 1
    x = patches.new_empty(batch, rows * s, columns * s)
    # pixels are sorted by their position modulo the stride: each pass then adds whole contiguous rows
    chunk = max(1, 2**19 // (rows * columns * s**2))
    planes = patches.new_empty(min(chunk, batch), s, s, rows, columns)
    for start in range(0, batch, chunk):
        part = patches[start : start + chunk]
        total = planes[: part.shape[0]].zero_()
        for a, b in product(range(blocks), repeat=2):
            block = part[:, a * s : (a + 1) * s, b * s : (b + 1) * s]
            total[:, : block.shape[1], : block.shape[2], a : a + n_h, b : b + n_w].add_(block)
        x[start : start + chunk].view(-1, rows, s, columns, s).copy_(total.permute(0, 3, 1, 4, 2))
    return x[:, : shape[0], : shape[1]]
