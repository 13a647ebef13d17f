"""The imprint of the mask on a cube: a measure of camera and reconstruction that needs no ground truth."""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from cassi.optics.protocol import Camera

FINE = 2.0  # Gaussian width: fine detail is what it removes [pixel]
LOCAL = 5.0  # Gaussian width over which the local brightness is averaged [pixel]
BRIGHT = 0.2  # pixels above this fraction of the largest local brightness of a band count
MOVES = -1.0, -0.5, 0.0, 0.5, 1.0  # of the mask, down and to the right [pixel]
MIN_SIDE = 32  # of a mask whose imprint can be measured [pixel]


def imprint(cube: Tensor | np.ndarray, mask: Tensor | np.ndarray, *, moves: Sequence[float] = MOVES) -> float:
    """How much of the pattern of the mask remains in a cube, 0 to 1; the scene itself is independent of the mask.

        d_c = (x_c - G_2 x_c) / G_5 x_c          fine detail of band c relative to its local brightness
        r_c = corr(d_c, m - G_2 m)               over the bright pixels of band c
        imprint = max over small moves of m of sqrt(mean_c r_c^2)

    G_s is a Gaussian of standard deviation s. A mask that is not where the camera model places it leaves its pattern in
    every band, and so does fitted noise. Held-out pixels detect neither well, as their neighbors predict them.

    Args:
        cube: (C, H, W), >= 0; computed on its device, in float32.
        mask: (H, W), or (C, H, W), of which the mean is used.
        moves: of the mask, down and to the right [pixel]; (0,) if its position is known, which takes a third of the
            time.
    """
    if cube.ndim != 3 or mask.shape[-2:] != cube.shape[-2:]:
        raise ValueError(f"cube must be (C, H, W) and the mask of its size, got {cube.shape} and {mask.shape}")
    x = torch.as_tensor(cube).detach().float()
    m = torch.as_tensor(mask).detach().to(x)
    m = m if m.ndim == 2 else m.mean(0)
    rows, columns = (_matrices(length, tuple(moves), x.device) for length in x.shape[1:])
    moved = (rows[2:] @ m).flatten(0, 1) @ columns[2:].flatten(0, 1).T
    moved = moved.view(len(moves), len(m), len(moves), -1).transpose(1, 2).reshape(-1, *m.shape)
    patterns = _fine(moved, rows[0], columns[0]).flatten(1)
    local = torch.bmm(*_along(x, rows[1], columns[1]))
    bright = local > BRIGHT * local.amax((1, 2), keepdim=True)
    counted = bright.flatten(1).float()
    count = counted.sum(1)
    d = torch.where(bright, _fine(x, rows[0], columns[0]) / local, 0).flatten(1)
    d = torch.addcmul(d, (d.sum(1) / count)[:, None], counted, value=-1)
    spread = torch.addcdiv(patterns.square() @ counted.T, (patterns @ counted.T).square(), count, value=-1)
    d = d / d.norm(dim=1, keepdim=True)
    squares = (patterns @ d.T).square() / spread  # not a number where one of them is constant
    return math.sqrt(float(squares.nan_to_num(0, 0, 0).clamp_(0, 1).sum(1).max()) / len(x))


@cache
def _matrices(length: int, moves: Sequence[float], device: torch.device) -> Tensor:
    """The operators along an axis: the Gaussians of width `FINE` and `LOCAL`, then the moves [pixel], (2 + M, n, n)."""
    one = np.eye(length)
    blurs = [ndimage.gaussian_filter1d(one, width, axis=0) for width in (FINE, LOCAL)]
    moved = [ndimage.shift(one, (move, 0), order=1, mode="nearest") for move in moves]
    return torch.as_tensor(np.stack([*blurs, *moved]), dtype=torch.float32).to(device)


def _along(images: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """R and x C' for each image x of (B, H, W), to be multiplied."""
    R, C = (part.expand(len(images), -1, -1) for part in (rows, columns))
    return R, torch.bmm(images, C.mT)


def _fine(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """x - R x C' for each image."""
    return torch.baddbmm(images, *_along(images, rows, columns), alpha=-1)


def imprint_on(cube: Tensor, A: Camera, *, moves: Sequence[float] = MOVES) -> float | None:
    """`imprint` of the mask of a camera on a cube (C, H, W); of several shots, the largest one.

    None if the camera has no mask, or a small one.
    """
    masks = [getattr(shot, "mask", None) for shot in getattr(A, "shots", (A,))]
    known = [mask for mask in masks if isinstance(mask, Tensor) and min(mask.shape[-2:]) >= MIN_SIDE]
    return max(imprint(cube, mask, moves=moves) for mask in known) if len(known) == len(masks) else None
