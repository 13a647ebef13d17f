"""A camera's mask learned from its own captures: scenes and the mask's error are estimated in turn.

Of several captures the sensitivity of each detector pixel is learned, too.

Each round reconstructs every capture through the mask so far, takes the fine texture off the cubes, and fits the mask's
error to what these leave of the snapshots (`mask_error`). How strongly is decided by captures that take no part in the
fit; whether the result is believed, by detector pixels that no fit has seen. A single capture is another task, see
`cassi.self_calibration.elements_of_one`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor

from cassi.evidence.fitting import fit, fit_basis
from cassi.evidence.held_out import ELEMENTS_HELD_OUT, Split
from cassi.evidence.judge import EVEN, joined, z
from cassi.optics.coded_aperture import MASK_ERROR
from cassi.optics.detector import brightness
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior
from cassi.self_calibration.mask_error import (
    LOCAL,
    Errors,
    Residual,
    fit_error,
    in_bands,
    short_reconstruction,
    smooth_part,
    without_texture,
)
from cassi.self_calibration.trials import TRIAL_SIDE

ROUNDS = 2  # of scenes and mask
# Of the mask's error, relative to its greatest transmission, and of the sensitivity, that are tried.
SPREAD_LADDER = tuple(MASK_ERROR * 2**k for k in range(4))
BAND_TERMS = 2  # of the mask's error by band, beside what all bands share: a third explains 0.3 % more
MIN_SIDE = 96  # of a mask whose error is looked for: smaller snapshots have too few pixels that judge [pixel]
MIN_EXPLAINED = 0.02  # of the variance of the kept residual that an error must explain
CLEARLY = MIN_EXPLAINED / 4  # more of it that a spread twice as large must explain
DARK = 0.02  # detector pixels below this share of the brightest are not fitted to, nor captures
# Correlation of the pictures of two captures above which they show one scene: 0.75 at least where the lamp or a part of
# the scene was exchanged, 0.59 at most between captures of different scenes by two real cameras.
SAME_SCENE = 0.67
UNLIKELY = "what it leaves of the snapshot does not look like an error of the mask"


@dataclass(frozen=True, eq=False)
class MaskError:
    """What the captures say about their mask.

    Attributes:
        error: e, to be added to the mask where it is accepted: of all bands (H, W), or of each (C, H, W).
        gain: g, (H, W'), by which detector pixels exceed the usual sensitivity, likewise; None where that explains
            nothing, or of a single capture.
        accepted: whether detector pixels that no fit has seen are predicted better with that of the first round; the
            second, which `error` is of where it explains enough, is not judged again.
        explained: share of the variance of kept residuals that it explains, a number for each round.
        growth: that share by the number of captures fitted to, (number, share); whether more would explain more.
        errors: held-out error of short reconstructions, (captures, 2): as given, and corrected.
        spread, band_spread, gain_spread: standard deviations that were assumed, of e and of what differs from band to
            band relative to the mask's greatest transmission, and of g.
        left: that of what remains unknown of the mask, likewise; None where that is not more than usual.
        sure: by how many standard errors the squared errors of the pixels that judge fell; of one capture, how much
            more an error of the mask explains of them than texture.
        reason: why it was not accepted; empty where it was.
        captures: how many took part.
    """

    error: Tensor
    gain: Tensor | None
    accepted: bool
    explained: tuple[float, ...] = ()
    growth: tuple[tuple[int, float], ...] = ()
    errors: tuple[tuple[float, float], ...] = ()
    spread: float = 0.0
    band_spread: float = 0.0
    gain_spread: float = 0.0
    left: float | None = None
    sure: float = 0.0
    reason: str = ""
    captures: int = 1

    @property
    def mean_errors(self) -> tuple[float, float]:
        """Held-out error as given and corrected, mean over the captures."""
        before, after = np.mean(self.errors, axis=0)
        return float(before), float(after)

    def on_cpu(self) -> Self:
        """The same with its images in memory."""
        return replace(self, error=self.error.cpu(), gain=None if self.gain is None else self.gain.cpu())

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON can hold, without the images."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("error", "gain")}


class _Spreads(NamedTuple):
    """Standard deviations of e_0, of the other e_k, and of g; where one is 0, these are left out."""

    common: float = 0.0
    by_band: float = 0.0
    gain: float = 0.0

    def fit(self, residuals: Sequence[Residual], top: float) -> Errors:
        """The errors that these spreads find, relative to a mask's greatest transmission `top`."""
        of_mask = self.common, *((self.by_band,) * BAND_TERMS if self.by_band else ())
        return fit_error(residuals, [spread * top for spread in of_mask], self.gain)


class _Tuned(NamedTuple):
    fit: Errors
    spreads: _Spreads
    explained: float = 0.0


def learn_mask_error(
    A: CASSI,
    snapshots: Sequence[Tensor],
    *,
    seed: int = 0,
    prior: LearnedPrior | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> MaskError:
    """Scenes and the error of their mask, from snapshots (H, W') through A, whose row weights are 0 or 1, in turn.

    Two rounds, of which the first is judged: more take ever more of a scene's own texture off, wherever it comes from.
    `report` is called with the share done.
    """
    top = float(A.mask.max())
    given = []
    for n, y in enumerate(snapshots):  # what one holds out, others show
        y = torch.where(A.gram_diag() > 0, y, 0)
        split = Split.of(A, y / brightness(A, y), seed + n, ELEMENTS_HELD_OUT)
        given.append(split.knowing(fit(split, fit_basis(A)).variance))

    def reconstruct(splits: Sequence[Split], k: int) -> list[Tensor]:
        """The cubes of round k."""
        cubes = []
        for n, split in enumerate(splits):
            cubes.append(short_reconstruction(split, prior))
            report((k + (n + 1) / len(splits)) / ROUNDS)
        return cubes

    def residuals_of(cubes: Sequence[Tensor]) -> list[Residual]:
        return [_residual(A, *of) for of in zip(given, cubes, strict=True)]

    # the first round
    cubes = reconstruct(given, 0)
    before = [split.verdict(x, imprint=False) for split, x in zip(given, cubes, strict=True)]
    first = _tuned(residuals_of(cubes), top)
    if first.explained < MIN_EXPLAINED:
        reason = UNLIKELY
        return MaskError(A.mask.new_zeros(A.mask.shape[-2:]), None, False, reason=reason, captures=len(given))
    e, g = first.fit
    B = replace(A, mask=(A.mask + in_bands(e, A.num_bands)).clamp(min=0))
    corrected = [split.through(B, split.y if g is None else split.y / (1 + g)) for split in given]
    cubes = reconstruct(corrected, 1)

    # judge it
    after = [split.verdict(x, imprint=False) for split, x in zip(corrected, cubes, strict=True)]
    # better at all suffices: that errors explain as much of pixels no fit has seen was required before
    sure = z(joined(after).squared, joined(before).squared)
    accepted = sure > EVEN

    # a second round, from cubes that the error has left
    second, growth = first, tuple[tuple[int, float], ...]()
    if accepted:
        residuals = residuals_of(cubes)
        second = _tuned(residuals, top)
        growth = _growth(residuals, second, top)
    best = second if second.explained >= MIN_EXPLAINED else first
    explained = tuple(dict.fromkeys((first.explained, second.explained)))
    reason = "" if accepted else "a corrected mask predicts held-out pixels no better"
    # What remains lies between what was found, which is shrunken, and what was assumed, which is tried in steps of two;
    # with each further capture less does.
    e, gain = best.fit
    left = None
    if accepted:
        left = max(math.sqrt(float(e[0].std()) / top * best.spreads.common / len(given)), MASK_ERROR)
    errors = tuple((b.error, a.error) for b, a in zip(before, after, strict=True))
    e = in_bands(e, A.num_bands)
    return MaskError(e, gain, accepted, explained, growth, errors, *best.spreads, left, sure, reason, len(given))


def of_other_scenes(snapshots: Sequence[Tensor]) -> list[int]:
    """Of snapshots (H, W') that show one scene the first, and none that is dark: what repeats must be the camera.

    Pictures are compared at a scale between that of the mask and that of the light, where they are bright.
    """
    if len(snapshots) == 1:
        return [0]
    means = [float(y.clamp(min=0).mean()) for y in snapshots]
    chosen: list[int] = []
    pictures: list[tuple[Tensor, Tensor]] = []
    for k in (k for k, mean in enumerate(means) if mean >= DARK * max(means)):
        light = smooth_part(y := snapshots[k])
        bright = light > light.mean()
        picture = torch.where(bright, smooth_part(y, width=LOCAL / 2) / light - 1, 0)
        if all(_correlation(picture, other, bright & lit) < SAME_SCENE for other, lit in pictures):
            chosen.append(k)
            pictures.append((picture, bright))
    return chosen


def _correlation(a: Tensor, b: Tensor, both: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a[both], b[both]]))[0, 1].nan_to_num())


