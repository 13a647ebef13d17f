"""The plan of a reconstruction: the choices of the default solver as plain values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from cassi.choice.chain import Chain, as_list, from_list
from cassi.choice.stages import Problem, Tv
from cassi.errors import InputError
from cassi.evidence.noise import NoiseModel
from cassi.optics.wavelengths import same_bands, span
from cassi.priors.learned import KINDS, LearnedPrior, shipped_prior


def name_of(weights: LearnedPrior | None) -> str:
    """The name of weights in a plan; empty without any."""
    return "" if weights is None else weights.source or "given in memory"


@dataclass(frozen=True, eq=False)
class Plan:
    """The choices of the default solver. The plan of one snapshot can be used for similar ones.

    Attributes:
        basis: its name, with the number of components: "scene-10", learned from a pilot; "narrow-10", from a cube with
            all bands free.
        vectors: (K, C), the basis itself.
        noise: variance of y; where unknown, with the held-out errors of total variation.
        relative_level: of the objects, in units of the mean brightness: the weights of priors are relative to it.
        stages: in order, see `cassi.choice.stages`.
        learned: the network of its stages; None without one.
        axis: number of bands or their wavelengths, for the smooth basis of the network.
        source: name of the file it was read from.
        replaced: the weights that it names, where others are used in their place.
    """

    basis: str
    vectors: Tensor = field(repr=False)
    noise: NoiseModel
    relative_level: float
    stages: Chain
    learned: LearnedPrior | None = field(default=None, repr=False)
    axis: int | tuple[float, ...] | None = None
    source: str = ""
    replaced: str = ""

    @property
    def prior(self) -> str:
        """The priors of its stages, in words."""
        return ", ".join(name for name, _ in groupby(stage.name for stage in self.stages))

    @property
    def is_learned(self) -> bool:
        """Whether a network is among its stages."""
        return any(stage.needs_network for stage in self.stages)

    @property
    def network(self) -> str:
        """The weights of a network among its stages, and what they may be used for, in words; empty without one."""
        if not self.is_learned or self.learned is None:
            return ""
        others = f" in place of the plan's ({self.replaced})" if self.replaced else ""
        return self.learned.weights + others

    def with_weights(self, weights: LearnedPrior, named: str) -> Self:
        """The plan, which names some weights, with these."""
        if weights is self.learned:
            return self
        return replace(self, learned=weights, replaced="" if named == name_of(weights) else named)

    def problem(self, y: Tensor, brightness: float | None = None) -> Problem:
        """The problem that its stages solve for a snapshot; `brightness` as for `Problem`."""
        basis, variance = self.vectors.to(y), self.noise.variance(y)
        return Problem(basis, variance, brightness, self.relative_level, self.learned, self.axis)

    def check_bands(self, num_bands: int, wavelengths: Sequence[float] | np.ndarray | None = None) -> None:
        """Raise InputError for a camera with other bands than those of the plan, in number or wavelengths [nm]."""
        if self.vectors.shape[-1] != num_bands:
            raise InputError(
                f"the plan is for {self.vectors.shape[-1]} bands, the measurement has {num_bands}; give the plan of a "
                "result with as many bands, or none"
            )
        if isinstance(self.axis, tuple) and wavelengths is not None and not same_bands(self.axis, wavelengths):
            what = f"the plan is for {span(self.axis)}, the measurement has {span(wavelengths)}"
            raise InputError(f"{what}; give the plan of a result with these, or none")

    def scaled(self, factor: float) -> Self:
        """The same plan for measurements multiplied by `factor`."""
        return replace(self, noise=self.noise.scaled(factor))

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold; `Plan.from_dict` takes them back."""
        return {
            "basis": self.basis,
            "vectors": self.vectors.double().cpu().tolist(),
            "noise": self.noise.as_dict(),
            "level": self.relative_level,
            "stages": as_list(self.stages),
            "axis": list(self.axis) if isinstance(self.axis, tuple) else self.axis,
            "weights": name_of(self.learned) or None,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], weights: LearnedPrior | None = None) -> Self:
        """The plan of `as_dict`, with these weights, or else the shipped ones that it names.

        Raises:
            InputError: a value is missing or of another kind, or it names weights that are not shipped.
        """
        try:
            noise, axis, stages = values["noise"], values["axis"], from_list(values["stages"])
            vectors = torch.tensor(values["vectors"], dtype=torch.float64)
            alpha, beta, level = (float(v) for v in (noise["alpha"], noise["beta"], values["level"]))
            axis = tuple(map(float, axis)) if isinstance(axis, list) else axis
            bands = len(set(axis)) if isinstance(axis, tuple) else axis
            numbers = torch.tensor([alpha, beta, level, *(axis if isinstance(axis, tuple) else ())])
            finite = bool(numbers.isfinite().all() and vectors.float().isfinite().all())
            usable = finite and min(alpha, beta) >= 0 < level and stages and isinstance(stages[0], Tv)
            if not (usable and vectors.ndim == 2 and bands in (vectors.shape[1], None)):
                raise ValueError("numbers out of range, stages that nothing starts, or other bands than vectors have")
            model = NoiseModel(alpha, beta, str(noise["source"]))
            plan = cls(str(values["basis"]), vectors, model, level, stages, None, axis)
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise InputError(f"no plan of this version of the program ({error!r}); reconstruct again") from error
        named = values.get("weights", "research")  # older plans name none
        if weights is not None:
            return plan.with_weights(weights, str(named or ""))
        if not plan.is_learned:
            return plan
        if named not in tuple(KINDS):
            raise InputError(f"the plan uses weights of your own, {named}; give them, too (--weights FILE)")
        return replace(plan, learned=shipped_prior(named))
