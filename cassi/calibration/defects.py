"""Detector pixels that no scene explains beside their neighbors: dead, warm, or stuck ones.

A dead pixel is no outlier of the snapshot, whose neighbors differ by as much as the mask does. But the scene that
explains them says what it should have counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.ndimage import rank_filter, uniform_filter

from cassi.calibration.camera_trials import COMPONENTS, ITERATIONS
from cassi.optics.cropping import Shot
from cassi.optics.detector import brightness
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.subspace_tv import subspace_tv

RELATIVE_NOISE = 0.02  # that a short reconstruction allows for, of the root mean square of the light
SIDE = 9  # of the square in which residuals are compared [pixel]
# Times what is usual, about seven standard deviations of Gaussian noise. On ten CAVE windows (128 x 128 px; clean,
# 10,000 and 1,000 e) it marks 3 of 710,000 sound pixels, and of dead ones 118 of 150 at 10,000 e, all but nearly dark
# ones.
LIMIT = 5.0
DEAD = 0.1  # share of the light that is expected, below which a pixel is dead
PASSES = 8  # at most: each sees what the defects beside it had hidden


def find_defects(A: Shot, snapshots: Sequence[torch.Tensor]) -> np.ndarray:
    """Pixels that disagree with their surroundings in most of the snapshots (H, W') of a camera, (H, W') bool.

    With r = y - Phi x the residual of a short reconstruction, a pixel is a defect where

        |r| > 5 s    and    y < 0.1 (Phi x)  or  it is alone,      s = mean of min(|r|, 5 median |r|) + median |r|

    with the mean over the 9 x 9 pixels around, and the median over the snapshot. No light makes a pixel dark, so that
    dead columns and blocks are found as well. Too much light may be of one color, which no smooth spectrum explains; so
    a warm pixel is one whose |r| at most one other within the 9 x 9 reaches by half. r is taken again from a cube
    without what was found, as defects distort it beside them. A row that is dead all along, and most of a block wider
    than 3 pixels, is not found: a scene that is dark there explains it.
    """
    votes = np.zeros(A.measurement_shape, int)
    for y in snapshots:
        found = np.zeros(A.measurement_shape, bool)
        for _ in range(PASSES):
            before, found = found, _disagree(*_fitted(A, y, torch.as_tensor(found, device=y.device)))
            if (found == before).all():
                break
        votes += found
    most: np.ndarray = 2 * votes > len(snapshots)
    return most


def _fitted(A: Shot, y: torch.Tensor, left_out: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """y of brightness 1 and Phi x of the cube that is reconstructed without some pixels; 0 where known as bad."""
    seen = A.gram_diag() > 0
    known = (seen & ~left_out).to(y)
    y = torch.where(seen, y, 0) / brightness(A, y)
    variance = RELATIVE_NOISE**2 * float(y.square().mean())
    basis = smooth_basis(A.cube_shape[0], min(COMPONENTS, A.cube_shape[0]))
    x = subspace_tv(A.weighted(known), y * known, basis, variance=variance, num_iters=ITERATIONS)[0].x
    of_y, of_x = torch.stack([y, torch.where(seen, A.weighted(None).forward(x), 0)]).cpu().numpy()
    return of_y, of_x


def _disagree(y: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Where y (H, W') differs from what is expected by far more than is usual around."""
    r = np.abs(y - expected)
    if min(r.shape) < SIDE or not r.any():
        return np.zeros(r.shape, bool)
    median = float(np.median(r[r > 0]))
    usual = uniform_filter(np.minimum(r, LIMIT * median), SIDE) + median
    off: np.ndarray = r > LIMIT * usual
    if not off.any():
        return off
    alone = r > 2 * rank_filter(r, -3, size=SIDE)
    found: np.ndarray = off & (alone | (y < DEAD * expected))
    return found
