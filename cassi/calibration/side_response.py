"""How a photograph's channels weigh the bands of a cube: a preset, and what the scene itself says about it."""

from __future__ import annotations

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor

TRUST = 0.02  # weight of the expected shape against the fit to the scene, relative to the mean power of the bands
ROUGHNESS = 0.3  # weight of the curve's second difference, likewise


def fitted_gain(R: Tensor, cube: Tensor, s: Tensor, w: Tensor) -> Tensor:
    """R with each row times g_k = sum_ij s_k / sum_ij R_k x, where the photograph says something.

    A ratio of sums, which errors of the cube that cancel over the scene do not bend, as they do a regression.
    """
    seen = torch.einsum("kc,chw->khw", R, cube) * w
    gain = (s * w).sum((1, 2)) / seen.sum((1, 2)).clamp(min=1e-30)
    return R * gain.clamp(min=0)[:, None]


def fitted_response(R: Tensor, cube: Tensor, s: Tensor, w: Tensor) -> Tensor:
    """The response that explains a photograph of a known scene, smooth, non-negative and near what is expected.

        min_{r >= 0}  |w (s_k - r x)|^2 / |w x|^2 + mu |D_2 r|^2 + nu |r - g R_k|^2,    g from `fitted_gain`

    with D_2 the second difference over the bands. Errors of the cube are noise in x; nu keeps them from bending r, and
    its size is that of `fitted_gain`.

    Args:
        R: expected (K, C).
        cube: x (C, H, W).
        s: the photograph on the scene's grid (K, H, W).
        w: 0 where it says nothing, like one of its channels (H, W).

    Returns:
        (K, C), of the dtype and on the device of the cube.
    """
    near = fitted_gain(R, cube, s, w).double().cpu().numpy()
    x = (cube * w).flatten(1).double()
    power = float(x.square().mean(1).sum()) * x.shape[1] / len(x)
    gram = (x @ x.T / power).cpu().numpy()
    fit = ((s * w).flatten(1).double() @ x.T / power).cpu().numpy()
    C = len(gram)
    second = np.diff(np.eye(C), 2, axis=0)
    normal = gram + ROUGHNESS * (second.T @ second) + TRUST * np.eye(C)
    root = np.linalg.cholesky(normal).T
    rows = [nnls(root, np.linalg.solve(root.T, b + TRUST * n))[0] for b, n in zip(fit, near, strict=True)]
    return fitted_gain(torch.from_numpy(np.stack(rows)).to(cube), cube, s, w)


def misfit(R: Tensor, cube: Tensor, s: Tensor, w: Tensor) -> float:
    """|s - R x| / |s| where the photograph says something."""
    seen = torch.einsum("kc,chw->khw", R, cube)
    return float(((s - seen) * w).norm() / (s * w).norm().clamp(min=1e-30))
