"""Frames larger than memory: overlapping tiles, each an exact reconstruction problem of its own, blended together.

A block is its tile and, on every side, a margin of 2 `span` columns (`cassi.optics.cropping`): with the first span
every pixel of the tile keeps all its detector pixels, with the second so do the pixels that share one with it. `reach`
pixels more are for the prior.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, product

import torch
from torch import Tensor

from cassi.choice.stages import STRIDE, STRIDE_OF_SEVERAL
from cassi.optics.cropping import Block, crop, light_reach
from cassi.priors.learned import MULTIPLE
from cassi.solvers.loop import Loop, Record, relative_norm

Solve = Callable[[Block, Tensor], Tensor]
"""The cube (C, h, w) of a block from its camera, whose row weights leave out foreign light, and its measurement; what
is known of each voxel besides lies below it, (2 C, h, w)."""

REACH = 32  # [pixel] beyond which a prior is almost independent of its surroundings
STRIP = 64  # rows of a large cube that are computed with at a time
# Blocks begin and end at multiples of it [pixel], so that the non-local prior, with patches at every 4th or 5th pixel,
# and the network, which halves its images, see in a tile what they see in the frame.
GRID = math.lcm(STRIDE, STRIDE_OF_SEVERAL, MULTIPLE)


@dataclass(frozen=True, eq=False)
class Tile:
    """One tile: the block of the scene that is solved for, and the part of it that is kept.

    Attributes:
        block: rows and columns of the frame that are solved for.
        kept: rows and columns of the frame that the tile contributes to, within the block.
        window: weights (h, w) of `kept`; over all tiles they sum to 1 at every pixel.
    """

    block: tuple[slice, slice]
    kept: tuple[slice, slice]
    window: Tensor


def tile_grid(A: Block, tile: int, *, reach: int = REACH) -> list[Tile]:
    """Cut a frame into tiles of about equal size, at most `tile` pixels wide and high, with margins and windows.

    Args:
        A: the camera of the whole frame.
        tile: size [pixel], at least 1.
        reach: of the prior [pixel], at least 0; half of it is blended.
    """
    (height, width), (low, high) = A.cube_shape[-2:], light_reach(A)
    both = product(_axis(height, tile, reach, 0), _axis(width, tile, reach, high - low))
    return [Tile((i[0], j[0]), (i[1], j[1]), torch.outer(i[2], j[2])) for i, j in both]


def solve_tiled(
    A: Block,
    y: Tensor,
    solve: Solve,
    add: Callable[[slice, slice, Tensor], object],
    *,
    tile: int,
    reach: int = REACH,
    report: Callable[[float], None] = lambda share: None,
) -> tuple[Record, ...]:
    """Solve tile by tile and hand over the parts of the cube, weighted so that their sum is the cube.

        x = sum_k window_k x_k,    sum_k window_k = 1

    Args:
        A, y: the camera and the measurement (H, W') of the whole frame, weighted as the operator.
        solve: any solver, with settings that are the same for all tiles: weights, scale and basis chosen in a tile
            would show as seams.
        add: called as add(rows, columns, values) with values (C, h, w) to be added to the cube there, or (2 C, h, w).
        tile, reach: as for `tile_grid`.
        report: called with the share that is done.

    Returns:
        One Record a tile, its residual over the detector pixels it was solved from.
    """
    tiles = tile_grid(A, tile, reach=reach)
    loop = Loop(len(tiles), tol=0.0, monitor=None, name="tiles")
    for k in loop:
        part = tiles[k]
        a, b = crop(A, y, *part.block)
        x = solve(a, b)
        residual = relative_norm(b - a.forward(x[: a.cube_shape[0]]), b)
        within = (slice(k.start - b.start, k.stop - b.start) for k, b in zip(part.kept, part.block, strict=True))
        values = x[:, *within] * part.window.to(x)
        add(*part.kept, values)
        loop.record(values, residual=residual, change=0.0)
        report((k + 1) / len(tiles))
    return loop.result(y).history


def residual_by_strips(A: Block, y: Tensor, cube: Tensor) -> Tensor:
    """y - Phi x of a cube (C, H, W) that may be larger than memory; rows do not mix: a strip is a camera of its own."""
    residual = torch.empty_like(y)
    height, width = cube.shape[-2:]
    for first in range(0, height, STRIP):
        rows = slice(first, min(first + STRIP, height))
        strip, seen = crop(A, y, rows, slice(0, width))
        residual[..., rows, :] = seen - strip.forward(cube[:, rows].to(y.device))
    return residual


def _axis(length: int, tile: int, reach: int, light: int) -> Iterator[tuple[slice, slice, Tensor]]:
    """Block, kept part and window of each tile along one axis."""
    count = math.ceil(length / tile)
    edges = [round(k * length / count) for k in range(count + 1)]
    half = min(reach // 2, min(stop - start for start, stop in pairwise(edges)) // 2)
    j = torch.arange(length, dtype=torch.float64) + 0.5

    def rise(edge: int) -> Tensor:
        """0 to 1 around an edge within the frame, smooth; 1 from the first edge on, 0 before the last."""
        if edge in (0, length):
            return torch.full_like(j, float(edge == 0))
        if half == 0:
            return (j > edge).double()
        t = ((j - edge) / (2 * half) + 0.5).clamp(0, 1)
        return t * t * (3 - 2 * t)

    for start, stop in pairwise(edges):
        kept = slice(max(0, start - half), min(length, stop + half))
        margin = 2 * light + reach
        block = slice(max(0, (start - margin) // GRID * GRID), min(length, -(-(stop + margin) // GRID) * GRID))
        yield block, kept, (rise(start) - rise(stop))[kept]
