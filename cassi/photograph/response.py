"""Response, tone curve and noise of a photograph, fitted to a known scene."""

import math
from collections.abc import Callable

import numpy as np
import torch
from scipy.interpolate import BSpline
from scipy.ndimage import convolve, gaussian_filter, uniform_filter
from scipy.optimize import nnls
from torch import Tensor

TRUST = 0.02  # weight of the expected shape relative to the fit to the scene, in units of the mean power of the bands
ROUGHNESS = 0.3  # weight of the second difference of the curve, likewise
TONE_PIECES = 5  # of a tone curve, each cubic
BLUR = 3.0  # Gaussian width for comparing values, as a first cube is less sharp than the photograph [pixel]
TONE_ROUGHNESS = 1e-3  # weight of the second difference of its coefficients, relative to their mean power
NOISE_BLOCK = 7  # side of the blocks for estimating noise [pixel]
BINS = 12  # of brightness
FLAT = 0.1  # share of the blocks of a brightness that count as without detail
# For white noise, the lowest standard deviations in NOISE_BLOCK x NOISE_BLOCK pixels are this share of the true one.
LOWEST = 0.69
ROUNDING = 1e-6  # of the brightest value; smaller noise counts as none


def fit_gain(R: Tensor, cube: Tensor, s: Tensor, w: Tensor) -> Tensor:
    """R with each row times g_k = sum_ij s_k / sum_ij R_k x, over the usable pixels.

    Unlike a regression, this ratio of sums is not biased by errors of the cube that cancel over the scene.
    """
    expected = torch.einsum("kc,chw->khw", R, cube) * w
    gain = (s * w).sum((1, 2)) / expected.sum((1, 2)).clamp(min=1e-30)
    return R * gain.clamp(min=0)[:, None]


def fit_response(R: Tensor, cube: Tensor, s: Tensor, w: Tensor) -> Tensor:
    """The response that explains a photograph of a known scene; smooth, nonnegative and close to the expected one.

        min_{r >= 0}  |w (s_k - r x)|^2 / |w x|^2 + mu |D_2 r|^2 + nu |r - g R_k|^2,    g from `fit_gain`

    with D_2 the second difference over the bands. Errors of the cube are noise in x; nu keeps them from distorting r,
    and `fit_gain` determines its size.

    R is (K, C), x (C, H, W), the photograph on the grid of the scene (K, H, W), and w (H, W), 0 where unusable.
    """
    near = fit_gain(R, cube, s, w).double().cpu().numpy()
    x = (cube * w).flatten(1).double()
    power = max(float(x.square().mean(1).sum()) * x.shape[1] / len(x), 1e-300)
    gram = (x @ x.T / power).cpu().numpy()
    fit = ((s * w).flatten(1).double() @ x.T / power).cpu().numpy()
    C = len(gram)
    second = np.diff(np.eye(C), 2, axis=0)
    normal = gram + ROUGHNESS * (second.T @ second) + TRUST * np.eye(C)
    root = np.linalg.cholesky(normal).T
    rows = [nnls(root, np.linalg.solve(root.T, b + TRUST * n))[0] for b, n in zip(fit, near, strict=True)]
    return fit_gain(torch.from_numpy(np.stack(rows)).to(cube), cube, s, w)


def misfit(R: Tensor, cube: Tensor, s: Tensor, w: Tensor) -> float:
    """|G w (s - R x)| / |G w s| with a Gaussian G, because a first cube lacks the detail of the photograph.

    Infinite if no pixel is usable.
    """
    expected = torch.einsum("kc,chw->khw", R, cube)
    rest, whole = (
        float(np.linalg.norm(gaussian_filter((image * w).double().cpu().numpy(), (0, BLUR, BLUR))))
        for image in (s - expected, s)
    )
    return rest / whole if whole else math.inf


