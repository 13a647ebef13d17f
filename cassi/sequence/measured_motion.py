"""Motion of a scene between two snapshots, from the second snapshot and a cube of the scene at the first.

Reconstructions carry traces of the mask, which stand still while the scene moves. The motion between two
reconstructions is therefore only a start; the snapshot itself decides.
"""

import torch
from torch import Tensor

from cassi.kernels.linear import conjugate_gradients
from cassi.kernels.smoothing import gaussian_blur
from cassi.optics.protocol import Camera
from cassi.sequence.motion import warp

SPACING = 8  # between the nodes of the interpolated motion [pixel]
SMOOTH, SMALL = 0.24, 1e-3  # lambda and mu, relative to the mean of the diagonal of J^T w J
STEPS = 3
CG_ITERS = 25  # per step
MISFIT_WIDTH = 2.0  # standard deviation of the window over which squared misfits are averaged [pixel]


def estimate_motion(A: Camera, y: Tensor, x: Tensor, v: Tensor, variance: Tensor) -> Tensor:
    """Estimate the motion v with which a cube explains a later snapshot, by Gauss-Newton steps.

        r = y - Phi x(p + v),    J d = Phi sum_k (d_k x)(p + v) (U d)_k
        d = (J^T w J + lambda D^T D + mu)^-1 J^T w r,    v <- v + U d,    w = 1 / (variance + <r^2>)

    d_k x is the derivative of x along axis k, U interpolates between nodes, D takes differences of neighboring nodes,
    and <r^2> is a local mean: where something new has appeared, the snapshot says little about the motion.

    y and its variance are (H, W'), x is (C, H, W), and v is (2, H, W), down and to the right [pixel]. No step moves a
    pixel by more than 1.
    """
    rows, columns = (_hats(n, x) for n in v.shape[-2:])

    def interpolate(d: Tensor) -> Tensor:
        return rows @ d @ columns.T

    power = A.gram_diag().sum() / x.numel()  # mean square of the mask
    for _ in range(STEPS):
        down, right = (warp(g, v) for g in torch.gradient(x, dim=(-2, -1)))
        r = y - A.forward(warp(x, v))
        w = 1 / (variance + gaussian_blur(r.square()[None], MISFIT_WIDTH)[0]).clamp(min=torch.finfo(r.dtype).tiny)

        def transpose(q: Tensor, down: Tensor = down, right: Tensor = right) -> Tensor:
            back = A.adjoint(q)
            return rows.T @ torch.stack([(down * back).sum(0), (right * back).sum(0)]) @ columns

        nodes = rows.shape[1] * columns.shape[1]
        scale = power * w.mean() * (down.square().sum() + right.square().sum()) / (2 * nodes)

        def normal(d: Tensor, down: Tensor = down, right: Tensor = right, w: Tensor = w, s: Tensor = scale) -> Tensor:
            u = interpolate(d)
            return transpose(w * A.forward(down * u[0] + right * u[1])) + s * (SMOOTH * _roughness(d) + SMALL * d)

        step = interpolate(conjugate_gradients(normal, transpose(w * r), num_iters=CG_ITERS, tol=1e-3))
        v = v + step / step.norm(dim=0).clamp(min=1)
    return v


def _hats(length: int, like: Tensor) -> Tensor:
    """(length, nodes): linear interpolation between nodes about `SPACING` apart, the outer ones at the ends."""
    nodes = max(2, length // SPACING + 1)
    position = torch.linspace(0, nodes - 1, length, dtype=like.dtype, device=like.device)[:, None]
    return (1 - (position - torch.arange(nodes, dtype=like.dtype, device=like.device)).abs()).clamp(min=0)


def _roughness(d: Tensor) -> Tensor:
    """D^T D d for each of the images (2, n, m)."""
    out = torch.zeros_like(d)
    for axis in (-2, -1):
        change = d.diff(dim=axis)
        out.narrow(axis, 1, change.shape[axis]).add_(change)
        out.narrow(axis, 0, change.shape[axis]).sub_(change)
    return out
