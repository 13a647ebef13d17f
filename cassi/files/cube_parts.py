"""A cube written part by part, for frames whose cube does not fit into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from cassi.errors import OutputError
from cassi.files.atomic import hdf5_target, replacing, signals_held
from cassi.files.opening import open_container
from cassi.files.writing import check_output, check_written, plain_attributes

if TYPE_CHECKING:
    from pathlib import Path

    import h5py

TOLERANCE = 1e-6  # relative, between what was added in float32 and in float64


class CubeParts:
    """An HDF5 result in the making: `/cube` is zero at first, and takes parts in any order.

    Made by `cube_in_parts`.
    """

    def __init__(self, file: h5py.File, shape: tuple[int, int, int]) -> None:
        self._file = file
        with signals_held():
            self._cube = file.create_dataset("cube", shape=shape, dtype=np.float32, track_times=False)
            self._cube.attrs["axes"] = np.bytes_(b"CHW")
        self._put: dict[str, np.ndarray] = {}
        self._sum = self._sum_of_sizes = 0.0

    def add(self, rows: slice, columns: slice, values: np.ndarray) -> None:
        """Add values (C, h, w) to the cube there."""
        with signals_held():
            self._cube[:, rows, columns] += values
        self._sum += float(values.sum(dtype=np.float64))
        self._sum_of_sizes += float(np.abs(values).sum(dtype=np.float64))

    def read(self, rows: slice) -> np.ndarray:
        """The cube as it is so far, (C, h, W), of some rows."""
        values: np.ndarray = self._cube[:, rows]
        return values

    def put(self, name: str, values: np.ndarray) -> None:
        """Write another dataset."""
        with signals_held():
            self._file.create_dataset(name, data=values, track_times=False)
        self._put[name] = np.asarray(values)

    def state(self, attributes: Mapping[str, object]) -> None:
        """Write attributes; what is neither text nor number becomes JSON."""
        with signals_held():
            self._file.attrs.update(plain_attributes(attributes))

    def check(self, path: Path) -> None:
        """Compare the closed file with what was put and added, by its sum for the cube.

        Raises:
            OutputError: something did not reach the file.
        """
        check_written(path, self._put)
        container = open_container(path, trusted=True)
        cube = container.entry("cube")
        found = 0.0
        if cube is not None:
            for band in range(cube.shape[0]):
                part = (slice(band, band + 1), slice(None), slice(None))
                found += float(container.read(cube, part).sum(dtype=np.float64))
        if cube is None or abs(found - self._sum) > TOLERANCE * self._sum_of_sizes:
            raise OutputError(f"{path.name}: the cube did not reach the file whole; nothing was left behind, try again")


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

    path = check_output(path, overwrite)
    if path.suffix.lower() not in (".h5", ".hdf5"):
        raise OutputError(f"{path}: only HDF5 is written part by part, expected the suffix .h5 or .hdf5")
    with replacing(path, overwrite) as temporary:
        with hdf5_target(temporary) as target, _closing_held(h5py.File(target, "w")) as file:
            parts = CubeParts(file, shape)
            if wavelengths is not None:
                parts.put("wavelengths", np.asarray(wavelengths, dtype=np.float64))
                file["wavelengths"].attrs["units"] = "nm"
            yield parts
        with signals_held():
            parts.check(temporary)


@contextmanager
def _closing_held(file: h5py.File) -> Iterator[h5py.File]:
    """Close the file, which writes what HDF5 still holds, with signals held back."""
    try:
        yield file
    finally:
        with signals_held():
            file.close()
