"""Many frames, one at a time: single snapshots, stacks, folders, patterns, lists."""

import glob
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cassi.errors import InputError
from cassi.files.atomic import PathLike
from cassi.files.formats.table import SUFFIXES
from cassi.files.options import ReadOptions
from cassi.files.reading import OpenedMeasurement, open_measurement
from cassi.files.scaling import BIT_DEPTHS
from cassi.optics.measurement import Measurement


def natural(path: PathLike) -> list[tuple[str, int]]:
    """A key that sorts names by the numbers in them.

    Example:
        >>> sorted(["frame10.h5", "frame2.h5"], key=natural)
        ['frame2.h5', 'frame10.h5']
    """
    parts = re.split(r"(\d+)", os.fspath(path).lower())
    return [(text, int(number)) for text, number in zip(parts[::2], [*parts[1::2], "-1"], strict=True)]


def find_files(source: PathLike | Sequence[PathLike], leave_out: Sequence[PathLike] = ()) -> list[Path]:
    """The files that a folder, a pattern such as "run/*.tif", a name or a list of names stands for.

    Args:
        source: of a folder, the files of a known format are taken; a list, also of folders, is taken in its order.
        leave_out: files that are not snapshots, such as the mask's.

    Returns:
        The files in natural order (2 before 10). Of several, hidden ones, results (`*_cube.*`) and those to leave out
        are none; a shell expands a pattern to them, too.

    Raises:
        InputError: nothing found.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else source
    found = [file for one in sources for file in _files_of(Path(one))]
    if len(sources) == len(found) == 1 and Path(sources[0]) == found[0]:
        return found
    others = {Path(name).resolve() for name in leave_out}
    found = [file for file in found if file.resolve() not in others]
    found = [file for file in found if not file.name.startswith(".") and not file.stem.endswith("_cube")]
    if not found:
        expected = f"expected files ending in {', '.join(sorted(SUFFIXES))}"
        raise InputError(f"{', '.join(map(str, sources))}: no measurement files found, {expected}")
    return found


def _files_of(path: Path) -> list[Path]:
    """The files of a folder or a pattern in natural order; a name stands for itself, whether it is there or not."""
    if path.is_dir():
        found = [file for file in path.iterdir() if file.suffix.lower() in SUFFIXES]
    elif path.exists() or not glob.has_magic(str(path)):
        return [path]
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
    found = [file for file in found if file.is_file()]
    return sorted(found, key=natural)


def frame_name(stack: str, frame: int) -> str:
    """The name of one frame of a stack, and of its result.

    Example:
        >>> frame_name("run7", 12)
        'run7_000012'
    """
    return f"{stack}_{frame:06d}"


class Frames:
    """Frames of a stack or of many files; indexing reads one, nothing else is held in memory.

    `names` has one name per frame, unique, fit for the names of results; `bit_depth` is what integer counts are scaled
    by, None where there are none. A frame that cannot be read raises
    `InputError` when it is read, so that the others can still be used.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        places: tuple[tuple[Path, int | None], ...],
        files: dict[Path, OpenedMeasurement | InputError],
        bit_depth: int | None,
    ) -> None:
        self.names = names
        self.bit_depth = bit_depth
        self._places = places
        self._files = files

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Measurement:
        path, frame = self._places[index]
        opened = self._files[path]
        if isinstance(opened, InputError):
            raise opened
        return opened.read(frame)


def open_frames(source: PathLike | Sequence[PathLike], options: ReadOptions | None = None) -> Frames:
    """Open a stack, the files of a folder, a pattern such as "run/*.tif", or a list of files, to read frame by frame.

    All frames share one scale: where integers come without a bit depth, every frame is looked through once for the
    largest count. Give `Levels.bit_depth` to save that pass.

    Args:
        source: file with one snapshot or a stack (N, H, W'), folder, pattern, or list of these files.
        options: how all of them are read.

    Returns:
        The frames in natural order of the names (2 before 10).

    Raises:
        InputError: nothing found, or not one of the files can be opened.

    Example:
        >>> import h5py, numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
        >>> with h5py.File(path, "w") as file:
        ...     file["measurement"], file["mask"] = np.ones((3, 8, 14), np.float32), np.ones((8, 8), np.float32)
        >>> frames = open_frames(path)
        >>> frames.names, frames[1].y.shape
        (('run_000000', 'run_000001', 'run_000002'), (8, 14))
    """
    options = options or ReadOptions()
    files: dict[Path, OpenedMeasurement | InputError] = {}
    places: list[tuple[Path, int | None]] = []
    for path in find_files(source, options.files):
        try:
            files[path] = opened = open_measurement(path, options)
        except InputError as error:
            files[path] = error
            places.append((path, None))
            continue
        count = opened.num_frames
        places += [(path, None)] if count is None else [(path, i) for i in range(count)]
    errors = [found for found in files.values() if isinstance(found, InputError)]
    if len(errors) == len(files):
        raise errors[0]
    bit_depth = options.levels.bit_depth or _common_bit_depth(places, files)
    levels = replace(options.levels, bit_depth=bit_depth)
    for path, found in files.items():
        if not isinstance(found, InputError):
            files[path] = replace(found, options=replace(options, levels=levels))
    return Frames(_names(places), tuple(places), files, bit_depth)


def _names(places: Sequence[tuple[Path, int | None]]) -> tuple[str, ...]:
    stems: dict[str, set[Path]] = {}
    for path, _ in places:
        stems.setdefault(path.stem, set()).add(path)
    taken: dict[str, int] = {}
    names = []
    for path, frame in places:
        name = path.stem if len(stems[path.stem]) == 1 else path.name
        name = name if frame is None else frame_name(name, frame)
        taken[name] = taken.get(name, 0) + 1
        names.append(name if taken[name] == 1 else f"{name}_{taken[name]}")
    return tuple(names)


def _common_bit_depth(
    places: Sequence[tuple[Path, int | None]], files: dict[Path, OpenedMeasurement | InputError]
) -> int | None:
    """Return the smallest usual bit depth that holds every integer count; None where some frames are not integers."""
    highest = None
    for path, frame in places:
        opened = files[path]
        if isinstance(opened, InputError) or opened.entry.dtype is None:
            continue
        if opened.entry.dtype.kind not in "iu":  # floats have a unit of their own, which a bit depth would change
            return None
        if opened.entry.bits is not None:
            largest = 2**opened.entry.bits - 1
        else:
            try:
                counts = opened.counts(frame)
            except InputError:  # told when the frame is read
                continue
            if counts.min() < 0 and opened.options.levels.black_level is None:  # told there, too
                return None
            largest = int(counts.max())
        highest = largest if highest is None else max(highest, largest)
    if highest is None:
        return None
    return next((bits for bits in BIT_DEPTHS if highest <= 2**bits - 1), 32)
