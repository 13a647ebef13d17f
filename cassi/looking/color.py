"""Values on a display: the displayed range, and bands to sRGB through the CIE 1931 2-degree observer.

The table beside this file (`cie_1931_d65.csv`, every 5 nm) holds the observer and illuminant D65, and names its source.
"""

from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from cassi.optics.measurement import REFLECTANCE, RELATIVE
from cassi.optics.srgb import encode_srgb

Array = Tensor | np.ndarray

VISIBLE = (400.0, 700.0)  # [nm] beyond it the eye sees next to nothing and hues no longer change
SAMPLE = 1_000_000  # values that a percentile is taken from
FALSE_COLOR_RANGE = (450.0, 650.0)  # [nm] where the bands are placed if their wavelengths are unknown

# IEC 61966-2-1: chromaticities of the sRGB primaries (columns red, green, blue) and of its white point.
_PRIMARIES = np.array([[0.64, 0.30, 0.15], [0.33, 0.60, 0.06], [0.03, 0.10, 0.79]])
_WHITE = np.array([0.3127, 0.3290, 0.3583]) / 0.3290
_RGB_TO_XYZ = _PRIMARIES * np.linalg.solve(_PRIMARIES, _WHITE)
_XYZ_TO_RGB = np.linalg.inv(_RGB_TO_XYZ)


class Limits(NamedTuple):
    """The displayed range of a picture, and the extremes of its values."""

    low: float
    high: float
    lowest: float
    highest: float


def shown_range(
    values: np.ndarray, base: Literal["data", "zero", "around zero"] = "data", *, percent: float = 99.5
) -> Limits:
    """The range of values to display, so that single hot pixels do not darken the rest.

    Args:
        values: any shape; large arrays are sampled, NaN and Inf ignored.
        base: "data" from the (100 - `percent`)th percentile, or 0 if that is near, to the `percent`th; "zero" from 0 to
            the `percent`th; "around zero" from minus to plus the `percent`th percentile of the magnitude.
        percent: share of the values within the range.

    Example:
        >>> shown_range(np.append(np.ones(999), 50.0), "zero")
        Limits(low=0.0, high=1.0, lowest=1.0, highest=50.0)
    """
    finite = _sample(values).astype(np.float64)
    if not finite.size:
        return Limits(-1.0 if base == "around zero" else 0.0, 1.0, 0.0, 0.0)
    known = np.isfinite(values)
    lowest = float(np.min(values, where=known, initial=np.inf))
    highest = float(np.max(values, where=known, initial=-np.inf))
    if base == "around zero":
        high = top_of(np.abs(finite), percent)
        return Limits(-high, high, lowest, highest)
    high = float(np.percentile(finite, percent))
    low = float(np.percentile(finite, 100 - percent)) if base == "data" else 0.0
    low = 0.0 if 0 <= low < 0.25 * high else low
    return Limits(low, high if high > low else low + 1, lowest, highest)


def top_of(values: np.ndarray, percent: float = 99.5) -> float:
    """The `percent`th percentile of the finite values if it is positive, else 1."""
    finite = _sample(values)
    top = float(np.percentile(finite, percent)) if finite.size else 0.0
    return top if top > 0 else 1.0


def value_label(unit: str) -> str:
    """The label of values: the unit, or "relative radiance" if a file states none."""
    return unit if unit and unit not in ("as in the file", "as the measurement") else RELATIVE  # of older files


def color_note(wavelengths: ArrayLike | Tensor | None, unit: str) -> str:
    """The meaning of the colors of `cube_to_srgb`: as in daylight for reflectances alone, without lamp and detector."""
    if not is_visible(wavelengths):
        return "false color: no visible wavelength"
    return "color as seen in daylight" if unit == REFLECTANCE else "color, not corrected for lamp and detector"


def is_visible(wavelengths: ArrayLike | Tensor | None) -> bool:
    """Whether any band is visible, from 400 to 700 nm; False if the wavelengths are unknown."""
    if wavelengths is None:
        return False
    centers = np.asarray(wavelengths, dtype=np.float64)
    return bool(((centers >= VISIBLE[0]) & (centers <= VISIBLE[1])).any())


def cube_to_srgb(cube: Array, wavelengths: ArrayLike | Tensor | None, *, white: float | None = None) -> np.ndarray:
    """Render a spectral cube, its values taken as reflectances, as seen in daylight.

    Of radiances the colors hold lamp and detector, too (`color_note`). With cube values R, the light S of D65 and
    color-matching functions (x, y, z):

        X = k int R(lambda) S(lambda) x(lambda) d lambda,  likewise Y and Z,  k such that R = 1 has Y = 1

    R is linear between the band centers and constant beyond the first and the last, so that unequal spacing counts
    right and a range such as 450-650 nm still shows a flat spectrum as neutral grey (ASTM E308 treats missing ends so).
    Colors too saturated for sRGB are mixed with the grey of the same luminance, colors too bright are scaled down,
    until they fit; both keep the hue (as dominant wavelength). The sRGB curve (IEC 61966-2-1) comes last.

    Args:
        cube: (C, H, W), linear in light; negative values are allowed, NaN and Inf render black.
        wavelengths: (C,) band centers [nm], distinct, in any order. Where they are None or none is visible, the picture
            is a *false color*: the bands are taken to be spaced evenly from 450 nm (first) to 650 nm (last).
        white: cube value of a flat spectrum rendered as full white. None: chosen so that 1 % of the pixels clip.

    Returns:
        (H, W, 3) float32 in [0, 1], encoded for display.

    Raises:
        ValueError: wrong rank, a count of wavelengths that is not C, wavelengths that repeat or are not finite.

    Example:
        >>> grey = np.full((28, 2, 2), 0.5, dtype=np.float32)
        >>> (100 * cube_to_srgb(grey, np.linspace(450, 650, 28), white=1.0)[0, 0]).round().tolist()
        [74.0, 74.0, 74.0]
    """
    linear = _linear_srgb(cube, wavelengths)
    scale = top_of(linear.max(axis=0), 99) if white is None else white
    picture: np.ndarray = encode_srgb(_into_gamut(linear / np.float32(scale))).T.reshape(*cube.shape[-2:], 3)
    return picture


