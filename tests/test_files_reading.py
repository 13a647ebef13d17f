"""Reading measurements and cubes: keys, axes, counts, each against hand-made files and numbers."""

import hashlib

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from cases import write_h5
from containers import write_v73
from hypothesis import given, strategies as st
from messages import refused

from cassi.files import Levels, read_cube, read_measurement
from cassi.optics.measurement import Measurement
from cassi.running.arguments import load
from cassi.running.concerns import OF_MEASUREMENT, concerns_of
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


def assert_holds(m, measurement=None, mask=None, cube=None):
    for found, expected in ((m.y, measurement), (m.mask, mask), (m.cube, cube)):
        assert expected is None or np.array_equal(found, expected)


def test_hdf5_tells_more_than_its_arrays(tmp_path, arrays):
    """What is written by `write_measurement` comes back whole: test_files_writing.py."""
    path = write_h5(tmp_path / "m.h5", {"gain": 100.0, "read_noise": 2.5, "unit": np.bytes_("reflectance")}, **arrays)
    m = read_measurement(path)
    assert m.shifts == (0, 2, 4, 6) and m.y.dtype == np.float32
    assert_holds(m, **arrays)
    assert (m.gain, m.read_noise, m.unit, m.source) == (100.0, 2.5, "reflectance", "m.h5")
    assert m.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "as bright as the snapshot: is it in the same unit?" in " ".join(m.notes)


@pytest.mark.parametrize(("key", "suffix"), [("Meas", "h5"), ("meas_real", "h5"), ("y", "h5"), ("measurement", "tif")])
def test_keys_of_the_field_whatever_the_suffix(tmp_path, arrays, key, suffix):
    path = write_h5(tmp_path / f"m.{suffix}", **{key: arrays["measurement"]}, mask=arrays["mask"])
    assert_holds(read_measurement(path, num_bands=C), arrays["measurement"], arrays["mask"])


def test_the_only_image_of_a_file_is_taken_and_said(tmp_path, arrays):
    np.save(tmp_path / "capture.npy", arrays["measurement"])
    np.save(tmp_path / "aperture.npy", arrays["mask"])
    m = read_measurement(tmp_path / "capture.npy", mask=tmp_path / "aperture.npy")
    assert_holds(m, arrays["measurement"], arrays["mask"])
    assert any("'capture', the only image" in note and "measurement" in note for note in m.notes)
    assert any("'aperture'" in note and "mask" in note for note in m.notes)
    path = write_h5(tmp_path / "m.h5", a=arrays["measurement"], b=arrays["mask"])
    assert_holds(read_measurement(path, key="a", mask_key="b"), arrays["measurement"], arrays["mask"])
    refused(read_measurement, path, key="c")


def write_as(form, path, arrays):
    """Arrays with frames and bands in front, as a format has them: in those of MATLAB last."""
    if form == "h5":
        return write_h5(path, **arrays)
    if form == "npz":
        np.savez(path, **arrays)
        return path
    order = {2: (0, 1), 3: (1, 2, 0), 4: (2, 3, 1, 0)}
    last = {name: np.transpose(values, order[values.ndim]) for name, values in arrays.items()}
    return write_v73(path, **last) if form == "v7.3" else (scipy.io.savemat(path, last, appendmat=False), path)[1]


@given(
    form=st.sampled_from(["h5", "npz", "v5", "v7.3"]), per_band=st.booleans(), down=st.booleans(),
    frames=st.sampled_from(["none", None, 0, 3, -1, slice(1, 3)]),
)  # fmt: skip
def test_what_any_file_holds_is_upright_with_frames_and_bands_in_front(tmp_path, form, per_band, down, frames):
    """A snapshot, or frames of a stack, with all images beside them; the dispersion may run down the columns."""
    rng, stack = np.random.default_rng(7), () if frames == "none" else (5,)
    picked = slice(None) if frames in ("none", None) else frames
    sizes = {"measurement": (*stack, H, DETECTOR), "mask": (C, H, W) if per_band else (H, W), "cube": (*stack, C, H, W),
             "mean_band": (H, W), "bad_pixels": (*stack, H, DETECTOR),
             "sensitivity": (*(stack if isinstance(frames, int) else ()), H, DETECTOR)}  # fmt: skip
    arrays = {name: (0.1 + rng.random(size)).astype(np.float32) for name, size in sizes.items()}
    arrays["bad_pixels"] = arrays["bad_pixels"] > 1
    stored = {name: np.swapaxes(values, -1, -2) if down else values for name, values in arrays.items()}
    path = write_as(form, tmp_path / f"m.{form}", stored)
    m = read_measurement(path, num_bands=C, frames=None if frames == "none" else frames)
    assert m.shifts == (0, 2, 4, 6) and m.transposed == down == any("transposed" in note for note in m.notes)
    of_stack = arrays["bad_pixels"][picked] if stack else arrays["bad_pixels"]
    marked = of_stack.any(0) if of_stack.ndim == 3 else of_stack
    assert np.array_equal(m.bad_pixels, marked) and np.array_equal(m.mask, arrays["mask"])
    for name in ("measurement", "cube", "mean_band", "sensitivity"):
        by_frame = stack and sizes[name][0] == 5
        expected = arrays[name][picked] if by_frame else arrays[name]
        assert np.array_equal(m.y if name == "measurement" else getattr(m, name), expected), name


