"""Wavelengths as given by the user: a preset, a range, a list, a file."""

import codecs
import math
import os
from pathlib import Path

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.names import WAVELENGTHS, find
from cassi.files.opening import open_container
from cassi.optics.wavelengths import PRESETS, check_wavelengths

MAX_TEXT_BYTES = 1 << 20
TABLES = (".txt", ".csv", ".tsv")  # read as text
MAX_ROUNDING = 1.0  # [nm] between lists of wavelengths that are the same
BYTE_ORDER_MARKS = (  # the longer first
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)


def parse_wavelengths(text: str, num_bands: int | None, *, of: str = "bands") -> np.ndarray | None:
    """The wavelength of each band from text given by the user.

    `start:stop:count` means  lambda_c = start + c (stop - start) / (count - 1),  both ends included.

    Args:
        text: a preset ("tsa-net-28", "mst-28", "smem-24", "cave-31"), a range "450:650:28" [nm], a list "450,500,550"
            [nm], the name of a file (.txt or .csv with one number per band, or any data file with a `wavelengths`
            array), or "unknown".
        num_bands: bands C of the measurement, which the list must match; None: any number.
        of: what the wavelengths belong to, for error messages.

    Returns:
        (C,) float64 wavelengths [nm], or None for "unknown".

    Raises:
        InputError: none of the above, another number of bands, or values that are not positive and finite.

    Example:
        >>> parse_wavelengths("450:650:5", 5)
        array([450., 500., 550., 600., 650.])
    """
    text = text.strip()
    if text.lower() in ("unknown", "none", ""):
        return None
    if text.lower() in PRESETS:
        values = np.array(PRESETS[text.lower()].wavelengths)
    elif text.count(":") == 2 and not os.path.exists(text):
        values = _parse_range(text)
    elif os.path.isfile(text):
        values = _read_file(Path(text))
    else:
        try:
            values = np.array([float(part) for part in text.split(",")])
        except ValueError:
            presets = ", ".join(sorted(PRESETS))
            raise InputError(
                f"wavelengths {text!r}: expected a preset ({presets}), start:stop:count, a list of numbers, "
                f"an existing file, or unknown"
            ) from None
    return check_wavelengths(values, values.size if num_bands is None else num_bands, f"wavelengths {text!r}", of=of)


def wavelength_source(given: str | np.ndarray) -> str:
    """Where the wavelengths that were given come from, in words: the source of a preset, a file, or "as given".

    Example:
        >>> wavelength_source("cave-31"), wavelength_source("450:650:28")
        ('CAVE multispectral image database (Yasuma et al. 2008)', 'as given')
    """
    text = given.strip() if isinstance(given, str) else ""
    if text.lower() in PRESETS:
        return PRESETS[text.lower()].source
    return f"the file {os.path.basename(text)}" if os.path.isfile(text) else "as given"


def _parse_range(text: str) -> np.ndarray:
    try:
        start, stop, count = (float(part) for part in text.split(":"))
        if not (math.isfinite(start) and math.isfinite(stop)) or count != int(count) or not 1 <= count <= 100_000:
            raise ValueError
    except (ValueError, OverflowError):
        raise InputError(f"wavelengths {text!r}: expected start:stop:count in nm, for example 450:650:28") from None
    return np.linspace(start, stop, int(count))


def differing(given: np.ndarray | None, stored: np.ndarray | None) -> list[str]:
    """A note where wavelengths that were given (C,) [nm] are not those that the file states (C,); the given count."""
    if given is None or stored is None or np.abs(given - stored).max() <= MAX_ROUNDING:
        return []
    reverse = np.abs(given - stored[::-1]).max() <= MAX_ROUNDING
    ranges = [f"{values[0]:g} to {values[-1]:g} nm" for values in (given, stored)]
    how = "in reverse order" if reverse else f"off by up to {np.abs(given - stored).max():.3g} nm"
    return [
        f"the wavelengths given, {ranges[0]}, replace those of the file, {ranges[1]}: {how}; the bands stay in place"
    ]


def _decode(data: bytes) -> str:
    """The text of a file: UTF-8, or what a byte order mark says; UTF-16 without one shows in its zeros."""
    for mark, name in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data.removeprefix(mark).decode(name, errors="replace")
    zeros = [data[start::2].count(0) for start in (0, 1)]
    name = "utf-8" if max(zeros) < len(data) / 8 else "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    return data.decode(name, errors="replace")


def read_table(path: Path, expected: str) -> list[list[float]]:
    """The numbers of a short text file by line, separated by blanks, commas or semicolons; headings are skipped."""
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes, expected a short list of numbers")
    rows: list[list[float]] = []
    for line in _decode(path.read_bytes()).splitlines():
        try:
            row = [float(word) for word in line.replace(",", " ").replace(";", " ").split()]
        except ValueError:
            if rows:
                raise InputError(f"{path}: expected {expected}, got {one_line(line, 80)!r}") from None
            continue
        rows += [row] if row else []
    if not rows:
        raise InputError(f"{path}: expected {expected}, got none")
    return rows


def _read_file(path: Path) -> np.ndarray:
    if path.suffix.lower() in TABLES:
        rows = read_table(path, "numbers only, one wavelength [nm] per band")
        return np.array([value for row in rows for value in row])
    container = open_container(path)
    entry = find(container, WAVELENGTHS)
    if entry is None:
        raise InputError(f"{path}: no wavelengths found; it holds {container.listing()}")
    return container.read(entry)
