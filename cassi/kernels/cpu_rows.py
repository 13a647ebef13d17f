"""Correlations of many rows, compiled for the CPU."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from cassi.kernels.jit import Array, jit
from cassi.kernels.threads import share_out

_ROW_OVERHEAD = 64  # of a row, in multiplications of four


def correlate_rows(y: Tensor, v: Tensor, out: Tensor, *, padding: int = 0, reverse: bool = False) -> None:
    """out[r, t] = sum_i y[r, t + i - padding] v[r, i], zero beyond the ends; v (n, M) or (1, M), or reversed."""
    work = out.shape[0] * (_ROW_OVERHEAD + out.shape[1] * v.shape[1] // 4)
    share_out(_correlate_rows, out.shape[0], work, *(t.detach().numpy() for t in (y, v, out)), padding, reverse)


@jit
def _correlate_rows(y: Array, v: Array, out: Array, padding: int, reverse: bool, start: int, stop: int) -> None:
    # unsigned indices: of others numba asks whether they are negative, and nothing is vectorised
    zero, one, two, three, four = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)
    length, m, width = np.uint64(y.shape[1]), np.uint64(v.shape[1]), np.uint64(out.shape[1])
    border, last = np.uint64(padding), m - one
    row = np.zeros(y.shape[1] + 2 * padding, y.dtype)
    for r in range(np.uint64(start), np.uint64(stop)):
        for j in range(length):
            row[border + j] = y[r, j]
        of = r if v.shape[0] > 1 else zero
        if width < m and width < 16:
            for t in range(width):
                total = y.dtype.type(0)
                if reverse:
                    for k in range(m):
                        total += row[t + k] * v[of, last - k]
                else:
                    for k in range(m):
                        total += row[t + k] * v[of, k]
                out[r, t] = total
            continue
        # the first 1 to 4 elements of v, then four at a time: out is loaded less often
        i = last % four + one
        if i == one:
            a = v[of, last if reverse else zero]
            for t in range(width):
                out[r, t] = a * row[t]
        elif i == two:
            a, b = (v[of, last], v[of, last - one]) if reverse else (v[of, zero], v[of, one])
            for t in range(width):
                out[r, t] = a * row[t] + b * row[t + one]
        elif i == three:
            b = v[of, last - one if reverse else one]
            a, c = (v[of, last], v[of, last - two]) if reverse else (v[of, zero], v[of, two])
            for t in range(width):
                out[r, t] = (a * row[t] + b * row[t + one]) + c * row[t + two]
        else:
            i = zero
            for t in range(width):
                out[r, t] = y.dtype.type(0)
        while i < m:
            if reverse:
                p = last - i
                a, b, c, d = v[of, p], v[of, p - one], v[of, p - two], v[of, p - three]
            else:
                a, b, c, d = v[of, i], v[of, i + one], v[of, i + two], v[of, i + three]
            for t in range(width):
                q = t + i
                out[r, t] += (a * row[q] + b * row[q + one]) + (c * row[q + two] + d * row[q + three])
            i += four
