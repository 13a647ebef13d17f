"""Matrices given as functions: conjugate gradients, power iteration, derivatives."""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.autograd import forward_ad

Matrix = Callable[[Tensor], Tensor]


def conjugate_gradient_steps(
    M: Matrix, b: Tensor, *, inverse: Tensor | None = None, axes: int | None = None
) -> Iterator[tuple[Tensor, float]]:
    """The iterates of preconditioned conjugate gradients for M x = b, starting with 0, without end.

        q = M p,   alpha = <r, z> / <p, q>,   x += alpha p,   r -= alpha q,   z = P r,   p = z + beta p,
        beta = <r, z> / <r, z>_before

    Saad, "Iterative Methods for Sparse Linear Systems" (2003), algorithm 9.1. M is symmetric, b is in its
    range, and the diagonal P (`inverse`) approximates M^+. The last `axes` axes of b form one system; axes before them
    are a batch.

    Yields:
        x, in a buffer that the next step overwrites, and |b - M x| / |b|, the largest in the batch (0 for b = 0).
    """
    dims = tuple(range(-(b.ndim if axes is None else axes), 0))

    def dot(u: Tensor, v: Tensor) -> Tensor:
        return (u * v).sum(dims, keepdim=True)

    def length(u: Tensor) -> Tensor:  # squares overflow float32
        norm: Tensor = torch.linalg.vector_norm(u, dim=dims, keepdim=True, dtype=torch.float64)
        return norm

    x, r = torch.zeros_like(b), b.clone()
    z = r.clone() if inverse is None else r * inverse
    p, rz, scale = z.clone(), dot(r, z), length(b)
    scale = torch.where(scale > 0, scale, 1)
    while True:
        yield x, float((length(r) / scale).max()) if b.numel() else 0.0
        q = M(p)
        alpha = _quotient(rz, dot(p, q))
        x.addcmul_(p, alpha)
        r.addcmul_(q, alpha, value=-1)
        z.copy_(r) if inverse is None else torch.mul(r, inverse, out=z)
        rz_old, rz = rz, dot(r, z)
        p.mul_(_quotient(rz, rz_old)).add_(z)


def conjugate_gradients(
    M: Matrix,
    b: Tensor,
    *,
    inverse: Tensor | None = None,
    axes: int | None = None,
    num_iters: int = 100,
    tol: float = 1e-6,
) -> Tensor:
    """`conjugate_gradient_steps` from 0 until |b - M x| / |b| < tol, at most `num_iters` steps; NaN is an error."""
    for k, step in enumerate(conjugate_gradient_steps(M, b, inverse=inverse, axes=axes)):
        x, residual = step
        if not math.isfinite(residual):
            raise FloatingPointError(
                f"conjugate gradients met NaN or Inf at iteration {k}; give such pixels weight 0 and the value 0"
            )
        if residual < tol or k == num_iters:
            break
    return x


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b = 0: that member of the batch has converged exactly."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1), 0)


def largest_eigenvalue(M: Matrix, start: Tensor, *, tol: float = 1e-5, num_iters: int = 200) -> float:
    """Largest eigenvalue of M, symmetric and positive semi-definite, by power iteration; approached from below.

    `start` must not be orthogonal to the eigenvector. Stops when the relative change of the value falls below `tol`.
    """
    p, value = M(start / start.norm()), 0.0
    for _ in range(num_iters):
        length = float(p.norm())
        if length == 0 or abs(length - value) <= tol * length:
            break
        value, p = length, M(p / length)
    return length


def is_tracked(*tensors: Tensor | None) -> bool:
    """Whether a derivative or a transform of `torch.func` follows one of these tensors: no kernel may take it then."""
    given = [t for t in tensors if t is not None]
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        return True
    if torch.compiler.is_compiling():
        return False
    if any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in given):  # by vmap, grad, vjp or jvp
        return True
    forwards = forward_ad._current_level >= 0
    return forwards and any(forward_ad.unpack_dual(t).tangent is not None for t in given)  # type: ignore[no-untyped-call]


def linear_map(v: Tensor, function: Matrix, adjoint: Matrix) -> Tensor:
    """function(v), linear in v, under autograd and `torch.func`: its derivative is `adjoint`, and that of this
    `function`, which both take leading axes."""
    if not is_tracked(v):
        return function(v)
    apply: Callable[..., Tensor] = _LinearMap.apply
    return apply(v, function, adjoint)


class _LinearMap(torch.autograd.Function):
    @staticmethod
    def forward(v: Tensor, function: Matrix, adjoint: Matrix) -> Tensor:
        return function(v)

    @staticmethod
    def setup_context(ctx, inputs: tuple[Tensor, Matrix, Matrix], output: Tensor) -> None:  # type: ignore[no-untyped-def]
        ctx.pair = inputs[1:]

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        function, adjoint = ctx.pair
        return linear_map(grad, adjoint, function), None, None

    @staticmethod
    def jvp(ctx, tangent: Tensor, *_: None) -> Tensor:  # type: ignore[no-untyped-def]
        return linear_map(tangent, *ctx.pair)

    @staticmethod
    def vmap(info, in_dims, v: Tensor, function: Matrix, adjoint: Matrix) -> tuple[Tensor, int]:  # type: ignore[no-untyped-def]
        return linear_map(v.movedim(in_dims[0], 0), function, adjoint), 0
