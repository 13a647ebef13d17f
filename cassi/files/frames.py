"""Many frames: files of folders, patterns and lists, their names, and their common scale."""

import glob
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.container import number_in, role_of
from cassi.files.layout import ends, is_found_camera
from cassi.files.opening import SUFFIXES, open_container
from cassi.files.options import Levels, ReadOptions
from cassi.files.reading import OpenedMeasurement, open_measurement
from cassi.files.scaling import bit_depth_of, digits, full_scale, levels_of, mask_to_float32, smallest_depth
from cassi.optics.measurement import Measurement, join_shots
from cassi.types import PathLike

MAX_FLOATS = 8  # files of floats whose level is looked at


def natural(path: PathLike) -> list[tuple[str, int]]:
    """A sort key that compares the numbers in names by value: 2 before 10."""
    parts = re.split(r"(\d+)", os.fspath(path).lower())
    return [(text, int(number)) for text, number in zip(parts[::2], [*parts[1::2], "-1"], strict=True)]


def find_files(
    source: PathLike | Sequence[PathLike], leave_out: Sequence[PathLike] = (), masks: Sequence[PathLike] = ()
) -> list[Path]:
    """The files of a folder, a pattern such as "run/*.tif", a name or a list of names, in natural order.

    Hidden files, those in `leave_out`, `masks` that hold no snapshot beside theirs, and what the program has written of
    others (results, by their name too, cameras, calibrations) are skipped, unless a single file is named.

    Raises:
        InputError: no files.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else source
    files = [file for one in sources for file in _list_files(Path(one))]
    if len(sources) == len(files) == 1 and Path(sources[0]) == files[0]:
        return files
    excluded, of_masks = ({Path(name).resolve() for name in names} for names in (leave_out, masks))
    files = [one for one in files if one.resolve() not in excluded]
    files = [one for one in files if one.resolve() not in of_masks or _holds_snapshot(one)]
    files = [file for file in files if not (file.name.startswith(".") or _is_written(file))]
    if not files:
        expected = f"expected files ending in {', '.join(sorted(SUFFIXES))}"
        raise InputError(f"{', '.join(map(str, sources))}: no measurement files found, {expected}")
    return files


def _holds_snapshot(mask: Path) -> bool:
    """Whether the file of a mask names a snapshot, too."""
    with suppress(InputError):
        return {"measurement", "mask"} <= {role_of(entry) for entry in open_container(mask).entries}
    return False


def _is_written(file: Path) -> bool:
    """Whether the program has written a file of other files, so that it holds no snapshot of its own."""
    if file.suffix.lower() not in (".h5", ".hdf5") or file.stem.endswith("_cube"):
        return file.stem.endswith("_cube")
    with suppress(InputError):  # its own run reports what is wrong with it
        container = open_container(file)
        calibrated = container.attributes.get("kind") == "cassi calibration"
        return container.is_result or is_found_camera(container) or calibrated
    return False


def _list_files(path: Path) -> list[Path]:
    """The files of a folder or a pattern in natural order; a name itself, whether it exists or not."""
    if os.path.isdir(path):
        files = [file for file in path.iterdir() if file.suffix.lower() in SUFFIXES]
    elif os.path.exists(path) or not glob.has_magic(str(path)):
        return [path]
    else:
        files = [Path(name) for name in glob.glob(str(path), recursive=True)]
    files = [file for file in files if os.path.isfile(file)]
    return sorted(files, key=natural)


def frame_name(stack: str, frame: int) -> str:
    """The name of one frame of a stack, and of its result."""
    return f"{stack}_{frame:06d}"


def shared_levels(files: Sequence[PathLike], options: ReadOptions) -> Levels:
    """The levels of the options, completed so that all frames of these files share one unit and one full scale.

    Integers by the smallest usual bit depth that holds all of them. Beside floats, which are not rescaled, they are
    left as counts if that is closer to the floats' mean level than fractions of full scale are. Frames are scanned one
    at a time; files that cannot be read are skipped and report their error later.
    """
    levels = options.levels
    highest, occurring, floats, lights, blacks = 0, 0, list[OpenedMeasurement](), list[float](), list[float]()
    for path in files if levels.bit_depth is None else ():
        with suppress(InputError):
            opened = open_measurement(path, options)
            if opened.entry.dtype is None or opened.entry.dtype.kind not in "iu":
                floats.append(opened)
                continue
            bits, black = bit_depth_of(opened.entry), levels_of(opened.entry, levels).black_level
            for frame in opened.frames if bits is None else opened.frames[:2]:
                counts = opened.counts(frame)
                if np.nanmin(counts) < 0 and black is None:  # an error when it is read
                    return levels
                highest = max(int(np.nanmax(counts)) if bits is None else 2**bits - 1, highest)
                occurring |= digits(counts) if bits is None else 1
                blacks.append(black or 0.0)
                lights.append(float(np.nanmean(counts)) - blacks[-1])
    if not blacks:
        return levels
    full = full_scale(smallest_depth(highest), highest, occurring)
    per, same = full - min(blacks), min(blacks) == max(blacks)
    levels = replace(levels, full_scale=full, counts_per_unit=None if same else per)
    beside, light = list[float](), np.mean(lights)
    for opened in floats[:MAX_FLOATS]:
        with suppress(InputError):
            black = levels_of(opened.entry, levels).black_level or 0.0
            beside.append(float(np.nanmean(opened.counts(opened.frames[0]))) - black)
    beside = [level for level in beside if level > 0]
    if not beside or light <= 0:
        return levels
    steps = [abs(math.log(np.mean(beside) * unit / light)) for unit in (1.0, per)]
    return replace(levels, counts_per_unit=1.0) if steps[0] <= steps[1] else levels


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
    if len(paths) == 1:
        return join_shots([open_measurement(paths[0], one).read(k) for k, one in enumerate(each)])
    levels = shared_levels(paths, each[0])
    pairs = zip(paths, each, strict=True)
    return join_shots([open_measurement(path, replace(one, levels=levels)).read() for path, one in pairs])


def stated_shots(path: PathLike) -> int | None:
    """The attribute `num_shots` of a file; None if it has none."""
    stated = number_in("num_shots", open_container(Path(path)))
    return None if stated is None else round(stated)


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
    has_mask = container.find("mask") is not None if options.mask_key is None else True
    if own and not masks and has_mask:
        return (options,) * num_shots
    entry, _ = container.pick("mask", options.mask_key)
    axis = next((k for k in ends(entry) if len(entry.shape) in (3, 4) and entry.shape[k] == num_shots), None)
    if axis is None:
        raise InputError(
            f"{entry.where} {entry.shape} is not one mask per shot; expected ({num_shots}, H, W), "
            f"({num_shots}, C, H, W), or {num_shots} files of masks"
        )
    stack = mask_to_float32(np.moveaxis(entry.read(), axis, 0), entry.where)[0]
    name = entry.file.path.name
    return tuple(replace(options, mask=mask, mask_name=name, mask_key=None) for mask in stack)


def is_stack(path: PathLike, key: str | None = None) -> bool:
    """Whether the measurement in a file has three axes, that is several snapshots."""
    entry, _ = open_container(Path(path)).pick("measurement", key)
    return len(entry.shape) == 3
