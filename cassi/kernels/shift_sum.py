"""The two kernels under every operator of this package: shift-and-sum and its adjoint.

Shift-and-sum      y[i, j + d_c - d_min] += m_c[i, j] x_c[i, j]      (..., C, H, W) -> (..., H, W')
Shift-back         x_c[i, j]              = m_c[i, j] y[i, j + d_c - d_min]

with integer shifts d_c and W' = W + max d - min d. In eager torch both are one fused multiply-add per band over the
whole batch, straight into slices of the result.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from cassi.kernels import cpu
from cassi.kernels.dispatch import kernels
from cassi.kernels.memory import ask_huge_pages

_IN_CACHE = 3 << 19  # bytes of a snapshot that stays in the second cache


def detector_width(width: int, shifts: tuple[int, ...]) -> int:
    """Columns of the detector that `width` scene columns spread over: W' = W + max d - min d."""
    return width + max(shifts) - min(shifts)


def constant_step(shifts: tuple[int, ...]) -> int | None:
    """The step between neighboring bands if it is the same for all of them, else None (0 for a single band)."""
    if len(shifts) == 1:
        return 0
    step = shifts[1] - shifts[0]
    return step if all(b - a == step for a, b in itertools.pairwise(shifts)) else None


def shift_sum(
    x: Tensor, mask: Tensor, shifts: tuple[int, ...], *, scale: Tensor | None = None, out: Tensor | None = None
) -> Tensor:
    """Shear the masked bands and sum them: y[i, j + d_c - d_min] += m_c[i, j] x_c[i, j].

    Args:
        x: (..., C, H, W), floating point.
        mask: (H, W) or (C, H, W), dtype and device of `x`.
        shifts: C integers d_c [pixel].
        scale: (H, W') that the result is multiplied by.
        out: (..., H, W'), overwritten; outside autograd only.

    Returns:
        (..., H, W').

    Raises:
        ValueError: shapes that do not fit each other.
        RuntimeError: `out` given where a gradient is wanted.

    Example:
        >>> shift_sum(torch.ones(2, 1, 2), torch.ones(1, 2), (0, 1))
        tensor([[1., 2., 1.]])
    """
    _check_mask(mask, shifts)
    _check_end("x", x, (len(shifts), *mask.shape[-2:]))
    if out is not None:
        _check_out(out, (*x.shape[:-3], x.shape[-2], detector_width(x.shape[-1], shifts)), x, mask, scale)
    if _wanted_gradient(x, mask, scale):
        y: Tensor = _Shift.apply(x, mask, shifts, False)  # type: ignore[no-untyped-call]
        return y if scale is None else y * scale
    return _shift_sum(x, mask, shifts, scale, out)


def shift_back(
    y: Tensor,
    mask: Tensor,
    shifts: tuple[int, ...],
    *,
    scale: Tensor | None = None,
    out: Tensor | None = None,
    add: bool = False,
) -> Tensor:
    """The adjoint of `shift_sum`: x_c[i, j] = m_c[i, j] y[i, j + d_c - d_min].

    Args:
        y: (..., H, W'), floating point.
        mask: (H, W) or (C, H, W), dtype and device of `y`.
        shifts: C integers d_c [pixel].
        scale: (H, W') that y is multiplied by first.
        out: (..., C, H, W), overwritten, or added to where `add`; outside autograd only.
        add: add onto `out` instead of overwriting it.

    Returns:
        (..., C, H, W).

    Raises:
        ValueError: shapes that do not fit each other.
        RuntimeError: `out` given where a gradient is wanted.

    Example:
        >>> shift_back(torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 2), (0, 1))
        tensor([[[1., 2.]],
        <BLANKLINE>
                [[2., 3.]]])
    """
    _check_mask(mask, shifts)
    _check_end("y", y, (mask.shape[-2], detector_width(mask.shape[-1], shifts)))
    if out is not None:
        _check_out(out, (*y.shape[:-2], len(shifts), y.shape[-2], mask.shape[-1]), y, mask, scale)
    if _wanted_gradient(y, mask, scale):
        y = y if scale is None else y * scale
        x: Tensor = _Shift.apply(y, mask, shifts, True)  # type: ignore[no-untyped-call]
        return x
    return _shift_back(y, mask, shifts, scale, out, add)


def _check_mask(mask: Tensor, shifts: tuple[int, ...]) -> None:
    if mask.ndim not in (2, 3) or (mask.ndim == 3 and len(mask) != len(shifts)):
        raise ValueError(f"mask must be (H, W) or ({len(shifts)}, H, W), got {tuple(mask.shape)}")


def _check_end(name: str, tensor: Tensor, end: tuple[int, ...]) -> None:
    if tuple(tensor.shape[-len(end) :]) != end:
        raise ValueError(f"{name} must end in {end}, got {tuple(tensor.shape)}")


def _wanted_gradient(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors if t is not None)


def _check_out(out: Tensor, shape: tuple[int, ...], *inputs: Tensor | None) -> None:
    if tuple(out.shape) != shape:
        raise ValueError(f"out must be {shape}, got {tuple(out.shape)}")
    if _wanted_gradient(*inputs):
        raise RuntimeError(
            "out= cannot be used where a gradient is wanted; leave it out, or call under torch.no_grad()"
        )


