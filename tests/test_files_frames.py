"""Frames one at a time, the scale they share, shots of one scene, and the description of files."""

import logging
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import h5py
import numpy as np
import pytest
import tifffile
from messages import refused
from PIL import Image

from cassi import files
from cassi.files import Container, Levels, ReadOptions, describe, read_measurement, write_arrays, write_measurement
from cassi.files.formats.tiff import _open
from cassi.files.frames import find_files, natural, read_scene
from cassi.files.reading import open_measurement
from cassi.optics.measurement import Measurement, check_arrays, join_shots

H, W = 8, 8
RNG = np.random.default_rng(3)
STACK = RNG.integers(0, 200, (12, H, 14)).astype(np.uint16)
MASK = (RNG.random((H, W)) > 0.5).astype(np.float32)
TWELVE = Levels(bit_depth=12)


@pytest.fixture
def stack(tmp_path):
    counts = STACK.copy()
    counts[7, 2, 3] = 4000
    path = tmp_path / "run.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("measurement", data=counts, chunks=(1, H, 14), compression="gzip")
        file["mask"] = MASK
        file["cube"] = np.ones((12, 4, H, W), np.float32) * (20 + np.arange(12)).reshape(-1, 1, 1, 1) / np.float32(1e3)
    return path, counts


def test_a_frame_is_read_alone_and_has_the_scale_of_all(stack, monkeypatch):
    path, counts = stack
    assert files.shared_levels([path], ReadOptions()).full_scale == 4095  # frame 0 alone would be taken for 8 bits
    opened = open_measurement(path, ReadOptions(levels=TWELVE))
    assert opened.frames == range(12)
    whole = opened.read()
    assert np.array_equal(np.stack([opened.read(k).y for k in opened.frames]), whole.y)
    assert opened.read(3).sha256 == whole.sha256 and opened.read(3).scale == 4095
    sizes = []
    read = Container.read

    def counted(self, entry, selection=None):
        values = read(self, entry, selection)
        sizes.append((entry.name, values.size))
        return values

    monkeypatch.setattr(Container, "read", counted)
    m = opened.read(5)
    assert sizes == [("measurement", H * 14), ("cube", 4 * H * W)]
    assert np.allclose(m.y, counts[5] / 4095) and m.cube[0, 0, 0] == np.float32(0.025)


def test_saturation_belongs_to_its_frame(stack):
    levels = Levels(bit_depth=12, saturation=4000)
    assert read_measurement(stack[0], frames=7, levels=levels).bad_pixels.sum() == 1
    assert read_measurement(stack[0], frames=6, levels=levels).bad_pixels is None


def test_the_levels_that_files_share(tmp_path):
    options = ReadOptions(mask=MASK)
    for name, values in {"counts": STACK[0], "float": STACK[0] / 2, "dark": STACK.astype(np.int16) - 50}.items():
        np.save(tmp_path / f"{name}.npy", values)
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY broken")
    black = Levels(black_level=-50)
    for names, given, expected in (
        ("counts broken", Levels(), Levels(full_scale=255)), ("broken", Levels(), Levels()),
        ("float", Levels(), Levels()), ("counts float", Levels(), Levels(full_scale=255, counts_per_unit=1)),
        ("dark", Levels(), Levels()), ("dark", black, replace(black, full_scale=255)),
    ):  # fmt: skip
        paths = [tmp_path / f"{name}.npy" for name in names.split()]
        assert files.shared_levels(paths, replace(options, levels=given)) == expected, names


