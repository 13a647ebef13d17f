"""A paragraph for a paper: what was done to a snapshot, with version, settings and what to cite.

Each sentence is a function of the facts that the result states; without them it is empty.
"""

from collections.abc import Mapping
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np

from cassi.looking.report_data import ReportData
from cassi.optics.measurement import REFLECTANCE

PRIORS = {  # words of a stage, and where its prior comes from
    "total variation": "total variation of spectral coefficients (Zhuang & Bioucas-Dias, IEEE JSTARS 11, 2018)",
    "non-local": "a non-local low-rank prior on groups of similar patches (Dong, Shi & Li, IEEE TIP 22, 2013, with the "
    "shrinkage of Gavish & Donoho, IEEE Trans. Inf. Theory 63, 2017)",
    "learned": "an unrolled network for any mask{network} (after Adler & Oktem, IEEE TMI 37, 2018, Zhang, Van Gool & "
    "Timofte, CVPR 2020, and Gao et al., CVPR 2026)",
}
SOLVERS = {
    "gap-tv": "generalized alternating projection with total variation (Yuan, ICIP 2016)",
    "admm-tv": "ADMM with total variation (Boyd et al., Found. Trends Mach. Learn. 3, 2011)",
    "fista-tv": "FISTA with total variation (Beck & Teboulle, SIAM J. Imaging Sci. 2, 2009)",
    "least-squares": "least squares",
    "subspace": "total variation in a spectral subspace (Zhuang & Bioucas-Dias, IEEE JSTARS 11, 2018)",
}


SETTINGS = {
    "num_iters": "{} iterations",
    "tv_weight": "weight {}",
    "components": "{} spectral components",
    "damping": "damping {}",
}


def methods_text(data: ReportData) -> str:
    """What was done, in a few sentences; only what the result states.

    Example:
        >>> import numpy as np
        >>> data = ReportData(np.ones((28, 64, 48)), choice={"solver": "gap-tv", "num_iters": 60})
        >>> methods_text(data)[:79]
        'A spectral cube of 28 bands, 64 x 48 pixels, was reconstructed from one coded-a'
    """
    sentences = (_cube, _bands, _mask, _found, _levels, _left_out, _solver, _reflectance, _quality, _evidence, _shown)
    return " ".join(filter(None, (sentence(data) for sentence in sentences)))


def _origin(data: ReportData) -> Mapping[str, Any]:
    """Where mask and wavelengths come from, and what was done to the counts: `Measurement.origin`."""
    return origin if isinstance(origin := data.provenance.get("origin"), Mapping) else {}


def _cube(data: ReportData) -> str:
    bands, height, width = data.cube.shape
    reach = "" if data.wavelengths is None else f" from {data.wavelengths.min():.0f} to {data.wavelengths.max():.0f} nm"
    shots, beside = data.provenance.get("shots"), data.choice.get("together")
    snapshots = f"{shots} coded-aperture snapshots" if shots else "one coded-aperture snapshot"
    snapshots = "one snapshot of a mosaic sensor" if _origin(data).get("filters") else snapshots
    snapshots += f" and {beside} beside it in time" if beside else ""
    return (
        f"A spectral cube of {bands} bands{reach}, {height} x {width} pixels, was reconstructed from {snapshots} with "
        f"{data.provenance.get('version') or 'cassi'}."
    )


def _bands(data: ReportData) -> str:
    """Dispersion, and where the wavelengths come from."""
    source, shifts = _origin(data).get("wavelengths"), data.provenance.get("shifts")
    known = [f"their wavelengths are {'' if source == 'as given' else 'those of '}{source}"] if source else []
    if isinstance(shifts, list) and len(shifts) > 1 and all(map(_number, shifts)) and any(shifts):
        steps = {round(b - a, 6) for a, b in pairwise(shifts)}
        low, high = min(steps), max(steps)
        words = (
            f"{low:g} px from one to the next" if low == high else f"{low:.3g} to {high:.3g} px from one to the next"
        )
        known.insert(0, f"the bands are displaced by {words}")
    text = "; ".join(known)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _mask(data: ReportData) -> str:
    """The mask that the run was given, and what had been corrected of it before."""
    mask, refined = _origin(data).get("mask"), _origin(data).get("refined")
    if filters := _origin(data).get("filters"):
        return f"The filters on its pixels follow the pattern {filters}."
    if not mask:
        return ""
    if not isinstance(refined, Mapping):
        return f"The mask is that of {mask}."
    count = refined.get("captures") or 0
    captures = f"{count} capture{'s' * (count != 1)}" if count else "captures"
    return f"The mask is that of {mask}, which was refined from {captures} before: {_listed(refined.get('findings'))}."


