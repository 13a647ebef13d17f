"""A snapshot and a photograph of its scene solved together, unless held-out detector pixels speak against it.

    min_x  |W (y - Phi x)|^2 + |W_s (s - R x)|^2 + TV(B x / L),    L = s_mean^p

The photograph enters twice. Its data term fixes the brightness of each pixel, for K channels K mixtures of its bands.
And total variation is asked of the colors, the coefficients divided by L: an edge that the photograph shows costs less,
as far as the spectra on its sides are alike. Dividing by L is a change of variables: a camera through a mask times L.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cassi.choice.chain import Chain, final_run
from cassi.choice.held_out import Split
from cassi.choice.stages import NonLocal, Problem, State, Tv, Watch
from cassi.photograph.view import SideView, through
from cassi.priors.spectral_basis import analyse, smooth_basis
from cassi.solvers.loop import Result, Status
from cassi.solvers.subspace_tv import SubspaceState

COMPONENTS = 16  # of the smooth basis: the photograph makes room for more than a snapshot alone does
POWER = 0.5  # p
FLOOR = 0.02  # added to s_mean, relative to its mean: dark pixels keep a color
TRIAL_ITERS = 80
JUDGED_ITERS = 160  # more, before held-out pixels judge: the joint problem fits the detector's slower
ALONE = 200  # iterations of total variation from the snapshot alone
DENOISED = NonLocal(0.5, 16), NonLocal(0.25, 16)  # on two windows 0.4 and 0.1 dB better than one of 24 matched every 8
# The final run from there, by quality: total variation, and the chains that may follow it.
FINAL: dict[str, tuple[Tv, tuple[Chain, ...]]] = {
    "fast": (Tv(40), (DENOISED[:1], (Tv(160),))),
    "default": (Tv(40), (DENOISED, (Tv(160),))),
    "best": (Tv(500), (DENOISED, (Tv(1500),))),
}


@dataclass(frozen=True, eq=False)
class Photograph:
    """A photograph on the scene's grid.

    Attributes:
        s: (K, H, W), in units of R x.
        seen: (H, W), 0 where it says nothing, else 1.
        R: (K, C).
        variance: of s, (K, H, W).
        doubt: what may be wrong with place, response and values, as noise beside its own: relative to s and, half of
            it, to its mean.
    """

    s: Tensor
    seen: Tensor
    R: Tensor
    variance: Tensor
    doubt: float


def first_cube(split: Split, problem: Problem) -> tuple[Tensor, float]:
    """A cube from the snapshot alone without the held-out pixels, (C, H, W) >= 0, and its error there."""
    result, _ = problem.solve(split.A_train, split.y_train, ALONE)
    x = result.x.clamp(min=0)
    return x, split.error(x)


@dataclass(frozen=True, eq=False)
class Joint:
    """The stacked problem of x / L.

    Attributes:
        split: camera and measurements; the held-out pixels are the snapshot's alone.
        problem: basis and noise of both.
        light: L (H, W), of mean 1.
    """

    split: Split
    problem: Problem
    light: Tensor

    @staticmethod
    def of(alone: Split, variance: Tensor, photograph: Photograph, cube: Tensor, basis: Tensor) -> Joint:
        """The problem; L = 1 for a camera whose scene cannot be divided by it."""
        s, R = photograph.s, photograph.R
        expected = torch.einsum("kc,chw->khw", R, cube)
        light = torch.where(photograph.seen > 0, s, expected).mean(0).clamp(min=0)
        light = (light + FLOOR * light.mean()) ** POWER
        light = light / light.mean()
        camera = through(alone.A, light)
        if camera is None:
            camera, light = alone.A, torch.ones_like(light)
        strength = alone.A.gram_diag()  # each channel is weighed so that its row is as strong as the camera's
        scale = (strength[strength > 0].mean().sqrt() / R.norm(dim=1).clamp(min=1e-30)).to(R).view(-1, 1, 1)
        A = SideView(camera, R, (scale * photograph.seen * light).contiguous())
        weighted = scale * photograph.seen
        y = A.stack(alone.y, s * weighted)
        own = (
            photograph.variance + photograph.doubt**2 * (s**2 + (s.mean((1, 2), keepdim=True) / 2) ** 2)
        ) * weighted**2
        held = A.stack(alone.held.to(y), torch.zeros_like(s)) > 0
        split = Split(A, y, held, A.leave_out(~held), y.masked_fill(held, 0))
        return Joint(split, Problem(basis.to(y), A.stack(variance.expand(alone.y.shape), own)), light)

    def started(self, cube: Tensor) -> SubspaceState:
        """To begin from a cube."""
        z = analyse(cube / self.light, self.problem.basis).contiguous()
        return SubspaceState(z, torch.zeros_like(self.split.y), None, z.new_zeros((2, *z.shape)))


@dataclass(frozen=True, eq=False)
class Found:
    """A short joint run: its cube (C, H, W), the error at the held-out pixels, and where it ended."""

    joint: Joint
    cube: Tensor
    error: float
    state: SubspaceState


def tried(
    alone: Split, variance: Tensor, photograph: Photograph, cube: Tensor, bands: int | Sequence[float] | np.ndarray,
) -> Found:  # fmt: skip
    """A short joint run without the held-out pixels, from a cube."""
    joint = Joint.of(alone, variance, photograph, cube, smooth_basis(bands, COMPONENTS))
    return _run(joint, joint.started(cube), alone, TRIAL_ITERS)


def gone_on(found: Found, alone: Split) -> Found:
    """The same run long enough for its error at the held-out pixels to count."""
    return _run(found.joint, found.state, alone, JUDGED_ITERS)


def _run(joint: Joint, start: SubspaceState, alone: Split, num_iters: int) -> Found:
    result, state = joint.problem.solve(joint.split.A_train, joint.split.y_train, num_iters, tol=0.0, state=start)
    x = (result.x * joint.light).clamp_(min=0)
    return Found(joint, x, alone.error(x), state)


def finished(found: Found, quality: str, watch: Watch) -> tuple[Result, Chain, tuple[tuple[int, str], ...]]:
    """The long run from the best of the short ones: cube, stages, and where in its history each began."""
    first, chains = FINAL[quality]
    split, problem = found.joint.split, found.joint.problem
    state = first.run(split.A_train, split.y_train, problem, State(found.cube, found.state), watch)
    state, _ = final_run(split, problem, state, chains, watch, split.verdict(state.x))
    x = (state.x * found.joint.light).clamp_(min=0)
    status: Status = "stopped" if watch.over else "max_iters"
    return Result(x, state.history, status), state.stages, state.begun