def test_files_of_folders_patterns_and_lists(tmp_path):
    for name in ("mask.npy", "frame10.npy", "frame2.npy", "frame1.npy", "frame1_cube.npy", ".hidden.npy", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    mask = [tmp_path / "mask.npy"]

    def names(*arguments):
        return [path.stem for path in find_files(*arguments)]

    assert names(tmp_path, mask) == names(tmp_path, [], mask) == ["frame1", "frame2", "frame10"]
    assert names([tmp_path / "frame10.npy", tmp_path], mask)[:3] == ["frame10", "frame1", "frame2"]
    assert names(tmp_path / "frame1*.npy") == ["frame1", "frame10"]
    assert names(tmp_path / "frame1_cube.npy") == ["frame1_cube"]  # named alone it is meant
    refused(find_files, tmp_path / "*.tif")
    image, masks = np.ones((4, 4), np.float32), np.ones((2, 4, 6), np.float32)
    files.write_cube(tmp_path / "result.h5", masks, datasets={"residual": image})
    write_arrays(tmp_path / "camera.h5", {"mask": image, "mask_3d_shift": masks}, attributes={"camera": "{}"})
    write_arrays(tmp_path / "calibration.h5", {"mask": masks}, attributes={"kind": "cassi calibration"})
    write_arrays(tmp_path / "snapshot.h5", {"measurement": image, "mask": image})
    (tmp_path / "broken.h5").write_bytes(b"x")
    both = [tmp_path / "snapshot.h5", tmp_path / "broken.h5"]  # of all snapshots the mask is that of one
    assert names(tmp_path / "*.h5", [], both) == ["snapshot"] and names(tmp_path / "*.h5", both[:1]) == ["broken"]
    assert names(tmp_path / "*.h5") == ["broken", "snapshot"] and names(tmp_path / "camera.h5") == ["camera"]
    assert sorted(["a10b2", "a9b30", "a10b1", "A2"], key=natural) == ["A2", "a9b30", "a10b1", "a10b2"]


def test_describe_lists_arrays(tmp_path):
    np.savez(tmp_path / "m.npz", meas=np.ones((64, 74)), cube=np.ones((3, 4, 5)), extra=np.array([1.0, np.nan]))
    np.savez(tmp_path / "mask.npz", mask=np.eye(4, dtype=np.float32))
    text = describe(tmp_path / "m.npz", tmp_path / "mask.npz")
    for line in (
        "meas (64, 74) float64: measurement", "cube (3, 4, 5) float64: truth", "extra (2,) float64",
        "mask (4, 4) float32: mask",
    ):  # fmt: skip
        assert line in text
    (tmp_path / "broken.h5").write_text("nothing")
    refused(describe, tmp_path / "broken.h5")


def test_files_read_at_once_leave_the_log_as_it_was(tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", np.ones((8, 8), np.uint8))
    log, told = logging.getLogger("tifffile"), []
    monkeypatch.setattr(log, "handle", lambda record: log.filter(record) and told.append(record.getMessage()))
    with ThreadPoolExecutor(1) as other, _open(tmp_path / "a.tif"):
        other.submit(log.warning, "of another thread").result()
        log.warning("of this file")
    log.warning("later")
    assert told == ["of another thread", "later"]


def appended(at_once, **options):
    """Pages that were appended, so many at once."""

    def write(path, stack):
        for start in range(0, len(stack), at_once):
            frames = stack[start : start + at_once].squeeze()
            tifffile.imwrite(path, frames, append=True, photometric="minisblack", **options)

    return write


def of_pillow(path, stack):
    first, *others = map(Image.fromarray, stack)
    first.save(path, save_all=True, append_images=others, compression="tiff_lzw")


ALL_TYPES = ("u1", "u2", "u4", "f4", "f8")
TIFFS = {
    "pages": (tifffile.imwrite, ALL_TYPES),
    "big-endian, packed": (lambda p, stack: tifffile.imwrite(p, stack, byteorder=">", compression="zlib"), ALL_TYPES),
    "ImageJ, in one page": (lambda p, s: tifffile.imwrite(p, s, imagej=True, truncate=True), ("u1", "u2", "f4")),
    "Pillow, LZW": (of_pillow, ("u1", "u2")),
    **{f"{k} appended, {options}": (appended(k, **options), ("u1", "u2")) for k in (1, 4)
       for options in ({}, {"compression": "zlib"}, {"description": "a"}, {"bigtiff": True})},
}  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), [(name, dtype) for name, (_, types) in TIFFS.items() for dtype in types])
def test_tiff_stacks_of_other_programs_are_read_as_they_are(tmp_path, monkeypatch, name, dtype):
    """Frame by frame, in the memory of one; a page of another size is refused."""
    values, path = STACK.astype(dtype), tmp_path / "run.tif"
    TIFFS[name][0](path, values)
    container = files.open_container(path)
    found = container.read(container.entries[0])
    assert found.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(found, values)
    full = 1 if values.dtype.kind == "f" else 255
    assert read_measurement(path, mask=MASK).shifts == (0, 2, 4, 6)
    monkeypatch.setattr("cassi.files.container.MAX_READ_BYTES", 600 * values.itemsize)
    np.testing.assert_allclose(read_measurement(path, mask=MASK, frames=9).y * full, values[9], rtol=1e-6)
    monkeypatch.undo()
    if "appended" in name:
        tifffile.imwrite(path, values[0, :4], append=True)
        refused(read_measurement, path, mask=MASK)


