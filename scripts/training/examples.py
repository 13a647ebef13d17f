"""Training examples: a scene through a camera drawn anew, with noise, and the start that total variation finds."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.choice.learned_step import LearnedStep
from cassi.choice.refine import KEPT, SIGMA_BETWEEN, fresh
from cassi.kernels.covariance import covariance_sum
from cassi.optics.detector import brightness
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import analyse, coefficient_weights, principal_basis, smooth_basis
from cassi.solvers.loop import Result
from cassi.solvers.subspace_tv import SubspaceState, subspace_tv
from training.scenes import WAVELENGTHS, Scenes


@dataclass(frozen=True, eq=False)
class Examples:
    """Snapshots of N scenes through one camera, and what the network is to make of them.

    Attributes:
        camera: with row weights 0 where a pixel is held out, as the automatic solver has it.
        y, variance: (N, H, W').
        basis: (K, C).
        start, truth: coefficient images (N, K, H, W), from a file in half precision.
    """

    camera: CASSI
    y: Tensor
    variance: Tensor
    basis: Tensor
    start: Tensor
    truth: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def turned(self, rng: np.random.Generator, rows: int) -> Examples:
        """Others out of these: some of the rows, perhaps upside down, mirrored, or with bands reversed.

        Light moves along rows only, so that any rows are a snapshot of their own. Reversed bands change the sign of
        every odd coefficient and, like a mirrored picture, of the dispersion. In float32.
        """
        first = int(rng.integers(self.truth.shape[-2] - rows + 1))
        weights = torch.ones_like(self.y[0]) if self.camera.weights is None else self.camera.weights
        images = [self.camera.mask, weights, self.y, self.variance, self.start, self.truth]
        images = [image[..., first : first + rows, :].float() for image in images]
        shifts = np.array(self.camera.shifts)
        if rng.random() < 0.5:
            images = [image.flip(-2) for image in images]
        if rng.random() < 0.5:
            images, shifts = [image.flip(-1) for image in images], -shifts
        mask, weights, y, variance, start, truth = (image.contiguous() for image in images)
        if rng.random() < 0.5:
            signs = (1 - 2 * (torch.arange(start.shape[1], device=start.device) % 2)).to(start).view(-1, 1, 1)
            start, truth, shifts = start * signs, truth * signs, -shifts
        return Examples(CASSI(mask, tuple(shifts), weights), y, variance, self.basis, start, truth)

    def to(self, device: torch.device) -> Examples:
        """The same on another device."""
        if device.type == "cpu":
            return self
        fields = (self.y, self.variance, self.basis, self.start, self.truth)
        return Examples(self.camera.to(device), *(tensor.to(device) for tensor in fields))


def draw_examples(
    rng: np.random.Generator,
    scenes: Scenes,
    count: int,
    height: int,
    width: int,
    components: int,
    prior: LearnedPrior | None = None,
) -> list[Examples]:
    """Pieces of scenes, 16 to 31 bands of 400 to 700 nm, any mask, a step of 1 to 3 either way, any noise.

    Three cameras in ten are believed to have a slightly wrong mask. The variance that is told is a guess, too: that is
    all the automatic solver has. The first have the starts found without a learned prior; with a prior more follow,
    of the same scenes, whose starts are those of its next corrections.
    """
    low, high = (400.0, 700.0) if rng.random() < 0.5 else (rng.uniform(400, 460), rng.uniform(630, 700))
    wavelengths = np.linspace(low, high, int(rng.choice([28, 31, rng.integers(16, 32)])))
    wavelengths = wavelengths[:: rng.choice([1, -1])]
    step = int(rng.choice([1, 1, 2, 2, 2, 3])) * int(rng.choice([1, -1]))
    shifts = tuple(c * step for c in range(len(wavelengths)))
    mask = random_mask(rng, height, width)
    true_mask = wrong_mask(rng, mask) if rng.random() < 0.3 else mask
    true, believed = CASSI(true_mask, shifts), CASSI(mask, shifts)
    keep = torch.from_numpy((rng.random(believed.measurement_shape) > 0.02).astype(np.float32))
    A = believed.weighted(keep)
    basis = smooth_basis(len(wavelengths), components).float()
    correct = None if prior is None else LearnedStep(prior, basis)
    times = int(rng.integers(2, 6))
    drawn = []
    for _ in range(count):
        x = _bands(rng, scenes.piece(rng, height, width), wavelengths)
        y = true.forward(x)
        wrong = float((y - believed.forward(x)).square().mean())
        variance = torch.full_like(y, (10 ** rng.uniform(-4, -2) * float(y.mean())) ** 2)
        if rng.random() < 0.6:
            gain = math.exp(rng.uniform(math.log(600), math.log(30_000))) / float(y.max())  # electrons per unit of y
            read_noise = float(rng.choice([0, 5]))
            electrons = rng.poisson((y * gain).numpy()) + read_noise * rng.standard_normal(y.shape)
            y = torch.from_numpy((electrons / gain).astype(np.float32))
            variance += (y.clamp(min=0) / gain + (read_noise / gain) ** 2) * math.exp(rng.normal(-0.1, 0.4))
        variance += wrong * rng.uniform(0, 1)
        y = y * keep
        variance *= float(rng.choice([0.2, 0.4, 1.0], p=[0.6, 0.25, 0.15]))  # of what is told, so much is believed
        starts = list(_starts(rng, A, y, variance, basis, correct, times))
        drawn.append((y, variance, analyse(x, basis), *starts))
    y, variance, truth, *starts = (torch.stack(images) for images in zip(*drawn, strict=True))
    return [Examples(A, y, variance, basis, start, truth) for start in starts]


def _starts(
    rng: np.random.Generator,
    A: CASSI,
    y: Tensor,
    variance: Tensor,
    basis: Tensor,
    correct: LearnedStep | None,
    times: int,
) -> Iterator[Tensor]:
    """What the automatic solver may have found before: total variation, then mostly a non-local prior.

    Mostly, as there, in a basis learned from a first cube; then, with a learned prior, so many corrections, and the
    non-local prior after each.
    """
    B = smooth_basis(A.num_bands, 16).float()
    if rng.random() < 0.8:
        first, _ = subspace_tv(A, y, B, variance=variance, num_iters=80)
        B = principal_basis(covariance_sum(first.x.clamp(min=0)), 10).float()
    result, state = subspace_tv(A, y, B, variance=variance, num_iters=int(rng.integers(220, 300)))
    weights = coefficient_weights(len(B)).float() * brightness(A, y)

    def nonlocal_run(state: SubspaceState, num_iters: int, sigma: float) -> tuple[Result, SubspaceState]:
        return subspace_tv(
            A,
            y,
            B,
            variance=variance,
            num_iters=num_iters,
            state=state,
            denoise=NonlocalDenoiser(sigma * weights, stride=5),
        )

    state = fresh(state)
    if rng.random() < 0.85:
        num_iters = int(rng.integers(18, 25) if rng.random() < 0.4 else rng.integers(3, 10))
        result, state = nonlocal_run(state, num_iters, float(rng.choice([0.35, 0.5])))
    yield analyse(result.x, basis)
    for _ in range(times):
        if correct is None:
            return
        x = correct(A, y, result.x, variance, views=1).x
        state = replace(state, z=analyse(x, B), e=KEPT * state.e)
        result, state = nonlocal_run(state, int(rng.integers(3, 6)), SIGMA_BETWEEN)
        yield analyse(result.x, basis)


def _bands(rng: np.random.Generator, x: np.ndarray, wavelengths: np.ndarray) -> Tensor:
    """Another light, and these bands."""
    if rng.random() < 0.6:
        t = np.linspace(-1, 1, len(x))
        wave = np.cos(np.pi * t * rng.uniform(0.5, 2) + rng.uniform(0, 6))
        x = x * np.exp(rng.normal(0, 0.4) * t + rng.normal(0, 0.3) * wave)[:, None, None]
    place = (wavelengths - WAVELENGTHS[0]) / 10
    below = np.clip(place.astype(int), 0, len(x) - 2)
    share = (place - below)[:, None, None]
    x = x[below] * (1 - share) + x[below + 1] * share
    return torch.from_numpy(np.ascontiguousarray(x / x.max(), np.float32))


def random_mask(rng: np.random.Generator, height: int, width: int) -> Tensor:
    """Grey, or binary, sharp or blurred, perhaps uneven; the closed elements black or not quite; perhaps a slope."""
    u = torch.from_numpy(rng.random((height, width)).astype(np.float32))
    kind = rng.integers(4)
    if kind == 0:
        mask = u
    else:
        mask = (u < rng.uniform(0.3, 0.7)).float()
        if kind >= 2:
            offsets = torch.arange(-3, 4)
            taps = torch.exp(-(offsets**2) / (2 * rng.uniform(0.3, 0.9) ** 2))
            taps /= taps.sum()
            padded = F.pad(mask[None, None], (3, 3, 3, 3), mode="circular")
            mask = F.conv2d(F.conv2d(padded, taps.view(1, 1, 7, 1)), taps.view(1, 1, 1, 7))[0, 0]
        if kind == 3:
            mask = mask * (1 + rng.uniform(0.02, 0.15) * _normal(rng, mask))
    if rng.random() < 0.5:
        floor = rng.uniform(0, 0.25)
        mask = floor + (1 - floor) * mask
    if rng.random() < 0.3:
        angle, strength = rng.uniform(0, 2 * math.pi), rng.uniform(0, 0.4)
        i, j = np.mgrid[:height, :width]
        slope = math.cos(angle) * (i / height - 0.5) + math.sin(angle) * (j / width - 0.5)
        mask = mask * torch.from_numpy((1 + strength * slope).astype(np.float32))
    return mask.clamp(0, 1.5).contiguous()


def wrong_mask(rng: np.random.Generator, mask: Tensor) -> Tensor:
    """The mask as it really is, where it was measured with noise, a fraction of a pixel aside, or less sharp."""
    kind = rng.integers(3)
    if kind == 0:
        return (mask * (1 + rng.uniform(0.01, 0.06) * _normal(rng, mask))).clamp(min=0)
    if kind == 1:
        aside = rng.uniform(0, 0.3)
        return (1 - aside) * mask + aside * torch.roll(mask, int(rng.choice([1, -1])), int(rng.integers(2)))
    share = rng.uniform(0.02, 0.12)
    blurred = F.avg_pool2d(F.pad(mask[None, None], (1, 1, 1, 1), mode="replicate"), 3, 1)[0, 0]
    return (1 - share) * mask + share * blurred


def _normal(rng: np.random.Generator, like: Tensor) -> Tensor:
    return torch.from_numpy(rng.standard_normal(like.shape).astype(np.float32))


def write_examples(path: Path, examples: list[Examples]) -> None:
    """A file of examples, whole or not at all; coefficients in half precision."""
    plain = [
        {
            "mask": e.camera.mask,
            "weights": e.camera.weights,
            "shifts": e.camera.shifts,
            "y": e.y,
            "variance": e.variance,
            "start": e.start.half(),
            "truth": e.truth.half(),
        }
        for e in examples
    ]
    partial = path.with_suffix(f".partial{os.getpid()}")
    torch.save(plain, partial)
    partial.replace(path)


def read_examples(path: Path) -> list[Examples]:
    """What `write_examples` wrote; nothing in the file is run."""
    return [
        Examples(
            CASSI(p["mask"], p["shifts"], p["weights"]),
            p["y"],
            p["variance"],
            smooth_basis(len(p["shifts"]), p["truth"].shape[1]).float(),
            p["start"],
            p["truth"],
        )
        for p in torch.load(path, weights_only=True)
    ]
