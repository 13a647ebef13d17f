"""Which of two cameras predicts snapshots better: short reconstructions through each, judged at the same pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, cast

import torch
from torch import Tensor

from cassi.evidence.fitting import Fit, fit, fit_basis
from cassi.evidence.held_out import MORE_HELD_OUT, Split, hold_out
from cassi.evidence.judge import Verdict, is_worth_it, joined
from cassi.optics.cropping import Shot, crop, highest_variance_window
from cassi.optics.detector import brightness
from cassi.self_calibration.camera_model import CameraModel

TRIAL_SIDE = 192  # side of the part that is reconstructed [pixel]


@dataclass(frozen=True, eq=False)
class Trials:
    """Snapshots (H, W') of a camera as given, and what of them is reconstructed through this camera and others.

    Attributes:
        A, snapshots: the camera as given, and the snapshots less the black level that is seen through it.
        seen: bool (H, W'), pixels that are lit and not bad.
        parts: rows and columns of the scene, of each snapshot.
        held: bool like the parts, pixels that are held out.
    """

    A: Shot
    snapshots: Sequence[Tensor]
    seen: Tensor
    parts: list[tuple[slice, slice]]
    held: list[Tensor]

    @classmethod
    def of(cls, A: Shot, snapshots: Sequence[Tensor], bad: Tensor | None, seed: int) -> Self:
        """For snapshots with these bad pixels; held-out pixels are drawn with `seed`."""
        seen = A.gram_diag() > 0 if bad is None else (A.gram_diag() > 0) & ~bad
        parts = [highest_variance_window(y, A.cube_shape[-2:], TRIAL_SIDE) for y in snapshots]
        known = [crop(A.weighted(seen.to(y)), y, *part)[0] for y, part in zip(snapshots, parts, strict=True)]
        held = [hold_out(cast(Tensor, one.weights) > 0, seed, MORE_HELD_OUT) for one in known]
        return cls(A, snapshots, seen, parts, held)

    def fits(self, A: Shot, snapshots: Sequence[Tensor]) -> list[Fit]:
        """Through a camera, of the same snapshots, which may have another black level."""
        fits = []
        for y, given, part, held in zip(snapshots, self.snapshots, self.parts, self.held, strict=True):
            level = brightness(self.A, given)
            a, b = crop(A.weighted(self.seen.to(y)), torch.where(self.seen, y, 0) / level, *part)
            split = Split(a, b, held, a.leave_out(~held), b.masked_fill(held, 0))
            fits.append(fit(split, fit_basis(a)))
        return fits

    @cached_property
    def given(self) -> list[Fit]:
        """Through the camera as given."""
        return self.fits(self.A, self.snapshots)


def judge(fits: Sequence[Fit], by: Sequence[Fit] | None = None) -> Verdict:
    """The verdict on a camera's fits, in units of the noise that these leave, or others of the same snapshots."""
    return joined([one.verdict(other.variance) for one, other in zip(fits, by or fits, strict=True)])


def simplified(
    model: CameraModel, fits_of: Callable[[CameraModel], Sequence[Fit]]
) -> tuple[CameraModel, Sequence[Fit]]:
    """The model without terms that a scene easily mimics where it predicts better so, and its fits.

    Better by more than one standard error: short reconstructions scarcely see a contrast of 0.93, without which
    elements are corrected by less, and stripes along the rows stay.
    """
    best = fits_of(model)
    changes: list[dict[str, Any]] = []
    if model.right.get("t"):
        changes.append({"right": {**model.right, "t": 0.0}})
    if model.blur.get("1", 0.0) < 0:
        changes.append({"blur": {}})
    if model.contrast != 1:
        changes.append({"contrast": 1.0})
    together = {name: value for change in changes for name, value in change.items()}  # one may make up for another
    for change in (together, *changes) if len(changes) > 1 else changes:
        if (simpler := replace(model, **change)) != model:
            new = fits_of(simpler)
            if is_worth_it(judge(new, best), judge(best)):
                model, best = simpler, new
    return model, best
