"""A first cube for the learned prior in a few iterations, and the noise of its snapshot: a batch, without waiting."""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.optics.detector import object_levels
from cassi.optics.protocol import Camera
from cassi.priors.spectral_basis import synthesise
from cassi.solvers.subspace_tv import iterations

EXACT = 1e-4  # the least variance, relative to the light


def quick_start(
    A: Camera, y: Tensor, basis: Tensor, seen: Tensor, *, num_iters: int = 40, variance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Coefficient images of a cube by subspace TV, and the variance of y.

    A third of the iterations takes y for nearly exact. Where the variance is not given, it is then estimated at the
    pixels that are not seen, and again at the end, from the squared error r^2 there, as

        variance = alpha max(y, 0) + beta

    the line through the means of the darker and the brighter ones: noise, a wrong mask and what the cube lacks. While
    TV runs it is at least `EXACT` times the mean square of what a cube of one value, the level of objects, would
    record, and a hundredth of that in the end: errors where next to no light arrives are not divided by next to
    nothing.

    Args:
        A: any camera, with all of its detector pixels.
        y: (..., H, W'); snapshots of a batch may differ in level and noise.
        basis: (K, C), orthonormal rows, on the device of y.
        seen: (H, W') of 0 and 1; the zeros are held out.
        num_iters: in all, at least 3.
        variance: of y where it is known, like y; NaN elsewhere.

    Returns:
        z (..., K, H, W), and the variance (..., H, W').
    """
    train, y_seen = A.leave_out(seen > 0), y * seen
    lam = object_levels(A, y)[..., None, None]
    held, least = 1 - seen, EXACT * lam.square() * A.majorizer().mean()

    def estimated(z: Tensor) -> Tensor:
        r = y - A.forward(synthesise(z, basis).clamp_(min=0))
        fitted = variance_at(y, r.square(), held)
        return fitted if variance is None else torch.where(variance.isnan(), fitted, variance)

    state = iterations(train, y_seen, basis, least.expand(y.shape), lam, range(num_iters // 3))
    state = iterations(
        train, y_seen, basis, estimated(state.z).maximum(least), lam, range(num_iters - num_iters // 3), state=state
    )
    return state.z, estimated(state.z).maximum(least / 100)


def variance_at(y: Tensor, squared: Tensor, held: Tensor) -> Tensor:
    """alpha max(y, 0) + beta of `quick_start` from squares at the pixels where `held` is 1; all like y.

    beta keeps at least a tenth of what the darker half has: no camera is without noise in the dark.
    """
    level, tiny = y.clamp(min=0), torch.finfo(y.dtype).tiny

    def mean(t: Tensor, where: Tensor) -> Tensor:
        total: Tensor = (t * where).sum((-2, -1), keepdim=True) / where.sum((-2, -1), keepdim=True).clamp(min=1)
        return total

    bright = held * (level > mean(level, held))
    dark = held - bright
    dark_level, dark_squared = mean(level, dark), mean(squared, dark)
    slope = (mean(squared, bright) - dark_squared) / (mean(level, bright) - dark_level).clamp(min=tiny)
    alpha = torch.minimum(slope.clamp(min=0), 0.9 * dark_squared / dark_level.clamp(min=tiny))
    return alpha * level + (dark_squared - alpha * dark_level)
