"""A block of a frame as an exact problem in itself.

Detector column t receives light only from scene columns t - s_c, with s_c = d_c - min d and 0 <= s_c <= span. For a
block of scene columns [a, b), the detector columns [a + span, b) are thus explained by the block alone; those beside
them also contain light of the neighbors and get the row weight 0. At the border of the frame all columns count.
"""

import math
from dataclasses import replace
from typing import TypeGuard

import torch
from torch import Tensor

from cassi.optics.blurred import BlurredCASSI
from cassi.optics.multi_shot import MultiShot
from cassi.optics.single_disperser import CASSI

Shot = CASSI | BlurredCASSI
Block = Shot | MultiShot

STRIP = 64  # rows of a large cube that are computed with at a time


def croppable(A: object) -> TypeGuard[Block]:
    """Whether `crop` supports this camera."""
    return isinstance(A, Block)


def light_reach(A: Block) -> tuple[int, int]:
    """Smallest and largest displacement of light from scene to detector pixel, to the right [pixel]."""
    if isinstance(A, MultiShot):
        each = [light_reach(shot) for shot in A.shots]
        return min(low for low, _ in each), max(high for _, high in each)
    low, high = 0, A.measurement_shape[-1] - A.cube_shape[-1]
    if isinstance(A, BlurredCASSI) and A.psf is not None:  # tap t displaces light by t - M // 2
        taps = A.psf.shape[-1]
        low, high = low - taps // 2, high + taps - 1 - taps // 2
    return low, high


def highest_variance_window(y: Tensor, size: tuple[int, int], part: int) -> tuple[slice, slice]:
    """Rows and columns of the part of a scene, of side `part`, over whose detector pixels y (..., H, W') varies most.

    Such a part is both bright and dark. Candidates are spaced by about half their side, from end to end.
    """
    sides = [min(part, length) for length in size]
    span = y.shape[-1] - size[1]

    def positions(length: int, side: int) -> list[int]:
        count = max(1, math.ceil(2 * length / side) - 1)
        return sorted({round(k * (length - side) / max(1, count - 1)) for k in range(count)})

    corners = [(i, j) for i in positions(size[0], sides[0]) for j in positions(size[1], sides[1])]
    h, w = sides
    variances = [y[..., i : i + h, j : j + w + span].double().var() for i, j in corners]
    i, j = corners[int(torch.stack(variances).argmax())]
    return slice(i, i + h), slice(j, j + w)


def crop(A: Block, y: Tensor, rows: slice, columns: slice) -> tuple[Block, Tensor]:
    """Camera and measurement, weighted alike, for a block of scene rows and columns.

    Detector pixels that contain light from outside have the row weight 0.
    """
    if isinstance(A, MultiShot):
        each = [_crop(shot, y[k], rows, columns) for k, shot in enumerate(A.shots)]
        return replace(A, shots=tuple(a for a, _ in each)), torch.stack([b for _, b in each])
    return _crop(A, y, rows, columns)


def _crop(A: Shot, y: Tensor, rows: slice, columns: slice) -> tuple[Shot, Tensor]:
    low, high = light_reach(A)
    width = A.cube_shape[-1]
    detector = slice(columns.start, columns.stop + A.measurement_shape[-1] - width)
    first = columns.start + high if columns.start > 0 else 0
    last = columns.stop + low if columns.stop < width else detector.stop
    present = y.new_ones(A.measurement_shape) if A.weights is None else A.weights
    weights = torch.zeros_like(y[rows, detector])
    inside = slice(first - columns.start, last - columns.start)
    weights[:, inside] = present[rows, detector][:, inside]
    block = replace(A, mask=A.mask[..., rows, columns], weights=weights)
    return block, torch.where(weights > 0, y[rows, detector], 0)


def residual_by_strips(A: Block, y: Tensor, cube: Tensor) -> Tensor:
    """y - Phi x of a cube (C, H, W) that may be larger than memory; rows do not mix: a strip is a camera of its own."""
    residual = torch.empty_like(y)
    height, width = cube.shape[-2:]
    for first in range(0, height, STRIP):
        rows = slice(first, min(first + STRIP, height))
        strip, seen = crop(A, y, rows, slice(0, width))
        residual[..., rows, :] = seen - strip.forward(cube[:, rows].to(y.device))
    return residual
