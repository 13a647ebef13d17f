"""What the filters of HDF5 unpack, before they do: HDF5 itself takes any size that a chunk turns out to have."""

import math
import struct
from pathlib import Path

import h5py

from cassi.errors import InputError
from cassi.files.container import SLACK, Selection, check_inflated, check_size

DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALE_OFFSET = 1, 2, 3, 4, 5, 6
LZF, BLOSC, LZ4, BITSHUFFLE, ZSTD, BLOSC2 = 32000, 32001, 32004, 32008, 32015, 32026
UNPACKED = {SHUFFLE, FLETCHER32}  # they change order and add a checksum
HEADERS = {SZIP: ("<I", 0), LZ4: (">Q", 0), BITSHUFFLE: (">Q", 0), BLOSC: ("<I", 4), BLOSC2: ("<I", 4)}  # size, place
GZIP = "save the file with gzip (h5repack -f GZIP=4)"
KNOWN = {DEFLATE, SZIP, NBIT, SCALE_OFFSET, LZF, BLOSC, LZ4, BITSHUFFLE, ZSTD, BLOSC2}


def check_chunks(path: Path, dataset: h5py.Dataset, picked: Selection) -> None:
    """Check what the chunks of a selection unpack to, from their sizes and headers.

    A stored chunk may not be larger than what it holds; so LZF, which has no header, makes at most 90 times the file.

    Raises:
        InputError: a chunk is larger than may be held at once, or packed in a way whose size cannot be known.
        ValueError: it holds clearly more than is declared.
    """
    if dataset.chunks is None:
        return
    size = math.prod(dataset.chunks) * dataset.dtype.itemsize
    check_size(path, f"a chunk {dataset.chunks} of '{dataset.name}'", size)
    if size > dataset.nbytes + SLACK:
        raise ValueError(f"chunks {dataset.chunks} of an array {dataset.shape}")
    packers = [(k, code, values) for k, (code, _, values, _) in enumerate(_filters(dataset)) if code not in UNPACKED]
    for _, code, _ in packers:
        if code not in KNOWN:
            what = f"is compressed by the HDF5 filter {code}, of which nothing says how much it unpacks"
            raise InputError(f"{path}: '{dataset.name}' {what}; {GZIP}")
    for part in dataset.iter_chunks(picked) if packers else ():
        place = tuple(one.start // n * n for one, n in zip(part, dataset.chunks, strict=True))
        stored = dataset.id.get_chunk_info_by_coord(place)
        if stored.size and stored.size > size + size // 8 + 2**16:
            raise ValueError(f"a chunk of {size} bytes takes {stored.size} bytes in the file")
        used = [(code, values) for k, code, values in packers if not (stored.filter_mask or 0) >> k & 1]
        if not stored.size or not used:
            continue
        if not all(_is_plain(*one) for one in used[:-1]):
            raise ValueError("a chunk that is packed twice")
        data = dataset.id.read_direct_chunk(place)[1]
        if used[-1][0] == DEFLATE:
            check_inflated(data, size)
        elif (held := unpacked_size(*used[-1], data)) > size + SLACK:
            raise ValueError(f"a chunk of {size} bytes unpacks to {held}")


def _filters(dataset: h5py.Dataset) -> list[tuple[int, int, tuple[int, ...], bytes]]:
    """The filters that pack a chunk, in their order: code, flags, parameters, name."""
    plan = dataset.id.get_create_plist()
    return [plan.get_filter(k) for k in range(plan.get_nfilters())]


def _is_plain(code: int, values: tuple[int, ...]) -> bool:
    """Whether a filter only changes the order: bitshuffle without its packing."""
    return code == BITSHUFFLE and (len(values) < 5 or values[4] == 0)


def unpacked_size(code: int, values: tuple[int, ...], data: bytes) -> int:
    """The bytes that a filter with these parameters takes to unpack a chunk, by its header."""
    if code in (NBIT, SCALE_OFFSET):
        return values[2] * values[4]
    if code == LZF or _is_plain(code, values):
        return 0
    if code == ZSTD:  # the size of the content that a frame states (RFC 8878, 3.1.1)
        single, kind = data[4] >> 5 & 1, data[4] >> 6
        at = 6 - single + (0, 1, 2, 4)[data[4] & 3]
        return int.from_bytes(data[at : at + (single, 2, 4, 8)[kind]], "little") + 256 * (kind == 1)
    is_frame = code == BLOSC2 and data[2:9] == b"b2frame"
    form, at = (">q", 30) if is_frame else HEADERS[code]
    size = int(struct.unpack_from(form, data, at)[0])
    return max(values[3], size) if code in (BLOSC, BLOSC2) else size


def missing_filter(dataset: h5py.Dataset) -> str:
    """What is needed to unpack a dataset and is not installed, in words; empty if nothing is."""
    cure, filters = GZIP, _filters(dataset)
    if not all(h5py.h5z.filter_avail(code) for code, *_ in filters):
        try:
            import hdf5plugin  # noqa: F401  its filters are there from now on
        except ImportError:
            cure = f"pip install 'cassi[formats]' brings the usual ones (hdf5plugin), or {cure}"
    names = [f"{code} {name.decode(errors='replace')}" for code, *_, name in filters if not h5py.h5z.filter_avail(code)]
    return f"is compressed by the HDF5 filter {', '.join(names)}, which is not installed; {cure}" if names else ""