def _residual(A: CASSI, split: Split, x: Tensor) -> Residual:
    """What the camera as given leaves of a snapshot when the cube has lost its fine texture."""
    flat, known = without_texture(x), ~split.held & (A.gram_diag() > 0)
    s = replace(A, weights=None).forward(flat)
    r = torch.where(known, split.y - s, 0)
    r = torch.where(known, r - smooth_part(r, known), 0)
    lit = known & (split.y > DARK * torch.where(known, split.y, -math.inf).max())
    return Residual(flat, split.y, r, s, torch.where(lit, 1 / cast(Tensor, split.variance), 0), A.shifts)


def _tuned(residuals: Sequence[Residual], top: float) -> _Tuned:
    """The fit whose spreads predict each capture best from the others.

    In turn for the mask's error, what differs of it by band, and the sensitivity, which would take that up in stripes
    along the rows; then by band again, which took up the sensitivity.
    """
    some = [one.rows(TRIAL_SIDE) for one in residuals]  # rows have errors of their own, so these stand for all

    @functools.cache
    def explained(spreads: _Spreads) -> float:
        return _by_others(some, len(some) - 1, spreads, top) if spreads.common else 0.0

    spreads = _Spreads()
    for name in ("common", "by_band", "gain", "by_band"):
        spreads = spreads._replace(**{name: 0.0})
        for spread in SPREAD_LADDER:
            larger = spreads._replace(**{name: spread})
            if explained(larger) < explained(spreads) + CLEARLY:
                break
            spreads = larger
        if not spreads.common:
            return _Tuned(Errors(torch.zeros((), dtype=torch.float32)), spreads)
    return _Tuned(spreads.fit(residuals, top), spreads, explained(spreads))


