"""Warnings about a result, made from its numbers: for the program, for its file and for its pages."""

from collections.abc import Sequence

import numpy as np

from cassi.errors import Note
from cassi.evidence.judge import MAX_IMPRINT, POOR_FIT

CONCERN = "concern"  # kind of a note that speaks against a measurement or a result


# Residuals of good runs are up to 0.05; 0.07 is the noise of pixels of 1 / 0.07^2 = 200 electrons.
MAX_RESIDUAL, MIN_RESIDUAL = 0.07, 0.05
TIMES_NOISE = 2.0
MAX_BEND = 0.05  # 0.00 to 0.035 in good runs, 0.06 to 0.4 with y^(1/1.5), unless noise or a grey mask hide it


def fit_warnings(residual: float, noise: float | None = None, *, finished: bool = False) -> tuple[str, ...]:
    """Warn of a cube that fits its snapshot poorly.

    Args:
        residual: |y - Phi x| / |y|.
        noise: the same of the noise that is stated for the camera; None: unknown.
        finished: the default solver has ended by itself, so that no more than noise should be left.
    """
    if residual <= POOR_FIT:
        large = residual > (MAX_RESIDUAL if noise is None else max(TIMES_NOISE * noise, MIN_RESIDUAL))
        if not (finished and large):
            return ()
        beside = f"{residual / noise:.1f} times its noise" if noise else f"as noise below {residual**-2:.0f} electrons"
        text = (
            f"the cube leaves {residual:.0%} of the snapshot unexplained, {beside}: the bands lie elsewhere or "
            "unevenly, the mask is blurred, pixels are dead, or light is scarce; check shifts, blur and bad pixels"
        )
        return (Note(text, CONCERN, cures=("shifts", "psf", "bad_pixels")),)
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


def bend_warnings(bend: float | None) -> tuple[str, ...]:
    """Warn of counts that are no linear measure of light; `bend` is that of `cassi.running.concerns`."""
    if bend is None or abs(bend) <= MAX_BEND:
        return ()
    text = (
        f"the residual bends with brightness ({bend:+.2f}, good: within {MAX_BEND:g}): the counts do not rise with the "
        "light, as with the gamma curve of 8-bit cameras or near saturation; record linear counts, or undo the curve"
    )
    return (Note(text, CONCERN),)


def texture_warnings(bands: Sequence[int], wavelengths: np.ndarray | None) -> tuple[str, ...]:
    """Warn of bands whose fine texture is not the scene's; `bands` is that of `cassi.evidence.texture`."""
    if not bands:
        return ()
    names = [f"{b + 1}" if wavelengths is None else f"{wavelengths[b]:.0f}" for b in bands]
    unit = "band" if wavelengths is None else "nm"
    named = f"{unit} {', '.join(names)}" if wavelengths is None else f"{', '.join(names)} {unit}"
    text = (
        f"fine texture is not resolved at {named}: light is weak there, and no other band shows it; trust coarser "
        "detail alone, or learn the mask from several captures (calibrate refine)"
    )
    return (Note(text, CONCERN),)
