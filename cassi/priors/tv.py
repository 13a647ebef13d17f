"""Total variation, its proximal operator by warm-started dual projected gradient, and a certificate of its accuracy.

    TV(x) = sum_{c,i,j} |(D x)_{c,i,j}|_2         isotropic, each band alone
    TV(x) = sum_{i,j} sqrt(sum_c |(D x)_{c,i,j}|_2^2)   coupled: one magnitude for all bands of a pixel

D takes forward differences along width and height, 0 at the last column and row (no light crosses the border).
"""

from __future__ import annotations

import torch
from torch import Tensor

from cassi import compiled

STEP = 1 / 8  # 1 / |D|^2: the largest step with which the dual gradient iteration is certain to converge


def differences(x: Tensor) -> Tensor:
    """D x, (2, ..., H, W): forward differences along width, then height; 0 at the last column and row."""
    q = x.new_zeros((2, *x.shape))
    torch.sub(x[..., 1:], x[..., :-1], out=q[0][..., :-1])
    torch.sub(x[..., 1:, :], x[..., :-1, :], out=q[1][..., :-1, :])
    return q


def differences_adjoint(q: Tensor) -> Tensor:
    """D^T q for q (2, ..., H, W) whose last column (q[0]) and last row (q[1]) are 0."""
    return _subtract_adjoint(torch.zeros_like(q[0]), q).neg_()


def tv(x: Tensor, *, coupled: bool = False) -> Tensor:
    """Total variation of a cube (..., C, H, W), a scalar tensor.

    Example:
        >>> tv(torch.tensor([[[0.0, 3.0], [4.0, 0.0]]]))
        tensor(12.)
    """
    squared = differences(x).square().sum(0)
    return (squared.sum(-3) if coupled else squared).sqrt().sum()


