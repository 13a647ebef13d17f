"""Read the numeric arrays of MATLAB v5 files (saved with -v6 or -v7), and write them.

The format is MathWorks' "MAT-File Format", level 5: a list of elements, each a tag (type, bytes) and its data, packed
with zlib or not. Only full arrays of real numbers are read, each checked against its tag before memory is taken:
general readers trust the file's sizes and types, and a damaged file can crash them. Cells, structs and objects are
listed, not opened.
"""

import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Protocol

import numpy as np

from cassi.errors import InputError
from cassi.files.container import (
    Container,
    CubeContent,
    Entry,
    Selection,
    check_declared,
    damage_as_input_error,
)

MATRIX, COMPRESSED = 14, 15
# Number types by their code in the file, and what the classes are that hold no plain numbers.
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8", 16: "u1"}
NUMERIC_CLASSES = range(6, 16)
OTHER_CLASSES = {
    1: "a cell array (save its elements as variables)",
    2: "a struct (save its fields as variables)",
    3: "a MATLAB object",
    4: "text",
    5: "a sparse matrix (save it as full)",
    16: "a function",
    17: "a MATLAB object",
}
MAX_VARIABLES = 10_000
MAX_HEADER_BYTES = 4096


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes | bytearray: ...


class _Unpacking:
    """Bytes of one packed element, unpacked only as far as they are asked for."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file, self.left = file, size
        self.stream = zlib.decompressobj()

    def read(self, size: int) -> bytes | bytearray:
        data = bytearray(size)
        filled = 0
        while filled < size:
            packed = self.stream.unconsumed_tail
            if not packed and self.left > 0:
                packed = self.file.read(min(self.left, 2**16))
                self.left -= len(packed)
            part = self.stream.decompress(packed, min(size - filled, 2**20))
            if not part and (self.stream.eof or not packed):
                break
            data[filled : filled + len(part)] = part
            filled += len(part)
        return data if filled == size else data[:filled]


@dataclass(frozen=True)
class _Variable:
    """Where an element lies, and what its header says."""

    position: int
    size: int
    packed: bool
    name: str
    shape: tuple[int, ...]
    kind: int
    logical: bool
    complex: bool
    type: np.dtype
    data_bytes: int
    small: bytes | bytearray | None  # data of at most 4 bytes stand in the tag itself


def open_matlab(path: Path) -> Container:
    """Open a MATLAB v5 file as a `Container`.

    Whole numbers of class double may be stored as integers by MATLAB; they are listed and read as such.

    Raises:
        InputError: damaged file, or an array that declares far more than the file holds.
    """
    with damage_as_input_error(path, "MATLAB v5"), path.open("rb") as file:
        order = "<" if file.read(128)[126:] == b"IM" else ">"
        variables = _variables(path, file, order)
        entries = [_entry(path, variable) for variable in variables.values()]
        axes = {name.removesuffix("_axes"): _text(file, v, order) for name, v in variables.items() if v.kind == 4}
        entries = [_with_axes(entry, axes.get(entry.name)) for entry in entries]

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        values = _read(path, variables[entry.name], order)
        return values[picked]

    return Container(path, "MATLAB v5", tuple(entries), read, bands_last=True)


def _variables(path: Path, file: IO[bytes], order: str) -> dict[str, _Variable]:
    """Walk the elements of the file and read the header of each variable."""
    found: dict[str, _Variable] = {}
    stored = path.stat().st_size
    position = 128
    while position < stored:
        file.seek(position)
        kind, size = struct.unpack(order + "II", _exactly(file, 8))
        if kind not in (MATRIX, COMPRESSED) or position + 8 + size > stored:
            raise InputError(f"{path}: cannot be read as MATLAB v5, it is damaged or cut short")
        if size > 0:
            variable = _header(file, position + 8, size, kind == COMPRESSED, order)
            found[variable.name] = variable
        if len(found) > MAX_VARIABLES:
            raise InputError(f"{path}: more than {MAX_VARIABLES} variables: not a measurement file")
        position += 8 + size
    return found


def _stream_of(file: IO[bytes], position: int, size: int, packed: bool, order: str) -> _Stream:
    """Return the content of a matrix element, its own tag left behind."""
    file.seek(position)
    if not packed:
        return file
    stream = _Unpacking(file, size)
    kind, _ = struct.unpack(order + "II", _exactly(stream, 8))
    if kind != MATRIX:
        raise ValueError(f"packed element of type {kind}")
    return stream


def _exactly(stream: _Stream, size: int) -> bytes | bytearray:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError(f"{size} bytes expected, {len(data)} found")
    return data


def _tag(stream: _Stream, order: str) -> tuple[int, int, bytes | bytearray | None]:
    """Return type, number of bytes and, for the short form, the data of the next element."""
    raw = _exactly(stream, 8)
    kind, size = struct.unpack(order + "II", raw)
    if kind >> 16:
        kind, size = kind & 0xFFFF, kind >> 16
        if size > 4:
            raise ValueError(f"short element of {size} bytes")
        return kind, size, raw[4 : 4 + size]
    return kind, size, None


def _element(stream: _Stream, order: str) -> bytes | bytearray:
    """Return the data of a short header element; long ones are padded to 8 bytes."""
    _, size, data = _tag(stream, order)
    if data is not None:
        return data
    if size > MAX_HEADER_BYTES:
        raise ValueError(f"header element of {size} bytes")
    return _exactly(stream, -(-size // 8) * 8)[:size]


def _header(file: IO[bytes], position: int, size: int, packed: bool, order: str) -> _Variable:
    stream = _stream_of(file, position, size, packed, order)
    flags = struct.unpack(order + "II", _element(stream, order))[0]
    dimensions = _element(stream, order)
    # Objects of the newest kind keep their name in the place of the sizes; they are only listed.
    opaque = flags & 0xFF == 17
    shape = () if opaque else struct.unpack(f"{order}{len(dimensions) // 4}i", dimensions)
    name = (dimensions if opaque else _element(stream, order)).decode("ascii", errors="replace")
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise ValueError(f"'{name}' of shape {shape}")
    kind, data_bytes = 2, 0
    small: bytes | bytearray | None = None
    if flags & 0xFF in NUMERIC_CLASSES or flags & 0xFF == 4:
        kind, data_bytes, small = _tag(stream, order)
    if kind not in TYPES:
        raise ValueError(f"'{name}' holds numbers of type {kind}")
    return _Variable(
        position=position,
        size=size,
        packed=packed,
        name=name,
        shape=shape,
        kind=flags & 0xFF,
        logical=bool(flags & 0x200),
        complex=bool(flags & 0x800),
        type=np.dtype(order + TYPES[kind]),
        data_bytes=data_bytes,
        small=small,
    )


def _entry(path: Path, variable: _Variable) -> Entry:
    if variable.kind not in NUMERIC_CLASSES:
        return Entry(variable.name, variable.shape, None, problem=OTHER_CLASSES.get(variable.kind, "of unknown class"))
    if variable.complex:
        return Entry(variable.name, variable.shape, np.dtype(complex))
    if math.prod(variable.shape) * variable.type.itemsize != variable.data_bytes:
        raise InputError(
            f"{path}: '{variable.name}' is damaged, {variable.data_bytes} bytes for {variable.shape} {variable.type}"
        )
    check_declared(path, variable.name, variable.data_bytes)
    return Entry(variable.name, variable.shape, np.dtype(bool) if variable.logical else variable.type.newbyteorder("="))


def _with_axes(entry: Entry, letters: str | None) -> Entry:
    """Return the entry with the axis letters that a text variable `<name>_axes` states, as this project writes it."""
    known = letters is not None and len(letters) == len(set(letters) & set("NCHW")) == len(entry.shape)
    return replace(entry, axes=letters) if known else entry


def _text(file: IO[bytes], variable: _Variable, order: str) -> str | None:
    """Return a short text variable, or None where it is long."""
    if variable.data_bytes > 16:
        return None
    return _data(file, variable, order).decode("ascii", errors="replace").replace("\x00", "")


def _data(file: IO[bytes], variable: _Variable, order: str) -> bytes | bytearray:
    if variable.small is not None:
        return variable.small
    stream = _stream_of(file, variable.position, variable.size, variable.packed, order)
    for _ in range(2 if variable.kind == 17 else 3):
        _element(stream, order)
    _tag(stream, order)
    return _exactly(stream, variable.data_bytes)


def _read(path: Path, variable: _Variable, order: str) -> np.ndarray:
    with path.open("rb") as file:
        data = _data(file, variable, order)
    values = np.frombuffer(data, dtype=variable.type).reshape(variable.shape, order="F")
    if variable.logical:
        return values.astype(bool)
    return values if variable.type.isnative else values.astype(variable.type.newbyteorder("="))


def write_matlab(path: Path, content: CubeContent) -> Mapping[str, np.ndarray]:
    """Write a cube with all that belongs to it, axes in MATLAB's order; return the arrays written by name."""
    from scipy.io import savemat

    cube = content.cube
    if cube.nbytes >= 2**31:
        raise InputError(f"a .mat file holds arrays below 2 GiB, the cube takes {cube.nbytes} bytes; write .h5")
    # MATLAB's habit: rows, columns, bands, frames.
    arrays = {"cube": np.transpose(cube, (1, 2, 0) if cube.ndim == 3 else (2, 3, 1, 0))}
    if content.wavelengths is not None:
        arrays["wavelengths"] = content.wavelengths
    arrays |= {name.replace("/", "_"): values for name, values in content.datasets.items()}
    rest = {"cube_axes": "HWC" if cube.ndim == 3 else "HWCN", "attributes": dict(content.attributes) or {"none": 0}}
    savemat(path, arrays | rest, do_compression=False, long_field_names=True, oned_as="row")
    return {name: np.atleast_2d(values) for name, values in arrays.items()}
