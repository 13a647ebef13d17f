"""Wavelengths as given by the user: a preset, a range, a list, a file."""

import math
import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from cassi.errors import InputError
from cassi.files.container import Entry, read_list
from cassi.files.opening import open_container
from cassi.files.statements import stated_as
from cassi.files.tables import is_wave, read_table, rows_of_numbers
from cassi.optics.wavelengths import PRESETS, check_wavelengths, to_nanometers

TABLES = (".csv", ".txt", ".tsv", ".dat", ".asc")  # the suffixes of text
MAX_ROUNDING = 1.0  # [nm] between lists of wavelengths that are the same


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
    if text.lower() in ("unknown", "none"):
        return None
    if text.lower() in PRESETS:
        values = np.array(PRESETS[text.lower()].wavelengths)
    elif text.count(":") == 2 and not os.path.exists(text):
        values = _parse_range(text)
    elif os.path.exists(text):
        values = _read_file(Path(text), num_bands)
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


def given_wavelengths(given: str | np.ndarray | None, num_bands: int) -> np.ndarray | None:
    """The wavelengths of the bands (C,) [nm] from a text for `parse_wavelengths`, or from numbers; None: not given."""
    if given is None or isinstance(given, str):
        return None if given is None else parse_wavelengths(given, num_bands)
    return check_wavelengths(given, num_bands, "wavelengths")


def wavelength_source(given: object) -> str:
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


def read_wavelengths(entry: Entry, num_bands: int) -> np.ndarray | None:
    """The wavelengths [nm] (C,) of an array, in the unit that the file states; None where it numbers the bands."""
    stated = entry.attributes.get("units", stated_as(entry.file.attributes, "wavelength_units"))
    unit = None if stated is None else str(np.asarray(stated).reshape(-1)[0])
    nm = to_nanometers(read_list(entry), unit, entry.where)
    return None if nm is None else check_wavelengths(nm, num_bands, entry.where)


def _read_text(path: Path, num_bands: int | None) -> np.ndarray:
    """The column of wavelengths of a table, or all numbers of a list, [nm]."""
    what = "numbers only, one wavelength [nm] per band"
    for columns in (2, 1):
        table = None
        with suppress(InputError):
            table = read_table(path, what, columns=columns)
        if table is not None and (any(map(is_wave, table.heads)) or table.first):
            return table.wavelengths()[1]
    found = {tuple(value for row in rows for value in row) for rows in rows_of_numbers(path, what)}
    fitting = {numbers for numbers in found if num_bands in (None, len(numbers))} or found
    if len(fitting) > 1:
        raise InputError(f"{path}: are the commas decimal? Write one wavelength a line, with a point")
    return np.array(next(iter(fitting)))


def _read_file(path: Path, num_bands: int | None) -> np.ndarray:
    if path.suffix.lower() in TABLES:
        return _read_text(path, num_bands)
    container = open_container(path)
    entry = container.find("wavelengths")
    if entry is None:
        raise InputError(f"{path}: no wavelengths found; it holds {container.listing()}")
    nm = read_wavelengths(entry, math.prod(entry.shape))
    if nm is None:
        raise InputError(f"{entry.where} numbers the bands; give wavelengths")
    return nm
