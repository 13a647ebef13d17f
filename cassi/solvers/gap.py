"""Generalized alternating projection: project onto the cubes that explain the measurement, denoise, repeat."""

from collections.abc import Callable

import torch
from torch import Tensor

from cassi.kernels.caller import undisturbed
from cassi.optics.protocol import Camera, check_measurement
from cassi.priors.tv import TVDenoiser
from cassi.solvers.loop import Loop, Monitor, Result, overwrite

Denoiser = Callable[[Tensor, int], Tensor]
"""f(x, k) -> x, with the cube to denoise and the iteration, from 0. It may overwrite and return its argument."""


@undisturbed
def gap(
    A: Camera,
    y: Tensor,
    denoise: Denoiser,
    *,
    num_iters: int,
    tol: float = 0.0,
    accelerate: bool = True,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
) -> Result:
    """Generalized alternating projection (GAP).

        b^k     = b^{k-1} + y - Phi v^k        accelerated; plain GAP keeps b = y
        x^k     = v^k + Phi^+ (b^k - Phi v^k)  projection onto {x : Phi x = b^k}
        v^{k+1} = denoise(x^k, k)

    with b^{-1} = y and v^0 = x0 or Phi^+ y. Liao, Li & Carin, SIAM J. Imaging Sci. 7 (2014); in this form Yuan, ICIP
    2016. Plain GAP with the proximal operator of g is proximal gradient with step 1 on
    1/2 (y - Phi v)^T (Phi Phi^T)^+ (y - Phi v) + g(v); accelerated GAP is Bregman iteration on g subject to Phi v = y,
    so on noisy data it fits the noise in the end and must be stopped.

    Where Phi^+ has no closed form (blur, sub-pixel dispersion) it would amplify noise in every iteration. Phi^T D^+
    replaces it there, with D >= Phi Phi^T diagonal (`Camera.majorizer`): linearized Bregman iteration.

    Args:
        A: the camera.
        y: measurement (..., H, W').
        denoise: f(x, k) -> x.
        num_iters: iterations, at least 1.
        tol: stop when |v^{k+1} - v^k| / |v^k| falls below it; 0 never stops early.
        accelerate: feed the misfit back into b.
        x0: start v^0 (..., C, H, W), by default `Camera.first_guess`. Not modified.
        monitor: called with (Record, v^{k+1}) in each iteration; it returns True to stop.

    Returns:
        Result; the residual in its history is |y - Phi v^k| / |y|.

    Raises:
        FloatingPointError: the solver diverged; the message names the iteration.
    """
    y = check_measurement(A, y).contiguous()
    pinv = A.pinv if A.exact else A.first_guess  # Phi^+, or Phi^T D^+
    v = A.first_guess(y) if x0 is None else x0.clone(memory_format=torch.contiguous_format)
    x = torch.empty_like(v)
    b, y_v = y.clone(), torch.empty_like(y)
    loop = Loop(num_iters, tol=tol, monitor=monitor, name="GAP")
    for k in loop:
        if not A.data_step_(v, x, y, b, y_v, accelerate=accelerate):  # these lines fused, in place
            y_v = A.forward(v)
            b = b + (y - y_v) if accelerate else y
            x = v + pinv(b - y_v)
        v_new = overwrite(x, denoise(x, k))
        loop.compare(v_new, v, y_v, y)
        v, x = v_new, v  # the old v is the buffer for the next x, so that a fused iteration allocates no cube
    return loop.result(v)


def gap_tv(
    A: Camera,
    y: Tensor,
    *,
    tv_weight: float,
    num_iters: int = 60,
    tv_iters: int = 5,
    memory: float | None = None,
    tol: float = 0.0,
    accelerate: bool = True,
    x0: Tensor | None = None,
    monitor: Monitor | None = None,
) -> Result:
    """GAP with the total variation prox, the usual baseline (Yuan, ICIP 2016).

    Args:
        tv_weight: weight of TV in the denoising step, in the unit of the cube; 0.15 for a cube between 0 and 1. The
            weight W of `cassi.reconstruct` and `--tv-weight` is relative: tv_weight = W `brightness(A, y)`
            (`cassi.optics.detector`), whatever the unit.
        tv_iters: dual steps per denoising.
        memory: share of the dual kept for the next denoising, see `cassi.priors.tv.TVDenoiser`; by default 1/2 if
            accelerated, else 1, for which the fixed points are as of GAP with the exact prox.
        Others: see `gap`.

    Example:
        >>> A = CASSI.from_step(torch.ones(8, 8), step=1, num_bands=2)
        >>> gap_tv(A, A.forward(torch.ones(2, 8, 8)), tv_weight=0.1, num_iters=5).x.shape
        torch.Size([2, 8, 8])
    """
    kept_share = (0.5 if accelerate else 1.0) if memory is None else memory
    denoise = TVDenoiser(tv_weight, num_iters=tv_iters, memory=kept_share)
    return gap(A, y, denoise, num_iters=num_iters, tol=tol, accelerate=accelerate, x0=x0, monitor=monitor)
