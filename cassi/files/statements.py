"""What a file states about its arrays, in the words of any format, and what that makes of the numbers stored.

    value = (scale_factor * stored + add_offset) / reflectance_scale,    NaN where the file says that there is none

By the CF conventions of NetCDF (1.11, sections 2.5 and 8.1), the header fields of ENVI and the metadata of GDAL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.errors import InputError, Note, one_line
from cassi.files.options import MAX_BANDS

if TYPE_CHECKING:
    from cassi.files.container import Container

Selection = tuple[slice, ...]

# The words of each statement, compared by `word_of`; in files without attributes NAME_axes is of the array NAME.
WORDS = {
    "units": ("units", "unit"),
    "scale_factor": ("scale_factor", "data_gain_values"),
    "add_offset": ("add_offset", "data_offset_values"),
    "reflectance_scale": ("reflectance_scale", "reflectance_scale_factor"),
    "missing_value": ("missing_value", "fill_value", "data_ignore_value", "no_data", "no_data_value"),
    **{name: (name,) for name in ("valid_range", "valid_min", "valid_max", "unsigned", "interleave")},
    "bit_depth": ("bit_depth", "significant_bits", "bit_depth_readout"),
    "black_level": ("black_level", "black_value", "dark_level", "dark_value", "bias_level", "pedestal"),
    "saturation": ("saturation", "saturation_level", "saturation_value", "white_level"),
    "axes": ("axes", "dims", "dimension_labels", "array_dimensions"),
    "wavelength_units": ("wavelength_units", "wavelengths_units", "wavelength_unit"),
    "num_bands": ("num_bands", "bands"),  # where several are listed under the second, they are wavelengths
    **{name: (name,) for name in ("step", "num_shots", "scale", "gain", "read_noise", "mask_error", "turned")},
}  # fmt: skip
LIMITS = {"valid_range", "valid_min", "valid_max"}
NUMERIC = {"scale_factor", "add_offset", "reflectance_scale", "missing_value", "unsigned", *LIMITS}  # change numbers
OF_FILE = {"units", "bit_depth", "black_level", "saturation", "wavelength_units", "num_bands", "step", "num_shots",
           "scale", "gain", "read_noise", "mask_error", "turned"}  # fmt: skip
RANGES = {"bit_depth": (1, 32), "num_bands": (1, MAX_BANDS), "num_shots": (1, MAX_BANDS), "scale": (1e-30, 1e30),
          "mask_error": (0, 1)}  # fmt: skip
WHOLE = {"bit_depth", "num_bands", "num_shots"}
MAX_STATED = 256  # numbers of a statement that an array makes
LETTER = {
    **dict.fromkeys(("n", "t", "i", "q", "z", "frame", "time", "snapshot", "shot"), "N"),
    **dict.fromkeys(("c", "s", "b", "wavelength", "lambda", "wl", "band", "channel", "spectral", "wavenumber"), "C"),
    **dict.fromkeys(("h", "y", "row", "height", "line", "lat", "latitude"), "H"),
    **dict.fromkeys(("w", "x", "column", "col", "width", "sample", "lon", "longitude"), "W"),
}
INTERLEAVES = {"bsq": "CHW", "bil": "HCW", "bip": "HWC"}


@dataclass(frozen=True, eq=False)
class Entry:
    """One array of a file, as declared before it is read.

    `axes` are the letters of the axes, if the file states them (N frame, C band, H row, W column); `problem` is why the
    entry cannot be read ("text").
    `packed` is the integer type that whole floats are stored in; `unclear` is what the file states and nobody
    understands. `values` are those of an entry in memory; `order` is that of the axes as stored, where columns come
    before rows. `attributes` are those of `understood`.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype | None
    axes: str | None = None
    problem: str | None = None
    attributes: Mapping[str, object] = field(default_factory=dict)
    packed: np.dtype | None = None
    unclear: str | None = None
    values: np.ndarray | None = None
    order: tuple[int, ...] | None = None
    file: Container = field(default=None, repr=False)  # type: ignore[assignment]  # set by that

    @property
    def where(self) -> str:
        """Path and name, for messages."""
        return f"{self.file.path}: '{self.name}'"

    def read(self, selection: Selection | None = None) -> np.ndarray:
        """The numbers; see `Container.read`."""
        return self.file.read(self, selection)

    def beside(self, role: str) -> Entry | None:
        """The array of a role, or list of attributes, that is nearest to this one in its file."""
        return self.file.find(role, self)

    @property
    def declares_missing(self) -> bool:
        """Whether the file says what stands for no value, which is read as NaN."""
        return bool(self.attributes.keys() & {"missing_value", *LIMITS})

    @property
    def itemsize(self) -> int:
        """Bytes that a number takes once it is read."""
        return 1 if self.dtype is None else max(self.dtype.itemsize, 8 * self.declares_missing)

    def __str__(self) -> str:
        name = one_line(self.name, 80)  # any name must be printable
        return f"{name} ({one_line(self.problem)})" if self.dtype is None else f"{name} {self.shape} {self.dtype}"


