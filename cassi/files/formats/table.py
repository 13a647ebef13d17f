"""The supported formats: how each is recognized, read and written. A new one is a module here and a line below."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cassi.files.container import Arrays, Attributes, Container
from cassi.files.formats.envi import SIGNATURES as ENVI, open_envi, write_envi
from cassi.files.formats.hdf5 import SIGNATURE, open_hdf5, write_hdf5
from cassi.files.formats.matlab import open_matlab, write_matlab
from cassi.files.formats.npy import open_npy, open_npz, write_npz
from cassi.files.formats.png import open_png
from cassi.files.formats.tiff import open_tiff, write_tiff


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
