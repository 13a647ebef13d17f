"""Many 1-D convolutions at once: row i of one matrix with row i of another, by the fastest way for the size.

Full convolution     y[r, t] = sum_i a[r, t - i] v[r, i]           (n, N), (n, M) -> (n, N + M - 1)
Valid correlation    a[r, j] = sum_i y[r, j + i] v[r, i]           (n, L), (n, M) -> (n, L - M + 1)

The second is the adjoint of the first in `a`; each is the other's derivative, so both differentiate to any order.
"""

from __future__ import annotations

import functools
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels import cpu_rows
from cassi.kernels.dispatch import kernels

Method = Literal["auto", "compiled", "loop", "conv1d", "fft"]
METHODS: tuple[Method, ...] = ("auto", "compiled", "loop", "conv1d", "fft")

_LOOP_BLOCK = 2**18  # elements of result and rows that one pass of the loop keeps in cache
_FFT_BLOCK = 2**18  # the same for the transforms


def convolve_rows(a: Tensor, v: Tensor, *, method: Method = "auto") -> Tensor:
    """Full convolution of each row of `a` with the same row of `v`, or with one kernel for all rows.

        y[r, t] = sum_i a[r, t - i] v[r, i]

    Zero beyond the ends, as `numpy.convolve(a[r], v[r], "full")`. Four ways, chosen by size where `method` is "auto":

    - "compiled": row by row, four elements of the shorter row at a time (`cassi.kernels.cpu_rows`); on the CPU the
      usual winner, as everything stays in the cache and one call does all.
    - "loop": one fused multiply-add an element of the shorter row, `y[:, i:i+N].addcmul_(a, v[:, i:i+1])`, over all
      rows, in blocks of rows that stay in cache. The usual winner elsewhere.
    - "conv1d": one grouped `conv1d`, each row a channel; for many float32 rows of a few elements.
    - "fft": real transforms of a length the transform likes; for two long rows.

    Args:
        a: (n, N), float32 or float64.
        v: (n, M), or (M,): one kernel for all rows; dtype and device of `a`.
        method: as above.

    Returns:
        (n, N + M - 1).

    Raises:
        ValueError: wrong rank, different numbers of rows, an empty row, an unknown method, or "compiled" where the
            kernels cannot work: for tensors that are not float32 or float64 on the CPU, or inside `eager()`.
        TypeError: not floating point, or different dtype or device.

    Example:
        >>> convolve_rows(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0, 10.0]]))
        tensor([[ 1., 12., 23., 30.]])
    """
    _check(a, v, method)
    if torch.is_grad_enabled() and (a.requires_grad or v.requires_grad):
        y: Tensor = _Rows.apply(a, v, method, False)  # type: ignore[no-untyped-call]
        return y
    return _convolve(a, v, method)


def correlate_rows(y: Tensor, v: Tensor, *, method: Method = "auto") -> Tensor:
    """Valid correlation of each row of `y` with the same row of `v`, or with one kernel for all rows.

        a[r, j] = sum_i y[r, j + i] v[r, i]

    The adjoint of `convolve_rows`: <convolve_rows(a, v), y> = <a, correlate_rows(y, v)>.

    Args:
        y: (n, L), float32 or float64.
        v: (n, M) or (M,), M <= L; dtype and device of `y`.
        method: as for `convolve_rows`; "conv1d" is never chosen by "auto".

    Returns:
        (n, L - M + 1).

    Raises:
        ValueError: as `convolve_rows`, or M > L.
        TypeError: as `convolve_rows`.

    Example:
        >>> correlate_rows(torch.tensor([[1.0, 12.0, 23.0, 30.0]]), torch.tensor([1.0, 10.0]))
        tensor([[121., 242., 323.]])
    """
    _check(y, v, method)
    if v.shape[-1] > y.shape[1]:
        raise ValueError(
            f"v has {v.shape[-1]} elements a row, more than the {y.shape[1]} of y: there is no valid position; "
            "swap the arguments or pad y"
        )
    if torch.is_grad_enabled() and (y.requires_grad or v.requires_grad):
        a: Tensor = _Rows.apply(y, v, method, True)  # type: ignore[no-untyped-call]
        return a
    return _correlate(y, v, method)


