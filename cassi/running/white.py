"""From radiance to reflectance, by a capture of a white reference under the same light."""

import math
import os
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from cassi.errors import InputError
from cassi.evidence.judge import MAX_IMPRINT
from cassi.files.spectrum_files import Spectrum, band_means, read_spectrum
from cassi.optics.measurement import REFLECTANCE, Measurement
from cassi.optics.wavelengths import same_bands
from cassi.running.result import Reconstruction
from cassi.types import PathLike

LIGHT_SIGMA = 8.0  # standard deviation within which the light on a white reference is even [pixel]
# Of brightness and color of a board, see `unevenness`; double where the imprint of the mask hides them. On simulated
# boards (128 px, 300 and 10,000 e, vignetting, two lamps, dust, a field stop) 0.04 and 0.02 at most, through a mask
# displaced by half a pixel 0.076 and 0.052; where two grey discs lie on them 0.09 at least, two colored ones 0.033.
MAX_UNEVEN, MAX_COLORED = 0.08, 0.025
PARTS = 3  # of the spectrum, whose colors are compared
WEAK = 0.1  # of the brightest band: with less light than that, reflectance is mostly noise
MAX_REFLECTANCE = 1.2  # of a matt surface
DEGREE, MAX_FITTED = 4, 1 << 20  # of the polynomial of smooth light, and pixels that it is fitted to
MIN_LIGHT = 0.02  # of the brightest: where less light falls, nothing is said of the scene


def check_white(m: Measurement, white: Measurement) -> None:
    """Raise InputError for a capture of a white reference that does not serve a measurement."""
    if white.y.shape != m.y.shape or m.y.ndim != 2:
        what = f"the white reference must be one snapshot like the scene's, {m.y.shape}, got {white.y.shape}"
        raise InputError(f"{what}; capture it with the same camera")
    if not same_bands(m.wavelengths, white.wavelengths) or tuple(m.shifts) != tuple(white.shifts):
        what = "the bands of the white reference differ from the scene's, in wavelengths or shifts"
        raise InputError(f"{what}; capture it with the same camera")
    if not white.y.any():
        raise InputError("the white reference is black; capture a white board in full light")


def read_board(given: float | PathLike | Spectrum) -> float | Spectrum:
    """The reflectance of a white reference: a number, which may be typed, or a table, which may be a file."""
    if not isinstance(given, str | os.PathLike):
        return given
    try:
        return float(os.fspath(given))
    except ValueError:
        return read_spectrum(given)


class Light(NamedTuple):
    """The light on a white reference, G * w (C, H, W) on the CPU, and the name of the file of its capture."""

    values: Tensor
    source: str


def reflectance(
    result: Reconstruction, light: Tensor, *, board: float | Spectrum = 1.0, exposure: float = 1.0
) -> Reconstruction:
    """The cube as reflectance, by the light that a white reference sends back in its place.

        rho_c = R_c x_c / (E G * w_c)         0 where G * w_c < 0.02 max w

    Cube and uncertainty of `result` are divided in their place, as they may be larger than memory.

    Args:
        result: of the scene.
        light: G * w (C, H, W), see `light_of`, of the reference, by the same camera and under the same light.
        board: R, the reflectance of the reference: a number, or a table over wavelength, of which the mean over each
            band is taken (`cassi.files.tables.read_spectrum`).
        exposure: E, exposure time of the scene, divided by the reference's.

    Returns:
        The reconstruction with cube and uncertainty [reflectance]; the rest is as of the scene's radiance.

    Raises:
        InputError: cubes of different sizes, stacks; a reflectance or exposure that cannot be, or a table that does not
            reach all bands.
    """
    if result.cube.ndim != 3 or light.shape != result.cube.shape:
        what = f"the white reference must be one snapshot of the scene's size, a cube {tuple(result.cube.shape)}"
        raise InputError(f"{what}, got {tuple(light.shape)}; capture it with the same camera")
    if not (exposure > 0 and math.isfinite(exposure)):
        raise InputError(f"the exposure ratio must be positive, got {exposure:g}: scene's time over reference's")
    dark = MIN_LIGHT * float(light.max())
    for c, R in enumerate(_board(board, len(light), result.wavelengths)):
        w = light[c].double()
        scale = torch.where(w >= dark, R / (exposure * w).clamp(min=torch.finfo(torch.float64).tiny), 0)
        for cube in (result.cube, result.uncertainty):
            if cube is not None:
                cube[c] *= scale.to(cube)
    return replace(result, unit=REFLECTANCE)


