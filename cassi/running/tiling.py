"""Frames larger than memory: overlapping tiles, each an exact reconstruction problem of its own, blended into a file.

A block is its tile and, on every side, a margin of 2 `span` columns (`cassi.optics.cropping`): with the first span
every pixel of the tile keeps all its detector pixels, with the second so do the pixels that share one with it. `reach`
pixels more are for the prior. All else is done as for any other frame: checks, camera, plan, result.
"""

import errno
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Unpack, cast

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import choose_plan, window
from cassi.choice.chain import repeat_stages
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan
from cassi.choice.stages import STRIDE, STRIDE_OF_SEVERAL, Watch
from cassi.choice.uncertainty import bootstrap, standard_deviation
from cassi.errors import InputError, OutputError, one_line
from cassi.evidence.noise import CameraNoise
from cassi.files.atomic import UNABLE
from cassi.files.writing import check_store
from cassi.kernels.caller import undisturbed
from cassi.keywords import Keywords
from cassi.optics.cropping import Block, crop, croppable, light_reach
from cassi.optics.detector import brightness
from cassi.optics.measurement import Measurement
from cassi.priors.learned import MULTIPLE
from cassi.running.arguments import load
from cassi.running.pipeline import Listener, reconstruct_measurement, scale_plan, with_scene_facts
from cassi.running.progress import FINAL, TILES, expected_steps, reporting
from cassi.running.reconstruct import list_settings, warn_caller
from cassi.running.result import Reconstruction, write_result
from cassi.running.scene import Scene
from cassi.settings import TILE, Settings
from cassi.solvers.loop import Loop, Record, Result, relative_norm
from cassi.types import PathLike, Progress

Solve = Callable[[Block, Tensor], Tensor]
"""The cube (C, h, w) of a block from its camera, whose row weights leave out foreign light, and its measurement; what
is known of each voxel besides lies below it, (2 C, h, w)."""

