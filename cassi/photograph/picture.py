"""A photograph of the scene by a second camera, as given by the user, and its file."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.atomic import check_readable, replacing
from cassi.files.container import check_size, damage_as_input_error
from cassi.files.opening import open_container
from cassi.optics.srgb import encode_srgb
from cassi.types import PathLike

# Peak and standard deviation of each channel [nm], typical for color filters on silicon.
RGB = ((600.0, 32.0), (535.0, 38.0), (460.0, 30.0))
MIN_SIDE = 16  # of the picture [pixel]
MAX_CHANNELS = 16
FORMATS = ("PNG", "JPEG", "TIFF")  # as Pillow names them
TILE_TAGS = (322, 323)  # width and height of the tiles of a TIFF


@dataclass(frozen=True, eq=False)
class SidePicture:
    """A grey or color photograph of the scene of a snapshot; it need not be aligned with the snapshot.

    Attributes:
        picture: (h, w) or (h, w, K), any unit, finite.
        response: weight of each band in each channel, (K, C), up to a gain; None: a typical color or grey
            camera, adapted to the scene.
        linear: whether values are proportional to the light; False for display values (sRGB); None: whichever of the
            two fits the snapshot better, or a rising tone curve if neither does.
        clip: value from which a pixel counts as saturated; None: no pixel is.
        source: name of the file it was read from.

    Raises:
        InputError: wrong shape, values that are not finite, or a response that does not match the channels.
    """

    picture: np.ndarray
    response: np.ndarray | None = None
    linear: bool | None = True
    clip: float | None = None
    source: str = ""

    def __post_init__(self) -> None:
        p = self.picture
        if not isinstance(p, np.ndarray) or p.ndim not in (2, 3) or p.dtype.kind not in "fiu":
            got = f"{p.dtype} {p.shape}" if isinstance(p, np.ndarray) else type(p).__name__
            raise InputError(f"the photograph must be real numbers (h, w) or (h, w, channels), got {got}")
        if min(p.shape[:2]) < MIN_SIDE or self.channels > MAX_CHANNELS:
            raise InputError(
                f"the photograph must have at least {MIN_SIDE} x {MIN_SIDE} pixels and at most {MAX_CHANNELS} "
                f"channels, got {p.shape}"
            )
        if not np.isfinite(p).all() or p.max() <= 0:
            raise InputError("the photograph must be finite and not black")
        if self.response is not None and (np.ndim(self.response) != 2 or len(self.response) != self.channels):
            what = f"the response of the photograph must have one curve for each of {self.channels} channels"
            raise InputError(f"{what}, got {np.shape(self.response)}")
        if p.min() == p.max():
            raise InputError(f"the photograph is {p.max():g} everywhere and shows no scene; give another")

    @property
    def channels(self) -> int:
        """K."""
        return 1 if self.picture.ndim == 2 else int(self.picture.shape[2])


def expected_response(channels: int, wavelengths: np.ndarray | None, num_bands: int) -> np.ndarray:
    """The typical response of the channels of a photograph, (K, C), each of sum 1.

    For three channels and known wavelengths: Gaussians in red, green and blue; otherwise equal for all bands.
    """
    flat = np.full((channels, num_bands), 1 / num_bands)
    if channels != 3 or wavelengths is None:
        return flat
    curves = np.stack([np.exp(-((wavelengths - peak) ** 2) / (2 * width**2)) for peak, width in RGB])
    sums = curves.sum(1, keepdims=True)
    return np.where(sums > 1e-6, curves / np.maximum(sums, 1e-6), flat)


def read_side_picture(path: PathLike) -> SidePicture:
    """Read a photograph from PNG, JPEG or TIFF, or an array (h, w) or (h, w, K) from .npy, .npz, .mat or HDF5.

    Integers may be linear, display values, or altered by the tone curve of a camera, which the snapshot decides; floats
    are linear. Integer pixels at the maximum of their type are saturated.

    Raises:
        InputError: the picture cannot be read.
    """
    path = check_readable(path)
    values = _array(path) if path.suffix.lower() in (".npy", ".npz", ".mat", ".h5", ".hdf5") else _image(path)
    clip = float(np.iinfo(values.dtype).max) if values.dtype.kind in "iu" else None
    try:
        return SidePicture(values, linear=True if clip is None else None, clip=clip, source=path.name)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _array(path: Path) -> np.ndarray:
    container = open_container(path)
    return container.read(container.pick("photograph")[0])


def _image(path: Path) -> np.ndarray:
    """The pixels, by the parsers of `FORMATS` alone: others of Pillow start programs."""
    from PIL import Image, UnidentifiedImageError

    try:
        with damage_as_input_error(path, "a picture"), Image.open(path, formats=FORMATS) as file:
            tile = [getattr(file, "tag_v2", {}).get(tag, 1) for tag in TILE_TAGS]
            check_size(path, "the picture", 4 * len(file.getbands()) * max(math.prod(file.size), math.prod(tile)))
            if file.mode in ("P", "RGBA", "CMYK", "YCbCr"):
                return np.asarray(file.convert("RGB"))
            return np.asarray(file.convert("L") if file.mode in ("1", "LA") else file)
    except InputError as error:
        if isinstance(error.__cause__, UnidentifiedImageError):
            raise InputError(f"{path}: cannot be read, expected a PNG, JPEG or TIFF picture, or .npy") from error
        raise


def write_side_picture(path: PathLike, picture: np.ndarray, *, overwrite: bool = False) -> None:
    """Write a picture (h, w, K) in [0, 1] of one or three channels as an 8-bit PNG for display (sRGB)."""
    from PIL import Image

    if picture.shape[-1] not in (1, 3):
        raise InputError(f"a PNG has one channel or three, got {picture.shape[-1]}; choose another response")
    p = np.clip(picture, 0, 1)
    image = Image.fromarray(np.round(255 * encode_srgb(p)).astype(np.uint8).squeeze())
    with replacing(Path(path), overwrite) as temporary:
        image.save(temporary, format="PNG")
