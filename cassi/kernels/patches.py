"""Patches of an image and their way back: unfold and fold for any image size, stride and weight.

Extract      P[..., u, v, i, j] = x[..., r_i + u, c_j + v]
Aggregate    x[..., r, c]       = sum over all (u, v, i, j) with r_i + u = r, c_j + v = c of w P[..., u, v, i, j]

The corners r_i = 0, s, 2 s ... are followed by one last corner at the end of the image where the stride does not reach
it, so that every pixel is covered and no pixel is invented. Without weights the second is the adjoint of the first.
With corners on the stride alone `extract_patches(x, p, s).reshape(B, p * p, -1)` is `torch.nn.functional.unfold`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Pair = int | tuple[int, int]


def patch_corners(length: int, size: int, stride: int) -> tuple[int, ...]:
    """First pixel of each patch along one axis: 0, s, 2 s ..., and length - size where that misses the end.

    Raises:
        ValueError: size or stride below 1, or the patch longer than the axis.

    Example:
        >>> patch_corners(10, 4, 3), patch_corners(11, 4, 3)
        ((0, 3, 6), (0, 3, 6, 7))
    """
    _check_axis(length, size, stride)
    regular = tuple(range(0, length - size + 1, stride))
    return regular if regular[-1] == length - size else (*regular, length - size)


def _check_axis(length: int, size: int, stride: int) -> None:
    if size < 1 or stride < 1:
        raise ValueError(f"patch size and stride must be at least 1, got {size} and {stride}")
    if stride > size:
        raise ValueError(f"stride {stride} is larger than the patch, {size}: pixels would be missed; use a smaller one")
    if size > length:
        raise ValueError(f"a patch of {size} pixels does not fit an axis of {length}; use a smaller patch or padding")


def extract_patches(x: Tensor, size: Pair, stride: Pair = 1) -> Tensor:
    """All patches of an image: P[..., u, v, i, j] = x[..., r_i + u, c_j + v].

    Args:
        x: (..., H, W), floating point.
        size: patch height and width [pixel], one number for a square.
        stride: distance of neighboring patches [pixel], at most the size; the last patch ends at the border whatever
            the stride.

    Returns:
        (..., p_h, p_w, n_h, n_w), contiguous: pixel in the patch first, patch position last, as `F.unfold` orders them.

    Raises:
        ValueError: x of fewer than two axes; sizes that `patch_corners` refuses.

    Example:
        >>> extract_patches(torch.arange(5.0).view(1, 5), (1, 2), (1, 2))[0, :, 0]
        tensor([[0., 2., 3.],
                [1., 3., 4.]])
    """
    size, stride = _pair(size, "size"), _pair(stride, "stride")
    if x.ndim < 2:
        raise ValueError(f"x must be (..., H, W), got {tuple(x.shape)}; add the missing axes")
    for k in (0, 1):
        _check_axis(x.shape[k - 2], size[k], stride[k])
    if torch.is_grad_enabled() and x.requires_grad:
        patches: Tensor = _Patches.apply(x, (tuple(x.shape[-2:]), size, stride), False)  # type: ignore[no-untyped-call]
        return patches
    return _extract(x, size, stride)


def aggregate_patches(patches: Tensor, shape: tuple[int, int], stride: Pair = 1, *, normalize: bool = False) -> Tensor:
    """Sum overlapping patches back into an image; divided by the number of patches a pixel is in if `normalize`.

    With `normalize`, `aggregate_patches(extract_patches(x, ...), ...)` is x. A mean with weights w is
    `aggregate_patches(w * P, ...) / aggregate_patches(w, ...)`.

    Overlap-add: patches are cut into blocks of stride x stride; all blocks with the same place in their patch are
    added in one pass over contiguous rows, ceil(p / s)^2 passes in all. Where that is not more than a few thousand
    numbers a pass, `F.fold` takes fewer calls and is used.

    Args:
        patches: (..., p_h, p_w, n_h, n_w), floating point.
        shape: height and width of the image [pixel].
        stride: the stride of the extraction [pixel].
        normalize: divide.

    Returns:
        (..., H, W).

    Raises:
        ValueError: patches of another rank, size or number than shape and stride give.

    Example:
        >>> x = torch.arange(35.0).view(5, 7)
        >>> y = aggregate_patches(extract_patches(x, 3, 2), (5, 7), 2, normalize=True)
        >>> bool(torch.allclose(x, y))
        True
    """
    stride = _pair(stride, "stride")
    if patches.ndim < 4:
        raise ValueError(f"patches must be (..., p_h, p_w, n_h, n_w), got {tuple(patches.shape)}; add the missing axes")
    size_h, size_w, n_h, n_w = patches.shape[-4:]
    size = (size_h, size_w)
    for k in (0, 1):
        _check_axis(shape[k], size[k], stride[k])
    grid = tuple(1 - (size[k] - shape[k]) // stride[k] for k in (0, 1))  # rounded up: the last ends at the border
    if grid != (n_h, n_w):
        raise ValueError(
            f"an image of {tuple(shape)} has {grid} patches of {size_h} x {size_w} at stride {stride}, "
            f"got {(n_h, n_w)}; give the shape and stride of the extraction"
        )
    x: Tensor
    if torch.is_grad_enabled() and patches.requires_grad:
        x = _Patches.apply(patches, (shape, size, stride), True)  # type: ignore[no-untyped-call]
    else:
        x = _aggregate(patches, shape, stride)
    return x / torch.outer(*(_counts(x, shape[k], size[k], stride[k]) for k in (0, 1))) if normalize else x


def _pair(value: Pair, name: str) -> tuple[int, int]:
    pair = (value, value) if isinstance(value, int) else tuple(value)
    if len(pair) != 2:
        raise ValueError(f"{name} must be one integer or two, got {value!r}")
    return pair


def _counts(x: Tensor, length: int, size: int, stride: int) -> Tensor:
    """How many patches each place along an axis lies in."""
    count = x.new_zeros(length)
    for corner in patch_corners(length, size, stride):
        count[corner : corner + size] += 1
    return count


def _regular(length: int, size: int, stride: int) -> tuple[int, bool]:
    """Number of patches on the stride, and whether one more is needed at the end."""
    return (length - size) // stride + 1, (length - size) % stride != 0


def _extract(x: Tensor, size: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    (n_h, extra_h), (n_w, extra_w) = (_regular(x.shape[-2 + k], size[k], stride[k]) for k in (0, 1))

    def windows(image: Tensor) -> Tensor:
        view = image.unfold(-2, size[0], stride[0]).unfold(-2, size[1], stride[1])
        return view.movedim((-4, -3), (-2, -1))

    if not (extra_h or extra_w):
        return windows(x).contiguous()
    patches = x.new_empty((*x.shape[:-2], *size, n_h + extra_h, n_w + extra_w))
    patches[..., :n_h, :n_w] = windows(x)
    bottom, right = x[..., x.shape[-2] - size[0] :, :], x[..., x.shape[-1] - size[1] :]
    if extra_h:
        patches[..., n_h:, :n_w] = windows(bottom)
    if extra_w:
        patches[..., :n_h, n_w:] = windows(right)
    if extra_h and extra_w:
        patches[..., n_h:, n_w:] = windows(right[..., x.shape[-2] - size[0] :, :])
    return patches


def _aggregate(patches: Tensor, shape: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    *batch, size_h, size_w, grid_h, grid_w = patches.shape
    height, width = shape
    (n_h, extra_h), (n_w, extra_w) = _regular(height, size_h, stride[0]), _regular(width, size_w, stride[1])
    flat = patches if len(batch) == 1 else patches.reshape(-1, size_h, size_w, grid_h, grid_w)
    x = _overlap_add(flat[..., :n_h, :n_w], shape, stride)
    if extra_h:
        x[:, height - size_h :] += _overlap_add(flat[..., n_h:, :n_w], (size_h, width), stride)
    if extra_w:
        x[:, :, width - size_w :] += _overlap_add(flat[..., :n_h, n_w:], (height, size_w), stride)
    if extra_h and extra_w:
        x[:, height - size_h :, width - size_w :] += flat[..., n_h, n_w]
    return x if len(batch) == 1 else x.reshape(*batch, *shape)


def _overlap_add(patches: Tensor, shape: tuple[int, int], stride: tuple[int, int]) -> Tensor:
    """Sum patches (B, p_h, p_w, n_h, n_w) on the stride into (B, *shape); pixels beyond the last patch are 0."""
    batch, size_h, size_w, n_h, n_w = patches.shape
    (height, width), (s_h, s_w) = shape, stride
    blocks_h, blocks_w = -(-size_h // s_h), -(-size_w // s_w)
    reach = ((n_h - 1) * s_h + size_h, (n_w - 1) * s_w + size_w)
    if (size_h, size_w) == stride and reach == shape:  # side by side: nothing to add
        return patches.permute(0, 3, 1, 4, 2).clone(memory_format=torch.contiguous_format).view(batch, *shape)
    if patches.numel() < 6000 * blocks_h * blocks_w and reach == shape:
        return F.fold(patches.reshape(batch, size_h * size_w, n_h * n_w), shape, (size_h, size_w), stride=stride)[:, 0]
    rows, columns = max(n_h + blocks_h - 1, -(-height // s_h)), max(n_w + blocks_w - 1, -(-width // s_w))
    x = patches.new_empty(batch, rows * s_h, columns * s_w)
    # one residue of the pixel position modulo the stride is one plane: every pass adds whole contiguous rows
    chunk = max(1, 2**19 // (rows * s_h * columns * s_w))
    planes = patches.new_empty(min(chunk, batch), s_h, s_w, rows, columns)
    for start in range(0, batch, chunk):
        part = patches[start : start + chunk]
        total = planes[: part.shape[0]].zero_()
        for a in range(blocks_h):
            for b in range(blocks_w):
                block = part[:, a * s_h : (a + 1) * s_h, b * s_w : (b + 1) * s_w]
                total[:, : block.shape[1], : block.shape[2], a : a + n_h, b : b + n_w].add_(block)
        image = x[start : start + chunk].view(-1, rows, s_h, columns, s_w)
        image.copy_(total.permute(0, 3, 1, 4, 2))
    return x[:, :height, :width]


class _Patches(torch.autograd.Function):
    """Both under autograd: each is the other's backward."""

    @staticmethod
    def forward(ctx, t: Tensor, geometry: Any, aggregates: bool) -> Tensor:  # type: ignore[no-untyped-def]
        shape, size, stride = ctx.geometry = geometry
        ctx.aggregates = aggregates
        return _aggregate(t, shape, stride) if aggregates else _extract(t, size, stride)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        shape, size, stride = ctx.geometry
        back = extract_patches(grad, size, stride) if ctx.aggregates else aggregate_patches(grad, shape, stride)
        return back, None, None
