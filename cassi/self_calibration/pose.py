"""The camera found from its own snapshots, without a reconstruction: the mask's pattern is looked for in them.

What is left of a regression on the masks' detail (`cassi.self_calibration.regression`) depends on where and how sharp
the masks are: the camera leaves least. The mask is moved by what was found, and the regression repeated; the
last time with the blur as it was found, more spectra, and finer detail, which mistakes less of the scene for the mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from cassi.evidence.judge import CLEARLY_BETTER, z
from cassi.kernels.threads import side_by_side
from cassi.optics.geometry import Shifts
from cassi.self_calibration.camera_model import SHARPEST, WIDEST, CameraModel, blurred_masks, polynomial
from cassi.self_calibration.regression import FITTED_BLOCK, Blocks, Snapshots, features, gather, tiles

MIN_BLOCKS = 12  # below, nothing is looked for
REACH = 3  # displacements looked for [pixel]
SHALLOW, DEEP = 0.05, 0.2  # a contrast so far below 1, or above, is believed; edges of a scene pass for up to 0.15 more
FLATTEST = 0.3  # below, the masks do not fit at all, and nothing is known of it; an inverted mask has one of -1
TONES = (1.5, 2.0, 2.5, 3.0)  # exponents of the mask's values that are tried: pictures are often coded for a display

# What is added one after the other: name, and the terms of (down, right, blur) that it moves together.
Direction = tuple[Mapping[str, float], Mapping[str, float], Mapping[str, float]]
STEP: Direction = ({}, {"t": 1}, {})  # another dispersion: each band moves by an amount of its own, its mask with it
STEPS = 4  # of the search for a model
STRETCHES = [0.015 * k for k in range(-2, 3)]  # of the dispersion, from which its search starts
MAX_BEND = 1.5  # of a displacement, over the field and the bands [pixel]


def directions(mask_shape: tuple[int, int]) -> dict[str, tuple[Direction, ...]]:
    """The parameters by groups, in the order in which they are tried; a rotation or a magnification moves both ways."""
    height, width = mask_shape
    radius = max(height, width)
    h, w = height / radius, width / radius
    return {
        "place": (({"1": 1}, {}, {}), ({}, {"1": 1}, {})),
        "turn and magnification": (({"x": w}, {"y": -h}, {}), ({"y": h}, {"x": w}, {})),
        "blur": (({}, {}, {"1": 1}),),
        "blur by band": (({}, {}, {"t": 1}), ({}, {}, {"tt": 1})),
        "blur over the field": tuple(({}, {}, {k: 1}) for k in ("x", "y", "xx", "yy")),
        "bend": tuple(({k: 1}, {}, {}) for k in ("xx", "xy", "yy")),
        "tilt by band": tuple(({k: 1}, {}, {}) for k in ("t", "xt", "yt")),
    }


def pose_of(groups: Mapping[str, tuple[Direction, ...]]) -> list[Direction]:
    """Those of them that move the mask as a whole."""
    return [*groups["place"], *groups["turn and magnification"]]


@dataclass(frozen=True, eq=False)
class Family:
    """The cameras that directions lead to from one whose displacements are in the blocks already."""

    blocks: Blocks  # gathered at that camera
    fields: Tensor  # (directions, 3, blocks, groups): by how much each moves down, right, and blurs
    blur: Tensor  # (blocks, groups) of that camera, from which the directions' blurs start

    @classmethod
    def of(cls, blocks: Blocks, used: Sequence[Direction], blur: Mapping[str, float]) -> Family:
        x, y, t = blocks.x.numpy()[:, None], blocks.y.numpy()[:, None], blocks.t.numpy()[None]
        base = torch.as_tensor(polynomial(blur, x, y, t))
        fields = [[torch.as_tensor(polynomial(p, x, y, t)) for p in direction] for direction in used]
        stacked = torch.stack([f for field in fields for f in field]) if used else base.new_zeros(0)
        return cls(blocks, stacked.view(len(used), 3, *base.shape), base)

    def at(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Displacement down and to the right, and variance of the blur, at the values p of the directions."""
        down, right, blur = torch.einsum("k,kdbn->dbn", p, self.fields)
        return (
            down.clamp(-MAX_BEND, MAX_BEND),
            right.clamp(-MAX_BEND, MAX_BEND),
            (self.blur + blur).clamp(SHARPEST, WIDEST),
        )

    def rest(self, p: Tensor) -> Tensor:
        """The rest of each block at the values p of the directions."""
        return self.blocks.regressed(*self.at(p))[0]

    def least(self) -> np.ndarray:
        """The values of the least mean of the rest, by pixels, by L-BFGS."""
        from scipy import optimize  # slow to import: not for those who give their camera

        weight = self.blocks.count / self.blocks.count.sum()

        def objective(values: np.ndarray) -> tuple[float, np.ndarray]:
            p = torch.tensor(values, requires_grad=True)
            value = (self.rest(p) * weight).sum()
            (slope,) = torch.autograd.grad(value, p)
            return float(value.detach()), slope.numpy()

        start = np.zeros(len(self.fields))
        found: np.ndarray = optimize.minimize(
            objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 60, "ftol": 1e-6}
        ).x
        return found


