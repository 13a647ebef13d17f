"""Correlation of rows with short rows, compiled by numba."""

import numpy as np
from torch import Tensor

from cassi.kernels.jit import Array, jit
from cassi.kernels.threads import share_out

_ROW_OVERHEAD = 64  # cost of starting a row, in groups of four multiplications


def correlate_rows(y: Tensor, v: Tensor, out: Tensor, *, padding: int = 0, reverse: bool = False) -> None:
    """out[r, t] = sum_i y[r, t + i - padding] v[r, i], zero beyond the ends; v (n, M) or (1, M), or reversed."""
    work = out.shape[0] * (_ROW_OVERHEAD + out.shape[1] * v.shape[1] // 4)
    share_out(_correlate_rows, out.shape[0], work, *(t.detach().numpy() for t in (y, v, out)), padding, reverse)


@jit
def _correlate_rows(y: Array, v: Array, out: Array, padding: int, reverse: bool, start: int, stop: int) -> None:
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
