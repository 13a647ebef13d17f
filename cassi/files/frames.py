"""Many frames: files of folders, patterns and lists, their names, and their common scale."""

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
    """A sort key that compares the numbers in names by value: 2 before 10."""
    parts = re.split(r"(\d+)", os.fspath(path).lower())
    return [(text, int(number)) for text, number in zip(parts[::2], [*parts[1::2], "-1"], strict=True)]


def find_files(source: PathLike | Sequence[PathLike], leave_out: Sequence[PathLike] = ()) -> list[Path]:
    """The files of a folder, a pattern such as "run/*.tif", a name or a list of names, in natural order.

    Hidden files, results (`*_cube.*`) and those in `leave_out` (masks) are skipped, unless a single file is named.

    Raises:
        InputError: no files.
    """
    sources = [source] if isinstance(source, str | os.PathLike) else source
    files = [file for one in sources for file in _list_files(Path(one))]
    if len(sources) == len(files) == 1 and Path(sources[0]) == files[0]:
        return files
    excluded = {Path(name).resolve() for name in leave_out}
    files = [file for file in files if file.resolve() not in excluded]
    files = [file for file in files if not file.name.startswith(".") and not file.stem.endswith("_cube")]
    if not files:
        expected = f"expected files ending in {', '.join(sorted(SUFFIXES))}"
        raise InputError(f"{', '.join(map(str, sources))}: no measurement files found, {expected}")
    return files


def _list_files(path: Path) -> list[Path]:
    """The files of a folder or a pattern in natural order; a name itself, whether it exists or not."""
    if path.is_dir():
        files = [file for file in path.iterdir() if file.suffix.lower() in SUFFIXES]
    elif path.exists() or not glob.has_magic(str(path)):
        return [path]
    else:
        files = [Path(name) for name in glob.glob(str(path), recursive=True)]
    files = [file for file in files if file.is_file()]
    return sorted(files, key=natural)


def frame_name(stack: str, frame: int) -> str:
    """The name of one frame of a stack, and of its result."""
    return f"{stack}_{frame:06d}"


def common_bit_depth(files: Sequence[PathLike], options: ReadOptions) -> int | None:
    """The smallest usual bit depth that holds every integer count of these files, so that all share one unit.

    Frames are scanned one at a time; files that cannot be read are skipped and report their error later. None if a file
    holds floats, which are not rescaled, or no file can be read.
    """
    highest = None
    for path in files:
        try:
            opened = open_measurement(path, options)
            if opened.entry.dtype is None or opened.entry.dtype.kind not in "iu":
                return None
            for frame in opened.frames if opened.entry.bits is None else ():
                counts = opened.counts(frame)
                if counts.min() < 0 and options.levels.black_level is None:  # an error when it is read
                    return None
                highest = max(int(counts.max()), highest or 0)
        except InputError:
            continue
        if opened.entry.bits is not None:
            highest = max(2**opened.entry.bits - 1, highest or 0)
    return None if highest is None else next((bits for bits in BIT_DEPTHS if highest <= 2**bits - 1), 32)