def valid_axes(axes: object, rank: int) -> str | None:
    """Letters that a file states for the axes of an array of this rank; None if they cannot be that."""
    valid = isinstance(axes, str) and set(axes) <= set("NCHW") and len(set(axes)) == len(axes) == rank
    return str(axes) if valid else None


def replaced(name: str, given: float | None, stated: float | None) -> tuple[Note, ...]:
    """A note where a number that is given comes before another that a file states (NaN: uneven ones)."""
    if given is None or stated is None or math.isclose(given, stated):
        return ()
    theirs = "uneven ones" if math.isnan(stated) else f"{stated:g}"
    return (Note(f"the {name} given, {given:g}, replaces what the file states, {theirs}"),)


def word_of(name: str) -> str:
    """A name without its case, blanks and underscores, by which names are compared."""
    return re.sub(r"[\W_]+", "", name.lower())


STATEMENTS = {word_of(word): statement for statement, words in WORDS.items() for word in words}


def statement_of(name: str) -> str | None:
    """The statement that an attribute of this name makes: `Data Ignore Value` is a missing_value; None: it is none."""
    return STATEMENTS.get(word_of(name))


def stated_as(attributes: Mapping[str, object], statement: str) -> object:
    """What attributes state, under any of its words; None where they do not."""
    return next((value for name, value in attributes.items() if statement_of(name) == statement), None)


def of_file(attributes: Mapping[str, object]) -> dict[str, object]:
    """Those of the attributes of an array that may be stated of its file."""
    return {name: value for name, value in attributes.items() if statement_of(name) in OF_FILE}


def understood(attributes: Mapping[str, object]) -> dict[str, object]:
    """The attributes of an array with its statements by the names of `WORDS`; others stay."""
    found: dict[str, object] = {}
    for name, value in attributes.items():
        statement = statement_of(name) or name
        # The HDF5 of an airborne campaign divides by what it calls Scale_Factor.
        if name == "Scale_Factor" and numbers(name, value).min() > 1:
            statement = "reflectance_scale"
        if statement == "missing_value" and statement in found:
            value = [*numbers(name, found[statement]), *numbers(name, value)]
        found[statement] = value
    return found


def companions(entries: Iterable[Entry], values: dict[str, object]) -> tuple[tuple[Entry, ...], dict[str, object]]:
    """Statements that a format without attributes has as arrays: NAME_axes is of the array NAME, others of the file."""
    made, of_arrays = [], set[str]()
    for entry in entries:
        start = f"{entry.name}_"
        said = {n: n.removeprefix(start) for n in values if n.startswith(start) and statement_of(n.removeprefix(start))}
        more = {word: values[name] for name, word in said.items()}
        made.append(stated(entry, dict(entry.attributes) | more) if said else entry)
        of_arrays |= said.keys()
    one = {name: value for name, value in values.items() if not isinstance(value, list)}
    return tuple(made), {name: value for name, value in one.items() if name not in of_arrays}


def stated(entry: Entry, attributes: Mapping[str, object]) -> Entry:
    """An array with what its attributes state: its type as read, axes, and whether values are missing.

    One whose columns come before its rows is read transposed.
    """
    said, shape, dtype, unclear = understood(attributes), entry.shape, entry.dtype, None
    axes = entry.axes or letters(said.get("axes"), len(shape))
    if axes is None and len(shape) == 3:
        axes = INTERLEAVES.get(str(said.get("interleave")).lower())
    if axes is None and "axes" in said and len(shape) > 1:
        unclear = f"has the axes {one_line(said['axes'], 60)!r}, which are not understood; use N, C, H and W"
    order = list(range(len(shape)))
    if axes and -1 < axes.find("W") < axes.find("H"):
        across, down = axes.index("W"), axes.index("H")
        order[across], order[down] = down, across
        axes = "".join(axes[k] for k in order)
    if dtype is not None and dtype.kind == "i" and str(said.get("unsigned")).lower() == "true":
        dtype = np.dtype(f"u{dtype.itemsize}")
    if dtype is not None and dtype.kind in "iuf" and is_packed(said):
        dtype = np.dtype(float)
    return replace(
        entry,
        shape=tuple(shape[k] for k in order),
        dtype=dtype,
        axes=axes,
        attributes=said,
        order=None if order == sorted(order) else tuple(order),
        unclear=unclear,
    )


