"""Fast iterative shrinkage-thresholding for 1/2 |Phi x - y|^2 + g(x)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cassi.optics.protocol import Camera, measured
from cassi.priors.tv import TVDenoiser, tv
from cassi.solvers.admm import Prox
from cassi.solvers.loop import Loop, Monitor, Result, overwrite, relative_change


def fista(
    A: Camera,
    y: Tensor,
    prox_g: Prox,
    *,
    num_iters: int,
    g: Callable[[Tensor], Tensor] | None = None,
    tol: float = 0.0,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> Result:
    """FISTA (Beck & Teboulle, SIAM J. Imaging Sci. 2 (2009), eq. 4.1-4.3) with step 1/L, L = |Phi|^2.

        x^{k+1} = prox_{g/L}(z^k + 1/L Phi^T (y - Phi z^k))
        t^{k+1} = (1 + sqrt(1 + 4 t^k^2)) / 2
        z^{k+1} = x^{k+1} + (t^k - 1) / t^{k+1} (x^{k+1} - x^k)

    The momentum piles up the error of a prox that is not exact, until the iteration wanders without end. Given the
    value of g, t goes back to 1 wherever the objective rose, which cures it (O'Donoghue & Candes, Found. Comput. Math.
    15 (2015), sec. 3.2, function scheme).

    Args:
        A: the camera.
        y: measurement (..., H, W').
        prox_g: f(v, k) -> x, the proximal operator of g / L.
        num_iters, tol, x0, monitor, progress: as for `cassi.solvers.gap`.
        g: x (..., C, H, W) -> its value for each cube (...). Without it prox_g must be exact.

    Returns:
        Result; residual in the history is |y - Phi x^{k+1}| / |y|.

    Raises:
        FloatingPointError: the iteration diverged; names the iteration.
    """
    measured(A, y)
    L = A.norm() ** 2 or 1.0
    x = A.first_guess(y) if x0 is None else x0.clone()
    z, x_new = x.clone(), torch.empty_like(x)
    y_x = A.forward(x)
    y_z = y_x
    batch = x.shape[: x.ndim - len(A.cube_shape)]
    per_cube, per_snapshot = (*batch, *[1] * len(A.cube_shape)), (*batch, *[1] * len(A.measurement_shape))
    t, objective = y.new_ones(batch), y.new_full(batch, math.inf)
    loop = Loop(num_iters, tol=tol, monitor=monitor, progress=progress, name="FISTA")
    for k in loop:
        A.adjoint((y - y_z) / L, out=x_new.copy_(z), add=True)
        overwrite(x_new, prox_g(x_new, k))
        y_new = A.forward(x_new)
        residual, change = relative_change(y_new, y), relative_change(x_new, x)
        if g is not None:
            misfit = (y - y_new).reshape(*batch, -1).square().sum(-1)
            old, objective = objective, misfit / 2 + g(x_new)
            t = torch.where(objective > old, 1, t)
        t_new = (1 + (1 + 4 * t**2).sqrt()) / 2
        momentum = (t - 1) / t_new
        torch.sub(x_new, x, out=z).mul_(momentum.reshape(per_cube)).add_(x_new)
        y_z = y_new + momentum.reshape(per_snapshot) * (y_new - y_x)  # Phi z, by linearity
        x, x_new, y_x, t = x_new, x, y_new, t_new
        loop.record(x, residual=residual, change=change)
    return loop.result(x)


def fista_tv(
    A: Camera,
    y: Tensor,
    *,
    tv_weight: float,
    num_iters: int = 100,
    tv_iters: int = 3,
    tol: float = 0.0,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> Result:
    """FISTA on 1/2 |Phi x - y|^2 + tv_weight TV(x), the objective of `admm_tv`; arguments as there."""
    measured(A, y)
    L = A.norm() ** 2 or 1.0
    denoise = TVDenoiser(tv_weight / L, num_iters=tv_iters)

    def weighted_tv(x: Tensor) -> Tensor:
        cubes = x.reshape(-1, *A.cube_shape)
        return tv_weight * torch.stack([tv(cube) for cube in cubes]).reshape(x.shape[:-3])

    return fista(A, y, denoise, num_iters=num_iters, g=weighted_tv, tol=tol, x0=x0, monitor=monitor, progress=progress)
