"""Reconstruction in a spectral subspace with total variation of the coefficient images: the default solver."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Self

import torch
from torch import Tensor

from cassi.optics.detector import brightness
from cassi.optics.protocol import Camera, check_measurement
from cassi.priors.spectral_basis import analyse, coefficient_weights, synthesise
from cassi.priors.tv import tv_steps
from cassi.solvers.gap import Denoiser
from cassi.solvers.loop import Loop, Monitor, Result, overwrite

PRIOR_STRENGTH = 0.6  # kappa lambda
STEP = 0.9  # c relative to its upper bound, see `subspace_tv`
MAX_MOMENTUM = 1 / 3  # of beta, see `subspace_tv`
DUAL_STEPS = 3  # warm-started dual steps per iteration


@dataclass(frozen=True, eq=False)
class SubspaceState:
    """The end of a run, from which another can continue: coefficients z, multipliers e and u, TV dual q."""

    z: Tensor
    e: Tensor
    u: Tensor | None
    q: Tensor

    def repeated(self, count: int) -> Self:
        """The state of a batch of equal runs, (count, ...)."""
        z, e = (t.expand(count, *t.shape) for t in (self.z, self.e))
        u = None if self.u is None else self.u.expand(count, *self.u.shape)
        return replace(self, z=z, e=e, u=u, q=self.q.unsqueeze(1).expand(-1, count, *self.q.shape[1:]))


def subspace_tv(
    A: Camera,
    y: Tensor,
    basis: Tensor,
    *,
    variance: float | Tensor = 0.0,
    tv_weight: float | Tensor | None = None,
    nonnegative: bool = True,
    num_iters: int = 200,
    tol: float = 0.0,
    state: SubspaceState | None = None,
    denoise: Denoiser | None = None,
    momentum: float = 0.0,
    monitor: Monitor | None = None,
    records: bool = True,
) -> tuple[Result, SubspaceState]:
    """Maximum a posteriori cube x = B^T z >= 0 under Gaussian noise of known variance and TV of the coefficients.

        min_z  1/2 sum_j (y - Phi B^T z)_j^2 / sigma_j^2 + kappa sum_k w_k TV(z_k)    subject to  B^T z >= 0

    by a linearized method of multipliers, with D >= Phi Phi^T diagonal (`Camera.modes`), step weight lambda, and
    kappa = 0.6 / lambda:

        r = y - Phi B^T z
        e = gamma (e + r)                              gamma = 1 - min(1, a),  a = kappa sigma^2 / (lambda D)
        p = max(u - B^T z, 0)
        z = prox_{lambda w TV}(z + B Phi^T [omega D^+ (e + r)] + c B (2 p - u))        omega = 1 / max(1, a)
        u = p

    For several snapshots s, gamma and omega D^+ act along the modes V of each detector pixel instead of on the
    snapshots themselves: V diag(gamma) V^T (e + r), where sigma^2 is sum_s V_sm^2 sigma_s^2.

    At a fixed point e + r = r / a where a <= 1, and u >= 0 is 0 where B^T z > 0. There lambda cancels except in kappa,
    so that the fixed point minimizes the first line. Otherwise lambda only sets the speed: a large lambda moves fast,
    while gamma decides for each detector pixel how much of the misfit is signal. Without noise gamma = 1, and this is
    accelerated GAP (see `cassi.solvers.gap`): Bregman iteration towards the smallest TV among all cubes >= 0 that
    explain the measurement (Osher, Burger, Goldfarb, Xu & Yin, MMS 4, 460 (2005)).

    With momentum, v = (z, e) is extrapolated along its last step, v_k+1 = T(v_k) + beta (T(v_k) - T(v_k-1)). A
    direction that is seen by a fraction g and not damped by the prior oscillates with about sqrt(g) per iteration, and
    its square grows by (3 beta - 1) g / (1 - beta)^3; hence beta <= 1/3. In a direction that is seen fully and is
    negative, oscillations of alternating sign grow unless c < 1 / (3 (1 + beta) (1 + 2 beta)); c is 0.9 times that.

    The subspace with TV of its coefficients follows Zhuang & Bioucas-Dias, "Fast hyperspectral image denoising
    and inpainting based on low-rank and sparse representations", IEEE JSTARS 11 (2018).

    Args:
        A: the camera.
        y: measurement (..., H, W'), weighted like the operator; the snapshots of a batch share one brightness.
        basis: B (K, C), orthonormal rows, see `cassi.priors.spectral_basis`.
        variance: sigma_j^2 of y, a number or broadcastable to y, >= 0.
        tv_weight: lambda in units of the cube, or (..., 1, 1) with one for each snapshot of a batch; by default the
            brightness of the scene.
        nonnegative: whether B^T z >= 0 is enforced, which needs the memory of one cube.
        num_iters, tol, monitor: as for `cassi.solvers.gap`; the monitor receives z.
        state: the end of an earlier run with the same number of components. Not modified.
        denoise: another prior instead of the TV prox, f(z, k) -> z on coefficient images.
        momentum: beta, 0 to 1/3, for a linear prior that damps; 1/3 needs about two thirds of the iterations. It is
            not part of the state.
        records: False: the history stays empty, and nothing waits for a GPU.

    Returns:
        Result with the cube (..., C, H, W) and |r| / |y| as the residual in its history; the state at the end.

    Raises:
        ValueError: negative variance (on a GPU with the first records), tv_weight or momentum out of range, a basis
            for another number of bands, or y or state of the wrong shape.
        FloatingPointError: the solver diverged; the message names the iteration.
    """
    _check(A, y, basis, state, tv_weight, momentum)
    y, B = y.contiguous(), basis.to(y).contiguous()
    name = "subspace TV" if denoise is None else "subspace"
    loop = Loop(num_iters, tol=tol, monitor=monitor, name=name, records=records)
    sigma2 = variance.to(y) if isinstance(variance, Tensor) else y.new_full((), variance)
    valid = (sigma2 >= 0).all() if isinstance(variance, Tensor) else torch.tensor(variance >= 0)
    loop.require(valid, "variance must be >= 0 everywhere and not NaN")
    lam = brightness(A, y) if tv_weight is None else tv_weight
    (_, V), inverse = A.modes(), A.inverse_modes
    if V is not None:
        sigma2 = (V.square() * sigma2.expand(y.shape).unsqueeze(-3)).sum(-4)
    a = (PRIOR_STRENGTH / lam**2) * sigma2 * inverse
    # omega is omega D^+ of the docstring
    gamma, omega = (t.expand(y.shape).contiguous() for t in (1 - a.clamp(max=1), inverse / a.clamp(min=1)))
    copied = partial(torch.clone, memory_format=torch.contiguous_format)
    e = torch.zeros_like(y) if state is None else copied(state.e)
    if state is None:
        z = analyse(A.first_guess(_scale(y.clone(), 1 / a.clamp(min=1), V)), B).contiguous()
        q = z.new_zeros((2, *z.shape))
    else:
        z, q = copied(state.z), copied(state.q)
    u = None
    if nonnegative:
        batch = y.shape[: y.ndim - len(A.measurement_shape)]
        u = z.new_zeros((*batch, *A.cube_shape)) if state is None or state.u is None else copied(state.u)
    z_new, y_z, spare = torch.empty_like(z), torch.empty_like(y), None
    if denoise is None:
        w = coefficient_weights(len(B), y.device).to(y).view(-1, 1, 1)
        w = w * (lam.unsqueeze(-1) if isinstance(lam, Tensor) else lam)  # lambda w
    z_last, e_last = (z.clone(), e.clone()) if momentum else (z, e)
    c = STEP / (3 * (1 + momentum) * (1 + 2 * momentum))
    fused = A.fused_step(y, B, gamma, omega, c)
    for k in loop:
        if fused is not None:  # the lines up to `analyse` in one pass
            fused(z, z_new, e=e, u=u, y_z=y_z)
        else:
            x = synthesise(z, B)
            y_z = A.forward(x)
            r = y - y_z
            e = _scale(e.add_(r), gamma, V)
            r = _scale(r.add_(e), omega, V)  # omega D^+ (e + r) with the new e
            step = A.adjoint(r)
            if u is not None:
                p = torch.sub(u, x, out=x).clamp_(min=0)
                step = step.sub(u.sub_(p, alpha=2), alpha=c)  # + c (2 p - u)
                u.copy_(p)
            torch.add(z, analyse(step, B), out=z_new)
        if denoise is None:
            q, spare = tv_steps(z_new, w, q, spare, num_iters=DUAL_STEPS)
        else:
            overwrite(z_new, denoise(z_new, k))
        if momentum:
            z_new, z_last = z_last.lerp_(z_new, 1 + momentum), z_new
            e, e_last = e_last.lerp_(e, 1 + momentum), e
        loop.compare(z_new, z, y_z, y)
        z, z_new = z_new, z
    return loop.result(synthesise(z, B)), SubspaceState(z, e, u, q)


def _scale(t: Tensor, factor: Tensor, V: Tensor | None) -> Tensor:
    """V diag(factor) V^T t; in place for V = 1 (None)."""
    if V is None:
        return t.mul_(factor)
    amplitudes = (V * t.unsqueeze(-3)).sum(-4).mul_(factor)
    return (V * amplitudes.unsqueeze(-4)).sum(-3)


def _check(
    A: Camera, y: Tensor, basis: Tensor, state: SubspaceState | None, tv_weight: float | Tensor | None, momentum: float
) -> None:
    """Raise ValueError where y, basis or state do not fit the camera, or a number is out of range."""
    check_measurement(A, y)
    if not isinstance(tv_weight, Tensor | None) and not 0 < tv_weight < math.inf:
        raise ValueError(f"tv_weight must be positive and finite, got {tv_weight}")
    if not 0 <= momentum <= MAX_MOMENTUM:
        raise ValueError(f"momentum must be 0 to 1/3, beyond which the iteration diverges, got {momentum}")
    if basis.ndim != 2 or basis.shape[1] != A.cube_shape[0]:
        raise ValueError(f"basis must be (K, {A.cube_shape[0]}) for this camera, got {tuple(basis.shape)}")
    batch = y.shape[: y.ndim - len(A.measurement_shape)]
    z, u = (*batch, len(basis), *A.cube_shape[1:]), (*batch, *A.cube_shape)
    if state is not None and not (
        state.z.shape == z
        and state.e.shape == y.shape
        and state.q.shape == (2, *z)
        and (state.u is None or state.u.shape == u)
    ):
        raise ValueError(
            f"state must hold z {z}, e {tuple(y.shape)}, q (2, *z) and u None or {u}, got z {tuple(state.z.shape)}, "
            f"e {tuple(state.e.shape)}, q {tuple(state.q.shape)} and u "
            f"{None if state.u is None else tuple(state.u.shape)}; continue with the camera and the number of "
            "components of the earlier run"
        )
