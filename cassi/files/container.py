"""A file of any supported format as named arrays, read safely.

Every format yields the same `Container`: a list of entries (name, shape, dtype) and a function that reads one of them.
Data are read only on request, the declared size is checked before memory is allocated, and nothing is unpickled. The
meaning of the arrays is decided in `reading.py`.
"""

import errno
import math
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.atomic import UNABLE, stamp_of
from cassi.files.options import MAX_BANDS
from cassi.files.statements import (
    RANGES,
    WHOLE,
    WORDS,
    Entry as Entry,
    Selection as Selection,
    in_memory,
    stated_as,
    unpack,
    word_of,
)

MAX_READ_BYTES = 8 * 2**30  # held at once; multiplied by the environment variable CASSI_READ_LIMIT
SLACK = 2**26  # bytes that a stored piece may hold beyond what it is declared to
MAX_INFLATION = 1032  # bytes that deflate makes of one, at most

NO_DAMAGE = {  # what a drive says, by its number
    errno.EACCES, errno.EAGAIN, errno.EBUSY, errno.EIO, errno.EISDIR, errno.EMFILE, errno.ENOENT, errno.ENOLCK,
    errno.ENFILE, errno.EPERM, errno.ESTALE, errno.ETIMEDOUT, errno.ETXTBSY,
}  # fmt: skip


# The letters of the axes of the arrays that results and measurements have, the last ones where an array has fewer.
LETTERS = {
    **dict.fromkeys(("cube", "truth", "uncertainty", "visibility", "mask_given", "mask_error", "mask"), "NCHW"),
    **dict.fromkeys(("measurement", "residual", "bad_pixels", "sensitivity", "mean_band"), "NHW"),
    **dict.fromkeys(("wavelengths", "shifts"), "C"),
    **dict.fromkeys(("residuals", "together"), "N"),
}


NAMES = {  # of each role, in order of preference; compared by `word_of` and without the path inside the file
    "measurement": ("measurement", "measurements", "meas", "meas_real", "y", "snapshot", "snapshots", "frames", "g",
                    "cassiinput"),
    "mask": ("mask", "mask_3d_shift", "mask_3d", "masks", "coded_aperture", "phi", "ca"),
    "truth": ("cube", "truth", "img", "hsi", "omsi", "gt", "ground_truth", "orig", "x", "data_slice", "rad", "ref"),
    "wavelengths": ("wavelengths", "wavelength", "wl", "lambda", "lambdas", "lam28", "lambda_calib", "bands"),
    "shifts": ("shifts", "shift", "dispersion_shifts"),
    "mean band": ("mean_band",),
    "photograph": ("photograph", "side", "pan_img", "paninput", "pan", "rgb"),
    "bad pixels": ("bad_pixels", "bad_pixel_mask", "hot_pixels", "pixel_mask"),
    "sensitivity": ("sensitivity",),
}  # fmt: skip
NAMES |= {"cube": NAMES["truth"], "bad pixel map": NAMES["bad pixels"] + NAMES["mask"]}  # words for those asked for
IMAGES, LISTS = ("measurement", "mask", "truth", "cube"), ("wavelengths", "shifts")
UNITS = ("nm", "um", "angstrom", "cm1", "ghz", "thz", "ev", "m")  # at the end of a name


# The content of a cube file: `cube` (C, H, W) or (N, C, H, W) float32, `wavelengths` (C,) [nm] where known, and others.
Arrays = Mapping[str, np.ndarray]
Attributes = Mapping[str, object]


