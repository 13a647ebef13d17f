"""Registration of a photograph to a snapshot: the similarity transform that fits a first cube."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import least_squares
from torch import Tensor

from cassi.kernels.images import gaussian_blur
from cassi.optics.protocol import Camera
from cassi.photograph.similarity import Similarity

COARSE_SIDE = 64  # longer side of the scene in the first search [pixel]
ANGLES = np.arange(-12.0, 12.1, 3.0)  # of the first search [degree]
SCALES = np.exp(np.arange(-5, 6) * 0.07)  # of the first search, relative to the ratio of the sizes: 0.70 to 1.42
NUM_CANDIDATES = 3  # poses of the grid that are refined
FINE_SIGMA, WIDE_SIGMA = 1.0, 4.0  # Gaussian widths between which detail is compared [pixel of the grid]
COLOR_SIGMA = 1.5  # of the colors of the first cube, whose detail is uncertain [pixel]
MIN_OVERLAP = 0.6  # share of the scene that a picture must show
NO_OVERLAP = -1.0  # correlation if too little of the scene is seen
MIN_CORRELATION = 0.5  # correlation of detail from which a picture is considered to show the scene

_soft = partial(gaussian_blur, border="constant")


class Registration(NamedTuple):
    """The pose of the scene in a picture, and the correlation of its detail with the first cube's, -1 to 1."""

    pose: Similarity
    correlation: float


def register(picture: Tensor, A: Camera, y: Tensor, cube: Tensor, R: Tensor) -> Registration:
    """Find the similarity that takes the scene of a snapshot to a photograph of it.

        max_pose  mean_k corr(detail(R_k x), detail(photograph_k sampled at the pose))

    Detail is the difference of two Gaussians of square roots, so that exposure, uneven light and bright lamps do not
    matter. The search uses a grid of angles and scales at 64 pixels, with the displacement by Fourier correlation; then
    least squares for the four parameters, from coarse to fine (Evangelidis & Psarakis, "Parametric image alignment
    using enhanced correlation coefficient maximization", IEEE TPAMI 30, 1858 (2008), maximize the same); finally the
    snapshot itself (`fit_to_snapshot`), which also decides between the candidates of the grid.

    Args:
        picture: (K, h, w) >= 0, linear in the light.
        A, y: camera and snapshot.
        cube: x (C, H, W), a first reconstruction, which may be blurred and noisy.
        R: (K, C), the approximate response of the channels of the picture.
    """
    picture = picture.float().cpu().clamp(min=0)
    reference = torch.einsum("kc,chw->khw", R.to(cube), cube).float().cpu().clamp(min=0)
    nominal = min(picture.shape[-2] / reference.shape[-2], picture.shape[-1] / reference.shape[-1])
    candidates = []
    for start in _search_grid(picture, reference, nominal):
        pose = start
        for step in (4.0, 2.0) if min(reference.shape[-2:]) >= 64 else (2.0,):
            pose = _refine(picture, reference, pose, step)
        candidates.append(fit_to_snapshot(picture, pose, A, y, cube, R))
    pose, _ = min(candidates, key=lambda candidate: candidate[1])
    pose, _ = fit_to_snapshot(picture, _refine(picture, reference, pose, 1.0), A, y, cube, R)
    return Registration(pose, _correlation(picture, reference, pose))


def _shrink(reference: Tensor, step: float) -> Tensor:
    """The reference picture on a grid that is coarser by the factor `step`."""
    size = [max(8, round(n / step)) for n in reference.shape[-2:]]
    return F.interpolate(reference[None], size, mode="bilinear", antialias=True)[0] if step > 1 else reference


