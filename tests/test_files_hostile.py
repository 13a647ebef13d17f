"""Containers of every format with hostile contents: read with the right values, or refused in words of their file.

By hand more of it: CASSI_TRIALS=100000 python -m pytest tests/test_files_hostile.py -k "content or damage"
"""

import math
import os
import pickle
import re
import struct
import subprocess
import sys
import warnings
import zipfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from cases import write_h5
from containers import COUNTS, CUBE, MASK as SMALL_MASK, NM, Y as SMALL, envi, png, save, tiff
from hypothesis import example, given, reject, settings, strategies as st
from messages import check_words, refused, refuses
from PIL import Image

from cassi.files import InputError, Levels, describe, read_cube, read_measurement
from cassi.files.frames import read_scene
from cassi.files.statements import LIMITS, NUMERIC, OF_FILE, RANGES, WHOLE
from cassi.optics.measurement import Measurement

RNG = np.random.default_rng(0)
Y = RNG.random((24, 30)).astype(np.float32)
MASK = (RNG.random((24, 24)) > 0.5).astype(np.float32)
TRIALS = int(os.environ.get("CASSI_TRIALS", "400"))
REFUSED, EITHER = "refused", "either"


class Hostile(NamedTuple):
    """What stands in the place of an array, or is stated of the file or of the snapshot, and what comes of it: it is
    refused; the others are read as if it were not there, or it is refused; or these numbers are read."""

    name: str
    value: Any
    comes: Any
    place: str = "array"


def spoiled(values: np.ndarray, place: int, value: float) -> np.ndarray:
    found = values.astype(float)
    found.flat[place % found.size] = value
    return found


FLOATS, WHOLES = ("f2", "f4", "f8", "g", ">f4", ">f8"), ("u1", "u2", ">u2", "i2", "u4", ">i4", "i8", ">u8")
NO_IMAGES = (
    None, np.float32(1), np.ones(4), np.ones((2, 2, 2, 2)), np.ones((3, 0)), np.ones((0, 3)), np.array(["a", "bc"]),
    np.array([b"a", b"bc"]), "text", np.ones((9, 14), complex), np.zeros((1, 1)), np.array([1, "a"], dtype=object),
    np.ones((9, 14), [("a", "f4"), ("b", "i2")]),
)  # fmt: skip
NO_SNAPSHOTS = (SMALL.astype(float) * 1e-300, SMALL[:, :6], SMALL > 0.5, -COUNTS.astype("i4"))
NO_MASKS = (0 * SMALL_MASK, SMALL_MASK[:, :1], SMALL_MASK[:1], -SMALL_MASK, spoiled(SMALL_MASK, 3, 1e30))
NO_LISTS = {
    "shifts": (-2, [0, np.nan], [0, 9], np.zeros(20_000), np.stack([[0] * 4, [0, 2, 4, 6]]), [0, 2, 4, 8], [1j, 2, 6]),
    "wavelengths": (np.append(NM, 700), -NM, 0 * NM, [500, 550, 550, 600], np.full(4, np.inf), NM + 1j,
                    [[450, 5]] * 4, np.array([b"450", b"500", b"x", b"600"])),
    "bad_pixels": (np.ones((3, 3)), np.ones(SMALL.shape), "text"),
}  # fmt: skip
ANYTHING = (
    st.floats() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=9) | st.booleans() | st.binary(max_size=5)
    | st.lists(st.floats(), max_size=4) | st.complex_numbers() | st.sampled_from([np.ones((3, 3)), np.array(1, "f2")])
)  # fmt: skip
NUMBERS = {
    "bit_depth",
    "black_level",
    "saturation",
    "scale",
    "gain",
    "read_noise",
    "step",
    "num_bands",
}  # of a snapshot
NAMES = sorted({*OF_FILE, *NUMERIC, "axes", "interleave"})


def comes_of(name: str, value: object) -> str:
    """What is no number, or out of range, is refused; other numbers may not go with the rest of the file.

    An empty text states nothing.
    """
    if name not in NUMBERS or not isinstance(value, int | float | str) or not str(value).strip():
        return EITHER
    number, (low, high) = math.nan, RANGES.get(name, (-math.inf, math.inf))
    with suppress(ValueError, OverflowError):
        number = float(value)
    whole = name not in WHOLE or (math.isfinite(number) and number.is_integer())
    return EITHER if math.isfinite(number) and low <= number <= high and whole else REFUSED


