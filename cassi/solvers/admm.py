"""Alternating direction method of multipliers for 1/2 |Phi x - y|^2 + g(x)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cassi.kernels.caller import undisturbed
from cassi.optics.protocol import Camera, check_measurement
from cassi.priors.tv import TVDenoiser
from cassi.solvers.loop import Loop, Monitor, Result, overwrite

Prox = Callable[[Tensor, int], Tensor]
"""prox_{g/rho}: f(v, k) -> argmin_z rho/2 |z - v|^2 + g(z). It may overwrite and return its argument."""


@undisturbed
def admm(
    A: Camera,
    y: Tensor,
    prox_g: Prox,
    *,
    rho: float,
    num_iters: int,
    tol: float = 0.0,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
) -> Result:
    """ADMM in scaled form (Boyd et al., Found. Trends Mach. Learn. 3 (2011), eq. 3.5-3.7).

        x^{k+1} = argmin_x 1/2 |Phi x - y|^2 + rho/2 |x - (z^k - u^k)|^2
        z^{k+1} = prox_{g/rho}(x^{k+1} + u^k)
        u^{k+1} = u^k + x^{k+1} - z^{k+1}

    from z^0 = x0 or `Camera.first_guess`, u^0 = 0. The cube returned is z.

    Args:
        A: the camera.
        y: measurement (..., H, W').
        prox_g: f(v, k) -> z, the proximal operator of g / rho.
        rho: penalty > 0, in units of gram_diag.
        num_iters, tol, x0, monitor: as for `cassi.solvers.gap`.

    Returns:
        Result; the residual in its history is |y - Phi z^k| / |y|.

    Raises:
        FloatingPointError: the solver diverged; the message names the iteration.
        ValueError: rho is not positive.
    """
    _check_penalty(rho)
    y = check_measurement(A, y).contiguous()
    z = A.first_guess(y) if x0 is None else x0.clone(memory_format=torch.contiguous_format)
    u: Tensor | float = 0.0
    v, y_v, y_z = torch.empty_like(z), A.forward(z), torch.empty_like(y)
    loop = Loop(num_iters, tol=tol, monitor=monitor, name="ADMM")
    for k in loop:
        fused = A.data_step_(z, v, y, y_v, y_z, rho=rho)  # v = x + u in one pass that stores neither x nor u
        if not fused:
            y_z = A.forward(z)
            x = A.prox(z - u, y, rho)
            v = x + u
        z_new = overwrite(v, prox_g(v, k))
        if not fused:
            u = u + x - z_new
        loop.compare(z_new, z, y_z, y)
        z, v = z_new, z  # the old z is the buffer for the next v, so that a fused iteration allocates no cube
    return loop.result(z)


def _check_penalty(rho: float) -> None:
    if not 0 < rho < math.inf:
        raise ValueError(f"rho must be positive and finite, got {rho}; it weighs the prior's cube against the data's")


def admm_tv(
    A: Camera,
    y: Tensor,
    *,
    tv_weight: float,
    rho: float | None = None,
    num_iters: int = 60,
    tv_iters: int = 3,
    memory: float = 1.0,
    tol: float = 0.0,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
) -> Result:
    """ADMM on 1/2 |Phi x - y|^2 + tv_weight TV(x).

    Args:
        tv_weight: weight of TV relative to the squared misfit.
        rho: penalty; by default |A|^2 / 10.
        tv_iters: dual steps per prox.
        memory: share of the dual kept for the next prox, see `cassi.priors.tv.TVDenoiser`; the minimum needs 1.
        Others: see `admm`.
    """
    check_measurement(A, y)
    penalty = A.norm() ** 2 / 10 if rho is None else rho
    _check_penalty(penalty)
    denoise = TVDenoiser(tv_weight / penalty, num_iters=tv_iters, memory=memory)
    return admm(A, y, denoise, rho=penalty, num_iters=num_iters, tol=tol, x0=x0, monitor=monitor)
