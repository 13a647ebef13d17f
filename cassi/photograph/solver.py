"""Reconstruction of a snapshot with a photograph: registration, response, and a joint solution if it helps."""

from dataclasses import astuple, dataclass, replace

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from cassi.choice.outcome import Outcome, SideEvidence
from cassi.choice.stages import Tv, Watch
from cassi.errors import InputError
from cassi.evidence.held_out import Split
from cassi.evidence.judge import POOR_FIT, accepts
from cassi.optics.protocol import Camera
from cassi.optics.srgb import decode_srgb
from cassi.photograph.joint import ALONE_ITERS, Photograph, continue_fit, finish_fit, fit_briefly
from cassi.photograph.picture import SidePicture, expected_response
from cassi.photograph.registration import MIN_CORRELATION, NO_OVERLAP, fit_to_snapshot, register
from cassi.photograph.response import estimate_noise, fit_gain, fit_response, fit_tone_curve, misfit
from cassi.photograph.similarity import Similarity
from cassi.settings import Settings

VALUE_ERROR, TONE_ERROR = 0.03, 0.1  # of a `Photograph` with stated or usual values, or a fitted tone curve
# Largest acceptable `misfit` of a photograph: it was at most 0.14 for 30 that helped, at least 0.24 where one harmed.
# Up to `POOR_FIT` is accepted if no tone curve is clearly better, as the snapshot alone may show little of the scene.
MAX_MISFIT = 0.2
BLENDED = 2  # width of the interpolated edge of corners without data [pixel]
TONE_GAIN = 0.8  # a tone curve is used if it reduces the misfit to less than this share


def check_side(side: SidePicture, bands: int, num_scenes: int) -> None:
    """Raise InputError if a photograph cannot be used with this number of bands and scenes."""
    if side.response is not None and side.response.shape[1] != bands:
        raise InputError(
            f"the response of the photograph must have {bands} values per channel, got {side.response.shape[1]}"
        )
    if num_scenes > 1:
        raise InputError(f"a photograph belongs to one snapshot, got {num_scenes}; reconstruct them one by one")


def solve_beside(
    A: Camera,
    y: Tensor,
    alone: Outcome,
    side: SidePicture,
    wavelengths: np.ndarray | None,
    settings: Settings,
    watch: Watch,
) -> Outcome:
    """Improve the outcome `alone` of the default solver, for a snapshot of brightness 1, with a photograph.

    Returns:
        The joint outcome, or `alone` with the reason why the photograph was not used.
    """
    if alone.plan is None:
        raise ValueError("a photograph needs the plan of the default solver")
    problem = alone.plan.problem(y)
    split = Split.of(A, y, settings.seed)
    cube = Tv(ALONE_ITERS).run(split.A_train, split.y_train, problem).x.clamp(min=0)
    error = split.error(cube)
    placement = _place(side, A, y, cube, wavelengths)
    where = _describe(placement)
    evidence = SideEvidence(False, "", placement.correlation, astuple(placement.pose), error)
    shows_scene = placement.correlation >= MIN_CORRELATION
    if not shows_scene or not _agrees(placement, cube):
        what = "values do" if shows_scene else "detail does"
        message = f"The photograph was not used: its {what} not agree with the scene ({where})."
        return replace(alone, side=replace(evidence, message=message))
    bands = A.cube_shape[0] if wavelengths is None else wavelengths
    first = fit_briefly(split, problem.variance, placement.photograph, cube, bands)
    # with the photograph the colors are better, and so are then pose and response
    placement = _update(placement, A, y, first.cube)
    best = continue_fit(fit_briefly(split, problem.variance, placement.photograph, first.cube, bands), split)
    where = _describe(placement)
    evidence = replace(evidence, joint_error=best.error, pose=astuple(placement.pose))
    errors = f"error at held-out detector pixels {best.error:.2%} with it, {error:.2%} without"
    judge = split.knowing(problem.variance)
    if not accepts(judge.verdict(best.cube), judge.verdict(cube)):
        message = f"The photograph was not used: {errors} ({where})."
        return replace(alone, side=replace(evidence, message=message))
    result, stages, starts = finish_fit(best, settings.quality, watch)
    message = f"The photograph was used: {where}; {errors}."
    evidence = replace(evidence, used=True, message=message, response=placement.photograph.R.double().cpu().tolist())
    basis = best.joint.problem.basis
    plan = replace(alone.plan, basis=f"smooth-{len(basis)}", vectors=basis, stages=stages, learned=None)
    judged = alone.evidence if alone.evidence is None else replace(alone.evidence, held_out_error=best.error, trials=())
    made = replace(alone, result=result, plan=plan, plan_alone=alone.plan, evidence=judged, side=evidence)
    return replace(made, discrepancy=None, stage_starts=starts)


@dataclass(frozen=True, eq=False)
class _Placement:
    """A registered photograph: (K, h, w), linear, brightest value 1, and the same on the grid of the scene."""

    picture: Tensor
    clipped: Tensor  # (1, h, w), 1 where saturated or without data
    values: str  # how they were interpreted, empty if stated
    fixed: bool  # whether its response is known up to a gain
    pose: Similarity
    correlation: float
    photograph: Photograph
    misfit: float  # of the first cube, see `misfit`


