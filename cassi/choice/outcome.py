"""A reconstruction with its plan, and the evidence for it."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from torch import Tensor

from cassi.choice.bases import BasisError
from cassi.choice.chain import ChainTrial
from cassi.choice.plan import Plan
from cassi.evidence.judge import GOOD_FIT, MARGIN, POOR_FIT
from cassi.evidence.noise import STATED, NoiseModel
from cassi.solvers.loop import Result

MAX_EXCESS = 1.3  # misfit in standard deviations of the stated noise, up to which that noise explains it


@dataclass(frozen=True)
class Evidence:
    """The evidence for the choices of the default solver.

    Attributes:
        bases: spectral bases that were compared.
        trials: chains of stages, in the order in which they were run.
        held_out_error: of the cube.
        held_out_pixels: their number; drawn with `seed`.
        part: rows and columns of the scene on which the plan was chosen; None: the whole scene.
    """

    bases: tuple[BasisError, ...]
    trials: tuple[ChainTrial, ...]
    held_out_error: float
    held_out_pixels: int
    seed: int
    part: tuple[slice, slice] | None


@dataclass(frozen=True)
class SideEvidence:
    """How a side picture was used.

    Attributes:
        used: whether the cube was solved with it.
        message: the same in a sentence, with the reason.
        correlation: of its detail with the scene's at the best pose.
        pose: scale [picture pixels a scene pixel], angle [degree], rows and columns [scene pixel].
        alone_error, joint_error: held-out error of short runs without and with it; None if it was not tried.
        response: how each channel weighs the bands, (K, C).
    """

    used: bool
    message: str
    correlation: float
    pose: tuple[float, ...]
    alone_error: float
    joint_error: float | None = None
    response: list[list[float]] | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """A reconstruction and the choices it was made with.

    Attributes:
        result: cube (C, H, W) with history and status.
        solver: its name.
        settings: hyper-parameters, plain values, of a solver without a plan.
        plan: of the default solver, complete: repeating it needs no choice.
        evidence: for the plan; None if the plan was given.
        uncertainty: standard deviation of each voxel, like the cube, if asked for.
        discrepancy: mean of residual^2 / variance, about 1 if the noise model is right (Morozov, 1966); None without
            noise.
        brightness: the snapshot was divided by it, and the cube multiplied.
        black_level: subtracted from the snapshot, in its unit.
        black_level_estimated: from the snapshot itself.
        side: how a side picture was used; None if there was none.
        stage_starts: the number of each stage's first iteration, and its name.
        doubt: why the mask does not fit the snapshot; empty if it does.
        plan_alone: of the snapshot alone, where `plan` solved it beside a side picture, which another will not have.
    """

    result: Result
    solver: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    evidence: Evidence | None = None
    uncertainty: Tensor | None = None
    discrepancy: float | None = None
    brightness: float = 1.0
    black_level: float = 0.0
    black_level_estimated: bool = False
    side: SideEvidence | None = None
    stage_starts: tuple[tuple[int, str], ...] = ()
    doubt: str = ""
    plan_alone: Plan | None = None

    def scaled(self, factor: float) -> Self:
        """The outcome for a snapshot and cube multiplied by `factor`."""
        return replace(
            self,
            result=replace(self.result, x=self.result.x * factor),
            plan=None if self.plan is None else self.plan.scaled(factor),
            plan_alone=None if self.plan_alone is None else self.plan_alone.scaled(factor),
            uncertainty=None if self.uncertainty is None else self.uncertainty * factor,
            brightness=self.brightness * factor,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; noise and levels in the unit of y."""
        values: dict[str, Any] = {"solver": self.solver, **self.settings, "level": self.brightness}
        if self.black_level:
            values |= {"black_level": self.black_level, "black_level_estimated": self.black_level_estimated}
        if self.side is not None:
            values["side"] = asdict(self.side)
        if self.plan is None:
            return values
        plan, evidence = self.plan, self.evidence
        values |= {
            "basis": plan.basis,
            "components": len(plan.vectors),
            "prior": plan.prior,
            "learned": plan.is_learned,
            "network": plan.network,
            "stages": [list(one) for one in self.stage_starts],
            "iterations": len(self.result.history),
            "discrepancy": self.discrepancy,
            "noise": plan.noise.as_dict(),
            "plan": (self.plan_alone or plan).as_dict(),
            "reason": self.explain(),
            "evidence": self.explain(verbose=True),
        }
        if evidence is None:
            return values
        return values | {
            **vars(evidence),
            "bases": [basis._asdict() for basis in evidence.bases],
            "trials": [trial._asdict() for trial in evidence.trials],
            "part": None if evidence.part is None else [[s.start, s.stop] for s in evidence.part],
        }

    def explain(self, *, verbose: bool = False, scale: float = 1.0) -> str:
        """Explain the choices in short sentences, or with all the evidence. `scale`: counts per unit of y."""
        words = [f"The mask does not fit: {self.doubt}."] if self.doubt else []
        words += _evidence(self) if verbose else _in_short(self)
        if self.side is not None:
            words.append(self.side.message)
        if self.black_level:
            guess = "estimated from pixels that almost no light can reach"
            source = guess if self.black_level_estimated else "as given"
            counts = "" if scale == 1 else f" ({self.black_level * scale:.4g} counts)"
            words.append(f"A black level of {self.black_level:.4g}{counts} was subtracted, {source}.")
        return " ".join(words)


