"""The camera that a measurement was taken with, found from the measurement and believed only on clear evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from cassi.evidence.judge import is_better
from cassi.kernels.caller import undisturbed
from cassi.optics.building import build_shot_camera
from cassi.optics.cropping import Shot, crop, highest_variance_window
from cassi.optics.detector import black_level_of, check_light
from cassi.optics.mask_match import compare_with_mask
from cassi.optics.measurement import MAX_TRANSMISSION, Measurement, any_bad, check_camera
from cassi.optics.outliers import MAX_SHARE
from cassi.optics.protocol import Camera
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import DEFAULT, MIN_BANDS, LearnedPrior, as_prior
from cassi.self_calibration.camera_model import CameraModel, band_positions, shift_columns, unseen_pixels
from cassi.self_calibration.defects import dead_areas, find_defects
from cassi.self_calibration.elements_of_one import learn_from_one
from cassi.self_calibration.elements_of_several import MIN_SIDE, MaskError, learn_mask_error, of_other_scenes
from cassi.self_calibration.found_camera import FoundCamera
from cassi.self_calibration.pose import MIN_BLOCKS, Search, find_dispersion, find_model, refine_pose
from cassi.self_calibration.regression import COARSE, FINE, FITTED_BLOCK, Look, Snapshots, tiles
from cassi.self_calibration.trials import TRIAL_SIDE, Trials, judge, simplified
from cassi.types import PathLike

CPU = torch.device("cpu")
FRAMES = 4  # of a stack that are looked at
SHARE = 0.5  # of the time for the mask's place, then for its error; in the former, of the search, then of trials
# A window decides whether the mask of a large snapshot has an error: its side is at least `TRIAL_SIDE`, and this many
# times the distance of the outermost bands, as pixels with light from beside the window are left out.
SPANS = 2

Scenes = tuple[CASSI, list[torch.Tensor]]  # a camera and its snapshots


@undisturbed
def find_camera(
    *measurements: Measurement,
    black_level: float | None = None,
    seed: int = 0,
    dispersion: bool = False,
    mask_error: bool = True,
    weights: PathLike | LearnedPrior | None = DEFAULT,
    device: torch.device = CPU,
    report: Callable[[float], None] = lambda share: None,
) -> FoundCamera:
    """Find the camera from snapshots of unknown scenes: one measurement, or several with one mask.

    A model of its pose and optics is fitted to the mask's pattern in the snapshots (`cassi.self_calibration.pose`).
    Each group of terms is taken where blocks that it was not fitted to are explained clearly better, and the model
    where a short reconstruction with it predicts held-out detector pixels better too; else the camera is left as given.
    Then defects of the detector are left out (`cassi.self_calibration.defects`), and the error of each element of the
    mask is learned (`elements_of_one`, `elements_of_several`), and taken where held-out pixels agree.

    Args:
        measurements: with the mask and the shifts as believed.
        black_level: subtracted, in the unit of y; estimated from the snapshots if None.
        seed: of the held-out pixels.
        dispersion: find the mask's place and the dispersion, and nothing else.
        mask_error: learn the error of the mask's elements, too.
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
    looks_closer = mask_error and not dispersion
    whole = SHARE if looks_closer else 1
    found = _find_pose(measurements, black_level, seed, dispersion, device, lambda share: report(share * whole))
    scenes = None if dispersion else _open_scenes(found, measurements, black_level, device)
    if scenes is None:
        return found
    fits = _fits(found, measurements[0])
    found = _leave_out_defects(found, *scenes, fits)
    if not (fits and looks_closer):
        return found
    scenes = _open_scenes(found, measurements, black_level, device) if found.defects else scenes
    prior = as_prior(weights)
    return _correct_elements(
        found, measurements[0], *cast(Scenes, scenes), seed, prior, lambda share: report(SHARE + (1 - SHARE) * share)
    )