@pytest.mark.parametrize(("frames", "stacked"), [(5, True), (slice(5, 9), True), (1, False), (-2, False)])
def test_frames_that_there_are_not(tmp_path, arrays, frames, stacked):
    y = np.stack([arrays["measurement"]] * 5, -1) if stacked else arrays["measurement"]
    path = write_h5(tmp_path / "m.h5", measurement=y, mask=arrays["mask"])
    refused(read_measurement, path, frames=frames)
    assert read_measurement(path, frames=0).y.shape == read_measurement(path, frames=-1).y.shape == (H, DETECTOR)


@pytest.mark.parametrize(("maximum", "full"), [(200, 255), (256, 1023), (60000, 65535)])
def test_integers_are_scaled_by_the_smallest_bit_depth(tmp_path, arrays, maximum, full):
    counts = np.zeros((H, DETECTOR), np.uint16)
    counts[1, 1] = maximum
    m = read_measurement(write_h5(tmp_path / "m.h5", {"gain": 0.5}, measurement=counts, mask=arrays["mask"]))
    assert (m.scale, m.unit, m.bad_pixels) == (full, f"fraction of full scale ({full} counts)", None)
    assert m.y[1, 1] == pytest.approx(maximum / full, rel=1e-6)
    assert m.gain == pytest.approx(0.5 * full)  # electrons per count in the file, per unit of y here
    assert any("bit depth guessed from the maximum" in note for note in m.notes)
    np.savez(tmp_path / "c.npz", cube=counts[None])
    assert read_cube(tmp_path / "c.npz")[0].max() == pytest.approx(maximum / full)


def test_levels_and_saturation(tmp_path, arrays):
    counts = np.full((H, DETECTOR), 1000, np.uint16)
    counts[0, 0], counts[3, 4] = 4095, 4000
    floats = write_h5(tmp_path / "f.h5", measurement=counts * 1.5, mask=arrays["mask"])
    m = read_measurement(floats)
    assert (m.scale, m.stored, m.unit, m.bad_pixels) == (1, (0, 1), "relative radiance", None)
    assert read_measurement(floats, levels=Levels(black_level=64)).y[1, 1] == 1436
    path = write_h5(tmp_path / "m.h5", measurement=counts, mask=arrays["mask"])
    m = read_measurement(path, levels=Levels(bit_depth=12, black_level=100))
    assert m.y[1, 1] == pytest.approx(900 / 3995)
    assert np.argwhere(m.bad_pixels).tolist() == [[0, 0]]
    assert "treated as bad: 1 saturated pixel" in m.notes
    m = read_measurement(path, levels=Levels(black_level=100, saturation=4000))
    assert np.argwhere(m.bad_pixels).tolist() == [[0, 0], [3, 4]]
    refused(read_measurement, path, levels=Levels(black_level=5000))
    refused(read_measurement, path, levels=Levels(bit_depth=10))
    refused(Levels, bit_depth=0)
    refused(Levels, saturation=float("nan"))


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
    masks = write_h5(tmp_path / "mask.h5", mask=arrays["mask"], bad_pixels=np.roll(bad, 1, 0))
    stack = write_h5(tmp_path / "n.h5", measurement=np.stack([y] * 2), bad_pixels=np.stack([bad, np.roll(bad, 1, 1)]))
    for frames, expected in ((0, [[4, 5], [5, 5]]), (None, [[4, 5], [4, 6], [5, 5]])):  # by frame, and for all
        assert np.argwhere(read_measurement(stack, mask=masks, frames=frames).bad_pixels).tolist() == expected
    np.save(tmp_path / "bad.npy", bad[1:])
    refused(read_measurement, path, bad_pixels=tmp_path / "bad.npy")
    other = write_h5(tmp_path / "video.h5", measurement=arrays["measurement"], mask=bad)  # as large, and no map
    refused(read_measurement, path, bad_pixels=other)


def test_wavelengths_given_beside_the_file(tmp_path, arrays):
    path = write_h5(tmp_path / "m.h5", wavelengths=[0.45, 0.5, 0.55, 0.6], **arrays)
    assert np.allclose(read_measurement(path).wavelengths, [450, 500, 550, 600])  # micrometers
    assert read_measurement(path, wavelengths="400:700:4").wavelengths.tolist() == [400, 500, 600, 700]
    assert read_measurement(path, wavelengths="unknown").wavelengths is None
    for chosen in (np.arange(4) + 500, ",".join(f"{nm:.70f}" for nm in range(500, 504))):  # longer than a file's name
        assert read_measurement(path, wavelengths=chosen).wavelengths.tolist() == [500, 501, 502, 503]
    path = write_h5(tmp_path / "w.h5", wavelengths=[450, 500], **arrays)
    refused(read_measurement, path)


