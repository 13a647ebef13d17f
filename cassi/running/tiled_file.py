"""A frame larger than memory: checked, prepared and planned as any other, solved tile by tile into a file."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Unpack, cast

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import choose_plan
from cassi.choice.chain import repeat_stages
from cassi.choice.noise import CameraNoise
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan
from cassi.choice.stages import Watch
from cassi.errors import InputError
from cassi.files.cube_store import CubeStore, check_store, cube_store
from cassi.kernels.caller import undisturbed
from cassi.keywords import Keywords
from cassi.optics.cropping import Block, crop, croppable
from cassi.optics.detector import brightness
from cassi.optics.measurement import Measurement
from cassi.running.arguments import load, open_files, subtract_dark
from cassi.running.pipeline import (
    Listener,
    check,
    explain,
    finished,
    prepare_scene,
    reconstruct_measurement,
    scale_plan,
    with_scene_facts,
)
from cassi.running.progress import FINAL, TILES, reporting, tiled_steps
from cassi.running.reconstruct import list_settings, warn_caller
from cassi.running.result import Finished, write_result
from cassi.running.tiling import REACH, Solve, solve_tiled
from cassi.settings import TILE, PathLike, Progress, Settings
from cassi.solvers.loop import Record, Result

STRIP = 64  # rows of the residual image computed at a time


@dataclass(frozen=True, eq=False, kw_only=True)
class TiledResult(Finished):
    """What is known of a cube (C, H, W) that lies in a file.

    `history` has one Record a tile, its residual over the detector pixels it was solved from; `outcomes` holds what was
    chosen, once for all tiles, in one `Outcome` without a cube. Both are as of `cassi.reconstruct` for a frame that is
    one tile.
    """

    path: Path
    shape: tuple[int, ...]


@undisturbed
def reconstruct_tiled(
    measurement: Measurement,
    output: PathLike,
    *,
    tile: int = 512,
    reach: int = REACH,
    attributes: Mapping[str, object] | None = None,
    overwrite: bool = False,
    progress: bool | Progress = False,
    **settings: Unpack[Keywords],
) -> TiledResult:
    """Reconstruct a frame larger than memory by the default solver: in tiles, written to an HDF5 file one by one.

    Camera, scale, noise, spectral basis and stages are chosen once, as `cassi.reconstruct` does it for the whole frame,
    and are the same everywhere; a frame that is one tile is reconstructed by that itself. The memory taken depends on
    the tile, and on the measurement, but not on the cube; a camera that is found has a mask for each band, as many
    numbers as the cube.

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
    wanted = Settings(**settings)
    m = load(measurement, None, wanted)
    with reporting(progress, tiled_steps(wanted)) as report:
        listener = Listener(report, warn=warn_caller)
        return tile_measurement(
            m, output, wanted, listener, tile=tile, reach=reach, attributes=attributes, overwrite=overwrite
        )


list_settings(reconstruct_tiled)


