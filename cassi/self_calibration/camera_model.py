"""What a real camera makes of its coded aperture: moved, bent, blurred by band and place, of another tone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from cassi.optics.geometry import Shifts

Values = TypeVar("Values", np.ndarray, Tensor)
BlurredMasks = list[list[np.ndarray]]  # [place in t, see `mixture`][blur], each (H, W)

BLURS = (0.0, 0.6, 1.8, 5.0)  # variances of the blurred masks that stand for all between [pixel^2]
FADE = 0.8  # [1 / pixel^2]
UNSEEN = 0.02  # of the light of a pixel, through elements that nobody has seen: about as much as noise changes it
LOCAL = 9  # side of the square whose mean is a mask's local mean [pixel]
SHARPEST, WIDEST = -0.8, BLURS[-1]  # bounds on the variance; below 0 the image is sharper than the mask's own picture


def polynomial(terms: Mapping[str, float], x: np.ndarray, y: np.ndarray, t: np.ndarray | float) -> np.ndarray:
    """sum_k c_k x^a y^b t^c, the powers by the letters of each term's name, "1" the constant."""
    value = np.zeros(np.broadcast(x, y, t).shape)
    for name, c in terms.items():
        if c:
            term = np.ones(())
            for letter in name.replace("1", ""):
                term = term * {"x": x, "y": y, "t": t}[letter]
            value += c * term
    return value


