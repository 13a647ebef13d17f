"""Detects the format of a file from its first bytes, and lists its content."""

from pathlib import Path

import h5py

from cassi.errors import InputError, one_line
from cassi.files.atomic import PathLike
from cassi.files.container import Container
from cassi.files.formats.foreign import foreign
from cassi.files.formats.hdf5 import open_hdf5
from cassi.files.formats.table import FORMATS
from cassi.files.names import role_of


def open_container(path: PathLike) -> Container:
    """Open a file as named arrays, read on demand; its format is detected from the first bytes, not from the name.

    Args:
        path: file of one of the formats HDF5, MATLAB v5 and v7.3, .npz, .npy, TIFF, ENVI, PNG.

    Raises:
        InputError: missing file, unknown format, or damaged file.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {str(getattr(error, 'strerror', error)).lower()}") from error
    if not head:
        raise InputError(f"{path}: the file is empty; copy or record it again")
    for known in FORMATS:
        if head.startswith(known.signatures):
            return known.read(path)
    if (other := foreign(head)) is not None:
        raise InputError(f"{path}: this is {other}")
    if h5py.is_hdf5(path):  # after a user block, as in MATLAB v7.3
        return open_hdf5(path)
    names = ", ".join(known.name for known in FORMATS)
    raise InputError(f"{path}: not HDF5 or another supported format ({names}); its first bytes are {head[:8]!r}")


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