def _find_pose(
    measurements: Sequence[Measurement], black_level: float | None, seed: int, dispersion: bool, on: torch.device,
    report: Callable[[float], None],
) -> FoundCamera:  # fmt: skip
    """The camera with its mask where and as sharp as the snapshots show it."""
    m = measurements[0]
    if any(other.y.shape[-2:] != m.y.shape[-2:] for other in measurements):
        raise ValueError("the snapshots differ in size; give those of one camera and one region")
    check_camera(measurements)
    m = replace(m, bad_pixels=any_bad(one.bad_pixels for one in measurements))
    given = FoundCamera.as_given(m)
    if reason := _not_looked_for(m):
        return replace(given, reason=reason)
    A, bad = _through(m, m.mask, on), _bad_pixels(m, on)

    def frames(camera: Shot) -> list[torch.Tensor]:
        return [frame for one in measurements for frame in _frames(one, camera, bad, black_level)]

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
    y_found = frames(_through(m, mask, on))
    model = refine_pose(search(y_found, FINE), model, mask)
    model = replace(model, contrast=1.0) if dispersion else model
    if model.exact:
        return given

    # compare: short reconstructions
    trials = Trials.of(A, y, bad, seed)
    report((1 + SHARE) / 2)
    model, fits = simplified(model, lambda model: trials.fits(_through(m, model.masks(m.mask, m.shifts), on), y_found))
    as_given, as_found = judge(trials.given, fits), judge(fits)
    mask = model.masks(m.mask, m.shifts)
    found = replace(given, errors=(as_given.error, as_found.error))

    # accept: where it is better, and the snapshot shows one of the two
    if not is_better(as_found, as_given):
        return found
    taken = _accept(found, m, model, mask)
    if not any(compare_with_mask(one).matches for one in (m, taken.in_place(replace(m, check=None)))):
        return replace(found, reason="the snapshot shows neither the mask as given nor another that is near it")
    return taken


def _open_scenes(
    found: FoundCamera, measurements: Sequence[Measurement], black_level: float | None, on: torch.device
) -> Scenes | None:
    """The camera and its snapshots, without bad pixels; None where single elements and pixels cannot be looked at."""
    m = found.in_place(measurements[0])
    if _not_looked_for(m):
        return None
    left_out = any_bad((m.bad_pixels, *(one.bad_pixels for one in measurements)))
    camera, bad = _through(m, m.mask, on), _bad_pixels(replace(m, bad_pixels=left_out), on)
    if not isinstance(camera, CASSI) or min(camera.cube_shape[1:]) < MIN_SIDE:
        return None
    snapshots = [y for one in measurements for y in _frames(one, camera, bad, black_level)]
    return camera if bad is None else camera.weighted((~bad).to(camera.dtype)), snapshots


def _fits(found: FoundCamera, m: Measurement) -> bool:
    """Whether the snapshot shows the mask of this camera, in bands enough to tell a scene from it."""
    m = found.in_place(m)
    return len(m.shifts) >= MIN_BANDS and compare_with_mask(replace(m, check=None)).matches


def _leave_out_defects(found: FoundCamera, camera: CASSI, snapshots: list[torch.Tensor], fits: bool) -> FoundCamera:
    """The camera without its defects; single pixels only where the mask fits, and no scene is mistaken for them."""
    dead = dead_areas(camera, snapshots[0])
    defects = find_defects(camera, snapshots) if fits else dead
    count = int(np.count_nonzero(defects))
    if (defects & ~dead).mean() > MAX_SHARE:
        return replace(found, disputed=count)
    return replace(found, left_out=any_bad((found.left_out, defects)), defects=count) if count else found


