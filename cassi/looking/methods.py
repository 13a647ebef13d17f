"""A paragraph for a paper: what was done to a snapshot, with version, settings and what to cite."""

from collections.abc import Mapping

from cassi.looking.report_data import ReportData
from cassi.optics.measurement import DARK_SUBTRACTED, REFLECTANCE

PRIORS = {  # words of a stage, and where its prior comes from
    "total variation": "total variation of spectral coefficients (Zhuang & Bioucas-Dias, IEEE JSTARS 11, 2018)",
    "non-local": "a non-local low-rank prior on groups of similar patches",
    "learned": "an unrolled network for any mask",
}
SOLVERS = {
    "gap-tv": "generalized alternating projection with total variation (Yuan, ICIP 2016)",
    "admm-tv": "ADMM with total variation (Boyd et al., Found. Trends Mach. Learn. 3, 2011)",
    "fista-tv": "FISTA with total variation (Beck & Teboulle, SIAM J. Imaging Sci. 2, 2009)",
    "least-squares": "least squares",
    "subspace": "total variation in a spectral subspace (Zhuang & Bioucas-Dias, IEEE JSTARS 11, 2018)",
}


def methods_text(data: ReportData) -> str:
    """What was done, in a few sentences; only what the result states.

    Example:
        >>> import numpy as np
        >>> data = ReportData(np.ones((28, 64, 48)), choice={"solver": "gap-tv", "num_iters": 60})
        >>> methods_text(data)[:79]
        'A spectral cube of 28 bands, 64 x 48 pixels, was reconstructed from one coded-a'
    """
    bands, height, width = data.cube.shape
    reach = "" if data.wavelengths is None else f" from {data.wavelengths.min():.0f} to {data.wavelengths.max():.0f} nm"
    program = str(data.provenance.get("version") or "cassi")
    shots, beside = data.provenance.get("shots"), data.choice.get("together")
    snapshots = f"{shots} coded-aperture snapshots" if shots else "one coded-aperture snapshot"
    snapshots += f" and {beside} beside it in time" if beside else ""
    sentences = [
        f"A spectral cube of {bands} bands{reach}, {height} x {width} pixels, was reconstructed from {snapshots} with "
        f"{program}."
    ]
    camera = data.provenance.get("camera")
    if isinstance(camera, Mapping) and camera.get("message"):
        sentences.append(str(camera["message"]).rstrip(".") + ".")
    choice, parameters, notes = data.choice, data.parameters, data.provenance.get("notes")
    divided = data.unit == REFLECTANCE
    if isinstance(notes, list) and any(str(note).startswith(DARK_SUBTRACTED) for note in notes):
        both = "the snapshot and that of the white reference" if divided else "the snapshot"
        sentences.append(f"A dark frame was subtracted from {both}.")
    solver, prior = str(choice.get("solver", "")), str(choice.get("prior", ""))
    if solver in SOLVERS:
        settings = {name: choice.get(name) for name in ("num_iters", "tv_weight", "components", "damping")}
        listed = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in settings.items() if _number(value))
        sentences.append(f"The solver was {SOLVERS[solver]}{f' ({listed})' if listed else ''}.")
    elif prior:
        used = [words for name, words in PRIORS.items() if name in prior]
        if choice.get("network"):
            used[-1] += f" with {choice['network']}"
        count = f" with {choice['components']} components" if choice.get("components") else ""
        error = choice.get("held_out_error")
        how = "are those of a plan that was made before"
        if _number(error):
            how = f"were chosen by their error at detector pixels that were held out, {error:.1%} in the end"
        sentences.append(
            f"The cube is the maximum a posteriori estimate in a spectral subspace{count}, under "
            f"{', then '.join(used)}; basis, noise, weights and priors {how}."
        )
    if divided:
        sentences.append(
            "The cube was divided by that of a white reference, reconstructed from a snapshot by the same camera"
            f"{_board(parameters)}; its values are reflectances."
        )
    if parameters.get("quality") not in (None, "default"):
        sentences.append(f"The setting of quality was {parameters['quality']!r}, the seed {parameters.get('seed', 0)}.")
    if data.unexplained is not None:
        sentences.append(f"The residual |y - Phi x| / |y| is {data.unexplained:.2%}.")
    if data.uncertainty is not None:
        sentences.append("Error bars are one standard deviation, as the program estimates it from further solutions.")
    return " ".join(sentences)


def _board(parameters: Mapping[str, object]) -> str:
    """What is stated of a white reference, unless it is perfect and was exposed like the scene."""
    board, exposure = str(parameters.get("white_reflectance", 1.0)), float(str(parameters.get("exposure_ratio", 1.0)))
    try:  # as it was typed: a number, or the name of a table
        stated = "" if float(board) == 1 else f", of reflectance {float(board):g}"
    except ValueError:
        stated = ", of tabulated reflectance"
    return stated + ("" if exposure == 1 else f", exposed for {1 / exposure:.3g} of the scene's time")


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
