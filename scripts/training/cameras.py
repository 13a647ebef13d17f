"""Cameras to train with: any mask, bands and step, or one camera alone; and how wrong a mask may be believed to be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import scipy.io
import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.files import read_measurement
from training.chance import Chance
from training.scenes import WAVELENGTHS

# Bands and step [pixel] of cameras, and how often they are drawn: few, as each is recorded as a CUDA graph of its own.
LAYOUTS = ((28, 2), (31, 2), (28, 1), (31, 1), (24, 2), (20, 1), (16, 2), (12, 3), (8, 2))
SHARES = (0.5, 0.15, 0.08, 0.04, 0.08, 0.05, 0.05, 0.03, 0.02)
# Ends of the spectrum [nm]: of two benchmarks, or between such limits, and how often they are drawn.
ENDS, END_SHARES = ((450, 450, 650, 650), (400, 440, 680, 700), (400, 470, 600, 700)), (0.3, 0.42, 0.28)
# Shares of cameras that are blurred, and whose mask is not quite as it is believed to be. What is gained there is large
# and learned first; in few looks, it takes the place of what is gained through sharp and exact masks.
BLURRED, WRONG = 0.1, 0.25


@dataclass(frozen=True, eq=False)
class OneCamera:
    """Mask (H, W) or (C, H, W), shifts [pixel] and wavelengths [nm] of its C bands; a piece of it is one, too."""

    mask: Tensor
    shifts: tuple[int, ...]
    wavelengths: np.ndarray

    def draw(self, chance: Chance, height: int, width: int) -> OneCamera:
        """A piece of it that is not black, on the device of chance."""
        while True:
            i, j = (
                int(chance.rng.integers(whole - part + 1))
                for whole, part in zip(self.mask.shape[-2:], (height, width), strict=True)
            )
            mask = self.mask[..., i : i + height, j : j + width].to(chance.device).contiguous()
            if mask.any():
                return replace(self, mask=mask)

    def check_size(self, size: tuple[int, int]) -> None:
        """Raise ValueError for examples larger than the mask."""
        if any(part > whole for part, whole in zip(size, self.mask.shape[-2:], strict=True)):
            raise ValueError(
                f"examples of {size[0]} x {size[1]} pixels do not fit into a mask of {self.mask.shape[-2]} x "
                f"{self.mask.shape[-1]}; take a smaller --size"
            )


@dataclass(frozen=True, eq=False)
class AnyCamera:
    """8 to 31 bands of 400 to 700 nm, a random mask or one of the measured `masks`, a step of 1 to 3 pixels.

    Shifts rise from 0; wavelengths rise or fall. A camera of another direction is one of these, mirrored.
    """

    masks: list[Tensor]

    def draw(self, chance: Chance, height: int, width: int) -> OneCamera:
        low, most_low, high, most_high = chance.one_of(ENDS, END_SHARES)
        low, high = chance.number(low, most_low), chance.number(high, most_high)
        C, step = chance.one_of(LAYOUTS, SHARES)
        wavelengths = np.linspace(low, high, C)[:: chance.one_of([1, -1])]
        mask = drawn_mask(chance, self.masks, height, width)
        if chance.happens(BLURRED):
            widths = np.linspace(chance.number(0, 0.8), chance.number(0.5, 2.2), C)[:: chance.one_of([1, -1])]
            mask = blurred(mask.expand(C, height, width), widths)
        return OneCamera(mask, tuple(c * step for c in range(C)), wavelengths)


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
        raise ValueError(f"{path}: bands must lie whole pixels apart to train with, got {shifts.tolist()}")
    if wavelengths is None:
        wavelengths = np.linspace(450, 650, len(shifts))
    if not (WAVELENGTHS[0] <= np.min(wavelengths) and np.max(wavelengths) <= WAVELENGTHS[-1]):
        raise ValueError(f"{path}: scenes are known at 400 to 700 nm, got bands at {wavelengths} nm")
    mask = torch.from_numpy(np.ascontiguousarray(mask[0] if mask.shape[:-2] == (1,) else mask, np.float32))
    return OneCamera(mask.clamp(min=0), tuple(int(d) for d in shifts), np.asarray(wavelengths, float))


def _holds_measurement(path: Path) -> bool:
    with h5py.File(path) as file:
        return "measurement" in file


def load_masks(folder: Path, side: int) -> list[Tensor]:
    """Measured masks of at least this side [pixel] that the folder holds: kaist/scene01.h5 and */mask.mat (`mask`)."""
    masks = []
    if (folder / "kaist" / "scene01.h5").exists():
        with h5py.File(folder / "kaist" / "scene01.h5") as file:
            masks.append(file["mask"][()])
    masks += [scipy.io.loadmat(path)["mask"] for path in sorted(folder.glob("*_real/mask.mat"))]
    return [torch.from_numpy(np.ascontiguousarray(mask, np.float32)) for mask in masks if min(mask.shape) >= side]


def drawn_mask(chance: Chance, masks: Sequence[Tensor], height: int, width: int) -> Tensor:
    """A piece of a measured mask, turned, or a random one."""
    if not masks or chance.happens(0.6):
        return random_mask(chance, height, width)
    mask = torch.rot90(chance.one_of(masks), int(chance.rng.integers(4)))
    i, j = (int(chance.rng.integers(n - m + 1)) for n, m in zip(mask.shape, (height, width), strict=True))
    return mask[i : i + height, j : j + width].to(chance.device)


def random_mask(chance: Chance, height: int, width: int) -> Tensor:
    """Grey, or binary, sharp or blurred, perhaps uneven; the closed elements black or not quite; perhaps a slope."""
    u = chance.uniform(height, width)
    kind = int(chance.rng.integers(4))
    mask = u if kind == 0 else (u < chance.number(0.3, 0.7)).float()
    if kind >= 2:
        mask = blurred(mask[None], np.array([chance.number(0.3, 0.9)]))[0]
    if kind == 3:
        mask = mask * (1 + chance.number(0.02, 0.15) * chance.normal(height, width))
    if chance.happens(0.4):
        floor = chance.number(0, 0.25)
        mask = floor + (1 - floor) * mask
    if chance.happens(0.3):
        angle, strength = chance.number(0, 2 * math.pi), chance.number(0, 0.4)
        i = torch.linspace(-0.5, 0.5, height, device=u.device)[:, None]
        j = torch.linspace(-0.5, 0.5, width, device=u.device)
        mask = mask * (1 + strength * (math.cos(angle) * i + math.sin(angle) * j))
    return mask.clamp(0, 1.5)


def blurred(images: Tensor, sigmas: np.ndarray) -> Tensor:
    """Each image of (N, H, W) convolved with a Gaussian of its own standard deviation [pixel], mirrored at borders."""
    t = torch.arange(-6, 7)
    sigma = torch.from_numpy(np.maximum(sigmas, 0.05)).float()[:, None]
    taps = torch.exp(-(t**2) / (2 * sigma**2))
    taps = (taps / taps.sum(1, keepdim=True)).to(images.device)
    padded = F.pad(images[None], (6, 6, 6, 6), mode="reflect")
    rows = F.conv2d(padded, taps.view(-1, 1, 13, 1), groups=len(images))
    return F.conv2d(rows, taps.view(-1, 1, 1, 13), groups=len(images))[0]


def wrong_mask(chance: Chance, mask: Tensor) -> Tensor:
    """The mask as it really is, where it was measured with errors, a fraction of a pixel aside, or less sharp.

    Errors are 2 to 15 % of the mask, alike over one to two pixels, and common to all bands.
    """
    kind = chance.one_of(("errors", "aside", "soft"), (0.6, 0.2, 0.2))
    if kind == "errors":
        errors = blurred(chance.normal(1, *mask.shape[-2:]), np.array([chance.number(0.05, 0.8)]))[0]
        return (mask * (1 + chance.log_number(0.02, 0.15) * errors / errors.std())).clamp(min=0)
    if kind == "aside":
        share = chance.number(0, 0.25)
        return (1 - share) * mask + share * torch.roll(mask, chance.one_of([1, -1]), chance.one_of([-1, -2]))
    images = mask.expand(1, *mask.shape) if mask.ndim == 2 else mask
    soft = F.avg_pool2d(F.pad(images[None], (1, 1, 1, 1), mode="replicate"), 3, 1)[0].view_as(mask)
    share = chance.number(0.02, 0.12)
    return (1 - share) * mask + share * soft
