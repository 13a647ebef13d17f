"""A first cube for the learned prior, and the noise of its snapshot, for a batch and without waiting for the device."""

from functools import partial

import torch
from torch import Tensor

from cassi.optics.detector import object_levels
from cassi.optics.protocol import Camera
from cassi.solvers.subspace_tv import subspace_tv

MIN_VARIANCE = 1e-4  # relative to the light


def quick_start(
    A: Camera, y: Tensor, basis: Tensor, seen: Tensor, *, num_iters: int = 40, variance: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Coefficient images of a cube by subspace TV, and the variance of y.

    A third of the iterations treats y as nearly exact. If the variance is not given, it is then estimated from the
    squared errors r^2 at the held-out pixels, and again at the end, as

        variance = alpha max(y, 0) + beta

    the line through the means of the darker and the brighter ones: noise, errors of the mask and of the cube. During
    the iterations it is at least `MIN_VARIANCE` times the mean square of the snapshot of a uniform cube at the level of
    objects, and in the end a hundredth of that, because errors in the dark must not be divided by almost nothing.

    Args:
        A: any camera, with all its detector pixels.
        y: (..., H, W'); the snapshots of a batch may differ in brightness and noise.
        basis: (K, C), orthonormal rows, on the device of y.
        seen: (H, W') of 0 and 1; the zeros are held out.
        num_iters: total number, at least 3.
        variance: of y, like y; NaN where unknown.

    Returns:
        z (..., K, H, W), and the variance (..., H, W').
    """
    train, y_seen = A.leave_out(seen > 0), y * seen
    lam = object_levels(A, y)[..., None, None]
    held, floor = 1 - seen, MIN_VARIANCE * lam.square() * A.majorizer().mean()

    def estimate(x: Tensor) -> Tensor:
        r = y - A.forward(x.clamp(min=0))
        fitted = variance_at(y, r.square(), held)
        return fitted if variance is None else torch.where(variance.isnan(), fitted, variance)

    solve = partial(subspace_tv, train, y_seen, basis, tv_weight=lam, records=False)
    first = num_iters // 3
    result, state = solve(num_iters=first, variance=floor.expand(y.shape))
    result, state = solve(num_iters=num_iters - first, variance=estimate(result.x).maximum(floor), state=state)
    return state.z, estimate(result.x).maximum(floor / 100)


def variance_at(y: Tensor, squared: Tensor, held: Tensor) -> Tensor:
    """alpha max(y, 0) + beta of `quick_start` from squared errors at the pixels where `held` is 1; all like y.

    beta is at least a tenth of the mean of the darker half, as every camera has noise in the dark.
    """
    light, tiny = y.clamp(min=0), torch.finfo(y.dtype).tiny

    def mean(t: Tensor, where: Tensor) -> Tensor:
        total: Tensor = (t * where).sum((-2, -1), keepdim=True) / where.sum((-2, -1), keepdim=True).clamp(min=1)
        return total

    bright = held * (light > mean(light, held))
    dark = held - bright
    dark_light, dark_squared = mean(light, dark), mean(squared, dark)
    slope = (mean(squared, bright) - dark_squared) / (mean(light, bright) - dark_light).clamp(min=tiny)
    alpha = torch.minimum(slope.clamp(min=0), 0.9 * dark_squared / dark_light.clamp(min=tiny))
    return alpha * light + (dark_squared - alpha * dark_light)
