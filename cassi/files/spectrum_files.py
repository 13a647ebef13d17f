"""Tables of a spectrometer: wavelength and value, as whatever program wrote them, and their means over bands."""

import codecs
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.atomic import PathLike

MAX_TABLE_BYTES = 16 << 20
MICROMETERS = 10.0  # wavelengths below this are in micrometers
DECIMAL = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
SEPARATORS = (r"\t", ";", r"\s+", ",")  # in order of preference: commas last, as they may be decimal


class Spectrum(NamedTuple):
    """A sampled spectrum: wavelengths (n,) [nm], increasing, and values (n,)."""

    nm: np.ndarray
    values: np.ndarray


def read_spectrum(path: PathLike) -> Spectrum:
    """Read the first two columns of a table: wavelength [nm], or micrometers where all lie below 10, and value.

    Columns are separated by tabs, semicolons, blanks or commas; decimals have a point or a comma. Lines before and
    after the numbers are passed over. Values of one wavelength are averaged.

    Raises:
        InputError: no such file, fewer than two rows of two numbers, a line among them that is none, or NaN.

    Example:
        >>> path = os.path.join(tempfile.mkdtemp(), "leaf.csv")
        >>> _ = open(path, "w").write("Wellenlänge;Reflexion\\n450,5;0,1\\n550,5;0,3\\n")
        >>> read_spectrum(path).nm
        array([450.5, 550.5])
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TABLE_BYTES + 1)
    except OSError as error:
        raise InputError(f"{path}: {str(error.strerror).lower()}") from error
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # "Unicode text" of spreadsheets
    if len(data) > MAX_TABLE_BYTES or (b"\0" in data and not wide):
        raise InputError(f"{path}: expected a table of wavelength and value as text; export it as .csv")
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    rows = min(([_pair(line, by) for line in lines] for by in SEPARATORS), key=lambda rows: rows.count(None))
    numbered = [k for k, row in enumerate(rows) if row is not None]
    if len(numbered) < 2:
        raise InputError(f"{path}: expected lines of wavelength and value such as 450.5;0.123, found none")
    first, last = numbered[0], numbered[-1]
    broken = next((k for k in range(first, last) if rows[k] is None), None)
    if broken is not None:
        raise InputError(f"{path}: expected two numbers in each line of the table, got {one_line(lines[broken], 80)!r}")
    table = np.array(rows[first : last + 1], dtype=np.float64)
    if not np.isfinite(table).all() or (table[:, 0] <= 0).any():
        raise InputError(f"{path}: wavelengths must be positive and values finite; delete the other lines")
    nm, where = np.unique(table[:, 0] * (1000 if table[:, 0].max() < MICROMETERS else 1), return_inverse=True)
    if len(nm) < 2:
        raise InputError(f"{path}: all values are of one wavelength, {nm[0]:g} nm; expected a spectrum")
    return Spectrum(nm, np.bincount(where, table[:, 1]) / np.bincount(where))


def _pair(line: str, separator: str) -> tuple[float, float] | None:
    """The first two numbers of a line; None where it does not begin with two."""
    cells = [cell.strip().strip('"') for cell in re.split(separator, line)][:2]
    if len(cells) < 2 or not all(DECIMAL.fullmatch(cell) for cell in cells):
        return None
    if separator == r"\s+" and line.split()[0].endswith(","):  # "450, 0.1": the comma separates
        return None
    wavelength, value = (float(cell.replace(",", ".")) for cell in cells)
    return wavelength, value


def band_means(spectrum: Spectrum, centers: np.ndarray) -> np.ndarray:
    """The mean of a spectrum, linear between its samples, over each band.

        s_c = 1 / |E_c| int_{E_c} s(lambda) d lambda

    E_c reaches half way to the neighboring centers, at the ends as far as on the inner side.

    Args:
        spectrum: see `read_spectrum`.
        centers: (C,) band centers [nm], distinct, in any order; at least 2.

    Returns:
        (C,); NaN for bands whose center the table does not reach. E_c is cut where the table ends.

    Example:
        >>> band_means(Spectrum(np.array([400.0, 500.0]), np.array([0.0, 1.0])), np.array([420.0, 440.0, 600.0]))
        array([0.2 , 0.65,  nan])
    """
    order = np.argsort(centers)
    sorted_ = np.asarray(centers, dtype=np.float64)[order]
    middle = (sorted_[1:] + sorted_[:-1]) / 2
    edges = np.concatenate([[2 * sorted_[0] - middle[0]], middle, [2 * sorted_[-1] - middle[-1]]])
    edges = edges.clip(spectrum.nm[0], spectrum.nm[-1])
    grid = np.union1d(spectrum.nm, edges)
    values = np.interp(grid, spectrum.nm, spectrum.values)
    area = np.concatenate([[0.0], np.cumsum(np.diff(grid) * (values[1:] + values[:-1]) / 2)])
    at_edges = area[np.searchsorted(grid, edges)]
    known = (sorted_ >= spectrum.nm[0]) & (sorted_ <= spectrum.nm[-1])
    means = np.full(len(sorted_), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        means[order] = np.where(known, np.diff(at_edges) / np.diff(edges), np.nan)
    return means