def in_memory(name: str, values: object, units: object = None) -> Entry:
    """The entry of numbers that a format has among its statements."""
    array = numbers(name, values).astype(float)
    array = array.reshape(np.squeeze(np.asarray(values)).shape or array.shape)
    return Entry(name, array.shape, array.dtype, attributes={} if units is None else {"units": units}, values=array)


def letters(stated: object, rank: int) -> str | None:
    """The axes N frame, C band, H row and W column of an array of this rank, from letters or words; None if unclear.

    Beside rows and columns, an axis of another name counts images, as bands do; beside bands or frames, two axes of
    other names are rows and columns.

    Example:
        >>> letters("angle, y, x", 3), letters(["downtrack", "crosstrack", "bands"], 3), letters(["dim_0", "dim_1"], 2)
        ('CHW', 'HWC', None)
    """
    texts = np.asarray(stated).reshape(-1).tolist()
    words = [word for text in texts for word in re.split(r"[^0-9A-Za-z_]+", str(text)) if word]
    if len(words) == 1 and rank > 1:
        words = list(words[0])
    words = [word.lower().removeprefix("detector_") for word in words]
    found = [LETTER.get(word, LETTER.get(word.rstrip("s"))) for word in words]
    known = {*found} - {None}
    others = iter("HW" if known and not known & {"H", "W"} else "NC" if "C" in known else "CN" if "H" in known else "")
    return valid_axes("".join(letter or next(others, "?") for letter in found), rank)


def numbers(name: str, value: object) -> np.ndarray:
    """The numbers of a statement, which may be written as text, several in brackets."""
    several = isinstance(value, str) and re.fullmatch(r"\s*\[(.*)\]\s*", value)
    given = np.asarray(several[1].split(",") if several else value)
    found = np.empty(0)
    with suppress(TypeError, ValueError):
        if given.dtype.kind != "c":
            found = given.astype(given.dtype if given.dtype.kind in "iuf" else float).reshape(-1)
    if not found.size:
        raise InputError(f"the attribute '{name}' must be a number, got {one_line(value, 40)!r}")
    return found


def is_packed(said: Mapping[str, object]) -> bool:
    """Whether numbers are scaled: by one, and moved by nothing, they are counts as they are."""
    plain = {"scale_factor": "1", "add_offset": "0", "reflectance_scale": "1"}
    return any(name in said and {f"{n:g}" for n in numbers(name, said[name])} != {one} for name, one in plain.items())


def unpack(entry: Entry, values: np.ndarray, picked: Selection) -> np.ndarray:
    """The values of what is stored of an array, at this selection of it; see above."""
    said = entry.attributes
    if not said.keys() & NUMERIC:
        return values
    if values.dtype.kind == "i" and str(said.get("unsigned")).lower() == "true":
        values = values.view(f"{values.dtype.byteorder}u{values.dtype.itemsize}")
    missing = np.zeros(values.shape, dtype=bool)
    for number in numbers("missing_value", said["missing_value"]) if "missing_value" in said else ():
        missing |= values == (number.astype(values.dtype) if values.dtype.kind == "f" else number.item())
    if limits := {name: numbers(name, said[name]) for name in LIMITS if name in said}:
        both = limits.get("valid_range", np.array([-np.inf, np.inf]))
        missing |= (values < limits.get("valid_min", both)[0]) | (values > limits.get("valid_max", both)[-1])
    values = scaled(entry, values, picked)
    return np.where(missing, np.nan, values.astype(np.float64)) if missing.any() else values


def scaled(entry: Entry, values: np.ndarray, picked: Selection) -> np.ndarray:
    """Numbers of an array as read, from those stored; see above."""
    if not is_packed(entry.attributes):
        return values
    scale, offset, part = (
        _for_bands(entry, name, usual, picked)
        for name, usual in (("scale_factor", 1.0), ("add_offset", 0.0), ("reflectance_scale", 1.0))
    )
    return np.asarray((values.astype(np.float64) * scale + offset) / part)


def _for_bands(entry: Entry, name: str, usual: float, picked: Selection) -> Any:
    """A number, or one for each band along their axis."""
    found = numbers(name, entry.attributes.get(name, usual)).astype(float)
    if not np.isfinite(found).all() or (name != "add_offset" and not found.all()):
        raise InputError(f"{entry.where}: '{name}' must be finite and not 0")
    if (found == found[0]).all():
        return float(found[0])
    axis = (entry.axes or "").find("C")
    if axis < 0 or found.size != entry.shape[axis]:
        what = f"'{name}' holds {found.size} numbers, expected one, or one for each band"
        raise InputError(f"{entry.where} {entry.shape}: {what}")
    return found[picked[axis]].reshape([-1 if k == axis else 1 for k in range(len(entry.shape))])