def fit_tone_curve(s: Tensor, w: Tensor, expected: Tensor) -> Callable[[Tensor], Tensor]:
    """The curve from values of a photograph in [0, 1] to light with which it best agrees with the expected one.

        min_{a >= 0}  sum_kij w ((<T(s)> - <e>) / (<e> + 0.1 mean <e>))^2  +  mu |D_2 a|^2,    <v> = G(w v) / G(w)

        T(v) = sum_k a_k I_k(sqrt(v))

    with a Gaussian G, because the first cube is correct only in local averages, and I_k rising from 0 to 1, integrals
    of B-splines (Ramsay, "Monotone regression splines in action", Statistical Science 3, 425 (1988)): linear and
    display values are close to such curves. s and e = R x are (K, H, W); w is (H, W), 1 where the photograph is usable,
    else 0.
    """
    known = w.double().cpu().numpy()
    share = gaussian_filter(known, BLUR)

    def local(images: np.ndarray) -> np.ndarray:
        blurred: np.ndarray = gaussian_filter(images * known, (0, BLUR, BLUR)) / np.maximum(share, 0.05)
        return blurred

    e = local(expected.double().cpu().numpy())
    weight = known / np.maximum(e + 0.1 * e.mean(), 1e-30)  # w is 0 or 1 and thus its own square root
    basis = _rising_curves(s.double().cpu().numpy())
    rows = np.stack([(local(image) * weight).ravel() for image in basis])
    gram = rows @ rows.T
    power = max(float(np.trace(gram)) / len(gram), 1e-300)
    second = np.diff(np.eye(len(gram)), 2, axis=0)
    root = np.linalg.cholesky(gram + power * (TONE_ROUGHNESS * second.T @ second + 1e-6 * np.eye(len(gram)))).T
    a, _ = nnls(root, np.linalg.solve(root.T, rows @ (e * weight).ravel()))
    return lambda v: torch.from_numpy(np.tensordot(a, _rising_curves(v.double().cpu().numpy()), 1)).to(v)


def _rising_curves(values: np.ndarray) -> np.ndarray:
    """I_k(sqrt(v)), (n, *v.shape)."""
    knots = np.concatenate([[0.0, 0.0], np.linspace(0, 1, TONE_PIECES + 1), [1.0, 1.0]])
    integral = BSpline(knots, np.eye(len(knots) - 3), 2).antiderivative()
    curves: np.ndarray = integral(np.sqrt(np.clip(values, 0, 1))) / integral(1.0)
    return np.moveaxis(curves, -1, 0)


def estimate_noise(picture: np.ndarray) -> tuple[float, float]:
    """alpha and beta of the variance alpha p + beta of one channel p (h, w).

    The mixed second difference [1 -2 1] x [1 -2 1] / 6 preserves the variance of white noise and little else
    (Immerkaer, "Fast noise variance estimation", CVIU 64, 300 (1996)). Among blocks of equal brightness, those with the
    smallest values have the least detail; a line is fitted to them. (0, 0) if they have no noise.
    """
    difference = np.outer([1, -2, 1], [1, -2, 1]) / 6
    power = uniform_filter(convolve(picture, difference) ** 2, NOISE_BLOCK)[::NOISE_BLOCK, ::NOISE_BLOCK].ravel()
    light = uniform_filter(picture, NOISE_BLOCK)[::NOISE_BLOCK, ::NOISE_BLOCK].ravel()
    order = np.argsort(light, kind="stable")
    rows, values = [], []
    for part in np.array_split(order, min(BINS, max(1, len(order) // 10))):
        lowest = part[power[part] <= np.quantile(power[part], FLAT)]
        rows.append([max(float(light[lowest].mean()), 0.0), 1.0])
        values.append(float(power[lowest].mean()) / LOWEST**2)
    if not max(values) > (ROUNDING * float(np.abs(picture).max())) ** 2:  # few bits, or rendered
        return 0.0, 0.0
    # relative errors, so that dark values count
    weight = 1 / np.maximum(np.array(values), 1e-12 * max(values))
    (alpha, beta), _ = nnls(np.array(rows) * weight[:, None], np.array(values) * weight)
    return float(alpha), float(beta)
