"""A camera's mask learned from its own captures: scenes and the mask's error are estimated in turn.

Of several captures the sensitivity of each detector pixel is learned, too.

Each round reconstructs every capture through the mask so far, takes the fine texture off the cubes, and fits the mask's
error to what these leave of the snapshots (`mask_error`). How strongly is decided by captures that take no part in the
fit; whether the result is believed, by detector pixels that no fit has seen. A single capture is another task, see
`cassi.self_calibration.elements_of_one`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor

from cassi.evidence.fitting import fit, fit_basis
from cassi.evidence.held_out import Split
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
    short_reconstruction,
    smooth_part,
    without_texture,
)

HELD_OUT = 0.1  # of the detector pixels: five times as many as a choice of solvers needs
ROUNDS = 2  # of scenes and mask
# Of the mask's error, relative to its greatest transmission, and of the sensitivity, that are tried.
SPREADS = tuple(MASK_ERROR * 2**k for k in range(4))
MIN_SIDE = 96  # of a mask whose error is looked for: smaller snapshots have too few pixels that judge [pixel]
MIN_EXPLAINED = 0.02  # of the variance of the kept residual that an error must explain, and the sensitivity besides
TINY = 1e-12  # of y of brightness 1, squared
DARK = 0.02  # detector pixels below this share of the brightest are not fitted to, nor captures
# Correlation of the pictures of two captures above which they show one scene: 0.75 at least where the lamp or a part of
# the scene was exchanged, 0.59 at most between captures of different scenes by two real cameras.
SAME_SCENE = 0.67


@dataclass(frozen=True, eq=False)
class MaskError:
    """What the captures say about their mask.

    Attributes:
        error: e, (H, W), to be added to the mask of every band where it is accepted.
        gain: g, (H, W'), by which detector pixels exceed the usual sensitivity, likewise; None where that explains
            nothing, or of a single capture.
        accepted: whether detector pixels that no fit has seen are predicted better with it.
        explained: share of the variance of kept residuals that it explains, a number for each round.
        growth: that share by the number of captures fitted to, (number, share); whether more would explain more.
        errors: held-out error of short reconstructions, (captures, 2): as given, and corrected.
        spread, gain_spread: standard deviations of e and g that were assumed, that of e relative to the mask's greatest
            transmission.
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


class _Tuned(NamedTuple):
    fit: Errors
    spread: float = 0.0
    gain_spread: float = 0.0
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
        split = Split.of(A, y / brightness(A, y), seed + n, HELD_OUT)
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
    first = _tuned(residuals_of(cubes), given, top)
    if first.explained < MIN_EXPLAINED:
        reason = "what the snapshots leave does not look like an error of the mask"
        return MaskError(A.mask.new_zeros(A.mask.shape[-2:]), None, False, reason=reason, captures=len(given))
    e, g = first.fit
    B = replace(A, mask=(A.mask + e).clamp(min=0))
    corrected = [split.through(B, split.y if g is None else split.y / (1 + g)) for split in given]
    cubes = reconstruct(corrected, 1)

    # judge it
    after = [split.verdict(x, imprint=False) for split, x in zip(corrected, cubes, strict=True)]
    sure = z(joined(after).squared, joined(before).squared)
    accepted = sure > EVEN

    # a second round, from cubes that the error has left
    second, growth = first, tuple[tuple[int, float], ...]()
    if accepted:
        residuals = residuals_of(cubes)
        second = _tuned(residuals, given, top)
        growth = _growth(residuals, given, second, top)
    best = second if second.explained >= MIN_EXPLAINED else first
    explained = tuple(dict.fromkeys((first.explained, second.explained)))
    reason = "" if accepted else "a corrected mask does not predict better what took no part"
    # What remains lies between what was found, which is shrunken, and what was assumed, which is tried in steps of two;
    # with each further capture less does.
    e, gain = best.fit
    left = None
    if accepted:
        left = max(math.sqrt(float(e.std()) / top * best.spread / len(given)), MASK_ERROR)
    errors = tuple((b.error, a.error) for b, a in zip(before, after, strict=True))
    spreads = best.spread, best.gain_spread
    return MaskError(e, gain, accepted, explained, growth, errors, *spreads, left, sure, reason, len(given))


def of_other_scenes(snapshots: Sequence[Tensor]) -> list[Tensor]:
    """Of snapshots (H, W') that show one scene the first, and none that is dark: what repeats must be the camera.

    Pictures are compared at a scale between that of the mask and that of the light, where they are bright.
    """
    if len(snapshots) == 1:
        return list(snapshots)
    means = [float(y.clamp(min=0).mean()) for y in snapshots]
    snapshots = [y for y, mean in zip(snapshots, means, strict=True) if mean >= DARK * max(means)]
    chosen: list[Tensor] = []
    pictures: list[tuple[Tensor, Tensor]] = []
    for y in snapshots:
        light = smooth_part(y)
        bright = light > light.mean()
        picture = torch.where(bright, smooth_part(y, width=LOCAL / 2) / light - 1, 0)
        if all(_correlation(picture, other, bright & lit) < SAME_SCENE for other, lit in pictures):
            chosen.append(y)
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
    return Residual(flat, r, s, torch.where(lit, 1 / cast(Tensor, split.variance), 0), A.shifts)


def _tuned(residuals: Sequence[Residual], splits: Sequence[Split], top: float) -> _Tuned:
    """The fit whose spreads predict each capture best from the others.

    First that of the mask's error is chosen, then that of the sensitivity, if it adds clearly.
    """

    def trial(spread: float, gain_spread: float) -> _Tuned:
        return _Tuned(
            none, spread, gain_spread, _by_others(residuals, splits, len(splits) - 1, spread * top, gain_spread)
        )

    def best_of(best: _Tuned, trials: Iterable[tuple[float, float]]) -> _Tuned:
        for spreads in trials:
            if (new := trial(*spreads)).explained <= best.explained:
                break
            best = new
        return best

    none = Errors(torch.zeros((), dtype=torch.float32))
    best = best_of(_Tuned(none), ((spread, 0.0) for spread in SPREADS))
    if not best.spread:
        return best
    more = best_of(best, ((best.spread, spread) for spread in SPREADS))
    best = more if more.explained >= best.explained + MIN_EXPLAINED else best
    return best._replace(fit=fit_error(residuals, best.spread * top, best.gain_spread))


def _growth(
    residuals: Sequence[Residual], splits: Sequence[Split], best: _Tuned, top: float
) -> tuple[tuple[int, float], ...]:
    """What fits of that kind to 1, 2, 4, ... and all others explain of a capture: ((1, share), ...)."""
    others = len(splits) - 1
    counts = [2**k for k in range(others.bit_length()) if 2**k < others]
    kind = best.spread * top, best.gain_spread
    shares = [(count, _by_others(residuals, splits, count, *kind)) for count in counts]
    return (*shares, (others, best.explained)) if others else ()


def _by_others(
    residuals: Sequence[Residual], splits: Sequence[Split], count: int, spread: float, gain_spread: float
) -> float:
    """What fits to the `count` captures that follow each one explain of it; after the last comes the first."""
    ring = [*residuals, *residuals]
    fits = (fit_error(ring[n + 1 : n + 1 + count], spread, gain_spread) for n in range(len(residuals)))
    return _share(residuals, splits, fits)


def _share(residuals: Sequence[Residual], splits: Sequence[Split], fits: Iterable[Errors]) -> float:
    """Share of the variance of kept residuals that fits explain, one of each."""
    sums = residuals[0].r.new_zeros(2, dtype=torch.float64)  # left, and in total
    for one, split, found in zip(residuals, splits, fits, strict=True):
        weight = torch.where(one.weight > 0, 1 / split.y.square().clamp(min=TINY), 0)
        sums += torch.stack([((one.r - found.of(one)).square() * weight).sum(), (one.r.square() * weight).sum()])
    left, total = sums.tolist()
    return 1 - left / total if total > 0 else 0.0
