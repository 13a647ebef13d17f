"""How sure a cube is: the spread of reconstructions from parts of the detector."""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.choice.held_out import hold_out
from cassi.choice.plan import PRIOR_STRENGTH
from cassi.optics.protocol import Camera
from cassi.solvers.subspace_tv import subspace_tv


def fold_spread(
    A: Camera,
    y: Tensor,
    basis: Tensor,
    variance: Tensor,
    *,
    lit: Tensor,
    folds: int = 6,
    fraction: float = 0.3,
    num_iters: int = 80,
    seed: int = 0,
) -> Tensor:
    """Standard deviation of each voxel over reconstructions that each leave out a random part of the detector.

        sd^2 = (1 - f) / f  sum_s (x_s - mean x)^2 / (S - 1)      delete-d jackknife, f the fraction left out, S folds

    Shao & Wu, Annals of Statistics 17, 1176 (1989). It sees noise and missing data, not a prior that is wrong.
    """
    total = torch.zeros(A.cube_shape, dtype=torch.float64, device=y.device)
    squares = torch.zeros_like(total)
    for fold in range(folds):
        keep = (~hold_out(lit, seed + 1 + fold, fraction)).to(y)
        result, _ = subspace_tv(
            A.leave_out(keep),
            y * keep,
            basis,
            variance=variance,
            prior_strength=PRIOR_STRENGTH,
            num_iters=num_iters,
        )
        total += result.x
        squares += result.x.double() ** 2
    spread = (squares / folds - (total / folds) ** 2).clamp(min=0) * folds / (folds - 1)
    return ((1 - fraction) / fraction * spread).sqrt().to(y.dtype)
