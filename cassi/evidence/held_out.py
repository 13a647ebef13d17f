"""Detector pixels that are held out: an error estimate that needs no truth; `cassi.evidence.judge` compares by it."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from cassi.evidence.judge import Verdict
from cassi.evidence.misfit import SPREADS, Misfit
from cassi.optics.imprint import imprint_on
from cassi.optics.protocol import Camera
from cassi.solvers.loop import relative_norm

HELD_OUT = 0.02  # fraction of the detector pixels


def hold_out(lit: Tensor, seed: int, fraction: float = HELD_OUT) -> Tensor:
    """Draw detector pixels, (H, W') bool: about `fraction` of those that are lit, at least one."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(lit.shape, dtype=torch.float32, generator=generator).to(lit.device).masked_fill(~lit, math.inf)
    count = max(1, round(fraction * int(lit.sum())))
    return draw <= draw.flatten().kthvalue(count).values


@dataclass(frozen=True, eq=False)
class Split:
    """A camera and its snapshot with all detector pixels, and without those held out (row weight 0, y = 0).

    Attributes:
        A, y: with all pixels.
        held: bool like y, the pixels held out.
        A_train, y_train: without these.
        variance: of the noise of y, like y, once it is known: from then on what errors of the mask explain is taken off
            the misfit before a cube is judged (`cassi.evidence.misfit`).
    """

    A: Camera
    y: Tensor
    held: Tensor
    A_train: Camera
    y_train: Tensor
    variance: Tensor | None = None

    @classmethod
    def of(cls, A: Camera, y: Tensor, seed: int, fraction: float = HELD_OUT) -> Self:
        """Hold out this fraction of the lit pixels at random, in a batch of snapshots the same in each."""
        held = hold_out(A.majorizer() > 0, seed, fraction)
        return cls(A, y, held.expand(y.shape), A.leave_out(~held), y.masked_fill(held, 0))

    @cached_property
    def indices(self) -> Tensor:
        """Of the held-out pixels in the flat `y`: indexing by a mask would wait for a GPU each time."""
        return self.held.flatten().nonzero()[:, 0]

    @cached_property
    def values(self) -> Tensor:
        """y at the held-out pixels, (n,) float64, on the CPU."""
        return self._at_held_out(self.y)

    def misfit(self, x: Tensor) -> Tensor:
        """y - Phi x at the held-out pixels, (n,) float64, on the CPU."""
        return self.values - self._at_held_out(self.A.forward(x))

    def error(self, x: Tensor) -> float:
        """|y - Phi x| / |y| at the held-out pixels, for any cube x."""
        return relative_norm(self.misfit(x), self.values)

    def knowing(self, variance: Tensor) -> Self:
        """The same split once the variance of its noise is known."""
        return replace(self, variance=variance)

    def verdict(self, x: Tensor, *, imprint: bool = True) -> Verdict:
        """Judge a cube (C, H, W), negative values counted as 0, or without `imprint` a batch of them."""
        x = x.clamp(min=0)
        misfit = self.misfit(x)
        pattern = imprint_on(x, self.A, moves=(0.0,)) if imprint else None
        error, squared, spread = relative_norm(misfit, self.values), misfit.square(), 0.0
        if self.variance is not None and x.ndim == 3 and self.A.open is not None:
            squared, spread = self.without_mask_error(self.misfit_model(x))
        return Verdict(error, squared, pattern, spread)

    def misfit_model(self, x: Tensor, weight: Tensor | None = None) -> Misfit:
        """The misfit of a cube (C, H, W) >= 0, known at the pixels that are not held out."""
        if self.variance is None:
            raise ValueError("what errors of the mask explain depends on the noise; give its variance first")
        fitted = ~self.held & (self.A.majorizer() > 0)
        return Misfit.of(self.A, self.y, x, fitted, self.variance, weight)

    def without_mask_error(self, model: Misfit) -> tuple[Tensor, float]:
        """Squared misfits at held-out pixels less what errors of the mask explain, and the spread with the least."""
        squares = {s: self._at_held_out(model.left(s)).square() for s in (0.0, *SPREADS)}
        best = min(squares, key=lambda s: float(squares[s].sum()))
        return squares[best], best

    def _at_held_out(self, y: Tensor) -> Tensor:
        return y.flatten()[self.indices].cpu().double()
