"""The hot loops of the package, compiled for the CPU by numba where it is installed; elsewhere eager torch does them.

Each kernel passes over its operands once and does all the work on a row, or a block of rows, while it is in the cache.
A kernel takes a range of rows or images; `torch.get_num_threads()` threads share the ranges, the calling one included,
and several Python threads may call at once. Results equal the eager ones up to rounding. `CASSI_COMPILED=0` in the
environment turns the kernels off.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

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


_EAGER: ContextVar[bool] = ContextVar("eager", default=False)


@contextmanager
def eager() -> Iterator[None]:
    """Within it eager torch does all the work, on the CPU and elsewhere: for comparisons."""
    token = _EAGER.set(True)
    try:
        yield
    finally:
        _EAGER.reset(token)


def switched_off() -> bool:
    """Whether kernels may not be used now: inside `eager()`, or while torch compiles."""
    return _EAGER.get() or torch.compiler.is_compiling()


def usable(*tensors: Tensor | None) -> bool:
    """Whether the kernels take these tensors: numba there, CPU, float32 or float64, contiguous, no gradient wanted."""
    given = [t for t in tensors if t is not None]
    return (
        AVAILABLE
        and not switched_off()
        and all(
            t.device.type == "cpu"
            and t.dtype in (torch.float32, torch.float64)
            and t.dtype == given[0].dtype
            and t.is_contiguous()
            and t.numel() > 0
            and not (t.requires_grad and torch.is_grad_enabled())
            for t in given
        )
    )


def ask_huge_pages(tensor: Tensor) -> Tensor:
    """Ask Linux to back the memory of a large new CPU tensor by 2 MiB pages; return the tensor.

    Otherwise writing to fresh memory costs a page fault for every 4 KiB, more time than what these kernels compute.
    Without effect on small tensors, other devices and other systems.
    """
    size = tensor.numel() * tensor.element_size()
    if _MADVISE is not None and tensor.device.type == "cpu" and size >= _MAPPED:
        page = mmap.PAGESIZE
        start = -(-tensor.data_ptr() // page) * page
        _MADVISE(ctypes.c_void_p(start), ctypes.c_size_t((tensor.data_ptr() + size - start) // page * page), 14)
    return tensor


def shift_sum(x: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None, out: Tensor) -> None:
    """`cassi.kernels.shift_sum.shift_sum` into out (..., H, W')."""
    rows = _stack(out, 2)
    count = rows.shape[0] * rows.shape[1]
    _run(_forward, count, x.numel(), _stack(x, 3), _stack(mask, 2), _offsets(shifts), _plain(scale), rows)


def shift_back(y: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None, out: Tensor, add: bool) -> None:
    """`cassi.kernels.shift_sum.shift_back` into out (..., C, H, W), or onto it."""
    rows = _stack(y, 2)
    count = rows.shape[0] * rows.shape[1]
    _run(_adjoint, count, out.numel(), rows, _stack(mask, 2), _offsets(shifts), _plain(scale), _stack(out, 3), add)


def data_step(
    v: Tensor,
    y: Tensor,
    mask: Tensor,
    shifts: tuple[int, ...],
    weights: Tensor | None,
    gram: Tensor,
    rho: float,
    accelerate: bool,
    x: Tensor,
    y_x: Tensor,
    y_v: Tensor,
) -> None:
    """`cassi.kernels.shift_sum.data_step`, fused: each cube row is read from memory once and written once."""
    rows = [_stack(t, 2) for t in (y, y_x, y_v)]
    count = rows[0].shape[0] * rows[0].shape[1]
    diagonal = gram.detach().numpy()
    constants = (_stack(mask, 2), _offsets(shifts), _plain(weights), diagonal, diagonal.dtype.type(rho), accelerate)
    _run(_data_step, count, 2 * v.numel(), _stack(v, 3), _stack(x, 3), *rows, *constants)


def tv_prox_(u: Tensor, weight: Tensor, q: Tensor, num_iters: int, memory: float = 1.0) -> None:
    """`cassi.priors.tv.tv_prox_` (not coupled): u (..., H, W) and q (2, ..., H, W), both in place; from memory * q."""
    images = _stack(u, 2)
    weights = weight.detach().to(u).expand((*u.shape[:-2], 1, 1)).reshape(-1).numpy()
    duals = q.detach().view(2, *images.shape).numpy()
    share = images.dtype.type(memory)
    _run(_tv_prox, len(images), u.numel() * (1 + 2 * num_iters), images, weights, duals, share, num_iters)


def subspace_step(
    z: Tensor,
    z_new: Tensor,
    y: Tensor,
    e: Tensor,
    u: Tensor | None,
    y_z: Tensor,
    basis: Tensor,
    mask: Tensor,
    shifts: tuple[int, ...],
    weights: Tensor | None,
    gamma: Tensor,
    omega: Tensor,
    step: float,
) -> None:
    """The data step of `cassi.solvers.subspace_tv.subspace_tv`, fused: the cube itself is never stored."""
    rows = [_stack(t, 2) for t in (y, e, y_z, gamma.contiguous(), omega.contiguous())]
    count = rows[0].shape[0] * rows[0].shape[1]
    multiplier = None if u is None else _stack(u, 3)
    work = 2 * z.numel() * len(shifts)
    constants = (basis.numpy(), _stack(mask, 2), _offsets(shifts), _plain(weights), rows[0].dtype.type(step))
    _run(_subspace_step, count, work, _stack(z, 3), _stack(z_new, 3), *rows, multiplier, *constants)


def squared_distance(a: Tensor, b: Tensor) -> tuple[float, float]:
    """|a - b|^2 and |b|^2 of contiguous tensors of one shape, summed in float64 without a temporary."""
    chunks = max(1, a.numel() // _CHUNK)
    partial = np.zeros((chunks, 2))
    _run(_squared_distance, chunks, a.numel(), _stack(a, 0), _stack(b, 0), partial)
    difference, reference = partial.sum(0)
    return float(difference), float(reference)


def correlate_rows(y: Tensor, v: Tensor, out: Tensor, *, padding: int = 0, reverse: bool = False) -> None:
    """out[r, t] = sum_i y[r, t + i - padding] v[r, i], zero beyond the ends; v (n, M) or (1, M), or reversed."""
    work = out.shape[0] * (_ROW_OVERHEAD + out.shape[1] * v.shape[1] // 4)
    _run(_correlate_rows, out.shape[0], work, *(t.detach().numpy() for t in (y, v, out)), padding, reverse)


def lowrank_groups(image: Tensor, groups: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """The groups of `cassi.priors.nonlocal_lowrank` denoised and put back: sums (H, W, K) and numbers of terms (H, W).

    Args:
        image: (H, W, K) contiguous, noise of standard deviation 1.
        groups: (n, m), places of patches, row by row over the image.
        patch: their side p [pixel].
    """
    height, width, bands = image.shape
    columns = width - patch + 1
    # parts of the groups, as many whatever the number of threads: each sums into rows of its own, added up in order
    parts = min(_PARTS, len(groups))
    bounds = np.array([len(groups) * k // parts for k in range(parts + 1)])
    rows = [groups[start:stop] // columns for start, stop in itertools.pairwise(bounds)]
    first = np.array([int(r.min()) for r in rows])
    last = np.array([int(r.max()) + patch for r in rows])
    total = np.zeros((parts, int((last - first).max()), width * bands), image.numpy().dtype)
    count = np.zeros((*total.shape[:2], width), total.dtype)
    arrays = (image.view(height, -1).numpy(), groups.contiguous().numpy(), bands, patch, bounds, first, total, count)
    _run(_lowrank_groups, parts, 32 * _SMALL, *arrays)
    summed, terms = torch.zeros(height, width * bands, dtype=image.dtype), torch.zeros(height, width, dtype=image.dtype)
    for part in range(parts):
        inside = slice(first[part], last[part])
        summed[inside] += torch.from_numpy(total[part, : last[part] - first[part]])
        terms[inside] += torch.from_numpy(count[part, : last[part] - first[part]])
    return summed.view(height, width, bands), terms


_MAPPED = 32 << 20  # bytes from which glibc maps and unmaps each block anew; smaller ones it keeps and hands out again
_MADVISE = getattr(ctypes.CDLL(None), "madvise", None) if sys.platform == "linux" else None
_CHUNK = 1 << 16  # elements of a vector that one task sums
_BLAS_ALONE = 1 << 18  # multiplications of a matrix product up to which OpenBLAS stays in the calling thread
_ROW_OVERHEAD = 64  # of a row of a convolution, in the same unit
_PARTS = 16  # that the groups of patches are cut into
_SMALL = 1 << 20  # elements below which waking another thread (0.1 ms) costs more than it saves


def _stack(tensor: Tensor, rank: int) -> np.ndarray:
    """The tensor's memory as an array (n, ...) of items of this rank: all leading axes in one."""
    array: np.ndarray = tensor.detach().view(-1, *tensor.shape[tensor.ndim - rank :]).numpy()
    return array


def _plain(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.detach().numpy()


@cache
def _offsets(shifts: tuple[int, ...]) -> np.ndarray:
    return np.asarray(shifts, dtype=np.int64) - min(shifts)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="cassi")


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork


def _run(kernel: Callable[..., None], count: int, work: int, *args: Any) -> None:
    """kernel(*args, start, stop) over ranges that cover 0 .. count; threads take the next range as they come free.

    torch's own parallel loops are not used: their idle threads spin, and would take the cores from these.
    """
    threads = min(torch.get_num_threads(), count) if work > _SMALL else 1
    if threads == 1:
        kernel(*args, 0, count)
        return
    pieces = min(count, threads if work < 32 * _SMALL else 4 * threads)
    bounds = [count * k // pieces for k in range(pieces + 1)]
    ranges = iter(list(itertools.pairwise(bounds)))

    def work_off() -> None:
        for start, stop in ranges:
            kernel(*args, start, stop)

    helpers = [_pool().submit(work_off) for _ in range(threads - 1)]
    work_off()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


if AVAILABLE:
    # NaN and Inf must come through, so that a solver can name the iteration that diverged: no nnan, ninf or afn
    _fast = {"nsz", "contract", "reassoc"}
    _jit = numba.njit(nogil=True, cache=True, fastmath=_fast, error_model="numpy")
    # a call for a row costs as much as its arithmetic; the longer loops, inlined, are no longer vectorised
    _inline = numba.njit(nogil=True, inline="always", fastmath=_fast, error_model="numpy")

    @_jit
    def _block_rows(bands: int) -> int:
        # a row of each band is a page of its own: stay longer in each where they are more than a TLB holds
        return 1 if bands <= 64 else 4

    @_inline
    def _add_product(total: np.ndarray, x: np.ndarray, m: np.ndarray) -> None:
        for j in range(x.size):
            total[j] += x[j] * m[j]

    @_inline
    def _set_product(out: np.ndarray, x: np.ndarray, m: np.ndarray) -> None:
        for j in range(x.size):
            out[j] = x[j] * m[j]

    @_inline
    def _set_sum(out: np.ndarray, v: np.ndarray, x: np.ndarray, m: np.ndarray) -> None:
        for j in range(x.size):
            out[j] = v[j] + x[j] * m[j]

    @_jit
    def _forward(
        x: np.ndarray,
        mask: np.ndarray,
        offsets: np.ndarray,
        scale: np.ndarray | None,
        y: np.ndarray,
        start: int,
        stop: int,
    ) -> None:
        _, bands, height, width = x.shape
        block = _block_rows(bands)
        first = start
        while first < stop:
            b, top = first // height, first % height
            bottom = min(height, top + min(block, stop - first))
            y[b, top:bottom] = 0
            for c in range(bands):
                m = mask[c if mask.shape[0] > 1 else 0]
                for i in range(top, bottom):
                    _add_product(y[b, i, offsets[c] : offsets[c] + width], x[b, c, i], m[i])
            if scale is not None:
                for i in range(top, bottom):
                    _set_product(y[b, i], y[b, i], scale[i])
            first += bottom - top

    @_jit
    def _adjoint(
        y: np.ndarray,
        mask: np.ndarray,
        offsets: np.ndarray,
        scale: np.ndarray | None,
        x: np.ndarray,
        add: bool,
        start: int,
        stop: int,
    ) -> None:
        _, bands, height, width = x.shape
        block = _block_rows(bands)
        scaled = np.empty((block, y.shape[2]), y.dtype)
        first = start
        while first < stop:
            b, top = first // height, first % height
            bottom = min(height, top + min(block, stop - first))
            if scale is not None:
                for i in range(top, bottom):
                    _set_product(scaled[i - top], y[b, i], scale[i])
            for c in range(bands):
                m = mask[c if mask.shape[0] > 1 else 0]
                for i in range(top, bottom):
                    row = y[b, i] if scale is None else scaled[i - top]
                    window = row[offsets[c] : offsets[c] + width]
                    if add:
                        _add_product(x[b, c, i], window, m[i])
                    else:
                        _set_product(x[b, c, i], window, m[i])
            first += bottom - top

    @_jit
    def _data_step(
        v: np.ndarray,
        x: np.ndarray,
        y: np.ndarray,
        y_x: np.ndarray,
        y_v: np.ndarray,
        mask: np.ndarray,
        offsets: np.ndarray,
        weights: np.ndarray | None,
        gram: np.ndarray,
        rho: float,
        accelerate: bool,
        start: int,
        stop: int,
    ) -> None:
        _, bands, height, width = v.shape
        detector = y.shape[2]
        block = _block_rows(bands)
        back = np.empty((block, detector), v.dtype)
        tiny = np.finfo(v.dtype).tiny
        first = start
        while first < stop:
            b, top = first // height, first % height
            bottom = min(height, top + min(block, stop - first))
            y_v[b, top:bottom] = 0
            for c in range(bands):
                m = mask[c if mask.shape[0] > 1 else 0]
                for i in range(top, bottom):
                    _add_product(y_v[b, i, offsets[c] : offsets[c] + width], v[b, c, i], m[i])
            for i in range(top, bottom):
                if weights is not None:
                    for j in range(detector):
                        y_v[b, i, j] *= weights[i, j]
                for j in range(detector):
                    misfit = y[b, i, j] - y_v[b, i, j]
                    if accelerate:
                        misfit += y_x[b, i, j] - y_v[b, i, j]
                    total = rho + gram[i, j]
                    r = misfit / total if total > tiny else v.dtype.type(0)
                    y_x[b, i, j] = y_v[b, i, j] + gram[i, j] * r
                    back[i - top, j] = r
                if weights is not None:
                    for j in range(detector):
                        back[i - top, j] *= weights[i, j]
            for c in range(bands):
                m = mask[c if mask.shape[0] > 1 else 0]
                for i in range(top, bottom):
                    window = back[i - top, offsets[c] : offsets[c] + width]
                    _set_sum(x[b, c, i], v[b, c, i], window, m[i])
            first += bottom - top

    @_jit
    def _multiplier_row(x: np.ndarray, u: np.ndarray, step: float) -> None:
        """p = max(u - x, 0);  x = step (2 p - u);  u = p."""
        zero = x.dtype.type(0)
        for j in range(x.size):
            p = max(u[j] - x[j], zero)
            x[j] = step * (p + p - u[j])
            u[j] = p

    @_jit
    def _subspace_step(
        z: np.ndarray,
        z_new: np.ndarray,
        y: np.ndarray,
        e: np.ndarray,
        y_z: np.ndarray,
        gamma: np.ndarray,
        omega: np.ndarray,
        u: np.ndarray | None,
        basis: np.ndarray,
        mask: np.ndarray,
        offsets: np.ndarray,
        weights: np.ndarray | None,
        step: float,
        start: int,
        stop: int,
    ) -> None:
        _, components, height, width = z.shape
        bands, detector = basis.shape[1], y.shape[2]
        columns = np.ascontiguousarray(basis.T)
        # products with the basis are BLAS's, of pieces that it does not share out among threads of its own
        pieces = -(-width // max(16, min(256, _BLAS_ALONE // (bands * components))))
        piece = -(-width // pieces)
        coefficients = np.zeros((components, piece), z.dtype)
        spectra = np.zeros((pieces, bands, piece), z.dtype)
        back = np.empty(detector, z.dtype)
        for first in range(start, stop):
            b, i = first // height, first % height
            row = y_z[b, i]
            row[:] = 0
            for n in range(pieces):
                left = n * piece
                right = min(width, left + piece)
                for k in range(components):
                    coefficients[k, : right - left] = z[b, k, i, left:right]
                np.dot(columns, coefficients, spectra[n])
                for c in range(bands):
                    x = spectra[n, c, : right - left]
                    seen = row[offsets[c] + left : offsets[c] + right]
                    _add_product(seen, x, mask[c if mask.shape[0] > 1 else 0, i, left:right])
                    if u is None:
                        x[:] = 0
                    else:
                        _multiplier_row(x, u[b, c, i, left:right], step)
            if weights is not None:
                for j in range(detector):
                    row[j] *= weights[i, j]
            for j in range(detector):
                r = y[b, i, j] - row[j]
                e[b, i, j] = gamma[b, i, j] * (e[b, i, j] + r)
                back[j] = omega[b, i, j] * (e[b, i, j] + r)
            if weights is not None:
                for j in range(detector):
                    back[j] *= weights[i, j]
            for n in range(pieces):
                left = n * piece
                right = min(width, left + piece)
                for c in range(bands):
                    m = mask[c if mask.shape[0] > 1 else 0, i, left:right]
                    misfit = back[offsets[c] + left : offsets[c] + right]
                    _add_product(spectra[n, c, : right - left], misfit, m)
                np.dot(basis, spectra[n], coefficients)
                for k in range(components):
                    for j in range(left, right):
                        z_new[b, k, i, j] = z[b, k, i, j] + coefficients[k, j - left]

    # slices of rows would cost as much as the rows' arithmetic
    @_jit
    def _primal_row(u: np.ndarray, place: int, v: np.ndarray, qx: np.ndarray, qy: np.ndarray, row: int) -> None:
        """u[place] = (v - D^T q)[row] of a row > 0; u has one more column, a copy of its last."""
        width = v.shape[1]
        u[place, 0] = v[row, 0] + qx[row, 0] + (qy[row, 0] - qy[row - 1, 0])
        for j in range(1, width):
            u[place, j] = v[row, j] + (qx[row, j] - qx[row, j - 1]) + (qy[row, j] - qy[row - 1, j])
        u[place, width] = u[place, width - 1]

    @_jit
    def _primal_row_0(u: np.ndarray, place: int, v: np.ndarray, qx: np.ndarray, qy: np.ndarray) -> None:
        """The same of row 0, above which there is no q. One function for all rows would be no longer vectorised."""
        width = v.shape[1]
        u[place, 0] = v[0, 0] + qx[0, 0] + qy[0, 0]
        for j in range(1, width):
            u[place, j] = v[0, j] + (qx[0, j] - qx[0, j - 1]) + qy[0, j]
        u[place, width] = u[place, width - 1]

    # "arcp": 1 / sqrt as the processor's estimate and a Newton step, to the last bit but one; NaN and Inf stay
    @numba.njit(nogil=True, cache=True, fastmath=_fast | {"arcp"}, error_model="numpy")
    def _dual_row(
        qx: np.ndarray, qy: np.ndarray, row: int, u: np.ndarray, place: int, below: int, inverse_weight: float
    ) -> None:
        """q[row] <- P(q + 1/8 D u)[row]; at the border u is its own neighbour, and q stays 0."""
        step, zero, one = qx.dtype.type(0.125), qx.dtype.type(0), qx.dtype.type(1)
        most = qx.dtype.type(1e30)  # near overflow: 1e15 times the weight and more, beside which the weight is 0
        for j in range(qx.shape[1]):
            a = qx[row, j] + step * (u[place, j + 1] - u[place, j])
            b = qy[row, j] + step * (u[below, j] - u[place, j])
            square = max((a * inverse_weight) ** 2 + (b * inverse_weight) ** 2, one)
            s = zero if square > most else one / np.sqrt(square)
            qx[row, j] = a * s
            qy[row, j] = b * s

    @_jit
    def _scale_row(q: np.ndarray, row: int, factor: float) -> None:
        for j in range(q.shape[1]):
            q[row, j] *= factor

    @_jit
    def _tv_prox(
        u: np.ndarray, weight: np.ndarray, q: np.ndarray, memory: float, num_iters: int, start: int, stop: int
    ) -> None:
        _, height, width = u.shape
        one, least = u.dtype.type(1), u.dtype.type(1e-30)
        # u of the row a step is at and of the one below it, for each step
        rows = np.empty((num_iters + 1, 2, width + 1), u.dtype)
        for n in range(start, stop):
            v, qx, qy = u[n], q[0, n], q[1, n]
            inverse_weight = one / max(weight[n], least)
            # all steps in one sweep: step t is at row i - t, where step t - 1 is two rows ahead of what it needs
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
                            pair[below] = pair[place]
                        _dual_row(qx, qy, r, pair, place, below, inverse_weight)
                r = i - num_iters
                if r >= 0:
                    if r == 0:
                        _primal_row_0(rows[num_iters], 0, v, qx, qy)
                    else:
                        _primal_row(rows[num_iters], 0, v, qx, qy, r)
                    v[r] = rows[num_iters, 0, :width]

    @_jit
    def _correlate_rows(
        y: np.ndarray, v: np.ndarray, out: np.ndarray, padding: int, reverse: bool, start: int, stop: int
    ) -> None:
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

    @_jit
    def _shrink(plane: np.ndarray) -> np.ndarray:
        """The rows, mean 0, cut down to the singular values that stand out of noise 1: `singular_value_gain`."""
        m, pixels = plane.shape
        low, high = np.float64(min(m - 1, pixels)), np.float64(max(m - 1, pixels))
        edge = (np.sqrt(low) + np.sqrt(high)) ** 2
        wide = m <= pixels
        gram = np.dot(plane, plane.T) if wide else np.dot(plane.T, plane)
        values, vectors = np.linalg.eigh(gram)
        scaled = np.zeros_like(vectors)
        for n in range(values.size):
            s = np.float64(values[n])
            if s > edge:
                gain = np.sqrt(max((s - low - high) ** 2 - 4 * low * high, 0.0)) / s
                for i in range(values.size):
                    scaled[i, n] = vectors[i, n] * plane.dtype.type(gain)
        projection = np.dot(scaled, vectors.T)
        kept: np.ndarray = np.dot(projection, plane) if wide else np.dot(plane, projection)
        return kept

    @_jit
    def _lowrank_groups(
        image: np.ndarray,
        groups: np.ndarray,
        bands: int,
        patch: int,
        bounds: np.ndarray,
        first: np.ndarray,
        total: np.ndarray,
        count: np.ndarray,
        start: int,
        stop: int,
    ) -> None:
        m, pixels, side = groups.shape[1], patch * patch, patch * bands
        columns = image.shape[1] // bands - patch + 1
        x = np.empty((m * pixels, bands), image.dtype)
        turned = np.empty(m * pixels * bands, image.dtype)
        lines = x.reshape(m * patch, side)  # the same memory, a line of a patch after the other
        mean = np.empty((patch, side), image.dtype)
        covariance, part_of = np.empty((bands, bands), image.dtype), np.empty((bands, bands), image.dtype)
        plane = np.empty((m, pixels), image.dtype)
        expected = (m - 1) * pixels
        alive = expected + 4 * np.sqrt(2.0 * expected)
        share = image.dtype.type(1 / m)
        rows = max(1, _BLAS_ALONE // (bands * bands))
        for part in range(start, stop):
            for g in range(bounds[part], bounds[part + 1]):
                mean[:] = 0
                for a in range(m):
                    top, left = groups[g, a] // columns, groups[g, a] % columns * bands
                    for i in range(patch):
                        source, line, average = image[top + i, left : left + side], lines[a * patch + i], mean[i]
                        for j in range(side):
                            line[j] = source[j]
                            average[j] += source[j]
                mean *= share
                for a in range(m):
                    for i in range(patch):
                        line, average = lines[a * patch + i], mean[i]
                        for j in range(side):
                            line[j] -= average[j]
                covariance[:] = 0
                for top in range(0, m * pixels, rows):
                    piece = x[top : top + rows]
                    np.dot(piece.T, piece, part_of)
                    covariance += part_of
                # eigenvalues are energies: of components with no more than noise has, which come first, nothing is left
                energies, basis = np.linalg.eigh(covariance)
                dead = np.searchsorted(energies, alive)
                x_kept = turned[: m * pixels * (bands - dead)].reshape(m * pixels, bands - dead)
                some = np.ascontiguousarray(basis[:, dead:])
                back = np.ascontiguousarray(some.T)
                for top in range(0, m * pixels, rows):
                    np.dot(x[top : top + rows], some, x_kept[top : top + rows])
                for k in range(bands - dead):
                    for a in range(m):
                        for j in range(pixels):
                            plane[a, j] = x_kept[a * pixels + j, k]
                    kept = _shrink(plane)
                    for a in range(m):
                        for j in range(pixels):
                            x_kept[a * pixels + j, k] = kept[a, j]
                if dead == bands:
                    x[:] = 0
                else:
                    for top in range(0, m * pixels, rows):
                        np.dot(x_kept[top : top + rows], back, x[top : top + rows])
                for a in range(m):
                    top, left = groups[g, a] // columns, groups[g, a] % columns
                    for i in range(patch):
                        row = top + i - first[part]
                        target = total[part, row, left * bands : left * bands + side]
                        line, average = lines[a * patch + i], mean[i]
                        for j in range(side):
                            target[j] += line[j] + average[j]
                        for j in range(left, left + patch):
                            count[part, row, j] += 1

    @_jit
    def _squared_distance(a: np.ndarray, b: np.ndarray, partial: np.ndarray, start: int, stop: int) -> None:
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
