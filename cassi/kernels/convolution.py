"""Many 1-D convolutions at once: row i of one matrix with row i of another.

Convolution and correlation are each other's derivative, so both differentiate to any order. On the CPU a compiled
kernel handles short rows; two long rows, and all rows on other devices, go through the FFT.
"""

from collections.abc import Callable

import numpy as np
import torch
from scipy.fft import next_fast_len
from torch import Tensor

from cassi.kernels.dispatch import kernels
from cassi.kernels.jit import Array, jit
from cassi.kernels.threads import share_out

_FFT_BLOCK = 2**18  # elements transformed at a time, so that they stay in the cache
_ROW_OVERHEAD = 64  # cost of starting a row, in groups of four multiplications


def convolve_rows(a: Tensor, v: Tensor) -> Tensor:
    """Full convolution of each row of `a` with the matching row of `v`, or with one kernel for all rows.

        y[r, t] = sum_i a[r, t - i] v[r, i]                        (n, N), (n, M) or (M,) -> (n, N + M - 1)

    Zero beyond the ends, as `numpy.convolve(a[r], v[r], "full")`; float32 or float64.

    Raises:
        ValueError: wrong rank, different numbers of rows, or an empty row.
        TypeError: not floating point, or different dtype or device.

    Example:
        >>> convolve_rows(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 10.0]]))
        tensor([[ 1., 12., 23., 30.]])
    """
    _check(a, v)
    return _with_gradient(a, v, correlates=False)


def correlate_rows(y: Tensor, v: Tensor) -> Tensor:
    """Valid correlation of each row of `y` with the matching row of `v`, or with one kernel for all rows.

        a[r, j] = sum_i y[r, j + i] v[r, i]                        (n, L), (n, M) or (M,), M <= L -> (n, L - M + 1)

    The adjoint of `convolve_rows`: <convolve_rows(a, v), y> = <a, correlate_rows(y, v)>. Same errors, also for M > L.

    Example:
        >>> correlate_rows(torch.tensor([[1.0, 12.0, 23.0, 30.0]]), torch.tensor([1.0, 10.0]))
        tensor([[121., 242., 323.]])
    """
    _check(y, v)
    if v.shape[-1] > y.shape[1]:
        what = f"v has {v.shape[-1]} elements a row, more than the {y.shape[1]} of y: there is no valid position"
        raise ValueError(f"{what}; swap the arguments or pad y")
    return _with_gradient(y, v, correlates=True)


def _check(a: Tensor, v: Tensor) -> None:
    if a.ndim != 2 or v.ndim not in (1, 2) or (v.ndim == 2 and v.shape[0] != a.shape[0]):
        what = f"the rows must be (n, N) and (n, M) or (M,), got {tuple(a.shape)} and {tuple(v.shape)}"
        raise ValueError(f"{what}; flatten leading axes, and give one kernel per row or one for all rows")
    if a.shape[1] == 0 or v.shape[-1] == 0:
        raise ValueError(f"the rows must not be empty, got {tuple(a.shape)} and {tuple(v.shape)}")
    if not a.is_floating_point() or a.dtype != v.dtype or a.device != v.device:
        what = "both must be floating point of one dtype and device"
        raise TypeError(f"{what}, got {a.dtype} on {a.device} and {v.dtype} on {v.device}; convert one with .to(...)")


def _with_gradient(a: Tensor, v: Tensor, correlates: bool) -> Tensor:
    if torch.is_grad_enabled() and (a.requires_grad or v.requires_grad):
        apply: Callable[..., Tensor] = _Rows.apply
        return apply(a, v, correlates)
    return _compute(a, v, correlates)


