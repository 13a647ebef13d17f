"""The one judge of every choice: two candidates compared, in pairs, by their errors at the same places.

    d_j = (1 + a)^2 e_old,j^2 - e_new,j^2,        z = mean(d) / (std(d) / sqrt(n))

e are errors at held-out detector pixels, a is the share by which the new candidate's may be larger, and z is the margin
in standard errors. Each decision requires one of the limits of z below. The mask's imprint, to which held-out pixels
are almost blind, is judged beside it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NOT_WORSE, EVEN, WORTH_IT, BETTER, CLEARLY_BETTER = -1.0, 0.0, 1.0, 2.0, 3.0  # limits of z
# A better prior may fit single pixels a little worse: the share it may add to the error, and to the imprint. Of
# simulated captures it decides none (exact masks and wrong ones); of real ones chains add up to a tenth to the error.
MARGIN = 0.1
# Held-out errors are 0.004 to 0.06 through the right camera, down to 1,000 electrons, 0.03 to 0.04 for real captures
# with the camera found, and 0.5 and more through the mask of another camera.
GOOD_FIT, POOR_FIT = 0.1, 0.3
MAX_IMPRINT = 0.12  # above it the mask's pattern is visible in the cube; true cubes of 32 to 64 pixels have up to 0.11


@dataclass(frozen=True, eq=False)
class Verdict:
    """Errors at held-out pixels and the mask's imprint, of one candidate."""

    error: float  # |y - Phi x| / |y| at the held-out pixels
    squared: Tensor  # there, (n,) float64: e^2; with noise v known, (e less errors of the mask)^2 / (v + mean(v))
    imprint: float | None = None  # see `cassi.optics.imprint`; None where unknown
    spread: float = 0.0  # of these errors, relative to the mask's greatest transmission


def joined(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on cubes of several snapshots together, each as bright as the others."""
    error = math.sqrt(sum(one.error**2 for one in verdicts) / len(verdicts))
    return Verdict(error, torch.cat([one.squared for one in verdicts]))


def z(new: Tensor, old: Tensor, *, allowance: float = 0.0, weight: Tensor | None = None) -> float:
    """Compute by how many standard errors `new` is better than `old` with errors larger by `allowance`.

    Args:
        new, old: squared errors, or other values of which less is better, at the same places, (n,).
        allowance: a; negative if the errors must fall by that share.
        weight: of each place, (n,) > 0; equal if None.

    Returns:
        z; 0 for equal errors, infinite if all differences are equal or there is one place, NaN if an error is.
    """
    d = ((1 + allowance) ** 2 * old - new).double()
    w = d.new_full(d.shape, 1 / max(1, len(d))) if weight is None else weight.to(d) / weight.to(d).sum()
    mean = (w * d).sum()
    scatter = (w * (d - mean)).square().sum()
    if weight is None and len(d) > 1:
        scatter = scatter * len(d) / (len(d) - 1)
    gain, chance = float(mean), float(scatter.sqrt())
    return gain / chance if chance > 0 else gain * math.inf if gain else 0.0


def accepts(new: Verdict, old: Verdict) -> bool:
    """Whether a cube may replace another: rejects only clear harm; need not be better.

        z(a = 0.1) >= -1,        imprint_new <= max(0.06, 1.1 imprint_old)

    One standard error, as a small frame has few such pixels: without it frames of 64 x 64 pixels lost up to 5 dB. A
    prior may bring half of an imprint that is visible: through right cameras and wrong masks it brings less than 0.05.
    """
    if not z(new.squared, old.squared, allowance=MARGIN) >= NOT_WORSE:
        return False
    return new.imprint is None or new.imprint <= max(MAX_IMPRINT / 2, (1 + MARGIN) * (old.imprint or 0.0))


def not_worse(new: Verdict, old: Verdict) -> bool:
    """Whether the errors are no larger, but for chance: for what is to improve on a cube that is good already."""
    return z(new.squared, old.squared) >= NOT_WORSE


def is_worth_it(new: Verdict, old: Verdict) -> bool:
    """Whether the errors are smaller by more than one standard error: for a choice that has a usual value."""
    return z(new.squared, old.squared) > WORTH_IT


def is_better(new: Verdict, old: Verdict) -> bool:
    """Whether the errors are smaller by more than chance."""
    return z(new.squared, old.squared) > BETTER
