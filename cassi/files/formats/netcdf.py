"""Read NetCDF: version 4 is HDF5 and opened by `hdf5.py`, classic files by scipy; the conventions of both are here."""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from scipy.io import netcdf_file

from cassi.files.container import Container, Entry, Selection, check_declared, damage_as_input_error, declared_bytes

# Names that files give to the axes of a cube, in lower case.
AXIS_LETTERS = {
    **dict.fromkeys(["wavelength", "wavelengths", "band", "bands", "lambda", "wl", "channel"], "C"),
    **dict.fromkeys(["y", "row", "rows", "lat", "height", "line"], "H"),
    **dict.fromkeys(["x", "col", "cols", "column", "lon", "width", "sample"], "W"),
    **dict.fromkeys(["frame", "frames", "time", "t"], "N"),
}
PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value")


def axes_of(names: Iterable[str]) -> str | None:
    """Return the axis letters of dimensions by their names, or None where one is unknown or comes twice.

    Example:
        >>> axes_of(["wavelength", "y", "x"])
        'CHW'
    """
    letters = [AXIS_LETTERS.get(name.lower(), "?") for name in names]
    return None if "?" in letters or len(set(letters)) < len(letters) else "".join(letters)


def unpack(values: np.ndarray, attributes: Mapping[str, object]) -> np.ndarray:
    """Return values as the CF conventions mean them: fill values become NaN, then values * scale_factor + add_offset.

    Example:
        >>> unpack(np.array([2, 9], np.int16), {"scale_factor": 0.5, "_FillValue": 9})
        array([ 1., nan])
    """
    numbers = {name: _number(attributes.get(name)) for name in PACKING}
    holes = np.zeros(values.shape, dtype=bool)
    for name in ("_FillValue", "missing_value"):
        number = numbers[name]
        if number is not None:
            holes |= values == number
    scale, offset = numbers["scale_factor"], numbers["add_offset"]
    if scale is not None or offset is not None:
        values = values * np.float64(1 if scale is None else scale) + (0 if offset is None else offset)
    return np.where(holes, np.nan, values) if holes.any() else values


def _number(value: object) -> float | None:
    array = np.asarray(value)
    return float(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "biuf" else None


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep the parser from warning about what is odd in a damaged file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def open_netcdf_classic(path: Path) -> Container:
    """Open a classic NetCDF file as a `Container`.

    Raises:
        InputError: damaged file, or a variable that declares more than the file holds.
    """
    # Mapped files cannot be closed while an error holds on to their arrays: they are read whole.
    with damage_as_input_error(path, "NetCDF"), _without_warnings(), netcdf_file(path, "r", mmap=False) as file:
        entries = []
        for name, variable in file.variables.items():
            shape = tuple(int(n) for n in variable.shape)
            attributes = dict(variable._attributes)
            if variable.data.dtype.kind not in "biuf":
                entries.append(Entry(name, shape, None, problem="text"))
                continue
            dtype = variable.data.dtype.newbyteorder("=")
            check_declared(path, name, declared_bytes(shape, dtype.itemsize), path.stat().st_size)
            entries.append(Entry(name, shape, dtype, axes=axes_of(variable.dimensions), attributes=attributes))
        attributes = {name: _text(value) for name, value in file._attributes.items()}

    def read(entry: Entry, selection: Selection | None) -> np.ndarray:
        with _without_warnings(), netcdf_file(path, "r", mmap=False) as file:
            values = file.variables[entry.name].data
            values = values if selection is None else values[selection]
            return unpack(values.astype(values.dtype.newbyteorder("=")), entry.attributes)

    return Container(path, "NetCDF", tuple(entries), read, attributes)


def _text(value: object) -> object:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
