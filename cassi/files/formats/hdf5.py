"""Read and write HDF5; read MATLAB v7.3 and NetCDF-4, all without leaving the file.

Only hard links are walked. External links, virtual datasets and external storage name other files and are listed
but never opened; a soft link is taken only where it points at an array found through hard links.
"""

from __future__ import annotations

import itertools
import math
import posixpath
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.errors import InputError
from cassi.files.atomic import hdf5_target
from cassi.files.container import (
    MAX_READ_CHUNKS,
    Container,
    CubeContent,
    Entry,
    Selection,
    allowed,
    bomb,
    check_inflated,
    damage_as_input_error,
    declared_bytes,
)
from cassi.files.formats.netcdf import as_unsigned, unpack

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_OBJECTS = 10_000
MAX_ATTRIBUTE_BYTES = 1 << 20
# Groups in which MATLAB keeps the inside of cells and objects.
MATLAB_PRIVATE = {"#refs#", "#subsystem#"}
SHUFFLE, FLETCHER32, DEFLATE = 2, 3, 1  # filters by their number in the file


def is_hdf5(path: Path) -> bool:
    """Whether HDF5's signature stands at byte 0, 512, 1024, 2048 ...: a user may keep a block of bytes in front."""
    size = path.stat().st_size
    with path.open("rb") as file:
        for offset in (0, *(512 << k for k in range(32))):
            if offset >= size:
                return False
            file.seek(offset)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return True
    return False


def open_hdf5(path: Path, trusted: bool = False) -> Container:
    """Open an HDF5 file (also MATLAB v7.3 and NetCDF-4) as a `Container`.

    MATLAB stores its arrays with reversed axes; they are listed and read in MATLAB's own order.

    Raises:
        InputError: damaged file, or too many objects.
    """
    import h5py

    with path.open("rb") as head:
        matlab = head.read(19) == b"MATLAB 7.3 MAT-file"
    file_format = "MATLAB v7.3" if matlab else "HDF5"
    with damage_as_input_error(path, file_format), h5py.File(path, "r", locking="best-effort") as file:
        attributes = _attributes(file, trusted)
        entries = tuple(_walk(path, file, trusted))
    netcdf = "_NCProperties" in attributes or path.suffix in (".nc", ".nc4")
    if netcdf:
        file_format, entries = "NetCDF", tuple(as_unsigned(entry) for entry in entries)

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        values = _read_dataset(path, entry, picked)
        return unpack(values, entry.attributes) if netcdf else values

    matlab = matlab or any("MATLAB_class" in entry.attributes for entry in entries)
    return Container(path, file_format, entries, read, attributes, bands_last=matlab)


def _text(name: str | bytes) -> str:
    """A name as text; h5py hands out bytes where they are no UTF-8, and old programs wrote Latin-1."""
    if isinstance(name, str):
        return name
    try:
        return name.decode()
    except UnicodeDecodeError:
        return name.decode("latin-1")


def _raw(name: str | bytes) -> bytes:
    return name if isinstance(name, bytes) else name.encode("utf-8", "surrogateescape")


def _attributes(node: h5py.HLObject, trusted: bool) -> dict[str, object]:
    """Return the small attributes of a node that are numbers or text.

    Text of variable length is left out unless the file is trusted: HDF5 takes as much memory as the file says such a
    text is long, or runs in circles where its heap is damaged, and neither can be seen before.
    """
    import h5py

    found: dict[str, object] = {}
    for name in node.attrs:
        attribute = h5py.h5a.open(node.id, _raw(name))
        text = h5py.check_string_dtype(attribute.dtype)
        known = attribute.dtype.kind in "biufSU" or (trusted and text is not None)
        if not known or attribute.get_storage_size() > MAX_ATTRIBUTE_BYTES:
            continue
        value = node.attrs[name]
        found[_text(name)] = value.decode(errors="replace") if isinstance(value, bytes) else value
    return found


