"""Warnings about a result, made from its numbers: for the program, for its file and for its pages."""

from cassi.errors import Note
from cassi.evidence.judge import MAX_IMPRINT, POOR_FIT

CONCERN = "concern"  # kind of a note that speaks against a measurement or a result


def fit_warnings(residual: float) -> tuple[str, ...]:
    """Warn of a cube that fits its snapshot poorly; `residual` is |y - Phi x| / |y|."""
    if residual <= POOR_FIT:
        return ()
    what = "leaves much of the snapshot unexplained" if residual < 1 else "explains less than a black cube would"
    text = (
        f"the cube {what} (residual {residual:.0%}): the solver diverged, there is little but noise or less than was "
        "given, or the camera is another; check mask, bands, gain, blur and solver"
    )
    return (Note(text, CONCERN),)


def imprint_warnings(value: float | None) -> tuple[str, ...]:
    """Warn of a cube that carries the mask's pattern; `value` is that of `cassi.optics.imprint`."""
    if value is None or value <= MAX_IMPRINT:
        return ()
    text = (
        f"the mask's pattern is left in the cube (imprint {value:.2f}, good: below {MAX_IMPRINT:g}): the mask does not "
        "fit the snapshot, or noise was fitted; calibrate the camera again"
    )
    return (Note(text, CONCERN),)
