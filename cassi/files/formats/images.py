"""Read TIFF stacks and PNG images as counts."""

import json
import logging
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cassi.errors import InputError
from cassi.files.container import (
    Container,
    Entry,
    Selection,
    check_declared,
    check_inflated,
    damage_as_input_error,
    declared_bytes,
    missing_package,
)

MAX_PAGES = 1_000_000
# TIFF compression codes: none, LZW, deflate (two codes), PackBits. The others need rare codecs.
DEFLATE = {8, 32946}
KNOWN_COMPRESSION = {1, 5, 32773} | DEFLATE


def open_tiff(path: Path) -> Container:
    """Open a TIFF as a `Container`: its pages, all of one size, are one entry (N, H, W), or (H, W) for one page.

    Pages are read one by one, so a long stack need not fit in memory. Files that an OME header names are ignored.

    Raises:
        InputError: tifffile is missing, pages of unequal size, color, unknown compression, damaged file.
    """
    try:
        import tifffile
    except ImportError as error:
        raise missing_package(path, "tifffile", error) from error
    with damage_as_input_error(path, "TIFF"), _quiet(), tifffile.TiffFile(path, is_ome=False, _multifile=False) as tiff:
        if len(tiff.pages) > MAX_PAGES:
            raise InputError(f"{path}: {len(tiff.pages)} pages, expected at most {MAX_PAGES}")
        first = tiff.pages.first
        shape, dtype, bits = _page_layout(path, first)
        declared, axes, wavelengths = _description(first.description, len(tiff.pages), shape)
    entry = Entry("pages", declared, dtype, axes=axes, bits=bits)
    entries = [entry]
    if wavelengths is not None:
        entries.append(Entry("wavelengths", wavelengths.shape, wavelengths.dtype))
    stored = path.stat().st_size
    check_declared(path, "pages", declared_bytes(declared, dtype.itemsize if dtype else 1), stored)

    def read(entry: Entry, selection: Selection | None) -> np.ndarray:
        if entry.name == "wavelengths" and wavelengths is not None:
            return wavelengths
        return _read_pages(path, entry, selection)

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
    return shape, named if set(named) <= set("NCHW") else None, values


def _read_pages(path: Path, entry: Entry, selection: Selection | None) -> np.ndarray:
    import tifffile

    picked = selection if selection is not None else tuple(slice(None) for _ in entry.shape)
    with _quiet(), tifffile.TiffFile(path, is_ome=False, _multifile=False) as tiff:
        if len(tiff.pages) == 1 and entry.axes == "CHW" and len(entry.shape) == 3 and entry.shape[0] > 1:
            return _page_values(path, tiff.pages.first, entry.shape)[picked]
        page_shape = entry.shape[1:] if entry.axes == "NCHW" and len(tiff.pages) == entry.shape[0] else entry.shape[-2:]
        lead = entry.shape[: len(entry.shape) - len(page_shape)]
        if not lead:
            return _page_values(path, tiff.pages.first, page_shape)[picked]
        index = np.arange(len(tiff.pages)).reshape(lead)[picked[: len(lead)]]
        out = np.empty((index.size, *page_shape), dtype=entry.dtype)
        for row, number in zip(out, index.reshape(-1), strict=True):
            row[...] = _page_values(path, tiff.pages[int(number)], page_shape)
    whole = tuple(slice(None) for _ in lead)
    return out.reshape(*index.shape, *page_shape)[whole + picked[len(lead) :]]


def _page_values(path: Path, page: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Decode one page after checking that its strips unpack to no more than its pixels."""
    keyframe = page.aspage()
    found, dtype, _ = _page_layout(path, keyframe)
    if found != shape:
        raise InputError(f"{path}: pages of unequal size, {found} after {shape}; save frames of one size")
    if int(keyframe.compression) in DEFLATE:
        limit = declared_bytes(keyframe.chunks, dtype.itemsize)
        with path.open("rb") as file:
            for offset, size in zip(keyframe.dataoffsets, keyframe.databytecounts, strict=True):
                file.seek(offset)
                check_inflated(path, "pages", file.read(size), limit)
    try:
        values = np.asarray(keyframe.asarray())
    except ValueError as error:
        if "imagecodecs" in str(error):
            raise missing_package(path, "imagecodecs", ImportError(str(error))) from error
        raise
    return np.moveaxis(values, -1, 0) if keyframe.axes == "YXS" else values


def open_png(path: Path) -> Container:
    """Open a grey PNG of 8 or 16 bits as a `Container` with the entry `image`.

    Raises:
        InputError: a color or palette image, a damaged file, or a bomb.
    """
    from PIL import Image

    with path.open("rb") as file:
        width, height = struct.unpack(">II", file.read(24)[16:].ljust(8, b"\0"))
    check_declared(path, "image", width * height * 2, path.stat().st_size)
    with damage_as_input_error(path, "PNG"), Image.open(path, formats=["PNG"]) as image:
        mode = image.mode
    dtype = {"1": "bool", "L": "uint8", "I;16": "uint16", "I": "uint16", "I;16B": "uint16"}.get(mode)
    if dtype is None:
        raise InputError(f"{path}: a color PNG (mode {mode}), expected one grey channel; a snapshot has no colors")

    def read(entry: Entry, selection: Selection | None) -> np.ndarray:
        with Image.open(path, formats=["PNG"]) as image:
            values = np.array(image).astype(entry.dtype)
        return values if selection is None else values[selection]

    return Container(path, "PNG", (Entry("image", (height, width), np.dtype(dtype)),), read)