@st.composite
def hostile(draw: st.DrawFn) -> Hostile:
    name = draw(st.sampled_from(["y", "mask", "numbers", "transmission", *NO_LISTS, "cube", "of", "on", "other"]))
    values = st.sampled_from([np.nan, np.inf, -np.inf, 1e300, -1e300])
    if name in ("y", "mask"):
        good, more = (SMALL, NO_SNAPSHOTS) if name == "y" else (SMALL_MASK, NO_MASKS)
        spoil = st.builds(spoiled, st.just(good), st.integers(0, 999), values)
        return Hostile(name, draw(st.sampled_from([*NO_IMAGES, *more, good[:5], good[None, None]]) | spoil), REFUSED)
    if name == "numbers":
        kind = draw(st.sampled_from(FLOATS + WHOLES))
        stored = np.asarray((SMALL if kind in FLOATS else COUNTS % 250).astype(kind), order=draw(st.sampled_from("CF")))
        if kind == "g":  # which TIFF lacks
            return Hostile("y", stored, EITHER)
        return Hostile("y", stored, stored / (1.0 if kind in FLOATS else 255.0))
    if name == "transmission":
        kind = draw(st.sampled_from(["?", *FLOATS, *WHOLES]))
        scale = draw(st.sampled_from([1e-300, 1e-40, 1e-9, 1, 1e9, 1e300])) if "f8" in kind else 1
        scale = draw(st.sampled_from([1, 100])) if kind in WHOLES else scale
        return Hostile("mask", (SMALL_MASK.astype(float) * scale).astype(kind), SMALL_MASK)
    if name in NO_LISTS:
        return Hostile(name, draw(st.sampled_from(NO_LISTS[name])), EITHER if name == "bad_pixels" else REFUSED)
    if name == "cube":
        spoil = st.builds(spoiled, st.just(CUBE), st.integers(0, 999), values)
        return Hostile(name, draw(st.sampled_from(NO_IMAGES[1:]) | spoil), EITHER)
    if name == "other":
        shown = draw(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12))
        return Hostile(f"q{shown}q", draw(st.sampled_from([*NO_IMAGES[1:], SMALL, CUBE])), EITHER)
    stated, value = draw(st.sampled_from(NAMES)), draw(ANYTHING)
    if name == "on" and draw(st.booleans()):
        stated, value = draw(
            st.sampled_from([("scale_factor", 0.0), ("scale_factor", [1.0, 2.0]), ("add_offset", np.nan)])
        )
        return Hostile(stated, value, REFUSED, name)
    return Hostile(stated, value, comes_of(stated, value), name)


IMAGES = {"a.npy": np.save, "a.tif": tiff, "a.hdr": envi, "a.png": png}


def write(path: Path, one: Hostile) -> dict[str, Any]:
    """The file, and what else is given where its format holds one array."""
    arrays = {"y": SMALL if one.place == "array" else COUNTS, "mask": SMALL_MASK}
    arrays |= {one.name: one.value} if one.place == "array" else {}
    of, on = ({one.name: one.value} if one.place == place else {} for place in ("of", "on"))
    given = {}
    try:
        if path.name in IMAGES:
            if one.name != "y" or one.value is None:
                reject()
            IMAGES[path.name](path, one.value)
            given = {"masks": [SMALL_MASK]}
        else:
            save(path, of=of, on={"y": on}, **{name: value for name, value in arrays.items() if value is not None})
    except (TypeError, ValueError, OverflowError, OSError, RuntimeError, AttributeError, LookupError):
        reject()  # no program writes this
    return given


@example(Hostile("gain", [], EITHER, "of"), "a.h5")  # what holds nothing passed for damage
@example(Hostile("step", -2 + 1j, EITHER, "of"), "7.mat")  # of complex numbers the real part was taken
@example(Hostile("scale_factor", 2j, EITHER, "on"), "a.npz")
@example(Hostile("black_level", -3e40, EITHER, "of"), "a.npz")
@example(Hostile("y", SMALL.astype("f2"), SMALL.astype("f2")), "a.npz")  # numpy warned
@example(Hostile("cube", spoiled(CUBE, 0, np.inf), EITHER), "a.mat")
@given(one=hostile(), form=st.sampled_from(["a.h5", "a.mat", "7.mat", "a.npz", *IMAGES]))
@settings(max_examples=TRIALS)
def test_hostile_content(tmp_path, one, form):
    for path in tmp_path.iterdir():
        path.unlink()
    given = write(tmp_path / form, one)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    with warnings.catch_warnings(action="error"):
        for read in (partial(read_scene, **given), read_cube, describe):
            try:
                found = read(tmp_path / form)
            except InputError as error:
                words = str(error)
                assert form in words and words.isprintable() and re.search("; |expected|must|, or ", words), words
                assert isinstance(one.comes, str) or read is read_cube, words
            else:
                assert not isinstance(found, str) or found.replace("\n", "").isprintable()
                if isinstance(found, Measurement):
                    assert one.comes is not REFUSED
                    check_values(found, one)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def check_values(m, one: Hostile) -> None:
    expected = {"y": SMALL if one.place == "array" else COUNTS / 1023, "mask": SMALL_MASK}
    expected |= {} if isinstance(one.comes, str) else {one.name: one.comes}
    np.testing.assert_allclose(m.mask, expected["mask"], rtol=1e-6)
    assert np.ptp(m.shifts) == 6
    if one.name not in ("black_level", "saturation", "bit_depth", "scale", *NUMERIC, *LIMITS):  # which change numbers
        np.testing.assert_allclose(m.y, expected["y"], rtol=1e-6)