def fit_directions(blocks: Blocks, used: Sequence[Direction], blur: Mapping[str, float]) -> np.ndarray:
    """The directions' values of the least rest; see `Family`."""
    return side_by_side(Family.least, [Family.of(blocks, used, blur)])[0] if used else np.zeros(0)


def rest_of(blocks: Blocks, model: CameraModel) -> Tensor:
    """The rest of each block, gathered at this model."""
    return Family.of(blocks, (), model.blur).rest(torch.zeros(0, dtype=torch.float64))


def explains_more(blocks: Blocks, before: Tensor, after: Tensor) -> bool:
    """Whether the log of the rest fell clearly, mean over the blocks by their pixels."""
    return z(after, before, weight=blocks.count) > CLEARLY_BETTER


def cross_validated_rest(blocks: Blocks, used: Sequence[Direction], blur: Mapping[str, float]) -> Tensor:
    """The rest of each block with parameters fitted to the blocks of the other color of the checkerboard."""
    colors = (~blocks.parity, blocks.parity)
    parts = ("gram", "right", "energy", "count", "x", "y", "parity")
    some = [replace(blocks, **{name: getattr(blocks, name)[color] for name in parts}) for color in colors]
    families = [Family.of(one, used, blur) for one in some]
    values = side_by_side(Family.least, families)
    rest = torch.empty_like(blocks.energy)
    for color, family, other in zip(colors, families, values[::-1], strict=True):
        rest[color] = family.rest(torch.as_tensor(other))
    return rest


def move_mask(model: CameraModel, used: Sequence[Direction], values: np.ndarray) -> CameraModel:
    """The model with directions added, each times its value."""
    parts = [dict(terms) for terms in (model.down, model.right, model.blur)]
    for value, direction in zip(values, used, strict=True):
        for target, terms in zip(parts, direction, strict=True):
            for name, c in terms.items():
                target[name] = target.get(name, 0.0) + float(value) * c
    return replace(model, down=parts[0], right=parts[1], blur=parts[2])


@dataclass(frozen=True, eq=False)
class Search:
    """Snapshots of one camera with its mask, and what a model of it leaves unexplained."""

    snapshots: Snapshots
    mask: np.ndarray
    shifts: Shifts

    def blocks(self, model: CameraModel, *, derivatives: bool = True) -> Blocks:
        images = blurred_masks(model, self.mask, self.shifts)
        return gather(self.snapshots, images, self.shifts, derivatives=derivatives)

    def rest(self, model: CameraModel) -> Tensor:
        """The rest of each block with the model as it is."""
        return rest_of(self.blocks(model, derivatives=False), model)


def find_model(
    search: Search, report: Callable[[float], None] = lambda share: None, start: CameraModel | None = None
) -> CameraModel:
    """The simplest model that clearly explains more of the blocks than simpler ones do, looked for around `start`."""
    given = CameraModel()
    blocks = search.blocks(given)
    before = rest_of(blocks, given)
    report(1 / STEPS)
    model, _ = _search_grid(search, blocks, start or given)
    if not model.exact or _any_change_helps(search, blocks, before):
        report(2 / STEPS)
        groups = directions(search.mask.shape[-2:])
        pose = pose_of(groups)
        for _ in range(2):
            near = blocks if model.exact else search.blocks(model)
            model = move_mask(model, pose, fit_directions(near, [*pose, *groups["blur"]], model.blur)[: len(pose)])
        report(3 / STEPS)
        model = _fit_light_and_tone(search, model, groups)
        report(1.0)
        model = _add_groups(search, model, groups)
        if explains_more(blocks, before, search.rest(model)):
            return model
    return _fit_contrast(search, given, Family.of(blocks, (), {}), np.zeros(0))


