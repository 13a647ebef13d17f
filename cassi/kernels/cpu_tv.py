"""The dual steps of total variation, compiled by numba: all of them in one sweep over an image."""

from functools import partial

import numpy as np
from torch import Tensor

from cassi.kernels.jit import FAST, Array, jit, stack
from cassi.kernels.threads import share_out


def tv_steps(
    u: Tensor, weight: Tensor, q: Tensor, spare: Tensor | None, num_iters: int, memory: float
) -> tuple[Tensor, Tensor | None]:
    """`cassi.priors.tv.tv_steps`: u (..., H, W) and q (2, ..., H, W), both in place; needs no spare."""
    images = stack(u, 2)
    weights = weight.detach().to(u).expand((*u.shape[:-2], 1, 1)).contiguous().view(-1).numpy()
    duals = q.detach().view(2, *images.shape).numpy()
    share = images.dtype.type(memory)
    share_out(_tv_prox, len(images), u.numel() * (1 + 2 * num_iters), images, weights, duals, share, num_iters)
    return q, spare


# these index whole images: slicing a row would cost as much as its arithmetic


@jit
def _primal_row(u: Array, place: int, v: Array, qx: Array, qy: Array, row: int) -> None:
    """u[place] = (v - D^T q)[row] for a row > 0; u has one more column, a copy of its last."""
    width = v.shape[1]
    u[place, 0] = v[row, 0] + qx[row, 0] + (qy[row, 0] - qy[row - 1, 0])
    for j in range(1, width):
        u[place, j] = v[row, j] + (qx[row, j] - qx[row, j - 1]) + (qy[row, j] - qy[row - 1, j])
    u[place, width] = u[place, width - 1]


@jit
def _primal_row_0(u: Array, place: int, v: Array, qx: Array, qy: Array) -> None:
    """The same for row 0, which has no q above it. A single function for all rows would not be vectorized."""
    width = v.shape[1]
    u[place, 0] = v[0, 0] + qx[0, 0] + qy[0, 0]
    for j in range(1, width):
        u[place, j] = v[0, j] + (qx[0, j] - qx[0, j - 1]) + qy[0, j]
    u[place, width] = u[place, width - 1]


# "arcp": 1 / sqrt from the processor's estimate and a Newton step, good to the last bit but one; NaN and Inf survive


@partial(jit, fastmath=FAST | {"arcp"})
def _dual_row(qx: Array, qy: Array, row: int, u: Array, place: int, below: int, inverse_weight: float) -> None:
    """q[row] <- P(q + 1/8 D u)[row]; at the border u is its own neighbor, and q stays 0."""
    step, zero, one = qx.dtype.type(0.125), qx.dtype.type(0), qx.dtype.type(1)
    limit = qx.dtype.type(1e30)  # near overflow: at 1e15 times the weight and more, the weight counts as 0
    for j in range(qx.shape[1]):
        a = qx[row, j] + step * (u[place, j + 1] - u[place, j])
        b = qy[row, j] + step * (u[below, j] - u[place, j])
        square = max((a * inverse_weight) ** 2 + (b * inverse_weight) ** 2, one)
        s = zero if square > limit else one / np.sqrt(square)
        qx[row, j] = a * s
        qy[row, j] = b * s


@jit
def _scale_row(q: Array, row: int, factor: float) -> None:
    for j in range(q.shape[1]):
        q[row, j] *= factor


@jit
def _tv_prox(u: Array, weight: Array, q: Array, memory: float, num_iters: int, start: int, stop: int) -> None:
    _, height, width = u.shape
    one, tiny = u.dtype.type(1), u.dtype.type(1e-30)
    first = start - start  # 0, but no constant: for that the functions of rows would be compiled again
    # for each step, u in its current row and in the row below
    rows = np.empty((num_iters + 1, 2, width + 1), u.dtype)
    for n in range(start, stop):
        v, qx, qy = u[n], q[0, n], q[1, n]
        inverse_weight = one / max(weight[n], tiny)
        # all steps in one sweep: step t works on row i - t, with the rows that it reads already finished by step t - 1
        for i in range(height + num_iters):
            if memory != one:
                for r in range(0 if i == 0 else i + 1, min(i + 2, height)):
                    _scale_row(qx, r, memory)
                    _scale_row(qy, r, memory)
            for t in range(num_iters):
                r = i - t
                if 0 <= r < height:
                    pair, place, below = rows[t], r % 2, 1 - r % 2
                    if r == 0:
                        _primal_row_0(pair, place, v, qx, qy)
                    if r + 1 < height:
                        _primal_row(pair, below, v, qx, qy, r + 1)
                    else:
                        for j in range(width + 1):
                            pair[below, j] = pair[place, j]
                    _dual_row(qx, qy, r, pair, place, below, inverse_weight)
            r = i - num_iters
            if r >= 0:
                if r == 0:
                    _primal_row_0(rows[num_iters], first, v, qx, qy)
                else:
                    _primal_row(rows[num_iters], first, v, qx, qy, r)
                for j in range(width):
                    v[r, j] = rows[num_iters, 0, j]
