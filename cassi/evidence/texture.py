"""Fine texture of a cube, band by band: what is invented is large where light is weak, and no other band shows it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.images import gaussian_blur

FINE, BRIGHT = 4.0, 8.0  # standard deviations of Gaussians: texture is finer than the first [pixel]
LIT = 0.5  # of the 90 % quantile of the light
MAX_EXCESS, MIN_OWN = 2.0, 0.03  # of the texture of a band alone: times that of bright bands, and of the light


def texture(x: Tensor) -> tuple[Tensor, Tensor]:
    """Texture of each band of a cube (C, H, W), where the scene is lit, and how much of it the other bands share, (C,).

    h_c = x_c - G_4 x_c,    rms(h_c) / mean(G_4 x_c),    corr(h_c, sum_b h_b - h_c)
    """
    light = gaussian_blur(x.mean(0, keepdim=True), BRIGHT)[0]
    lit = light > LIT * light.flatten().kthvalue(max(1, round(0.9 * light.numel()))).values
    level = gaussian_blur(x, FINE)
    h, level = (x - level)[:, lit], level[:, lit]
    rms = h.square().mean(1).sqrt() / level.mean(1).clamp(min=torch.finfo(x.dtype).tiny)
    others = h.sum(0) - h
    h, others = (v - v.mean(1, keepdim=True) for v in (h, others))
    return rms, F.cosine_similarity(h, others, dim=1, eps=torch.finfo(x.dtype).tiny)


def unresolved_bands(x: Tensor) -> tuple[int, ...]:
    """Numbers of the bands of a cube (C, H, W) whose texture is likely that of noise or of a wrong mask.

    The part of a band's texture that other bands do not share, rms (1 - corr^2)^1/2, is larger there than in bright
    bands by more than a factor of two, and than 3 % of the light, which is weaker than half of the brightest band's.
    """
    rms, shared = texture(x)
    own, light = rms * (1 - shared.square()).clamp(min=0).sqrt(), x.mean((1, 2))
    bright = own[light >= light.median()].median()
    weak = (own > MAX_EXCESS * bright) & (own > MIN_OWN) & (light < light.max() / 2)
    return tuple(weak.nonzero()[:, 0].tolist())
