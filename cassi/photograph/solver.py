"""A snapshot with a photograph from beside the camera: registered, weighed, solved together where that helps."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from cassi.choice.held_out import Split
from cassi.choice.judge import POOR_FIT, accepts
from cassi.choice.outcome import Outcome, SideEvidence
from cassi.choice.stages import Watch
from cassi.errors import InputError
from cassi.optics.protocol import Camera
from cassi.photograph.joint import Photograph, finished, first_cube, gone_on, tried
from cassi.photograph.picture import SidePicture, expected_response
from cassi.photograph.registration import FITS, NOT_SEEN, register, sharpened
from cassi.photograph.response import fitted_gain, fitted_response, fitted_tone, misfit, noise_of
from cassi.photograph.similarity import Similarity
from cassi.settings import Settings

DOUBT, TONE_DOUBT = 0.03, 0.1  # of a `Photograph` whose values are stated or of a usual coding, or fitted
# Most that may be left of a photograph, see `misfit`: 0.14 and less of 30 that helped, 0.24 and more where it harmed.
# Up to `POOR_FIT` may be left where the snapshot alone shows little of the scene, if no tone curve does clearly better.
MAX_REST = 0.2
BLENDED = 2  # pixels at the edge of corners without data into which these are interpolated
TONE_GAIN = 0.8  # a fitted tone curve does if it leaves less than this share of what the values as they are leave


def check_side(side: SidePicture, bands: int, num_scenes: int) -> None:
    """Raise InputError for a side picture that cannot be used with a camera of so many bands and these snapshots."""
    if side.response is not None and side.response.shape[1] != bands:
        raise InputError(f"the side response must have {bands} values a channel, got {side.response.shape[1]}")
    if num_scenes > 1:
        raise InputError(f"a side picture belongs to one snapshot, got {num_scenes}; reconstruct them one by one")


def solve_beside(
    A: Camera,
    y: Tensor,
    alone: Outcome,
    side: SidePicture,
    wavelengths: np.ndarray | None,
    settings: Settings,
    watch: Watch,
) -> Outcome:
    """The default solver's outcome `alone` for a snapshot at brightness 1, or a better one with the photograph.

    Returns:
        `alone` with a word on why the photograph was left out, or the joint cube.
    """
    if alone.plan is None:
        raise ValueError("a side picture needs the default solver's plan")
    problem = alone.plan.problem(y)
    split = Split.of(A, y, settings.seed)
    cube, error = first_cube(split, problem)
    placed = _registered(side, A, y, cube, wavelengths)
    where = _in_words(placed)
    evidence = SideEvidence(False, "", placed.correlation, astuple(placed.pose), error)
    is_there = placed.correlation >= FITS
    if not is_there or not _agrees(placed, cube):
        what = "values do" if is_there else "detail does"
        said = f"The side picture was left out: its {what} not agree with the scene's ({where})."
        return replace(alone, side=replace(evidence, message=said))
    bands = A.cube_shape[0] if wavelengths is None else wavelengths
    first = tried(split, problem.variance, placed.photograph, cube, bands)
    # a cube that knows the photograph has better colors, and with these pose and response are found better
    placed = _once_more(placed, A, y, first.cube)
    best = gone_on(tried(split, problem.variance, placed.photograph, first.cube, bands), split)
    where = _in_words(placed)
    evidence = replace(evidence, joint_error=best.error, pose=astuple(placed.pose))
    told = f"with it held-out detector pixels are predicted to {best.error:.2%}, without to {error:.2%}"
    if not accepts(split.verdict(best.cube), split.verdict(cube)):
        said = f"The side picture was left out: {told} ({where})."
        return replace(alone, side=replace(evidence, message=said))
    result, stages, begun = finished(best, settings.quality, watch)
    said = f"The side picture was used: {where}; {told}."
    evidence = replace(evidence, used=True, message=said, response=placed.photograph.R.double().cpu().tolist())
    basis = best.joint.problem.basis
    plan = replace(alone.plan, basis=f"smooth-{len(basis)}", vectors=basis, stages=stages, learned=None)
    known = alone.evidence if alone.evidence is None else replace(alone.evidence, held_out_error=best.error, trials=())
    return replace(alone, result=result, plan=plan, evidence=known, side=evidence, discrepancy=None, begun=begun)


@dataclass(frozen=True, eq=False)
class _Placed:
    """A side picture in place: itself (K, h, w), linear, brightest value 1, and the same on the scene's grid."""

    picture: Tensor
    clipped: Tensor  # (1, h, w), 1 where saturated or without data
    values: str  # what they were taken to be, empty where that was stated
    fixed: bool  # its response is known but for a gain
    pose: Similarity
    correlation: float
    photograph: Photograph
    rest: float  # of it that a first cube does not explain, see `misfit`


