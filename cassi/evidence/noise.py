"""The noise of a snapshot: given with its camera, or estimated at held-out pixels.

variance_j = alpha max(y_j, 0) + beta
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cassi.errors import InputError
from cassi.evidence.held_out import Split
from cassi.optics.measurement import check_noise
from cassi.optics.protocol import Camera
from cassi.priors.spectral_basis import smooth_basis, synthesise
from cassi.solvers.loop import Record
from cassi.solvers.subspace_tv import subspace_tv

STATED = "gain and read noise of the camera"  # where a noise model comes from that is not estimated
PILOT_ITERS = 60
PILOT_COMPONENTS = 16  # smooth spectral components
PILOT_NOISE = 1e-3  # standard deviation of y that a pilot assumes, in units of its mean
CHECK_EVERY = 10  # iterations between two looks at the held-out pixels


@dataclass(frozen=True)
class CameraNoise:
    """The noise of a camera, as far as it is given.

    Attributes:
        gain: electrons per unit of y, > 0; None where unknown.
        read_noise: standard deviation [electron], >= 0; needs the gain.

    Raises:
        InputError: a value out of range, or read noise without gain.
    """

    gain: float | None = None
    read_noise: float | None = None

    def __post_init__(self) -> None:
        check_noise(self.gain, self.read_noise)
        if self.read_noise is not None and self.gain is None:
            raise InputError("the read noise is in electrons and needs the gain too", cures=("gain",))

    def scaled(self, factor: float) -> CameraNoise:
        """The same noise for measurements multiplied by `factor`."""
        return self if self.gain is None else CameraNoise(self.gain / factor, self.read_noise)

    def model(self) -> NoiseModel:
        """The `NoiseModel`; ValueError if the gain is unknown."""
        if self.gain is None:
            raise ValueError("the gain is unknown, so the noise is too")
        return NoiseModel(1 / self.gain, ((self.read_noise or 0.0) / self.gain) ** 2, STATED)


@dataclass(frozen=True)
class NoiseModel:
    """variance = alpha max(y, 0) + beta, in units of y and y^2, and the source of both numbers."""

    alpha: float
    beta: float
    source: str

    def variance(self, y: Tensor) -> Tensor:
        return y.clamp(min=0) * self.alpha + self.beta

    def scaled(self, factor: float) -> NoiseModel:
        """The same noise for measurements multiplied by `factor`."""
        return NoiseModel(self.alpha * factor, self.beta * factor**2, self.source)

    def as_dict(self) -> dict[str, float | str]:
        return {"alpha": self.alpha, "beta": self.beta, "source": self.source}


def pilot_basis(A: Camera, axis: int | Sequence[float] | np.ndarray) -> Tensor:
    """(K, C), smooth over the bands or their wavelengths: K = 16 for one snapshot, C for several shots.

    Several shots resolve spectra that one shot cannot: on ten windows of CAVE scenes (64 x 64 pixels) two and four gain
    0.8 and 1.1 dB over K = 16 without noise, 0.3 and 0.5 dB at 10,000 electrons.
    """
    return smooth_basis(axis, PILOT_COMPONENTS if A.num_shots == 1 else A.num_bands)


def estimate_noise(split: Split, basis: Tensor) -> tuple[NoiseModel, Tensor]:
    """Estimate the noise from a pilot run; returned with the pilot's cube.

    The pilot is damped by little noise, so its cube turns from smooth to noisy: the iteration that predicts best is
    taken. Without any, read noise that dark elements of the mask do not explain makes single voxels so bright that a
    basis has their spectra: 10 dB are lost on microscope captures.
    """
    basis = basis.to(split.y)
    pilot = _BestCube(split, basis)
    subspace_tv(
        split.A_train, split.y_train, basis, variance=pilot_variance(split.y_train), num_iters=PILOT_ITERS,
        monitor=pilot,
    )  # fmt: skip
    return fit_noise(split, pilot.squared), pilot.cube


def pilot_variance(y: Tensor) -> float:
    """Of a snapshot whose noise nobody knows yet."""
    return (PILOT_NOISE * float(y.mean())) ** 2


def fit_noise(split: Split, squared: Tensor) -> NoiseModel:
    """Fit alpha and beta to a cube's squared errors at the held-out pixels: noise, and the error of the cube.

    Through the means of the dark and of the bright half; beta keeps at least a tenth of the dark half's mean: no camera
    is without noise in the dark.
    """
    light = split.values.clamp(min=0)
    order = torch.argsort(light, stable=True)
    middle = len(order) // 2
    dark, bright = order[: max(1, middle)], order[middle:]
    dark_light, dark_squared = float(light[dark].mean()), float(squared[dark].mean())
    rise, run = float(squared[bright].mean()) - dark_squared, float(light[bright].mean()) - dark_light
    max_alpha = 0.9 * dark_squared / dark_light if dark_light > 0 else math.inf
    alpha = min(rise / run, max_alpha) if rise > 0 and run > 0 else 0.0
    return NoiseModel(alpha, dark_squared - alpha * dark_light, "errors at the held-out pixels")


class _BestCube:
    """A monitor that keeps the cube which predicts the held-out pixels best."""

    every = CHECK_EVERY

    def __init__(self, split: Split, B: Tensor) -> None:
        self.split, self.B = split, B
        self.error, self.cube = math.inf, B.new_zeros(())
        self.squared = torch.zeros_like(split.values)

    def __call__(self, record: Record, z: Tensor) -> None:
        if record.iteration % CHECK_EVERY == 0:
            x = synthesise(z, self.B)
            misfit = self.split.misfit(x)
            error = float(misfit.norm())
            if error < self.error:
                self.error, self.squared, self.cube = error, misfit.square(), x
