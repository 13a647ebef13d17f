"""One source of all random numbers of a training: the few that decide on the CPU, those of images on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Chance:
    """Random numbers of one seed.

    Args:
        seed: what both generators are derived from.
        device: of the tensors.
    """

    def __init__(self, seed: int | Sequence[int], device: torch.device) -> None:
        self.rng = np.random.default_rng(seed)
        self.device = device
        self.generator = torch.Generator(device).manual_seed(int(self.rng.integers(2**62)))

    def state(self) -> dict[str, Any]:
        """All that is needed to go on from here."""
        return {"rng": self.rng.bit_generator.state, "generator": self.generator.get_state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.rng.bit_generator.state = state["rng"]
        self.generator.set_state(state["generator"].cpu())

    def happens(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def number(self, low: float, high: float) -> float:
        return float(self.rng.uniform(low, high))

    def log_number(self, low: float, high: float) -> float:
        return math.exp(self.rng.uniform(math.log(low), math.log(high)))

    def one_of(self, values: Sequence[Any], p: Sequence[float] | None = None) -> Any:
        return values[int(self.rng.choice(len(values), p=p))]

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=self.generator, device=self.device)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, device=self.device)

    def integers(self, count: int, *shape: int) -> Tensor:
        """0 .. count - 1."""
        return torch.randint(count, shape, generator=self.generator, device=self.device)

    def flags(self, probability: float, count: int) -> Tensor:
        """(count, 1, 1, 1) of 0 and 1."""
        return (self.uniform(count, 1, 1, 1) < probability).float()

    def field(self, count: int, channels: int, height: int, width: int, cells: int) -> Tensor:
        """(count, channels, height, width): smooth random fields of mean 0 and standard deviation 1.

        `cells` is how many random values the longer side is interpolated from.
        """
        longer = max(height, width)
        size = max(2, round(cells * height / longer)), max(2, round(cells * width / longer))
        coarse = self.normal(count, channels, *size)
        fine = F.interpolate(coarse, (height, width), mode="bicubic", align_corners=True)
        return standardised(fine)


def standardised(images: Tensor) -> Tensor:
    """Each image with mean 0 and standard deviation 1."""
    images = images - images.mean((-2, -1), keepdim=True)
    return images / images.square().mean((-2, -1), keepdim=True).sqrt().clamp(min=1e-6)