def test_a_truth_of_another_size_is_left_out_with_a_note(tmp_path, arrays):
    m = read_measurement(write_h5(tmp_path / "m.h5", **(arrays | {"cube": np.ones((C + 1, H, W), np.float32)})))
    assert m.cube is None and any("is not the truth of 4 bands" in note for note in m.notes)


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


def test_cubes_may_be_negative(tmp_path):
    values = np.arange(-20, 40, dtype=np.int16).reshape(3, 4, 5)  # reflectance after an atmospheric correction
    np.save(tmp_path / "c.npy", values)
    assert np.allclose(read_cube(tmp_path / "c.npy")[0], values / 255)


def test_smem_and_kaist_and_cave_open(shared_data):
    folder = shared_data / "smem_real"
    for name in ("02_fern_root", "03_dog_olfactory_membrane"):
        m = read_measurement(folder / f"{name}.mat", mask=folder / "mask.mat", num_bands=24)
        assert m.shifts == tuple(range(0, 48, 2))
    m = read_measurement(shared_data / "kaist/scene01.h5")
    assert len(m.shifts) == 28 and m.mean_band.shape == (256, 256)
    cloth, feathers = (read_cube(shared_data / f"cave/{name}.mat")[0] for name in ("cloth", "feathers"))
    assert (cloth.shape, feathers.shape) == ((31, 256, 256), (31, 150, 150))
    assert cloth.max() == pytest.approx(50642 / 65535)


PACKED = {"scale_factor": np.float32(0.25), "add_offset": 10.0, "_FillValue": np.int16(-32768)}


@pytest.mark.parametrize("missing", [PACKED, PACKED | {"_FillValue": [-32768], "missing_value": [-32768, -32767]}])
def test_packed_numbers_are_unpacked(tmp_path, arrays, missing):
    """As netCDF4 and xarray store them: value = scale_factor * stored + add_offset; missing ones are bad pixels."""
    stored = np.random.default_rng(1).integers(0, 4000, (H, DETECTOR)).astype(np.int16)
    stored[2, 3] = -32768
    mask = (arrays["mask"] * 100).astype(np.int16)
    path = write_h5(tmp_path / "m.nc", measurement=stored, mask=mask, wl=[0, 1, 2, 3])
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
        assert read_measurement(path, key=key, frames=1).bad_pixels.sum() == 1 and m.origin["missing"] == 2


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
    last = {"mask": np.moveaxis(masks, 0, 2), "orig": np.moveaxis(cube, 0, 2)}
    scipy.io.savemat(tmp_path / "m.mat", {"meas": (exposure * y).astype(stored), **last})
    m = read_measurement(tmp_path / "m.mat", step=0)
    np.testing.assert_allclose((m.mask * m.cube).sum(0), m.y, rtol=2e-3, atol=1e-3 * m.y.max())
    assert any("in another unit" in note for note in m.notes) == (exposure != 1)


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
    mask[0, 0] = 50
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
    assert np.array_equal(read_measurement(tmp_path / "y.npy", mask=mask > 0).mask, mask > 0)
    percent = load(arrays["measurement"], mask.astype(float), Settings())
    words = "largest value is 100, where a transmission is at most 1"
    assert any(words in text for text in concerns_of(OF_MEASUREMENT, percent))
    assert not any("transmission" in text for text in concerns_of(OF_MEASUREMENT, ways[0]))


def test_pixels_cut_off_below_full_scale_are_bad(tmp_path, arrays):
    """Counts that a camera clips, and floats made of them, under a black level; the note has the value of the file."""
    counts = np.random.default_rng(3).integers(100, 3000, (H, DETECTOR)).astype(np.uint16)
    counts[:, 5:7] = 3456
    for values, said in ((counts, "3456"), (counts / np.float32(777), "4.448")):
        np.save(tmp_path / "y.npy", values)
        m = read_measurement(tmp_path / "y.npy", mask=arrays["mask"], levels=Levels(black_level=values.min()))
        assert np.array_equal(m.bad_pixels, counts == 3456)
        assert any(f"{2 * H} pixels share the largest value, {said}," in note for note in m.notes)


@pytest.mark.parametrize(("given", "words"), [("650:450:4", "in reverse order"), ("450:700:4", "off by up to 50 nm")])
def test_wavelengths_that_replace_those_of_the_file_are_noted(tmp_path, arrays, given, words):
    path = write_h5(tmp_path / "m.h5", wavelengths=np.linspace(450, 650, 4), **arrays)
    assert any(words in note for note in read_measurement(path, wavelengths=given).notes)
    for same in ("450:650:4", None):
        assert not any("replace" in note for note in read_measurement(path, wavelengths=same).notes)
