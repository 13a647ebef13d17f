"""Frames one at a time, and the description of files."""

import h5py
import numpy as np
import pytest

from cassi.files import InputError, Levels, ReadOptions, describe, open_frames, read_measurement
from cassi.files.container import Container
from cassi.files.frames import find_files, natural

H, W = 8, 8
RNG = np.random.default_rng(3)
STACK = RNG.integers(0, 200, (12, H, 14)).astype(np.uint16)
MASK = (RNG.random((H, W)) > 0.5).astype(np.float32)


@pytest.fixture
def stack(tmp_path):
    counts = STACK.copy()
    counts[7, 2, 3] = 4000
    path = tmp_path / "run.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("measurement", data=counts, chunks=(1, H, 14), compression="gzip")
        file["mask"] = MASK
        file["cube"] = np.broadcast_to(np.arange(12, dtype=np.float32)[:, None, None, None], (12, 4, H, W))
    return path, counts


def test_a_stack_is_read_frame_by_frame_with_one_scale(stack):
    path, counts = stack
    frames = open_frames(path)
    assert len(frames) == 12
    assert frames.names[:2] == ("run_000000", "run_000001")
    for i in (0, 7, -1):
        assert np.allclose(frames[i].y, counts[i] / 4095)  # frame 0 alone would be taken for 8 bits
        assert frames[i].scale == 4095
        assert frames[i].cube[0, 0, 0] == range(12)[i]
    whole = read_measurement(path)
    assert np.array_equal(np.stack([m.y for m in frames]), whole.y)
    assert frames[3].sha256 == whole.sha256
    with pytest.raises(IndexError):
        frames[12]


def test_one_frame_reads_one_frame(stack, monkeypatch):
    path, _ = stack
    frames = open_frames(path, ReadOptions(levels=Levels(bit_depth=12)))
    sizes = []
    read = Container.read

    def counted(self, entry, selection=None):
        values = read(self, entry, selection)
        sizes.append((entry.name, values.size))
        return values

    monkeypatch.setattr(Container, "read", counted)
    frames[5]
    assert sizes == [("measurement", H * 14), ("cube", 4 * H * W)]


def test_the_last_frame_by_a_negative_number_in_every_reader(stack, tmp_path):
    path, counts = stack
    last = read_measurement(path, frames=-1, levels=Levels(bit_depth=12))
    assert np.allclose(last.y, counts[-1] / 4095)
    assert last.cube[0, 0, 0] == 11
    np.save(tmp_path / "one.npy", counts[0])
    one = read_measurement(tmp_path / "one.npy", mask=MASK, frames=-1)
    assert one.y.shape == (H, 14)
    for frames in (12, -13):
        with pytest.raises(InputError, match=f"there is no frame {frames}"):
            read_measurement(path, frames=frames)


def test_negative_counts_are_not_hidden_by_the_common_scale(tmp_path):
    np.save(tmp_path / "y.npy", STACK.astype(np.int16) - 50)
    with pytest.raises(InputError, match="the counts go down to"):
        open_frames(tmp_path / "y.npy", ReadOptions(mask=MASK))[0]
    assert open_frames(tmp_path / "y.npy", ReadOptions(mask=MASK, levels=Levels(black_level=-50)))[0].y.min() >= 0


def test_saturation_belongs_to_its_frame(stack):
    path, _ = stack
    frames = open_frames(path, ReadOptions(levels=Levels(saturation=4000)))
    assert frames[7].bad_pixels.sum() == 1
    assert frames[6].bad_pixels is None


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "captures"
    place.mkdir()
    np.save(place / "mask.npy", MASK)
    for i in (10, 2, 1):
        np.save(place / f"frame{i}.npy", STACK[i])
    (place / "notes.txt").write_text("not a frame")
    (place / ".hidden.npy").write_bytes(b"")
    return place


def test_a_folder_in_natural_order_without_its_mask(folder):
    frames = open_frames(folder, ReadOptions(mask=folder / "mask.npy"))
    assert frames.names == ("frame1", "frame2", "frame10")
    assert np.allclose(frames[2].y, STACK[10] / 255)
    assert frames[0].source == "frame1.npy"
    assert len({m.sha256 for m in frames}) == 3


def test_results_are_no_frames_and_lists_may_hold_folders(folder):
    np.save(folder / "frame1_cube.npy", STACK[0])
    options = ReadOptions(mask=folder / "mask.npy")
    assert open_frames([folder / "frame10.npy", folder], options).names[:3] == ("frame10", "frame1", "frame2")
    assert [path.name for path in find_files(folder, [folder / "mask.npy"])] == [
        "frame1.npy", "frame2.npy", "frame10.npy"
    ]  # fmt: skip
    assert sorted(["a10b2", "a9b30", "a10b1", "A2"], key=natural) == ["A2", "a9b30", "a10b1", "a10b2"]


