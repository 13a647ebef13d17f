"""Read TIFF stacks as counts, and write cubes as TIFF."""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.errors import InputError
from cassi.files.container import (
    Container,
    CubeContent,
    Entry,
    Selection,
    damage_as_input_error,
    optional,
)

# What pictures mean by their numbers (the tag PhotometricInterpretation), and samples that say how opaque they are.
PICTURES = {1: "grey with transparency", 2: "RGB", 3: "palette", 5: "CMYK", 6: "YCbCr", 8: "CIELab"}
ALPHA = {1, 2}
# TIFF compression codes: none, LZW, deflate (two codes), PackBits. The others need rare codecs.
KNOWN_COMPRESSION = {1, 5, 8, 32773, 32946}


def open_tiff(path: Path) -> Container:
    """Open a TIFF as a `Container`: its pages, all of one size, are one entry (N, H, W), or (H, W) for one page.

    Pages are read one by one, so a long stack need not fit in memory. Files that an OME header names are ignored.

    Raises:
        InputError: tifffile is missing; pages of unequal size, in color, turned, with white as zero, or of unknown
            compression; damaged file.
    """
    tifffile = optional(path, "tifffile")
    with damage_as_input_error(path, "TIFF"), _quiet(), tifffile.TiffFile(path, is_ome=False, _multifile=False) as tiff:
        first = tiff.pages.first
        shape, dtype, bits = _page_layout(path, first)
        declared, axes, wavelengths = _description(first.description, len(tiff.pages), shape)
        images = re.search(r"^images=(\d+)", first.description, re.MULTILINE) if tiff.is_imagej else None
        if images and int(images[1]) > len(tiff.pages):
            raise InputError(
                f"{path}: ImageJ kept {images[1]} images in {len(tiff.pages)} TIFF pages; save them as a plain TIFF "
                f"stack, one page each, or as HDF5"
            )
    entry = Entry("pages", declared, dtype, axes=axes, bits=bits)
    entries = [entry]
    if wavelengths is not None:
        entries.append(Entry("wavelengths", wavelengths.shape, wavelengths.dtype))

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        if entry.name == "wavelengths" and wavelengths is not None:
            return wavelengths
        return _read_pages(path, shape, entry, picked)

    return Container(path, "TIFF", tuple(entries), read)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep tifffile from logging what is wrong with a damaged file: the error says it in one line."""
    logger = logging.getLogger("tifffile")
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _page_layout(path: Path, page: Any) -> tuple[tuple[int, ...], np.dtype, int | None]:
    """Return the (H, W) or, for planes or samples, (C, H, W) shape, the type and the bit depth of a page."""
    if int(page.compression) not in KNOWN_COMPRESSION:
        raise InputError(f"{path}: TIFF compression {page.compression!r} is not read; save it plain or with deflate")
    if page.dtype is None:
        raise InputError(f"{path}: TIFF of an unknown number type")
    colors, turned = int(page.photometric), page.tags.valueof("Orientation", 1)
    if colors == 0:
        raise InputError(f"{path}: a TIFF in which 0 is white, expected 0 to be dark; save it as min-is-black")
    if colors != 1 or set(page.extrasamples) & ALPHA:
        raise InputError(f"{path}: a color TIFF ({PICTURES.get(colors, colors)}); a snapshot has no colors, save grey")
    if turned != 1:
        raise InputError(f"{path}: a TIFF that asks to be turned (orientation {turned}); save it as it is to be read")
    shape = tuple(int(n) for n in page.shape)
    if len(shape) == 3 and page.axes == "YXS":
        shape = (shape[2], shape[0], shape[1])
    if len(shape) not in (2, 3):
        raise InputError(f"{path}: TIFF pages of {len(shape)} axes ({page.axes}), expected one plane of pixels")
    bits = int(page.bitspersample)
    return shape, np.dtype(page.dtype), bits if bits < page.dtype.itemsize * 8 else None


def _description(
    text: str, num_pages: int, page_shape: tuple[int, ...]
) -> tuple[tuple[int, ...], str | None, np.ndarray | None]:
    """Return the shape, axes and wavelengths a TIFF of this project's writer states, else the plain stack."""
    plain = (num_pages, *page_shape) if num_pages > 1 else page_shape
    axes = "NCHW"[-len(plain) :] if len(page_shape) == 3 else None
    try:
        stated = json.loads(text)
        shape = tuple(int(n) for n in stated["shape"])
        letters = str(stated["axes"])
        wavelengths = stated.get("wavelengths")
        values = None if wavelengths is None else np.asarray(wavelengths, dtype=float).reshape(-1)
    except (ValueError, TypeError, KeyError):
        return plain, axes, None
    count = int(np.prod(shape[:-2], dtype=np.int64)) if len(shape) >= 2 else 0
    if len(page_shape) != 2 or shape[-2:] != page_shape or count != num_pages or len(letters) != len(shape):
        return plain, axes, values
    named = letters.replace("Y", "H").replace("X", "W").replace("T", "N")
    known = set(named) <= set("NCHW") and len(set(named)) == len(named)
    return (shape, named, values) if known else (plain, axes, values)


def _read_pages(path: Path, page_shape: tuple[int, ...], entry: Entry, picked: Selection) -> np.ndarray:
    """Read the pages that are picked; the axes before those of a page count them."""
    import tifffile

    rank = len(entry.shape) - len(page_shape)
    with _quiet(), tifffile.TiffFile(path, is_ome=False, _multifile=False) as tiff:
        numbers = np.arange(len(tiff.pages)).reshape(entry.shape[:rank])[picked[:rank]]
        out = np.empty((numbers.size, *page_shape), dtype=entry.dtype)
        for row, number in zip(out, numbers.reshape(-1), strict=True):
            row[...] = _page_values(path, tiff.pages[int(number)], page_shape)
    return out.reshape(*numbers.shape, *page_shape)[(slice(None),) * rank + picked[rank:]]


def _page_values(path: Path, page: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Decode one page."""
    keyframe = page.aspage()
    found, _, _ = _page_layout(path, keyframe)
    if found != shape:
        raise InputError(f"{path}: pages of unequal size, {found} after {shape}; save frames of one size")
    try:
        values = np.asarray(keyframe.asarray())
    except ValueError as error:
        if "imagecodecs" in str(error):
            optional(path, "imagecodecs")
        raise
    return np.moveaxis(values, -1, 0) if keyframe.axes == "YXS" else values


def write_tiff(path: Path, content: CubeContent) -> Mapping[str, np.ndarray]:
    """Write cube and wavelengths, one page a band; return the arrays written by name."""
    tifffile = optional(path, "tifffile")
    cube, written = content.cube, {"pages": content.cube}
    metadata: dict[str, object] = {"axes": "TCYX"[-cube.ndim :]}
    if content.wavelengths is not None:
        metadata["wavelengths"] = [float(w) for w in content.wavelengths]
        written["wavelengths"] = content.wavelengths
    tifffile.imwrite(path, cube, photometric="minisblack", metadata=metadata)
    return written
