"""Cubes with labelled axes, for xarray."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cassi.errors import import_extra
from cassi.files.writing import plain_attributes


def to_xarray(
    cube: np.ndarray,
    wavelengths: np.ndarray | None = None,
    *,
    uncertainty: np.ndarray | None = None,
    unit: str = "",
    attributes: Mapping[str, object] | None = None,
) -> Any:
    """A cube as an `xarray.Dataset` with the variables `cube` and, where it is known, `uncertainty`.

    Args:
        cube: (C, H, W) or (N, C, H, W); the axes become frame, wavelength (band where unknown, from 1), y and x.
        wavelengths: (C,) [nm].
        uncertainty: like the cube, one standard deviation in its unit.
        unit: of both.
        attributes: provenance, as `write_cube` takes it.

    Raises:
        InputError: xarray is not installed (`pip install 'cassi[xarray]'`).

    Example:
        >>> to_xarray(np.ones((2, 3, 4)), np.array([500.0, 600.0])).cube.sel(wavelength=600).shape
        (3, 4)
    """
    xarray = import_extra("xarray", "xarray")
    band = "band" if wavelengths is None else "wavelength"
    axes = ("frame", band, "y", "x")[-cube.ndim :]
    centers = np.arange(1, cube.shape[-3] + 1) if wavelengths is None else wavelengths
    layers = {"cube": cube, "uncertainty": uncertainty}
    variables = {name: (axes, values, {"units": unit}) for name, values in layers.items() if values is not None}
    place = (band, centers, {} if wavelengths is None else {"units": "nm"})
    stated = plain_attributes(attributes or {})
    attrs = {name: int(value) if isinstance(value, bool) else value for name, value in stated.items()}  # as NetCDF can
    return xarray.Dataset(variables, coords={band: place}, attrs=attrs)
