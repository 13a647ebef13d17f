"""Read and write ENVI files through `spectral`."""

import os
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.container import Container, CubeContent, Entry, Selection, damage_as_input_error, optional

FILE_TYPES = ("envi", "envi standard", "envi spectral library")
NANOMETERS = {"nm": 1.0, "nanometers": 1.0, "nanometer": 1.0, "um": 1e3, "micrometers": 1e3, "micrometer": 1e3}


def open_envi(path: Path) -> Container:
    """Open an ENVI header and the data file beside it as a `Container` with the entry `image` (C, H, W), or (H, W).

    Wavelengths of the header become the entry `wavelengths` [nm].

    Raises:
        InputError: spectral is missing, no data file beside the header, or a damaged header.
    """
    envi = optional(path, "spectral.io.envi")
    with damage_as_input_error(path, "ENVI"):
        header = envi.read_envi_header(os.fspath(path))
        rows, columns, bands = (int(header[key]) for key in ("lines", "samples", "bands"))
        if min(rows, columns, bands) < 1:
            raise InputError(f"{path}: the ENVI header declares {bands} bands of {rows} x {columns} pixels")
        kind, order = str(header.get("file type", "ENVI")), str(header.get("interleave", "bsq"))
        if kind.lower() not in FILE_TYPES or order.lower() not in ("bsq", "bil", "bip"):
            raise InputError(f"{path}: an ENVI header of '{kind}' data in the order '{order}', expected ENVI Standard")
        data_path = _data_file(path)
        dtype = np.dtype(envi.envi_to_dtype[str(header["data type"])])
        centers = header.get("wavelength")
        unit = NANOMETERS.get(str(header.get("wavelength units", "nm")).lower(), 1.0)
        wavelengths = None if centers is None else np.array([float(value) for value in centers]) * unit
    shape = (bands, rows, columns) if bands > 1 else (rows, columns)
    entries = [Entry("image", shape, dtype.newbyteorder("="), axes="CHW"[-len(shape) :])]
    if wavelengths is not None:
        entries.append(Entry("wavelengths", wavelengths.shape, wavelengths.dtype))

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        if entry.name == "wavelengths" and wavelengths is not None:
            return wavelengths
        image = envi.open(os.fspath(path), os.fspath(data_path))
        mapped = image.open_memmap(interleave="bsq", writable=False).reshape(entry.shape)
        return np.array(mapped[picked], dtype=entry.dtype)

    return Container(path, "ENVI", tuple(entries), read)


def _data_file(header: Path) -> Path:
    """The data file beside a header, from its name alone: the header's text may not choose a file."""
    stem = header.with_suffix("")
    for suffix in ("", ".img", ".raw", ".dat", ".bsq", ".bil", ".bip", ".sli", ".hyspex"):
        candidate = Path(f"{stem}{suffix}")
        if candidate.is_file() and candidate != header:
            return candidate
    raise InputError(f"{header}: no data file beside the ENVI header, expected {stem.name}.img")


def write_envi(path: Path, content: CubeContent) -> None:
    """Write cube and wavelengths, band after band.

    Raises:
        InputError: spectral is missing, or a stack of cubes.
    """
    envi = optional(path, "spectral.io.envi")
    cube, wavelengths = content.cube, content.wavelengths
    if cube.ndim != 3:
        raise InputError(f"ENVI holds one cube (C, H, W), got a stack {cube.shape}; write .h5 or one file per frame")
    metadata: dict[str, object] = {}
    if wavelengths is not None:
        metadata = {"wavelength": [repr(float(w)) for w in wavelengths], "wavelength units": "nm"}
    image = np.transpose(cube, (1, 2, 0))
    envi.save_image(os.fspath(path), image, dtype=np.float32, interleave="bsq", ext=".img", metadata=metadata)
