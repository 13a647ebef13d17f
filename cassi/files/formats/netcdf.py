"""NetCDF-4: it is HDF5 and read by `hdf5.py`; here are its conventions and its writer."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cassi.files.atomic import hdf5_target
from cassi.files.container import CubeContent, optional


def unpack(values: np.ndarray, attributes: Mapping[str, object]) -> np.ndarray:
    """Values as the CF conventions mean them: fill values become NaN, then values * scale_factor + add_offset."""
    numbers = {
        name: float(np.asarray(value).reshape(-1)[0])
        for name, value in attributes.items()
        if np.size(value) == 1 and np.asarray(value).dtype.kind in "biuf"  # type: ignore[arg-type]
    }
    holes = np.zeros(values.shape, dtype=bool)
    for name in ("_FillValue", "missing_value"):
        if name in numbers:
            holes |= values == numbers[name]
    if "scale_factor" in numbers or "add_offset" in numbers:
        values = values * np.float64(numbers.get("scale_factor", 1)) + numbers.get("add_offset", 0)
    return np.where(holes, np.nan, values) if holes.any() else values


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
