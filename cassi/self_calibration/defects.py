"""Detector pixels that no scene explains beside their neighbors: dead, warm, or stuck ones.

A dead pixel is no outlier of the snapshot, whose neighbors differ by as much as the mask does. But the scene that
explains them says what it should have counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from scipy.ndimage import (
    binary_opening,
    binary_propagation,
    find_objects,
    generate_binary_structure,
    label,
    rank_filter,
    uniform_filter,
    uniform_filter1d,
)

from cassi.choice.stages import Problem, Tv
from cassi.optics.cropping import Shot
from cassi.optics.detector import brightness
from cassi.optics.measurement import any_bad
from cassi.optics.outliers import MAX_SHARE
from cassi.optics.single_disperser import CASSI
from cassi.priors.spectral_basis import smooth_basis
from cassi.self_calibration.found_camera import FoundCamera
from cassi.self_calibration.scenes import Report, Scenes

SHORT_RUN, COMPONENTS = Tv(40), 8  # a short reconstruction, in smooth spectra
RELATIVE_NOISE = 0.02  # that a short reconstruction allows for, of the root mean square of the light
SIDE = 9  # of the square in which residuals are compared [pixel]
# Times what is usual, about seven standard deviations of Gaussian noise. On ten CAVE windows (128 x 128 px; clean,
# 10,000 and 1,000 e) it marks none of 699,000 sound pixels, and of dead ones 129 of 150 at 10,000 e, all but nearly
# dark ones.
LIMIT = 5.0
DEAD = 0.1  # share of the light that is expected, below which a pixel is dead
MAX_COLUMNS = 3  # dead ones beside each other
MIN_SMEARED = 4  # bands from which on no edge of a scene is sharp on the detector
FULL, LIT, WHITE = 0.95, 0.2, 0.3  # of a dead block that is dark; of the mean light beside it; of the usual response
SHARP = 0.5  # of the light within a span beside a block, on its first pixel; a dark scene leaves 1 / C there
PASSES = 8  # at most: each sees what the defects beside it had hidden


def leave_out_defects(scenes: Scenes, report: Report) -> FoundCamera:
    """The camera without its defects; single pixels only where the mask fits, and no scene is mistaken for them."""
    found, camera, snapshots = scenes.found, cast(CASSI, scenes.camera), scenes.snapshots
    dead = dead_areas(camera, snapshots[0])
    defects = find_defects(camera, snapshots) if scenes.shows_mask else dead
    count = int(np.count_nonzero(defects))
    if (defects & ~dead).mean() > MAX_SHARE:
        return replace(found, disputed=count)
    return replace(found, left_out=any_bad((found.left_out, defects)), defects=count) if count else found


def find_defects(A: Shot, snapshots: Sequence[torch.Tensor]) -> np.ndarray:
    """Pixels that disagree with their surroundings in most of the snapshots (H, W') of a camera, (H, W') bool.

    With r = y - Phi x the residual of a short reconstruction, a pixel is a defect where

        |r| > 5 s    and    y < 0.1 (Phi x)  or  it is alone,      s = mean of min(|r|, 5 median |r|) + median |r|

    with the mean over the 9 x 9 pixels around, and the median over pixels with a hundredth of the mean light. No light
    makes a pixel dark, so that dead columns and blocks are found as well; beside a defect |r| > 5 median |r| is
    enough for that, as a darker scene explains part of a block. Too much light may be of one color, which no smooth
    spectrum explains; so a warm pixel is one whose |r| at most one other within the 9 x 9 reaches by half. r is taken
    again from a cube without what was found, as defects distort it beside them. A dark scene explains dead areas; for
    those see `dead_areas`.
    """
    votes = np.zeros(A.measurement_shape, int)
    for y in snapshots:
        found = dead = dead_areas(A, y)
        for _ in range(PASSES):
            before, found = found, dead | _disagree(*_fitted(A, y, torch.as_tensor(found, device=y.device)))
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
    variance = RELATIVE_NOISE**2 * y.square().mean()
    problem = Problem(smooth_basis(A.num_bands, min(COMPONENTS, A.num_bands)).to(y), variance, 1.0)
    x = SHORT_RUN.run(A.weighted(known), y * known, problem).x
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


def dead_areas(A: Shot, y: torch.Tensor) -> np.ndarray:
    """Rows, columns and blocks without light, (H, W') bool.

    Light is y relative to what a white scene sends there. Over half of their width no scene is dark in a single row,
    and none in a few columns, as each band is displaced by others. A block is a rectangle of at least 3 x 3 pixels
    whose light is below a tenth of the mean, with lit sides to the left and right (and above and below, unless the
    detector ends there): for the same reason no edge of a scene is sharp along the rows.
    """
    white, seen = A.response(), A.gram_diag() > 0
    of_y, white, lights = torch.stack([torch.where(seen, y, 0), white, seen.to(y)]).cpu().numpy()
    columns = _dead_rows(of_y.T, white.T, lights.T, MAX_COLUMNS).T
    found: np.ndarray = _dead_rows(of_y, white, lights, 1) | columns
    return found if A.cube_shape[0] < MIN_SMEARED else found | _dead_blocks(of_y, white, max(A.shifts) - min(A.shifts))


def _dead_rows(y: np.ndarray, white: np.ndarray, lights: np.ndarray, most: int) -> np.ndarray:
    """Up to `most` rows beside each other with less than a tenth of the light of rows on both sides, where these are
    lit. Light is that through 9 pixels of the row."""
    through, through_white = (uniform_filter1d(image, SIDE, axis=1) for image in (y, white))
    light = np.divide(through, through_white, out=np.zeros_like(through), where=through_white > 0)
    padded = np.pad(light, ((most, most), (0, 0)))
    above, below = (
        np.max([padded[start + k : start + k + len(y)] for k in range(most)], axis=0) for start in (0, most + 1)
    )
    beside = np.minimum(above, below)
    lit = (lights > 0) & (beside > DEAD * light.mean())
    dark = lit & (light < DEAD * beside)
    dead = (2 * lit.sum(1) > lit.shape[1]) & (dark.sum(1) > (1 - DEAD) * lit.sum(1))
    return np.repeat(dead[:, None], y.shape[1], axis=1)


def _dead_blocks(y: np.ndarray, white: np.ndarray, span: float) -> np.ndarray:
    found, span = np.zeros(y.shape, bool), math.ceil(span)
    seen = white > WHITE * np.median(white)
    if not seen.any():
        return found
    mean = y[seen].sum() / white[seen].sum()
    dark = seen & (y < DEAD * mean * white)
    areas, _ = label(binary_opening(dark | ~seen, np.ones((3, 3))))

    def side(i: slice, j: slice) -> float:
        """The light of pixels beside a block, relative to the mean; not a number beyond the detector."""
        some = seen[i, j]
        return float(y[i, j][some].sum() / (mean * white[i, j][some].sum())) if some.any() else np.nan

    for k, place in enumerate(find_objects(areas), start=1):
        own = np.argwhere(dark[place] & (areas[place] == k))
        if not len(own):
            continue
        corners = (*own.min(0), *own.max(0) + 1)
        top, left, bottom, right = (n + at.start for n, at in zip(corners, (*place, *place), strict=True))
        i, j = slice(top, bottom), slice(left, right)
        near = [side(i, slice(max(0, left - 1), left)), side(i, slice(right, right + 1))]
        far = [side(i, slice(max(0, left - 1 - span), left)), side(i, slice(right, right + 1 + span))]
        around = [side(slice(max(0, top - 1), top), j), side(slice(bottom, bottom + 1), j), *near]
        sharp = all(a > SHARP * b for a, b in zip(near, far, strict=True))  # not where one is beyond the detector
        if sharp and np.nanmin(around) > LIT and dark[i, j].sum() > FULL * seen[i, j].sum():
            found[i, j] = True
    return found
