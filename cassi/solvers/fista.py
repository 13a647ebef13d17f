"""Fast iterative shrinkage-thresholding for 1/2 |Phi x - y|^2 + g(x)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cassi.operator import InvertibleOperator
from cassi.priors.tv import TVDenoiser
from cassi.result import Loop, Monitor, Result, relative_norm
from cassi.solvers.admm import Prox


def fista(
    A: InvertibleOperator,
    y: Tensor,
    prox_g: Prox,
    *,
    num_iters: int,
    tol: float = 0.0,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> Result:
    """FISTA (Beck & Teboulle, SIAM J. Imaging Sci. 2 (2009), eq. 4.1-4.3) with step 1/L, L = |Phi|^2.

        x^{k+1} = prox_{g/L}(z^k + 1/L Phi^T (y - Phi z^k))
        t^{k+1} = (1 + sqrt(1 + 4 t^k^2)) / 2
        z^{k+1} = x^{k+1} + (t^k - 1) / t^{k+1} (x^{k+1} - x^k)

    Args:
        A: the camera, with forward, adjoint, norm (and pinv for the start).
        y: measurement (..., H, W').
        prox_g: f(v, k) -> x, the proximal operator of g / L.
        num_iters, tol, x0, monitor, progress: as for `cassi.solvers.gap`.

    Returns:
        Result; residual in the history is |y - Phi z^k| / |y|.

    Raises:
        FloatingPointError: the iteration diverged; names the iteration.
    """
    L = A.norm() ** 2 or 1.0
    x = A.pinv(y) if x0 is None else x0.clone()
    z = x.clone()
    y_z = torch.empty_like(y)
    t = 1.0
    loop = Loop(num_iters, tol=tol, monitor=monitor, progress=progress, name="FISTA")
    for k in loop:
        A.forward(z, out=y_z)
        residual = relative_norm(y - y_z, y)
        x_new = prox_g(A.adjoint((y - y_z) / L, out=z, add=True), k)
        t_new = (1 + math.sqrt(1 + 4 * t**2)) / 2
        x_norm = x.norm()
        x.sub_(x_new).neg_()
        change = relative_norm(x, x_norm)
        z, x, t = x.mul_((t - 1) / t_new).add_(x_new), x_new, t_new
        loop.record(x, residual=residual, change=change)
    return loop.result(x)


def fista_tv(
    A: InvertibleOperator,
    y: Tensor,
    *,
    tv_weight: float,
    num_iters: int = 100,
    tv_iters: int = 3,
    coupled: bool = False,
    tol: float = 0.0,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> Result:
    """FISTA on 1/2 |Phi x - y|^2 + tv_weight TV(x), the objective of `admm_tv`; arguments as there."""
    L = A.norm() ** 2 or 1.0
    denoise = TVDenoiser(tv_weight / L, num_iters=tv_iters, coupled=coupled)
    return fista(A, y, denoise, num_iters=num_iters, tol=tol, x0=x0, monitor=monitor, progress=progress)
