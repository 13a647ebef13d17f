"""Small files that unpack to much: each is refused in words, before the memory is taken.

The files declare a snapshot of 11 kB and hold 224 MiB; `SLACK` and the limit, lowered here, allow 168 MiB.
"""

import io
import json
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from functools import cache

import h5py
import numpy as np
import pytest
import scipy.io
from messages import refuses
from PIL import Image

from cassi.files import InputError, open_container, read_measurement
from cassi.files.container import SLACK, check_inflated
from cassi.files.formats import matlab as matlab_module, npy
from cassi.files.formats.hdf5_filters import unpacked_size

pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is measured by /proc"),
    pytest.mark.long,
]
LIMIT = 1 / 128  # of 8 GiB
HELD = 224 * 2**20  # bytes
MOST = (SLACK + 2**33 * LIMIT + 40 * 2**20) / 2**20  # MiB of memory
SHAPE = (48, 58)
MASK = (np.random.default_rng(0).random((48, 48)) > 0.5).astype(np.float32)


def deflated(size=HELD, wrapped=True):
    """Zeros, so many bytes."""
    pack = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = pack.compress(bytes(2**20)) + pack.flush(zlib.Z_FULL_FLUSH)
    blocks = block * (size >> 20) + b"\3\0"
    return b"\x78\x9c" + blocks + struct.pack(">I", (size % 65521) << 16 | 1) if wrapped else blocks


def hdf5(path, data, filters, *, shape=SHAPE, chunk=None, most=None):
    with h5py.File(path, "w") as file:
        file["mask"] = MASK
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk(chunk or shape)
        for code, values in filters:
            plan.set_filter(code, h5py.h5z.FLAG_OPTIONAL, values)
        space = h5py.h5s.create_simple(shape, most or shape)
        dataset = h5py.h5d.create(file.id, b"measurement", h5py.h5t.IEEE_F32LE, space, plan)
        dataset.write_direct_chunk((0, 0), data)


def packed_by(name):
    """A chunk that a filter of hdf5plugin made of another array, where a small one is declared."""

    def write(path):
        plugin = pytest.importorskip("hdf5plugin")
        with h5py.File(path, "w") as file:
            whole = (HELD // 4 // 4096, 4096)
            zeros = file.create_dataset("all", whole, "f4", chunks=whole, **getattr(plugin, name)())
            zeros[:] = 0
            data = zeros.id.read_direct_chunk((0, 0))[1]
            plan = zeros.id.get_create_plist()
            code, _, values, _ = plan.get_filter(0)
        hdf5(path, data, [(code, (*values[:3], SHAPE[0] * SHAPE[1] * 4, *values[4:]))])

    return write


def tiff(path, data, compression, tile=(0, 0), page=SHAPE):
    width, length = tile
    places = {324: len(data), 322: width, 323: length} if width else {279: len(data), 278: page[0]}
    tags = {
        256: page[1],
        257: page[0],
        258: 16,
        259: compression,
        262: 1,
        277: 1,
        **places,
        324 if width else 273: None,
    }
    if width:
        tags[325] = len(data)
    start = 8 + 2 + 12 * len(tags) + 4
    rows = [struct.pack("<HHII", tag, 4, 1, start if n is None else n) for tag, n in sorted(tags.items())]
    path.write_bytes(struct.pack("<2sHIH", b"II", 42, 8, len(rows)) + b"".join(rows) + bytes(4) + data)


def npz(path, head, method=zipfile.ZIP_DEFLATED, size=HELD):
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive:
        with archive.open("mask.npy", "w") as file:
            np.lib.format.write_array(file, MASK)
        with archive.open("measurement.npy", "w", force_zip64=True) as file:
            head(file)
            for _ in range(size >> 20):
                file.write(bytes(2**20))


def stack_header(file):
    shape = (HELD // (48 * 58 * 4), *SHAPE)
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})


def long_header(file):
    file.write(b"\x93NUMPY\2\0" + struct.pack("<I", HELD))


