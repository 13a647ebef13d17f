"""Writing: every format reads back equal, here and in other programs; files appear whole or not at all."""

import json
import os
from multiprocessing import get_context

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given, strategies as st
from messages import refused

from cassi import CASSI, Record, reconstruct
from cassi.files import (
    OutputError,
    check_output,
    open_container,
    read_cube,
    read_measurement,
    replacing,
    to_xarray,
    write_cube,
    write_measurement,
)
from cassi.files.writing import gather_cubes
from cassi.optics.measurement import Measurement

BANDS = [450.0, 500.0, 550.0, 600.0, 650.0]
RNG = np.random.default_rng(0)
CUBE = RNG.random((5, 8, 9)).astype(np.float32)
NM = np.array([450.123456789, 500.5, 560, 600.25, 650.0])
SNAPSHOT = np.ones((8, 13), np.float32)
SUFFIXES = [".h5", ".nc", ".mat", ".npz", ".tif", ".hdr"]


@given(
    stack=st.just(()) | st.tuples(st.integers(1, 3)), size=st.tuples(*[st.integers(1, 8)] * 2), bands=st.integers(1, 8),
    with_wavelengths=st.booleans(),
)  # fmt: skip
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_written_and_read_back_is_equal(tmp_path, suffix, stack, size, bands, with_wavelengths):
    """Whatever the lengths of the axes; an ENVI file holds one cube."""
    files = {f"cube{suffix}"}
    if suffix == ".hdr":
        pytest.importorskip("spectral")
        stack, files = (), {*files, "cube.img"}
    elif suffix == ".npz" and not with_wavelengths:
        bands = min(bands, *size)  # else nothing tells the order of axes
    cube = np.random.default_rng(0).standard_normal((*stack, bands, *size)).astype(np.float32)
    wavelengths = np.sort(np.random.default_rng(1).uniform(400, 700, bands)) if with_wavelengths else None
    path, attributes = tmp_path / f"cube{suffix}", {"version": "1", "none": None, "list": [1, 2]}
    write_cube(path, cube, wavelengths=wavelengths, attributes=attributes, overwrite=True)
    found, found_wavelengths = read_cube(path)
    assert found.dtype == np.float32 and np.array_equal(found, cube)
    assert (found_wavelengths is None) == (wavelengths is None)
    assert wavelengths is None or np.array_equal(found_wavelengths, wavelengths)
    assert {p.name for p in tmp_path.iterdir()} == files


def test_hdf5_layout(tmp_path):
    path = write_cube(
        tmp_path / "c.h5", np.zeros((2, 3, 4)), wavelengths=[500, 600],
        history=[Record(0, 0.1, 1.0, 0.3), Record(1, 0.2, 0.5, 0.1)], datasets={"residual": np.ones((3, 6))},
        attributes={"parameters": {"rho": np.float32(0.5)}, "seconds": np.float64(2.5), "done": True, "skip": None},
    )  # fmt: skip
    with h5py.File(path) as file:
        assert file["cube"].dtype == np.float32 and file["residual"].shape == (3, 6)
        assert file["history/iteration"][:].tolist() == [0, 1] and file["history/residual"][:].tolist() == [1.0, 0.5]
        assert json.loads(file.attrs["parameters"]) == {"rho": 0.5} and "skip" not in file.attrs
        assert [file.attrs[name] for name in ("seconds", "done", "format_version")] == [2.5, True, 1]


@pytest.mark.parametrize("stack", [(), (2,)])
def test_every_array_of_a_matlab_file_has_the_axes_of_matlab(tmp_path, stack):
    """Rows, columns, bands or frames: cube and truth alike; what is read back is what was written."""
    cube = RNG.random((*stack, 3, 5, 4)).astype(np.float32)
    order, letters = ((2, 3, 1, 0), "HWCN") if stack else ((1, 2, 0), "HWC")
    datasets = {"truth": cube + 1, "measurement": np.ones((2, 5, 7)), "residual": np.ones((5, 7))}
    path, history = tmp_path / "c.mat", [Record(0, 0.1, 1.0, 0.3)]
    write_cube(path, cube, datasets=datasets, history=history, attributes={"status": "converged"})
    stored = scipy.io.loadmat(path, simplify_cells=True)
    assert np.array_equal(stored["cube"], cube.transpose(order))
    assert np.array_equal(stored["truth"], datasets["truth"].transpose(order))
    assert (stored["measurement"].shape, stored["residual"].shape) == ((5, 7, 2), (5, 7))
    assert stored["history_residual"] == 1.0 and stored["attributes"]["status"] == "converged"
    axes = {entry.name: entry.axes for entry in open_container(path).entries}
    assert axes["cube"] == axes["truth"] == letters and axes["measurement"] == "HWN"
    assert np.array_equal(read_cube(path, key="truth")[0], datasets["truth"])


