"""A reconstruction with what was chosen for it, and on what evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from cassi.choice.candidates import LEVEL_MARGIN, MARGIN, SCENE_LOSS, CandidateError
from cassi.choice.noise import Pilot
from cassi.choice.plan import BETWEEN, TV, Plan
from cassi.solvers.loop import Result
from cassi.solvers.subspace_tv import PRIOR_STRENGTH

NO_DIFFERENCE = 5e-4  # share by which errors differ that would be written as 0.0 %
# Held-out errors. Simulated snapshots through the right camera have 0.004 to 0.06, down to 1,000 electrons; the real
# captures at hand, with the camera found, 0.03 to 0.04; masks of another camera 0.5 and more.
GOOD, FAIR = 0.1, 0.3


class PriorError(NamedTuple):
    """A prior of the final run, the held-out error with it, and of a corrected cube the mask's imprint."""

    prior: str
    held_out_error: float
    imprint: float | None = None


@dataclass(frozen=True)
class Evidence:
    """What the default solver's choice rests on.

    Attributes:
        candidates: in the order they were tried.
        priors: of the final run, those that were compared; none where only total variation was run.
        held_out_error: of the cube.
        held_out_pixels: how many, drawn with `seed`.
        part: rows and columns of the scene on which the plan was chosen; None: on all of it.
        pilot: of the noise estimate; None where the camera states its noise.
    """

    candidates: tuple[CandidateError, ...]
    priors: tuple[PriorError, ...]
    held_out_error: float
    held_out_pixels: int
    seed: int
    part: tuple[slice, slice] | None
    pilot: Pilot | None


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
        uncertainty: like the cube, where asked for.
        calibrated: it was compared with errors and covers as many of them as a standard deviation does; else it is a
            spread, which compares places.
        discrepancy: mean of residual^2 / variance, about 1 where the noise model is right (Morozov, 1966); None where
            there is no noise to divide by.
        brightness: of the scene, in the unit of y.
        level: the snapshot was divided by it, and the cube multiplied.
        black_level: taken off the snapshot, in its unit.
        black_level_told: whether the snapshot itself told it.
        side: what became of a side picture; None where there was none.
    """

    result: Result
    solver: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan | None = None
    evidence: Evidence | None = None
    uncertainty: Tensor | None = None
    calibrated: bool = False
    discrepancy: float | None = None
    brightness: float | None = None
    level: float = 1.0
    black_level: float = 0.0
    black_level_told: bool = False
    side: SideEvidence | None = None

    def scaled(self, level: float) -> Outcome:
        """The same for a snapshot, and so a cube, times `level`."""
        return replace(
            self,
            result=replace(self.result, x=self.result.x * level),
            plan=None if self.plan is None else self.plan.scaled(level),
            brightness=None if self.brightness is None else self.brightness * level,
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
            "noise_share": plan.noise_share,
            "components": None if plan.vectors is None else len(plan.vectors),
            "prior": plan.prior,
            "learned": plan.learned is not None,
            "corrected_at": self._corrected_at(),
            "prior_strength": PRIOR_STRENGTH,
            "brightness": self.brightness,
            "iterations": len(self.result.history),
            "discrepancy": self.discrepancy,
            "noise": {} if plan.noise is None else plan.noise.as_dict(),
            "plan": plan.as_dict(),
            "reason": self.explain(),
            "evidence": self.explain(verbose=True),
        }
        if found is None:
            return values
        values["noise"] |= {} if found.pilot is None else found.pilot._asdict()
        return values | {
            "candidates": [c._asdict() for c in found.candidates],
            "priors": [p._asdict() for p in found.priors],
            "held_out_error": found.held_out_error,
            "held_out_pixels": found.held_out_pixels,
            "part": None if found.part is None else [[s.start, s.stop] for s in found.part],
            "seed": found.seed,
        }

    def _corrected_at(self) -> list[int]:
        """The iterations that were a learned prior's corrections."""
        if self.plan is None or self.plan.learned is None or not self.result.history:
            return []
        last = self.result.history[-1].iteration
        return [last - (BETWEEN + 1) * k for k in range(self.plan.corrections)][::-1]

    def explain(self, *, verbose: bool = False, scale: float = 1.0) -> str:
        """The choice in at most three short sentences; with `verbose` all the evidence. `scale`: counts a unit of y."""
        words = _evidence(self) if verbose else _in_short(self)
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
        "smooth": f"{components} smooth {spectra}",
        "scene": f"{components} {spectra} learned from the scene itself",
        "narrow": f"{components} {spectra} learned from the scene itself with all bands free, for light of one color",
        "library": f"{components} {spectra} of the library",
    }.get(kind, f"{components} {spectra}")


