"""The camera that a measurement was taken with, found from the measurement and believed only on clear evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from cassi.evidence.judge import not_worse
from cassi.kernels.caller import undisturbed
from cassi.optics.cropping import Shot
from cassi.optics.detector import check_light
from cassi.optics.mask_match import compare_with_mask
from cassi.optics.measurement import Measurement, any_bad, check_camera
from cassi.priors.learned import DEFAULT, LearnedPrior, as_prior
from cassi.self_calibration.camera_model import CameraModel, band_positions, shift_columns, unseen_pixels
from cassi.self_calibration.defects import leave_out_defects
from cassi.self_calibration.elements import correct_elements
from cassi.self_calibration.elements_of_several import of_other_scenes
from cassi.self_calibration.found_camera import FoundCamera
from cassi.self_calibration.pose import MIN_BLOCKS, Search, find_dispersion, find_model, refine_pose
from cassi.self_calibration.regression import COARSE, FINE, FITTED_BLOCK, Look, Snapshots, tiles
from cassi.self_calibration.scenes import CPU, Report, Scenes, bad_pixels_of, first_frames, not_looked_for, through
from cassi.self_calibration.trials import Trials, judge, simplified
from cassi.types import PathLike

SHARE = 0.5  # of the progress: the pose, then proposals; of the pose, the search, then trials
# What may be wrong with a camera whose mask is in place, in the order in which it is looked for. Each is a function
# f(scenes, report) -> FoundCamera, which returns `scenes.found` itself where nothing better is believed.
PROPOSALS: tuple[Callable[[Scenes, Report], FoundCamera], ...] = (leave_out_defects, correct_elements)


@undisturbed
def find_camera(
    *measurements: Measurement,
    black_level: float | None = None,
    seed: int = 0,
    dispersion: bool = False,
    mask_error: bool = True,
    weights: PathLike | LearnedPrior | None = DEFAULT,
    device: torch.device = CPU,
    report: Report = lambda share: None,
) -> FoundCamera:
    """Find the camera from snapshots of unknown scenes: one measurement, or several with one mask.

    A model of its pose and optics is fitted to the mask's pattern in the snapshots (`cassi.self_calibration.pose`).
    Each group of terms is taken where blocks that it was not fitted to are explained clearly better, and the model
    unless a short reconstruction with it predicts held-out detector pixels worse; else the camera is left as given.
    Such a reconstruction scarcely sees a contrast of 0.8 (z from -0.4 to 3.6), which costs up to 5 dB unfound.
    Then come `PROPOSALS`: defects of the detector are left out (`cassi.self_calibration.defects`), and the error of
    each element of the mask is learned (`elements`), and taken where held-out pixels agree.

    Args:
        measurements: with the mask and the shifts as believed.
        black_level: subtracted, in the unit of y; None: estimated from each snapshot that was read without one.
        seed: of the held-out pixels.
        dispersion: find the mask's place and the dispersion, and nothing else.
        mask_error: learn the error of the mask's elements, too; all other proposals are made in any case.
        weights: of the network that this uses, by name, as a file, or loaded; None: total variation alone, which finds
            fewer errors.
        device: of the short reconstructions; the model is fitted on the CPU.
        report: called with the share of the work that is done.

    Returns:
        The `FoundCamera`, as given where the snapshots do not show it.

    Raises:
        ValueError: no measurement, or snapshots of different sizes.
        InputError: they are negative, or have different masks, shifts or wavelengths.
    """
    if not measurements:
        raise ValueError("no measurement given to find the camera from; give one at least")
    report(0.0)
    proposals = () if dispersion else [one for one in PROPOSALS if mask_error or one is not correct_elements]
    learns = correct_elements in proposals
    whole = SHARE if learns else 1
    found = _find_pose(measurements, black_level, seed, dispersion, device, lambda share: report(share * whole))
    scenes = Scenes(found, measurements, black_level, seed, as_prior(weights) if learns else None, device)
    for propose in proposals:
        if scenes.camera is None:
            break
        found = propose(scenes, lambda share: report(SHARE + (1 - SHARE) * share))
        scenes = scenes if found is scenes.found else replace(scenes, found=found)
    return scenes.found


def _find_pose(
    measurements: Sequence[Measurement], black_level: float | None, seed: int, dispersion: bool, on: torch.device,
    report: Report,
) -> FoundCamera:  # fmt: skip
    """The camera with its mask where and as sharp as the snapshots show it."""
    m = measurements[0]
    if any(other.y.shape[-2:] != m.y.shape[-2:] for other in measurements):
        raise ValueError("the snapshots differ in size; give those of one camera and one region")
    check_camera(measurements)
    m = replace(m, bad_pixels=any_bad(one.bad_pixels for one in measurements))
    given = FoundCamera.as_given(m)
    if reason := not_looked_for(m):
        return replace(given, reason=reason)
    A, bad = through(m, m.mask, on), bad_pixels_of(m, on)

    def frames(camera: Shot) -> list[torch.Tensor]:
        return [frame for one in measurements for frame in first_frames(one, camera, bad, black_level)]

    def search(frames: list[torch.Tensor], look: Look) -> Search:
        return Search(Snapshots.of(torch.stack(frames).cpu().numpy(), m.bad_pixels, look), m.mask, m.shifts)

    # fit: roughly, then closely
    y = frames(A)
    check_light(torch.stack(y))  # a reconstruction would refuse it, after a search in vain
    roughly = search(y, COARSE)
    if sum(len(tiles(good)) for good in roughly.snapshots.good) < MIN_BLOCKS:
        small = f"the snapshot is too small, or too little of it is lit: {MIN_BLOCKS} blocks of"
        return replace(given, reason=f"{small} {FITTED_BLOCK} x {FITTED_BLOCK} pixels are needed")
    find = find_dispersion if dispersion else find_model
    check, start = compare_with_mask(m), None
    if check.kind == "displaced":
        down, right = map(float, check.displacement)
        start = CameraModel(down={"1": down}, right={"1": right})
    model = find(roughly, lambda share: report(SHARE * share), start)
    if model.exact:
        return given
    mask = model.masks(m.mask, m.shifts)
    # With a misplaced mask a black level is estimated that is not there, which would pass for contrast.
    y_found = frames(through(m, mask, on))
    model = refine_pose(search(y_found, FINE), model, mask)
    model = replace(model, contrast=1.0) if dispersion else model
    if model.exact:
        return given

    # compare: short reconstructions
    trials = Trials.of(A, y, bad, seed)
    report((1 + SHARE) / 2)
    model, fits = simplified(model, lambda model: trials.fits(through(m, model.masks(m.mask, m.shifts), on), y_found))
    as_given, as_found = judge(trials.given, fits), judge(fits)
    mask = model.masks(m.mask, m.shifts)
    found = replace(given, errors=(as_given.error, as_found.error))

    # accept: where it is no worse, and the snapshot shows one of the two
    if model.exact or not not_worse(as_found, as_given):
        return found
    taken = _accept(found, m, model, mask)
    if not any(compare_with_mask(one).matches for one in (m, taken.in_place(replace(m, check=None)))):
        return replace(found, reason="the snapshot shows neither the mask as given nor another that is near it")
    return taken


@undisturbed
def align(
    y: torch.Tensor, mask: torch.Tensor, shifts: Sequence[int], *, bad_pixels: torch.Tensor | None = None,
    black_level: float | None = None, seed: int = 0,
) -> FoundCamera:  # fmt: skip
    """Find the mask's place and the dispersion from a snapshot y (H, W') or (N, H, W'): `find_camera` of arrays.

    Rotation and the displacement across the dispersion are found best. Along it, what is seen is where the brightest
    bands lie, and a spectrum that fades out looks much like a compressed one. The mask is (H, W) or (C, H, W), with C
    shifts [pixel]; bad_pixels is (H, W') bool.

    Returns:
        The `FoundCamera`; check `accepted`. Its `register` belongs to the cube that is reconstructed with it.

    Raises:
        InputError: shapes that do not fit, or a snapshot of negative light.

    Example:
        >>> from cassi import CASSI
        >>> mask = torch.rand(128, 128, generator=torch.Generator().manual_seed(0))
        >>> y = CASSI(mask, (0, 2, 4, 6)).forward(torch.ones(4, 128, 128))
        >>> align(y, mask, (0, 2, 4, 6)).accepted
        False
    """
    m = Measurement(
        y=y.cpu().float().numpy(),
        mask=mask.cpu().float().numpy(),
        shifts=tuple(shifts),
        bad_pixels=None if bad_pixels is None else bad_pixels.cpu().bool().numpy(),
    )
    return find_camera(m, black_level=black_level, seed=seed, dispersion=True, device=y.device)


def _accept(found: FoundCamera, m: Measurement, model: CameraModel, mask: np.ndarray) -> FoundCamera:
    """With a model and its masks, accepted.

    A dispersion d'_c = n_c + f_c goes into whole shifts n_c, the outermost as given, for these mark the detector's
    ends, and masks that are moved by f_c: y[i, j + n_c] += m_c[i, j - f_c] x_c[i, j - f_c].
    """
    right, t = dict(model.right), band_positions(len(m.shifts))
    first, last = int(np.argmin(m.shifts)), int(np.argmax(m.shifts))
    s = right.pop("t", 0.0)
    if s:  # all behind the mask moves with it, but for the band of the smallest shift
        right["1"] += s * t[first]
    model = replace(model, right=right)
    real = np.asarray(m.shifts) + s * (t - t[first])
    whole = np.clip(np.rint(real), min(m.shifts), max(m.shifts)).astype(int)
    whole[[first, last]] = m.shifts[first], m.shifts[last]
    if s:
        mask = shift_columns(torch.as_tensor(model.masks(m.mask, m.shifts)), tuple(real - whole)).numpy()
        mask = np.clip(mask, 0, m.mask.max())
    shifts = tuple(int(d) for d in whole) if s else m.shifts
    return replace(
        found,
        mask=mask,
        shifts=shifts,
        model=model,
        accepted=True,
        dispersion=2 * s / (m.shifts[-1] - m.shifts[0]) if s else 0.0,
        remainders=tuple(float(f) for f in real - whole) if s else (),
        left_out=unseen_pixels(mask, model.beyond(mask.shape[-2:], len(shifts)), shifts),
    )


def of_scenes_of_their_own(measurements: Sequence[Measurement], black_level: float | None = None) -> list[int]:
    """Which of these are not dark, and begin with a scene that none before them begins with."""
    return of_other_scenes(
        [first_frames(m, through(m, m.mask), bad_pixels_of(m), black_level)[0] for m in measurements]
    )


def predictions(m: Measurement, found: FoundCamera, *, black_level: float | None = None, seed: int = 0) -> float:
    """Held-out error of a short reconstruction of a measurement with a camera; arguments as for `find_camera`."""
    given, bad = through(m, m.mask), bad_pixels_of(m)
    camera = through(replace(m, shifts=found.shifts), found.mask)
    m = m if found.sensitivity is None else replace(m, sensitivity=found.sensitivity)
    y = first_frames(m, camera, bad, black_level)
    return judge(Trials.of(given, y, bad, seed).fits(camera, y)).error
