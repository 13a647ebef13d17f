"""Least squares with Gaussian spectra as a prior: the mean of the posterior, and its spread by sampling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cassi.optics.protocol import Camera, measured, reciprocal
from cassi.solvers.least_squares import solve_by_cg
from cassi.solvers.loop import Monitor, Result

BATCH = 2**24  # voxels of posterior samples drawn at a time


def gaussian_map(
    A: Camera,
    y: Tensor,
    covariance: Tensor,
    mean: Tensor,
    *,
    variance: float | Tensor,
    correlation: float = 0.0,
    num_iters: int = 200,
    tol: float = 1e-5,
    samples: int = 0,
    generator: torch.Generator | None = None,
    monitor: Monitor | None = None,
) -> tuple[Result, Tensor | None]:
    """The most probable cube where every pixel's spectrum is Gaussian, mean mu and covariance S, and so is the noise.

        x = mu + Q Phi^T r,    (Phi Q Phi^T + sigma^2) r = y - Phi mu,    Q = S (x) K

    by conjugate gradients on the detector, preconditioned by w^2 sum_c m_c^2 S_cc + sigma^2, with independent pixels
    the diagonal. It is also the mean of the posterior (Tarantola, "Inverse Problem Theory", 2005,
    eq. 3.38). K = 1, independent pixels, knows color but not shape. With a correlation length l [pixel] neighbors are
    alike, K = exp(-(|i - i'| + |j - j'|) / l), the covariance of a first-order Markov process along either axis.

    The spread is that of exact samples of the posterior: solve for a scene drawn from the prior and photographed with
    noise, and take the error (perturb-and-MAP: Papandreou & Yuille, "Gaussian sampling by local perturbations", NIPS
    2010):

        dx ~ N(0, Q), n ~ N(0, sigma^2),    e = dx - Q Phi^T (Phi Q Phi^T + sigma^2)^-1 (Phi dx + n)
        spread^2 = mean of e^2 over the samples;  the spread itself is uncertain by a share of 1 / sqrt(2 samples)

    Args:
        A: the camera; row weights of 0 leave detector pixels out.
        y: measurement (..., H, W'), weighted as the operator.
        covariance: S (C, C), symmetric positive semi-definite, in units of the cube squared; see
            `cassi.priors.gaussian_spectra`.
        mean: mu (C,), in units of the cube.
        variance: sigma^2 of y as it is given, a number or broadcastable to y, >= 0.
        correlation: l [pixel], >= 0; 0 for independent pixels. Q then takes two products with small dense matrices.
        num_iters, tol: of conjugate gradients; tol bounds |(y - Phi mu) - (Phi Q Phi^T + sigma^2) r| / |y - Phi mu|.
        samples: of the posterior, for the spread; 0 for none.
        generator: of the samples, on the device of y; needed where samples > 0.
        monitor: as for `cassi.solvers.gap`.

    Returns:
        Result with the cube (..., C, H, W), and the standard deviation of each voxel (C, H, W), which depends on the
        camera and not on y, or None without samples.

    Raises:
        ValueError: mean or covariance of the wrong size; a covariance that is not symmetric, finite and positive
            semi-definite; a negative variance or correlation; samples < 0, or without generator,
            or for a variance with batch axes.
        FloatingPointError: NaN or Inf; names the iteration.

    Example:
        >>> A = CASSI.from_step(torch.ones(8, 8, dtype=torch.float64), step=1, num_bands=2)
        >>> S, mu = 0.1 * torch.eye(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
        >>> x = gaussian_map(A, A.forward(torch.ones(2, 8, 8, dtype=torch.float64)), S, mu, variance=0.01)[0].x
        >>> bool(torch.allclose(x, torch.ones_like(x)))
        True
    """
    measured(A, y)
    bands = A.cube_shape[0]
    if tuple(mean.shape) != (bands,) or tuple(covariance.shape) != (bands, bands):
        raise ValueError(
            f"mean and covariance must be ({bands},) and ({bands}, {bands}) for this camera, "
            f"got {tuple(mean.shape)} and {tuple(covariance.shape)}"
        )
    root = _square_root(covariance, torch.finfo(y.dtype).eps).to(y)
    S, mu = covariance.to(y), mean.to(y).view(-1, 1, 1)
    sigma2 = torch.as_tensor(variance, dtype=y.dtype, device=y.device)
    if not bool((sigma2 >= 0).all()):
        raise ValueError("variance must be >= 0 everywhere and not NaN")
    if not correlation >= 0:
        raise ValueError(f"correlation must be >= 0 [pixel], got {correlation}")
    if samples < 0 or (samples and generator is None):
        raise ValueError(f"samples must be >= 0 and come with a generator, got {samples} and {generator}")
    if samples and sigma2.ndim > len(A.measurement_shape):
        raise ValueError(f"samples need one variance for all snapshots, (H, W') at most, got {tuple(sigma2.shape)}")
    diagonal = A.row_variance(S.diagonal().clamp(min=0)) + sigma2
    inverse = reciprocal(diagonal)  # 0 at a dark pixel without noise, which says nothing

    rows, columns = (_neighbors(n, correlation) for n in A.cube_shape[-2:])
    K_rows, K_columns = rows.to(y), columns.to(y)

    def back(r: Tensor) -> Tensor:
        if correlation == 0:
            return torch.einsum("cd,...dhw->...chw", S, A.adjoint(r))
        z = torch.einsum("ck,...chw->...khw", root, A.adjoint(r))  # neighbors meet in the few components of S
        return torch.einsum("ck,...khw->...chw", root, K_rows @ z @ K_columns)

    def solve(b: Tensor, monitor: Monitor | None = None) -> Result:
        return solve_by_cg(
            lambda r: A.forward(back(r)) + sigma2 * r,
            torch.where(inverse > 0, b, 0),
            inverse=inverse,
            axes=len(A.measurement_shape),
            num_iters=num_iters,
            tol=tol,
            monitor=monitor,
        )

    solved = solve(
        y - A.forward(mu.expand(A.cube_shape).contiguous()),
        None if monitor is None else lambda record, r: monitor(record, mu + back(r)),
    )
    result = Result(mu + back(solved.x), solved.history, solved.status)
    if not samples:
        return result, None
    L_rows, L_columns = (torch.linalg.cholesky(K).to(y) for K in (rows, columns))
    batch = max(1, BATCH // math.prod(A.cube_shape))
    squares = torch.zeros(A.cube_shape, dtype=torch.float64, device=y.device)
    for start in range(0, samples, batch):
        count = min(batch, samples - start)
        white = torch.randn(
            (count, root.shape[1], *A.cube_shape[-2:]), generator=generator, dtype=y.dtype, device=y.device
        )
        dx = torch.einsum("cd,ndhw->nchw", root, white)
        if correlation > 0:
            dx = L_rows @ dx @ L_columns.T
        n = (
            torch.randn((count, *A.measurement_shape), generator=generator, dtype=y.dtype, device=y.device)
            * sigma2.sqrt()
        )
        error = dx - back(solve(A.forward(dx) + n).x)
        squares += error.double().square_().sum(0)
    return result, (squares / samples).sqrt().to(y.dtype)


def _neighbors(length: int, correlation: float) -> Tensor:
    """exp(-|i - i'| / l), (length, length) float64; the identity for l = 0."""
    i = torch.arange(length, dtype=torch.float64)
    distance = (i[:, None] - i).abs()
    return torch.exp(-distance / correlation) if correlation > 0 else torch.eye(length, dtype=torch.float64)


def _square_root(covariance: Tensor, eps: float) -> Tensor:
    """L (C, K) with L L^T = S to rounding, also for a singular S, in float64 on the CPU."""
    S = covariance.detach().double().cpu()
    if not bool(S.isfinite().all()) or float((S - S.T).abs().max()) > 1e-5 * float(S.abs().max()):
        raise ValueError("covariance must be finite and symmetric")
    values, vectors = torch.linalg.eigh(S)
    if float(values[0]) < -1e-5 * max(float(values[-1]), 0.0):
        raise ValueError(
            f"covariance must be positive semi-definite, its smallest eigenvalue is {float(values[0]):.3g}"
        )
    kept = values > eps * len(values) * values[-1]
    root: Tensor = vectors[:, kept] * values[kept].sqrt()
    return root