def test_axes_that_cannot_be_are_not_believed(tmp_path):
    for k, text in enumerate(["HW", "HWX", "HHC", "", "HWC and more"]):
        scipy.io.savemat(tmp_path / f"{k}.mat", {"cube": np.ones((8, 9, 3)), "cube_axes": text})
        assert open_container(tmp_path / f"{k}.mat").entry("cube").axes is None


@pytest.mark.parametrize("stack", [(), (4,)])
def test_measurement_written_and_read_back_is_equal(tmp_path, stack):
    bad = np.zeros((6, 11), bool)
    bad[1, 2] = True
    m = Measurement(
        y=RNG.random((*stack, 6, 11)).astype(np.float32), mask=RNG.random((3, 6, 5)).astype(np.float32),
        shifts=(0.0, 1.2, 5.5) if stack else (6, 0, 1), wavelengths=np.array([450.0, 500.5, 600.1]),
        cube=RNG.random((*stack, 3, 6, 5)).astype(np.float32), mean_band=RNG.random((6, 5)).astype(np.float32),
        bad_pixels=bad, unit="fraction of full scale (4095 counts)", scale=4095.0, gain=1000.0, read_noise=3.0,
    )  # fmt: skip
    made = [write_measurement(tmp_path / name, m, attributes={"seed": 7}) for name in ("m.h5", "again.h5")]
    found = read_measurement(made[0])
    for name in ("y", "mask", "wavelengths", "cube", "mean_band", "bad_pixels"):
        assert np.array_equal(getattr(found, name), getattr(m, name)), name
    for name in ("shifts", "unit", "scale", "gain", "read_noise"):
        assert getattr(found, name) == getattr(m, name), name
    with h5py.File(made[0]) as file:
        assert file.attrs["seed"] == 7
    assert made[0].read_bytes() == made[1].read_bytes()
    refused(write_measurement, tmp_path / "m.mat", m)


PLACES = [("c.h5", "c.h5"), ("c.hdr", "c.hdr"), ("c.img", "c.hdr"), ("", "c.xyz"), ("", "c"), ("", "nowhere/c.h5"),
          ("folder.h5/", "folder.h5")]  # fmt: skip


@pytest.mark.parametrize(("there", "name"), PLACES)
def test_output_that_cannot_be_or_exists_already(tmp_path, there, name):
    pytest.importorskip("spectral" if name == "c.hdr" else "h5py")
    (tmp_path / there).mkdir() if there.endswith("/") else (tmp_path / (there or "other")).write_bytes(b"precious")
    before = list(tmp_path.iterdir())
    for make in (lambda: check_output(tmp_path / name), lambda: write_cube(tmp_path / name, CUBE)):
        refused(make, error=OutputError)
    assert list(tmp_path.iterdir()) == before and (before[0].is_dir() or before[0].read_bytes() == b"precious")
    if there.startswith("c."):
        write_cube(tmp_path / name, CUBE, overwrite=True)
        assert np.array_equal(read_cube(tmp_path / name)[0], CUBE)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="POSIX; the superuser may write anywhere")
def test_folder_without_the_right_to_write(tmp_path):
    tmp_path.chmod(0o500)
    refused(check_output, tmp_path / "c.h5", error=OutputError)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    "arguments",
    [
        {"cube": np.zeros((3, 4))}, {"cube": np.zeros((0, 3, 4))}, {"wavelengths": [500]},
        {"datasets": {"cube": np.zeros(3)}}, {"path": "c.hdr", "cube": CUBE[None]},
    ],
)  # fmt: skip
def test_content_that_cannot_be_written(tmp_path, arguments):
    given = {"path": "c.h5", "cube": CUBE} | arguments
    refused(write_cube, **(given | {"path": tmp_path / given["path"]}))
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_appears_meanwhile_is_kept(tmp_path):
    def overtaken():
        with replacing(tmp_path / "c.h5") as temporary:
            temporary.write_bytes(b"mine")
            (tmp_path / "c.h5").write_bytes(b"theirs")

    refused(overtaken, error=OutputError)
    assert (tmp_path / "c.h5").read_bytes() == b"theirs"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.skipif(os.name == "nt", reason="no limits on Windows")
