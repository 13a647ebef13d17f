"""The detector: noise, digitization and black level; and the brightness of a scene."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.errors import InputError
from cassi.optics.protocol import Camera

MAX_NEGATIVE = 0.95  # share of negative pixels; noise alone makes half of them negative
AROUND = 9  # side of the square over which the light around a pixel is averaged [pixel]
MAX_ELECTRONS = 1e12  # of a pixel; far more than any well holds, and Poisson numbers are exact in double precision
LEAKAGE_RATIO = 0.75  # of the scatter: below it, leaking light explains dark pixels better than a black level


def black_level_of(A: Camera, y: Tensor) -> float:
    """The black level b remaining in a snapshot y (H, W'), in its unit; 0 if it cannot be determined.

        y_j = b + a s_j + noise,   s = |Phi| 1,   over the pixels with s_j < 0.05 median(s), which receive almost no
        light

    They are at the ends of the detector, where few bands reach, and behind closed mask elements. Besides b, only very
    bright outer bands or leaking elements could explain their values. Leaking light is proportional to l_j, the light
    around: if c l_j + a s_j l_j fits clearly better than b + a s_j l_j, both are fitted together. Pixels more than 3
    standard deviations off the fit (stray light, hot pixels) are excluded, 5 times. A value below 2 % of the mean of y,
    or not clearly above the scatter, counts as 0, because the light of a scene is less even than s. Pixels of row
    weight 0 are ignored.
    """
    s, y = torch.stack([A.response().double(), y.double()]).cpu()  # every step of the fit would wait for the device
    seen = torch.ones_like(s, dtype=torch.bool) if A.weights is None else A.weights.cpu() > 0
    if not bool(seen.any()):
        return 0.0
    dark = seen & (s < 0.05 * s[seen].median())
    count = int(dark.sum())
    if count < 50:
        return 0.0
    values = y[dark]
    one, reach = torch.ones_like(values), s[dark] / max(float(s.max()), 1e-300)
    b, _, error = _intercept([one, reach], values)
    clear = 0.02 * abs(float(y[seen].mean()))
    if b > max(clear, 5 * error):
        around = _local_light(y, seen)[dark]
        scene = reach * around  # light of an uneven scene, which must not be attributed to either
        if _intercept([around, scene], values)[1] < LEAKAGE_RATIO * _intercept([one, scene], values)[1]:
            b, _, error = _intercept([one, scene, around], values)
            b = max(b, 0.0)
    return b if abs(b) > max(clear, 5 * error) else 0.0


def _intercept(columns: list[Tensor], values: Tensor) -> tuple[float, float, float]:
    """The first coefficient of a linear fit without outliers, the residual of the fit, and the error of that value."""
    X, values = torch.stack(columns, 1), values
    X = X / X.abs().amax(0).clamp(min=1e-300)
    scale = float(columns[0].abs().max())
    for _ in range(5):
        normal = X.T @ X + 1e-9 * torch.eye(X.shape[1], dtype=X.dtype, device=X.device)
        fit = torch.linalg.solve(normal, X.T @ values)
        off = values - X @ fit
        deviation = float(off.square().mean().sqrt())
        X, values = (rows[off.abs() <= 3 * deviation] for rows in (X, values))
    error = deviation * math.sqrt(float(torch.linalg.inv(normal)[0, 0]))
    return float(fit[0]) / scale, deviation, error / scale


def _local_light(y: Tensor, seen: Tensor) -> Tensor:
    """The mean of y around each pixel, over the pixels that are seen."""
    both = torch.stack([torch.where(seen, y, 0), seen.to(y)]).reshape(2, -1, *y.shape[-2:])
    averaged: Tensor = F.avg_pool2d(both, AROUND, 1, AROUND // 2)
    return (averaged[0] / averaged[1].clamp(min=1e-9)).view_as(y)


def check_light(y: Tensor) -> None:
    """Raise InputError if nearly all pixels of snapshots, minus their black level, are negative."""
    below, above = torch.stack([(y < 0).sum(), (y > 0).sum()]).tolist()
    if below > MAX_NEGATIVE * (below + above):
        raise InputError(
            f"{below / (below + above):.0%} of the nonzero values are negative: an inverted snapshot, a sign error, or "
            "a black level that is too high; expected light above the black level: give -y, the largest value minus y, "
            "or another black level"
        )


def brightness(A: Camera, y: Tensor) -> float:
    """sum |y| / sum |Phi| 1: the value of a uniform scene that explains y, in the unit of the cube.

    For a batch the mean; 1 for a black measurement, or if no light arrives. The measurement must be weighted like the
    camera.
    """
    response = A.response().double()
    total, seen = torch.stack([y.double().abs().sum(), response.sum() * (y.numel() / response.numel())]).tolist()
    return total / seen if total > 0 and seen > 0 else 1.0


def object_level(y: Tensor, rank: int) -> Tensor:
    """The level of the relevant objects relative to the mean: max(1, mean y^2 / (4 mean(|y|)^2)) of a snapshot.

    Mean square over squared mean is 1.3 to 3.6 for CAVE and KAIST scenes through a grey mask, where priors relative to
    a higher level lose 0.2 to 1.3 dB; for a few bright objects in the dark it is 7 to 20.

    Args:
        y: snapshots, each in the last `rank` axes.
    """
    flat = y.flatten(-rank)
    usual = (4 * flat.abs().mean(-1).square()).clamp(min=torch.finfo(y.dtype).tiny)
    return (flat.square().mean(-1) / usual).clamp(min=1)


def object_levels(A: Camera, y: Tensor) -> Tensor:
    """`object_level` times `brightness` of each snapshot (..., H, W') of a batch, (...), > 0; on the device."""
    rank, tiny = len(A.measurement_shape), torch.finfo(y.dtype).tiny
    mean: Tensor = y.abs().flatten(-rank).sum(-1) / A.response().sum().clamp(min=tiny)
    return (object_level(y, rank) * mean).clamp(min=tiny)


@dataclass(frozen=True)
class Snapshot:
    """A recorded snapshot; the variance of its noise is y / gain + (read_noise / gain)^2 + count^2 / 12.

    Attributes:
        y: (..., H, W') recorded values, in the unit of the noise-free measurement.
        gain: electrons per unit of y; None if electrons were not counted.
        read_noise: standard deviation [electron]; None if electrons were not counted.
        count: one step of the digitizer in the unit of y; None if not digitized.
    """

    y: Tensor
    gain: float | None
    read_noise: float | None
    count: float | None


def detect(
    y: Tensor,
    *,
    full_well: float | None = None,
    read_noise: float = 0.0,
    bit_depth: int | None = None,
    generator: torch.Generator | None = None,
) -> Snapshot:
    """Record a noise-free measurement with photon noise, read noise and a digitizer.

    The exposure fills the well of the brightest pixel. With F the full well [electron], s the read noise
    [electron] and b the bit depth:

        g = F / max y                               gain [electron per unit of y]
        n = Poisson(g y) + s Normal(0, 1)           electrons read out of each pixel
        k = clip(round(n / q), 0, 2^b - 1)          counts, q = F / (2^b - 1) electrons each
        y_recorded = q k / g                        back in the unit of y (without b: n / g)

    The digitizer has no black level and clips negative read noise. (The model of European Machine Vision Association,
    standard 1288, section 2.)

    Args:
        y: (..., H, W') >= 0, any unit; not modified.
        full_well: F, 1 to 1e12. None: electrons are not counted, so that there is no noise.
        read_noise: s, 0 to 1e12.
        bit_depth: b, 1 to 24. None: not digitized. Without `full_well`, the brightest pixel gets the largest count.
        generator: of the noise, on the device of `y`; required if there is noise.

    Raises:
        ValueError: y is negative, not finite or black; values out of range; noise without a generator or a well.

    Example:
        >>> shot = detect(torch.ones(100, 100), full_well=400.0, generator=torch.Generator().manual_seed(0))
        >>> shot.gain, round(float(shot.y.std()), 2)  # 1 / sqrt(400)
        (400.0, 0.05)
    """
    if not torch.isfinite(y).all() or (y < 0).any():
        raise ValueError("the noise-free measurement must be finite and >= 0; check the cube and the mask")
    if full_well is not None and not 1 <= full_well <= MAX_ELECTRONS:
        what = f"full_well must be 1 to {MAX_ELECTRONS:g}, got {full_well}: it counts electrons"
        raise ValueError(f"{what}; without it, there is no noise")
    if not 0 <= read_noise <= MAX_ELECTRONS:
        raise ValueError(f"read_noise must be 0 to {MAX_ELECTRONS:g}, got {read_noise}: it counts electrons")
    if read_noise and full_well is None:
        raise ValueError("read_noise counts electrons, so it needs full_well: give both")
    if bit_depth is not None and not 1 <= bit_depth <= 24:
        raise ValueError(f"bit_depth must be 1 to 24, got {bit_depth}")
    if full_well is not None and generator is None:
        raise ValueError("noise needs a generator: pass torch.Generator().manual_seed(...)")
    brightest = y.max().item() if y.numel() else 0.0
    if brightest == 0 and (full_well is not None or bit_depth is not None):
        raise ValueError("the measurement is black everywhere: no exposure fills the well")

    recorded, gain, count = y.clone(), None, None
    if full_well is not None:
        gain = full_well / brightest
        electrons = torch.poisson(y.double() * gain, generator=generator)
        if read_noise:
            electrons += read_noise * torch.randn(y.shape, dtype=torch.float64, device=y.device, generator=generator)
        recorded = (electrons / gain).to(y.dtype)
    if bit_depth is not None:
        levels = 2**bit_depth - 1
        count = brightest / levels
        recorded = (recorded.double() / count).round().clamp(0, levels).mul(count).to(y.dtype)
    return Snapshot(recorded, gain, read_noise if full_well is not None else None, count)
