"""Scenes for the device that is not there, and what the CPU makes of them."""

import functools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import cassi
from cassi import CASSI, Reconstruction
from cassi.optics.protocol import Camera
from cassi.priors.learned import shipped_prior
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

SIDE, BANDS = 32, 6


WAVELENGTHS = np.linspace(450, 650, BANDS)


CUDA = torch.device("cuda", 0)


@functools.cache
def scene(side: int = SIDE, bands: int = BANDS, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Cube, mask, and snapshot with a step of 2."""
    generator = torch.Generator().manual_seed(seed)
    x = procedural_scene(side, side, torch.linspace(450, 650, bands, dtype=torch.float64), generator=generator).float()
    mask = random_mask(side, side, generator=generator).float()
    return x, mask, CASSI.from_step(mask, 2, bands).forward(x)


def reconstruct(device: str, measurement: Any = None, mask: Any = None, **options: Any) -> Reconstruction:
    y = scene()[2] if measurement is None else measurement
    if isinstance(mask, Camera):
        return cassi.reconstruct(y.to(device), mask.to(device), **options)
    settings = {"num_bands": BANDS, "step": 2, "wavelengths": WAVELENGTHS, "camera": "as-given", "device": device}
    return cassi.reconstruct(y, scene()[1], **{**settings, **options})


def named(solver: str) -> dict[str, Any]:
    return {"solver": solver, "num_iters": 12}


@pytest.fixture
def in_float32(monkeypatch):
    """Networks compute as on a GPU, that what the CPU computed can be compared; weights are read before it is there."""
    shipped_prior()
    monkeypatch.setattr("cassi.priors.learned._bfloat16_is_fast", lambda device: False)


def close(found: Tensor, expected: Tensor) -> None:
    assert found.device == CUDA
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@functools.cache
def default() -> Reconstruction:
    return reconstruct("cpu")
