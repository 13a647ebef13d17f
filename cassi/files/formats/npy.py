"""Read .npy and .npz files, and write .npz; objects are never pickled."""

import json
import zipfile
from pathlib import Path
from typing import IO

import numpy as np
from numpy.lib import format as npy

from cassi.errors import InputError, one_line
from cassi.files.container import Container, CubeContent, Entry, Selection, damage_as_input_error


def open_npy(path: Path) -> Container:
    """Open a .npy file as a `Container` with one entry named after the file, memory-mapped."""
    with damage_as_input_error(path, ".npy"), path.open("rb") as file:
        entry = _header(path.stem, file)

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        return np.array(np.load(path, mmap_mode="r", allow_pickle=False)[picked])

    return Container(path, ".npy", (entry,), read)


def open_npz(path: Path) -> Container:
    """Open a .npz file as a `Container`; only headers are read at first, data on demand."""
    entries = []
    with damage_as_input_error(path, ".npz"), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        for name in names:
            if name.endswith(".npy"):
                with archive.open(name) as file:
                    entries.append(_header(name.removesuffix(".npy"), file))
    if names and not entries:
        if any(name.endswith("data.pkl") for name in names):
            raise InputError(f"{path}: this is a PyTorch file; save its array with numpy.save")
        shown = ", ".join(one_line(name, 40) for name in names[:3])
        raise InputError(f"{path}: this is a zip archive without arrays, of {shown} ...; unpack it first")

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        with zipfile.ZipFile(path) as archive, archive.open(entry.name + ".npy") as file:
            values = npy.read_array(file, allow_pickle=False)
        return values[picked]

    return Container(path, ".npz", tuple(entries), read)


def write_npz(path: Path, content: CubeContent) -> None:
    """Write everything, the attributes as one text in JSON."""
    bands = {} if content.wavelengths is None else {"wavelengths": content.wavelengths}
    arrays = {"cube": content.cube, **bands, **content.datasets}
    with path.open("wb") as file:
        np.savez_compressed(file, attributes=json.dumps(content.attributes), **arrays)  # type: ignore[arg-type]


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
