"""Linear reconstruction: damped least squares in closed form or by conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cassi.optics.protocol import LinearOperator
from cassi.optics.single_disperser import CASSI
from cassi.solvers.loop import Loop, Monitor, Result, relative_norm


def least_squares(
    A: LinearOperator,
    y: Tensor,
    *,
    damping: float = 0.0,
    method: str = "auto",
    num_iters: int = 100,
    tol: float = 1e-6,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> Result:
    """Tikhonov-damped least squares, argmin_x |Phi x - y|^2 + damping |x|^2; for damping 0 the one of smallest norm.

        x = Phi^T z,   (Phi Phi^T + damping) z = y

    Args:
        A: any operator with forward and adjoint.
        y: measurement (..., H, W').
        damping: >= 0, in units of gram_diag (transmission squared).
        method: "closed" (CASSI only: Phi Phi^T is diagonal), "cg", or "auto": closed where it exists.
        num_iters, tol: of conjugate gradients; tol bounds |y - (Phi Phi^T + damping) z| / |y|, and, for an operator
            without gram_diag and damping 0, |Phi^T (y - Phi x)| / |Phi^T y|.
        monitor, progress: as for `cassi.solvers.gap`.

    Returns:
        Result with the cube (..., C, H, W).

    Raises:
        ValueError: negative damping, an unknown method, or "closed" for an operator without closed form.
        FloatingPointError: NaN or Inf; names the iteration.
    """
    if not damping >= 0:
        raise ValueError(f"damping must be >= 0, got {damping}")
    if method not in ("auto", "closed", "cg"):
        raise ValueError(f'method must be "auto", "closed" or "cg", got {method!r}')
    closed = isinstance(A, CASSI)
    if method == "closed" and not closed:
        raise ValueError(f'{type(A).__name__} has no closed form; use method="cg"')
    if method != "cg" and isinstance(A, CASSI):
        loop = Loop(1, tol=0.0, monitor=monitor, progress=progress, name="least squares")
        for _ in loop:
            x = A.pinv(y) if damping == 0 else A.adjoint(y / (A.gram_diag() + damping))
            loop.record(x, residual=relative_norm(y - A.forward(x), y), change=0.0)
        return loop.result(x)
    gram = getattr(A, "gram_diag", None)
    if gram is None and damping == 0:
        # Phi Phi^T z = y has no solution where noise takes y out of the range of Phi; the normal equations always have
        return conjugate_gradients(
            lambda x: A.adjoint(A.forward(x)), A.adjoint(y), num_iters=num_iters, tol=tol, monitor=monitor,
            progress=progress,
        )  # fmt: skip
    preconditioner = None
    if gram is not None:
        diagonal = gram() + damping
        inverse = torch.where(diagonal > 0, 1 / torch.where(diagonal > 0, diagonal, 1), 0)
        preconditioner = inverse.mul
        y = torch.where(diagonal > 0, y, 0)  # what a dark pixel reads is out of reach
    result = conjugate_gradients(
        lambda z: torch.add(A.forward(A.adjoint(z)), z, alpha=damping),
        y,
        preconditioner=preconditioner,
        num_iters=num_iters,
        tol=tol,
        monitor=monitor if monitor is None else lambda record, z: monitor(record, A.adjoint(z)),
        progress=progress,
    )
    return Result(A.adjoint(result.x), result.history, result.status)


def conjugate_gradients(
    M: Callable[[Tensor], Tensor],
    b: Tensor,
    *,
    preconditioner: Callable[[Tensor], Tensor] | None = None,
    x0: Tensor | None = None,
    num_iters: int = 100,
    tol: float = 1e-6,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> Result:
    """Preconditioned conjugate gradients for M x = b, M symmetric positive semi-definite (Saad 2003, alg. 9.1).

    Args:
        M: the matrix as a function.
        b: right-hand side, any shape, in the range of M.
        preconditioner: approximation of M^+, positive; identity if not given.
        x0: start; 0 if not given. Not modified.
        num_iters: iterations at most.
        tol: stop when |b - M x| / |b| falls below it.
        monitor, progress: as for `cassi.solvers.gap`.

    Returns:
        Result with x like b; residual and change in the history are both |b - M x| / |b|.

    Raises:
        FloatingPointError: NaN or Inf; names the iteration.
    """
    x = torch.zeros_like(b) if x0 is None else x0.clone()
    r = b.clone() if x0 is None else b - M(x)
    z = r if preconditioner is None else preconditioner(r)
    p = z.clone()
    rz = (r * z).sum()
    loop = Loop(num_iters, tol=tol, monitor=monitor, progress=progress, name="CG")
    for _ in loop:
        q = M(p)
        pq = (p * q).sum()
        alpha = torch.where(pq > 0, rz / torch.where(pq > 0, pq, 1), 0)
        x += alpha * p
        r = r - alpha * q
        z = r if preconditioner is None else preconditioner(r)
        rz_old, rz = rz, (r * z).sum()
        p = z + torch.where(rz_old > 0, rz / torch.where(rz_old > 0, rz_old, 1), 0) * p
        residual = relative_norm(r, b)
        loop.record(x, residual=residual, change=residual)
    return loop.result(x)
