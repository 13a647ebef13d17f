"""Cubes for xarray."""

import numpy as np
import pytest
import torch

from cassi import CASSI, reconstruct
from cassi.files.cubes import to_xarray

pytest.importorskip("xarray")
CUBE = np.arange(24.0).reshape(2, 3, 4)


def test_axes_are_labelled_and_units_kept():
    data = to_xarray(
        CUBE, np.array([500.0, 600.0]), uncertainty=CUBE / 10, unit="counts", attributes={"a": [1], "b": None}
    )
    assert data.cube.dims == ("wavelength", "y", "x")
    assert float(data.cube.sel(wavelength=600, y=2, x=3)) == 23
    assert float(data.uncertainty.sel(wavelength=500, y=1, x=0)) == pytest.approx(0.4)
    assert (data.cube.units, data.wavelength.units, data.attrs) == ("counts", "nm", {"a": "[1]"})


def test_bands_without_wavelengths_count_from_one_and_stacks_have_frames():
    data = to_xarray(CUBE[None])
    assert data.cube.dims == ("frame", "band", "y", "x")
    assert data.band.values.tolist() == [1, 2]
    assert "uncertainty" not in data


def test_a_result_brings_its_provenance():
    mask = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
    y = CASSI.from_step(mask, 2, 4).forward(torch.ones(4, 16, 16))
    nm = [450.0, 500, 550, 600]
    result = reconstruct(y, mask, num_bands=4, wavelengths=nm, solver="gap-tv", num_iters=5, camera="as-given")
    data = result.to_xarray()
    assert np.array_equal(data.cube.values, result.cube.numpy())
    assert data.wavelength.values.tolist() == nm and data.attrs["status"] == "finished"


@pytest.mark.parametrize("engine", ["scipy", "h5netcdf", "netcdf4"])
def test_a_result_goes_to_netcdf_and_back(tmp_path, engine):
    if engine != "scipy":
        pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine))
    xarray = pytest.importorskip("xarray")
    stated = {"ok": True, "count": 3, "part": 0.5, "text": "ä", "list": [1, True], "numpy": np.bool_(False)}
    data = to_xarray(CUBE, np.array([500.0, 600.0]), uncertainty=CUBE, attributes=stated)
    assert not any(isinstance(value, bool) for value in data.attrs.values())  # which NetCDF lacks
    data.to_netcdf(tmp_path / "c.nc", engine=engine)
    with xarray.open_dataset(tmp_path / "c.nc", engine=engine) as found:
        assert np.array_equal(found.cube, CUBE) and found.attrs["ok"] == 1 and found.attrs["text"] == "ä"
