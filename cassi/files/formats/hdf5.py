"""Read and write HDF5; read MATLAB v7.3, which is HDF5 with reversed axes. Data in other files are not read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cassi.files.atomic import hdf5_target
from cassi.files.container import Container, CubeContent, Entry, Selection, damage_as_input_error

if TYPE_CHECKING:
    import h5py

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MATLAB_PRIVATE = ("#refs#/", "#subsystem#/")  # groups with the content of cells and objects


def open_hdf5(path: Path) -> Container:
    """Open an HDF5 file as a `Container`; arrays of MATLAB v7.3, stored reversed, have the axes of MATLAB."""
    import h5py

    with path.open("rb") as head:
        matlab = head.read(19) == b"MATLAB 7.3 MAT-file"
    file_format = "MATLAB v7.3" if matlab else "HDF5"
    entries: list[Entry] = []

    def visit(name: str | bytes, node: h5py.HLObject) -> None:  # bytes: not UTF-8
        if isinstance(name, str) and isinstance(node, h5py.Dataset) and not name.startswith(MATLAB_PRIVATE):
            entries.append(_entry(name, node))

    with damage_as_input_error(path, file_format), h5py.File(path, "r", locking="best-effort") as file:
        attributes = _attributes(file)
        file.visititems(visit)
    matlab = matlab or any("MATLAB_class" in entry.attributes for entry in entries)

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        reverse = "MATLAB_class" in entry.attributes
        with h5py.File(path, "r", locking="best-effort") as file:
            values = np.asarray(file[entry.name][picked[::-1] if reverse else picked])
        values = values.T if reverse else values
        return values.astype(bool) if entry.dtype == np.dtype(bool) else values

    return Container(path, file_format, tuple(entries), read, attributes, bands_last=matlab)


def _attributes(node: h5py.HLObject) -> dict[str, object]:
    """The attributes of a node that are numbers or text."""
    attributes: dict[str, object] = {}
    for name in node.attrs:
        value = node.attrs[name]
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if isinstance(value, str) or np.asarray(value).dtype.kind in "biufSU":
            attributes[str(name)] = value
    return attributes


def _entry(name: str, dataset: h5py.Dataset) -> Entry:
    import h5py

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
    # The letters of axes that this program writes.
    axes = attributes.get("axes")
    valid = isinstance(axes, str) and set(axes) <= set("NCHW") and len(set(axes)) == len(axes) == dataset.ndim
    return Entry(name, shape, dtype, axes=str(axes) if valid else None, attributes=attributes)


def write_hdf5_arrays(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    axes: Mapping[str, str],
    attributes: Mapping[str, object],
    compress: bool,
) -> None:
    """Write named arrays, with the letters of their axes, and the attributes of the file."""
    import h5py

    with hdf5_target(path) as target, h5py.File(target, "w") as file:
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
        if "wavelengths" in file:
            file["wavelengths"].attrs["units"] = "nm"
        file.attrs.update(attributes)


def write_hdf5(path: Path, content: CubeContent) -> None:
    """Write a cube and everything that belongs to it."""
    bands = {} if content.wavelengths is None else {"wavelengths": content.wavelengths}
    arrays = {"cube": content.cube, **bands, **content.datasets}
    write_hdf5_arrays(path, arrays, axes={"cube": "NCHW"}, attributes=content.attributes, compress=False)
