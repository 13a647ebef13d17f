"""What is decided about a reconstruction, as plain values: what the user asks for, and the plan that was found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.choice.asked_for import PRIORS as PRIORS
from cassi.choice.asked_for import SOLVERS as SOLVERS
from cassi.choice.asked_for import Prior as Prior
from cassi.choice.asked_for import Quality as Quality
from cassi.choice.asked_for import Solver as Solver
from cassi.choice.learned_step import LearnedStep, shipped_prior
from cassi.choice.noise import NoiseModel
from cassi.errors import InputError
from cassi.priors.gaussian_spectra import SpectralPrior
from cassi.priors.learned import LearnedPrior
from cassi.solvers.loop import Monitor

TV = "total variation"
# In units of the cube's brightness; for admm-tv and fista-tv, which weigh TV against the squared misfit, times the mean
# of gram_diag.
TV_WEIGHT = {"subspace": 1.0, "gap-tv": 0.3, "admm-tv": 0.03, "fista-tv": 0.03}
SETTLED = 0.93  # share of a held-out error that must be left for noise to matter
CORRECTIONS, BETWEEN = 4, 4  # of the learned prior, and iterations with the non-local one between them
CHANCE = 0.02  # errors over some 1500 held-out pixels that differ by less say nothing


@dataclass(frozen=True)
class Effort:
    """How much a final run tries.

    Attributes:
        tv_first: iterations with total variation before another prior is tried, the learned one too.
        tv_all: the same in all, where none predicts as well, or there is none to try.
        sigmas: noise levels of the non-local denoiser, in units of the weights of the total variation; may be none. A
            later one is taken where it predicts better than by chance.
        unsettled: they are multiplied by where `tv_first` have lowered the held-out error by more than 7 %: there is
            little noise then.
        first, most: iterations with each of them, and with the best of them in all.
        give_up: held-out error relative to total variation's above which one is dropped after half of `first`.
        worse: a run is over when its error is above its lowest by this share: it fits noise.
        corrections: of the learned prior at most, with the non-local one between them.
        lead: iterations with the non-local prior before them; 0: as many as without them.
        tolerance, give_back: a non-local cube is taken where its error is above total variation's by no more than one
            share of that, or the other of what `tv_first` have gained: while the error still falls fast, it tells more
            of how far a run has come than of its prior.
    """

    tv_first: int
    tv_all: int
    sigmas: tuple[float, ...] = ()
    first: int = 0
    most: int = 0
    give_up: float = math.inf
    worse: float = 0.05
    tolerance: float = CHANCE
    give_back: float = 0.0
    unsettled: float = 1.0
    corrections: int = 1
    lead: int = 0

    def strengths(self, before: float, reference: float) -> tuple[float, ...]:
        """The noise levels to try, for the errors before and after `tv_first`."""
        factor = 1.0 if reference >= SETTLED * before else self.unsettled
        return tuple(round(factor * sigma, 2) for sigma in self.sigmas)

    def limit(self, before: float, reference: float) -> float:
        """The error up to which another prior's cube is taken, for those before and after `tv_first`."""
        return reference + max(self.tolerance * reference, self.give_back * (before - reference))


EFFORTS: dict[str, Effort] = {
    "fast": Effort(100, 200),
    "default": Effort(
        200,
        500,
        (0.5,),
        24,
        24,
        give_up=1.45,
        tolerance=0.05,
        give_back=0.4,
        unsettled=0.7,
        corrections=CORRECTIONS,
        lead=12,
    ),
    "best": Effort(500, 2000, (0.5, 0.2), 24, 160, corrections=CORRECTIONS),
}


def with_learned(prior: str, corrections: int) -> str:
    """Of a prior whose cube a learned one has corrected so many times, in words."""
    return f"{prior}{', learned' if corrections else ''}{f' {corrections} times' if corrections > 1 else ''}"