def data_step_(
    v: Tensor,
    x: Tensor,
    y: Tensor,
    y_x: Tensor,
    y_v: Tensor,
    mask: Tensor,
    shifts: tuple[int, ...],
    gram: Tensor,
    *,
    weights: Tensor | None = None,
    rho: float = 0.0,
    accelerate: bool = True,
) -> None:
    """The data step of GAP and ADMM, in place: `cassi.CASSI.data_step_` states what it computes.

    Args:
        v, x: (..., C, H, W), read and written; may be one.
        y, y_x, y_v: (..., H, W'), read, read (where `accelerate`) and written, and written.
        mask, shifts: as for `shift_sum`.
        gram: (H, W'), weights^2 times the sum of the squared masks.
        weights: (H, W') or None.
        rho: >= 0.
        accelerate: take y_x into account.
    """
    fast = kernels(v, x, y, y_x, y_v, mask, gram, weights)
    if fast is not None:
        fast.data_step(v, y, mask, shifts, weights, gram, rho, accelerate, x, y_x, y_v)
        return
    _shift_sum(v, mask, shifts, weights, y_v)
    misfit = y - y_v
    if accelerate:
        misfit.add_(y_x).sub_(y_v)
    total = gram + rho
    r = torch.where(total > torch.finfo(total.dtype).tiny, misfit / total, 0)
    torch.addcmul(y_v, gram, r, out=y_x)
    if x is not v:
        x.copy_(v)
    _shift_back(r, mask, shifts, weights, x, True)


def _band(mask: Tensor, c: int) -> Tensor:
    return mask if mask.ndim == 2 else mask[c]


def _shift_sum(x: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None, out: Tensor | None) -> Tensor:
    *batch, _, height, width = x.shape
    y = ask_huge_pages(x.new_empty((*batch, height, detector_width(width, shifts)))) if out is None else out
    x = x if x.is_cpu else x.contiguous()  # a copy costs less than a launch for each band
    fast = kernels(x, mask, scale, y)
    if fast is not None:
        fast.shift_sum(x, mask, shifts, scale, y)
        return y
    d_min = min(shifts)
    y.zero_()
    for c, d in enumerate(shifts):
        y[..., d - d_min : d - d_min + width].addcmul_(x[..., c, :, :], _band(mask, c))
    return y if scale is None else y.mul_(scale)


def _shift_back(
    y: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None, out: Tensor | None, add: bool
) -> Tensor:
    *batch, height, _ = y.shape
    width = mask.shape[-1]
    x = ask_huge_pages(y.new_empty((*batch, len(shifts), height, width))) if out is None else out
    y = y if y.is_cpu else y.contiguous()
    step = constant_step(shifts)
    # where every band is a window of y, moved by the step, one strided view holds them all, and one call does the work
    # faster than the kernel while a snapshot stays in the cache; a larger one it would read for each band from memory
    skew = step if step is not None and step >= 0 else None
    small = height * y.shape[-1] * y.element_size() <= _IN_CACHE
    fast = kernels(y, mask, scale, x)
    if fast is not None and not (fast is cpu and skew is not None and small and not add):
        fast.shift_back(y, mask, shifts, scale, x, add)
        return x
    if scale is not None:
        y = y * scale
    if skew is not None:
        skewed = y.as_strided(
            (*batch, len(shifts), height, width), (*y.stride()[:-2], skew * y.stride(-1), y.stride(-2), y.stride(-1))
        )
        if add:
            x.addcmul_(skewed, mask)
        else:
            torch.mul(skewed, mask, out=x)
        return x
    d_min = min(shifts)
    for c, d in enumerate(shifts):
        window = y[..., d - d_min : d - d_min + width]
        if add:
            x[..., c, :, :].addcmul_(window, _band(mask, c))
        else:
            torch.mul(window, _band(mask, c), out=x[..., c, :, :])
    return x


def _mask_gradient(x: Tensor, y: Tensor, mask: Tensor, shifts: tuple[int, ...]) -> Tensor:
    """d/dm <y, shift_sum(x, m)>: sum over the batch (and over the bands of a shared mask) of x_c y[., . + d_c]."""
    width, d_min = mask.shape[-1], min(shifts)
    bands = [
        (x[..., c, :, :] * y[..., d - d_min : d - d_min + width]).flatten(0, -3).sum(0)
        if x.ndim > 3
        else x[c] * y[:, d - d_min : d - d_min + width]
        for c, d in enumerate(shifts)
    ]
    stacked = torch.stack(bands)
    return stacked.sum(0) if mask.ndim == 2 else stacked


class _Shift(torch.autograd.Function):
    """Both under autograd: each is the other's backward; the input is saved only when the mask wants a gradient."""

    @staticmethod
    def forward(ctx, t: Tensor, mask: Tensor, shifts: tuple[int, ...], back: bool) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(mask, t if ctx.needs_input_grad[1] else None)
        ctx.shifts, ctx.back = shifts, back
        return _shift_back(t, mask, shifts, None, None, False) if back else _shift_sum(t, mask, shifts, None, None)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # type: ignore[no-untyped-def]
        mask, t = ctx.saved_tensors
        grad_t = grad_mask = None
        if ctx.needs_input_grad[0]:
            grad_t = (shift_sum if ctx.back else shift_back)(grad, mask, ctx.shifts)
        if ctx.needs_input_grad[1]:
            x, y = (grad, t) if ctx.back else (t, grad)
            grad_mask = _mask_gradient(x, y, mask, ctx.shifts)
        return grad_t, grad_mask, None, None