REACH = 32  # [pixel] beyond which a prior is almost independent of its surroundings
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
    A: Block, y: Tensor, solve: Solve, x: Tensor, *, tile: int, reach: int = REACH,
    report: Callable[[float], None] = lambda share: None,
) -> tuple[Record, ...]:  # fmt: skip
    """Solve tile by tile and add the parts to the cube x, weighted so that their sum is the cube.

        x = sum_k window_k x_k,    sum_k window_k = 1

    Args:
        A, y: the camera and the measurement (H, W') of the whole frame, weighted as the operator.
        solve: any solver, with settings that are the same for all tiles: weights, scale and basis chosen in a tile
            would show as seams.
        x: zeros (C, H, W), or (2 C, H, W) with what is known besides, on the CPU; may be larger than memory.
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
        solved = solve(a, b)
        residual = relative_norm(b - a.forward(solved[: a.cube_shape[0]]), b)
        within = (slice(k.start - b.start, k.stop - b.start) for k, b in zip(part.kept, part.block, strict=True))
        values = solved[:, *within] * part.window.to(solved)
        x[:, *part.kept] += values.cpu()
        loop.record(values, residual=residual, change=0.0)
        report((k + 1) / len(tiles))
    return loop.result(y).history


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
        return (1 + torch.sin(torch.pi / 2 * ((j - edge) / half).clamp(-1, 1))) / 2

    for start, stop in pairwise(edges):
        kept = slice(max(0, start - half), min(length, stop + half))
        margin = 2 * light + reach
        block = slice(max(0, (start - margin) // GRID * GRID), min(length, -(-(stop + margin) // GRID) * GRID))
        yield block, kept, (rise(start) - rise(stop))[kept]


def tile_solver(
    A: Block, y: Tensor, *, wavelengths: np.ndarray | None = None, noise: CameraNoise = CameraNoise(),
    settings: Settings = Settings(), watch: Watch | None = None,
) -> tuple[Solve, Outcome]:  # fmt: skip
    """A solver for blocks by the plan of the whole frame at brightness 1, and what was chosen."""
    plan, evidence = cast(Plan | None, settings.plan), None  # `open_files` has read its file
    if plan is None:
        plan, evidence = choose_plan(A, y, wavelengths=wavelengths, noise=noise, settings=settings, watch=watch)
    plan = replace(plan, stages=tuple(stage for stage in plan.stages if not stage.of_one_scene))
    bright = brightness(A, y)

    def cube_of(a: Block, b: Tensor) -> Tensor:
        return repeat_stages(a, b, plan.problem(b, bright), plan.stages, Watch()).x.clamp_(min=0)

    if settings.uncertainty:  # what is of the whole scene comes from its most telling part
        part = window(A, y) or tuple(slice(0, n) for n in A.cube_shape[-2:])
        a, b = crop(A, y, *part)
        whole = bootstrap(a, b, cube_of(a, b), plan, seed=settings.seed)

    def planned(a: Block, b: Tensor) -> Tensor:
        x = cube_of(a, b)
        if not settings.uncertainty:
            return x
        own = bootstrap(a, b, x, plan, seed=settings.seed)
        return torch.cat([x, standard_deviation(whole._replace(squared=own.squared), x, bright)])

    nothing = Result(y.new_zeros(()), (), "finished")
    return planned, Outcome(nothing, "subspace-tv", {}, plan, evidence)


@dataclass(frozen=True)
class InTiles:
    """A `solve_frames` for one frame: tile by tile, by one plan for all, into a file in a folder."""

    folder: Path
    tile: int
    reach: int = REACH

    @torch.no_grad()
    def __call__(self, scene: Scene, settings: Settings, listener: Listener, start: float) -> list[Outcome]:
        A, bright = scene.A, brightness(scene.A, scene.y)
        if not croppable(A):
            raise InputError(f"a {type(A).__name__} cannot be cut into tiles; reconstruct the frame whole")
        if scene.found is not None and any(scene.found.remainders):
            raise InputError(
                "bands aligned between pixels can be moved in a whole cube only; reconstruct the frame whole"
            )
        planned, noise, nm = scale_plan(settings, bright), scene.noise.scaled(1 / bright), scene.wavelengths
        watch, report = Watch(progress=listener.progress), partial(listener.progress, TILES)
        solve, chosen = tile_solver(A, scene.y / bright, wavelengths=nm, noise=noise, settings=planned, watch=watch)
        cubes = zeros_in_file(self.folder, (1 + settings.uncertainty, *A.cube_shape))

        def scaled(a: Block, b: Tensor) -> Tensor:
            return solve(a, b / bright) * bright

        place = {"tile": self.tile, "reach": self.reach}
        history = solve_tiled(A, scene.y, scaled, cubes.flatten(0, 1), **place, report=report)
        x, *spread = cubes
        outcome = replace(chosen.scaled(bright), result=Result(x, history, "finished"))
        return [with_scene_facts(replace(outcome, uncertainty=spread[0] if spread else None), scene)]


def zeros_in_file(folder: Path, shape: tuple[int, ...]) -> Tensor:
    """Zeros, float32, which lie in a file without a name and are gone with the tensor, however the process ends.

    Raises:
        OutputError: the folder cannot hold it, and beside it the result that is made of it.
    """
    size = math.prod(shape) * np.dtype(np.float32).itemsize
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.truncate(size)
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except (OSError, AttributeError) as error:  # of drives and systems that cannot
                if isinstance(error, OSError) and error.errno not in UNABLE:
                    raise
            if shutil.disk_usage(folder).free < size:
                raise OSError(errno.ENOSPC, "no room for the result beside it")
            return torch.from_numpy(np.memmap(file, np.float32, "r+", shape=shape))
    except (OSError, ValueError) as error:
        what, why = f"cannot hold {size / 2**30:.3g} GiB while a cube is computed", getattr(error, "strerror", error)
        raise OutputError(f"{folder}: {what}: {one_line(why)}; choose an output on another drive") from error


def tile_measurement(
    m: Measurement, settings: Settings, listener: Listener, *, folder: Path, tile: int, reach: int = REACH
) -> Reconstruction:
    """The same of a measurement that is read; the cube lies in a nameless file in a folder."""
    settings.check_together(TILE, tile)
    if m.y.ndim != (2 if m.shots is None else 3):
        raise InputError(f"tiles are for single scenes (H, W') or (K, H, W'), got {m.y.shape}; give single frames")
    if tile < max(1, reach) or reach < 0:
        what = f"tiles of {tile} px with {reach} px around them have no interior"
        raise InputError(f"{what}; use at least {max(1, reach)} px, larger is faster")
    several = max(m.mask.shape[-2:]) > tile
    if several and settings.quality == "best":
        listener.inform("quality best would train another network for each tile: default is used")
        settings = replace(settings, quality="default")

    def report(step: str, share: float) -> None:
        listener.progress(step.replace(FINAL, TILES), share)

    solve = InTiles(folder, tile, reach) if several else None
    result = reconstruct_measurement(m, settings, replace(listener, progress=report), solve, in_file=several)
    return replace(result, parameters={**result.parameters, "tile": tile, "reach": reach})


@undisturbed
def reconstruct_tiled(
    measurement: Measurement, output: PathLike, *, tile: int = 512, reach: int = REACH,
    attributes: Mapping[str, object] | None = None, overwrite: bool = False, progress: bool | Progress = False,
    **settings: Unpack[Keywords],
) -> Reconstruction:  # fmt: skip
    """Reconstruct a frame larger than memory by the default solver: in tiles, into an HDF5 file.

    Camera, scale, noise, spectral basis and stages are chosen once, as `cassi.reconstruct` does it for the whole frame,
    and are the same everywhere; a frame that is one tile is reconstructed by that itself. The memory taken depends on
    the tile, and on the measurement, but not on the cube, which lies in a file without a name in the folder of the
    output, and then a second time in the output; a camera that is found has a mask for each band, as many numbers as
    the cube.

    Args:
        measurement: one scene with its mask and shifts.
        output: .h5 or .hdf5 file to make, as a result's, with a line of `/history` a tile.
        tile: size of a tile [pixel]; margins of twice the dispersion and of `reach` come on top.
        reach: how far a prior carries information [pixel].
        attributes: further provenance by name.
        overwrite: replace an existing file.
        progress, settings: as for `cassi.reconstruct`, which also says what is warned of.

    Raises:
        InputError: a stack of snapshots, settings that tiles lack, or tile or reach too small.
        OutputError: the file cannot be written; nothing is left behind.
    """
    wanted, output = Settings(**settings), check_store(output, overwrite)
    m = load(measurement, None, wanted)
    with reporting(progress, expected_steps(wanted, tiled=True)) as report:
        listener = Listener(report, warn=warn_caller)
        result = tile_measurement(m, wanted, listener, folder=output.parent, tile=tile, reach=reach)
        write_result(output, result, attributes=attributes, overwrite=overwrite)
    return result


list_settings(reconstruct_tiled)
