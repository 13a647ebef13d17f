"""From measurement and settings to a `Scene`: the camera on its device, and its snapshots less their black level."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.calibration.dark_frame import less_dark, read_dark
from cassi.calibration.found_camera import FoundCamera
from cassi.choice.noise import CameraNoise
from cassi.choice.plan import Plan
from cassi.errors import InputError, one_line
from cassi.files.layout import displaced_down, sheared_masks, unshear_mask
from cassi.files.options import ReadOptions
from cassi.files.scenes import read_scene
from cassi.files.spectrum_files import Spectrum, read_spectrum
from cassi.files.wavelength_files import parse_wavelengths
from cassi.kernels.dispatch import pick_device, pin_float32
from cassi.optics.building import build_camera
from cassi.optics.coded_aperture import CodedAperture
from cassi.optics.detector import black_level_of, brightness, check_light
from cassi.optics.geometry import infer_shifts
from cassi.optics.mask_match import compare_with_mask
from cassi.optics.measurement import MaskCheck, Measurement, as_transmission, check_arrays, for_kernels
from cassi.optics.multi_shot import MultiShot
from cassi.optics.outliers import remove_impulses
from cassi.optics.protocol import Camera
from cassi.optics.wavelengths import check_wavelengths
from cassi.photograph.file import read_side_picture
from cassi.photograph.picture import SidePicture
from cassi.priors.learned import LearnedPrior, load_prior
from cassi.running.plan_file import load_plan
from cassi.settings import Settings

Array = Tensor | np.ndarray
DISPLACED = ("wrong mask", "displaced", "turned", "reversed")  # kinds of a mask that is not in place
MAX_NOISE = 1e6  # standard deviation of the noise, in units of the mean signal


@dataclass(frozen=True, eq=False)
class Scene:
    """Snapshots and the camera they were taken with; no step of the pipeline changes it.

    Attributes:
        A: the camera, row weight 0 at bad pixels.
        y: (..., *A.measurement_shape) float32 in `unit`, less the black levels; 0 at bad pixels.
        wavelengths: (C,) float64 [nm], or None.
        check: how snapshot and mask compare; None where the camera has no mask.
        black_levels: one for each snapshot, in the unit of y; `black_is_estimated` from the snapshots themselves.
        measurement: what it was made of, with the camera as given; None where a camera took the mask's place.
        found: the camera as it was found from the snapshot, or left; None where it was not searched for.
    """

    A: Camera
    y: Tensor
    wavelengths: np.ndarray | None
    noise: CameraNoise
    unit: str
    check: MaskCheck | None
    black_levels: tuple[float, ...] = ()
    black_is_estimated: bool = False
    measurement: Measurement | None = None
    found: FoundCamera | None = None

    @property
    def frames(self) -> Tensor:
        """(N, *A.measurement_shape)."""
        return self.y.reshape(-1, *self.A.measurement_shape)

    @property
    def num_scenes(self) -> int:
        """N."""
        return len(self.frames)

    @property
    def doubt(self) -> str:
        """Why the mask is not that of the snapshot, in a sentence; empty where it is, or there is none."""
        return "" if self.check is None or self.check.matches else self.check.verdict

    @property
    def parameters(self) -> dict[str, Any]:
        """The camera in plain values, for the record, and the device that was used."""
        m, device = self.measurement, str(self.A.device)
        if m is None:
            noise = {"gain": self.noise.gain, "read_noise": self.noise.read_noise}
            return {"camera": type(self.A).__name__, **noise, "device": device}
        shifts = m.shifts if self.found is None or not self.found.accepted else self.found.shifts
        return {"shifts": list(shifts), "gain": m.gain, "read_noise": m.read_noise, "device": device}


def recheck_mask(check: MaskCheck, m: Measurement) -> MaskCheck:
    """The comparison of a measurement with the mask of the camera that was found, where only that one fits."""
    again = check if check.matches else compare_with_mask(replace(m, check=None))
    return again if again.matches else check


def prepare(m: Measurement, found: FoundCamera | None, settings: Settings) -> Scene:
    """The camera of a checked measurement on its device, as it was found, and the snapshots less their black levels.

    The camera comes first: with a misplaced mask, the black level cannot be estimated from dark pixels.
    """
    if isinstance(settings.plan, Plan):  # its file is read
        settings.plan.check_bands(len(m.shifts))
    check, given = compare_with_mask(m), m
    if found is not None:
        m = found.in_place(m)
        check = recheck_mask(check, m) if found.accepted else check
    check_arrays(m)
    on = pick_device(settings.device)
    A: Camera = build_camera(m, on, settings.psf)
    y = torch.as_tensor(for_kernels(m.y), device=on)
    noise = CameraNoise(m.gain, None if m.gain is None else m.read_noise)
    scene = Scene(A, y, m.wavelengths, noise, m.unit, check, measurement=replace(given, check=None), found=found)
    return _subtract_black_level(scene, m.bad_pixels, settings.black_level)


def prepare_camera(A: Camera, measurement: Array, settings: Settings) -> Scene:
    """The same for a camera that is there already; its device is taken."""
    if not hasattr(A, "check_measurement"):
        raise InputError(f"the mask must be an array, a tensor, a file or a camera, got {type(A).__name__}")
    if A.dtype not in (torch.float32, torch.float64):
        raise InputError(f"a camera computes in float32 or float64, got {A.dtype}; build it from such a mask")
    pin_float32(A.device)
    names = ("shifts", "step", "num_bands", "psf", "dark")
    if twice := [name for name in names if getattr(settings, name) is not None]:
        what = "a camera brings its own geometry and blur along, and a dark frame is subtracted before"
        raise InputError(f"{what}; leave out {', '.join(twice)}")
    if isinstance(measurement, Measurement | str | os.PathLike):
        raise InputError("a Measurement or its file brings its own mask along; give its y beside a camera")
    shape = tuple(A.measurement_shape)
    precision = np.float64 if A.dtype == torch.float64 else np.float32
    y = torch.as_tensor(np.require(plain(measurement), precision, ("C", "W")))
    if y.shape[-len(shape) :] != shape or y.ndim > len(shape) + 1:
        raise InputError(f"the measurement must be {shape} for this camera, or a stack of such, got {tuple(y.shape)}")
    bad = None if settings.bad_pixels is None else np.asarray(plain(settings.bad_pixels))
    if bad is not None and (bad.dtype != bool or bad.shape not in (shape, shape[-2:]) or bad.all()):
        raise InputError(f"bad_pixels must be bool {shape[-2:]} and not all True, got {bad.dtype} {bad.shape}")
    if not bool(torch.isfinite(y if bad is None else y[..., torch.as_tensor(~bad)]).all()):
        raise InputError("the measurement holds NaN or Inf; mark those pixels in bad_pixels")
    wavelengths, unit = as_wavelengths(settings.wavelengths, A.cube_shape[0]), "as the measurement"
    noise = CameraNoise(settings.gain, settings.read_noise)
    scene = Scene(A, y.to(A.device, A.dtype), wavelengths, noise, unit, _compare_camera_masks(A, y, bad))
    return _subtract_black_level(scene, bad, settings.black_level)


def _compare_camera_masks(A: Camera, y: Tensor, bad_pixels: np.ndarray | None) -> MaskCheck | None:
    several = isinstance(A, MultiShot)
    shots = [shot for shot in getattr(A, "shots", (A,)) if isinstance(shot, CodedAperture)]
    if not shots:
        return None
    masks = np.stack([shot.mask.detach().cpu().numpy() for shot in shots])
    left_out = [None if shot.weights is None else shot.weights.cpu().numpy() == 0 for shot in shots]
    bad = np.stack([np.zeros(shots[0].measurement_shape, bool) if one is None else one for one in left_out])
    bad = bad if bad_pixels is None else bad | bad_pixels
    m = Measurement(
        y=for_kernels(y.numpy()),
        mask=masks if several else masks[0],
        shifts=tuple(shots[0].shifts),
        bad_pixels=bad if several else bad[0],
        shots=len(shots) if several else None,
    )
    return compare_with_mask(m)


def _subtract_black_level(scene: Scene, bad_pixels: np.ndarray | None, black_level: float | None) -> Scene:
    """Less the black level, given or estimated; with a misplaced mask it cannot be estimated, and 0 is taken."""
    A, y = scene.A, scene.y
    good = None if bad_pixels is None else torch.as_tensor(np.ascontiguousarray(~bad_pixels), device=y.device)
    if good is not None:
        A = A.leave_out(good.to(A.dtype).expand(A.measurement_shape))
    frames = y.reshape(-1, *A.measurement_shape)
    if black_level is not None:
        brightest = float((y if good is None else torch.where(good, y, 0)).max())
        if black_level > max(0.0, brightest):
            raise InputError(f"the black level {black_level:g} is above every pixel of the measurement ({brightest:g})")
    estimated = black_level is None and (scene.check is None or scene.check.kind not in DISPLACED)
    black = tuple(black_level_of(A, frame) if estimated else float(black_level or 0) for frame in frames)
    y = torch.stack([frame - level for frame, level in zip(frames, black, strict=True)]).view(y.shape)
    if good is not None:
        y = torch.where(good, y, 0)
    check_light(y)
    for frame in y.reshape(-1, *A.measurement_shape) if scene.noise.gain is not None else ():
        _check_noise(scene.noise, brightness(A, frame))
    return replace(scene, A=A, y=y, black_levels=black, black_is_estimated=estimated)


def _check_noise(noise: CameraNoise, level: float) -> None:
    noise = noise.scaled(1 / level)
    if noise.gain is not None and math.hypot(noise.gain**-0.5, (noise.read_noise or 0.0) / noise.gain) > MAX_NOISE:
        text = f"gain and read noise say that noise is more than {MAX_NOISE:g} times the signal"
        raise InputError(f"{text}; check both, or leave them out")


def load(
    measurement: Array | Measurement | str | os.PathLike[str],
    mask: Array | str | os.PathLike[str] | None,
    settings: Settings,
) -> Measurement:
    """The arguments of a call as one Measurement: a file is read, arrays are checked, hot pixels are left out."""
    if isinstance(measurement, str | os.PathLike):
        m = _read(measurement, mask, settings)
    elif isinstance(measurement, Camera):
        raise InputError("the measurement comes first and the camera second: reconstruct(y, A); they are swapped")
    elif isinstance(mask, str | os.PathLike):
        raise InputError(f"the mask is a file ({mask}) and the measurement is not; give both as files or as arrays")
    elif isinstance(measurement, Measurement):
        given = {"mask": mask} | {name: getattr(settings, name) for name in ("shifts", "step", "num_bands")}
        if twice := [name for name, value in given.items() if value is not None]:
            raise InputError(f"the measurement brings its own mask and shifts along; leave out {', '.join(twice)}")
        m = measurement
    else:
        m = _from_arrays(measurement, mask, settings)
    scaled, note = as_transmission(m.mask)
    m = replace(m, mask=for_kernels(scaled), notes=m.notes if note is None else (*m.notes, note))
    wavelengths = as_wavelengths(settings.wavelengths, len(m.shifts))
    m = m if wavelengths is None else replace(m, wavelengths=wavelengths)
    stated = {name: plain(getattr(settings, name)) for name in ("bad_pixels", "gain", "read_noise")}
    m = replace(m, **{name: value for name, value in stated.items() if value is not None})
    if settings.read_noise is not None:
        CameraNoise(m.gain, settings.read_noise)  # what a file states of it may lack the gain, an argument may not
    check_arrays(m)
    return remove_impulses(m)


def _read(path: str | os.PathLike[str], mask: Array | str | os.PathLike[str] | None, settings: Settings) -> Measurement:
    if settings.shifts is not None:
        raise InputError("a file brings its shifts along, or is given step and num_bands; leave out shifts")
    beside = None if mask is None else mask if isinstance(mask, str | os.PathLike) else np.asarray(plain(mask))
    known = settings.wavelengths
    text = known if known is None or isinstance(known, str) else np.asarray(plain(known))  # type: ignore[arg-type]
    step = 0 if settings.camera == "cacti" else settings.step
    options = ReadOptions(mask=beside, step=step, num_bands=settings.num_bands, wavelengths=text)
    options = replace(options, sheared=settings.camera == "dd")
    return read_scene(path, options=options)


def _from_arrays(measurement: Array, mask: Array | None, settings: Settings) -> Measurement:
    if mask is None:
        raise InputError("a mask is needed beside the measurement: (H, W), or (C, H, W) with one per band")
    if np.ma.is_masked(measurement) or np.ma.is_masked(mask):
        raise InputError("the masked values of a masked array would count; give its data, and bad_pixels=y.mask")
    y_array, mask_array = (np.asarray(plain(values)) for values in (measurement, mask))
    notes: list[str] = []
    if settings.camera in ("dd", "cacti"):
        if settings.camera == "dd":
            mask_array = sheared_masks(mask_array, y_array.shape[-2:], settings.step, settings.num_bands, notes)
        settings = replace(settings, step=0, num_bands=None, shifts=None)
    if y_array.shape[-2:-1] == mask_array.shape[-2:-1] and y_array.shape[-1] < mask_array.shape[-1]:
        raise InputError(
            f"the measurement {y_array.shape} is narrower than the mask {mask_array.shape}, but dispersion widens "
            "it; are the two swapped? The measurement comes first"
        )
    for name, values, axes in (
        ("measurement", y_array, "(H, W') or (N, H, W')"),
        ("mask", mask_array, "(H, W) or (C, H, W)"),
    ):
        if values.dtype.kind not in "fiub" or values.ndim not in (2, 3) or 0 in values.shape:
            raise InputError(f"the {name} must be {axes}, real and not empty, got {values.dtype} {values.shape}")
    if mask_array.shape[-2] != y_array.shape[-2]:
        raise InputError(
            f"the mask has {mask_array.shape[-2]} rows and the measurement {y_array.shape[-2]}; crop both alike, "
            "or transpose both where the dispersion runs down"
        )
    if mask_array.min() < 0 and mask_array.max() <= 0:  # of both signs is a camera, too: the difference of two shots
        raise InputError(
            f"the mask holds only negative values, down to {mask_array.min():g}; a mask transmits, expected 0 to 1"
        )
    stored, step, num_bands = _geometry(settings)
    sheared = None
    if mask_array.ndim == 3 and mask_array.shape[1:] == y_array.shape[-2:] and step != 0:
        if displaced_down(mask_array, "mask"):
            raise InputError("the bands of the mask are displaced down the columns; transpose mask and measurement")
        sheared = unshear_mask(mask_array, stored, step, False, "mask", notes)
    if sheared is None:
        shifts = infer_shifts(y_array.shape, mask_array.shape, stored, step, num_bands, notes)
    else:
        shifts, mask_array = sheared
    y = np.array(y_array, np.float32, order="C")
    return Measurement(y=y, mask=mask_array, shifts=shifts, unit="as the measurement", notes=tuple(notes))


def _geometry(settings: Settings) -> tuple[np.ndarray | None, float | None, int | None]:
    shifts, step, num_bands = settings.shifts, settings.step, settings.num_bands
    if shifts is not None and step is not None:
        raise InputError("shifts and step say the same; give one of them")
    stored = None if shifts is None else np.asarray(shifts, dtype=np.float64).reshape(-1)
    if stored is not None and not np.isfinite(stored).all():
        raise InputError("the shifts hold NaN or Inf")
    ReadOptions(step=step, num_bands=num_bands)  # checks both
    return stored, step, num_bands


def as_wavelengths(given: str | Sequence[float] | Array | None, num_bands: int) -> np.ndarray | None:
    """Wavelengths of the bands [nm] from numbers, or from a text such as "450:650:28"."""
    if given is None:
        return None
    if isinstance(given, str):
        return parse_wavelengths(given, num_bands)
    return check_wavelengths(np.asarray(plain(given)), num_bands, "wavelengths")  # type: ignore[arg-type]


def plain(value: Array | float | None) -> Any:
    """A tensor or a list as an array in memory; anything else as it is."""
    if not isinstance(value, Tensor):
        return np.asarray(value) if isinstance(value, list) else value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # NumPy has no bfloat16


def without_dark(m: Measurement, settings: Settings) -> tuple[Measurement, Settings]:
    """Measurement and white reference less the dark frame, as settings that leave no black level have them."""
    if settings.dark is None:
        return m, settings
    dark = settings.dark
    D = read_dark(dark) if isinstance(dark, str | os.PathLike) else np.asarray(plain(dark))
    white = less_dark(settings.white, D) if isinstance(settings.white, Measurement) else settings.white
    return less_dark(m, D), replace(settings, dark=None, black_level=0.0, white=white)


def open_files(settings: Settings) -> Settings:
    """The settings with the files that they name read: weights of the network, side picture, and plan.

    Raises:
        InputError: a file that cannot be read, or a value of another kind.
    """
    weights, side, plan, board = settings.weights, settings.side, settings.plan, settings.white_reflectance
    if isinstance(weights, str | os.PathLike):
        weights = _read_weights(weights)
    if isinstance(side, str | os.PathLike):
        side = read_side_picture(side)
    if isinstance(board, str | os.PathLike):
        board = _read_board(board)
    if isinstance(plan, str | os.PathLike):
        plan = load_plan(plan)
    kinds = (("weights", weights, LearnedPrior), ("side", side, SidePicture), ("plan", plan, Plan))
    for name, value, kind in (*kinds, ("white", settings.white, Measurement)):
        if value is not None and not isinstance(value, kind):
            raise InputError(f"{name} must be a {kind.__name__}, got {type(value).__name__}", kind="range")
    if not isinstance(settings.camera, str | FoundCamera):
        raise InputError(f"camera must be a word or a FoundCamera, got {type(settings.camera).__name__}", kind="range")
    return replace(settings, weights=weights, side=side, plan=plan, white_reflectance=board)


def _read_board(given: str | os.PathLike[str]) -> float | Spectrum:
    """The reflectance of a white reference: a number that was typed, or a table."""
    try:
        return float(os.fspath(given))
    except ValueError:
        return read_spectrum(given)


def _read_weights(path: str | os.PathLike[str]) -> LearnedPrior:
    try:
        return load_prior(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)}); give weights of scripts/train.py") from error
    except ValueError as error:
        raise InputError(str(error)) from error