def _growth(residuals: Sequence[Residual], best: _Tuned, top: float) -> tuple[tuple[int, float], ...]:
    """What fits of that kind to 1, 2, 4, ... and all others explain of a capture: ((1, share), ...)."""
    some, others = [one.rows(TRIAL_SIDE) for one in residuals], len(residuals) - 1
    counts = [2**k for k in range(others.bit_length()) if 2**k < others]
    shares = [(count, _by_others(some, count, best.spreads, top)) for count in counts]
    return (*shares, (others, best.explained)) if others else ()


def _by_others(residuals: Sequence[Residual], count: int, spreads: _Spreads, top: float) -> float:
    """Share of the variance of each capture that a fit to the `count` which follow explains; after the last, the first.

    A misfit counts relative to the light: that of a bright pixel as much as that of a dark one.
    """
    ring = [*residuals, *residuals]
    sums = residuals[0].r.new_zeros(2, dtype=torch.float64)  # left, and in total
    for n, one in enumerate(residuals):
        found = spreads.fit(ring[n + 1 : n + 1 + count], top)
        weight = torch.where(one.weight > 0, one.y, math.inf).square().reciprocal()
        sums += torch.stack([((one.r - found.of(one)).square() * weight).sum(), (one.r.square() * weight).sum()])
    left, total = sums.tolist()
    return 1 - left / total if total > 0 else 0.0
