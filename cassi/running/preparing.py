"""From a call's arguments to a camera and its snapshots: checked, on the device, without their black level."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.choice.noise import CameraNoise
from cassi.choice.plan import check_number
from cassi.errors import InputError
from cassi.files.options import ReadOptions
from cassi.files.other_optics import read_scene
from cassi.files.wavelength_files import parse_wavelengths
from cassi.kernels.dispatch import pick_device
from cassi.optics.building import camera_of
from cassi.optics.detector import black_level_of, brightness, check_light
from cassi.optics.geometry import check_step, infer_shifts
from cassi.optics.measurement import Measurement, check_arrays
from cassi.optics.protocol import Camera
from cassi.optics.wavelengths import check_wavelengths

Array = Tensor | np.ndarray
MOST_NOISE = 1e6  # standard deviation of the noise, in units of the mean signal


@dataclass(frozen=True, eq=False)
class Prepared:
    """A camera and its snapshots.

    Attributes:
        A: the camera, row weight 0 at bad pixels.
        y: (..., *A.measurement_shape) float32, less the black levels; 0 at bad pixels.
        black_levels: one for each snapshot, in the unit of y.
        told: whether the snapshots themselves told them.
        wavelengths: (C,) float64 [nm], or None.
        noise: of the camera.
        unit: of y, in words.
    """

    A: Camera
    y: Tensor
    black_levels: tuple[float, ...]
    told: bool
    wavelengths: np.ndarray | None
    noise: CameraNoise
    unit: str

    @property
    def frames(self) -> Tensor:
        """(N, *A.measurement_shape)."""
        return self.y.reshape(-1, *self.A.measurement_shape)


def prepare(
    m: Measurement,
    *,
    psf: float | Array | None = None,
    black_level: float | None = None,
    device: str | torch.device = "auto",
) -> Prepared:
    """The camera of a measurement on its device, and the snapshots less their black levels, told by themselves if None.

    Raises:
        InputError: what the measurement holds cannot be used, or is negative.
    """
    check_number("black level", black_level)
    check_arrays(m)
    on = pick_device(device)
    A: Camera = camera_of(m, on, psf)
    return _without_black(
        A, torch.as_tensor(m.y, dtype=torch.float32, device=on).contiguous(), m.bad_pixels, black_level, m.wavelengths,
        CameraNoise(m.gain, None if m.gain is None else m.read_noise), m.unit,
    )  # fmt: skip


def prepare_camera(
    A: Camera,
    measurement: Array,
    *,
    wavelengths: np.ndarray | None,
    bad_pixels: Array | None,
    noise: CameraNoise,
    black_level: float | None,
) -> Prepared:
    """The same for a camera that is there already; its device is taken.

    Raises:
        InputError: the measurement is not of the shape that the camera makes, not finite, or negative.
    """
    check_number("black level", black_level)
    shape = tuple(A.measurement_shape)
    y = torch.as_tensor(plain(measurement), dtype=torch.float32)
    if y.shape[-len(shape) :] != shape or y.ndim > len(shape) + 1:
        raise InputError(f"the measurement must be {shape} for this camera, or a stack of such, got {tuple(y.shape)}")
    bad = None if bad_pixels is None else np.asarray(plain(bad_pixels))
    if bad is not None and (bad.dtype != bool or bad.shape not in (shape, shape[-2:]) or bad.all()):
        raise InputError(f"bad_pixels must be bool {shape[-2:]} and not all True, got {bad.dtype} {bad.shape}")
    if not bool(torch.isfinite(y if bad is None else y[..., torch.as_tensor(~bad)]).all()):
        raise InputError("the measurement holds NaN or Inf; mark those pixels in bad_pixels")
    return _without_black(A, y.to(A.device).contiguous(), bad, black_level, wavelengths, noise, "as the measurement")


def _without_black(
    A: Camera,
    y: Tensor,
    bad_pixels: np.ndarray | None,
    black_level: float | None,
    wavelengths: np.ndarray | None,
    noise: CameraNoise,
    unit: str,
) -> Prepared:
    good = None if bad_pixels is None else torch.as_tensor(~bad_pixels, device=y.device)
    if good is not None:
        A = A.leave_out(good.to(A.dtype).expand(A.measurement_shape))
    frames = y.reshape(-1, *A.measurement_shape)
    if black_level is not None and black_level > max(0.0, float(y.max())):
        raise InputError(
            f"the black level {black_level:g} is above every pixel of the measurement ({float(y.max()):g})"
        )
    black = tuple(black_level_of(A, frame) if black_level is None else float(black_level) for frame in frames)
    y = y - y.new_tensor(black).view(*y.shape[: y.ndim - len(A.measurement_shape)], *[1] * len(A.measurement_shape))
    if good is not None:
        y = torch.where(good, y, 0)
    check_light(y)
    for frame in y.reshape(-1, *A.measurement_shape):
        _check_noise(noise, brightness(A, frame))
    return Prepared(A, y, black, black_level is None, wavelengths, noise, unit)


def _check_noise(noise: CameraNoise, level: float) -> None:
    """Raise InputError for noise that leaves nothing of a signal of that brightness."""
    noise = noise.scaled(1 / level)
    if noise.gain is not None and math.hypot(noise.gain**-0.5, (noise.read_noise or 0.0) / noise.gain) > MOST_NOISE:
        raise InputError(
            f"gain and read noise say that noise is more than {MOST_NOISE:g} times the signal; check both, or leave "
            "them out"
        )


def plain(value: Array | float | None) -> Any:
    """A tensor as an array in memory; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # NumPy has no bfloat16


