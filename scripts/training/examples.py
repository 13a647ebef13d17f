"""Training examples, made on the device: scenes through a camera drawn anew, with any noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cassi.evidence.held_out import HELD_OUT
from cassi.optics.single_disperser import CASSI
from cassi.priors.spectral_basis import smooth_basis
from training.cameras import WRONG, AnyCamera, OneCamera, wrong_mask
from training.chance import Chance
from training.scenes import WAVELENGTHS, Scenes

STRENGTHS, TURNS = (1.0, 0.5), (6, 12, 18)  # of the non-local prior and its iterations, where it continues a start
OTHER_LIGHT = 1 / 3  # share of examples under strongly colored light; that of others is nearly white


@dataclass(frozen=True, eq=False)
class Examples:
    """Snapshots of N scenes through one camera, and what the network is to make of them.

    Attributes:
        mask, shifts: of the camera as it is believed to be, (C, H, W) and C numbers.
        seen: (H, W'), 0 where a pixel is held out.
        basis: (K, C).
        y: (N, H, W'), all pixels.
        variance: of the noise of y, without what a wrong mask adds.
        known: (N, 1, 1), 1 where the solver is given that variance, 0 where it has to estimate one.
        truth: cubes (N, C, H, W).
        non_local: strength and iterations of the non-local prior that continues the start, or None.
    """

    mask: Tensor
    shifts: tuple[int, ...]
    seen: Tensor
    basis: Tensor
    y: Tensor
    variance: Tensor
    known: Tensor
    truth: Tensor
    non_local: tuple[float, int] | None = None

    @property
    def camera(self) -> CASSI:
        """A new one each time."""
        return CASSI(self.mask, self.shifts)

    @property
    def tensors(self) -> list[Tensor]:
        return [self.mask, self.seen, self.basis, self.y, self.variance, self.known, self.truth]

    def with_tensors(self, tensors: list[Tensor]) -> Examples:
        """The same layout of other `tensors`."""
        return Examples(tensors[0], self.shifts, *tensors[1:], self.non_local)


def draw_examples(
    chance: Chance, scenes: Scenes, camera: AnyCamera | OneCamera, count: int, size: tuple[int, int], components: int,
    non_local: float = 0.0,
) -> Examples:  # fmt: skip
    """Pieces of scenes through a piece of a camera, most of them with noise of 300 to 30,000 electrons.

    `non_local` is the share of calls whose starts the non-local prior continues.
    """
    drawn = camera.draw(chance, *size)
    C = len(drawn.shifts)
    mask = drawn.mask.expand(C, *size).contiguous()
    true_mask = wrong_mask(chance, drawn.mask) if chance.happens(WRONG) else mask
    truth = in_bands(chance, scenes.draw(chance, count, *size), drawn.wavelengths)
    y = CASSI(true_mask, drawn.shifts).forward(truth)
    electrons = torch.exp(chance.uniform(count, 1, 1, low=np.log(300), high=np.log(30_000)))
    electrons = torch.where(chance.uniform(count, 1, 1) < 0.3, torch.inf, electrons)
    unit = y.amax((-2, -1), keepdim=True) / electrons  # of y, one electron
    read_noise = 5 * (chance.uniform(count, 1, 1) < 0.5)
    variance = y * unit + (read_noise * unit).square()
    y = y + variance.sqrt() * chance.normal(*y.shape)
    seen = (chance.uniform(*y.shape[1:]) >= HELD_OUT).float()
    known = (chance.uniform(count, 1, 1) < 0.1).float()
    basis = smooth_basis(drawn.wavelengths, components).float().to(chance.device)
    continued = non_local > 0 and chance.happens(non_local)
    turns = (chance.one_of(STRENGTHS), int(chance.one_of(TURNS))) if continued else None
    return Examples(mask, drawn.shifts, seen, basis, y, variance, known, truth, turns)


def in_bands(chance: Chance, x: Tensor, wavelengths: np.ndarray) -> Tensor:
    """(N, 31, H, W) under another light, at these wavelengths, the brightest voxel 1.

    A camera may be nearly blind at the ends of the spectrum: weak bands.
    """
    count = len(x)
    t = torch.linspace(-1, 1, len(WAVELENGTHS), device=x.device)

    def number(low: float, high: float) -> Tensor:
        return chance.uniform(count, 1, low=low, high=high)

    wave = torch.cos(torch.pi * t * number(0.5, 2) + number(0, 6))
    tilted = 0.4 * chance.normal(count, 1) * t + 0.3 * chance.normal(count, 1) * wave
    bell = -0.5 * ((t - number(-0.6, 0.6)) / number(0.3, 0.8)).square()
    other = tilted * (number(0, 1) < 0.6) + bell * (number(0, 1) < 0.3)
    light = torch.where(number(0, 1) < OTHER_LIGHT, other, 0.1 * chance.normal(count, 1) * t)
    place = torch.from_numpy((wavelengths - WAVELENGTHS[0]) / 10)
    below = place.long().clamp(0, len(WAVELENGTHS) - 2)
    share = (place - below).float()
    resample = torch.zeros(len(wavelengths), len(WAVELENGTHS))
    rows = torch.arange(len(wavelengths))
    resample[rows, below] = 1 - share
    resample[rows, below + 1] = share
    size = x.shape[2:]
    x = ((resample.to(x.device) * light.exp()[:, None]) @ x.flatten(2)).view(count, len(wavelengths), *size)
    return x / x.amax((1, 2, 3), keepdim=True).clamp(min=1e-6)