@dataclass(frozen=True, eq=False)
class Container:
    """The named arrays of one file; `bands_last` if the format usually has bands in the last axis, as MATLAB."""

    path: Path
    format: str
    entries: tuple[Entry, ...]
    reader: Callable[[Entry, Selection], np.ndarray]
    attributes: Mapping[str, object] = field(default_factory=dict)
    bands_last: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "entries", tuple(replace(entry, file=self) for entry in self.entries))

    def entry(self, name: str) -> Entry | None:
        leaf = name.strip("/")
        return next((entry for entry in self.entries if entry.name == leaf), None)

    def listing(self) -> str:
        """Names, shapes and types of the arrays, for error messages."""
        if not self.entries:
            return "nothing"
        shown = ", ".join(str(entry) for entry in self.entries[:12])
        return shown + (f" and {len(self.entries) - 12} more" if len(self.entries) > 12 else "")

    def find(self, role: str, near: Entry | None = None) -> Entry | None:
        """The array, or the list of attributes, with a name of a role, or with this name: of several the nearest to
        `near` (its own, in its group, above that, elsewhere), then by preference of names, then the least nested.

        A vector is no image, as `x` and `y` where these are coordinates, and a stack no list. The name of wavelengths
        may end in their unit.
        """
        names = [word_of(name) for name in NAMES.get(role) or WORDS.get(role, (role,))]
        is_list, found = role in LISTS, list[tuple[tuple[int, ...], Entry]]()

        def add(group: str, name: str, is_attribute: bool, entry: Entry) -> None:
            if word_of(name) in names:
                order = _distance(group, near), names.index(word_of(name)), is_attribute, group.count("/")
                found.append((order, entry))

        owners = (("", self.attributes), *((entry.name, entry.attributes) for entry in self.entries))
        for group, attributes in owners if is_list else ():
            units = stated_as(attributes, "wavelength_units") if role == "wavelengths" else None
            for name, value in attributes.items():
                if word_of(name) in names and (role == "shifts" or np.asarray(value).ndim > 0):
                    add(group, name, True, replace(in_memory(name, value, units), file=self))
        for entry in self.entries:
            group, _, leaf = entry.name.rpartition("/")
            long = sum(n > 1 for n in entry.shape)
            is_axis = leaf.lower() in ("x", "y") or entry.attributes.get("CLASS") == "DIMENSION_SCALE"  # of another
            if entry.dtype is not None and (long > 2 if is_list else role in IMAGES and long < 2 and is_axis):
                continue
            if role == "wavelengths" and leaf.lower() == "bands" and long == 0:  # their number
                continue
            stem, _, unit = leaf.lower().rpartition("_")
            if role == "wavelengths" and word_of(stem) in names and unit in UNITS:
                leaf, entry = stem, replace(entry, attributes={"units": unit} | dict(entry.attributes))
            add(group, leaf, False, entry)
        return min(found, key=lambda one: one[0])[1] if found else None

    def pick(self, role: str, key: str | None = None) -> tuple[Entry, str | None]:
        """The entry named `key`, one with a usual name, or the only image in the file, with a note on that.

        Raises:
            InputError: there is none, or several with unknown names; the message lists the arrays.
        """
        if (entry := self.find(role) if key is None else self.entry(key)) is not None:
            return entry, None
        if key is not None:
            raise InputError(f"{self.path}: no array '{key}'; found {self.listing()}")
        arrays = [entry for entry in self.entries if entry.dtype is not None]
        # MATLAB stores vectors and numbers as matrices of one row or column.
        images = [a for a in arrays if a.axes or len(a.shape) in (3, 4) or (len(a.shape) == 2 and min(a.shape) > 1)]
        if len(images) == 1 and role_of(images[0]) is None:
            what = f"'{images[0].name}', the only image in the file, is used as the {role}"
            return images[0], f"{self.path.name}: {what}"
        raise InputError(
            f"{self.path}: no {role} found, expected one of {', '.join(NAMES[role][:6])}; found {self.listing()}",
            cures=("mask" if role == "mask" else "key", "mask_key"),
        )

    @property
    def is_result(self) -> bool:
        """Whether the file is the result of a reconstruction: a cube with a residual."""
        names = {entry.name for entry in self.entries}
        return "cube" in names and ("residual" in names or "residual" in self.attributes)

    def check_readable(self, entry: Entry) -> None:
        """Raise InputError unless the entry is a non-empty array of real numbers."""
        where = entry.where
        if entry.dtype is None:
            raise InputError(f"{where} is {entry.problem}: expected an array of real numbers")
        if entry.dtype.kind == "c":
            raise InputError(f"{where} is complex: expected real numbers; save its real part or magnitude")
        if entry.dtype.kind not in "biuf":
            raise InputError(f"{where} holds {entry.dtype}, not numbers: expected real numbers")
        if entry.unclear is not None:
            raise InputError(f"{where} {entry.unclear}")
        if 0 in entry.shape:
            raise InputError(f"{where} is empty, its shape is {entry.shape}; save it again, with its numbers")

    def read(self, entry: Entry, selection: Selection | None = None) -> np.ndarray:
        """Read one entry, or the part of it in `selection`, one slice per axis.

        Raises:
            InputError: the entry is not an array of real numbers, is empty or too large, or its data are damaged.
        """
        self.check_readable(entry)
        picked = tuple(slice(None) for _ in entry.shape) if selection is None else selection
        shape = tuple(len(range(*part.indices(n))) for part, n in zip(picked, entry.shape, strict=True))
        check_size(self.path, f"'{entry.name}' {shape}", math.prod(shape) * entry.itemsize, "read fewer frames")
        with damage_as_input_error(self.path, self.format):
            if entry.values is not None:
                return entry.values[picked]
            order = entry.order or range(len(picked))
            values = self.reader(entry, tuple(picked[k] for k in order)).transpose(*order)
            return unpack(entry, values, picked) if entry.attributes else values