def _compute(a: Tensor, v: Tensor, correlates: bool) -> Tensor:
    rows, n, m = a.shape[0], a.shape[1], v.shape[-1]
    short, long = sorted((n - m + 1 if correlates else n, m))
    if not a.is_cpu or kernels(a.new_empty(1)) is None or short > 45 + long // 20:
        return _convolve_by_fft(a, v.flip(-1))[:, m - 1 : n] if correlates else _convolve_by_fft(a, v)
    first, second, width, padding = a, v.reshape(-1, m), n - m + 1, 0
    if not correlates:
        width, padding = n + m - 1, min(n, m) - 1
        first, second = (a, second) if m <= n else (v.expand(rows, m), a)
    y = a.new_empty(rows, width)
    arrays = (t.detach().numpy() for t in (first.contiguous(), second.contiguous(), y))
    work = rows * (_ROW_OVERHEAD + width * second.shape[1] // 4)
    share_out(_correlate_rows, rows, work, *arrays, padding, not correlates)
    return y


@jit
def _correlate_rows(y: Array, v: Array, out: Array, padding: int, reverse: bool, start: int, stop: int) -> None:
    """out[r, t] = sum_i y[r, t + i - padding] v[r, i], zero beyond the ends; v (n, M) or (1, M), or reversed."""
    # unsigned indices: numba checks signed ones for negative values, which prevents vectorization
    zero, one, two, three, four = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    length, m, width, border = np.uint64(y.shape[1]), np.uint64(v.shape[1]), np.uint64(out.shape[1]), np.uint64(padding)
    row = np.zeros(y.shape[1] + 2 * padding + 3, y.dtype)
    taps = np.zeros((v.shape[1] + 3) // 4 * 4, y.dtype)  # used four at a time, so that `out` is loaded less often
    for r in range(np.uint64(start), np.uint64(stop)):
        for j in range(length):
            row[border + j] = y[r, j]
        source = r if v.shape[0] > 1 else zero
        for k in range(m):
            taps[m - one - k if reverse else k] = v[source, k]
        if width < m and width < 16:
            for t in range(width):
                total = y.dtype.type(0)
                for k in range(m):
                    total += row[t + k] * taps[k]
                out[r, t] = total
            continue
        i = one if m % four == one else four
        a, b, c, d = taps[zero], taps[one], taps[two], taps[three]
        if i == one:
            for t in range(width):
                out[r, t] = a * row[t]
        else:
            for t in range(width):
                out[r, t] = (a * row[t] + b * row[t + one]) + (c * row[t + two] + d * row[t + three])
        while i < m:
            a, b, c, d = taps[i], taps[i + one], taps[i + two], taps[i + three]
            for t in range(width):
                q = t + i
                out[r, t] += (a * row[q] + b * row[q + one]) + (c * row[q + two] + d * row[q + three])
            i += four


def _convolve_by_fft(a: Tensor, v: Tensor) -> Tensor:
    """Full convolution, a block of rows at a time."""
    rows, width = a.shape[0], a.shape[1] + v.shape[-1] - 1
    length = next_fast_len(width, real=True)
    y = a.new_empty(rows, width)
    shared = torch.fft.rfft(v, length) if v.ndim == 1 else None
    block = max(16, _FFT_BLOCK // length)
    for start in range(0, rows, block):
        part = slice(start, start + block)
        v_hat = torch.fft.rfft(v[part], length) if shared is None else shared
        y[part] = torch.fft.irfft(torch.fft.rfft(a[part], length).mul_(v_hat), length)[:, :width]
    return y


class _Rows(torch.autograd.Function):
    """The gradient in the first argument is the other operation; in the second it is a correlation."""

    @staticmethod
    def forward(ctx, a: Tensor, v: Tensor, correlates: bool) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(a, v)
        ctx.correlates = correlates
        return _compute(a, v, correlates)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:  # type: ignore[no-untyped-def]
        a, v = ctx.saved_tensors
        other = convolve_rows if ctx.correlates else correlate_rows
        grad_a = other(grad, v) if ctx.needs_input_grad[0] else None
        grad_v = None
        if ctx.needs_input_grad[1]:
            grad_v = correlate_rows(*((a, grad) if ctx.correlates else (grad, a)))
            grad_v = grad_v.sum(0) if v.ndim == 1 else grad_v  # one kernel serves all rows
        return grad_a, grad_v, None
