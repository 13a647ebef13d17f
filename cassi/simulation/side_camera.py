"""A photograph of the scene from beside the camera, by a grey or color camera of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.optics.detector import detect
from cassi.optics.similarity import Similarity


def side_photograph(
    cube: Tensor,
    response: Tensor,
    *,
    size: tuple[int, int] | None = None,
    pose: Similarity = Similarity(1.0),  # noqa: B008  frozen
    full_well: float | None = None,
    read_noise: float = 0.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Photograph a cube: s_k = sum_c R_kc x_c, on another grid, with the noise of `cassi.optics.detector.detect`.

    Beyond the border of the scene its outermost pixels go on.

    Args:
        cube: x (C, H, W), >= 0.
        response: R (K, C), >= 0.
        size: (h, w) of the picture; the scene's times the scale if not given.
        pose: where the scene lies in the picture.
        full_well, read_noise, generator: see `detect`; without them there is no noise.

    Returns:
        (h, w, K), brightest value 1.

    Example:
        >>> side_photograph(torch.ones(3, 8, 8), torch.ones(1, 3), pose=Similarity(1.5)).shape
        torch.Size([12, 12, 1])
    """
    scene = torch.einsum("kc,chw->khw", response.to(cube), cube)
    if size is None:
        size = round(cube.shape[-2] * pose.scale), round(cube.shape[-1] * pose.scale)
    picture, _ = pose.inverse.sample(scene.double(), size, spline=True)
    shot = detect(picture.clamp(min=0), full_well=full_well, read_noise=read_noise, generator=generator).y
    return (shot / shot.max()).permute(1, 2, 0).contiguous().to(cube)
