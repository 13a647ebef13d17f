"""Read HDF5 and MATLAB v7.3 without leaving the file.

Only hard links are walked. External links, virtual datasets and external storage name other files and are listed
but never opened; a soft link is taken only where it points at an array found through hard links.
"""

import itertools
import posixpath
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from cassi.errors import InputError
from cassi.files.container import (
    Container,
    Entry,
    Selection,
    check_declared,
    check_inflated,
    damage_as_input_error,
    declared_bytes,
)
from cassi.files.formats.netcdf import unpack

MAX_OBJECTS = 10_000
MAX_ATTRIBUTE_BYTES = 1 << 20
# Groups in which MATLAB keeps the inside of cells and objects.
MATLAB_PRIVATE = {"#refs#", "#subsystem#"}


def open_hdf5(path: Path, trusted: bool = False) -> Container:
    """Open an HDF5 file (also MATLAB v7.3 and NetCDF-4) as a `Container`.

    MATLAB stores its arrays with reversed axes; they are listed and read in MATLAB's own order.

    Raises:
        InputError: damaged file, or too many objects.
    """
    with path.open("rb") as head:
        matlab = head.read(19) == b"MATLAB 7.3 MAT-file"
    file_format = "MATLAB v7.3" if matlab else "HDF5"
    with damage_as_input_error(path, file_format), h5py.File(path, "r", locking="best-effort") as file:
        attributes = _attributes(file, trusted)
        entries = tuple(_walk(path, file))
    netcdf = "_NCProperties" in attributes or path.suffix in (".nc", ".nc4")
    file_format = "NetCDF" if netcdf else file_format

    def read(entry: Entry, selection: Selection | None) -> np.ndarray:
        values = _read_dataset(path, entry, selection)
        return unpack(values, entry.attributes) if netcdf else values

    matlab = matlab or any("MATLAB_class" in entry.attributes for entry in entries)
    return Container(path, file_format, entries, read, attributes, bands_last=matlab)


def _attributes(node: h5py.HLObject, trusted: bool) -> dict[str, object]:
    """Return the small attributes of a node that are numbers or text.

    Text of variable length is left out unless the file is trusted: HDF5 takes as much memory as the file says such a
    text is long, or runs in circles where its heap is damaged, and neither can be seen before.
    """
    found: dict[str, object] = {}
    for name in node.attrs:
        attribute = h5py.h5a.open(node.id, name.encode())
        text = h5py.check_string_dtype(attribute.dtype)
        known = attribute.dtype.kind in "biufSU" or (trusted and text is not None)
        if not known or attribute.get_storage_size() > MAX_ATTRIBUTE_BYTES:
            continue
        value = node.attrs[name]
        found[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return found


def _walk(path: Path, file: h5py.File) -> list[Entry]:
    """List every dataset that hard links reach, and the links that are not followed."""
    entries: dict[str, Entry] = {}
    soft: dict[str, str] = {}
    seen: set[int] = set()
    pending: list[tuple[str, h5py.Group]] = [("", file["/"])]
    while pending:
        prefix, group = pending.pop(0)
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:  # hard links may form a circle
            continue
        seen.add(address)
        for key in group:
            name = prefix + key
            if len(entries) + len(seen) > MAX_OBJECTS:
                raise InputError(f"{path}: more than {MAX_OBJECTS} objects: not a measurement file")
            link = group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink):
                entries[name] = Entry(name, (), None, problem=f"an external link to the file {link.filename!r}")
            elif isinstance(link, h5py.SoftLink):
                soft[name] = posixpath.normpath(posixpath.join("/" + prefix, link.path)).strip("/")
            elif not isinstance(link, h5py.HardLink):
                entries[name] = Entry(name, (), None, problem="a link of unknown kind to another file")
            elif key not in MATLAB_PRIVATE:
                node = h5py.h5o.open(group.id, key.encode())
                if isinstance(node, h5py.h5g.GroupID):
                    pending.append((name + "/", h5py.Group(node)))
                elif isinstance(node, h5py.h5d.DatasetID):
                    entry = _dataset_entry(path, name, node)
                    entries |= {} if entry is None else {name: entry}
    for name, target in soft.items():
        if target in entries:
            entries[name] = replace(entries[target], attributes={**entries[target].attributes, "_target": target})
            entries[name] = replace(entries[name], name=name)
        else:
            problem = f"a soft link to {target!r}, which is no array of this file"
            entries[name] = Entry(name, (), None, problem=problem)
    return list(entries.values())


