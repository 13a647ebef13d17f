"""Which format a file has, told from its first bytes, and what it holds."""

from pathlib import Path

from cassi.errors import InputError, one_line
from cassi.files.atomic import PathLike
from cassi.files.container import Container
from cassi.files.formats.hdf5 import open_hdf5
from cassi.files.formats.table import FORMATS
from cassi.files.names import role_of


def open_container(path: PathLike) -> Container:
    """Open a file as named arrays, read on demand; the format is told from its first bytes, not from its name.

    Args:
        path: file of one of the formats HDF5, MATLAB v5 and v7.3, .npz, .npy, TIFF, ENVI, PNG.

    Raises:
        InputError: no such file, unknown format, or a damaged file.
    """
    import h5py

    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {str(getattr(error, 'strerror', error)).lower()}") from error
    if not head:
        raise InputError(f"{path}: the file is empty; copy it again or record it anew")
    for known in FORMATS:
        if head.startswith(known.signatures):
            return known.read(path)
    if h5py.is_hdf5(path):  # behind a block of the user's, as that of MATLAB v7.3
        return open_hdf5(path)
    names = ", ".join(known.name for known in FORMATS)
    raise InputError(f"{path}: not HDF5 and no other format known here ({names}); its first bytes are {head[:8]!r}")


def describe(*paths: PathLike) -> str:
    """Every array of these files with the part that its name gives it, and what the files state.

    Raises:
        InputError: one cannot be opened.
    """
    lines = []
    for container in (open_container(Path(path)) for path in paths):
        parts = [(entry, role_of(entry)) for entry in container.entries]
        shown = [(name, value) for name, value in container.attributes.items() if not name.startswith("_")]
        lines += [f"{container.path} ({container.format})"]
        lines += [f"  {entry}: {role}" if role else f"  {entry}" for entry, role in parts] or ["  no arrays"]
        lines += [f"  attribute {one_line(name, 80)} = {one_line(value, 80)}" for name, value in shown]
    return "\n".join(lines)
