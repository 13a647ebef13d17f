"""The error of a mask's elements learned from a single capture, and believed only where no scene could look like it.

Texture t that all bands of a scene share leaves the same in a snapshot as an error e = m t of the mask m: only where
the mask is closed does a single capture tell one from the other. What a smooth cube x leaves of the fitted pixels is
therefore explained by both,

    r = y - Phi x = E e' + n,    e' = e + m t,    e ~ N(0, s^2),   t ~ N(0, tau^2),    P = kappa^2 + m^2,  s = kappa tau

(`cassi.evidence.misfit`), and detector pixels that are held out choose kappa and tau. The mask is corrected where they
are predicted better with s > 0 than by texture alone. Its part of e' is the mean e = kappa^2 / P e'.

With the mask so corrected a better cube is found, from its own spectra, and with that a better e.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from cassi.calibration.captures import MaskError
from cassi.choice.bases import scene_basis
from cassi.choice.stages import NonLocal, Problem, Tv, Watch
from cassi.evidence.held_out import Split
from cassi.evidence.judge import BETTER, EVEN, NOT_WORSE, z
from cassi.evidence.misfit import Misfit
from cassi.evidence.noise import estimate_noise, pilot_basis
from cassi.optics.coded_aperture import MASK_ERROR
from cassi.optics.detector import brightness, object_level
from cassi.optics.single_disperser import CASSI

HELD_OUT = 0.1  # of the detector pixels: five times as many as a choice of solvers needs
ROUNDS = 2  # corrections: the second gains 3 dB on average of nine windows, a third -0.6 to 1.3 dB
KAPPAS = 0.0, 0.1, 0.3, 1.0, None  # 0: texture alone; None: an error of the mask alone
SMOOTH = Tv(100), NonLocal(1.0, 12, 16.0)  # makes cubes too smooth to absorb the error: noise counts 16 times
# Of the squared misfit at held-out pixels, below which nothing needs an explanation: exact masks explain 0.02 to 0.12
# on seven of twelve CAVE windows, wrong ones (5 %) 0.18 to 0.39.
MIN_EXPLAINED = 0.14
# Held-out error of a smooth cube below which a mask is good enough: what is left without noise is texture, of which
# errors of an exact mask explain half. Masks that are wrong by 5 % leave 0.017 to 0.03 at 10,000 electrons.
MIN_ERROR = 0.015


def learn_from_one(
    A: CASSI, y: Tensor, *, seed: int = 0, report: Callable[[float], None] = lambda share: None
) -> MaskError:
    """The error of the mask's elements, (H, W), from one snapshot y (H, W') through A, whose row weights are 0 or 1.

    It is `accepted` where held-out pixels are predicted no worse through the corrected mask than through the given one,
    what errors explain taken off. Where an error explains them clearly better than texture, by z standard errors, they
    may be predicted worse by z: errors that bands do not share remain.
    """
    y = torch.where(A.gram_diag() > 0, y, 0)
    y = y / brightness(A, y)
    level = float(object_level(y, y.ndim))
    split = Split.of(A, y, seed, HELD_OUT)

    def smooth_cube(split: Split, last: Tensor | None = None) -> tuple[Split, Tensor]:
        """The camera's split with the noise of the first one, and a smooth cube; the last one says what e may add."""
        noise, pilot = estimate_noise(split, pilot_basis(split.A, split.A.num_bands))
        split = split if split.variance is not None else split.knowing(noise.variance(y))
        problem = Problem(scene_basis(pilot), noise.variance(y), 1.0, level)
        known = problem if last is None else replace(problem, variance=problem.variance_with_mask_error(split.A, last))
        tv, smooth = SMOOTH
        state = tv.run(split.A_train, split.y_train, known)
        exact = replace(cast(CASSI, split.A_train), mask_error=0.0)
        return split, smooth.run(exact, split.y_train, problem, state, Watch()).x.clamp(min=0)

    split, x = smooth_cube(split)
    before = after = split.verdict(x, imprint=False)
    found = _explain(split, A.mask, x)
    if found.explained < MIN_EXPLAINED or before.error < MIN_ERROR:
        reason = "what the snapshot leaves does not look like an error of the mask"
        return MaskError(torch.zeros_like(found.error), None, False, (found.explained,), sure=found.sure, reason=reason)
    first = found
    for k in range(ROUNDS):
        report((k + 1) / (ROUNDS + 1))
        here, x = smooth_cube(_through(split, A, found.error, after.spread), x)
        after = here.verdict(x, imprint=False)
        error, spread = found.error, found.spread
        if k + 1 < ROUNDS:
            found = _explain(split, A.mask, x)
    limit = -found.sure if found.sure > BETTER else NOT_WORSE
    accepted = found.sure > EVEN and z(after.squared, before.squared) >= limit
    reason = "" if accepted else "a corrected mask predicts worse what took no part"
    left = max(MASK_ERROR, after.spread) if accepted else None
    explained, errors = (first.explained, found.explained), ((before.error, after.error),)
    return MaskError(
        error, None, accepted, explained, errors=errors, spread=spread, left=left, sure=found.sure, reason=reason
    )


class _Explained(NamedTuple):
    """The mean of e, (H, W), its spread s relative to the mask's greatest transmission, by how many standard errors
    held-out pixels are predicted better with it than by texture alone, and the share of their squares it explains."""

    error: Tensor
    spread: float
    sure: float
    explained: float


def _explain(split: Split, mask: Tensor, x: Tensor) -> _Explained:
    """What errors of the mask explain of the misfit of a smooth cube, beside its texture."""
    top = mask.abs().amax()
    squared = (mask.reshape(-1, *mask.shape[-2:]).mean(0) / top).square()
    trials = dict[float | None, tuple[Tensor, float]]()
    models = dict[float | None, Misfit]()
    for kappa in KAPPAS:
        models[kappa] = split.misfit_model(x, None if kappa is None else kappa**2 + squared)
        trials[kappa] = split.without_mask_error(models[kappa])
    texture, _ = trials[0.0]
    kappa = min(KAPPAS[1:], key=lambda kappa: float(trials[kappa][0].sum()))
    left, scale = trials[kappa]
    error = models[kappa].error(scale) * top
    if kappa is not None:
        error = error * (kappa**2 / (kappa**2 + squared))
    plain = split.misfit(x).square().sum()
    return _Explained(error, scale * (kappa or 1.0), z(left, texture), 1 - float(left.sum() / plain))


def _through(split: Split, A: CASSI, error: Tensor, spread: float) -> Split:
    """The split of the camera A with its mask corrected by an error, and wrong by a spread still."""
    corrected = replace(A, mask=(A.mask + error).clamp(min=0), mask_error=max(MASK_ERROR, spread))
    return replace(split, A=corrected, A_train=corrected.leave_out(~split.held))
