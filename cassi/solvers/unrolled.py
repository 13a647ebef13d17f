"""A few data steps with a learned prior between them: unrolled optimization with one network for all stages."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cassi.optics.detector import object_level
from cassi.optics.protocol import Camera, check_measurement
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import analyse, synthesise
from cassi.solvers.loop import Loop, Monitor, Result

# Of a data step. On 27 windows of CAVE, 8 are 0.02 to 0.05 dB better than 4, of which the last step has 8, for 4 % of
# the default's time; 12 are 0.01 to 0.02 dB more for as much again.
CG_ITERS = 8


def unrolled(
    A: Camera,
    y: Tensor,
    basis: Tensor,
    prior: LearnedPrior,
    start: Tensor,
    *,
    variance: Tensor,
    level: float | None = None,
    monitor: Monitor | None = None,
) -> tuple[Result, Tensor]:
    """Correct coefficient images z of a cube x = B^T z by a network and the measurement in turn, T times.

        d = R_0(y - Phi B^T z)
        for t = 0 .. T - 1:
            f, g, h = prior(z / s, d / s, seen, noise, h)
            z = z + s f
            d = R_t+1(y - Phi B^T z)
            z = z + g d
        z = z + R_T(y - Phi B^T z)

    R_t is the data step, the best linear estimate of what is missing from z where that is taken for white, with the
    expected error tau_k s_k of coefficient k (tau has been trained), and y has the variance N:

        R_t(r) = S B Phi^T (Phi B^T S B Phi^T + N)^+ r,   S = diag(tau_k s_k)^2,   N = sigma^2 + floor L^2 D

    with s_k = L sqrt(C) (k + 1)^-1.4, D >= Phi Phi^T diagonal and L the level of the scene's objects, by a few
    conjugate gradients on the detector. How well and with how much noise a pixel was seen, the network is told in two
    images,

        seen = (B Phi^T D^(-1/2))_0,   n = (B Phi^T sigma / D)_0 / (L seen),   noise = n / (n + 1/10).

    Gradients flow through all of it but the means and `seen`, so that `prior` can be trained through any camera.
    Unrolling and a variance that the network is told: Adler & Oktem, IEEE TMI 37 (2018); Zhang, Van Gool & Timofte,
    CVPR 2020.

    Args:
        A: any camera with forward and adjoint.
        y: measurement (..., H, W'), weighted as the operator; the snapshots of a batch may differ in brightness.
        basis: B (K, C), `smooth_basis` of the bands, with at most as many rows as the prior has components.
        prior: see `cassi.priors.learned`.
        start: z (..., K, H, W), of a cube found before. Not modified.
        variance: sigma^2 of y, like y, >= 0.
        level: L, in units of the cube; `object_level` times sum |y| / sum |Phi| 1 of each snapshot if not given.
        monitor: as for `cassi.solvers.gap`; the monitor is handed z after each of the T stages.

    Returns:
        Result with the cube B^T z (..., C, H, W), and z.

    Raises:
        ValueError: y, basis, start or variance of a shape that does not fit. TypeError: see `Camera.check_measurement`.
        FloatingPointError: NaN or Inf; names the stage.
    """
    K, (H, W) = len(basis), A.cube_shape[-2:]
    batch = check_measurement(A, y).shape[: y.ndim - len(A.measurement_shape)]
    if variance.shape != y.shape:
        raise ValueError(f"variance must be like y, {tuple(y.shape)}, got {tuple(variance.shape)}")
    if basis.ndim != 2 or basis.shape[1] != A.cube_shape[0] or K > prior.size.components:
        raise ValueError(
            f"basis must be (K, {A.cube_shape[0]}) with K at most {prior.size.components} for this camera and prior, "
            f"got {tuple(basis.shape)}"
        )
    if start.shape != (*batch, K, H, W):
        raise ValueError(f"start must be {(*batch, K, H, W)}, got {tuple(start.shape)}")
    loop = Loop(prior.size.stages, tol=0.0, monitor=monitor, name="learned prior")
    z = corrected(A, y, basis.to(y), prior, start, variance, level, loop)
    return loop.result(synthesise(z, basis)), z


def corrected(
    A: Camera, y: Tensor, B: Tensor, prior: LearnedPrior, start: Tensor, variance: Tensor,
    level: float | None = None, loop: Loop | None = None,
) -> Tensor:  # fmt: skip
    """z of `unrolled`, unchecked: without a loop nothing waits for the device, as CUDA graphs want it."""
    K, rank, tiny = len(B), len(A.measurement_shape), torch.finfo(y.dtype).tiny
    batch = y.shape[: y.ndim - rank]
    D = A.majorizer()
    dark = D <= tiny
    D, y = D.masked_fill(dark, 1), y.masked_fill(dark, 0)
    if level is None:
        light = object_level(y, rank) * y.abs().flatten(len(batch)).sum(-1) / A.response().sum().clamp(min=tiny)
        L = light.clamp(min=tiny).view(*batch, 1, 1, 1)
    else:
        L = y.new_full((*batch, 1, 1, 1), level)
    L_y = L.view(*batch, *(1,) * rank)
    s = L * (math.sqrt(B.shape[1]) * prior.spread()[:K].to(y).view(-1, 1, 1))
    seen = analyse(A.adjoint(D.rsqrt().masked_fill(dark, 0)), B)[0]
    n = analyse(A.adjoint((variance.sqrt() / D).masked_fill(dark, 0)), B)[..., :1, :, :]
    n = n / (L * seen.abs()).clamp(min=tiny)

    def images(v: Tensor) -> Tensor:
        return v.expand(*batch, *v.shape[-3:]).reshape(-1, *v.shape[-3:])

    maps = images(seen[None]), images(n / (n + 0.1))
    S_k = (prior.log_tau[:, :K].exp().to(y).view(-1, *(1,) * len(batch), K, 1, 1) * s).square()  # of all data steps
    SB = S_k[..., 0] * B
    diagonal = (S_k.sum(-3) / B.shape[1]).view(-1, *L_y.shape)
    floor = prior.log_floor.exp().to(y).view(-1, *(1,) * L_y.ndim) * L_y.square()
    N = torch.addcmul(variance, floor, D)
    M = torch.addcmul(N, D, diagonal).reciprocal()  # about the inverse of the diagonal
    zero = y.new_full((math.prod(batch), 1, 1), tiny)

    def data_step(z: Tensor, t: int) -> tuple[Tensor, Tensor]:
        y_z = A.forward(synthesise(z, B))
        return _missing(A, B, SB[t], N[t], M[t], y - y_z, zero), y_z.detach()

    z, h = start, None
    d, _ = data_step(z, 0)
    for t in range(prior.size.stages) if loop is None else loop:
        z_old = z.detach()
        f, g, h = prior(images(z / s), images(d / s), *maps, h, t)
        z = torch.addcmul(z, s, f.view_as(z))
        d, y_z = data_step(z, t + 1)
        z = torch.addcmul(z, g.view_as(z), d)
        if loop is not None:
            loop.compare(z.detach(), z_old, y_z, y)
    d, _ = data_step(z, prior.size.stages)
    return z + d


def _missing(A: Camera, B: Tensor, SB: Tensor, N: Tensor, M: Tensor, r: Tensor, zero: Tensor) -> Tensor:
    """S B Phi^T (Phi B^T S B Phi^T + N)^-1 r by conjugate gradients, preconditioned by M; nothing in place.

    `zero`, (batch, 1, 1), all but zero, is added to scalar products: 0 / 0 where all is solved, without it.
    """
    ones = (1,) * len(A.measurement_shape)
    batch, count = r.shape[: r.ndim - len(ones)], len(zero)

    def estimate(v: Tensor) -> Tensor:
        found: Tensor = (SB @ A.adjoint(v).flatten(-2)).view(*batch, len(B), *A.cube_shape[1:])
        return found

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return torch.baddbmm(zero, a.reshape(count, 1, -1), b.reshape(count, -1, 1)).view(*batch, *ones)

    q = M * r
    v, p, rq = r, q, dot(r, q)
    for i in range(CG_ITERS):
        G = torch.addcmul(A.forward(synthesise(estimate(p), B)), N, p)
        alpha = rq / dot(p, G)
        v = torch.addcmul(v, alpha, p) if i > 0 else alpha * p
        if i < CG_ITERS - 1:
            r = torch.addcmul(r, alpha, G, value=-1)
            q = M * r
            rq_old, rq = rq, dot(r, q)
            p = torch.addcmul(q, rq / rq_old, p)
    return estimate(v)
