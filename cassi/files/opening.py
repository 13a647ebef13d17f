"""Which format a file has, told from its first bytes, and its reader."""

from pathlib import Path

from cassi.errors import InputError
from cassi.files.container import Container, regular_file

FORMATS = "HDF5, MATLAB .mat (v5, v7.3), .npz, .npy, TIFF, PNG, ENVI .hdr, NetCDF"


def _is_hdf5(path: Path, head: bytes) -> bool:
    """HDF5's signature stands at byte 0, 512, 1024, 2048 ...: MATLAB v7.3 keeps its own header in front."""
    signature = b"\x89HDF\r\n\x1a\n"
    return any(head[offset : offset + 8] == signature for offset in (0, 512, 1024, 2048))


def open_container(path: str | Path, *, trusted: bool = False) -> Container:
    """Open a file as named arrays; the format is told from its first bytes, not from its name.

    Args:
        path: file of one of the formats HDF5, MATLAB v5 and v7.3, .npz, .npy, TIFF, PNG, ENVI (.hdr or its data
            file), NetCDF (classic and 4).
        trusted: the file is this project's own and undamaged: HDF5 attributes that are text of variable length are
            read too. They cannot be read safely from any other file.

    Returns:
        The container; its arrays are read on demand.

    Raises:
        InputError: no such file, unknown format, damaged file, a bomb, or an optional package that is missing.

    Example:
        >>> import numpy as np, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "m.npz")
        >>> np.savez(path, measurement=np.ones((4, 6), np.float32))
        >>> open_container(path).listing()
        'measurement (4, 6) float32'
    """
    path = regular_file(path)
    with path.open("rb") as file:
        head = file.read(2048 + 8)
    # The parsers are imported where they are needed: most of them are optional.
    if _is_hdf5(path, head):
        from cassi.files.formats.hdf5 import open_hdf5

        return open_hdf5(path, trusted)
    if head[:3] == b"CDF":
        from cassi.files.formats.netcdf import open_netcdf_classic

        return open_netcdf_classic(path)
    if head.startswith(b"MATLAB 5.0 MAT-file"):
        from cassi.files.formats.matlab import open_matlab

        return open_matlab(path)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        from cassi.files.formats.npy import open_npz

        return open_npz(path)
    if head[:6] == b"\x93NUMPY":
        from cassi.files.formats.npy import open_npy

        return open_npy(path)
    if head[:4] in (b"II*\x00", b"MM\x00*", b"II+\x00", b"MM\x00+"):
        from cassi.files.formats.images import open_tiff

        return open_tiff(path)
    if head[:8] == b"\x89PNG\r\n\x1a\n":
        from cassi.files.formats.images import open_png

        return open_png(path)
    header = path if head[:4] == b"ENVI" else _envi_header_of(path)
    if header is not None:
        from cassi.files.formats.envi import open_envi

        return open_envi(header, None if header == path else path)
    raise InputError(f"{path}: not HDF5 and no other format known here ({FORMATS}); its first bytes are {head[:8]!r}")


def _envi_header_of(path: Path) -> Path | None:
    """Return the ENVI header beside a raw data file (`a.img` -> `a.hdr` or `a.img.hdr`), or None."""
    for candidate in (path.with_suffix(".hdr"), Path(f"{path}.hdr")):
        if candidate != path and candidate.is_file():
            with candidate.open("rb") as file:
                if file.read(4) == b"ENVI":
                    return candidate
    return None