def find_dispersion(
    search: Search, report: Callable[[float], None] = lambda share: None, start: CameraModel | None = None
) -> CameraModel:
    """The mask's place, looked for around `start`, and another dispersion where that clearly explains more.

    Place and dispersion are searched from several dispersions: what counts most is where the brightest bands lie, and
    there is a place for each dispersion that puts them right.
    """
    blocks = search.blocks(CameraModel())
    before, groups = rest_of(blocks, CameraModel()), directions(search.mask.shape[-2:])
    pose, reach = pose_of(groups), float(np.ptp(search.shifts)) / 2
    starts, start = [], start or CameraModel()
    for k, stretch in enumerate(STRETCHES):
        stretched = replace(start, right={**start.right, "t": stretch * reach}) if stretch else start
        starts.append(_search_grid(search, blocks, stretched))
        report((k + 1) / (len(STRETCHES) + 1))

    def fitted(model: CameraModel, used: Sequence[Direction]) -> tuple[CameraModel, Tensor]:
        for _ in range(2):
            values = fit_directions(search.blocks(model), [*used, *groups["blur"]], {})
            model = move_mask(model, used, values[: len(used)])
        return model, search.rest(model)

    model, after = fitted(starts[len(STRETCHES) // 2][0], pose)
    report(1.0)
    nearest = min(starts, key=lambda start: start[1])[0]
    trials = [fitted(start, [*pose, STEP]) for start in (model, nearest)]
    dispersed, less = min(trials, key=lambda trial: float((blocks.count * trial[1]).sum()))
    if explains_more(blocks, after, less):
        model, after = dispersed, less
    return model if explains_more(blocks, before, after) else CameraModel()


def refine_pose(search: Search, model: CameraModel, masks: np.ndarray) -> CameraModel:
    """A model that was found, with its masks, its pose and contrast fitted once more by a search that looks closely."""
    sharp = [[one.astype(np.float64)] for one in (masks[None] if masks.ndim == 2 else masks)]
    blocks = gather(search.snapshots, sharp, search.shifts)
    used = pose_of(directions(search.mask.shape[-2:])) if model.down or model.right else []
    used += [STEP] * bool(model.right.get("t"))
    values = fit_directions(blocks, used, {})
    return _fit_contrast(search, move_mask(model, used, values), Family.of(blocks, used, {}), values)


def _fit_contrast(search: Search, model: CameraModel, family: Family, values: np.ndarray) -> CameraModel:
    """With the contrast that its masks, of which the family is, want in place of the one that they have.

    sum_c a_c times the mask's mean is 1 where the pattern is as deep as the light is bright: the median over the half
    of the blocks that are explained best, as edges of the scene make patterns, too.
    """
    light = float((np.maximum(search.mask, 0) ** model.tone).mean()) * len(search.shifts)
    rest, spectra = family.blocks.regressed(*family.at(torch.as_tensor(values)))
    contrast = model.contrast * float((spectra.mean(1) * light)[rest <= rest.median()].median())
    as_deep = -SHALLOW < contrast - 1 < DEEP or abs(contrast) < FLATTEST
    return replace(model, contrast=1.0 if as_deep else contrast)


def _any_change_helps(search: Search, near: Blocks, before: Tensor) -> bool:
    """Whether a small change of the camera as given, light between the bands, or another tone helps."""
    groups = directions(search.mask.shape[-2:])
    if explains_more(near, before, cross_validated_rest(near, [*pose_of(groups), *groups["blur"]], {})):
        return True
    return any(explains_more(near, before, search.rest(ladder[0])) for ladder in _ladders(search, CameraModel()))


def _add_groups(search: Search, model: CameraModel, groups: Mapping[str, tuple[Direction, ...]]) -> CameraModel:
    """Groups of parameters added one after the other, those of the pose refined where they were moved."""
    near = search.blocks(model)
    used: list[Direction] = []
    rest = rest_of(near, model)
    for name, group in groups.items():
        # a blur that differs from band to band, or over the field, may need a level of its own that alone helps little
        level = [d for d in groups["blur"] if name.startswith("blur ") and d not in used]
        trial = cross_validated_rest(near, [*used, *level, *group], model.blur)
        if explains_more(near, rest, trial):
            used, rest = [*used, *level, *group], trial
    model = move_mask(model, used, fit_directions(near, used, model.blur))
    return move_mask(model, used, fit_directions(search.blocks(model), used, model.blur)) if used else model


def _fit_light_and_tone(search: Search, model: CameraModel, groups: Mapping[str, tuple[Direction, ...]]) -> CameraModel:
    """With light between the bands, and the exponent of the mask's values, where they explain more."""
    used = [*groups["blur"], *groups["blur by band"], *groups["blur over the field"]]

    def rest(model: CameraModel) -> Tensor:
        return cross_validated_rest(search.blocks(model, derivatives=False), used, {})

    blocks = search.blocks(model, derivatives=False)
    lowest = cross_validated_rest(blocks, used, {})
    for ladder in _ladders(search, model):
        for step in ladder:
            other = replace(step, continuous=model.continuous or step.continuous)
            found = rest(other)
            if not explains_more(blocks, lowest, found):
                break
            model, lowest = other, found
    return model


def _ladders(search: Search, model: CameraModel) -> list[list[CameraModel]]:
    """Steps away from a model: light between the bands; ever higher powers of the mask's values."""
    values, ladders = search.mask, []
    if len(search.shifts) > 1 and np.median(np.diff(np.sort(search.shifts))) > 1:
        ladders.append([replace(model, continuous=True)])
    if np.minimum(values, values.max() - values).mean() > 0.02 * values.max():  # of two values, all powers are alike
        ladders.append([replace(model, tone=tone) for tone in TONES])
    return ladders


def _search_grid(search: Search, blocks: Blocks, start: CameraModel) -> tuple[CameraModel, float]:
    """Displacement, rotation and magnification in steps of half a pixel, from the rest at whole ones; and the rest."""
    grid = _rest_on_grid(search, start)
    height, width = search.mask.shape[-2:]
    h, w = height / max(height, width), width / max(height, width)
    x, y = blocks.x.numpy() * w, blocks.y.numpy() * h
    weight = (blocks.count / blocks.count.sum()).numpy()
    steps = np.arange(-REACH, REACH + 0.25, 0.5)
    downs, rights, scales = steps[:, None, None], steps[None, abs(steps) <= 2.5, None], steps[abs(steps) <= 2]
    best, lowest = (0.0, 0.0, 0.0, 0.0), math.inf
    for turn in steps:
        for scale in scales:
            down, right = downs + turn * x + scale * y, rights + scale * x - turn * y
            places = np.stack(np.broadcast_arrays(np.arange(len(x)), down + REACH, right + REACH))
            values = ndimage.map_coordinates(grid, places, order=1, mode="nearest") @ weight
            # of equals, the one that moves least
            values += 1e-3 * (abs(downs) + abs(rights) + abs(turn) + abs(scale))[..., 0]
            i, j = np.unravel_index(values.argmin(), values.shape)
            if values[i, j] < lowest:
                best, lowest = (downs[i, 0, 0], rights[0, j, 0], turn, scale), values[i, j]
    a, b, turn, scale = best
    if not any(best):
        return start, lowest
    down = {"1": a + start.down.get("1", 0.0), "x": turn * w, "y": scale * h}
    right = {**start.right, "1": b + start.right.get("1", 0.0), "x": scale * w, "y": -turn * h}
    return CameraModel(down=down, right=right), lowest


def _rest_on_grid(search: Search, start: CameraModel) -> np.ndarray:
    """The rest of each block with the masks displaced by -REACH to REACH pixels down and right, (blocks, n, n)."""
    masks = blurred_masks(start, search.mask, search.shifts)
    detail, good = search.snapshots.detail, search.snapshots.good
    flat = features(masks, search.shifts, detail.shape[-1], blurs=(1,), derivatives=False)
    rests = []
    for frame, inside in zip(detail, good, strict=True):
        padded = np.pad(frame, REACH)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (FITTED_BLOCK, FITTED_BLOCK))
        floor = 1e-4 * FITTED_BLOCK**2 * float((frame[inside] ** 2).mean())
        for i, j in tiles(inside):
            F = flat[:, i : i + FITTED_BLOCK, j : j + FITTED_BLOCK].reshape(len(flat), -1)
            v = windows[i : i + 2 * REACH + 1, j : j + 2 * REACH + 1].reshape(-1, FITTED_BLOCK**2)
            gram, target = F @ F.T, v @ F.T
            ridged = gram + 1e-3 * gram.diagonal().mean() * np.eye(len(gram), dtype=gram.dtype)
            energy = (v**2).sum(1)
            left = energy - (target * np.linalg.solve(ridged, target.T).T).sum(1)
            rests.append(np.log((left.clip(0) + floor) / (energy + floor)))
    return np.array(rests).reshape(-1, 2 * REACH + 1, 2 * REACH + 1)
