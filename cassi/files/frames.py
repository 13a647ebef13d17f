"""Many frames: the files of folders, patterns and lists, their names, and the scale that they share."""

import glob
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cassi.errors import InputError
from cassi.files.atomic import PathLike
from cassi.files.formats.table import SUFFIXES
from cassi.files.options import ReadOptions
from cassi.files.reading import open_measurement
from cassi.files.scaling import BIT_DEPTHS


def natural(path: PathLike) -> list[tuple[str, int]]:
    """A key that sorts names by the numbers in them."""
    parts = re.split(r"(\d+)", os.fspath(path).lower())
    return [(text, int(number)) for text, number in zip(parts[::2], [*parts[1::2], "-1"], strict=True)]


def find_files(source: PathLike | Sequence[PathLike], leave_out: Sequence[PathLike] = ()) -> list[Path]:
    """The files that a folder, a pattern such as "run/*.tif", a name or a list of names stands for, 2 before 10.

    Of several, hidden ones, results (`*_cube.*`) and those to leave out (the mask's) are none.

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
    """The name of one frame of a stack, and of its result."""
    return f"{stack}_{frame:06d}"


def common_bit_depth(files: Sequence[PathLike], options: ReadOptions) -> int | None:
    """The smallest usual bit depth that holds every integer count of these files, so that all have one unit.

    Every frame is looked through once, one in memory at a time; what cannot be read says so when it is. None where some
    are floats, which have a unit of their own, or none can be read.
    """
    highest = None
    for path in files:
        try:
            opened = open_measurement(path, options)
            if opened.entry.dtype is None or opened.entry.dtype.kind not in "iu":
                return None
            for frame in opened.frames if opened.entry.bits is None else ():
                counts = opened.counts(frame)
                if counts.min() < 0 and options.levels.black_level is None:  # told when it is read
                    return None
                highest = max(int(counts.max()), highest or 0)
        except InputError:
            continue
        if opened.entry.bits is not None:
            highest = max(2**opened.entry.bits - 1, highest or 0)
    return None if highest is None else next((bits for bits in BIT_DEPTHS if highest <= 2**bits - 1), 32)
