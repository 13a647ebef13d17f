"""What files say of the pixels of a detector: which are bad, and how sensitive each is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.atomic import PathLike
from cassi.files.container import Container
from cassi.files.names import BAD_PIXELS, MASK, SENSITIVITY, find, lookup, pick
from cassi.files.opening import open_container
from cassi.optics.measurement import any_bad


def read_bad_pixels(
    container: Container, path: PathLike | None, shape: tuple[int, ...], transposed: bool
) -> np.ndarray | None:
    """The map of a file, or of the file of a measurement where it has one: True where a detector pixel is bad."""
    if path is None:
        entry = find(container, BAD_PIXELS)
        source = container
    else:
        source = open_container(Path(path))
        entry, _ = pick(source, BAD_PIXELS + MASK, "bad pixel map")
    if entry is None:
        return None
    marked: np.ndarray = np.not_equal(source.read(entry), 0)
    marked = marked.swapaxes(-1, -2) if transposed and marked.ndim > 1 else marked
    if marked.shape != shape and (marked.ndim != 3 or marked.shape[1:] != shape):
        raise InputError(f"{source.path}: '{entry.name}' has shape {marked.shape}, expected the measurement's, {shape}")
    return marked


def read_sensitivity(
    sources: Mapping[Container, bool], shape: tuple[int, ...], notes: list[str]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """That of each detector pixel, or for each frame, if a file has one, and the pixels that have none.

    `sources` are the files, and whether their images are to be transposed.
    """
    if (found := lookup(SENSITIVITY, *sources)) is None:
        return None, None
    container, entry = found
    values = np.asarray(container.read(entry), dtype=np.float32)
    values = values.swapaxes(-1, -2) if sources[container] and values.ndim > 1 else values
    if values.shape[-2:] != shape or values.ndim > 3:
        notes.append(f"'{entry.name}' {entry.shape} is not that of the detector's pixels {shape}: not used")
        return None, None
    notes.append("the light is divided by the sensitivity of each detector pixel")
    dead = ~(np.isfinite(values) & (values > 0))
    if dead.any():
        notes.append(f"{np.count_nonzero(dead)} pixels without sensitivity are treated as bad")
    return np.where(dead, 1, values), dead


def sensitivity_of(values: np.ndarray | None, frames: int | slice | None, container: Container) -> np.ndarray | None:
    """The sensitivity for these frames, of one a frame (a shot) that of a single frame."""
    if values is None or values.ndim == 2:
        return values
    if not isinstance(frames, int):
        raise InputError(
            f"{container.path}: 'sensitivity' {values.shape} has one picture a frame, expected one for all frames of a "
            "stack; give the frames a file each, or say how many shots a scene has (--shots)",
            cures=("shots",),
        )
    return np.asarray(values[frames])


def bad_pixels_of(
    raw: np.ndarray, marked: np.ndarray | None, frames: int | slice | None, declares_missing: bool, notes: list[str]
) -> tuple[np.ndarray, np.ndarray | None]:
    """The numbers of these frames, 0 where a bad pixel holds NaN or Inf, and the bad pixels (H, W'), or None.

    Bad is what a map marks, of a map per frame in any of these, and what the file declares missing in any of them.
    """
    bad = marked
    if bad is not None and bad.ndim == 3:
        picked = bad[slice(None) if frames is None else frames]
        bad = np.asarray(picked if isinstance(frames, int) else picked.any(axis=0))
    if raw.dtype.kind != "f":
        return raw, bad
    if declares_missing and (missing := np.isnan(raw).reshape(-1, *raw.shape[-2:]).any(0)).any():
        notes.append(f"{np.count_nonzero(missing)} pixels that the file declares missing are marked as bad")
        bad = any_bad((missing, bad))
    if bad is not None and (blank := bad & ~np.isfinite(raw)).any():
        notes.append(f"{np.count_nonzero(blank)} bad pixels hold NaN or Inf and were set to 0")
        raw = np.where(blank, 0, raw)
    return raw, bad
