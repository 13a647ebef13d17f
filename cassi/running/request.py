"""What is asked for beside a snapshot and its mask: one value, checked once, from the front door to the result."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.calibration.found_camera import FoundCamera
from cassi.choice.noise import CameraNoise
from cassi.choice.plan import Method, Plan, Run, check_number, check_plan
from cassi.errors import InputError, one_line
from cassi.optics.side_picture import SidePicture
from cassi.priors.learned import LearnedPrior, load_prior
from cassi.solvers.loop import Monitor

Array = Tensor | np.ndarray
CAMERAS = ("find", "as-given")
RECORDED = (
    "num_iters", "tv_weight", "quality", "prior", "weights", "budget", "uncertainty", "black_level",
    "psf", "plan", "camera", "side", "device", "seed",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of `cassi.reconstruct` beside measurement, mask and what is shown; the fields mean the same.

    Raises:
        InputError: a value out of range, or values that do not go together.
    """

    shifts: Sequence[float] | None = None
    step: float | None = None
    num_bands: int | None = None
    wavelengths: str | Sequence[float] | Array | None = None
    solver: str = "auto"
    num_iters: int | None = None
    tv_weight: float | None = None
    quality: str = "default"
    prior: str = "auto"
    weights: str | os.PathLike[str] | LearnedPrior | None = None
    budget: float | None = None
    uncertainty: bool = False
    psf: float | Array | None = None
    bad_pixels: Array | None = None
    black_level: float | None = None
    gain: float | None = None
    read_noise: float | None = None
    plan: Plan | None = None
    camera: str | FoundCamera = "find"
    side: SidePicture | None = None
    device: str | torch.device = "auto"
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.camera, str) and self.camera not in CAMERAS:
            raise InputError(f"camera must be one of {', '.join(CAMERAS)}, or a FoundCamera, got {self.camera!r}")
        idle = {"gain": self.gain, "read_noise": self.read_noise}
        check_plan(self.method.plan, {name: value is not None for name, value in idle.items()})
        Run(self.seed, self.budget)
        for name, value in (("gain", self.gain), ("read noise", self.read_noise), ("black level", self.black_level)):
            check_number(name, value)
        if self.side is not None and not isinstance(self.side, SidePicture):
            raise InputError(f"side must be a cassi.SidePicture(picture), got {type(self.side).__name__}")

    @cached_property
    def method(self) -> Method:
        """Solver and hyper-parameters."""
        file = isinstance(self.weights, str | os.PathLike)
        learned = read_weights(self.weights) if file else self.weights  # type: ignore[arg-type]
        return Method(
            str(self.solver).replace("_", "-"), self.num_iters, self.tv_weight, self.quality, self.uncertainty,
            plan=self.plan, prior=self.prior, learned=learned,  # type: ignore[arg-type]
        )  # fmt: skip

    @property
    def finds(self) -> bool:
        """Whether the camera is looked for."""
        return self.camera == "find" and self.psf is None

    @property
    def noise(self) -> CameraNoise:
        """Of the camera, as stated."""
        return CameraNoise(self.gain, self.read_noise)

    def run(self, start: float, monitor: Monitor | None) -> Run:
        """How to compute, with what is left of the budget since `start` on `time.perf_counter`."""
        left = None if self.budget is None else max(1e-9, self.budget - (time.perf_counter() - start))
        return Run(self.seed, left, monitor)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the record."""
        return {name: _recorded(getattr(self, name)) for name in RECORDED} | {"solver": self.method.solver}


def _recorded(value: Any) -> Any:
    """A plain value: of files their names, of anything else that it was given."""
    if isinstance(value, str | os.PathLike):
        return os.path.basename(value)
    if isinstance(value, list | tuple):
        return [_recorded(one) for one in value]
    if isinstance(value, Tensor | np.ndarray):
        return plain(value).tolist()
    if isinstance(value, torch.device):
        return str(value)
    return value if value is None or isinstance(value, int | float | np.number) else "given"


def plain(value: Array | float | None) -> Any:
    """A tensor or a list as an array in memory; anything else as it is."""
    if not isinstance(value, Tensor):
        return np.asarray(value) if isinstance(value, list) else value
    value = value.detach().cpu()
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()  # NumPy has no bfloat16


def read_weights(path: str | os.PathLike[str]) -> LearnedPrior:
    """A learned prior from its file; InputError where there is none."""
    try:
        return load_prior(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({one_line(error)}); give weights of scripts/train.py") from error
    except ValueError as error:
        raise InputError(str(error)) from error
