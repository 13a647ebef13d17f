"""What is decided about a reconstruction, as plain values: what the user asks for, and the plan that was found."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.choice.asked_for import PRIORS, QUALITIES, SOLVERS, Progress
from cassi.choice.chain import Chain, as_list, from_list
from cassi.choice.noise import NoiseModel
from cassi.choice.stages import Problem
from cassi.errors import InputError
from cassi.priors.learned import LearnedPrior, shipped_prior
from cassi.solvers.loop import Monitor

# In units of the cube's brightness; for admm-tv, whose TV meets the squared misfit, times the mean of gram_diag
TV_WEIGHT = {"subspace": 1.0, "gap-tv": 0.3, "admm-tv": 0.03}


@dataclass(frozen=True, eq=False)
class Plan:
    """What the default solver decides. The plan of one snapshot serves others that are like it.

    Attributes:
        basis: in words, with the number of components: "scene-10", learned from a first reconstruction; "narrow-10",
            from one with all bands free.
        vectors: (K, C), the basis itself.
        noise: variance of y; where it is not known, with what total variation leaves unexplained.
        level: of the objects that matter, in units of the mean brightness: the weights of priors are relative to it.
        stages: one after the other, see `cassi.choice.stages`.
        learned: the network of their `Learned`; None where there is none.
        axis: bands or wavelengths that its smooth basis is made of.
    """

    basis: str
    vectors: Tensor = field(repr=False)
    noise: NoiseModel
    level: float
    stages: Chain
    learned: LearnedPrior | None = field(default=None, repr=False)
    axis: int | tuple[float, ...] | None = None

    @property
    def prior(self) -> str:
        """The priors of its stages, in words."""
        return ", ".join(dict.fromkeys(stage.name for stage in self.stages))

    @property
    def is_learned(self) -> bool:
        """Whether a network is among its stages."""
        return any(stage.needs_network for stage in self.stages)

    def problem(self, y: Tensor, brightness: float | None = None) -> Problem:
        """What its stages have in common, for a snapshot; `brightness` as for `Problem`."""
        return Problem(self.vectors.to(y), self.noise.variance(y), brightness, self.level, self.learned, self.axis)

    def check_bands(self, num_bands: int) -> None:
        """Raise InputError for a camera with another number of bands than that of the plan."""
        if self.vectors.shape[-1] != num_bands:
            raise InputError(
                f"the plan is for {self.vectors.shape[-1]} bands, the measurement has {num_bands}; give the plan of a "
                "result with as many bands, or none"
            )

    def scaled(self, factor: float) -> Plan:
        """The same plan for measurements times `factor`."""
        return replace(self, noise=self.noise.scaled(factor))

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; `Plan.from_dict` takes them back."""
        return {
            "basis": self.basis,
            "vectors": self.vectors.double().cpu().tolist(),
            "noise": self.noise.as_dict(),
            "level": self.level,
            "stages": as_list(self.stages),
            "axis": list(self.axis) if isinstance(self.axis, tuple) else self.axis,
        }

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Plan:
        """The plan of `as_dict`; its network is the one that comes with the program.

        Raises:
            InputError: a value is missing or of another kind.
        """
        try:
            noise, axis, stages = values["noise"], values["axis"], from_list(values["stages"])
            vectors = torch.tensor(values["vectors"], dtype=torch.float64)
            alpha, beta, level = (float(v) for v in (noise["alpha"], noise["beta"], values["level"]))
            axis = tuple(map(float, axis)) if isinstance(axis, list) else axis
            bands = len(axis) if isinstance(axis, tuple) else axis
            usable = min(alpha, beta) >= 0 < level and math.isfinite(alpha + beta + level + float(vectors.sum()))
            if not (usable and stages and vectors.ndim == 2 and bands in (vectors.shape[1], None)):
                raise ValueError("numbers out of range, no stages, or not as many bands as vectors have")
            prior = shipped_prior() if any(stage.needs_network for stage in stages) else None
            model = NoiseModel(alpha, beta, str(noise["source"]))
            return Plan(str(values["basis"]), vectors, model, level, stages, prior, axis)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise InputError(
                f"this is no plan of a reconstruction by this version of the program ({error!r}); reconstruct anew"
            ) from error


@dataclass(frozen=True, eq=False)
class Method:
    """Which solver, and its hyper-parameters; what is None is chosen, from the snapshot or by default.

    Attributes:
        solver: one of `SOLVERS`.
        num_iters, tv_weight, quality, uncertainty, plan: as for `cassi.reconstruct`.
        prior: of the final run, one of `PRIORS`.
        learned: the learned prior; None: the one that comes with the program.

    Raises:
        InputError: an unknown solver, prior or quality, a value out of range, or one that this solver or a plan does
            not take.
    """

    solver: str = "auto"
    num_iters: int | None = None
    tv_weight: float | None = None
    quality: str = "default"
    uncertainty: bool = False
    plan: Plan | None = None
    prior: str = "auto"
    learned: LearnedPrior | None = None

    def __post_init__(self) -> None:
        solver = self.solver
        if solver not in SOLVERS:
            raise InputError(f"unknown solver {solver!r}, expected one of {', '.join(SOLVERS)}")
        if self.quality not in QUALITIES:
            raise InputError(f"unknown quality {self.quality!r}, expected one of {', '.join(QUALITIES)}")
        if self.quality != "default" and solver != "auto":
            raise InputError(
                f'quality {self.quality!r} is a choice of solver "auto", got solver {solver!r}; leave one of them out'
            )
        if self.uncertainty and solver != "auto":
            raise InputError(
                f'only solver "auto" estimates the uncertainty, got solver {solver!r}; leave one of them out'
            )
        if self.plan is not None and (solver != "auto" or not isinstance(self.plan, Plan)):
            raise InputError(
                f'a plan is that of an earlier result, for solver "auto"; got {type(self.plan).__name__} for {solver!r}'
            )
        given = {
            "num_iters": self.num_iters is not None,
            "quality": self.quality != "default",
            "weights": self.learned is not None,
        }
        check_plan(self.plan, given)
        if self.prior not in PRIORS:
            raise InputError(f"unknown prior {self.prior!r}, expected one of {', '.join(PRIORS)}")
        if self.prior != "auto" and (solver != "auto" or self.plan is not None):
            raise InputError(f'prior {self.prior!r} is a choice of solver "auto" without a plan; leave one of them out')
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
            raise InputError(f"{solver} takes no TV weight; leave it out or choose subspace, gap-tv or admm-tv")


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


def check_plan(plan: Plan | None, given: Mapping[str, bool]) -> None:
    """Raise InputError for arguments, by name, that are given beside a plan that leaves nothing to choose."""
    if plan is None:
        return
    if idle := [name for name, value in given.items() if value]:
        raise InputError(
            f"a plan brings noise, basis, prior and iterations along, got {', '.join(idle)} too; leave one of them out"
        )


def check_number(name: str, value: object, *, above: float = -math.inf, what: str = "a finite number") -> None:
    """Raise InputError for anything but None or a finite number above a limit."""
    if value is None:
        return
    if not isinstance(value, int | float | np.number) or isinstance(value, bool):
        raise InputError(f"the {name} must be a number, got {value!r}")
    if not (math.isfinite(value) and value > above):
        raise InputError(f"the {name} must be {what}, got {value}")
