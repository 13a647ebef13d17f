"""Axes of HDF5 results by name: as h5py sees them, and as xarray, HyperSpy and napari open the files."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from cassi.files import read_cube, write_cube
from cassi.files.cube_store import cube_store, gather_cubes
from cassi.files.opening import open_container

BANDS = [450.0, 500.0, 550.0, 600.0, 650.0]
CUBE = np.random.default_rng(0).random((5, 8, 9)).astype(np.float32)
SNAPSHOT = np.ones((8, 13), np.float32)


@pytest.fixture(params=["single", "film", "tiled"])
def result(request, tmp_path) -> tuple[Path, int]:
    """A file and its number of frames, 0 for a single cube."""
    datasets = {"measurement": SNAPSHOT, "residual": SNAPSHOT, "uncertainty": CUBE / 10}
    if request.param == "tiled":
        with cube_store(tmp_path / "tiled.h5") as store:
            store.make("cube", CUBE.shape, axes="CHW")
            store.add("cube", np.s_[:], CUBE)
            store.put("wavelengths", np.array(BANDS))
            store.put("measurement", SNAPSHOT)
            store.state({"unit": "counts"})
        return tmp_path / "tiled.h5", 0
    made = [
        write_cube(tmp_path / f"{k}.h5", CUBE + k, wavelengths=BANDS, datasets=datasets, attributes={"unit": "counts"})
        for k in range(3)
    ]
    return (made[0], 0) if request.param == "single" else (gather_cubes(tmp_path / "film.h5", made), 3)


def test_every_axis_has_a_name_and_a_length(result):
    path, frames = result
    front = ["frame"] if frames else []
    with h5py.File(path) as file:
        names = {name: [dim[0].name[1:] for dim in file[name].dims] for name in ("cube", "measurement")}
        assert names["cube"] == [*front, "wavelengths", "row", "column"]
        assert names["measurement"] == [*front, "row", "detector_column"]
        assert file["wavelengths"][:].tolist() == BANDS and file["wavelengths"].attrs["units"] == "nm"
        assert file["row"][:].tolist() == list(range(8)) and file["cube"].attrs["units"] == "counts"
        assert file["entry/data/cube"] == file["cube"]
        assert not frames or (file["frame"][:].tolist(), file["cube"].chunks) == ([1, 2, 3], (1, 5, 8, 9))


def test_axes_are_no_arrays_to_choose_from(result):
    path, _ = result
    names = {entry.name for entry in open_container(path).entries}
    assert names.isdisjoint({"row", "column", "detector_column", "frame", "band"}) and {"cube", "wavelengths"} <= names
    cube, nm = read_cube(path)
    assert np.array_equal(cube[..., :5, :, :].reshape(-1, *CUBE.shape)[0], CUBE) and nm.tolist() == BANDS


def test_a_cube_with_equal_sides_has_three_axes(tmp_path):
    with h5py.File(write_cube(tmp_path / "c.h5", np.ones((4, 4, 4)))) as file:
        assert [dim[0].name for dim in file["cube"].dims] == ["/band", "/row", "/column"]
        assert file["band"][:].tolist() == [1, 2, 3, 4]


def test_xarray_selects_by_wavelength(result):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    path, frames = result
    with xarray.open_dataset(path, engine="h5netcdf") as data:
        image = data.cube.sel(wavelengths=590, method="nearest")
        picked = image.isel(frame=0) if frames else image
        assert np.array_equal(picked, CUBE[3]) and data.cube.attrs["units"] == "counts"


def test_hyperspy_has_bands_in_nm(result):
    hyperspy = pytest.importorskip("hyperspy.api")
    path, frames = result
    signal = hyperspy.load(str(path), file_format="nexus", nxdata_only=True)
    axis = signal.axes_manager["wavelengths"]
    assert (axis.offset, axis.scale, axis.units, axis.size) == (450, 50, "nm", 5)
    assert np.array_equal(signal.data[0] if frames else signal.data, CUBE)
    assert signal.transpose(signal_axes=["wavelengths"]).data.shape[-1] == 5


def test_napari_opens_it_by_the_reader_of_this_package(result):
    npe2 = pytest.importorskip("npe2")
    from npe2 import DynamicPlugin

    from cassi.looking.napari_reader import reader_of

    path, frames = result
    manager = npe2.PluginManager()
    with DynamicPlugin("cassi-here", plugin_manager=manager) as plugin:
        plugin.contribute.reader(reader_of, filename_patterns=["*.h5"])
        layers = npe2.io_utils._read([str(path)], stack=False, _pm=manager)
    (cube, how, kind), *_ = layers
    assert kind == "image" and how["scale"][-3] == 50 and how["translate"][-3] == 450
    assert np.array_equal(cube[0] if frames else cube, CUBE)


SHAPES = [(5, 3, 8), (8, 5, 8), (5, 1, 8), (2, 1, 2), (1, 3, 1), (1, 1, 4), (4, 1, 1), (3, 1, 3, 1), (2, 8, 3, 8)]


@pytest.mark.parametrize("suffix", [".h5", ".mat", ".tif", ".hdr"])
def test_axes_come_back_whatever_their_lengths(tmp_path, suffix):
    """Without wavelengths the file alone says which axis counts bands; an ENVI file holds one cube."""
    if suffix == ".hdr":
        pytest.importorskip("spectral")
    for k, shape in enumerate(SHAPES[:-2] if suffix == ".hdr" else SHAPES):
        cube = np.random.default_rng(0).random(shape).astype(np.float32)
        assert np.array_equal(read_cube(write_cube(tmp_path / f"{k}{suffix}", cube))[0], cube), shape


def test_matlab_has_one_order_for_all_arrays(tmp_path):
    datasets = {"truth": CUBE, "measurement": np.stack([SNAPSHOT] * 3)}
    path = write_cube(tmp_path / "c.mat", CUBE, datasets=datasets)
    stated = {entry.name: (entry.axes, entry.shape) for entry in open_container(path).entries}
    assert stated["cube"] == stated["truth"] == ("HWC", (8, 9, 5))
    assert stated["measurement"] == ("HWN", (8, 13, 3))
    assert np.array_equal(read_cube(path, key="truth")[0], CUBE)


def test_axes_that_cannot_be_are_not_believed(tmp_path):
    from scipy.io import savemat

    for k, text in enumerate(["HW", "HWX", "HHC", "", "HWC and more"]):
        savemat(tmp_path / f"{k}.mat", {"cube": np.ones((8, 9, 3)), "cube_axes": text})
        assert open_container(tmp_path / f"{k}.mat").entry("cube").axes is None
