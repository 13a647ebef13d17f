"""Reconstruction of a frame of a sequence together with its neighbors.

The mask is fixed while the scene moves: with known motion, a neighbor is a further shot through another mask. The
motion comes from reconstructions of each frame alone, with the network, and is corrected by the snapshot of the
neighbor; where it explains that badly, the misfit counts as noise. If neighbors do not improve the prediction of
held-out pixels, the frame is reconstructed alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import explore_snapshot
from cassi.choice.chain import run_chains, without_network
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan
from cassi.choice.stages import NonLocal, State, Tv, Watch, alternating_stages
from cassi.evidence.held_out import MORE_HELD_OUT, Split
from cassi.evidence.judge import Verdict, accepts, is_better
from cassi.evidence.noise import CameraNoise, fit_noise
from cassi.kernels.images import gaussian_blur
from cassi.optics.detector import brightness
from cassi.optics.protocol import Camera
from cassi.priors.spectral_basis import analyse
from cassi.sequence.motion import estimate_motion, optical_flow
from cassi.sequence.moving_scene import MovingScene
from cassi.settings import Settings
from cassi.solvers.loop import Result, relative_norm

# Iterations of total variation for a frame alone, followed by `alternating_stages` without its last run.
SINGLE_FRAME_ITERS = 150
MULTI_FRAME_ITERS = 75  # further iterations for a frame with its neighbors; 150 are 0.01 dB better
SIGMA = 0.5  # strength of `alternating_stages`, times the root of the number of frames; 0.7 is 0.15 dB worse
# Factor of the noise variance in its last run. The held-out error would favor 1, which is 0.1 to 0.4 dB worse, because
# it includes errors of the motion; 16 is equal to 4 or up to 0.25 dB worse.
NOISE_FACTOR = 4.0
FLOW_IMAGES = 4  # coefficient images used for estimating motion
MISFIT_WIDTH = 2.0  # Gaussian width over which squared misfits are averaged [pixel]
MAX_ERROR = 4.0  # of a predicted neighbor, in units of the held-out error of the frame; above it the motion is wrong
EXPECTED_MISFIT = 2.0  # usual squared misfit of a neighbor, in units of that at the held-out pixels of the frame


@dataclass(frozen=True, eq=False)
class SingleFrame:
    """A frame reconstructed without its neighbors and without its held-out pixels."""

    split: Split  # the camera and the snapshot
    state: State  # of the solver at its end
    cube: Tensor  # (C, H, W), >= 0; motion from it instead of `tv_cube` gains 0.4 dB
    tv_cube: Tensor  # by total variation, to compare with the cube from frame and neighbors
    verdict: Verdict  # on `tv_cube`


def choose_common_plan(
    A: Camera,
    frames: Tensor,
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    noise: CameraNoise = CameraNoise(),
    settings: Settings = Settings(),
) -> Plan:
    """Noise, spectral basis and priors for a whole sequence, chosen from some of its frames (n, H, W')."""
    split = Split.of(A, frames, settings.seed)
    axis = A.cube_shape[0] if wavelengths is None else wavelengths
    bright = brightness(A, frames)
    plan, _ = explore_snapshot(split, axis, noise, settings, frames)
    if noise.gain is None:  # estimated from the residual of total variation
        problem = plan.problem(frames, bright)
        x = Tv(SINGLE_FRAME_ITERS).run(split.A_train, split.y_train, problem).x
        plan = replace(plan, noise=fit_noise(split, split.verdict(x, imprint=False).squared))
    # coarse stages would blur what neighbors resolve
    more = () if settings.prior == "tv" else alternating_stages(SIGMA, NOISE_FACTOR)[2:]
    return replace(plan, stages=(Tv(MULTI_FRAME_ITERS), *(more if plan.learned is not None else without_network(more))))


def reconstruct_single_frame(A: Camera, y: Tensor, plan: Plan, *, seed: int = 0) -> SingleFrame:
    """Reconstruct a frame without neighbors, with a plan for measurements of this brightness."""
    split, problem = Split.of(A, y, seed, MORE_HELD_OUT), plan.problem(y)
    tv = Tv(SINGLE_FRAME_ITERS).run(split.A_train, split.y_train, problem)
    verdict = split.verdict(tv.x)
    chain = alternating_stages(1.0)[:-1]
    chain = chain if plan.learned is not None else without_network(chain)
    state = run_chains(split, problem, tv, (chain,) if len(plan.stages) > 1 else (), Watch(), verdict)[0].state
    return SingleFrame(split, state, state.x.clamp(min=0), tv.x.clamp(min=0), verdict)


def reconstruct_multi_frame(
    frame: SingleFrame, neighbors: Sequence[SingleFrame], plan: Plan, watch: Watch
) -> Outcome | None:
    """Reconstruct a frame with its neighbors as further shots; None if that is not accepted.

    The held-out pixels of the frame must not become clearly worse, and the held-out pixels of all frames must
    improve: the neighbors test the spectra, which the mask hides from the frame itself. The non-local prior and the
    network follow if held-out pixels allow. The network, trained with single shots, sees only the snapshot of the
    frame: on four sequences of six frames that gains 0.2 dB, while all snapshots lost up to 1.4 dB.

    Returns:
        With the number of neighbors and the held-out errors of single and joint cube, and the common plan with the
        stages of this frame.
    """
    if not bool(frame.cube.any()):  # a black frame does not move
        return None
    motions = [(other, v) for other in neighbors if (v := _find_motion(frame, other, plan)) is not None]
    if not motions or frame.state.run is None:
        return None
    first = frame.split
    split, variance = _as_shots(frame, motions, plan)
    problem = replace(plan.problem(first.y), variance=variance)
    start = State(frame.cube, replace(frame.state.run, e=torch.zeros_like(split.y)))
    state = Tv(MULTI_FRAME_ITERS).run(split.A_train, split.y_train, problem, start, watch)
    x = state.x.clamp(min=0)
    before, after = (split.verdict(cube, imprint=False) for cube in (frame.tv_cube, x))
    if not (accepts(first.verdict(x), frame.verdict) and is_better(after, before)):
        return None
    strength, new = math.sqrt(len(split.y)), state
    chain = [replace(s, sigma=strength * s.sigma) if isinstance(s, NonLocal) else s for s in plan.stages[1:]]
    try:
        for stage in chain:
            if not watch.over:
                pixels, task = (first, plan.problem(first.y)) if stage.needs_network else (split, problem)
                new = stage.run(pixels.A_train, pixels.y_train, task, new, watch)
        accepted = not watch.over and accepts(split.verdict(new.x), split.verdict(state.x))
    except FloatingPointError:  # a network may diverge on unusual input
        accepted = False
    state = new if accepted else state
    result = Result(state.x.clamp(min=0), state.history, "stopped" if watch.over else "finished")
    used = {"together": len(motions), "error_alone": before.error, "error_together": after.error}
    return Outcome(result, "subspace-tv", used, replace(plan, stages=state.stages), stage_starts=state.stage_starts)


def _find_motion(frame: SingleFrame, other: SingleFrame, plan: Plan) -> Tensor | None:
    """The motion from a frame to a neighbor; None if the moved frame does not explain the snapshot of that."""
    neighbor = other.split
    B = plan.vectors[:FLOW_IMAGES].to(frame.cube)
    v = optical_flow(analyse(other.cube, B).contiguous(), analyse(frame.cube, B).contiguous())
    v = estimate_motion(neighbor.A_train, neighbor.y_train, frame.cube, v, plan.noise.variance(neighbor.y))
    predicted = MovingScene(frame.split.A, [v]).forward(frame.cube)[0]
    return v if relative_norm(neighbor.y - predicted, neighbor.y) <= MAX_ERROR * frame.verdict.error else None


def _as_shots(frame: SingleFrame, motions: Sequence[tuple[SingleFrame, Tensor]], plan: Plan) -> tuple[Split, Tensor]:
    """A frame and its neighbors with their motions as shots of one scene, and the variance of their snapshots.

    For neighbors, the local misfit of the moved frame is added to the variance.
    """
    splits = [frame.split, *(other.split for other, _ in motions)]
    A = MovingScene(frame.split.A, [None, *(v for _, v in motions)])
    y, held = torch.stack([split.y for split in splits]), torch.stack([split.held for split in splits])
    misfit = gaussian_blur((y - A.forward(frame.tv_cube)).square(), MISFIT_WIDTH)
    unexplained = (misfit - EXPECTED_MISFIT * float(frame.verdict.squared.mean())).clamp(min=0)
    unexplained[0] = 0
    variance = plan.noise.variance(y) + unexplained
    return Split.without(A, y, held), variance