@pytest.mark.parametrize(
    ("bits", "shift", "dtype"),
    [
        (12, 0, "u2"), (12, 4, "u2"), (10, 6, "u2"), (14, 2, "u2"), (10, 2, "u2"), (12, 4, "i4"), (12, 4, ">u2"),
        (8, 8, "u2"),
    ],
)  # fmt: skip
def test_counts_at_the_top_of_a_larger_type(tmp_path, bits, shift, dtype):
    """Full scale is (2^b - 1) 2^k: that becomes 1, and what holds it is saturated."""
    rng = np.random.default_rng(8)
    counts = rng.integers(0, 2**bits, (H, 14)).astype(np.int64)
    counts[2, 3:7] = 2**bits - 1
    np.save(tmp_path / "y.npy", (counts << shift).astype(dtype))
    full, path = (2**bits - 1) << shift, tmp_path / "y.npy"
    for levels in (None, Levels(bit_depth=bits), files.shared_levels([path], ReadOptions(MASK))):
        m = read_measurement(path, mask=MASK, **({} if levels is None else {"levels": levels}))
        assert m.scale == full and m.stored == (0, full)
        assert np.array_equal(m.bad_pixels, counts == 2**bits - 1)
        np.testing.assert_allclose(m.y, counts / (2**bits - 1), rtol=1e-6)


def test_whole_floats_are_saturated_where_counts_are(tmp_path):
    """But keep their unit: 12 bits in doubles."""
    counts = np.random.default_rng(8).integers(0, 4096, (H, 14)).astype(float)
    counts[2, 3:7] = 4095
    for values, bad in ((counts, 4), (counts + 0.5, 0), (np.minimum(counts, 4094), 0)):
        np.save(tmp_path / "y.npy", values)
        m = read_measurement(tmp_path / "y.npy", mask=MASK)
        assert m.scale == 1 and np.array_equal(m.y, values.astype(np.float32))
        assert (0 if m.bad_pixels is None else m.bad_pixels.sum()) == bad


@pytest.mark.parametrize("unit", [1.0, 4095.0])
def test_a_folder_has_one_unit(tmp_path, unit):
    """Whole numbers beside floats, as counts or as fractions of full scale: one scene, one level."""
    rng = np.random.default_rng(9)
    counts = rng.integers(100, 4000, (3, H, 14))
    np.save(tmp_path / "a.npy", counts[0].astype(np.uint16))
    np.save(tmp_path / "b.npy", (counts[1] + 0.25) / unit)
    np.save(tmp_path / "c.npy", counts[2].astype(np.int32))
    paths = [tmp_path / f"{name}.npy" for name in "abc"]
    levels = files.shared_levels(paths, ReadOptions(mask=MASK))
    read = [read_measurement(path, mask=MASK, levels=levels).y.mean() for path in paths]
    np.testing.assert_allclose(read, counts.mean((1, 2)) / unit, rtol=1e-3)