def _walk(path: Path, file: h5py.File, trusted: bool) -> list[Entry]:
    """List every dataset that hard links reach, and the links that are not followed."""
    import h5py

    entries: dict[str, Entry] = {}
    soft: dict[str, str] = {}
    seen: set[int] = set()
    pending: list[tuple[str, bytes, h5py.Group]] = [("", b"", file["/"])]
    while pending:
        prefix, raw_prefix, group = pending.pop(0)
        address = h5py.h5o.get_info(group.id).addr
        if address in seen:  # hard links may form a circle
            continue
        seen.add(address)
        for key in group:
            name, raw = prefix + _text(key), _raw(key)
            if len(entries) + len(seen) > MAX_OBJECTS:
                raise InputError(f"{path}: more than {MAX_OBJECTS} objects: not a measurement file")
            links = group.id.links  # by bytes: the text methods of h5py take UTF-8 only
            kind = links.get_info(raw).type
            if kind == h5py.h5l.TYPE_EXTERNAL:
                elsewhere = _text(links.get_val(raw)[0])
                entries[name] = Entry(name, (), None, problem=f"an external link to the file {elsewhere!r}")
            elif kind == h5py.h5l.TYPE_SOFT:
                soft[name] = posixpath.normpath(posixpath.join("/" + prefix, _text(links.get_val(raw)))).strip("/")
            elif kind != h5py.h5l.TYPE_HARD:
                entries[name] = Entry(name, (), None, problem="a link of unknown kind to another file")
            elif key not in MATLAB_PRIVATE:
                node = h5py.h5o.open(group.id, raw)
                if isinstance(node, h5py.h5g.GroupID):
                    pending.append((name + "/", raw_prefix + raw + b"/", h5py.Group(node)))
                elif isinstance(node, h5py.h5d.DatasetID):
                    entry = _dataset_entry(path, name, node, trusted)
                    if entry is not None:
                        place = {"_place": raw_prefix + raw}
                        entries[name] = replace(entry, attributes={**entry.attributes, **place})
    for name, target in soft.items():
        if target in entries:
            entries[name] = replace(entries[target], name=name)
        else:
            problem = f"a soft link to {target!r}, which is no array of this file"
            entries[name] = Entry(name, (), None, problem=problem)
    return list(entries.values())


def _dataset_entry(path: Path, name: str, node: h5py.h5d.DatasetID, trusted: bool) -> Entry | None:
    """Describe one dataset, None for one that only names a dimension.

    Its layout is looked at first, because even the shape of a virtual one may open files.
    """
    import h5py

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
    if dtype.names is not None and [n.lower() for n in dtype.names] == ["real", "imag"]:
        dtype = np.dtype(complex)  # MATLAB's complex numbers
    chunk = declared_bytes(dataset.chunks, dtype.itemsize) if dataset.chunks else 0
    size = max(declared_bytes(dataset.shape, dtype.itemsize), chunk)
    problem = None
    if h5py.check_string_dtype(dtype) is not None or attributes.get("MATLAB_class") == "char":
        problem = "text"
    elif dtype.kind not in "biufc":
        problem = "a table, cell or reference"
    elif "_Unsigned" in dataset.attrs and "_Unsigned" not in attributes:
        problem = "a variable with _Unsigned as text of variable length, which is not read (save unsigned numbers)"
    elif not trusted:
        problem = bomb(path, size)
    if problem is not None:
        return Entry(name, dataset.shape, None, problem=problem, attributes=attributes)
    shape = dataset.shape
    if "MATLAB_class" in attributes:
        # An empty MATLAB array is stored as its own size vector.
        shape = (0,) if attributes.get("MATLAB_empty") else shape[::-1]
        if attributes["MATLAB_class"] == "logical":
            dtype = np.dtype(bool)
    # The axis letters that this project writes beside its arrays.
    axes = attributes.get("axes")
    known = isinstance(axes, str) and set(axes) <= set("NCHW") and len(set(axes)) == len(axes) == dataset.ndim
    return Entry(name, shape, dtype, axes=str(axes) if known else None, attributes=attributes)


