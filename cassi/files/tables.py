"""Tables as text, as whatever program wrote them: columns of numbers under their headings."""

import codecs
import csv
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.atomic import check_readable
from cassi.optics.wavelengths import ENERGIES, FREQUENCIES, LENGTHS, to_nanometers
from cassi.types import PathLike

MAX_BYTES = 16 << 20
MAX_MICROMETERS = 100.0  # where no unit is stated: no list of nanometers ends below it
BYTE_ORDER_MARKS = (  # the longer first
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
    (codecs.BOM_UTF8, "utf-8"),
)
NUMBER = re.compile(r"[+-]?(\d+([.,]\d*)?|[.,]\d+)([eE][+-]?\d+)?")
GROUPED = re.compile(r"[+-]?\d[\d.,' \u00a0\u202f]*")  # also with separators of thousands, which are not read
NONE = ("", "nan", "inf", "+inf", "-inf", "na", "n/a", "#n/a", "null", "none", "-", "--")
NO_VALUE = (-999.0, -9999.0, -32768.0)  # and what is below -1e30: -1.23e34 of the U.S. Geological Survey
SEPARATORS = ("\t", ";", " ", ",")  # in order of preference: commas last, as they may be decimal
WAVE = re.compile(  # in the heading of wavelengths
    r"wav|wellen|longue?ur|longitud|lunghezza|nombres? d.onde|lambda|λ|波長|^wl\b|"
    r"^\W*(photon ?)?(freq|energ)",
    re.IGNORECASE,
)
WAVENUMBER = re.compile(r"wave ?number|wellenzahl|nombres? d.onde", re.IGNORECASE)
NO_LENGTH = re.compile(r"freq|energ", re.IGNORECASE)
UNITS = sorted((word for word in (*LENGTHS, *FREQUENCIES, *ENERGIES, "µm", "μm") if len(word) > 1), key=len)[::-1]
UNIT = re.compile(
    rf"(?<![^\W_])(1/|(per|inverse|reciprocal) )?({'|'.join(UNITS)})s?(\^?-1|⁻¹)?(?![^\W_])|Å", re.IGNORECASE
)
MARKED = re.compile(r"[\[(]([^\])]+)[\])]|/\s*(\S+)\s*$|_([^\W_]+)$")  # in brackets, after a slash, an underscore
VALUE = re.compile(r"refl|transm|radian|\bmean\b|\bvalue|^\W*[RT]\b", re.IGNORECASE)  # where there are several
PARTS = {r"%|percent": 1e2, r"‰|per ?mille?\b": 1e3, r"\bppm\b": 1e6}  # of 1, in the heading of values
TIMES = re.compile(r"[x\u00d7*]\s*(10+)\b")
LOGARITHMIC = re.compile(r"\bdB\b|\b[Aa]bsorban|\b[Ll]og\b")
OTHER = re.compile(r"\bsd\b|std|dev|err|sigma|uncert|count|^n$|index|^no\.?$|^#$|band|row|\bid\b", re.IGNORECASE)


