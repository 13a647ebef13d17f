"""The default solver: subspace TV with everything it needs chosen from the measurement alone.

What is chosen, and on what evidence:

- A random 2 % of the detector pixels is held out: their row weight is 0, so they are out of the data term exactly. How
  well a reconstruction predicts them is an error estimate that needs no truth (`held_out`).
- The noise: variance = alpha y + beta, from gain and read noise where they are known, else estimated (`noise`).
- The spectral basis: the strongest eigenvectors of the spectral covariance of a first reconstruction with smooth
  spectra, or of a library of cubes where one is given and predicts better (`candidates`). Where light of one color
  stands out of what smooth spectra explain, those of a first cube with all bands free (`narrow`).
- The prior of the final run: total variation, or after it non-local low-rank denoising of the coefficient images, where
  that predicts the held-out pixels hardly worse; and after either the correction of a learned prior, likewise
  (`refine`). Of several shots the non-local prior is taken, at the better of two strengths, unless it predicts much
  worse: it was better on each of five scenes, with two shots and four, with noise and without, whichever way the
  held-out pixels went.
- Of a frame much larger than 320 x 320 pixels all this is chosen on such a window of it, and followed on the frame;
  only the spectra of the scene are learned from all of it.
- Stopping: when the cube no longer changes, or after the iterations asked for. Noise is not fitted however long it
  runs, because the multiplier of each detector pixel is damped by its own variance (`cassi.solvers.subspace_tv`); the
  mean of residual^2 / variance is reported as the discrepancy, which Morozov (1966) asks to be about 1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cassi.choice.candidates import (
    CANDIDATE_ITERS,
    NOISY,
    SCENE,
    SCENE_COMPONENTS,
    SHARE,
    Trial,
    choose,
    follow,
)
from cassi.choice.held_out import Split
from cassi.choice.learned_step import LearnedStep, shipped_prior
from cassi.choice.narrow import NARROW, STANDS_OUT, narrow_basis, narrowness
from cassi.choice.noise import CameraNoise, Pilot, estimate_noise
from cassi.choice.outcome import Evidence, Outcome
from cassi.choice.plan import EFFORTS, Effort, Method, Plan, Run, needed_prior
from cassi.choice.problem import PATCH
from cassi.choice.refine import Watch, final_run, planned_problem, planned_run
from cassi.choice.uncertainty import standard_deviation
from cassi.kernels.covariance import covariance_sum
from cassi.optics.cropping import Block, crop, croppable
from cassi.optics.detector import brightness
from cassi.optics.protocol import Camera, measured
from cassi.priors.spectral_basis import principal_basis, smooth_basis
from cassi.solvers.loop import Result

COMPONENTS = 16  # smooth spectral components of the first candidate
PILOT_COMPONENTS = 8  # of the run that tells the noise
CANDIDATE_SHARE = 0.4  # of a time budget, after which no further candidate is tried
PART = 320  # side of the window of a larger frame on which its plan is chosen [pixel]
OF_WINDOW = 0.7  # of the time of that choice; the rest goes into the spectra of the whole frame
SHOTS_SIGMAS = 0.5, 0.35  # of the non-local prior for several shots; the first is times the root of their number
SHOTS_WORSE = 0.5  # by which its held-out error may be above total variation's: up to 0.35 it was better all the same
SOLVER = "subspace-tv"


def reconstruct_auto(
    A: Camera,
    y: Tensor,
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    noise: CameraNoise = CameraNoise(),  # noqa: B008  frozen
    method: Method = Method(),  # noqa: B008  frozen
    run: Run = Run(),  # noqa: B008  frozen
) -> Outcome:
    """Reconstruct one snapshot with nothing to tune.

    Args:
        A: the camera; row weights of 0 mark bad pixels, other row weights are not understood here.
        y: measurement, of the shape that A makes, weighted as the operator (bad pixels 0).
        wavelengths: of the bands [nm] (C,), for a basis smooth over wavelength; over the band number if not given.
        noise: of the camera, where it is known; estimated from held-out pixels if not.
        method: quality "default" goes on with a non-local prior for a few iterations where that predicts the held-out
            pixels no worse (they then stay held out), and has the cube corrected by a learned prior on the same
            condition; "best" has many iterations, at two strengths, else with total variation four times as long;
            "fast" has a shorter run with total variation, and the learned prior. With num_iters, the final run is that
            long, with total variation alone. A spectral prior's eigenvectors compete with the smooth basis. A plan is
            followed instead of the best of several.
        run: with a budget, candidates are tried while there is time, and the final run is made as long as fits, within
            limits; the monitor is that of the final run.

    Returns:
        Outcome, its cube >= 0.

    Raises:
        ValueError: more than one snapshot, a spectral prior for another number of bands, a plan with a basis that there
            is not, or for another number of bands.

    Example:
        >>> A = CASSI.from_step(torch.rand(16, 16, generator=torch.Generator().manual_seed(0)), step=1, num_bands=4)
        >>> reconstruct_auto(A, A.forward(torch.ones(4, 16, 16))).solver
        'subspace-tv'
    """
    if tuple(measured(A, y).shape) != tuple(A.measurement_shape):
        raise ValueError(f"one snapshot at a time: y must be {tuple(A.measurement_shape)}, got {tuple(y.shape)}")
    clock = _Clock(time.perf_counter(), run.budget)
    plan = method.plan
    if plan is not None:
        plan.check_bands(A.cube_shape[0])
    if plan is None or not plan.complete:
        part = window(A, y)
        if part is None:
            return _judged(A, y, wavelengths, noise, method, run, clock)
        plan, evidence = choose_plan(A, y, wavelengths=wavelengths, noise=noise, method=method, run=run)
    else:
        evidence = None
    lit = A.majorizer() > 0
    problem = planned_problem(plan, y, None)
    result, corrections = planned_run(A, y, problem, plan, Watch(run, clock.deadline))
    if plan.learned is not None and corrections < plan.corrections:  # stopped before
        plan = replace(plan, learned=plan.learned if corrections else None, corrections=max(1, corrections))
    return _outcome(A, y, result, plan, evidence, lit, method, run)


def choose_plan(
    A: Camera,
    y: Tensor,
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    noise: CameraNoise = CameraNoise(),  # noqa: B008  frozen
    method: Method = Method(),  # noqa: B008  frozen
    run: Run = Run(),  # noqa: B008  frozen
) -> tuple[Plan, Evidence]:
    """What `reconstruct_auto` chooses: on the `window` of a frame, or on all of a small one.

    Arguments as there; the monitor is not called.
    """
    part = window(A, y)
    quiet = replace(run, monitor=None, progress=partial(_as_trials, run))
    clock = _Clock(time.perf_counter(), run.budget)
    if part is None or not croppable(A):
        return _decided(_judged(A, y, wavelengths, noise, method, quiet, clock))
    a, b = crop(A, y, *part)
    half = clock if clock.budget is None else replace(clock, budget=clock.budget / 2)
    alone = replace(method, uncertainty=False)
    plan, evidence = _decided(_judged(a, b, wavelengths, noise, alone, quiet, half, level=brightness(A, y)))
    if plan.basis == SCENE and clock.candidates_in_time():
        plan = replace(plan, vectors=_scene_basis(A, y, plan, wavelengths, run))
    return plan, replace(evidence, part=part)


def _as_trials(run: Run, step: str, share: float) -> None:
    """What is done to a window only serves the choice."""
    run.tell("trials", OF_WINDOW * (share + (step == "final run")) / 2)


def _scene_basis(A: Block, y: Tensor, plan: Plan, wavelengths: Sequence[float] | np.ndarray | None, run: Run) -> Tensor:
    """The basis learned from the scene, from all of a large frame: beside the window there may be other spectra.

    Part by part, in the memory of one.
    """
    smooth, covariance = smooth_basis(_axis(A, wavelengths), COMPONENTS), torch.zeros(())
    rows, columns = (_cut(length) for length in A.cube_shape[-2:])
    parts = [(i, j) for i in rows for j in columns]
    for k, part in enumerate(parts):
        run.tell("trials", OF_WINDOW + (1 - OF_WINDOW) * k / len(parts))
        a, b = crop(A, y, *part)
        problem = planned_problem(replace(plan, vectors=smooth), b, brightness(A, y))
        result, _ = problem.solve(a, b, CANDIDATE_ITERS, tol=0.0)
        covariance = covariance + covariance_sum(result.x.clamp_(min=0))
    return principal_basis(covariance, SCENE_COMPONENTS)


def _cut(length: int) -> list[slice]:
    """Parts of a side of a frame, of about `PART`."""
    count = max(1, round(length / PART))
    return [slice(length * k // count, length * (k + 1) // count) for k in range(count)]


def _decided(found: Outcome) -> tuple[Plan, Evidence]:
    if found.plan is None or found.evidence is None:
        raise RuntimeError("the default solver made no plan")
    return found.plan, found.evidence


def window(A: Camera, y: Tensor) -> tuple[slice, slice] | None:
    """Rows and columns of the part of a large frame that stands for it, None where all of it is taken.

    The window, on a grid of half its size, over whose detector pixels y varies most: it holds bright and dark.
    """
    height, width = A.cube_shape[-2:]
    if not croppable(A) or height * width <= 1.25 * PART**2 or not bool(y.any()):
        return None
    h, w = min(PART, height), min(PART, width)
    span = A.measurement_shape[-1] - width

    def places(length: int, size: int) -> list[int]:
        count = max(1, math.ceil(2 * length / size) - 1)
        return sorted({round(k * (length - size) / max(1, count - 1)) for k in range(count)})

    corners = [(i, j) for i in places(height, h) for j in places(width, w)]
    i, j = max(corners, key=lambda c: float(y[..., c[0] : c[0] + h, c[1] : c[1] + w + span].double().var()))
    return slice(i, i + h), slice(j, j + w)


def _judged(
    A: Camera,
    y: Tensor,
    wavelengths: Sequence[float] | np.ndarray | None,
    noise: CameraNoise,
    method: Method,
    run: Run,
    clock: _Clock,
    *,
    level: float | None = None,
) -> Outcome:
    """Choose by held-out pixels, and go on from the best candidate to the end."""
    lit = A.majorizer() > 0
    bases = candidate_bases(A, wavelengths, method)
    plan = method.plan
    split = Split.of(A, y, lit, run.seed)
    pilot: Pilot | None = None
    first: str | None = None
    if plan is not None and plan.noise is not None:
        model = plan.noise
    else:
        model, pilot, x = estimate_noise(split, pilot_basis(A, wavelengths))
        if plan is None and A.cube_shape[0] > COMPONENTS and narrowness(split, x) > STANDS_OUT:
            bases[NARROW] = narrow_basis(split, _axis(A, wavelengths), level)
            narrow_model, narrow_pilot, _ = estimate_noise(split, bases[NARROW])
            if narrow_pilot.held_out_error < pilot.held_out_error:
                model, pilot, first = narrow_model, narrow_pilot, NARROW
        if noise.gain is not None:
            model, pilot = noise.model(), None
    trial = Trial(split, model.variance(y), bases, level, partial(run.tell, "trials"))
    began = time.perf_counter()
    if plan is None:
        # of what a camera states, or several shots tell, all is noise
        share, noisy = (1.0, math.inf) if pilot is None or _several(A) else (SHARE, NOISY * pilot.held_out_error)
        choose(trial, share, clock.candidates_in_time, first=first, noisy=noisy)
    else:
        follow(trial, plan)
    pace = (time.perf_counter() - began) / trial.iterations
    best = trial.best
    chosen = replace(best.plan, noise=model, vectors=trial.bases[best.plan.basis])
    effort = _effort(A, method, clock, pace)
    problem = planned_problem(chosen, y, level)
    step, forced = learned_step(A, wavelengths, method), method.prior == "learned"
    final = final_run(split, problem, best.state, effort, Watch(run, clock.deadline), step=step, forced=forced)
    # the candidate's run, which the final run goes on from, counts as total variation
    iterations = (best.evidence.iterations + final.iterations[0], final.iterations[1])
    chosen = replace(chosen, prior=final.prior, iterations=iterations)
    if final.corrections:
        chosen = replace(chosen, learned=step, corrections=final.corrections)
    errors = {p.prior: p.held_out_error for p in final.priors}
    evidence = Evidence(
        candidates=tuple(c.evidence for c in trial.tried),
        priors=final.priors,
        held_out_error=errors.get(chosen.final_prior, best.evidence.held_out_error),
        held_out_pixels=int(split.held.sum()),
        seed=run.seed,
        part=None,
        pilot=pilot,
    )
    return _outcome(A, y, final.result, chosen, evidence, lit, method, run)


def candidate_bases(A: Camera, wavelengths: Sequence[float] | np.ndarray | None, method: Method) -> dict[str, Tensor]:
    """The spectral bases to try, (K, C) by name."""
    bands, axis = A.cube_shape[0], _axis(A, wavelengths)
    count = min(COMPONENTS, bands)
    bases = {f"smooth-{count}": smooth_basis(axis, count)}
    if method.spectral_prior is not None:
        covariance = method.spectral_prior.covariance
        if covariance.shape != (bands, bands):
            raise ValueError(f"the spectral prior must have {bands} bands, got {tuple(covariance.shape)}")
        bases |= {f"library-{k}": principal_basis(covariance, k) for k in (4, 8)}
    return bases


def pilot_basis(A: Camera, wavelengths: Sequence[float] | np.ndarray | None) -> Tensor:
    """(K, C), of the run that tells the noise."""
    return smooth_basis(_axis(A, wavelengths), PILOT_COMPONENTS)


def _axis(A: Camera, wavelengths: Sequence[float] | np.ndarray | None) -> int | Sequence[float] | np.ndarray:
    """That the spectra are smooth over."""
    return A.cube_shape[0] if wavelengths is None else wavelengths


@dataclass(frozen=True)
class _Clock:
    """When it began and how many seconds there are, None for no limit."""

    start: float
    budget: float | None

    @property
    def deadline(self) -> float:
        return math.inf if self.budget is None else self.start + self.budget

    def candidates_in_time(self) -> bool:
        return self.budget is None or time.perf_counter() - self.start < CANDIDATE_SHARE * self.budget


def _several(A: Camera) -> bool:
    """Whether it takes several shots of a scene."""
    return len(A.measurement_shape) > 2


def _effort(A: Camera, method: Method, clock: _Clock, pace: float) -> Effort:
    """Of the final run: that of the quality, as many iterations as asked for, or what fits at `pace` [s/iteration]."""
    effort = EFFORTS[method.quality]
    if method.num_iters is not None:
        effort = Effort(method.num_iters, method.num_iters)
    elif clock.budget is not None:
        fits = max(20, int(0.9 * (clock.deadline - time.perf_counter()) / pace))
        tv_all = min(3 * effort.tv_all, fits)
        tv_first = min(effort.tv_first, max(20, fits // 2)) if effort.sigmas else tv_all
        effort = replace(effort, tv_first=tv_first, tv_all=tv_all, most=EFFORTS["best"].most)
    if method.prior == "tv" or min(A.cube_shape[1:]) < PATCH:
        effort = Effort(effort.tv_all, effort.tv_all)
    if method.prior == "nonlocal":
        effort = replace(effort, tolerance=math.inf, give_up=math.inf)
    if _several(A):
        effort = replace(effort, tolerance=max(effort.tolerance, SHOTS_WORSE), give_up=math.inf)
        strong, weak = SHOTS_SIGMAS
        sigmas = (strong * math.sqrt(A.measurement_shape[0]), weak) if effort.sigmas else ()
        effort = replace(effort, worse=math.inf, sigmas=sigmas, unsettled=1.0)
    return effort


def learned_step(A: Camera, wavelengths: Sequence[float] | np.ndarray | None, method: Method) -> LearnedStep | None:
    """The learned prior for this camera, where it may be tried and there is one."""
    if method.prior not in ("auto", "learned") or method.num_iters is not None or min(A.cube_shape[1:]) < PATCH:
        return None
    if _several(A) and method.prior == "auto":
        return None  # it has never seen several shots
    prior = method.learned or (needed_prior() if method.prior == "learned" else shipped_prior())
    return None if prior is None else LearnedStep.of(prior, A, wavelengths)


def _outcome(
    A: Camera,
    y: Tensor,
    result: Result,
    plan: Plan,
    evidence: Evidence | None,
    lit: Tensor,
    method: Method,
    run: Run,
) -> Outcome:
    """The cube without negative values, its discrepancy, and its uncertainty where asked for."""
    cube = result.x.clamp_(min=0)
    problem = planned_problem(plan, y, None)
    variance, known = problem.variance, lit & (problem.variance > 0)
    discrepancy = None
    if bool(known.any()):
        residual = y - A.forward(cube)
        discrepancy = float((residual[known] ** 2 / variance[known]).mean())
    sigma = None
    if method.uncertainty:
        sigma = standard_deviation(A, y, cube, plan, lit=lit, seed=run.seed, told=partial(run.tell, "error bars"))
    return Outcome(
        replace(result, x=cube), SOLVER, {}, plan, evidence, sigma,
        calibrated=sigma is not None, discrepancy=discrepancy, brightness=brightness(A, y),
    )  # fmt: skip