def light_of(white: Tensor, imprint: float | None) -> Tensor:
    """The light on a white reference, G * w (C, H, W), in the place of its cube w where that is on the CPU.

    G is a Gaussian of 8 pixels: light changes slowly over a field, noise does not. `imprint`: of the mask on w.

    Raises:
        InputError: it is black, or shows a picture: its brightness is no smooth field of light.
    """
    light = white.cpu()
    if not light.max() > 0:
        raise InputError("the white reference is black: its cube is 0 everywhere; capture a white board in full light")
    allowed = 2 if (imprint or 0) > MAX_IMPRINT else 1
    checks = zip(("brightness", "color"), unevenness(light.numpy()), (MAX_UNEVEN, MAX_COLORED), strict=True)
    for what, uneven, limit in checks:
        if uneven > allowed * limit:
            text = f"the white reference shows a picture: its {what} departs by {uneven:.1%} from smooth light"
            raise InputError(f"{text}; capture a white board that fills the field, evenly lit")
    for band in light.numpy():
        band[:] = ndimage.gaussian_filter(band.astype(np.float64), LIGHT_SIGMA, mode="nearest")
    return light


def unevenness(cube: np.ndarray) -> tuple[float, float]:
    """How far brightness and color of a cube (C, H, W) are from smooth light.

    Root mean squares of  log s - p  and, the largest of three parts of the spectrum, of  log (s_k / s) - p_k,  with p
    the best polynomial of degree 4 in i and j. s is the sum of the bands of a part, smoothed by 4 pixels, for noise.
    Beyond the edge of the field, where s is below 10 % of its maximum, and up to 16 pixels from it nothing counts.
    """
    sums = [part.sum(0, dtype=np.float64) for part in np.array_split(cube, PARTS)]
    parts = [ndimage.gaussian_filter(part, LIGHT_SIGMA / 2) for part in sums]
    s = np.sum(parts, axis=0)
    field = ndimage.binary_fill_holes(s >= WEAK * s.max())
    lit = ndimage.binary_erosion(field, iterations=round(2 * LIGHT_SIGMA), border_value=1)
    lit = lit if lit.any() else field
    least = np.finfo(np.float64).tiny
    log, *logs = (np.log(np.maximum(values, least)) for values in (s, *parts))
    return _roughness(log, lit), max(_roughness(values - log, lit) for values in logs)


def _roughness(log: np.ndarray, lit: np.ndarray) -> float:
    every = math.isqrt(1 + lit.sum() // MAX_FITTED)
    log, lit = log[::every, ::every], lit[::every, ::every]
    rows, columns = np.meshgrid(*(np.linspace(-1, 1, size) for size in log.shape), indexing="ij")
    powers = [(i, j) for i in range(DEGREE + 1) for j in range(DEGREE + 1 - i)]
    basis = np.stack([rows[lit] ** i * columns[lit] ** j for i, j in powers], axis=1)
    fit = basis @ np.linalg.lstsq(basis, log[lit], rcond=None)[0]
    return float(np.sqrt(np.mean((log[lit] - fit) ** 2)))


def _board(board: float | Spectrum, bands: int, wavelengths: np.ndarray | None) -> np.ndarray:
    """R_c of each band, (C,)."""
    if isinstance(board, Spectrum):
        if wavelengths is None:
            raise InputError("the reflectance of the reference is a table, the bands have no wavelengths; give them")
        values = band_means(board, wavelengths)
        if not np.isfinite(values).all():
            what = f"the reflectance of the reference reaches {board.nm[0]:g} to {board.nm[-1]:g} nm"
            wanted = f"the bands {wavelengths.min():.0f} to {wavelengths.max():.0f} nm"
            raise InputError(f"{what}, {wanted}; give a table that covers them")
    else:
        values = np.full(bands, float(board))
    if not ((values > 0) & (values <= 1.5)).all():
        what = f"the reflectance of the reference must lie between 0 and 1.5, got {values.min():g} to {values.max():g}"
        raise InputError(f"{what}; divide percent by 100")
    return values