def _basis_in_words(name: str, components: int) -> str:
    learned = " learned from the scene itself" if name.startswith(("scene-", "narrow-")) else ""
    free = " with all bands free, for narrow-band light" if name.startswith("narrow-") else ""
    return f"{components} {'spectrum' if components == 1 else 'spectra'}{learned}{free}"


def _in_short(outcome: Outcome) -> list[str]:
    plan, evidence = outcome.plan, outcome.evidence
    if plan is None:
        return [f"Solved by {outcome.solver}, which {outcome.result.message}."]
    *before, last = dict.fromkeys(stage.words for stage in plan.stages)
    priors = f"{', '.join(before)} and {last}" if before else last
    network = f", with {plan.network}" if plan.network else ""
    built = f"Built from {_basis_in_words(plan.basis, len(plan.vectors))} with {priors}{network}"
    if evidence is None:
        follows = f"{'all else ' if plan.is_learned and plan.replaced else ''}as the plan says"
        stopped = f", but the run {outcome.result.message}" if outcome.result.status == "stopped" else ""
        words = [f"{built}, {follows}{stopped}."]
        if outcome.discrepancy is not None:
            times = f"{math.sqrt(outcome.discrepancy):.2g} times what the plan's noise explains"
            words.append(f"The misfit is {times}; far above 1, the plan does not fit.")
        return words
    where = "" if evidence.part is None else ", in a window of the frame"
    grade = "through that mask" if outcome.doubt else _grade(outcome, plan.noise, evidence.held_out_error)
    grade = f"but the run {outcome.result.message}" if outcome.result.status == "stopped" else grade
    rejected = any("learned" in trial.prior for trial in evidence.trials) and not plan.is_learned
    return [
        f"Held-out error {evidence.held_out_error:.1%} ({grade}) at detector pixels that were not used{where}.",
        f"{built}." + " The learned prior was tried and not accepted." * rejected,
    ]


def _grade(outcome: Outcome, noise: NoiseModel, error: float) -> str:
    """What the held-out error says; only where the noise is stated, noise and camera can be separated."""
    if error > POOR_FIT:
        return "poor: the camera does not fit, or there is little but noise"
    if noise.source == STATED and outcome.discrepancy is not None:
        ratio = math.sqrt(outcome.discrepancy)
        if ratio <= MAX_EXCESS:
            return "no more than the stated noise explains"
        return f"the misfit is {ratio:.1f} times what the stated noise explains: a short run, bad pixels or the camera"
    if error <= GOOD_FIT:
        return "noise and errors of the camera together"
    return "fair: there is much noise, or the camera does not quite fit"


def _evidence(outcome: Outcome) -> list[str]:
    plan, evidence = outcome.plan, outcome.evidence
    if plan is None or evidence is None:
        return _in_short(outcome)
    words = [
        f"Noise from {plan.noise.source}: variance {plan.noise.alpha:.3g} y + {plan.noise.beta:.3g} in the unit of y. "
        f"Weights are for objects of {plan.relative_level:.2g} x the mean brightness."
    ]
    if len(evidence.bases) > 1:
        errors = "; ".join(f"{basis.basis}: {basis.held_out_error:.2%}" for basis in evidence.bases)
        words.append(f"Held-out errors of the spectral bases: {errors}. Chosen: {plan.basis}.")
    if evidence.trials:
        trials = "; ".join(
            f"{trial.prior}: {trial.held_out_error:.2%}"
            + ("" if trial.imprint is None else f", imprint {trial.imprint:.2f}")
            + ("" if trial.accepted else ", rejected")
            for trial in evidence.trials
        )
        words.append(
            f"Held-out errors of the stages ({trials}): a prior's cube is accepted if its error is at most "
            f"{1 + MARGIN:g} times the error before, within one standard error, and its imprint"
            " of the mask is not clearly larger."
        )
    words.append(f"The final run {outcome.result.message}.")
    return words
