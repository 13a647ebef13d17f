"""Does this mask belong to this measurement? Decided from the two alone, before any reconstruction.

A coded-aperture snapshot is a sum of displaced copies of the mask, each dimmed by the scene. Sharp detail of the
snapshot must therefore correlate with the mask at the displacements d_c of the bands, and at no others. The score of
a hypothesis is the multiple correlation coefficient of y with the C displaced masks, both high-pass filtered:

    R^2 = c' (M + e I)^-1 c,    c_b = <y, m_b(. - d_b)>,    M_bc = <m_b(. - d_b), m_c(. - d_c)>

of unit-norm y and m. The level of chance is measured: the same score with the mask displaced by many rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import fft
from scipy.ndimage import gaussian_filter

from cassi.kernels.machine import num_cores
from cassi.optics.geometry import cosines
from cassi.optics.measurement import MaskCheck, MaskKind, Measurement, no_scene_reason
from cassi.optics.psf import local_mean

HIGH_PASS = 2.0  # Gaussian width: keeps the detail of the mask and removes the scene [pixel]
CONTRAST_RADIUS = 8.0  # over which the contrast of the measurement is normalized [pixel]
RIDGE = 0.02  # e in R^2; masks of neighboring bands overlap, and it limits the amplification of noise
NUM_NULLS = 16
MAX_SELF_MATCH = 2.0  # times the score by chance, beyond which masks match themselves
MAX_DISPLACEMENT = 12  # of a mask that is searched for [pixel]
MATCH = 2.0  # a match scores at least this many times the level of chance
COARSER_SHARE = 0.9  # the coarsest step that explains this share of the R^2 of step 1 is considered the true one
TOLERANCE = 0.2, 0.1  # the given step is wrong if its share is that expected beside the true one, minus or plus these
SMOOTH = 6  # cosines over the bands of a smooth spectrum
FINER_SHARE = 0.98  # a step finer than the true one is wrong if that explains this share; real dispersion is smooth
DISPLACED_RATIO = 1.4  # a displaced mask must score this many times better, as bands at the edge change it slightly
FLAT = 1e-6  # relative detail below which it is rounding
MAX_ROWS = 256  # of masks per band, for memory
MAX_PERIOD = 16  # of masks that repeat [pixel]
MIN_SHARE = 0.01  # of the detail that another period explains; for 26 CAVE windows through 2 x 2 to 5 x 5 below -0.008
CORRELATED = 3  # times the share by chance: up to 2.0 for 180 painted scenes of 32 to 128 pixels, 2 x 2 to 5 x 5
MAX_REPEAT_DIFFERENCE = 0.1  # of their largest value: differences of masks that repeat
MIN_PIXELS = 1024  # of the mask; with fewer, a true match can look like chance


def compare_with_mask(m: Measurement) -> MaskCheck:
    """The comparison with the mask, if not yet made; values of bad pixels do not count."""
    return m.check or check_masks(replace(m, y=np.nan_to_num(m.y, posinf=0.0, neginf=0.0)))


def check_masks(m: Measurement) -> MaskCheck:
    """`check_mask` for a measurement; for several shots, the kind of the first mask that does not fit."""
    if nothing := no_scene_reason(m):
        return MaskCheck("no scene", nothing, {"as given": 0.0}, 0.0)
    checks = [check_mask(shot.y, shot.mask, shot.shifts, bad_pixels=shot.bad_pixels) for shot in m.each_shot]
    if len(checks) == 1:
        return checks[0]
    scores = {f"shot {k}, {name}": score for k, check in enumerate(checks, 1) for name, score in check.scores.items()}
    chance = max(check.chance for check in checks)
    if wrong := [(k, check) for k, check in enumerate(checks, 1) if not check.matches]:
        verdict = "; ".join(f"shot {k}: {check.verdict}" for k, check in wrong)
        return MaskCheck(wrong[0][1].kind, verdict, scores, chance)
    given = [check.scores["as given"] for check in checks]
    by_chance = f"correlation {min(given):.3f} to {max(given):.3f}, {chance:.3f} by chance"
    return MaskCheck("fits", f"the masks fit their shots ({by_chance})", scores, chance)


# Flips and rotations of the mask, (transposed, rows, columns); transposed ones only if it is square.
TURNS: dict[str, tuple[bool, int, int]] = {
    "flipped left-right": (False, 1, -1),
    "flipped up-down": (False, -1, 1),
    "turned by 180 degrees": (False, -1, -1),
    "transposed": (True, 1, 1),
    "transposed, flipped left-right": (True, 1, -1),
    "transposed, flipped up-down": (True, -1, 1),
    "transposed, turned by 180 degrees": (True, -1, -1),
}


def check_mask(
    y: np.ndarray, mask: np.ndarray, shifts: Sequence[float], *, bad_pixels: np.ndarray | None = None
) -> MaskCheck:
    """Compare a measurement with a mask, with its flips, transposes and displacements, and with other band counts.

    The direction of the dispersion is compared if the shifts are unequal or each band has its own mask: with one mask
    and equal steps, bands in both directions are displaced by the same columns.

    Args:
        y: measurement (H, W') or (N, H, W'), any unit; for a stack the mean is used.
        mask: (H, W) or (C, H, W), >= 0.
        shifts: displacement d_c of each band [pixel], integers or floats.
        bad_pixels: bool (H, W'), pixels to exclude.

    Raises:
        ValueError: inconsistent ranks or sizes, or values that are not finite.
    """
    y, mask, lags = _validated(y, mask, shifts)
    detail, masks = _measurement_detail(y, bad_pixels), _mask_detail(mask)
    height, columns = masks.shape[1:]
    width = fft.next_fast_len(detail.shape[1] + columns + 2 * MAX_DISPLACEMENT, real=True)
    spectrum = _row_spectra(detail, width)
    given = _Masks(masks, width)

    scores = {"as given": given.score(spectrum, lags)}
    if scores["as given"] > 0 and mask.ndim == 3 and (period := (_period(mask, 1), _period(mask, 2))).count(0) == 0:
        return _mosaic_check(detail, period, scores)
    reverse = lags.max() - lags
    if mask.ndim == 3 or not np.allclose(np.sort(reverse), np.sort(lags)):
        scores["dispersion reversed"] = given.score(spectrum, reverse)
    for name, (transpose, up, left) in TURNS.items():
        if height == columns or not transpose:
            oriented = np.swapaxes(masks, 1, 2) if transpose else masks
            scores[name] = _Masks(oriented[:, ::up, ::left], width).score(spectrum, lags)
    # displaced by many rows, so that no match is left
    first = min(MAX_DISPLACEMENT + 1, max(1, height // 4))
    far = {int(rows) for rows in np.linspace(first, height - first, NUM_NULLS)} - {0}
    nulls = _null_displacements(given, masks, width, lags, far) if mask.ndim == 3 else {(rows, 0) for rows in far}
    chance = max(given.score(spectrum, lags, *place) for place in nulls)
    displacement, score = _best_displacement(given, spectrum, lags)
    if displacement != (0, 0):
        scores[f"displaced by {displacement[0]} rows, {displacement[1]} columns"] = score
    steps = _explained_by_steps(given, spectrum, round(float(lags.max()))) if mask.ndim == 2 else ()
    correlation = f"correlation {scores['as given']:.3f}, {chance:.3f} by chance"
    fit = f"the mask fits the measurement ({correlation})"
    kind, verdict = _verdict(scores, chance, displacement, _step_verdict(given, spectrum, lags, steps, fit))
    # the best fit removes light where the mask is open: the weights of the bands sum to less than 0
    if kind == "fits" and np.linalg.solve(given.ridged(lags), given.correlations(spectrum, lags)).sum() < 0:
        kind = "inverted"
        verdict = (
            "inverted mask or snapshot: the mask fits where it is closed instead of open "
            f"({correlation}); give 1 - mask, or the largest value minus y"
        )
    if kind != "fits" and masks[0].size < MIN_PIXELS and max(scores.values()) > 0:
        kind, verdict = "too small", f"{height} x {columns} pixels are too few to decide whether the mask fits"
    turn = max(TURNS.keys() & scores.keys(), key=lambda name: scores[name]) if kind == "turned" else None
    return MaskCheck(kind, verdict, scores, chance, displacement, turn)


def _validated(y: np.ndarray, mask: np.ndarray, shifts: Sequence[float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    y, mask, lags = np.asarray(y, dtype=np.float64), np.asarray(mask, dtype=np.float64), np.asarray(shifts, dtype=float)
    if y.ndim == 3:
        y = y.mean(axis=0)
    ranks = y.ndim == 2 and mask.ndim >= 2 and mask.shape[:-2] in ((), (lags.size,)) and lags.ndim == 1 and lags.size
    if not ranks or y.shape[0] != mask.shape[-2] or y.shape[1] < mask.shape[-1]:
        what = "y must be (H, W') or (N, H, W') and the mask (H, W) or (C, H, W), of its rows and no wider"
        raise ValueError(f"{what}, for C shifts; got {y.shape}, {mask.shape} and {lags.size} shifts")
    lags = lags - lags.min()
    if not (np.isfinite(y).all() and np.isfinite(mask).all() and np.isfinite(lags).all()):
        raise ValueError("measurement, mask and shifts must be finite")
    return y, mask, lags


def _period(masks: np.ndarray, axis: int) -> int:
    """After how many pixels all masks are the same again; 0 where they do not repeat."""
    along = np.moveaxis(masks, axis, 0)
    periods = range(1, min(MAX_PERIOD, len(along) // 2) + 1)
    return next(
        (p for p in periods if np.abs(along[p:] - along[:-p]).max() <= MAX_REPEAT_DIFFERENCE * np.abs(masks).max()), 0
    )


def _mosaic_check(detail: np.ndarray, period: tuple[int, int], scores: dict[str, float]) -> MaskCheck:
    """Whether a snapshot repeats as its mosaic of filters does: the share of its detail that the place in a period
    explains, less the share by chance."""

    def explained(rows: int, columns: int) -> float:
        i, j = np.indices(detail.shape)
        place = (i % rows * columns + j % columns).ravel()
        sums, counts = np.bincount(place, detail.ravel()), np.bincount(place)
        return float((sums**2 / counts).sum() / max(float((detail**2).sum()), 1e-300)) - len(sums) / detail.size

    # neighboring pixels of a scene are alike, so that chance explains more of it than of white noise
    shares = {n: explained(n, n) - CORRELATED * n * n / detail.size for n in range(2, 11)}
    if (most := max(shares.values())) > MAX_SELF_MATCH * explained(*period) + MIN_SHARE:
        n = next(n for n, share in shares.items() if 3 * share >= 2 * most)
        text = f"wrong pattern: the filters repeat every {period[0]} x {period[1]} pixels, the snapshot every {n} x {n}"
        return MaskCheck("wrong mask", text, scores, scores["as given"])
    text = "the masks of the bands repeat, as filters of a mosaic do: the snapshot does not show which band is which"
    return MaskCheck("fits", text, scores, scores["as given"])


def _measurement_detail(y: np.ndarray, bad_pixels: np.ndarray | None) -> np.ndarray:
    """Detail of normalized contrast and unit norm: bright edges of the scene must not outweigh the mask."""
    good = np.ones(y.shape) if bad_pixels is None else (~np.asarray(bad_pixels, dtype=bool)).astype(float)
    detail = (y - local_mean(y, good, HIGH_PASS)) * good
    if np.abs(detail).max() <= FLAT * np.abs(y * good).max():
        return np.zeros_like(detail)  # rounding is not detail
    contrast = np.sqrt(gaussian_filter(detail**2, CONTRAST_RADIUS))
    detail = np.clip(detail / (contrast + 0.05 * contrast.mean() + np.finfo(float).tiny), -3, 3)
    return _normalize(detail - detail.mean())


def _mask_detail(mask: np.ndarray) -> np.ndarray:
    """Detail of the masks (1 or C, H, W), each of unit norm."""
    details = []
    for m in mask[None] if mask.ndim == 2 else mask:
        d = m - gaussian_filter(m, HIGH_PASS)
        details.append(_normalize((d - d.mean()) * (np.abs(d).max() > FLAT * np.abs(m).max())))
    return np.stack(details)


def _normalize(values: np.ndarray) -> np.ndarray:
    return values / max(float(np.linalg.norm(values)), np.finfo(float).tiny)


def _row_spectra(images: np.ndarray, width: int) -> np.ndarray:
    """Of rows padded to this width, complex64."""
    spectra: np.ndarray = fft.rfft(images.astype(np.float32), width, workers=num_cores())
    return spectra


class _Masks:
    """The conjugate row spectra of one mask or one per band, in which a displacement by columns is a phase."""

    def __init__(self, masks: np.ndarray, width: int) -> None:
        self.thin = max(1, masks.shape[1] // MAX_ROWS) if len(masks) > 1 else 1
        self.spectra = _row_spectra(masks[:, :: self.thin], width).conj()
        self.frequency = np.fft.rfftfreq(width)
        # each frequency also represents its conjugate, except the first and, for an even width, the last
        once = (self.frequency == 0) | (self.frequency == 0.5)
        self.weight = np.where(once, 1.0, 2.0) / width
        rows = np.ascontiguousarray(self.spectra.transpose(2, 0, 1))  # (F, C, H)
        self.power = rows.conj() @ rows.transpose(0, 2, 1) * self.weight[:, None, None]
        self.ridged_grams: dict[tuple[float, ...], np.ndarray] = {}

    def correlations(
        self, spectrum: np.ndarray, lags: np.ndarray, rows: int = 0, columns: Sequence[int] = (0,)
    ) -> np.ndarray:
        """c_b = <y, m_b(. - d_b)>, (C, K), with the masks displaced cyclically by `rows` and by K columns."""
        rolled = np.roll(spectrum, -rows, axis=0)[:: self.thin]
        cross = np.einsum("hf,bhf->bf", rolled, self.spectra) * self.weight
        phase = np.exp(2j * np.pi * lags[:, None] * self.frequency)
        across = np.exp(2j * np.pi * np.asarray(columns)[:, None] * self.frequency)
        return np.real((cross * phase) @ across.T)

    def gram(self, lags: np.ndarray) -> np.ndarray:
        """M_bc = <m_b(. - d_b), m_c(. - d_c)>."""
        phase = np.exp(-2j * np.pi * lags[:, None] * self.frequency)
        if len(self.spectra) == 1:
            return np.real((phase * self.power[:, 0, 0]) @ phase.conj().T)
        return np.real(np.einsum("bf,fbc,cf->bc", phase, self.power, phase.conj()))

    def ridged(self, lags: np.ndarray) -> np.ndarray:
        """M + e I, computed once, as it is independent of the position of the mask."""
        key = tuple(lags)
        if key not in self.ridged_grams:
            gram = self.gram(lags)
            self.ridged_grams[key] = gram + RIDGE * max(np.trace(gram) / lags.size, 1e-12) * np.eye(lags.size)
        return self.ridged_grams[key]

    def explained(
        self, spectrum: np.ndarray, lags: np.ndarray, rows: int = 0, columns: Sequence[int] = (0,)
    ) -> np.ndarray:
        """R^2 of the masks displaced by `rows` and by each of the columns."""
        c = self.correlations(spectrum, lags, rows, columns)
        explained: np.ndarray = np.maximum((c * np.linalg.solve(self.ridged(lags), c)).sum(axis=0), 0.0)
        return explained * self.thin

    def score(self, spectrum: np.ndarray, lags: np.ndarray, rows: int = 0, columns: int = 0) -> float:
        return math.sqrt(self.explained(spectrum, lags, rows, (columns,))[0])


def _null_displacements(
    given: _Masks, masks: np.ndarray, width: int, lags: np.ndarray, far: set[int]
) -> set[tuple[int, int]]:
    """Of displacements by these rows those at which the masks do not match themselves, (rows, columns).

    Masks of different bands may be copies of one, moved along the columns (a double disperser): displaced by as many
    rows they match. Seen in the snapshot of a white scene, sum_c m_c(. - d_c), in place of y. Where copies lie at all
    rows, the masks are displaced by columns, too.
    """
    phase = np.exp(-2j * np.pi * lags[:, None] * given.frequency)
    white = sum(_row_spectra(m, width) * p for m, p in zip(masks, phase, strict=True)).astype(np.complex64)
    scores = {(rows, 0): given.score(white, lags, rows) for rows in far}
    if min(scores.values()) > given.score(white, lags) / (2 * MATCH):
        aside = masks.shape[-1] // 4
        scores |= {(rows, aside): given.score(white, lags, rows, aside) for rows in far}
    return {place for place, score in scores.items() if score <= MAX_SELF_MATCH * min(scores.values())}


def _best_displacement(given: _Masks, spectrum: np.ndarray, lags: np.ndarray) -> tuple[tuple[int, int], float]:
    """The displacement (rows, columns) of the mask with the largest R, and that R."""
    reach = min(MAX_DISPLACEMENT, max(1, spectrum.shape[0] // 8))
    # the given position first: equal scores do not displace
    steps = sorted(range(-reach, reach + 1), key=abs)
    best, position = -1.0, (0, 0)
    for row in steps:
        explained = given.explained(spectrum, lags, row, steps)
        k = int(explained.argmax())
        if explained[k] > best * (1 + 1e-9):
            best, position = float(explained[k]), (row, steps[k])
    return position, math.sqrt(best)


def _explained_by_steps(given: _Masks, spectrum: np.ndarray, span: int) -> tuple[tuple[int, int, float], ...]:
    """(bands, step, share of the R^2 of step 1) for every step that divides the span, finest first."""
    steps = [step for step in range(1, span + 1) if span % step == 0]
    explained = [given.explained(spectrum, np.arange(0, span + 1, step, dtype=float))[0] for step in steps]
    full = max([*explained[:1], np.finfo(float).tiny])
    return tuple((1 + span // step, step, float(value / full)) for step, value in zip(steps, explained, strict=True))


def _verdict(
    scores: Mapping[str, float], chance: float, displacement: tuple[int, int], step_verdict: tuple[MaskKind, str]
) -> tuple[MaskKind, str]:
    given = scores["as given"]
    best = max(scores, key=lambda name: scores[name])
    if scores[best] == 0:
        return "no detail", "nothing to compare: the measurement or the mask has no detail"
    if scores[best] < MATCH * chance:
        values = f"{given:.3f} as given, {scores[best]:.3f} at best, {chance:.3f} by chance"
        return "wrong mask", f"wrong mask: no orientation of the mask correlates with the measurement ({values})"
    if best.startswith("displaced"):
        # a comb of the wrong pitch fits slightly better when displaced
        comb = displacement[0] == 0 and step_verdict[0] != "fits"
        if not comb and (given < MATCH * chance or scores[best] > DISPLACED_RATIO * given):
            rows, columns = displacement
            position = f"{rows:+d} rows (down) and {columns:+d} columns (right)"
            scored = f"{scores[best]:.3f}, {given:.3f} in place"
            return "displaced", f"displaced mask: it fits when moved by {position}: {scored}"
    elif best != "as given" and scores[best] > 1.5 * given:
        kind: MaskKind = "turned" if best in TURNS else "reversed"
        what = "flipped or turned mask" if best in TURNS else "wrong direction"
        return kind, f"{what}: it fits when {best} ({scores[best]:.3f}, {given:.3f} as given, {chance:.3f} by chance)"
    return step_verdict


def _step_verdict(
    given: _Masks, spectrum: np.ndarray, lags: np.ndarray, steps: tuple[tuple[int, int, float], ...], fit: str
) -> tuple[MaskKind, str]:
    """Whether another step clearly fits better than the camera's; kind and sentence."""
    differences = np.diff(np.sort(lags))
    own = next((share for _, step, share in steps if differences.size and np.allclose(differences, step)), None)
    if len(steps) < 2 or own is None:
        return "fits", fit
    step = round(float(differences[0]))
    # the coarsest step that explains nearly everything is considered the true one
    bands, coarsest, share = max((s for s in steps if s[2] >= COARSER_SHARE), key=lambda s: s[1], default=steps[0])
    if own < COARSER_SHARE and _other_bands(given, spectrum, lags, coarsest, own):
        kind: MaskKind = "bands or blur" if coarsest == 1 else "bands"  # a blur reaches every column, not every third
        what = {
            "bands or blur": "the mask is blurred or displaced by part of a pixel, or the number of bands is wrong",
            "bands": "wrong number of bands, or a blur over several pixels",
        }[kind]
        return kind, (
            f"{what}; the two look alike: {lags.size} bands with step {step} explain {own:.0%} of what the mask can, "
            f"{bands} bands with step {coarsest} explain {share:.0%}"
        )
    if own >= COARSER_SHARE and coarsest > step and share >= FINER_SHARE:
        return "bands", (
            f"wrong number of bands: {bands} bands with step {coarsest} explain all that {lags.size} bands with step "
            f"{step} do ({share:.1%})"
        )
    return "fits", fit


def _other_bands(given: _Masks, spectrum: np.ndarray, lags: np.ndarray, step: int, share: float) -> bool:
    """Whether bands of this step account for what the lags of the camera, with this share of R^2, leave unexplained.

    More bands also explain more if the true mask is sharper than the given one, or slightly displaced, but then with
    weights that oscillate from column to column. True bands have smooth weights, and with these explain more than the
    bands of the camera, whose share of that is the observed one.
    """
    finest, own = np.arange(0, round(float(lags.max())) + 1, dtype=float), np.rint(lags).astype(int)
    true = np.arange(0, len(finest), step)
    M, ridged = given.gram(finest), given.ridged(finest)

    def explained(c: np.ndarray, subset: np.ndarray, B: np.ndarray) -> float:
        """R^2 of weights B^T z at a subset of the columns."""
        c = B @ c[subset]
        return float(c @ np.linalg.solve(B @ ridged[np.ix_(subset, subset)] @ B.T, c))

    c, B = given.correlations(spectrum, finest)[:, 0], cosines(len(true), SMOOTH)
    if explained(c, true, B) <= explained(c, own, cosines(len(own), SMOOTH)):
        return False
    weights = np.linalg.solve(given.ridged(finest[true]), c[true])
    smooth = M[:, true] @ B.T @ np.linalg.lstsq(B.T, weights, rcond=None)[0]  # c of a snapshot with smooth weights
    total = explained(smooth, np.arange(len(M)), np.eye(len(M)))
    expected = explained(smooth, own, np.eye(len(own))) / max(total, np.finfo(float).tiny)
    below, above = TOLERANCE
    return expected - below <= share <= expected + above