def _read_dataset(path: Path, entry: Entry, picked: Selection) -> np.ndarray:
    import h5py

    reverse = "MATLAB_class" in entry.attributes
    picked = picked[::-1] if reverse else picked
    with h5py.File(path, "r", locking="best-effort") as file:
        dataset = h5py.Dataset(h5py.h5d.open(file.id, entry.attributes["_place"]))
        _check_chunks(path, entry.name, dataset, picked)
        values = np.asarray(dataset[picked])
    values = values.T if reverse else values
    return values.astype(bool) if entry.dtype == np.dtype(bool) else values


def _check_chunks(path: Path, name: str, dataset: h5py.Dataset, picked: Selection) -> None:
    """Check the chunks that are about to be read: HDF5 itself would unpack without end, or take what lies behind a
    chunk that was cut short for data."""
    if dataset.chunks is None:
        return
    properties = dataset.id.get_create_plist()
    filters = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    resizing = [number for number in filters if number not in (SHUFFLE, FLETCHER32)]
    if len(set(filters)) < len(filters) or DEFLATE in resizing[:-1]:
        raise InputError(f"{path}: '{name}' is packed several times over: refused as a bomb; save it packed once")
    starts = []
    for size, chunk, part in zip(dataset.shape, dataset.chunks, picked, strict=True):
        first, stop, _ = part.indices(size)
        starts.append(range(first // chunk * chunk, max(stop, first), chunk))
    count = math.prod(len(part) for part in starts)
    if count > allowed(MAX_READ_CHUNKS):
        raise InputError(
            f"{path}: '{name}' is cut into {count} chunks of {dataset.chunks}: save it in larger ones, read fewer "
            f"frames, or raise the environment variable CASSI_READ_LIMIT"
        )
    limit = declared_bytes(dataset.chunks, dataset.dtype.itemsize)
    spare = (4 if FLETCHER32 in filters else 0) + (4096 if len(resizing) > 1 else 0)
    for offset in itertools.product(*starts):
        info = dataset.id.get_chunk_info_by_coord(offset)
        if info.byte_offset is None:  # never written: reads as the fill value
            continue
        packed = [n for i, n in enumerate(filters) if n in resizing and not info.filter_mask >> i & 1]
        if not packed and not limit <= info.size <= limit + spare:
            raise InputError(f"{path}: '{name}' is damaged, a chunk holds {info.size} bytes where {limit} are declared")
        if info.size > 2 * limit + 4096:
            raise InputError(f"{path}: '{name}' holds a chunk larger than its shape allows: refused as a bomb")
        if packed and packed[-1] == DEFLATE:
            _, data = dataset.id.read_direct_chunk(offset)
            check_inflated(path, name, data, limit + spare, limit if packed == [DEFLATE] else 0)


def write_hdf5_arrays(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    axes: Mapping[str, str],
    attributes: Mapping[str, object],
    compress: bool,
) -> None:
    """Write arrays by their names, with the letters of their axes, and the attributes of the file."""
    import h5py

    with hdf5_target(path) as target, h5py.File(target, "w") as file:
        for name, values in arrays.items():
            values = np.asarray(values)
            # Shuffled bytes and chunks of one image: what one frame or band needs is read alone.
            options: dict[str, Any] = {}
            if compress and values.size > 1:
                chunks = (1,) * (values.ndim - 2) + values.shape[-2:] if values.ndim > 2 else values.shape
                options = {"compression": "gzip", "compression_opts": 4, "shuffle": True, "chunks": chunks}
            dataset = file.create_dataset(name, data=values, track_times=False, **options)
            if name in axes:
                dataset.attrs["axes"] = np.bytes_(axes[name][-values.ndim :])
        if "wavelengths" in file:
            file["wavelengths"].attrs["units"] = "nm"
        file.attrs.update(attributes)


def write_hdf5(path: Path, content: CubeContent) -> Mapping[str, np.ndarray]:
    """Write a cube with all that belongs to it; return the arrays written by name."""
    bands = {} if content.wavelengths is None else {"wavelengths": content.wavelengths}
    arrays = {"cube": content.cube, **bands, **content.datasets}
    write_hdf5_arrays(path, arrays, axes={"cube": "NCHW"}, attributes=content.attributes, compress=False)
    return arrays