def tv_prox(
    v: Tensor,
    weight: float | Tensor,
    *,
    num_iters: int,
    dual: Tensor | None = None,
    coupled: bool = False,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """u = argmin_u 1/2 |u - v|^2 + weight TV(u), by projected gradient on the dual.

        q <- P_{|q| <= weight}( q + 1/8 D u ),   u = v - D^T q

    After Chambolle (2005), "Total variation minimization and a class of binary MRF models", eq. 6, with the step of
    Beck & Teboulle, IEEE TIP 18 (2009). Pass the returned dual to the next call to go on where this one ended.

    Args:
        v: (..., C, H, W), floating point.
        weight: >= 0, in units of v; a number, or a tensor that broadcasts against (..., C, 1, 1) (not when coupled).
        num_iters: dual steps, >= 0.
        dual: (2, ..., C, H, W) from an earlier call; 0 if not given. Not modified.
        coupled: one gradient magnitude for all bands of a pixel.
        out: where u goes; may not be `v`.

    Returns:
        u like v, and the dual q like `dual`.

    Raises:
        ValueError: negative weight, one for each band where coupled, or a dual of another shape.

    Example:
        >>> u, q = tv_prox(torch.tensor([[[0.0, 4.0]]]), 1.0, num_iters=50)
        >>> u
        tensor([[[1., 3.]]])
    """
    w = _checked_weight(weight, coupled).to(v)
    if dual is not None and dual.shape != (2, *v.shape):
        raise ValueError(
            f"dual must be {(2, *v.shape)}, got {tuple(dual.shape)}; pass the dual of a cube of the same shape"
        )
    q = v.new_zeros((2, *v.shape)) if dual is None else dual.clone()
    u = torch.empty_like(v) if out is None else out
    u.copy_(v)
    tv_prox_(u, w, q, num_iters=num_iters, coupled=coupled)
    return u, q


def _checked_weight(weight: float | Tensor, coupled: bool) -> Tensor:
    w = torch.as_tensor(weight, dtype=None if isinstance(weight, Tensor) else torch.float64)
    if not bool((w >= 0).all()):
        raise ValueError(f"weight must be >= 0, got {float(w.min())}")
    if coupled and w.ndim:
        raise ValueError(f"a coupled TV has one weight for all bands, got weights of shape {tuple(w.shape)}")
    return w


def tv_prox_(
    u: Tensor,
    weight: Tensor,
    q: Tensor,
    *,
    num_iters: int,
    coupled: bool = False,
    workspace: tuple[Tensor, Tensor] | None = None,
) -> None:
    """`tv_prox` in place: u holds v on entry and the result on exit, q the dual; the solvers' inner loop.

    Args:
        workspace: two tensors like u to compute in. Without them they are allocated when needed.
    """
    if not coupled and compiled.usable(u, q):
        compiled.tv_prox_(u, weight, q, num_iters)
        return
    f, n = (torch.empty_like(u), torch.empty_like(u)) if workspace is None else workspace
    magnitude = n.narrow(-3, 0, 1) if coupled else n
    f.copy_(u)
    floor = weight.clamp(min=torch.finfo(u.dtype).tiny)
    _subtract_adjoint(u, q)
    for _ in range(num_iters):
        q[0][..., :-1].add_(u[..., 1:], alpha=STEP).sub_(u[..., :-1], alpha=STEP)
        q[1][..., :-1, :].add_(u[..., 1:, :], alpha=STEP).sub_(u[..., :-1, :], alpha=STEP)
        torch.mul(q[0], q[0], out=n).addcmul_(q[1], q[1])
        if coupled:
            for c in range(1, n.shape[-3]):
                magnitude.add_(n.narrow(-3, c, 1))
        torch.maximum(magnitude.sqrt_(), floor, out=magnitude)
        torch.div(weight, magnitude, out=magnitude)
        q.mul_(magnitude)
        u.copy_(f)
        _subtract_adjoint(u, q)


def _subtract_adjoint(u: Tensor, q: Tensor) -> Tensor:
    """u -= D^T q, in place."""
    u.add_(q[0]).add_(q[1])
    u[..., 1:].sub_(q[0][..., :-1])
    u[..., 1:, :].sub_(q[1][..., :-1, :])
    return u


def tv_gap(u: Tensor, q: Tensor, weight: float | Tensor, *, coupled: bool = False) -> float:
    """Duality gap of (u, q) from `tv_prox`: weight TV(u) - <D u, q> >= 1/2 |u - u*|^2, with u* the exact solution.

    A certificate: it needs no reference solution. Computed in float64.
    """
    u64, q64 = u.double(), q.double()
    w = torch.as_tensor(weight, dtype=torch.float64, device=u.device)
    d = differences(u64)
    squared = d.square().sum(0)
    magnitude = squared.sum(-3, keepdim=True).sqrt() if coupled else squared.sqrt()
    return float((w * magnitude).sum() - (d * q64).sum())


class TVDenoiser:
    """`f(x, k) -> x` for the solvers: TV prox with its dual and workspace kept from one iteration to the next.

    One denoiser serves one run of a solver: make a new one for each. It overwrites its argument and returns it.

    Args:
        weight: of TV in units of x, a number or a tensor that broadcasts against (..., C, 1, 1).
        num_iters: dual steps a call; with a warm start 3 suffice.
        coupled: see `tv_prox`.
        start, decay: the weight of call k is weight * max(1, start * decay^k): continuation from a large weight down.

    Raises:
        ValueError: negative weight, or one for each band where coupled.
    """

    def __init__(
        self,
        weight: float | Tensor,
        *,
        num_iters: int = 3,
        coupled: bool = False,
        start: float = 1.0,
        decay: float = 0.9,
    ) -> None:
        self._weight, self._num_iters, self._coupled = _checked_weight(weight, coupled), num_iters, coupled
        self._start, self._decay = start, decay
        self._dual: Tensor | None = None
        self._workspace: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor, k: int) -> Tensor:
        if self._dual is None:
            self._dual = x.new_zeros((2, *x.shape))
            if self._coupled or not compiled.usable(x):
                self._workspace = (torch.empty_like(x), torch.empty_like(x))
        weight = self._weight.to(x) * max(1.0, self._start * self._decay**k)
        tv_prox_(x, weight, self._dual, num_iters=self._num_iters, coupled=self._coupled, workspace=self._workspace)
        return x
