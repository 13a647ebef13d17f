"""Matches mask and measurement: axes, bands, shifts."""

from dataclasses import dataclass

import numpy as np

from cassi.errors import InputError
from cassi.files.container import Container, Entry
from cassi.optics.geometry import DEFAULT_STEP, Shifts, _whole, as_shifts


@dataclass(frozen=True)
class Layout:
    """The axes of frames and of bands, and whether to transpose so that the dispersion runs along the rows."""

    stack_axis: int | None
    mask_axis: int | None
    transposed: bool


def _axis_candidates(container: Container, entry: Entry) -> tuple[int | None, ...]:
    """Possible axes of frames or bands, the likeliest first."""
    if len(entry.shape) == 2:
        return (None,)
    if len(entry.shape) != 3:
        raise InputError(f"{container.path}: '{entry.name}' has {len(entry.shape)} axes {entry.shape}, expected 2 or 3")
    if entry.axes is not None and len(entry.axes) == 3:
        stated = [entry.axes.index(letter) for letter in "NC" if letter in entry.axes]
        if stated:
            return (stated[0],)
    return (2, 0) if container.bands_last else (0, 2)


def _image(shape: tuple[int, ...], axis: int | None) -> tuple[int, int]:
    rows, columns = (n for i, n in enumerate(shape) if i != axis)
    return rows, columns


def match_layout(
    container: Container, entry: Entry, mask_container: Container, mask_entry: Entry, num_bands: int | None
) -> Layout:
    """Find the axes with which mask and measurement have the same number of rows and the measurement is no narrower.

    As stored, or otherwise transposed, if the dispersion runs down the columns.
    """
    stacks, planes = _axis_candidates(container, entry), _axis_candidates(mask_container, mask_entry)
    pairs = [(a, b) for a in stacks for b in planes if b is None or num_bands in (None, mask_entry.shape[b])]
    if not pairs:
        raise InputError(
            f"mask '{mask_entry.name}' {mask_entry.shape} has no axis of {num_bands} bands; for several shots, give "
            "their number (--shots)"
        )
    for transposed in (False, True):
        for stack, plane in pairs:
            rows, columns = _image(entry.shape, stack)[:: -1 if transposed else 1]
            mask_rows, mask_columns = _image(mask_entry.shape, plane)[:: -1 if transposed else 1]
            if rows == mask_rows and columns >= mask_columns:
                return Layout(stack, plane, transposed)
    image, mask = _image(entry.shape, stacks[0]), _image(mask_entry.shape, planes[0])
    text = f"mask '{mask_entry.name}' {mask_entry.shape} does not fit measurement '{entry.name}' {entry.shape}: "
    if image[0] == mask[0]:
        bands = f"e.g. {mask[1] + 27 * DEFAULT_STEP} columns for 28 bands with step {DEFAULT_STEP}"
        text += f"the measurement must be at least as wide as the mask ({bands}); are the two files swapped?"
    else:
        text += f"both need equally many rows, got {mask[0]} and {image[0]}; crop both to the same rows"
    raise InputError(text)


def unshear_mask(
    mask: np.ndarray, stored: np.ndarray | None, step: float | None, named_shift: bool, name: str, notes: list[str]
) -> tuple[Shifts, np.ndarray] | None:
    """Turn masks stored as displaced on the detector (C, H, W') into shifts and one mask (C, H, W) per band.

    m_c[i, j] = M_c[i, j + d_c - min d].  The step comes from the file, the user, or is 2 if the name of the mask
    contains "shift". None if the bands are not displaced (one mask per video frame).
    """
    shifts = stored
    if shifts is None:
        if step is None:
            if not named_shift:
                return None
            step = DEFAULT_STEP
            notes.append(f"'{name}' is as wide as the measurement: a step of {step:g} px is assumed")
        shifts = np.arange(mask.shape[0]) * float(step)
    if stored is not None and stored.size != mask.shape[0]:
        raise InputError(f"the mask '{name}' has {mask.shape[0]} bands, 'shifts' holds {stored.size}")
    offsets = shifts - shifts.min()
    if not offsets.any():
        return None
    if not all(_whole(float(offset)) for offset in offsets):
        raise InputError(
            f"the mask '{name}' is displaced by fractions of a pixel; store the masks undisplaced (C, H, W)"
        )
    width = mask.shape[-1] - round(float(offsets.max()))
    if width < 1:
        raise InputError(f"the mask '{name}' of {mask.shape[-1]} columns cannot be displaced by {offsets.max():g}")
    starts = [round(float(offset)) for offset in offsets]
    outside = any(mask[c, :, :s].any() or mask[c, :, s + width :].any() for c, s in enumerate(starts))
    bands = np.stack([mask[c, :, s : s + width] for c, s in enumerate(starts)])
    notes.append(
        f"'{name}' holds the masks as displaced on the detector: band c is cropped at column c * step, {width} columns"
        + ("; nonzero values outside are ignored" if outside else "")
    )
    same = all(np.array_equal(bands[0], band) for band in bands[1:])
    return as_shifts(shifts), bands[0] if same else bands
