"""Open a file of any supported format as named arrays, safely.

Every format ends in the same `Container`: a list of entries (name, shape, dtype) and a function that reads one of
them. Nothing is read before it is asked for, its declared size is checked before memory is taken, nothing is
unpickled. What the arrays mean is decided in `reading.py`.
"""

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cassi.errors import InputError, one_line

MAX_READ_BYTES = 8 * 2**30  # at once; times the environment variable CASSI_READ_LIMIT

Selection = tuple[slice, ...]


@dataclass(frozen=True)
class Entry:
    """One array of a file: what it declares about itself before it is read.

    `axes` names the axes where the file does (N frame, C band, H row, W column), `bits` the bit depth where it is
    known and smaller than the type, `problem` why the entry cannot be read ("text").
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype | None
    axes: str | None = None
    bits: int | None = None
    problem: str | None = None
    attributes: Mapping[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        name = one_line(self.name, 80)  # whatever it holds, it is printed
        return f"{name} ({one_line(self.problem)})" if self.dtype is None else f"{name} {self.shape} {self.dtype}"


class CubeContent(NamedTuple):
    """What goes into the file of a cube: `cube` (C, H, W) or (N, C, H, W) float32, `wavelengths` (C,) [nm]."""

    cube: np.ndarray
    wavelengths: np.ndarray | None
    datasets: Mapping[str, np.ndarray]
    attributes: Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Container:
    """The named arrays of one file. `bands_last` is the habit of the format: MATLAB keeps bands in the last axis."""

    path: Path
    format: str
    entries: tuple[Entry, ...]
    reader: Callable[[Entry, Selection], np.ndarray]
    attributes: Mapping[str, object] = field(default_factory=dict)
    bands_last: bool = False

    def entry(self, name: str) -> Entry | None:
        wanted = name.strip("/")
        return next((entry for entry in self.entries if entry.name == wanted), None)

    def listing(self) -> str:
        """Names, shapes and types of what was found, for error messages."""
        if not self.entries:
            return "nothing"
        shown = ", ".join(str(entry) for entry in self.entries[:12])
        return shown + (f" and {len(self.entries) - 12} more" if len(self.entries) > 12 else "")

    def check_readable(self, entry: Entry) -> None:
        """Raise InputError for an entry that is no array of real numbers, or empty."""
        where = f"{self.path}: '{entry.name}'"
        if entry.dtype is None:
            raise InputError(f"{where} is {entry.problem}: expected an array of real numbers")
        if entry.dtype.kind == "c":
            raise InputError(f"{where} is complex: expected real numbers; save its real part or magnitude")
        if entry.dtype.kind not in "biuf":
            raise InputError(f"{where} holds {entry.dtype}, not numbers: expected real numbers")
        if 0 in entry.shape:
            raise InputError(f"{where} is empty, its shape is {entry.shape}")

    def read(self, entry: Entry, selection: Selection | None = None) -> np.ndarray:
        """Read one entry, or the part of it that `selection` (one slice per axis) picks.

        Raises:
            InputError: the entry is no array of real numbers, is empty, too large, or its data are damaged.
        """
        self.check_readable(entry)
        picked = tuple(slice(None) for _ in entry.shape) if selection is None else selection
        shape = tuple(len(range(*part.indices(n))) for part, n in zip(picked, entry.shape, strict=True))
        size = math.prod(shape) * (entry.dtype.itemsize if entry.dtype else 1)
        limit = MAX_READ_BYTES * float(os.environ.get("CASSI_READ_LIMIT", "1"))
        if size > limit:
            raise InputError(
                f"{self.path}: '{entry.name}' {shape} takes {size / 2**30:.0f} GiB at once, more than "
                f"{limit / 2**30:g} GiB; read fewer frames, or raise the environment variable CASSI_READ_LIMIT"
            )
        with damage_as_input_error(self.path, self.format):
            return self.reader(entry, picked)


@contextmanager
def damage_as_input_error(path: Path, file_format: str) -> Iterator[None]:
    """Turn whatever a parser raises on a damaged file, which no one documents, into one `InputError`."""
    try:
        yield
    except InputError:
        raise
    except MemoryError as error:
        raise InputError(f"{path}: not enough memory to read it ({one_line(error)})") from error
    except Exception as error:
        detail = one_line(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read as {file_format}, it is damaged or cut short ({detail})") from error
