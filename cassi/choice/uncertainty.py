"""How far a cube may be off: the error of reconstructing the cube itself, photographed anew, whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.choice.adaptation import PHOTOGRAPHS, elsewhere
from cassi.choice.held_out import Split
from cassi.choice.plan import Plan
from cassi.optics.protocol import Camera

ITERATIONS = 100
HELD_OUT = 0.05  # fraction of detector pixels on which snapshot and repeats are compared
FLOOR = 2e-3  # of an error or a gradient, in units of the scene's brightness

# log(sigma / L) = OFFSET + LOCAL log b + GRADIENT log g + TYPICAL log median + MISSED log h, see `standard_deviation`
OFFSET, LOCAL, GRADIENT, TYPICAL, MISSED = 1.26, 0.56, 0.23, 0.49, 0.10


class Bootstrap(NamedTuple):
    """Errors of repeated reconstructions of a known cube.

    Attributes:
        squared: mean of their squares at each voxel, like the cube.
        median: of their absolute values.
        missed: held-out error of the snapshot itself, relative.
    """

    squared: Tensor
    median: float
    missed: float


def bootstrap(
    A: Camera, y: Tensor, x: Tensor, plan: Plan, *, seed: int = 0, told: Callable[[float], object] = lambda share: None
) -> Bootstrap:
    """Photograph the cube that was found, reconstruct it, and compare: a parametric bootstrap.

        e_s = T_s^-1 R(Phi T_s x + n_s) - x        n_s ~ N(0, sigma^2),  s = 1, 2, 3

    R is total variation with the plan's basis and noise, T_s lays the rows of the scene elsewhere on the mask (upside
    down, rolled by a third, both): where they are, R finds x again because x explains y. (Efron & Tibshirani, "An
    Introduction to the Bootstrap" (1993), chapter 6.) It sees noise, what the mask hides and what the prior bends, but
    of a scene as smooth as the cube that was found.
    """
    split = Split.of(A, y, seed + 1, HELD_OUT)
    keep = (~split.held).to(y)

    def solved(seen: Tensor) -> Tensor:
        """The cube of a snapshot without the held-out pixels."""
        return plan.problem(seen).solve(split.A_train, seen * keep, ITERATIONS)[0].x.clamp_(min=0)

    missed = split.error(solved(y))
    generator = torch.Generator().manual_seed(seed)
    errors = []
    for s in range(PHOTOGRAPHS):
        told((s + 1) / (PHOTOGRAPHS + 1))
        scene = elsewhere(x, s)
        light = A.forward(scene)
        deviation = plan.noise.variance(light).sqrt()
        found = solved(light + deviation * torch.randn(light.shape, generator=generator).to(light))
        errors.append(elsewhere(found - scene, s, back=True))
    each = torch.stack(errors)
    return Bootstrap(each.square().mean(0), float(each.abs().median()), missed)


def standard_deviation(found: Bootstrap, x: Tensor, level: float) -> Tensor:
    """Standard deviation of each voxel's error, (C, H, W), from the bootstrap of a cube, its edges and its brightness.

        sigma / L = exp(1.26) (b / L)^0.56 (g / L)^0.23 (median / L)^0.49 h^0.10

    L is `level`, b the bootstrap's root mean square and g that of the cube's gradient, both over 5 x 5 pixels (b over 3
    bands too), median and h (`Bootstrap.missed`) are of the whole scene. The exponents say that errors grow faster than
    the bootstrap's: what a cube lacks of its scene, the bootstrap lacks of the cube. They were the most probable ones
    (errors / sigma with Student's distribution, 10 degrees of freedom) on 54 snapshots of 9 scenes, which `python
    scripts/benchmark.py coverage` leaves out. There 75 % of the default's errors lie within one sigma and 94 % within
    two: they have longer tails than a normal distribution, so that one holds too much or the other too little.
    """
    slopes = torch.gradient(x, dim=[d for d in (-2, -1) if x.shape[d] > 1])
    gradient = _box(torch.stack([slope.square() for slope in slopes]).sum(0), 1) if slopes else torch.zeros_like(x)
    missed = MISSED * math.log(max(found.missed, FLOOR))
    whole = OFFSET + TYPICAL * math.log(max(found.median / level, FLOOR / 10)) + missed
    powers = (LOCAL, _box(found.squared, 3)), (GRADIENT, gradient)
    logs = torch.stack([power / 2 * (v / level**2 + FLOOR**2).log() for power, v in powers])
    return level * (whole + logs.sum(0)).exp()


def _box(v: Tensor, bands: int) -> Tensor:
    """Mean over 5 x 5 pixels and so many bands, of what of them lies in the cube; of small cubes over fewer."""
    size = [min(wanted, (length - 1) // 2 * 2 + 1) for wanted, length in zip((bands, 5, 5), v.shape, strict=True)]
    padding = [length // 2 for length in size]
    return F.avg_pool3d(v[None, None], size, stride=1, padding=padding, count_include_pad=False)[0, 0]
