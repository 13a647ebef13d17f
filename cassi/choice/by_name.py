"""What one snapshot is solved with: its device, camera, level and prior, and each solver by its name.

The frame of `cassi.reconstruct` and the tiles of `cassi.running.tiling` are solved by the same code and settings.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import AutoResult
from cassi.optics.protocol import Camera
from cassi.priors.gaussian_spectra import SpectralPrior
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.admm import admm_tv
from cassi.solvers.fista import fista_tv
from cassi.solvers.gap import gap_tv
from cassi.solvers.gaussian_posterior import gaussian_map
from cassi.solvers.least_squares import least_squares
from cassi.solvers.loop import Monitor
from cassi.solvers.subspace_tv import subspace_tv

__all__ = ["GAUSSIAN_SAMPLES", "SOLVERS", "TV_WEIGHT", "Solver", "gaussian_variance", "solve_as_told", "solve_gaussian"]

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


def solve_as_told(
    A: Camera,
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
        damping = 0.0 if A.exact else BLURRED_DAMPING * float(A.gram_diag().mean())
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
    A: Camera,
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
