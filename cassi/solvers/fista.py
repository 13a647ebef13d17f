"""Accelerated proximal gradient (FISTA) for 1/2 |Phi x - y|^2 + g(x)."""

import math

import torch
from torch import Tensor

from cassi.kernels.caller import undisturbed
from cassi.optics.protocol import Camera, check_measurement
from cassi.priors.tv import TVDenoiser
from cassi.solvers.admm import Prox
from cassi.solvers.loop import Loop, Monitor, Result, overwrite


@undisturbed
def fista(
    A: Camera,
    y: Tensor,
    prox_g: Prox,
    *,
    num_iters: int,
    tol: float = 0.0,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
) -> Result:
    """FISTA with a constant step (Beck & Teboulle, SIAM J. Imaging Sci. 2 (2009), eq. 4.1-4.3).

        x^{k+1} = prox_{g/L}(v^k - Phi^T (Phi v^k - y) / L)
        t_{k+1} = (1 + sqrt(1 + 4 t_k^2)) / 2
        v^{k+1} = x^{k+1} + (t_k - 1) / t_{k+1} (x^{k+1} - x^k)

    from v^0 = x^0 = x0 or `Camera.first_guess`, t_0 = 1, with L = max D >= |Phi|^2, D = `Camera.majorizer`.

    Args:
        A: the camera.
        y: measurement (..., H, W').
        prox_g: f(v, k) -> x, the proximal operator of g / L.
        num_iters, tol, x0, monitor: as for `cassi.solvers.gap`.

    Returns:
        Result; the residual in its history is |y - Phi v^k| / |y|.

    Raises:
        FloatingPointError: the solver diverged; the message names the iteration.
    """
    y = check_measurement(A, y).contiguous()
    x = A.first_guess(y) if x0 is None else x0.clone(memory_format=torch.contiguous_format)
    v, t, L = x.clone(), 1.0, lipschitz(A)
    y_v = torch.empty_like(y)
    A.check_step(v, x, y, y_v, y_v, 0.0)
    loop = Loop(num_iters, tol=tol, monitor=monitor, name="FISTA")
    for k in loop:
        y_v = A.forward(v)
        x_old, x = x, v + A.adjoint(y - y_v).div_(L)
        x = overwrite(x, prox_g(x, k))
        t_old, t = t, (1 + math.sqrt(1 + 4 * t**2)) / 2
        torch.lerp(x_old, x, 1 + (t_old - 1) / t, out=v)
        loop.compare(x, x_old, y_v, y)
    return loop.result(x)


@undisturbed
def lipschitz(A: Camera) -> float:
    """L = max D >= |Phi|^2, the Lipschitz constant of the gradient of 1/2 |Phi x - y|^2."""
    return float(A.majorizer().detach().max().clamp(min=torch.finfo(A.dtype).tiny))


def fista_tv(
    A: Camera,
    y: Tensor,
    *,
    tv_weight: float,
    num_iters: int = 100,
    tv_iters: int = 20,
    tol: float = 0.0,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
) -> Result:
    """FISTA on 1/2 |Phi x - y|^2 + tv_weight TV(x), with the same minimum as `cassi.admm_tv`.

    Args:
        tv_weight: weight of TV relative to the squared misfit.
        tv_iters: dual steps per prox, each warm-started. Momentum accumulates errors of the prox (Schmidt, Le Roux &
            Bach, NIPS 2011): with fewer than about 20 the iteration misses the minimum.
        Others: see `fista`.

    Example:
        >>> A = CASSI.from_step(torch.ones(8, 8), step=1, num_bands=2)
        >>> fista_tv(A, A.forward(torch.ones(2, 8, 8)), tv_weight=0.1, num_iters=5).x.shape
        torch.Size([2, 8, 8])
    """
    check_measurement(A, y)
    denoise = TVDenoiser(tv_weight / lipschitz(A), num_iters=tv_iters)
    return fista(A, y, denoise, num_iters=num_iters, tol=tol, x0=x0, monitor=monitor)