DAMAGED = {
    "a.h5": save, "a.mat": save, "7.mat": save, "a.npz": save, "a.npy": lambda path, y, mask: np.save(path, y),
    "a.png": lambda path, y, mask: png(path, (y * 4000).astype(np.uint16)),
    "a.tif": lambda path, y, mask: tiff(path, y, compression="zlib"),
    "packed.h5": lambda path, y, mask: write_packed(path, y, mask),
    "packed.mat": lambda path, y, mask: scipy.io.savemat(path, {"y": y, "mask": mask}, do_compression=True),
    "packed.npz": lambda path, y, mask: np.savez_compressed(path, y=y, mask=mask),
}  # fmt: skip


def write_packed(path, y, mask):
    with h5py.File(path, "w") as file:
        file.create_dataset("y", data=y, compression="gzip", shuffle=True, chunks=(8, 30))
        file["mask"] = mask


@given(
    form=st.sampled_from(sorted(DAMAGED)), place=st.floats(0, 0.9999), within=st.sampled_from([400, 10**6]),
    changed=st.none() | st.lists(st.integers(0, 255), min_size=1, max_size=3),
)  # fmt: skip
@settings(max_examples=TRIALS)
def test_damage(tmp_path, form, place, within, changed):
    """What is cut short is refused; bytes that were changed may go unseen in the pixels, and end in nothing else."""
    path = tmp_path / form
    DAMAGED[form](path, y=Y, mask=MASK)
    given = {"mask": MASK} if form in ("a.npy", "a.png", "a.tif") else {}
    whole = bytearray(path.read_bytes())
    at = int(place * min(within, len(whole) - 8))
    if changed is None:
        path.write_bytes(whole[:at])
        with pytest.raises(InputError) as caught:
            read_measurement(path, **given)
        assert form in str(caught.value)
    else:
        whole[at : at + len(changed)] = bytes(changed)
        path.write_bytes(whole)
        with suppress(InputError):
            read_measurement(path, **given)


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
    read = """if True:  # in a process in which nobody has loaded them
        import sys, cassi.files
        assert "hdf5plugin" not in sys.modules
        sys.modules["hdf5plugin"] = None
        try:
            cassi.files.read_measurement(sys.argv[1])
        except cassi.files.InputError as error:
            print("InputError:", error)
        del sys.modules["hdf5plugin"]
        cassi.files.read_measurement(sys.argv[1])"""
    ran = subprocess.run([sys.executable, "-c", read, tmp_path / "m.h5"], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    check_words(ran.stdout)


def zipped(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.tif", b"II*\0")


GREY = (Y * 250).astype(np.uint8)


def picture(mode, place=None, byte=0, **options):
    """A picture of this mode; the byte is changed that lies so far behind these bytes."""

    def write(path):
        grey = Image.fromarray(GREY)
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


def test_pictures_that_are_read_for_what_they_are(tmp_path):
    planes = np.stack([GREY, GREY // 2, GREY // 3])
    first, *others = map(Image.fromarray, planes)
    first.save(tmp_path / "p.tif", save_all=True, append_images=others)
    assert np.allclose(read_cube(tmp_path / "p.tif")[0], planes / 255)
    path = tmp_path / "y.tif"
    picture("L")(path)
    assert np.array_equal(read_measurement(path, mask=MASK).y, GREY / np.float32(255))
    Image.fromarray(MASK > 0).save(tmp_path / "mask.png")
    assert np.array_equal(read_measurement(path, mask=tmp_path / "mask.png").mask, MASK)


def test_negative_counts_with_a_black_level(tmp_path):
    path = write_h5(tmp_path / "m.h5", measurement=(Y * 4000 - 500).astype(np.int16), mask=MASK)
    assert np.allclose(read_measurement(path, levels=Levels(black_level=-500)).y * (4095 + 500), Y * 4000, atol=1)


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
