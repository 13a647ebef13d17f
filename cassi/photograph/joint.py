"""Joint reconstruction from a snapshot and a photograph of its scene.

    min_x  |W (y - Phi x)|^2 + |W_s (s - R x)|^2 + TV(B x / L),    L = s_mean^p

The photograph enters twice. Its data term determines the brightness of each pixel, or K mixtures of its bands for K
channels. And total variation applies to the colors, the coefficients divided by L: an edge in the photograph costs less
if the spectra on both sides are similar. Division by L is a change of variables: a camera with the mask times L.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from cassi.choice.chain import Chain, run_chains
from cassi.choice.stages import NonLocal, Problem, State, Tv, Watch
from cassi.evidence.held_out import Split
from cassi.photograph.view import SideView, scale_masks
from cassi.priors.spectral_basis import analyse, smooth_basis
from cassi.solvers.loop import Result, Status
from cassi.solvers.subspace_tv import SubspaceState

NUM_COMPONENTS = 16  # of the smooth basis; a photograph permits more than a snapshot alone
POWER = 0.5  # p
FLOOR = 0.02  # added to s_mean, relative to its mean, so that dark pixels keep a color
TRIAL_ITERS = 80
JUDGED_ITERS = 160  # further ones before held-out pixels decide, as the joint problem converges more slowly
ALONE_ITERS = 200  # of total variation with the snapshot alone
NONLOCAL_CHAIN = (NonLocal(0.5, 16), NonLocal(0.25, 16))  # on two windows 0.4 and 0.1 dB better than one run of 24
# The final run, by quality: total variation, and the chains that may follow.
FINAL_STAGES: dict[str, tuple[Tv, tuple[Chain, ...]]] = {
    "fast": (Tv(40), (NONLOCAL_CHAIN[:1], (Tv(160),))),
    "default": (Tv(40), (NONLOCAL_CHAIN, (Tv(160),))),
    "best": (Tv(500), (NONLOCAL_CHAIN, (Tv(1500),))),
}


@dataclass(frozen=True, eq=False)
class Photograph:
    """A photograph on the grid of the scene.

    Possible errors of pose, response and values count as additional noise, by `relative_error`: relative to s and, half
    of it, to its mean.
    """

    s: Tensor  # (K, H, W), in units of R x
    usable: Tensor  # (H, W), 1 or 0
    R: Tensor  # (K, C)
    variance: Tensor  # of s, (K, H, W)
    relative_error: float


@dataclass(frozen=True, eq=False)
class Joint:
    """The stacked problem of x / L."""

    split: Split  # camera and measurements; only pixels of the snapshot are held out
    problem: Problem  # basis and noise of both
    light: Tensor  # L (H, W), of mean 1

    @classmethod
    def of(cls, alone: Split, variance: Tensor, photograph: Photograph, cube: Tensor, basis: Tensor) -> Self:
        """Build the problem; L = 1 for a camera without a known mask."""
        s, R = photograph.s, photograph.R
        expected = torch.einsum("kc,chw->khw", R, cube)
        light = torch.where(photograph.usable > 0, s, expected).mean(0).clamp(min=0)
        light = (light + FLOOR * light.mean()) ** POWER
        light = light / light.mean()
        camera = scale_masks(alone.A, light)
        if camera is None:
            camera, light = alone.A, torch.ones_like(light)
        strength = alone.A.gram_diag()  # each channel is scaled so that its rows are as strong as the camera's
        scale = (strength[strength > 0].mean().sqrt() / R.norm(dim=1).clamp(min=1e-30)).to(R).view(-1, 1, 1)
        A = SideView(camera, R, (scale * photograph.usable * light).contiguous())
        weights = scale * photograph.usable
        y = A.stack(alone.y, s * weights)
        noise = (
            photograph.variance + photograph.relative_error**2 * (s**2 + (s.mean((1, 2), keepdim=True) / 2) ** 2)
        ) * weights**2
        held = A.stack(alone.held.to(y), torch.zeros_like(s)) > 0
        return cls(
            Split.without(A, y, held), Problem(basis.to(y), A.stack(variance.expand(alone.y.shape), noise)), light
        )


@dataclass(frozen=True, eq=False)
class JointFit:
    """A short joint run: its cube (C, H, W), the error at the held-out pixels, and the state at its end."""

    joint: Joint
    cube: Tensor
    error: float
    state: SubspaceState | None


def fit_briefly(
    alone: Split, variance: Tensor, photograph: Photograph, cube: Tensor, bands: int | Sequence[float] | np.ndarray,
) -> JointFit:  # fmt: skip
    """A short joint run without the held-out pixels, starting from a cube."""
    joint = Joint.of(alone, variance, photograph, cube, smooth_basis(bands, NUM_COMPONENTS))
    z = analyse(cube / joint.light, joint.problem.basis).contiguous()
    start = SubspaceState(z, torch.zeros_like(joint.split.y), None, z.new_zeros((2, *z.shape)))
    return _run(joint, start, alone, TRIAL_ITERS)


def continue_fit(fit: JointFit, alone: Split) -> JointFit:
    """Continue a run until its error at the held-out pixels is meaningful."""
    return _run(fit.joint, fit.state, alone, JUDGED_ITERS)


def _run(joint: Joint, start: SubspaceState | None, alone: Split, num_iters: int) -> JointFit:
    A, y = joint.split.A_train, joint.split.y_train
    end = Tv(num_iters).run(A, y, joint.problem, State(y, start))
    x = (end.x * joint.light).clamp_(min=0)
    return JointFit(joint, x, alone.error(x), end.run)


def finish_fit(fit: JointFit, quality: str, watch: Watch) -> tuple[Result, Chain, tuple[tuple[int, str], ...]]:
    """The long run from a short one: result, stages, and the start of each in its history."""
    first, chains = FINAL_STAGES[quality]
    split, problem = fit.joint.split, fit.joint.problem
    state = first.run(split.A_train, split.y_train, problem, State(fit.cube, fit.state), watch)
    state = run_chains(split, problem, state, chains, watch, split.verdict(state.x))[0].state
    x = (state.x * fit.joint.light).clamp_(min=0)
    status: Status = "stopped" if watch.over else "finished"
    return Result(x, state.history, status), state.stages, state.stage_starts
