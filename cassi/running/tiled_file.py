"""A frame larger than memory: prepared and planned as any other, solved tile by tile into a file."""

from __future__ import annotations

import math
import os
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cassi.calibration.found_camera import FoundCamera
from cassi.choice.asked_for import Progress
from cassi.choice.automatic import choose_plan
from cassi.choice.chain import repeated
from cassi.choice.doubts import of_result
from cassi.choice.noise import CameraNoise
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Method, Plan, Run
from cassi.choice.stages import Watch
from cassi.errors import InputError
from cassi.files.cube_store import CubeStore, cube_store
from cassi.optics.cropping import Block, crop, croppable
from cassi.optics.detector import brightness
from cassi.optics.measurement import MaskCheck, Measurement
from cassi.priors.learned import LearnedPrior
from cassi.running.evidence import of_scene
from cassi.running.front_door import as_in, method_for, prepare_found
from cassi.running.preparing import load
from cassi.running.progress import TILES, shown, tiled_steps
from cassi.running.request import Array, Request
from cassi.running.result import provenance
from cassi.running.tiling import REACH, Solve, solve_tiled
from cassi.solvers.loop import Record, Result

STRIP = 64  # rows of the residual image computed at a time


@dataclass(frozen=True, eq=False)
class TiledResult:
    """What is known of a cube (C, H, W) that lies in a file; names as of `cassi.Reconstruction`.

    `history` has one Record a tile, its residual over the detector pixels it was solved from; `outcomes` holds what was
    chosen, once for all tiles, in one `Outcome` without a cube.
    """

    path: Path
    shape: tuple[int, int, int]
    history: tuple[Record, ...]
    residual: float
    seconds: float
    outcomes: tuple[Outcome, ...] = ()
    camera: FoundCamera | None = None
    check: MaskCheck | None = None


def reconstruct_tiled(
    measurement: Measurement,
    output: str | os.PathLike[str],
    *,
    tile: int = 512,
    reach: int = REACH,
    num_iters: int | None = None,
    quality: str = "default",
    prior: str = "auto",
    weights: str | os.PathLike[str] | LearnedPrior | None = None,
    psf: float | Array | None = None,
    black_level: float | None = None,
    plan: Plan | None = None,
    camera: str | FoundCamera = "find",
    device: str | torch.device = "auto",
    seed: int = 0,
    attributes: Mapping[str, object] | None = None,
    overwrite: bool = False,
    progress: bool | Progress = False,
) -> TiledResult:
    """Reconstruct a frame larger than memory by the default solver: in tiles, written to an HDF5 file one by one.

    Camera, scale, noise, spectral basis and stages are chosen once, as `cassi.reconstruct` does it for the whole frame,
    and are the same everywhere. The memory taken depends on the tile, and on the measurement, but not on the cube; a
    camera that is found has a mask for each band, as many numbers as the cube.

    Args:
        measurement: one scene with its mask and shifts.
        output: .h5 or .hdf5 file to make, as a result's, with a line of `/history` a tile.
        tile: size of a tile [pixel]; margins of twice the dispersion and of `reach` come on top.
        reach: how far a prior carries information [pixel].
        attributes: further provenance by name.
        overwrite: replace an existing file.
        num_iters, quality ... progress: as for `cassi.reconstruct`, which also says what is warned of.

    Raises:
        InputError: a stack of snapshots, or tile or reach too small.
        OutputError: the file cannot be written; nothing is left behind.
    """
    start = time.perf_counter()
    if measurement.y.ndim != (2 if measurement.shots is None else 3):
        raise InputError(
            f"tiles are for single scenes (H, W') or (K, H, W'), got {measurement.y.shape}; give one frame at a time"
        )
    if tile < max(1, reach) or reach < 0:
        raise InputError(
            f"tiles of {tile} px with {reach} px around them are all border; take {max(1, reach)} px or more, the more "
            "the faster"
        )
    request = Request(
        num_iters=num_iters, quality=quality, prior=prior, weights=weights, psf=psf,
        black_level=black_level, plan=plan, camera=camera, device=device, seed=seed,
    )  # fmt: skip
    m = load(measurement, None, request)
    with shown(progress, tiled_steps(find=request.finds)) as told:
        scene = prepare_found(m, request, told)
        for text in () if m.check else of_scene(scene):
            warnings.warn(text, stacklevel=2)
        A, level = scene.A, brightness(scene.A, scene.y)
        if not croppable(A):
            raise InputError(f"a {type(A).__name__} cannot be cut into tiles; reconstruct the frame whole")
        y, method = scene.y / level, method_for(request, level)
        with cube_store(output, overwrite=overwrite) as store:
            store.make("cube", A.cube_shape, axes="CHW")
            if scene.wavelengths is not None:
                store.put("wavelengths", scene.wavelengths)
            run = Run(seed, progress=told)
            noise = scene.noise.scaled(1 / level)
            one, found = tile_solver(A, y, wavelengths=scene.wavelengths, noise=noise, method=method, run=run)
            chosen = as_in(scene, found.scaled(level), scene.black_levels[0])
            choice = chosen.as_dict() | {"tile": tile, "reach": reach}

            def add(rows: slice, columns: slice, values: Tensor) -> None:
                store.add("cube", np.s_[:, rows, columns], (values * level).cpu().numpy())

            history = solve_tiled(A, y, one, add, tile=tile, reach=reach, told=partial(told, TILES))
            residual_image, residual = _misfit(A, scene.y, store)
            seconds = time.perf_counter() - start
            store.put("measurement", m.y)
            store.put("residual", residual_image)
            if scene.fit is not None and scene.fit.accepted:
                store.put("camera_mask", scene.fit.mask)
            for name in Record._fields:
                store.put(f"history/{name}", np.array([getattr(record, name) for record in history]))
            stated = replace(m, notes=(*m.notes, *of_result(residual)))
            facts = {"status": "max_iters", "residual": residual, "seconds": seconds, "choice": choice}
            parameters = request.as_dict() | {"tile": tile, "reach": reach} | scene.parameters
            store.state(
                provenance(stated, scene.fit, scene.check)
                | {"unit": scene.unit, "parameters": parameters}
                | facts
                | dict(attributes or {})
            )
    return TiledResult(Path(output), A.cube_shape, history, residual, seconds, (chosen,), scene.fit, scene.check)


def tile_solver(
    A: Block,
    y: Tensor,
    *,
    wavelengths: np.ndarray | None = None,
    noise: CameraNoise = CameraNoise(),  # noqa: B008  frozen
    method: Method = Method(),  # noqa: B008  frozen
    run: Run = Run(),  # noqa: B008  frozen
) -> tuple[Solve, Outcome]:
    """A solver for blocks by one plan, that of the whole frame at brightness 1, and what was chosen."""
    plan, evidence = method.plan, None
    if plan is None:
        plan, evidence = choose_plan(A, y, wavelengths=wavelengths, noise=noise, method=method, run=run)
    plan = replace(plan, stages=tuple(stage for stage in plan.stages if stage.in_tiles))
    level = brightness(A, y)

    def planned(a: Block, b: Tensor) -> Tensor:
        return repeated(a, b, plan.problem(b, level), plan.stages, Watch()).x.clamp_(min=0)

    nothing = Result(y.new_zeros(()), (), "max_iters")
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
