"""How far the optics behind the coded aperture smear light along the dispersion, from frames of a slit.

The frames of the mask alone cannot tell: they show the aperture already smeared, and a soft edge of an element looks
like a blur of the optics. A slit of known width across the dispersion has only one reason to look wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from cassi.errors import InputError

__all__ = ["NEGLIGIBLE", "LineSpread", "Slit", "fit_line_spread", "sharpen", "slit_profile"]

NEGLIGIBLE = 0.7  # pixel; below it the mask as it is imaged says as much as mask and point-spread function apart
REACH = 12  # columns on either side of the slit that are looked at
SHARPEST = 0.1  # pixel; of less blur than this the pixels' own width shows nothing
WIDEST = REACH / 2  # pixel; of more, too little of the slit's image lies within reach
MAX_TILT = 0.2  # columns a row
MIN_ROWS = 8  # that the slit reaches over
MISFIT = 0.25  # part of a profile that the best fit may leave unexplained


@dataclass(frozen=True, eq=False)
class Slit:
    """What was captured of a narrow slit across the dispersion, in place of the coded aperture.

    Attributes:
        frames: (S, H, W') counts, or (H, W') of one frame, which serves all bands.
        wavelengths: (S,) [nm]; those of the mask frames if not given.
        width: of the slit's image [pixel].
    """

    frames: np.ndarray
    wavelengths: Sequence[float] | np.ndarray | None = None
    width: float = 1.0


@dataclass(frozen=True, eq=False)
class LineSpread:
    """The blur along the dispersion at several wavelengths, a Gaussian in the optics.

    Attributes:
        wavelengths: (L,) [nm], rising.
        sigma: (L,) standard deviation [pixel], of the optics alone: the slit's width and the pixel's are taken out;
            0.1 stands for "0.1 or less".
        slit_width: of the slit's image [pixel].
        offsets: (M,) distance from the slit [pixel].
        profiles: (L, M) light there, of a total of 1, measured: the fit and what it leaves of the pixels near by.
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

    The slit may lie between pixels and be a little tilted, which samples the profile finer than the pixels do. Hot
    pixels and rows that the slit does not reach are left out.

    Args:
        images: (L, H, W') of a slit across the dispersion under narrow-band light, dark and flat corrected.
        wavelengths: (L,) [nm].
        slit_width: of the slit's image, sharp [pixel], > 0.

    Returns:
        The `LineSpread`, in the order of rising wavelength.

    Raises:
        InputError: a width that is not positive; images that are not (L, H, W') of finite numbers; wavelengths that are
            not L finite numbers; an image without a slit, with a slit along the dispersion or tilted by more than 0.2
            columns a row, or one that a slit of this width behind at most 6 px of blur does not explain.

    Example:
        >>> offsets = np.arange(40) - 20.3
        >>> image = np.tile(slit_profile(offsets, 1.2, 1.0), (8, 1))
        >>> fit_line_spread(image[None], np.array([550.0])).sigma.round(2)
        array([1.2])
    """
    if not (math.isfinite(slit_width) and slit_width > 0):
        raise InputError(f"the width of the slit's image must be positive [pixel], got {slit_width}")
    images, wavelengths = np.asarray(images, dtype=float), np.asarray(wavelengths, dtype=float)
    if images.ndim != 3 or images.size == 0 or not np.isfinite(images).all():
        raise InputError(f"slit frames must be (L, H, W') and finite, got {images.shape}")
    if wavelengths.shape != images.shape[:1] or not np.isfinite(wavelengths).all():
        raise InputError(f"{len(images)} slit frames but the wavelengths {wavelengths} [nm]; give one per frame")
    order = np.argsort(wavelengths)
    edges = np.arange(-REACH - 0.25, REACH + 0.5, 0.5)  # a slit upright and on a column falls into the bins' middles
    fits = [_fit(images[n], slit_width, edges, float(wavelengths[n])) for n in order]
    return LineSpread(
        wavelengths=wavelengths[order],
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
    from scipy import ndimage, optimize, stats

    frame = f"the slit frame at {wavelength:g} nm"
    light = image - np.median(image)
    along = ndimage.median_filter(light, size=(5, 1), mode="nearest")  # along the slit: takes hot pixels off
    peak, peak_column = along.max(1), along.argmax(1)
    noise = scatter(light)
    lit = (peak > 5 * scatter(along)) & (peak > 0.3 * np.quantile(peak, 0.9)) & (peak > 0)
    i = np.flatnonzero(lit)
    if len(i) < MIN_ROWS:
        raise InputError(f"{frame} shows no slit; it must lie across the dispersion and reach over {MIN_ROWS} rows")
    some = i[:: math.ceil(len(i) / 400)]  # of every pair of rows the slope
    tilt, middle = stats.theilslopes(peak_column[some], some)[:2]
    on_line = lit & (np.abs(peak_column - middle - tilt * np.arange(len(lit))) < 2)
    if on_line.sum() < max(MIN_ROWS, 0.6 * lit.sum()) or abs(tilt) > MAX_TILT:
        raise InputError(
            f"{frame} shows no slit across the dispersion: its brightest columns do not lie on a line within "
            f"{MAX_TILT:g} columns a row of upright"
        )
    row = np.flatnonzero(on_line)
    start = np.rint(middle + tilt * row).astype(int)
    column = start[:, None] + np.arange(-REACH, REACH + 1)
    inside = (column >= 0) & (column < light.shape[1])
    window = np.take_along_axis(light[row], column.clip(0, light.shape[1] - 1), axis=1)
    hot = np.abs(window - np.take_along_axis(along[row], column.clip(0, light.shape[1] - 1), axis=1))
    used = inside & (hot < max(6 * noise, 0.4 * float(np.median(peak[row]))))
    rows = np.broadcast_to(row[:, None], column.shape)[used].astype(float)
    place, values = column[used].astype(float), window[used]

    def solved(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        offsets = place - theta[0] - theta[1] * rows
        basis = np.stack([slit_profile(offsets, math.exp(theta[2]), width), np.ones_like(offsets)], axis=1)
        amplitudes = np.linalg.lstsq(basis, values, rcond=None)[0]
        return offsets, amplitudes, values - basis @ amplitudes

    rows -= rows.mean()
    center = middle + tilt * row.mean()
    bounds = ([center - 3, tilt - 0.1, math.log(SHARPEST)], [center + 3, tilt + 0.1, math.log(WIDEST)])
    found = optimize.least_squares(
        lambda theta: solved(theta)[2], [center, tilt, 0.0], bounds=bounds, x_scale=[0.1, 0.01, 0.1]
    )
    sigma = SHARPEST if found.x[2] < math.log(1.01 * SHARPEST) else math.exp(found.x[2])
    offsets, (height, level), _ = solved(found.x)
    in_bins = [(values - level) / height, slit_profile(offsets, sigma, width)]
    (profile, model), *_ = stats.binned_statistic(offsets, in_bins, bins=edges)
    counts = np.histogram(offsets, edges)[0]
    chance = (noise / height) ** 2 / np.maximum(counts, 1)  # what noise alone puts between the two
    off = math.sqrt(max(float(np.nansum((profile - model) ** 2 - chance) / np.nansum(model**2)), 0.0))
    if not height > 0 or off > MISFIT:
        raise InputError(
            f"{frame} does not look like a slit {width:g} px wide and blurred (the best such profile is off by "
            f"{off:.0%}); check the slit's width and that the slit is alone in the frame"
        )
    if sigma > 0.98 * WIDEST:
        raise InputError(f"{frame} is blurred by more than {WIDEST:g} px, too much to be measured; focus the camera")
    # pixels lie anywhere in their bin: what the fit leaves of them belongs to its middle all the same
    return sigma, slit_profile((edges[:-1] + edges[1:]) / 2, sigma, width) + profile - model


def scatter(values: np.ndarray) -> float:
    """Standard deviation of normal values, told by the median of how far they are off theirs: outliers count little."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))


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
