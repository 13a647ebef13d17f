"""A camera's mask learned from its own captures: scenes and the mask's error are estimated in turn.

Of several captures the sensitivity of each detector pixel is learned, too.

Each round reconstructs every capture through the mask so far, takes the fine texture off the cubes, and fits the mask's
error to what these leave of the snapshots (`mask_error`). How strongly is decided by captures that take no part in the
fit; whether the result is believed, by detector pixels that no fit has seen. A single capture is another task, see
`cassi.calibration.single_capture`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from cassi.calibration.mask_error import (
    LOCAL,
    Fit,
    Residual,
    fit_error,
    short_reconstruction,
    smooth_part,
    without_texture,
)
from cassi.evidence.judge import EVEN, MARGIN
from cassi.optics.coded_aperture import MASK_ERROR
from cassi.optics.detector import brightness
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior

TUNING, JUDGING = 0.03, 0.07  # shares of the detector pixels that choose how strongly to fit, and that accept
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
class Frame:
    """A snapshot at brightness 1, and which of its detector pixels serve what; all (H, W')."""

    y: Tensor
    fitted: Tensor
    tuning: Tensor
    judging: Tensor

    @classmethod
    def of(cls, A: CASSI, y: Tensor, seed: int) -> Frame:
        """A snapshot of a camera whose row weights are 0 at bad pixels."""
        seen = A.gram_diag() > 0
        draw = torch.rand(y.shape, dtype=torch.float32, generator=torch.Generator().manual_seed(seed)).to(y.device)
        tuning, judging = seen & (draw < TUNING), seen & (draw >= 1 - JUDGING)
        y = torch.where(seen, y, 0)
        return cls(y / brightness(A, y), seen & ~tuning & ~judging, tuning, judging)

    @property
    def lit(self) -> Tensor:
        """Where there is light enough to fit to."""
        return self.y > DARK * torch.where(self.fitted, self.y, -math.inf).max()

    def less(self, g: Tensor | None) -> Frame:
        """As pixels of one sensitivity have it, y / (1 + g)."""
        return self if g is None else replace(self, y=self.y / (1 + g))

    def without(self, A: CASSI) -> tuple[CASSI, Tensor]:
        """Camera and snapshot of the pixels that are fitted."""
        return A.weighted(self.fitted.to(self.y)), torch.where(self.fitted, self.y, 0)


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
    fit: Fit
    spread: float = 0.0
    gain_spread: float = 0.0
    explained: float = 0.0


def learn_mask_error(
    frames: Sequence[Frame],
    mask: Tensor,
    shifts: tuple[int, ...],
    *,
    prior: LearnedPrior | None = None,
    report: Callable[[float], None] = lambda share: None,
) -> MaskError:
    """Scenes and the error of their mask, (H, W) or (C, H, W), in turn; `report` is called with the share done.

    Two rounds, of which the first is judged: more take ever more of a scene's own texture off, wherever it comes from.
    """
    given = CASSI(mask, shifts)
    top = float(mask.max())
    variances = [_first_variance(given, frame) for frame in frames]

    def reconstruct(A: CASSI, g: Tensor | None, k: int) -> list[Tensor]:
        """The cubes of round k; the variances are those of their residuals from then on."""
        cubes = []
        for n, frame in enumerate(one.less(g) for one in frames):
            x = short_reconstruction(*frame.without(A), variances[n], prior)
            variances[n] = variance_of(A, x, frame)
            cubes.append(x)
            report((k + (n + 1) / len(frames)) / ROUNDS)
        return cubes

    def residuals_of(cubes: list[Tensor]) -> list[Residual]:
        return [_residual(given, *of) for of in zip(cubes, frames, variances, strict=True)]

    # the first round
    cubes = reconstruct(given, None, 0)
    before = [_squares(given, None, x, frame) for x, frame in zip(cubes, frames, strict=True)]
    noise = [v[frame.judging].double() for v, frame in zip(variances, frames, strict=True)]
    first = _tuned(residuals_of(cubes), frames, top)
    if first.explained < MIN_EXPLAINED:
        reason = "what the snapshots leave does not look like an error of the mask"
        return MaskError(mask.new_zeros(mask.shape[-2:]), None, False, reason=reason, captures=len(frames))
    e, g = first.fit
    corrected = replace(given, mask=(mask + e).clamp(min=0))
    cubes = reconstruct(corrected, g, 1)

    # judge it
    after = [_squares(corrected, g, x, frame) for x, frame in zip(cubes, frames, strict=True)]
    light = [frame.y[frame.judging].double().square().sum() for frame in frames]
    errors = tuple(
        (math.sqrt(b.sum() / s), math.sqrt(a.sum() / s)) for b, a, s in zip(before, after, light, strict=True)
    )
    falls = torch.cat([(b - a) / v for b, a, v in zip(before, after, noise, strict=True)])
    std, mean = torch.stack(torch.std_mean(falls)).tolist()
    sure = mean / max(std / math.sqrt(len(falls)), TINY)
    b, a = (torch.cat([one / s for one, s in zip(of, light, strict=True)]).sum() for of in (before, after))
    accepted = sure > EVEN and float(a) <= (1 + MARGIN) ** 2 * float(b)

    # a second round, from cubes that the error has left
    second, growth = first, tuple[tuple[int, float], ...]()
    if accepted:
        residuals = residuals_of(cubes)
        second = _tuned(residuals, frames, top)
        growth = _growth(residuals, frames, second, top)
    best = second if second.explained >= MIN_EXPLAINED else first
    explained = tuple(dict.fromkeys((first.explained, second.explained)))
    reason = "" if accepted else "a corrected mask does not predict better what took no part"
    # What remains lies between what was found, which is shrunken, and what was assumed, which is tried in steps of two;
    # with each further capture less does.
    e, gain = best.fit
    left = None
    if accepted:
        left = max(math.sqrt(float(e.std()) / top * best.spread / len(frames)), MASK_ERROR)
    spreads = best.spread, best.gain_spread
    return MaskError(e, gain, accepted, explained, growth, errors, *spreads, left, sure, reason, len(frames))


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


def _first_variance(A: CASSI, frame: Frame) -> Tensor:
    x = short_reconstruction(*frame.without(A), 0.0, None)
    return variance_of(A, x, frame)


def variance_of(A: CASSI, x: Tensor, frame: Frame) -> Tensor:
    """Of the noise of a snapshot, (H, W'), from the errors at pixels that took no part: alpha y + beta + rho^2 y^2.

    Photons, reading, and what is in proportion to the light: what the camera gets wrong, and the scene's texture. The
    three are fitted, >= 0, to the mean squares of pixels of like light, and no pixel is better known than these.
    """
    squares = (frame.y - A.forward(x))[frame.tuning].square()
    light = frame.y[frame.tuning].clamp(min=0)
    order = torch.argsort(light)
    bins = [part for part in torch.tensor_split(order, 12) if len(part)]
    means = torch.stack([of[part].mean() for of in (light, squares) for part in bins])
    level, power = means.cpu().numpy().astype(float).reshape(2, -1)
    power = power.clip(TINY)
    terms = np.stack([level, np.ones_like(level), level**2], 1) / power[:, None]
    from scipy import optimize  # slow to import

    alpha, beta, rho2 = optimize.nnls(terms, np.ones(len(bins)))[0]
    y = frame.y.clamp(min=0)
    variance: Tensor = alpha * y + beta + rho2 * y.square()
    return variance.clamp(min=float(power.min()))  # in the dark, where a fit of rho alone would be 0


def _squares(A: CASSI, g: Tensor | None, x: Tensor, frame: Frame) -> Tensor:
    """Squared errors at the pixels that judge, (n,) float64."""
    seen = A.forward(x) if g is None else A.forward(x).mul_(1 + g)
    return (frame.y - seen)[frame.judging].double().square()


def _residual(A: CASSI, x: Tensor, frame: Frame, variance: Tensor) -> Residual:
    """What the camera as given leaves of a snapshot when the cube has lost its fine texture."""
    flat = without_texture(x)
    known, seen = frame.fitted | frame.tuning, A.forward(flat)
    r = torch.where(known, frame.y - seen, 0)
    r = torch.where(known, r - smooth_part(r, known), 0)
    return Residual(flat, r, seen, torch.where(frame.fitted & frame.lit, 1 / variance, 0), A.shifts)


def _tuned(residuals: Sequence[Residual], frames: Sequence[Frame], top: float) -> _Tuned:
    """The fit whose spreads predict each capture best from the others.

    First that of the mask's error is chosen, then that of the sensitivity, if it adds clearly.
    """

    def trial(spread: float, gain_spread: float) -> _Tuned:
        return _Tuned(
            none, spread, gain_spread, _by_others(residuals, frames, len(frames) - 1, spread * top, gain_spread)
        )

    def best_of(best: _Tuned, trials: Iterable[tuple[float, float]]) -> _Tuned:
        for spreads in trials:
            if (new := trial(*spreads)).explained <= best.explained:
                break
            best = new
        return best

    none = Fit(torch.zeros((), dtype=torch.float32))
    best = best_of(_Tuned(none), ((spread, 0.0) for spread in SPREADS))
    if not best.spread:
        return best
    more = best_of(best, ((best.spread, spread) for spread in SPREADS))
    best = more if more.explained >= best.explained + MIN_EXPLAINED else best
    return best._replace(fit=fit_error(residuals, best.spread * top, best.gain_spread))


def _growth(
    residuals: Sequence[Residual], frames: Sequence[Frame], best: _Tuned, top: float
) -> tuple[tuple[int, float], ...]:
    """What fits of that kind to 1, 2, 4, ... and all others explain of a capture: ((1, share), ...)."""
    others = len(frames) - 1
    counts = [2**k for k in range(others.bit_length()) if 2**k < others]
    kind = best.spread * top, best.gain_spread
    shares = [(count, _by_others(residuals, frames, count, *kind)) for count in counts]
    return (*shares, (others, best.explained)) if others else ()


def _by_others(
    residuals: Sequence[Residual], frames: Sequence[Frame], count: int, spread: float, gain_spread: float
) -> float:
    """What fits to the `count` captures that follow each one explain of it; after the last comes the first."""
    ring = [*residuals, *residuals]
    fits = (fit_error(ring[n + 1 : n + 1 + count], spread, gain_spread) for n in range(len(residuals)))
    return _share(residuals, frames, fits)


def _share(residuals: Sequence[Residual], frames: Sequence[Frame], fits: Iterable[Fit]) -> float:
    """Share of the variance of kept residuals that fits explain, one of each."""
    sums = residuals[0].r.new_zeros(2, dtype=torch.float64)  # left, and in total
    for one, frame, fit in zip(residuals, frames, fits, strict=True):
        weight = torch.where((frame.tuning | frame.fitted) & frame.lit, 1 / frame.y.square().clamp(min=TINY), 0)
        sums += torch.stack([((one.r - fit.of(one)).square() * weight).sum(), (one.r.square() * weight).sum()])
    left, total = sums.tolist()
    return 1 - left / total if total > 0 else 0.0
