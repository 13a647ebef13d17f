"""One call from a measurement to a spectral cube: load, find the camera, prepare, solve, say how far to trust it."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.calibration.found_camera import FoundCamera, find_camera
from cassi.choice.asked_for import Prior, Progress, Quality, Solver
from cassi.choice.by_name import solve
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Method, Plan
from cassi.optics.detector import brightness
from cassi.optics.imprint import imprint_on
from cassi.optics.mask_match import compared
from cassi.optics.measurement import Measurement
from cassi.optics.protocol import Camera
from cassi.optics.side_picture import SidePicture
from cassi.priors.learned import LearnedPrior
from cassi.running.evidence import of_cube, of_scene
from cassi.running.preparing import Scene, as_found, load, prepare, prepare_camera
from cassi.running.progress import CAMERA, SIDE, one_of, shown, usual_steps
from cassi.running.request import Array, Request
from cassi.running.result import Reconstruction
from cassi.solvers.loop import Monitor, relative_norm


def reconstruct(
    measurement: Array | Measurement | str | os.PathLike[str],
    mask: Array | Camera | str | os.PathLike[str] | None = None,
    *,
    shifts: Sequence[float] | None = None,
    step: float | None = None,
    num_bands: int | None = None,
    wavelengths: str | Sequence[float] | Array | None = None,
    solver: Solver | str = "auto",
    num_iters: int | None = None,
    tv_weight: float | None = None,
    quality: Quality | str = "default",
    prior: Prior | str = "auto",
    weights: str | os.PathLike[str] | LearnedPrior | None = None,
    budget: float | None = None,
    uncertainty: bool = False,
    psf: float | Array | None = None,
    bad_pixels: Array | None = None,
    black_level: float | None = None,
    gain: float | None = None,
    read_noise: float | None = None,
    plan: Plan | None = None,
    camera: str | FoundCamera = "find",
    side: SidePicture | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    monitor: Monitor | None = None,
    progress: bool | Progress = False,
) -> Reconstruction:
    """Turn a CASSI snapshot into a spectral cube: x such that y = Phi x, with nothing to tune.

    The measurement is divided by its level, sum |y| / sum Phi 1 (the mean of the cube that would explain it), and the
    cube multiplied by it: a measurement times any positive constant gives the cube times that constant, and a weight
    means the same for counts as for values in [0, 1]. Computed in float32, or as a camera that is given.

    Args:
        measurement: y, (H, W'), or (N, H, W') for N snapshots through one mask; finite, any unit. Or a file, read by
            `cassi.files.scenes.read_scene`. Or a `cassi.optics.measurement.Measurement`, which brings mask,
            shifts and the rest along.
        mask: coded aperture (H, W), or (C, H, W) with one per band [transmission], or its file beside that of a
            measurement. Or the camera itself (`cassi.optics.protocol`), which brings shifts, blur and device along.
        shifts: displacement of each band on the detector [pixel], C numbers; between pixels `BlurredCASSI` is used.
        step: displacement between neighboring bands [pixel], instead of shifts.
        num_bands: C. What is not given of step and num_bands follows from W' - W.
        wavelengths: (C,) band centers [nm], or a text such as "450:650:28" (`cassi.optics.wavelengths`); "auto" and
            "subspace" take spectra to be smooth over them.
        solver: "auto" (subspace TV, everything chosen from held-out pixels), "subspace" (the same with settings of
            one's own, for clean data), "least-squares", "gap-tv", "admm-tv"; gap_tv is gap-tv.
        num_iters: iterations; the solver's own default if not given.
        tv_weight: weight of the total variation, > 0, relative to the cube's mean level, or to the mean level times the
            mean of gram_diag ("admm-tv"). Not for "auto", which chooses, or "least-squares".
        quality: "fast", 3/4 of the time of "default", or "best", 16 times as long ("auto" only).
        prior: of the final run: "tv", "nonlocal" or "learned", each after those before it, or "auto", all of them
            unless held-out pixels or the mask's imprint speak against it ("auto" only).
        weights: of the learned prior: "free" or "research", by what they may be used for (MODEL_CARD.md), or a file
            of scripts/train.py; "research" if not given.
        budget: seconds in which to be done; None is no limit.
        uncertainty: estimate the standard deviation of each voxel, too ("auto" only).
        psf: blur of the instrument along the dispersion: standard deviation of a Gaussian [pixel], > 0, or taps (M,),
            or (C, M) with one per band, see `BlurredCASSI`. None is no blur.
        bad_pixels: (H, W') bool, True where the detector says nothing; these pixels are left out exactly.
        black_level: taken off y first, in its unit; None takes off what the pixels tell that hardly any light can
            reach (`choice["black_level"]`), 0 nothing.
        gain: electrons per unit of y, where known.
        read_noise: standard deviation [electron], where known.
        plan: of an earlier result (`Reconstruction.plan`), followed instead of a choice ("auto" only): for snapshots
            that are alike: it leaves out pilot and judge.
        camera: "find" finds out from the snapshot where and how sharp the mask really is, and takes that where the
            evidence is clear; "as-given" leaves it; or a `FoundCamera`. Not where a psf or a camera is given.
        side: a photograph of the same scene from beside the camera ("auto" and one snapshot only), used where held-out
            pixels do not speak against it.
        device: "auto" (CUDA where there is one), "cpu", "cuda", "cuda:1" ...
        seed: of the random choices a solver makes.
        monitor: called each iteration with (Record, cube at mean level 1; "auto" and "subspace": its spectral
            coefficients); return True to stop.
        progress: show one bar over all steps; or a function that is told the name of each step and the share of it that
            is done (`cassi.running.progress.usual_steps` has the names).

    Returns:
        The `Reconstruction`.

    Warns:
        UserWarning: a mask that does not fit the snapshot (`Reconstruction.check`), and what else speaks against it or
            the cube (`cassi.running.evidence`). Not where the `Measurement` holds the check: who made it has told.

    Raises:
        InputError: (a ValueError) anything that cannot be used: what, expected, got, cure.
        FloatingPointError: the iteration diverged.

    Example:
        >>> mask = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
        >>> y = CASSI.from_step(mask, 2, 4).forward(torch.ones(4, 16, 16))
        >>> result = reconstruct(y, mask, num_bands=4, num_iters=20)
        >>> result.cube.shape
        torch.Size([4, 16, 16])
    """
    request = Request(
        shifts=shifts, step=step, num_bands=num_bands, wavelengths=wavelengths, solver=solver, num_iters=num_iters,
        tv_weight=tv_weight, quality=quality, prior=prior, weights=weights, budget=budget, uncertainty=uncertainty,
        psf=psf, bad_pixels=bad_pixels, black_level=black_level, gain=gain,
        read_noise=read_noise, plan=plan, camera=camera, side=side, device=device, seed=seed,
    )  # fmt: skip
    return reconstructed(measurement, mask, request, monitor=monitor, progress=progress)


def reconstructed(
    measurement: Array | Measurement | str | os.PathLike[str],
    mask: Array | Camera | str | os.PathLike[str] | None,
    request: Request,
    *,
    monitor: Monitor | None = None,
    progress: bool | Progress = False,
) -> Reconstruction:
    """The same for a `Request`."""
    start = time.perf_counter()
    loaded: Measurement | Scene
    if isinstance(mask, Tensor | np.ndarray | str | os.PathLike | None):
        loaded = load(measurement, mask, request)
    else:
        loaded = prepare_camera(mask, measurement, request)  # type: ignore[arg-type]
    is_measured = isinstance(loaded, Measurement)
    is_checked = isinstance(loaded, Measurement) and loaded.check is not None  # who did so has told what it found
    steps = usual_steps(
        solver=request.method.solver, find=is_measured and request.finds, uncertainty=request.uncertainty,
        side=request.side is not None, frames=loaded.num_scenes,
    )  # fmt: skip
    with shown(progress, steps) as told:
        scene = loaded if isinstance(loaded, Scene) else prepare_found(loaded, request, told)
        _warn(() if is_checked else of_scene(scene))
        outcomes = _solved(scene, request, start, monitor, told)
    result = assembled(scene, outcomes, request.as_dict(), start)
    _warn(() if is_checked else of_cube(result))
    return result


def prepare_found(m: Measurement, request: Request, told: Progress) -> Scene:
    """A measurement with the camera that is found from it where that is asked for, ready to be solved.

    The camera comes first: through a mask out of place, dark pixels tell a black level that is not there.
    """
    check = compared(m)
    m = replace(m, check=check)
    fit = request.camera if isinstance(request.camera, FoundCamera) else None
    if request.finds:
        fit = find_camera(m, black_level=request.black_level, seed=request.seed, told=partial(told, CAMERA))
    in_place = m if fit is None else fit.in_place(m)
    check = as_found(check, in_place) if fit is not None and fit.accepted else check
    scene = prepare(replace(in_place, check=check), request)
    return replace(scene, measurement=replace(m, check=None), fit=fit)


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=4)


@torch.no_grad()
def _solved(scene: Scene, request: Request, start: float, monitor: Monitor | None, told: Progress) -> list[Outcome]:
    """Each snapshot at brightness 1, in its share of what is left; the cubes are in the unit of y again."""
    side = request.side
    if side is not None:
        from cassi.running.beside import check_side, solve_beside  # loads much that no other run needs

        check_side(side, scene, request.method, request.run(start, monitor))
    outcomes = []
    for k, (y, black) in enumerate(zip(scene.frames, scene.black_levels, strict=True)):
        level, number = brightness(scene.A, y), one_of(k, scene.num_scenes)
        method, noise = method_for(request, level), scene.noise.scaled(1 / level)

        def tell(step: str, share: float, number: str = number) -> None:
            told(number + step, share)

        one = request.run(start, monitor)
        left = None if one.budget is None else one.budget / (scene.num_scenes - k)
        one = replace(one, budget=left, progress=tell)
        found = solve(scene.A, y / level, wavelengths=scene.wavelengths, noise=noise, method=method, run=one)
        if side is not None and found.result.status != "stopped":
            told(SIDE, 0.0)
            one = replace(one, progress=lambda _, share: told(SIDE, share))  # no step that is over goes on
            found = solve_beside(scene.A, y / level, found, side, scene.wavelengths, method.quality, one)
        outcomes.append(as_in(scene, found.scaled(level), black))
    return outcomes


def as_in(scene: Scene, found: Outcome, black_level: float) -> Outcome:
    """An outcome with what is known of its scene."""
    return replace(found, black_level=black_level, black_level_told=scene.told, doubt=scene.doubt)


def method_for(request: Request, level: float) -> Method:
    """The method for a scene divided by its level."""
    return replace(request.method, plan=None if request.plan is None else request.plan.scaled(1 / level))


@torch.no_grad()
def assembled(scene: Scene, outcomes: list[Outcome], parameters: dict[str, Any], start: float) -> Reconstruction:
    """The result from what each snapshot came to; `parameters` are completed by the camera's."""
    A, y = scene.A, scene.y
    single = y.ndim == len(A.measurement_shape)
    cube = outcomes[0].result.x if single else torch.stack([one.result.x for one in outcomes])
    spreads = [one.uncertainty for one in outcomes if one.uncertainty is not None]
    residual_image = y - A.forward(cube)
    order = ("stopped", "max_iters", "converged")
    return Reconstruction(
        cube=cube,
        wavelengths=scene.wavelengths,
        history=tuple(record for one in outcomes for record in one.result.history),
        status=min((one.result.status for one in outcomes), key=order.index),
        residual=relative_norm(residual_image, y),
        residual_image=residual_image,
        seconds=time.perf_counter() - start,
        outcomes=tuple(outcomes),
        parameters=parameters | scene.parameters,
        unit=scene.unit,
        uncertainty=None if not spreads else spreads[0] if single else torch.stack(spreads),
        visibility=A.visibility() if spreads else None,
        camera=scene.fit,
        imprint=imprint_on(cube if cube.ndim == 3 else cube[0], A),
        measurement=scene.measurement,
        check=scene.check,
    )
