"""From the arguments of a call to a `Measurement` and `Settings`: files are read, arrays and numbers are checked."""

import os
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.calibration.dark_frame import less_dark, read_dark
from cassi.choice.plan import Plan, name_of
from cassi.errors import InputError
from cassi.evidence.noise import CameraNoise
from cassi.files.cubes import parse_output_bands
from cassi.files.filters import read_masks
from cassi.files.frames import read_scene
from cassi.files.layout import displaced_down, sheared_masks, shifts_and_mask
from cassi.files.options import Levels, ReadOptions
from cassi.files.statements import replaced
from cassi.files.wavelength_files import given_wavelengths, wavelength_source
from cassi.optics.measurement import Measurement, as_transmission, check_arrays, for_kernels
from cassi.optics.outliers import remove_outliers
from cassi.optics.protocol import Camera
from cassi.photograph.picture import SidePicture, read_side_picture
from cassi.priors.learned import LearnedPrior, as_prior
from cassi.running.plan_file import load_plan
from cassi.self_calibration.found_camera import FoundCamera
from cassi.settings import IN_PLACE, Settings
from cassi.types import PathLike

Array = Tensor | np.ndarray


def load(measurement: Array | Measurement | PathLike, mask: Array | PathLike | None, settings: Settings) -> Measurement:
    """The arguments of a call as one Measurement: a file is read, arrays are checked, hot pixels are left out."""
    if mask is not None and settings.pattern is not None:
        raise InputError("a pattern takes the place of the mask; leave one of them out")
    if isinstance(measurement, str | os.PathLike):
        if settings.shifts is not None:
            raise InputError("a file states its shifts, or step and num_bands are given; leave out shifts")
        m = read_scene(measurement, options=replace(read_options(settings), mask=as_numpy(mask)))
    elif isinstance(measurement, Camera):
        raise InputError("the measurement comes first and the camera second: reconstruct(y, A); they are swapped")
    elif isinstance(mask, str | os.PathLike):
        raise InputError(f"the mask is a file ({mask}) and the measurement is not; give both as files or as arrays")
    elif isinstance(measurement, Measurement):
        given = {"mask": mask} | {name: getattr(settings, name) for name in ("shifts", "step", "num_bands", "pattern")}
        if twice := [name for name, value in given.items() if value is not None]:
            raise InputError(f"the measurement has its own mask and shifts; leave out {', '.join(twice)}")
        m = measurement
    else:
        m = _from_arrays(measurement, mask, settings)
    scaled, note = as_transmission(m.mask)
    m = replace(m, mask=for_kernels(scaled), notes=m.notes if note is None else (*m.notes, note))
    wavelengths = given_wavelengths(as_numpy(settings.wavelengths), len(m.shifts))
    if wavelengths is not None:
        source = wavelength_source(settings.wavelengths)
        m = replace(m, wavelengths=wavelengths, origin={**m.origin, "wavelengths": source})
    stated = {name: as_numpy(getattr(settings, name)) for name in ("bad_pixels", "gain", "read_noise")}
    stated["bad_pixels"] = None if stated["bad_pixels"] is None else np.asarray(stated["bad_pixels"])
    notes = [note for name in ("gain", "read_noise") for note in replaced(name, stated[name], getattr(m, name))]
    m = replace(m, notes=(*m.notes, *notes), **{name: value for name, value in stated.items() if value is not None})
    if settings.read_noise is not None:
        CameraNoise(m.gain, settings.read_noise)  # what a file states of it may lack the gain, an argument may not
    check_arrays(m)
    return remove_outliers(m if settings.bad_pixels is None else replace(m, searched=None))


def read_options(settings: Settings) -> ReadOptions:
    """How a measurement is read, as far as settings say it."""
    arrays = {name: as_numpy(getattr(settings, name)) for name in ("wavelengths", "pattern", "response", "crosstalk")}
    step = 0 if settings.camera in IN_PLACE else settings.step
    how: dict[str, Any] = {"num_bands": settings.num_bands, "step": step, "sheared": settings.camera == "dd"}
    how |= {} if settings.black_level is None else {"levels": Levels(black_level=0.0)}  # it is in the unit of y
    return ReadOptions(**how, pattern_offset=settings.pattern_offset, **arrays)