def as_measurement(
    measurement: Array | Measurement | str | os.PathLike[str],
    mask: Array | str | os.PathLike[str] | None,
    shifts: Sequence[float] | None,
    step: float | None,
    num_bands: int | None,
    wavelengths: str | Sequence[float] | Array | None,
) -> Measurement:
    """What a call was given as a Measurement: a file is read, arrays are checked, one that was read passes through."""
    if isinstance(measurement, str | os.PathLike):
        return _read(measurement, mask, shifts, step, num_bands, wavelengths)
    if isinstance(measurement, Camera):
        raise InputError("the measurement comes first and the camera second: reconstruct(y, A); they are swapped")
    if isinstance(mask, str | os.PathLike):
        raise InputError(f"the mask is a file ({mask}) and the measurement is not; give both as files or as arrays")
    if isinstance(measurement, Measurement):
        given = {"mask": mask, "shifts": shifts, "step": step, "num_bands": num_bands}
        twice = [name for name, value in given.items() if value is not None]
        if twice:
            raise InputError(f"the measurement brings its own mask and shifts along; leave out {', '.join(twice)}")
        m = measurement
    else:
        if mask is None:
            raise InputError("a mask is needed beside the measurement: (H, W), or (C, H, W) with one per band")
        if np.ma.is_masked(measurement) or np.ma.is_masked(mask):
            raise InputError("the masked values of a masked array would count; give its data, and bad_pixels=y.mask")
        y_array, mask_array = (np.asarray(plain(values)) for values in (measurement, mask))
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
        if shifts is not None and step is not None:
            raise InputError("shifts and step say the same; give one of them")
        stored = None if shifts is None else np.asarray(shifts, dtype=np.float64).reshape(-1)
        if stored is not None and not np.isfinite(stored).all():
            raise InputError("the shifts hold NaN or Inf")
        check_number("step", step)
        check_step(step)
        if num_bands is not None and not isinstance(num_bands, int | np.integer):
            raise InputError(f"the number of bands must be a whole number, got {num_bands!r}")
        if num_bands is not None and not 1 <= num_bands <= 10_000:
            raise InputError(f"the number of bands must lie in 1..10000, got {num_bands}")
        bands = num_bands if stored is None or num_bands is None else _same_count(stored.size, num_bands)
        if mask_array.shape[-2] != y_array.shape[-2]:
            raise InputError(
                f"the mask has {mask_array.shape[-2]} rows and the measurement {y_array.shape[-2]}; crop both alike, "
                "or transpose both where the dispersion runs down"
            )
        if (
            mask_array.min() < 0 and mask_array.max() <= 0
        ):  # of both signs is a camera, too: the difference of two shots
            raise InputError(
                f"the mask holds only negative values, down to {mask_array.min():g}; a mask transmits, expected 0 to 1"
            )
        notes: list[str] = []
        shifts = infer_shifts(y_array.shape, mask_array.shape, stored, step, bands, notes)
        m = Measurement(
            y=y_array.astype(np.float32),
            mask=mask_array.astype(np.float32),
            shifts=shifts,
            unit="as the measurement",
            notes=tuple(notes),
        )
    return m if wavelengths is None else replace(m, wavelengths=as_wavelengths(wavelengths, len(m.shifts)))


def _read(
    path: str | os.PathLike[str],
    mask: Array | str | os.PathLike[str] | None,
    shifts: Sequence[float] | None,
    step: float | None,
    num_bands: int | None,
    wavelengths: str | Sequence[float] | Array | None,
) -> Measurement:
    if shifts is not None:
        raise InputError("a file brings its shifts along, or is given step and num_bands; leave out shifts")
    beside = None if mask is None else mask if isinstance(mask, str | os.PathLike) else np.asarray(plain(mask))
    text = wavelengths if wavelengths is None or isinstance(wavelengths, str) else np.asarray(plain(wavelengths))  # type: ignore[arg-type]
    return read_scene(path, options=ReadOptions(mask=beside, step=step, num_bands=num_bands, wavelengths=text))


def as_wavelengths(given: str | Sequence[float] | Array | None, num_bands: int) -> np.ndarray | None:
    """Wavelengths of the bands [nm] from numbers, or from a text such as "450:650:28".

    Raises:
        InputError: another number of them, or no wavelengths.
    """
    if given is None:
        return None
    if isinstance(given, str):
        return parse_wavelengths(given, num_bands)
    return check_wavelengths(np.asarray(plain(given)), num_bands, "wavelengths")  # type: ignore[arg-type]


def _same_count(stored: int, num_bands: int) -> int:
    if stored != num_bands:
        raise InputError(f"{stored} shifts were given for {num_bands} bands; give one per band")
    return num_bands
