"""Camera and data-step kernels compiled by numba; with `cpu_tv`, everything that `dispatch` selects on a CPU.

Each kernel passes over its operands once and finishes a block of rows while it is in the cache. It takes a range of
rows or images, so that threads can share the work. `cassi.kernels.gpu` has the same functions for CUDA devices. An
absent argument is an empty array, not None, because numba would compile each kernel again for the other type.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from cassi.kernels.cpu_tv import tv_steps as tv_steps  # re-exported: `cassi.kernels.gpu` has it too
from cassi.kernels.jit import Array, inline, jit, plain, stack
from cassi.kernels.threads import share_out

_CHUNK = 1 << 16  # elements of a vector that one task sums
_BLOCK = 20 << 10  # bytes of detector and mask per block, so that they stay in the L1 cache
_LONG_BLOCK = 1 << 20  # the same where cubes come from memory, which is fastest in long runs of one band
_IN_CACHE = 8 << 20  # bytes up to which cubes stay in the last-level cache
_SPECTRA = 256 << 10  # bytes of spectra per block, so that they stay in the L2 cache
_COLUMNS = 256  # that a matrix product finishes while they are in the L1 cache


def shift_sum(x: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None, out: Tensor) -> None:
    """`cassi.kernels.shift_sum.shift_sum` into out (..., H, W')."""
    rows = stack(out, 2)
    count = rows.shape[0] * rows.shape[1]
    scales = plain(scale, rows, 2)
    share_out(_forward, count, x.numel(), stack(x, 3), stack(mask, 2), _offsets(shifts), scales, rows)


def shift_back(y: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None, out: Tensor) -> None:
    """`cassi.kernels.shift_sum.shift_back` into out (..., C, H, W)."""
    rows = stack(y, 2)
    count = rows.shape[0] * rows.shape[1]
    scales = plain(scale, rows, 2)
    share_out(_adjoint, count, out.numel(), rows, stack(mask, 2), _offsets(shifts), scales, stack(out, 3))


def data_step(
    v: Tensor, y: Tensor, mask: Tensor, shifts: tuple[int, ...], weights: Tensor | None, gram: Tensor, rho: float,
    accelerate: bool, x: Tensor, y_x: Tensor, y_v: Tensor
) -> None:  # fmt: skip
    """`cassi.CASSI.data_step_`, fused: each row of the cube is read from memory once and written once."""
    rows = [stack(t, 2) for t in (y, y_x, y_v)]
    count = rows[0].shape[0] * rows[0].shape[1]
    diagonal = gram.detach().numpy()
    row_weights = plain(weights, diagonal, 2)
    constants = (stack(mask, 2), _offsets(shifts), row_weights, diagonal, diagonal.dtype.type(rho), accelerate)
    cubes = (stack(v, 3), stack(x, 3), x is v)
    share_out(_data_step, count, 2 * v.numel(), *cubes, *rows, *constants)


def subspace_step(
    z: Tensor, z_new: Tensor, y: Tensor, e: Tensor, u: Tensor | None, y_z: Tensor, basis: Tensor, mask: Tensor,
    shifts: tuple[int, ...], weights: Tensor | None, gamma: Tensor, omega: Tensor, step: float,
    modes: Tensor | None = None
) -> None:  # fmt: skip
    """The data step of `cassi.solvers.subspace_tv.subspace_tv`, fused: the cube itself is never stored.

    Of K shots of one scene, y, e, y_z and weights are (K, H, W'), gamma and omega the same along the modes
    V (K, K, H, W'), and the masks (K, 1 or C, H, W).
    """
    shots = 1 if modes is None else len(modes)
    rows = [stack(t, 2).reshape(-1, shots, *t.shape[-2:]) for t in (y, e, y_z, gamma, omega)]
    masks = stack(mask, 2).reshape(shots, -1, *mask.shape[-2:])
    multiplier = plain(u, masks, 4) if u is None else stack(u, 3)
    row_weights = plain(weights, masks, 3) if weights is None else stack(weights, 2)
    bases = _padded(basis.numpy()), _padded(basis.numpy().T)
    operands = (stack(z, 3), stack(z_new, 3), *rows, multiplier, *bases, masks, _offsets(shifts), row_weights)
    count, work = len(rows[0]) * z.shape[-2], 2 * z.numel() * len(shifts) * (1 + shots // 2)
    c = masks.dtype.type(step)
    if modes is None:
        share_out(_subspace_step, count, work, *operands, c)
    else:
        share_out(_subspace_step_of_shots, count, work, *operands, modes.detach().numpy(), c)


def subspace_gram(
    p: Tensor, basis: Tensor, scaled: Tensor, mask: Tensor, shifts: tuple[int, ...], weights: Tensor | None, out: Tensor
) -> None:
    """`cassi.CASSI.subspace_gram` into out (..., H, W'), without the cube that lies between."""
    given, rows = stack(p, 2), stack(out, 2)
    each = np.stack([_padded(one) for one in np.broadcast_to(stack(scaled, 2), (len(rows), *basis.shape))])
    constants = (each, _padded(basis.numpy().T), stack(mask, 2)[None], _offsets(shifts), plain(weights, rows, 2))
    share_out(_subspace_gram, rows.shape[0] * rows.shape[1], 2 * p.numel() * basis.numel(), given, *constants, rows)


def common_gram(
    p: Tensor, x: Tensor, mask: Tensor, shifts: tuple[int, ...], weights: Tensor | None, out: Tensor
) -> None:
    """`cassi.CASSI.common_gram` into out (..., H, W')."""
    given, rows, cubes = stack(p, 2), stack(out, 2), stack(x, 3)
    each = np.broadcast_to(cubes, (len(rows), *cubes.shape[1:]))
    operands = (given, each, mask.detach().numpy(), _offsets(shifts), plain(weights, rows, 2), rows)
    share_out(_common_gram, rows.shape[0] * rows.shape[1], 2 * each.size, *operands)


def squared_distances(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """|a - b|^2, |b|^2, |c - d|^2 and |d|^2, (4, 1), summed in float64 without a temporary."""
    sums = []
    for x, y in ((a, b), (c, d)):
        chunks = max(1, x.numel() // _CHUNK)
        partial = np.zeros((chunks, 2))
        share_out(_squared_distance, chunks, x.numel(), stack(x, 0), stack(y, 0), partial)
        sums.append(partial.sum(0))
    return torch.from_numpy(np.concatenate(sums)[:, None])


@cache
def _offsets(shifts: tuple[int, ...]) -> Array:
    return np.asarray(shifts, dtype=np.int64) - min(shifts)


@inline
def _block_rows(x: Array, detector: int) -> int:
    """Rows of all bands per block, for kernels that touch each voxel of the cubes x once."""
    block = _BLOCK if x.nbytes < _IN_CACHE else _LONG_BLOCK
    rows: int = max(1, block // ((x.shape[3] + detector) * x.itemsize))
    return rows


@inline
def _add_product(total: Array, x: Array, m: Array) -> None:
    for j in range(x.size):
        total[j] += x[j] * m[j]


@inline
def _set_product(out: Array, x: Array, m: Array) -> None:
    for j in range(x.size):
        out[j] = x[j] * m[j]


@inline
def _set_sum(out: Array, v: Array, x: Array, m: Array) -> None:
    for j in range(x.size):
        out[j] = v[j] + x[j] * m[j]


@jit
def _project(x: Array, mask: Array, offsets: Array, y: Array, top: int, bottom: int) -> None:
    """y = sum_c shift_c(m_c x_c) in the rows top .. bottom of one snapshot."""
    width = x.shape[2]
    y[top:bottom] = 0
    for c in range(x.shape[0]):
        m = mask[c if mask.shape[0] > 1 else 0]
        for i in range(top, bottom):
            _add_product(y[i, offsets[c] : offsets[c] + width], x[c, i], m[i])


@jit
def _spread(back: Array, mask: Array, offsets: Array, v: Array, add: bool, x: Array, top: int) -> None:
    """x_c = m_c shift_c^T(back), added to v or, where `add`, to x, in as many rows from `top` on as `back` has."""
    width = x.shape[2]
    for c in range(x.shape[0]):
        m = mask[c if mask.shape[0] > 1 else 0]
        for i in range(back.shape[0]):
            window = back[i, offsets[c] : offsets[c] + width]
            if add:
                _add_product(x[c, top + i], window, m[top + i])
            elif v.shape[0]:
                _set_sum(x[c, top + i], v[c, top + i], window, m[top + i])
            else:
                _set_product(x[c, top + i], window, m[top + i])


@jit
def _forward(x: Array, mask: Array, offsets: Array, scale: Array, y: Array, start: int, stop: int) -> None:
    height = x.shape[2]
    block = _block_rows(x, y.shape[2])
    first = start
    while first < stop:
        b, top = first // height, first % height
        bottom = min(height, top + min(block, stop - first))
        _project(x[b], mask, offsets, y[b], top, bottom)
        if scale.size:
            for i in range(top, bottom):
                _set_product(y[b, i], y[b, i], scale[i])
        first += bottom - top


@jit
def _adjoint(y: Array, mask: Array, offsets: Array, scale: Array, x: Array, start: int, stop: int) -> None:
    height = x.shape[2]
    block = _block_rows(x, y.shape[2])
    back = np.empty((block, y.shape[2]), y.dtype)
    first = start
    while first < stop:
        b, top = first // height, first % height
        count = min(block, stop - first, height - top)
        if scale.size == 0:
            _spread(y[b, top : top + count], mask, offsets, x[b, :0], False, x[b], top)
        else:
            for i in range(count):
                _set_product(back[i], y[b, top + i], scale[top + i])
            _spread(back[:count], mask, offsets, x[b, :0], False, x[b], top)
        first += count


@jit
def _data_step(
    v: Array, x: Array, in_place: bool, y: Array, y_x: Array, y_v: Array, mask: Array, offsets: Array,
    weights: Array, gram: Array, rho: float, accelerate: bool, start: int, stop: int
) -> None:  # fmt: skip
    _, _, height, width = v.shape
    detector = y.shape[2]
    block = max(1, _BLOCK // ((width + detector) * v.itemsize))  # rows of v are still in the cache when used again
    back = np.empty((block, detector), v.dtype)
    tiny = np.finfo(v.dtype).tiny
    first = start
    while first < stop:
        b, top = first // height, first % height
        count = min(block, stop - first, height - top)
        _project(v[b], mask, offsets, y_v[b], top, top + count)
        for n in range(count):
            i = top + n
            if weights.size:
                for j in range(detector):
                    y_v[b, i, j] *= weights[i, j]
            for j in range(detector):
                misfit = y[b, i, j] - y_v[b, i, j]
                if accelerate:
                    misfit += y_x[b, i, j] - y_v[b, i, j]
                total = rho + gram[i, j]
                r = misfit / total if total > tiny else v.dtype.type(0)
                y_x[b, i, j] = y_v[b, i, j] + gram[i, j] * r
                back[n, j] = r
            if weights.size:
                for j in range(detector):
                    back[n, j] *= weights[i, j]
        _spread(back[:count], mask, offsets, v[b], in_place, x[b], top)
        first += count


@inline
def _copy(source: Array, target: Array) -> None:
    for j in range(source.size):  # a slice assigned to a slice takes seconds to compile: it can fail, with a message
        target[j] = source[j]


def _padded(matrix: Array) -> Array:
    """The matrix with rows and columns of 0 added, up to multiples of 4."""
    rows, columns = matrix.shape
    padded = np.zeros((rows + -rows % 4, columns + -columns % 4), matrix.dtype)
    padded[:rows, :columns] = matrix
    return padded


@jit
def _multiply(a: Array, x: Array, add: bool, out: Array) -> None:
    """out = a x, or out += a x, for a of `_padded`: 4 x 4 of its elements at a time stay in registers.

    x and out have as many rows, of which those added hold finite numbers. For 28 bands and 10 spectra it takes half to
    a third of the time of BLAS, which copies its operands first.
    """
    for left in range(0, x.shape[1], _COLUMNS):
        right = min(left + _COLUMNS, x.shape[1])
        for r in range(0, len(a), 4):
            y0, y1, y2, y3 = out[r, left:right], out[r + 1, left:right], out[r + 2, left:right], out[r + 3, left:right]
            for n in range(0, a.shape[1], 4):
                x0, x1, x2, x3 = x[n, left:right], x[n + 1, left:right], x[n + 2, left:right], x[n + 3, left:right]
                a00, a01, a02, a03 = a[r, n], a[r, n + 1], a[r, n + 2], a[r, n + 3]
                a10, a11, a12, a13 = a[r + 1, n], a[r + 1, n + 1], a[r + 1, n + 2], a[r + 1, n + 3]
                a20, a21, a22, a23 = a[r + 2, n], a[r + 2, n + 1], a[r + 2, n + 2], a[r + 2, n + 3]
                a30, a31, a32, a33 = a[r + 3, n], a[r + 3, n + 1], a[r + 3, n + 2], a[r + 3, n + 3]
                if n == 0 and not add:
                    for j in range(right - left):
                        v0, v1, v2, v3 = x0[j], x1[j], x2[j], x3[j]
                        y0[j] = a00 * v0 + a01 * v1 + a02 * v2 + a03 * v3
                        y1[j] = a10 * v0 + a11 * v1 + a12 * v2 + a13 * v3
                        y2[j] = a20 * v0 + a21 * v1 + a22 * v2 + a23 * v3
                        y3[j] = a30 * v0 + a31 * v1 + a32 * v2 + a33 * v3
                else:
                    for j in range(right - left):
                        v0, v1, v2, v3 = x0[j], x1[j], x2[j], x3[j]
                        y0[j] += a00 * v0 + a01 * v1 + a02 * v2 + a03 * v3
                        y1[j] += a10 * v0 + a11 * v1 + a12 * v2 + a13 * v3
                        y2[j] += a20 * v0 + a21 * v1 + a22 * v2 + a23 * v3
                        y3[j] += a30 * v0 + a31 * v1 + a32 * v2 + a33 * v3


@jit
def _spectra(z: Array, columns: Array, top: int, old: Array, x: Array) -> None:
    """old = z and x = B^T z in as many rows from `top` on as `old` has."""
    for k in range(len(z)):
        for r in range(len(old)):
            _copy(z[k, top + r], old[r, k])
    old[:, len(z) :] = 0  # what `_padded` added, where 0 times NaN of the rows before would stay
    for r in range(len(old)):
        _multiply(columns, old[r], False, x[r])


@jit
def _multiplier_row(x: Array, u: Array, step: float) -> None:
    """p = max(u - x, 0);  x = step (2 p - u);  u = p."""
    zero = x.dtype.type(0)
    for j in range(x.size):
        p = max(u[j] - x[j], zero)
        x[j] = step * (p + p - u[j])
        u[j] = p


@jit
def _see(x: Array, mask: Array, offsets: Array, top: int, y_z: Array) -> None:
    """y_z = Phi x for each shot, band by band, in as many rows from `top` on as x has."""
    width = mask.shape[3]
    y_z[:, top : top + len(x)] = 0
    for c in range(len(offsets)):
        band = c if mask.shape[1] > 1 else 0
        for r in range(len(x)):
            for s in range(len(y_z)):
                seen = y_z[s, top + r, offsets[c] : offsets[c] + width]
                _add_product(seen, x[r, c], mask[s, band, top + r])


@jit
def _step_multiplier(x: Array, u: Array, b: int, step: float, top: int) -> None:
    """x becomes the step of its multiplier u, of scene b; 0 without one."""
    if u.size == 0:
        x[:] = 0
        return
    for c in range(u.shape[1]):
        for r in range(len(x)):
            _multiplier_row(x[r, c], u[b, c, top + r], step)


@jit
def _change_row(
    back: Array, x: Array, basis: Array, mask: Array, offsets: Array, i: int, old: Array, z_new: Array
) -> None:  # fmt: skip
    """z_new = old + B (x + Phi^T back), in row i; old and x are overwritten."""
    width = mask.shape[3]
    for c in range(len(offsets)):
        band = c if mask.shape[1] > 1 else 0
        for s in range(len(mask)):
            _add_product(x[c], back[s, offsets[c] : offsets[c] + width], mask[s, band, i])
    _multiply(basis, x, True, old)
    for k in range(len(z_new)):
        _copy(old[k], z_new[k, i])


@jit
def _back_row(back: Array, y: Array, y_z: Array, e: Array, gamma: Array, omega: Array, w: Array) -> None:
    """y_z = w y_z;  r = y - y_z;  e = gamma (e + r);  back = w omega (e + r), in one row of the detector."""
    if w.size:
        for j in range(y.size):
            y_z[j] *= w[j]
    for j in range(y.size):
        r = y[j] - y_z[j]
        e[j] = gamma[j] * (e[j] + r)
        back[j] = omega[j] * (e[j] + r)
    if w.size:
        for j in range(y.size):
            back[j] *= w[j]


@inline
def _blocks(z: Array, columns: Array) -> tuple[Array, Array]:
    """Room for z in a block of rows, which would have left the cache by then, and its spectra."""
    bands, components = columns.shape  # as `_padded`
    rows = max(1, _SPECTRA // (bands * z.shape[3] * z.itemsize))
    return np.zeros((rows, components, z.shape[3]), z.dtype), np.zeros((rows, bands, z.shape[3]), z.dtype)


@jit
def _subspace_step(
    z: Array, z_new: Array, y: Array, e: Array, y_z: Array, gamma: Array, omega: Array, u: Array, basis: Array,
    columns: Array, mask: Array, offsets: Array, weights: Array, step: float, start: int, stop: int
) -> None:  # fmt: skip
    height = z.shape[2]
    old, x = _blocks(z, columns)
    back = np.empty((1, y.shape[3]), z.dtype)
    first = start
    while first < stop:
        b, top = first // height, first % height
        count = min(len(x), stop - first, height - top)
        _spectra(z[b], columns, top, old[:count], x[:count])
        _see(x[:count], mask, offsets, top, y_z[b])
        _step_multiplier(x[:count], u, b, step, top)
        for r in range(count):
            i = top + r
            w = weights[0, i] if weights.size else back[0, :0]
            _back_row(back[0], y[b, 0, i], y_z[b, 0, i], e[b, 0, i], gamma[b, 0, i], omega[b, 0, i], w)
            _change_row(back, x[r], basis, mask, offsets, i, old[r], z_new[b])
        first += count


@jit
def _subspace_gram(
    p: Array, scaled: Array, columns: Array, mask: Array, offsets: Array, weights: Array, out: Array, start: int,
    stop: int
) -> None:  # fmt: skip
    height, width = mask.shape[2:]
    """out = w Phi B^T (S B) Phi^T w p, a block of rows at a time."""
    bands, components = columns.shape  # as `_padded`
    x = np.zeros((max(1, _SPECTRA // (bands * width * p.itemsize)), bands, width), p.dtype)
    z, back = np.zeros((components, width), p.dtype), np.empty(p.shape[2], p.dtype)
    first = start
    while first < stop:
        b, top = first // height, first % height
        count = min(len(x), stop - first, height - top)
        for r in range(count):
            i = top + r
            _copy(p[b, i], back)
            if weights.size:
                _set_product(back, back, weights[i])
            for c in range(len(offsets)):
                _set_product(x[r, c], back[offsets[c] : offsets[c] + width], mask[0, c if mask.shape[1] > 1 else 0, i])
            x[r, len(offsets) :] = 0  # as in `_spectra`
            _multiply(scaled[b], x[r], False, z)
            _multiply(columns, z, False, x[r])
        _see(x[:count], mask, offsets, top, out[b : b + 1])
        if weights.size:
            for i in range(top, top + count):
                _set_product(out[b, i], out[b, i], weights[i])
        first += count


@jit
def _common_gram(
    p: Array, x: Array, mask: Array, offsets: Array, weights: Array, out: Array, start: int, stop: int
) -> None:
    _, bands, height, width = x.shape
    block = _block_rows(x, p.shape[2])
    back, e = np.empty((block, p.shape[2]), p.dtype), np.empty((block, width), p.dtype)
    first = start
    while first < stop:
        b, top = first // height, first % height
        count = min(block, stop - first, height - top)
        e[:count] = 0
        out[b, top : top + count] = 0
        for n in range(count):
            _copy(p[b, top + n], back[n])
            if weights.size:
                _set_product(back[n], back[n], weights[top + n])
        for c in range(bands):
            for n in range(count):
                _add_product(e[n], x[b, c, top + n], back[n, offsets[c] : offsets[c] + width])
        for n in range(count):
            m = mask[top + n]
            for j in range(width):
                e[n, j] *= m[j] * m[j]
        for c in range(bands):
            for n in range(count):
                _add_product(out[b, top + n, offsets[c] : offsets[c] + width], x[b, c, top + n], e[n])
        if weights.size:
            for i in range(top, top + count):
                _set_product(out[b, i], out[b, i], weights[i])
        first += count


@jit
def _scale_modes(modes: Array, i: int, values: Array, factor: Array, out: Array) -> None:
    """out = V diag(factor) V^T values, in row i of the detector."""
    shots, detector = out.shape
    zero = out.dtype.type(0)
    out[:] = 0
    for m in range(shots):
        for j in range(detector):
            total = zero
            for s in range(shots):
                total += modes[s, m, i, j] * values[s, j]
            total *= factor[m, i, j]
            for s in range(shots):
                out[s, j] += modes[s, m, i, j] * total


@jit
def _back_shots(
    back: Array, misfit: Array, y: Array, y_z: Array, e: Array, gamma: Array, omega: Array, w: Array, modes: Array,
    i: int
) -> None:  # fmt: skip
    """`_back_row` for several shots, with gamma and omega along the modes of each pixel; row i of the detector."""
    shots, detector = back.shape
    if w.size:
        for s in range(shots):
            _set_product(y_z[s, i], y_z[s, i], w[s, i])
    for s in range(shots):
        for j in range(detector):
            misfit[s, j] = y[s, i, j] - y_z[s, i, j]
            e[s, i, j] += misfit[s, j]
    _scale_modes(modes, i, e[:, i], gamma, back)
    for s in range(shots):
        for j in range(detector):
            e[s, i, j] = back[s, j]
            misfit[s, j] += back[s, j]
    _scale_modes(modes, i, misfit, omega, back)
    if w.size:
        for s in range(shots):
            _set_product(back[s], back[s], w[s, i])


@jit
def _subspace_step_of_shots(
    z: Array, z_new: Array, y: Array, e: Array, y_z: Array, gamma: Array, omega: Array, u: Array, basis: Array,
    columns: Array, mask: Array, offsets: Array, weights: Array, modes: Array, step: float, start: int, stop: int
) -> None:  # fmt: skip
    """`_subspace_step` for several; few runs need it, and it takes long to compile."""
    height = z.shape[2]
    old, x = _blocks(z, columns)
    back, misfit = np.empty(y.shape[1::2], z.dtype), np.empty(y.shape[1::2], z.dtype)
    first = start
    while first < stop:
        b, top = first // height, first % height
        count = min(len(x), stop - first, height - top)
        _spectra(z[b], columns, top, old[:count], x[:count])
        _see(x[:count], mask, offsets, top, y_z[b])
        _step_multiplier(x[:count], u, b, step, top)
        for r in range(count):
            i = top + r
            _back_shots(back, misfit, y[b], y_z[b], e[b], gamma[b], omega[b], weights, modes, i)
            _change_row(back, x[r], basis, mask, offsets, i, old[r], z_new[b])
        first += count


@jit
def _squared_distance(a: Array, b: Array, partial: Array, start: int, stop: int) -> None:
    for k in range(start, stop):
        lo = a.size * k // partial.shape[0]
        hi = a.size * (k + 1) // partial.shape[0]
        x, y = a[lo:hi], b[lo:hi]
        difference = reference = 0.0
        for j in range(x.size):
            d = np.float64(x[j] - y[j])
            difference += d * d
            reference += np.float64(y[j]) * np.float64(y[j])
        partial[k, 0] = difference
        partial[k, 1] = reference
