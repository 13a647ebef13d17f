"""Read a spectral cube from any supported file."""

import math
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.atomic import PathLike
from cassi.files.container import Container, Entry
from cassi.files.names import MASK, TRUTH, WAVELENGTHS, find, pick
from cassi.files.opening import open_container
from cassi.files.scaling import band_axis, mask_to_float32, scale_cube
from cassi.files.wavelength_files import read_wavelengths


def read_cube(path: PathLike, *, key: str | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """Read a spectral cube and, if the file has them, its wavelengths.

    Args:
        path: file of any supported format.
        key: name of the array; without it one of `cube`, `truth`, `img`, `hsi`, `Omsi` ..., or the only array in the
            file.

    Returns:
        The cube (C, H, W), or (N, C, H, W) for a stack, float32: floats unchanged, integers divided by the full scale
        of their bit depth (8, 10, 12, 14 or 16 bits, the smallest that holds the maximum); and the wavelengths (C,)
        float64 [nm], or None.

    Raises:
        InputError: missing file or array, wrong rank, values that are not real and finite.
    """
    container = open_container(Path(path))
    entry, _ = pick(container, TRUTH, "cube", key)
    found = find(container, WAVELENGTHS)
    values = container.read(entry)
    if values.ndim == 3:
        values = _bands_first(container, entry, values, None if found is None else math.prod(found.shape))
    elif values.ndim == 2:  # one band, its axis dropped
        values = values[None]
    elif values.ndim == 4:
        values = np.transpose(values, stack_order(container, entry))
    else:
        raise InputError(f"{path}: '{entry.name}' has shape {values.shape}, expected (C, H, W) or (N, C, H, W)")
    values = values if entry.packed is None else values.astype(entry.packed)
    cube = scale_cube(values, f"{path}: '{entry.name}'", entry.bits)[0]
    return cube, None if found is None or found is entry else read_wavelengths(container, found, cube.shape[-3])


def _bands_first(container: Container, entry: Entry, values: np.ndarray, count: int | None) -> np.ndarray:
    """A 3-D array with the axis of its bands in front: of this length, or the likeliest."""
    axis = band_axis(container, entry, num_bands=count)
    axis = band_axis(container, entry) if axis is None else axis
    return np.moveaxis(values, axis or 0, 0)


def stack_order(container: Container, entry: Entry) -> tuple[int, ...]:
    """The axes of a 4-D array in the order (N, C, H, W): as stated, else (H, W, C, N) in MATLAB files."""
    if entry.axes is not None and sorted(entry.axes) == sorted("NCHW"):
        return tuple(entry.axes.index(letter) for letter in "NCHW")
    return (3, 2, 0, 1) if container.bands_last else (0, 1, 2, 3)


def read_mask(path: PathLike, *, key: str | None = None, count: int | None = None) -> np.ndarray:
    """Read a coded aperture, (H, W), or a stack of them (C, H, W), one per band or shot, float32 [transmission].

    Args:
        path: file of any supported format.
        key: name of the array; by default one of the usual ones, or the only image in the file.
        count: how many masks there must be, if known: it may tell which axis counts them.

    Raises:
        InputError: missing file or array, or values that are no transmission.
    """
    container = open_container(Path(path))
    entry, _ = pick(container, MASK, "mask", key)
    values = container.read(entry)
    if values.ndim == 3:
        values = _bands_first(container, entry, values, count)
    return mask_to_float32(values, f"{path}: '{entry.name}'")[0]
