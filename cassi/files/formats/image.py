"""Read grey PNG images and TIFF stacks as counts, and write cubes as TIFF."""

import json
import math
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.container import Container, CubeContent, Entry, Selection, damage_as_input_error

TYPES = {"1": "bool", "L": "uint8", "I;16": "uint16", "I;16B": "uint16", "I": "int32", "F": "float32"}  # by mode
BITS, WHITE_IS_ZERO, DESCRIPTION, ORIENTATION = 258, 262, 270, 274  # tags of TIFF


def open_image(path: Path, kind: str) -> Container:
    """Open a "PNG" or "TIFF" as a `Container`: its pages are one entry (N, H, W), or (H, W) for one page."""
    from PIL import Image

    with damage_as_input_error(path, kind), Image.open(path, formats=[kind]) as image:
        mode, (width, height), count = image.mode, image.size, getattr(image, "n_frames", 1)
        tags = dict(getattr(image, "tag_v2", {}))
        if mode not in TYPES:
            raise InputError(f"{path}: a color {kind} (mode {mode}); a snapshot has no colors, save grey")
        if tags.get(WHITE_IS_ZERO) == 0:
            raise InputError(f"{path}: a TIFF in which 0 is white, expected 0 to be dark; save it as min-is-black")
        if tags.get(ORIENTATION, 1) != 1:
            raise InputError(f"{path}: a TIFF that asks to be turned (orientation {tags[ORIENTATION]})")
        for page in range(count):
            image.seek(page)
            if (image.mode, image.size) != (mode, (width, height)):
                raise InputError(f"{path}: pages of unequal size or kind; save frames of one size as a plain stack")
        if kind == "PNG":
            image.verify()  # the checksums, which reading passes over
    dtype = np.dtype("uint16" if kind == "PNG" and mode == "I" else TYPES[mode])
    bits = tags.get(BITS, (16,))[0] if dtype == "uint16" else 16
    shape, wavelengths = _stated(str(tags.get(DESCRIPTION)))
    is_cube = len(shape) in (3, 4) and shape[-2:] == (height, width) and math.prod(shape[:-2]) == count
    shape = shape if is_cube else (count, height, width) if count > 1 else (height, width)
    axes = None if len(shape) == 2 else "NHW" if len(shape) == 3 and wavelengths is None else "NCHW"[-len(shape) :]
    entries = [Entry("pages", shape, dtype, axes=axes, bits=bits if bits < 16 else None)]
    if wavelengths is not None:
        entries.append(Entry("wavelengths", wavelengths.shape, wavelengths.dtype))

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        if entry.name == "wavelengths" and wavelengths is not None:
            return wavelengths
        numbers = np.arange(count).reshape(shape[:-2])[picked[:-2]]
        out = np.empty((numbers.size, height, width), dtype)
        with Image.open(path, formats=[kind]) as image:
            for values, number in zip(out, numbers.reshape(-1), strict=True):
                image.seek(int(number))
                values[...] = np.asarray(image)
        return out.reshape(*numbers.shape, height, width)[(slice(None),) * numbers.ndim + picked[-2:]]

    return Container(path, kind, tuple(entries), read)


def _stated(description: str) -> tuple[tuple[int, ...], np.ndarray | None]:
    """Shape and wavelengths that the text of a file states, as `write_tiff` and tifffile write them."""
    try:
        stated = json.loads(description)
        wavelengths = stated.get("wavelengths")
        return tuple(map(int, stated["shape"])), None if wavelengths is None else np.asarray(wavelengths, dtype=float)
    except (ValueError, TypeError, KeyError, AttributeError):  # any other text
        return (), None


def write_tiff(path: Path, content: CubeContent) -> None:
    """Write cube and wavelengths, one page a band."""
    from PIL import Image

    stated: dict[str, object] = {"shape": content.cube.shape}
    if content.wavelengths is not None:
        stated["wavelengths"] = [float(w) for w in content.wavelengths]
    first, *others = (Image.fromarray(page) for page in content.cube.reshape(-1, *content.cube.shape[-2:]))
    first.save(path, format="TIFF", save_all=True, append_images=others, tiffinfo={DESCRIPTION: json.dumps(stated)})
