"""Spectral cubes: read from any supported file, turned, at other wavelengths, as another format, for xarray."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from cassi.errors import InputError, counted, import_extra
from cassi.files.container import LETTERS
from cassi.files.layout import bands_first, stack_order
from cassi.files.opening import open_container
from cassi.files.scaling import bit_depth_of, mask_to_float32, scale_cube
from cassi.files.statements import of_file, stated_as
from cassi.files.wavelength_files import parse_wavelengths, read_wavelengths
from cassi.files.writing import plain_attributes, write_cube
from cassi.types import PathLike


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
    entry, _ = container.pick("cube", key)
    found, rank = entry.beside("wavelengths"), len(entry.shape)
    if rank == 3:
        values = bands_first(entry, None if found is None else math.prod(found.shape))
    elif rank == 2:  # one band, its axis dropped
        values = entry.read()[None]
    elif rank == 4:
        values = np.transpose(entry.read(), stack_order(entry))
    else:
        raise InputError(f"{entry.where} has shape {entry.shape}, expected (C, H, W) or (N, C, H, W)")
    values = values if entry.packed is None else values.astype(entry.packed)
    cube = scale_cube(values, entry.where, bit_depth_of(entry))[0]
    return cube, None if found is None or found is entry else read_wavelengths(found, cube.shape[-3])


def read_mask(path: PathLike, *, key: str | None = None, count: int | None = None) -> np.ndarray:
    """Read a coded aperture, (H, W), or a stack of them (C, H, W), one per band or shot, float32 [transmission].

    Args:
        path: file of any supported format.
        key: name of the array; by default one of the usual ones, or the only image in the file.
        count: how many masks there must be, if known: it may tell which axis counts them.

    Raises:
        InputError: missing file or array, or values that are no transmission.
    """
    entry, _ = open_container(Path(path)).pick("mask", key)
    values = bands_first(entry, count) if len(entry.shape) == 3 else entry.read()
    return mask_to_float32(values, entry.where)[0]


TURNS = {"none": 0, "90": 3, "180": 2, "270": 1, "flip": 0}  # quarter turns counterclockwise, of degrees clockwise
MAX_OUTPUT_BANDS = 2000

Picture = TypeVar("Picture", np.ndarray, Tensor)


def turn(picture: Picture, how: str) -> Picture:
    """Turn pictures (..., H, W) by 90, 180 or 270 degrees clockwise, "flip" them top to bottom, or "90, flip".

    Example:
        >>> turn(np.array([[1, 2], [3, 4]]), "90").tolist()
        [[3, 1], [4, 2]]
    """
    for step in how.split(", "):
        if isinstance(picture, Tensor):
            picture = picture.flip(-2) if step == "flip" else torch.rot90(picture, TURNS[step], (-2, -1))
        else:
            picture = np.flip(picture, -2) if step == "flip" else np.rot90(picture, TURNS[step], (-2, -1))
    return picture if isinstance(picture, Tensor) else np.ascontiguousarray(picture)


def turn_of(*steps: str, back: bool = False) -> str:
    """One turn for several after each other, or `back` from them.

    Raises:
        InputError: words that are no turn.

    Example:
        >>> turn_of("90", "90"), turn_of("90, flip", "flip"), turn_of("90", back=True)
        ('180', '90', '270')
    """
    corners, how = np.arange(4).reshape(2, 2), ", ".join(steps)
    if not set(how.split(", ")) <= TURNS.keys():
        raise InputError(f"turned {how!r}: expected {', '.join(TURNS)}")
    there = turn(corners, how)
    each = (*TURNS, *(f"{name}, flip" for name in ("90", "180", "270")))
    start, end = (there, corners) if back else (corners, there)
    return next(name for name in each if np.array_equal(turn(start, name), end))


def parse_output_bands(given: str | Sequence[float] | np.ndarray) -> np.ndarray:
    """The wavelengths (C,) [nm] of a cube that is asked for: "start:stop:step", or as `parse_wavelengths` reads them.

    Example:
        >>> parse_output_bands("500:520:5").tolist()
        [500.0, 505.0, 510.0, 515.0, 520.0]
    """
    if not isinstance(given, str):
        return np.asarray(given, dtype=np.float64).reshape(-1)
    if given.count(":") != 2 or Path(given).exists():
        found = parse_wavelengths(given, None)
        if found is None:
            raise InputError(f"output bands {given!r}: expected start:stop:step in nm, a list, a preset or a file")
        return found
    try:
        start, stop, step = (float(part) for part in given.lower().removesuffix("nm").split(":"))
        count = math.floor((stop - start) / step + 1e-9) + 1
        if not 1 <= count <= MAX_OUTPUT_BANDS:
            raise ValueError
    except (ValueError, OverflowError, ZeroDivisionError):
        what = f"expected start:stop:step in nm such as 450:650:5, of at most {MAX_OUTPUT_BANDS} bands"
        raise InputError(f"output bands {given!r}: {what}") from None
    return start + step * np.arange(count)


class Resampling(NamedTuple):
    """How a cube of C bands becomes one of C': x'(lambda') = sum_c W x_c, the weights (C', C); the same in words."""

    nm: np.ndarray
    weights: np.ndarray
    words: str


def resampling(
    nm: np.ndarray | None, given: str | Sequence[float] | np.ndarray, resolution: float | None = None
) -> Resampling:
    """From a cube at wavelengths `nm` (C,) to those of `parse_output_bands` that lie within its bands.

    Spectra are the smoothest through the bands: natural cubic splines, which minimize int x''^2 d lambda. `resolution`:
    what the cube resolves [nm].

    Raises:
        InputError: the bands have no wavelengths, are fewer than two, or none that is wanted lies within them.

    Example:
        >>> found = resampling(np.array([500.0, 520, 540]), "400,520,530")
        >>> found.nm.tolist(), found.weights[0].round(9).tolist()
        ([520.0, 530.0], [0.0, 1.0, 0.0])
    """
    wanted = parse_output_bands(given)
    if nm is None or len(nm) < 2:
        raise InputError("a cube at other wavelengths needs those of its bands, two at least; give the wavelengths")
    low, high = float(nm.min()), float(nm.max())
    inside = wanted[(wanted >= low - 1e-6) & (wanted <= high + 1e-6)]
    if not inside.size:
        what = f"{wanted.min():g} to {wanted.max():g} nm" if wanted.size else "none"
        raise InputError(f"the bands reach {low:g} to {high:g} nm, the wanted wavelengths {what}; choose some of these")
    order = np.argsort(nm)
    weights = CubicSpline(nm[order], np.eye(len(nm))[:, order].T, bc_type="natural")(inside)
    left = len(wanted) - len(inside)
    lost = f"; {left} others lie outside of the bands, {low:.0f} to {high:.0f} nm" if left else ""
    gap = float(np.median(np.diff(nm[order])))
    width = f"about {resolution:.0f} nm" if resolution else f"no less than the gap between bands, {gap:.0f} nm"
    words = (
        f"the cube is interpolated to {counted(len(inside), 'wavelength')}, {inside.min():g} to {inside.max():g} "
        f"nm{lost}; it resolves {width}, however close they are"
    )
    return Resampling(inside, np.asarray(weights), words)


def resample(cube: Picture, weights: np.ndarray, *, spread: bool = False) -> Picture:
    """The cube (..., C, H, W) at other wavelengths, (..., C', H, W); a standard deviation takes |W|, as the errors of
    neighboring bands go together."""
    W = np.abs(weights) if spread else weights
    if isinstance(cube, Tensor):
        return (cube.movedim(-3, -1) @ cube.new_tensor(W.T)).movedim(-1, -3).contiguous()
    return np.ascontiguousarray(np.moveaxis(np.moveaxis(cube, -3, -1) @ W.T.astype(cube.dtype), -1, -3))


def check_turned_alike(a: PathLike, b: PathLike) -> None:
    """Raise InputError for two files whose pictures are turned differently, as far as they say so."""
    first, second = (
        turn_of(str(stated_as(open_container(Path(path)).attributes, "turned") or "none")) for path in (a, b)
    )
    if first != second:
        what = f"{a} is turned ({first}) and {b} is not in the same way ({second})"
        raise InputError(f"{what}; turn one of them: cassi export --turn-result")


def export_cube(
    source: PathLike, target: PathLike, *, turn_result: str = "none",
    output_bands: str | Sequence[float] | None = None, overwrite: bool = False,
) -> list[str]:  # fmt: skip
    """Write a result to another format, as the suffix of `target` says; returns what there is to say.

    HDF5, NetCDF, .mat and .npz get everything that the result holds; TIFF and ENVI what `write_cube` writes of it.

    Args:
        source: file of a result.
        target: see `write_cube`.
        turn_result: "90", "180" or "270" degrees clockwise, or "flip": all pictures are turned.
        output_bands: see `parse_output_bands`.

    Raises:
        InputError: a file without a cube, or wavelengths that it does not have.
        OutputError: see `write_cube`.

    Example:
        >>> folder = tempfile.mkdtemp()
        >>> path = cassi.files.write_cube(os.path.join(folder, "a.h5"), np.ones((3, 4, 5)), wavelengths=[450, 500, 550])
        >>> export_cube(path, os.path.join(folder, "a.npz"), turn_result="90", output_bands="450:550:25")[0][:47]
        'the cube is interpolated to 5 wavelengths, 450 '
    """
    bands = None if output_bands is None else parse_output_bands(output_bands)
    container = open_container(Path(source))
    cube, nm = read_cube(source)
    datasets = {
        entry.name: container.read(entry)
        for entry in container.entries
        if entry.dtype is not None
        and "entry/" not in entry.name
        and entry.name not in {"cube", "wavelengths", *of_file(container.attributes)}
    }
    attributes = {name: value for name, value in container.attributes.items() if not name.startswith("_")}
    said = list[str]()
    if bands is not None:
        nm, weights, words = resampling(nm, bands, float(str(attributes.get("resolution_nm", 0))))
        cube, said, attributes["output_bands"] = resample(cube, weights), [words], nm.tolist()
        for name in {"truth", "uncertainty", "visibility"} & set(datasets):
            datasets[name] = resample(datasets[name], weights, spread=name == "uncertainty")
    if turn_result != "none":
        cube = turn(cube, turn_result)
        pictures = {name for name in datasets if LETTERS.get(name, "")[-2:] == "HW"}
        datasets |= {name: turn(datasets[name], turn_result) for name in pictures}
        attributes["turned"] = turn_of(str(attributes.get("turned", "none")), turn_result)
    write_cube(target, cube, wavelengths=nm, datasets=datasets, attributes=attributes, overwrite=overwrite)
    return said


def to_xarray(
    cube: np.ndarray, wavelengths: np.ndarray | None = None, *, uncertainty: np.ndarray | None = None, unit: str = "",
    attributes: Mapping[str, object] | None = None,
) -> Any:  # fmt: skip
    """A cube as an `xarray.Dataset` with the variables `cube` and, where it is known, `uncertainty`.

    Args:
        cube: (C, H, W) or (N, C, H, W); the axes become frame, wavelength (band where unknown, from 1), y and x.
        wavelengths: (C,) [nm].
        uncertainty: like the cube, one standard deviation in its unit.
        unit: of both.
        attributes: provenance, as `write_cube` takes it.

    Raises:
        InputError: xarray is not installed (`pip install 'cassi[xarray]'`).

    Example:
        >>> to_xarray(np.ones((2, 3, 4)), np.array([500.0, 600.0])).cube.sel(wavelength=600).shape
        (3, 4)
    """
    xarray = import_extra("xarray", "xarray")
    band = "band" if wavelengths is None else "wavelength"
    axes = ("frame", band, "y", "x")[-cube.ndim :]
    centers = np.arange(1, cube.shape[-3] + 1) if wavelengths is None else wavelengths
    layers = {"cube": cube, "uncertainty": uncertainty}
    variables = {name: (axes, values, {"units": unit}) for name, values in layers.items() if values is not None}
    place = (band, centers, {} if wavelengths is None else {"units": "nm"})
    stated = plain_attributes(attributes or {})
    attrs = {name: int(value) if isinstance(value, bool) else value for name, value in stated.items()}  # as NetCDF can
    return xarray.Dataset(variables, coords={band: place}, attrs=attrs)
