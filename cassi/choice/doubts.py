"""What speaks against a result, in sentences, from its numbers: for the program, for its file and for its pages."""

from __future__ import annotations

from cassi.optics.imprint import STAMPED

HALF = 0.5  # of |y|: what a result leaves unexplained at most, to be called one


def of_result(residual: float) -> tuple[str, ...]:
    """A cube that explains less than half of its snapshot; `residual` is |y - Phi x| / |y|."""
    if residual <= HALF:
        return ()
    what = "leaves over half of the snapshot unexplained" if residual < 1 else "explains less than a black one would"
    return (
        f"the cube {what} (residual {residual:.0%}): the solver diverged, the noise given is too large, or the camera "
        "is another; check mask, bands, gain, blur and solver",
    )


def of_imprint(value: float | None) -> tuple[str, ...]:
    """A cube that carries the mask's pattern; `value` is that of `cassi.optics.imprint`."""
    if value is None or value <= STAMPED:
        return ()
    return (
        f"the mask's pattern is left in the cube (imprint {value:.2f}, good: below {STAMPED:g}): the mask does not fit "
        "the snapshot, or noise was fitted; calibrate the camera anew",
    )
