"""Bands, shifts and widths: W' = W + max d - min d."""

import math

import numpy as np

from cassi.errors import InputError, counted

Shifts = tuple[int, ...] | tuple[float, ...]
DEFAULT_STEP = 2
STEP_RANGE = (1e-3, 1e5)  # smallest and largest absolute displacement between bands [pixel]


def cosines(num_bands: int, count: int) -> np.ndarray:
    """The slowest cosines over the bands, (count, C), of which smooth spectra are sums. More than C gives C."""
    phase = (np.arange(num_bands) + 0.5) / num_bands
    waves: np.ndarray = np.cos(np.pi * np.arange(min(count, num_bands))[:, None] * phase)
    return waves


def check_step(step: float | None) -> None:
    """Raise InputError for an invalid displacement between bands."""
    if step is None or step == 0:
        return
    if not math.isfinite(step):
        raise InputError(f"the step must be finite, got {step}")
    if not STEP_RANGE[0] <= abs(step) <= STEP_RANGE[1]:
        raise InputError(f"the step must be 0 or {STEP_RANGE[0]:g} to {STEP_RANGE[1]:g} px, got {step:g}")


def fitting_geometries(difference: int, limit: int = 6) -> list[tuple[int, int]]:
    """Return the (num_bands, step) with (num_bands - 1) * step = difference, the usual step 2 first."""
    steps = [step for step in range(1, difference + 1) if difference % step == 0]
    steps.sort(key=lambda step: (step != DEFAULT_STEP, step))
    return [(1 + difference // step, step) for step in steps[:limit]]


def _list_fits(difference: int) -> str:
    if difference == 0:
        return "only step 0 fits (any number of bands)"
    options = ", ".join(f"{counted(bands, 'band')} with step {step}" for bands, step in fitting_geometries(difference))
    return f"what fits: {options}"


def infer_shifts(
    y_shape: tuple[int, ...],
    mask_shape: tuple[int, ...],
    stored: np.ndarray | None,
    step: float | None,
    num_bands: int | None,
    notes: list[str],
) -> Shifts:
    """Infer the shifts from step, bands and widths, W' - W = max d - min d; InputError if they are inconsistent."""
    width, detector = mask_shape[-1], y_shape[-1]
    difference = detector - width
    if len(mask_shape) == 3:
        if num_bands not in (None, mask_shape[0]):
            raise InputError(f"the mask has {mask_shape[0]} bands, {num_bands} were given; for shots use MultiShot")
        num_bands = mask_shape[0]
    inferred = f"inferred from the widths {detector} and {width}"
    sizes = f"measurement is {detector} columns wide, mask {width}: a difference of {difference}"
    if stored is not None:
        if num_bands not in (None, stored.size):
            what = f"the mask has {counted(num_bands, 'band')}, 'shifts' holds {stored.size}"
            raise InputError(f"{what}; for several shots of a scene use cassi.files.frames.read_scene, or --shots")
        _check_span(stored, difference, sizes)
        return as_shifts(stored)
    if step is None and num_bands is None:
        step = DEFAULT_STEP if difference % DEFAULT_STEP == 0 else 1
        num_bands = 1 + difference // step
        notes.append(f"{counted(num_bands, 'band')} {inferred} with the usual step {step} px")
    elif num_bands is None and step is not None:
        if step == 0 and difference == 0:
            num_bands = 1
            notes.append("step 0 and one mask: treated as a single band")
        elif step == 0 or not _whole(difference / step):
            raise InputError(f"step {step:g} does not fit: {sizes}; {_list_fits(difference)}")
        else:
            num_bands = 1 + round(abs(difference / step))
            notes.append(f"{counted(num_bands, 'band')} {inferred} with step {step:g} px")
    elif step is None and num_bands is not None:
        if num_bands == 1:
            step = 0.0
        elif not _whole(difference / (num_bands - 1)):
            what = f"{num_bands} bands do not fit: {sizes}, which is no multiple of {num_bands - 1}"
            raise InputError(f"{what}; {_list_fits(difference)}")
        else:
            step = difference / (num_bands - 1)
            notes.append(f"step {step:g} px {inferred} and {num_bands} bands")
    shifts = np.arange(num_bands or 1) * float(step or 0)
    _check_span(shifts, difference, f"{num_bands} bands with step {step:g} do not fit: {sizes}")
    return as_shifts(shifts)


def _whole(value: float) -> bool:
    return abs(value - round(value)) < 1e-6


def _check_span(shifts: np.ndarray, difference: int, sizes: str) -> None:
    """Check the span; sub-pixel shifts may end anywhere within their last column."""
    span = float(shifts.max() - shifts.min())
    if abs(span - difference) >= (1 if not _whole(span) else 1e-6):
        raise InputError(f"{sizes}, but the shifts span {span:g} columns; {_list_fits(difference)}")


def as_shifts(values: np.ndarray) -> Shifts:
    """Return the shifts as integers where all are whole, else as floats."""
    if all(_whole(float(value)) for value in values):
        return tuple(round(float(value)) for value in values)
    return tuple(float(value) for value in values)