def _search_grid(picture: Tensor, reference: Tensor, nominal: float) -> list[Similarity]:
    """The best candidates of the grid of poses."""
    step = max(1.0, max(reference.shape[-2:]) / COARSE_SIDE)
    target = _detail(_shrink(reference, step), None)
    size = target.shape[-2:]
    padded, reach = (2 * size[0], 2 * size[1]), (size[0] // 4, size[1] // 4)
    spectrum = torch.fft.rfft2(target, s=padded).conj()
    poses = []
    for scale in SCALES * nominal:
        for angle in ANGLES:
            detail = _detail(*Similarity(scale * step, float(angle)).sample(picture, size))
            maps = torch.fft.irfft2(torch.fft.rfft2(detail, s=padded) * spectrum, s=padded).mean(0)
            near = torch.roll(maps, reach, (0, 1))[: 2 * reach[0] + 1, : 2 * reach[1] + 1]
            flat = int(near.argmax())
            i, j = flat // near.shape[1] - reach[0], flat % near.shape[1] - reach[1]
            poses.append((float(near.max()), Similarity(float(scale), float(angle), i * step, j * step)))
    poses.sort(key=lambda candidate: -candidate[0])
    return [pose for _, pose in poses[:NUM_CANDIDATES]]


def _refine(picture: Tensor, reference: Tensor, pose: Similarity, step: float) -> Similarity:
    """The pose with the best agreement of detail on a grid that is coarser by the factor `step`."""
    target = _detail(_shrink(reference, step), None)
    size = target.shape[-2:]

    def misfit(at: Similarity) -> Tensor:
        shrunk = Similarity(at.scale * step, at.angle, at.rows / step, at.columns / step)
        return _detail(*shrunk.sample(picture, size)) - target

    return _fit(pose, reference.shape[-2:], misfit)


def _correlation(picture: Tensor, reference: Tensor, pose: Similarity) -> float:
    """Correlation of detail at a pose, mean over the channels; -1 if too little of the scene is seen."""
    warped, overlap = pose.sample(picture, reference.shape[-2:])
    if float(overlap.double().mean()) < MIN_OVERLAP:
        return NO_OVERLAP
    return float((_detail(warped, overlap) * _detail(reference, overlap)).sum() / len(reference))


def fit_to_snapshot(
    picture: Tensor, pose: Similarity, A: Camera, y: Tensor, cube: Tensor, R: Tensor
) -> tuple[Similarity, float]:
    """The pose at which the brightness of the photograph with the colors of the cube best explains the snapshot.

        min_pose  sum_j (y - g Phi (c L))_j^2 / (y_j + 0.05 mean y),    c = blur(x) / blur(sum_k R_k x)

    with L the sum of the channels of the photograph sampled at the pose, and g the best gain. The snapshot is sharper
    than a first cube and resolves displacements of a few hundredths of a pixel.

    Returns:
        The pose, and |misfit| / |y|, both weighted.
    """
    size = cube.shape[-2:]
    picture, predicted = picture.to(cube), torch.einsum("kc,chw->hw", R, cube)[None]
    floor = 0.02 * predicted.mean()
    color = _soft(cube, COLOR_SIGMA) / (_soft(predicted, COLOR_SIGMA) + floor)
    w = 1 / torch.sqrt((y.clamp(min=0) + 0.05 * y.mean()).clamp(min=1e-30))
    if A.weights is not None:
        w = w * (A.weights > 0)

    def misfit(at: Similarity) -> Tensor:
        warped, _ = at.sample(picture, size)
        guess = A.forward((color * warped.sum(0).clamp(min=0)).to(y)) * w
        gain = (y * w * guess).sum() / guess.square().sum().clamp(min=1e-30)
        return y * w - gain * guess

    pose = _fit(pose, size, misfit)
    return pose, float(misfit(pose).norm() / (y * w).norm().clamp(min=1e-30))


def _fit(pose: Similarity, size: Sequence[int], misfit: Callable[[Similarity], Tensor]) -> Similarity:
    """The pose near this one that minimizes |misfit|^2, by Levenberg-Marquardt with finite differences."""
    unit = np.array([1.0, math.degrees(1.0), max(size) / 2, max(size) / 2]) * 2 / max(size)  # one pixel at the border

    def at(theta: np.ndarray) -> Similarity:
        scale, angle, rows, columns = (theta - 1) * unit
        scale = min(max(scale, -3.0), 3.0)  # it may diverge for a photograph of something else
        return Similarity(pose.scale * math.exp(scale), pose.angle + angle, pose.rows + rows, pose.columns + columns)

    def numbers(theta: np.ndarray) -> np.ndarray:
        values: np.ndarray = misfit(at(theta)).flatten().double().cpu().numpy()
        return values

    # starts at 1, because difference steps are relative: 0.05 pixel
    return at(least_squares(numbers, np.ones(4), method="lm", diff_step=0.05, max_nfev=50, xtol=1e-3).x)


def _detail(image: Tensor, inside: Tensor | None) -> Tensor:
    """Difference of two Gaussians of the square root, unit norm per channel, 0 outside."""
    root = image.clamp(min=0).sqrt()
    w = torch.ones_like(root[0]) if inside is None else inside.to(root)
    band: Tensor = _soft(root * w, FINE_SIGMA) / _soft(w[None], FINE_SIGMA).clamp(min=1e-3)
    band = (band - _soft(root * w, WIDE_SIGMA) / _soft(w[None], WIDE_SIGMA).clamp(min=1e-3)) * w
    band = band - (band.sum((1, 2), keepdim=True) / w.sum().clamp(min=1)) * w
    band /= band.flatten(1).norm(dim=1).clamp(min=1e-12).view(-1, 1, 1)
    return band