def choose_method(num_rows: int, n: int, m: int, dtype: torch.dtype, *, kernels: bool = True) -> Method:
    """The method `convolve_rows` takes for `num_rows` rows of n and of m elements.

    The limits were measured on two threads of a server's processor; `python scripts/benchmark.py speed` has the grid.

    Args:
        num_rows, n, m, dtype: the size.
        kernels: whether the compiled kernels can be used.

    Example:
        >>> sizes = ((100, 10, 5), (10_000, 50, 5), (100, 100, 90))
        >>> [choose_method(*size, torch.float32) for size in sizes]
        ['compiled', 'compiled', 'fft']
        >>> [choose_method(*size, torch.float32, kernels=False) for size in sizes]
        ['loop', 'loop', 'fft']
    """
    short, long = (n, m) if n < m else (m, n)
    if short > 45 + long // 20 or (not kernels and short >= 20):
        return "fft"
    tiny = dtype == torch.float32 and 3 <= short <= 7 and long <= 10 and num_rows >= 2**13
    if tiny or not kernels:
        return "conv1d" if tiny else "loop"
    return "compiled"


@functools.cache
def fft_length(n: int) -> int:
    """The smallest m 2^k >= n that transforms fast: m = 1, 3, 9, 15 with k >= 3, or m = 5 with k >= 4.

    Other products of small primes (18, 20, 25, 50 ...) cost up to ten times more an element.
    """
    return min(m << max(least, (-(-n // m) - 1).bit_length()) for m, least in ((1, 3), (3, 3), (5, 4), (9, 3), (15, 3)))


def _check(a: Tensor, v: Tensor, method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if a.ndim != 2 or v.ndim not in (1, 2) or (v.ndim == 2 and v.shape[0] != a.shape[0]):
        raise ValueError(
            f"the rows must be (n, N) and (n, M) or (M,), got {tuple(a.shape)} and {tuple(v.shape)}; "
            "flatten leading axes, and give one kernel a row or one for all"
        )
    if a.shape[1] == 0 or v.shape[-1] == 0:
        raise ValueError(f"the rows must not be empty, got {tuple(a.shape)} and {tuple(v.shape)}")
    if not a.is_floating_point() or a.dtype != v.dtype or a.device != v.device:
        raise TypeError(
            f"both must be floating point of one dtype and device, got {a.dtype} on {a.device} and "
            f"{v.dtype} on {v.device}; convert one with .to(...)"
        )
    if method == "compiled" and not _kernels(a):
        raise ValueError(
            f'method "compiled" needs float32 or float64 on the CPU, outside eager(), got {a.dtype} on {a.device}; '
            'leave it to "auto"'
        )


def _convolve(a: Tensor, v: Tensor, method: Method) -> Tensor:
    n, m = a.shape[1], v.shape[-1]
    if len(a) == 0:
        return a.new_zeros(0, n + m - 1)
    if method == "auto":
        method = choose_method(a.shape[0], n, m, a.dtype, kernels=_kernels(a))
    if method == "compiled":
        return _convolve_compiled(a, v)
    if method == "fft":
        return _convolve_fft(a, v)
    if method == "conv1d":
        return _convolve_conv1d(a, v)
    return _convolve_loop(a, v) if v.ndim == 1 or m <= n else _convolve_loop(v, a)


def _kernels(a: Tensor) -> bool:
    """Whether the compiled kernels take such rows, made contiguous."""
    return a.device.type == "cpu" and kernels(a.new_empty(1)) is not None


def _convolve_compiled(a: Tensor, v: Tensor) -> Tensor:
    rows, n, m = a.shape[0], a.shape[1], v.shape[-1]
    long, short = (a, v.view(-1, m)) if m <= n else (v.expand(rows, m), a)
    y = long.new_empty(rows, n + m - 1)
    cpu_rows.correlate_rows(long.contiguous(), short.contiguous(), y, padding=short.shape[1] - 1, reverse=True)
    return y


def _convolve_loop(long: Tensor, short: Tensor) -> Tensor:
    """y[:, i:i+N] += long * short[:, i], in blocks of rows. One kernel for all rows may be either of the two."""
    rows, n, m = long.shape[0], long.shape[1], short.shape[-1]
    y = long.new_zeros(rows, n + m - 1)
    if short.ndim == 1 and m > n:
        long, short, n, m = short.expand(rows, m), long, m, n
    block = max(32, _LOOP_BLOCK // (2 * n + m))
    for start in range(0, rows, block):
        count = min(block, rows - start)
        y_part, long_part = (y, long) if count == rows else (y[start : start + count], long[start : start + count])
        if short.ndim == 1:
            for i in range(m):
                y_part.narrow(1, i, n).addcmul_(long_part, short[i])
        else:
            short_part = short if count == rows else short[start : start + count]
            for i in range(m):
                y_part.narrow(1, i, n).addcmul_(long_part, short_part.narrow(1, i, 1))
    return y


def _convolve_conv1d(a: Tensor, v: Tensor) -> Tensor:
    if v.ndim == 1:
        return F.conv1d(a[:, None], v.flip(0)[None, None], padding=len(v) - 1)[:, 0]
    # kernels of at most 7 taps have a fast path: there the longer row is the better kernel
    kernel, rows = (a, v) if max(a.shape[1], v.shape[1]) <= 7 and a.shape[1] >= v.shape[1] else (v, a)
    if kernel.shape[1] > 7 and rows.shape[1] < kernel.shape[1]:
        kernel, rows = rows, kernel
    return F.conv1d(rows[None], kernel.flip(1)[:, None], padding=kernel.shape[1] - 1, groups=len(rows))[0]


def _convolve_fft(a: Tensor, v: Tensor) -> Tensor:
    rows, width = a.shape[0], a.shape[1] + v.shape[-1] - 1
    length = width if width <= 16 and rows * width <= 2**13 else fft_length(width)
    block = max(16, _FFT_BLOCK // length)
    spectrum = torch.fft.rfft(v, length) if v.ndim == 1 else None
    if block >= rows:
        y = _product(a, torch.fft.rfft(v, length) if spectrum is None else spectrum, length)
        return y if length == width else y[:, :width]
    y = a.new_empty(rows, width)
    for start in range(0, rows, block):
        part = slice(start, start + block)
        v_hat = torch.fft.rfft(v[part], length) if spectrum is None else spectrum
        y[part] = _product(a[part], v_hat, length)[:, :width]
    return y


def _product(a: Tensor, v_hat: Tensor, length: int) -> Tensor:
    y: Tensor = torch.fft.irfft(torch.fft.rfft(a, length).mul_(v_hat), length)
    return y


def _correlate(y: Tensor, v: Tensor, method: Method) -> Tensor:
    rows, length, m = y.shape[0], y.shape[1], v.shape[-1]
    n = length - m + 1
    if rows == 0:
        return y.new_zeros(0, n)
    if method == "auto":
        method = choose_method(rows, n, m, y.dtype, kernels=_kernels(y))
        method = "loop" if method == "conv1d" else method
    if method == "compiled":
        a = y.new_empty(rows, n)
        cpu_rows.correlate_rows(y.contiguous(), v.reshape(-1, m).contiguous(), a)
        return a
    if method != "loop":
        return _convolve(y, v.flip(-1), method)[:, m - 1 : length]
    a = y.new_zeros(rows, n)
    block = max(32, _LOOP_BLOCK // (length + n))
    for start in range(0, rows, block):
        part = slice(start, start + block)
        y_part, a_part, v_part = y[part], a[part], v[part] if v.ndim == 2 else v
        if m <= n:
            for i in range(m):
                a_part.addcmul_(y_part[:, i : i + n], v_part[..., i : i + 1])
        else:
            for j in range(n):
                torch.sum(y_part[:, j : j + m] * v_part, 1, out=a_part[:, j])
    return a


class _Rows(torch.autograd.Function):
    """Both under autograd: the gradient in the first is the other one of the two, that in the second a correlation."""

    @staticmethod
    def forward(ctx, a: Tensor, v: Tensor, method: Method, correlates: bool) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(a, v)
        ctx.method, ctx.correlates = method, correlates
        return (_correlate if correlates else _convolve)(a, v, method)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:  # type: ignore[no-untyped-def]
        a, v = ctx.saved_tensors
        other = convolve_rows if ctx.correlates else correlate_rows
        grad_a = other(grad, v, method=ctx.method) if ctx.needs_input_grad[0] else None
        grad_v = None
        if ctx.needs_input_grad[1]:
            grad_v = correlate_rows(*((a, grad) if ctx.correlates else (grad, a)), method=ctx.method)
            grad_v = grad_v.sum(0) if v.ndim == 1 else grad_v  # one kernel serves all rows
        return grad_a, grad_v, None, None
