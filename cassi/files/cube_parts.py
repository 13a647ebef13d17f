"""A cube written part by part, for frames whose cube does not fit into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.errors import OutputError
from cassi.files.atomic import replacing
from cassi.files.writing import _hdf5_target, _plain, check_output


class CubeParts:
    """An HDF5 result in the making: `/cube` is zero at first, and takes parts in any order.

    Made by `cube_in_parts`.
    """

    def __init__(self, file: Any, shape: tuple[int, int, int]) -> None:
        self._file = file
        self._cube = file.create_dataset("cube", shape=shape, dtype=np.float32, track_times=False)
        self._cube.attrs["axes"] = np.bytes_(b"CHW")

    def add(self, rows: slice, columns: slice, values: np.ndarray) -> None:
        """Add values (C, h, w) to the cube there."""
        self._cube[:, rows, columns] += values

    def read(self, rows: slice) -> np.ndarray:
        """The cube as it is so far, (C, h, W), of some rows."""
        values: np.ndarray = self._cube[:, rows]
        return values

    def put(self, name: str, values: np.ndarray) -> None:
        """Write another dataset."""
        self._file.create_dataset(name, data=values, track_times=False)

    def state(self, attributes: Mapping[str, object]) -> None:
        """Write attributes; what is neither text nor number becomes JSON."""
        self._file.attrs.update(_plain(attributes))


@contextmanager
def cube_in_parts(
    path: str | os.PathLike[str],
    shape: tuple[int, int, int],
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    overwrite: bool = False,
) -> Iterator[CubeParts]:
    """Yield a `CubeParts` to fill; at the end of the block the file is moved into place, whole or not at all.

    Args:
        path: the .h5 or .hdf5 file to make.
        shape: (C, H, W).
        wavelengths: (C,) [nm].
        overwrite: replace an existing file.

    Raises:
        OutputError: no HDF5 suffix; the file exists, its folder does not, or the disk is full; nothing is left behind.

    Example:
        >>> path = os.path.join(tempfile.mkdtemp(), "cube.h5")
        >>> with cube_in_parts(path, (2, 3, 4)) as parts:
        ...     parts.add(slice(0, 2), slice(1, 4), np.ones((2, 2, 3), np.float32))
        >>> from cassi.files import read_cube
        >>> read_cube(path)[0].sum()
        np.float32(12.0)
    """
    import h5py

    path = check_output(Path(path), overwrite)
    if path.suffix.lower() not in (".h5", ".hdf5"):
        raise OutputError(f"{path}: only HDF5 is written part by part, expected the suffix .h5 or .hdf5")
    with replacing(path, overwrite) as temporary, _hdf5_target(temporary) as target, h5py.File(target, "w") as file:
        parts = CubeParts(file, shape)
        if wavelengths is not None:
            parts.put("wavelengths", np.asarray(wavelengths, dtype=np.float64))
            file["wavelengths"].attrs["units"] = "nm"
        yield parts
