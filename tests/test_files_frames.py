"""Frames one at a time, the scale they share, and the description of files."""

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import h5py
import numpy as np
import pytest
import tifffile
from messages import refuses
from PIL import Image

from cassi.files import Levels, ReadOptions, describe, open_container, read_measurement, shared_levels
from cassi.files.container import Container
from cassi.files.formats.tiff import _open
from cassi.files.frames import find_files, natural
from cassi.files.reading import open_measurement
from cassi.files.scaling import plan_counts

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
        file["cube"] = np.broadcast_to(
            (20 + np.arange(12, dtype=np.float32))[:, None, None, None] / 1000, (12, 4, H, W)
        )
    return path, counts


def test_a_frame_is_read_alone_and_has_the_scale_of_all(stack, monkeypatch):
    path, counts = stack
    assert shared_levels([path], ReadOptions()).full_scale == 4095  # frame 0 alone would be taken for 8 bits
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
    counts, floats, dark, broken = (tmp_path / f"{name}.npy" for name in ("counts", "float", "dark", "broken"))
    assert shared_levels([counts, broken], options) == Levels(full_scale=255)
    assert shared_levels([broken], options) == shared_levels([floats], options) == Levels()
    assert shared_levels([counts, floats], options) == Levels(full_scale=255, counts_per_unit=1)
    assert shared_levels([dark], options) == Levels()
    black = Levels(black_level=-50)
    assert shared_levels([dark], ReadOptions(mask=MASK, levels=black)) == replace(black, full_scale=255)


def test_files_of_folders_patterns_and_lists(tmp_path):
    for name in ("mask.npy", "frame10.npy", "frame2.npy", "frame1.npy", "frame1_cube.npy", ".hidden.npy", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    mask = [tmp_path / "mask.npy"]

    def names(*arguments):
        return [path.stem for path in find_files(*arguments)]

    assert names(tmp_path, mask) == ["frame1", "frame2", "frame10"]
    assert names([tmp_path / "frame10.npy", tmp_path], mask)[:3] == ["frame10", "frame1", "frame2"]
    assert names(tmp_path / "frame1*.npy") == ["frame1", "frame10"]
    assert names(tmp_path / "frame1_cube.npy") == ["frame1_cube"]  # named alone it is meant
    with refuses():
        find_files(tmp_path / "*.tif")
    assert sorted(["a10b2", "a9b30", "a10b1", "A2"], key=natural) == ["A2", "a9b30", "a10b1", "a10b2"]


def test_tiff_pages_are_frames_and_its_bits_are_its_own(tmp_path):
    first, *others = map(Image.fromarray, STACK)
    first.save(tmp_path / "run.tif", save_all=True, append_images=others, compression="tiff_lzw")
    assert np.allclose(read_measurement(tmp_path / "run.tif", mask=MASK, frames=9).y, STACK[9] / 255)
    assert plan_counts(np.dtype("u2"), 0.0, 190.0, bits=12).scale == 4095


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
    with refuses():
        describe(tmp_path / "broken.h5")


def test_files_read_at_once_leave_the_log_as_it_was(tmp_path, monkeypatch):
    tifffile.imwrite(tmp_path / "a.tif", np.ones((8, 8), np.uint8))
    log, told = logging.getLogger("tifffile"), []
    monkeypatch.setattr(log, "handle", lambda record: log.filter(record) and told.append(record.getMessage()))
    with ThreadPoolExecutor(1) as other, _open(tmp_path / "a.tif"):
        other.submit(log.warning, "of another thread").result()
        log.warning("of this file")
    log.warning("later")
    assert told == ["of another thread", "later"]


OF_IMAGEJ = {"imagej": True, "truncate": True}
ALL_TYPES = (np.uint8, np.uint16, np.uint32, np.float32, np.float64)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [(options, dtype) for options in ({}, {"byteorder": ">", "compression": "zlib"}) for dtype in ALL_TYPES]
    + [(OF_IMAGEJ, dtype) for dtype in (np.uint8, np.uint16, np.float32)],
)
def test_what_other_programs_write_as_tiff_is_read_as_it_is(tmp_path, options, dtype):
    """Big-endian and packed; a stack that ImageJ keeps in one page, which is not one frame."""
    values = (np.arange(5 * 8 * 10).reshape(5, 8, 10) % 200).astype(dtype)
    tifffile.imwrite(tmp_path / "a.tif", values, **options)
    container = open_container(tmp_path / "a.tif")
    found = container.read(container.entries[0])
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)
