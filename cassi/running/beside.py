"""A snapshot with a photograph from beside the camera: registered, weighed, solved together where that helps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cassi.calibration.side_registration import Pose, Registered, register
from cassi.calibration.side_response import expected_response, fitted_gain, fitted_response, misfit
from cassi.choice.joint import GAIN, Photograph, finished, first_cube, split_of, tried
from cassi.choice.outcome import Outcome, SideEvidence
from cassi.choice.plan import Run
from cassi.choice.refine import planned_problem
from cassi.errors import InputError
from cassi.optics.protocol import Camera
from cassi.optics.side_picture import SidePicture


def check_side(side: SidePicture, num_bands: int, **others: object) -> None:
    """Raise InputError for curves of another number of bands, or settings that do not go with a side picture."""
    if isinstance(side.response, np.ndarray) and side.response.shape[1] != num_bands:
        raise InputError(
            f"the side response must have a value for each of {num_bands} bands, got {side.response.shape[1]}"
        )
    for name, given in others.items():
        if given:
            raise InputError(f"a side picture does not go with {name.replace('_', ' ')}; leave one of them out")


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
    found, photograph, linear = _placed(side, A, y, cube, wavelengths)
    where = _in_words(found, side, linear)
    evidence = SideEvidence(False, "", found.correlation, tuple(vars(found.pose).values()), error)
    if not found.fits:
        said = f"The side picture was left out: its detail does not agree with the scene's ({where})."
        return replace(alone, side=replace(evidence, message=said))
    bands = A.cube_shape[0] if wavelengths is None else wavelengths
    best = tried(split, problem.variance, photograph, cube, bands)
    evidence = replace(evidence, joint_error=best.error)
    if not best.error < (1 - GAIN) * error:
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
    evidence = replace(
        evidence, used=True, message=said, power=best.power, response=photograph.R.double().cpu().tolist()
    )
    return replace(
        alone, result=result, plan=replace(alone.plan, prior=prior, learned=None), side=evidence, discrepancy=None
    )


def _placed(
    side: SidePicture, A: Camera, y: Tensor, cube: Tensor, wavelengths: np.ndarray | None
) -> tuple[Registered, Photograph, bool]:
    """The photograph on the scene's grid, where it lies in it, and whether its values were taken as linear."""
    p = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(side.picture).transpose(2, 0, 1)).astype(np.float64))
    clipped = torch.zeros_like(p[:1]) if side.clip is None else (p >= side.clip).any(0, keepdim=True).to(p)
    p = (p / p.max()).clamp(min=0)
    stated = isinstance(side.response, np.ndarray)
    curves = side.response if stated else expected_response(len(p), wavelengths, A.cube_shape[0])
    R = torch.as_tensor(curves, dtype=cube.dtype, device=cube.device)
    found = register(_decoded(p) if side.linear is False else p, A, y, cube, R)
    size = (int(cube.shape[-2]), int(cube.shape[-1]))
    whole, seen = found.pose.sample(1 - clipped, size)
    w = (seen & (whole[0] > 0.99)).to(cube)

    def fitted(linear: bool) -> tuple[float, Photograph]:
        s, _ = found.pose.sample(p if linear else _decoded(p), size)
        s = s.to(cube).clamp(min=0)
        s = s * (R @ cube.mean((1, 2))).mean() / s.mean().clamp(min=1e-30)
        own = fitted_gain(R, cube, s, w) if stated else fitted_response(R, cube, s, w)
        return misfit(own, cube, s, w), Photograph(s, w, own)

    choices = (True, False) if side.linear is None else (side.linear,)
    fits = {linear: fitted(linear) for linear in choices}
    linear = min(fits, key=lambda one: fits[one][0])
    return found, fits[linear][1], linear


def _decoded(p: Tensor) -> Tensor:
    """Linear light of display values in [0, 1], IEC 61966-2-1 (sRGB)."""
    return torch.where(p <= 0.04045, p / 12.92, ((p + 0.055) / 1.055) ** 2.4)


def _in_words(found: Registered, side: SidePicture, linear: bool) -> str:
    pose: Pose = found.pose
    values = "" if side.linear is not None else ", its values taken as " + ("linear" if linear else "coded for a display")
    return (
        f"moved by {pose.rows:+.2f} rows and {pose.columns:+.2f} columns, turned by {pose.angle:+.2f} degrees, "
        f"{pose.scale:.4g} times as fine{values}, correlation of its detail {found.correlation:.2f}"
    )
