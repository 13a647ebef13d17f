"""Short runs of the default solver with different spectral bases and shares of the noise, judged by held-out pixels.

One decision after the other, the noise, then the basis; each keeps what predicts better. A candidate that is behind the
best one so far after half of its iterations is dropped, as in successive halving (Jamieson & Talwalkar, AISTATS 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from cassi.choice.held_out import Split
from cassi.choice.noise import SHARES
from cassi.choice.plan import Plan
from cassi.choice.problem import Problem
from cassi.errors import InputError
from cassi.kernels.covariance import covariance_sum
from cassi.priors.spectral_basis import principal_basis, synthesise
from cassi.solvers.loop import Record
from cassi.solvers.subspace_tv import SubspaceState

CANDIDATE_ITERS = 80
USUAL_CANDIDATES = 5
SCENE_COMPONENTS = 10  # of the basis learned from the first candidate's own cube
SCENE = f"scene-{SCENE_COMPONENTS}"
MARGIN = 0.005  # a basis must predict better than the one before by this share: less is chance
SHARE_MARGIN = 0.01  # and so must a share of the noise, whose effect on the cube shows late
LOW_SHARE, LOW_SHARE_MARGIN = 0.2, 0.03  # below it more is asked: short runs do not show that noise is fitted
LEVELS = (3.0, 9.0)  # of the objects that matter, tried where less of the noise predicts better, see `choose`
SCENE_MARGIN = 0.05  # a basis learned from a first cube settles sooner than others, which flatters it in short runs


class CandidateError(NamedTuple):
    """A basis, a share of the noise, the held-out error with them, and the iterations done: few where dropped.

    `level` is that of the `Plan`.
    """

    basis: str
    noise_share: float
    held_out_error: float
    iterations: int
    level: float = 1.0

    @property
    def dropped(self) -> bool:
        return self.iterations < CANDIDATE_ITERS


@dataclass(frozen=True, eq=False)
class Candidate:
    """A short run without the held-out pixels: where it ended, its error there and after half of its iterations."""

    plan: Plan
    state: SubspaceState
    halfway: float
    evidence: CandidateError


@dataclass(eq=False)
class Trial:
    """Candidates run one after the other, and the best so far.

    Attributes:
        split: the snapshot.
        variance: of y, of which plans take a share.
        bases: (K, C) by name.
        brightness: see `Problem`.
        told: called with the share of the usual trials that is done.
    """

    split: Split
    variance: Tensor
    bases: dict[str, Tensor]
    brightness: float | None = None
    told: Callable[[float], None] | None = None
    tried: list[Candidate] = field(default_factory=list)
    best: Candidate = field(init=False)

    def run(self, plan: Plan, margin: float = 0.0) -> bool:
        """Whether the plan predicts better than the best so far by this share, and so takes its place."""
        split, B = self.split, self.bases[plan.basis].to(self.split.y)
        ahead_of = self.best.halfway if self.tried else math.inf
        halfway = math.inf

        def behind(record: Record, z: Tensor) -> bool:
            nonlocal halfway
            if self.told is not None:
                self.told(min(1.0, (len(self.tried) + record.iteration / CANDIDATE_ITERS) / USUAL_CANDIDATES))
            if record.iteration == CANDIDATE_ITERS // 2:
                halfway = split.error(synthesise(z, B))
                return halfway > ahead_of
            return False

        problem = Problem(B, self.variance * plan.noise_share, self.brightness, plan.level)
        result, state = problem.solve(split.A_train, split.y_train, CANDIDATE_ITERS, tol=0.0, monitor=behind)
        error = CandidateError(plan.basis, plan.noise_share, split.error(result.x), len(result.history), plan.level)
        latest = Candidate(plan, state, halfway, error)
        self.tried.append(latest)
        better = len(self.tried) == 1 or (
            not error.dropped and error.held_out_error < (1 - margin) * self.best.evidence.held_out_error
        )
        if better:
            self.best = latest
        return better

    def learn_basis(self) -> None:
        """Add the strongest eigenvectors of the spectral covariance of the best cube so far to the bases."""
        spectra = synthesise(self.best.state.z, self.bases[self.best.plan.basis].to(self.split.y)).clamp_(min=0)
        self.bases[SCENE] = principal_basis(covariance_sum(spectra), SCENE_COMPONENTS)


def choose(trial: Trial, shares: tuple[float, ...], in_time: Callable[[], bool], *, first: str | None = None) -> None:
    """Run candidates; the best of the trial is the choice.

    Args:
        trial: with the bases to try.
        shares: of the noise to try: the first, then more of it or else less as long as that helps.
        in_time: whether one more candidate may be run.
        first: the basis that is tried first, and with which shares are compared; None: that of most components.
    """
    first = first or most_components(trial.bases)
    more, less = [s for s in shares if s > shares[0]], [s for s in shares if s < shares[0]]
    trial.run(Plan(first, shares[0]))
    # the error has one valley over the shares: more noise first, else less as long as that helps
    if not _while_better(trial, [Plan(first, s) for s in more], in_time) and _while_better(
        trial, [Plan(first, s) for s in less[:1]], in_time
    ):
        # Few bright objects in the dark look like little noise: in units of the mean brightness the weights of priors
        # are small for them, and a short run does not get far.
        raised = _while_better(trial, [Plan(first, shares[0], level=v) for v in LEVELS], in_time)
        level = trial.best.plan.level
        _while_better(trial, [Plan(first, s, level=level) for s in less[0 if raised else 1 :]], in_time)
    best = trial.best.plan
    if in_time():
        trial.learn_basis()
    # of several shots all bases settle soon: they are taken along the modes of their Gram matrix
    several = trial.split.y.ndim > 2
    for basis in trial.bases:
        if basis != first and in_time():
            trial.run(replace(best, basis=basis), SCENE_MARGIN if basis == SCENE and not several else MARGIN)


def _while_better(trial: Trial, plans: list[Plan], in_time: Callable[[], bool]) -> bool:
    """Run plans as long as each predicts better than the best so far; whether the first did."""
    for k, plan in enumerate(plans):
        margin = LOW_SHARE_MARGIN if plan.noise_share < LOW_SHARE else SHARE_MARGIN
        if not (in_time() and trial.run(plan, margin)):
            return k > 0
    return bool(plans)


def follow(trial: Trial, plan: Plan) -> None:
    """Run the one candidate of a plan that is given; its basis is made here where the plan has only its name.

    Raises:
        InputError: there is no basis of that name.
    """
    if plan.vectors is not None:
        trial.bases[plan.basis] = plan.vectors
    elif plan.basis == SCENE:
        trial.run(replace(plan, basis=most_components(trial.bases)))
        trial.learn_basis()
        trial.tried.clear()
    elif plan.basis not in trial.bases:
        raise InputError(f"the plan's basis must be one of {', '.join((*trial.bases, SCENE))}, got {plan.basis!r}")
    trial.run(plan)


def most_components(bases: Mapping[str, Tensor]) -> str:
    return max(bases, key=lambda name: len(bases[name]))


def shares_of(stated: bool) -> tuple[float, ...]:
    """The shares of a noise model to try: all of it where the camera states it."""
    return (1.0,) if stated else SHARES
