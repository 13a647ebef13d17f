"""The typed keywords of `cassi.reconstruct`, as docs/make_tables.py writes them from `cassi.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    import torch

    from cassi.choice.plan import Plan
    from cassi.files.spectrum_files import Spectrum
    from cassi.optics.measurement import Measurement
    from cassi.photograph.picture import SidePicture
    from cassi.priors.learned import LearnedPrior
    from cassi.self_calibration.found_camera import FoundCamera
    from cassi.settings import Array, Prior, Quality, Solver, Turn
    from cassi.types import PathLike


class Keywords(TypedDict, total=False):
    """See `cassi.settings.Settings`."""

    shifts: Sequence[float] | None
    num_bands: int | None
    step: float | None
    wavelengths: str | Sequence[float] | Array | None
    bad_pixels: Array | None
    black_level: float | None
    dark: PathLike | Array | None
    camera: str | FoundCamera
    pattern: PathLike | Array | None
    pattern_offset: Sequence[int]
    response: PathLike | Array | None
    crosstalk: PathLike | Array | None
    psf: float | Array | None
    gain: float | None
    read_noise: float | None
    white: PathLike | Measurement | None
    white_reflectance: float | PathLike | Spectrum
    exposure_ratio: float
    solver: Solver | str
    quality: Quality | str
    views: int | None
    prior: Prior | str
    weights: PathLike | LearnedPrior | None
    budget: float | None
    uncertainty: bool
    num_iters: int | None
    tv_weight: float | None
    plan: PathLike | Plan | None
    side: PathLike | SidePicture | None
    turn_result: Turn | str
    output_bands: str | Sequence[float] | None
    device: str | torch.device
    seed: int
