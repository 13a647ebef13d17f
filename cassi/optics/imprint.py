"""The imprint of the mask on a cube: a measure of camera and reconstruction that needs no ground truth."""

from collections.abc import Sequence

import numpy as np
import torch
from scipy import fft, ndimage
from torch import Tensor

from cassi.optics.protocol import Camera

FINE = 2.0  # Gaussian width: fine detail is what it removes [pixel]
LOCAL = 5.0  # Gaussian width over which the local brightness is averaged [pixel]
BRIGHT = 0.2  # pixels above this fraction of the largest local brightness of a band count
MOVES = -1.0, -0.5, 0.0, 0.5, 1.0  # of the mask, down and to the right [pixel]
MIN_SIDE = 32  # of a mask whose imprint can be measured [pixel]


def imprint(cube: np.ndarray, mask: np.ndarray, *, moves: Sequence[float] = MOVES) -> float:
    """How much of the pattern of the mask remains in a cube, 0 to 1; the scene itself is independent of the mask.

        d_c = (x_c - G_2 x_c) / G_5 x_c          fine detail of band c relative to its local brightness
        r_c = corr(d_c, m - G_2 m)               over the bright pixels of band c
        imprint = max over small moves of m of sqrt(mean_c r_c^2)

    G_s is a Gaussian of standard deviation s. A mask that is not where the camera model places it leaves its pattern in
    every band, and so does fitted noise. Held-out pixels detect neither well, as their neighbors predict them.

    Args:
        cube: (C, H, W), >= 0.
        mask: (H, W), or (C, H, W), of which the mean is used.
        moves: of the mask, down and to the right [pixel]; (0,) if its position is known, which takes a third of the
            time.
    """
    if cube.ndim != 3 or mask.shape[-2:] != cube.shape[-2:]:
        raise ValueError(f"cube must be (C, H, W) and the mask of its size, got {cube.shape} and {mask.shape}")
    pattern = (mask if mask.ndim == 2 else mask.mean(0)).astype(np.float32)
    moved = [ndimage.shift(pattern, (down, right), order=1, mode="nearest") for down in moves for right in moves]
    fine, wide = _blur(pattern.shape, FINE), _blur(pattern.shape, LOCAL)
    patterns = np.stack([pattern - fft.idctn(fft.dctn(pattern) * fine) for pattern in moved]).reshape(len(moved), -1)
    powers, squares = patterns**2, np.zeros(len(patterns))
    for band in cube.astype(np.float32):
        spectrum = fft.dctn(band)
        local = fft.idctn(spectrum * wide)
        bright = local > BRIGHT * local.max()
        if (count := np.count_nonzero(bright)) < 2:
            continue
        detail = np.where(bright, (band - fft.idctn(spectrum * fine)) / np.maximum(local, 1e-9), 0)
        detail = np.where(bright, detail - detail.sum() / count, 0).ravel()
        counted = bright.ravel().astype(np.float32)
        norm = (powers @ counted - (patterns @ counted) ** 2 / count) * (detail @ detail)
        squares += np.where(
            norm > 0, (patterns @ detail) ** 2 / np.where(norm > 0, norm, 1), 0
        )  # norm 0: one of them is constant
    return float(np.sqrt(squares.max() / len(cube)))


def _blur(shape: tuple[int, ...], width: float) -> np.ndarray:
    """The transfer function of `ndimage.gaussian_filter` in the cosine transform of an image, (H, W)."""
    rows, columns = (
        fft.dct(ndimage.gaussian_filter1d(point, width)) / fft.dct(point)
        for point in (np.eye(1, length)[0] for length in shape)
    )
    return np.outer(rows, columns).astype(np.float32)


def imprint_on(cube: Tensor, A: Camera, *, moves: Sequence[float] = MOVES) -> float | None:
    """`imprint` of the mask of a camera on a cube (C, H, W); of several shots, the largest one.

    None if the camera has no mask, or a small one.
    """
    masks = [getattr(shot, "mask", None) for shot in getattr(A, "shots", (A,))]
    if not all(isinstance(mask, Tensor) and min(mask.shape[-2:]) >= MIN_SIDE for mask in masks):
        return None
    tensors = [cube.detach(), *(mask.detach().to(cube) for mask in masks)]  # type: ignore[union-attr]
    if not cube.is_cpu:  # in one transfer
        flat = torch.split(torch.cat([t.flatten() for t in tensors]).cpu(), [t.numel() for t in tensors])
        tensors = [values.view(t.shape) for values, t in zip(flat, tensors, strict=True)]
    values, *patterns = (t.numpy() for t in tensors)
    return max(imprint(values, pattern, moves=moves) for pattern in patterns)