@dataclass(frozen=True, eq=False)
class Plan:
    """What the default solver decides. The plan of one snapshot serves others that are like it.

    Attributes:
        basis: "smooth-8" and the like, with the number of components; "scene-10", learned from a first reconstruction;
            "narrow-10", from one with all bands free; or "library-4" and "library-8".
        noise_share: >= 0, times the variance of the noise model.
        noise: variance of y; None: estimated anew.
        prior: of the final run, "total variation" or "non-local, 0.5" and the like; None: compared anew.
        iterations: of the final run, with total variation and after it with another prior; None: by the effort.
        vectors: (K, C), the basis itself; None: made anew, from the scene where that is its name.
        learned: a learned prior's correction of the cube; None: without.
        corrections: how many, with the non-local prior between them.
        level: of the objects that matter, in units of the mean brightness: the weights of priors are relative to it.
            Above 1 where they are few in a black field.
    """

    basis: str
    noise_share: float
    noise: NoiseModel | None = None
    prior: str | None = None
    iterations: tuple[int, int] | None = None
    vectors: Tensor | None = None
    learned: LearnedStep | None = None
    level: float = 1.0
    corrections: int = 1

    @property
    def complete(self) -> bool:
        """Whether nothing is left to choose."""
        return self.noise is not None and self.iterations is not None and self.vectors is not None

    @property
    def sigma(self) -> float | None:
        """Of the non-local denoiser, in units of the weights of the total variation; None with that alone."""
        return None if self.prior in (None, TV) else float(str(self.prior).rpartition(" ")[2])

    @property
    def final_prior(self) -> str:
        """The prior of the final run, with the learned one's corrections, in words."""
        return with_learned(str(self.prior), 0 if self.learned is None else self.corrections)

    def check_bands(self, num_bands: int) -> None:
        """Raise InputError for a camera with another number of bands than that of the plan."""
        if self.vectors is not None and self.vectors.shape[-1] != num_bands:
            raise InputError(
                f"the plan is for {self.vectors.shape[-1]} bands, the measurement has {num_bands}; give the plan of a "
                "result with as many bands, or none"
            )

    def scaled(self, factor: float) -> Plan:
        """The same plan for measurements times `factor`."""
        return self if self.noise is None else replace(self, noise=self.noise.scaled(factor))

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; `Plan.from_dict` takes them back."""
        return {
            "basis": self.basis,
            "noise_share": self.noise_share,
            "noise": None if self.noise is None else self.noise.as_dict(),
            "prior": self.prior,
            "iterations": None if self.iterations is None else list(self.iterations),
            "vectors": None if self.vectors is None else self.vectors.double().cpu().tolist(),
            "learned": None if self.learned is None else self.learned.basis.double().cpu().tolist(),
            "level": self.level,
            "corrections": self.corrections,
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Plan:
        """The plan of `as_dict`; a learned prior is the one that comes with the program.

        Raises:
            InputError: a value is missing or of another kind, or the program comes without a learned prior.

        Example:
            >>> Plan.from_dict(Plan("smooth-8", 0.4).as_dict()).basis
            'smooth-8'
        """
        try:
            noise, iterations, vectors = values["noise"], values["iterations"], values["vectors"]
            learned = None
            if values.get("learned") is not None:
                learned = LearnedStep(needed_prior(), torch.tensor(values["learned"], dtype=torch.float64))
            return Plan(
                str(values["basis"]),
                float(values["noise_share"]),
                None if noise is None else NoiseModel(noise["alpha"], noise["beta"], noise["source"]),
                values["prior"],
                None if iterations is None else (int(iterations[0]), int(iterations[1])),
                None if vectors is None else torch.tensor(vectors, dtype=torch.float64),
                learned,
                float(values.get("level", 1.0)),
                int(values.get("corrections", 1)),
            )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise InputError(f"this is no plan of a reconstruction ({error!r})") from error


@dataclass(frozen=True, eq=False)
class Method:
    """Which solver, and its hyper-parameters; what is None is chosen, from the snapshot or by default.

    Attributes:
        solver: one of `SOLVERS`.
        num_iters, tv_weight, quality, uncertainty, plan: as for `cassi.reconstruct`.
        spectral_prior: spectra to expect, at brightness 1.
        prior: of the final run, one of `PRIORS`.
        learned: the learned prior; None: the one that comes with the program, if any.

    Raises:
        InputError: an unknown solver, prior or quality, a value out of range, or one that this solver or a plan does
            not take.
    """

    solver: str = "auto"
    num_iters: int | None = None
    tv_weight: float | None = None
    quality: str = "default"
    uncertainty: bool = False
    spectral_prior: SpectralPrior | None = None
    plan: Plan | None = None
    prior: str = "auto"
    learned: LearnedPrior | None = None

    def __post_init__(self) -> None:
        solver = self.solver
        if solver not in SOLVERS:
            raise InputError(f"unknown solver {solver!r}, expected one of {', '.join(SOLVERS)}")
        if self.quality not in EFFORTS:
            raise InputError(f"unknown quality {self.quality!r}, expected one of {', '.join(EFFORTS)}")
        if self.quality != "default" and solver != "auto":
            raise InputError(
                f'quality {self.quality!r} is a choice of solver "auto", got solver {solver!r}; leave one of them out'
            )
        if self.uncertainty and solver not in ("auto", "gaussian"):
            raise InputError(
                f'only solvers "auto" and "gaussian" estimate the uncertainty, got solver {solver!r}; leave one of '
                "them out"
            )
        if self.plan is not None and (solver != "auto" or not isinstance(self.plan, Plan)):
            raise InputError(
                f'a plan is that of an earlier result, for solver "auto"; got {type(self.plan).__name__} for {solver!r}'
            )
        if self.plan is not None:
            given = {
                "num_iters": self.num_iters is not None,
                "quality": self.quality != "default",
                "weights": self.learned is not None,
                "spectral_prior": self.spectral_prior is not None,
            }
            check_plan(self.plan, given)
        if self.prior not in PRIORS:
            raise InputError(f"unknown prior {self.prior!r}, expected one of {', '.join(PRIORS)}")
        if self.prior != "auto" and (solver != "auto" or self.plan is not None):
            raise InputError(f'prior {self.prior!r} is a choice of solver "auto" without a plan; leave one of them out')
        if self.prior == "nonlocal" and self.quality == "fast":
            raise InputError("quality fast has no non-local prior, got prior 'nonlocal'; leave one of them out")
        if self.prior in ("nonlocal", "learned") and self.num_iters is not None:
            raise InputError(
                f"a number of iterations means total variation alone, got prior {self.prior!r}; leave one of them out"
            )
        if self.learned is not None and (self.prior not in ("auto", "learned") or solver != "auto"):
            raise InputError(
                f"weights of a learned prior are of no use with solver {solver!r} and prior {self.prior!r}; leave one "
                "of them out"
            )
        check_number("TV weight", self.tv_weight, above=0.0, what="positive")
        if self.num_iters is not None and not (isinstance(self.num_iters, int | np.integer) and self.num_iters >= 1):
            raise InputError(f"the number of iterations must be a whole number, at least 1, got {self.num_iters!r}")
        if self.tv_weight is not None and solver not in TV_WEIGHT:
            raise InputError(
                f"{solver} takes no TV weight; leave it out or choose subspace, gap-tv, admm-tv or fista-tv"
            )
        check_prior(solver, self.spectral_prior)


Progress = Callable[[str, float], None]
"""Called with the name of a step, and the share of it that is done: 0 when it begins."""


@dataclass(frozen=True, eq=False)
class Run:
    """How to compute, which is no part of what is computed (but where the time is limited).

    Attributes:
        seed: of the random choices.
        budget: seconds in which to be done; None is no limit.
        monitor: as for `cassi.solvers.gap.gap`.
        progress: called with the name of a step and the share of it that is done.

    Raises:
        InputError: a budget that is no positive number, a seed that is no whole number of 64 bits.
    """

    seed: int = 0
    budget: float | None = None
    monitor: Monitor | None = None
    progress: Progress | None = None

    def __post_init__(self) -> None:
        check_number("budget", self.budget, above=0.0, what="a positive number of seconds")
        if not isinstance(self.seed, int | np.integer) or not -(2**63) <= self.seed < 2**63:
            raise InputError(f"the seed must be a whole number of 64 bits, got {self.seed!r}")

    def tell(self, step: str, share: float) -> None:
        """To whom it is of interest."""
        if self.progress is not None:
            self.progress(step, share)


def needed_prior() -> LearnedPrior:
    """The learned prior that comes with the program.

    Raises:
        InputError: it comes with none.
    """
    prior = shipped_prior()
    if prior is None:
        raise InputError("this program comes without a learned prior; train one (scripts/train.py) and give --weights")
    return prior


def check_plan(plan: Plan | None, given: Mapping[str, bool]) -> None:
    """Raise InputError for arguments, by name, that are given beside a plan that leaves nothing to choose."""
    if plan is None or not plan.complete:
        return
    if idle := [name for name, value in given.items() if value]:
        raise InputError(
            f"a plan brings noise, basis, prior and iterations along, got {', '.join(idle)} too; leave one of them out"
        )


def check_prior(solver: str, given: object) -> None:
    """Raise InputError for a spectral prior, or files of one, that this solver does not take."""
    if given is not None and solver not in ("auto", "gaussian"):
        raise InputError(f"{solver} takes no spectral prior; leave it out or choose auto or gaussian")


def check_number(name: str, value: object, *, above: float = -math.inf, what: str = "a finite number") -> None:
    """Raise InputError for anything but None or a finite number above a limit."""
    if value is None:
        return
    if not isinstance(value, int | float | np.number) or isinstance(value, bool):
        raise InputError(f"the {name} must be a number, got {value!r}")
    if not (math.isfinite(value) and value > above):
        raise InputError(f"the {name} must be {what}, got {value}")