def _found(data: ReportData) -> str:
    """What this run found of the camera."""
    camera, known = data.provenance.get("camera"), bool(_origin(data).get("mask"))
    if not isinstance(camera, Mapping):
        return ""
    if camera.get("accepted"):
        found = _listed(camera.get("findings")) or str(camera.get("message", "")).rstrip(".")
        return f"From the snapshot itself the camera was corrected: {found}."
    why = camera.get("reason") or "no correction was found with which the snapshot is predicted better"
    return f"{'It' if known else 'The mask'} was used as it is: {why}."


def _listed(words: object) -> str:
    return ", ".join(map(str, words)) if isinstance(words, list) else ""


def _levels(data: ReportData) -> str:
    """What was subtracted from the counts."""
    origin, black = _origin(data), data.choice.get("black_level")
    if origin.get("calibrated"):
        return "The counts were corrected by dark and flat frames."
    if "dark" in origin:
        both = "the snapshot and that of the white reference" if data.unit == REFLECTANCE else "the snapshot"
        return f"A dark frame was subtracted from {both}."
    if isinstance(counts := origin.get("black_level"), int | float):
        return f"A black level of {counts:.4g} counts was subtracted."
    if not isinstance(black, int | float) or not black:
        return ""
    mean = 0.0 if data.measurement is None else float(np.nanmean(data.measurement))
    words = [f"{black / mean:.0%} of the snapshot's mean"] if mean > 0 else []
    words += ["estimated from pixels that almost no light can reach"] * bool(data.choice.get("black_level_estimated"))
    return f"A black level of {black:.4g}{''.join(f', {one}' for one in words)}{',' * bool(words)} was subtracted."


def _left_out(data: ReportData) -> str:
    """Detector pixels that took no part."""
    count, camera = data.provenance.get("num_bad_pixels"), data.provenance.get("camera")
    if not _number(count) or not count:
        return ""
    defects = camera.get("defects") if isinstance(camera, Mapping) else 0
    unseen = camera.get("unseen") if isinstance(camera, Mapping) else 0
    kinds = {
        "saturated": _origin(data).get("saturated"),
        "far above all their neighbors": _origin(data).get("hot"),
        "found to contradict their neighbors": defects,
        "lit through elements beyond the picture of the mask": unseen,
    }
    listed = ", ".join(f"{number} {kind}" for kind, number in kinds.items() if number)
    pixels = f"{count} detector pixel{'s were' if count != 1 else ' was'} left out"
    return f"{pixels}{f', {listed}' if listed else ''}."


def _solver(data: ReportData) -> str:
    choice = data.choice
    solver, prior, error = str(choice.get("solver", "")), str(choice.get("prior", "")), choice.get("held_out_error")
    if solver in SOLVERS:
        values = {words: choice.get(name) for name, words in SETTINGS.items()}
        listed = ", ".join(words.format(f"{value:g}") for words, value in values.items() if _number(value))
        return f"The solver was {SOLVERS[solver]}{f', {listed}' if listed else ''}."
    if not prior:
        return ""
    network = f" with {choice['network']}" if choice.get("network") else ""
    used = [words.replace("{network}", network) for name, words in PRIORS.items() if name in prior]
    count = f" with {choice['components']} components" if choice.get("components") else ""
    how = "are those of a plan that was made before"
    if _number(error):
        how = f"were chosen by their error at detector pixels that were held out, {error:.1%} in the end"
    return (
        f"The cube is the maximum a posteriori estimate in a spectral subspace{count}, under {', then '.join(used)}; "
        f"basis, noise, weights and priors {how}."
    )


def _reflectance(data: ReportData) -> str:
    """What is stated of a white reference, unless it is perfect and was exposed like the scene."""
    if data.unit != REFLECTANCE:
        return ""
    board = str(data.parameters.get("white_reflectance", 1.0))
    exposure = float(str(data.parameters.get("exposure_ratio", 1.0)))
    try:  # as it was typed: a number, or the name of a table
        stated = "" if float(board) == 1 else f", of reflectance {float(board):g}"
    except ValueError:
        stated = ", of tabulated reflectance"
    stated += "" if exposure == 1 else f", exposed for {1 / exposure:.3g} of the scene's time"
    return (
        "The cube was divided by that of a white reference, reconstructed from a snapshot by the same camera"
        f"{stated}; its values are reflectances."
    )


def _quality(data: ReportData) -> str:
    quality = data.parameters.get("quality")
    if quality in (None, "default"):
        return ""
    return f"The setting of quality was {quality!r}, the seed {data.parameters.get('seed', 0)}."


def _evidence(data: ReportData) -> str:
    return "" if data.unexplained is None else f"The residual |y - Phi x| / |y| is {data.unexplained:.2%}."


def _shown(data: ReportData) -> str:
    if data.uncertainty is None:
        return ""
    return "Error bars are one standard deviation, as the program estimates it from further solutions."


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)  # of NumPy, too, as files have them
