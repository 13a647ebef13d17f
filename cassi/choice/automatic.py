"""The default solver: everything it needs is chosen from the measurement alone.

1. A random 2 % of the detector pixels is held out: their row weight is 0, so they are out of the data term exactly. How
   well a cube predicts them is an error estimate that needs no truth (`held_out`).
2. A pilot, a short run of total variation with smooth spectra, tells the spectra of the scene, in which all else is
   solved (`bases`), and a first estimate of the noise, variance = alpha y + beta, where it is unknown (`noise`).
3. Stages: total variation finds where light comes from, and tells the noise anew: what it leaves. Then a non-local
   prior and a network unrolled through the camera say what scenes look like, as far as held-out pixels and the mask's
   imprint agree (`stages`).

Of a frame much larger than 320 x 320 pixels noise and basis are chosen on such a window of it; the spectra of the scene
are learned from all of it, and the stages are judged on all of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor

from cassi.choice.adaptation import Adapt
from cassi.choice.bases import NARROW, SCENE, STANDS_OUT, BasisError, best_basis, narrow_basis, narrowness, scene_basis
from cassi.choice.chain import Chain, cost, final_run, repeated
from cassi.choice.held_out import Split
from cassi.choice.noise import PILOT_ITERS, CameraNoise, estimate_noise, noise_left, pilot_basis
from cassi.choice.outcome import Evidence, Outcome
from cassi.choice.plan import Plan
from cassi.choice.stages import PATCH, Learned, Problem, State, Tv, Watch, in_turn
from cassi.choice.uncertainty import bootstrap, standard_deviation
from cassi.kernels.covariance import covariance_sum
from cassi.optics.cropping import Block, crop, croppable, liveliest
from cassi.optics.detector import brightness, object_level
from cassi.optics.protocol import Camera, check_measurement
from cassi.priors.learned import MIN_BANDS, LearnedPrior, shipped_prior
from cassi.priors.spectral_basis import principal_basis
from cassi.settings import Settings
from cassi.solvers.loop import Result

PART = 320  # side of the window of a larger frame on which its plan is chosen [pixel]
OF_WINDOW = 0.7  # of the time of that choice; the rest goes into the spectra of the whole frame
# Of training the network, for quality "best": on five CAVE windows 60 gained 0.39 dB on average, 120 gained
# 0.45; 100 take 80 s on two cores at 256 x 256.
ADAPT_STEPS = 100


def without_learned(chain: Chain) -> Chain:
    """The chain without its network."""
    return tuple(stage for stage in chain if not stage.needs_network)


def stages_of(A: Camera, settings: Settings) -> tuple[Tv, tuple[Chain, ...]]:
    """What the default solver does to a snapshot of this camera: total variation, and the chains that may follow."""
    if settings.num_iters is not None:
        return Tv(int(settings.num_iters)), ()
    first, more = {"fast": (100, 50), "default": (200, 300), "best": (200, 1500)}[settings.quality]
    strength = math.sqrt(A.num_shots)
    # what several shots tell coarse runs would wash out: four are 0.4 dB better without, on ten CAVE windows with noise
    chain: Chain = in_turn(strength) if A.num_shots == 1 else in_turn(strength)[2:]
    chain = (*chain[: chain.index(Learned()) + 1], chain[-1]) if settings.quality == "fast" else chain
    if settings.prior == "tv" or min(A.cube_shape[1:]) < PATCH:
        chain = ()
    elif learned_prior(A, settings) is None:
        chain = without_learned(chain)
    best: Chain = (*chain, Adapt(strength, ADAPT_STEPS)) if settings.quality == "best" and Learned() in chain else chain
    chains = (best, chain, without_learned(chain), (Tv(more),))
    return Tv(first), tuple(dict.fromkeys(chain for chain in chains if chain))


def reconstruct_auto(
    A: Camera,
    y: Tensor,
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    noise: CameraNoise = CameraNoise(),
    settings: Settings = Settings(),
    watch: Watch | None = None,
) -> Outcome:
    """Reconstruct one snapshot with nothing to tune.

    Args:
        A: the camera; row weights of 0 mark bad pixels, other row weights are not understood here.
        y: measurement, of the shape that A makes, weighted as the operator (bad pixels 0).
        wavelengths: of the bands [nm] (C,), for spectra smooth over wavelength; over the band number if not given.
        noise: of the camera, where it is known; estimated from held-out pixels if not.
        settings: see `stages_of` for what quality, prior and num_iters mean. A plan is repeated, and nothing chosen.
        watch: sees the iterations of the stages, which are run until it stops them.

    Returns:
        Outcome, its cube >= 0, found without the held-out pixels unless a plan is repeated.

    Raises:
        ValueError: more than one snapshot, or a plan for another number of bands.

    Example:
        >>> A = CASSI.from_step(torch.rand(16, 16, generator=torch.Generator().manual_seed(0)), step=1, num_bands=4)
        >>> reconstruct_auto(A, A.forward(torch.ones(4, 16, 16))).solver
        'subspace-tv'
    """
    if tuple(check_measurement(A, y).shape) != tuple(A.measurement_shape):
        raise ValueError(f"one snapshot at a time: y must be {tuple(A.measurement_shape)}, got {tuple(y.shape)}")
    watch = watch or Watch()
    if settings.plan is not None:
        plan = cast(Plan, settings.plan)  # its file is read
        plan.check_bands(A.cube_shape[0])
        state = repeated(A, y, plan.problem(y), plan.stages, watch)
        return _outcome(A, y, state, watch, plan, None, settings)
    watch.report("trials", 0.0)
    axis = A.cube_shape[0] if wavelengths is None else wavelengths
    split, part = Split.of(A, y, settings.seed), window(A, y)
    A_train, y_train = split.A_train, split.y_train
    if part is None or not croppable(A_train):
        found = explored(split, axis, noise, settings)
    else:
        found = explored(Split.of(*crop(A_train, y_train, *part), settings.seed), axis, noise, settings, frame=(A, y))
        found = replace(found, plan=_with_spectra_of_all(found.plan, A_train, y_train, axis, watch))
    watch.report("trials", 1.0)
    state, plan, evidence = _staged(split, found, noise, settings, watch)
    return _outcome(A, y, state, watch, plan, evidence, settings)


def choose_plan(
    A: Block,
    y: Tensor,
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    noise: CameraNoise = CameraNoise(),
    settings: Settings = Settings(),
    watch: Watch | None = None,
) -> tuple[Plan, Evidence]:
    """The plan of a frame that is too large to be solved at once: its stages, too, are chosen on the `window`.

    Arguments as for `reconstruct_auto`; the monitor is not called. No network is adapted: tiles would differ by it.
    """
    settings = replace(settings, quality="default") if settings.quality == "best" else settings
    watch = watch or Watch()
    axis = A.cube_shape[0] if wavelengths is None else wavelengths
    part = window(A, y)
    split = Split.of(*((A, y) if part is None else crop(A, y, *part)), settings.seed)
    found = explored(split, axis, noise, settings, frame=(A, y))
    only = Watch(progress=lambda step, share: watch.report("trials", OF_WINDOW * share))  # it only serves the choice
    _, plan, evidence = _staged(split, found, noise, settings, only)
    return (plan if part is None else _with_spectra_of_all(plan, A, y, axis, watch)), replace(evidence, part=part)


def _with_spectra_of_all(
    plan: Plan, A: Block, y: Tensor, axis: int | Sequence[float] | np.ndarray, watch: Watch
) -> Plan:
    """A plan whose spectra were learned from a window, with those of all the frame: beside it there may be others."""
    if plan.basis != SCENE:
        return plan
    covariance = torch.zeros(())
    rows, columns = (_cut(length) for length in A.cube_shape[-2:])
    parts = [(i, j) for i in rows for j in columns]
    for k, part in enumerate(parts):
        watch.report("trials", OF_WINDOW + (1 - OF_WINDOW) * k / len(parts))
        a, b = crop(A, y, *part)
        problem = replace(plan.problem(b, brightness(A, y)), basis=pilot_basis(A, axis))
        result, _ = problem.solve(a, b, PILOT_ITERS, tol=0.0)
        covariance = covariance + covariance_sum(result.x.clamp_(min=0))
    return replace(plan, vectors=principal_basis(covariance, len(plan.vectors)))


def _cut(length: int) -> list[slice]:
    """Parts of a side of a frame, of about `PART`."""
    count = max(1, round(length / PART))
    return [slice(length * k // count, length * (k + 1) // count) for k in range(count)]


def window(A: Camera, y: Tensor) -> tuple[slice, slice] | None:
    """Rows and columns of the part of a large frame that stands for it, None where all of it is taken."""
    size = height, width = A.cube_shape[-2:]
    whole = not croppable(A) or height * width <= 1.25 * PART**2 or not bool(y.any())
    return None if whole else liveliest(y, size, PART)


@dataclass(frozen=True, eq=False)
class Found:
    """What the pilot told: the problem to be solved, as a plan without stages, the evidence, and how bright it is."""

    plan: Plan
    bases: tuple[BasisError, ...]
    brightness: float


def explored(
    split: Split,
    axis: int | Sequence[float] | np.ndarray,
    noise: CameraNoise,
    settings: Settings,
    *,
    frame: tuple[Camera, Tensor] | None = None,
) -> Found:
    """Noise, spectra and level of a snapshot, a part of `frame`, or of several frames of one scene that are a batch."""
    A, y = split.A, split.y
    smooth = pilot_basis(A, axis)
    estimated, x = estimate_noise(split, smooth)
    model = estimated if noise.gain is None else noise.model()
    whole, snapshot = frame or (A, y)
    level = float(object_level(snapshot, snapshot.ndim))
    scene = scene_basis(x)
    plain = axis if isinstance(axis, int) else tuple(float(v) for v in axis)
    bright = brightness(whole, snapshot)
    problem = Problem(scene, model.variance(y), bright, level, axis=plain)
    bases = {SCENE: scene}
    if len(smooth) < A.num_bands and narrowness(split, x) > STANDS_OUT:
        bases[NARROW] = narrow_basis(split, problem)
    name, vectors, compared = best_basis(split, problem, bases)
    plan = Plan(name, vectors, model, level, (), learned_prior(A, settings), plain)
    return Found(plan, compared, bright)


def _staged(
    split: Split, found: Found, noise: CameraNoise, settings: Settings, watch: Watch
) -> tuple[State, Plan, Evidence]:
    """The stages, judged by the held-out pixels of this split, the plan that they complete, and the evidence.

    Where the noise is unknown, it is what total variation leaves: the pilot's errors hold those of smooth spectra too.
    On four windows of CAVE scenes (128 x 128 pixels) that gains 0.3 dB at 1,000 electrons, 0.03 at 10,000 and 0.02
    without noise over six tenths of the pilot's, which was the best share of it.
    """
    first, chains = stages_of(split.A, settings)
    judged = settings.prior == "auto" and bool(chains)
    watch.expected = first.cost + max(map(cost, chains), default=0.0)
    plan, problem = found.plan, found.plan.problem(split.y, found.brightness)
    state = first.run(split.A_train, split.y_train, problem, None, watch)
    verdict = split.verdict(state.x, imprint=judged)
    if noise.gain is None:
        plan = replace(plan, noise=noise_left(split, verdict.squared))
        problem = replace(problem, variance=plan.noise.variance(split.y))
    state, trials = final_run(split, problem, state, () if watch.over else chains, watch, verdict if judged else None)
    taken_at = next((trial.held_out_error for trial in reversed(trials) if trial.accepted), None)
    error = split.error(state.x.clamp(min=0)) if taken_at is None else taken_at
    evidence = Evidence(found.bases, trials, error, len(split.places), settings.seed, part=None)
    return state, replace(plan, stages=state.stages), evidence


def learned_prior(A: Camera, settings: Settings) -> LearnedPrior | None:
    """The network for this camera, where it may be tried and there is one; with few bands only where asked for."""
    if settings.prior not in ("auto", "learned") or settings.num_iters is not None or min(A.cube_shape[1:]) < PATCH:
        return None
    if settings.weights is not None:
        return cast(LearnedPrior, settings.weights)  # its file is read
    return shipped_prior() if settings.prior == "learned" or A.cube_shape[0] >= MIN_BANDS else None


def _outcome(
    A: Camera, y: Tensor, state: State, watch: Watch, plan: Plan, evidence: Evidence | None, settings: Settings
) -> Outcome:
    """The cube without negative values, its discrepancy, and its uncertainty where asked for."""
    cube = state.x.clamp(min=0)
    result = Result(cube, state.history, "stopped" if watch.over else "max_iters")
    variance = plan.noise.variance(y)
    lit = A.majorizer() > 0
    known = lit & (variance > 0)
    ratio = torch.where(known, (y - A.forward(cube)) ** 2 / torch.where(known, variance, 1), 0)
    total, count = torch.stack([ratio.sum(dtype=torch.float64), known.sum(dtype=torch.float64)]).tolist()
    discrepancy = total / count if count else None
    sigma = None
    if settings.uncertainty:
        found = bootstrap(A, y, cube, plan, seed=settings.seed, told=partial(watch.report, "error bars"))
        sigma = standard_deviation(found, cube, brightness(A, y))
    return Outcome(
        result, "subspace-tv", {}, plan, evidence, sigma,
        discrepancy=discrepancy, begun=state.begun,
    )  # fmt: skip
