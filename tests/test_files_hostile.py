"""A corpus of damaged, wrong and malicious files: each ends in one line, and nothing outside the file is read."""

import os
import pickle
import struct
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from cases import write_h5
from messages import check_words, refused, refuses
from PIL import Image
from test_files_reading import write_v73

from cassi.files import InputError, Levels, describe, open_container, read_cube, read_measurement

RNG = np.random.default_rng(0)
Y = RNG.random((24, 30)).astype(np.float32)
MASK = (RNG.random((24, 24)) > 0.5).astype(np.float32)


def write_hdf5(path):
    with h5py.File(path, "w") as file:
        file.create_dataset("measurement", data=Y, compression="gzip", shuffle=True, chunks=(8, 30))
        file["mask"] = MASK


def write_image(path, **options):
    Image.fromarray((Y * 4000).astype(np.uint16)).save(path, **options)


CORPUS = {
    "a.h5": write_hdf5,
    "seven.mat": lambda path: write_v73(path, meas=Y, mask=MASK),
    "five.mat": lambda path: scipy.io.savemat(path, {"meas": Y, "mask": MASK}),
    "packed.mat": lambda path: scipy.io.savemat(path, {"meas": Y, "mask": MASK}, do_compression=True),
    "a.npz": lambda path: np.savez(path, measurement=Y, mask=MASK),
    "packed.npz": lambda path: np.savez_compressed(path, measurement=Y, mask=MASK),
    "a.npy": lambda path: np.save(path, Y),
    "a.png": write_image,
    "a.tif": partial(write_image, compression="tiff_adobe_deflate"),
}
WITHOUT_MASK = {"a.npy", "a.png", "a.tif"}


def options_of(name):
    return {"mask": MASK} if name in WITHOUT_MASK else {}


@pytest.mark.parametrize("name", CORPUS)
def test_the_corpus_is_read_and_refused_where_it_is_cut_short(tmp_path, name):
    """At every quarter of a kilobyte."""
    path = tmp_path / name
    CORPUS[name](path)
    m = read_measurement(path, **options_of(name))
    expected = np.floor(Y * 4000) / 4095 if name in ("a.png", "a.tif") else Y
    assert np.allclose(m.y, expected, atol=1e-6) and m.shifts == (0, 2, 4, 6)
    whole = path.read_bytes()
    for size in range(0, len(whole) - 8, 256):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError):
            read_measurement(path, **options_of(name))


@pytest.mark.parametrize("name", ["five.mat", "packed.mat", "a.npz", "packed.npz", "a.npy", "a.png", "a.tif"])
def test_random_bytes_changed(tmp_path, name):
    """Damage may go unseen in the pixels; it must never end in anything but a measurement or one line.

    By hand more of it: CASSI_TRIALS=10000 python -m pytest tests/test_files_hostile.py -k random
    """
    path = tmp_path / name
    CORPUS[name](path)
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    seen = 0
    for trial in range(int(os.environ.get("CASSI_TRIALS", "60"))):
        damaged = bytearray(whole)
        for position in rng.integers(0, len(whole) if trial % 2 else min(len(whole), 400), 3):
            damaged[position] = rng.integers(0, 256)
        path.write_bytes(damaged)
        try:
            read_measurement(path, **options_of(name))
        except InputError:
            seen += 1
    assert seen > 5


