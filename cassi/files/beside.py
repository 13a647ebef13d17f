"""What lies beside a snapshot: its bad pixels, the sensitivity of pixels, the mean over the bands, and the truth."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cassi.errors import InputError, counted
from cassi.files.container import Entry, role_of
from cassi.files.layout import band_axis, stack_order
from cassi.files.opening import open_container
from cassi.files.scaling import levels_of, plan_counts, read_leading, scale_cube, to_float32
from cassi.files.wavelength_files import read_wavelengths
from cassi.optics.measurement import any_bad
from cassi.optics.wavelengths import pair_bands
from cassi.types import PathLike

Sources = Mapping[Entry, bool]  # what the images lie beside, and whether these are transposed in its file


def upright(values: np.ndarray, transposed: bool) -> np.ndarray:
    """Images (..., H, W), transposed or not."""
    return values.swapaxes(-1, -2) if transposed and values.ndim > 1 else values


def images_beside(
    role: str, sources: Sources, size: tuple[int, ...], given: Entry | None = None
) -> Iterator[tuple[Entry, np.ndarray]]:
    """The images of a role, (H, W) or one a frame (N, H, W), beside each source; `given` in place of the first."""
    for k, (near, across) in enumerate(sources.items()):
        if (entry := near.beside(role) if k or given is None else given) is not None:
            stored = (size[1], size[0]) if across else (size[0], size[1])
            axis = band_axis(entry, image=stored) if len(entry.shape) == 3 else None
            yield entry, upright(read_leading(entry, axis), across)


def read_bad_pixels(sources: Sources, given: PathLike | None, size: tuple[int, ...]) -> np.ndarray | None:
    """The pixels that are marked, (H, W') or by frame (N, H, W'); a map that is given replaces the snapshot's."""
    first, found = None if given is None else open_container(Path(given)).pick("bad pixel map")[0], list[np.ndarray]()
    if first is not None and role_of(first) == "mask" and first.beside("measurement") is not None:
        raise InputError(f"{first.where} is the mask of a measurement, expected a map of bad pixels")
    for entry, values in images_beside("bad pixels", sources, size, first):
        if values.shape[-2:] != size or values.ndim > 3:
            raise InputError(f"{entry.where} has shape {values.shape}, expected the measurement's, {size}")
        found.append(np.not_equal(values, 0))
    return any_bad(found)


