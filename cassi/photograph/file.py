"""Reads and writes a photograph of the scene by a second camera."""

import os
from pathlib import Path

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.atomic import replacing
from cassi.optics.srgb import encode_srgb
from cassi.photograph.picture import SidePicture


def read_side_picture(path: str | os.PathLike[str]) -> SidePicture:
    """Read a side picture from PNG, JPEG, TIFF or NumPy (.npy, (h, w) or (h, w, K)).

    Integers may be linear, display values, or altered by the tone curve of a camera, which the snapshot decides; floats
    are linear. Integer pixels at the maximum of their type are saturated.

    Raises:
        InputError: the picture cannot be read.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder, expected a picture; name the file in it")
    if not path.is_file():
        raise InputError(f"{path}: the side picture does not exist")
    values = np.load(path, allow_pickle=False) if path.suffix.lower() == ".npy" else _image(path)
    clip = float(np.iinfo(values.dtype).max) if values.dtype.kind in "iu" else None
    try:
        return SidePicture(values, linear=True if clip is None else None, clip=clip, source=path.name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _image(path: Path) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(path) as file:
            if file.mode in ("P", "RGBA", "CMYK", "YCbCr"):
                return np.asarray(file.convert("RGB"))
            return np.asarray(file.convert("L") if file.mode in ("1", "LA") else file)
    except (OSError, Image.DecompressionBombError) as error:
        raise InputError(f"{path}: cannot be read as a PNG, JPEG or TIFF picture ({one_line(error)})") from error


def write_side_picture(path: str | os.PathLike[str], picture: np.ndarray, *, overwrite: bool = False) -> None:
    """Write a picture (h, w, K) in [0, 1] of one or three channels as an 8-bit PNG for display (sRGB)."""
    from PIL import Image

    if picture.shape[-1] not in (1, 3):
        raise InputError(f"a PNG has one channel or three, got {picture.shape[-1]}; choose another response")
    p = np.clip(picture, 0, 1)
    image = Image.fromarray(np.round(255 * encode_srgb(p)).astype(np.uint8).squeeze())
    with replacing(Path(path), overwrite) as temporary:
        image.save(temporary, format="PNG")