def _place(side: SidePicture, A: Camera, y: Tensor, cube: Tensor, wavelengths: np.ndarray | None) -> _Placement:
    """Register the picture, interpret its values, and fit the response of its channels."""
    p = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(side.picture).transpose(2, 0, 1)).astype(np.float64))
    clipped = torch.zeros_like(p[:1]) if side.clip is None else (p >= side.clip).any(0, keepdim=True).to(p)
    p = (p / (p.max() if side.clip is None else side.clip)).clamp(min=0)  # display values are defined up to 1
    p, blank = _fill_blank_corners(p)
    clipped = torch.maximum(clipped, blank.to(p))
    fixed = side.response is not None
    curves = expected_response(len(p), wavelengths, A.cube_shape[0]) if side.response is None else side.response
    R = torch.as_tensor(curves, dtype=cube.dtype, device=cube.device)

    def place(picture: Tensor, values: str, relative_error: float = VALUE_ERROR) -> _Placement:
        pose, correlation = register(picture, A, y, cube, R)
        photograph, rest = _resample(picture, clipped, pose, cube, R, fixed, relative_error)
        return _Placement(picture, clipped, values, fixed, pose, correlation, photograph, rest)

    if side.linear is not None:
        return place(p if side.linear else decode_srgb(p), "")
    interpretations = (place(p, "as linear"), place(decode_srgb(p), "as coded for a display"))
    best = min(interpretations, key=lambda placement: placement.misfit)
    limit = TONE_GAIN * best.misfit
    for _ in range(2):  # again at the pose found with the curve
        picture = _apply_tone_curve(p, best, cube)
        if not _resample(picture, clipped, best.pose, cube, R, fixed, TONE_ERROR)[1] < limit:
            break
        best = place(picture, "with a tone curve fitted to the scene", TONE_ERROR)
    return best


def _fill_blank_corners(p: Tensor) -> tuple[Tensor, Tensor]:
    """A picture (K, h, w) whose corners without data are filled from their edge, and a map of these, (h, w) bool.

    A rotated or straightened picture has corners that are 0 in all channels, with blended pixels at their edge.
    """
    labels, _ = ndimage.label((p == 0).all(0).numpy())
    corners = labels[[0, 0, -1, -1], [0, -1, 0, -1]]
    blank = np.isin(labels, corners[corners > 0])
    if not blank.any() or blank.all():
        return p, torch.zeros(p.shape[1:], dtype=torch.bool)
    blank = ndimage.binary_dilation(blank, iterations=BLENDED)
    nearest = ndimage.distance_transform_edt(blank, return_distances=False, return_indices=True)
    return p[:, nearest[0], nearest[1]], torch.from_numpy(blank)


def _agrees(placement: _Placement, cube: Tensor) -> bool:
    """Whether the misfit is small, or no tone curve would make it clearly smaller."""
    if placement.misfit <= MAX_MISFIT or placement.misfit > POOR_FIT:
        return placement.misfit <= MAX_MISFIT
    corrected, R = _apply_tone_curve(placement.picture, placement, cube), placement.photograph.R
    _, rest = _resample(corrected, placement.clipped, placement.pose, cube, R, placement.fixed, TONE_ERROR)
    return rest >= TONE_GAIN * placement.misfit


def _apply_tone_curve(p: Tensor, placement: _Placement, cube: Tensor) -> Tensor:
    """The picture with the tone curve that fits best at its pose; brightest value 1."""
    photograph = placement.photograph
    s = placement.pose.sample(p, cube.shape[-2:], spline=True)[0]
    tone = fit_tone_curve(s, photograph.usable, torch.einsum("kc,chw->khw", photograph.R, cube))
    light = tone(p)
    return light / light.max().clamp(min=1e-30)


def _update(placement: _Placement, A: Camera, y: Tensor, cube: Tensor) -> _Placement:
    """Fit pose and response again with a better cube."""
    R = placement.photograph.R
    pose, _ = fit_to_snapshot(placement.picture, placement.pose, A, y, cube, R)
    photograph, rest = _resample(
        placement.picture, placement.clipped, pose, cube, R, placement.fixed, placement.photograph.relative_error
    )
    return replace(placement, pose=pose, photograph=photograph, misfit=rest)


def _resample(
    picture: Tensor, clipped: Tensor, pose: Similarity, cube: Tensor, R: Tensor, fixed: bool, relative_error: float
) -> tuple[Photograph, float]:
    """The picture on the grid of the scene in units of R x, and its `misfit`."""
    size = cube.shape[-2:]
    whole, inside = pose.sample(1 - clipped, size)
    w = (inside & (whole[0] > 0.99)).to(cube)
    s = pose.sample(picture, size, spline=True)[0].to(cube).clamp(min=0)
    noise = torch.tensor([estimate_noise(channel.numpy()) for channel in picture]).to(cube)[:, :, None, None]
    averaged = max(1, int(pose.scale)) ** 2
    unit = (R @ cube.mean((1, 2))).mean() / s.mean().clamp(min=1e-30)
    variance = (noise[:, 0] * s + noise[:, 1]) * unit**2 / averaged
    s = s * unit
    R = fit_gain(R, cube, s, w) if fixed else fit_response(R, cube, s, w)
    return Photograph(s, w, R, variance, relative_error), misfit(R, cube, s, w)


def _describe(placement: _Placement) -> str:
    pose = placement.pose
    values = f", its values interpreted {placement.values}" if placement.values else ""
    overlaps, correlation = placement.correlation > NO_OVERLAP, f"correlation of its detail {placement.correlation:.2f}"
    detail = correlation if overlaps else "where it shows too little of the scene"
    return (
        f"moved by {pose.rows:+.2f} rows and {pose.columns:+.2f} columns, rotated by {pose.angle:+.2f} degrees, "
        f"{pose.scale:.4g} times as fine{values}, {detail}"
    )