@pytest.mark.long
def test_real_writes_that_fail_leave_nothing_behind(tmp_path, capfd):
    """A limit on the file size makes the system refuse writes as a full disk does; the process must end in peace."""
    import resource

    cube, suffixes = np.random.default_rng(0).random((4, 128, 128)), (".h5", ".mat", ".tif")

    def write():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        for suffix in suffixes:
            try:
                write_cube(tmp_path / f"c{suffix}", cube)
            except OutputError as error:
                os.write(1, f"{error}\n".encode())

    for suffix in suffixes:  # what is loaded is loaded
        write_cube(tmp_path / f"warm{suffix}", cube[:, :2, :2])
    process = get_context("fork").Process(target=write)
    process.start()
    process.join(300)
    said = capfd.readouterr()
    assert (process.exitcode, said.err) == (0, "")
    lines = said.out.splitlines()
    assert len(lines) == 3 and all("the disk is full; free some space" in line for line in lines)
    assert not [p.name for p in tmp_path.iterdir() if not p.name.startswith("warm.")]


def test_a_sequence_is_gathered_whole(tmp_path):
    cubes = RNG.random((3, 2, 4, 5)).astype(np.float32)
    frames, even = [], np.full((4, 6), 0.9)
    for t, cube in enumerate(cubes):
        extra = {"residual": np.full((3, 4, 6), t), "truth": cube}
        stated = {"residual": 0.1 * t, "parameters": {"together": t}, "ok": t != 1, "verdict": "wrong mask"}
        stated["choice"] = {"prior": f"prior {t}", "plan": {"basis": "large"}}
        what = {"wavelengths": [500, 600], "datasets": extra | {"sensitivity": even}, "attributes": stated}
        frames.append(write_cube(tmp_path / f"{t}.h5", cube, **what))
    with h5py.File(gather_cubes(tmp_path / "film.h5", frames, attributes={"command": "x"})) as file:
        assert np.array_equal(file["cube"][:], cubes) and np.array_equal(file["truth"][:], cubes)
        assert file["residual"].shape == (3, 4, 6)  # of each frame its own, not of those beside it
        np.testing.assert_allclose(file["residuals"][:], [0, 0.1, 0.2], rtol=1e-6)
        assert json.loads(file.attrs["choice"]) == {"frames": [{"prior": f"prior {t}"} for t in range(3)]}
        assert file["together"][:].tolist() == [0, 1, 2] and file.attrs["command"] == "x"
        assert np.array_equal(file["sensitivity"][:], even)
        assert not file.attrs["ok"] and file.attrs["verdict"] == "1 of 3 frames do not fit the mask; wrong mask"
    other = write_cube(tmp_path / "other.h5", cubes[0], wavelengths=[500, 600], datasets=extra)
    with h5py.File(gather_cubes(tmp_path / "two.h5", [frames[0], other])) as file:
        assert "sensitivity" not in file, "that of one frame is not that of all"
    small = write_cube(tmp_path / "small.h5", cubes[0, :, :2])
    before = sorted(tmp_path.iterdir())
    refused(gather_cubes, tmp_path / "second.h5", [frames[0], small])
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture(params=["single", "film"])
def result(request, tmp_path):
    """A file and its number of frames, 0 for a single cube."""
    datasets = {"measurement": SNAPSHOT, "residual": SNAPSHOT, "uncertainty": CUBE / 10}
    what = {"wavelengths": BANDS, "datasets": datasets, "attributes": {"unit": "counts"}}
    made = [write_cube(tmp_path / f"{k}.h5", CUBE + k, **what) for k in range(3)]
    return (made[0], 0) if request.param == "single" else (gather_cubes(tmp_path / "film.h5", made), 3)


def test_every_axis_has_a_name_and_a_length(result):
    """Axes are no arrays to choose from."""
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
    listed = {entry.name for entry in open_container(path).entries}
    assert (
        listed.isdisjoint({"row", "column", "detector_column", "frame", "band"}) and {"cube", "wavelengths"} <= listed
    )
    cube, nm = read_cube(path)
    assert np.array_equal(cube.reshape(-1, *CUBE.shape)[0], CUBE) and nm.tolist() == BANDS


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
    from cassi.looking.napari_reader import reader_of

    path, frames = result
    manager = npe2.PluginManager()
    with npe2.DynamicPlugin("cassi-here", plugin_manager=manager) as plugin:
        plugin.contribute.reader(reader_of, filename_patterns=["*.h5"])
        layers = npe2.io_utils._read([str(path)], stack=False, _pm=manager)
    (cube, how, kind), *_ = layers
    assert kind == "image" and how["scale"][-3] == 50 and how["translate"][-3] == 450
    assert np.array_equal(cube[0] if frames else cube, CUBE)


