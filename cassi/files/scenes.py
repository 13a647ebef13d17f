"""One scene from its files: a snapshot, or several shots, each through its own mask."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.atomic import PathLike
from cassi.files.container import Container, Entry
from cassi.files.frames import shared_levels
from cassi.files.names import MASK, MEASUREMENT, find, pick
from cassi.files.opening import open_container
from cassi.files.options import ReadOptions
from cassi.files.reading import open_measurement
from cassi.files.scaling import mask_to_float32
from cassi.optics.measurement import Measurement, join_shots


def read_scene(
    *paths: PathLike, masks: Sequence[PathLike] = (), shots: int | None = None, options: ReadOptions = ReadOptions()
) -> Measurement:
    """Read one scene: a snapshot, or several shots of it, in one file or in one file each.

    Args:
        paths: a file, or one per shot.
        masks: their masks, see `options_of_shots`; empty if the files contain them.
        shots: K; by default as stated in the file, or the number of files.
        options: see `cassi.files.read_measurement`.

    Raises:
        InputError: unusable input, in one line.
    """
    count = shots or (len(paths) if len(paths) > 1 else stated_shots(paths[0])) or 1
    if len(paths) not in (1, count):
        raise InputError(f"{len(paths)} files for a scene of {count} shots; give one file per shot, or a stack")
    if count == 1:
        one = options if not masks else replace(options, mask=masks[0])
        return open_measurement(paths[0], one).read()
    each = options_of_shots(paths[0], options, count, masks, own=len(paths) > 1)
    if len(paths) > 1:
        levels = shared_levels(paths, each[0])
        each = tuple(replace(one, levels=levels) for one in each)
    return join_shots(
        [
            open_measurement(path, one).read(k if len(paths) == 1 else None)
            for k, (path, one) in enumerate(zip(paths * (count if len(paths) == 1 else 1), each, strict=True))
        ]
    )


def stated_shots(path: PathLike) -> int | None:
    """The attribute `num_shots` of a file; None if it has none."""
    stated = open_container(Path(path)).attributes.get("num_shots")
    return None if stated is None else int(float(str(stated)))


def options_of_shots(
    path: PathLike, options: ReadOptions, num_shots: int, masks: Sequence[PathLike] = (), *, own: bool = False
) -> tuple[ReadOptions, ...]:
    """The options for reading each of K shots, which differ only in the mask.

    The masks come from K files; from one file, separate or that of the measurement, with a stack (K, H, W) or
    (K, C, H, W); or, if each shot has its `own` file, from these.

    Raises:
        InputError: masks for another number of shots.
    """
    if len(masks) == num_shots > 1:
        return tuple(replace(options, mask=mask) for mask in masks)
    if len(masks) > 1:
        raise InputError(f"{len(masks)} masks were given for {num_shots} shots; give one mask per shot, in their order")
    container = open_container(Path(masks[0] if masks else path))
    has_mask = find(container, MASK) is not None if options.mask_key is None else True
    if own and not masks and has_mask:
        return (options,) * num_shots
    entry, _ = pick(container, MASK, "mask", options.mask_key)
    axis = _axis_of_shots(container, entry, num_shots)
    if axis is None:
        raise InputError(
            f"{container.path}: '{entry.name}' {entry.shape} is not one mask per shot; expected ({num_shots}, H, W), "
            f"({num_shots}, C, H, W), or {num_shots} files of masks"
        )
    stack = mask_to_float32(np.moveaxis(container.read(entry), axis, 0), f"{container.path}: '{entry.name}'")[0]
    return tuple(replace(options, mask=mask, mask_key=None) for mask in stack)


def _axis_of_shots(container: Container, entry: Entry, num_shots: int) -> int | None:
    rank = len(entry.shape)
    if rank not in (3, 4):
        return (0 if num_shots == 1 else None) if rank != 2 else None
    candidates = (rank - 1, 0) if container.bands_last else (0, rank - 1)
    return next((axis for axis in candidates if entry.shape[axis] == num_shots), None)


def is_stack(path: PathLike, key: str | None = None) -> bool:
    """Whether the measurement in a file has three axes, that is several snapshots."""
    entry, _ = pick(open_container(Path(path)), MEASUREMENT, "measurement", key)
    return len(entry.shape) == 3
