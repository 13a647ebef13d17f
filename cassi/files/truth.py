"""The truth beside a snapshot: the right one, of its bands, in its unit."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from cassi.errors import InputError
from cassi.files.beside import upright
from cassi.files.layout import band_axis, stack_order
from cassi.files.scaling import levels_of, plan_counts, read_leading, to_float32
from cassi.files.wavelength_files import read_wavelengths
from cassi.optics.wavelengths import pair_bands

if TYPE_CHECKING:
    from cassi.files.reading import OpenedMeasurement

MAX_RATIO = 2.0  # of the light of a truth to that of its snapshot, from which on it is in another unit
ALIKE = 1.1  # ... from which on it may be


def read_truth(
    opened: OpenedMeasurement, frames: int | slice | None, y: np.ndarray, scale: float, notes: list[str]
) -> np.ndarray | None:
    """The truth (C, H, W) or (N, C, H, W) of these frames y, whose counts were divided by `scale`, in their unit; None
    without one that matches in size and bands."""
    known, num_bands = opened.known, len(opened.known.shifts)
    entry = opened.entry.beside("truth")
    if entry is None or entry.name == opened.entry.name or entry is opened.mask_entry:
        return None
    rows, columns = known.mask.shape[-2:]
    image, values = (columns, rows) if known.transposed else (rows, columns), None
    if len(entry.shape) == 4:
        order = stack_order(entry)
        shape = tuple(entry.shape[i] for i in order)
        if opened.stack_axis is not None and shape[1:] == (num_bands, *image):
            values = read_leading(entry, order[0], frames)
            rest = sorted(order[1:])
            values = np.moveaxis(values, [rest.index(i) - 3 for i in order[1:]], (-3, -2, -1))
    elif len(entry.shape) == 3:
        axis = band_axis(entry, num_bands=num_bands, image=image)
        values = None if axis is None else read_leading(entry, axis)
    if values is None:
        notes.append(f"'{entry.name}' {entry.shape} is not the truth of {num_bands} bands of {image}: not used")
        return None
    theirs, own = (one.beside("wavelengths") for one in (opened.entry, entry))
    if theirs is not None and own is not None and theirs is not own:
        paired = None
        with suppress(InputError):  # theirs may be replaced by those that are given
            paired = pair_bands(read_wavelengths(theirs, num_bands), read_wavelengths(own, num_bands))
        if paired is None:
            notes.append(f"'{entry.name}' is of other wavelengths than the snapshot: not used")
            return None
        values = values.take(paired, -3)
    values = upright(values, known.transposed)
    values = values if entry.packed is None else values.astype(entry.packed)
    if len(entry.shape) == 3 and len(opened.frames) > 1 and not _explains(opened, values, frames):
        notes.append(f"'{entry.name}' is one truth beside {len(opened.frames)} snapshots and not that of all: not used")
        return None
    return _in_unit_of(y, known.mask, values, entry.name, scale, notes)


def _explains(opened: OpenedMeasurement, cube: np.ndarray, frames: int | slice | None) -> bool:
    """Whether one truth (C, H, W) is that of these frames of a stack: it explains them as well as it does any.

    By the residual |y - a Phi x| / |y|, a free, of every frame, with the shifts rounded to whole pixels.
    """
    starts = [round(d - min(opened.known.shifts)) for d in opened.known.shifts]
    light = np.zeros_like(opened.counts(0), dtype=np.float64)
    for start, band in zip(starts, opened.known.mask * cube.astype(np.float32), strict=True):
        light[:, start : start + band.shape[-1]] += band[:, : light.shape[-1] - start]
    residuals, black = [], levels_of(opened.entry, opened.options.levels).black_level or 0
    for frame in opened.frames:
        y = np.nan_to_num(opened.counts(frame).astype(np.float64)) - black
        cosine = float((y * light).sum()) / max(float(np.linalg.norm(y) * np.linalg.norm(light)), 1e-300)
        residuals.append(math.sqrt(max(0.0, 1 - cosine**2)))
    picked = residuals if frames is None else residuals[frames]
    return bool(np.all(np.asarray(picked) <= 1.5 * min(residuals) + 0.01))


def _in_unit_of(
    y: np.ndarray, mask: np.ndarray, values: np.ndarray, name: str, scale: float, notes: list[str]
) -> np.ndarray:
    """The truth in the unit of the snapshots, by the light that arrives, sum y = sum m x, whatever the shifts.

    Divided by what integers of its own are divided by, or as the snapshots were, whichever fits; where neither does, it
    is in another unit, and divided by the ratio.
    """
    own = plan_counts(values.dtype, 0.0, float(values.max()), None).scale if values.dtype.kind in "iu" else 1.0
    mean = values.mean(axis=tuple(range(values.ndim - 3)), dtype=np.float64)
    sent = float((mean * mask).sum())
    arrived = float(y.mean(axis=tuple(range(y.ndim - 2)), dtype=np.float64).sum())
    divisor = own
    if sent > 0 and arrived > 0:
        divisor = min((own, scale), key=lambda one: abs(math.log(sent / one / arrived)))
        ratio = sent / divisor / arrived
        if not 1 / MAX_RATIO <= ratio <= MAX_RATIO:
            notes.append(
                f"'{name}' is {ratio:.3g} times as bright as the snapshot, so in another unit: divided by that"
            )
            divisor *= ratio
        elif not 1 / ALIKE <= ratio <= ALIKE:
            notes.append(f"'{name}' is {ratio:.3g} times as bright as the snapshot: is it in the same unit?")
    if divisor in (own, scale) and divisor != 1:
        notes.append(f"'{name}' divided by {divisor:g}" + (", as the snapshot" if divisor == scale else ""))
    return to_float32(values if divisor == 1 else values / np.float64(divisor), f"'{name}'")