@dataclass(frozen=True)
class CameraModel:
    """The mask of each band as a function of a few numbers.

        m_c(p) = (g_c,p * s * m^tone)(p - (down(p, c), right(p, c)))

    with g a Gaussian of variance blur(p, c) and s a box one band gap wide along the dispersion. down, right and blur
    are polynomials in x and y, -1 to 1 over the mask, and t, -1 to 1 from the first to the last band.

    Attributes:
        down, right: displacement of the mask [pixel] by the names of the terms, such as {"1": 0.3, "xy": 0.1}.
        blur: variance [pixel^2].
        contrast: of each band's mask about its mean.
        tone: exponent of the mask's values, > 0: pictures of masks are seldom linear.
        continuous: whether light of all wavelengths arrives, not only that of the bands: then each band is spread over
            the gap to its neighbors.
    """

    down: Mapping[str, float] = field(default_factory=dict)
    right: Mapping[str, float] = field(default_factory=dict)
    blur: Mapping[str, float] = field(default_factory=dict)
    contrast: float = 1.0
    tone: float = 1.0
    continuous: bool = False

    @property
    def exact(self) -> bool:
        """Whether this is the mask as it was given."""
        moves = any((*self.down.values(), *self.right.values(), *self.blur.values()))
        return not (moves or self.continuous or self.contrast != 1 or self.tone != 1)

    def beyond(self, shape: tuple[int, int], num_bands: int) -> list[np.ndarray]:
        """How much of each mask element lies beyond the mask's picture, 0 to 1; (H, W) for each band."""
        x, y = coordinates(shape)
        rows, columns = np.meshgrid(*map(np.arange, shape), indexing="ij")
        bands = num_bands if _by_band(self.down) or _by_band(self.right) else 1
        shares = [
            beyond(shape, rows - polynomial(self.down, x, y, t), columns - polynomial(self.right, x, y, t))
            for t in band_positions(num_bands)[:bands]
        ]
        return shares * (num_bands // bands)

    def blur_at(self, x: np.ndarray, y: np.ndarray, t: float) -> np.ndarray:
        """Standard deviation of the mask's blur at places and a band, -1 to 1 each [pixel]; 0 where it is sharper."""
        found: np.ndarray = np.sqrt(np.clip(polynomial(self.blur, x, y, t), 0, WIDEST)) + np.zeros(np.shape(x))
        return found

    def masks(self, mask: np.ndarray, shifts: Shifts) -> np.ndarray:
        """The mask of each band, (C, H, W) of the dtype of `mask`, (H, W) or (C, H, W), >= 0."""
        if self.exact:
            return mask
        images = blurred_masks(self, mask, shifts)
        x, y = coordinates(mask.shape[-2:])
        blurred, highest = any(self.blur.values()), mask.max() ** self.tone
        found = np.empty((len(shifts), *mask.shape[-2:]), mask.dtype)
        parts = mixture(len(shifts), len(images))
        weights: list[np.ndarray] = []
        for c, t in enumerate(band_positions(len(shifts))):
            if blurred and (not weights or _by_band(self.blur)):
                weights = blur_weights(np.clip(polynomial(self.blur, x, y, t), SHARPEST, WIDEST))
            levels = [sum(w * one[k] for w, one in zip(parts[c], images, strict=True) if w) for k in range(len(BLURS))]
            made = sum(w * level for w, level in zip(weights, levels, strict=True)) if blurred else levels[0]
            if self.contrast != 1:
                mean = made.mean()
                made = mean + self.contrast * (made - mean)
            found[c] = np.clip(made, 0, highest)
        return found


def _by_band(terms: Mapping[str, float]) -> bool:
    return any(c for name, c in terms.items() if "t" in name)


def coordinates(shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """x and y of each pixel, -1 to 1 over the mask."""
    y, x = np.meshgrid(np.linspace(-1, 1, shape[0]), np.linspace(-1, 1, shape[1]), indexing="ij")
    return x, y


def band_positions(num_bands: int) -> np.ndarray:
    """t of each band."""
    return np.linspace(-1, 1, num_bands) if num_bands > 1 else np.zeros(1)


def blur_weights(variance: Values) -> list[Values]:
    """Weights of the masks blurred by `BLURS` that make one blurred by `variance`.

    Detail of frequency k is left with exp(-k^2 variance / 2), a power of s = exp(-FADE variance): so they are Lagrange
    polynomials in s. In the variance itself they would be off by half of a sharp mask's detail.
    """
    s, nodes = math.e ** (-FADE * variance), [math.exp(-FADE * b) for b in BLURS]
    weights: list[Values] = []
    for a in nodes:
        w = 0 * s + 1
        for b in nodes:
            if b != a:
                w = w * (s - b) / (a - b)
        weights.append(w)
    return weights


def mixture(num_bands: int, count: int) -> np.ndarray:
    """How much of each of the displaced masks makes that of each band, (C, count): a parabola through three of them."""
    t = band_positions(num_bands)
    if count == 3:
        return np.stack([t * (t - 1) / 2, 1 - t * t, t * (t + 1) / 2], axis=1)
    return np.eye(num_bands) if count > 1 else np.ones((num_bands, 1))


def blurred_masks(model: CameraModel, mask: np.ndarray, shifts: Shifts) -> BlurredMasks:
    """The mask displaced, at each of `BLURS`: one; of three t where the displacement depends on it; or of each band."""
    toned = mask.astype(np.float64) if model.tone == 1 else np.maximum(mask.astype(np.float64), 0) ** model.tone
    per_band = toned.ndim == 3 or bool(model.right.get("t"))  # another dispersion moves bands by whole pixels
    positions = band_positions(len(shifts) if per_band else 3 if _by_band(model.down) or _by_band(model.right) else 1)
    sources = np.broadcast_to(toned, (len(positions), *mask.shape[-2:]))
    x, y = coordinates(mask.shape[-2:])
    rows, columns = np.meshgrid(*map(np.arange, mask.shape[-2:]), indexing="ij")
    gap = float(np.median(np.abs(np.diff(np.sort(shifts))))) if len(shifts) > 1 else 0.0
    levels = []
    for t, source in zip(positions, sources, strict=True):
        down, right = polynomial(model.down, x, y, t), polynomial(model.right, x, y, t)
        moved = sampled(source, rows - down, columns - right) if down.any() or right.any() else source
        if model.continuous:
            moved = box_blurred(moved, gap)
        levels.append([ndimage.gaussian_filter(moved, v**0.5) if v else moved for v in BLURS])
    return levels


def sampled(image: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """A mask's picture at these places, by cubic splines within its values.

    Beyond its border its local mean stands: a pattern that is not the mask's would be fitted by light that is not
    there.
    """
    values: np.ndarray = ndimage.map_coordinates(image, [rows, columns], order=3, mode="nearest")
    share = beyond(image.shape, rows, columns)
    if share.any():
        means = ndimage.uniform_filter(image, LOCAL, mode="nearest")
        values += share * (ndimage.map_coordinates(means, [rows, columns], order=1, mode="nearest") - values)
    return np.clip(values, image.min(), image.max(), out=values)


def shift_columns(images: Tensor, displacements: Sequence[float]) -> Tensor:
    """Move band c of (..., C, H, W) by displacements[c] pixels to the right, by cubic splines."""
    stack = images.detach().cpu().double().reshape(-1, *images.shape[-3:]).numpy()
    moved = np.empty_like(stack)
    for target, source in zip(moved, stack, strict=True):
        for c, d in enumerate(displacements):
            ndimage.shift(source[c], (0, d), output=target[c], order=3, mode="nearest")
    return torch.as_tensor(moved).reshape(images.shape).to(images)


def beyond(shape: tuple[int, ...], rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """How much of what is sampled at these places lies beyond the border of a picture: 0 none, 1 all."""
    outside = [-rows, rows - (shape[0] - 1), -columns, columns - (shape[1] - 1)]
    share: np.ndarray = np.maximum.reduce(outside).clip(0, 1)
    return share


def unseen_pixels(mask: np.ndarray, shares: Sequence[np.ndarray], shifts: Shifts) -> np.ndarray | None:
    """Detector pixels (H, W') that get over 2 % of an even scene's light through elements beyond the mask's picture.

    `shares` (H, W) of each band tell how much of each element lies beyond. None where there are no such pixels.
    """
    starts = [int(d - min(shifts)) for d in shifts]
    height, width = mask.shape[-2:]
    light, unseen = np.zeros((2, height, width + max(starts)))
    bands = np.broadcast_to(mask, (len(starts), height, width))
    for band, share, d in zip(bands, shares, starts, strict=True):
        light[:, d : d + width] += band
        unseen[:, d : d + width] += band * share
    found = unseen > UNSEEN * light
    return found if found.any() else None


def box_blurred(image: np.ndarray, width: float) -> np.ndarray:
    """The image convolved along its rows with a box of this width [pixel]: pixels that it covers in part count so."""
    reach = int(np.ceil((width - 1) / 2)) if width > 1 else 0
    if reach == 0:
        return image
    offsets = np.arange(-reach, reach + 1)
    covered = np.clip(width / 2 + 0.5 - np.abs(offsets), 0, 1)
    blurred: np.ndarray = ndimage.convolve1d(image, covered / covered.sum(), axis=-1, mode="nearest")
    return blurred
