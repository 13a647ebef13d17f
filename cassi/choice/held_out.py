"""Detector pixels that are held out: an error estimate that needs no truth."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.optics.protocol import Camera
from cassi.solvers.loop import relative_norm

HELD_OUT = 0.02  # fraction of detector pixels that test a candidate


def hold_out(lit: Tensor, seed: int, fraction: float = HELD_OUT) -> Tensor:
    """A random set of detector pixels, (H, W') bool: about `fraction` of those that are lit, at least one."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(lit.shape, generator=generator).to(lit.device).masked_fill(~lit, math.inf)
    count = max(1, round(fraction * int(lit.sum())))
    return draw <= draw.flatten().kthvalue(count).values


def held_out_error(A: Camera, y: Tensor, x: Tensor, held: Tensor) -> float:
    """|y - Phi x| / |y| over held-out detector pixels, for any reconstruction x."""
    return relative_norm((y - A.forward(x))[held], y[held])


@dataclass(frozen=True, eq=False)
class Split:
    """A camera and its snapshot with all detector pixels, and without those held out (row weight 0, y = 0).

    Attributes:
        A, y: all of it.
        held: bool like y, the pixels held out.
        A_train, y_train: the rest.
    """

    A: Camera
    y: Tensor
    held: Tensor
    A_train: Camera
    y_train: Tensor

    @staticmethod
    def of(A: Camera, y: Tensor, lit: Tensor, seed: int, fraction: float = HELD_OUT) -> Split:
        """Hold out this fraction of the lit pixels at random; of a batch of snapshots the same of each."""
        held = hold_out(lit, seed, fraction)
        keep = (~held).to(y)
        return Split(A, y, held.expand(y.shape), A.leave_out(keep), y * keep)

    def error(self, x: Tensor) -> float:
        """`held_out_error` of a cube."""
        return held_out_error(self.A, self.y, x, self.held)
