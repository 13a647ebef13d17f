"""Light of one color, from a laser, an LED or a lamp with lines: a spectrum that no smooth basis can hold.

What smooth spectra leave of such light in the snapshot still carries the mask, as its band sees it:

    v_c = G (Phi_c^T (y - Phi x)),        Phi_c the camera for band c alone, G a Gaussian

is a matched filter. It is of like size in all bands where the residual is noise or the error of a camera, and stands
out in a band that is brighter than its neighbors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.choice.candidates import CANDIDATE_ITERS, SCENE_COMPONENTS
from cassi.choice.held_out import Split
from cassi.choice.problem import Problem
from cassi.kernels.covariance import covariance_sum
from cassi.priors.spectral_basis import principal_basis, smooth_basis

NARROW = f"narrow-{SCENE_COMPONENTS}"
# RMS of v_c in units of its median over bands nearby, from which light of one color is looked for: at most 1.8 on 13
# measured scenes with and without noise and five of another kind, 3.5 and more for a spot and for LED light.
STANDS_OUT = 2.5
NEARBY = 4  # bands on either side
WIDTH = 3.0  # standard deviation of G [pixel]
NOISE = 1e-3  # standard deviation of y for the first cube, in units of its mean


def narrowness(split: Split, x: Tensor) -> float:
    """How far the residual stands out in one band, seen through the mask: max_c RMS(v_c) / median near c of RMS(v)."""
    residual = split.y_train - split.A_train.forward(x)
    v = _blurred(split.A_train.adjoint(residual))
    rms = v.square().mean((1, 2)).sqrt()
    near = [rms[max(0, c - NEARBY) : c + NEARBY + 1].median() for c in range(len(rms))]
    return float((rms / torch.stack(near).clamp(min=torch.finfo(rms.dtype).tiny)).max())


def narrow_basis(split: Split, axis: int | Sequence[float] | np.ndarray, brightness: float | None) -> Tensor:
    """The strongest eigenvectors of the spectral covariance of a first cube with all bands free, (K, C).

    Args:
        split: the snapshot.
        axis: bands or their wavelengths, as for `smooth_basis`.
        brightness: see `Problem`.
    """
    y, bands = split.y_train, split.A_train.cube_shape[0]
    variance = torch.full_like(y, (NOISE * float(y.mean())) ** 2)
    problem = Problem(smooth_basis(axis, bands), variance, brightness)
    result, _ = problem.solve(split.A_train, y, CANDIDATE_ITERS, tol=0.0)
    return principal_basis(covariance_sum(result.x.clamp(min=0)), SCENE_COMPONENTS)


def _blurred(bands: Tensor) -> Tensor:
    """G on each band (C, H, W); zero beyond the frame."""
    reach = int(3 * WIDTH)
    t = torch.arange(-reach, reach + 1, dtype=bands.dtype, device=bands.device) / WIDTH
    g = torch.exp(-t.square() / 2)
    g /= g.sum()
    rows = F.conv2d(bands[:, None], g.view(1, 1, -1, 1), padding=(reach, 0))
    return F.conv2d(rows, g.view(1, 1, 1, -1), padding=(0, reach))[:, 0]
