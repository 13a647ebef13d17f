"""The spectral bases that a snapshot may be solved in, and which of them predicts held-out pixels best.

The scene's own spectra are the strongest eigenvectors of the spectral covariance of a pilot's cube: few degrees of
freedom leave less room for error.

Narrow-band light, of a laser, an LED or a lamp with lines, has a spectrum outside the span of any smooth basis. The
residual that smooth spectra leave of it still carries the mask's pattern as that band sees it, and

    v_c = G (Phi_c^T (y - Phi x)),        Phi_c the camera for band c alone, G a Gaussian

is a matched filter for it. v_c is of similar size in all bands if the residual is noise or an error of the camera, and
large in a band that is brighter than its neighbors.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cassi.evidence.fitting import Fit, fit, fit_basis
from cassi.evidence.held_out import Split
from cassi.evidence.judge import is_better
from cassi.kernels.covariance import covariance_sum
from cassi.kernels.images import gaussian_blur
from cassi.priors.spectral_basis import principal_basis, smooth_basis

SCENE_COMPONENTS = 10  # of a basis that is learned from a cube
SCENE, NARROW = f"scene-{SCENE_COMPONENTS}", f"narrow-{SCENE_COMPONENTS}"
# RMS of v_c over its median in bands nearby, above which a basis for narrow-band light is tried: at most 1.8 on 13
# measured scenes with and without noise and five of another kind, 3.5 and more for a spot and for LED light.
MIN_NARROWNESS = 2.5
NEARBY = 4  # bands on either side
WIDTH = 3.0  # standard deviation of G [pixel]


class BasisError(NamedTuple):
    """The name of a basis, and the held-out error of a short run in it; None if it was the only one."""

    basis: str
    held_out_error: float | None


def scene_basis(x: Tensor) -> Tensor:
    """The strongest spectra (K, C) of a cube (..., C, H, W), negative values counted as 0."""
    return principal_basis(covariance_sum(x.clamp(min=0)), SCENE_COMPONENTS)


def choose_basis(pilot: Fit, axis: int | Sequence[float] | np.ndarray) -> tuple[str, Tensor, tuple[BasisError, ...]]:
    """Choose the scene's spectra as a pilot shows them, or, for narrow-band light, those of a cube with all bands free.

    The latter if their short run predicts held-out pixels better by more than chance. The names and errors of both
    are returned, too; `axis` is the number of bands or their wavelengths.
    """
    split, scene = pilot.split, scene_basis(pilot.x)
    if len(fit_basis(split.A, axis)) == split.A.num_bands or narrowness(split, pilot.x) <= MIN_NARROWNESS:
        return SCENE, scene, (BasisError(SCENE, None),)
    bases = {SCENE: scene, NARROW: narrow_basis(split, axis)}
    verdicts = {name: split.verdict(fit(split, basis).x, imprint=False) for name, basis in bases.items()}
    chosen = NARROW if is_better(verdicts[NARROW], verdicts[SCENE]) else SCENE
    return chosen, bases[chosen], tuple(BasisError(name, verdict.error) for name, verdict in verdicts.items())


def narrowness(split: Split, x: Tensor) -> float:
    """How much larger the filtered residual is in one band than nearby: max_c RMS(v_c) / median near c of RMS(v)."""
    residual = split.y_train - split.A_train.forward(x)
    v = split.A_train.adjoint(residual)
    smooth = gaussian_blur(v.flatten(0, -3), WIDTH, "constant")
    rms = smooth.square().mean((1, 2)).view(-1, v.shape[-3]).mean(0).sqrt().cpu()
    near = [rms[max(0, c - NEARBY) : c + NEARBY + 1].median() for c in range(len(rms))]
    return float((rms / torch.stack(near).clamp(min=torch.finfo(rms.dtype).tiny)).max())


def narrow_basis(split: Split, axis: int | Sequence[float] | np.ndarray) -> Tensor:
    """The strongest spectra (K, C) of a cube with all bands, or their wavelengths, free."""
    return scene_basis(fit(split, smooth_basis(axis, split.A.num_bands)).x)
