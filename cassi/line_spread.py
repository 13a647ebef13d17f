"""How far the optics behind the coded aperture smear light along the dispersion, from frames of a slit.

The frames of the mask alone cannot tell: they show the aperture already smeared, and a soft edge of an element looks
like a blur of the optics. A slit of known width across the dispersion has only one reason to look wider.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from cassi.errors import InputError

__all__ = ["NEGLIGIBLE", "LineSpread", "fit_line_spread", "sharpen", "slit_profile"]

NEGLIGIBLE = 0.7  # pixel; below it the mask as it is imaged says as much as mask and point-spread function apart
REACH = 12  # columns on either side of the slit that are looked at


@dataclass(frozen=True, eq=False)
class LineSpread:
    """The blur along the dispersion at several wavelengths, a Gaussian in the optics.

    Attributes:
        wavelengths: (L,) [nm], rising.
        sigma: (L,) standard deviation [pixel], of the optics alone: the slit's width and the pixel's are taken out.
        slit_width: of the slit's image [pixel].
        offsets: (M,) distance from the slit [pixel].
        profiles: (L, M) light there, of a total of 1, measured.
    """

    wavelengths: np.ndarray
    sigma: np.ndarray
    slit_width: float
    offsets: np.ndarray
    profiles: np.ndarray

    @property
    def negligible(self) -> bool:
        """Whether the masks as they are imaged say as much: root of the mean square below `NEGLIGIBLE`."""
        return float(np.sqrt((self.sigma**2).mean())) < NEGLIGIBLE

    def at(self, wavelengths: np.ndarray) -> np.ndarray:
        """Standard deviation at these wavelengths [pixel], linear between the measured ones, constant beyond."""
        return np.asarray(np.interp(wavelengths, self.wavelengths, self.sigma))


def fit_line_spread(images: np.ndarray, wavelengths: np.ndarray, *, slit_width: float = 1.0) -> LineSpread:
    """The blur at each wavelength, by least squares of a slit's image.

        t[i, j] = a g(j - c_0 - c_1 i) + b,   g: `slit_profile`

    The slit may lie between pixels and be a little tilted, which samples the profile finer than the pixels do.

    Args:
        images: (L, H, W') of a slit across the dispersion under narrow-band light, dark and flat corrected.
        wavelengths: (L,) [nm].
        slit_width: of the slit's image, sharp [pixel], > 0.

    Returns:
        The `LineSpread`, in the order of rising wavelength.

    Raises:
        InputError: a width that is not positive, a number of wavelengths other than that of the images, or an image
            that shows no slit.

    Example:
        >>> offsets = np.arange(40) - 20.3
        >>> image = np.tile(slit_profile(offsets, 1.2, 1.0), (8, 1))
        >>> fit_line_spread(image[None], np.array([550.0])).sigma.round(2)
        array([1.2])
    """
    if not (math.isfinite(slit_width) and slit_width > 0):
        raise InputError(f"the width of the slit's image must be positive [pixel], got {slit_width}")
    if len(images) != len(wavelengths):
        raise InputError(f"{len(images)} slit frames but {len(wavelengths)} wavelengths; give one per frame")
    order = np.argsort(wavelengths)
    edges = np.arange(-REACH, REACH + 0.25, 0.5)
    fits = [_fit(np.asarray(images[n], dtype=float), slit_width, edges, float(wavelengths[n])) for n in order]
    return LineSpread(
        wavelengths=np.asarray(wavelengths, dtype=float)[order],
        sigma=np.array([sigma for sigma, _ in fits]),
        slit_width=float(slit_width),
        offsets=(edges[:-1] + edges[1:]) / 2,
        profiles=np.stack([profile for _, profile in fits]),
    )


def slit_profile(offsets: np.ndarray, sigma: float, width: float) -> np.ndarray:
    """Light on a pixel at this distance from a slit's middle [pixel]: slit, optics (Gaussian) and pixel convolved.

    Of a total of 1 over pixels; `sigma` and `width` > 0.
    """

    def twice_integrated(u: np.ndarray) -> np.ndarray:
        z = u / sigma
        return np.asarray(u * special.ndtr(z) + sigma * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi))

    outer, inner = (width + 1) / 2, (width - 1) / 2
    u = np.asarray(offsets, dtype=float)
    ends = twice_integrated(u + outer) + twice_integrated(u - outer)
    return np.asarray((ends - twice_integrated(u + inner) - twice_integrated(u - inner)) / width)


def _fit(image: np.ndarray, width: float, edges: np.ndarray, wavelength: float) -> tuple[float, np.ndarray]:
    """Standard deviation, and the profile in bins between the edges."""
    from scipy import optimize

    light = image - np.median(image)
    column = int(light.sum(0).argmax())
    noise = 1.4826 * float(np.median(np.abs(light)))
    if not light[:, column].mean() > 5 * noise / math.sqrt(len(light)) or not light[:, column].mean() > 0:
        raise InputError(f"the slit frame at {wavelength:g} nm shows no slit; it must lie across the dispersion")
    rows = np.arange(len(light)) - (len(light) - 1) / 2
    columns = np.arange(light.shape[1])
    near = np.abs(columns - column) <= REACH
    window = light[:, near]
    weight = np.where(window > 0.2 * window.max(), window, 0)
    lit = weight.sum(1) > 0
    centers = (weight * columns[near]).sum(1)[lit] / weight.sum(1)[lit]
    tilt, center = np.polyfit(rows[lit], centers, 1)
    values = window.ravel()
    place = np.broadcast_to(columns[near], window.shape).ravel()
    row = np.repeat(rows, near.sum())

    def solved(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        offsets = place - theta[0] - theta[1] * row
        basis = np.stack([slit_profile(offsets, math.exp(theta[2]), width), np.ones_like(offsets)], axis=1)
        amplitudes = np.linalg.lstsq(basis, values, rcond=None)[0]
        return offsets, amplitudes, values - basis @ amplitudes

    start = np.array([center, tilt, 0.0])
    bounds = ([center - 3, tilt - 0.1, math.log(0.02)], [center + 3, tilt + 0.1, math.log(REACH / 2)])
    found = optimize.least_squares(lambda theta: solved(theta)[2], start, bounds=bounds, x_scale=[0.1, 0.01, 0.1])
    offsets, (height, level), _ = solved(found.x)
    inside = np.digitize(offsets, edges) - 1
    counted = (inside >= 0) & (inside < len(edges) - 1)
    sums = np.bincount(inside[counted], (values[counted] - level) / height, minlength=len(edges) - 1)
    counts = np.bincount(inside[counted], minlength=len(edges) - 1)
    return math.exp(found.x[2]), np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def sharpen(image: np.ndarray, sigma: float, *, largest: float, num_iters: int = 100) -> np.ndarray:
    """Take a Gaussian blur along the rows out of a picture that lies between 0 and `largest`.

        argmin |K m - image|^2,  0 <= m <= largest

    by accelerated projected gradient (Beck and Teboulle 2009); the bounds keep noise from growing.

    Args:
        image: (H, W).
        sigma: standard deviation [pixel].
        largest: upper bound.
        num_iters: iterations.

    Returns:
        (H, W).
    """
    border = math.ceil(4 * sigma) + 8
    blurred = np.pad(image, ((0, 0), (border, border)), mode="edge")
    f = np.fft.rfftfreq(blurred.shape[1])
    transfer = np.exp(-2 * (np.pi * f * sigma) ** 2)
    target = np.fft.rfft(blurred) * transfer
    m = v = blurred.clip(0, largest)
    t = 1.0
    for _ in range(num_iters):
        gradient = np.fft.irfft(np.fft.rfft(v) * transfer**2 - target, blurred.shape[1])
        m_old, m = m, (v - gradient).clip(0, largest)
        t_old, t = t, (1 + math.sqrt(1 + 4 * t**2)) / 2
        v = m + (t_old - 1) / t * (m - m_old)
    return np.asarray(m[:, border:-border])
