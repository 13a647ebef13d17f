"""Wavelengths of the bands: named presets with their sources, and checks."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from cassi.errors import InputError, counted, one_line

MIN_WAVELENGTH = 100.0  # [nm]; glass, quartz and air absorb what is shorter
MAX_WAVELENGTH = 1e5  # [nm]; longer is no light of a lens
MAX_DIFFERENCE = 0.5  # [nm] between wavelengths of one band in two lists
LIGHT = 299792458e9  # its speed [nm/s]
ELECTRONVOLT = 1239.841984  # h c / e [nm]
LENGTHS = {  # [nm]
    **dict.fromkeys(("nm", "nanometer", "nanometre"), 1.0),
    **dict.fromkeys(("um", "micron", "micrometer", "micrometre", "mum"), 1e3),
    **dict.fromkeys(("a", "\u00e5", "\u212b", "ang", "angstrom", "\u00e5ngstr\u00f6m", "\u00e5ngstrom"), 0.1),
    **dict.fromkeys(("pm", "picometer", "picometre"), 1e-3),
    **dict.fromkeys(("mm", "millimeter", "millimetre"), 1e6),
    **dict.fromkeys(("cm", "centimeter", "centimetre"), 1e7),
    **dict.fromkeys(("m", "meter", "metre"), 1e9),
}
FREQUENCIES = {  # [Hz]
    "hz": 1.0, "khz": 1e3, "mhz": 1e6, "ghz": 1e9, "thz": 1e12, "phz": 1e15,
    "hertz": 1.0, "kilohertz": 1e3, "megahertz": 1e6, "gigahertz": 1e9, "terahertz": 1e12,
}  # fmt: skip
ENERGIES = {"ev": 1.0, "mev": 1e-3, "kev": 1e3, "electronvolt": 1.0}  # [eV]


class Preset(NamedTuple):
    """A published list of bands: `wavelengths` [nm], and `source`, the publication."""

    wavelengths: tuple[float, ...]
    source: str


PRESETS: Mapping[str, Preset] = MappingProxyType({
    "tsa-net-28": Preset((
        453.3, 457.6, 462.1, 466.8, 471.6, 476.5, 481.6, 486.9, 492.4, 498.0, 503.9, 509.9, 516.2, 522.7,
        529.5, 536.5, 543.8, 551.4, 558.6, 567.5, 575.3, 584.3, 594.4, 604.2, 614.4, 625.1, 636.3, 648.1,
    ), "TSA-Net (Meng, Ma, Yuan, ECCV 2020), by github.com/caiyuanhao1998/MST/issues/92"),
    "mst-28": Preset((
        453.5, 457.5, 462.0, 466.0, 471.5, 476.5, 481.5, 487.0, 492.5, 498.0, 504.0, 510.0, 516.0, 522.5,
        529.5, 536.5, 544.0, 551.5, 558.5, 567.5, 575.5, 584.5, 594.5, 604.0, 614.5, 625.0, 636.5, 648.0,
    ), "MST (Cai et al., CVPR 2022), visualization/show_simulation.m of github.com/caiyuanhao1998/MST"),
    "smem-24": Preset((
        454.4, 459.5, 464.9, 470.5, 476.2, 482.1, 488.4, 494.8, 501.5, 508.5, 515.8, 523.4, 531.4, 539.7,
        548.4, 557.5, 567.0, 577.0, 587.6, 598.7, 610.3, 622.6, 635.6, 649.3,
    ), "snapshot multispectral endomicroscopy (Meng, Qiao, Ma, Yu, Xu, Yuan, Opt. Lett. 2020)"),
    "cave-31": Preset(tuple(map(float, range(400, 701, 10))), "CAVE multispectral image database (Yasuma et al. 2008)"),
})  # fmt: skip


def to_nanometers(values: np.ndarray, unit: str | None, name: str) -> np.ndarray | None:
    """Wavelengths [nm] from what a file states in a unit: a length, a wavenumber, a frequency or an energy.

        lambda = 1 / wavenumber = c / frequency = h c / energy

    Without a unit they stay as they are (`check_wavelengths`). None for numbers of bands: the unit "Index", or 1, 2, 3
    ... without any.

    Raises:
        InputError: another unit, or values that no optical band has in it.

    Example:
        >>> to_nanometers(np.array([20000.0]), "cm-1", "wl"), to_nanometers(np.array([0.5]), "um", "wl")
        (array([500.]), array([500.]))
    """
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    text = "" if unit is None else unit.strip().strip("[](){}.").strip()
    factor, word = 1.0, re.sub(r"[\s_*]", "", text).replace("\u00b5", "u").replace("\u03bc", "u")
    if number := re.match(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)(?=[A-Za-z\u00c5\u212b])", word):  # "1e-9 m"
        factor, word = float(number[1]), word[number.end() :]
    if word.lower() in ("", "unknown", "none", "n/a"):
        counts = np.arange(len(values)) + (values[0] if len(values) else 0)
        return None if len(values) > 1 and values[0] in (0, 1) and np.array_equal(values, counts) else values
    if word.lower().rstrip("s") in ("index", "indexe", "band", "bandnumber", "number", "channel", "pixel", "count"):
        return None
    inverse = re.fullmatch(r"(?:1/|per|inverse|reciprocal)(.+)|(.+?)\^?(?:-1|\u207b\u00b9)", word.lower())
    if inverse or word.lower().rstrip("s") in ("wavenumber", "kayser"):
        power, length = -1, next(filter(None, inverse.groups())) if inverse else "cm"
    else:
        power, length = 1, word
    nm: np.ndarray
    with np.errstate(divide="ignore"):
        if (size := _among(LENGTHS, length)) is not None:
            nm = (values * factor) ** power * size
        elif power == 1 and (size := _among(FREQUENCIES, word)) is not None:
            nm = LIGHT / (values * factor * size)
        elif power == 1 and (size := _among(ENERGIES, word)) is not None:
            nm = ELECTRONVOLT / (values * factor * size)
        else:
            what = f"{name}: the unit {one_line(text, 40)!r} is no unit of wavelengths"
            raise InputError(f"{what}, expected nm, um, Angstrom, 1/cm, GHz or eV; give the wavelengths in nm")
    if np.isfinite(nm).all() and not (MIN_WAVELENGTH <= nm.min() and nm.max() <= MAX_WAVELENGTH):
        what = f"{values.min():g} to {values.max():g} {text} are {nm.min():g} to {nm.max():g} nm"
        raise InputError(f"{name}: {what}, which no camera sees; give the wavelengths in nm")
    return nm if factor * size * power == 1 else np.asarray(np.round(nm, 9))


def _among(units: Mapping[str, float], word: str) -> float | None:
    """A unit by its name, singular or plural, in any case where this is clear."""
    return next((units[w] for w in (word, word.lower(), word.lower().rstrip("s")) if w in units), None)


def pair_bands(
    nm: Sequence[float] | np.ndarray | None, other: Sequence[float] | np.ndarray | None
) -> np.ndarray | None:
    """For each band of one list of wavelengths (C,) [nm] the index of the same band in another, (C,); None where the
    lists hold other bands. Bands are counted where the wavelengths of either are unknown: then the caller compares C.

    Example:
        >>> pair_bands([450, 500, 550], [550, 500, 450]).tolist(), pair_bands([450, 500], [850, 900])
        ([2, 1, 0], None)
    """
    if nm is None or other is None:
        known = nm if other is None else other
        return None if known is None else np.arange(len(known))
    if len(nm) != len(other):
        return None
    distance = np.abs(np.subtract.outer(np.asarray(nm, dtype=float), np.asarray(other, dtype=float)))
    nearest = distance.argmin(axis=1)
    same = distance.min(axis=1).max() <= MAX_DIFFERENCE and len(set(nearest.tolist())) == len(nearest)
    return nearest if same else None


def same_bands(nm: Sequence[float] | np.ndarray | None, other: Sequence[float] | np.ndarray | None) -> bool:
    """Whether two lists of wavelengths hold the same bands in the same order, as far as both are known."""
    if nm is None or other is None:
        return True
    order = pair_bands(nm, other)
    return order is not None and bool((order == np.arange(len(order))).all())


def span(nm: Sequence[float] | np.ndarray) -> str:
    """A list of wavelengths in words, from the first to the last."""
    return f"{counted(len(nm), 'band')}, {nm[0]:g} to {nm[-1]:g} nm"


def check_wavelengths(values: np.ndarray, num_bands: int, name: str, *, of: str = "bands") -> np.ndarray:
    """Return the list as (C,) float64 [nm]; values below 10 are taken as micrometers.

    InputError: not `num_bands` values, or values that are not finite, all different and from 100 nm to 100 um.
    """
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    if values.size != num_bands:
        raise InputError(f"{name}: {counted(values.size, 'value')} for {num_bands} {of}; give one for each")
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise InputError(f"{name}: wavelengths must be positive and finite [nm]")
    if np.unique(values).size < values.size:
        raise InputError(f"{name}: wavelengths must all differ, one is repeated; give one for each of the {of}")
    # No optical band is near 10 nm: such numbers are micrometers. Rounding turns 0.45 um into exactly 450 nm.
    values = np.round(values * 1e3, 9) if 1e-3 * MIN_WAVELENGTH < values.max() < 10 else values
    if not MIN_WAVELENGTH <= values.min() <= values.max() <= MAX_WAVELENGTH:
        raise InputError(f"{name}: no lens transmits {values.min():g} to {values.max():g} nm; give wavelengths in nm")
    return values