WRONG = [
    {"measurement": None, "other": Y}, {"mask": None}, {"mask": -MASK}, {"mask": 0 * MASK},
    {"mask": np.full_like(MASK, np.nan)}, {"measurement": Y * np.inf}, {"measurement": Y.astype(float) * 1e300},
    {"measurement": Y + 1j}, {"measurement": np.bytes_("text")}, {"measurement": np.zeros((24, 0))},
    {"measurement": np.zeros(30)}, {"mask": MASK[:20, :22]}, {"measurement": Y[:, :20]}, {"shifts": [0, np.nan]},
    {"wavelengths": [500.0]}, {"wavelengths": [1.0, -2, 3, 4]}, {"bad_pixels": np.ones((3, 3))},
    {"mask": np.where(RNG.random(MASK.shape) < 1e-2, 1e30, MASK)}, {"measurement": Y * 1e36},
    {"measurement": Y.astype(float) * 1e-300}, {"mask": MASK[:, :1]}, {"shifts": np.zeros(20_000)},
    {"wavelengths": [500.0, 550, 550, 600]}, {"bad_pixels": np.ones(Y.shape)},
    {"attributes": {"gain": np.bytes_("two")}}, {"attributes": {"gain": np.nan}},
    {"attributes": {"read_noise": [1, 2]}}, {"measurement": (Y * 4000 - 500).astype(np.int16)},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_content(tmp_path, wrong):
    content = {"measurement": Y, "mask": MASK} | wrong
    given = {name: values for name, values in content.items() if values is not None}
    refused(read_measurement, write_h5(tmp_path / "m.h5", **given))


class Payload:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


@pytest.mark.parametrize("name", ["m.npy", "m.npz"])
def test_objects_are_never_unpickled(tmp_path, name):
    values = np.empty((24, 30), dtype=object)
    values[0, 0] = Payload(tmp_path / "executed")
    if name == "m.npy":
        np.save(tmp_path / name, values, allow_pickle=True)
    else:
        np.savez(tmp_path / name, measurement=values)
    refused(read_measurement, tmp_path / name, mask=MASK)
    (tmp_path / "raw.npy").write_bytes(pickle.dumps(Payload(tmp_path / "executed")))
    refused(read_measurement, tmp_path / "raw.npy", mask=MASK)
    assert not (tmp_path / "executed").exists()


def external_link(file, secret):
    file["measurement"] = h5py.ExternalLink(secret, "/measurement")


def soft_link_through_an_external_one(file, secret):
    file["door"] = h5py.ExternalLink(secret, "/")
    file["measurement"] = h5py.SoftLink("/door/measurement")
    file["loop"] = h5py.SoftLink("/loop")


def virtual_dataset(file, secret):
    layout = h5py.VirtualLayout(shape=Y.shape, dtype="f4")
    layout[:] = h5py.VirtualSource(str(secret), "measurement", shape=Y.shape)
    file.create_virtual_dataset("measurement", layout)


def external_storage(file, secret):
    file.create_dataset("measurement", Y.shape, "f4", external=[(str(secret), 0, Y.nbytes)])


WAYS_OUT = [external_link, soft_link_through_an_external_one, virtual_dataset, external_storage]


@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_nothing_outside_the_file_is_read(tmp_path, way_out):
    write_h5(tmp_path / "elsewhere.h5", measurement=Y, mask=MASK)
    with h5py.File(write_h5(tmp_path / "m.h5", mask=MASK), "a") as file:
        way_out(file, tmp_path / "elsewhere.h5")
        raw = file.create_group("raw")
        raw["self"] = raw  # a circle of hard links
    refused(read_measurement, tmp_path / "m.h5")


def filtered(path):
    """A filter that neither h5py nor hdf5plugin has."""
    pytest.importorskip("hdf5plugin", reason="HDF5 filters: pip install 'cassi[formats]'")
    with h5py.File(path, "w") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk(Y.shape)
        plan.set_filter(32012, h5py.h5z.FLAG_OPTIONAL, (0, 2))
        space = h5py.h5s.create_simple(Y.shape)
        dataset = h5py.h5d.create(file.id, b"measurement", h5py.h5t.NATIVE_FLOAT, space, plan)
        dataset.write_direct_chunk((0, 0), b"x" * 9)
        file["mask"] = MASK


def test_filters_of_laboratories(tmp_path):
    """Read by hdf5plugin, which is loaded when it is needed; without it one line says what to install."""
    hdf5plugin = pytest.importorskip("hdf5plugin", reason="HDF5 filters: pip install 'cassi[formats]'")
    for name in ("Blosc2", "Bitshuffle", "LZ4", "Zstd", "Blosc"):
        with h5py.File(tmp_path / "m.h5", "w") as file:
            file.create_dataset("measurement", data=Y, chunks=Y.shape, **getattr(hdf5plugin, name)())
            file["mask"] = MASK
        np.testing.assert_array_equal(read_measurement(tmp_path / "m.h5").y, Y)
    read = "import sys, cassi.files; assert 'hdf5plugin' not in sys.modules; cassi.files.read_measurement(sys.argv[1])"
    without = f"import sys; sys.modules['hdf5plugin'] = None\n{read.replace('assert', 'True or')}"
    ran = [  # the filters stay in a process: new ones, in which nobody has loaded them
        subprocess.run([sys.executable, "-c", program, tmp_path / "m.h5"], capture_output=True, text=True)
        for program in (read, without)
    ]
    assert ran[0].returncode == 0, ran[0].stderr
    check_words(ran[1].stderr.splitlines()[-1])


def zipped(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.tif", b"II*\0")


COUNTS = (Y * 250).astype(np.uint8)


def picture(mode, place=None, byte=0, **options):
    """A picture of this mode; the byte is changed that lies so far behind these bytes."""

    def write(path):
        grey = Image.fromarray(COUNTS)
        image = grey.convert("RGB").convert(mode) if mode in ("CMYK", "P") else grey.convert(mode)
        image.save(path, **options)
        if place is not None:
            whole = bytearray(path.read_bytes())
            whole[whole.index(place[0]) + place[1]] = byte
            path.write_bytes(whole)

    return write


WHITE_IS_0, OTHER = struct.pack("<HHI", 262, 3, 1), {"append_images": [Image.new("L", (3, 3))], "save_all": True}
NOT_WHAT_THEY_SEEM = {
    "missing.h5": lambda path: None, "empty.h5": b"", "folder.h5": Path.mkdir, "zip.npz": b"PK\x05\x06" + bytes(18),
    "letter.h5": b"this is a letter\nof two lines",
    "pointer.mat": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4878\n",
    "page.h5": b"<!DOCTYPE html><html>log in</html>", "a.tif.gz": b"\x1f\x8b\x08",
    "cube.nc": b"CDF\x01" + bytes(40), "image.fits": b"SIMPLE  =   T",
    "old.mat": lambda path: scipy.io.savemat(path, {"mask": MASK}, format="4"),
    "octave.mat": struct.pack(">5i", 1000, 2, 2, 0, 5) + b"mask\0" + np.ones(4, ">f8").tobytes(),
    "weights.pt": lambda path: torch.save(torch.ones(4), path),
    "old.pth": lambda path: torch.save(torch.ones(4), path, _use_new_zipfile_serialization=False),
    "frames.zip": zipped, "filter.h5": filtered,
    "struct.mat": lambda path: scipy.io.savemat(path, {"meas": {"inner": Y}}),
    "cell.mat": lambda path: scipy.io.savemat(path, {"meas": np.array([MASK, 1], dtype=object)}),
    "color.png": picture("RGB"), "transparent.png": picture("LA"), "bit.png": picture("1"),
    "color.tif": picture("RGBA"), "palette.tif": picture("P"), "transparent.tif": picture("LA"),
    "swapped.tif": picture("L", (WHITE_IS_0, 8)), "turned.tif": picture("L", tiffinfo={274: 3}),
    "unequal.tif": picture("L", **OTHER), "checksum.png": picture("L", (b"IEND", -5)),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_WHAT_THEY_SEEM)
def test_whole_files_that_are_not_what_they_seem(tmp_path, name):
    path, content = tmp_path / name, NOT_WHAT_THEY_SEEM[name]
    path.write_bytes(content) if isinstance(content, bytes) else content(path)
    with refuses() as caught:
        read_measurement(path, mask=MASK)
    assert ("damaged" in str(caught.value)) == (name == "checksum.png")
    if name == "missing.h5":
        refused(read_measurement, "a\0b.h5")


def test_bombs_are_refused(tmp_path):
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)}
    paths = [tmp_path / f"b.{suffix}" for suffix in ("npz", "npy", "h5")]
    with zipfile.ZipFile(paths[0], "w") as archive, archive.open("measurement.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, header)
    with open(paths[1], "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
    with h5py.File(paths[2], "w") as file:
        file.create_dataset("measurement", header["shape"], "f4", chunks=(64, 64), compression="gzip")
    for container in map(open_container, paths):
        refused(container.read, container.entries[-1])


def test_pictures_that_are_read_for_what_they_are(tmp_path):
    planes = np.stack([COUNTS, COUNTS // 2, COUNTS // 3])
    first, *others = map(Image.fromarray, planes)
    first.save(tmp_path / "p.tif", save_all=True, append_images=others)
    assert np.allclose(read_cube(tmp_path / "p.tif")[0], planes / 255)
    path = tmp_path / "y.tif"
    picture("L")(path)
    assert np.array_equal(read_measurement(path, mask=MASK).y, COUNTS / np.float32(255))
    Image.fromarray(MASK > 0).save(tmp_path / "mask.png")
    assert np.array_equal(read_measurement(path, mask=tmp_path / "mask.png").mask, MASK)


def test_negative_counts_with_a_black_level(tmp_path):
    path = write_h5(tmp_path / "m.h5", measurement=(Y * 4000 - 500).astype(np.int16), mask=MASK)
    assert np.allclose(read_measurement(path, levels=Levels(black_level=-500)).y * (4095 + 500), Y * 4000, atol=1)


@pytest.mark.parametrize(("scale", "dtype"), [(1e-300, "f8"), (1e-40, "f4"), (2.7e38, "f4"), (1e300, "f8")])
def test_masks_of_any_unit_are_brought_to_one(tmp_path, scale, dtype):
    mask = MASK + np.float64(0.25)
    m = read_measurement(write_h5(tmp_path / "m.h5", measurement=Y, mask=(mask * scale).astype(dtype)))
    assert np.allclose(m.mask, mask / mask.max(), rtol=1e-4)
    assert any("divided by their maximum" in note for note in m.notes)


def test_names_never_reach_the_terminal_as_they_are(tmp_path):
    name = "\x1b[31mred\x1b]0;t\x07"
    path = write_h5(tmp_path / "m.h5", {"no\x1bte": 1.0}, **{name: Y, name + "2": Y})
    with pytest.raises(InputError) as caught:
        read_measurement(path)
    assert "\\x1b[31mred" in str(caught.value) and str(caught.value).isprintable()
    assert all(line.isprintable() for line in describe(path).split("\n"))
    m = read_measurement(write_h5(tmp_path / "n.h5", {"unit": np.bytes_("a\x1b[2Jb")}, **{name: Y}), mask=MASK)
    assert all(text.isprintable() for text in (m.unit, *m.notes))


def test_hdf5_behind_a_block_of_the_user(tmp_path):
    with h5py.File(tmp_path / "m.h5", "w", userblock_size=2048) as file:
        file.create_dataset("measurement", data=Y, compression="gzip")
        file["mask"] = MASK
    assert np.array_equal(read_measurement(tmp_path / "m.h5").y, Y)


def test_an_array_too_large_to_be_read_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("cassi.files.container.MAX_READ_BYTES", 5 * Y.nbytes)
    monkeypatch.setenv("CASSI_READ_LIMIT", "2")
    path = write_h5(tmp_path / "m.h5", measurement=np.stack([Y] * 12), mask=MASK)
    refused(read_measurement, path)
    assert read_measurement(path, frames=slice(0, 9)).y.shape == (9, 24, 30)
