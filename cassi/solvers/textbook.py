"""GAP-TV and ADMM-TV as plain text: one line of code for each line of the equations, a new tensor for each result.

`cassi.solvers.gap_tv` and `admm_tv` compute the same iterates, to rounding, in place and in fused passes; a test holds
them to it. Read these to see what they do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.optics.protocol import Camera
from cassi.priors.tv import STEP, differences, differences_adjoint


def tv_prox_reference(v: Tensor, weight: float, q: Tensor, num_iters: int) -> tuple[Tensor, Tensor]:
    """u = argmin_u 1/2 |u - v|^2 + weight TV(u), by `num_iters` projected gradient steps on the dual q.

        q <- P_{|q| <= weight}( q + 1/8 D u ),   u = v - D^T q

    Args:
        v: (..., C, H, W).
        weight: > 0, in units of v.
        q: (2, ..., C, H, W), the dual to go on from; 0 at first.
        num_iters: dual steps.

    Returns:
        u like v, and the dual.
    """
    for _ in range(num_iters):
        q = q + STEP * differences(v - differences_adjoint(q))
        q = q / (q.square().sum(0).sqrt() / weight).clamp(min=1)
    return v - differences_adjoint(q), q


def gap_tv_reference(
    A: Camera,
    y: Tensor,
    *,
    tv_weight: float,
    num_iters: int,
    tv_iters: int = 5,
    memory: float = 0.5,
    accelerate: bool = True,
) -> Tensor:
    """GAP-TV; arguments as for `cassi.solvers.gap_tv`, the cube returned."""
    v = A.pinv(y)
    b = y
    q = v.new_zeros((2, *v.shape))
    for _ in range(num_iters):
        y_v = A.forward(v)
        b = b + (y - y_v) if accelerate else y
        x = v + A.pinv(b - y_v)
        v, q = tv_prox_reference(x, tv_weight, memory * q, tv_iters)
    return v


def admm_tv_reference(
    A: Camera,
    y: Tensor,
    *,
    tv_weight: float,
    rho: float,
    num_iters: int,
    tv_iters: int = 3,
    memory: float = 1.0,
) -> Tensor:
    """ADMM-TV in scaled form; arguments as for `cassi.solvers.admm_tv`, the cube returned."""
    z = A.pinv(y)
    u = torch.zeros_like(z)
    q = z.new_zeros((2, *z.shape))
    for _ in range(num_iters):
        x = A.prox(z - u, y, rho)
        z, q = tv_prox_reference(x + u, tv_weight / rho, memory * q, tv_iters)
        u = u + x - z
    return z