def _distance(group: str, near: Entry | None) -> int:
    """How far an array in a group, or an attribute of the array of this name, is from another array."""
    if near is None:
        return 0
    own = near.name.rpartition("/")[0]
    return 0 if group == near.name else 1 if group == own else 2 if not group or own.startswith(f"{group}/") else 3


def number_in(statement: str, *sources: Container | Entry) -> float | None:
    """A number that the first of these arrays, or else its file, states, as an attribute or an array of one value; or
    None.

    Raises:
        InputError: it is stated, and is not one number that it can be.
    """
    for source in sources:
        container, near = (source, None) if isinstance(source, Container) else (source.file, source)
        own = None if near is None else stated_as(near.attributes, statement)
        value = stated_as(container.attributes, statement) if own is None else own
        if value is None and (array := container.find(statement, near)) is not None:
            value = array.read() if array.dtype is not None else str(array)
        if value is None or (statement == "num_bands" and np.asarray(value).size > 1):  # wavelengths, named bands
            continue
        try:
            (number,) = map(float, np.asarray(value).reshape(-1).tolist())
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        low, high = RANGES.get(statement, (-math.inf, math.inf))
        kind = "whole" if statement in WHOLE else "finite"
        if not (math.isfinite(number) and low <= number <= high and (kind == "finite" or number.is_integer())):
            where = container.path if near is None or own is None else near.where
            limits = f" from {low:g} to {high:g}" if statement in RANGES else ""
            got = one_line(repr(value), 60)
            raise InputError(f"{where}: '{statement}' must be one {kind} number{limits}, got {got}")
        return float(number)
    return None


def role_of(entry: Entry) -> str | None:
    """The role that the name of an entry implies ("measurement", "mask", "truth" ...), or None."""
    leaf = word_of(entry.name.rsplit("/", 1)[-1])
    return next((role for role, names in NAMES.items() if leaf in map(word_of, names)), None)


def read_list(entry: Entry) -> np.ndarray:
    """The numbers of a list, (C,) float64; InputError for an array of several axes, or too many."""
    if sum(n > 1 for n in entry.shape) > 1 or math.prod(entry.shape) > MAX_BANDS:
        raise InputError(
            f"{entry.where} {entry.shape} is no list, expected a number for each of {MAX_BANDS} bands at most"
        )
    return np.asarray(entry.read(), dtype=np.float64).reshape(-1)


def covers(picked: Selection, shape: tuple[int, ...]) -> bool:
    """Whether a selection is all of an array."""
    return all(len(range(*part.indices(n))) == n for part, n in zip(picked, shape, strict=True))