def _registered(side: SidePicture, A: Camera, y: Tensor, cube: Tensor, wavelengths: np.ndarray | None) -> _Placed:
    """Where the picture lies, what its values mean, and how its channels weigh the bands."""
    p = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(side.picture).transpose(2, 0, 1)).astype(np.float64))
    clipped = torch.zeros_like(p[:1]) if side.clip is None else (p >= side.clip).any(0, keepdim=True).to(p)
    p = (p / (p.max() if side.clip is None else side.clip)).clamp(min=0)  # display values mean something below 1 only
    p, blank = _without_blank_corners(p)
    clipped = torch.maximum(clipped, blank.to(p))
    fixed = side.response is not None
    curves = expected_response(len(p), wavelengths, A.cube_shape[0]) if side.response is None else side.response
    R = torch.as_tensor(curves, dtype=cube.dtype, device=cube.device)

    def place(picture: Tensor, values: str, doubt: float = DOUBT) -> _Placed:
        found = register(picture, A, y, cube, R)
        photograph, rest = _on_grid(picture, clipped, found.pose, cube, R, fixed, doubt)
        return _Placed(picture, clipped, values, fixed, found.pose, found.correlation, photograph, rest)

    if side.linear is not None:
        return place(p if side.linear else _decoded(p), "")
    tried = (place(p, "as linear"), place(_decoded(p), "as coded for a display"))
    best = min(tried, key=lambda one: one.rest)
    limit = TONE_GAIN * best.rest
    for _ in range(2):  # once more in the place that is found with the curve
        picture = _toned(p, best, cube)
        if not _on_grid(picture, clipped, best.pose, cube, R, fixed, TONE_DOUBT)[1] < limit:
            break
        best = place(picture, "to follow a tone curve fitted to the scene", TONE_DOUBT)
    return best


def _without_blank_corners(p: Tensor) -> tuple[Tensor, Tensor]:
    """A picture (K, h, w) whose corners without data go on as at their edge, and where these are, (h, w) bool.

    A picture that was turned or straightened has corners that are 0 in all channels; blended pixels are at their edge.
    """
    labels, _ = ndimage.label((p == 0).all(0).numpy())
    corners = labels[[0, 0, -1, -1], [0, -1, 0, -1]]
    blank = np.isin(labels, corners[corners > 0])
    if not blank.any() or blank.all():
        return p, torch.zeros(p.shape[1:], dtype=torch.bool)
    blank = ndimage.binary_dilation(blank, iterations=BLENDED)
    nearest = ndimage.distance_transform_edt(blank, return_distances=False, return_indices=True)
    return p[:, nearest[0], nearest[1]], torch.from_numpy(blank)


def _agrees(placed: _Placed, cube: Tensor) -> bool:
    """Whether what is left of the picture is little, or no tone curve would leave clearly less."""
    if placed.rest <= MAX_REST or placed.rest > POOR_FIT:
        return placed.rest <= MAX_REST
    toned, R = _toned(placed.picture, placed, cube), placed.photograph.R
    _, rest = _on_grid(toned, placed.clipped, placed.pose, cube, R, placed.fixed, TONE_DOUBT)
    return rest >= TONE_GAIN * placed.rest


def _toned(p: Tensor, placed: _Placed, cube: Tensor) -> Tensor:
    """Its values through the tone curve that fits best where it was placed; brightest value 1."""
    photograph = placed.photograph
    s = placed.pose.sample(p, (int(cube.shape[-2]), int(cube.shape[-1])), spline=True)[0]
    tone = fitted_tone(s, photograph.seen, torch.einsum("kc,chw->khw", photograph.R, cube))
    light = tone(p)
    return light / light.max().clamp(min=1e-30)


def _once_more(placed: _Placed, A: Camera, y: Tensor, cube: Tensor) -> _Placed:
    """Pose and response found anew with a better cube."""
    R = placed.photograph.R
    pose, _ = sharpened(placed.picture, placed.pose, A, y, cube, R)
    photograph, rest = _on_grid(placed.picture, placed.clipped, pose, cube, R, placed.fixed, placed.photograph.doubt)
    return replace(placed, pose=pose, photograph=photograph, rest=rest)


def _on_grid(
    picture: Tensor, clipped: Tensor, pose: Similarity, cube: Tensor, R: Tensor, fixed: bool, doubt: float
) -> tuple[Photograph, float]:
    """The picture on the scene's grid in units of R x, and `misfit`."""
    size = (int(cube.shape[-2]), int(cube.shape[-1]))
    whole, seen = pose.sample(1 - clipped, size)
    w = (seen & (whole[0] > 0.99)).to(cube)
    s = pose.sample(picture, size, spline=True)[0].to(cube).clamp(min=0)
    noise = torch.tensor([noise_of(channel.numpy()) for channel in picture]).to(cube)[:, :, None, None]
    averaged = max(1, int(pose.scale)) ** 2
    unit = (R @ cube.mean((1, 2))).mean() / s.mean().clamp(min=1e-30)
    variance = (noise[:, 0] * s + noise[:, 1]) * unit**2 / averaged
    s = s * unit
    R = fitted_gain(R, cube, s, w) if fixed else fitted_response(R, cube, s, w)
    return Photograph(s, w, R, variance, doubt), misfit(R, cube, s, w)


def _decoded(p: Tensor) -> Tensor:
    """Linear light of display values in [0, 1], IEC 61966-2-1 (sRGB)."""
    return torch.where(p <= 0.04045, p / 12.92, ((p + 0.055) / 1.055) ** 2.4)


def _in_words(placed: _Placed) -> str:
    pose = placed.pose
    values = f", its values taken {placed.values}" if placed.values else ""
    seen, correlation = placed.correlation > NOT_SEEN, f"correlation of its detail {placed.correlation:.2f}"
    detail = correlation if seen else "where it shows too little of the scene"
    return (
        f"moved by {pose.rows:+.2f} rows and {pose.columns:+.2f} columns, turned by {pose.angle:+.2f} degrees, "
        f"{pose.scale:.4g} times as fine{values}, {detail}"
    )
