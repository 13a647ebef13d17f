"""Images beside a snapshot: its bad pixels, the sensitivity of pixels, the mean over the bands."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from cassi.errors import InputError, counted
from cassi.files.container import Entry
from cassi.files.layout import band_axis
from cassi.files.opening import open_container
from cassi.files.scaling import read_leading, scale_cube
from cassi.optics.measurement import any_bad
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
    for entry, values in images_beside("bad pixels", sources, size, first):
        if values.shape[-2:] != size or values.ndim > 3:
            raise InputError(f"{entry.where} has shape {values.shape}, expected the measurement's, {size}")
        found.append(np.not_equal(values, 0))
    return any_bad(found)


def read_sensitivity(
    sources: Sources, size: tuple[int, ...], notes: list[str]
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """The sensitivity of each pixel, or for each frame, if one of the files has it, and the pixels that have none."""
    for entry, stored in images_beside("sensitivity", sources, size):
        if stored.shape[-2:] != size or stored.ndim > 3:
            notes.append(f"'{entry.name}' {entry.shape} is not that of the detector's pixels {size}: not used")
            break
        values = np.asarray(stored, dtype=np.float32)
        notes.append("the light is divided by the sensitivity of each detector pixel")
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
        notes.append(f"treated as bad: {counted(np.count_nonzero(missing), 'pixel')} that the file declares missing")
        bad = any_bad((missing, bad))
    if bad is not None and (blank := bad & ~np.isfinite(raw)).any():
        notes.append(f"set to 0: {counted(np.count_nonzero(blank), 'bad pixel')} with NaN or Inf")
        raw = np.where(blank, 0, raw)
    return raw, bad
