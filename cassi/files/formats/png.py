"""Read PNG images as counts."""

import struct
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.container import Container, Entry, Selection, damage_as_input_error
from cassi.files.statements import of_file, stated

TYPES = {"1": "bool", "L": "uint8", "I;16": "uint16", "I": "uint16", "I;16B": "uint16"}  # by the modes of Pillow


def open_png(path: Path) -> Container:
    """Open a grey PNG of 8 or 16 bits as a `Container` with the entry `image`.

    Raises:
        InputError: a color or palette image, or a damaged file.
    """
    from PIL import Image

    with damage_as_input_error(path, "PNG"), Image.open(path, formats=["PNG"]) as image:
        (width, height), mode, texts = image.size, image.mode, {str(k): v for k, v in image.info.items()}
        image.verify()  # the checksums, which reading ignores
    if mode not in TYPES:
        raise InputError(f"{path}: a color PNG (mode {mode}), expected one grey channel; a snapshot has no colors")

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        with Image.open(path, formats=["PNG"]) as image:
            values = np.array(image).astype(entry.dtype)
        return values[picked]

    entry = Entry("image", (height, width), np.dtype(TYPES[mode]))
    bits, whole = _significant_bits(path), 8 * entry.dtype.itemsize if entry.dtype else 0
    if bits is not None and not 0 < bits <= whole:
        raise InputError(f"{path}: states {bits} significant bits (sBIT) of {whole}; save it again")
    if bits is not None and bits < whole:
        values = read(entry, (slice(None),) * 2)
        # The standard scales fewer bits up to all, by zeros or by their repetition; many programs do not.
        repeated = values >> (whole - bits) << (whole - bits) | values >> bits
        scaled = not (values & ((1 << (whole - bits)) - 1)).any() or (2 * bits >= whole and (values == repeated).all())
        bits = whole if scaled else bits
    return Container(path, "PNG", (stated(entry, {} if bits is None else {"bit_depth": bits}),), read, of_file(texts))


def _significant_bits(path: Path) -> int | None:
    """Those that the chunk sBIT states, which comes before the data; None without it."""
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8 and (kind := head[4:]) not in (b"IDAT", b"IEND"):
            if kind == b"sBIT":
                return file.read(1)[0]
            file.seek(struct.unpack(">I", head[:4])[0] + 4, 1)
    return None
