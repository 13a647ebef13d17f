"""Builds the camera of a measurement."""

import math

import numpy as np
import torch
from torch import Tensor

from cassi.errors import InputError
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.coded_aperture import MASK_ERROR
from cassi.optics.measurement import Measurement, for_kernels
from cassi.optics.multi_shot import MultiShot
from cassi.optics.other_cameras import Mosaic
from cassi.optics.psf import gaussian_psf
from cassi.optics.single_disperser import CASSI


def build_camera(
    m: Measurement, device: torch.device, psf: float | Tensor | np.ndarray | None = None
) -> CASSI | BlurredCASSI | MultiShot:
    """The camera: exact for whole shifts, interpolating for fractional ones, with blur if a psf is given."""
    if m.shots is not None:
        return MultiShot(tuple(build_shot_camera(shot, device, psf) for shot in m.each_shot))
    return build_shot_camera(m, device, psf)


def build_shot_camera(
    m: Measurement, device: torch.device, psf: float | Tensor | np.ndarray | None = None
) -> CASSI | BlurredCASSI:
    """The same for a measurement with one shot."""
    mask = torch.as_tensor(for_kernels(m.mask), device=device)
    if isinstance(psf, float | int) and not (math.isfinite(psf) and psf > 0):
        raise InputError(f"the blur (psf) must be a positive standard deviation [pixel], got {psf}; omit it for none")
    if isinstance(psf, float | int) and psf > m.y.shape[-1] / 4:
        what = f"the blur (psf) has a standard deviation of {psf:g} pixels and the measurement {m.y.shape[-1]} columns"
        raise InputError(f"{what}; expected at most a quarter of them")
    error = MASK_ERROR if m.mask_error is None else m.mask_error
    try:
        if psf is not None:
            taps = gaussian_psf(float(psf)) if isinstance(psf, float | int) else torch.as_tensor(psf)
            A: CASSI | BlurredCASSI = BlurredCASSI(mask, tuple(m.shifts), psf=taps.to(mask), mask_error=error)
        elif mask.ndim == 3 and error == 0 and not any(m.shifts):
            A = Mosaic(mask)
        elif all(float(d).is_integer() for d in m.shifts):
            A = CASSI(mask, tuple(int(d) for d in m.shifts), mask_error=error)
        else:
            A = BlurredCASSI(mask, tuple(m.shifts), mask_error=error)
    except (TypeError, ValueError) as wrong:
        raise InputError(str(wrong)) from wrong
    if m.y.shape[-2:] != A.measurement_shape:
        here, there = (f"{height} x {width}" for height, width in (m.y.shape[-2:], A.measurement_shape))
        raise InputError(f"the measurement is {here} pixels, mask and shifts imply {there}; check the shifts")
    return A
