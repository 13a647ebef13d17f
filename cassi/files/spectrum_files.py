"""Tables of a spectrometer: wavelength and value, as whatever program wrote them, and their means over bands."""

from typing import NamedTuple

import numpy as np
from scipy.integrate import simpson

from cassi.errors import InputError, counted
from cassi.files.tables import read_table
from cassi.types import PathLike


class Spectrum(NamedTuple):
    """A sampled spectrum: wavelengths (n,) [nm], increasing, and values (n,)."""

    nm: np.ndarray
    values: np.ndarray


def read_spectrum(path: PathLike) -> Spectrum:
    """Read wavelength and value from a table: the columns that its headings name, or without these the first two.

    The unit is what a heading states, or nm, or micrometers where all lie below 100. A column that counts the rows is
    passed over, and so are rows without a value. Values of one wavelength are averaged, percent are divided by 100. See
    `cassi.files.tables.read_table`.

    Raises:
        InputError: no such file, fewer than two rows of two numbers, a line among them that is none, a unit that is
            unknown or unclear, several columns of values, or their logarithm.

    Example:
        >>> path = os.path.join(tempfile.mkdtemp(), "leaf.csv")
        >>> _ = open(path, "w").write("No.;Wellenlänge;Reflexion\\n1;450,5;0,1\\n2;550,5;0,3\\n")
        >>> read_spectrum(path).nm
        array([450.5, 550.5])
    """
    table = read_table(path, "lines of wavelength and value such as 450.5;0.123", columns=2)
    column, nm = table.wavelengths()
    values = table.values(column)
    known = np.isfinite(nm) & np.isfinite(values)
    nm, values = nm[known], values[known]
    if (nm <= 0).any():
        raise InputError(f"{path}: wavelengths must be positive; delete the other lines")
    nm, where = np.unique(nm, return_inverse=True)
    if len(nm) < 2:
        raise InputError(f"{path}: values of {counted(len(nm), 'wavelength')}; expected a spectrum of two at least")
    return Spectrum(nm, np.bincount(where, values) / np.bincount(where))


def band_means(spectrum: Spectrum, centers: np.ndarray) -> np.ndarray:
    """The mean of a spectrum, linear between its samples, over each band.

        s_c = int w_c(lambda) s(lambda) d lambda / int w_c d lambda

    w_c falls linearly from 1 at the center of a band to 0 half way to its neighbors, at the ends as far as on the inner
    side: so a pixel behind an opening of one pixel sees a wavelength between bands that lie 2 px apart.

    Args:
        spectrum: see `read_spectrum`.
        centers: (C,) band centers [nm], distinct, in any order; at least 2.

    Returns:
        (C,); NaN for bands whose center the table does not reach. w_c is cut where the table ends.

    Example:
        >>> band_means(Spectrum(np.array([400.0, 500.0]), np.array([0.0, 1.0])), np.array([420.0, 440.0, 600.0]))
        array([0.2       , 0.60784314,        nan])
    """
    order = np.argsort(centers)
    sorted_ = np.asarray(centers, dtype=np.float64)[order]
    middle = (sorted_[1:] + sorted_[:-1]) / 2
    edges = np.concatenate([[2 * sorted_[0] - middle[0]], middle, [2 * sorted_[-1] - middle[-1]]])
    means = np.full(len(sorted_), np.nan)
    for k, low, center, high in zip(order, edges, sorted_, edges[1:], strict=False):
        if not spectrum.nm[0] <= center <= spectrum.nm[-1]:
            continue
        inside = spectrum.nm[(spectrum.nm > low) & (spectrum.nm < high)]
        nm = np.unique(np.concatenate([np.clip([low, center, high], spectrum.nm[0], spectrum.nm[-1]), inside]))
        at = np.sort(np.concatenate([nm, (nm[1:] + nm[:-1]) / 2]))  # Simpson's rule is exact for products of lines
        s, w = np.interp(at, spectrum.nm, spectrum.values), np.interp(at, [low, center, high], [0.0, 1.0, 0.0])
        means[k] = simpson(s * w, x=at) / simpson(w, x=at)
    return means
