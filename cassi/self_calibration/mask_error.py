"""What a mask's picture gets wrong, place by place: a regularized least-squares fit to residuals of snapshots.

    y = (1 + g) Phi(m) x + n,    m = m_0 + e

g is how far each detector pixel is from the usual sensitivity, which several snapshots show; of one, g = 0. e is small,
independent of the scene and, from row to row, of itself. Light passes a place (i, j) of the mask in every
band, so that an error there shows in as many detector pixels of row i as there are bands: Phi(m) x is linear in m, too,

    (d Phi x / d m) e = sum_c S_c (e x_c),

a sum of shifted images again. Several snapshots show, too, how the error differs from band to band, as optics and
diffraction make it. With the Legendre polynomials P_k of the band's position t_c, -1 to 1 over the bands,

    e_c = sum_k P_k(t_c) e_k,    k = 0, or 0 to 2,

and of scenes that are known up to their fine texture, e_k and g are the least of

    sum_n |W_n^1/2 (r_n - sum_c S_c (e_c x_nc) - g s_n)|^2 + sum_k |e_k|^2 / spread_k^2 + |g|^2 / gain_spread^2

    s_n = Phi(m_0) x_n,    r_n = y_n - s_n

over the snapshots n of one camera. W_n is the inverse variance of the noise. docs/physics.md says what separates e from
a scene's own texture, and when nothing does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.polynomial.legendre import legvander
from torch import Tensor

from cassi.choice.stages import Learned, Problem, Tv, Watch
from cassi.evidence.held_out import Split
from cassi.kernels.shift_sum import shift_back, shift_sum
from cassi.optics.psf import local_mean
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import analyse, smooth_basis, synthesise
from cassi.self_calibration.camera_model import band_positions

CG_ITERS = 20
TV = Tv(80)  # of a short reconstruction before its network
COMPONENTS = 12
FLATTEN = 0.1  # weight of the total variation that takes a cube's fine texture off, relative to its local brightness
FLATTEN_ITERS = 40
LOCAL = 8.0  # standard deviation of a cube's local brightness, and of a residual's slow part, left out [pixel]


@dataclass(frozen=True, eq=False)
class Residual:
    """What the camera leaves of one snapshot: the right side of a fit.

    Attributes:
        x: cube without fine texture, (C, H, W).
        y: the snapshot, (H, W').
        r: y - Phi(m_0) x without its slow part, (H, W').
        seen: s = Phi(m_0) x, (H, W').
        weight: one over its variance, (H, W'); 0 where a pixel takes no part.
        shifts: of the bands, whole [pixel].
    """

    x: Tensor
    y: Tensor
    r: Tensor
    seen: Tensor
    weight: Tensor
    shifts: tuple[int, ...]

    def rows(self, least: int) -> Residual:
        """Of some rows alone, evenly spread, at least as many as asked for."""
        x, y, r, seen, weight = (
            v[..., :: max(1, len(self.r) // least), :] for v in (self.x, self.y, self.r, self.seen, self.weight)
        )
        return Residual(x, y, r, seen, weight, self.shifts)

    def of_error(self, e: Tensor) -> Tensor:
        """sum_c S_c (e_c x_c), (H, W'), of e_k (K, H, W)."""
        return shift_sum(self.x, in_bands(e, len(self.x)), self.shifts)

    def back(self, r: Tensor, terms: int) -> Tensor:
        """The adjoint, sum_c P_k(t_c) x_c S_c^T r, (K, H, W)."""
        images = shift_back(r, r.new_ones(self.x.shape[-2:]), self.shifts).mul_(self.x)
        return torch.einsum("kc,chw->khw", _polynomials(terms, len(images)).to(images), images)


def _polynomials(terms: int, num_bands: int) -> Tensor:
    """P_k(t_c), (K, C)."""
    return torch.as_tensor(legvander(band_positions(num_bands), terms - 1).T)


def in_bands(e: Tensor, num_bands: int) -> Tensor:
    """The error of each band, e_c = sum_k P_k(t_c) e_k, (C, H, W); (H, W) if it is the same in all."""
    return e[0] if len(e) == 1 else torch.einsum("kc,khw->chw", _polynomials(len(e), num_bands).to(e), e)


class Errors(NamedTuple):
    """e_k (K, H, W), of the mask, and g (H, W'), by which the detector's sensitivity exceeds 1; None for 0."""

    e: Tensor
    g: Tensor | None = None

    def of(self, one: Residual) -> Tensor:
        """What they make of a residual: sum_c S_c (e_c x_c) + g s, (H, W')."""
        seen = one.of_error(self.e)
        return seen if self.g is None else seen.addcmul_(self.g, one.seen)


def fit_error(
    residuals: Sequence[Residual], spreads: Sequence[float], gain_spread: float = 0.0, *, num_iters: int = CG_ITERS
) -> Errors:
    """e_k by conjugate gradients, and g; `spreads` of each e_k, and `gain_spread`, are their standard deviations.

    For given e_k each pixel of g has a closed form,

        g = sum_n s W (r - sum_c S_c (e_c x_c)) / (sum_n s W s + 1 / gain_spread^2),

    with which it is left out of the iterations.
    """
    zero = torch.zeros((), dtype=torch.float32)
    power = sum((one.seen.square() * one.weight for one in residuals), zero) if gain_spread else zero
    precision = residuals[0].r.new_tensor(spreads).pow(-2)[:, None, None]

    def gain(images: Sequence[Tensor]) -> Tensor:
        """The g that is closest to these images (H, W'), one a snapshot."""
        pairs = zip(residuals, images, strict=True)
        return sum((one.seen * one.weight * image for one, image in pairs), zero) / (power + gain_spread**-2)

    def back(images: Sequence[Tensor], start: Tensor) -> Tensor:
        """The adjoint of what g leaves of the images, added to `start`."""
        if gain_spread:
            g = gain(images)
            images = [image - g * one.seen for one, image in zip(residuals, images, strict=True)]
        pairs = zip(residuals, images, strict=True)
        return sum((one.back(image * one.weight, len(spreads)) for one, image in pairs), start)

    rest = back([one.r for one in residuals], zero)
    e, p, rr, tiny = torch.zeros_like(rest), rest.clone(), rest.square().sum(), torch.finfo(rest.dtype).tiny
    for _ in range(num_iters):
        q = back([one.of_error(p) for one in residuals], p * precision)
        length = rr / (p * q).sum().clamp(min=tiny)
        e.add_(p * length)
        rest.sub_(q * length)
        before, rr = rr, rest.square().sum()
        p.mul_(rr / before.clamp(min=tiny)).add_(rest)
    return Errors(e, gain([one.r - one.of_error(e) for one in residuals]) if gain_spread else None)


def short_reconstruction(split: Split, prior: LearnedPrior | None) -> Tensor:
    """A cube >= 0 by total variation and, where there is one, a network: about a quarter of the default's work.

    The snapshot is of brightness 1, and its noise known.
    """
    A, y, variance = split.A_train, split.y_train, cast(Tensor, split.variance)
    K = COMPONENTS if prior is None else prior.size.components
    problem = Problem(smooth_basis(A.num_bands, min(K, A.num_bands)).to(y), variance, 1.0, learned=prior)
    state = TV.run(A, y, problem)
    return (state if prior is None else Learned().run(A, y, problem, state, Watch())).x.clamp(min=0)


def without_texture(x: Tensor) -> Tensor:
    """A cube (C, H, W) whose fine texture is taken off, edges left: what noise in proportion to the light would be.

        argmin_q  1/2 |q - z / b|^2 + 0.1 sum_p |(D q)_p|_2

    z are coefficients of smooth spectra and b the local brightness; the norm at p is over both directions and all
    coefficients, as edges lie at one place in all bands (Bresson & Chan, Inverse Probl. Imaging 2, 455 (2008)).
    """
    B = smooth_basis(len(x), min(COMPONENTS, len(x))).to(x)
    brightness = smooth_part(x.mean(0))
    brightness = brightness + 0.02 * brightness.mean()
    q = analyse(x / brightness, B)
    scale = q[0].mean() / math.sqrt(len(x))  # of a white scene of local brightness 1 it is 1
    weight = FLATTEN * scale * math.sqrt(len(x))
    dual, flat = q.new_zeros((2, *q.shape)), q.clone()
    step = 1 / 8  # over the greatest eigenvalue of D D^T
    (right, down), squares, magnitude = dual, torch.empty_like(dual), torch.empty_like(q[0])
    for _ in range(FLATTEN_ITERS):
        right[..., :-1].add_(flat[..., 1:], alpha=step).sub_(flat[..., :-1], alpha=step)
        down[..., :-1, :].add_(flat[..., 1:, :], alpha=step).sub_(flat[..., :-1, :], alpha=step)
        torch.sum(torch.square(dual, out=squares), (0, 1), out=magnitude).sqrt_().clamp_(min=weight)
        dual.mul_(torch.div(weight, magnitude, out=magnitude))
        torch.add(q, right, out=flat).add_(down)
        flat[..., 1:].sub_(right[..., :-1])
        flat[..., 1:, :].sub_(down[..., :-1, :])
    return synthesise(flat, B).clamp_(min=0).mul_(brightness)


def smooth_part(image: Tensor, known: Tensor | None = None, width: float = LOCAL) -> Tensor:
    """The image (H, W) blurred over `width` pixels, of the pixels that are `known`."""
    counts = np.ones(image.shape) if known is None else known.cpu().numpy().astype(float)
    return torch.as_tensor(local_mean(image.cpu().numpy().astype(float), counts, width)).to(image)
