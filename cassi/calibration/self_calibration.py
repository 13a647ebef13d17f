"""The camera found from its own snapshots, without a reconstruction: the mask's pattern is looked for in them.

Within a block of 32 x 32 pixels a scene is smooth, and the fine detail of the snapshot is the mask's. With y~ the
detail of the snapshot, divided by its local brightness, and m~_c that of the mask of band c, the model is

    y~(p) = sum_c a_c m~_c(p - d_c) + e,                               a_c = sum_k z_k B_k(c),  K smooth spectra
    m~_c  = sum_l w_l(v) (g_l - down dg_l/dy - right dg_l/dx)          v, down, right: polynomials in x, y, t
    r(theta) = log min_z |e|^2 / |y~|^2                                of each block, theta their coefficients

g_l is the mask blurred by the variance `BLURS[l]`. The products of these images with each other and with y~, summed
over each block once (`gather`), give r for any camera nearby in a few small matrices (`Blocks.log_residual`).
`fit_pose` minimizes its mean; the mask is then moved, and the products are taken anew. `select_terms` adds to theta
what lowers r in blocks that it was not fitted to (`Fit`). The last fit has the blur as it was found, more spectra, and
finer detail, which mistakes less of the scene for the mask (`refit_fine`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from cassi.calibration.camera_model import (
    SHARPEST,
    WIDEST,
    BlurredMasks,
    CameraModel,
    band_positions,
    blur_weights,
    polynomial,
)
from cassi.kernels.threads import side_by_side
from cassi.optics.geometry import Shifts

BLOCK = 32  # side of the blocks [pixel]
BRIGHTNESS = 5.0  # that of the local brightness [pixel]
DARK = 0.1  # pixels below this share of the bright ones are not looked at
MARGIN = 6  # nor those at the border [pixel]
FILLED = 0.6  # least share of good pixels in a block
FEWEST_BLOCKS = 12  # below, nothing is looked for
MOST_BLOCKS = 250  # of one snapshot; of more, whole rows of blocks are left out: 660 x 714 in half the time
FEWEST_ROWS = 4  # of blocks that a thread takes: the filters reach half a block beyond
GAIN, SIGMAS = 0.003, 3.0  # a term must lower the log residual by so much, and by so many standard errors
TOLERANCE = (
    1e-5  # of a mean log residual: a hundredth of `GAIN`; less moved no mask by 0.005 px, and took twice as long
)
REACH = 3  # displacements looked for [pixel]
STRETCHES = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of the spectrum's ends, from which another dispersion is looked for [pixel]
FILTERED = 16  # rows that the filters reach [pixel]
SLOPE = np.array([-1, 9, -45, 0, 45, -9, 1]) / -60  # -d/dp, of sixth order: masks change from pixel to pixel
SHALLOW, DEEP = 0.05, 0.2  # a contrast so far below 1, or above, is believed; edges of a scene pass for up to 0.15 more
FLATTEST = 0.3  # below, the masks do not fit at all, and nothing is known of it; an inverted mask has one of -1
TONES = (0.5, 0.7, 1.0, 1.5, 2.0, 2.5, 3.0)


@dataclass(frozen=True)
class Look:
    """How closely the snapshots are looked at.

    Attributes:
        smooth: standard deviation of what counts as smooth [pixel].
        groups: of bands, between which the images are interpolated.
        spectra: K.
    """

    smooth: float
    groups: int
    spectra: int


COARSE = Look(3.0, 14, 10)  # with 6 spectra, a scene of strong colors passed for a mask 0.3 px further on
FINE = Look(1.5, 28, 20)  # of masks whose blur is known: with one image of each in place of four it costs no more

# What is added one after the other: name, and the terms of (down, right, blur) that it moves together.
Direction = tuple[Mapping[str, float], Mapping[str, float], Mapping[str, float]]


@dataclass(frozen=True, eq=False)
class Blocks:
    """Sums over each block of products of the masks' images with each other and with the snapshot.

    Attributes:
        gram: (blocks, F, F), F = images * groups.
        right: (blocks, F).
        energy: (blocks,) of the snapshot's detail.
        count: (blocks,) pixels.
        x, y: (blocks,) place on the mask, -1 to 1.
        parity: (blocks,) bool, the fields of a checkerboard: one tests what the other was fitted to.
        t: (groups,) of the bands, -1 to 1.
        spectra: K.
    """

    gram: Tensor
    right: Tensor
    energy: Tensor
    count: Tensor
    x: Tensor
    y: Tensor
    parity: Tensor
    t: Tensor
    spectra: int = COARSE.spectra

    def __len__(self) -> int:
        return len(self.count)

    def only(self, some: Tensor) -> Blocks:
        """Those marked, (blocks,) bool."""
        fields = {name: getattr(self, name)[some] for name in ("gram", "right", "energy", "count", "x", "y", "parity")}
        return replace(self, **fields)

    def log_residual(self, down: Tensor, right: Tensor, variance: Tensor) -> Tensor:
        """r of each block, (blocks,); arguments (blocks, groups), or (blocks, 1) where they are the same in all bands.

        Where the derivatives were left out, the masks are not displaced; where there is one image of each, they are
        blurred already.
        """
        return self._regressed(down, right, variance)[0]

    def contrast(self, down: Tensor, right: Tensor, variance: Tensor, light: float) -> float:
        """That of the mask: sum_c a_c times its mean is 1 where the pattern is as deep as the light is bright.

        The median over the half of the blocks that are explained best: edges of the scene make patterns, too.

        Args:
            down, right, variance: as for `log_residual`.
            light: mean of the mask times the number of bands.
        """
        residual, fitted = self._regressed(down, right, variance)
        best = residual <= residual.median()
        return float(((fitted @ self._spectra()).mean(1) * light)[best].median())

    def _spectra(self) -> Tensor:
        """B_k, (K, groups): cosines over the bands."""
        num_groups = len(self.t)
        c = (torch.arange(num_groups, dtype=torch.float64) + 0.5) / num_groups
        return torch.cos(math.pi * torch.arange(min(self.spectra, num_groups), dtype=torch.float64)[:, None] * c)

    @cached_property
    def _summed(self) -> tuple[Tensor, Tensor]:
        """gram (blocks, images^2, K^2) and right (blocks, images, K) over the spectra, of images alike in all bands."""
        spectra, groups = self._spectra(), len(self.t)
        images = self.gram.shape[1] // groups
        right = self.right.view(-1, images, groups) @ spectra.T
        half = self.gram.view(-1, groups) @ spectra.T
        gram = spectra @ half.view(-1, images, groups, images * len(spectra))
        gram = gram.view(-1, images, len(spectra), images, len(spectra)).permute(0, 1, 3, 2, 4)
        return gram.reshape(len(self), images**2, -1), right

    def _regressed(self, down: Tensor, right: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """r of each block, and its coefficients z_k, (blocks, K)."""
        count = self.gram.shape[1] // len(self.t)
        levels = variance.new_ones(variance.shape)[:, None] if count <= 3 else torch.stack(blur_weights(variance), 1)
        images = torch.cat([levels, levels * down[:, None], levels * right[:, None]], 1)  # (blocks, images, groups)
        images = images[:, :count]
        spectra = self._spectra()
        if images.shape[-1] == 1:
            of_images, of_right = self._summed
            products = (images * images.mT).flatten(1)[:, None]
            gram = (products @ of_images).view(-1, len(spectra), len(spectra))
            target = (images.mT @ of_right)[:, 0]
        else:
            W = (images[:, None] * spectra[None, :, None, :]).flatten(2)  # (blocks, K, F)
            gram = W @ self.gram @ W.mT
            target = (W @ self.right[..., None])[..., 0]
        ridge = 1e-3 * self.gram[:, : len(self.t)].diagonal(dim1=1, dim2=2).mean()
        fitted = torch.linalg.solve(gram + ridge * torch.eye(len(spectra), dtype=gram.dtype), target)
        floor = 1e-4 * self.energy.mean()
        left = (self.energy - (target * fitted).sum(1)).clamp(min=0)
        return torch.log((left + floor) / (self.energy + floor)), fitted


@dataclass(frozen=True, eq=False)
class Snapshots:
    """The detail of one or more snapshots, divided by the local brightness, and where it counts.

    Attributes:
        detail: (N, H, W').
        good: (N, H, W') bool.
        look: how closely.
    """

    detail: np.ndarray
    good: np.ndarray
    look: Look = COARSE

    @classmethod
    def of(cls, y: np.ndarray, bad_pixels: np.ndarray | None = None, look: Look = COARSE) -> Snapshots:
        """From snapshots (N, H, W'), less their black level."""
        known = np.ones(y.shape[-2:]) if bad_pixels is None else (~bad_pixels).astype(float)
        details, goods = [], []
        for frame in y.astype(np.float64):
            level = _smooth(frame, known, BRIGHTNESS)
            good = (level > DARK * np.percentile(level, 99)) & (known > 0)
            good[:MARGIN] = good[-MARGIN:] = False
            good[:, :MARGIN] = good[:, -MARGIN:] = False
            detail = np.where(good, (frame - _smooth(frame, known, look.smooth)) / np.where(good, level, 1), 0)
            limit = 3 * float(detail[good].std()) if good.any() else 0.0
            details.append(np.clip(detail, -limit, limit))
            goods.append(good)
        return cls(np.stack(details).astype(np.float32), np.stack(goods), look)


def _smooth(image: np.ndarray, known: np.ndarray, width: float) -> np.ndarray:
    """Blurred by a Gaussian of this standard deviation, without the unknown pixels, which leave no hole."""
    mean: np.ndarray = ndimage.gaussian_filter(image * known, width)
    filled: np.ndarray = mean / np.maximum(ndimage.gaussian_filter(known, width), 1e-6)
    return filled


def _detail(image: np.ndarray, smooth: float) -> np.ndarray:
    passed: np.ndarray = image - ndimage.gaussian_filter(image, smooth)
    return passed


def features(
    masks: BlurredMasks,
    shifts: Shifts,
    columns: int,
    *,
    blurs: Sequence[int],
    derivatives: bool,
    rows: slice = slice(None),
    look: Look = COARSE,
) -> np.ndarray:
    """Detail of the masks seen on the detector, at these `BLURS`, then -d/dy, then -d/dx of each, (F, rows, W').

    Bands are taken together in groups, with hat functions between the groups' centers. All is linear in the few images
    that the bands' masks are mixed from, so that filters are applied to those.
    """
    num_bands = len(shifts)
    whole = np.rint(np.asarray(shifts) - min(shifts)).astype(int)
    centers = np.linspace(0, num_bands - 1, min(look.groups, num_bands))
    hats = np.array([np.interp(np.arange(num_bands), centers, row) for row in np.eye(len(centers))], np.float32)
    height, width = masks.shape
    first, last, _ = rows.indices(height)
    out = np.zeros((len(blurs) * (3 if derivatives else 1), len(centers), last - first, columns), np.float32)
    mixed = np.empty((len(out), last - first, width), np.float32)
    scaled = np.empty(mixed.shape[1:], np.float32)
    known: dict[int, np.ndarray] = {}

    def images(source: int) -> np.ndarray:
        """Of one of the masks that are mixed."""
        if source not in known:
            if masks.per_band:
                known.clear()
            top, bottom = max(0, first - FILTERED), min(height, last + FILTERED)
            found = [_detail(masks.levels[source][k][top:bottom], look.smooth).astype(np.float32) for k in blurs]
            if derivatives:
                found += [ndimage.correlate1d(image, SLOPE, axis=axis) for axis in (0, 1) for image in found]
            known[source] = np.stack([image[first - top : last - top] for image in found])
        return known[source]

    before: list[tuple[int, float]] = []
    for c, d in enumerate(whole):
        parts = masks.mixture(c)
        if parts != before:
            before = parts
            np.multiply(images(parts[0][0]), np.float32(parts[0][1]), out=mixed)
            for source, weight in parts[1:]:
                for image, total in zip(images(source), mixed, strict=True):
                    total += np.multiply(image, np.float32(weight), out=scaled)
        for q in np.flatnonzero(hats[:, c]):
            for target, image in zip(out, mixed, strict=True):
                target[q, :, d : d + width] += np.multiply(image, hats[q, c], out=scaled)
    return out.reshape(len(out) * len(centers), last - first, columns)


def tiles(good: np.ndarray) -> list[tuple[int, int]]:
    """Upper left corners of the blocks with enough good pixels, of each row or of every second, third..."""
    height, columns = good.shape
    every = math.ceil((height // BLOCK) * (columns // BLOCK) / MOST_BLOCKS)
    return [
        (i, j)
        for i in range(0, height - BLOCK + 1, every * BLOCK)
        for j in range(0, columns - BLOCK + 1, BLOCK)
        if good[i : i + BLOCK, j : j + BLOCK].sum() >= FILLED * BLOCK**2
    ]


def gather(snapshots: Snapshots, masks: BlurredMasks, shifts: Shifts, *, derivatives: bool = True) -> Blocks:
    """The blocks of the snapshots, for masks nearby."""
    height, width = masks.shape
    columns = snapshots.detail.shape[-1]
    num_bands, look = len(shifts), snapshots.look
    centers = np.linspace(0, num_bands - 1, min(look.groups, num_bands))
    blurs = range(len(masks.levels[0]))
    corners = [(n, i, j) for n, good in enumerate(snapshots.good) for i, j in tiles(good)]
    num_images = len(blurs) * (3 if derivatives else 1) * len(centers)
    gram = torch.zeros(len(corners), num_images, num_images, dtype=torch.float64)
    right = torch.zeros(len(corners), num_images, dtype=torch.float64)
    energy, count = torch.zeros(2, len(corners), dtype=torch.float64)

    def summed(tops: Sequence[int]) -> None:
        """The blocks of some of the rows of blocks."""
        lit = slice(tops[0], tops[-1] + BLOCK)
        flat = features(masks, shifts, columns, blurs=blurs, derivatives=derivatives, rows=lit, look=look)
        for b, (n, i, j) in enumerate(corners):
            if i in tops:
                part = slice(i, i + BLOCK), slice(j, j + BLOCK)
                inside = snapshots.good[n][part]
                F = torch.from_numpy(flat[:, i - lit.start : i - lit.start + BLOCK, part[1]][:, inside])
                v = torch.from_numpy(snapshots.detail[n][part][inside])
                gram[b], right[b], energy[b], count[b] = F @ F.T, F @ v, v @ v, len(v)

    tops = sorted({i for _, i, _ in corners})
    beside = len(tops) > 1 and min(np.diff(tops)) == BLOCK  # else rows between are left out
    pieces = min(torch.get_num_threads(), max(1, len(tops) // FEWEST_ROWS)) if beside else len(tops)
    side_by_side(summed, [piece.tolist() for piece in np.array_split(tops, pieces) if len(piece)] if pieces else [])
    _, rows, cols = (
        (np.array(values, dtype=float) for values in zip(*corners, strict=True)) if corners else np.zeros((3, 0))
    )
    return Blocks(
        gram,
        right,
        energy,
        count,
        torch.as_tensor(2 * (cols + (BLOCK - max(shifts) + min(shifts)) / 2) / width - 1),
        torch.as_tensor(2 * (rows + BLOCK / 2) / height - 1),
        torch.as_tensor((rows // BLOCK + cols // BLOCK) % 2 == 1),
        torch.as_tensor(np.interp(centers, np.arange(num_bands), band_positions(num_bands))),
        look.spectra,
    )


# What is fitted: name of each group, and its directions, in the order in which they are tried.
Terms = Mapping[str, tuple[Direction, ...]]


def directions(mask_shape: tuple[int, int]) -> dict[str, tuple[Direction, ...]]:
    """The terms by groups, in the order in which they are tried; a rotation or a magnification moves both ways."""
    height, width = mask_shape
    radius = max(height, width)
    h, w = height / radius, width / radius
    return {
        "place": (({"1": 1}, {}, {}), ({}, {"1": 1}, {})),
        "turn and magnification": (({"x": w}, {"y": -h}, {}), ({"y": h}, {"x": w}, {})),
        "dispersion": (({}, {"t": 1}, {}),),
        "blur": (({}, {}, {"1": 1}),),
        "blur by band": (({}, {}, {"t": 1}), ({}, {}, {"tt": 1})),
        "blur over the field": tuple(({}, {}, {k: 1}) for k in ("x", "y", "xx", "yy")),
        "bend": tuple(({k: 1}, {}, {}) for k in ("xx", "xy", "yy")),
        "tilt by band": tuple(({k: 1}, {}, {}) for k in ("t", "xt", "yt")),
    }


@dataclass(frozen=True, eq=False)
class Family:
    """The cameras that directions lead to from one whose displacements are in the blocks already.

    Attributes:
        blocks: gathered at that camera.
        fields: (directions, 3, blocks, groups): by how much each moves down, right, and blurs; one group where all
            bands are alike.
        blur: (blocks, groups) of that camera, from which the directions' blurs start.
        start: the values from which `fit_pose` starts, 0 if None.
    """

    blocks: Blocks
    fields: Tensor
    blur: Tensor
    start: np.ndarray | None = None

    @classmethod
    def of(
        cls, blocks: Blocks, used: Sequence[Direction], blur: Mapping[str, float], start: np.ndarray | None = None
    ) -> Family:
        alike = not any("t" in name for terms in (blur, *(part for d in used for part in d)) for name in terms)
        x, y, t = blocks.x.numpy()[:, None], blocks.y.numpy()[:, None], blocks.t.numpy()[None, : 1 if alike else None]
        base = torch.as_tensor(polynomial(blur, x, y, t))
        fields = [[torch.as_tensor(polynomial(p, x, y, t)) for p in direction] for direction in used]
        stacked = torch.stack([f for field in fields for f in field]) if used else base.new_zeros(0)
        return cls(blocks, stacked.view(len(used), 3, *base.shape), base, start)

    def at(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Displacement down and to the right, and variance of the blur, at the values p of the directions."""
        down, right, blur = torch.einsum("k,kdbn->dbn", p, self.fields)
        return down.clamp(-1.5, 1.5), right.clamp(-1.5, 1.5), (self.blur + blur).clamp(SHARPEST, WIDEST)

    def log_residual(self, p: np.ndarray | Tensor) -> Tensor:
        """`Blocks.log_residual` at the values p of the directions."""
        return self.blocks.log_residual(*self.at(torch.as_tensor(p)))

    def fit_pose(self) -> np.ndarray:
        """The values of the least mean log residual, by pixels, by L-BFGS."""
        from scipy import optimize  # slow to import: not for those who give their camera

        if not len(self.fields):
            return np.zeros(0)
        weight = self.blocks.count / self.blocks.count.sum()

        def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
            p = torch.tensor(values, requires_grad=True)
            value = (self.log_residual(p) * weight).sum()
            (slope,) = torch.autograd.grad(value, p)
            return float(value.detach()), slope.numpy()

        start = np.zeros(len(self.fields)) if self.start is None else self.start
        options = {"maxiter": 60, "ftol": TOLERANCE}
        found: np.ndarray = optimize.minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x
        return found


def gain(blocks: Blocks, before: Tensor, after: Tensor) -> tuple[float, float]:
    """By how much the log residual fell, mean over the blocks by their pixels, and its standard error."""
    weight = blocks.count / blocks.count.sum()
    fell = before - after
    mean = float((weight * fell).sum())
    error = float((weight.square() * (fell - mean).square()).sum().sqrt())
    return mean, error


def clearly(found: tuple[float, float]) -> bool:
    mean, error = found
    return mean > GAIN and mean > SIGMAS * error


def moved(model: CameraModel, used: Sequence[Direction], values: np.ndarray) -> CameraModel:
    """The model with directions added, each times its value."""
    parts = [dict(terms) for terms in (model.down, model.right, model.blur)]
    for value, direction in zip(values, used, strict=True):
        for target, terms in zip(parts, direction, strict=True):
            for name, c in terms.items():
                target[name] = target.get(name, 0.0) + float(value) * c
    return replace(model, down=parts[0], right=parts[1], blur=parts[2])


@dataclass(frozen=True, eq=False)
class Search:
    """Snapshots of one camera with its mask.

    Attributes:
        snapshots: as closely as they are looked at.
        mask, shifts: as given.
        dispersion: whether another one is looked for too.
    """

    snapshots: Snapshots
    mask: np.ndarray
    shifts: Shifts
    dispersion: bool = False

    @property
    def terms(self) -> dict[str, tuple[Direction, ...]]:
        """`directions` of these masks."""
        groups = directions((int(self.mask.shape[-2]), int(self.mask.shape[-1])))
        return groups if self.dispersion else {name: group for name, group in groups.items() if name != "dispersion"}

    @property
    def pose(self) -> tuple[Direction, ...]:
        """Place, turn and magnification."""
        return (*self.terms["place"], *self.terms["turn and magnification"])

    def blocks(self, model: CameraModel, *, derivatives: bool = True) -> Blocks:
        """Gathered at a model."""
        images = BlurredMasks.of(model, self.mask, self.shifts)
        return gather(self.snapshots, images, self.shifts, derivatives=derivatives)


@dataclass(frozen=True, eq=False)
class Fit:
    """Directions fitted about a model, to either color of a checkerboard of blocks; the other color judges.

    Attributes:
        search: what is fitted to.
        model: at which the blocks were gathered.
        blocks: of them.
        used: the directions.
        values: (2, directions), fitted to either color.
        residual: (blocks,) log residual with the values fitted to the other color.
    """

    search: Search
    model: CameraModel
    blocks: Blocks
    used: tuple[Direction, ...] = ()
    values: np.ndarray = field(default_factory=lambda: np.zeros((2, 0)))
    residual: Tensor = field(default_factory=lambda: torch.zeros(0))

    @classmethod
    def of(cls, search: Search, model: CameraModel, used: Sequence[Direction] = (), *, more: bool = True) -> Fit:
        """Gathered at a model; `more`: terms are added to it."""
        return cls(search, model, search.blocks(model, derivatives=more or bool(used))).with_terms(used)

    def changed(self, model: CameraModel) -> Fit:
        """The same directions fitted about another model."""
        return Fit.of(self.search, model, self.used, more=False)

    @cached_property
    def fitted(self) -> CameraModel:
        """The model moved to where a fit to all blocks has it."""
        all_blocks = Family.of(self.blocks, self.used, self.model.blur, self.values.mean(0))
        return moved(self.model, self.used, all_blocks.fit_pose())

    def with_terms(self, more: Sequence[Direction]) -> Fit:
        """With more directions, started from the values of those before."""
        used = (*self.used, *more)
        colors = (~self.blocks.parity, self.blocks.parity)
        families = [
            Family.of(self.blocks.only(color), used, self.model.blur, np.append(start, np.zeros(len(more))))
            for color, start in zip(colors, self.values, strict=True)
        ]
        values = side_by_side(Family.fit_pose, families)
        residual = torch.empty_like(self.blocks.energy)
        for color, family, other in zip(colors, families, values[::-1], strict=True):
            residual[color] = family.log_residual(other)
        return replace(self, used=used, values=np.stack(values), residual=residual)

    def explains_more(self, other: Fit) -> bool:
        """Whether blocks that neither was fitted to are explained clearly better than by another fit."""
        return clearly(gain(self.blocks, other.residual, self.residual))

    def narrow(self) -> bool:
        """Whether the blur is in no band wider than any that is tried.

        One that is wider is none: smooth spectra give bands without light some of their neighbors', and the masks of
        those then seem to have no detail.
        """
        ends = np.array([-1.0, 0.0, 1.0])
        blurs = [moved(self.model, self.used, values).blur for values in self.values]
        return max(float(polynomial(blur, np.zeros(3), np.zeros(3), ends).max()) for blur in blurs) <= WIDEST


Candidate = Callable[[Fit], Fit | None]


def select_terms(fit: Fit, candidates: Sequence[Candidate]) -> Fit:
    """Forward selection: each candidate that explains clearly more than what was taken before it is taken.

    Args:
        fit: what is taken already.
        candidates: each makes of a fit a larger one, or None where there is nothing to add.
    """
    for candidate in candidates:
        trial = candidate(fit)
        if trial is not None and trial.explains_more(fit):
            fit = trial
    return fit


def adding(*group: Direction) -> Candidate:
    """These directions, unless the last of them is there."""

    def candidate(fit: Fit) -> Fit | None:
        if group[-1] in fit.used:
            return None
        trial = fit.with_terms([direction for direction in group if direction not in fit.used])
        return trial if trial.narrow() else None

    return candidate


def light_between_bands(fit: Fit) -> Fit | None:
    """Light of all wavelengths arrives, not only that of the bands."""
    gap = float(np.median(np.abs(np.diff(np.sort(fit.search.shifts))))) if len(fit.search.shifts) > 1 else 0.0
    return fit.changed(replace(fit.model, continuous=True)) if gap > 1 else None


def next_tone(step: int) -> Candidate:
    """The next exponent of the mask's values, upwards or downwards; masks of two values have none."""

    def candidate(fit: Fit) -> Fit | None:
        values, here = fit.search.mask, TONES.index(fit.model.tone) + step
        two = np.minimum(values, values.max() - values).mean() < 0.02 * values.max()
        gone_back = (fit.model.tone - 1) * step < 0
        if two or gone_back or not 0 <= here < len(TONES):
            return None
        return fit.changed(replace(fit.model, tone=TONES[here]))

    return candidate


def find_model(search: Search, told: Callable[[float], None] = lambda share: None) -> tuple[CameraModel, float, float]:
    """The simplest model that clearly explains more of the blocks than simpler ones do.

    Args:
        search: the snapshots and their mask.
        told: called with the share of the work that is done.

    Returns:
        The model, and by how much it lowers the mean log residual of the camera as given, with standard error.
    """
    exact = CameraModel()
    given = Fit.of(search, exact)
    if len(given.blocks) < FEWEST_BLOCKS:
        return exact, 0.0, 0.0
    told(0.1)
    terms = search.terms
    blur, by_band = terms["blur"], terms["blur by band"]
    start = _coarse(search, given.blocks)
    if start.exact:
        together = adding(*search.pose, *terms.get("dispersion", ()), *blur)
        near = [together, adding(*blur, *by_band), light_between_bands, next_tone(1), next_tone(-1)]
        if select_terms(given, near) is given:
            return fit_contrast(search, exact, Family.of(given.blocks, (), {}), np.zeros(0)), 0.0, 0.0
    told(0.3)
    # The blur goes along: the place is that of masks as sharp as they are.
    pose = (*search.pose, *(terms["dispersion"] if "t" in start.right else ()), *blur)
    fit = Fit.of(search, start, pose)
    if not start.exact:
        fit = Fit.of(search, replace(fit.fitted, blur={}), pose)
    fit = select_terms(fit, [light_between_bands])
    for step in (1, -1):
        while (further := select_terms(fit, [next_tone(step)])) is not fit:
            fit = further
    told(0.6)
    candidates = []
    for name, group in terms.items():
        candidates.append(adding(*group))
        if name == "dispersion":  # trades against the place: what counts is where the brightest bands lie
            candidates.append(adding(*terms["place"], *group))
        if name.startswith("blur "):  # may need a level of its own that alone helps little
            candidates.append(adding(*blur, *group))
    fit = select_terms(Fit.of(search, fit.model if start.exact else replace(fit.fitted, blur={})), candidates)
    told(0.8)
    model = fit.fitted
    if any(down or right for down, right, _ in fit.used):  # where it was moved to, the mask has other slopes
        model = Fit.of(search, model, fit.used).fitted
    blocks = search.blocks(model, derivatives=False)
    fall = gain(given.blocks, given.residual, Family.of(blocks, (), model.blur).log_residual(np.zeros(0)))
    if not clearly(fall):
        return fit_contrast(search, exact, Family.of(given.blocks, (), {}), np.zeros(0)), 0.0, 0.0
    return model, *fall


def refit_fine(search: Search, model: CameraModel, masks: np.ndarray) -> tuple[CameraModel, float]:
    """A model that was found, its place and contrast fitted once more.

    Args:
        search: one that looks closely.
        model: as found.
        masks: its masks, (C, H, W).

    Returns:
        The model, and the standard error of the mask's place, root mean square over the field [pixel]: half of how far
        the fits to either color of the checkerboard lie apart.
    """
    blocks = gather(search.snapshots, BlurredMasks.made(masks, search.shifts), search.shifts)
    used = search.pose if model.down or model.right else ()
    used = (*used, *search.terms.get("dispersion", ())) if "t" in model.right else used
    fit = Fit(search, replace(model, blur={}), blocks).with_terms(used)
    values = Family.of(blocks, used, {}, fit.values.mean(0)).fit_pose()
    down, right, _ = Family.of(blocks, used, {}).at(torch.as_tensor((fit.values[0] - fit.values[1]) / 2))
    error = float((down.square() + right.square()).mean().sqrt())
    return fit_contrast(search, moved(model, used, values), Family.of(blocks, used, {}), values), error


def fit_contrast(search: Search, model: CameraModel, family: Family, values: np.ndarray) -> CameraModel:
    """With the contrast that its masks, of which the family is, want in place of the one that they have."""
    light = float((np.maximum(search.mask, 0) ** model.tone).mean()) * len(search.shifts)
    contrast = model.contrast * family.blocks.contrast(*family.at(torch.as_tensor(values)), light)
    as_deep = -SHALLOW < contrast - 1 < DEEP or abs(contrast) < FLATTEST
    return replace(model, contrast=1.0 if as_deep else contrast)


def _coarse(search: Search, blocks: Blocks) -> CameraModel:
    """Displacement, rotation and magnification in steps of half a pixel, from the residual at whole displacements.

    Only the products with the snapshot change where it is displaced against the masks, so a whole grid of
    displacements costs little. Where the camera as given explains as much, it stays.
    """
    height, width = search.mask.shape[-2:]
    h, w = height / max(height, width), width / max(height, width)
    x, y = blocks.x.numpy() * w, blocks.y.numpy() * h
    weight = (blocks.count / blocks.count.sum()).numpy()
    steps = np.arange(-REACH, REACH + 0.25, 0.5)
    downs, rights, scales = steps[:, None, None], steps[None, abs(steps) <= 2.5, None], steps[abs(steps) <= 2]
    best, lowest = CameraModel(), math.inf
    for stretch in STRETCHES if search.dispersion else (0.0,):
        grid = _displaced_residual(search, CameraModel(right={"t": stretch} if stretch else {}))
        for turn, scale in itertools.product(steps, scales):
            down, right = downs + turn * x + scale * y, rights + scale * x - turn * y
            places = np.stack(np.broadcast_arrays(np.arange(len(x)), down + REACH, right + REACH))
            values = ndimage.map_coordinates(grid, places, order=1, mode="nearest") @ weight
            # of equals, the one that moves least
            moves = (abs(downs) + abs(rights) + abs(turn) + abs(scale))[..., 0] + abs(stretch)
            values += 1e-3 * moves + (GAIN if stretch else 0)
            i, j = np.unravel_index(values.argmin(), values.shape)
            if values[i, j] < lowest:
                lowest = values[i, j]
                down_terms = {"1": downs[i, 0, 0], "x": turn * w, "y": scale * h}
                right_terms = {"1": rights[0, j, 0], "x": scale * w, "y": -turn * h, "t": stretch}
                best = CameraModel(
                    down={name: float(c) for name, c in down_terms.items() if moves[i, j]},
                    right={name: float(c) for name, c in right_terms.items() if moves[i, j] and (c or name != "t")},
                )
    return best


def _displaced_residual(search: Search, model: CameraModel) -> np.ndarray:
    """The log residual of each block with a model's masks moved by -REACH to REACH pixels each way, (blocks, n, n)."""
    masks = BlurredMasks.of(model, search.mask, search.shifts)
    detail, good = search.snapshots.detail, search.snapshots.good
    flat = features(masks, search.shifts, detail.shape[-1], blurs=(1,), derivatives=False)
    rests = []
    for frame, inside in zip(detail, good, strict=True):
        padded = np.pad(frame, REACH)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (BLOCK, BLOCK))
        floor = 1e-4 * BLOCK**2 * float((frame[inside] ** 2).mean())
        for i, j in tiles(inside):
            F = flat[:, i : i + BLOCK, j : j + BLOCK].reshape(len(flat), -1)
            v = windows[i : i + 2 * REACH + 1, j : j + 2 * REACH + 1].reshape(-1, BLOCK**2).T
            gram = F @ F.T
            target = F @ v
            fitted = (
                target * np.linalg.solve(gram + 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram)), target)
            ).sum(0)
            energy = (v**2).sum(0)
            rests.append(np.log((np.maximum(energy - fitted, 0) + floor) / (energy + floor)))
    return np.array(rests).reshape(-1, 2 * REACH + 1, 2 * REACH + 1)
