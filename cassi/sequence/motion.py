"""Motion of a scene between two snapshots: optical flow of reconstructions, then as the second snapshot shows it.

Reconstructions carry traces of the mask, which stand still while the scene moves. The motion between two
reconstructions is therefore only a start; the snapshot itself decides.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.images import gaussian_blur
from cassi.kernels.linear import conjugate_gradients
from cassi.optics.protocol import Camera

WINDOW = 8.0  # standard deviation of the window within which the motion is assumed constant [pixel]
STEPS = 6  # of Gauss and Newton on each scale
MIN_SIDE = 16  # of the coarsest image [pixel]
# Of motion that a snapshot shows:
SPACING = 8  # between the nodes of the interpolated motion [pixel]
SMOOTH, SMALL = 0.24, 1e-3  # lambda and mu, relative to the mean of the diagonal of J^T w J
NEWTON_STEPS = 3
CG_ITERS = 25  # per step
MISFIT_WIDTH = 2.0  # standard deviation of the window over which squared misfits are averaged [pixel]


def optical_flow(reference: Tensor, moved: Tensor, *, window: float = WINDOW) -> Tensor:
    """The motion v with moved(p + v(p)) = reference(p), by the Lucas-Kanade iteration from coarse to fine.

        v <- v + (G * sum_k g_k g_k^T + eps)^-1 (G * sum_k g_k (reference_k - moved_k(p + v)))

    with g_k = grad moved_k(p + v), G a Gaussian window of standard deviation `window` [pixel] and k over the images
    (K, H, W). v (2, H, W) points down and to the right; it is 0 where they are flat. (Lucas & Kanade, IJCAI 1981.)
    """
    if reference.ndim != 3 or reference.shape != moved.shape:
        raise ValueError(f"both images must be (K, H, W), got {tuple(reference.shape)} and {tuple(moved.shape)}")
    scales = [(reference, moved)]
    while min(scales[-1][0].shape[-2:]) >= 2 * MIN_SIDE:
        scales.append((_halve(scales[-1][0]), _halve(scales[-1][1])))
    v = reference.new_zeros(2, *scales[-1][0].shape[-2:])
    for image, target in reversed(scales):
        if v.shape[-2:] != image.shape[-2:]:
            growth = [n / m for n, m in zip(image.shape[-2:], v.shape[-2:], strict=True)]
            v = F.interpolate(v[None], image.shape[-2:], mode="bilinear", align_corners=False)[0]
            v = v * v.new_tensor(growth).view(2, 1, 1)
        eps = 1e-3 * float(image.square().mean()) + torch.finfo(image.dtype).tiny
        for _ in range(STEPS):
            v = v + _update(image, warp(target, v), window, eps)
    return v


def _update(reference: Tensor, moved: Tensor, window: float, eps: float) -> Tensor:
    """One step, at most one pixel long."""
    gi, gj = torch.gradient(moved, dim=(-2, -1))
    misfit = reference - moved
    sums = [(gi * gi), (gi * gj), (gj * gj), (gi * misfit), (gj * misfit)]
    a, b, c, p, q = gaussian_blur(torch.stack([terms.sum(0) for terms in sums]), window)
    a, c = a + eps, c + eps
    det = a * c - b * b
    step = torch.stack([(c * p - b * q) / det, (a * q - b * p) / det])
    limited: Tensor = step / step.norm(dim=0).clamp(min=1)
    return limited


def warp(images: Tensor, v: Tensor) -> Tensor:
    """images(p + v(p)), (K, H, W), by bicubic interpolation; edge pixels are replicated."""
    height, width = v.shape[-2:]
    i = torch.arange(height, dtype=v.dtype, device=v.device)[:, None] + v[0]
    j = torch.arange(width, dtype=v.dtype, device=v.device) + v[1]
    grid = torch.stack([2 * j / max(1, width - 1) - 1, 2 * i / max(1, height - 1) - 1], dim=-1)
    return F.grid_sample(images[None], grid[None], mode="bicubic", padding_mode="border", align_corners=True)[0]


def _halve(images: Tensor) -> Tensor:
    return F.interpolate(gaussian_blur(images, 1.0)[None], scale_factor=0.5, mode="area")[0]


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
    for _ in range(NEWTON_STEPS):
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
