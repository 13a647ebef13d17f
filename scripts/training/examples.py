"""Training examples, made on the fly: a scene through a camera drawn anew, with noise, and the default's starts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import scipy.io
import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.choice.adaptation import begun_at
from cassi.choice.automatic import explored, stages_of
from cassi.choice.held_out import Split
from cassi.choice.noise import CameraNoise, noise_left
from cassi.choice.plan import Method
from cassi.choice.stages import Tv, Watch
from cassi.files import read_measurement
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior
from training.scenes import WAVELENGTHS, Scenes


@dataclass(frozen=True, eq=False)
class Examples:
    """Snapshots of N scenes through one camera, and what the network is to make of them.

    Attributes:
        mask, shifts, weights: of the camera as it is believed to be; row weights are 0 where a pixel is missing.
        y, variance: (N, H, W').
        basis: (K, C).
        start: coefficient images (N, K, H, W).
        truth: cubes (N, C, H, W).
        turns: how often the network has been at work on this start since it was drawn.
    """

    mask: Tensor
    shifts: tuple[int, ...]
    weights: Tensor
    y: Tensor
    variance: Tensor
    basis: Tensor
    start: Tensor
    truth: Tensor
    turns: int = 0

    @property
    def camera(self) -> CASSI:
        """A new one each time."""
        return CASSI(self.mask, self.shifts, self.weights)

    @property
    def tensors(self) -> list[Tensor]:
        """All there are."""
        return [self.mask, self.weights, self.y, self.variance, self.basis, self.start, self.truth]

    def with_tensors(self, tensors: Iterable[Tensor]) -> Examples:
        """The same layout of other `tensors`."""
        mask, weights, y, variance, basis, start, truth = tensors
        return Examples(mask, self.shifts, weights, y, variance, basis, start, truth, self.turns)

    def to(self, device: torch.device) -> Examples:
        """The same on a device."""
        return self.with_tensors(t.to(device) for t in self.tensors)

    def turned(self, rng: np.random.Generator, *, along: bool = True) -> Examples:
        """Others out of these: perhaps upside down, and where `along` is allowed mirrored, or with bands reversed.

        Reversed bands change the sign of every odd coefficient and, like a mirrored picture, of the dispersion.
        """
        mask, weights, y, variance, basis, start, truth = self.tensors
        images, shifts = [mask, weights, y, variance, start, truth], np.array(self.shifts)
        if rng.random() < 0.5:
            images = [image.flip(-2) for image in images]
        if along and rng.random() < 0.5:
            images, shifts = [image.flip(-1) for image in images], -shifts
        mask, weights, y, variance, start, truth = images
        if along and rng.random() < 0.5:
            signs = (1 - 2 * (torch.arange(start.shape[1], device=start.device) % 2)).to(start)
            start, truth = start * signs.view(-1, 1, 1), truth.flip(1)
            basis = basis.flip(1) * signs[:, None]
            mask = mask.flip(0) if mask.ndim == 3 else mask
            shifts = shifts[::-1]
        return Examples(mask, tuple(shifts.tolist()), weights, y, variance, basis, start, truth, self.turns)

    def in_order(self) -> Examples:
        """The same, told so that few layouts differ: from the band that lies at 0 on, if it is an end; a mask each."""
        bands, lowest = len(self.shifts), min(self.shifts)
        whole = replace(
            self, mask=self.mask.expand(bands, *self.mask.shape[-2:]), shifts=tuple(d - lowest for d in self.shifts)
        )
        if whole.shifts[0] == 0:
            return whole
        turned = {"mask": whole.mask.flip(0), "basis": whole.basis.flip(1), "truth": whole.truth.flip(1)}
        return replace(whole, shifts=whole.shifts[::-1], **turned)


@dataclass(frozen=True, eq=False)
class AnyCamera:
    """8 to 31 bands of 400 to 700 nm, any mask, also one of the measured `masks`, a step of 1 to 3 either way."""

    masks: list[Tensor]
    along = True  # mirrored along the dispersion it is another such camera

    def draw(self, rng: np.random.Generator, height: int, width: int) -> OneCamera:
        low, high = (450.0, 650.0) if rng.random() < 0.5 else (rng.uniform(400, 470), rng.uniform(600, 700))
        C = int(rng.choice([28, 28, 31, rng.integers(8, 32)]))
        wavelengths = np.linspace(low, high, C)[:: rng.choice([1, -1])]
        step = int(rng.choice([1, 2, 2, 2, 2, 3])) * int(rng.choice([1, -1]))
        mask = drawn_mask(rng, self.masks, height, width)
        if rng.random() < 0.35:
            mask = softened(mask, np.linspace(rng.uniform(0, 0.8), rng.uniform(0.5, 2.2), C)[:: rng.choice([1, -1])])
        return OneCamera(mask, tuple(c * step for c in range(C)), wavelengths)


@dataclass(frozen=True, eq=False)
class OneCamera:
    """Mask (H, W) or (C, H, W), shifts [pixel] and wavelengths [nm] of its C bands; a piece of it is one, too."""

    mask: Tensor
    shifts: tuple[int, ...]
    wavelengths: np.ndarray
    along = False

    def draw(self, rng: np.random.Generator, height: int, width: int) -> OneCamera:
        while True:
            i, j = (
                int(rng.integers(whole - part + 1))
                for whole, part in zip(self.mask.shape[-2:], (height, width), strict=True)
            )
            mask = self.mask[..., i : i + height, j : j + width].contiguous()
            if mask.any():
                return replace(self, mask=mask)

    def check_size(self, size: tuple[int, int]) -> None:
        """Raise ValueError for examples larger than the mask."""
        if any(part > whole for part, whole in zip(size, self.mask.shape[-2:], strict=True)):
            raise ValueError(
                f"examples of {size[0]} x {size[1]} pixels do not fit into a mask of {self.mask.shape[-2]} x "
                f"{self.mask.shape[-1]}; take a smaller --size"
            )


def read_camera(path: Path) -> OneCamera:
    """The camera of a file: one that was saved, a calibration, or a measurement with its mask.

    What noise of its calibration makes negative in a mask is taken for 0.

    Raises:
        ValueError: a file without mask and bands, a mask that cannot be or of another number of bands, shifts between
            pixels, or wavelengths outside 400 to 700 nm.
    """
    if h5py.is_hdf5(path) and not _holds_measurement(path):
        with h5py.File(path) as file:
            names = [name for name in ("mask", "shifts", "wavelengths") if isinstance(file.get(name), h5py.Dataset)]
            held = {name: file[name][()] for name in names}
        mask, shifts, wavelengths = (held.get(name) for name in ("mask", "shifts", "wavelengths"))
        if mask is None or shifts is None:
            raise ValueError(
                f"{path}: holds no camera, expected `mask` and `shifts`, got {', '.join(held) or 'neither'}"
            )
    else:
        m = read_measurement(path)
        mask, shifts, wavelengths = m.mask, np.asarray(m.shifts), m.wavelengths
    C, mask = len(shifts), np.asarray(mask)
    if mask.shape[:-2] not in ((), (1,), (C,)) or mask.ndim < 2 or not np.isfinite(mask).all() or not mask.any():
        raise ValueError(f"{path}: the mask must be (H, W) or ({C}, H, W), finite and not black, got {mask.shape}")
    if wavelengths is not None and len(wavelengths) != C:
        raise ValueError(f"{path}: expected {C} wavelengths, as many as shifts, got {len(wavelengths)}")
    if not np.array_equal(shifts, np.rint(shifts)):
        raise ValueError(f"{path}: bands must lie whole pixels apart to train with, got shifts {shifts}")
    if wavelengths is None:
        wavelengths = np.linspace(450, 650, len(shifts))
    if not (WAVELENGTHS[0] <= np.min(wavelengths) and np.max(wavelengths) <= WAVELENGTHS[-1]):
        raise ValueError(f"{path}: scenes are known at 400 to 700 nm, got bands at {wavelengths} nm")
    mask = torch.from_numpy(np.ascontiguousarray(mask[0] if mask.shape[:-2] == (1,) else mask, np.float32))
    return OneCamera(mask.clamp(min=0), tuple(int(d) for d in shifts), np.asarray(wavelengths, float))


def _holds_measurement(path: Path) -> bool:
    with h5py.File(path) as file:
        return "measurement" in file


def draw_examples(
    rng: np.random.Generator,
    scenes: Scenes,
    camera: AnyCamera | OneCamera,
    count: int,
    size: tuple[int, int],
    prior: LearnedPrior,
) -> list[Examples]:
    """Pieces of scenes through a piece of a camera, with any noise: one example for each start.

    Starts are the cubes of the default solver after total variation, of 60 to 200 iterations, and after each run of the
    non-local prior.

    Half of the cameras are believed to have a slightly wrong mask. The noise is not told: it is estimated, as in the
    default solver, with 2 % of the pixels held out.
    """
    height, width = size
    device = prior.log_tau.device
    drawn = camera.draw(rng, height, width)
    mask, shifts, wavelengths = drawn.mask, drawn.shifts, drawn.wavelengths
    true_mask = wrong_mask(rng, mask) if rng.random() < 0.5 else mask
    x = torch.stack([bands(rng, scenes.piece(rng, height, width), wavelengths) for _ in range(count)]).to(device)
    A = CASSI(mask.to(device), shifts)
    y = CASSI(true_mask.to(device), shifts).forward(x)
    generator = torch.Generator(device).manual_seed(int(rng.integers(2**62)))
    if rng.random() < 0.65:
        electrons, read_noise = math.exp(rng.uniform(math.log(300), math.log(30_000))), float(rng.choice([0, 5]))
        gain = electrons / y.amax((-2, -1), keepdim=True)  # electrons per unit of y
        noise = (y.clamp(min=0) / gain + (read_noise / gain) ** 2).sqrt()
        y = y + noise * torch.randn(y.shape, generator=generator, device=device)
    seed, first = int(rng.integers(2**31)), Tv(int(rng.choice([60, 100, 200])))
    each = [_photographed(A, one, truth, wavelengths, prior, first, seed) for one, truth in zip(y, x, strict=True)]
    return [_together(examples) for examples in zip(*each, strict=True)]


def _photographed(
    A: CASSI, y: Tensor, truth: Tensor, wavelengths: np.ndarray, prior: LearnedPrior, first: Tv, seed: int
) -> list[Examples]:
    """One snapshot (H, W') of a scene (C, H, W), and where the stages of the default solver have got to with it."""
    split, method = Split.of(A, y, seed), Method(learned=prior)
    A, y, (_, chains) = split.A_train, split.y_train, stages_of(A, method)
    found = explored(split, wavelengths, CameraNoise(), method)
    problem = found.plan.problem(y, found.brightness)
    state = first.run(A, y, problem, None, Watch())
    variance = noise_left(split, split.verdict(state.x, imprint=False).squared).variance(y)
    problem, B, examples = replace(problem, variance=variance), problem.smooth.to(y), []
    for stage in (None, *chains[0]):
        state = state if stage is None else stage.run(A, y, problem, state, Watch())
        if stage is None or not stage.needs_network:
            seen, _, start, wanted = begun_at(state.x, A, y, variance, truth, B)
            weights = torch.ones_like(seen) if A.weights is None else A.weights
            camera, of_one = (A.mask, A.shifts, weights), (seen[None], variance[None], B, start[None], wanted[None])
            examples.append(Examples(*camera, *of_one))
    return examples


def _together(examples: Sequence[Examples]) -> Examples:
    """N examples of one camera as one."""
    joined = (torch.cat([getattr(e, name) for e in examples]) for name in ("y", "variance", "start", "truth"))
    y, variance, start, truth = joined
    return replace(examples[0], y=y, variance=variance, start=start, truth=truth)


def bands(rng: np.random.Generator, x: np.ndarray, wavelengths: np.ndarray) -> Tensor:
    """Another light, these bands, the brightest voxel 1; a camera may be nearly blind at the ends of the spectrum."""
    t = np.linspace(-1, 1, len(x))
    if rng.random() < 0.6:
        wave = np.cos(np.pi * t * rng.uniform(0.5, 2) + rng.uniform(0, 6))
        x = x * np.exp(rng.normal(0, 0.4) * t + rng.normal(0, 0.3) * wave)[:, None, None]
    if rng.random() < 0.3:
        x = x * np.exp(-0.5 * ((t - rng.uniform(-0.6, 0.6)) / rng.uniform(0.3, 0.8)) ** 2)[:, None, None]
    place = (wavelengths - WAVELENGTHS[0]) / 10
    below = np.clip(place.astype(int), 0, len(x) - 2)
    share = (place - below)[:, None, None]
    x = x[below] * (1 - share) + x[below + 1] * share
    return torch.from_numpy(np.ascontiguousarray(x / x.max(), np.float32))


def load_masks(folder: Path, side: int) -> list[Tensor]:
    """Measured masks of at least this side [pixel] that the folder holds: kaist/scene01.h5 and */mask.mat (`mask`)."""
    masks = []
    if (folder / "kaist" / "scene01.h5").exists():
        with h5py.File(folder / "kaist" / "scene01.h5") as file:
            masks.append(file["mask"][()])
    masks += [scipy.io.loadmat(path)["mask"] for path in sorted(folder.glob("*_real/mask.mat"))]
    return [torch.from_numpy(np.ascontiguousarray(mask, np.float32)) for mask in masks if min(mask.shape) >= side]


def drawn_mask(rng: np.random.Generator, masks: list[Tensor], height: int, width: int) -> Tensor:
    """A piece of a measured mask, turned, or a random one."""
    if not masks or rng.random() < 0.6:
        return random_mask(rng, height, width)
    mask = torch.rot90(masks[rng.integers(len(masks))], int(rng.integers(4)))
    i, j = (int(rng.integers(n - m + 1)) for n, m in zip(mask.shape, (height, width), strict=True))
    return mask[i : i + height, j : j + width].clone()


def random_mask(rng: np.random.Generator, height: int, width: int) -> Tensor:
    """Grey, or binary, sharp or blurred, perhaps uneven; the closed elements black or not quite; perhaps a slope."""
    u = torch.from_numpy(rng.random((height, width)).astype(np.float32))
    kind = rng.integers(4)
    mask = u if kind == 0 else (u < rng.uniform(0.3, 0.7)).float()
    if kind >= 2:
        mask = blurred(mask[None], np.array([rng.uniform(0.3, 0.9)]))[0]
    if kind == 3:
        mask = mask * (1 + rng.uniform(0.02, 0.15) * normal(rng, mask))
    if rng.random() < 0.4:
        floor = rng.uniform(0, 0.25)
        mask = floor + (1 - floor) * mask
    if rng.random() < 0.3:
        angle, strength = rng.uniform(0, 2 * math.pi), rng.uniform(0, 0.4)
        i, j = np.mgrid[:height, :width]
        slope = math.cos(angle) * (i / height - 0.5) + math.sin(angle) * (j / width - 0.5)
        mask = mask * torch.from_numpy((1 + strength * slope).astype(np.float32))
    return mask.clamp(0, 1.5).contiguous()


def softened(mask: Tensor, sigmas: np.ndarray) -> Tensor:
    """A mask for each band (C, H, W), blurred by so many pixels."""
    return blurred(mask.expand(len(sigmas), *mask.shape), sigmas)


def blurred(images: Tensor, sigmas: np.ndarray) -> Tensor:
    """Each image of (N, H, W) convolved with a Gaussian of its own standard deviation [pixel], mirrored at borders."""
    t = torch.arange(-6, 7)
    sigma = torch.from_numpy(np.maximum(sigmas, 0.05)).float()[:, None]
    taps = torch.exp(-(t**2) / (2 * sigma**2))
    taps /= taps.sum(1, keepdim=True)
    padded = F.pad(images[None], (6, 6, 6, 6), mode="reflect")
    rows = F.conv2d(padded, taps.view(-1, 1, 13, 1), groups=len(images))
    return F.conv2d(rows, taps.view(-1, 1, 1, 13), groups=len(images))[0]


def wrong_mask(rng: np.random.Generator, mask: Tensor) -> Tensor:
    """The mask as it really is, where it was measured with noise, a fraction of a pixel aside, or less sharp."""
    kind = rng.integers(3)
    if kind == 0:
        return (mask * (1 + rng.uniform(0.01, 0.06) * normal(rng, mask))).clamp(min=0)
    if kind == 1:
        aside = rng.uniform(0, 0.25)
        return (1 - aside) * mask + aside * torch.roll(mask, int(rng.choice([1, -1])), -1 - int(rng.integers(2)))
    share = rng.uniform(0.02, 0.12)
    images = mask.expand(1, *mask.shape) if mask.ndim == 2 else mask
    soft = F.avg_pool2d(F.pad(images[None], (1, 1, 1, 1), mode="replicate"), 3, 1)[0].view_as(mask)
    return (1 - share) * mask + share * soft


def normal(rng: np.random.Generator, like: Tensor) -> Tensor:
    """Standard normal numbers of this shape."""
    return torch.from_numpy(rng.standard_normal(like.shape).astype(np.float32))
