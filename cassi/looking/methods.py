"""A paragraph for a paper: what was done to a snapshot, with version, settings and what to cite.

Each sentence is made of facts that the result states, and is left out without them.
"""

from collections.abc import Iterator, Mapping
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
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in _sentences(data) if text)


def _sentences(data: ReportData) -> Iterator[str]:
    """One after the other, without their full stops."""
    choice, parameters, known = data.choice, data.parameters, data.provenance
    origin, camera = (stored if isinstance(stored := known.get(name), Mapping) else {} for name in ("origin", "camera"))
    is_reflectance = data.unit == REFLECTANCE

    # the cube and its bands
    bands, height, width = data.cube.shape
    reach = "" if data.wavelengths is None else f" from {data.wavelengths.min():.0f} to {data.wavelengths.max():.0f} nm"
    shots, beside, filters = known.get("shots"), choice.get("together"), origin.get("filters")
    snapshots = f"{shots} coded-aperture snapshots" if shots else "one coded-aperture snapshot"
    snapshots = "one snapshot of a mosaic sensor" if filters else snapshots
    snapshots += f" and {beside} beside it in time" if beside else ""
    yield (
        f"a spectral cube of {bands} bands{reach}, {height} x {width} pixels, was reconstructed from {snapshots} with "
        f"{known.get('version') or 'cassi'}"
    )
    source, shifts, places = origin.get("wavelengths"), known.get("shifts"), ""
    if isinstance(shifts, list) and len(shifts) > 1 and all(map(_number, shifts)) and any(shifts):
        low, *_, high = sorted({round(b - a, 6) for a, b in pairwise(shifts)}) * 2
        steps = f"{low:g}" if low == high else f"{low:.3g} to {high:.3g}"
        places = f"the bands are displaced by {steps} px from one to the next"
    nm = f"their wavelengths are {'' if source == 'as given' else 'as in '}{source}" if source else ""
    yield "; ".join(filter(None, (places, nm)))

    # the camera
    mask, refined = origin.get("mask"), origin.get("refined")
    if filters:
        yield f"the filters on its pixels follow the pattern {filters}"
    elif mask:
        count = refined.get("captures") or 0 if isinstance(refined, Mapping) else 0
        captures = f"{count} capture{'s' * (count != 1)}" if count else "captures"
        before = (
            f", which was refined from {captures} before: {_listed(refined)}" if isinstance(refined, Mapping) else ""
        )
        yield f"the mask was read from {mask}{before}"
    if camera.get("accepted"):
        correction = _listed(camera) or str(camera.get("message", "")).rstrip(".")
        yield f"from the snapshot itself the camera was corrected: {correction}"
    elif camera:
        why = camera.get("reason") or "no correction was found with which the snapshot is predicted better"
        yield f"{'it' if mask and not filters else 'the mask'} was used as it is: {why}"

    # the counts
    black, counts = choice.get("black_level"), origin.get("black_level")
    if origin.get("calibrated"):
        yield "the counts were corrected by dark and flat frames"
    elif "dark" in origin:
        both = "the snapshots of scene and white reference" if is_reflectance else "the snapshot"
        yield f"a dark frame was subtracted from {both}"
    elif _number(counts):
        yield f"a black level of {counts:.4g} counts was subtracted"
    elif isinstance(black, int | float) and black:
        mean = 0.0 if data.measurement is None else float(np.nanmean(data.measurement))
        words = [f"{black / mean:.0%} of the snapshot's mean"] if mean > 0 else []
        words += ["estimated from pixels that almost no light can reach"] * bool(choice.get("black_level_estimated"))
        yield f"a black level of {black:.4g}{''.join(f', {one}' for one in words)}{',' * bool(words)} was subtracted"
    count = known.get("num_bad_pixels")
    if _number(count) and count:
        kinds = {
            "saturated": origin.get("saturated"),
            "far above all their neighbors": origin.get("hot"),
            "found to contradict their neighbors": camera.get("defects"),
            "lit through elements beyond the picture of the mask": camera.get("unseen"),
        }
        listed = "".join(f", {number} {kind}" for kind, number in kinds.items() if number)
        yield f"{count} detector pixel{'s were' if count != 1 else ' was'} left out{listed}"

    # the solver
    solver, prior, error = str(choice.get("solver", "")), str(choice.get("prior", "")), choice.get("held_out_error")
    if solver in SOLVERS:
        values = {words: choice.get(name) for name, words in SETTINGS.items()}
        listed = "".join(f", {words.format(f'{value:g}')}" for words, value in values.items() if _number(value))
        yield f"the solver was {SOLVERS[solver]}{listed}"
    elif prior:
        network = f" with {choice['network']}" if choice.get("network") else ""
        used = [words.replace("{network}", network) for name, words in PRIORS.items() if name in prior]
        count = f" with {choice['components']} components" if choice.get("components") else ""
        how = "follow a plan that was made before"
        if _number(error):
            how = f"were chosen by their error at detector pixels that were held out, {error:.1%} in the end"
        yield (
            f"the cube is the maximum a posteriori estimate in a spectral subspace{count}, under "
            f"{', then '.join(used)}; basis, noise, weights and priors {how}"
        )
    if is_reflectance:
        board, exposure = (str(parameters.get(name, 1.0)) for name in ("white_reflectance", "exposure_ratio"))
        try:  # as it was typed: a number, or the name of a table
            stated = "" if float(board) == 1 else f", of reflectance {float(board):g}"
        except ValueError:
            stated = ", of tabulated reflectance"
        stated += "" if float(exposure) == 1 else f", exposed for {1 / float(exposure):.3g} of the scene's time"
        yield (
            "the cube was divided by the cube of a white reference, reconstructed from a snapshot by the same camera"
            f"{stated}; its values are reflectances"
        )
    if (quality := parameters.get("quality")) not in (None, "default"):
        yield f"the setting of quality was {quality!r}, the seed {parameters.get('seed', 0)}"

    # how far to trust it
    if data.unexplained is not None:
        yield f"the residual |y - Phi x| / |y| is {data.unexplained:.2%}"
    if data.uncertainty is not None:
        yield "error bars are one standard deviation, as the program estimates it from further solutions"


def _listed(camera: Mapping[str, Any]) -> str:
    """What was corrected of a camera."""
    return ", ".join(map(str, words)) if isinstance(words := camera.get("findings"), list) else ""


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)  # of NumPy, too, as files have them
