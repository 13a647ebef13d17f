"""A frame of a sequence reconstructed with what the frames beside it know.

The mask stands still while the scene moves: a neighbor, once it is known how the scene has moved since, is a further
shot through another mask. Motion is taken from reconstructions of each frame alone and corrected by the neighbor's
snapshot; where it explains that badly, that is counted as noise of those detector pixels; and a frame whose held-out
pixels are not predicted better with its neighbors stays as it is alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import candidate_bases, learned_step, pilot_basis
from cassi.choice.candidates import Trial, choose
from cassi.choice.held_out import Split
from cassi.choice.noise import CameraNoise, estimate_noise
from cassi.choice.plan import CHANCE, TV, Method, Plan, Run
from cassi.choice.problem import Problem
from cassi.choice.refine import Watch, allowed, corrected, fresh, planned_problem
from cassi.optics.moving_scene import MovingScene
from cassi.optics.protocol import Camera
from cassi.priors.motion import blurred, flow
from cassi.priors.spectral_basis import analyse
from cassi.solvers.loop import Result, relative_norm
from cassi.solvers.measured_motion import measured_motion
from cassi.solvers.subspace_tv import SubspaceState

HELD_OUT = 0.05  # of a frame's detector pixels
ALONE = 150  # iterations of a frame alone
FIRST, REST = 150, 100  # iterations of a frame with its neighbors, without held-out pixels and with all
SHARE = 0.4  # of the estimated noise: with neighbors more of it is noise than of one snapshot
SIGMA = 0.35  # of the non-local prior, times the root of the number of frames
WORSE = 1.06  # times the error with total variation up to which the non-local prior's cube is taken
NONLOCAL_ITERS = 24  # with the non-local prior, in place of the rest
IMAGES = 4  # coefficient images that motion is taken from
WINDOW = 8.0  # over which it is taken for one, standard deviation [pixel]
NEAR = 2.0  # [pixel] over which misfits are averaged
FOLLOWED = 4.0  # times a frame's own held-out error: a neighbor predicted worse has moved farther than was found
USUAL = 2.0  # times the error at a frame's own held-out pixels is a usual misfit of a neighbor


@dataclass(frozen=True, eq=False)
class Alone:
    """A frame reconstructed without its neighbors and without its held-out pixels.

    Attributes:
        split: the camera and the snapshot.
        state: of the solver at its end.
        x: the cube (C, H, W), >= 0.
        error: relative, at the held-out pixels.
        missed: mean square of the misfit there.
    """

    split: Split
    state: SubspaceState
    x: Tensor
    error: float
    missed: float


class Together(NamedTuple):
    """A frame with its neighbors, how badly held-out pixels of all are predicted by the frame alone and so, the plan.

    The plan is the common one with the priors and iterations that this frame had.
    """

    result: Result
    errors: tuple[float, float]
    plan: Plan


def common_plan(
    A: Camera,
    frames: Tensor,
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    noise: CameraNoise = CameraNoise(),  # noqa: B008  frozen
    method: Method = Method(),  # noqa: B008  frozen
    seed: int = 0,
) -> Plan:
    """Noise, spectral basis and priors that serve a whole sequence, the first two chosen on some of its frames.

    Args:
        A: the camera.
        frames: (n, H, W'), n >= 2.
        wavelengths, noise, method: as for `cassi.choice.automatic.reconstruct_auto`.
        seed: of the held-out pixels.
    """
    bases = candidate_bases(A, wavelengths, method)
    split = Split.of(A, frames, A.majorizer() > 0, seed)
    if noise.gain is not None:
        model = noise.model()
    else:
        model, _, _ = estimate_noise(split, pilot_basis(A, wavelengths))
    trial = Trial(split, model.variance(frames), bases)
    choose(trial, SHARE if noise.gain is None else 1.0, lambda: True)
    best = replace(trial.best.plan, noise=model, vectors=trial.bases[trial.best.plan.basis])
    if method.prior == "tv":
        return replace(best, prior=TV, iterations=(FIRST + REST, 0))
    step = learned_step(A, wavelengths, method)
    return replace(best, prior=f"non-local, {SIGMA:g}", iterations=(FIRST, NONLOCAL_ITERS), learned=step)


def alone(A: Camera, y: Tensor, plan: Plan, *, seed: int = 0) -> Alone:
    """A frame by itself, with total variation, as a plan says.

    Args:
        A: the camera.
        y: a snapshot of it.
        plan: complete, for measurements of this brightness.
        seed: of the held-out pixels.
    """
    split = Split.of(A, y, A.majorizer() > 0, seed, HELD_OUT)
    result, state = planned_problem(plan, y, None).solve(split.A_train, split.y_train, ALONE)
    x = result.x.clamp(min=0)
    misfit = (y - A.forward(x))[split.held]
    return Alone(split, state, x, split.error(x), float(misfit.double().square().mean()))


def together(frame: Alone, neighbors: Sequence[Alone], plan: Plan, run: Run) -> Together | None:
    """A frame with its neighbors as further shots; None where that does not predict held-out pixels better.

    Those of the neighbors tell whether the spectra are right, which the mask hides from the frame's own; those of the
    frame whether it is still this frame. Once taken, it ends as several shots do, with the non-local prior, and with
    the learned one's correction to what the frame's own snapshot says, where that predicts it hardly worse.

    Args:
        frame: the one to reconstruct.
        neighbors: of the same camera.
        plan: as for `alone`.
        run: seed, monitor, bar.

    Returns:
        The result, its cube >= 0, and the errors; None where the frame's own held-out pixels are predicted worse than
        by chance, or all of them no better.
    """
    B = torch.as_tensor(plan.vectors).to(frame.x)
    followed = [(other, v) for other in neighbors if (v := _followed(frame, other, plan, B)) is not None]
    if not followed:
        return None
    first = frame.split
    split, variance = _as_shots(frame, followed, plan)
    problem = Problem(B, variance)
    start = replace(frame.state, e=torch.zeros_like(split.y))
    result, state = problem.solve(split.A_train, split.y_train, FIRST, state=start)
    x = result.x.clamp(min=0)
    own, before, after = first.error(x), split.error(frame.x), split.error(x)
    chance = 2 / math.sqrt(2 * int(first.held.sum()))  # two standard errors of a root mean square
    if own > (1 + chance) * frame.error or after > (1 - CHANCE) * before:
        return None
    watch = Watch(run)
    watch.add(result.history)
    rest = None
    if plan.sigma is not None:
        sigma, count = plan.sigma * math.sqrt(len(split.y)), (plan.iterations or (0, NONLOCAL_ITERS))[1]
        rest, _ = problem.solve(split.A_train, split.y_train, count, state=fresh(state), sigma=sigma, monitor=watch)
        if split.error(rest.x.clamp(min=0)) > WORSE * after:
            rest = None
    if rest is None:
        rest, _ = problem.solve(split.A, split.y, REST, state=state, monitor=watch)
        plan = replace(plan, prior=TV, iterations=(FIRST + REST, 0))
    watch.add(rest.history)
    found, step = replace(rest, history=watch.history), plan.learned
    plan = replace(plan, learned=None)
    if step is not None and not watch.over:
        judged = step(first.A_train, first.y_train, x, variance[0]).x.clamp_(min=0)
        if first.error(judged) <= allowed(own):
            found = corrected(step, first.A, first.y, found, Problem(B, variance[0]))
            plan = replace(plan, learned=step)
    return Together(replace(found, x=found.x.clamp_(min=0)), (before, after), plan)


def _followed(frame: Alone, other: Alone, plan: Plan, B: Tensor) -> Tensor | None:
    """The motion from a frame to one beside it; None where the frame so moved does not make the other's snapshot."""
    seen = other.split
    v = flow(_images(other, B), _images(frame, B), window=WINDOW)
    v = measured_motion(seen.A_train, seen.y_train, frame.x, v, planned_problem(plan, seen.y, None).variance)
    predicted = MovingScene(frame.split.A, [v]).forward(frame.x)[0]
    return v if relative_norm(seen.y - predicted, seen.y) <= FOLLOWED * frame.error else None


def _as_shots(frame: Alone, followed: Sequence[tuple[Alone, Tensor]], plan: Plan) -> tuple[Split, Tensor]:
    """A frame and those beside it, with their motions, as shots of one scene; and the variance of their snapshots.

    Of a shot beside it, what the moved frame leaves unexplained around a pixel is no better known.
    """
    splits = [frame.split, *(other.split for other, _ in followed)]
    A = MovingScene(frame.split.A, [None, *(v for _, v in followed)])
    y, held = torch.stack([split.y for split in splits]), torch.stack([split.held for split in splits])
    misfit = blurred((y - A.forward(frame.x)).square(), NEAR)
    unexplained = (misfit - USUAL * frame.missed).clamp(min=0)
    unexplained[0] = 0
    keep = (~held).to(y)
    variance = planned_problem(plan, y, None).variance + unexplained
    return Split(A, y, held, A.leave_out(keep), y * keep), variance


def _images(frame: Alone, B: Tensor) -> Tensor:
    """Coefficient images that motion shows in."""
    return analyse(frame.x, B)[:IMAGES].contiguous()
