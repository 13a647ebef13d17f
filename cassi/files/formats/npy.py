"""Read .npy and .npz files, and write .npz; objects are never pickled."""

import json
import math
import os
import struct
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from cassi.errors import InputError, one_line, parse_json
from cassi.files.container import (
    Arrays,
    Attributes,
    Container,
    Entry,
    Selection,
    covers,
    damage_as_input_error,
    read_packed,
    read_plain,
)
from cassi.files.statements import MAX_STATED, companions

PICKLED = "a pickled Python object, never loaded"
MAX_VALUE_BYTES = 4096  # of a text
MAX_ATTRIBUTES_BYTES = 1 << 20  # of all attributes in one
MAX_HEADER = 2**16  # bytes of a header: numpy reads any length before it looks at it
PLAIN, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED
LENGTHS_AT = 26  # bytes from the local header of a member: the lengths of its name and extra field (APPNOTE, 4.3.7)
ENCRYPTED = 1  # flag


def open_npy(path: Path) -> Container:
    """Open a .npy file as a `Container` with one entry named after the file, memory-mapped."""
    with damage_as_input_error(path, ".npy"), path.open("rb") as file:
        entry, columns = _header(path.stem, file)
        start = file.tell()

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        return read_plain(path, picked, entry.shape, entry.dtype, start, "F" if columns else "C")

    return Container(path, ".npy", (entry,), read)


def open_npz(path: Path) -> Container:
    """Open a .npz file as a `Container`; only headers are read at first, data on demand.

    A packed array is read whole, once for all its frames; one that is stored plain (`numpy.savez`) is memory-mapped.
    """
    entries, values = [], dict[str, object]()
    with damage_as_input_error(path, ".npz"), zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        for member in members:
            if member.filename.endswith(".npy"):
                if member.compress_type not in (PLAIN, DEFLATED):
                    raise InputError(f"{path}: '{member.filename}' is packed in a rare way; save with numpy.savez")
                with archive.open(member) as file:
                    entries.append(_header(member.filename.removesuffix(".npy"), file)[0])
                if (value := _value(entries[-1], archive, member)) is not None:
                    values[entries[-1].name] = value
    names = [member.filename for member in members]
    if names and not entries:
        if any(name.endswith("data.pkl") for name in names):
            raise InputError(f"{path}: this is a PyTorch file; save its array with numpy.save")
        shown = ", ".join(one_line(name, 40) for name in names[:3])
        raise InputError(f"{path}: this is a zip archive without arrays, of {shown} ...; unpack it first")

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            member = archive.getinfo(f"{entry.name}.npy")
            is_plain = member.compress_type == PLAIN and not member.flag_bits & ENCRYPTED
            if is_plain and not covers(picked, entry.shape):
                file.seek(member.header_offset + LENGTHS_AT)
                file.seek(sum(struct.unpack("<HH", file.read(4))), os.SEEK_CUR)  # the member's name and extra field
                stored, columns = _header(entry.name, file)
                return read_plain(path, picked, stored.shape, stored.dtype, file.tell(), "F" if columns else "C")
        return read_packed(_unpack, path, entry, picked, entry.itemsize)

    arrays, attributes = companions(entries, values)
    with suppress(ValueError, TypeError):  # as `write_npz` writes them
        attributes |= parse_json(str(attributes.pop("attributes", None)))
    return Container(path, ".npz", arrays, read, attributes)


def _value(entry: Entry, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> object:
    """A text, a number or some; None for anything else."""
    most = MAX_ATTRIBUTES_BYTES if entry.name == "attributes" else MAX_VALUE_BYTES
    if not 0 < math.prod(entry.shape) <= MAX_STATED or member.file_size > most or entry.problem == PICKLED:
        return None
    with archive.open(member) as file:
        values = npy.read_array(file, allow_pickle=False).reshape(-1).tolist()
    values = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in values]
    return values if len(values) > 1 else values[0]


def write_npz(path: Path, arrays: Arrays, attributes: Attributes) -> None:
    """Write everything, the attributes as one text in JSON."""
    with path.open("wb") as file:
        np.savez_compressed(file, attributes=json.dumps(attributes), **arrays)  # type: ignore[arg-type]


def _unpack(path: Path, name: str) -> np.ndarray:
    with zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
        values: np.ndarray = npy.read_array(file, allow_pickle=False)
    return values


def _header(name: str, file: IO[bytes]) -> tuple[Entry, bool]:
    """The array that a header declares, and whether its first axis runs fastest; the file is then at its data."""
    begin = file.tell()
    major, minor = npy.read_magic(file)
    size = struct.Struct("<H" if major == 1 else "<I")
    if size.unpack(file.read(size.size))[0] > MAX_HEADER:
        raise ValueError(f"the header of '{name}' has more than {MAX_HEADER} bytes")
    file.seek(begin)
    npy.read_magic(file)
    read = npy.read_array_header_1_0 if (major, minor) == (1, 0) else npy.read_array_header_2_0
    shape, columns, dtype = read(file)
    if any(n < 0 for n in shape):
        raise InputError(f"'{name}' declares a negative size {shape}")
    if dtype.hasobject:
        return Entry(name, shape, None, problem=PICKLED), columns
    if dtype.kind not in "biufc":
        return Entry(name, shape, None, problem="text" if dtype.kind in "SU" else f"a table of {dtype}"), columns
    return Entry(name, shape, dtype), columns
