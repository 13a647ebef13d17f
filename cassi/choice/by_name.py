"""What one snapshot is solved with: its device, camera, level and prior, and each solver by its name.

The frame of `cassi.reconstruct` and the tiles of `cassi.running.tiling` are solved by the same code and settings.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import AutoResult
from cassi.errors import InputError
from cassi.optics.blurred import BlurredCASSI, gaussian_psf
from cassi.optics.single_disperser import CASSI
from cassi.priors.gaussian_spectra import SpectralPrior
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.admm import admm_tv
from cassi.solvers.fista import fista_tv
from cassi.solvers.gap import gap_tv
from cassi.solvers.gaussian_posterior import gaussian_map
from cassi.solvers.least_squares import least_squares
from cassi.solvers.loop import Monitor
from cassi.solvers.subspace_tv import subspace_tv

if TYPE_CHECKING:
    from cassi.files import Measurement

__all__ = [
    "GAUSSIAN_SAMPLES",
    "SOLVERS",
    "TV_WEIGHT",
    "Solver",
    "as_spectral_prior",
    "black_level_of",
    "camera_of",
    "check_arrays",
    "gaussian_variance",
    "pick_device",
    "solve_as_told",
    "solve_gaussian",
    "unit_level",
]

Solver = Literal["auto", "subspace", "gaussian", "least-squares", "gap-tv", "admm-tv", "fista-tv"]
SOLVERS: tuple[str, ...] = get_args(Solver)

NUM_ITERS = {"subspace": 200, "gap-tv": 60, "admm-tv": 60, "fista-tv": 100}
# In units of the cube's mean level; for admm-tv and fista-tv, which weigh TV against the squared misfit, times the mean
# of gram_diag.
TV_WEIGHT = {"subspace": 1.0, "gap-tv": 0.3, "admm-tv": 0.03, "fista-tv": 0.03}
BLURRED_DAMPING = 0.01  # of "least-squares" for a camera with blur, in units of the mean of gram_diag
COMPONENTS = 8  # spectral components of "subspace"; "auto" chooses
GAUSSIAN_ITERS, GAUSSIAN_TOL, GAUSSIAN_SAMPLES = 200, 1e-3, 16
GAUSSIAN_NOISE = 0.03  # standard deviation taken where the camera's is unknown, relative to the mean of y
GAUSSIAN_CORRELATION = 3.0  # correlation length of the scene [pixel]


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """The device to compute on: "auto" is the first CUDA device, or the CPU where there is none.

    Raises:
        InputError: an unknown name, or a device that is not there.

    Example:
        >>> pick_device("cpu")
        device(type='cpu')
    """
    if str(name) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"unknown device {str(name)!r}: expected auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {str(name)!r} is not supported: expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        there = f"{count} CUDA device{'s' if count > 1 else ''}" if count else "no CUDA device"
        raise InputError(f"device {str(name)!r} is not there: this machine has {there}; use auto or cpu")
    return device


def check_arrays(m: Measurement) -> None:
    """Check what a Measurement made by hand, or arrays, may get wrong; files were checked when they were read."""
    if not np.isfinite(m.mask).all():
        raise InputError("the mask holds NaN or Inf")
    if not m.mask.any():
        raise InputError("the mask is zero everywhere: no light reaches the detector")
    bad = m.bad_pixels
    if bad is not None and (bad.dtype != bool or bad.shape != m.y.shape[-2:]):
        raise InputError(
            f"bad_pixels must be bool {m.y.shape[-2:]}, one per detector pixel, got {bad.dtype} {bad.shape}"
        )
    if bad is not None and bad.all():
        raise InputError("every detector pixel is marked bad")
    if not np.isfinite(m.y if bad is None else m.y[..., ~bad]).all():
        raise InputError("the measurement holds NaN or Inf; mark those pixels in bad_pixels")
    if m.gain is not None and not (math.isfinite(m.gain) and m.gain > 0):
        raise InputError(f"the gain must be positive [electrons per unit of the measurement], got {m.gain}")
    if m.read_noise is not None and not (math.isfinite(m.read_noise) and m.read_noise >= 0):
        raise InputError(f"the read noise must be >= 0 [electrons], got {m.read_noise}")


def camera_of(
    m: Measurement, device: torch.device, psf: float | Tensor | np.ndarray | None = None
) -> CASSI | BlurredCASSI:
    """The camera: exact for whole shifts, interpolating for those between pixels, with its blur where one is given."""
    mask = torch.as_tensor(m.mask, dtype=torch.float32, device=device)
    if isinstance(psf, float | int) and not (math.isfinite(psf) and psf > 0):
        raise InputError(
            f"the blur (psf) must be a positive standard deviation [pixel], got {psf}; leave it out for none"
        )
    try:
        if psf is not None:
            taps = gaussian_psf(float(psf)) if isinstance(psf, float | int) else torch.as_tensor(psf)
            A: CASSI | BlurredCASSI = BlurredCASSI(mask, tuple(m.shifts), psf=taps.to(mask))
        elif all(float(d).is_integer() for d in m.shifts):
            A = CASSI(mask, tuple(int(d) for d in m.shifts))
        else:
            A = BlurredCASSI(mask, tuple(m.shifts))
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error
    if m.y.shape[-2:] != A.measurement_shape:
        raise InputError(
            f"the measurement is {m.y.shape[-2]} x {m.y.shape[-1]} pixels, mask and shifts make "
            f"{A.measurement_shape[0]} x {A.measurement_shape[1]}; check the shifts"
        )
    return A


def black_level_of(A: CASSI | BlurredCASSI, y: Tensor) -> float:
    """The black level that was left in a snapshot, told from the detector pixels that hardly any light can reach.

        y_j = b + a s_j + noise,   s = |Phi| 1,   over the pixels with s_j < 0.05 median(s)

    Those lie at the ends of the detector, where few bands reach, and behind closed mask elements. Left in, b has no
    other explanation there than very bright outer bands. What is below 2 % of the mean of y, or not clear of the
    scatter, is taken for 0: a scene's own light is not distributed as evenly as s.

    Args:
        A: the camera; pixels of row weight 0 are not looked at.
        y: one snapshot (H, W').

    Returns:
        b in the unit of y; 0 where it cannot be told.

    Example:
        >>> mask = (torch.rand(64, 64, generator=torch.Generator().manual_seed(0)) > 0.5).float()
        >>> A = CASSI.from_step(mask, step=1, num_bands=8)
        >>> y = A.forward(torch.ones(8, 64, 64))
        >>> black_level_of(A, y), round(black_level_of(A, y + 0.5), 4)
        (0.0, 0.5)
    """
    s = replace(A, mask=A.mask.abs()).forward(A.mask.new_ones(()).expand(A.cube_shape)).double()
    seen = torch.ones_like(s, dtype=torch.bool) if A.weights is None else A.weights > 0
    if not bool(seen.any()):
        return 0.0
    hardly = seen & (s < 0.05 * s[seen].median())
    count = int(hardly.sum())
    if count < 50:
        return 0.0
    columns = torch.stack([torch.ones_like(s[hardly]), s[hardly] / max(float(s.max()), 1e-300)], 1)
    values = y.double()[hardly]
    normal = columns.T @ columns + 1e-9 * torch.eye(2, dtype=columns.dtype, device=columns.device)
    fit = torch.linalg.solve(normal, columns.T @ values)
    b = float(fit[0])
    scatter = float((values - columns @ fit).std()) * math.sqrt(float(torch.linalg.inv(normal)[0, 0]))
    return b if abs(b) > max(0.02 * abs(float(y.double()[seen].mean())), 5 * scatter) else 0.0


def unit_level(A: CASSI | BlurredCASSI, y: Tensor) -> float:
    """sum |y| / sum |Phi| 1: the mean of a cube that explains y, whatever its unit; 1 for a black measurement."""
    response = replace(A, mask=A.mask.abs()).forward(A.mask.new_ones(()).expand(A.cube_shape))
    level = float(y.double().abs().sum() / response.double().sum())
    return level if level > 0 else 1.0


def as_spectral_prior(
    given: SpectralPrior | Sequence[str | os.PathLike[str]] | None, num_bands: int, wavelengths: np.ndarray | None
) -> SpectralPrior | None:
    """The prior as given, or learnt from the files named."""
    if given is None or isinstance(given, SpectralPrior):
        if given is not None and len(given.mean) != num_bands:
            raise InputError(f"the spectral prior has {len(given.mean)} bands, the measurement {num_bands}")
        return given
    from cassi.files.spectral_libraries import read_spectral_prior

    return read_spectral_prior(given, num_bands, wavelengths)


def solve_as_told(
    A: CASSI | BlurredCASSI,
    y: Tensor,
    wavelengths: np.ndarray | None,
    solver: str,
    num_iters: int | None,
    tv_weight: float | None,
    monitor: Monitor | None,
    progress: bool,
) -> AutoResult:
    """One of the solvers that choose nothing themselves."""
    if solver == "least-squares":
        # blur makes Phi Phi^T nearly singular: without damping the noise, or a wrong blur, is amplified without bound
        damping = 0.0 if isinstance(A, CASSI) else BLURRED_DAMPING * float(A.gram_diag().mean())
        result = least_squares(A, y, damping=damping, num_iters=num_iters or 100, monitor=monitor, progress=progress)
        return AutoResult(result, {"solver": solver, "damping": damping})
    n = NUM_ITERS[solver] if num_iters is None else num_iters
    weight = TV_WEIGHT[solver] if tv_weight is None else tv_weight
    choice: dict[str, Any] = {"solver": solver, "num_iters": n, "tv_weight": weight}
    misfit = float(A.gram_diag().mean())
    if solver == "subspace":
        B = smooth_basis(A.num_bands if wavelengths is None else wavelengths, COMPONENTS)
        choice["components"] = len(B)
        result, _ = subspace_tv(A, y, B, tv_weight=weight, num_iters=n, monitor=monitor, progress=progress)
    elif solver == "gap-tv":
        result = gap_tv(A, y, tv_weight=weight, num_iters=n, monitor=monitor, progress=progress)
    elif solver == "admm-tv":
        result = admm_tv(A, y, tv_weight=weight * misfit, num_iters=n, monitor=monitor, progress=progress)
    else:
        result = fista_tv(A, y, tv_weight=weight * misfit, num_iters=n, monitor=monitor, progress=progress)
    return AutoResult(result, choice)


def gaussian_variance(y: Tensor, gain: float | None, read_noise: float | None) -> Tensor:
    """The noise that "gaussian" assumes: of the camera where known, else 3 % of the mean of y. Like y, or (1,)."""
    if gain is not None:
        return y.clamp(min=0) / gain + ((read_noise or 0.0) / gain) ** 2
    return (GAUSSIAN_NOISE * y.mean()).square().reshape(1)


def solve_gaussian(
    A: CASSI | BlurredCASSI,
    y: Tensor,
    prior: SpectralPrior,
    *,
    variance: Tensor,
    num_iters: int | None = None,
    samples: int = 0,
    seed: int = 0,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> AutoResult:
    """Least squares with Gaussian spectra as a prior, neighbors being alike."""
    result, spread = gaussian_map(
        A,
        y,
        prior.covariance,
        prior.mean,
        variance=variance,
        correlation=GAUSSIAN_CORRELATION,
        num_iters=num_iters or GAUSSIAN_ITERS,
        tol=GAUSSIAN_TOL,
        samples=samples,
        generator=torch.Generator(y.device).manual_seed(seed) if samples else None,
        monitor=monitor,
        progress=progress,
    )
    choice = {"solver": "gaussian", "correlation": GAUSSIAN_CORRELATION, "noise": float(variance.mean().sqrt())}
    return AutoResult(result, choice, spread)
