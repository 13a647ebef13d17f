"""A sequence of cubes as a short film in color."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from cassi.files.atomic import check_place, replacing
from cassi.looking.color import cube_to_srgb, white_level
from cassi.types import PathLike

MAX_SIDE = 256  # of the film [pixel]
RATE = 8  # frames per second


def write_film(
    path: PathLike,
    frame: Callable[[int], np.ndarray],
    count: int,
    wavelengths: ArrayLike | None = None,
    *,
    overwrite: bool = False,
) -> Path:
    """Write an animated GIF of `count` cubes frame(t), t from 0, one in memory at a time, all with the white of the
    first.

    Raises:
        OutputError: the file exists, or its folder does not.
    """
    path = Path(path)
    check_place(path, overwrite)
    first = frame(0)
    every = -(-max(first.shape[-2:]) // MAX_SIDE)
    white = white_level(first, wavelengths)

    def picture(t: int) -> Image.Image:
        cube = frame(t) if t else first
        colors = cube_to_srgb(cube[:, ::every, ::every], wavelengths, white=white)
        return Image.fromarray((255 * colors).round().astype(np.uint8))

    with replacing(path, overwrite) as temporary, temporary.open("wb") as file:
        later = (picture(t) for t in range(1, count))
        picture(0).save(file, "GIF", save_all=True, append_images=later, duration=1000 // RATE, loop=0)
    return path