@undisturbed
def tile_measurement(
    m: Measurement,
    output: PathLike,
    settings: Settings,
    listener: Listener,
    *,
    tile: int,
    reach: int = REACH,
    attributes: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> TiledResult:
    """The same of a measurement that is read."""
    settings.check_together(TILE, tile)
    check_store(output, overwrite)
    start = time.perf_counter()
    m, settings = subtract_dark(m, open_files(settings))
    if m.y.ndim != (2 if m.shots is None else 3):
        raise InputError(f"tiles are for single scenes (H, W') or (K, H, W'), got {m.y.shape}; give single frames")
    if tile < max(1, reach) or reach < 0:
        raise InputError(
            f"tiles of {tile} px with {reach} px around them are all border; take {max(1, reach)} px or more, the more "
            "the faster"
        )
    used = {"tile": tile, "reach": reach}
    if max(m.mask.shape[-2:]) <= tile:

        def as_of_tile(step: str, share: float) -> None:
            listener.progress(TILES if step == FINAL else step, share)

        whole = reconstruct_measurement(m, settings, replace(listener, progress=as_of_tile))
        whole = replace(whole, parameters={**whole.parameters, **used})
        write_result(output, whole, attributes=attributes, overwrite=overwrite)
        known = {name: value for name, value in vars(whole).items() if name in Finished.__dataclass_fields__}
        return TiledResult(path=Path(output), shape=whole.cube.shape, **known)
    if settings.quality == "best":
        listener.inform("quality best trains the network, which then would differ from tile to tile: default is taken")
        settings = replace(settings, quality="default")
    m = check(m, settings, listener)
    scene = prepare_scene(m, settings, listener)
    A, bright = scene.A, brightness(scene.A, scene.y)
    if not croppable(A):
        raise InputError(f"a {type(A).__name__} cannot be cut into tiles; reconstruct the frame whole")
    if scene.found is not None and any(scene.found.remainders):
        raise InputError("aligned bands that lie between pixels are moved in a whole cube only; reconstruct it whole")
    y, noise = scene.y / bright, scene.noise.scaled(1 / bright)
    with torch.no_grad(), cube_store(output, overwrite=overwrite) as store:
        store.make("cube", A.cube_shape, axes="CHW")
        if scene.wavelengths is not None:
            store.put("wavelengths", scene.wavelengths)
        watch = Watch(progress=listener.progress)
        solve, chosen = tile_solver(
            A, y, wavelengths=scene.wavelengths, noise=noise, settings=scale_plan(settings, bright), watch=watch
        )

        def add(rows: slice, columns: slice, values: Tensor) -> None:
            store.add("cube", np.s_[:, rows, columns], (values * bright).cpu().numpy())

        history = solve_tiled(A, y, solve, add, tile=tile, reach=reach, report=partial(listener.progress, TILES))
        residual_image, residual = _misfit(A, scene.y, store)
        outcome = with_scene_facts(chosen.scaled(bright), scene)
        known = vars(finished(scene, [outcome], residual, settings, start))
        known |= {"history": history, "parameters": {**known["parameters"], **used}}
        result = explain(TiledResult(path=Path(output), shape=A.cube_shape, **known), listener)
        store.put("measurement", m.y)
        store.put("residual", residual_image)
        if m.cube is not None:
            store.put("truth", m.cube)
        if result.bad_pixels is not None:
            store.put("bad_pixels", result.bad_pixels)
        for name, image in ({} if scene.found is None else scene.found.images(m.mask)).items():
            store.put(name, image)
        for name in Record._fields:
            store.put(f"history/{name}", np.array([getattr(record, name) for record in history]))
        store.state(result.attributes() | dict(attributes or {}))
    return result


def tile_solver(
    A: Block,
    y: Tensor,
    *,
    wavelengths: np.ndarray | None = None,
    noise: CameraNoise = CameraNoise(),
    settings: Settings = Settings(),
    watch: Watch | None = None,
) -> tuple[Solve, Outcome]:
    """A solver for blocks by one plan, that of the whole frame at brightness 1, and what was chosen."""
    plan, evidence = cast(Plan | None, settings.plan), None  # `open_files` has read its file
    if plan is None:
        plan, evidence = choose_plan(A, y, wavelengths=wavelengths, noise=noise, settings=settings, watch=watch)
    plan = replace(plan, stages=tuple(stage for stage in plan.stages if stage.in_tiles))
    bright = brightness(A, y)

    def planned(a: Block, b: Tensor) -> Tensor:
        return repeat_stages(a, b, plan.problem(b, bright), plan.stages, Watch()).x.clamp_(min=0)

    nothing = Result(y.new_zeros(()), (), "finished")
    return planned, Outcome(nothing, "subspace-tv", {}, plan, evidence)


def _misfit(A: Block, y: Tensor, store: CubeStore) -> tuple[np.ndarray, float]:
    """y - Phi x, and |y - Phi x| / |y|, of the cube in the file; rows do not mix, so a strip is a camera of its own."""
    image = np.empty(tuple(y.shape), np.float32)
    squared = 0.0
    height, width = A.cube_shape[-2:]
    for first in range(0, height, STRIP):
        rows = slice(first, min(first + STRIP, height))
        strip, seen = crop(A, y, rows, slice(0, width))
        misfit = seen - strip.forward(torch.from_numpy(store.read("cube", np.s_[:, rows])).to(y.device))
        squared += float(misfit.double().square().sum())
        image[..., rows, :] = misfit.cpu().numpy()
    total = float(y.double().norm())
    return image, math.sqrt(squared) / total if total else float(squared > 0)
