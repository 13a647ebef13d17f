"""The detail of a snapshot as a linear regression on that of its masks, block by block.

Within a block of some 32 x 32 pixels a scene is smooth, and the fine detail of the snapshot is the mask's. With y~ the
detail of the snapshot, divided by its local brightness, and m~_c that of the mask of band c,

    y~(p) = sum_c a_c m~_c(p - d_c) + rest,    a_c = sum_k z_k B_k(c),  K smooth spectra

is a linear regression. Its rest depends on where and how sharp the masks are. Displacement and blur enter through the
mask at four widths and its derivatives,

    m~_c = sum_l w_l(blur) (g_l - down dg_l/dy - right dg_l/dx)

so that the products of these images with each other and with y~, summed over each block once, give the rest for any
camera nearby in a few small matrices.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from cassi.kernels.threads import side_by_side
from cassi.optics.geometry import Shifts, cosines
from cassi.optics.psf import local_mean
from cassi.self_calibration.camera_model import BlurredMasks, band_positions, blur_weights, mixture

FITTED_BLOCK = 32  # side of the blocks [pixel]
BRIGHTNESS = 5.0  # that of the local brightness [pixel]
DARK = 0.1  # pixels below this share of the bright ones are not looked at
MARGIN = 6  # nor those at the border [pixel]
FILLED = 0.6  # least share of good pixels in a block
MIN_ROWS = 4  # of blocks that a thread takes: the filters reach half a block beyond
FILTERED = 16  # rows that the filters reach [pixel]
SLOPE = np.array([-1, 9, -45, 0, 45, -9, 1]) / -60  # -d/dp, of sixth order: masks change from pixel to pixel


@dataclass(frozen=True)
class Look:
    """How closely the snapshots are looked at."""

    smooth: float  # standard deviation of what counts as smooth [pixel]
    groups: int  # of bands, between which the images are interpolated
    spectra: int  # K


COARSE = Look(3.0, 14, 10)  # with 6 spectra, a scene of strong colors passed for a mask 0.3 px further on
FINE = Look(1.5, 28, 20)  # of masks whose blur is known: with one image of each in place of four it costs no more


@dataclass(frozen=True, eq=False)
class Blocks:
    """Sums over each block of products of the masks' images with each other and with the snapshot."""

    gram: Tensor  # (blocks, F, F), F = images * groups
    right: Tensor  # (blocks, F)
    energy: Tensor  # (blocks,) of the snapshot's detail
    count: Tensor  # (blocks,) pixels
    x: Tensor  # (blocks,) place on the mask, -1 to 1
    y: Tensor
    parity: Tensor  # (blocks,) bool, the fields of a checkerboard: one tests what the other was fitted to
    t: Tensor  # (groups,) of the bands, -1 to 1
    spectra: int = COARSE.spectra

    def regressed(self, down: Tensor, right: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """log of the rest of each block relative to its energy, (blocks,), and its a_c; arguments (blocks, groups).

        Where the derivatives were left out, the masks are not displaced; where there is one image of each, they are
        blurred already.
        """
        count = self.gram.shape[1] // len(self.t)
        levels = variance.new_ones(variance.shape)[:, None] if count <= 3 else torch.stack(blur_weights(variance), 1)
        images = torch.cat([levels, levels * down[:, None], levels * right[:, None]], 1)  # (blocks, images, groups)
        images = images[:, :count]
        spectra = torch.as_tensor(cosines(len(self.t), self.spectra))  # B_k, (K, groups)
        with torch.no_grad():  # where the coefficients fit best, what is left changes with the images alone
            W = (images[:, None] * spectra[None, :, None, :]).flatten(2)  # (blocks, K, F)
            target = W @ self.right[..., None]
            ridge = 1e-3 * self.gram[:, : len(self.t)].diagonal(dim1=1, dim2=2).mean()
            gram = W @ self.gram @ W.mT + ridge * torch.eye(len(spectra), dtype=W.dtype)
            fitted = torch.linalg.solve(gram, target)[..., 0]
        seen = (images * (fitted @ spectra)[:, None]).flatten(1)
        power = (seen * (self.gram @ seen[..., None])[..., 0]).sum(1) + ridge * fitted.square().sum(1)
        left = (self.energy - 2 * (seen * self.right).sum(1) + power).clamp(min=0)
        floor = 1e-4 * self.energy.mean()
        return torch.log((left + floor) / (self.energy + floor)), fitted @ spectra


@dataclass(frozen=True, eq=False)
class Snapshots:
    """The detail of one or more snapshots (N, H, W'), divided by the local brightness, and where it counts (bool)."""

    detail: np.ndarray
    good: np.ndarray
    look: Look = COARSE

    @classmethod
    def of(cls, y: np.ndarray, bad_pixels: np.ndarray | None = None, look: Look = COARSE) -> Snapshots:
        """From snapshots (N, H, W'), less their black level."""
        known = np.ones(y.shape[-2:]) if bad_pixels is None else (~bad_pixels).astype(float)
        details, goods = [], []
        for frame in y.astype(np.float64):
            level = local_mean(frame, known, BRIGHTNESS)
            good = (level > DARK * np.percentile(level, 99)) & (known > 0)
            good[:MARGIN] = good[-MARGIN:] = False
            good[:, :MARGIN] = good[:, -MARGIN:] = False
            detail = np.where(good, (frame - local_mean(frame, known, look.smooth)) / np.where(good, level, 1), 0)
            limit = 3 * float(detail[good].std()) if good.any() else 0.0
            details.append(np.clip(detail, -limit, limit))
            goods.append(good)
        return cls(np.stack(details).astype(np.float32), np.stack(goods), look)


def features(
    masks: BlurredMasks, shifts: Shifts, columns: int, *, blurs: Sequence[int], derivatives: bool,
    rows: slice = slice(None), look: Look = COARSE,
) -> np.ndarray:  # fmt: skip
    """Detail of the masks seen on the detector, at these `BLURS`, then -d/dy, then -d/dx of each, (F, rows, W').

    Bands are taken together in groups, with hat functions between the groups' centers.
    """
    num_bands = len(shifts)
    whole = np.rint(np.asarray(shifts) - min(shifts)).astype(int)
    centers = np.linspace(0, num_bands - 1, min(look.groups, num_bands))
    hats = np.array([np.interp(np.arange(num_bands), centers, row) for row in np.eye(len(centers))], np.float32)
    height, width = masks[0][0].shape
    first, last, _ = rows.indices(height)
    out = np.zeros((len(blurs) * (3 if derivatives else 1), len(centers), last - first, columns), np.float32)
    scaled = np.empty((last - first, width), np.float32)
    top, bottom = max(0, first - FILTERED), min(height, last + FILTERED)

    @functools.lru_cache(maxsize=3)
    def images(place: int) -> np.ndarray:
        levels = [masks[place][k][top:bottom] for k in blurs]
        found = [(one - ndimage.gaussian_filter(one, look.smooth)).astype(np.float32) for one in levels]
        if derivatives:
            found += [ndimage.correlate1d(image, SLOPE, axis=axis) for axis in (0, 1) for image in found]
        return np.stack([image[first - top : last - top] for image in found])

    parts = mixture(num_bands, len(masks)).astype(np.float32)
    for c, d in enumerate(whole):
        if not c or len(masks) > 1:
            places = np.flatnonzero(parts[c])
            made = images(places[0]) if len(places) == 1 else sum(parts[c, place] * images(place) for place in places)
        for q in np.flatnonzero(hats[:, c]):
            for target, image in zip(out, made, strict=True):
                target[q, :, d : d + width] += np.multiply(image, hats[q, c], out=scaled)
    return out.reshape(len(out) * len(centers), last - first, columns)


def tiles(good: np.ndarray) -> list[tuple[int, int]]:
    """Upper left corners of the blocks with enough good pixels."""
    height, columns = good.shape
    return [
        (i, j)
        for i in range(0, height - FITTED_BLOCK + 1, FITTED_BLOCK)
        for j in range(0, columns - FITTED_BLOCK + 1, FITTED_BLOCK)
        if good[i : i + FITTED_BLOCK, j : j + FITTED_BLOCK].sum() >= FILLED * FITTED_BLOCK**2
    ]


def gather(snapshots: Snapshots, masks: BlurredMasks, shifts: Shifts, *, derivatives: bool = True) -> Blocks:
    """The blocks of the snapshots, for masks nearby."""
    height, width = masks[0][0].shape
    columns = snapshots.detail.shape[-1]
    num_bands, look = len(shifts), snapshots.look
    centers = np.linspace(0, num_bands - 1, min(look.groups, num_bands))
    blurs = range(len(masks[0]))
    corners = [(n, i, j) for n, good in enumerate(snapshots.good) for i, j in tiles(good)]
    num_images = len(blurs) * (3 if derivatives else 1) * len(centers)
    gram = torch.zeros(len(corners), num_images, num_images, dtype=torch.float64)
    right = torch.zeros(len(corners), num_images, dtype=torch.float64)
    energy, count = torch.zeros(2, len(corners), dtype=torch.float64)

    def summed(tops: Sequence[int]) -> None:
        """The blocks of some of the rows of blocks."""
        lit = slice(tops[0], tops[-1] + FITTED_BLOCK)
        flat = features(masks, shifts, columns, blurs=blurs, derivatives=derivatives, rows=lit, look=look)
        for b, (n, i, j) in enumerate(corners):
            if i in tops:
                part = slice(i, i + FITTED_BLOCK), slice(j, j + FITTED_BLOCK)
                inside = snapshots.good[n][part]
                F = torch.from_numpy(flat[:, i - lit.start : i - lit.start + FITTED_BLOCK, part[1]][:, inside])
                v = torch.from_numpy(snapshots.detail[n][part][inside])
                gram[b], right[b], energy[b], count[b] = F @ F.T, F @ v, v @ v, len(v)

    tops = sorted({i for _, i, _ in corners})
    pieces = min(torch.get_num_threads(), max(1, len(tops) // MIN_ROWS))
    side_by_side(summed, [piece.tolist() for piece in np.array_split(tops, pieces) if len(piece)])
    rows, cols = np.array([corner[1:] for corner in corners], dtype=float).reshape(-1, 2).T
    return Blocks(
        gram,
        right,
        energy,
        count,
        torch.as_tensor(2 * (cols + (FITTED_BLOCK - max(shifts) + min(shifts)) / 2) / width - 1),
        torch.as_tensor(2 * (rows + FITTED_BLOCK / 2) / height - 1),
        torch.as_tensor((rows // FITTED_BLOCK + cols // FITTED_BLOCK) % 2 == 1),
        torch.as_tensor(np.interp(centers, np.arange(num_bands), band_positions(num_bands))),
        look.spectra,
    )
