"""Files of cameras other than one snapshot through a single disperser: several shots, double dispersers, video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from cassi.errors import InputError
from cassi.files.atomic import PathLike
from cassi.files.container import Container, Entry
from cassi.files.names import MASK, MEASUREMENT, SHIFTS, find, pick
from cassi.files.opening import open_container
from cassi.files.options import ReadOptions
from cassi.files.reading import mask_source, open_measurement
from cassi.files.scaling import mask_to_float32
from cassi.optics.geometry import infer_shifts
from cassi.optics.measurement import Measurement, join_shots

Optics = Literal["sd", "dd", "cacti"]
OPTICS: tuple[str, ...] = get_args(Optics)


def read_scene(
    *paths: PathLike,
    masks: Sequence[PathLike] = (),
    shots: int | None = None,
    optics: str | None = None,
    options: ReadOptions = ReadOptions(),  # noqa: B008  frozen
) -> Measurement:
    """Read one scene: a snapshot, or several shots of it in one file or in one each, through any optics.

    Args:
        paths: a file, or one per shot.
        masks: their masks, see `options_of_shots`; none where the files hold them.
        shots: K; what the file says, or as many as there are files, if not given.
        optics: "sd" (single disperser), "dd" (double disperser) or "cacti" (video); what the file says if not given.
        options: see `cassi.files.read_measurement`.

    Raises:
        InputError: anything that cannot be used, in one line.

    Example:
        >>> import tempfile, os
        >>> from cassi.files import write_measurement
        >>> path = os.path.join(tempfile.mkdtemp(), "m.h5")
        >>> m = Measurement(y=np.ones((2, 4, 6)), mask=np.ones((2, 4, 4)), shifts=(0, 2), shots=2)
        >>> read_scene(write_measurement(path, m)).shots
        2
    """
    stated = stated_camera(paths[0])
    optics, count = optics or stated[0] or "sd", shots or (len(paths) if len(paths) > 1 else stated[1]) or 1
    if len(paths) not in (1, count):
        raise InputError(f"{len(paths)} files for a scene of {count} shots; give one file per shot, or a stack")
    if count == 1:
        one = options if not masks else replace(options, mask=masks[0])
        return open_measurement(paths[0], with_optics(paths[0], one, optics)).read()
    each = options_of_shots(paths[0], options, count, masks, own=len(paths) > 1)
    return join_shots(
        [
            open_measurement(path, with_optics(path, one, optics)).read(k if len(paths) == 1 else None)
            for k, (path, one) in enumerate(zip(paths * (count if len(paths) == 1 else 1), each, strict=True))
        ]
    )


def stated_camera(path: PathLike) -> tuple[str | None, int | None]:
    """What a file says of its camera in the attributes `optics` and `num_shots`; None where it says nothing."""
    container = open_container(Path(path))
    optics, shots = container.attributes.get("optics"), container.attributes.get("num_shots")
    if optics is not None and str(optics) not in OPTICS:
        raise InputError(f"{path}: the optics must be one of {', '.join(OPTICS)}, got {optics!r}", kind="optics")
    return None if optics is None else str(optics), None if shots is None else int(float(str(shots)))


def options_of_shots(
    path: PathLike, options: ReadOptions, num_shots: int, masks: Sequence[PathLike] = (), *, own: bool = False
) -> tuple[ReadOptions, ...]:
    """How each of K shots is read: the same for all but the mask.

    The masks come from K files; from one file, of its own or the measurement's, with a stack (K, H, W) or
    (K, C, H, W); or each shot's file, where it has one of its `own`, brings its own.

    Raises:
        InputError: masks for another number of shots.
    """
    if len(masks) == num_shots > 1:
        return tuple(replace(options, mask=mask) for mask in masks)
    if len(masks) > 1:
        raise InputError(f"{len(masks)} masks were given for {num_shots} shots; give one mask per shot, in their order")
    container = open_container(Path(masks[0] if masks else path))
    known = find(container, MASK) is not None if options.mask_key is None else True
    if own and not masks and known:
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


def with_optics(path: PathLike, options: ReadOptions, optics: str) -> ReadOptions:
    """The options with which a measurement of these optics is read as one whose bands are not displaced.

    A double disperser has one aperture, as wide as the scene and the spread of its bands together, which is cut into
    the mask of each band (`cassi.optics.other_cameras.double_disperser`); a video camera a mask for each frame.

    Raises:
        InputError: a mask that does not fit these optics.
    """
    if optics == "sd":
        return options
    container = open_container(Path(path))
    mask_container, mask_entry = mask_source(container, options.mask, options.mask_key, [])
    if optics == "cacti":
        if len(mask_entry.shape) != 3:
            raise InputError(
                f"{mask_container.path}: a video camera has a mask for each frame, expected (C, H, W), got "
                f"{mask_entry.shape}"
            )
        return replace(options, step=0.0)
    mask, _ = mask_to_float32(mask_container.read(mask_entry), f"{mask_container.path}: '{mask_entry.name}'")
    entry, _ = pick(container, MEASUREMENT, "measurement", options.key)
    rows, columns = entry.shape[:2] if container.bands_last and len(entry.shape) == 3 else entry.shape[-2:]
    if mask.ndim == 3 and mask.shape[-2:] == (rows, columns):  # each band's part, cut out already
        return replace(options, step=0.0)
    if mask.ndim != 2 or mask.shape[0] != rows or mask.shape[1] <= columns:
        raise InputError(
            f"{mask_container.path}: the aperture of a double disperser must have the {rows} rows of the measurement "
            f"and its {columns} columns plus the spread of the bands, got {mask_entry.shape}"
        )
    stored = None
    if options.step is None and (shifts := find(container, SHIFTS)) is not None:
        stored = np.asarray(container.read(shifts), dtype=np.float64).reshape(-1)
    found = infer_shifts(mask.shape, (rows, columns), stored, options.step, options.num_bands, [])
    if not all(isinstance(d, int) for d in found):
        raise InputError(f"a double disperser is known with whole shifts only, got {found[0]:g}, {found[1]:g}, ...")
    parts = [mask[:, int(d) - int(min(found)) :][:, :columns] for d in found]
    return replace(options, mask=np.stack(parts), mask_key=None, step=0.0, num_bands=None)


def is_stack(path: PathLike, key: str | None = None) -> bool:
    """Whether the measurement in a file has three axes: several snapshots."""
    entry, _ = pick(open_container(Path(path)), MEASUREMENT, "measurement", key)
    return len(entry.shape) == 3