def test_patterns_and_lists(folder):
    options = ReadOptions(mask=folder / "mask.npy")
    assert open_frames(folder / "frame1*.npy", options).names == ("frame1", "frame10")
    files = [folder / "frame2.npy", folder / "frame1.npy", folder / "frame2.npy"]
    assert open_frames(files, options).names == ("frame2", "frame1", "frame2_2")


def test_one_bad_frame_does_not_stop_the_others(folder):
    (folder / "frame3.npy").write_bytes(b"\x93NUMPY broken")
    frames = open_frames(folder, ReadOptions(mask=folder / "mask.npy"))
    assert frames.names == ("frame1", "frame2", "frame3", "frame10")
    assert frames[3].y.shape == (H, 14)
    with pytest.raises(InputError, match=r"frame3\.npy"):
        frames[2]


def test_nothing_to_open(tmp_path, folder):
    with pytest.raises(InputError, match="no such file"):
        open_frames(tmp_path / "missing.h5")
    with pytest.raises(InputError, match="no measurement files found"):
        open_frames(folder / "*.tif")
    with pytest.raises(InputError, match="no mask found"):
        open_frames(folder / "frame1.npy")


def test_tiff_pages_are_frames(tmp_path):
    tifffile = pytest.importorskip("tifffile", reason="needs the extra 'formats'")
    tifffile.imwrite(tmp_path / "run.tif", STACK, compression="zlib")
    frames = open_frames(tmp_path / "run.tif", ReadOptions(mask=MASK))
    assert len(frames) == 12
    assert np.allclose(frames[9].y, STACK[9] / 255)


def test_the_bits_of_a_tiff_are_its_own(tmp_path):
    tifffile = pytest.importorskip("tifffile", reason="needs the extra 'formats'")
    pytest.importorskip("imagecodecs", reason="needs the extra 'formats'")
    tifffile.imwrite(tmp_path / "run.tif", STACK[0], bitspersample=12)
    m = read_measurement(tmp_path / "run.tif", mask=MASK)
    assert np.allclose(m.y, STACK[0] / 4095)
    assert any("bit depth stated by the file" in note for note in m.notes)


# --- describe


def snapshot(mask, step, bands):
    cube = np.random.default_rng(1).random((bands, 1, 1)) + 0.5
    y = np.zeros((mask.shape[0], mask.shape[1] + step * (bands - 1)))
    for c in range(bands):
        y[:, c * step : c * step + mask.shape[1]] += cube[c] * mask
    return y


@pytest.fixture
def pair(tmp_path):
    mask = (np.random.default_rng(0).random((64, 64)) > 0.5).astype(np.float32)
    np.savez(tmp_path / "m.npz", meas=snapshot(mask, 2, 6), cube=np.ones((3, 4, 5)))
    np.savez(tmp_path / "mask.npz", mask=mask)
    np.savez(tmp_path / "flipped.npz", mask=mask[:, ::-1])
    np.savez(tmp_path / "other.npz", mask=mask[::-1, ::-1] * 0 + np.random.default_rng(9).random((64, 64)))
    return tmp_path


def test_describe_lists_arrays_and_says_what_fits(pair):
    found = describe(pair / "m.npz", pair / "mask.npz")
    assert "meas (64, 74) float64," in found.text
    assert "cube (3, 4, 5) float64, 1 .. 1: truth" in found.text
    assert "mask (64, 64) float32, 0 .. 1: mask" in found.text
    assert found.geometries == ((6, 2), (11, 1), (3, 5), (2, 10))
    assert found.mask_check.matches
    assert found.problem is None
    assert found.measurement.shifts == (0, 2, 4, 6, 8, 10)
    assert str(found) == found.text


def test_describe_names_flipped_wrong_and_miscounted(pair):
    assert (
        "it fits when flipped left-right"
        in describe(pair / "m.npz", options=ReadOptions(mask=pair / "flipped.npz")).text
    )
    assert "wrong mask" in describe(pair / "m.npz", options=ReadOptions(mask=pair / "other.npz")).text
    assert "wrong number of bands" in describe(pair / "m.npz", options=ReadOptions(mask=pair / "mask.npz", step=5)).text
    found = describe(pair / "m.npz", options=ReadOptions(mask=pair / "mask.npz", num_bands=7))
    assert "7 bands do not fit" in found.problem
    assert found.measurement is None
    assert found.mask_check.matches  # the mask is right, only the count is not
    assert "6 x step 2" in found.text


def test_describe_files_without_a_measurement(pair, tmp_path):
    found = describe(pair / "mask.npz")
    assert found.problem == "no measurement among the files"
    assert found.mask_check is None
    (tmp_path / "broken.h5").write_text("nothing")
    assert "broken.h5: not HDF5" in describe(pair / "mask.npz", tmp_path / "broken.h5").text
    with pytest.raises(InputError, match="not HDF5"):
        describe(tmp_path / "broken.h5")
    with pytest.raises(InputError, match="no file to describe"):
        describe()
    found = describe(pair / "m.npz")
    assert "no mask found" in found.problem
