"""The uncertainty of a cube: the error of reconstructing the cube itself from simulated snapshots of it."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.choice.adaptation import NUM_SNAPSHOTS, shift_over_mask
from cassi.choice.plan import Plan
from cassi.choice.stages import Tv
from cassi.evidence.held_out import Split
from cassi.optics.protocol import Camera

NUM_ITERS = 100  # of total variation
HELD_OUT = 0.05  # fraction of the detector pixels
SIDE = 5  # of the square over which errors and gradients are averaged [pixel]
FLOOR = 2e-3  # of an error or a gradient, in units of the scene's brightness

# log(sigma / L) = OFFSET + LOCAL log b + GRADIENT log g + TYPICAL log median + HELD_OUT_POWER log h
OFFSET, LOCAL, GRADIENT, TYPICAL, HELD_OUT_POWER = 1.26, 0.56, 0.23, 0.49, 0.10


class Bootstrap(NamedTuple):
    """Errors of several reconstructions of a known cube.

    Attributes:
        squared: mean of their squares at each voxel, like the cube.
        median: of their absolute values.
        held_out_error: of the snapshot itself, relative.
    """

    squared: Tensor
    median: float
    held_out_error: float


def bootstrap(
    A: Camera, y: Tensor, x: Tensor, plan: Plan, *, seed: int = 0, report: Callable[[float], object] = lambda _: None
) -> Bootstrap:
    """Simulate snapshots of a cube, reconstruct them, and compare: a parametric bootstrap.

        e_s = T_s^-1 R(Phi T_s x + n_s) - x        n_s ~ N(0, sigma^2),  s = 1, 2, 3

    R is total variation with the plan's basis and noise, T_s shifts the rows of the scene over the mask (upside down,
    rolled by a third, both): in place R would return x, as x explains y. (Efron & Tibshirani, "An Introduction to the
    Bootstrap" (1993), chapter 6.) The errors are those of noise, mask and prior, but for a scene as smooth as the cube.
    """
    split = Split.of(A, y, seed + 1, HELD_OUT)
    keep = (~split.held).to(y)

    def solve(y: Tensor) -> Tensor:
        """The cube of a snapshot without the held-out pixels."""
        return Tv(NUM_ITERS).run(split.A_train, y * keep, plan.problem(y)).x.clamp_(min=0)

    held_out_error = split.error(solve(y))
    generator = torch.Generator().manual_seed(seed)
    errors = []
    for s in range(NUM_SNAPSHOTS):
        report((s + 1) / (NUM_SNAPSHOTS + 1))
        scene = shift_over_mask(x, s)
        light = A.forward(scene)
        deviation = plan.noise.variance(light).sqrt()
        noise = torch.randn(light.shape, dtype=torch.float32, generator=generator).to(light)
        estimate = solve(light + deviation * noise)
        errors.append(shift_over_mask(estimate - scene, s, back=True))
    each = torch.stack(errors)
    return Bootstrap(each.square().mean(0), float(each.abs().median()), held_out_error)


def standard_deviation(repeats: Bootstrap, x: Tensor, brightness: float) -> Tensor:
    """Estimate the standard deviation of each voxel's error, (C, H, W), from a cube's bootstrap, edges and brightness.

        sigma / L = exp(1.26) (b / L)^0.56 (g / L)^0.23 (median / L)^0.49 h^0.10

    L is the brightness, b the bootstrap's root mean square and g that of the cube's gradient, both over 5 x 5 pixels (b
    over 3 bands too), median and h (`Bootstrap.held_out_error`) are of the whole scene. The exponents sum to over 1:
    errors grow faster than the bootstrap's, as the detail that a cube lacks of its scene is missing in its repeats too.
    They maximise the likelihood (errors / sigma with Student's distribution, 10 degrees of freedom) on 54 snapshots of
    9 scenes, which `python scripts/benchmark.py coverage` leaves out. There 74 % of the default's errors are within one
    sigma and 93 % within two: their tails are longer than those of a normal distribution.
    """
    slopes = torch.gradient(x, dim=[d for d in (-2, -1) if x.shape[d] > 1])
    gradient = _box(torch.stack([slope.square() for slope in slopes]).sum(0), 1) if slopes else torch.zeros_like(x)
    whole = OFFSET + TYPICAL * math.log(max(repeats.median / brightness, FLOOR / 10))
    whole += HELD_OUT_POWER * math.log(max(repeats.held_out_error, FLOOR))
    powers = (LOCAL, _box(repeats.squared, 3)), (GRADIENT, gradient)
    logs = torch.stack([power / 2 * (v / brightness**2 + FLOOR**2).log() for power, v in powers])
    return brightness * (whole + logs.sum(0)).exp()


def _box(v: Tensor, bands: int) -> Tensor:
    """Mean over `SIDE` x `SIDE` pixels and that number of bands, near the edges over those within the cube."""
    size = [min(wanted, (length - 1) // 2 * 2 + 1) for wanted, length in zip((bands, SIDE, SIDE), v.shape, strict=True)]
    padding = [length // 2 for length in size]
    return F.avg_pool3d(v[None, None], size, stride=1, padding=padding, count_include_pad=False)[0, 0]
