"""From measurement and settings to a `Scene`: the camera on its device, and its snapshots less their black level."""

import math
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.choice.plan import Plan
from cassi.errors import InputError
from cassi.evidence.noise import CameraNoise
from cassi.files.wavelength_files import given_wavelengths
from cassi.kernels.dispatch import pick_device
from cassi.optics.building import build_camera
from cassi.optics.coded_aperture import CodedAperture
from cassi.optics.detector import black_level_of, brightness, check_light
from cassi.optics.mask_match import compare_with_mask
from cassi.optics.measurement import RELATIVE, MaskCheck, Measurement, check_arrays, for_kernels
from cassi.optics.multi_shot import MultiShot
from cassi.optics.protocol import Camera
from cassi.running.arguments import Array, as_numpy
from cassi.self_calibration.found_camera import FoundCamera
from cassi.settings import Settings

DISPLACED = ("wrong mask", "displaced", "turned", "reversed")  # kinds of a mask that is not in place
MAX_NOISE = 1e6  # standard deviation of the noise, in units of the mean signal


@dataclass(frozen=True, eq=False)
class Scene:
    """Snapshots and the camera they were taken with; no step of the pipeline changes it."""

    A: Camera  # row weight 0 at bad pixels
    y: Tensor  # (..., *A.measurement_shape) float32 in `unit`, less the black levels; 0 at bad pixels
    wavelengths: np.ndarray | None  # (C,) float64 [nm]
    noise: CameraNoise
    unit: str
    check: MaskCheck | None  # how snapshot and mask compare; None where the camera has no mask
    black_levels: tuple[float, ...] = ()  # one for each snapshot, in the unit of y
    black_is_estimated: bool = False  # from the snapshots themselves
    measurement: Measurement | None = None  # with the camera as given; None where a camera took the mask's place
    found: FoundCamera | None = None  # as found from the snapshot, or left; None where it was not searched for

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
        """Why the mask does not belong to the snapshot, in a sentence; empty where it is, or there is none."""
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
    """The comparison of a measurement with the mask of the camera that was found, where only that one fits.

    With a wrong number of bands any mask can be bent to fit: that verdict stays.
    """
    again = check if check.matches or check.kind == "bands" else compare_with_mask(replace(m, check=None))
    return again if again.matches else check


def prepare(m: Measurement, found: FoundCamera | None, settings: Settings) -> Scene:
    """The camera of a checked measurement on its device, as it was found, and the snapshots less their black levels.

    The camera comes first: with a misplaced mask, the black level cannot be estimated from dark pixels.
    """
    if isinstance(settings.plan, Plan):  # `open_files` has read its file
        settings.plan.check_bands(len(m.shifts), m.wavelengths)
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
    return _subtract_black_level(scene, m.bad_pixels, m.black_level_left(settings.black_level), m.sensitivity)


def prepare_camera(A: Camera, measurement: Array, settings: Settings) -> Scene:
    """The same for a camera that is there already; its device is taken."""
    if not hasattr(A, "check_measurement"):
        raise InputError(f"the mask must be an array, a tensor, a file or a camera, got {type(A).__name__}")
    if A.dtype not in (torch.float32, torch.float64):
        raise InputError(f"a camera computes in float32 or float64, got {A.dtype}; build it from such a mask")
    names = ("shifts", "step", "num_bands", "psf", "dark", "pattern")
    if twice := [name for name in names if getattr(settings, name) is not None]:
        what = "a camera has its own geometry and blur, and a dark frame must be subtracted before"
        raise InputError(f"{what}; leave out {', '.join(twice)}")
    if isinstance(measurement, Measurement | str | os.PathLike):
        raise InputError("a Measurement or its file has its own mask; give its y beside a camera")
    shape = tuple(A.measurement_shape)
    precision = np.float64 if A.dtype == torch.float64 else np.float32
    y = torch.as_tensor(np.require(as_numpy(measurement), precision, ("C", "W")))
    if y.shape[-len(shape) :] != shape or y.ndim > len(shape) + 1:
        raise InputError(f"the measurement must be {shape} for this camera, or a stack of such, got {tuple(y.shape)}")
    bad = None if settings.bad_pixels is None else np.asarray(as_numpy(settings.bad_pixels))
    if bad is not None and (bad.dtype != bool or bad.shape not in (shape, shape[-2:]) or bad.all()):
        raise InputError(f"bad_pixels must be bool {shape[-2:]} and not all True, got {bad.dtype} {bad.shape}")
    if not bool(torch.isfinite(y if bad is None else y[..., torch.as_tensor(~bad)]).all()):
        raise InputError("the measurement holds NaN or Inf; mark those pixels in bad_pixels")
    wavelengths, unit = given_wavelengths(as_numpy(settings.wavelengths), A.cube_shape[0]), RELATIVE
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
    bad = np.stack([np.zeros(shots[0].measurement_shape, bool) if bad is None else bad for bad in left_out])
    bad = bad if bad_pixels is None else bad | bad_pixels
    m = Measurement(
        y=for_kernels(y.numpy()),
        mask=masks if several else masks[0],
        shifts=tuple(shots[0].shifts),
        bad_pixels=bad if several else bad[0],
        shots=len(shots) if several else None,
    )
    return compare_with_mask(m)


def _subtract_black_level(
    scene: Scene, bad_pixels: np.ndarray | None, black_level: float | None, sensitivity: np.ndarray | None = None
) -> Scene:
    """Less the black level, given or estimated, and over the sensitivity of the pixels.

    With a misplaced mask the black level cannot be estimated, and 0 is taken.
    """
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
    y = torch.stack([frame - b for frame, b in zip(frames, black, strict=True)]).view(y.shape)
    y = y if sensitivity is None else y / torch.as_tensor(for_kernels(sensitivity), device=y.device)
    if good is not None:
        y = torch.where(good, y, 0)
    check_light(y)
    for frame in y.reshape(-1, *A.measurement_shape) if scene.noise.gain is not None else ():
        noise = scene.noise.scaled(1 / brightness(A, frame))
        if noise.gain and math.hypot(noise.gain**-0.5, (noise.read_noise or 0.0) / noise.gain) > MAX_NOISE:
            text = f"by gain and read noise, noise is more than {MAX_NOISE:g} times the signal"
            raise InputError(f"{text}; check both, or leave them out")
    return replace(scene, A=A, y=y, black_levels=black, black_is_estimated=estimated)
