"""A measurement without a laboratory: coded apertures, and a camera that counts electrons."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from cassi.optics.single_disperser import CASSI

__all__ = ["MaskKind", "Snapshot", "detect", "random_mask", "round_to_bits", "simulate"]

MaskKind = Literal["binary", "grey", "blue-noise"]


@dataclass(frozen=True)
class Snapshot:
    """What a camera recorded, in the unit of the light that fell on it, and how well.

    Attributes:
        y: (..., H, W') recorded values, in the unit of the noise-free measurement.
        variance: the shape of `y`, variance of each value in that unit squared, from its true mean.
        gain: electrons per unit of y; None where no electrons were counted.
        read_noise: standard deviation [electron]; None where no electrons were counted.
        count: size of one step of the digitizer in the unit of y; None where it was not digitized.
    """

    y: Tensor
    variance: Tensor
    gain: float | None
    read_noise: float | None
    count: float | None


def simulate(
    cube: Tensor,
    mask: Tensor,
    shifts: Sequence[int],
    *,
    full_well: float | None = None,
    read_noise: float = 0.0,
    bit_depth: int | None = None,
    generator: torch.Generator | None = None,
) -> Snapshot:
    """Photograph a cube through a coded aperture and a disperser: ``detect(Phi x)``.

    Args:
        cube: (..., C, H, W) >= 0, spectral cube; its dtype and device are those of the result.
        mask: (H, W) or (C, H, W), transmission of the coded aperture.
        shifts: (C,) displacement of each band [px].
        full_well, read_noise, bit_depth, generator: the camera, see `detect`. Without them the result is exact.

    Returns:
        The `Snapshot`, of shape (..., H, W').

    Raises:
        ValueError: shapes that do not fit (see `CASSI`) or a camera that cannot be (see `detect`).

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> mask = random_mask(64, 64, generator=generator)
        >>> shot = simulate(torch.rand(8, 64, 64), mask, range(0, 16, 2), full_well=1e4, generator=generator)
        >>> shot.y.shape
        torch.Size([64, 78])
    """
    y = CASSI(mask.to(cube), tuple(shifts)).forward(cube)
    return detect(y, full_well=full_well, read_noise=read_noise, bit_depth=bit_depth, generator=generator)


def detect(
    y: Tensor,
    *,
    full_well: float | None = None,
    read_noise: float = 0.0,
    bit_depth: int | None = None,
    generator: torch.Generator | None = None,
) -> Snapshot:
    """Record a noise-free measurement with a camera that has photon noise, read noise and a digitizer.

    The exposure is such that the brightest pixel fills the well. With F the full well [electron], s the read noise
    [electron] and b the bit depth:

        g = F / max y                               gain [electron per unit of y]
        n = Poisson(g y) + s Normal(0, 1)           electrons read out of each pixel
        k = clip(round(n / q), 0, 2^b - 1)          counts, q = F / (2^b - 1) electrons each
        y_recorded = q k / g                        back in the unit of y (without b: n / g)
        variance = (g y + s^2 + q^2 / 12) / g^2

    The last line counts neither the clipping nor, for q beyond a few sigma, that rounding is not noise. The digitizer
    has no black level: it cuts negative read noise off, as a camera set to zero offset does. (European Machine Vision
    Association, standard 1288, section 2, is the same model.)

    Args:
        y: (..., H, W') >= 0, any unit.
        full_well: F, > 0. None: no electrons are counted, so neither photon noise nor read noise.
        read_noise: s, >= 0.
        bit_depth: b, 1 to 24. None: not digitized. Without `full_well`, the brightest pixel is the largest count.
        generator: source of the noise, on the device of `y`; needed where there is noise.

    Returns:
        The `Snapshot`; `y` is a new tensor.

    Raises:
        ValueError: negative or non-finite y, values out of range, noise without a generator, read noise without a
            full well, or a picture that is black everywhere.

    Example:
        >>> light = torch.ones(100, 100)
        >>> shot = detect(light, full_well=400.0, generator=torch.Generator().manual_seed(0))
        >>> shot.gain, round(float(shot.y.std()), 2)  # 1 / sqrt(400)
        (400.0, 0.05)
    """
    if not torch.isfinite(y).all() or (y < 0).any():
        raise ValueError("the noise-free measurement must be finite and >= 0: light is; check the cube and the mask")
    if full_well is not None and not (math.isfinite(full_well) and full_well > 0):
        raise ValueError(f"full_well must be positive, got {full_well}: it counts electrons")
    if not (math.isfinite(read_noise) and read_noise >= 0):
        raise ValueError(f"read_noise must be >= 0, got {read_noise}: it counts electrons")
    if read_noise and full_well is None:
        raise ValueError("read_noise counts electrons, so it needs full_well: give both")
    if bit_depth is not None and not 1 <= bit_depth <= 24:
        raise ValueError(f"bit_depth must be 1 to 24, got {bit_depth}")
    if full_well is not None and generator is None:
        raise ValueError("noise needs a generator: pass torch.Generator().manual_seed(...)")
    brightest = y.max().item() if y.numel() else 0.0
    if brightest == 0 and (full_well is not None or bit_depth is not None):
        raise ValueError("the measurement is black everywhere: no exposure fills the well")

    recorded = y.clone()
    variance = torch.zeros_like(y)
    gain = None
    if full_well is not None:
        gain = full_well / brightest
        electrons = torch.poisson(y.double() * gain, generator=generator)
        if read_noise:
            electrons += read_noise * torch.randn(y.shape, dtype=torch.float64, device=y.device, generator=generator)
        recorded = (electrons / gain).to(y.dtype)
        variance = (y * gain + read_noise**2) / gain**2
    count = None
    if bit_depth is not None:
        levels = 2**bit_depth - 1
        count = brightest / levels
        recorded = (recorded.double() / count).round().clamp(0, levels).mul(count).to(y.dtype)
        variance = variance + count**2 / 12
    return Snapshot(recorded, variance, gain, read_noise if full_well is not None else None, count)


def random_mask(
    height: int,
    width: int,
    *,
    kind: MaskKind = "binary",
    transmission: float = 0.5,
    generator: torch.Generator,
) -> Tensor:
    """Draw a coded aperture.

    - ``"binary"``: each element is open with probability t, independently (the usual lithographic mask);
    - ``"grey"``: u^((1 - t) / t) with u uniform in (0, 1): independent transmissions in [0, 1] of mean t, uniform at
      t = 1/2 (a printed film, or a binary mask seen through blur);
    - ``"blue-noise"``: binary with exactly the fraction t open, and open elements that keep apart: white noise is
      high-passed and pushed back towards two levels, over and over. C. V. Correa, H. Arguello and G. R. Arce,
      "Spatiotemporal blue noise coded aperture design for multi-shot compressive spectral imaging", JOSA A 33 (2016),
      show what such masks are good for.

    Args:
        height, width: size [px].
        kind: one of the three.
        transmission: t, mean transmission, in (0, 1).
        generator: source of randomness (CPU).

    Returns:
        (H, W) float32 in [0, 1].

    Raises:
        ValueError: a size below 1, transmission outside (0, 1), or an unknown kind.

    Example:
        >>> mask = random_mask(64, 64, kind="blue-noise", generator=torch.Generator().manual_seed(0))
        >>> float(mask.mean())
        0.5
    """
    if height < 1 or width < 1:
        raise ValueError(f"a mask needs at least 1 x 1 elements, got {height} x {width}")
    if not 0 < transmission < 1:
        raise ValueError(f"transmission must lie between 0 and 1, got {transmission}: it is a mean over elements")
    if kind == "binary":
        return (torch.rand(height, width, generator=generator) < transmission).float()
    if kind == "grey":
        return torch.rand(height, width, generator=generator) ** ((1 - transmission) / transmission)
    if kind != "blue-noise":
        raise ValueError(f"kind must be one of {', '.join(get_args(MaskKind))}, got {kind!r}")
    frequency = torch.hypot(torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None, :])
    highpass = 1 - torch.exp(-0.5 * (frequency / 0.15) ** 2)
    field = torch.rand(height, width, dtype=torch.float64, generator=generator)
    rank = field
    for _ in range(10):  # more rounds drive it towards a checkerboard
        field = torch.fft.irfft2(torch.fft.rfft2(field) * highpass, s=(height, width))
        rank = torch.empty(field.numel(), dtype=field.dtype)
        rank[field.flatten().argsort()] = torch.arange(field.numel(), dtype=field.dtype) / field.numel()
        rank = rank.view(height, width)
        field = torch.sigmoid(10 * (rank - (1 - transmission)))  # nearly two levels; those near the edge may change
    num_open = round(transmission * height * width)
    return (rank * height * width >= height * width - num_open - 0.5).float()


def round_to_bits(cube: Tensor, bits: int) -> Tensor:
    """Round to whole multiples of 2^-bits, so that a file of the cube compresses.

    Args:
        cube: any shape, floating point.
        bits: binary digits kept after the point, 1 to 20.

    Returns:
        Like `cube`.

    Raises:
        ValueError: bits out of range.

    Example:
        >>> round_to_bits(torch.tensor([0.3, 0.6]), 2)
        tensor([0.2500, 0.5000])
    """
    if not 1 <= bits <= 20:
        raise ValueError(f"bits must be 1 to 20, got {bits}")
    rounded: Tensor = torch.round(cube * 2**bits) / 2**bits
    return rounded
