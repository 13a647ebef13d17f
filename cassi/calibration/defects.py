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
from cassi.optics.outliers import MANY
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.subspace_tv import subspace_tv

RELATIVE_NOISE = 0.02  # that a short reconstruction allows for, of the root mean square of the light
SIDE = 9  # of the square in which residuals are compared [pixel]
# Times what is usual, about seven standard deviations of Gaussian noise. On ten CAVE windows (128 x 128 px; clean,
# 10,000 and 1,000 e) it marks 3 of 710,000 sound pixels, and of dead ones 117 of 150 at 10,000 e, all but dark ones.
LIMIT = 5.0


def find_defects(A: Shot, snapshots: Sequence[torch.Tensor]) -> np.ndarray:
    """Pixels that disagree with their surroundings in most of the snapshots (H, W') of a camera, (H, W') bool.

    With r = y - Phi x the residual of a short reconstruction, a pixel is a defect where

        |r| > 5 (mean |r| + median |r|)    and    |r| > 2 |r|_3

    with the mean over the 9 x 9 pixels around, the median over the snapshot, and |r|_3 the third largest of the 3 x 3
    pixels around: two adjacent defects do not hide each other, and a line of one color, of which some bands are not in
    the basis, is none. r is taken once more from a cube without the pixels that were found, for it is distorted
    beside them, too. More than 0.5 % are not believed.
    """
    votes = np.zeros(A.measurement_shape, int)
    for y in snapshots:
        found = _disagree(_residual(A, y, torch.zeros_like(y, dtype=torch.bool)))
        if found.any():
            found = _disagree(_residual(A, y, torch.as_tensor(found)))
        votes += found
    most: np.ndarray = 2 * votes > len(snapshots)
    return most if most.mean() <= MANY else np.zeros_like(most)


def _residual(A: Shot, y: torch.Tensor, left_out: torch.Tensor) -> np.ndarray:
    """|y - Phi x| of the cube x that is reconstructed without some of the pixels, for y of brightness 1."""
    seen = A.gram_diag() > 0
    known = (seen & ~left_out).to(y)
    y = torch.where(seen, y, 0) / brightness(A, y)
    variance = RELATIVE_NOISE**2 * float(y.square().mean())
    basis = smooth_basis(A.cube_shape[0], min(COMPONENTS, A.cube_shape[0]))
    x = subspace_tv(A.weighted(known), y * known, basis, variance=variance, num_iters=ITERATIONS)[0].x
    r: np.ndarray = torch.where(seen, y - A.weighted(None).forward(x), 0).abs().numpy()
    return r


def _disagree(r: np.ndarray) -> np.ndarray:
    """Where |r| (H, W') exceeds what is usual around by far."""
    if min(r.shape) < SIDE or not r.any():
        return np.zeros(r.shape, bool)
    usual = uniform_filter(r, SIDE) + np.median(r[r > 0])
    found: np.ndarray = (r > LIMIT * usual) & (r > 2 * rank_filter(r, -3, size=3))
    return found