def read_sensitivity(
    sources: Sources, size: tuple[int, ...], notes: list[str]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The sensitivity of each pixel, or for each frame, if one of the files has it, and the pixels that have none.

    A mask that is given brings it, too: that of a refined camera holds what the snapshots stated.
    """
    for entry, stored in images_beside("sensitivity", dict(reversed(list(sources.items()))), size):
        if stored.shape[-2:] != size or stored.ndim > 3:
            notes.append(f"'{entry.name}' {entry.shape} is not that of the detector's pixels {size}: not used")
            continue
        values = np.asarray(stored, dtype=np.float32)
        notes.append(f"the light is divided by the sensitivity of each detector pixel, of {entry.file.path.name}")
        dead = ~(np.isfinite(values) & (values > 0))
        if dead.any():
            notes.append(f"treated as bad: {counted(np.count_nonzero(dead), 'pixel')} without sensitivity")
        return np.where(dead, 1, values), dead
    return None, None


def read_mean_band(sources: Sources, size: tuple[int, ...], notes: list[str]) -> np.ndarray | None:
    """The true mean over the bands (H, W), if it is there."""
    for entry, values in images_beside("mean band", sources, size):
        if values.shape == size:
            return scale_cube(values, entry.where)[0]
        notes.append(f"'{entry.name}' {entry.shape} does not fit the image {size}: not used")
    return None


def sensitivity_of(values: np.ndarray | None, frames: int | slice | None, path: Path) -> np.ndarray | None:
    """The sensitivity for these frames, of one a frame (a shot) that of a single frame."""
    if values is None or values.ndim == 2:
        return values
    if not isinstance(frames, int):
        raise InputError(
            f"{path}: 'sensitivity' {values.shape} has one picture a frame, expected one for all frames of a "
            "stack; give the frames a file each, or say how many shots a scene has (--shots)",
            cures=("shots",),
        )
    return np.asarray(values[frames])


def bad_pixels_of(
    raw: np.ndarray, marked: np.ndarray | None, frames: int | slice | None, declares_missing: bool, notes: list[str]
) -> tuple[np.ndarray, np.ndarray | None, int]:
    """The numbers of these frames, 0 where a bad pixel holds NaN or Inf, the bad pixels (H, W') or None, and how many
    of them the file states of these frames alone.

    Bad is what a map marks, of a map per frame in any of these, and what the file declares missing in any of them.
    """
    bad, alone = marked, 0
    if bad is not None and bad.ndim == 3:
        picked = bad[slice(None) if frames is None else frames]
        bad = np.asarray(picked if isinstance(frames, int) else picked.any(axis=0))
        alone = int(np.count_nonzero(bad))
    if raw.dtype.kind != "f":
        return raw, bad, alone
    if declares_missing and (missing := np.isnan(raw).reshape(-1, *raw.shape[-2:]).any(0)).any():
        notes.append(f"treated as bad: {counted(np.count_nonzero(missing), 'pixel')} that the file declares missing")
        bad, alone = any_bad((missing, bad)), alone + int(missing.sum())
    if bad is not None and (blank := bad & ~np.isfinite(raw)).any():
        notes.append(f"set to 0: {counted(np.count_nonzero(blank), 'bad pixel')} with NaN or Inf")
        raw = np.where(blank, 0, raw)
    return raw, bad, alone


if TYPE_CHECKING:
    from cassi.files.reading import OpenedMeasurement

MAX_RATIO = 2.0  # of the light of a truth to that of its snapshot, from which on it is in another unit
ALIKE = 1.1  # ... from which on it may be


def read_truth(
    opened: OpenedMeasurement, frames: int | slice | None, y: np.ndarray, scale: float, notes: list[str]
) -> tuple[np.ndarray | None, float]:
    """The truth (C, H, W) or (N, C, H, W) of these frames y, whose counts were divided by `scale`, in their unit, and
    what 1 is in it, or the full scale of integers; None without one that matches in size and bands."""
    known, num_bands = opened.known, len(opened.known.shifts)
    entry = opened.entry.beside("truth")
    if entry is None or entry.name == opened.entry.name or entry is opened.mask_entry:
        return None, 1.0
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
        return None, 1.0
    theirs, own = (one.beside("wavelengths") for one in (opened.entry, entry))
    if theirs is not None and own is not None and theirs is not own:
        paired = None
        with suppress(InputError):  # theirs may be replaced by those that are given
            paired = pair_bands(read_wavelengths(theirs, num_bands), read_wavelengths(own, num_bands))
        if paired is None:
            notes.append(f"'{entry.name}' is of other wavelengths than the snapshot: not used")
            return None, 1.0
        values = values.take(paired, -3)
    values = upright(values, known.transposed)
    values = values if entry.packed is None else values.astype(entry.packed)
    if len(entry.shape) == 3 and len(opened.frames) > 1 and not _explains(opened, values, frames):
        notes.append(f"'{entry.name}' is one truth beside {len(opened.frames)} snapshots and not that of all: not used")
        return None, 1.0
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
) -> tuple[np.ndarray, float]:
    """The truth in the unit of the snapshots, by the light that arrives, sum y = sum m x, whatever the shifts; and what
    was 1 in its own.

    Divided by what integers of its own are divided by, or as the snapshots were, whichever fits; where neither does, it
    is in another unit, and divided by the ratio.
    """
    if values.dtype.kind == "f":
        values = to_float32(values, f"'{name}'")
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
    return to_float32(values if divisor == 1 else values / np.float64(divisor), f"'{name}'"), own / divisor