def white_level(cube: Array, wavelengths: ArrayLike | Tensor | None) -> float:
    """The `white` that `cube_to_srgb` chooses by itself, so that several cubes can be rendered alike."""
    return top_of(_linear_srgb(cube, wavelengths).max(axis=0), 99)


def band_colors(wavelengths: ArrayLike | Tensor | None, num_bands: int) -> np.ndarray:
    """Linear sRGB (C, 3) to tint bands with: the hue of their light, the strongest channel 1, a tenth of white."""
    light = np.clip(_band_weights(wavelengths, num_bands), 0, None)
    colors: np.ndarray = 0.1 + 0.9 * (light / light.max(axis=0)).T
    return colors


def _linear_srgb(cube: Array, wavelengths: ArrayLike | Tensor | None) -> np.ndarray:
    """Linear sRGB (3, H * W), not yet fitted into the gamut; NaN and Inf become black."""
    values, centers = as_cube(cube, wavelengths)
    weights = _band_weights(centers, len(values)).astype(np.float32)
    linear: np.ndarray = weights @ values.reshape(len(values), -1).astype(np.float32, copy=False)
    np.nan_to_num(linear, copy=False, posinf=0, neginf=0)
    return linear


def as_cube(cube: Array, wavelengths: ArrayLike | Tensor | None = None) -> tuple[np.ndarray, np.ndarray | None]:
    """One cube (C, H, W) and its band centers (C,), checked, in memory."""
    values = np.asarray(cube.detach().cpu() if isinstance(cube, Tensor) else cube)
    if values.ndim != 3:
        raise ValueError(f"cube must be (bands, height, width), got shape {values.shape}: select one frame")
    centers = None if wavelengths is None else np.asarray(wavelengths, dtype=np.float64)
    if centers is not None and centers.shape != values.shape[:1]:
        raise ValueError(f"wavelengths must have shape ({len(values)},), got {centers.shape}: one per band")
    return values, centers


def _sample(values: np.ndarray) -> np.ndarray:
    """At most about a million finite values, evenly taken."""
    flat = np.asarray(values).reshape(-1)
    flat = flat[:: max(1, flat.size // SAMPLE)]
    finite: np.ndarray = flat[np.isfinite(flat)]
    return finite


def _band_weights(wavelengths: ArrayLike | Tensor | None, num_bands: int) -> np.ndarray:
    """Weights (3, C) that take the spectrum of a pixel to linear sRGB; each row sums to 1."""
    unseen = np.linspace(*FALSE_COLOR_RANGE, num_bands)
    centers = np.asarray(unseen if wavelengths is None else wavelengths, dtype=np.float64)
    table = _observer()
    if not np.isfinite(centers).all() or len(np.unique(centers)) < num_bands:
        raise ValueError(f"wavelengths must be finite and distinct, got {centers.tolist()}")
    centers = centers if is_visible(centers) else unseen
    # 0.1 nm is far finer than the observer and any band spacing met in practice.
    grid = np.linspace(table[0, 0], table[-1, 0], 4001)
    light = np.interp(grid, table[:, 0], table[:, 4])
    sensitivity = np.stack([light * np.interp(grid, table[:, 0], table[:, k]) for k in (1, 2, 3)])

    order = np.argsort(centers)
    hats = np.stack([np.interp(grid, centers[order], row) for row in np.eye(num_bands)[:, order]])  # constant beyond
    weights: np.ndarray = _XYZ_TO_RGB @ sensitivity @ hats.T
    weights /= weights.sum(axis=1, keepdims=True)  # a flat spectrum is white
    return weights


def _into_gamut(linear: np.ndarray) -> np.ndarray:
    """Bring colors (3, n) into [0, 1]: too saturated ones towards the grey of their luminance, too bright ones down."""
    luminance = np.maximum(_RGB_TO_XYZ[1].astype(np.float32) @ linear, 0)
    offset = linear - luminance
    lowest = offset.min(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        keep = np.where(lowest < -luminance, -luminance / lowest, np.float32(1))
    fitted: np.ndarray = np.maximum(luminance + keep * offset, 0)
    fitted /= np.maximum(fitted.max(axis=0), 1)
    return fitted


@cache
def _observer() -> np.ndarray:
    """Columns: wavelength [nm], x, y, z, D65."""
    text = files("cassi.looking").joinpath("cie_1931_d65.csv").read_text(encoding="utf-8")
    return np.loadtxt(text.splitlines(), delimiter=",")
