"""Which format a file has, told from its first bytes, and its reader."""

from pathlib import Path

from cassi.errors import InputError
from cassi.files.container import Container
from cassi.files.formats.hdf5 import open_hdf5
from cassi.files.formats.table import FORMATS


def open_container(path: str | Path) -> Container:
    """Open a file as named arrays; the format is told from its first bytes, not from its name.

    Args:
        path: file of one of the formats HDF5, MATLAB v5 and v7.3, .npz, .npy, TIFF, PNG.

    Returns:
        The container; its arrays are read on demand.

    Raises:
        InputError: no such file, unknown format, or a damaged file.

    Example:
        >>> import numpy as np, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "m.npz")
        >>> np.savez(path, measurement=np.ones((4, 6), np.float32))
        >>> open_container(path).listing()
        'measurement (4, 6) float32'
    """
    import h5py

    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(32)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be opened ({getattr(error, 'strerror', None) or error})") from error
    for known in FORMATS:
        if head.startswith(known.signatures):
            return known.read(path)
    if h5py.is_hdf5(path):  # behind a block of the user's, as that of MATLAB v7.3
        return open_hdf5(path)
    names = ", ".join(known.name for known in FORMATS)
    raise InputError(f"{path}: not HDF5 and no other format known here ({names}); its first bytes are {head[:8]!r}")
