"""The error of a mask's elements learned from a single capture, and believed only where no scene could look like it.

Texture t that all bands of a scene share leaves the same in a snapshot as an error e = m t of the mask m: only where
the mask is closed does a single capture tell one from the other. What a smooth cube x leaves of the fitted pixels is
therefore explained by both,

    r = y - Phi x = E e' + n,    e' = e + m t,    e ~ N(0, s^2),   t ~ N(0, tau^2),    P = kappa^2 + m^2,  s = kappa tau

(`cassi.evidence.misfit`, whose s is tau here), and detector pixels that are held out choose kappa and tau. The mask is
corrected where they are predicted better with s > 0 than by texture alone. Its part of e' is the mean
e = kappa^2 / P e'.

With the mask so corrected a better cube is found, from its own spectra, and with that a better e.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from cassi.choice.bases import scene_basis
from cassi.choice.stages import NOISE_FACTORS, SHORT_ITERS, NonLocal, Problem, Tv, Watch
from cassi.evidence.fitting import fit, fit_basis
from cassi.evidence.held_out import ELEMENTS_HELD_OUT, Split
from cassi.evidence.judge import EVEN, NOT_WORSE, WORTH_IT, z
from cassi.evidence.misfit import SPREADS
from cassi.optics.coded_aperture import MASK_ERROR
from cassi.optics.detector import brightness, object_level
from cassi.optics.single_disperser import CASSI
from cassi.self_calibration.elements_of_several import UNLIKELY, MaskError

# Corrections: the second gains 2.3 dB on average of twenty windows, the third 0.3 (0.5 where it is wrong by 12 %).
ROUNDS = 3
KAPPAS = 0.0, 0.1, 0.3, 1.0  # 0: texture alone
SMOOTH = Tv(100), NonLocal(1.0, SHORT_ITERS, NOISE_FACTORS[0])  # makes cubes too smooth to absorb the error
# The least share explained of what errors of a spread are expected to add to the squares of held-out pixels: 0.15 to 1
# for wrong masks; edges that a smooth cube blurs look like errors with 0.04 and 0.08.
MIN_EXPLAINED = 0.1


def learn_from_one(
    A: CASSI, y: Tensor, *, seed: int = 0, report: Callable[[float], None] = lambda share: None
) -> MaskError:
    """The error of the mask's elements, (H, W), from one snapshot y (H, W') through A, whose row weights are 0 or 1.

    It is `accepted` where z_1 > 1, z_1 + z_2 >= 0, and it explains what an error of its spread should. z_1: by how
    many standard errors held-out pixels are predicted better by an error of the mask than by texture alone. z_2: by how
    many texture alone predicts them better through the corrected mask than through the given one; what it explains
    there already was often an error.
    """
    y = torch.where(A.gram_diag() > 0, y, 0)
    y = y / brightness(A, y)
    level = float(object_level(y, y.ndim))
    split = Split.of(A, y, seed, ELEMENTS_HELD_OUT)

    def smooth_cube(split: Split, last: Tensor | None = None) -> tuple[Split, Tensor]:
        """The camera's split with the noise of the first one, and a smooth cube; the last one says what e may add."""
        pilot = fit(split, fit_basis(split.A))
        split = split if split.variance is not None else split.knowing(pilot.variance)
        problem = Problem(scene_basis(pilot.x), pilot.variance, 1.0, level)
        known = problem if last is None else replace(problem, variance=problem.variance_with_mask_error(split.A, last))
        tv, smooth = SMOOTH
        state = tv.run(split.A_train, split.y_train, known)
        exact = replace(cast(CASSI, split.A_train), mask_error=0.0)
        return split, smooth.run(exact, split.y_train, problem, state, Watch()).x.clamp(min=0)

    split, x = smooth_cube(split)
    before = after = split.verdict(x, imprint=False)
    first = _explain(split, A.mask, x)
    if not first.likely:
        return MaskError(
            torch.zeros_like(first.error), None, False, (first.explained,), sure=first.sure, reason=UNLIKELY
        )
    for k in range(ROUNDS):
        report((k + 1) / (ROUNDS + 1))
        found = _explain(split, A.mask, x) if k else first
        here, x = smooth_cube(_through(split, A, found.error, after.spread), x)
        after = here.verdict(x, imprint=False)
    gained = found.sure + z(_without_texture(here, A.mask, x), first.without_texture)
    accepted = found.likely and gained >= EVEN
    worse = "a corrected mask predicts held-out pixels worse"
    reason = "" if accepted else worse if found.likely else UNLIKELY
    left = max(MASK_ERROR, after.spread) if accepted else None
    explained, errors = (first.explained, found.explained), ((before.error, after.error),)
    return MaskError(
        found.error, None, accepted, explained, errors=errors, spread=found.spread, left=left, sure=found.sure,
        reason=reason,
    )  # fmt: skip