def matlab(path):
    scipy.io.savemat(path, {"meas": np.zeros((58, 48, HELD // (48 * 58 * 8))), "mask": MASK}, do_compression=True)


def weights(path, widths, blocks, tensors=0):
    """As many tensors as the sizes ask for, all empty, or none."""
    size = {"components": 12, "stages": 4, "memory": 8, "light": 0, "turns": 1}
    size |= dict(
        zip(("width", "deep_width", "far_width", "blocks", "deep_blocks", "far_blocks"), widths + blocks, strict=True)
    )
    head = {f"net.{k}": {"dtype": "F16", "shape": [0], "data_offsets": [0, 0]} for k in range(tensors)}
    text = json.dumps({"__metadata__": {name: str(value) for name, value in size.items()}} | head).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def sparse_npy(path):
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (12288, 12288)})
        file.truncate(file.tell() + 4 * 12288**2)


def one_text_of_many_attributes(path):
    """A text of 8 MB that 120 attributes refer to."""
    long, short, count = 8_000_001, 777, 120
    with h5py.File(path, "w") as file:
        file["mask"], file["measurement"] = MASK, np.ones(SHAPE, np.float32)
        file.attrs["long"] = "x" * long
        for k in range(count):
            file.attrs[f"short {k}"] = "y" * short
    whole = path.read_bytes()
    at = whole.index(struct.pack("<I", long))
    place = whole[at : at + 16]
    pieces = whole.split(struct.pack("<I", short))
    assert len(pieces) > count
    path.write_bytes(pieces[0] + b"".join(place + piece[12:] for piece in pieces[1:]))


@cache
def png():
    file = io.BytesIO()
    Image.new("L", (15_000, 13_000)).save(file, "png", compress_level=1)
    return file.getvalue()


BOMBS = {
    "deflated.h5": lambda p: hdf5(p, deflated(), [(1, (9,))]),
    "deflated twice.h5": lambda p: hdf5(p, zlib.compress(deflated()), [(1, (9,)), (1, (9,))]),
    "twice with a shuffle.h5": lambda p: hdf5(p, zlib.compress(deflated()), [(1, (9,)), (2, (4,)), (1, (9,))]),
    "chunk above its array.h5": lambda p: hdf5(
        p, deflated(), [(1, (9,))], chunk=(HELD // 4 // 4096, 4096), most=(h5py.h5s.UNLIMITED,) * 2
    ),
    "a rare filter.h5": lambda p: hdf5(p, bytes(40), [(32013, ())]),
    "array, deflated.h5": lambda p: hdf5(p, deflated(), [(1, (9,))], shape=(512, 512)),
    "array.png": lambda p: p.write_bytes(png()),
    **{f"{name}.h5": packed_by(name) for name in ("Blosc", "Blosc2", "Bitshuffle", "LZ4", "Zstd")},
    "attributes.h5": one_text_of_many_attributes,
    "deflated.tif": lambda p: tiff(p, deflated(), 8),
    "array, deflated.tif": lambda p: tiff(p, deflated(), 8, page=(512, 512)),
    "deflated, the other code.tif": lambda p: tiff(p, deflated(), 32946),
    "packbits.tif": lambda p: tiff(p, b"\x81\0" * (HELD // 128), 32773),
    "a tile above its page.tif": lambda p: tiff(p, deflated(), 8, tile=(16384, 16384)),
    "a stack.npz": lambda p: npz(p, stack_header),
    "a header.npz": lambda p: npz(p, long_header),
    "texts.npz": lambda p: np.savez_compressed(p, **{f"text {k}": "夜" * 260_000 for k in range(250)}),
    "rare.npz": lambda p: npz(p, stack_header, zipfile.ZIP_BZIP2, size=2**24),
    "a header.npy": lambda p: p.write_bytes(b"\x93NUMPY\2\0" + struct.pack("<I", HELD) + b" " * 2**20),
    "a stack.mat": matlab,
    "picture of numbers.npy": sparse_npy,
    "picture.png": lambda p: p.write_bytes(png()),
    "picture in tiles.tif": lambda p: tiff(p, deflated(), 8, tile=(16384, 16384)),
    "prior.safetensors": lambda p: weights(p, (1024, 96, 128), (10, 4, 3)),
    "prior, wide.safetensors": lambda p: weights(p, (4096,) * 3, (1, 2, 1), 60),
}
READ = """if True:
    import json, os, sys, warnings
    import numpy as np, torch
    from cassi.files import open_container, read_measurement, InputError
    from cassi.photograph.picture import read_side_picture
    from cassi.priors.learned import load_prior
    warnings.simplefilter("ignore")
    load_prior(), read_side_picture(sys.argv[1])
    assert "tifffile" not in sys.modules
    if bare := os.fork() == 0:
        sys.modules["imagecodecs"] = None  # which only tifffile asks for
    else:
        assert os.wait()[1] == 0
    mask, found = np.load(sys.argv[2]), {}
    def most():
        return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) // 1024
    def whole(path):
        container = open_container(path)
        container.read(container.entries[-1])
    for path in sys.argv[3:]:
        name = path.rpartition("/")[2]
        if bare and not name.endswith(".tif"):
            continue
        frames = {"frames": 0} if "stack" in name else {}
        named = {"picture": read_side_picture, "prior": load_prior, "array": whole}
        read = next((reader for word, reader in named.items() if name.startswith(word)), None)
        open("/proc/self/clear_refs", "w").write("5")
        before, said = most(), ""
        try:
            read(path) if read else read_measurement(path, mask=mask, **frames)
        except InputError as error:
            said = str(error)
        found[name] = most() - before, said
    print(json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bombs")
    Image.fromarray((MASK * 255).astype(np.uint8)).save(folder / "side.png")
    np.save(folder / "m.npy", MASK)
    for name, write in BOMBS.items():
        write(folder / name)
        assert (folder / name).stat().st_size < 2**24 or name == "picture of numbers.npy", name
    return folder


@pytest.fixture(scope="module")
def found(folder):
    """MiB that were taken for each file, and what was said of it; without imagecodecs, and with it."""
    paths = [folder / name for name in BOMBS]
    environment = {**os.environ, "CASSI_READ_LIMIT": str(LIMIT)}
    command = [sys.executable, "-c", READ, folder / "side.png", folder / "m.npy", *paths]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return dict(zip(("bare", "as installed"), map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(
    ("way", "name"), [("as installed", name) for name in BOMBS] + [("bare", n) for n in BOMBS if n.endswith(".tif")]
)
def test_a_bomb_is_refused_before_it_takes_memory(found, way, name):
    taken, said = found[way][name]
    assert said and taken < MOST, (taken, said)


FILTERS = {
    "gzip": {"compression": "gzip", "shuffle": True, "fletcher32": True}, "lzf": {"compression": "lzf"},
    "szip": {"compression": "szip"}, "scale and offset": {"scaleoffset": 0},
    "Blosc": {"cname": "zstd"}, "Blosc2": {"cname": "lz4"}, "Bitshuffle": {"cname": "zstd"}, "LZ4": {}, "Zstd": {},
}  # fmt: skip


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("shape", [(3, 40, 50), (1, 2000, 1500)])
def test_headers_state_what_filters_unpack(tmp_path, name, shape):
    """All that laboratories use is read; the size that a header states is that of the array."""
    options = FILTERS[name]
    if name[0].isupper():
        options = getattr(pytest.importorskip("hdf5plugin"), name)(**options)
    values = np.random.default_rng(0).integers(0, 9, shape).astype(np.int32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("a", data=values, chunks=(1, *shape[1:]), **options)
        code, _, parameters, _ = dataset.id.get_create_plist().get_filter(0)
        if name not in ("gzip", "lzf"):
            data = dataset.id.read_direct_chunk((0, 0, 0))[1]
            assert unpacked_size(code, parameters, data) in range(values[0].nbytes, 2 * values[0].nbytes)
    container = open_container(tmp_path / "a.h5")
    assert np.array_equal(container.read(container.entries[0]), values)


@pytest.mark.parametrize("name", ["packed.npz", "v5.mat"])
def test_frames_of_what_is_packed_are_read_once(tmp_path, monkeypatch, name):
    frames = np.random.default_rng(0).random((5, *SHAPE)).astype(np.float32)
    if name == "v5.mat":
        scipy.io.savemat(tmp_path / name, {"meas": frames.transpose(1, 2, 0), "mask": MASK}, do_compression=True)
    else:
        np.savez_compressed(tmp_path / name, measurement=frames, mask=MASK)
    module, function = (matlab_module, "_variable") if name == "v5.mat" else (npy, "_unpack")
    real, read = getattr(module, function), []
    monkeypatch.setattr(module, function, lambda path, entry: read.append(entry) or real(path, entry))
    for k in (0, 3, 1, 4):
        y = read_measurement(tmp_path / name, frames=k).y
        assert np.array_equal(y, frames[k])
        y += 1  # is no part of what is kept
    assert sum(not entry.startswith("mask") for entry in read) == 1
    again = np.stack([frames[0] + 1] * 2)
    np.savez_compressed(tmp_path / "packed.npz", measurement=again, mask=MASK)
    assert np.array_equal(read_measurement(tmp_path / "packed.npz", frames=0).y, again[0])


@pytest.mark.parametrize("order", ["C", "F"])
def test_frames_of_a_plain_npz_are_read_alone(tmp_path, monkeypatch, order):
    frames = np.asarray(np.random.default_rng(0).random((5, *SHAPE)), dtype=">f4", order=order)
    np.savez(tmp_path / "a.npz", mask=MASK, measurement=frames)
    monkeypatch.setattr("cassi.files.container.MAX_READ_BYTES", 2 * frames[0].nbytes)
    assert np.array_equal(read_measurement(tmp_path / "a.npz", frames=3).y, frames[3])
    with pytest.raises(InputError):
        read_measurement(tmp_path / "a.npz")


def test_what_is_deflated_is_counted():
    for size in (0, 2**20, 3 * SLACK):
        check_inflated(deflated(size), size)
        check_inflated(deflated(size), max(0, size - SLACK))
    with pytest.raises(ValueError, match="declared"):
        check_inflated(deflated(3 * SLACK), SLACK)


@pytest.mark.parametrize("limit", ["x", "", "nan", "-1", "0", "1,5"])
def test_a_limit_that_is_none(tmp_path, monkeypatch, limit):
    np.save(tmp_path / "a.npy", np.zeros(SHAPE))
    monkeypatch.setenv("CASSI_READ_LIMIT", limit)
    with refuses():
        read_measurement(tmp_path / "a.npy", mask=MASK)
