"""Detector pixels that no scene explains beside their neighbors: dead, warm, or stuck ones.

A dead pixel is no outlier of the snapshot, whose neighbors differ by as much as the mask does. But the scene that
explains them says what it should have counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.ndimage import rank_filter, uniform_filter

from cassi.optics.cropping import Shot
from cassi.optics.detector import brightness
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.subspace_tv import subspace_tv

COMPONENTS, ITERATIONS = 12, 40  # of the short reconstruction
RELATIVE_NOISE = 0.02  # that it allows for, of the mean light
NEIGHBORHOOD = 9  # side of the square in which residuals are compared [pixel]
# On ten CAVE windows without a defect (128 x 128 px, clean, 10,000 and 1,000 e), 7 of 710,000 pixels exceed it; of dead
# ones at 10,000 e it finds all but those that are nearly dark.
LIMIT = 5.0
ALONE = 2.0  # times the second largest residual beside it: a line of one color has neighbors that are as large
MAX_SHARE = 0.005  # of the pixels; more are no defects, but a scene or a camera that is not understood


def find_defects(A: Shot, snapshots: Sequence[torch.Tensor]) -> np.ndarray:
    """Pixels that disagree with their surroundings in most of the snapshots (H, W') of a camera, (H, W') bool.

    With r = y - Phi x the residual of a short reconstruction, a pixel is a defect where

        |r| > 5 s    and    |r| > 2 |r|_2,      s = 1.25 (mean |r| + median |r| / 3)

    with the mean over the 9 x 9 pixels around, the median over the snapshot, and |r|_2 the second largest of the eight
    neighbors, so that two adjacent defects do not hide each other. s is near the standard deviation of Gaussian noise.
    """
    votes = np.zeros(A.measurement_shape, int)
    for y in snapshots:
        found = _disagree(_residual(A, y, torch.zeros_like(y, dtype=torch.bool)))
        if found.any():  # what the cube made of them disagrees beside them, too
            found = _disagree(_residual(A, y, torch.as_tensor(found)))
        votes += found
    most: np.ndarray = 2 * votes > len(snapshots)
    return most if most.mean() <= MAX_SHARE else np.zeros_like(most)


def _residual(A: Shot, y: torch.Tensor, left_out: torch.Tensor) -> np.ndarray:
    """|y - Phi x| of the cube x that is reconstructed without some of the pixels, for y of brightness 1."""
    seen = A.gram_diag() > 0
    known = (seen & ~left_out).to(y)
    a, y = A.weighted(known), torch.where(seen, y, 0) / brightness(A, y)
    variance = RELATIVE_NOISE**2 * float(y.square().mean())
    basis = smooth_basis(A.cube_shape[0], min(COMPONENTS, A.cube_shape[0]))
    x = subspace_tv(a, y * known, basis, variance=variance, num_iters=ITERATIONS)[0].x
    difference: np.ndarray = torch.where(seen, y - A.weighted(None).forward(x), 0).abs().numpy()
    return difference


def _disagree(r: np.ndarray) -> np.ndarray:
    """Where |r| (H, W') exceeds what is usual around by far."""
    if min(r.shape) < NEIGHBORHOOD or not r.any():
        return np.zeros(r.shape, bool)
    usual = np.minimum(r, np.quantile(r, 0.99))  # defects themselves do not count
    s = 1.25 * (uniform_filter(usual, NEIGHBORHOOD) + np.median(r[r > 0]) / 3)
    ring = np.ones((3, 3), bool)
    ring[1, 1] = False
    second = rank_filter(r, -2, footprint=ring)
    found: np.ndarray = (r > LIMIT * s) & (r > ALONE * second)
    return found
