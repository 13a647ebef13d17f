"""Read MATLAB v5 files (saved with -v6 or -v7) through scipy, after measuring what they unpack to."""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..errors import InputError
from .containers import BOMB_BYTES, BOMB_RATIO, Container, Entry, Selection, damage_as_input_error

ITEM_BYTES = {"int8": 1, "uint8": 1, "logical": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "single": 4}
COMPRESSED = 15
UNREADABLE = {"char": "text", "cell": "a cell array", "function": "a function", "opaque": "a MATLAB object"}


def open_matlab(path: Path) -> Container:
    """Open a MATLAB v5 file as a `Container`; the fields of structs are listed as `struct/field`.

    Raises:
        InputError: damaged file, or one that unpacks to far more than it holds.
    """
    from scipy.io import whosmat

    with damage_as_input_error(path, "MATLAB v5"):
        _check_unpacked_size(path)
        entries: list[Entry] = []
        for name, shape, kind in whosmat(path):
            entries += _describe(path, name, tuple(int(n) for n in shape), kind)
        entries = [_with_axes(path, entry, entries) for entry in entries]

    def read(entry: Entry, selection: Selection | None) -> np.ndarray:
        values = _load(path, entry.name)
        return values if selection is None else values[selection]

    return Container(path, "MATLAB v5", tuple(entries), read, bands_last=True)


def _describe(path: Path, name: str, shape: tuple[int, ...], kind: str) -> list[Entry]:
    if kind == "struct":
        fields = _flatten(name, _load_raw(path, name))
        return [Entry(key, value.shape, value.dtype) for key, value in fields.items()]
    if kind in UNREADABLE or kind == "object":
        return [Entry(name, shape, None, problem=UNREADABLE.get(kind, "a MATLAB object"))]
    if kind == "sparse":
        return [Entry(name, shape, None, problem="a sparse matrix (save it as full)")]
    # The class is known without unpacking; whether it is complex is not, and is found when it is read.
    dtype = {"single": "float32", "double": "float64", "logical": "bool"}.get(kind, kind)
    return [Entry(name, shape, np.dtype(dtype))]


def _with_axes(path: Path, entry: Entry, entries: list[Entry]) -> Entry:
    """Return the entry with the axis letters that a text variable `<name>_axes` states, as this project writes it."""
    stated = next((e for e in entries if e.name == f"{entry.name}_axes" and e.problem == "text"), None)
    if stated is None or np.prod(stated.shape) > 4:
        return entry
    letters = _load_raw(path, stated.name)
    known = isinstance(letters, str) and len(letters) == len(entry.shape) and set(letters) <= set("NCHW")
    return replace(entry, axes=str(letters)) if known else entry


def _load_raw(path: Path, name: str) -> object:
    from scipy.io import loadmat

    return loadmat(path, variable_names=[name], simplify_cells=True)[name]


def _load(path: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat

    variable, _, _ = name.partition("/")
    if "/" in name:
        values = _flatten(variable, _load_raw(path, variable))[name]
    else:
        values = np.asarray(loadmat(path, variable_names=[variable])[variable])
    if values.dtype.kind == "c":
        raise InputError(f"{path}: '{name}' is complex: expected real numbers; save its real part or magnitude")
    return values


def _flatten(prefix: str, value: object) -> dict[str, np.ndarray]:
    """Return the numeric leaves of a struct by path; anything else is left out."""
    if isinstance(value, Mapping):
        found: dict[str, np.ndarray] = {}
        for key, item in value.items():
            found |= _flatten(f"{prefix}/{key}", item)
        return found
    array = np.asarray(value) if isinstance(value, np.ndarray | int | float) else None
    return {prefix: array} if array is not None and array.dtype.kind in "biufc" else {}


def _check_unpacked_size(path: Path) -> None:
    """Walk the elements of the file and refuse one that unpacks to far more than it holds.

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


def _unpacked_size(data: bytes, limit: int) -> int:
    """Return how many bytes a zlib stream unpacks to, stopping soon after `limit`, without keeping them."""
    stream = zlib.decompressobj()
    total = 0
    while data and not stream.eof and total <= limit:
        total += len(stream.decompress(data, 2**20))
        data = stream.unconsumed_tail
    return total
