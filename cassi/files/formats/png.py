"""Read PNG images as counts."""

from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.container import Container, Entry, Selection, damage_as_input_error

TYPES = {"1": "bool", "L": "uint8", "I;16": "uint16", "I": "uint16", "I;16B": "uint16"}  # by the modes of Pillow


def open_png(path: Path) -> Container:
    """Open a grey PNG of 8 or 16 bits as a `Container` with the entry `image`.

    Raises:
        InputError: a color or palette image, or a damaged file.
    """
    from PIL import Image

    with damage_as_input_error(path, "PNG"), Image.open(path, formats=["PNG"]) as image:
        (width, height), mode = image.size, image.mode
        image.verify()  # the checksums, which reading ignores
    if mode not in TYPES:
        raise InputError(f"{path}: a color PNG (mode {mode}), expected one grey channel; a snapshot has no colors")

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        with Image.open(path, formats=["PNG"]) as image:
            values = np.array(image).astype(entry.dtype)
        return values[picked]

    return Container(path, "PNG", (Entry("image", (height, width), np.dtype(TYPES[mode])),), read)
