"""Read TIFF stacks as counts, and write cubes as TIFF."""

import logging
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.container import (
    MAX_INFLATION,
    SLACK,
    Arrays,
    Attributes,
    Container,
    Entry,
    Selection,
    check_inflated,
    check_size,
    damage_as_input_error,
    read_plain,
)
from cassi.files.statements import OF_FILE, of_file, stated, statement_of, valid_axes

KNOWN_COMPRESSION = {1, 5, 8, 32773, 32946}  # none, LZW, deflate (two codes), PackBits; others need rare codecs
DEFLATED = {8, 32946}
ALPHA = {1, 2}  # samples with the opacity of a pixel
GDAL = {"scale": "scale_factor", "offset": "add_offset", "wavelength": "wavelengths"}  # statements by roles and names
MAX_DESCRIPTION = 1 << 20
STRAIGHT, UNCALIBRATED = 0, 20  # functions of ImageJ that values are calibrated by
READING = ContextVar("READING", default=False)  # in this thread
logging.getLogger("tifffile").addFilter(lambda record: not READING.get())
LETTERS = str.maketrans("YXSTIQZ", "HWCNNNN")  # from the axes of tifffile
MAX_SAMPLE, GDAL_METADATA, GDAL_NODATA, MICROMANAGER = 281, 42112, 42113, 51123  # tags
LEVELS, RATIOS = {"black_level": 50714, "saturation": 50717}, (5, 10)  # tags of DNG, and types of two numbers


def open_tiff(path: Path) -> Container:
    """Open a TIFF as a `Container`: its pages, all of one size, are one entry (N, H, W), or (H, W) for one page.

    Pages are read one by one, so that a long stack need not fit in memory. Files named in an OME header are ignored.

    Raises:
        InputError: pages of unequal size, in color, rotated, with white as zero, or of unknown compression; or a
            damaged file.
    """
    with damage_as_input_error(path, "TIFF"), _open(path) as tiff:
        series = tiff.series[0]
        shape, axes = tuple(int(n) for n in series.shape), series.axes.translate(LETTERS)
        for one in tiff.series:
            _check(path, one.keyframe)
        if len(tiff.series) > 1:  # pages that were appended one by one
            kinds = {(tuple(one.shape[-2:]), str(one.dtype)): None for one in tiff.series}
            if len(kinds) > 1 or any(_pages_of(one) != len(one.pages) for one in tiff.series):
                raise InputError(
                    f"{path}: pages of unequal size or kind ({one_line(list(kinds), 120)}); save frames of one size as "
                    "a plain TIFF stack"
                )
            shape, axes = (sum(map(_pages_of, tiff.series)), *shape[-2:]), "NHW"
        dtype, attributes = np.dtype(series.dtype), _attributes(path, tiff)
    letters = valid_axes(axes, len(shape)) if len(shape) > 2 else None
    entries = [stated(Entry("pages", shape, dtype, letters), attributes)]

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        with _open(path) as tiff:
            series = tiff.series[0]
            pages = [page for one in tiff.series for page in one.pages]
            rank = len(entry.shape) - len(series.keyframe.shape)
            if np.prod(entry.shape[:rank], dtype=int) != len(pages):  # all in one page, as ImageJ may store them
                if (start := series.dataoffset) is not None:
                    stored = np.dtype(series.dtype).newbyteorder(tiff.byteorder)
                    return read_plain(path, picked, entry.shape, stored, start).astype(entry.dtype)
                check_size(path, f"'{entry.name}' {entry.shape}, in one page,", math.prod(entry.shape) * entry.itemsize)
                _check_segments(series.keyframe, math.prod(entry.shape) * entry.itemsize)
                return np.asarray(series.asarray()).reshape(entry.shape)[picked]
            numbers = np.arange(len(pages)).reshape(entry.shape[:rank])[picked[:rank]]
            # the pages may have lost an axis of length 1: tifffile writes an image of one column as a row
            out = np.empty((numbers.size, *series.keyframe.shape), dtype=entry.dtype)
            for values, number in zip(out, numbers.reshape(-1), strict=True):
                page = pages[int(number)]
                _check_segments(page, values.nbytes)
                values[...] = page.asarray()
        return out.reshape(*numbers.shape, *entry.shape[rank:])[(slice(None),) * rank + picked[rank:]]

    return Container(path, "TIFF", tuple(entries), read, of_file(attributes))


