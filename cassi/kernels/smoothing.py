"""A Gaussian blur of images."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def gaussian_blur(images: Tensor, sigma: float, border: str = "reflect") -> Tensor:
    """Images (N, H, W) convolved with a Gaussian; mirrored at the border, or 0 beyond it ("constant")."""
    radius = min(math.ceil(3 * sigma), min(images.shape[-2:]) - 1)
    t = torch.arange(-radius, radius + 1, dtype=images.dtype, device=images.device)
    taps = torch.exp(-0.5 * (t / sigma) ** 2)
    taps = taps / taps.sum()
    padded = F.pad(images[:, None], (radius,) * 4, mode=border)
    return F.conv2d(F.conv2d(padded, taps.view(1, 1, -1, 1)), taps.view(1, 1, 1, -1))[:, 0]
