"""Writing: every format reads back equal, files appear whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import h5py
import numpy as np
import pytest
import scipy.io
from hypothesis import assume, given, strategies as st
from messages import refused

from cassi import Record
from cassi.files import OutputError, check_output, read_cube, read_measurement, replacing, write_cube, write_measurement
from cassi.files.atomic import signals_held
from cassi.files.cube_store import gather_cubes
from cassi.optics.measurement import Measurement

FORMATS = [".h5", ".mat", ".tif"]


@given(
    stack=st.just(()) | st.tuples(st.integers(1, 3)), size=st.tuples(*[st.integers(2, 7)] * 2), bands=st.integers(1, 6),
    with_wavelengths=st.booleans(),
)  # fmt: skip
@pytest.mark.parametrize("suffix", FORMATS)
def test_written_and_read_back_is_equal(tmp_path, suffix, stack, size, bands, with_wavelengths):
    assume(with_wavelengths or bands <= min(size))  # else MATLAB's order of axes is not told
    rng, shape = np.random.default_rng(0), (*stack, bands, *size)
    cube = rng.standard_normal(shape).astype(np.float32)
    wavelengths = np.sort(rng.uniform(400, 700, shape[-3])) if with_wavelengths else None
    path, attributes = tmp_path / f"cube{suffix}", {"version": "1", "none": None, "list": [1, 2]}
    write_cube(path, cube, wavelengths=wavelengths, attributes=attributes, overwrite=True)
    found, found_wavelengths = read_cube(path)
    assert found.dtype == np.float32 and np.array_equal(found, cube)
    assert (found_wavelengths is None) == (wavelengths is None)
    assert wavelengths is None or np.array_equal(found_wavelengths, wavelengths)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_hdf5_layout(tmp_path):
    path = write_cube(
        tmp_path / "c.h5", np.zeros((2, 3, 4)), wavelengths=[500, 600],
        history=[Record(0, 0.1, 1.0, 0.3), Record(1, 0.2, 0.5, 0.1)], datasets={"residual": np.ones((3, 6))},
        attributes={"parameters": {"rho": np.float32(0.5)}, "seconds": np.float64(2.5), "done": True, "skip": None},
    )  # fmt: skip
    with h5py.File(path) as file:
        assert file["cube"].dtype == np.float32
        assert file["wavelengths"].attrs["units"] == "nm"
        assert file["history/iteration"][:].tolist() == [0, 1]
        assert file["history/residual"][:].tolist() == [1.0, 0.5]
        assert file["residual"].shape == (3, 6)
        assert json.loads(file.attrs["parameters"]) == {"rho": 0.5}
        assert (file.attrs["seconds"], bool(file.attrs["done"])) == (2.5, True)
        assert file.attrs["format_version"] == 1
        assert "skip" not in file.attrs


def test_matlab_layout_is_rows_columns_bands(tmp_path):
    cube = np.random.default_rng(0).random((2, 3, 4)).astype(np.float32)
    write_cube(tmp_path / "c.mat", cube, history=[Record(0, 0.1, 1.0, 0.3)], attributes={"status": "converged"})
    content = scipy.io.loadmat(tmp_path / "c.mat", simplify_cells=True)
    assert np.array_equal(content["cube"][:, :, 1], cube[1])
    assert content["history_residual"] == 1.0
    assert content["attributes"]["status"] == "converged"


def test_measurement_written_and_read_back_is_equal(tmp_path):
    rng = np.random.default_rng(1)
    bad = np.zeros((6, 11), bool)
    bad[1, 2] = True
    m = Measurement(
        y=rng.random((6, 11)).astype(np.float32), mask=rng.random((3, 6, 5)).astype(np.float32), shifts=(6, 0, 1),
        wavelengths=np.array([450.0, 500.5, 600.1]), cube=rng.random((3, 6, 5)).astype(np.float32),
        mean_band=rng.random((6, 5)).astype(np.float32), bad_pixels=bad, unit="fraction of full scale (4095 counts)",
        scale=4095.0, gain=1000.0, read_noise=3.0,
    )  # fmt: skip
    write_measurement(tmp_path / "m.h5", m, attributes={"seed": 7})
    found = read_measurement(tmp_path / "m.h5")
    for name in ("y", "mask", "wavelengths", "cube", "mean_band", "bad_pixels"):
        assert np.array_equal(getattr(found, name), getattr(m, name)), name
    for name in ("shifts", "unit", "scale", "gain", "read_noise"):
        assert getattr(found, name) == getattr(m, name), name
    with h5py.File(tmp_path / "m.h5") as file:
        assert file.attrs["seed"] == 7
    write_measurement(tmp_path / "again.h5", m, attributes={"seed": 7})
    assert (tmp_path / "m.h5").read_bytes() == (tmp_path / "again.h5").read_bytes()


def test_measurement_of_a_stack_and_sub_pixel_shifts(tmp_path):
    m = Measurement(
        y=np.random.default_rng(0).random((4, 6, 8)).astype(np.float32),
        mask=np.ones((6, 5), np.float32),
        shifts=(0.0, 1.2, 2.5),
    )
    write_measurement(tmp_path / "m.h5", m)
    found = read_measurement(tmp_path / "m.h5")
    assert np.array_equal(found.y, m.y)
    assert found.shifts == m.shifts


def test_measurements_go_to_hdf5_only(tmp_path):
    m = Measurement(y=np.ones((4, 6), np.float32), mask=np.ones((4, 4), np.float32), shifts=(0, 2))
    refused(write_measurement, tmp_path / "m.mat", m)


def test_existing_output_is_kept_without_overwrite(tmp_path):
    path = tmp_path / "c.h5"
    path.write_bytes(b"precious")
    refused(write_cube, path, np.zeros((2, 3, 4)), error=OutputError)
    assert path.read_bytes() == b"precious"
    write_cube(path, np.zeros((2, 3, 4)), overwrite=True)
    assert read_cube(path)[0].shape == (2, 3, 4)


@pytest.mark.parametrize(
    "name",
    [
        "c.xyz", "c",
        "nowhere/c.h5", "folder.h5",
    ],
)  # fmt: skip
def test_output_that_cannot_be(tmp_path, name):
    (tmp_path / "folder.h5").mkdir()
    refused(check_output, tmp_path / name, error=OutputError)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="POSIX; the superuser may write anywhere")
def test_folder_without_the_right_to_write(tmp_path):
    tmp_path.chmod(0o500)
    refused(check_output, tmp_path / "c.h5", error=OutputError)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    "arguments",
    [
        {"cube": np.zeros((3, 4))}, {"cube": np.zeros((0, 3, 4))},
        {"cube": np.zeros((2, 3, 4)), "wavelengths": [500]},
        {"cube": np.zeros((2, 3, 4)), "datasets": {"cube": np.zeros(3)}},
    ],
)  # fmt: skip
def test_content_that_cannot_be_written(tmp_path, arguments):
    refused(write_cube, tmp_path / "c.h5", **arguments)
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
def test_real_writes_that_fail_leave_nothing_behind(tmp_path):
    """A limit on the file size makes the system refuse writes as a full disk does; the process must end in peace."""
    program = textwrap.dedent(f"""
        import resource, numpy as np
        from cassi.files import OutputError, write_cube
        cube = np.random.default_rng(0).random((4, 128, 128))
        for suffix in {FORMATS!r}:
            write_cube({str(tmp_path)!r} + "/warm" + suffix, cube[:, :2, :2])
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        for suffix in {FORMATS!r}:
            try:
                write_cube({str(tmp_path)!r} + "/c" + suffix, cube)
            except OutputError as error:
                print(error)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == len(FORMATS)
    assert all("the disk is full; free some space" in line for line in lines)
    assert not [p.name for p in tmp_path.iterdir() if not p.name.startswith("warm.")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_wait_for_the_end_of_the_block(number):
    seen = []
    before = signal.signal(number, lambda *_: seen.append("handled"))
    try:
        with signals_held():
            signal.raise_signal(number)
            signal.raise_signal(number)
            seen.append("block")
        assert seen == ["block", "handled"]
        signal.raise_signal(number)
        assert seen == ["block", "handled", "handled"]
    finally:
        signal.signal(number, before)


def test_a_sequence_is_gathered_whole(tmp_path):
    cubes = np.random.default_rng(0).random((3, 2, 4, 5)).astype(np.float32)
    frames = []
    for t, cube in enumerate(cubes):
        extra = {"residual": np.full((3, 4, 6), t), "truth": cube}
        stated = {"residual": 0.1 * t, "parameters": {"together": t}, "ok": t != 1, "verdict": "wrong mask"}
        stated["choice"] = {"prior": f"prior {t}", "plan": {"basis": "large"}}
        extra["sensitivity"] = np.full((4, 6), 0.9)
        frames.append(write_cube(tmp_path / f"{t}.h5", cube, wavelengths=[500, 600], datasets=extra, attributes=stated))
    with h5py.File(gather_cubes(tmp_path / "film.h5", frames, attributes={"command": "x"})) as file:
        np.testing.assert_array_equal(file["cube"][:], cubes)
        np.testing.assert_array_equal(file["truth"][:], cubes)
        assert file["residual"].shape == (3, 4, 6)  # of each frame its own, not of those beside it
        assert file["wavelengths"].attrs["units"] == "nm"
        np.testing.assert_allclose(file["residuals"][:], [0, 0.1, 0.2], rtol=1e-6)
        assert json.loads(file.attrs["choice"]) == {"frames": [{"prior": f"prior {t}"} for t in range(3)]}
        assert file["together"][:].tolist() == [0, 1, 2] and file.attrs["command"] == "x"
        assert (file["sensitivity"][:] == 0.9).all() and file["sensitivity"].shape == (4, 6)
        assert not file.attrs["ok"] and file.attrs["verdict"] == "1 of 3 frames do not fit the mask; wrong mask"
    other = write_cube(
        tmp_path / "other.h5", cubes[0], wavelengths=[500, 600], datasets={"residual": extra["residual"], "truth": cube}
    )
    with h5py.File(gather_cubes(tmp_path / "two.h5", [frames[0], other])) as file:
        assert "sensitivity" not in file, "that of one frame is not that of all"
    small = write_cube(tmp_path / "small.h5", cubes[0, :, :2])
    before = sorted(tmp_path.iterdir())
    refused(gather_cubes, tmp_path / "second.h5", [frames[0], small])
    assert sorted(tmp_path.iterdir()) == before


def test_every_array_of_a_matlab_file_has_the_axes_of_matlab(tmp_path):
    """Rows, columns, bands or frames: cube and truth alike; what is read back is what was written."""
    cube = np.random.default_rng(0).random((2, 3, 5, 4)).astype(np.float32)
    other = {"truth": cube + 1, "measurement": cube[:, 0], "residual": cube[0, 0]}
    for path, values in ((tmp_path / "a.mat", cube), (tmp_path / "b.mat", cube[0])):
        given = other if values.ndim == 4 else {"truth": values + 1, "uncertainty": values / 2}
        write_cube(path, values, datasets=given)
        stored = scipy.io.loadmat(path)
        order = (2, 3, 1, 0) if values.ndim == 4 else (1, 2, 0)
        assert np.array_equal(stored["cube"], values.transpose(order))
        assert np.array_equal(stored["truth"], given["truth"].transpose(order))
        assert np.array_equal(read_cube(path)[0], values)
        assert np.array_equal(read_cube(path, key="truth")[0], given["truth"])
    assert scipy.io.loadmat(tmp_path / "a.mat")["measurement"].shape == (5, 4, 2)
    assert scipy.io.loadmat(tmp_path / "a.mat")["residual"].shape == (5, 4)
