"""Linear reconstruction: damped least squares in closed form or by conjugate gradients."""

import math

import torch
from torch import Tensor

from cassi.kernels.caller import undisturbed
from cassi.kernels.linear import conjugate_gradient_steps
from cassi.optics.protocol import Camera, check_measurement, reciprocal
from cassi.solvers.loop import Loop, Monitor, Result, relative_norm


@undisturbed
def least_squares(
    A: Camera,
    y: Tensor,
    *,
    damping: float = 0.0,
    num_iters: int = 100,
    tol: float = 1e-6,
    monitor: Monitor | None = None,
) -> Result:
    """Tikhonov-damped least squares, argmin_x |Phi x - y|^2 + damping |x|^2; for damping 0 of smallest norm.

        x = Phi^T z,   (Phi Phi^T + damping) z = y

    Args:
        A: the camera.
        y: measurement (..., H, W').
        damping: >= 0, in units of gram_diag (transmission squared).
        num_iters, tol: of conjugate gradients, used if there is no closed form (`A.exact`). tol bounds
            |y - (Phi Phi^T + damping) z| / |y|, or for damping 0 |Phi^T (y - Phi x)| / |Phi^T y|.
        monitor: as for `cassi.solvers.gap`.

    Returns:
        Result with the cube (..., C, H, W). With conjugate gradients, residual and change in its history are both the
        quantity that tol bounds.

    Raises:
        ValueError: negative damping.
        FloatingPointError: NaN or Inf; the message names the iteration.
    """
    check_measurement(A, y)
    if not 0 <= damping < math.inf:
        raise ValueError(f"damping must be >= 0 and finite, got {damping}")
    if A.exact:
        loop = Loop(1, tol=0.0, monitor=monitor, name="least squares")
        for _ in loop:
            x = A.adjoint(A.solve(y, damping))
            loop.record(x, residual=relative_norm(y - A.forward(x), y), change=0.0)
        return loop.result(x)
    if damping == 0:
        # with noise y may leave the range of Phi, and Phi Phi^T z = y has no solution; the normal equations always have
        steps = conjugate_gradient_steps(lambda x: A.adjoint(A.forward(x)), A.adjoint(y), axes=3)
    else:
        inverse, axes = reciprocal(A.gram_diag() + damping), len(A.measurement_shape)
        steps = conjugate_gradient_steps(
            lambda z: torch.add(A.forward(A.adjoint(z)), z, alpha=damping), y, inverse=inverse, axes=axes
        )

    def cube(z: Tensor) -> Tensor:
        return A.adjoint(z) if damping else z

    watch: Monitor | None = None if monitor is None else lambda record, z: monitor(record, cube(z))
    loop = Loop(num_iters, tol=tol, monitor=watch, name="CG")
    z, _ = next(steps)
    for _, (z, residual) in zip(loop, steps, strict=False):
        loop.record(z, residual=residual, change=residual)
    return loop.result(cube(z))