def whole_doubles(path, **arrays):
    """As MATLAB itself writes doubles that happen to be whole: as 16-bit integers."""

    def element(kind, data):
        return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)

    with open(path, "wb") as file:
        file.write(b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM")
        for name, values in arrays.items():
            whole = np.array_equal(values, np.rint(values))
            parts = element(6, struct.pack("<II", 6, 0)) + element(5, struct.pack("<2i", *values.shape))
            parts += element(1, name.encode())
            parts += element(4, values.astype("<u2").tobytes("F")) if whole else element(9, values.tobytes("F"))
            file.write(element(14, parts))
    return path


def test_a_double_is_a_double_whether_it_is_whole_or_not(tmp_path):
    y = np.random.default_rng(10).integers(0, 4000, (H, 14)).astype(float)
    whole = read_measurement(whole_doubles(tmp_path / "a.mat", meas=y), mask=MASK)
    other = read_measurement(whole_doubles(tmp_path / "b.mat", meas=y + 0.5), mask=MASK)
    np.testing.assert_allclose(whole.y + 0.5, other.y)
    assert whole.unit == other.unit == "relative radiance"


MASKS, SHOTS = RNG.random((3, 6, 8)).astype(np.float32), RNG.random((3, 6, 12)).astype(np.float32)
SCENE = Measurement(y=SHOTS, mask=MASKS, shifts=(0, 2, 4), shots=3)


def test_shots_are_measurements_of_their_own_and_come_back_as_one(tmp_path):
    even = (1 + SHOTS / 10).astype(np.float32)
    m = replace(SCENE, bad_pixels=SHOTS > 0.9, sensitivity=even)
    back = read_scene(write_measurement(tmp_path / "m.h5", m))
    assert (back.shots, back.shifts, [shot.shots for shot in m.each_shot]) == (3, (0, 2, 4), [None] * 3)
    for name in ("y", "mask", "sensitivity", "bad_pixels"):
        np.testing.assert_array_equal(getattr(back, name), getattr(m, name))
        for k, shot in enumerate(m.each_shot):
            np.testing.assert_array_equal(getattr(shot, name), getattr(m, name)[k])
    one, other = back.each_shot[:2]
    np.testing.assert_array_equal(join_shots([replace(one, sensitivity=None), other]).sensitivity[0], 1)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("masks", ["stack", "files"])
def test_stacks_and_files_are_one_scene(tmp_path, stacked, masks):
    def save(name, values):
        np.save(tmp_path / f"{name}.npy", values)
        return tmp_path / f"{name}.npy"

    paths = [save("all", SHOTS)] if stacked else [save(f"y{k}", y) for k, y in enumerate(SHOTS)]
    each = [save(f"m{k}", mask) for k, mask in enumerate(MASKS)]
    given = [save("masks", MASKS)] if masks == "stack" else each
    m = read_scene(*paths, masks=given, shots=3, options=ReadOptions(num_bands=5))
    assert np.array_equal(m.y, SHOTS) and np.array_equal(m.mask, MASKS) and m.shifts == (0, 1, 2, 3, 4)
    refused(read_scene, *paths, masks=each[:2], shots=3)
    refused(read_scene, paths[0], paths[0], masks=each[:1], shots=3)


def test_shots_that_do_not_belong_together_are_refused():
    one, other, _ = replace(SCENE, gain=100.0).each_shot
    refused(join_shots, [])
    small = Measurement(y=SHOTS[0, :, :10], mask=MASKS[0], shifts=(0, 1, 2), source="b")
    refused(join_shots, [one, small])
    both = join_shots([one, replace(other, gain=400.0)])
    assert both.gain == pytest.approx(200) and "geometric mean" in " ".join(both.notes)
    refused(check_arrays, replace(SCENE, shots=2))
