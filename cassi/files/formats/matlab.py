"""Read the numeric arrays of MATLAB v5 files (saved with -v6 or -v7) with scipy, and write them.

A file is a list of elements, each a tag (type, bytes) and its data, packed with zlib or not (MathWorks, "MAT-File
Format", level 5). Only the headers of the variables are parsed here: scipy reports neither the stored type of numbers
nor whether they are complex, and crashes the process on an invalid type.
"""

import math
import os
import struct
import zlib
from collections.abc import Iterator
from itertools import islice, repeat
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.container import (
    LETTERS,
    Arrays,
    Attributes,
    Container,
    Entry,
    Selection,
    damage_as_input_error,
    read_packed,
)
from cassi.files.statements import MAX_STATED, companions, of_file

MATRIX, COMPRESSED = 14, 15
# Number types by their code in the file, and descriptions of the classes without plain numbers.
TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8", 16: "u1"}
NUMERIC = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}  # classes
OPAQUE = 17
OTHER_CLASSES = {
    1: "a cell array (save its elements as variables)",
    2: "a struct (save its fields as variables)",
    4: "text",
    5: "a sparse matrix (save it as full)",
}
TEXT = 4
ENCODINGS = {4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}  # of text, by its type; others are of one byte
WIDE = {4, 17, 18}  # in the order of bytes of the file
OBJECT = "a MATLAB object or function"
AXES = "_axes"  # end of the name of a text with the letters of an array's axes
LOGICAL, COMPLEX = 0x200, 0x800  # flags
HEADER_BYTES = 4096


def open_matlab(path: Path) -> Container:
    """Open a MATLAB v5 file as a `Container`.

    MATLAB stores whole doubles as integers to save space; they are doubles all the same: whether the numbers of a frame
    happen to be whole must not decide its unit.
    """
    with damage_as_input_error(path, "MATLAB v5"):
        entries, attributes = companions(*_variables(path))

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        itemsize = entry.itemsize if entry.packed is None else entry.packed.itemsize
        return np.asarray(read_packed(_variable, path, entry, picked, itemsize), dtype=entry.dtype)

    return Container(path, "MATLAB v5", entries, read, attributes, bands_last=True)


def _variable(path: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat

    values: np.ndarray = loadmat(os.fspath(path), appendmat=False, variable_names=[name])[name]
    return values


def _variables(path: Path) -> tuple[tuple[Entry, ...], dict[str, object]]:
    """Walk the elements of the file and read the header of each variable; also short texts and a few numbers."""
    variables: dict[str, Entry] = {}
    values: dict[str, object] = {}
    stored = path.stat().st_size
    with path.open("rb") as file:
        order = "<" if file.read(128)[126:] == b"IM" else ">"
        while (position := file.tell()) < stored:
            kind, size = struct.unpack(order + "II", file.read(8))
            if kind not in (MATRIX, COMPRESSED) or position + 8 + size > stored:
                raise ValueError("an element is not a variable, or ends beyond the file")
            head = file.read(min(size, HEADER_BYTES))
            if kind == COMPRESSED:
                head = zlib.decompressobj().decompress(head, HEADER_BYTES)
                if struct.unpack_from(order + "I", head)[0] != MATRIX:
                    raise ValueError("a compressed element is not a variable")
                head = head[8:]
            entry, value = _header(head, order)
            if entry.name not in variables:  # scipy reads the first of several with one name
                variables[entry.name] = entry
                values |= {} if value is None else {entry.name: value}
            file.seek(position + 8 + size)
    return tuple(variables.values()), values


def _header(head: bytes, order: str) -> tuple[Entry, object]:
    """A variable by its first bytes, and its value if that is a text or a few numbers that lie in them."""
    (_, flags, _), (_, sizes, _), (_, letters, _), (type_, data, size) = islice(_elements(head, order), 4)
    flag = struct.unpack_from(order + "I", flags)[0]
    kind = flag & 0xFF
    if kind == OPAQUE:  # the newest kind of object has its name in place of the sizes
        return Entry(sizes.decode("latin-1"), (), None, problem=OBJECT), None
    shape, name = struct.unpack(f"{order}{len(sizes) // 4}i", sizes), letters.decode("latin-1")
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise ValueError(f"'{name}' of shape {shape}")
    whole = len(data) == size
    if kind == TEXT and whole:
        encoding = ENCODINGS.get(type_, "latin-1") + {"<": "-le", ">": "-be"}[order] * (type_ in WIDE)
        return Entry(name, shape, None, problem=OTHER_CLASSES[kind]), data.decode(encoding, errors="replace")
    if kind not in NUMERIC:
        return Entry(name, shape, None, problem=OTHER_CLASSES.get(kind, OBJECT)), None
    if flag & COMPLEX:
        return Entry(name, shape, np.dtype(complex)), None
    if type_ not in TYPES or math.prod(shape) * np.dtype(TYPES[type_]).itemsize != size:
        raise ValueError(f"'{name}' of shape {shape} holds {size} bytes of type {type_}")
    dtype, stored = np.dtype(bool if flag & LOGICAL else NUMERIC[kind]), np.dtype(order + TYPES[type_])
    packed = np.dtype(TYPES[type_]) if dtype.kind == "f" and stored.kind in "iu" else None
    values = np.frombuffer(data, stored).tolist() if whole and 0 < math.prod(shape) <= MAX_STATED else [None]
    return Entry(name, shape, dtype, packed=packed), values if len(values) > 1 else values[0]


def _elements(head: bytes, order: str) -> Iterator[tuple[int, bytes, int]]:
    """Type, data and size of each element that begins in these bytes; without end, where nothing is left empty ones."""
    at = 0
    while at + 8 <= len(head):
        kind, size = struct.unpack_from(order + "II", head, at)
        if kind >> 16:  # the short form has its data in the tag
            yield kind & 0xFFFF, head[at + 4 : at + 4 + (kind >> 16)], kind >> 16
            at += 8
        else:
            yield kind, head[at + 8 : at + 8 + size], size
            at += 8 + -(-size // 8) * 8
    yield from repeat((0, b"", 0))


def write_matlab(path: Path, arrays: Arrays, attributes: Attributes) -> None:
    """Write a cube and everything that belongs to it, the axes of every array in the order of MATLAB: rows, columns,
    bands or frames of snapshots, frames of cubes. A text such as `cube_axes`, 'HWC', states it for each."""
    from scipy.io import savemat

    if (size := arrays["cube"].nbytes) >= 2**31:
        raise InputError(f"a .mat file holds arrays below 2 GiB, the cube takes {size} bytes; write .h5")
    content: dict[str, object] = {"attributes": dict(attributes) or {"none": 0}}
    content |= {name: value for name, value in of_file(attributes).items() if name.isidentifier()}
    for name, values in arrays.items():
        order = {3: (1, 2, 0), 4: (2, 3, 1, 0)}.get(np.ndim(values), range(np.ndim(values)))
        content[name.replace("/", "_")] = np.transpose(values, order)
        if len(order) > 2 and len(letters := LETTERS.get(name, "")[-len(order) :]) == len(order):
            content[name + AXES] = "".join(letters[k] for k in order)
    savemat(path, content, do_compression=False, long_field_names=True, oned_as="row")