def _correct_elements(
    found: FoundCamera, given: Measurement, camera: CASSI, snapshots: list[torch.Tensor], seed: int,
    prior: LearnedPrior | None, report: Callable[[float], None],
) -> FoundCamera:  # fmt: skip
    """A camera with the error of its mask's elements corrected, where the snapshots show one."""
    m = found.in_place(given)
    snapshots = [snapshots[k] for k in of_other_scenes(snapshots)]
    if prior is not None and len(snapshots) > 1:
        found, prior = replace(found, network=prior.weights), prior.on(camera.device)

    def learn(camera: CASSI, snapshots: Sequence[torch.Tensor], report: Callable[[float], None]) -> MaskError:
        if len(snapshots) == 1:
            return learn_from_one(camera, snapshots[0], seed=seed, report=report).on_cpu()
        return learn_mask_error(camera, snapshots, seed=seed, prior=prior, report=report).on_cpu()

    height, width = camera.cube_shape[1:]
    side = max(TRIAL_SIDE, SPANS * (max(camera.shifts) - min(camera.shifts)))
    if height * width > side**2:  # a part of them shows whether there is anything to correct
        part = highest_variance_window(torch.stack(snapshots), (height, width), side)
        blocks = [crop(camera, y, *part) for y in snapshots]
        learned = learn(cast(CASSI, blocks[0][0]), [y for _, y in blocks], lambda share: None)
        if not learned.accepted:
            return replace(found, mask_error=learned)
    learned = learn(camera, snapshots, report)
    if not learned.accepted:
        return replace(found, mask_error=learned)
    most = max(MAX_TRANSMISSION, float(m.mask.max()))
    corrected = np.clip(m.mask + learned.error.numpy(), 0, most).astype(m.mask.dtype)
    sensitivity = m.sensitivity
    if learned.gain is not None:
        sensitivity = (1 + learned.gain.numpy()) * (1 if sensitivity is None else sensitivity)
    return replace(found, mask=corrected, shifts=m.shifts, sensitivity=sensitivity, accepted=True, mask_error=learned)


@undisturbed
def align(
    y: torch.Tensor,
    mask: torch.Tensor,
    shifts: Sequence[int],
    *,
    bad_pixels: torch.Tensor | None = None,
    black_level: float | None = None,
    seed: int = 0,
) -> FoundCamera:
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


def _not_looked_for(m: Measurement) -> str:
    """Why the camera of a measurement is not looked for; empty where it is."""
    if m.shots is not None:
        return "it is found from scenes of one shot only"
    if len(m.shifts) > 1 and len(set(m.shifts)) == 1:
        return "it is found for single dispersers only, not where all bands lie in one place"
    if not np.ptp(m.mask, axis=(-2, -1)).any():
        return "it is found from the mask's pattern, and this mask has none"
    if not all(float(d).is_integer() for d in m.shifts):
        return "it is found for bands on whole pixels only, and some of these lie between"
    return ""


def _through(m: Measurement, mask: np.ndarray, on: torch.device = CPU) -> Shot:
    """The camera of a measurement with this mask."""
    return build_shot_camera(replace(m, mask=mask), on)


def _bad_pixels(m: Measurement, on: torch.device = CPU) -> torch.Tensor | None:
    return None if m.bad_pixels is None else torch.tensor(m.bad_pixels, device=on)  # may be read-only


def of_scenes_of_their_own(measurements: Sequence[Measurement], black_level: float | None = None) -> list[int]:
    """Which of these are not dark, and begin with a scene that none before them begins with."""
    return of_other_scenes([_frames(m, _through(m, m.mask), _bad_pixels(m), black_level)[0] for m in measurements])


def predictions(m: Measurement, found: FoundCamera, *, black_level: float | None = None, seed: int = 0) -> float:
    """Held-out error of a short reconstruction of a measurement with a camera; arguments as for `find_camera`."""
    given, bad = _through(m, m.mask), _bad_pixels(m)
    camera = _through(replace(m, shifts=found.shifts), found.mask)
    m = m if found.sensitivity is None else replace(m, sensitivity=found.sensitivity)
    y = _frames(m, camera, bad, black_level)
    return judge(Trials.of(given, y, bad, seed).fits(camera, y)).error


def _frames(m: Measurement, A: Camera, bad: torch.Tensor | None, black_level: float | None) -> list[torch.Tensor]:
    """The first snapshots less their black level, 0 at bad pixels."""
    known = A if bad is None else A.weighted((~bad).to(A.dtype))
    frames = []
    for frame in m.y.reshape(-1, *m.y.shape[-2:])[:FRAMES]:
        y = torch.as_tensor(frame, dtype=torch.float32, device=A.device)
        y = y - (black_level_of(known, y) if black_level is None else black_level)
        y = y if m.sensitivity is None else y / torch.tensor(m.sensitivity, device=A.device)
        frames.append(y if bad is None else torch.where(bad, 0, y))
    return frames
