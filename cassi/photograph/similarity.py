"""The position of one picture of a scene in another: displaced, rotated, scaled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from scipy.ndimage import map_coordinates
from torch import Tensor


@dataclass(frozen=True)
class Similarity:
    """A similarity transform from scene to picture, both with their origin at the center and rows downward.

        position in the picture = scale R(angle) (position in the scene + (rows, columns))

    Attributes:
        scale: picture pixels per scene pixel.
        angle: rotation of the content of the scene in the picture, clockwise as displayed [degree].
        rows, columns: displacement down and to the right [scene pixel].
    """

    scale: float
    angle: float = 0.0
    rows: float = 0.0
    columns: float = 0.0

    def sample(self, picture: Tensor, size: Sequence[int], *, spline: bool = False) -> tuple[Tensor, Tensor]:
        """The picture (K, h, w) on the grid of the scene (K, H, W), and where it covers the scene: bool (H, W).

        Sampled at the centers of pixels, bicubic or by a cubic spline, which is slower and keeps fine detail. A picture
        with at least twice the resolution is averaged over blocks first.
        """
        block = min(max(1, int(self.scale + 1e-6)), *picture.shape[-2:])
        if block > 1:
            picture = F.avg_pool2d(picture, block, ceil_mode=False)
        scale = self.scale / block
        (height, width), (h, w) = size, picture.shape[-2:]
        i = torch.arange(height, dtype=picture.dtype, device=picture.device)[:, None] - (height - 1) / 2 + self.rows
        j = torch.arange(width, dtype=picture.dtype, device=picture.device) - (width - 1) / 2 + self.columns
        c, s = math.cos(math.radians(self.angle)), math.sin(math.radians(self.angle))
        down, right = scale * (c * i + s * j), scale * (c * j - s * i)
        u, v = 2 * right / max(w - 1, 1), 2 * down / max(h - 1, 1)
        inside = (u.abs() <= 1) & (v.abs() <= 1)
        if spline:
            at = torch.stack([down + (h - 1) / 2, right + (w - 1) / 2]).double().cpu().numpy()
            channels = [map_coordinates(p.double().cpu().numpy(), at, order=3, mode="nearest") for p in picture]
            return torch.from_numpy(np.stack(channels)).to(picture), inside
        grid = torch.stack([u, v], -1)[None]
        sampled = F.grid_sample(picture[None], grid, mode="bicubic", padding_mode="border", align_corners=True)
        return sampled[0], inside

    @property
    def inverse(self) -> Self:
        """The transform from picture to scene."""
        c, s = math.cos(math.radians(self.angle)), math.sin(math.radians(self.angle))
        rows, columns = c * self.rows + s * self.columns, c * self.columns - s * self.rows
        return type(self)(1 / self.scale, -self.angle, -self.scale * rows, -self.scale * columns)
