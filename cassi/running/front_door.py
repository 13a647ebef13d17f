"""One call from a measurement to a spectral cube: measurement and settings checked, frame by frame solved."""

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
from cassi.choice.by_name import solve
from cassi.choice.noise import CameraNoise
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Method, Plan, Prior, Progress, Quality, Run, Solver, check_number, check_plan, check_prior
from cassi.errors import InputError
from cassi.files.spectral_libraries import as_spectral_prior
from cassi.optics.coded_aperture import CodedAperture
from cassi.optics.detector import brightness
from cassi.optics.imprint import imprint_on
from cassi.optics.mask_match import MaskCheck, check_masks
from cassi.optics.measurement import Measurement, check_arrays
from cassi.optics.multi_shot import MultiShot
from cassi.optics.outliers import without_impulses
from cassi.optics.protocol import Camera
from cassi.optics.side_picture import SidePicture
from cassi.priors.gaussian_spectra import SpectralPrior
from cassi.priors.learned import LearnedPrior, load_prior
from cassi.running.beside import check_side, solve_beside
from cassi.running.evidence import as_found, compared, of_check, of_imprint, of_result
from cassi.running.preparing import Array, Prepared, as_measurement, as_wavelengths, plain, prepare, prepare_camera
from cassi.running.progress import CAMERA, SIDE, one_of, shown, usual_steps
from cassi.running.result import Reconstruction
from cassi.solvers.loop import Monitor, relative_norm

