"""A frame of a sequence reconstructed with what the frames beside it know.

The mask stands still while the scene moves: a neighbor, once it is known how the scene has moved since, is a further
shot through another mask. Motion is taken from reconstructions of each frame alone, with the network, and corrected by
the neighbor's snapshot; where it explains that badly, that is counted as noise of those detector pixels; and a frame
whose held-out pixels are not predicted better with its neighbors stays as it is alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import explored, without_learned
from cassi.choice.chain import final_run
from cassi.choice.held_out import Split
from cassi.choice.judge import accepts, is_better
from cassi.choice.noise import CameraNoise, noise_left
from cassi.choice.plan import Plan
from cassi.choice.stages import State, Tv, Watch, in_turn
from cassi.kernels.smoothing import gaussian_blur
from cassi.optics.protocol import Camera
from cassi.priors.spectral_basis import analyse
from cassi.sequence.measured_motion import estimate_motion
from cassi.sequence.motion import optical_flow
from cassi.sequence.moving_scene import MovingScene
from cassi.settings import Settings
from cassi.solvers.loop import Result, relative_norm

HELD_OUT = 0.05  # of a frame's detector pixels
ALONE = 150  # iterations of total variation of a frame alone; then `in_turn` but for its last run
TOGETHER = 75  # of a frame with its neighbors, from there; 150 are 0.01 dB better
SIGMA = 0.5  # of `in_turn`, times the root of the number of frames; 0.7 is 0.15 dB worse
# How many times the noise counts in its last run. Held-out pixels, whose errors are of motion, too, would choose 1,
# which is 0.1 to 0.4 dB worse; 16 is as good as 4 or up to 0.25 dB worse.
NOISE_COUNTS = 4.0
IMAGES = 4  # coefficient images that motion is taken from
NEAR = 2.0  # [pixel] over which misfits are averaged
FOLLOWED = 4.0  # times a frame's own held-out error: a neighbor predicted worse has moved farther than was found
USUAL = 2.0  # times the error at a frame's own held-out pixels is a usual misfit of a neighbor


@dataclass(frozen=True, eq=False)
class Alone:
    """A frame reconstructed without its neighbors and without its held-out pixels.

    Attributes:
        split: the camera and the snapshot.
        state: of the solver at its end.
        sharp: the cube (C, H, W), >= 0; that motion is taken from it and not from x is worth 0.4 dB.
        x: that of total variation, like the one with neighbors that it is judged against.
        error: of x, relative, at the held-out pixels.
        missed: mean square of the misfit there.
    """

    split: Split
    state: State
    sharp: Tensor
    x: Tensor
    error: float
    missed: float


class Together(NamedTuple):
    """A frame with so many neighbors, held-out errors of all by the single-frame and the joint cube, and the plan.

    The plan is the common one with the stages that this frame had, which `begun` says where.
    """

    result: Result
    neighbors: int
    errors: tuple[float, float]
    plan: Plan
    begun: tuple[tuple[int, str], ...]


def common_plan(
    A: Camera,
    frames: Tensor,
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    noise: CameraNoise = CameraNoise(),
    settings: Settings = Settings(),
) -> Plan:
    """Noise, spectral basis and priors that serve a whole sequence, chosen on some frames (n, H, W') of it."""
    split = Split.of(A, frames, settings.seed)
    found = explored(split, A.cube_shape[0] if wavelengths is None else wavelengths, noise, settings)
    plan = found.plan
    if noise.gain is None:  # what total variation leaves
        state = Tv(ALONE).run(split.A_train, split.y_train, plan.problem(frames, found.brightness), None, Watch())
        plan = replace(plan, noise=noise_left(split, split.misfit(state.x.clamp(min=0)).square()))
    # coarse runs would wash out what neighbors tell
    more = () if settings.prior == "tv" else in_turn(SIGMA, NOISE_COUNTS)[2:]
    return replace(plan, stages=(Tv(TOGETHER), *(more if plan.learned is not None else without_learned(more))))


def alone(A: Camera, y: Tensor, plan: Plan, *, seed: int = 0) -> Alone:
    """A frame by itself, as a plan for measurements of this brightness says."""
    split, problem, first = Split.of(A, y, seed, HELD_OUT), plan.problem(y), Tv(ALONE)
    state = first.run(split.A_train, split.y_train, problem, None, Watch())
    x = state.x.clamp(min=0)
    verdict = split.verdict(x)
    chain = in_turn(1.0)[:4] if plan.learned is not None else without_learned(in_turn(1.0)[:4])
    chains = (chain,) if len(plan.stages) > 1 else ()
    state, _ = final_run(split, problem, state, chains, Watch(), verdict)
    return Alone(split, state, state.x.clamp(min=0), x, verdict.error, float(verdict.squared.mean()))


def together(frame: Alone, neighbors: Sequence[Alone], plan: Plan, watch: Watch) -> Together | None:
    """A frame with its neighbors as further shots; None where its own pixels speak against that, or all gain nothing.

    Those of the neighbors tell whether the spectra are right, which the mask hides from the frame's own; those of the
    frame whether it is still this frame. Once taken, it ends as a single frame does, with non-local prior and network
    in turn, where held-out pixels agree. The network, which was trained with single shots, is given the frame's own:
    on four sequences of six frames that gains 0.2 dB over none, where all snapshots lost up to 1.4 dB.
    """
    if not bool(frame.sharp.any()):  # a black frame does not move
        return None
    B = plan.vectors.to(frame.x)
    followed = [(other, v) for other in neighbors if (v := _followed(frame, other, plan, B)) is not None]
    if not followed or frame.state.run is None:
        return None
    first = frame.split
    split, variance = _as_shots(frame, followed, plan)
    problem = replace(plan.problem(first.y), variance=variance)
    start = State(frame.sharp, replace(frame.state.run, e=torch.zeros_like(split.y)))
    state = Tv(TOGETHER).run(split.A_train, split.y_train, problem, start, watch)
    x = state.x.clamp(min=0)
    before, after = (split.verdict(cube, imprint=False) for cube in (frame.x, x))
    if not (accepts(first.verdict(x), first.verdict(frame.x)) and is_better(after, before)):
        return None
    strength, new = math.sqrt(len(split.y)), state
    chain = [stage.strengthened(strength) for stage in plan.stages[1:]]
    try:
        for stage in chain:
            if not watch.over:
                one, its = (first, plan.problem(first.y)) if stage.per_frame else (split, problem)
                new = stage.run(one.A_train, one.y_train, its, new, watch)
        taken = not watch.over and accepts(split.verdict(new.x), split.verdict(state.x))
    except FloatingPointError:  # a network may, on what it was not trained with
        taken = False
    state = new if taken else state
    result = Result(state.x.clamp(min=0), state.history, "stopped" if watch.over else "max_iters")
    return Together(result, len(followed), (before.error, after.error), replace(plan, stages=state.stages), state.begun)


def _followed(frame: Alone, other: Alone, plan: Plan, B: Tensor) -> Tensor | None:
    """The motion from a frame to one beside it; None where the frame so moved does not make the other's snapshot."""
    seen = other.split
    v = optical_flow(_images(other, B), _images(frame, B))
    v = estimate_motion(seen.A_train, seen.y_train, frame.sharp, v, plan.noise.variance(seen.y))
    predicted = MovingScene(frame.split.A, [v]).forward(frame.sharp)[0]
    return v if relative_norm(seen.y - predicted, seen.y) <= FOLLOWED * frame.error else None


def _as_shots(frame: Alone, followed: Sequence[tuple[Alone, Tensor]], plan: Plan) -> tuple[Split, Tensor]:
    """A frame and those beside it, with their motions, as shots of one scene; and the variance of their snapshots.

    Of a shot beside it, what the moved frame leaves unexplained around a pixel is no better known.
    """
    splits = [frame.split, *(other.split for other, _ in followed)]
    A = MovingScene(frame.split.A, [None, *(v for _, v in followed)])
    y, held = torch.stack([split.y for split in splits]), torch.stack([split.held for split in splits])
    misfit = gaussian_blur((y - A.forward(frame.x)).square(), NEAR)
    unexplained = (misfit - USUAL * frame.missed).clamp(min=0)
    unexplained[0] = 0
    variance = plan.noise.variance(y) + unexplained
    return Split(A, y, held, A.leave_out(~held), y.masked_fill(held, 0)), variance


def _images(frame: Alone, B: Tensor) -> Tensor:
    """Coefficient images that motion shows in."""
    return analyse(frame.sharp, B)[:IMAGES].contiguous()
