"""A paragraph for a paper: what was done to a snapshot, with version, settings and what to cite.

Its sentences stand in `page/methods.txt`; each is made of facts that the result states, and left out without them.
"""

from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np

from cassi.looking.report_data import ReportData
from cassi.looking.templates import page_of
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
    "num_iters": "%s iterations",
    "tv_weight": "weight %s",
    "components": "%s spectral components",
    "damping": "damping %s",
}


def methods_text(data: ReportData) -> str:
    """The methods paragraph; only what the result states.

    Example:
        >>> import numpy as np
        >>> data = ReportData(np.ones((28, 64, 48)), choice={"solver": "gap-tv", "num_iters": 60})
        >>> methods_text(data)[:79]
        'A spectral cube of 28 bands, 64 x 48 pixels, was reconstructed from one coded-a'
    """
    choice, parameters, known = data.choice, data.parameters, data.provenance
    origin, shifts = _mapping(known.get("origin")), known.get("shifts")
    steps = ""
    if isinstance(shifts, list) and len(shifts) > 1 and all(map(_number, shifts)) and any(shifts):
        low, *_, high = sorted({round(b - a, 6) for a, b in pairwise(shifts)}) * 2
        steps = f"{low:g}" if low == high else f"{low:.3g} to {high:.3g}"
    board: float | None = None
    with suppress(ValueError):  # as it was typed: a number, or the name of a table
        board = float(str(parameters.get("white_reflectance", 1.0)))
    network = f" with {choice['network']}" if choice.get("network") else ""
    facts = {
        "data": data, "choice": choice, "parameters": parameters, "known": known, "origin": origin,
        "camera": _mapping(known.get("camera")), "side": _mapping(choice.get("side")),
        "refined": _mapping(origin.get("refined")),
        **dict(zip(("bands", "height", "width"), data.cube.shape, strict=True)), "nm": data.wavelengths,
        "is_reflectance": data.unit == REFLECTANCE, "steps": steps, "board": board,
        "exposure": float(str(parameters.get("exposure_ratio", 1.0))),
        "mean": 0.0 if data.measurement is None else float(np.nanmean(data.measurement)),
        "solvers": SOLVERS, "settings": SETTINGS, "number": _number, "findings": _findings,
        "used": [words.format(network=network) for name, words in PRIORS.items() if name in str(choice.get("prior"))],
    }  # fmt: skip
    sentences = filter(None, map(str.strip, page_of("methods.txt", facts).splitlines()))
    return " ".join(f"{text[:1].upper()}{text[1:]}." for text in sentences)


def _findings(camera: Mapping[str, Any]) -> str:
    """The corrections of a camera."""
    return ", ".join(map(str, words)) if isinstance(words := camera.get("findings"), list) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)  # of NumPy, too, as files have them