CAMERAS = ("find", "as-given")


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
    spectral_prior: SpectralPrior | Sequence[str | os.PathLike[str]] | None = None,
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
    means the same for counts as for values in [0, 1]. Computed in float32.

    Args:
        measurement: y, (H, W'), or (N, H, W') for N snapshots through one mask; finite, any unit. Or a file, read by
            `cassi.files.other_optics.read_scene`. Or a `cassi.optics.measurement.Measurement`, which brings mask,
            shifts and the rest along.
        mask: coded aperture (H, W), or (C, H, W) with one per band [transmission], or its file beside that of a
            measurement. Or the camera itself, any that fulfils `cassi.optics.protocol`: it brings shifts, blur and
            device along.
        shifts: displacement of each band on the detector [pixel], C numbers; between pixels `BlurredCASSI` is used.
        step: displacement between neighboring bands [pixel], instead of shifts.
        num_bands: C. What is not given of step and num_bands follows from W' - W.
        wavelengths: (C,) band centers [nm], or a text such as "450:650:28" (`cassi.optics.wavelengths`); "auto" and
            "subspace" take spectra to be smooth over them.
        solver: "auto" (subspace TV, everything chosen from held-out pixels), "subspace" (the same with settings of
            one's own, for clean data), "gaussian" (least squares with Gaussian spectra as a prior), "least-squares",
            "gap-tv", "admm-tv", "fista-tv"; gap_tv is gap-tv.
        num_iters: iterations; the solver's own default if not given.
        tv_weight: weight of the total variation, > 0, relative to the cube's mean level, or to the mean level times the
            mean of gram_diag ("admm-tv", "fista-tv"). Not for "auto", which chooses, or "least-squares".
        quality: "fast", half as long as "default", or "best", about ten times as long ("auto" only).
        prior: of the final run: "tv" (total variation), "nonlocal" (and then non-local), "learned" (and then a learned
            one), or "auto", which takes what predicts held-out pixels best ("auto" only).
        weights: of the learned prior, as scripts/train.py writes them, instead of those that come with the program.
        budget: seconds in which to be done; None is no limit. With it the result depends on the machine's speed.
        uncertainty: estimate how far each voxel may be off too: "auto" its standard deviation, calibrated on known
            scenes, in about half as long again; "gaussian" its spread, which only compares places, up to 17 times as
            long.
        psf: blur of the instrument along the dispersion: standard deviation of a Gaussian [pixel], > 0, or the
            point-spread function's taps (M,), or (C, M) with one per band, see `BlurredCASSI`. None is no blur.
        spectral_prior: spectra to expect, at mean level 1, see `cassi.priors.gaussian_spectra`; or files of cubes to
            learn them from ("auto", where they compete with smooth spectra, and "gaussian").
        bad_pixels: (H, W') bool, True where the detector says nothing; these pixels are left out exactly.
        black_level: taken off y first, in its unit; None takes off what the pixels tell that hardly any light can
            reach, where they clearly tell something (`choice["black_level"]`), 0 nothing.
        gain: electrons per unit of y, where known.
        read_noise: standard deviation [electron], where known.
        plan: of an earlier result (`Reconstruction.plan`), followed instead of a choice ("auto" only): for snapshots
            that are alike, in half the time.
        camera: "find" finds out from the snapshot where and how sharp the mask really is, and takes that where the
            evidence is clear (`cassi.calibration.found_camera`); "as-given" leaves it; or a `FoundCamera`, of other
            snapshots by the same camera. Not where a psf or a camera is given.
        side: a photograph of the same scene from beside the camera ("auto" and one snapshot only): it is registered to
            the snapshot and used where it fits and held-out pixels do not speak against it (`Reconstruction.explain`).
        device: "auto" (CUDA where there is one), "cpu", "cuda", "cuda:1" ...
        seed: of the random choices a solver makes.
        monitor: called each iteration with (Record, cube at mean level 1; "auto" and "subspace": its spectral
            coefficients); return True to stop.
        progress: show one bar over all steps; or a function that is told the name of each step and the share of it that
            is done (`cassi.running.progress.usual_steps` has the names).

    Returns:
        The `Reconstruction`.

    Warns:
        UserWarning: a mask that does not fit the snapshot (`Reconstruction.check`), what else speaks against it
            (`cassi.running.evidence`), a cube that leaves more than half of it unexplained or, of "auto", bears the
            mask's pattern. Not where the `Measurement` holds the check: who made it has told already.

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
    start = time.perf_counter()
    if isinstance(spectral_prior, str | os.PathLike):
        spectral_prior = (spectral_prior,)
    solver = str(solver).replace("_", "-")
    parameters = {
        "solver": solver,
        "num_iters": num_iters,
        "tv_weight": tv_weight,
        "quality": quality,
        "prior": prior,
        "weights": os.path.basename(weights) if isinstance(weights, str | os.PathLike) else None,
        "budget": budget,
        "uncertainty": uncertainty,
        "spectral_prior": _named(spectral_prior),
        "black_level": black_level,
        "psf": psf if psf is None or isinstance(psf, float | int) else np.asarray(plain(psf)).tolist(),
        "plan": None if plan is None else "given",
        "camera": camera if isinstance(camera, str) else "given",
        "side": None if side is None else "given",
        "device": str(device),
        "seed": seed,
    }
    if isinstance(camera, str) and camera not in CAMERAS:
        raise InputError(f"camera must be one of {', '.join(CAMERAS)}, or a FoundCamera, got {camera!r}")
    found: FoundCamera | None = None
    learned = read_weights(weights) if isinstance(weights, str | os.PathLike) else weights
    method = Method(solver, num_iters, tv_weight, quality, uncertainty, plan=plan, prior=prior, learned=learned)
    idle = {"spectral_prior": spectral_prior, "gain": gain, "read_noise": read_noise}
    check_plan(plan, {name: value is not None for name, value in idle.items()})
    run = Run(seed, budget, monitor)
    as_given: Measurement | None = None
    check: MaskCheck | None = None
    told_before = False
    steps = partial(usual_steps, solver=solver, uncertainty=uncertainty, side=side is not None)
    if isinstance(mask, Tensor | np.ndarray | str | os.PathLike | None):
        for name, value in (("gain", gain), ("read noise", read_noise)):
            check_number(name, value)
        m = as_given = as_measurement(measurement, mask, shifts, step, num_bands, wavelengths)
        overrides = {"bad_pixels": bad_pixels, "gain": gain, "read_noise": read_noise}
        m = replace(m, **{name: plain(value) for name, value in overrides.items() if value is not None})
        if read_noise is not None:
            CameraNoise(m.gain, read_noise)  # what a file states of it may lack the gain, an argument may not
        check_arrays(m)
        if plan is not None:
            plan.check_bands(len(m.shifts))
        m = as_stated = without_impulses(m)  # with the mask as given, bad pixels and noise as stated
        as_given = replace(as_given, notes=m.notes)
        find = camera == "find" and psf is None
        with shown(progress, steps(find=find, frames=m.num_scenes)) as told:
            if isinstance(camera, FoundCamera):
                found = camera
            elif find:
                found = find_camera(m, black_level=black_level, seed=seed, told=partial(told, CAMERA))
            if found is not None:
                m = found.in_place(m)
            if budget is not None:  # what the camera took is spent
                run = replace(run, budget=max(1e-9, budget - (time.perf_counter() - start)))
            task = prepare(m, psf=psf, black_level=black_level, device=device)
            told_before = as_stated.check is not None
            check = compared(as_stated)
            if found is not None and found.accepted:
                check = as_found(check, m)
            as_given = replace(as_given, check=None)  # it may get another mask
            _warn(() if told_before else of_check(check, as_stated))
            parameters |= {"shifts": list(m.shifts), "gain": m.gain, "read_noise": m.read_noise}
            parameters["device"] = str(task.A.device)
            outcomes = _outcomes(task, method, run, side, spectral_prior, told)
    else:
        if not hasattr(mask, "check_measurement"):
            raise InputError(f"the mask must be an array, a tensor, a file or a camera, got {type(mask).__name__}")
        given = {"shifts": shifts, "step": step, "num_bands": num_bands, "psf": psf}
        if twice := [name for name, value in given.items() if value is not None]:
            raise InputError(f"the camera brings its own geometry and blur along; leave out {', '.join(twice)}")
        if isinstance(measurement, Measurement | str | os.PathLike):
            raise InputError("a Measurement or its file brings its own mask along; give its y beside a camera")
        task = prepare_camera(
            mask,
            measurement,
            wavelengths=as_wavelengths(wavelengths, mask.cube_shape[0]),
            bad_pixels=bad_pixels,
            noise=CameraNoise(gain, read_noise),
            black_level=black_level,
        )
        check = _compared_with(task)
        _warn(() if check is None or check.matches else (check.verdict,))
        parameters |= {"camera": type(mask).__name__, "gain": gain, "read_noise": read_noise}
        parameters["device"] = str(task.A.device)
        with shown(progress, steps(find=False, frames=len(task.frames))) as told:
            outcomes = _outcomes(task, method, run, side, spectral_prior, told)
    result = replace(assembled(task, outcomes, parameters, found, as_given, start), check=check)
    fits = check is None or check.matches  # else it was told: one reason is enough
    finished = method.solver == "auto"  # others may have been given a few iterations
    stamped = of_imprint(result.imprint) if fits and finished else ()
    _warn(() if told_before else (*of_result(result.residual), *stamped))
    return result


def _compared_with(task: Prepared) -> MaskCheck | None:
    """The comparison with the mask of a camera that was given; None where it has no mask."""
    several = isinstance(task.A, MultiShot)
    shots = [shot for shot in getattr(task.A, "shots", (task.A,)) if isinstance(shot, CodedAperture)]
    if not shots:
        return None
    masks = np.stack([shot.mask.detach().cpu().numpy() for shot in shots])
    left_out = np.stack([np.broadcast_to(_weights(shot) == 0, shot.measurement_shape) for shot in shots])
    return check_masks(
        Measurement(
            y=task.y.detach().cpu().numpy(),
            mask=masks if several else masks[0],
            shifts=tuple(shots[0].shifts),
            bad_pixels=left_out if several else left_out[0],
            shots=len(shots) if several else None,
        )
    )


def _weights(A: CodedAperture) -> np.ndarray:
    return np.ones(1) if A.weights is None else A.weights.detach().cpu().numpy()


def _warn(sentences: Sequence[str]) -> None:
    for sentence in sentences:
        warnings.warn(sentence, stacklevel=3)


def _outcomes(
    task: Prepared,
    method: Method,
    run: Run,
    side: SidePicture | None,
    spectral_prior: SpectralPrior | Sequence[str | os.PathLike[str]] | None,
    told: Progress,
) -> list[Outcome]:
    """Solve the snapshots one after the other."""
    check_prior(method.solver, spectral_prior)
    spectra = as_spectral_prior(spectral_prior, task.A.cube_shape[0], task.wavelengths)
    method = replace(method, spectral_prior=spectra)
    if side is not None:
        if not isinstance(side, SidePicture):
            raise InputError(f"side must be a cassi.SidePicture(picture), got {type(side).__name__}")
        check_side(side, task, method, run)
    found = []
    for k, (frame, black) in enumerate(zip(task.frames, task.black_levels, strict=True)):
        one = replace(run, progress=partial(_numbered, told, one_of(k, len(task.frames))))
        found.append(replace(_solved(task, frame, method, one, side), black_level=black, black_level_told=task.told))
    return found


def _numbered(told: Progress, before: str, step: str, share: float) -> None:
    told(before + step, share)


def _solved(task: Prepared, y: Tensor, method: Method, run: Run, side: SidePicture | None) -> Outcome:
    """Solve one snapshot at brightness 1; the cube is in the unit of y again."""
    level = brightness(task.A, y)
    if method.plan is not None:
        method = replace(method, plan=method.plan.scaled(1 / level))
    noise = task.noise.scaled(1 / level)
    found = solve(task.A, y / level, wavelengths=task.wavelengths, noise=noise, method=method, run=run)
    if side is not None:
        run.tell(SIDE, 0.0)
        found = solve_beside(task.A, y / level, found, side, task.wavelengths, method.quality, run)
    return found.scaled(level)


def assembled(
    task: Prepared,
    outcomes: list[Outcome],
    parameters: dict[str, Any],
    found: FoundCamera | None,
    given: Measurement | None,
    start: float,
) -> Reconstruction:
    A, y = task.A, task.y
    single = y.ndim == len(A.measurement_shape)
    cube = outcomes[0].result.x if single else torch.stack([one.result.x for one in outcomes])
    spreads = [one.uncertainty for one in outcomes if one.uncertainty is not None]
    residual_image = y - A.forward(cube)
    order = ("stopped", "max_iters", "converged")
    return Reconstruction(
        cube=cube,
        wavelengths=task.wavelengths,
        history=tuple(record for one in outcomes for record in one.result.history),
        status=min((one.result.status for one in outcomes), key=order.index),
        residual=relative_norm(residual_image, y),
        residual_image=residual_image,
        seconds=time.perf_counter() - start,
        outcomes=tuple(outcomes),
        parameters=parameters,
        unit=task.unit,
        uncertainty=None if not spreads else spreads[0] if single else torch.stack(spreads),
        visibility=A.visibility() if spreads else None,
        camera=found,
        imprint=imprint_on(cube if cube.ndim == 3 else cube[0], A),
        measurement=given,
    )


def read_weights(path: str | os.PathLike[str]) -> LearnedPrior:
    """A learned prior from its file.

    Raises:
        InputError: there is none.
    """
    try:
        return load_prior(path)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error


def _named(given: SpectralPrior | Sequence[str | os.PathLike[str]] | None) -> list[str] | str | None:
    """A spectral prior as a plain value, for the record."""
    if given is None or isinstance(given, SpectralPrior):
        return None if given is None else "given as numbers"
    return [os.path.basename(path) for path in given]
