"""Reading measurements and cubes: keys, axes, geometry, counts, each against hand-made files and numbers."""

import hashlib
import re

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from cases import write_h5
from messages import check_words, refused

from cassi.files import Levels, read_cube, read_measurement
from cassi.files.scaling import plan_counts
from cassi.files.wavelength_files import parse_wavelengths
from cassi.optics.geometry import infer_shifts
from cassi.optics.measurement import Measurement
from cassi.running.arguments import load
from cassi.running.concerns import measurement_concerns
from cassi.settings import Settings

H, W, C, STEP = 12, 10, 4, 2
DETECTOR = W + (C - 1) * STEP


@pytest.fixture
def arrays():
    rng = np.random.default_rng(7)
    return {
        "measurement": rng.random((H, DETECTOR)).astype(np.float32),
        "mask": (0.1 + rng.random((H, W))).astype(np.float32),
        "cube": rng.random((C, H, W)).astype(np.float32),
    }


def write_v73(path, **datasets):
    """A file as MATLAB -v7.3 writes it: a text header, reversed axes, the class of each variable."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in datasets.items():
            dataset = file.create_dataset(name, data=np.asarray(values).T)
            kind = {"float32": "single", "float64": "double", "bool": "logical"}
            dataset.attrs["MATLAB_class"] = np.bytes_(kind.get(str(values.dtype), str(values.dtype)))
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: test".ljust(124) + b"\x00\x02IM")
    return path


def test_hdf5_tells_more_than_its_arrays(tmp_path, arrays):
    """What is written by `write_measurement` comes back whole: test_files_writing.py."""
    path = write_h5(tmp_path / "m.h5", {"gain": 100.0, "read_noise": 2.5, "unit": np.bytes_("reflectance")}, **arrays)
    m = read_measurement(path)
    assert m.shifts == (0, 2, 4, 6)
    assert np.array_equal(m.y, arrays["measurement"]) and m.y.dtype == np.float32
    assert np.array_equal(m.mask, arrays["mask"]) and np.array_equal(m.cube, arrays["cube"])
    assert (m.gain, m.read_noise, m.unit, m.source) == (100.0, 2.5, "reflectance", "m.h5")
    assert m.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    check_words(*m.notes)


@pytest.mark.parametrize(("key", "suffix"), [("Meas", "h5"), ("meas_real", "h5"), ("y", "h5"), ("measurement", "tif")])
def test_keys_of_the_field_whatever_the_suffix(tmp_path, arrays, key, suffix):
    path = write_h5(tmp_path / f"m.{suffix}", **{key: arrays["measurement"]}, mask=arrays["mask"])
    m = read_measurement(path, num_bands=C)
    assert np.array_equal(m.y, arrays["measurement"]) and np.array_equal(m.mask, arrays["mask"])
    assert m.shifts == (0, 2, 4, 6)


def test_the_only_image_of_a_file_is_taken_and_said(tmp_path, arrays):
    np.save(tmp_path / "capture.npy", arrays["measurement"])
    np.save(tmp_path / "aperture.npy", arrays["mask"])
    m = read_measurement(tmp_path / "capture.npy", mask=tmp_path / "aperture.npy")
    assert np.array_equal(m.y, arrays["measurement"])
    check_words(*m.notes)
    assert any("'aperture'" in note and "mask" in note for note in m.notes)


def test_key_given_by_the_user(tmp_path, arrays):
    path = write_h5(tmp_path / "m.h5", a=arrays["measurement"], b=arrays["mask"])
    assert np.array_equal(read_measurement(path, key="a", mask_key="b").y, arrays["measurement"])
    refused(read_measurement, path, key="c")


def test_matlab_cube_and_masks_have_bands_last(tmp_path, arrays):
    masks = np.random.default_rng(0).random((C, H, W)).astype(np.float32)
    content = {
        "meas": arrays["measurement"], "mask3d": np.moveaxis(masks, 0, -1), "img": np.moveaxis(arrays["cube"], 0, -1),
    }  # fmt: skip
    scipy.io.savemat(tmp_path / "five.mat", content)
    write_v73(tmp_path / "seven.mat", **content)
    for name in ("five.mat", "seven.mat"):
        m = read_measurement(tmp_path / name)
        assert np.array_equal(m.mask, masks)
        assert np.array_equal(m.cube, arrays["cube"])


def test_stack_of_frames_is_found_by_the_rows_of_the_mask(tmp_path, arrays):
    frames = np.random.default_rng(1).random((5, H, DETECTOR)).astype(np.float32)
    path = write_h5(tmp_path / "n.h5", measurement=frames, mask=arrays["mask"])
    assert np.array_equal(read_measurement(path).y, frames)
    assert np.array_equal(read_measurement(path, frames=3).y, frames[3])
    assert np.array_equal(read_measurement(path, frames=-1).y, frames[4])
    assert np.array_equal(read_measurement(path, frames=slice(1, 3)).y, frames[1:3])
    path = write_h5(tmp_path / "last.h5", measurement=np.moveaxis(frames, 0, -1), mask=arrays["mask"])
    assert np.array_equal(read_measurement(path).y, frames)
    refused(read_measurement, path, frames=5)
    refused(read_measurement, path, frames=slice(5, 9))
    path = write_h5(tmp_path / "m.h5", **arrays)
    assert read_measurement(path, frames=0).y.shape == read_measurement(path, frames=-1).y.shape == (H, DETECTOR)
    refused(read_measurement, path, frames=1)


def test_dispersion_down_the_columns_is_turned(tmp_path, arrays):
    turned = {name: np.swapaxes(values, -1, -2) for name, values in arrays.items()}
    m = read_measurement(write_h5(tmp_path / "m.h5", **turned))
    assert np.array_equal(m.y, arrays["measurement"])
    assert np.array_equal(m.mask, arrays["mask"])
    assert np.array_equal(m.cube, arrays["cube"])
    check_words(*m.notes)


@pytest.mark.parametrize(
    ("difference", "step", "num_bands", "expected"),
    [
        (6, None, None, (0, 2, 4, 6)), (5, None, None, (0, 1, 2, 3, 4, 5)), (6, 3, None, (0, 3, 6)),
        (6, None, 7, (0, 1, 2, 3, 4, 5, 6)), (6, -2, None, (0, -2, -4, -6)), (6, -3, 3, (0, -3, -6)),
        (0, None, 5, (0, 0, 0, 0, 0)), (0, 0, 3, (0, 0, 0)), (0, None, None, (0,)),
        (7, 2.1, 4, (0.0, 2.1, 4.2, pytest.approx(6.3))),
    ],
)  # fmt: skip
def test_shifts_from_widths(difference, step, num_bands, expected):
    assert infer_shifts((8, 20 + difference), (8, 20), None, step, num_bands, []) == expected


def test_what_does_not_fit_says_what_would():
    refused(infer_shifts, (660, 714), (660, 660), None, None, 24, [])
    refused(infer_shifts, (660, 714), (660, 660), None, 4, None, [])
    refused(infer_shifts, (660, 714), (660, 660), None, 1, 28, [])
    refused(infer_shifts, (8, 8), (8, 8), None, 2, 3, [])
    refused(infer_shifts, (8, 14), (3, 8, 8), None, None, 4, [])


def test_shifts_of_the_file_any_order(tmp_path, arrays):
    path = write_h5(tmp_path / "m.h5", shifts=np.array([6, 0, 3]), **arrays)
    assert read_measurement(path).shifts == (6, 0, 3)
    path = write_h5(tmp_path / "f.h5", shifts=np.array([0.0, 2.4, 5.5]), **arrays)
    assert read_measurement(path).shifts == (0.0, 2.4, 5.5)
    path = write_h5(tmp_path / "w.h5", shifts=np.array([0, 9]), **arrays)
    refused(read_measurement, path)
    refused(read_measurement, tmp_path / "m.h5", num_bands=4)
    assert read_measurement(tmp_path / "m.h5", step=1).shifts == tuple(range(7)), "the user overrules the file"


def sheared(masks, step):
    bands, rows, width = masks.shape
    out = np.full((bands, rows, width + (bands - 1) * abs(step)), 0.25, np.float32)
    start = 0 if step > 0 else (bands - 1) * -step
    for c in range(bands):
        out[c, :, start + c * step : start + c * step + width] = masks[c]
    return out


@pytest.mark.parametrize(("step", "name"), [(1, "mask3d"), (-2, "mask3d"), (None, "mask_3d_shift")])
def test_sheared_masks_are_cut_out_at_their_shift(tmp_path, step, name):
    """A step of 2 px is taken where nothing but the name says that they are sheared."""
    mask = (np.random.default_rng(3).random((32, 24)) > 0.5).astype(np.float32)
    stored = sheared(np.stack([mask] * 5), step or 2)
    y = np.ones((32, stored.shape[-1]), np.float32)
    scipy.io.savemat(tmp_path / "m.mat", {"meas": y, name: np.moveaxis(stored, 0, -1)})
    m = read_measurement(tmp_path / "m.mat", step=step)
    assert m.shifts == tuple(c * (step or 2) for c in range(5))
    assert np.array_equal(m.mask, mask)
    check_words(*m.notes)


def test_sheared_masks_that_differ_by_band_stay_one_per_band(tmp_path):
    masks = np.random.default_rng(4).random((3, 8, 6)).astype(np.float32)
    m = read_measurement(write_h5(tmp_path / "m.h5", y=np.ones((8, 10), np.float32), mask_3d_shift=sheared(masks, 2)))
    assert m.shifts == (0, 2, 4)
    assert np.array_equal(m.mask, masks)


def on_detector(masks, cube, shifts, *, down=False):
    """Masks as they lie on the detector, zero beside their bands, and the snapshot, pixel by pixel."""
    starts = np.asarray(shifts) - min(shifts)
    bands, rows, columns = cube.shape
    out = np.zeros((bands, rows, columns + starts.max()), np.float32)
    y = np.zeros(out.shape[1:], np.float32)
    for c, i, j in np.ndindex(cube.shape):
        out[c, i, j + starts[c]] = masks[c, i, j]
        y[i, j + starts[c]] += masks[c, i, j] * cube[c, i, j]
    return (out.swapaxes(1, 2), y.T) if down else (out, y)


@pytest.mark.parametrize("kind", ["one", "grey per band", "binary per band", "dark border"])
@pytest.mark.parametrize("shifts", [(0, 1, 2, 3), (0, -2, -4, -6), (0, 3, 6, 9), (0, 1, 3, 7), (5, 0, 2, 1)])
@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("form", ["mat", "npz", "h5 of another name", "arrays"])
def test_displacements_are_read_off_what_is_dark(tmp_path, kind, shifts, down, form):
    rng = np.random.default_rng(6)
    masks = (0.1 + rng.random((4, 20, 16))).astype(np.float32)
    if kind != "grey per band":
        masks = (masks > 0.6).astype(np.float32)
    if kind in ("one", "dark border"):
        masks[:] = masks[0]
    if kind == "dark border":
        masks[..., :2] = masks[..., -3:] = masks[:, :4] = 0
    cube = rng.random((4, 20, 16)).astype(np.float32)
    stored, y = on_detector(masks, cube, shifts, down=down)
    if form == "mat":
        scipy.io.savemat(tmp_path / "m.mat", {"meas": y, "mask_3d_shift": np.moveaxis(stored, 0, -1)})
        m = read_measurement(tmp_path / "m.mat")
    elif form == "npz":
        np.savez(tmp_path / "m.npz", meas=y, mask3d_shift=stored)
        m = read_measurement(tmp_path / "m.npz")
    elif form == "arrays" and not down:
        m = load(y, stored, Settings())
    elif form == "arrays":
        refused(load, y, stored, Settings())
        return
    else:
        m = read_measurement(write_h5(tmp_path / "m.h5", measurement=y, phi=stored))
    assert tuple(np.asarray(m.shifts) - m.shifts[0]) == tuple(np.asarray(shifts) - shifts[0])
    found, again = on_detector(np.broadcast_to(m.mask, cube.shape), cube, m.shifts)
    expected, snapshot = on_detector(masks, cube, shifts)
    assert np.array_equal(found, expected) and np.array_equal(m.y, snapshot)
    assert any("transposed" in note for note in m.notes) == down
    assert np.allclose(again, m.y)


def test_displacements_that_nothing_tells_are_refused(tmp_path):
    masks = np.random.default_rng(4).random((3, 8, 6)).astype(np.float32)
    y = np.ones((8, 10), np.float32)
    grey = np.random.default_rng(5).random((3, 8, 10)).astype(np.float32)
    refused(read_measurement, write_h5(tmp_path / "m.h5", y=y, mask_3d_shift=grey))
    wrong = write_h5(tmp_path / "w.h5", y=y, mask_3d_shift=on_detector(masks, masks, (0, -2, -4))[0])
    refused(read_measurement, wrong, step=2)
    both = np.zeros((3, 12, 10), np.float32)
    for c, mask in enumerate(masks):
        both[c, 2 * c : 2 * c + 8, 2 * c : 2 * c + 6] = mask
    refused(read_measurement, write_h5(tmp_path / "b.h5", y=np.ones((12, 10), np.float32), mask_3d_shift=both))
    video = read_measurement(wrong, step=0)
    assert video.shifts == (0, 0, 0) and video.mask.shape == (3, 8, 10)


def test_one_mask_per_video_frame_is_not_cut(tmp_path):
    masks = (np.random.default_rng(5).random((4, 16, 16)) > 0.5).astype(np.float32)
    m = read_measurement(write_h5(tmp_path / "video.h5", y=np.ones((16, 16), np.float32), mask=masks))
    assert m.shifts == (0, 0, 0, 0)
    assert np.array_equal(m.mask, masks)


@pytest.mark.parametrize(("maximum", "full"), [(200, 255), (256, 1023), (60000, 65535)])
def test_integers_are_scaled_by_the_smallest_bit_depth(tmp_path, arrays, maximum, full):
    counts = np.zeros((H, DETECTOR), np.uint16)
    counts[1, 1] = maximum
    m = read_measurement(write_h5(tmp_path / "m.h5", {"gain": 0.5}, measurement=counts, mask=arrays["mask"]))
    assert m.scale == full
    assert m.y[1, 1] == pytest.approx(maximum / full, rel=1e-6)
    assert m.unit == f"fraction of full scale ({full} counts)"
    assert m.gain == pytest.approx(0.5 * full)  # electrons per count in the file, per unit of y here
    check_words(*m.notes)
    assert m.bad_pixels is None


def test_levels_and_saturation(tmp_path, arrays):
    counts = np.full((H, DETECTOR), 1000, np.uint16)
    counts[0, 0], counts[3, 4] = 4095, 4000
    path = write_h5(tmp_path / "m.h5", measurement=counts, mask=arrays["mask"])
    m = read_measurement(path, levels=Levels(bit_depth=12, black_level=100))
    assert m.y[1, 1] == pytest.approx(900 / 3995)
    assert np.argwhere(m.bad_pixels).tolist() == [[0, 0]]
    check_words(*m.notes)
    m = read_measurement(path, levels=Levels(black_level=100, saturation=4000))
    assert np.argwhere(m.bad_pixels).tolist() == [[0, 0], [3, 4]]
    refused(read_measurement, path, levels=Levels(black_level=5000))
    refused(read_measurement, path, levels=Levels(bit_depth=10))
    refused(Levels, bit_depth=0)
    refused(Levels, saturation=float("nan"))


def test_floats_keep_their_unit():
    counts = plan_counts(np.dtype("float64"), 0.0, 3000.0, None)
    assert (counts.scale, counts.black, counts.unit, counts.saturation) == (1, 0, "as in the file", None)
    counts = plan_counts(np.dtype("float32"), 0.0, 3000.0, None, Levels(black_level=64))
    assert counts.apply(np.array([64.0, 3064.0]), "y")[0].tolist() == [0.0, 3000.0]


def test_integer_masks_are_divided_by_their_maximum(tmp_path, arrays):
    mask = np.full((H, W), 50, np.uint8)
    mask[0, 0] = 200
    m = read_measurement(write_h5(tmp_path / "m.h5", measurement=arrays["measurement"], mask=mask))
    assert (m.mask[0, 0], m.mask[1, 1]) == (1.0, 0.25)
    assert "mask: integers divided by their maximum 200" in m.notes
    m = read_measurement(write_h5(tmp_path / "b.h5", measurement=arrays["measurement"], mask=mask > 100))
    assert m.mask.sum() == 1


def test_bad_pixels_from_a_file_and_nan_under_them(tmp_path, arrays):
    y = arrays["measurement"].copy()
    y[4, 5] = np.nan
    path = write_h5(tmp_path / "m.h5", measurement=y, mask=arrays["mask"])
    refused(read_measurement, path)
    bad = np.zeros((H, DETECTOR), np.uint8)
    bad[4, 5] = 1
    np.save(tmp_path / "bad.npy", bad)
    m = read_measurement(path, bad_pixels=tmp_path / "bad.npy")
    assert m.y[4, 5] == 0
    assert np.argwhere(m.bad_pixels).tolist() == [[4, 5]]
    np.save(tmp_path / "bad.npy", bad[1:])
    refused(read_measurement, path, bad_pixels=tmp_path / "bad.npy")


def test_wavelengths_given_beside_the_file(tmp_path, arrays):
    path = write_h5(tmp_path / "m.h5", wavelengths=[0.45, 0.5, 0.55, 0.6], **arrays)
    assert np.allclose(read_measurement(path).wavelengths, [450, 500, 550, 600])  # micrometers
    assert read_measurement(path, wavelengths="400:700:4").wavelengths.tolist() == [400, 500, 600, 700]
    assert read_measurement(path, wavelengths="unknown").wavelengths is None
    for given in (np.arange(4) + 500, ",".join(f"{nm:.70f}" for nm in range(500, 504))):  # longer than a file's name
        assert read_measurement(path, wavelengths=given).wavelengths.tolist() == [500, 501, 502, 503]
    path = write_h5(tmp_path / "w.h5", wavelengths=[450, 500], **arrays)
    refused(read_measurement, path)


def test_truth_that_does_not_fit_is_left_out_with_a_note(tmp_path, arrays):
    m = read_measurement(write_h5(tmp_path / "m.h5", **{**arrays, "cube": np.ones((C + 1, H, W), np.float32)}))
    assert m.cube is None
    check_words(*m.notes)


def test_truth_of_a_stack_follows_the_frames(tmp_path, arrays):
    frames = np.ones((3, H, DETECTOR), np.float32)
    cubes = np.random.default_rng(2).random((3, C, H, W)).astype(np.float32)
    path = write_h5(tmp_path / "m.h5", measurement=frames, mask=arrays["mask"], cube=cubes)
    assert np.array_equal(read_measurement(path).cube, cubes)
    assert np.array_equal(read_measurement(path, frames=1).cube, cubes[1])


def test_cube_axes_are_told_from_sizes(tmp_path):
    cube = np.random.default_rng(0).random((5, 9, 8)).astype(np.float32)
    np.savez(tmp_path / "last.npz", hsi=np.moveaxis(cube, 0, -1))
    assert np.array_equal(read_cube(tmp_path / "last.npz")[0], cube)
    np.savez(tmp_path / "w.npz", hsi=np.moveaxis(cube, 0, -1), wavelengths=np.arange(9) + 500.0)
    assert read_cube(tmp_path / "w.npz")[0].shape == (9, 8, 5)  # the number of wavelengths outweighs the sizes
    np.savez(tmp_path / "first.npz", hsi=cube, wl=np.arange(5) + 500.0)
    found, wavelengths = read_cube(tmp_path / "first.npz")
    assert np.array_equal(found, cube)
    assert wavelengths.tolist() == [500, 501, 502, 503, 504]
    for content in ({"cube": np.ones(7)}, {"mask": np.ones((4, 4))}):
        np.savez(tmp_path / "c.npz", **content)
        refused(read_cube, tmp_path / "c.npz")


def test_integer_cubes_are_scaled_by_full_scale(tmp_path):
    cube = np.zeros((2, 4, 5), np.uint16)
    cube[1, 2, 3] = 50000
    np.savez(tmp_path / "c.npz", cube=cube)
    assert read_cube(tmp_path / "c.npz")[0].max() == pytest.approx(50000 / 65535)
    values = np.arange(-20, 40, dtype=np.int16).reshape(3, 4, 5)  # reflectance after an atmospheric correction
    np.save(tmp_path / "c.npy", values)
    assert np.allclose(read_cube(tmp_path / "c.npy")[0], values / 255)


def test_smem_and_kaist_and_cave_open(shared_data):
    folder = shared_data / "smem_real"
    for name in ("02_fern_root", "03_dog_olfactory_membrane"):
        m = read_measurement(folder / f"{name}.mat", mask=folder / "mask.mat", num_bands=24)
        assert m.shifts == tuple(range(0, 48, 2))
    m = read_measurement(shared_data / "kaist/scene01.h5")
    assert len(m.shifts) == 28
    assert m.mean_band.shape == (256, 256)
    cloth, _ = read_cube(shared_data / "cave/cloth.mat")
    feathers, _ = read_cube(shared_data / "cave/feathers.mat")
    assert cloth.shape == (31, 256, 256)
    assert feathers.shape == (31, 150, 150)
    assert cloth.max() == pytest.approx(50642 / 65535)


PACKED = {"scale_factor": np.float32(0.25), "add_offset": 10.0, "_FillValue": np.int16(-32768)}


@pytest.mark.parametrize("missing", [PACKED, PACKED | {"_FillValue": [-32768], "missing_value": [-32768, -32767]}])
def test_packed_numbers_are_unpacked(tmp_path, arrays, missing):
    """As netCDF4 and xarray store them: value = scale_factor * stored + add_offset; missing ones are bad pixels."""
    stored = np.random.default_rng(1).integers(0, 4000, (H, DETECTOR)).astype(np.int16)
    stored[2, 3] = -32768
    path = write_h5(
        tmp_path / "m.nc", measurement=stored, mask=(arrays["mask"] * 100).astype(np.int16), wl=[0, 1, 2, 3]
    )
    with h5py.File(path, "a") as file:
        file["measurement"].attrs.update(missing)
        file["mask"].attrs["scale_factor"] = 0.01
        file["wl"].attrs.update({"scale_factor": 50, "add_offset": 450})
    m = read_measurement(path)
    expected = stored * 0.25 + 10
    expected[2, 3] = 0
    np.testing.assert_allclose(m.y, expected, rtol=1e-6)
    assert np.argwhere(m.bad_pixels).tolist() == [[2, 3]] and m.scale == 1
    np.testing.assert_allclose(m.mask, np.floor(arrays["mask"] * 100) / 100, rtol=1e-6)
    assert m.wavelengths.tolist() == [450, 500, 550, 600]
    with h5py.File(path, "a") as file:
        file["mask"].attrs["_FillValue"] = file["mask"][0, 0]
    refused(read_measurement, path)


def test_counts_with_a_fill_value_stay_counts(tmp_path, arrays):
    stored = np.random.default_rng(1).integers(0, 4000, (2, H, DETECTOR)).astype(np.uint16)
    stored[0, 2, 3], stored[1, 5, 6], stored[0, 1, 1] = 65535, 65535, 4095
    path = write_h5(tmp_path / "m.nc", measurement=stored, mask=arrays["mask"], signed=stored.astype(np.int16))
    with h5py.File(path, "a") as file:
        file["measurement"].attrs["_FillValue"] = np.uint16(65535)
        file["measurement"].attrs["axes"] = "NHW"
        file["signed"].attrs.update({"_Unsigned": "true", "valid_max": np.uint16(4095), "axes": "NHW"})
    for key in ("measurement", "signed"):
        m = read_measurement(path, key=key)
        known = np.where(stored == 65535, 0, stored)
        np.testing.assert_allclose(m.y, known / 4095, rtol=1e-6)
        assert sorted(map(tuple, np.argwhere(m.bad_pixels))) == [(1, 1), (2, 3), (5, 6)]  # saturated, missing
        assert read_measurement(path, key=key, frames=1).bad_pixels.sum() == 1


def scene(dtype, scale):
    """A video snapshot and its truth, both in the unit `scale`, y = sum m x by hand."""
    rng = np.random.default_rng(11)
    masks = rng.random((C, H, W)) < 0.5
    cube = (scale * (0.2 + 0.8 * rng.random((C, H, W)))).astype(dtype)
    return masks.astype(np.uint8), cube, np.einsum("chw,chw->hw", masks, cube.astype(float))


@pytest.mark.parametrize("exposure", [1.0, 0.01, 300.0])
@pytest.mark.parametrize(
    ("dtype", "scale", "stored"), [("u1", 255, "u2"), ("u1", 255, "f8"), ("f4", 1, "f4"), ("u2", 900, "f4")]
)
def test_truth_and_snapshot_share_a_unit(tmp_path, dtype, scale, stored, exposure):
    """Whatever the file keeps them in: the camera turns the truth that is read into the snapshot that is read."""
    masks, cube, y = scene(dtype, scale)
    exposure = 1.0 if stored == "u2" else exposure
    scipy.io.savemat(
        tmp_path / "m.mat",
        {"meas": (exposure * y).astype(stored), "mask": np.moveaxis(masks, 0, 2), "orig": np.moveaxis(cube, 0, 2)},
    )
    m = read_measurement(tmp_path / "m.mat", step=0)
    np.testing.assert_allclose((m.mask * m.cube).sum(0), m.y, rtol=2e-3, atol=1e-3 * m.y.max())
    assert any("in another unit" in note for note in m.notes) == (exposure != 1)


def test_texts_of_other_encodings(tmp_path):
    """Byte order marks and UTF-16, as Windows writes them, in lists of wavelengths."""
    text = "nm\r\n450\r\n500\r\n550.5\r\n"
    encodings = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32")
    for encoding in encodings:
        (tmp_path / "w.txt").write_bytes(text.encode(encoding))
        assert parse_wavelengths(str(tmp_path / "w.txt"), 3).tolist() == [450, 500, 550.5], encoding
        (tmp_path / "w.csv").write_bytes(text.removeprefix("nm").encode(encoding))
        assert parse_wavelengths(str(tmp_path / "w.csv"), 3).tolist() == [450, 500, 550.5], encoding


def test_one_truth_is_that_of_its_snapshots_alone(tmp_path):
    masks, _, _ = scene("f4", 1)
    rng = np.random.default_rng(12)
    cubes = rng.random((3, C, H, W)).astype(np.float32)
    y = np.einsum("chw,nchw->nhw", masks, cubes)
    path = write_h5(tmp_path / "m.h5", measurement=y, mask=masks, truth=cubes[1])
    assert np.array_equal(read_measurement(path, step=0, frames=1).cube, cubes[1])
    for frames in (0, -1, None, slice(0, 2)):
        m = read_measurement(path, step=0, frames=frames)
        assert m.cube is None and any("one truth beside 3 snapshots" in note for note in m.notes)
    noisy = y[1] + 0.02 * rng.standard_normal((3, *y[1].shape)).astype(np.float32)
    again = read_measurement(write_h5(tmp_path / "n.h5", measurement=noisy, mask=masks, truth=cubes[1]), step=0)
    assert np.array_equal(again.cube, cubes[1])  # one scene, three times


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64])
def test_a_mask_of_integers_is_a_transmission_as_an_array_too(tmp_path, arrays, dtype):
    mask = (np.random.default_rng(2).random((H, W)) < 0.5) * dtype(100)
    np.save(tmp_path / "y.npy", arrays["measurement"])
    ways = [
        load(arrays["measurement"], mask, Settings()),
        load(torch.tensor(arrays["measurement"]), torch.tensor(mask), Settings()),
        load(Measurement(arrays["measurement"], mask, (0, 2, 4, 6)), None, Settings()),
        load(tmp_path / "y.npy", mask, Settings()),
        read_measurement(tmp_path / "y.npy", mask=mask),
    ]
    for m in ways:
        assert np.array_equal(m.mask, mask / 100)
        assert any("integers divided by their maximum 100" in note for note in m.notes)
    percent = load(arrays["measurement"], mask.astype(float), Settings())
    assert any(
        "largest value is 100, where a transmission is at most 1" in text for text in measurement_concerns(percent)
    )
    assert not any("transmission" in text for text in measurement_concerns(ways[0]))


def test_the_value_of_a_plateau_is_that_of_the_file(tmp_path, arrays):
    """It can be given as the saturation: counts that a camera clips below full scale, under a black level."""
    counts = np.random.default_rng(3).integers(100, 3000, (H, DETECTOR)).astype(np.uint16)
    counts[:, 5] = 3456
    np.save(tmp_path / "y.npy", counts)
    for values in (counts, counts / np.float32(777)):
        np.save(tmp_path / "y.npy", values)
        m = read_measurement(tmp_path / "y.npy", mask=arrays["mask"], levels=Levels(black_level=values.min()))
        (text,) = [text for text in measurement_concerns(m) if "largest value" in text]
        saturation = float(re.search(r"largest value, ([0-9.e+]+),", text)[1])
        levels = Levels(black_level=values.min(), saturation=saturation)
        again = read_measurement(tmp_path / "y.npy", mask=arrays["mask"], levels=levels)
        assert np.array_equal(again.bad_pixels, counts == 3456)


@pytest.mark.parametrize(("given", "words"), [("650:450:4", "in reverse order"), ("450:700:4", "off by up to 50 nm")])
def test_wavelengths_that_replace_those_of_the_file_are_noted(tmp_path, arrays, given, words):
    path = write_h5(tmp_path / "m.h5", wavelengths=np.linspace(450, 650, 4), **arrays)
    assert any(words in note for note in read_measurement(path, wavelengths=given).notes)
    for same in ("450:650:4", None):
        assert not any("replace" in note for note in read_measurement(path, wavelengths=same).notes)
