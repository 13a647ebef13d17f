"""Which of two cameras a snapshot was taken with: short reconstructions with each, compared at held-out pixels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from cassi.calibration.camera_model import CameraModel
from cassi.evidence.held_out import Split, hold_out
from cassi.evidence.judge import BETTER, CLEARLY_BETTER, NOT_WORSE, POOR_FIT, imprint_fades, z
from cassi.evidence.noise import fit_noise
from cassi.optics.cropping import Shot, crop, highest_variance_window
from cassi.optics.detector import brightness
from cassi.optics.imprint import imprint
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.subspace_tv import subspace_tv

WINDOW = 192  # side of the part that is reconstructed [pixel]
HELD_OUT, ITERATIONS, COMPONENTS = 0.05, 40, 8
# Of the cube whose imprint is looked at: variance per y of brightness 1, weight of TV, and iterations: early ones hold
# the mask's pattern, which the first, Phi^T y, is full of.
IMPRINT_VARIANCE, IMPRINT_TV, IMPRINT_ITERS = 0.02, 5.0, 100
POOR_FIT_GAIN = 0.25  # by this share a fit that is still poor must be better
# A simpler model may add so much to the error, and one whose mask is no sharper than its picture, or no deeper.
SIMPLER, LESS_SHARP = 0.01, 0.03


@dataclass(frozen=True, eq=False)
class Trial:
    """A short reconstruction of a part of a snapshot with a camera."""

    squares: torch.Tensor  # errors at held-out pixels less what errors of the mask explain, for y of brightness 1
    light: torch.Tensor  # y^2 there
    look: Callable[[], float]  # for `imprint`: it takes longer than all the rest, and is seldom asked for

    @functools.cached_property
    def imprint(self) -> float:
        """Of the mask on a cube that is smoother: little noise is fitted, which leaves the mask's pattern too."""
        return self.look()

    @classmethod
    def of(cls, camera: Shot, given: Shot, y: torch.Tensor, bad: torch.Tensor | None, seed: int) -> Trial:
        """With a camera; place, pixels and pattern are those of the camera as given."""
        rows, columns = highest_variance_window(y, given.cube_shape[-2:], WINDOW)
        level = brightness(given, y)
        lit = given.gram_diag() > 0 if bad is None else (given.gram_diag() > 0) & ~bad
        a, b = crop(camera.weighted(lit.to(y)), torch.where(lit, y, 0) / level, rows, columns)
        seen = torch.ones_like(b, dtype=torch.bool) if a.weights is None else a.weights > 0
        held = hold_out(seen, seed, HELD_OUT)
        keep = (seen & ~held).to(b)
        basis = smooth_basis(a.cube_shape[0], min(COMPONENTS, a.cube_shape[0]))
        train, target = a.weighted(keep), b * keep
        split = Split(a, b, held, train, target)
        x = subspace_tv(train, target, basis, num_iters=ITERATIONS)[0].x.clamp_(min=0)
        variance = fit_noise(split, split.misfit(x).square()).variance(b)  # with the errors of this camera
        known = split.knowing(variance)
        squares = known.without_mask_error(known.misfit_model(x))[0] * variance[held]

        def look() -> float:
            variance, weight = IMPRINT_VARIANCE * target.clamp(min=0), IMPRINT_TV * brightness(train, target)
            found, _ = subspace_tv(train, target, basis, variance=variance, tv_weight=weight, num_iters=IMPRINT_ITERS)
            return imprint(found.x.clamp(min=0), given.mask[..., rows, columns])

        return cls(squares, b[held].double().square(), look)


def error_of(trials: list[Trial]) -> float:
    """Held-out error over all snapshots."""
    squares, light = (sum(float(getattr(t, name).sum()) for t in trials) for name in ("squares", "light"))
    return math.sqrt(squares / light) if light > 0 else 0.0


def imprint_of(trials: list[Trial]) -> float:
    return float(np.mean([trial.imprint for trial in trials]))


def _squares(trials: list[Trial]) -> torch.Tensor:
    return torch.cat([trial.squares for trial in trials])


def clearly_better(as_given: list[Trial], as_found: list[Trial]) -> bool:
    """Whether a camera predicts clearly better than the given one, or no worse and with less of the mask's imprint."""
    new, old = _squares(as_found), _squares(as_given)
    if error_of(as_found) > POOR_FIT and not z(new, old, allowance=-POOR_FIT_GAIN) > BETTER:
        return False
    gain = z(new, old)
    no_worse = gain >= NOT_WORSE
    return gain > CLEARLY_BETTER or (no_worse and imprint_fades(imprint_of(as_found), imprint_of(as_given)))


def simplified(model: CameraModel, trials: Callable[[CameraModel], list[Trial]]) -> tuple[CameraModel, list[Trial]]:
    """The model without terms that a scene easily mimics, if it predicts about as well; and the trials of the rest.

    A mask that is too soft in the model leaves its pattern on the cube, one that is too hard its negative.
    """
    options: list[tuple[dict[str, Any], float, bool]] = []  # change, allowance, whether the imprint has to fade
    if "t" in model.right:
        options.append(({"right": {**model.right, "t": 0.0}}, SIMPLER, False))
    if model.blur.get("1", 0.0) < 0:
        options.append(({"blur": {}}, LESS_SHARP, False))
    if model.contrast != 1:
        options.append(({"contrast": 1.0}, SIMPLER if model.contrast < 1 else LESS_SHARP, True))
    best = trials(model)
    for change, allowance, must_fade in options:
        simpler = replace(model, **change)
        new = trials(simpler)
        as_good = z(_squares(new), _squares(best), allowance=allowance) >= NOT_WORSE
        if as_good and (not must_fade or imprint_fades(imprint_of(new), imprint_of(best))):
            model, best = simpler, new
    return model, best