def test_xarray_has_labels_units_and_provenance():
    pytest.importorskip("xarray")
    stated = {"a": [1], "b": None}
    data = to_xarray(CUBE, np.array(BANDS), uncertainty=CUBE / 10, unit="counts", attributes=stated)
    assert data.cube.dims == ("wavelength", "y", "x") and data.attrs == {"a": "[1]"}
    assert data.cube.sel(wavelength=600, y=2, x=3) == CUBE[3, 2, 3]
    assert data.uncertainty.sel(wavelength=500, y=1, x=0) == CUBE[1, 1, 0] / 10
    assert (data.cube.units, data.wavelength.units) == ("counts", "nm")
    data = to_xarray(CUBE[None])
    assert data.cube.dims == ("frame", "band", "y", "x") and data.band.values.tolist() == [1, 2, 3, 4, 5]
    assert "uncertainty" not in data
    mask = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
    y, how = CASSI.from_step(mask, 2, 4) @ torch.ones(4, 16, 16), {"solver": "gap-tv", "num_iters": 5}
    found = reconstruct(y, mask, num_bands=4, wavelengths=BANDS[:4], camera="as-given", **how)
    data = found.to_xarray()
    assert np.array_equal(data.cube.values, found.cube.numpy())
    assert data.wavelength.values.tolist() == BANDS[:4] and data.attrs["status"] == "finished"


@pytest.mark.parametrize("engine", ["scipy", "h5netcdf", "netcdf4"])
def test_a_result_goes_to_netcdf_and_back(tmp_path, engine):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip({"netcdf4": "netCDF4"}.get(engine, engine))
    stated = {"ok": True, "count": 3, "part": 0.5, "text": "ä", "list": [1, True], "numpy": np.bool_(False)}
    data = to_xarray(CUBE, np.array(BANDS), uncertainty=CUBE, attributes=stated)
    assert not any(isinstance(value, bool) for value in data.attrs.values())  # which NetCDF lacks
    data.to_netcdf(tmp_path / "c.nc", engine=engine)
    with xarray.open_dataset(tmp_path / "c.nc", engine=engine) as found:
        assert np.array_equal(found.cube, CUBE) and found.attrs["ok"] == 1 and found.attrs["text"] == "ä"


@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
@pytest.mark.parametrize("order", [0, 1])
def test_envi_images_of_another_program_are_read(tmp_path, interleave, order):
    envi, path, image = pytest.importorskip("spectral.io.envi"), tmp_path / "theirs.hdr", CUBE.transpose(1, 2, 0)
    metadata = {"wavelength": [repr(w) for w in (1e-3 * NM).tolist()], "wavelength units": "Micrometers"}
    how = {"dtype": np.float64, "interleave": interleave, "byteorder": order}
    envi.save_image(str(path), image, metadata=metadata, **how)
    cube, nm = read_cube(path)
    assert np.array_equal(cube, CUBE)
    np.testing.assert_allclose(nm, NM, rtol=1e-12)
    picked, container = np.s_[1:3, 2:5, 0:2], open_container(path)
    assert np.array_equal(container.read(container.entries[0], picked), image[picked])
    counts = np.arange(35, dtype=np.uint16).reshape(5, 7)  # a frame of one band
    for name, values in (("y", counts), ("m", counts[:, :5] % 2)):
        envi.save_image(str(tmp_path / f"{name}.hdr"), values[..., None], interleave=interleave, byteorder=order)
    m = read_measurement(tmp_path / "y.hdr", mask=tmp_path / "m.hdr", num_bands=2)
    np.testing.assert_allclose(m.y * m.scale, counts, atol=1e-4)


def test_envi_images_are_read_by_another_program(tmp_path):
    envi = pytest.importorskip("spectral.io.envi")
    path = write_cube(tmp_path / "ours.hdr", CUBE, wavelengths=NM, attributes={"unit": "counts {raw}", "n": {"a": 1}})
    image = envi.open(str(path))
    assert np.array_equal(np.asarray(image.load()), CUBE.transpose(1, 2, 0))
    assert image.bands.centers == NM.tolist() and image.bands.band_unit == "Nanometers"
    assert "counts" in image.metadata["description"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lines = 8", "lines = 5000000"), ("samples = 9", "samples = x"), ("bands = 5", "bands = -3"),
        ("header offset = 0", "header offset = 99"), ("data type = 4", "data type = 77"),
        ("file type = ENVI Standard", "file type = ENVI Spectral Library"),
        ("byte order = 0", "byte order = 0\nfile compression = 1"),
    ],
)  # fmt: skip
def test_damaged_envi_headers_and_missing_data_are_refused(tmp_path, old, new):
    pytest.importorskip("spectral")
    path = write_cube(tmp_path / "c.hdr", CUBE)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    refused(read_cube, path)
    path.with_suffix(".img").unlink()
    refused(read_cube, path)
