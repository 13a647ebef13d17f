"""Where a photograph from beside the camera shows the scene: a similarity found from the snapshot's own first cube."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import least_squares
from torch import Tensor

from cassi.kernels.smoothing import gaussian_blur
from cassi.optics.protocol import Camera
from cassi.photograph.similarity import Similarity

COARSE = 64  # pixels of the longer side of the scene in the first search
ANGLES = np.arange(-12.0, 12.1, 3.0)  # tried first [degree]
SCALES = np.exp(np.arange(-5, 6) * 0.07)  # tried first, times the ratio of the sizes: 0.70 to 1.42
CANDIDATES = 3  # poses of the grid that are gone on with
FINE, WIDE = 1.0, 4.0  # standard deviations between which detail is compared [pixel of the grid]
COLOR_BLUR = 1.5  # of the first cube's colors, whose detail is uncertain [pixel]
SEEN = 0.6  # share of the scene that a picture has to show
NOT_SEEN = -1.0  # for a correlation, where too little of the scene is seen
FITS = 0.5  # correlation of the detail from which on a picture shows the scene

_soft = partial(gaussian_blur, border="constant")


class Registered(NamedTuple):
    """Where a picture shows the scene, and the correlation of its detail with that of the first cube, -1 to 1."""

    pose: Similarity
    correlation: float


def register(picture: Tensor, A: Camera, y: Tensor, cube: Tensor, R: Tensor) -> Registered:
    """Find the similarity that takes the scene of a snapshot to a photograph of it.

        max_pose  mean_k corr(detail(R_k x), detail(photograph_k sampled at the pose))

    Detail is what lies between two Gaussians, of square roots, so that neither exposure nor uneven light nor a bright
    lamp counts. First on a grid of angles and scales at some 64 pixels, the displacement by correlation in Fourier
    space; then from coarse to fine by least squares on the four numbers (Evangelidis & Psarakis, "Parametric image
    alignment using enhanced correlation coefficient maximization", IEEE TPAMI 30, 1858 (2008), maximise the same); last
    against the snapshot itself (`sharpened`), which also decides between the best few of the grid.

    Args:
        picture: (K, h, w) >= 0, linear in the light.
        A, y: camera and snapshot.
        cube: x (C, H, W), a first reconstruction; blur and some noise do no harm.
        R: (K, C), roughly how the picture's channels weigh the bands.
    """
    picture = picture.float().cpu().clamp(min=0)
    reference = torch.einsum("kc,chw->khw", R.to(cube), cube).float().cpu().clamp(min=0)
    nominal = min(picture.shape[-2] / reference.shape[-2], picture.shape[-1] / reference.shape[-1])
    found = []
    for start in _coarse(picture, reference, nominal):
        pose = start
        for step in (4.0, 2.0) if min(reference.shape[-2:]) >= 64 else (2.0,):
            pose = _refined(picture, reference, pose, step)
        found.append(sharpened(picture, pose, A, y, cube, R))
    pose, _ = min(found, key=lambda one: one[1])
    pose, _ = sharpened(picture, _refined(picture, reference, pose, 1.0), A, y, cube, R)
    return Registered(pose, _correlation(picture, reference, pose))


def _shrunk(reference: Tensor, step: float) -> Tensor:
    """The reference picture on a grid that is coarser by so much."""
    size = [max(8, round(n / step)) for n in reference.shape[-2:]]
    return F.interpolate(reference[None], size, mode="bilinear", antialias=True)[0] if step > 1 else reference


def _coarse(picture: Tensor, reference: Tensor, nominal: float) -> list[Similarity]:
    """The best few poses of the grid."""
    step = max(1.0, max(reference.shape[-2:]) / COARSE)
    target = _detail(_shrunk(reference, step), None)
    size = (int(target.shape[-2]), int(target.shape[-1]))
    padded, reach = (2 * size[0], 2 * size[1]), (size[0] // 4, size[1] // 4)
    spectrum = torch.fft.rfft2(target, s=padded).conj()
    found = []
    for scale in SCALES * nominal:
        for angle in ANGLES:
            detail = _detail(*Similarity(scale * step, float(angle)).sample(picture, size))
            maps = torch.fft.irfft2(torch.fft.rfft2(detail, s=padded) * spectrum, s=padded).mean(0)
            near = torch.roll(maps, reach, (0, 1))[: 2 * reach[0] + 1, : 2 * reach[1] + 1]
            flat = int(near.argmax())
            i, j = flat // near.shape[1] - reach[0], flat % near.shape[1] - reach[1]
            found.append((float(near.max()), Similarity(float(scale), float(angle), i * step, j * step)))
    found.sort(key=lambda one: -one[0])
    return [pose for _, pose in found[:CANDIDATES]]


def _refined(picture: Tensor, reference: Tensor, pose: Similarity, step: float) -> Similarity:
    """The pose at which the detail agrees best on a grid that is coarser by so much."""
    target = _detail(_shrunk(reference, step), None)
    size = (int(target.shape[-2]), int(target.shape[-1]))

    def misfit(at: Similarity) -> Tensor:
        shrunk = Similarity(at.scale * step, at.angle, at.rows / step, at.columns / step)
        return _detail(*shrunk.sample(picture, size)) - target

    return _fitted(pose, (int(reference.shape[-2]), int(reference.shape[-1])), misfit)


def _correlation(picture: Tensor, reference: Tensor, pose: Similarity) -> float:
    """Of the detail at a pose, mean over the channels; -1 where less than SEEN of the scene is seen."""
    warped, seen = pose.sample(picture, (int(reference.shape[-2]), int(reference.shape[-1])))
    if float(seen.double().mean()) < SEEN:
        return NOT_SEEN
    return float((_detail(warped, seen) * _detail(reference, seen)).sum() / len(reference))


def sharpened(
    picture: Tensor, pose: Similarity, A: Camera, y: Tensor, cube: Tensor, R: Tensor
) -> tuple[Similarity, float]:
    """The pose at which the photograph's brightness with the cube's colors explains the snapshot itself best.

        min_pose  sum_j (y - g Phi (c L))_j^2 / (y_j + 0.05 mean y),    c = blur(x) / blur(sum_k R_k x)

    with L the sum of the photograph's channels sampled at the pose, and g the best gain. The snapshot is sharp where
    a first cube is not, and sees a displacement of a few hundredths of a pixel.

    Returned with |misfit| / |y|, both weighted.
    """
    size = (int(cube.shape[-2]), int(cube.shape[-1]))
    picture, seen_cube = picture.to(cube), torch.einsum("kc,chw->hw", R, cube)[None]
    floor = 0.02 * seen_cube.mean()
    color = _soft(cube, COLOR_BLUR) / (_soft(seen_cube, COLOR_BLUR) + floor)
    w = 1 / torch.sqrt((y.clamp(min=0) + 0.05 * y.mean()).clamp(min=1e-30))
    if A.weights is not None:
        w = w * (A.weights > 0)

    def misfit(at: Similarity) -> Tensor:
        warped, _ = at.sample(picture, size)
        guess = A.forward((color * warped.sum(0).clamp(min=0)).to(y)) * w
        gain = (y * w * guess).sum() / guess.square().sum().clamp(min=1e-30)
        return y * w - gain * guess

    pose = _fitted(pose, size, misfit)
    return pose, float(misfit(pose).norm() / (y * w).norm().clamp(min=1e-30))


def _fitted(pose: Similarity, size: tuple[int, int], misfit: Callable[[Similarity], Tensor]) -> Similarity:
    """The pose near this one with the least |misfit|^2, by Levenberg-Marquardt with finite differences."""
    unit = np.array([1.0, math.degrees(1.0), max(size) / 2, max(size) / 2]) * 2 / max(size)  # a pixel at the border

    def at(theta: np.ndarray) -> Similarity:
        scale, angle, rows, columns = (theta - 1) * unit
        scale = min(max(scale, -3.0), 3.0)  # of a photograph of something else it may run away
        return Similarity(pose.scale * math.exp(scale), pose.angle + angle, pose.rows + rows, pose.columns + columns)

    def numbers(theta: np.ndarray) -> np.ndarray:
        values: np.ndarray = misfit(at(theta)).flatten().double().cpu().numpy()
        return values

    # from 1, as the steps of the differences are relative: 0.05 pixel
    return at(least_squares(numbers, np.ones(4), method="lm", diff_step=0.05, max_nfev=50, xtol=1e-3).x)


def _detail(image: Tensor, seen: Tensor | None) -> Tensor:
    """Square roots between two Gaussians, unit norm each channel, 0 where not seen."""
    root = image.clamp(min=0).sqrt()
    w = torch.ones_like(root[0]) if seen is None else seen.to(root)
    band: Tensor = _soft(root * w, FINE) / _soft(w[None], FINE).clamp(min=1e-3)
    band = (band - _soft(root * w, WIDE) / _soft(w[None], WIDE).clamp(min=1e-3)) * w
    band = band - (band.sum((1, 2), keepdim=True) / w.sum().clamp(min=1)) * w
    band /= band.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1)
    return band
