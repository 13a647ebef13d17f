"""The filters of a mosaic sensor, as words, arrays or files."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cassi.errors import InputError, counted
from cassi.files.opening import open_container
from cassi.files.options import ReadOptions
from cassi.files.tables import rows_of_numbers
from cassi.files.wavelength_files import TABLES
from cassi.optics.other_cameras import Mosaic
from cassi.types import PathLike

BAYER = ("rggb", "bggr", "grbg", "gbrg")


def read_masks(options: ReadOptions, size: Sequence[int], notes: list[str]) -> np.ndarray:
    """The masks (C, H, W) of a mosaic sensor from `pattern`, `pattern_offset`, `response` and `crosstalk`.

    Raises:
        InputError: see `read_pattern` and `cassi.optics.other_cameras.Mosaic.from_pattern`.
    """
    P, offset = read_pattern(options.pattern), options.pattern_offset
    R, X = (None if one is None else _array(one, "matrix") for one in (options.response, options.crosstalk))
    masks = Mosaic.from_pattern(P, (size[0], size[1]), R, crosstalk=X, offset=offset).mask.numpy()
    what = f"a mosaic of {P.shape[0]} x {P.shape[1]} pixels, seen from pixel ({offset[0]}, {offset[1]}) on"
    notes.append(f"{what}: {counted(len(masks), 'band')}")
    return masks


def read_pattern(pattern: PathLike | np.ndarray | None) -> np.ndarray:
    """A pattern of filters (p, q): "4x4", row by row 16 filters; "rggb" or its kin, filters by wavelength, b g r; or a
    file.

    Files are tables of numbers (.txt, .csv), or hold one array of two axes.

    Raises:
        InputError: none of these.
    """
    if not isinstance(pattern, str):
        if pattern is None:
            raise InputError("a mosaic sensor needs the pattern of its filters, such as 4x4", cures=("pattern",))
        return _array(pattern, "pattern of filters")
    if (word := pattern.strip().lower()) in BAYER:
        return np.array(["bgr".index(letter) for letter in word]).reshape(2, 2)
    if sides := re.fullmatch(r"(\d{1,2})x(\d{1,2})", word):
        return np.arange(int(sides[1]) * int(sides[2])).reshape(int(sides[1]), int(sides[2]))
    if not Path(pattern).is_file():
        words = f"expected a size such as 4x4, one of {', '.join(BAYER)}, or a file"
        raise InputError(f"pattern {pattern!r}: {words}", cures=("pattern",))
    return _array(pattern, "pattern of filters")


def _array(source: PathLike | np.ndarray, what: str) -> np.ndarray:
    if isinstance(source, np.ndarray):
        return source
    path = Path(source)
    if path.suffix.lower() in TABLES:
        *_, rows = rows_of_numbers(path, f"a {what}, a row each line")
        if len({len(row) for row in rows}) > 1:
            raise InputError(f"{path}: its lines hold different counts of numbers, expected a {what}")
        return np.array(rows)
    container = open_container(path)
    flat = [entry for entry in container.entries if entry.dtype is not None and len(entry.shape) == 2]
    if len(flat) != 1:
        raise InputError(f"{path}: expected one array of two axes, a {what}; found {container.listing()}")
    return container.read(flat[0])
