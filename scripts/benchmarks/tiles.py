"""Tiled against whole: agreement in the interior, seams, and the memory a frame takes in tiles."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.running.tiling import REACH, Solve, reconstruct_tiled, solve_tiled, tile_grid, tile_solver
from cassi.settings import Settings
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

ROWS = 64  # of a large scene made at a time


def tiles(
    size: int = 512,
    tile: int = 256,
    *,
    large: int = 2048,
    large_tile: int = 512,
    num_bands: int = 28,
    step: int = 2,
    num_iters: int | None = None,
    report: Callable[[str], None] = print,
) -> str:
    """Run the comparison and return it as Markdown.

    The whole frame is solved by the very solver of the tiles, with the settings chosen on the central tile.

    Args:
        size, tile: of the frame that is also solved whole [pixel].
        large, large_tile: of the frame that is only solved in tiles, for its memory; 0 leaves it out.
        num_bands, step: of the camera.
        num_iters: of the default solver; its own choice if not given.
        report: called with one line of progress at a time.
    """
    lines = [
        f"{size} x {size} x {num_bands}, tiles of {tile}, margins {2 * step * (num_bands - 1) + REACH}\n",
        "| tiles | whole [s] | tiled [s] | interior PSNR [dB] | seam |",
        "|---|---|---|---|---|",
    ]
    A, y = _frame(size, num_bands, step)
    solve, count = tile_solver(A, y, settings=Settings(num_iters=num_iters))[0], len(tile_grid(A, tile))
    start = time.perf_counter()
    whole = solve(A.weighted(None), y)
    middle = time.perf_counter()
    x = _in_tiles(A, y, solve, tile)
    end = time.perf_counter()
    lines.append(
        f"| {count} | {middle - start:.1f} | {end - middle:.1f} | {interior_psnr(x, whole):.1f} | "
        f"{seam(x, whole, tile):.4f} |"
    )
    report(lines[-1])
    if large:
        lines.append(f"\n{large} x {large} x {num_bands}, tiles of {large_tile}: " + _large(
            large, large_tile, num_bands, step, num_iters
        ))  # fmt: skip
        report(lines[-1])
    return "\n".join(lines)


def interior_psnr(x: Tensor, whole: Tensor, border: int = 16) -> float:
    """PSNR [dB] of x against the cube solved whole, peak the largest value of it, without a border of the frame."""
    inside = (..., slice(border, -border), slice(border, -border))
    error = (x[inside] - whole[inside]).double().square().mean()
    return float(10 * torch.log10(whole[inside].double().max() ** 2 / error.clamp(min=1e-300)))


def seam(x: Tensor, whole: Tensor, tile: int) -> float:
    """How much steeper x is across the borders of the tiles than the cube solved whole is there; 1 is no seam.

    mean |grad x| / mean |grad whole| over the pixel pairs at tile borders, the larger of both axes.
    """
    ratios = []
    for axis in (-2, -1):
        length = x.shape[axis]
        count = -(-length // tile)
        pairs = torch.tensor([round(k * length / count) - 1 for k in range(1, count)], dtype=torch.long)
        if len(pairs):
            steps = [(v.index_select(axis, pairs + 1) - v.index_select(axis, pairs)).double().abs() for v in (x, whole)]
            ratios.append(float(steps[0].mean() / steps[1].mean().clamp(min=1e-300)))
    return max(ratios, default=1.0)


def _in_tiles(A: CASSI, y: Tensor, solve: Solve, tile: int) -> Tensor:
    x = torch.zeros(A.cube_shape)
    solve_tiled(A, y, solve, x, tile=tile)
    return x


def _frame(size: int, num_bands: int, step: int) -> tuple[CASSI, Tensor]:
    generator = torch.Generator().manual_seed(0)
    truth = procedural_scene(size, size, np.linspace(450, 650, num_bands).tolist(), generator=generator)
    A = CASSI.from_step(random_mask(size, size, generator=generator), step, num_bands)
    return A, A.forward(truth)


def _large(size: int, tile: int, num_bands: int, step: int, num_iters: int | None) -> str:
    """Reconstruct a frame made of copies of a small scene: its cube never lies in memory."""
    generator = torch.Generator().manual_seed(0)
    small = procedural_scene(256, 256, np.linspace(450, 650, num_bands).tolist(), generator=generator)
    mask = random_mask(size, size, generator=generator)
    copies = -(-size // 256)
    y = []
    for first in range(0, size, ROWS):
        rows = torch.arange(first, min(first + ROWS, size))
        part = small[:, rows % 256].repeat(1, 1, copies)[..., :size]
        y.append(CASSI.from_step(mask[rows], step, num_bands).forward(part))
    A = CASSI.from_step(mask, step, num_bands)
    m = Measurement(y=torch.cat(y).numpy(), mask=mask.numpy(), shifts=A.shifts)
    with tempfile.TemporaryDirectory() as folder:
        result = reconstruct_tiled(m, Path(folder) / "cube.h5", tile=tile, num_iters=num_iters)
    per_unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * per_unit / 2**30
    return (
        f"{len(result.history)} tiles, {result.seconds:.0f} s, residual {result.residual:.2%}, "
        f"peak memory of the process {peak:.2f} GiB"
    )
