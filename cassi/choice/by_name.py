"""Each solver by its name, with hyper-parameters in units that do not depend on the snapshot's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cassi.choice.automatic import reconstruct_auto
from cassi.choice.noise import CameraNoise
from cassi.choice.outcome import Outcome
from cassi.choice.plan import TV_WEIGHT, Method, Run
from cassi.choice.stages import Watch
from cassi.optics.protocol import Camera
from cassi.priors.gaussian_spectra import smooth_spectral_prior
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.admm import admm_tv
from cassi.solvers.gap import gap_tv
from cassi.solvers.gaussian_posterior import gaussian_map
from cassi.solvers.least_squares import least_squares
from cassi.solvers.loop import Monitor, Result
from cassi.solvers.subspace_tv import subspace_tv

NUM_ITERS = {"subspace": 200, "gap-tv": 60, "admm-tv": 60, "least-squares": 100, "gaussian": 200}
BLURRED_DAMPING = 0.01  # of "least-squares" for a camera with blur, in units of the mean of gram_diag
COMPONENTS = 8  # spectral components of "subspace"; "auto" chooses
GAUSSIAN_TOL, GAUSSIAN_SAMPLES = 1e-3, 16
GAUSSIAN_NOISE = 0.03  # standard deviation taken where the camera's is unknown, relative to the mean of y
GAUSSIAN_CORRELATION = 3.0  # correlation length of the scene [pixel]


def solve(
    A: Camera,
    y: Tensor,
    *,
    wavelengths: np.ndarray | None,
    noise: CameraNoise,
    method: Method,
    run: Run,
) -> Outcome:
    """Solve one snapshot.

    Args:
        A, y: camera and measurement, at brightness 1 for the hyper-parameters to mean what they say.
        wavelengths, noise, method, run: as for `cassi.choice.automatic.reconstruct_auto`.
    """
    if method.solver == "auto":
        return reconstruct_auto(A, y, wavelengths=wavelengths, noise=noise, method=method, run=run)
    n = NUM_ITERS[method.solver] if method.num_iters is None else method.num_iters
    deadline = math.inf if run.budget is None else time.perf_counter() + run.budget
    watched = any(value is not None for value in (run.budget, run.monitor, run.progress))
    monitor = Watch(run.monitor, run.progress, deadline, expected=n).of((), 1.0) if watched else None
    if method.solver == "gaussian":
        known = noise.variance(y)
        variance = (GAUSSIAN_NOISE * y.mean()).square().reshape(1) if known is None else known
        return _gaussian(A, y, wavelengths, variance, method, run.seed, n, monitor)
    gram = float(A.gram_diag().mean())
    if method.solver == "least-squares":
        # blur makes Phi Phi^T nearly singular: without damping the noise, or a wrong blur, is amplified without bound
        damping = 0.0 if A.exact else BLURRED_DAMPING * gram
        fit = least_squares(A, y, damping=damping, num_iters=n, monitor=monitor)
        return Outcome(fit, method.solver, {"damping": damping})
    weight = TV_WEIGHT[method.solver] if method.tv_weight is None else method.tv_weight
    settings: dict[str, Any] = {"num_iters": n, "tv_weight": weight}
    if method.solver == "subspace":
        B = smooth_basis(A.cube_shape[0] if wavelengths is None else wavelengths, COMPONENTS)
        settings["components"] = len(B)
        result, _ = subspace_tv(A, y, B, tv_weight=weight, num_iters=n, monitor=monitor)
    else:
        solvers: dict[str, Callable[..., Result]] = {"gap-tv": gap_tv, "admm-tv": admm_tv}
        weight *= 1.0 if method.solver == "gap-tv" else gram  # ADMM weighs TV against the squared misfit
        result = solvers[method.solver](A, y, tv_weight=weight, num_iters=n, monitor=monitor)
    return Outcome(result, method.solver, settings)


def _gaussian(
    A: Camera,
    y: Tensor,
    wavelengths: np.ndarray | None,
    variance: Tensor,
    method: Method,
    seed: int,
    num_iters: int,
    monitor: Monitor | None,
) -> Outcome:
    """Least squares with Gaussian spectra as a prior, neighbors being alike."""
    prior = method.spectral_prior or smooth_spectral_prior(A.cube_shape[0] if wavelengths is None else wavelengths)
    result, spread = gaussian_map(
        A,
        y,
        prior.covariance,
        prior.mean,
        variance=variance,
        correlation=GAUSSIAN_CORRELATION,
        num_iters=num_iters,
        tol=GAUSSIAN_TOL,
        samples=GAUSSIAN_SAMPLES if method.uncertainty else 0,
        generator=torch.Generator(y.device).manual_seed(seed) if method.uncertainty else None,
        monitor=monitor,
    )
    settings = {"correlation": GAUSSIAN_CORRELATION, "noise": float(variance.mean().sqrt())}
    return Outcome(result, "gaussian", settings, uncertainty=spread)
