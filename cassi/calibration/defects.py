"""Detector pixels that no scene explains beside their neighbors: dead, warm, or stuck ones.

A dead pixel is no outlier of the snapshot, whose neighbors differ by as much as the mask does. But the scene that
explains them says what it should have counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.ndimage import binary_propagation, generate_binary_structure, rank_filter, uniform_filter, uniform_filter1d

from cassi.calibration.camera_trials import COMPONENTS, ITERATIONS
from cassi.optics.cropping import Shot
from cassi.optics.detector import brightness
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.subspace_tv import subspace_tv

RELATIVE_NOISE = 0.02  # that a short reconstruction allows for, of the root mean square of the light
SIDE = 9  # of the square in which residuals are compared [pixel]
# Times what is usual, about seven standard deviations of Gaussian noise. On ten CAVE windows (128 x 128 px; clean,
# 10,000 and 1,000 e) it marks none of 699,000 sound pixels, and of dead ones 129 of 150 at 10,000 e, all but nearly
# dark ones.
LIMIT = 5.0
DEAD = 0.1  # share of the light that is expected, below which a pixel is dead
PASSES = 8  # at most: each sees what the defects beside it had hidden


def find_defects(A: Shot, snapshots: Sequence[torch.Tensor]) -> np.ndarray:
    """Pixels that disagree with their surroundings in most of the snapshots (H, W') of a camera, (H, W') bool.

    With r = y - Phi x the residual of a short reconstruction, a pixel is a defect where

        |r| > 5 s    and    y < 0.1 (Phi x)  or  it is alone,      s = mean of min(|r|, 5 median |r|) + median |r|

    with the mean over the 9 x 9 pixels around, and the median over pixels with a hundredth of the mean light. No light
    makes a pixel dark, so that dead columns and blocks are found as well; beside a defect |r| > 5 median |r| is
    enough for that, as a darker scene explains part of a block. Too much light may be of one color, which no smooth
    spectrum explains; so a warm pixel is one whose |r| at most one other within the 9 x 9 reaches by half. r is taken
    again from a cube without what was found, as defects distort it beside them. A dark scene explains a dead row; for
    that see `_dead_rows`.
    """
    votes = np.zeros(A.measurement_shape, int)
    for y in snapshots:
        found = rows = _dead_rows(A, y)
        for _ in range(PASSES):
            before, found = found, rows | _disagree(*_fitted(A, y, torch.as_tensor(found, device=y.device)))
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
    lit = expected > DEAD**2 * expected.mean()
    median = float(np.median(r[lit])) if lit.any() else 0.0
    usual = uniform_filter(np.minimum(r, LIMIT * median), SIDE) + median
    off: np.ndarray = r > LIMIT * usual
    if not off.any():
        return off
    alone, dark = r > 2 * rank_filter(r, -3, size=SIDE), y < DEAD * expected
    found = off & (alone | dark)
    grown: np.ndarray = binary_propagation(
        found, generate_binary_structure(2, 2), mask=found | (dark & (r > LIMIT * median))
    )
    return grown


def _dead_rows(A: Shot, y: torch.Tensor) -> np.ndarray:
    """Rows with less than a tenth of the light of both rows beside them, where these are lit, (H, W') bool.

    Over half of their width no scene is dark in a single row. Light is that through 9 pixels of the row, relative to
    what a white scene sends there.
    """
    seen = A.gram_diag() > 0
    of_y, white, lights = torch.stack([torch.where(seen, y, 0), A.response(), seen.to(y)]).cpu().numpy()
    through, most = (uniform_filter1d(image, SIDE, axis=1) for image in (of_y, white))
    light = np.divide(through, most, out=np.zeros_like(through), where=most > 0)
    beside = np.minimum(light[:-2], light[2:])
    lit = (lights[1:-1] > 0) & (beside > DEAD * light.mean())
    dark = lit & (light[1:-1] < DEAD * beside)
    dead = (2 * lit.sum(1) > lit.shape[1]) & (dark.sum(1) > (1 - DEAD) * lit.sum(1))
    found = np.zeros(y.shape, bool)
    found[1:-1] = dead[:, None]
    return found