def _dataset_entry(path: Path, name: str, node: h5py.h5d.DatasetID) -> Entry | None:
    """Describe one dataset, None for one that only names a dimension.

    Its layout is looked at first, because even the shape of a virtual one may open files.
    """
    properties = node.get_create_plist()
    if properties.get_layout() == h5py.h5d.VIRTUAL:
        return Entry(name, (), None, problem="a virtual dataset whose data are in another file")
    if properties.get_external_count() > 0:
        return Entry(name, (), None, problem="a dataset whose data are stored in another file")
    dataset = h5py.Dataset(node)
    if dataset.shape is None:
        return Entry(name, (), None, problem="a dataset without data")
    attributes = _attributes(dataset, trusted=False)
    if "MATLAB_class" in dataset.attrs:
        attributes.setdefault("MATLAB_class", "")
    if str(attributes.get("NAME", "")).startswith("This is a netCDF dimension but not a netCDF variable"):
        return None
    dtype = dataset.dtype
    if h5py.check_string_dtype(dtype) is not None or attributes.get("MATLAB_class") == "char":
        return Entry(name, dataset.shape, None, problem="text", attributes=attributes)
    if dtype.names is not None and [n.lower() for n in dtype.names] == ["real", "imag"]:
        dtype = np.dtype(complex)  # MATLAB's complex numbers
    if dtype.kind not in "biufc":
        return Entry(name, dataset.shape, None, problem="a table, cell or reference", attributes=attributes)
    stored = path.stat().st_size
    chunk = declared_bytes(dataset.chunks, dtype.itemsize) if dataset.chunks else 0
    try:
        check_declared(path, name, max(declared_bytes(dataset.shape, dtype.itemsize), chunk), stored)
    except InputError:
        size = max(declared_bytes(dataset.shape, dtype.itemsize), chunk)
        problem = (
            f"a dataset of shape {dataset.shape} that declares {size / 2**20:.0f} MiB where the whole file has "
            f"{stored / 2**20:.3f} MiB (a decompression bomb; if the data are real, save them without compression)"
        )
        return Entry(name, dataset.shape, None, problem=problem)
    shape = dataset.shape
    if "MATLAB_class" in attributes:
        # An empty MATLAB array is stored as its own size vector.
        shape = (0,) if attributes.get("MATLAB_empty") else shape[::-1]
        if attributes["MATLAB_class"] == "logical":
            dtype = np.dtype(bool)
    return Entry(name, shape, dtype, axes=_axes(dataset, attributes), attributes=attributes)


def _axes(dataset: h5py.Dataset, attributes: dict[str, object]) -> str | None:
    """Return the axis letters that this project writes beside its arrays, or None."""
    axes = attributes.get("axes")
    known = isinstance(axes, str) and set(axes) <= set("NCHW") and len(axes) == dataset.ndim
    return str(axes) if known else None


def _read_dataset(path: Path, entry: Entry, selection: Selection | None) -> np.ndarray:
    target = str(entry.attributes.get("_target", entry.name))
    reverse = "MATLAB_class" in entry.attributes
    picked = selection if selection is not None else tuple(slice(None) for _ in entry.shape)
    picked = picked[::-1] if reverse else picked
    with h5py.File(path, "r", locking="best-effort") as file:
        dataset = h5py.Dataset(h5py.h5d.open(file.id, target.encode()))
        _check_chunks(path, entry.name, dataset, picked)
        values = np.asarray(dataset[picked])
    values = values.T if reverse else values
    return values.astype(bool) if entry.dtype == np.dtype(bool) else values


def _check_chunks(path: Path, name: str, dataset: h5py.Dataset, picked: Selection) -> None:
    """Refuse deflate chunks that unpack to more than a chunk: HDF5 itself would grow its buffer without end."""
    if dataset.chunks is None or dataset.compression is None:
        return
    limit = declared_bytes(dataset.chunks, dataset.dtype.itemsize)
    starts = []
    for size, chunk, part in zip(dataset.shape, dataset.chunks, picked, strict=True):
        first, stop, _ = part.indices(size)
        starts.append(range(first // chunk * chunk, max(stop, first), chunk))
    for offset in itertools.product(*starts):
        info = dataset.id.get_chunk_info_by_coord(offset)
        if info.byte_offset is None:  # never written: reads as the fill value
            continue
        if info.size > 2 * limit + 4096:
            raise InputError(f"{path}: '{name}' holds a chunk larger than its shape allows: refused as a bomb")
        if dataset.compression == "gzip":
            _, data = dataset.id.read_direct_chunk(offset)
            check_inflated(path, name, data, limit)
