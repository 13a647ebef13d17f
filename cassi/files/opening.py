"""The formats: known by their first bytes, read and written. A new one is a module in `formats`, a line here."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import h5py

from cassi.errors import InputError, one_line
from cassi.files.atomic import check_readable
from cassi.files.container import Arrays, Attributes, Container, damage_as_input_error, naming, role_of
from cassi.files.formats.envi import SIGNATURES as ENVI, open_envi, write_envi
from cassi.files.formats.hdf5 import SIGNATURE, open_hdf5, write_hdf5
from cassi.files.formats.matlab import open_matlab, write_matlab
from cassi.files.formats.npy import open_npy, open_npz, write_npz
from cassi.files.formats.png import open_png
from cassi.files.formats.tiff import open_tiff, write_tiff
from cassi.types import PathLike


class Format(NamedTuple):
    """One format: name, first bytes of its files, suffixes, and the functions that read and write it."""

    name: str
    signatures: tuple[bytes, ...]
    suffixes: tuple[str, ...]
    read: Callable[[Path], Container]
    write: Callable[[Path, Arrays, Attributes], None] | None = None
    needs: tuple[str, str] | None = None  # a package, and the extra of cassi that installs it


FORMATS = (
    Format("HDF5", (SIGNATURE,), (".h5", ".hdf5", ".nc"), open_hdf5, write_hdf5),
    Format("MATLAB .mat (v5, v7.3)", (b"MATLAB 5.0 MAT-file",), (".mat",), open_matlab, write_matlab),
    Format(".npz", (b"PK\x03\x04", b"PK\x05\x06"), (".npz",), open_npz, write_npz),
    Format(".npy", (b"\x93NUMPY",), (".npy",), open_npy),
    Format("TIFF", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), (".tif", ".tiff"), open_tiff, write_tiff),
    Format("ENVI", ENVI, (".hdr",), open_envi, write_envi, ("spectral.io.envi", "envi")),
    Format("PNG", (b"\x89PNG\r\n\x1a\n",), (".png",), open_png),
)
SUFFIXES = {suffix for one in FORMATS for suffix in one.suffixes}
WRITERS = {suffix: one.write for one in FORMATS if one.write is not None for suffix in one.suffixes}
NEEDED = {suffix: one.needs for one in FORMATS if one.needs is not None for suffix in one.suffixes}  # to write it

# What whole files of other kinds are, by their first bytes, and what to do with them: they are not damaged.
FOREIGN = (
    ((b"version https://git-lfs",), "a Git LFS pointer, not the file itself; fetch that with `git lfs pull`"),
    ((b"CDF\x01", b"CDF\x02", b"CDF\x05"), "NetCDF 3; convert it to NetCDF 4 (nccopy -k nc4)"),
    ((b"\x0e\x03\x13\x01",), "HDF4; convert it to HDF5 (h4toh5)"),
    ((b"SIMPLE  =",), "FITS; save the array as .npy (astropy.io.fits reads it)"),
    ((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"),
     "a Python pickle, as old PyTorch files are, which is never loaded, as it may run code; save the array as .npy"),
    ((b"# Created by Octave",), "Octave's text format; save it with `save -v7`"),
    ((b"\xff\xd8\xff",), "a JPEG, which has lost detail; save captures as TIFF or PNG"),
    ((b"BM", b"GIF8", b"P5", b"P6"), "a BMP, GIF or PGM picture; save it as TIFF or PNG"),
    ((b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"Rar!"), "a compressed archive; unpack it first"),
    ((b"<!DOCTYPE", b"<!doctype", b"<html", b"<HTML"), "a web page in place of a file; download it again"),
    ((b"%PDF",), "a PDF document; expected an array"),
)  # fmt: skip


def open_container(path: PathLike) -> Container:
    """Open a file as named arrays, read on demand; its format is detected from the first bytes, not from the name.

    Args:
        path: file of one of the formats HDF5, MATLAB v5 and v7.3, .npz, .npy, TIFF, ENVI, PNG.

    Raises:
        InputError: missing file, unknown format, or damaged file.
    """
    path = check_readable(path)
    with damage_as_input_error(path, "a file of data"), path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise InputError(f"{path}: the file is empty; copy or record it again")
    for known in FORMATS:
        if head.startswith(known.signatures):
            return _read(known.read, path)
    if (other := foreign(head)) is not None:
        raise InputError(f"{path}: this is {other}")
    if h5py.is_hdf5(path):  # after a user block, as in MATLAB v7.3
        return _read(open_hdf5, path)
    names = ", ".join(known.name for known in FORMATS)
    raise InputError(f"{path}: not HDF5 or another supported format ({names}); its first bytes are {head[:8]!r}")


def _read(reader: Callable[[Path], Container], path: Path) -> Container:
    with naming(path):
        return reader(path)


def describe(*paths: PathLike) -> str:
    """A listing of these files: arrays with the role that their name implies, and attributes.

    Raises:
        InputError: a file cannot be opened.
    """
    lines = []
    for container in (open_container(Path(path)) for path in paths):
        parts = [(entry, role_of(entry)) for entry in container.entries]
        shown = [(name, value) for name, value in container.attributes.items() if not name.startswith("_")]
        lines += [f"{container.path} ({container.format})"]
        lines += [f"  {entry}: {role}" if role else f"  {entry}" for entry, role in parts] or ["  no arrays"]
        lines += [f"  attribute {one_line(name, 80)} = {one_line(value, 80)}" for name, value in shown]
    return "\n".join(lines)


def foreign(head: bytes) -> str | None:
    """What a file is by its first bytes, with the cure, or None if that is unknown."""
    if _is_matlab_4(head):
        return "a MATLAB v4 file; load it and save it with -v7"
    return next((what for marks, what in FOREIGN if head.lstrip(b"\xef\xbb\xbf").startswith(marks)), None)


def _is_matlab_4(head: bytes) -> bool:
    """By the header of a variable: types of machine, number and matrix as digits, sizes, complex or not, name."""
    for order in "<>":
        kind, rows, columns, is_complex, length = struct.unpack_from(f"{order}5i", head.ljust(20, b"\xff"))
        digits = kind // 1000, kind // 100 % 10, kind // 10 % 10, kind % 10
        plain = kind >= 0 and digits[0] <= 4 and digits[1] == 0 and digits[2] <= 5 and digits[3] <= 2
        if plain and rows >= 0 and columns >= 0 and is_complex in (0, 1) and 1 < length <= 64:
            name = head[20 : 20 + min(length, 44)]
            return name[:1].isalpha() and (length > 44 or name.endswith(b"\0"))
    return False