@dataclass(frozen=True)
class Table:
    """The numbers of a table (n, k), NaN where there is none, its headings, and the lines before these."""

    path: Path
    heads: tuple[str, ...]
    numbers: np.ndarray
    before: tuple[str, ...]

    @property
    def first(self) -> int:
        """The first column, or the one after that where it only counts the rows."""
        column = self.numbers[:, 0]
        counts = len(column) > 1 and column[0] in (0, 1) and (np.diff(column) == 1).all()
        return int(self.numbers.shape[1] > 1 and counts and not is_wave(self.heads[0]))

    def wavelengths(self) -> tuple[int, np.ndarray]:
        """The column of wavelengths and these [nm], in the unit that its heading or a line above states.

        Raises:
            InputError: the unit is unknown or unclear.
        """
        named = [k for k, head in enumerate(self.heads) if is_wave(head)]
        column = named[0] if named else self.first
        values, name, head = self.numbers[:, column], f"{self.path}: wavelengths", self.heads[column]
        above = [line for line in self.before if re.search(r"(?i)wavelength|x.?unit", line)]
        if (unit := next(filter(None, map(unit_in, (head, *above))), None)) is None and NO_LENGTH.search(head):
            raise InputError(f"{name}: the heading {one_line(head, 40)!r} states no unit; add one such as eV or THz")
        if unit is not None:
            nm = to_nanometers(values, unit, name)
            if nm is None:
                raise InputError(f"{name} are numbers of bands; expected nm")
            return column, nm
        known = values[np.isfinite(values)]
        if known.size and known.min() < MAX_MICROMETERS:
            if known.min() <= 0 or known.max() > MAX_MICROMETERS:
                what = f"{name} from {known.min():g} to {known.max():g} are neither nm nor micrometers"
                raise InputError(f"{what}; state their unit, Wavelength [nm], and delete lines that are none")
            values = np.round(values * 1e3, 9)
        return column, values

    def values(self, wavelengths: int) -> np.ndarray:
        """The column of values beside that of the wavelengths, divided by what its heading says: 100 of percent.

        Raises:
            InputError: there is none, or several and the headings choose none; or values of a logarithm.
        """
        order = sorted(range(self.first, len(self.heads)), key=lambda k: k < wavelengths)  # those to the right first
        rest = [k for k in order if k != wavelengths and not is_wave(self.heads[k])]
        plain = [k for k in rest if not OTHER.search(self.heads[k])] or rest
        if not plain:
            what = "the first column counts the rows" if self.first else "one column of numbers"
            raise InputError(f"{self.path}: {what}; expected one of wavelengths and one of values")
        best = [k for k in plain if VALUE.search(self.heads[k])] or plain
        if len(best) > 1 and all(self.heads[k] for k in best):
            names = one_line([self.heads[k] for k in best], 80)
            raise InputError(f"{self.path}: which of its columns {names} holds the values? Delete the others")
        head = self.heads[best[0]]
        if LOGARITHMIC.search(head):
            raise InputError(f"{self.path}: {one_line(head, 40)!r} is logarithmic; expected values linear in the light")
        about = (head, *(line for line in self.before if re.search(r"(?i)y.?unit|reflect|transmi", line)))
        parts = [size for word, size in PARTS.items() if any(re.search(word, text, re.IGNORECASE) for text in about)]
        times = [float(found[1]) for text in about if (found := TIMES.search(text))]
        return np.asarray(self.numbers[:, best[0]] / (*parts, *times, 1)[0])


def read_table(path: PathLike, expected: str, *, columns: int = 1) -> Table:
    """Read the table of a text file: the longest rows of numbers, under their headings.

    Columns are separated by tabs, semicolons, blanks or commas, cells may be quoted, decimals have a point or a comma.
    Lines before and after the numbers are passed over; `expected` says in words what there should be.

    Raises:
        InputError: no such file, no numbers, a line among them that is none, or commas that may be both.
    """
    path, lines = Path(path), _lines(path, expected)
    tables = [table for by in SEPARATORS if (table := _separated(path, lines, by, columns)) is not None]
    if not tables:
        raise InputError(f"{path}: expected {expected}, found none")
    return max(tables, key=lambda table: len(table.numbers))  # the first of several


def is_wave(head: str) -> bool:
    """Whether a column holds wavelengths by its heading: their name in some language, or a unit alone."""
    return bool(WAVE.search(head) or UNIT.fullmatch(head.strip(" []()")))


def unit_in(text: str) -> str | None:
    """The unit of wavelengths that a heading states: a word that is one, or else what is marked as a unit; or None.

    Example:
        >>> unit_in("Wavelength in nm"), unit_in("Wellenzahl"), unit_in("λ (m)"), unit_in("Wavelength")
        ('nm', 'cm-1', 'm', None)
    """
    if found := UNIT.search(re.sub(r"(?<=[a-z])(?=[A-Z][a-z]{2})", " ", text)):
        return found[0]
    if found := MARKED.search(text):
        return str(next(filter(None, found.groups())))
    return "cm-1" if WAVENUMBER.search(text) else None