def _from_arrays(measurement: Array, mask: Array | None, settings: Settings) -> Measurement:
    notes: list[str] = []
    if settings.pattern is not None:
        height, width = np.shape(as_numpy(measurement))[-2:]
        mask = read_masks(read_options(settings), (height, width), notes)
    if mask is None:
        raise InputError("a mask is needed beside the measurement: (H, W), or (C, H, W) with one per band")
    if np.ma.is_masked(measurement) or np.ma.is_masked(mask):
        raise InputError("the masked values of a masked array would count; give its data, and bad_pixels=y.mask")
    y_array, mask_array = (np.asarray(as_numpy(values)) for values in (measurement, mask))
    if settings.camera in ("dd", *IN_PLACE):
        if settings.camera == "dd":
            mask_array = sheared_masks(mask_array, y_array.shape[-2:], settings.step, settings.num_bands, notes)
        settings = replace(settings, step=0, num_bands=None, shifts=None)
    if y_array.shape[-2:-1] == mask_array.shape[-2:-1] and y_array.shape[-1] < mask_array.shape[-1]:
        what = f"the measurement {y_array.shape} is narrower than the mask {mask_array.shape}, but dispersion widens it"
        raise InputError(f"{what}; are the two swapped? The measurement comes first")
    both = ("measurement", y_array, "(H, W') or (N, H, W')"), ("mask", mask_array, "(H, W) or (C, H, W)")
    for name, values, axes in both:
        if values.dtype.kind not in "fiub" or values.ndim not in (2, 3) or 0 in values.shape:
            raise InputError(f"the {name} must be {axes}, real and not empty, got {values.dtype} {values.shape}")
    if mask_array.shape[-2] != y_array.shape[-2]:
        what = f"the mask has {mask_array.shape[-2]} rows and the measurement {y_array.shape[-2]}"
        raise InputError(f"{what}; crop both alike, or transpose both where the dispersion runs down")
    if mask_array.min() < 0 and mask_array.max() <= 0:  # of both signs is a camera, too: the difference of two shots
        raise InputError(f"the mask holds only negative values, down to {mask_array.min():g}; expected 0 to 1")
    if settings.shifts is not None and settings.step is not None:
        raise InputError("shifts and step state the same; give one of them")
    stored = None if settings.shifts is None else np.asarray(settings.shifts, dtype=np.float64).reshape(-1)
    if stored is not None and not np.isfinite(stored).all():
        raise InputError("the shifts hold NaN or Inf")
    step, num_bands = settings.step, settings.num_bands
    ReadOptions(step=step, num_bands=num_bands)  # checks both
    as_wide = mask_array.ndim == 3 and mask_array.shape[1:] == y_array.shape[-2:]
    if as_wide and step != 0 and displaced_down(mask_array, "mask"):
        raise InputError("the bands of the mask are displaced down the columns; transpose mask and measurement")
    shifts, mask_array = shifts_and_mask(mask_array, y_array.shape, stored, step, num_bands, "mask", notes)
    y, error = np.array(y_array, np.float32, order="C"), None if settings.pattern is None else 0.0
    return Measurement(y=y, mask=mask_array, shifts=shifts, mask_error=error, notes=tuple(notes))


def as_numpy(value: Any) -> Any:
    """A tensor, or numbers in any other form, as an array in memory; anything else as it is."""
    if hasattr(value, "toarray"):  # sparse, of SciPy
        return value.toarray()
    if not isinstance(value, Tensor):
        if isinstance(value, np.generic) or not (isinstance(value, list | tuple) or hasattr(value, "__array__")):
            return value
        return np.asarray(value)  # of pandas, xarray ... too
    value = value.detach().cpu().to_dense()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # NumPy has no bfloat16


def subtract_dark(m: Measurement, settings: Settings) -> tuple[Measurement, Settings]:
    """Measurement and white reference less the dark frame, as settings that leave no black level have them."""
    if settings.dark is None:
        return m, settings
    dark = settings.dark
    D = read_dark(dark) if isinstance(dark, str | os.PathLike) else np.asarray(as_numpy(dark))
    white = less_dark(settings.white, D) if isinstance(settings.white, Measurement) else settings.white
    return less_dark(m, D), replace(settings, dark=None, black_level=0.0, white=white)


def open_files(settings: Settings) -> Settings:
    """The settings with the files that they name read: weights of the network, photograph, and plan; not the white
    reference, which is read like the snapshot.

    Raises:
        InputError: a file that cannot be read, or a value of another kind; wavelengths of the cube that are none.
    """
    if settings.output_bands is not None:
        parse_output_bands(settings.output_bands)
    weights, side, plan = settings.weights, settings.side, settings.plan
    if isinstance(weights, str | os.PathLike):
        weights = as_prior(weights)
    if isinstance(side, str | os.PathLike):
        side = read_side_picture(side)
    if isinstance(plan, str | os.PathLike):
        plan = load_plan(plan, weights if isinstance(weights, LearnedPrior) else None)
    elif isinstance(plan, Plan) and isinstance(weights, LearnedPrior):
        plan = plan.with_weights(weights, name_of(plan.learned))
    kinds = (("weights", weights, LearnedPrior), ("side", side, SidePicture), ("plan", plan, Plan))
    for name, value, kind in kinds:
        if value is not None and not isinstance(value, kind):
            raise InputError(f"{name} must be a {kind.__name__}, got {type(value).__name__}", kind="range")
    if not isinstance(settings.camera, str | FoundCamera):
        raise InputError(f"camera must be a word or a FoundCamera, got {type(settings.camera).__name__}", kind="range")
    return replace(settings, weights=weights, side=side, plan=plan)
