"""The default solver's data step for several shots of one scene, compiled for the CPU: see `cassi.kernels.cpu`."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from cassi.kernels.jit import Array, jit
from cassi.kernels.threads import share_out

_PIECE = 256  # columns of the scene that are worked on at a time
_BLAS_ALONE = 1 << 18  # multiplications of a matrix product up to which OpenBLAS stays in the calling thread


def subspace_step(
    z: Tensor, z_new: Tensor, y: Tensor, e: Tensor, u: Tensor | None, y_z: Tensor, basis: Tensor, masks: Tensor,
    shifts: tuple[int, ...], weights: Tensor, modes: Tensor, gamma: Tensor, omega: Tensor, step: float
) -> None:  # fmt: skip
    """The data step of `cassi.solvers.subspace_tv.subspace_tv`, fused, for one scene of K shots.

    y, e and y_z are (K, H, W'), gamma and omega the same along the modes V (K, K, H, W'), masks (K, 1 or C, H, W).
    """
    offsets = np.asarray(shifts, dtype=np.int64) - min(shifts)
    multiplier = z[:0] if u is None else u
    arrays = [t.numpy() for t in (z, z_new, y, e, multiplier, y_z, basis, masks)]
    rows = [t.numpy() for t in (weights, modes, gamma, omega)]
    work = 2 * z.numel() * len(shifts) * (1 + len(masks) // 2)
    share_out(_subspace_step, z.shape[1], work, *arrays, offsets, *rows, rows[0].dtype.type(step))


@jit
def _subspace_step(
    z: Array, z_new: Array, y: Array, e: Array, u: Array, y_z: Array, basis: Array, masks: Array,
    offsets: Array, weights: Array, modes: Array, gamma: Array, omega: Array, step: float, start: int, stop: int
) -> None:  # fmt: skip
    components, _, width = z.shape
    bands, shots, detector = basis.shape[1], y.shape[0], y.shape[2]
    columns = np.ascontiguousarray(basis.T)
    pieces = -(-width // max(16, min(_PIECE, _BLAS_ALONE // (bands * components))))
    piece = -(-width // pieces)
    coefficients = np.zeros((components, piece), z.dtype)
    spectra = np.zeros((pieces, bands, piece), z.dtype)
    back = np.empty((shots, detector), z.dtype)
    along = np.empty((shots, detector), z.dtype)
    zero = z.dtype.type(0)
    for i in range(start, stop):
        for s in range(shots):
            y_z[s, i, :] = 0
        for n in range(pieces):
            left = n * piece
            right = min(width, left + piece)
            for k in range(components):
                coefficients[k, : right - left] = z[k, i, left:right]
            np.dot(columns, coefficients, spectra[n])
            for c in range(bands):
                x = spectra[n, c, : right - left]
                for s in range(shots):
                    seen = y_z[s, i, offsets[c] + left : offsets[c] + right]
                    mask = masks[s, c if masks.shape[1] > 1 else 0, i, left:right]
                    for j in range(x.size):
                        seen[j] += x[j] * mask[j]
                if u.size == 0:
                    x[:] = 0
                else:
                    multiplier = u[c, i, left:right]
                    for j in range(x.size):
                        p = max(multiplier[j] - x[j], zero)
                        x[j] = step * (p + p - multiplier[j])
                        multiplier[j] = p
        for s in range(shots):
            for j in range(detector):
                y_z[s, i, j] *= weights[s, i, j]
                e[s, i, j] += y[s, i, j] - y_z[s, i, j]
        # e = V gamma V^T (e + r), then V omega V^T (e + r)
        _along(modes, e[:, i], gamma, i, along)
        for s in range(shots):
            for j in range(detector):
                total = zero
                for m in range(shots):
                    total += modes[s, m, i, j] * along[m, j]
                e[s, i, j] = total
                back[s, j] = total + (y[s, i, j] - y_z[s, i, j])
        _along(modes, back, omega, i, along)
        for s in range(shots):
            for j in range(detector):
                total = zero
                for m in range(shots):
                    total += modes[s, m, i, j] * along[m, j]
                back[s, j] = total * weights[s, i, j]
        for n in range(pieces):
            left = n * piece
            right = min(width, left + piece)
            for c in range(bands):
                x = spectra[n, c, : right - left]
                for s in range(shots):
                    misfit = back[s, offsets[c] + left : offsets[c] + right]
                    m_row = masks[s, c if masks.shape[1] > 1 else 0, i, left:right]
                    for j in range(x.size):
                        x[j] += misfit[j] * m_row[j]
            np.dot(basis, spectra[n], coefficients)
            for k in range(components):
                for j in range(left, right):
                    z_new[k, i, j] = z[k, i, j] + coefficients[k, j - left]


@jit
def _along(modes: Array, values: Array, factor: Array, i: int, out: Array) -> None:
    """factor V^T values, in row i."""
    shots, detector = out.shape
    zero = out.dtype.type(0)
    for m in range(shots):
        for j in range(detector):
            total = zero
            for s in range(shots):
                total += modes[s, m, i, j] * values[s, j]
            out[m, j] = total * factor[m, i, j]
