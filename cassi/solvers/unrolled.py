"""Unrolled optimization: data steps alternate with a learned prior, one network for all stages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from cassi.optics.detector import object_levels
from cassi.optics.protocol import Camera, check_measurement
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import analyse, synthesise
from cassi.solvers.loop import Loop, Monitor, Result

# Per data step. On 27 windows of CAVE, 8 gain 0.02 to 0.05 dB over 4 for 4 % of the time of the default; 12 gain
# another 0.01 to 0.02 dB for as much again.
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
    mask_error: float | None = None,
    turn: int = 0,
    monitor: Monitor | None = None,
) -> tuple[Result, Tensor]:
    """Correct coefficient images z of a cube x = B^T z alternately by a network and the measurement, T times.

        d = R_0(y - Phi B^T z)
        for t = 0 .. T - 1:
            f, g, h = prior(z / s, d / s, seen, noise, h, t)       g: for the d that follows
            z = z + s f
            d = R_t+1(y - Phi B^T z)
            z = z + g d
        z = z + R_T(y - Phi B^T z)

    R_t is the data step, the best linear estimate of the error of z for white errors of the expected size tau_k s_k in
    coefficient k (tau is trained) and a variance N of y:

        R_t(r) = S B Phi^T (Phi B^T S B Phi^T + E E^T + N)^+ r,   S = diag(tau_k s_k)^2,   N = sigma^2 + floor L^2 D
        E e = epsilon Phi_open (e B^T z)

    with s_k = L sqrt(C) (k + 1)^-1.4, D >= Phi Phi^T diagonal and L the level of the objects in the scene, by a few
    conjugate-gradient iterations on the detector. E E^T is the covariance of what an unknown error of the mask, epsilon
    times its greatest transmission and common to all bands, adds to y (`Camera.open`; B^T z is that of the start). Two
    further inputs of the network are the visibility and the noise of each pixel,

        seen = (B Phi^T D^(-1/2))_0,   n = (B Phi^T sigma / D)_0 / (L seen),   noise = n / (n + 1/10).

    Everything is differentiable except L and `seen`, so that `prior` can be trained through any camera. Unrolling with
    the variance as an input: Adler & Oktem, IEEE TMI 37 (2018); Zhang, Van Gool & Timofte, CVPR 2020.

    Args:
        A: any camera with forward and adjoint.
        y: measurement (..., H, W'), weighted like the operator; the snapshots of a batch may differ in brightness.
        basis: B (K, C), `smooth_basis` of the bands, with at most as many rows as components of the prior.
        prior: see `cassi.priors.learned`.
        start: z (..., K, H, W) of an earlier cube. Not modified.
        variance: sigma^2 of y, like y, >= 0.
        level: L, in units of the cube; `object_level` times sum |y| / sum |Phi| 1 of each snapshot by default.
        turn: how many networks the start comes from; tau, floor and a bias of the network are those of that turn.
        mask_error: epsilon; 0: the mask is exact; None: as well as the camera knows it (`Camera.mask_error`).
        monitor: as for `cassi.solvers.gap`; it receives z after each of the T stages.

    Returns:
        Result with the cube B^T z (..., C, H, W), and z.

    Raises:
        ValueError: wrong shape of y, basis, start or variance. TypeError: see `Camera.check_measurement`.
        FloatingPointError: NaN or Inf; the message names the stage.
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
    epsilon = A.mask_error if mask_error is None else mask_error
    *_, z = corrections(A, y, basis.to(y), prior, start, variance, level, loop, epsilon, turn)
    return loop.result(synthesise(z, basis)), z


def error(x: Tensor, truth: Tensor) -> Tensor:
    """Squared error of each band relative to the brightness of the cube [dB], averaged over the bands of N cubes.

    10 log10(mean (x_c - truth_c)^2 / L^2 + 10^-5) with L the mean of the cube: errors below 0.3 % of it count little.
    """
    L = truth.mean((1, 2, 3), keepdim=True).clamp(min=torch.finfo(truth.dtype).tiny)
    squared = ((x - truth) / L).square().mean((2, 3))
    return 10 * (squared + 1e-5).log10().mean()


def corrections(
    A: Camera, y: Tensor, B: Tensor, prior: LearnedPrior, start: Tensor, variance: Tensor,
    level: Tensor | float | None = None, loop: Loop | None = None, mask_error: float = 0.0, turn: int | Tensor = 0,
) -> Iterator[Tensor]:  # fmt: skip
    """z of `unrolled` after each of the T stages and after the last data step, without checks.

    Without a loop nothing waits for the device, as CUDA graphs require. `level` may be a tensor (..., 1, 1, 1) with one
    value per snapshot, `turn` one (1,).
    """
    K, rank, tiny = len(B), len(A.measurement_shape), torch.finfo(y.dtype).tiny
    log_tau, log_floor, t = prior.of_turn(turn)
    batch = y.shape[: y.ndim - rank]
    D = A.majorizer()
    dark = D <= tiny
    m_max = y.new_ones(()) if A.open is None else A.open.response().amax() / B.shape[1]  # all bands meet somewhere
    # where no open element reaches, errors of the mask still do: the floor is that of a single element
    D, y = torch.where(dark, m_max.square(), D), y.masked_fill(dark, 0)
    if level is None:
        L = object_levels(A, y).view(*batch, 1, 1, 1)
    else:
        L = level if isinstance(level, Tensor) else y.new_full((*batch, 1, 1, 1), level)
    L_y = L.view(*batch, *(1,) * rank)
    s = L * (math.sqrt(B.shape[1]) * prior.spread()[:K].to(y).view(-1, 1, 1))
    seen = analyse(A.adjoint(D.rsqrt().masked_fill(dark, 0)), B)[0]
    n = analyse(A.adjoint((variance.sqrt() / D).masked_fill(dark, 0)), B)[..., :1, :, :]
    n = n / (L * seen.abs()).clamp(min=tiny)

    maps = _images(seen[None], batch), _images(n / (n + 0.1), batch)
    light = _images(start / s, batch).mean((-2, -1)) if prior.size.light else None
    S = (log_tau[:, :K].exp().to(y).view(-1, *(1,) * len(batch), K, 1, 1) * s).square()  # for all data steps
    SB = (S[..., 0] * B).detach()
    floor = log_floor.exp().to(y).view(-1, *(1,) * L_y.ndim) * L_y.square()
    N = torch.addcmul(variance, floor, D)
    # diag(Phi B^T S B Phi^T) is about D times the mean variance of a voxel, trace(S) / C
    diagonal = (S.sum(-3) / B.shape[1]).view(-1, *L_y.shape)
    M = torch.addcmul(N, D, diagonal).detach()
    X = None
    if mask_error and A.open is not None:
        X = mask_error * synthesise(start, B).detach().clamp(min=0)
        M = M + m_max * A.open.forward(X.square())
    M = M.reciprocal()  # approximate inverse of the diagonal

    zero = y.new_full((len(maps[0]), 1, 1), tiny)  # added to scalar products, so that 0 / 0 cannot occur
    apply: Callable[..., Tensor] = _DataStep.apply

    def data_step(z: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """R_k(y - Phi B^T z), and Phi B^T z."""
        y_z = A.subspace_forward(z, B)
        return apply(A, B, S[k], SB[k], N[k], M[k], X, zero, y - y_z), y_z.detach()

    z, h = start.contiguous(), None  # as kernels want it; that of a batch may not be
    d, _ = data_step(z, 0)
    for k in range(prior.size.stages) if loop is None else loop:
        z_old = z.detach()
        f, g, h = prior(_images(z / s, batch), _images(d / s, batch), *maps, h, t[k : k + 1], light)
        z = torch.addcmul(z, s, f.view_as(z))
        d, y_z = data_step(z, k + 1)
        z = torch.addcmul(z, g.view_as(z), d)
        if loop is not None:
            loop.compare(z.detach(), z_old, y_z, y)
        yield z
    d, _ = data_step(z, prior.size.stages)
    yield z + d


def _images(v: Tensor, batch: Sequence[int]) -> Tensor:
    return v.expand(*batch, *v.shape[-3:]).reshape(-1, *v.shape[-3:])


class _DataStep(torch.autograd.Function):
    """d = S B Phi^T G^-1 r with G = Phi B^T S B Phi^T + E E^T + N, by conjugate gradients preconditioned by M.

    With a = B Phi^T G^-1 r stored, a gradient d' of d needs one more such solve instead of a graph of the iterations:

        w = G^-1 Phi B^T S d',   r' = w,   S_k' = sum (d' a - a (B Phi^T w))_k,   N' = -w G^-1 r

    which is exact once the conjugate gradients have converged (implicit function theorem).
    """

    @staticmethod
    def forward(  # type: ignore[no-untyped-def]
        ctx,
        A: Camera,
        B: Tensor,
        S: Tensor,
        SB: Tensor,
        N: Tensor,
        M: Tensor,
        X: Tensor | None,
        zero: Tensor,
        r: Tensor,
    ) -> Tensor:
        v = _solve(A, B, SB, N, M, X, zero, r)
        if not any(ctx.needs_input_grad):
            return A.subspace_adjoint(v, SB)
        a = A.subspace_adjoint(v, B)
        ctx.A, ctx.X = A, X
        ctx.save_for_backward(B, S, SB, N, M, zero, v, a)
        return S * a

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[no-untyped-def]
        ctx, grad: Tensor
    ) -> tuple[None, None, Tensor, None, Tensor, None, None, None, Tensor]:
        A, (B, S, SB, N, M, zero, v, a) = ctx.A, ctx.saved_tensors
        w = _solve(A, B, SB, N, M, ctx.X, zero, A.subspace_forward(S * grad, B))
        to_S = (a * (grad - A.subspace_adjoint(w, B))).sum((-2, -1), keepdim=True)
        return None, None, to_S, None, -w * v, None, None, None, w


def _solve(A: Camera, B: Tensor, SB: Tensor, N: Tensor, M: Tensor, X: Tensor | None, zero: Tensor, r: Tensor) -> Tensor:
    """(Phi B^T S B Phi^T + E E^T + N)^-1 r by conjugate gradients, preconditioned by M; E e = Phi_open (X e)."""
    ones = (1,) * len(A.measurement_shape)
    batch = r.shape[: r.ndim - len(ones)]
    count = len(zero)

    def G(p: Tensor) -> Tensor:
        Gp = A.subspace_gram(p, B, SB).addcmul_(N, p)
        if X is not None and A.open is not None:
            Gp += A.open.common_gram(X, p)
        return Gp

    def dot(a: Tensor, b: Tensor) -> Tensor:
        return torch.baddbmm(zero, a.reshape(count, 1, -1), b.reshape(count, -1, 1)).view(*batch, *ones)

    q = M * r
    v, p, rq = r, q, dot(r, q)
    for i in range(CG_ITERS):
        Gp = G(p)
        alpha = rq / dot(p, Gp)
        v = torch.addcmul(v, alpha, p) if i > 0 else alpha * p
        if i < CG_ITERS - 1:
            r = torch.addcmul(r, alpha, Gp, value=-1)
            q = M * r
            rq_old, rq = rq, dot(r, q)
            p = torch.addcmul(q, rq / rq_old, p)
    return v
