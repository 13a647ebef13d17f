"""The hot loops of the solvers, compiled for the CPU by numba where it is installed; elsewhere eager torch does them.

Each kernel reads its operands once per call instead of once per elementary operation, and holds what it reuses in the
cache. Results equal the eager ones up to rounding. `CASSI_COMPILED=0` in the environment turns the kernels off.
"""

from __future__ import annotations

import os

import numpy as np
import torch
from torch import Tensor

try:
    if os.environ.get("CASSI_COMPILED", "1") == "0":
        raise ImportError
    import numba

    AVAILABLE = True
except ImportError:
    AVAILABLE = False


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors: numba there, CPU, float32 or float64, contiguous, no gradient wanted."""
    return AVAILABLE and all(
        t.device.type == "cpu"
        and t.dtype in (torch.float32, torch.float64)
        and t.is_contiguous()
        and not (t.requires_grad and torch.is_grad_enabled())
        for t in tensors
    )


def _use_torch_threads() -> None:
    numba.set_num_threads(min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))


def tv_prox_(u: Tensor, weight: Tensor, q: Tensor, num_iters: int) -> None:
    """`cassi.priors.tv.tv_prox_` (not coupled): u (..., H, W) and q (2, ..., H, W), both in place."""
    height, width = u.shape[-2:]
    images = u.view(-1, height, width)
    weights = weight.to(u).expand((*u.shape[:-2], 1, 1)).reshape(-1)
    _use_torch_threads()
    _tv_prox(images.numpy(), weights.numpy(), q.view(2, -1, height, width).numpy(), num_iters)


if AVAILABLE:

    @numba.njit(
        parallel=True, fastmath={"nnan", "ninf", "nsz", "arcp", "contract", "afn", "reassoc"}, cache=True, nogil=True
    )
    def _tv_prox(u: np.ndarray, weight: np.ndarray, q: np.ndarray, num_iters: int) -> None:
        count, height, width = u.shape
        step = u.dtype.type(0.125)
        zero, one = u.dtype.type(0), u.dtype.type(1)
        for n in numba.prange(count):
            w = weight[n]
            v, qx, qy = u[n], q[0, n], q[1, n]
            w2 = w * w
            row, below = np.empty(width, u.dtype), np.empty(width, u.dtype)
            for _ in range(num_iters):
                # rows top to bottom: u of this row and the next, from the dual of the step before, then q of this row
                for j in range(width):
                    left = qx[0, j - 1] if j > 0 else zero
                    row[j] = v[0, j] + qx[0, j] - left + qy[0, j]
                for i in range(height):
                    last = i == height - 1
                    if not last:
                        below[0] = v[i + 1, 0] + qx[i + 1, 0] + qy[i + 1, 0] - qy[i, 0]
                        for j in range(1, width):
                            below[j] = v[i + 1, j] + qx[i + 1, j] - qx[i + 1, j - 1] + qy[i + 1, j] - qy[i, j]
                    else:
                        for j in range(width):
                            below[j] = row[j]
                    for j in range(width - 1):
                        a = qx[i, j] + step * (row[j + 1] - row[j])
                        b = qy[i, j] + step * (below[j] - row[j])
                        m = a * a + b * b
                        s = w / np.sqrt(m) if m > w2 else one
                        qx[i, j] = a * s
                        qy[i, j] = b * s
                    b = qy[i, width - 1] + step * (below[width - 1] - row[width - 1])
                    qy[i, width - 1] = min(max(b, -w), w)
                    row, below = below, row
            for i in range(height):
                for j in range(width):
                    row[j] = v[i, j] + qx[i, j] + qy[i, j]
                for j in range(1, width):
                    row[j] -= qx[i, j - 1]
                if i > 0:
                    for j in range(width):
                        row[j] -= qy[i - 1, j]
                for j in range(width):
                    v[i, j] = row[j]