def rows_of_numbers(path: PathLike, expected: str) -> list[list[list[float]]]:
    """The numbers of each line of a text file that has nothing else, once for each way to read its commas: as decimal
    ones, then as separators. Headings are passed over.

    Raises:
        InputError: no such file, no numbers, or words among them.
    """
    lines, found = _lines(path, expected), list[list[list[float]]]()
    for pattern in (r"[\s;]+", r"[\s;,]+"):
        rows = [[_number(cell) for cell in re.split(pattern, line.strip(",; \t")) if cell] for line in lines]
        while rows and None in rows[0]:
            rows.pop(0)
        numbers = [[value for value in row if value is not None] for row in rows]
        found += [numbers] if rows and numbers == rows else []
    if not found:
        raise InputError(f"{path}: expected {expected}, got {one_line(' '.join(lines), 80)!r}")
    return found


def _lines(path: PathLike, expected: str) -> list[str]:
    """The lines of a text that are not blank."""
    path = check_readable(path)
    if path.stat().st_size > MAX_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes, expected {expected}")
    lines = [line for line in decode(path.read_bytes()).splitlines() if line.strip()]
    if lines and lines[0].startswith("##TITLE"):
        raise InputError(f"{path}: this is JCAMP-DX; save the spectrum as a table of two columns")
    return lines


def decode(data: bytes) -> str:
    """The text of a file: what a byte order mark says, UTF-8, or else Latin-1; UTF-16 without a mark shows in zeros."""
    for mark, name in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data.removeprefix(mark).decode(name, errors="replace")
    zeros = [data[start::2].count(0) for start in (0, 1)]
    if max(zeros) > len(data) / 8:
        return data.decode("utf-16-be" if zeros[0] > zeros[1] else "utf-16-le", errors="replace")
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8")
    return data.decode("latin-1")


def _separated(path: Path, lines: Sequence[str], by: str, columns: int) -> Table | None:
    """The table of lines whose columns this separates; None where there are too few."""
    lines = [line.strip(" \r\n") if by == "\t" else " ".join(line.split()) for line in lines]
    try:
        cells = [[cell.strip() for cell in row] for row in csv.reader(lines, delimiter=by, skipinitialspace=True)]
    except csv.Error:  # a cell of over 128 KiB
        return None
    rows = [[_number(cell) for cell in row] for row in cells]
    good = [k for k, row in enumerate(rows) if len(row) >= columns and row[0] is not None and None not in row[:columns]]
    good = [k for k in good if math.isfinite(rows[k][0] or 0)]
    if len(good) < 2:
        return None
    first, last = good[0], good[-1]
    broken = sorted({*range(first, last)} - {*good})
    if len(broken) > (last - first) / 2:
        return None
    outside = (k for k in (*range(first), *range(last + 1, len(cells))) if len(cells[k]) > 1)
    broken += [k for k in outside if all(map(GROUPED.fullmatch, cells[k]))]
    if broken:
        raise InputError(f"{path}: expected numbers in each line of the table, got {one_line(lines[broken[0]], 80)!r}")
    width = min(len(rows[k]) for k in good)
    heads = [cell if k else cell.lstrip("#%! ") for k, cell in enumerate(cells[first - 1])] if first else []
    heads = heads if not heads or heads[0] else heads[len(heads) > width :]  # a comment, whose mark stands alone
    heads = ["", *heads] if len(heads) == width - 1 > 1 else heads  # as R's write.table leaves out that of the rows
    if by == "," and len(heads) < 3 and width == 4 and not any("." in cell for k in good for cell in cells[k]):
        raise InputError(f"{path}: are the commas decimal? Separate columns by semicolons or tabs")
    heads = heads[:width] if len(heads) >= width else [""] * width
    table = np.array([[math.nan if v is None else v for v in rows[k][:width]] for k in good], dtype=np.float64)
    table[(table < -1e30) | np.isin(table, NO_VALUE)] = math.nan
    return Table(path, tuple(heads), table, tuple(lines[: max(0, first - any(heads))]))


def _number(cell: str) -> float | None:
    """The number in a cell, NaN for one that says there is none; None for words."""
    text = cell.strip().strip("\"'")
    if text.lower() in NONE:
        return math.nan
    return float(text.replace(",", ".")) if NUMBER.fullmatch(text) and not text.endswith(",") else None
