"""A photograph of the scene from beside the camera, and the curves of its channels, from files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.atomic import replacing
from cassi.files.wavelength_files import read_table
from cassi.optics.side_picture import RESPONSES, SidePicture, expected_response


def read_side_picture(
    path: str | os.PathLike[str], response: str | None = None, wavelengths: np.ndarray | None = None
) -> SidePicture:
    """A side picture from PNG, JPEG, TIFF or NumPy (.npy, (h, w) or (h, w, K)).

    Whole numbers may be linear, coded for a display, or bent by a camera's tone curve, which the snapshot tells; others
    are taken as linear. Pixels at the highest value that such numbers hold are saturated.

    Args:
        path: the picture.
        response: "rgb", "pan", or a table (.csv, .txt): wavelength [nm] and one value for each channel, a line each.
        wavelengths: of the bands [nm], at which a table is read.

    Raises:
        InputError: no picture, or no table of curves that covers the bands.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a picture; name the file in it")
    if not path.is_file():
        raise InputError(f"{path}: the side picture does not exist")
    values = np.load(path, allow_pickle=False) if path.suffix.lower() == ".npy" else _image(path)
    clip = float(np.iinfo(values.dtype).max) if values.dtype.kind in "iu" else None
    try:
        return SidePicture(values, _response(response, wavelengths), True if clip is None else None, clip)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _image(path: Path) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as file:
            if file.mode in ("P", "RGBA", "CMYK", "YCbCr"):
                return np.asarray(file.convert("RGB"))
            return np.asarray(file.convert("L") if file.mode in ("1", "LA") else file)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise InputError(
            f"{path}: no picture that can be read, expected PNG, JPEG, TIFF ({one_line(error)})"
        ) from error


def _response(response: str | None, wavelengths: np.ndarray | None) -> str | np.ndarray | None:
    if response is None or response in RESPONSES:
        return response
    if not Path(response).is_file():
        raise InputError(f"side response {response!r}: expected {', '.join(RESPONSES)}, or an existing table")
    if wavelengths is None:
        raise InputError(f"{response}: curves over wavelength need the bands' wavelengths; give them too")
    return read_response(response, wavelengths)


def response_curves(response: str, wavelengths: np.ndarray | None, num_bands: int) -> np.ndarray:
    """The curves (K, C) of a preset or a table."""
    found = _response(response, wavelengths)
    if isinstance(found, np.ndarray):
        return found
    return expected_response(3 if found == "rgb" else 1, wavelengths, num_bands)


def write_side_picture(path: str | os.PathLike[str], picture: np.ndarray, *, overwrite: bool = False) -> None:
    """A picture (h, w, K) in [0, 1] of one or three channels as a PNG of 8 bits, coded for a display (sRGB).

    Raises:
        OutputError: the file exists, or its folder does not. InputError: another number of channels.
    """
    from PIL import Image

    if picture.shape[-1] not in (1, 3):
        raise InputError(f"a PNG has one channel or three, got {picture.shape[-1]}; choose another response")
    p = np.clip(picture, 0, 1)
    coded = np.where(p <= 0.0031308, 12.92 * p, 1.055 * np.maximum(p, 1e-9) ** (1 / 2.4) - 0.055)
    image = Image.fromarray(np.round(255 * coded).astype(np.uint8).squeeze())
    with replacing(Path(path), overwrite) as temporary:
        image.save(temporary, format="PNG")


def read_response(path: str | os.PathLike[str], wavelengths: np.ndarray) -> np.ndarray:
    """The curves of a table at the bands, (K, C), each of sum 1, linear between its lines.

    Raises:
        InputError: no such table, negative values, or bands outside of it.
    """
    path = Path(path)
    expected = "numbers, a line each of a wavelength [nm] and one value for each channel"
    rows = read_table(path, expected)
    if len(rows) < 2 or len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
        raise InputError(f"{path}: expected {expected}")
    table = np.array(sorted(rows))
    axis, curves = table[:, 0], table[:, 1:]
    if not np.isfinite(table).all() or (curves < 0).any():
        raise InputError(f"{path}: the curves must be finite and >= 0")
    if wavelengths.min() < axis[0] - 1e-6 or wavelengths.max() > axis[-1] + 1e-6:
        raise InputError(
            f"{path}: the curves go from {axis[0]:g} to {axis[-1]:g} nm, the bands from {wavelengths.min():g} to "
            f"{wavelengths.max():g} nm"
        )
    R = np.stack([np.interp(wavelengths, axis, curve) for curve in curves.T])
    if not (R.sum(1) > 0).all():
        raise InputError(f"{path}: a curve is 0 at all bands")
    scaled: np.ndarray = R / R.sum(1, keepdims=True)
    return scaled
