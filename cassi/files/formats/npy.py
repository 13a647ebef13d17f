"""Read .npy and .npz files; objects are never unpickled."""

import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from cassi.errors import InputError
from cassi.files.container import (
    Container,
    Entry,
    Selection,
    check_declared,
    damage_as_input_error,
    declared_bytes,
)


def open_npy(path: Path) -> Container:
    """Open a .npy file as a `Container` with one entry named after the file; it is mapped, not loaded.

    Raises:
        InputError: damaged header, or less data than the shape declares.
    """
    with damage_as_input_error(path, ".npy"), path.open("rb") as file:
        entry = _header(path.stem, file)
        missing = declared_bytes(entry.shape, entry.dtype.itemsize if entry.dtype else 0) - path.stat().st_size
        if missing > 0:
            raise InputError(f"{path}: cut short, its shape {entry.shape} needs at least {missing} bytes more")

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False)[picked])

    return Container(path, ".npy", (entry,), read)


def open_npz(path: Path) -> Container:
    """Open a .npz file as a `Container`; the headers of its members are read, their data only on demand.

    Raises:
        InputError: damaged archive, or one that declares far more than it holds.
    """
    entries = []
    with damage_as_input_error(path, ".npz"), zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        check_declared(path, "all arrays", size)
        for member in archive.infolist()[:1000]:
            if not member.filename.endswith(".npy"):
                continue
            with archive.open(member) as file:
                entry = _header(member.filename.removesuffix(".npy"), file)
            size = declared_bytes(entry.shape, entry.dtype.itemsize if entry.dtype else 0)
            if size > member.file_size:
                raise InputError(
                    f"{path}: '{entry.name}' is cut short, {entry.shape} needs {size} bytes, "
                    f"{member.file_size} are there"
                )
            entries.append(entry)

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        with zipfile.ZipFile(path) as archive, archive.open(entry.name + ".npy") as file:
            values = npy.read_array(file, allow_pickle=False)
        return values[picked]

    return Container(path, ".npz", tuple(entries), read)


def _header(name: str, file: IO[bytes]) -> Entry:
    version = npy.read_magic(file)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, dtype = read(file)
    if any(n < 0 for n in shape):
        raise InputError(f"'{name}' declares a negative size {shape}")
    if dtype.hasobject:
        return Entry(name, shape, None, problem="a pickled Python object, never loaded")
    if dtype.kind not in "biufc":
        return Entry(name, shape, None, problem="text" if dtype.kind in "SU" else f"a table of {dtype}")
    return Entry(name, shape, dtype)
