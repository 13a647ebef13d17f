"""The kernels for CUDA devices, in Triton.

They compute the same as `cassi.kernels.cpu`, for any shifts, sizes and batch, in float32 and float64. Offsets into the
tensors are 64 bits wide, so that tensors may exceed 2^31 elements.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# (kernel parameters are Triton's own pointers and numbers; only its constants can be annotated)

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256  # columns per step of a program
_COLUMNS = 128  # columns per step where each thread holds all coefficients of a column: 32 per warp
_CHUNK = 1 << 12  # elements of a vector summed by one program
_TILE = (8, 64)  # rows and columns per program of the dual step


def shift_sum(x: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None, out: Tensor) -> None:
    """`cassi.kernels.shift_sum.shift_sum` into out (..., H, W'): each voxel is read once."""
    bands, height, width = x.shape[-3:]
    detector = out.shape[-1]
    grid = (out.numel() // detector, triton.cdiv(detector, _BLOCK))
    args = (bands, height, width, detector, mask.ndim == 3, scale is not None, _BLOCK)
    with _device_of(x):
        _forward[grid](x, mask, _offsets(shifts, x.device), mask if scale is None else scale, out, *args)


def shift_back(y: Tensor, mask: Tensor, shifts: tuple[int, ...], scale: Tensor | None, out: Tensor) -> None:
    """`cassi.kernels.shift_sum.shift_back` into out (..., C, H, W): each voxel is written once."""
    bands, height, width = out.shape[-3:]
    grid = (out.numel() // width, triton.cdiv(width, _BLOCK))
    args = (bands, height, width, y.shape[-1], mask.ndim == 3, scale is not None, _BLOCK)
    with _device_of(y):
        _adjoint[grid](y, mask, _offsets(shifts, y.device), mask if scale is None else scale, out, *args)


def data_step(
    v: Tensor, y: Tensor, mask: Tensor, shifts: tuple[int, ...], weights: Tensor | None, gram: Tensor, rho: float,
    accelerate: bool, x: Tensor, y_x: Tensor, y_v: Tensor
) -> None:  # fmt: skip
    """`cassi.CASSI.data_step_` in two kernels: to the detector, and back."""
    bands, height, width = v.shape[-3:]
    detector, rows = y.shape[-1], y.numel() // y.shape[-1]
    back, offsets = torch.empty_like(y), _offsets(shifts, v.device)
    total = gram if rho == 0 else gram + rho
    sizes, per_band = (bands, height, width, detector), mask.ndim == 3
    with _device_of(v):
        _damped_misfit[(rows, triton.cdiv(detector, _BLOCK))](
            v, y, y_x, y_v, back, mask, offsets, mask if weights is None else weights, gram, total, *sizes, per_band,
            weights is not None, accelerate, _BLOCK,
        )  # fmt: skip
        _add_back[(rows, triton.cdiv(width, _BLOCK), bands)](v, x, back, mask, offsets, *sizes, per_band, _BLOCK)


def subspace_step(
    z: Tensor, z_new: Tensor, y: Tensor, e: Tensor, u: Tensor | None, y_z: Tensor, basis: Tensor, mask: Tensor,
    shifts: tuple[int, ...], weights: Tensor | None, gamma: Tensor, omega: Tensor, step: float
) -> None:  # fmt: skip
    """The data step of `cassi.solvers.subspace_tv.subspace_tv`: u is the only cube it touches.

    Two kernels, as what goes back to a column comes from as many detector columns as there are bands.
    """
    components, height, width = z.shape[-3:]
    detector, rows = y.shape[-1], y.numel() // y.shape[-1]
    back, offsets = torch.empty_like(y), _offsets(shifts, z.device)
    sizes, per_band, warps = (len(shifts), height, width, detector), mask.ndim == 3, _COLUMNS // 32
    # the step is a compile-time constant: Triton rounds numbers passed at run time to float32
    flags = (per_band, u is not None, components, step, triton.next_power_of_2(components), _COLUMNS)
    with _device_of(z):
        _misfit[(rows, triton.cdiv(detector, _COLUMNS))](
            z, y, e, y_z, back, basis, mask, offsets, mask if weights is None else weights, gamma, omega, *sizes,
            per_band, weights is not None, components, _COLUMNS, num_warps=warps,
        )  # fmt: skip
        _step_back[(rows, triton.cdiv(width, _COLUMNS))](
            z, z_new, z if u is None else u, back, basis, mask, offsets, *sizes, *flags, num_warps=warps
        )


def see(z: Tensor, basis: Tensor, mask: Tensor, shifts: tuple[int, ...], weights: Tensor | None, y: Tensor) -> None:
    """Phi B^T z into y (..., H, W'), for B (K, C), without the cube."""
    components, height, width = z.shape[-3:]
    detector = y.shape[-1]
    args = (len(shifts), height, width, detector, mask.ndim == 3, weights is not None, components, _COLUMNS)
    grid = (y.numel() // detector, triton.cdiv(detector, _COLUMNS))
    with _device_of(z):
        _see[grid](
            z, basis, mask, _offsets(shifts, z.device), mask if weights is None else weights, y, *args,
            num_warps=_COLUMNS // 32,
        )  # fmt: skip


def see_back(
    p: Tensor, basis: Tensor, mask: Tensor, shifts: tuple[int, ...], weights: Tensor | None, z: Tensor
) -> None:
    """B Phi^T p into z (..., K, H, W), for B (K, C), or (..., K, C) with one for each snapshot, without the cube."""
    components, height, width = z.shape[-3:]
    detector = p.shape[-1]
    args = (len(shifts), height, width, detector, mask.ndim == 3, weights is not None, components, basis.ndim > 2)
    grid = (p.numel() // detector, triton.cdiv(width, _COLUMNS))
    with _device_of(p):
        _see_back[grid](
            p, basis, mask, _offsets(shifts, p.device), mask if weights is None else weights, z, *args,
            triton.next_power_of_2(components), _COLUMNS, num_warps=_COLUMNS // 32,
        )  # fmt: skip


def squared_distances(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Terms of |a - b|^2, |b|^2, |c - d|^2 and |d|^2 in float64, (4, n); the caller sums them and waits."""
    programs = triton.cdiv(max(a.numel(), c.numel()), _CHUNK)
    partial = torch.empty(4, programs * _COLUMNS, dtype=torch.float64, device=a.device)
    with _device_of(a):
        _squared_distances[(programs, 2)](a, b, c, d, partial, a.numel(), c.numel(), programs, _CHUNK, _COLUMNS)
    return partial


def tv_steps(
    u: Tensor, weight: Tensor, q: Tensor, spare: Tensor | None, num_iters: int, memory: float
) -> tuple[Tensor, Tensor | None]:
    """`cassi.priors.tv.tv_steps`: u in place; the dual alternates between q and spare."""
    if memory != 1:
        q.mul_(memory)
    spare = torch.empty_like(q) if spare is None else spare
    height, width = u.shape[-2:]
    images = u.numel() // (height * width)
    weights = weight.to(u).expand((*u.shape[:-2], 1, 1)).reshape(-1).contiguous()
    grid = (images * triton.cdiv(height, _TILE[0]), triton.cdiv(width, _TILE[1]))
    with _device_of(u):
        for _ in range(num_iters):
            _dual_step[grid](u, weights, q, spare, u.numel(), height, width, *_TILE)
            q, spare = spare, q
        _primal[grid](u, q, u.numel(), height, width, *_TILE)
    return q, spare


def gather_groups(z: Tensor, inverse: Tensor, groups: Tensor, patch: int) -> tuple[Tensor, Tensor]:
    """Patches of groups (n, m) minus their mean, (n, K, m p^2), and the mean, (n, p^2, K), for `GroupFilters`."""
    (bands, height, width), (n, m) = z.shape, groups.shape
    x = torch.empty(n, bands, m * patch**2, dtype=z.dtype, device=z.device)
    mean = torch.empty(n, patch**2, bands, dtype=z.dtype, device=z.device)
    with _device_of(z):
        _gather_groups[(n * bands,)](
            z, inverse, groups, x, mean, bands, height, width, m, patch, triton.next_power_of_2(patch**2), num_warps=1
        )
    return x, mean


def put_back(
    y: Tensor, mean: Tensor, order: Tensor, start: Tensor, patch: int, scale: Tensor, out: Tensor, add: bool
) -> None:
    """out = scale times the sum of all patches y (n, m p^2, K) + mean (n, p^2, K) at their positions; added with `add`.

    `order` lists the patch numbers g m + a sorted by position, and `start` where each position starts in that list. One
    program sums all images of a pixel in that order, so that equal patches give equal sums.
    """
    bands, height, width = out.shape
    m = y.shape[1] // patch**2
    with _device_of(out):
        _put_back[(height * width,)](
            y, mean, order, start, scale, out, bands, height, width, m, add, patch, triton.next_power_of_2(bands),
            num_warps=1,
        )  # fmt: skip


def _device_of(t: Tensor) -> AbstractContextManager[object]:
    """Triton launches on the current device of the thread, whatever the device of the tensors."""
    return torch.cuda.device(t.device) if t.is_cuda else nullcontext()


@cache
def _offsets(shifts: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([d - min(shifts) for d in shifts], dtype=torch.int32, device=device)


@triton.jit
def _columns(H, width, BLOCK: tl.constexpr):
    """Row of a program, 64 bits wide as all offsets computed from it, its snapshot and row therein; its columns, and
    which of them there are."""
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return row, row // H, row % H, j, j < width


@triton.jit
def _project_row(x, mask, offsets, j, b, i, C, H, W, PER_BAND: tl.constexpr, BLOCK: tl.constexpr):
    """sum_c m_c x_c at the detector columns j in row i of snapshot b."""
    total = tl.full([BLOCK], 0.0, x.dtype.element_ty)
    for c in range(C):
        k = j - tl.load(offsets + c)
        inside = (k >= 0) & (k < W)
        m_row = (c * H + i if PER_BAND else i) * W
        xv = tl.load(x + ((b * C + c) * H + i) * W + k, mask=inside, other=0.0)
        total += xv * tl.load(mask + m_row + k, mask=inside, other=0.0)
    return total


@triton.jit
def _forward(
    x, mask, offsets, scale, y, C, H, W, D, PER_BAND: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row, b, i, j, inside = _columns(H, D, BLOCK)
    total = _project_row(x, mask, offsets, j, b, i, C, H, W, PER_BAND, BLOCK)
    if SCALED:
        total *= tl.load(scale + i * D + j, mask=inside, other=0.0)
    tl.store(y + row * D + j, total, mask=inside)


@triton.jit
def _adjoint(
    y, mask, offsets, scale, x, C, H, W, D, PER_BAND: tl.constexpr, SCALED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    b, c, i = row // H // C, row // H % C, row % H
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < W
    k = j + tl.load(offsets + c)
    value = tl.load(y + (b * H + i) * D + k, mask=inside, other=0.0)
    if SCALED:
        value *= tl.load(scale + i * D + k, mask=inside, other=0.0)
    value *= tl.load(mask + (c * H + i if PER_BAND else i) * W + j, mask=inside, other=0.0)
    tl.store(x + row * W + j, value, mask=inside)


@triton.jit
def _damped_misfit(
    v, y, y_x, y_v, back, mask, offsets, weights, gram, total, C, H, W, D, PER_BAND: tl.constexpr,
    WEIGHTED: tl.constexpr, ACCELERATE: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """What goes back from some detector columns of a row, and what v and x make there."""
    row, b, i, j, inside = _columns(H, D, BLOCK)
    # the smallest normal number: pixels up to it count as dark
    TINY: tl.constexpr = 1.1754943508222875e-38 if v.dtype.element_ty == tl.float32 else 2.2250738585072014e-308
    forward = _project_row(v, mask, offsets, j, b, i, C, H, W, PER_BAND, BLOCK)
    if WEIGHTED:
        forward *= tl.load(weights + i * D + j, mask=inside, other=0.0)
    misfit = tl.load(y + row * D + j, mask=inside, other=0.0) - forward
    if ACCELERATE:
        misfit += tl.load(y_x + row * D + j, mask=inside, other=0.0) - forward
    damped = tl.load(total + i * D + j, mask=inside, other=0.0)
    lit = damped > TINY
    r = tl.where(lit, misfit / tl.where(lit, damped, 1.0), 0.0)
    diagonal = tl.load(gram + i * D + j, mask=inside, other=0.0)
    tl.store(y_v + row * D + j, forward, mask=inside)
    tl.store(y_x + row * D + j, forward + diagonal * r, mask=inside)
    if WEIGHTED:
        r *= tl.load(weights + i * D + j, mask=inside, other=0.0)
    tl.store(back + row * D + j, r, mask=inside)


@triton.jit
def _add_back(v, x, back, mask, offsets, C, H, W, D, PER_BAND: tl.constexpr, BLOCK: tl.constexpr):
    """x = v + Phi^T back at some columns of a row of one band."""
    row, b, i, j, inside = _columns(H, W, BLOCK)
    c = tl.program_id(2)
    value = tl.load(back + row * D + j + tl.load(offsets + c), mask=inside, other=0.0)
    value *= tl.load(mask + (c * H + i if PER_BAND else i) * W + j, mask=inside, other=0.0)
    o = ((b * C + c) * H + i) * W + j
    tl.store(x + o, tl.load(v + o, mask=inside, other=0.0) + value, mask=inside)


@triton.jit
def _synthesize(z, basis, first, c, n, inside, C, H, W, COMPONENTS: tl.constexpr, BLOCK: tl.constexpr):
    """Band c of B^T z at the columns n of a row; `first` is its offset in the first coefficient image."""
    x = tl.full([BLOCK], 0.0, z.dtype.element_ty)
    plane = tl.cast(H, tl.int64) * W
    for k in tl.static_range(COMPONENTS):
        x += tl.load(basis + k * C + c) * tl.load(z + first + k * plane + n, mask=inside, other=0.0)
    return x


@triton.jit
def _see_row(
    z, basis, mask, offsets, weights, j, b, i, C, H, W, D, PER_BAND: tl.constexpr, WEIGHTED: tl.constexpr,
    COMPONENTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Phi B^T z at the detector columns j in row i of snapshot b."""
    first = (b * COMPONENTS * H + i) * W  # offset of row i in the first coefficient image
    seen = tl.full([BLOCK], 0.0, z.dtype.element_ty)
    for c in range(C):
        n = j - tl.load(offsets + c)
        lit = (n >= 0) & (n < W)
        x = _synthesize(z, basis, first, c, n, lit, C, H, W, COMPONENTS, BLOCK)
        seen += x * tl.load(mask + (c * H + i if PER_BAND else i) * W + n, mask=lit, other=0.0)
    if WEIGHTED:
        seen *= tl.load(weights + i * D + j, mask=j < D, other=0.0)
    return seen


@triton.jit
def _see_back(
    p, basis, mask, offsets, weights, z, C, H, W, D, PER_BAND: tl.constexpr, WEIGHTED: tl.constexpr,
    COMPONENTS: tl.constexpr, OF_EACH: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """z = B Phi^T p at some columns of a row of snapshot b."""
    row, b, i, j, inside = _columns(H, W, BLOCK)
    k = tl.arange(0, K)[:, None]
    total = tl.full([K, BLOCK], 0.0, p.dtype.element_ty)
    own = basis + (b * COMPONENTS * C if OF_EACH else 0)
    for c in range(C):
        n = j + tl.load(offsets + c)
        s = tl.load(p + row * D + n, mask=inside, other=0.0)
        if WEIGHTED:
            s *= tl.load(weights + i * D + n, mask=inside, other=0.0)
        s *= tl.load(mask + (c * H + i if PER_BAND else i) * W + j, mask=inside, other=0.0)
        total += tl.load(own + k * C + c, mask=k < COMPONENTS, other=0.0) * s[None, :]
    places = ((b * COMPONENTS + k) * H + i) * W + j[None, :]
    tl.store(z + places, total, mask=(k < COMPONENTS) & inside[None, :])


@triton.jit
def _see(
    z, basis, mask, offsets, weights, y, C, H, W, D, PER_BAND: tl.constexpr, WEIGHTED: tl.constexpr,
    COMPONENTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """y = Phi B^T z at some detector columns of a row of snapshot b."""
    row, b, i, j, inside = _columns(H, D, BLOCK)
    seen = _see_row(z, basis, mask, offsets, weights, j, b, i, C, H, W, D, PER_BAND, WEIGHTED, COMPONENTS, BLOCK)
    tl.store(y + row * D + j, seen, mask=inside)


@triton.jit
def _misfit(
    z, y, e, y_z, back, basis, mask, offsets, weights, gamma, omega, C, H, W, D, PER_BAND: tl.constexpr,
    WEIGHTED: tl.constexpr, COMPONENTS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """What goes back from some detector columns of a row: omega D^+ (e + r), with the new e."""
    row, b, i, j, inside = _columns(H, D, BLOCK)
    seen = _see_row(z, basis, mask, offsets, weights, j, b, i, C, H, W, D, PER_BAND, WEIGHTED, COMPONENTS, BLOCK)
    r = tl.load(y + row * D + j, mask=inside, other=0.0) - seen
    e_new = tl.load(gamma + row * D + j, mask=inside, other=0.0)
    e_new *= tl.load(e + row * D + j, mask=inside, other=0.0) + r
    tl.store(y_z + row * D + j, seen, mask=inside)
    tl.store(e + row * D + j, e_new, mask=inside)
    r = tl.load(omega + row * D + j, mask=inside, other=0.0) * (e_new + r)
    if WEIGHTED:
        r *= tl.load(weights + i * D + j, mask=inside, other=0.0)
    tl.store(back + row * D + j, r, mask=inside)


@triton.jit
def _step_back(
    z, z_new, u, back, basis, mask, offsets, C, H, W, D, PER_BAND: tl.constexpr, NONNEGATIVE: tl.constexpr,
    COMPONENTS: tl.constexpr, STEP: tl.constexpr, K: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """z_new = z + B (Phi^T back + STEP (2 p - u)) and u = p at some columns of a row, p = max(u - B^T z, 0)."""
    row, b, i, j, inside = _columns(H, W, BLOCK)
    first = (b * COMPONENTS * H + i) * W
    k = tl.arange(0, K)[:, None]
    places, both = first + k * (tl.cast(H, tl.int64) * W) + j[None, :], (k < COMPONENTS) & inside[None, :]
    total = tl.load(z + places, mask=both, other=0.0)
    for c in range(C):
        s = tl.load(back + row * D + j + tl.load(offsets + c), mask=inside, other=0.0)
        s *= tl.load(mask + (c * H + i if PER_BAND else i) * W + j, mask=inside, other=0.0)
        if NONNEGATIVE:
            o = ((b * C + c) * H + i) * W + j
            old = tl.load(u + o, mask=inside, other=0.0)
            p = old - _synthesize(z, basis, first, c, j, inside, C, H, W, COMPONENTS, BLOCK)
            p = tl.where(p < 0, 0.0, p)  # keeps NaN
            s += STEP * (p + p - old)
            tl.store(u + o, p, mask=inside)
        total += tl.load(basis + k * C + c, mask=k < COMPONENTS, other=0.0) * s[None, :]
    tl.store(z_new + places, total, mask=both)


@triton.jit
def _distance_of_chunk(a, b, partial, size, programs, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.arange(0, BLOCK)
    difference = tl.full([BLOCK], 0.0, tl.float64)
    reference = tl.full([BLOCK], 0.0, tl.float64)
    for start in range(0, CHUNK, BLOCK):
        o = tl.program_id(0).to(tl.int64) * CHUNK + start + n
        value = tl.load(b + o, mask=o < size, other=0.0)
        d = (tl.load(a + o, mask=o < size, other=0.0) - value).to(tl.float64)
        difference += d * d
        reference += value.to(tl.float64) * value.to(tl.float64)
    tl.store(partial + tl.program_id(0) * BLOCK + n, difference)
    tl.store(partial + (programs + tl.program_id(0)) * BLOCK + n, reference)


@triton.jit
def _squared_distances(
    a, b, c, d, partial, first_size, second_size, programs, CHUNK: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    if tl.program_id(1) == 0:
        _distance_of_chunk(a, b, partial, first_size, programs, CHUNK, BLOCK)
    else:
        _distance_of_chunk(c, d, partial + 2 * programs * BLOCK, second_size, programs, CHUNK, BLOCK)


@triton.jit
def _primal_tile(v, qx, qy, o, h, w, W, inside):
    """v - D^T q at row h, column w, with offset o; q is 0 to the left of the image and above it."""
    right = tl.load(qx + o, mask=inside, other=0.0) - tl.load(qx + o - 1, mask=inside & (w > 0), other=0.0)
    below = tl.load(qy + o, mask=inside, other=0.0) - tl.load(qy + o - W, mask=inside & (h > 0), other=0.0)
    return tl.load(v + o, mask=inside, other=0.0) + (right + below)


@triton.jit
def _tile(H, W, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Image, rows, columns and offsets of a program's tile, and which elements lie inside the image."""
    tiles = (H + ROWS - 1) // ROWS
    image = (tl.program_id(0) // tiles).to(tl.int64)
    h = (tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)[:, None]).to(tl.int64)
    w = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    return image, h, w, (image * H + h) * W + w, (h < H) & (w < W)


@triton.jit
def _dual_step(v, weights, q, q_new, size, H, W, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """q_new = P(q + 1/8 D (v - D^T q)): reads v and q and writes q_new once, five words per voxel."""
    image, h, w, o, inside = _tile(H, W, ROWS, COLUMNS)
    qx, qy = q, q + size
    u = _primal_tile(v, qx, qy, o, h, w, W, inside)
    to_right, to_below = inside & (w < W - 1), inside & (h < H - 1)
    u_right = _primal_tile(v, qx, qy, o + 1, h, w + 1, W, to_right)
    u_below = _primal_tile(v, qx, qy, o + W, h + 1, w, W, to_below)
    a = tl.load(qx + o, mask=inside, other=0.0) + tl.where(to_right, 0.125 * (u_right - u), 0.0)
    b = tl.load(qy + o, mask=inside, other=0.0) + tl.where(to_below, 0.125 * (u_below - u), 0.0)
    inverse = 1.0 / tl.maximum(tl.load(weights + image), 1e-30)
    a_unit, b_unit = a * inverse, b * inverse
    s = 1.0 / tl.sqrt(tl.maximum(a_unit * a_unit + b_unit * b_unit, 1.0))
    tl.store(q_new + o, a * s, mask=inside)
    tl.store(q_new + size + o, b * s, mask=inside)


@triton.jit
def _primal(v, q, size, H, W, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """v <- v - D^T q."""
    _, h, w, o, inside = _tile(H, W, ROWS, COLUMNS)
    tl.store(v + o, _primal_tile(v, q, q + size, o, h, w, W, inside), mask=inside)


@triton.jit
def _gather_groups(z, inverse, groups, x, mean, K, H, W, M, PATCH: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0).to(tl.int64)
    g, k = program // K, program % K
    n = tl.arange(0, BLOCK)
    inside, columns = n < PATCH * PATCH, W - PATCH + 1
    within = n // PATCH * W + n % PATCH
    scale = tl.load(inverse + k)
    total = tl.full([BLOCK], 0.0, z.dtype.element_ty)
    for a in range(M):
        place = tl.load(groups + g * M + a)
        o = (k * H + place // columns) * W + place % columns + within
        total += tl.load(z + o, mask=inside, other=0.0) * scale
    total /= M
    for a in range(M):
        place = tl.load(groups + g * M + a)
        o = (k * H + place // columns) * W + place % columns + within
        value = tl.load(z + o, mask=inside, other=0.0) * scale - total
        tl.store(x + (program * M + a) * (PATCH * PATCH) + n, value, mask=inside)
    tl.store(mean + (g * (PATCH * PATCH) + n) * K + k, total, mask=inside)


@triton.jit
def _put_back(
    y, mean, order, start, scale, out, K, H, W, M, ADD: tl.constexpr, PATCH: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    pixel = tl.program_id(0).to(tl.int64)
    h, w = pixel // W, pixel % W
    rows, columns = H - PATCH + 1, W - PATCH + 1
    k = tl.arange(0, BLOCK)
    inside = k < K
    total = tl.full([BLOCK], 0.0, y.dtype.element_ty)
    for n in range(PATCH * PATCH):
        top, left = h - n // PATCH, w - n % PATCH
        there = (top >= 0) & (top < rows) & (left >= 0) & (left < columns)
        place = tl.where(there, top * columns + left, 0)
        first = tl.load(start + place)
        last = tl.where(there, tl.load(start + place + 1), first)
        for e in range(first, last):
            patch = tl.load(order + e)
            total += tl.load(y + (patch * (PATCH * PATCH) + n) * K + k, mask=inside, other=0.0)
            total += tl.load(mean + (patch // M * (PATCH * PATCH) + n) * K + k, mask=inside, other=0.0)
    o = k.to(tl.int64) * H * W + pixel
    total *= tl.load(scale + o, mask=inside, other=0.0)
    if ADD:
        total += tl.load(out + o, mask=inside, other=0.0)
    tl.store(out + o, total, mask=inside)
