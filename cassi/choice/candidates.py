"""Short runs of the default solver with different weights and spectral bases, judged by held-out pixels.

The first run, with smooth spectra, tells what spectra the scene has; a second one begins anew with the strongest of
them. In so few degrees of freedom less goes wrong, and what went wrong in the first run does not stay.

A candidate that is behind the best one so far after half of its iterations is dropped, as in successive halving
(Jamieson & Talwalkar, AISTATS 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from torch import Tensor

from cassi.choice.held_out import Split
from cassi.choice.plan import Plan
from cassi.choice.problem import Problem
from cassi.errors import InputError
from cassi.kernels.covariance import covariance_sum
from cassi.priors.spectral_basis import principal_basis, synthesise
from cassi.solvers.loop import Record
from cassi.solvers.subspace_tv import SubspaceState

CANDIDATE_ITERS = 80
USUAL_CANDIDATES = 2.5  # two, and half of another that is dropped
# Of the noise that is estimated from one snapshot; the rest is the error of the model. Of several shots all of it is.
SHARE = 0.2
# Of the pilot's error: where the first candidate's is above, what is left is noise, and the share is twice that.
NOISY = 0.985
SCENE_COMPONENTS = 10  # of the basis learned from the first candidate's own cube
SCENE = f"scene-{SCENE_COMPONENTS}"
SCENE_LOSS = 0.5  # by which that basis may predict worse: it was better on all scenes; more, and spectra are missing
MARGIN = 0.005  # a basis must predict better than the one before by this share: less is chance
LEVELS = (3.0, 9.0)  # of the objects that matter: a few bright ones in the dark are many times the mean brightness
LEVEL_MARGIN = 0.01  # the same for their weights, whose effect on the cube shows late


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
        iterations: done so far, in all.
    """

    split: Split
    variance: Tensor
    bases: dict[str, Tensor]
    brightness: float | None = None
    told: Callable[[float], None] | None = None
    iterations: int = 0
    tried: list[Candidate] = field(default_factory=list)
    best: Candidate = field(init=False)

    def run(self, plan: Plan, margin: float = 0.0) -> bool:
        """Whether the plan predicts better than the best so far by this share, and so takes its place.

        With a negative share it does where it predicts no worse than by so much.
        """
        split, B = self.split, self.bases[plan.basis].to(self.split.y)
        ahead_of = (1 + max(0.0, -margin)) * self.best.halfway if self.tried else math.inf
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
        self.iterations += error.iterations
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


def choose(
    trial: Trial,
    share: float,
    in_time: Callable[[], bool],
    *,
    first: str | None = None,
    noisy: float = math.inf,
) -> None:
    """Run candidates; the best of the trial is the choice.

    Args:
        trial: with the bases to try.
        share: of the noise.
        in_time: whether one more candidate may be run.
        first: the basis that is tried first; None: that of most components, which the scene's own follows.
        noisy: the held-out error of the first basis above which twice the share of the noise is gone on with.
    """
    adaptable = first is None
    first = first or most_components(trial.bases)
    trial.run(Plan(first, share))
    for level in LEVELS:
        if not (in_time() and trial.run(Plan(first, share, level=level), LEVEL_MARGIN)):
            break
    best = trial.best.plan
    if trial.best.evidence.held_out_error > noisy:
        best = replace(best, noise_share=2 * share)
    others = [basis for basis in trial.bases if basis != first]
    for basis in others:
        if in_time():
            trial.run(replace(best, basis=basis), MARGIN)
    if adaptable and trial.best.plan.basis == first and in_time():
        trial.learn_basis()
        trial.run(replace(best, basis=SCENE), -SCENE_LOSS)


def follow(trial: Trial, plan: Plan) -> None:
    """Run the one candidate of a plan that is given; its basis is made here where the plan has only its name.

    Raises:
        InputError: there is no basis of that name.
    """
    if plan.vectors is not None:
        trial.bases[plan.basis] = plan.vectors
    elif plan.basis == SCENE:
        # as `choose` does, which believes more of the noise only after the first run
        trial.run(Plan(most_components(trial.bases), min(SHARE, plan.noise_share), level=plan.level))
        trial.learn_basis()
        trial.tried.clear()
    elif plan.basis not in trial.bases:
        raise InputError(f"the plan's basis must be one of {', '.join((*trial.bases, SCENE))}, got {plan.basis!r}")
    trial.run(plan)


def most_components(bases: Mapping[str, Tensor]) -> str:
    return max(bases, key=lambda name: len(bases[name]))
