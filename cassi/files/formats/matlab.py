"""Read the numeric arrays of MATLAB v5 files (saved with -v6 or -v7) with scipy, and write them.

A file is a list of elements, each a tag (type, bytes) and its data, packed with zlib or not (MathWorks, "MAT-File
Format", level 5). Only the headers of the variables are parsed here: scipy reports neither the stored type of numbers
nor whether they are complex, and crashes the process on an invalid type.
"""

import math
import os
import struct
import zlib
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.container import (
    LETTERS,
    Container,
    CubeContent,
    Entry,
    Selection,
    check_size,
    covers,
    damage_as_input_error,
    read_once,
)
from cassi.files.statements import companions

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
ENCODINGS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}  # of text, by its type
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
        if covers(picked, entry.shape):
            return np.asarray(_variable(path, entry.name), dtype=entry.dtype)
        itemsize = entry.itemsize if entry.packed is None else entry.packed.itemsize
        check_size(path, f"'{entry.name}' {entry.shape}, read whole in this format,", math.prod(entry.shape) * itemsize)
        return np.array(read_once(_variable, path, entry.name)[picked], dtype=entry.dtype)

    return Container(path, "MATLAB v5", entries, read, attributes, bands_last=True)


def _variable(path: Path, name: str) -> np.ndarray:
    from scipy.io import loadmat

    values: np.ndarray = loadmat(os.fspath(path), appendmat=False, variable_names=[name])[name]
    return values


def _variables(path: Path) -> tuple[tuple[Entry, ...], dict[str, object]]:
    """Walk the elements of the file and read the header of each variable; also short texts and single numbers."""
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
            entry = _header(head, order)
            if entry.name not in variables:  # scipy reads the first of several with one name
                variables[entry.name] = entry
                if (value := _value(entry, head, order)) is not None:
                    values[entry.name] = value
            file.seek(position + 8 + size)
    return tuple(variables.values()), values


def _value(entry: Entry, head: bytes, order: str) -> object:
    """A text or a single number that lies within the first bytes of its variable; None for anything else."""
    is_text = entry.problem == OTHER_CLASSES[TEXT]
    if not is_text and (entry.dtype is None or entry.dtype.kind == "c" or math.prod(entry.shape) != 1):
        return None
    after = 0
    for _ in range(4):  # flags, sizes, name, data
        kind, at, size, after = _element(head, after, order)
    data = head[at : at + size]
    if is_text:
        name = ENCODINGS.get(kind, "latin-1")
        wide = "" if name in ("latin-1", "utf-8") else "-le" if order == "<" else "-be"
        return data.decode(name + wide, errors="replace") if len(data) == size else None
    return np.frombuffer(data, order + TYPES[kind], 1)[0].item() if len(data) == size else None


def _header(head: bytes, order: str) -> Entry:
    """Parse a variable from its first bytes."""
    _, at, size, after = _element(head, 0, order)
    flags = struct.unpack_from(order + "I", head, at)[0]
    kind = flags & 0xFF
    _, at, size, after = _element(head, after, order)
    # Objects of the newest kind have their name in place of the sizes; they are only listed.
    shape = () if kind == OPAQUE else struct.unpack_from(f"{order}{size // 4}i", head, at)
    if kind != OPAQUE:
        _, at, size, after = _element(head, after, order)
    name = head[at : at + size].decode("latin-1")
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise ValueError(f"'{name}' of shape {shape}")
    if kind not in NUMERIC:
        return Entry(name, shape, None, problem=OTHER_CLASSES.get(kind, "a MATLAB object or function"))
    if flags & COMPLEX:
        return Entry(name, shape, np.dtype(complex))
    type_, _, size, _ = _element(head, after, order)
    if type_ not in TYPES or math.prod(shape) * np.dtype(TYPES[type_]).itemsize != size:
        raise ValueError(f"'{name}' of shape {shape} holds {size} bytes of type {type_}")
    dtype, stored = np.dtype(bool if flags & LOGICAL else NUMERIC[kind]), np.dtype(TYPES[type_])
    return Entry(name, shape, dtype, packed=stored if dtype.kind == "f" and stored.kind in "iu" else None)


def _element(head: bytes, at: int, order: str) -> tuple[int, int, int, int]:
    """Type, position and size of the element whose tag is at `at`, and the position of the next one."""
    kind, size = struct.unpack_from(order + "II", head, at)
    if kind >> 16:  # the short form has its data in the tag
        return kind & 0xFFFF, at + 4, kind >> 16, at + 8
    return kind, at + 8, size, at + 8 + -(-size // 8) * 8


def write_matlab(path: Path, content: CubeContent) -> None:
    """Write a cube and everything that belongs to it, the axes of every array in the order of MATLAB: rows, columns,
    bands or frames of snapshots, frames of cubes. A text such as `cube_axes`, 'HWC', states it for each."""
    from scipy.io import savemat

    cube = content.cube
    if cube.nbytes >= 2**31:
        raise InputError(f"a .mat file holds arrays below 2 GiB, the cube takes {cube.nbytes} bytes; write .h5")
    arrays = {"cube": cube}
    if content.wavelengths is not None:
        arrays["wavelengths"] = content.wavelengths
    arrays |= {name.replace("/", "_"): values for name, values in content.datasets.items()}
    order = {3: (1, 2, 0), 4: (2, 3, 1, 0)}
    rest: dict[str, object] = {"attributes": dict(content.attributes) or {"none": 0}}
    for name, values in arrays.items():
        if (turned := order.get(np.ndim(values))) is not None:
            arrays[name] = np.transpose(values, turned)
            letters = LETTERS.get(name, "")[-len(turned) :]
            if len(letters) == len(turned):
                rest[name + AXES] = "".join(letters[k] for k in turned)
    savemat(path, arrays | rest, do_compression=False, long_field_names=True, oned_as="row")
