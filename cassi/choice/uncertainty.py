"""The uncertainty of a cube: the error of reconstructing the cube itself from simulated snapshots of it."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.choice.adaptation import NUM_SNAPSHOTS, shift_over_mask
from cassi.choice.plan import Plan
from cassi.choice.stages import Tv
from cassi.evidence.held_out import MORE_HELD_OUT, Split
from cassi.optics.protocol import Camera

NUM_ITERS = 100  # of total variation
SIDE = 5  # of the square over which errors and gradients are averaged [pixel]
FLOOR = 2e-3  # of an error or a gradient, in units of the scene's brightness

# sigma / L = SCALE b^LOCAL g^GRADIENT h^HELD_OUT_POWER
SCALE, LOCAL, GRADIENT, HELD_OUT_POWER = 2.1, 0.6, 0.2, 0.33


class Bootstrap(NamedTuple):
    """Errors of several reconstructions of a known cube.

    Attributes:
        squared: mean of their squares at each voxel, like the cube.
        held_out_error: of the snapshot itself, relative.
    """

    squared: Tensor
    held_out_error: float


def bootstrap(
    A: Camera, y: Tensor, x: Tensor, plan: Plan, *, seed: int = 0, report: Callable[[float], object] = lambda _: None
) -> Bootstrap:
    """Simulate snapshots of a cube through cameras that may be wrong, reconstruct them, and compare.

        r_k = T_k^-1 R(Phi T_k x + E e_k + n_k) - x        E e = sum_c S_c (e T_k x)_c,    k = 1, 2, 3
        n_k ~ N(0, v),    e_k ~ N(0, s^2)

    R is total variation with the plan's basis and noise, T_k shifts the rows of the scene over the mask (upside down,
    rolled by a third, both): in place R would return x, as x explains y. The spread s of the mask's error is the one
    that the camera states, or a larger one that predicts held-out pixels better (`cassi.evidence.misfit`). This is a
    parametric bootstrap (Efron & Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 6). Its errors are
    those of noise, mask, camera and prior, but for a scene as smooth as the cube.
    """
    split = Split.of(A, y, seed + 1, MORE_HELD_OUT)
    keep = (~split.held).to(y)

    def solve(y: Tensor) -> Tensor:
        """The cube of a snapshot without the held-out pixels."""
        return Tv(NUM_ITERS).run(split.A_train, y * keep, plan.problem(y)).x.clamp_(min=0)

    own = solve(y)
    s, wrong = A.mask_error, A.open
    if wrong is not None:
        judge = split.knowing(plan.noise.variance(y))
        s = max(s, judge.without_mask_error(judge.misfit_model(own))[1])
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: Sequence[int]) -> Tensor:
        return torch.randn(tuple(shape), dtype=torch.float32, generator=generator).to(y)

    squared = torch.zeros_like(x)
    for k in range(NUM_SNAPSHOTS):
        report((k + 1) / (NUM_SNAPSHOTS + 1))
        scene = shift_over_mask(x, k)
        light = A.forward(scene)
        snapshot = light + plan.noise.variance(light).sqrt() * normal(light.shape)
        if wrong is not None and s:
            snapshot += wrong.forward(scene * (s * normal(x.shape[1:])))
        squared += shift_over_mask(solve(snapshot) - scene, k, back=True).square() / NUM_SNAPSHOTS
    return Bootstrap(squared, split.error(own))


def standard_deviation(repeats: Bootstrap, x: Tensor, brightness: float) -> Tensor:
    """Estimate the standard deviation of each voxel's error, (C, H, W), from a cube's bootstrap, edges and brightness.

        sigma / L = 2.1 (b / L)^0.6 (g / L)^0.2 h^0.33

    L is the brightness, b the bootstrap's root mean square and g that of the cube's gradient, both over 5 x 5 pixels (b
    over 3 bands too), h (`Bootstrap.held_out_error`) is of the whole scene. The exponents sum to over 1: errors grow
    faster than the bootstrap's, as the detail that a cube lacks of its scene is missing in its repeats too. They
    maximise the likelihood (errors with Student's distribution, 10 degrees of freedom, of this standard deviation) on
    90 snapshots of 9 scenes through masks that are exact or wrong by 2, 5 and 12 %, which `python scripts/benchmark.py
    coverage` leaves out. There 74 % of the default's errors are within one sigma and 94 % within two.
    """
    slopes = torch.gradient(x, dim=[d for d in (-2, -1) if x.shape[d] > 1])
    gradient = _box(torch.stack([slope.square() for slope in slopes]).sum(0), 1) if slopes else torch.zeros_like(x)
    whole = math.log(SCALE) + HELD_OUT_POWER * math.log(max(repeats.held_out_error, FLOOR))
    powers = (LOCAL, _box(repeats.squared, 3)), (GRADIENT, gradient)
    logs = torch.stack([power / 2 * (v / brightness**2 + FLOOR**2).log() for power, v in powers])
    return brightness * (whole + logs.sum(0)).exp()


def _box(v: Tensor, bands: int) -> Tensor:
    """Mean over `SIDE` x `SIDE` pixels and that number of bands, near the edges over those within the cube."""
    size = [min(wanted, (length - 1) // 2 * 2 + 1) for wanted, length in zip((bands, SIDE, SIDE), v.shape, strict=True)]
    padding = [length // 2 for length in size]
    return F.avg_pool3d(v[None, None], size, stride=1, padding=padding, count_include_pad=False)[0, 0]
