"""Read and write HDF5; read MATLAB v7.3, which is HDF5 with reversed axes. Data in other files are not read."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import h5py
import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.atomic import UNABLE, FirstError
from cassi.files.container import (
    LETTERS,
    LISTS,
    NAMES,
    SLACK,
    Arrays,
    Attributes,
    Container,
    Entry,
    Selection,
    damage_as_input_error,
)
from cassi.files.formats.hdf5_filters import check_chunks, missing_filter
from cassi.files.statements import MAX_STATED, companions, letters, of_file, stated, statement_of, word_of
from cassi.signals import signals_held

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_TEXT = 100  # letters or words of a statement
OF_LISTS = {word_of(name) for role in LISTS for name in NAMES[role]}
MATLAB_PRIVATE = ("#refs#/", "#subsystem#/")  # groups with the content of cells and objects


def open_hdf5(path: Path) -> Container:
    """Open an HDF5 file as a `Container`; arrays of MATLAB v7.3, stored reversed, have the axes of MATLAB."""
    with path.open("rb") as head:
        matlab = head.read(19) == b"MATLAB 7.3 MAT-file"
    file_format = "MATLAB v7.3" if matlab else "HDF5"
    entries: list[Entry] = []
    attributes: dict[str, object] = {}

    def visit(name: str | bytes, node: h5py.HLObject) -> None:  # bytes: not UTF-8
        if not isinstance(name, str) or name.startswith(MATLAB_PRIVATE):
            return
        if not isinstance(node, h5py.Dataset):
            said = _attributes(node)
            attributes.update(of_file(said) | {k: v for k, v in said.items() if word_of(k) in OF_LISTS} | attributes)
        elif not (name in COUNTERS and node.is_scale):
            entries.append(_entry(name, node))
            is_number = "MATLAB_class" in node.attrs and entries[-1].dtype is not None
            if 0 < node.size <= (MAX_STATED if is_number else MAX_TEXT) and (
                is_number or entries[-1].problem == "text"
            ):
                check_chunks(path, node, (slice(None),) * node.ndim)
                attributes.setdefault(name, _value(node))

    with damage_as_input_error(path, file_format), open_file(path) as file:
        attributes |= _attributes(file)
        file.visititems(visit)
    matlab = matlab or any("MATLAB_class" in entry.attributes for entry in entries)
    arrays, attributes = companions(entries, attributes)

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        reverse = "MATLAB_class" in entry.attributes
        with open_file(path) as file:
            dataset = file[entry.name]
            needed, stored = missing_filter(dataset), picked[::-1] if reverse else picked
            try:
                check_chunks(path, dataset, stored)
                values = np.asarray(dataset[stored])
            except (OSError, ValueError) as error:
                if needed:
                    raise InputError(f"{path}: '{entry.name}' {needed}") from error
                raise
        values = values.T if reverse else values
        return values.astype(bool) if entry.dtype == np.dtype(bool) else values

    return Container(path, file_format, arrays, read, attributes, bands_last=matlab)


def open_file(path: Path) -> h5py.File:
    """The file, opened to be read; without a lock on a drive that has none (HDF5 itself knows only some of these).

    Raises:
        InputError: another program writes it.
        OSError: it cannot be opened.
    """
    try:
        return h5py.File(path, "r", locking="best-effort")
    except BlockingIOError as error:
        raise InputError(f"{path}: another program has it open to write it; close it there") from error
    except OSError as error:
        if error.errno not in UNABLE:
            raise
        return h5py.File(path, "r", locking=False)


def _attributes(node: h5py.HLObject) -> dict[str, object]:
    """The attributes of a node that are numbers or text; ValueError where these take more memory than they may."""
    attributes: dict[str, object] = {}
    held = 0
    for name in node.attrs:
        stored = node.attrs.get_id(name)
        if stored.get_space().get_simple_extent_type() == h5py.h5s.NULL or 0 in stored.shape:
            continue
        if stored.dtype.kind == "O" and stored.shape and statement_of(name) != "axes":
            continue  # texts or references, which may all be one, stored once
        if stored.get_storage_size() <= SLACK:
            value = node.attrs[name]
            if np.asarray(value).dtype.kind == "S":
                value = (
                    np.char.decode(value, errors="replace") if np.ndim(value) else bytes(value).decode(errors="replace")
                )
            held += len(value) if isinstance(value, str) else np.asarray(value).nbytes
        if held > SLACK or stored.get_storage_size() > SLACK:
            raise ValueError(f"the attributes up to '{one_line(name, 40)}' take more than {SLACK} bytes")
        if stored.dtype.kind == "O" and stored.shape:
            value = list(map(str, np.ravel(value)[:MAX_TEXT]))
        if isinstance(value, str) or np.asarray(value).dtype.kind in "biufSU":
            attributes[str(name)] = value
    return attributes


def _entry(name: str, dataset: h5py.Dataset) -> Entry:
    if dataset.is_virtual or dataset.external or dataset.shape is None:
        return Entry(name, (), None, problem="without data, or with data stored in another file, which is not read")
    attributes = _attributes(dataset)
    if "MATLAB_class" in dataset.attrs:
        attributes.setdefault("MATLAB_class", "")
    shape, dtype = dataset.shape, dataset.dtype
    if dtype.names is not None and [n.lower() for n in dtype.names] == ["real", "imag"]:
        dtype = np.dtype(complex)  # complex numbers of MATLAB
    is_text = h5py.check_string_dtype(dtype) is not None or attributes.get("MATLAB_class") == "char"
    if is_text or dtype.kind not in "biufc":
        return Entry(name, shape, None, problem="text" if is_text else "a table, cell or reference")
    if "MATLAB_class" in attributes:
        # An empty MATLAB array is stored as its own size vector.
        shape = (0,) if attributes.get("MATLAB_empty") else shape[::-1]
        if attributes["MATLAB_class"] == "logical":
            dtype = np.dtype(bool)
    # The names of the axes, as NetCDF-4 and the dimension scales of HDF5 have them.
    words = [dim.label or (str(dim[0].name).rpartition("/")[2] if len(dim) else "") for dim in dataset.dims]
    axes = letters(words, len(shape)) if shape and "axes" not in map(statement_of, attributes) else None
    return stated(Entry(name, shape, dtype, axes), attributes)


def _value(dataset: h5py.Dataset) -> object:
    """A short text, which MATLAB stores as the numbers of its letters; or of MATLAB a number, or some."""
    value = dataset[()]
    if dataset.attrs.get("MATLAB_class") == b"char":
        return "".join(map(chr, np.ravel(value)))
    if "MATLAB_class" in dataset.attrs:
        return np.ravel(value).tolist() if np.size(value) > 1 else np.ravel(value)[0]
    return value.decode(errors="replace") if isinstance(value, bytes) else np.asarray(value).astype(str)


AXES = {"N": "frame", "C": "band", "H": "row", "W": "column"}
COUNTERS = {*AXES.values(), *(f"detector_{name}" for name in AXES.values())}  # axes of this program that only count


def label_axes(file: h5py.File, mask: str = "NCHW") -> None:
    """Give every array an axis by name, as NetCDF-4 and NeXus do, so that other programs know which is which.

    Frames and bands are counted from 1, rows and columns from 0. Bands whose wavelengths are known have these. An axis
    of another length than the cube's, as the columns of the detector, has a name of its own; `mask` are the letters of
    the axes of a mask. `/entry/data` is the cube with its axes for NeXus.
    """
    arrays = {name: node for name, node in file.items() if isinstance(node, h5py.Dataset) and node.ndim > 0}
    names: dict[tuple[str, int], str] = {}
    for name in sorted(arrays, key=lambda one: (one not in ("cube", "wavelengths"), one)):
        array = arrays[name]
        letters = (LETTERS | {"mask": mask}).get(name, "")[-array.ndim :]
        letters = letters if len(letters) == array.ndim else "?" * array.ndim
        for k, (letter, length) in enumerate(zip(letters, array.shape, strict=True)):
            if (letter, length) not in names:
                plain = AXES.get(letter, "index")
                choice = (plain, f"detector_{plain}", f"{name}_{plain}", f"{name}_{plain}_{length}")
                known = letter == "C" and "wavelengths" in arrays and arrays["wavelengths"].shape == (length,)
                axis = "wavelengths" if known else next(word for word in choice if word not in names.values())
                names[letter, length] = axis
                if axis not in file:
                    numbers = np.arange(letter in "NC", length + (letter in "NC"), dtype=np.int32)
                    file.create_dataset(axis, data=numbers, track_times=False)
                if not file[axis].is_scale:
                    file[axis].make_scale(axis)
            if (axis := names[letter, length]) != name:
                array.dims[k].attach_scale(file[axis])
    if "cube" in arrays:
        axes = [dim[0].name.strip("/") for dim in arrays["cube"].dims]
        data = file.create_group("entry", track_times=False).create_group("data", track_times=False)
        file["entry"].attrs.update({"NX_class": "NXentry", "default": "data"})
        data.attrs.update({"NX_class": "NXdata", "signal": "cube", "interpretation": "image"})
        data.attrs["axes"] = np.array(axes, dtype="S")
        for name in ("cube", *axes):
            data[name] = h5py.SoftLink(f"/{name}")
    units = {"wavelengths": "nm", **dict.fromkeys(("cube", "uncertainty"), file.attrs.get("unit"))}
    for name, unit in units.items():
        if name in arrays and unit:
            arrays[name].attrs["units"] = unit


@contextmanager
def new_hdf5(path: Path, mask: str = "NCHW") -> Iterator[h5py.File]:
    """A new file to fill, whose axes are labelled at the end, see `label_axes`.

    Raises:
        OSError: it could not be written, once HDF5 has closed it.
    """
    with FirstError(path, "w+") as target:
        file = h5py.File(target, "w")
        try:
            yield file
            with signals_held():
                label_axes(file, mask)
        finally:
            with signals_held():  # closing writes the buffers of HDF5
                file.close()
            if target.error is not None:
                raise target.error


def write_hdf5(
    path: Path, arrays: Arrays, attributes: Attributes, axes: Mapping[str, str] = MappingProxyType({"cube": "NCHW"}),
    compress: bool = False,
) -> None:  # fmt: skip
    """Write named arrays, with the letters of their axes, and the attributes of the file."""
    with new_hdf5(path, axes.get("mask", "NCHW")) as file:
        for name, values in arrays.items():
            values = np.asarray(values)
            # Shuffled bytes, and chunks of one image, so that single frames or bands can be read.
            options: dict[str, Any] = {}
            if compress and values.size > 1:
                chunks = (1,) * (values.ndim - 2) + values.shape[-2:] if values.ndim > 2 else values.shape
                options = {"compression": "gzip", "compression_opts": 4, "shuffle": True, "chunks": chunks}
            dataset = file.create_dataset(name, data=values, track_times=False, **options)
            if name in axes:
                dataset.attrs["axes"] = np.bytes_(axes[name][-values.ndim :])
        file.attrs.update(attributes)