class _Explained(NamedTuple):
    """The mean of e, (H, W), its spread s relative to the mask's greatest transmission, by how many standard errors the
    best one predicts held-out pixels better than texture alone, the share of their squares that e explains, the share
    that errors of this spread are expected to add, and the squares that texture alone leaves of them."""

    error: Tensor
    spread: float
    sure: float
    explained: float
    expected: float
    without_texture: Tensor

    @property
    def likely(self) -> bool:
        return self.sure > WORTH_IT and self.explained >= MIN_EXPLAINED * self.expected


def _explain(split: Split, mask: Tensor, x: Tensor) -> _Explained:
    """What errors of the mask explain of the misfit of a smooth cube, beside its texture: of all that explain it as
    well, but for chance, the smallest. No element transmits less than nothing, and an error that says so counts only
    as far as it does not: where texture looks like errors of closed elements, they are negative as often as not."""
    top = mask.abs().amax()
    m = _relative(mask)
    spreads = 0.0, *SPREADS
    errors, squares = {}, dict[tuple[float, float], Tensor]()
    for kappa in KAPPAS:
        P = kappa**2 + m.square()
        model, misfits = split.misfit_model(x, P), []
        for tau in spreads:
            both = model.error(tau)
            e = both * kappa**2 / P.clamp(min=torch.finfo(m.dtype).tiny)
            possible = torch.maximum(e, -m)
            errors[kappa, tau] = possible * top
            misfits.append(model.r - model.image(both - e + possible))
        squares |= {
            (kappa, tau): left
            for tau, left in zip(spreads, split.squares_over_noise(torch.stack(misfits)), strict=True)
        }
    best = min(squares.values(), key=lambda left: float(left.sum()))
    texture = min((left for (kappa, _), left in squares.items() if kappa == 0), key=lambda left: float(left.sum()))
    likely = [of for of, left in squares.items() if z(left, best) >= NOT_WORSE]
    kappa, tau = of = min(likely, key=lambda of: (of[0] * of[1], float(squares[of].sum())))
    plain = split.squares_over_noise(split.y - split.A.forward(x)).sum()
    expected = split.squares_over_noise(
        replace(cast(CASSI, split.A), mask_error=kappa * tau).mask_error_variance(x).sqrt()
    ).sum()
    explained = 1 - float(squares[of].sum() / plain)
    return _Explained(errors[of], kappa * tau, z(best, texture), explained, float(expected / plain), texture)


def _without_texture(split: Split, mask: Tensor, x: Tensor) -> Tensor:
    """Squared misfits at held-out pixels less what texture explains, of a smooth cube."""
    return split.without_mask_error(split.misfit_model(x, _relative(mask).square()))[0]


def _relative(mask: Tensor) -> Tensor:
    """m, (H, W): the mean over the bands, relative to the greatest transmission."""
    return mask.reshape(-1, *mask.shape[-2:]).mean(0) / mask.abs().amax()


def _through(split: Split, A: CASSI, error: Tensor, spread: float) -> Split:
    """The split of the camera A with its mask corrected by an error, and wrong by a spread still."""
    corrected = replace(A, mask=(A.mask + error).clamp(min=0), mask_error=max(MASK_ERROR, spread))
    return split.through(corrected)