def _in_short(outcome: Outcome) -> list[str]:
    plan, found = outcome.plan, outcome.evidence
    if plan is None:
        return [f"Solved by {outcome.solver}, which {outcome.result.message}."]
    prior = "total variation" if plan.prior == TV else "total variation, then a non-local prior"
    if plan.learned is not None:
        prior += " and a learned correction" + (f", {plan.corrections} times" if plan.corrections > 1 else "")
    built = f"Built from {_basis_in_words(plan.basis, 0 if plan.vectors is None else len(plan.vectors))} with {prior}"
    if found is None:
        return [f"{built}, as the plan says."]
    where = "" if found.part is None else ", in a window of the frame,"
    joint = outcome.side is not None and outcome.side.used
    against = "" if joint else _against_runner_up(plan, found)  # the candidates were the snapshot's alone
    return [
        f"Held-out error {found.held_out_error:.1%}: detector pixels that took no part{where} are predicted this well, "
        f"{_judged(found.held_out_error)}.",
        f"{built}{against}.",
    ]


def _judged(error: float) -> str:
    if error <= GOOD:
        return "which is good"
    if error <= FAIR:
        return "which is fair: there is much noise, or the camera does not quite fit"
    return "which is bad: the camera does not fit, or there is little but noise"


def _against_runner_up(plan: Plan, found: Evidence) -> str:
    """How much worse the best of the other candidates predicted, of those that ran as long as the chosen one."""
    own = (plan.basis, plan.noise_share, plan.level)
    chosen = [c.held_out_error for c in found.candidates if (c.basis, c.noise_share, c.level) == own]
    others = [c.held_out_error for c in found.candidates if (c.basis, c.noise_share, c.level) != own and not c.dropped]
    if not others or not chosen or not chosen[0] > 0:
        return ""
    worse = min(others) / chosen[0] - 1
    if abs(worse) < NO_DIFFERENCE:
        return "; the runner-up predicted as well"
    if worse < 0:
        return f"; the runner-up predicted {-worse:.1%} better, too little to count"
    return f"; the runner-up predicted {worse:.1%} worse"


def _evidence(outcome: Outcome) -> list[str]:
    plan, found = outcome.plan, outcome.evidence
    if plan is None or found is None:
        return _in_short(outcome)

    def in_words(c: CandidateError) -> str:
        dropped = ", dropped after half of the iterations" if c.dropped else ""
        level = "" if c.level == 1 else f" and priors for objects of {c.level:g} x the mean brightness"
        return f"{c.basis} with {c.noise_share:.0%} of the noise{level}: {c.held_out_error:.2%}{dropped}"

    words = [
        "Held-out errors of the candidates, spectral basis and share of the estimated noise: "
        + "; ".join(map(in_words, found.candidates))
        + f". Chosen: {plan.basis} with {plan.noise_share:.0%}.",
        f"To be taken, another basis must predict better by {MARGIN:.1%}, weights for brighter objects by "
        f"{LEVEL_MARGIN:.0%}; the spectra of the scene itself must not predict worse by more than {SCENE_LOSS:.0%}.",
    ]
    if plan.noise is not None:
        words.append(
            f"Noise from {plan.noise.source}: variance {plan.noise.alpha:.3g} y + {plan.noise.beta:.3g}, in the unit "
            "of y."
        )
    if found.priors:
        compared = "; ".join(
            f"{p.prior}: {p.held_out_error:.2%}" + ("" if p.imprint is None else f", imprint {p.imprint:.2f}")
            for p in found.priors
        )
        words.append(
            f"Prior of the final run: {plan.final_prior} ({compared}; of "
            "one shot, the non-local prior is taken where its error is not clearly higher, a learned one where error "
            "and imprint are hardly higher; of several shots, the non-local prior is)."
        )
    words.append(f"The final run {outcome.result.message}.")
    return words
