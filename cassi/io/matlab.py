"""Read MATLAB v5 files (saved with -v6 or -v7) through scipy, after measuring what they unpack to."""

import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import InputError
from .containers import BOMB_BYTES, BOMB_RATIO, Container, Entry, Selection, damage_as_input_error, declared_bytes

COMPRESSED = 15
# Structs and cells are refused, not opened: their inner sizes cannot be checked before memory is taken.
UNREADABLE = {
    "char": "text",
    "cell": "a cell array (save its elements as variables)",
    "struct": "a struct (save its fields as variables)",
    "sparse": "a sparse matrix (save it as full)",
    "function": "a function",
    "opaque": "a MATLAB object",
    "object": "a MATLAB object",
}


def open_matlab(path: Path) -> Container:
    """Open a MATLAB v5 file as a `Container`.

    Raises:
        InputError: damaged file, or one that unpacks to far more than it holds.
    """
    from scipy.io import whosmat

    with damage_as_input_error(path, "MATLAB v5"):
        unpacked = _check_unpacked_size(path)
        entries = [_describe(path, name, tuple(map(int, shape)), kind, unpacked) for name, shape, kind in whosmat(path)]
        entries = [_with_axes(path, entry, entries) for entry in entries]

    def read(entry: Entry, selection: Selection | None) -> np.ndarray:
        values = _load(path, entry.name)
        return values if selection is None else values[selection]

    return Container(path, "MATLAB v5", tuple(entries), read, bands_last=True)


def _describe(path: Path, name: str, shape: tuple[int, ...], kind: str, unpacked: int) -> Entry:
    problem = UNREADABLE.get(kind)
    if problem is not None:
        return Entry(name, shape, None, problem=problem)
    # A number takes at least one byte, so a shape that is larger than the file is a lie.
    if declared_bytes(shape, 1) > unpacked:
        raise InputError(f"{path}: '{name}' is cut short or damaged, {shape} numbers in {unpacked} bytes")
    # The class is known without unpacking. Whole numbers of class double may be stored as, and are read as, integers.
    return Entry(name, shape, np.dtype({"single": "float32", "double": "float64", "logical": "bool"}.get(kind, kind)))


def _with_axes(path: Path, entry: Entry, entries: list[Entry]) -> Entry:
    """Return the entry with the axis letters that a text variable `<name>_axes` states, as this project writes it."""
    stated = next((e for e in entries if e.name == f"{entry.name}_axes" and e.problem == "text"), None)
    if stated is None or np.prod(stated.shape) > 4:
        return entry
    letters = "".join(str(letter) for letter in _load(path, stated.name).reshape(-1))
    known = len(letters) == len(entry.shape) and set(letters) <= set("NCHW")
    return replace(entry, axes=letters) if known else entry


def _load(path: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat

    values = np.asarray(loadmat(path, variable_names=[name])[name])
    if values.dtype.kind == "c":
        raise InputError(f"{path}: '{name}' is complex: expected real numbers; save its real part or magnitude")
    return values


def _check_unpacked_size(path: Path) -> int:
    """Return how many bytes all elements of the file unpack to; refuse one that holds far less than that.

    A variable's declared shape is no protection: the reader takes as many bytes as the packed element says.
    """
    stored = path.stat().st_size
    limit = max(BOMB_BYTES, BOMB_RATIO * stored)
    with path.open("rb") as file:
        header = file.read(128)
        order = "<" if header[126:128] == b"IM" else ">"
        total, position = 0, 128
        while len(tag := file.read(8)) == 8:
            kind, size = struct.unpack(order + "II", tag)
            position += 8 + size
            if position > stored:
                raise InputError(f"{path}: cannot be read as MATLAB v5, it is damaged or cut short")
            if kind == COMPRESSED:
                total += _unpacked_size(file.read(size), limit - total)
            else:
                total += size
                file.seek(position)
            if total > limit:
                raise InputError(
                    f"{path}: unpacks to more than {limit / 2**20:.0f} MiB from {stored / 2**20:.3f} MiB: refused as "
                    f"a decompression bomb; if the data are real, save them with -v6 (uncompressed)"
                )
    return total


def _unpacked_size(data: bytes, limit: int) -> int:
    """Return how many bytes a zlib stream unpacks to, stopping soon after `limit`, without keeping them."""
    stream = zlib.decompressobj()
    total = 0
    while data and not stream.eof and total <= limit:
        total += len(stream.decompress(data, 2**20))
        data = stream.unconsumed_tail
    return total
