"""Where light of each wavelength falls on the detector: measured between images of the coded aperture, and a curve."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import polynomial
from scipy import ndimage

from cassi.errors import InputError

REFERENCE = 500.0  # nm; wavelengths are scaled by it in the fits


@dataclass(frozen=True, eq=False)
class Dispersion:
    """Displacement of light on the detector against its wavelength.

        d(lambda) = sum_p a_p (lambda / 500 nm)^p

    Attributes:
        coefficients: (P,) a_p [pixel], from p = 0.
        wavelengths: (L,) [nm] it was fitted to.
        measured: (L,) displacement of the mask's image from that of the first wavelength [pixel].
        across: (L,) the same across the dispersion, which should be 0 [pixel].
    """

    coefficients: np.ndarray
    wavelengths: np.ndarray
    measured: np.ndarray
    across: np.ndarray

    def __call__(self, wavelengths: np.ndarray) -> np.ndarray:
        """d(lambda) [pixel]."""
        return np.asarray(polynomial.polyval(np.asarray(wavelengths, dtype=float) / REFERENCE, self.coefficients))

    @property
    def residuals(self) -> np.ndarray:
        """(L,) measured minus fitted [pixel]."""
        return np.asarray(self.measured - self(self.wavelengths))

    def wavelength(self, displacements: np.ndarray) -> np.ndarray:
        """The inverse, lambda(d) [nm], within 20 % beyond the fitted wavelengths.

        Raises:
            InputError: the fitted curve turns back within that range, or a displacement lies outside it.
        """
        first, last = self.wavelengths.min(), self.wavelengths.max()
        beyond = 0.2 * (last - first)
        grid = np.linspace(first - beyond, last + beyond, 10_001)
        rising = np.diff(self(grid)) * np.sign(np.diff(self(np.array([first, last])))) > 0
        back = np.flatnonzero(~rising)
        if ((grid[back] >= first) & (grid[back + 1] <= last)).any():
            raise InputError(
                f"the fitted dispersion turns back between {first:g} and {last:g} nm: fewer coefficients, other "
                "wavelengths, or check that the mask frames are in the order of their wavelengths"
            )
        # outside the captured wavelengths the fit may turn back; it is followed as far as it does not
        middle = len(rising) // 2
        grid = grid[back[back < middle].max(initial=-1) + 1 : back[back >= middle].min(initial=len(rising)) + 1]
        d = self(grid)
        d, w = (d, grid) if d[0] <= d[-1] else (d[::-1], grid[::-1])
        wanted = np.asarray(displacements, dtype=float)
        if wanted.min() < d[0] - 1e-9 or wanted.max() > d[-1] + 1e-9:
            raise InputError(
                f"bands from {wanted.min():.1f} to {wanted.max():.1f} px lie beyond the calibrated dispersion, "
                f"{d[0]:.1f} to {d[-1]:.1f} px; ask for fewer bands or a smaller step, or capture more wavelengths"
            )
        return np.asarray(np.interp(wanted, d, w))


def fit_dispersion(images: np.ndarray, wavelengths: np.ndarray, *, order: int = 3) -> Dispersion:
    """The dispersion from images of the coded aperture, corrected, at several wavelengths.

    Images (L, H, W') of L wavelengths [nm]; `order` is the highest power p, of which at most L - 1 is used. The result
    is 0 at the first wavelength up to the residual of the fit.

    Raises:
        InputError: an order below 1.
    """
    if order < 1:
        raise InputError(f"the order of the dispersion model must be at least 1, got {order}")
    count = len(images)
    pairs = list(itertools.combinations(range(count), 2))
    between = [image_shift(images[a], images[b]) for a, b in pairs]
    # least squares for the positions p, with p_0 = 0: p_b - p_a = between
    rows = np.array([np.eye(count)[b] - np.eye(count)[a] for a, b in pairs])
    positions = np.zeros((count, 2))
    positions[1:] = np.linalg.lstsq(rows[:, 1:], np.array(between), rcond=None)[0]
    across, along = positions.T
    powers = polynomial.polyvander(np.asarray(wavelengths) / REFERENCE, min(order, count - 1))
    coefficients = np.linalg.lstsq(powers, along, rcond=None)[0]
    return Dispersion(coefficients, np.asarray(wavelengths), along, across)


def image_shift(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """By how much the second image lies further down and to the right than the first [pixel], to about 0.01 px.

    The peak of the phase correlation gives whole pixels; with these taken out, the phase of the cross spectrum is a
    plane through 0, phi(f) = -2 pi f . shift, fitted over the frequencies below 0.25 cycles per pixel with the cross
    spectrum's magnitude as weight. (Phase correlation: C. D. Kuglin and D. C. Hines, 1975.)

    Returns (rows, columns).
    """
    height, width = first.shape
    window = np.outer(np.hanning(height + 2)[1:-1], np.hanning(width + 2)[1:-1])
    fy, fx = np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :]
    low = np.hypot(fy, fx) < 0.25

    def spectrum(image: np.ndarray) -> np.ndarray:
        weighted = (image - np.average(image, weights=window)) * window
        return np.asarray(np.fft.rfft2(weighted))

    reference = spectrum(first)
    cross = spectrum(second) * reference.conj()
    magnitude = np.abs(cross)
    correlation = np.fft.irfft2(
        np.where(low & (magnitude > 0), cross / np.where(magnitude > 0, magnitude, 1), 0), first.shape
    )
    row, column = np.unravel_index(int(correlation.argmax()), first.shape)
    down = int(row) - height * (row > height // 2)
    right = int(column) - width * (column > width // 2)
    # the window stays with the detector: moving the content back by whole pixels makes both windows see the same part
    moved = ndimage.shift(second, (-down, -right), order=0, mode="nearest")
    shift = np.zeros(2)
    for _ in range(3):
        turned = spectrum(moved) * reference.conj() * np.exp(2j * np.pi * (fy * shift[0] + fx * shift[1]))
        phase, weight = np.angle(turned), np.where(low, np.abs(turned), 0)
        weight = np.where(np.abs(phase) < 2, weight, 0)
        plane = np.stack([np.broadcast_to(fy, phase.shape), np.broadcast_to(fx, phase.shape)]).reshape(2, -1)
        left = (plane * weight.reshape(-1)) @ plane.T
        right_side = (plane * weight.reshape(-1)) @ phase.reshape(-1)
        if not np.linalg.det(left) > 0:
            break
        shift -= np.linalg.solve(left, right_side) / (2 * np.pi)
    return float(down + shift[0]), float(right + shift[1])
