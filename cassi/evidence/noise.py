"""The noise of a snapshot: given with its camera, or estimated at held-out pixels.

variance_j = alpha max(y_j, 0) + beta
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cassi.errors import InputError
from cassi.evidence.held_out import Split
from cassi.optics.measurement import check_noise

STATED = "gain and read noise of the camera"  # where a noise model comes from that is not estimated


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


def fit_noise(split: Split, squared: Tensor) -> NoiseModel:
    """Fit alpha and beta to a cube's squared errors at the judged pixels: noise, and the error of the cube.

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