def read_plain(
    path: Path, picked: Selection, shape: tuple[int, ...], dtype: Any, start: int, order: Any = "C"
) -> np.ndarray:
    """A part of an array of this shape and order that lies in a file as it is, from a byte on.

    The file is mapped into memory, or read from its start where a drive cannot do that.
    """
    try:
        return np.array(np.memmap(path, dtype, "r", start, shape, order)[picked])
    except OSError as error:
        if error.errno not in UNABLE:
            raise
    check_size(path, f"an array {shape}, read whole from this drive,", math.prod(shape) * np.dtype(dtype).itemsize)
    whole = np.fromfile(path, dtype, math.prod(shape), offset=start)
    return np.array(whole.reshape(shape, order=order)[picked])


def read_packed(
    read: Callable[[Path, str], np.ndarray], path: Path, entry: Entry, picked: Selection, itemsize: int
) -> np.ndarray:
    """A part of the array read(path, name), which can be read from its beginning only: whole, with `itemsize` bytes a
    number, and kept for the frames after it, the last two of such arrays."""
    if covers(picked, entry.shape):
        return read(path, entry.name)
    size = math.prod(entry.shape) * itemsize
    check_size(path, f"'{entry.name}' {entry.shape}, read whole in this format,", size)
    with _READING:
        return np.array(_kept(read, path, entry.name, stamp_of(path))[picked])


_READING = threading.Lock()


@lru_cache(maxsize=2)  # of snapshots and their truth
def _kept(read: Callable[[Path, str], np.ndarray], path: Path, name: str, stamp: tuple[int, ...]) -> np.ndarray:
    return read(path, name)


def check_size(path: Path, what: str, size: float, cure: str = "save it in parts or in HDF5") -> None:
    """Raise InputError for more bytes than may be held at once, before they are."""
    factor = os.environ.get("CASSI_READ_LIMIT", "1")
    limit = 0.0
    with suppress(ValueError):
        limit = MAX_READ_BYTES * float(factor)
    if not limit > 0:
        raise InputError(f"the environment variable CASSI_READ_LIMIT must be a positive number, got {factor!r}")
    if size > limit:
        raise InputError(
            f"{path}: {what} takes {size / 2**30:.1f} GiB at once, more than {limit / 2**30:g} GiB; {cure}, or "
            "raise the environment variable CASSI_READ_LIMIT"
        )


def check_inflated(data: bytes, size: int) -> None:
    """Raise ValueError if a deflated piece of a file holds clearly more than the `size` bytes that are declared."""
    if MAX_INFLATION * len(data) <= size + SLACK:
        return
    stream, held = zlib.decompressobj(), 0
    for start in range(0, len(data), SLACK // MAX_INFLATION):
        held += len(stream.decompress(data[start : start + SLACK // MAX_INFLATION]))
        if held > size + SLACK:
            raise ValueError(f"more than {held} bytes where {size} are declared")


@contextmanager
def naming(path: Path, *others: object) -> Iterator[None]:
    """Errors that are raised within name this file, or one of the others that are given by their paths."""
    try:
        yield
    except InputError as error:
        files = [path, *(Path(one) for one in others if isinstance(one, str | os.PathLike))]
        if any(file.name and one_line(file.name) in str(error) for file in files):
            raise
        raise InputError(f"{path}: {error}", error.kind, error.cures) from error


@contextmanager
def damage_as_input_error(path: Path, file_format: str) -> Iterator[None]:
    """Turn the undocumented exceptions of a parser on a damaged file into one `InputError`.

    What the drive or the text says of itself is no damage: rights, locks, encodings.
    """
    try:
        yield
    except InputError:
        raise
    except UnicodeDecodeError as error:
        text = f"it holds text in another encoding than {error.encoding} ({error.reason}); save that as UTF-8"
        raise InputError(f"{path}: cannot be read as {file_format}, {text}") from error
    except MemoryError as error:
        raise InputError(f"{path}: not enough memory to read it ({one_line(error)})") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_DAMAGE:
            raise InputError(f"{path}: cannot be read: {one_line(os.strerror(error.errno)).lower()}") from error
        detail = one_line(error) or type(error).__name__
        raise InputError(f"{path}: cannot be read as {file_format}, it is damaged or truncated ({detail})") from error
