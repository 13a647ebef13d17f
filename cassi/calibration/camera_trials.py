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
from cassi.choice.held_out import hold_out
from cassi.optics.cropping import Shot, crop, liveliest
from cassi.optics.detector import brightness
from cassi.optics.imprint import imprint
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.subspace_tv import subspace_tv

WINDOW = 192  # side of the part that the last test reconstructs [pixel]
HELD_OUT, ITERATIONS, COMPONENTS = 0.05, 40, 8  # of that test
# Of the cube whose imprint is looked at: variance per y of brightness 1, weights, and iterations: early ones hold the
# mask's pattern, which the first, Phi^T y, is full of.
DAMPING, SMOOTHER, SETTLED = 0.02, 5.0, 100
SIGMAS = 3.0  # by so many standard errors its squared errors must fall
EQUAL, FAINTER = 0.012, 0.95  # a simpler model is taken of an error no more above, and of an imprint so much below
SHARPER = 0.03  # the same error of a mask no sharper than its picture, whatever its imprint, or no deeper
BLIND, UNBLINDED = 0.3, 0.25  # above such an error of the short reconstruction it must fall by this share
LEAST_FADE = 0.2  # or, where they do not rise, the imprint of the mask by this share
HIGHER = 0.05  # they do not rise: by no more than chance, and than this share


@dataclass(frozen=True, eq=False)
class Trial:
    """A short reconstruction of a part of a snapshot with a camera."""

    squares: torch.Tensor  # errors at held-out pixels, for y of brightness 1
    light: torch.Tensor  # y^2 there
    look: Callable[[], float]  # for `imprint`: it takes longer than all the rest, and is seldom asked for

    @functools.cached_property
    def imprint(self) -> float:
        """Of the mask on a cube that is smoother: little noise is fitted, which leaves the mask's pattern too."""
        return self.look()

    @classmethod
    def of(cls, camera: Shot, given: Shot, y: torch.Tensor, bad: torch.Tensor | None, seed: int) -> Trial:
        """With a camera; place, pixels and pattern are those of the camera as given."""
        rows, columns = liveliest(y, given.cube_shape[-2:], WINDOW)
        level = brightness(given, y)
        lit = given.gram_diag() > 0 if bad is None else (given.gram_diag() > 0) & ~bad
        a, b = crop(camera.weighted(lit.to(y)), torch.where(lit, y, 0) / level, rows, columns)
        seen = torch.ones_like(b, dtype=torch.bool) if a.weights is None else a.weights > 0
        held = hold_out(seen, seed, HELD_OUT)
        keep = (seen & ~held).to(b)
        basis = smooth_basis(a.cube_shape[0], min(COMPONENTS, a.cube_shape[0]))
        train, target = a.weighted(keep), b * keep
        x = subspace_tv(train, target, basis, num_iters=ITERATIONS)[0].x
        squares = (b - a.weighted(None).forward(x))[held].double().square()

        def look() -> float:
            variance, weight = DAMPING * target.clamp(min=0), SMOOTHER * brightness(train, target)
            found, _ = subspace_tv(train, target, basis, variance=variance, tv_weight=weight, num_iters=SETTLED)
            return imprint(found.x.clamp(min=0).numpy(), given.mask[..., rows, columns].numpy())

        return cls(squares, b[held].double().square(), look)


def error_of(trials: list[Trial]) -> float:
    """Held-out error over all snapshots."""
    squares, light = (sum(float(getattr(t, name).sum()) for t in trials) for name in ("squares", "light"))
    return math.sqrt(squares / light) if light > 0 else 0.0


def imprint_of(trials: list[Trial]) -> float:
    return float(np.mean([trial.imprint for trial in trials]))


def clearly_better(as_given: list[Trial], as_found: list[Trial]) -> bool:
    """Whether a camera predicts clearly better than the given one, or as well without the mask's imprint."""
    if error_of(as_found) > BLIND and error_of(as_found) > (1 - UNBLINDED) * error_of(as_given):
        return False
    before, after = (torch.cat([trial.squares for trial in of]) for of in (as_given, as_found))
    falls = before - after
    sigmas = float(falls.mean()) / max(float(falls.std()) / math.sqrt(len(falls)), 1e-300)
    if sigmas > SIGMAS:
        return True
    no_higher = sigmas > -SIGMAS and error_of(as_found) < (1 + HIGHER) * error_of(as_given)
    return no_higher and imprint_of(as_found) < (1 - LEAST_FADE) * imprint_of(as_given)


def simplified(model: CameraModel, trials: Callable[[CameraModel], list[Trial]]) -> tuple[CameraModel, list[Trial]]:
    """Without what a scene is easily taken for, where that predicts about as well; and the trials of what is left.

    A mask that is too soft in the model leaves its pattern on the cube, one that is too hard its negative.
    """
    options: list[tuple[dict[str, Any], float, float]] = []  # change, by how much the error may rise, the imprint left
    if "t" in model.right:
        options.append(({"right": {**model.right, "t": 0.0}}, EQUAL, math.inf))
    if model.blur.get("1", 0.0) < 0:
        options.append(({"blur": {}}, SHARPER, math.inf))
    if model.contrast != 1:
        options.append(({"contrast": 1.0}, EQUAL if model.contrast < 1 else SHARPER, FAINTER))
    found = trials(model)
    for change, rise, left in options:
        other = replace(model, **change)
        tried = trials(other)
        as_good = error_of(tried) <= (1 + rise) * error_of(found)
        if as_good and (math.isinf(left) or imprint_of(tried) < left * imprint_of(found)):
            model, found = other, tried
    return model, found
