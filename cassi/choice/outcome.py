"""A reconstruction with what was chosen for it, and on what evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from torch import Tensor

from cassi.choice.bases import BasisError
from cassi.choice.chain import Trial
from cassi.choice.judge import GOOD_FIT, MARGIN, POOR_FIT
from cassi.choice.plan import Plan
from cassi.solvers.loop import Result


@dataclass(frozen=True)
class Evidence:
    """What the default solver's choice rests on.

    Attributes:
        bases: that competed.
        trials: the chains of stages that were run, in order.
        held_out_error: of the cube.
        held_out_pixels: how many, drawn with `seed`.
        part: rows and columns of the scene on which the plan was chosen; None: on all of it.
    """

    bases: tuple[BasisError, ...]
    trials: tuple[Trial, ...]
    held_out_error: float
    held_out_pixels: int
    seed: int
    part: tuple[slice, slice] | None


@dataclass(frozen=True)
class SideEvidence:
    """What became of a side picture.

    Attributes:
        used: whether the cube was made with it.
        message: the same, and why, in a sentence.
        correlation: of its detail with the scene's at the place where it fits best.
        pose: scale [picture pixels a scene pixel], angle [degree], rows and columns [scene pixel].
        alone_error, joint_error: held-out error of short runs without and with it; None where it was not tried.
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
    """A reconstruction and how it was chosen.

    Attributes:
        result: cube (C, H, W) with history and status.
        solver: that made it.
        settings: its hyper-parameters, plain values, of a solver that chooses nothing.
        plan: of the default solver, complete: following it needs no choice any more.
        evidence: for the plan; None where it was given.
        uncertainty: standard deviation of each voxel, like the cube, where asked for.
        discrepancy: mean of residual^2 / variance, about 1 where the noise model is right (Morozov, 1966); None where
            there is no noise to divide by.
        level: the snapshot was divided by it, and the cube multiplied.
        black_level: taken off the snapshot, in its unit.
        black_level_told: whether the snapshot itself told it.
        side: what became of a side picture; None where there was none.
        begun: the number of each stage's first iteration, and its name.
        doubt: why the mask is not that of the snapshot; empty where nothing says so.
    """

    result: Result
    solver: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    evidence: Evidence | None = None
    uncertainty: Tensor | None = None
    discrepancy: float | None = None
    level: float = 1.0
    black_level: float = 0.0
    black_level_told: bool = False
    side: SideEvidence | None = None
    begun: tuple[tuple[int, str], ...] = ()
    doubt: str = ""

    def scaled(self, level: float) -> Outcome:
        """The same for a snapshot, and so a cube, times `level`."""
        return replace(
            self,
            result=replace(self.result, x=self.result.x * level),
            plan=None if self.plan is None else self.plan.scaled(level),
            uncertainty=None if self.uncertainty is None else self.uncertainty * level,
            level=self.level * level,
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; noise and levels in the unit of y."""
        values: dict[str, Any] = {"solver": self.solver, **self.settings, "level": self.level}
        if self.black_level:
            values["black_level"] = self.black_level
        if self.side is not None:
            values["side"] = asdict(self.side)
        if self.plan is None:
            return values
        plan, found = self.plan, self.evidence
        values |= {
            "basis": plan.basis,
            "components": len(plan.vectors),
            "prior": plan.prior,
            "learned": plan.is_learned,
            "stages": [list(one) for one in self.begun],
            "iterations": len(self.result.history),
            "discrepancy": self.discrepancy,
            "noise": plan.noise.as_dict(),
            "plan": plan.as_dict(),
            "reason": self.explain(),
            "evidence": self.explain(verbose=True),
        }
        if found is None:
            return values
        return values | {
            "bases": [basis._asdict() for basis in found.bases],
            "trials": [trial._asdict() for trial in found.trials],
            "held_out_error": found.held_out_error,
            "held_out_pixels": found.held_out_pixels,
            "part": None if found.part is None else [[s.start, s.stop] for s in found.part],
            "seed": found.seed,
        }

    def explain(self, *, verbose: bool = False, scale: float = 1.0) -> str:
        """The choice in a few short sentences; with `verbose` all the evidence. `scale`: counts a unit of y."""
        words = [f"The mask does not fit: {self.doubt}."] if self.doubt else []
        words += _evidence(self) if verbose else _in_short(self)
        if self.side is not None:
            words.append(self.side.message)
        if self.black_level:
            source = "told by pixels that hardly any light can reach" if self.black_level_told else "as given"
            counts = "" if scale == 1 else f" ({self.black_level * scale:.4g} counts)"
            words.append(f"A black level of {self.black_level:.4g}{counts} was taken off, {source}.")
        return " ".join(words)


def _basis_in_words(name: str, components: int) -> str:
    kind = name.rpartition("-")[0]
    spectra = "spectrum" if components == 1 else "spectra"
    return {
        "scene": f"{components} {spectra} learned from the scene itself",
        "narrow": f"{components} {spectra} learned from the scene itself with all bands free, for light of one color",
    }.get(kind, f"{components} {spectra}")


def _in_short(outcome: Outcome) -> list[str]:
    plan, found = outcome.plan, outcome.evidence
    if plan is None:
        return [f"Solved by {outcome.solver}, which {outcome.result.message}."]
    built = f"Built from {_basis_in_words(plan.basis, len(plan.vectors))} with {_priors_in_words(plan)}"
    if found is None:
        return [f"{built}, as the plan says."]
    where = "" if found.part is None else ", in a window of the frame,"
    grade = "through that mask" if outcome.doubt else _grade(found.held_out_error)
    grade = f"but the run {outcome.result.message}" if outcome.result.status == "stopped" else grade
    without = any("learned" in trial.prior for trial in found.trials) and not plan.is_learned
    return [
        f"Held-out error {found.held_out_error:.1%}: detector pixels that took no part{where} are predicted this well, "
        f"{grade}.",
        f"{built}." + " The learned prior was tried and not accepted." * without,
    ]


def _priors_in_words(plan: Plan) -> str:
    *before, last = dict.fromkeys(stage.words for stage in plan.stages)
    return f"{', '.join(before)} and {last}" if before else last


def _grade(error: float) -> str:
    if error <= GOOD_FIT:
        return "which is good"
    if error <= POOR_FIT:
        return "which is fair: there is much noise, or the camera does not quite fit"
    return "which is bad: the camera does not fit, or there is little but noise"


def _evidence(outcome: Outcome) -> list[str]:
    plan, found = outcome.plan, outcome.evidence
    if plan is None or found is None:
        return _in_short(outcome)
    words = [
        f"Noise from {plan.noise.source}: variance {plan.noise.alpha:.3g} y + {plan.noise.beta:.3g} in the unit of y. "
        f"Weights are for objects of {plan.level:.2g} x the mean brightness."
    ]
    if len(found.bases) > 1:
        errors = "; ".join(f"{basis.basis}: {basis.held_out_error:.2%}" for basis in found.bases)
        words.append(f"Held-out errors of the spectral bases: {errors}. Chosen: {plan.basis}.")
    if found.trials:
        compared = "; ".join(
            f"{trial.prior}: {trial.held_out_error:.2%}"
            + ("" if trial.imprint is None else f", imprint {trial.imprint:.2f}")
            + ("" if trial.accepted else ", rejected")
            for trial in found.trials
        )
        words.append(
            f"Held-out errors of the stages ({compared}): a prior's cube is accepted where its error is at most "
            f"{1 + MARGIN:g} times that before, but for chance, and the mask's imprint is not clearly larger."
        )
    words.append(f"The final run {outcome.result.message}.")
    return words
