"""A frame larger than memory: checked, prepared and planned as any other, solved tile by tile into a file."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import choose_plan, window
from cassi.choice.chain import repeat_stages
from cassi.choice.doubts import CONCERN
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan
from cassi.choice.stages import Watch
from cassi.choice.uncertainty import bootstrap, standard_deviation
from cassi.errors import InputError, Note
from cassi.evidence.noise import CameraNoise
from cassi.files.cube_store import CubeStore, check_store, cube_store
from cassi.files.cubes import TURNS, turn, turned_part
from cassi.kernels.caller import undisturbed
from cassi.keywords import Keywords
from cassi.optics.cropping import Block, crop, croppable
from cassi.optics.detector import brightness
from cassi.optics.measurement import REFLECTANCE, Measurement
from cassi.running.arguments import load, open_files, subtract_dark
from cassi.running.concerns import bend_of
from cassi.running.pipeline import (
    Listener,
    check,
    explain,
    finished,
    prepare_scene,
    prepare_white,
    reconstruct_measurement,
    scale_plan,
    with_concerns,
    with_scene_facts,
)
from cassi.running.progress import FINAL, TILES, reporting, tiled_steps
from cassi.running.reconstruct import list_settings, warn_caller
from cassi.running.result import Finished, write_result
from cassi.running.scene import Scene
from cassi.running.tiling import REACH, Solve, solve_tiled
from cassi.running.white import EVEN, MAX_REFLECTANCE, division, light_of, read_board, white_concerns
from cassi.settings import TILE, PathLike, Progress, Settings
from cassi.solvers.loop import Record, Result

STRIP = 64  # rows of a cube in a file computed with at a time
COARSE = round(EVEN / 2)  # pixels whose mean the light on a white reference is
BACK = {"90": "270", "270": "90"}  # what turns back; the other turns do themselves


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
            f"tiles of {tile} px with {reach} px around them have no interior; use at least "
            f"{max(1, reach)} px, larger is faster"
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
        listener.inform("quality best would train another network for each tile: default is used")
        settings = replace(settings, quality="default")
    m = check(m, settings, listener)
    scene = prepare_scene(m, settings, listener)
    A, bright = scene.A, brightness(scene.A, scene.y)
    if not croppable(A):
        raise InputError(f"a {type(A).__name__} cannot be cut into tiles; reconstruct the frame whole")
    if scene.found is not None and any(scene.found.remainders):
        raise InputError("bands aligned between pixels can be moved in a whole cube only; reconstruct the frame whole")
    y, noise = scene.y / bright, scene.noise.scaled(1 / bright)
    with torch.no_grad(), cube_store(output, overwrite=overwrite) as store:
        size = A.cube_shape[1:]
        light = None if settings.white is None else _light(scene, settings, listener, tile=tile, reach=reach)
        names = ("cube", *(["uncertainty"] if settings.uncertainty else []))
        turned = Upright(store, (size[0], size[1]), settings.turn_result)
        for name in names:
            turned.make(name, A.cube_shape)
        if scene.wavelengths is not None:
            store.put("wavelengths", scene.wavelengths)
        watch = Watch(progress=listener.progress)
        solve, chosen = tile_solver(
            A, y, wavelengths=scene.wavelengths, noise=noise, settings=scale_plan(settings, bright), watch=watch
        )

        def add(rows: slice, columns: slice, values: Tensor) -> None:
            for name, part in zip(names, np.split((values * bright).cpu().numpy(), len(names)), strict=True):
                turned.add(name, rows, columns, part)

        history = solve_tiled(A, y, solve, add, tile=tile, reach=reach, report=partial(listener.progress, TILES))
        residual_image, residual = _misfit(A, scene.y, turned)
        outcome = with_scene_facts(chosen.scaled(bright), scene)
        bend = bend_of(scene.y.cpu(), torch.from_numpy(residual_image))
        known = vars(finished(scene, [outcome], residual, settings, start, bend=bend))
        known |= {"history": history, "parameters": {**known["parameters"], **used}, "turned": settings.turn_result}
        seen = cast(Measurement, known["measurement"])
        if light is not None:
            seen = _divide(turned, names, A.cube_shape, light, settings, scene.wavelengths, seen, listener)
            known["unit"] = REFLECTANCE
        truth = None if seen.cube is None else turn(seen.cube, settings.turn_result)
        known["measurement"] = replace(seen, cube=truth)
        result = explain(TiledResult(path=Path(output), shape=A.cube_shape, **known), listener)
        if truth is not None:
            store.put("truth", truth)
        images = {"measurement": m.y, "residual": residual_image, "bad_pixels": result.bad_pixels}
        for name, image in (images | ({} if scene.found is None else scene.found.images(m.mask))).items():
            if image is not None:
                store.put(name, turn(image, settings.turn_result))
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
class Upright:
    """The cubes in a file, which lie there turned; rows and columns are those of the scene as the detector sees it."""

    store: CubeStore
    size: tuple[int, int]
    how: str

    def make(self, name: str, shape: tuple[int, ...]) -> None:
        """An array of zeros."""
        self.store.make(name, (shape[0], *(self.size[::-1] if TURNS[self.how][0] else self.size)), axes="CHW")

    def _part(self, rows: slice, columns: slice) -> tuple[slice, ...]:
        return (slice(None), *turned_part(rows, columns, self.size, self.how))

    def add(self, name: str, rows: slice, columns: slice, values: np.ndarray) -> None:
        """Add to a part (C, h, w)."""
        self.store.add(name, self._part(rows, columns), turn(values, self.how))

    def read(self, name: str, rows: slice) -> np.ndarray:
        """Some rows, (C, h, W)."""
        return turn(self.store.read(name, self._part(rows, slice(0, self.size[1]))), BACK.get(self.how, self.how))


def _light(scene: Scene, settings: Settings, listener: Listener, *, tile: int, reach: int) -> np.ndarray:
    """The light on the white reference, solved in tiles as the scene is; means of `COARSE` x `COARSE` pixels."""
    white = cast(Measurement, settings.white)
    prepared, same, quiet = prepare_white(scene, white, settings, listener)
    A, bright = cast(Block, prepared.A), brightness(prepared.A, prepared.y)
    same, watch = scale_plan(same, bright), Watch(progress=quiet.progress)
    how = {"noise": prepared.noise.scaled(1 / bright), "settings": same, "watch": watch}
    solve, _ = tile_solver(A, prepared.y / bright, wavelengths=prepared.wavelengths, **how)  # type: ignore[arg-type]
    bands, *size = A.cube_shape
    light = np.zeros((bands, *(-(-n // COARSE) for n in size)))
    rows_of, columns_of = (np.arange(n) // COARSE for n in size)

    def add(rows: slice, columns: slice, values: Tensor) -> None:
        at: Any = np.s_[:, rows_of[rows, None], columns_of[columns]]
        np.add.at(light, at, (values * bright).cpu().numpy())

    with torch.no_grad():
        report = partial(quiet.progress, TILES)
        solve_tiled(A, prepared.y / bright, solve, add, tile=tile, reach=reach, report=report)
    count = np.outer(np.bincount(rows_of), np.bincount(columns_of))
    return light_of(light / count, None, COARSE)


def _divide(
    turned: Upright, names: tuple[str, ...], shape: tuple[int, ...], light: np.ndarray, settings: Settings,
    wavelengths: np.ndarray | None, m: Measurement, listener: Listener,
) -> Measurement:  # fmt: skip
    """Divide the cubes in the file by the light on a white reference; the measurement with what speaks against them."""
    board = read_board(settings.white_reflectance)
    coarse, high = division(light, board, settings.exposure_ratio, wavelengths), 0
    height, width = shape[-2:]
    for first in range(0, height, STRIP):
        rows = slice(first, min(first + STRIP, height))
        factor = _between(_between(coarse, np.arange(first, rows.stop), 1), np.arange(width), 2)
        for name in names:
            values = turned.read(name, rows)
            turned.add(name, rows, slice(0, width), values * (factor - 1))
            high += int((values * factor > MAX_REFLECTANCE).sum()) if name == "cube" else 0
    listener.inform(f"divided by the light on the white reference {cast(Measurement, settings.white).source}")
    against = white_concerns(light.mean((1, 2)), high / math.prod(shape), wavelengths)
    m = with_concerns(m, [Note(text, CONCERN) for text in against], listener)
    return replace(m, cube=None, mean_band=None)


def _between(coarse: np.ndarray, at: np.ndarray, axis: int) -> np.ndarray:
    """Means of `COARSE` pixels along an axis, interpolated to single pixels."""
    place = np.clip((at - (COARSE - 1) / 2) / COARSE, 0, coarse.shape[axis] - 1)
    low = np.minimum(place.astype(int), max(0, coarse.shape[axis] - 2))
    share = (place - low).reshape(-1, *[1] * (2 - axis))
    high = np.minimum(low + 1, coarse.shape[axis] - 1)
    return np.asarray((1 - share) * coarse.take(low, axis) + share * coarse.take(high, axis))


def _misfit(A: Block, y: Tensor, cubes: Upright) -> tuple[np.ndarray, float]:
    """y - Phi x, and |y - Phi x| / |y|, of the cube in the file; rows do not mix, so a strip is a camera of its own."""
    image = np.empty(tuple(y.shape), np.float32)
    squared = 0.0
    height, width = A.cube_shape[-2:]
    for first in range(0, height, STRIP):
        rows = slice(first, min(first + STRIP, height))
        strip, seen = crop(A, y, rows, slice(0, width))
        misfit = seen - strip.forward(torch.from_numpy(cubes.read("cube", rows)).to(y.device))
        squared += float(misfit.double().square().sum())
        image[..., rows, :] = misfit.cpu().numpy()
    total = float(y.double().norm())
    return image, math.sqrt(squared) / total if total else float(squared > 0)
