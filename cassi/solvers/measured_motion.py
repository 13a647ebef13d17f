"""How a scene has moved between two snapshots, from the second snapshot itself and a cube of the scene at the first.

A reconstruction of either snapshot bears its mask's traces, which stand still while the scene moves; the snapshot
does not. So the motion that two reconstructions show is a start only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cassi.kernels.linear import conjugate_gradients
from cassi.optics.protocol import Camera
from cassi.priors.motion import blurred, carried

SPACING = 8  # of the nodes between which the motion is interpolated [pixel]
SMOOTH, SMALL = 0.24, 1e-3  # lambda and mu, relative to the mean of the diagonal of J^T w J
STEPS = 3
INNER = 25  # iterations of conjugate gradients for a step
NEAR = 2.0  # over which misfits are averaged, standard deviation [pixel]


def measured_motion(A: Camera, y: Tensor, x: Tensor, v: Tensor, variance: Tensor) -> Tensor:
    """The motion v with which a cube explains a snapshot of the scene after it has moved, by Gauss and Newton's steps.

        r = y - Phi x(p + v),    J d = Phi sum_k (d_k x)(p + v) (U d)_k
        d = (J^T w J + lambda D^T D + mu)^-1 J^T w r,    v <- v + U d,    w = 1 / (variance + <r^2>)

    d_k x is the derivative of x along axis k, U interpolates between nodes, D takes differences of neighboring nodes,
    and <r^2> is the misfit nearby: where something has come into sight, the snapshot says little of the motion.

    y is like its variance (H, W'), x (C, H, W), v (2, H, W), down and to the right [pixel]. No step moves a pixel by
    more than 1.
    """
    rows, columns = (_hats(n, x) for n in v.shape[-2:])

    def spread(d: Tensor) -> Tensor:
        return rows @ d @ columns.T

    seen = A.gram_diag().sum() / x.numel()  # mean square of the mask
    for _ in range(STEPS):
        down, right = (carried(g, v) for g in torch.gradient(x, dim=(-2, -1)))
        r = y - A.forward(carried(x, v))
        w = 1 / (variance + blurred(r.square()[None], NEAR)[0]).clamp(min=torch.finfo(r.dtype).tiny)

        def transposed(q: Tensor, down: Tensor = down, right: Tensor = right) -> Tensor:
            back = A.adjoint(q)
            return rows.T @ torch.stack([(down * back).sum(0), (right * back).sum(0)]) @ columns

        nodes = rows.shape[1] * columns.shape[1]
        scale = seen * w.mean() * (down.square().sum() + right.square().sum()) / (2 * nodes)

        def normal(d: Tensor, down: Tensor = down, right: Tensor = right, w: Tensor = w, s: Tensor = scale) -> Tensor:
            u = spread(d)
            return transposed(w * A.forward(down * u[0] + right * u[1])) + s * (SMOOTH * _roughness(d) + SMALL * d)

        step = spread(conjugate_gradients(normal, transposed(w * r), num_iters=INNER, tol=1e-3))
        v = v + step / step.norm(dim=0).clamp(min=1)
    return v


def _hats(length: int, like: Tensor) -> Tensor:
    """(length, nodes): linear interpolation between nodes at the ends and about `SPACING` apart."""
    nodes = max(2, length // SPACING + 1)
    place = torch.linspace(0, nodes - 1, length, dtype=like.dtype, device=like.device)[:, None]
    return (1 - (place - torch.arange(nodes, dtype=like.dtype, device=like.device)).abs()).clamp(min=0)


def _roughness(d: Tensor) -> Tensor:
    """D^T D d, of each of the images (2, n, m)."""
    out = torch.zeros_like(d)
    for axis in (-2, -1):
        change = d.diff(dim=axis)
        out.narrow(axis, 1, change.shape[axis]).add_(change)
        out.narrow(axis, 0, change.shape[axis]).sub_(change)
    return out