def _attributes(path: Path, tiff: Any) -> dict[str, object]:
    """What its tags state, those of ImageJ, GDAL, OME, DNG and Micro-Manager among them, by the names of statements."""
    page, dtype = tiff.series[0].keyframe, np.dtype(tiff.series[0].dtype)
    found: dict[str, object] = {}
    said = tiff.imagej_metadata or {}
    if said.get("cf") == STRAIGHT:  # as signed counts are stored
        found |= {"add_offset": said.get("c0", 0.0), "scale_factor": said.get("c1", 1.0)}
    elif said.get("cf", UNCALIBRATED) != UNCALIBRATED:
        raise InputError(f"{path}: its values are calibrated by a curve of ImageJ (cf={said['cf']}); save plain counts")
    bits, most, of_camera = (page.bitspersample, page.tags.valueof(MAX_SAMPLE), page.tags.valueof(MICROMANAGER))
    most = int(np.max(most)) if dtype.kind in "iu" and most is not None else 0
    text = str(page.description or "")[:MAX_DESCRIPTION]
    significant = re.search(r'\bSignificantBits="(\d+)"', text)
    if len(centers := re.findall(r'\bEmissionWavelength="([\d.]+)"', text)) > 1:  # of the channels of OME
        unit = re.search(r'\bEmissionWavelengthUnit="([^"]+)"', text)
        found |= {"wavelengths": centers, "wavelength_units": unit[1] if unit else "nm"}
    if significant is not None:
        found["bit_depth"] = int(significant[1])
    elif isinstance(of_camera, dict) and isinstance(of_camera.get("BitDepth"), int):
        found["bit_depth"] = of_camera["BitDepth"]
    elif most > 0 and most & (most + 1) == 0:  # of a camera; who states the brightest pixel means another thing
        found["bit_depth"] = most.bit_length()
    elif bits < dtype.itemsize * 8:
        found["bit_depth"] = int(bits)
    for name, tag in LEVELS.items():
        if (level := page.tags.get(tag)) is not None:
            each = np.array(level.value, dtype=float).reshape(-1)
            each = each[::2] / each[1::2] if level.dtype in RATIOS else each
            found[name] = np.unique(each)  # of the filters of a mosaic
    if (nodata := str(page.tags.valueof(GDAL_NODATA) or "").strip("\0 ")) not in ("", "none"):
        found["missing_value"] = nodata
    bands = dict[str, dict[int, str]]()
    for item in ElementTree.fromstring(page.tags.valueof(GDAL_METADATA) or "<GDALMetadata/>").iter("Item"):
        name = str(item.get("role") or item.get("name")).lower()
        bands.setdefault(GDAL.get(name, name), {})[int(item.get("sample", 0))] = (item.text or "").strip()
    for name, items in bands.items():
        values = [items[k] for k in sorted(items)]
        if statement_of(name) in OF_FILE:
            found[name] = values[0] if len(set(values)) == 1 else values
        elif name.startswith("central_wavelength_"):
            found |= {"wavelengths": [float(v) for v in values], "wavelength_units": name[-2:]}
        elif name in GDAL.values():
            found[name] = [float(v) for v in values]
    shaped = tiff.shaped_metadata[0] if tiff.shaped_metadata else {}
    return found | {name: value for name, value in shaped.items() if name not in ("axes", "shape")}


def _pages_of(series: Any) -> int:
    """The frames of a series, which need not be pages of the file."""
    return int(np.prod(series.shape[:-2], dtype=int))


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    """The open file; problems are not logged, as the error describes them in one line."""
    import tifffile

    before = READING.set(True)
    try:
        with tifffile.TiffFile(path, is_ome=False, _multifile=False) as tiff:
            yield tiff
    finally:
        READING.reset(before)


def _check(path: Path, page: Any) -> None:
    orientation, colors = page.tags.valueof("Orientation", 1), int(page.photometric)
    if int(page.compression) not in KNOWN_COMPRESSION:
        raise InputError(f"{path}: TIFF compression {page.compression!r} is not read; save it plain or with deflate")
    if page.dtype is None:
        raise InputError(f"{path}: TIFF of an unknown number type; save it as integers or floats of 64 bits at most")
    if colors == 0:
        raise InputError(f"{path}: a TIFF in which 0 is white, expected 0 to be dark; save it as min-is-black")
    if colors != 1 or set(page.extrasamples) & ALPHA:
        raise InputError(f"{path}: a color TIFF; a snapshot has no colors, save grey")
    if orientation != 1:
        raise InputError(f"{path}: a rotated TIFF (orientation {orientation}); save it upright")


def _check_segments(page: Any, size: int) -> None:
    """Raise ValueError if a strip or tile of a page of this size holds clearly more than is declared.

    Without imagecodecs, tifffile unpacks all that a stream holds. PackBits makes at most 64 bytes of one, and a packed
    strip may not be larger than what it holds.
    """
    page = page.aspage()
    piece = math.prod(page.chunks) * page.dtype.itemsize
    if piece > size + SLACK:
        raise ValueError(f"tiles or strips {page.chunks} of a page {page.shape}")
    if page.compression == 1:
        return
    for start, stored in zip(page.dataoffsets, page.databytecounts, strict=False):
        if stored > piece + piece // 8 + 2**16:
            raise ValueError(f"a strip of {piece} bytes takes {stored} bytes in the file")
        if page.compression in DEFLATED and MAX_INFLATION * stored > piece + SLACK:
            page.parent.filehandle.seek(start)
            check_inflated(page.parent.filehandle.read(stored), piece)


def write_tiff(path: Path, arrays: Arrays, attributes: Attributes) -> None:
    """Write cube and wavelengths, one page per band."""
    import tifffile

    cube, nm = arrays["cube"], arrays.get("wavelengths")
    metadata = of_file(attributes) | {"axes": "TCYX"[-cube.ndim :]}
    metadata |= {} if nm is None else {"wavelengths": nm.tolist()}
    tifffile.imwrite(path, cube, photometric="minisblack", metadata=metadata)
