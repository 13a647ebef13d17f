"""A snapshot with a photograph from beside the camera: registered, weighed, solved together where that helps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cassi.calibration.side_noise import noise_of
from cassi.calibration.side_registration import FITS, register, sharpened
from cassi.calibration.side_response import fitted_gain, fitted_response, misfit
from cassi.choice.joint import HARM, Photograph, finished, first_cube, gone_on, split_of, tried
from cassi.choice.outcome import Outcome, SideEvidence
from cassi.choice.plan import Method, Run
from cassi.choice.refine import planned_problem
from cassi.errors import InputError
from cassi.optics.protocol import Camera
from cassi.optics.side_picture import SidePicture, expected_response
from cassi.optics.similarity import Similarity
from cassi.running.preparing import Prepared


def check_side(side: SidePicture, task: Prepared, method: Method, run: Run) -> None:
    """Raise InputError for a side picture that cannot be used here, or settings that do not go with one."""
    bands = task.A.cube_shape[0]
    if isinstance(side.response, np.ndarray) and side.response.shape[1] != bands:
        raise InputError(f"the side response must have {bands} values a channel, got {side.response.shape[1]}")
    if len(task.frames) > 1:
        raise InputError(f"a side picture belongs to one snapshot, got {len(task.frames)}; reconstruct them one by one")
    others = {
        f"solver {method.solver}": method.solver != "auto",
        "an uncertainty": method.uncertainty,
        "a budget": run.budget is not None,
        "a number of iterations": method.num_iters is not None,
    }
    for name in (name for name, given in others.items() if given):
        raise InputError(f"a side picture does not go with {name}; leave one of them out")


def solve_beside(
    A: Camera, y: Tensor, alone: Outcome, side: SidePicture, wavelengths: np.ndarray | None, quality: str, run: Run
) -> Outcome:
    """The default solver's outcome for a snapshot, or a better one with the photograph.

    Args:
        A, y: camera and snapshot, at brightness 1.
        alone: what the default solver made of it; its noise model serves here too.
        side: the photograph.
        wavelengths: of the bands [nm], or None.
        quality, run: as for `cassi.reconstruct`.

    Returns:
        `alone` with a word on why the photograph was left out, or the joint cube.
    """
    if alone.plan is None:
        raise ValueError("a side picture needs the default solver's plan")
    problem = planned_problem(alone.plan, y, None)
    split = split_of(A, y, run.seed)
    cube, error = first_cube(split, problem)
    placed = _registered(side, A, y, cube, wavelengths)
    where = _in_words(placed)
    evidence = SideEvidence(False, "", placed.correlation, _numbers(placed.pose), error)
    if not placed.correlation >= FITS:
        said = f"The side picture was left out: its detail does not agree with the scene's ({where})."
        return replace(alone, side=replace(evidence, message=said))
    bands = A.cube_shape[0] if wavelengths is None else wavelengths
    first = tried(split, problem.variance, placed.photograph, cube, bands)
    # a cube that knows the photograph has better colors, and with these pose and response are found better
    placed = _once_more(placed, A, y, first.cube)
    best = gone_on(tried(split, problem.variance, placed.photograph, first.cube, bands), split)
    where = _in_words(placed)
    evidence = replace(evidence, joint_error=best.error, pose=_numbers(placed.pose))
    if not best.error <= (1 + HARM) * error:
        said = (
            f"The side picture was left out: with it held-out detector pixels are predicted to {best.error:.2%}, "
            f"without to {error:.2%} ({where})."
        )
        return replace(alone, side=replace(evidence, message=said))
    result, prior = finished(best, quality, run)
    said = (
        f"The side picture was used: {where}; with it held-out detector pixels are predicted to {best.error:.2%}, "
        f"without to {error:.2%}."
    )
    evidence = replace(evidence, used=True, message=said, response=placed.photograph.R.double().cpu().tolist())
    return replace(
        alone, result=result, plan=replace(alone.plan, prior=prior, learned=None), side=evidence, discrepancy=None
    )


@dataclass(frozen=True, eq=False)
class _Placed:
    """A side picture in place.

    Attributes:
        picture: (K, h, w), linear, brightest value 1; clipped: (1, h, w), 1 where saturated.
        linear: whether its values were taken as linear, None where that was stated.
        fixed: whether its response is known but for a gain.
        pose, correlation: see `Registered`.
        photograph: the same on the scene's grid.
    """

    picture: Tensor
    clipped: Tensor
    linear: bool | None
    fixed: bool
    pose: Similarity
    correlation: float
    photograph: Photograph


def _registered(side: SidePicture, A: Camera, y: Tensor, cube: Tensor, wavelengths: np.ndarray | None) -> _Placed:
    """Where the picture lies, and how its channels weigh the bands."""
    p = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(side.picture).transpose(2, 0, 1)).astype(np.float64))
    clipped = torch.zeros_like(p[:1]) if side.clip is None else (p >= side.clip).any(0, keepdim=True).to(p)
    p = (p / p.max()).clamp(min=0)
    fixed = isinstance(side.response, np.ndarray)
    curves = side.response if fixed else expected_response(len(p), wavelengths, A.cube_shape[0])
    R = torch.as_tensor(curves, dtype=cube.dtype, device=cube.device)
    found = register(_decoded(p) if side.linear is False else p, A, y, cube, R)
    fits = []
    for linear in (True, False) if side.linear is None else (side.linear,):
        picture = p if linear else _decoded(p)
        photograph = _on_grid(picture, clipped, found.pose, cube, R, fixed)
        said = linear if side.linear is None else None
        placed = _Placed(picture, clipped, said, fixed, found.pose, found.correlation, photograph)
        fits.append((misfit(photograph.R, cube, photograph.s, photograph.seen), placed))
    return min(fits, key=lambda one: one[0])[1]


def _once_more(placed: _Placed, A: Camera, y: Tensor, cube: Tensor) -> _Placed:
    """Pose and response found anew with a better cube."""
    R = placed.photograph.R
    pose, _ = sharpened(placed.picture, placed.pose, A, y, cube, R)
    photograph = _on_grid(placed.picture, placed.clipped, pose, cube, R, placed.fixed)
    return replace(placed, pose=pose, photograph=photograph)


def _on_grid(picture: Tensor, clipped: Tensor, pose: Similarity, cube: Tensor, R: Tensor, fixed: bool) -> Photograph:
    size = (int(cube.shape[-2]), int(cube.shape[-1]))
    whole, seen = pose.sample(1 - clipped, size)
    w = (seen & (whole[0] > 0.99)).to(cube)
    s = pose.sample(picture, size, spline=True)[0].to(cube).clamp(min=0)
    noise = torch.tensor([noise_of(channel.numpy()) for channel in picture]).to(cube)[:, :, None, None]
    averaged = max(1, int(pose.scale)) ** 2
    unit = (R @ cube.mean((1, 2))).mean() / s.mean().clamp(min=1e-30)
    variance = (noise[:, 0] * s + noise[:, 1]) * unit**2 / averaged
    s = s * unit
    return Photograph(s, w, fitted_gain(R, cube, s, w) if fixed else fitted_response(R, cube, s, w), variance)


def _decoded(p: Tensor) -> Tensor:
    """Linear light of display values in [0, 1], IEC 61966-2-1 (sRGB)."""
    return torch.where(p <= 0.04045, p / 12.92, ((p + 0.055) / 1.055) ** 2.4)


def _numbers(pose: Similarity) -> tuple[float, float, float, float]:
    return pose.scale, pose.angle, pose.rows, pose.columns


def _in_words(placed: _Placed) -> str:
    pose = placed.pose
    values = {None: "", True: ", its values taken as linear", False: ", its values taken as coded for a display"}
    return (
        f"moved by {pose.rows:+.2f} rows and {pose.columns:+.2f} columns, turned by {pose.angle:+.2f} degrees, "
        f"{pose.scale:.4g} times as fine{values[placed.linear]}, correlation of its detail {placed.correlation:.2f}"
    )
