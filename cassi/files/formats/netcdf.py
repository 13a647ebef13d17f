"""Read and write NetCDF: version 4 is HDF5 and read by `hdf5.py`, classic files by scipy; the conventions are here."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from cassi.files.atomic import hdf5_target
from cassi.files.container import (
    Container,
    CubeContent,
    Entry,
    Selection,
    damage_as_input_error,
    optional,
)

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


def _unsigned(dtype: np.dtype, attributes: Mapping[str, object]) -> np.dtype:
    """The type that `_Unsigned` means: classic files have no unsigned numbers and keep them in signed ones."""
    unsigned = dtype.kind == "i" and str(attributes.get("_Unsigned", "")).lower() == "true"
    return np.dtype(f"u{dtype.itemsize}") if unsigned else dtype


def as_unsigned(entry: Entry) -> Entry:
    """Return the entry with the type its attribute `_Unsigned` means."""
    return entry if entry.dtype is None else replace(entry, dtype=_unsigned(entry.dtype, entry.attributes))


def unpack(values: np.ndarray, attributes: Mapping[str, object]) -> np.ndarray:
    """Return values as the CF conventions mean them: fill values become NaN, then values * scale_factor + add_offset.

    Integers with `_Unsigned` are unsigned, and so are their fill values.

    Example:
        >>> unpack(np.array([2, 9], np.int16), {"scale_factor": 0.5, "_FillValue": 9})
        array([ 1., nan])
        >>> unpack(np.array([-1], np.int8), {"_Unsigned": "true"})
        array([255], dtype=uint8)
    """
    numbers = {name: _number(attributes.get(name)) for name in PACKING}
    stored = values
    values = values.view(_unsigned(values.dtype, attributes))
    holes = np.zeros(values.shape, dtype=bool)
    for name in ("_FillValue", "missing_value"):
        number = numbers[name]
        if number is not None:
            holes |= (stored == number) | (values == number)
    scale, offset = numbers["scale_factor"], numbers["add_offset"]
    if scale is not None or offset is not None:
        values = values * np.float64(1 if scale is None else scale) + (0 if offset is None else offset)
    return np.where(holes, np.nan, values) if holes.any() else values


def _number(value: object) -> float | None:
    array = np.asarray(value)
    return float(array.reshape(-1)[0]) if array.size == 1 and array.dtype.kind in "biuf" else None


def open_netcdf_classic(path: Path) -> Container:
    """Open a classic NetCDF file as a `Container`.

    Raises:
        InputError: damaged file.
    """
    from scipy.io import netcdf_file

    # Mapped files cannot be closed while an error holds on to their arrays: they are read whole.
    with damage_as_input_error(path, "NetCDF"), netcdf_file(path, "r", mmap=False) as file:
        entries = []
        for name, variable in file.variables.items():
            shape = tuple(int(n) for n in variable.shape)
            attributes = {key: _text(value) for key, value in variable._attributes.items()}
            if variable.data.dtype.kind not in "biuf":
                entries.append(Entry(name, shape, None, problem="text"))
                continue
            dtype = variable.data.dtype.newbyteorder("=")
            entry = Entry(name, shape, dtype, axes=axes_of(variable.dimensions), attributes=attributes)
            entries.append(as_unsigned(entry))
        attributes = {name: _text(value) for name, value in file._attributes.items()}

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        with netcdf_file(path, "r", mmap=False) as file:
            values = file.variables[entry.name].data
            values = values[picked]
            return unpack(values.astype(values.dtype.newbyteorder("=")), entry.attributes)

    return Container(path, "NetCDF", tuple(entries), read, attributes)


def _text(value: object) -> object:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def write_netcdf(path: Path, content: CubeContent) -> Mapping[str, np.ndarray]:
    """Write cube, wavelengths and attributes as NetCDF-4; return the arrays written by name."""
    h5netcdf = optional(path, "h5netcdf")
    cube, wavelengths = content.cube, content.wavelengths
    band = "band" if wavelengths is None else "wavelength"
    names = ("frame", band, "y", "x")[-cube.ndim :]
    with hdf5_target(path) as target, h5netcdf.File(target, "w") as file:
        file.dimensions = dict(zip(names, cube.shape, strict=True))
        variable = file.create_variable("cube", names, data=cube)
        variable.attrs["axes"] = "NCHW"[-cube.ndim :]
        if wavelengths is not None:
            coordinate = file.create_variable(band, (band,), data=wavelengths)
            coordinate.attrs["units"] = "nm"
        for name, value in content.attributes.items():
            file.attrs[name] = int(value) if isinstance(value, bool) else value
    return {"cube": cube} if wavelengths is None else {"cube": cube, band: wavelengths}
