"""Optical flow between coefficient images, and images warped along it."""

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.smoothing import gaussian_blur

WINDOW = 8.0  # standard deviation of the window within which the motion is assumed constant [pixel]
STEPS = 6  # of Gauss and Newton on each scale
MIN_SIDE = 16  # of the coarsest image [pixel]


def optical_flow(reference: Tensor, moved: Tensor, *, window: float = WINDOW) -> Tensor:
    """The motion v with moved(p + v(p)) = reference(p), by the Lucas-Kanade iteration from coarse to fine.

        v <- v + (G * sum_k g_k g_k^T + eps)^-1 (G * sum_k g_k (reference_k - moved_k(p + v)))

    with g_k = grad moved_k(p + v), G a Gaussian window of standard deviation `window` [pixel] and k over the images
    (K, H, W). v (2, H, W) points down and to the right; it is 0 where they are flat. (Lucas & Kanade, IJCAI 1981.)
    """
    if reference.ndim != 3 or reference.shape != moved.shape:
        raise ValueError(f"both images must be (K, H, W), got {tuple(reference.shape)} and {tuple(moved.shape)}")
    scales = [(reference, moved)]
    while min(scales[-1][0].shape[-2:]) >= 2 * MIN_SIDE:
        scales.append((_halve(scales[-1][0]), _halve(scales[-1][1])))
    v = reference.new_zeros(2, *scales[-1][0].shape[-2:])
    for image, target in reversed(scales):
        if v.shape[-2:] != image.shape[-2:]:
            growth = [n / m for n, m in zip(image.shape[-2:], v.shape[-2:], strict=True)]
            v = F.interpolate(v[None], image.shape[-2:], mode="bilinear", align_corners=False)[0]
            v = v * v.new_tensor(growth).view(2, 1, 1)
        eps = 1e-3 * float(image.square().mean()) + torch.finfo(image.dtype).tiny
        for _ in range(STEPS):
            v = v + _update(image, warp(target, v), window, eps)
    return v


def _update(reference: Tensor, moved: Tensor, window: float, eps: float) -> Tensor:
    """One step, at most one pixel long."""
    gi, gj = torch.gradient(moved, dim=(-2, -1))
    misfit = reference - moved
    sums = [(gi * gi), (gi * gj), (gj * gj), (gi * misfit), (gj * misfit)]
    a, b, c, p, q = gaussian_blur(torch.stack([terms.sum(0) for terms in sums]), window)
    a, c = a + eps, c + eps
    det = a * c - b * b
    step = torch.stack([(c * p - b * q) / det, (a * q - b * p) / det])
    limited: Tensor = step / step.norm(dim=0).clamp(min=1)
    return limited


def warp(images: Tensor, v: Tensor) -> Tensor:
    """images(p + v(p)), (K, H, W), by bicubic interpolation; edge pixels are replicated."""
    height, width = v.shape[-2:]
    i = torch.arange(height, dtype=v.dtype, device=v.device)[:, None] + v[0]
    j = torch.arange(width, dtype=v.dtype, device=v.device) + v[1]
    grid = torch.stack([2 * j / max(1, width - 1) - 1, 2 * i / max(1, height - 1) - 1], dim=-1)
    return F.grid_sample(images[None], grid[None], mode="bicubic", padding_mode="border", align_corners=True)[0]


def _halve(images: Tensor) -> Tensor:
    return F.interpolate(gaussian_blur(images, 1.0)[None], scale_factor=0.5, mode="area")[0]
