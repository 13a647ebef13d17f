"""The default solver: subspace TV with everything it needs chosen from the measurement alone.

What is chosen, and on what evidence:

- A random 2 % of the detector pixels is held out: their row weight is 0, so they are out of the data term exactly. How
  well a reconstruction predicts them is an error estimate that needs no truth.
- The noise: variance = alpha y + beta, from gain and read noise where they are known. Else alpha and beta are fitted to
  the squared errors at the held-out pixels of a pilot run, which hold noise and model error together, and the share of
  them that is noise is the one that predicts best.
- The spectral basis: smooth with few or many components, or the strongest eigenvectors of the spectral covariance of a
  first reconstruction, or of a library of cubes where one is given: what predicts the held-out pixels best. A candidate
  that is behind the best one so far after half of the iterations is not gone on with, as in successive halving
  (Jamieson & Talwalkar, AISTATS 2016).
- The prior of the final run (`cassi.choice.refine`): total variation, or after it non-local low-rank denoising of the
  coefficient images, where that predicts the held-out pixels no worse.
- Stopping: when the cube no longer changes, or after the iterations asked for. Noise is not fitted however long it
  runs, because the multiplier of each detector pixel is damped by its own variance (`cassi.solvers.subspace_tv`); the
  mean of residual^2 / variance is reported as the discrepancy, which Morozov (1966) asks to be about 1.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.choice.refine import EFFORTS, PATCH, Effort, Quality, final_run
from cassi.kernels.covariance import covariance_sum
from cassi.optics.detector import brightness
from cassi.optics.protocol import Camera, measured
from cassi.priors.spectral_basis import principal_basis, smooth_basis, synthesise
from cassi.solvers.loop import Monitor, Record, Result, relative_norm
from cassi.solvers.subspace_tv import SubspaceState, subspace_tv

HELD_OUT = 0.02  # fraction of detector pixels that test a candidate
COMPONENTS = (8, 16)  # numbers of smooth spectral components tried
SHARES = (0.4, 1.0, 0.2, 0.1, 0.0)  # of the estimated noise that are tried, in this order, see `_choose`
SCENE_COMPONENTS = 10  # of the basis learnt from the first candidate's own cube
SCENE = f"scene-{SCENE_COMPONENTS}"
PILOT_ITERS, CANDIDATE_ITERS = 60, 80
PRIOR_STRENGTH = 0.6
CANDIDATE_SHARE = 0.4  # of a time budget, after which no further candidate is tried
MARGIN = 0.005  # a basis must predict better than the one before by this share: less is chance
SHARE_MARGIN = 0.01  # and so must a share of the noise, whose effect on the cube shows late
LOW_SHARE, LOW_SHARE_MARGIN = 0.2, 0.03  # below it more is asked: short runs do not show that noise is fitted
SCENE_MARGIN = 0.05  # a basis learnt from a first cube settles sooner than others, which flatters it in short runs


@dataclass(frozen=True, eq=False)
class AutoResult:
    """A reconstruction and how it was chosen.

    Attributes:
        result: cube (C, H, W), >= 0, with history and status.
        choice: decisions and their evidence, plain values that JSON can hold.
        uncertainty: standard deviation of each voxel over held-out folds, like the cube, where asked for.
        basis: the spectral basis that was chosen, (K, C); None from solvers without one.
    """

    result: Result
    choice: dict[str, Any]
    uncertainty: Tensor | None = None
    basis: Tensor | None = None


@dataclass(frozen=True)
class Plan:
    """What a candidate sets: the spectral basis, and the share of the noise model it believes.

    Attributes:
        basis: "smooth-8" and the like, with the number of components; "scene-10", learnt from a first reconstruction;
            or "library-4" and "library-8".
        noise_share: >= 0, times the variance of the noise model.
    """

    basis: str
    noise_share: float


@dataclass(frozen=True, eq=False)
class _Candidate:
    """A short run without the held-out pixels, and its errors there: after half of its iterations, and at the end."""

    plan: Plan
    state: SubspaceState
    halfway: float
    error: float
    iterations: int

    @property
    def evidence(self) -> dict[str, Any]:
        return {**asdict(self.plan), "held_out_error": self.error, "iterations": self.iterations}


@dataclass(eq=False)
class _Trial:
    """Candidates run one after the other, and the best so far."""

    A: Camera
    y: Tensor
    A_train: Camera
    y_train: Tensor
    held: Tensor
    variance: Tensor
    bases: dict[str, Tensor]
    tried: list[_Candidate] = field(default_factory=list)
    best: _Candidate = field(init=False)

    def run(self, plan: Plan, margin: float = 0.0) -> bool:
        """Whether the plan predicts better than the best so far by this share, and so takes its place."""
        B = self.bases[plan.basis].to(self.y)
        ahead_of = self.best.halfway if self.tried else math.inf
        halfway = math.inf

        def behind(record: Record, z: Tensor) -> bool:
            nonlocal halfway
            if record.iteration == CANDIDATE_ITERS // 2:
                halfway = self.error(synthesise(z, B))
                return halfway > ahead_of
            return False

        result, state = subspace_tv(
            self.A_train,
            self.y_train,
            B,
            variance=self.variance * plan.noise_share,
            prior_strength=PRIOR_STRENGTH,
            num_iters=CANDIDATE_ITERS,
            monitor=behind,
        )
        self.tried.append(_Candidate(plan, state, halfway, self.error(result.x), len(result.history)))
        latest = self.tried[-1]
        better = len(self.tried) == 1 or (
            latest.iterations == CANDIDATE_ITERS and latest.error < (1 - margin) * self.best.error
        )
        if better:
            self.best = latest
        return better

    def error(self, x: Tensor) -> float:
        return held_out_error(self.A, self.y, x, self.held)

    def learn_basis(self) -> None:
        """Add the strongest eigenvectors of the spectral covariance of the best cube so far to the bases."""
        spectra = synthesise(self.best.state.z, self.bases[self.best.plan.basis].to(self.y)).clamp_(min=0)
        self.bases[SCENE] = principal_basis(covariance_sum(spectra), SCENE_COMPONENTS)


@dataclass(frozen=True)
class NoiseModel:
    """variance = alpha max(y, 0) + beta, in units of y and y^2, where it comes from, and which shares of it to try."""

    alpha: float
    beta: float
    source: str
    shares: tuple[float, ...]

    def variance(self, y: Tensor) -> Tensor:
        return y.clamp(min=0) * self.alpha + self.beta


def reconstruct_auto(
    A: Camera,
    y: Tensor,
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    gain: float | None = None,
    read_noise: float | None = None,
    library: Tensor | None = None,
    quality: Quality = "default",
    num_iters: int | None = None,
    budget: float | None = None,
    uncertainty: bool = False,
    plan: Plan | None = None,
    seed: int = 0,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> AutoResult:
    """Reconstruct one snapshot with nothing to tune.

    Args:
        A: the camera; row weights of 0 mark bad pixels, other row weights are not understood here.
        y: measurement (H, W'), weighted as the operator (bad pixels 0).
        wavelengths: of the bands [nm] (C,), for a basis smooth over wavelength; over the band number if not given.
        gain: electrons per unit of y. With read_noise it fixes the noise model; estimated from held-out pixels if not.
        read_noise: standard deviation [electrons]; 0 if only gain is given.
        library: spectral covariance (C, C) of cubes of the kind expected; its eigenvectors compete with the smooth
            basis.
        quality: "default" goes on with a non-local prior for a few iterations where that predicts the held-out pixels
            no worse (they then stay held out); "best" for many, at two strengths, else with total variation four
            times as long; "fast" has total variation alone.
        num_iters: of the final run, with total variation alone; chosen if not given.
        budget: seconds for the whole: candidates are tried while there is time, and the final run is made as long as
            fits, within limits. Makes the result depend on the machine.
        uncertainty: also estimate the standard deviation of each voxel, about doubling the time.
        plan: taken as it is instead of the best of several; of an earlier snapshot like this one, say.
        seed: of the held-out pixels.
        monitor, progress: as for `cassi.solvers.gap`, for the final run.

    Returns:
        AutoResult.

    Raises:
        ValueError: more than one snapshot, a library for another number of bands, gain or read noise not positive, a
            plan with a basis that there is not.

    Example:
        >>> A = CASSI.from_step(torch.rand(16, 16, generator=torch.Generator().manual_seed(0)), step=1, num_bands=4)
        >>> reconstruct_auto(A, A.forward(torch.ones(4, 16, 16))).choice["solver"]
        'subspace-tv'
    """
    start = time.perf_counter()
    if measured(A, y).shape != A.measurement_shape:
        raise ValueError(f"one snapshot at a time: y must be {A.measurement_shape}, got {tuple(y.shape)}")
    if gain is not None and not gain > 0:
        raise ValueError(f"gain must be positive [electrons per unit of y], got {gain}")
    if read_noise is not None and gain is None:
        raise ValueError("read_noise is in electrons and needs the gain [electrons per unit of y] too")
    if read_noise is not None and not read_noise >= 0:
        raise ValueError(f"read_noise must be >= 0 [electrons], got {read_noise}")
    if budget is not None and not (math.isfinite(budget) and budget > 0):
        raise ValueError(f"budget must be a positive number of seconds, got {budget}")
    if quality not in EFFORTS:
        raise ValueError(f"quality must be one of {', '.join(EFFORTS)}, got {quality!r}")
    spectral_axis = A.cube_shape[0] if wavelengths is None else wavelengths
    lit = A.majorizer() > 0
    held = hold_out(lit, seed)
    keep = (~held).to(y)
    A_train, y_train = A.leave_out(keep), y * keep

    noise, pilot = _noise_model(
        A, A_train, y, y_train, held, smooth_basis(spectral_axis, COMPONENTS[0]), gain, read_noise
    )
    variance = noise.variance(y)
    bases = {
        f"smooth-{k}": smooth_basis(spectral_axis, k) for k in sorted({min(k, A.cube_shape[0]) for k in COMPONENTS})
    }
    if library is not None:
        if library.shape != (A.cube_shape[0],) * 2:
            raise ValueError(f"library must be the covariance of {A.cube_shape[0]} bands, got {tuple(library.shape)}")
        bases |= {f"library-{k}": principal_basis(library, k) for k in (4, 8)}
    trial = _Trial(A, y, A_train, y_train, held, variance, bases)
    began = time.perf_counter()
    _choose(trial, noise, plan, lambda: budget is None or time.perf_counter() - start < CANDIDATE_SHARE * budget)
    seconds_per_iteration = (time.perf_counter() - began) / sum(c.iterations for c in trial.tried)
    best = trial.best
    plan = best.plan
    basis = bases[plan.basis]
    variance = variance * plan.noise_share
    effort, deadline = EFFORTS[quality], math.inf
    if num_iters is not None:
        effort = Effort(num_iters, num_iters)
    elif budget is not None:
        deadline = start + budget
        fits = max(20, int(0.9 * (deadline - time.perf_counter()) / seconds_per_iteration))
        tv_all = min(3 * effort.tv_all, fits)
        tv_first = min(effort.tv_first, max(20, fits // 2)) if effort.sigmas else tv_all
        effort = replace(effort, tv_first=tv_first, tv_all=tv_all, most=EFFORTS["best"].most)
    if min(A.cube_shape[1:]) < PATCH:
        effort = Effort(effort.tv_all, effort.tv_all)
    final, prior, priors = final_run(
        A,
        y,
        A_train,
        y_train,
        basis,
        variance=variance,
        prior_strength=PRIOR_STRENGTH,
        state=best.state,
        error=lambda x: held_out_error(A, y, x, held),
        effort=effort,
        deadline=deadline,
        monitor=monitor,
        progress=progress,
    )
    cube = final.x.clamp_(min=0)
    residual = y - A.forward(cube)
    known = lit & (variance > 0)
    choice: dict[str, Any] = {
        "solver": "subspace-tv",
        **asdict(plan),
        "components": len(basis),
        "candidates": [c.evidence for c in trial.tried],
        "prior": prior,
        "held_out_error": next((p["held_out_error"] for p in priors if p["prior"] == prior), best.error),
        "held_out_pixels": int(held.sum()),
        "seed": seed,
        "noise": {"alpha": noise.alpha, "beta": noise.beta, "source": noise.source, **pilot},
        "prior_strength": PRIOR_STRENGTH,
        "mean_level": brightness(A, y),
        "priors": priors,
        "iterations": len(final.history),
        "discrepancy": float((residual[known] ** 2 / variance[known]).mean()) if bool(known.any()) else None,
        "reason": _reason(trial, noise, prior, priors, final),
    }
    spread = fold_spread(A, y, basis, variance, lit=lit, seed=seed) if uncertainty else None
    return AutoResult(replace(final, x=cube), choice, spread, basis)


def hold_out(lit: Tensor, seed: int, fraction: float = HELD_OUT) -> Tensor:
    """A random set of detector pixels, (H, W') bool: about `fraction` of those that are lit, at least one."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(lit.shape, generator=generator).to(lit.device).masked_fill(~lit, math.inf)
    count = max(1, round(fraction * int(lit.sum())))
    return draw <= draw.flatten().kthvalue(count).values


def held_out_error(A: Camera, y: Tensor, x: Tensor, held: Tensor) -> float:
    """|y - Phi x| / |y| over held-out detector pixels: an error that needs no truth, for any reconstruction x."""
    return relative_norm((y - A.forward(x))[held], y[held])


def fold_spread(
    A: Camera,
    y: Tensor,
    basis: Tensor,
    variance: Tensor,
    *,
    lit: Tensor,
    folds: int = 6,
    fraction: float = 0.3,
    num_iters: int = 80,
    seed: int = 0,
) -> Tensor:
    """Standard deviation of each voxel over reconstructions that each leave out a random part of the detector.

        sd^2 = (1 - f) / f  sum_s (x_s - mean x)^2 / (S - 1)      delete-d jackknife, f the fraction left out, S folds

    Shao & Wu, Annals of Statistics 17, 1176 (1989). It sees noise and missing data, not a prior that is wrong.
    """
    total = torch.zeros(A.cube_shape, dtype=torch.float64, device=y.device)
    squares = torch.zeros_like(total)
    for fold in range(folds):
        keep = (~hold_out(lit, seed + 1 + fold, fraction)).to(y)
        result, _ = subspace_tv(
            A.leave_out(keep),
            y * keep,
            basis,
            variance=variance,
            prior_strength=PRIOR_STRENGTH,
            num_iters=num_iters,
        )
        total += result.x
        squares += result.x.double() ** 2
    spread = (squares / folds - (total / folds) ** 2).clamp(min=0) * folds / (folds - 1)
    return ((1 - fraction) / fraction * spread).sqrt().to(y.dtype)


def _noise_model(
    A: Camera,
    A_train: Camera,
    y: Tensor,
    y_train: Tensor,
    held: Tensor,
    basis: Tensor,
    gain: float | None,
    read_noise: float | None,
) -> tuple[NoiseModel, dict[str, Any]]:
    """Known noise from gain and read noise; else alpha and beta fitted to the squared held-out errors of a pilot run.

    The pilot has no damping, so it passes from smooth to noisy: the fit is taken where it predicts best.
    """
    if gain is not None:
        model = NoiseModel(1 / gain, ((read_noise or 0.0) / gain) ** 2, "gain and read noise of the camera", (1.0,))
        return model, {}
    best: dict[str, Any] = {"held_out_error": math.inf, "iteration": 0}
    squared = torch.zeros(int(held.sum()), dtype=torch.float64)
    B = basis.to(y)

    def watch(record: Record, z: Tensor) -> None:
        nonlocal squared
        if record.iteration % 10 == 0:
            misfit = (y - A.forward(synthesise(z, B)))[held].double().cpu()
            error = float(misfit.norm() / y[held].double().norm().clamp(min=1e-300))
            if error < best["held_out_error"]:
                best.update(held_out_error=error, iteration=record.iteration)
                squared = misfit**2

    subspace_tv(A_train, y_train, basis, num_iters=PILOT_ITERS, monitor=watch)
    alpha, beta = _fit_variance(y[held].double().cpu().clamp(min=0), squared)
    return NoiseModel(alpha, beta, "errors at the held-out pixels", SHARES), best


def _fit_variance(level: Tensor, squared: Tensor) -> tuple[float, float]:
    """alpha, beta >= 0 of E[squared] = alpha level + beta: the line through the means of the dark and the bright half.

    beta keeps at least a tenth of the dark half's mean: no camera is without noise in the dark.
    """
    order = torch.argsort(level, stable=True)
    middle = len(order) // 2
    dark, bright = order[: max(1, middle)], order[middle:]
    dark_level, dark_squared = float(level[dark].mean()), float(squared[dark].mean())
    rise, run = float(squared[bright].mean()) - dark_squared, float(level[bright].mean()) - dark_level
    alpha = min(rise / run, 0.9 * dark_squared / dark_level) if rise > 0 and run > 0 and dark_level > 0 else 0.0
    return alpha, dark_squared - alpha * dark_level


def _choose(trial: _Trial, noise: NoiseModel, plan: Plan | None, in_time: Callable[[], bool]) -> None:
    """One decision after the other, the noise, then the basis; each keeps what predicts the held-out pixels better.

    Args:
        trial: that the candidates are run in; its best is the choice.
        noise: with the shares to try.
        plan: instead of a choice.
        in_time: whether one more candidate may be run.
    """
    bases = trial.bases
    largest = max(bases, key=lambda name: len(bases[name]))
    if plan is not None:
        if plan.basis not in (*bases, SCENE):
            raise ValueError(f"the plan's basis must be one of {', '.join((*bases, SCENE))}, got {plan.basis!r}")
        if plan.basis == SCENE:
            trial.run(replace(plan, basis=largest))
            trial.learn_basis()
            trial.tried.clear()
        trial.run(plan)
        return
    trial.run(Plan(largest, noise.shares[0]))
    first = trial.best.plan
    for share in noise.shares[1:]:
        if not in_time():
            return
        better = trial.run(replace(first, noise_share=share), LOW_SHARE_MARGIN if share < LOW_SHARE else SHARE_MARGIN)
        # the error has one valley over the shares: more noise first, else less as long as that helps
        if better == (share > first.noise_share):
            break
    share = trial.best.plan.noise_share
    trial.learn_basis()
    for basis in bases:
        if basis != largest and in_time():
            trial.run(Plan(basis, share), SCENE_MARGIN if basis == SCENE else MARGIN)


def _reason(trial: _Trial, noise: NoiseModel, prior: str, priors: list[dict[str, Any]], final: Result) -> str:
    """The choice in words."""

    def name(c: _Candidate) -> str:
        return f"{c.plan.basis} at {c.plan.noise_share:.0%} of the noise"

    def error(c: _Candidate) -> str:
        dropped = c.iterations < CANDIDATE_ITERS
        return f"{c.error:.2%}" + (", behind at half-way and not gone on with" if dropped else "")

    others = "; ".join(f"{name(c)}: {error(c)}" for c in trial.tried if c is not trial.best)
    against = f" (against {others})" if others else ""
    compared = "; ".join(f"{p['prior']}: {p['held_out_error']:.2%}" for p in priors)
    chosen = f" Prior of the final run: {prior}, of those compared by the same errors ({compared})." if priors else ""
    if len(priors) == 1:
        chosen = f" Prior of the final run: {prior}; with it the error still fell fast, so no other was tried."
    return (
        f"Spectral basis and noise: {name(trial.best)}, error at held-out pixels {trial.best.error:.2%}{against}. "
        f"Another basis is taken only where it predicts better by {MARGIN:.1%}, one learnt from the scene by "
        f"{SCENE_MARGIN:.0%}; another share of the noise by {SHARE_MARGIN:.0%}, below {LOW_SHARE:.0%} by "
        f"{LOW_SHARE_MARGIN:.0%}. "
        f"Noise from {noise.source}.{chosen} The final run {final.message}."
    )
