"""The last step of the default solver: a learned prior's correction of the cube that was found without it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cassi.optics.detector import brightness
from cassi.optics.protocol import Camera
from cassi.priors.learned import SHA256, VIEWS, LearnedPrior, load_prior
from cassi.priors.spectral_basis import analyse, smooth_basis, synthesise
from cassi.solvers.loop import Monitor, Result
from cassi.solvers.unrolled import unrolled

# Of the correction: on scenes that it was not trained with all of it is best on average, and loses up to 0.7 dB on very
# smooth ones; 0.7 of it gains as much, and loses 0.2 dB at most.
SHARE = 0.7


@dataclass(frozen=True, eq=False)
class LearnedStep:
    """A prior and the smooth basis (K, C) of the bands at hand, in which it works."""

    prior: LearnedPrior
    basis: Tensor

    @staticmethod
    def of(prior: LearnedPrior, A: Camera, wavelengths: Sequence[float] | np.ndarray | None) -> LearnedStep:
        """The step for a camera's bands."""
        axis = A.cube_shape[0] if wavelengths is None else wavelengths
        return LearnedStep(prior, smooth_basis(axis, prior.size.components))

    def __call__(
        self,
        A: Camera,
        y: Tensor,
        x: Tensor,
        variance: Tensor,
        *,
        level: float | None = None,
        share: float = SHARE,
        views: int = VIEWS,
        monitor: Monitor | None = None,
    ) -> Result:
        """The cube x corrected; what of it lies outside the span of the basis stays as it is.

        x + share (B^T z + rest - x),    z the coefficients corrected

        Args:
            A, y: camera and snapshot.
            x: cube to begin with (C, H, W).
            variance: of y.
            level: brightness that the network sees x relative to; of the snapshot at hand if not given. A tile is
                given that of its frame.
            share, views: of the correction that is added, and of the scene that it is the mean of.
            monitor: see `cassi.solvers.loop`.
        """
        start = analyse(x, self.basis)
        rest = x - synthesise(start, self.basis)
        with torch.no_grad():
            result, _ = unrolled(
                A,
                y - A.forward(rest),
                self.basis,
                self.prior.to(y.device),
                start,
                variance=variance.expand(y.shape),
                level=brightness(A, y) if level is None else level,
                views=views,
                monitor=monitor,
            )
        return Result(torch.lerp(x, result.x + rest, share), result.history, result.status)


@functools.cache
def shipped_prior() -> LearnedPrior | None:
    """The prior that comes with the program; None where it comes with none."""
    return load_prior() if SHA256 else None
