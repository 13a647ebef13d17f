"""The noise of a photograph, told from its own smooth parts."""

from __future__ import annotations

import numpy as np
from scipy.ndimage import convolve, uniform_filter
from scipy.optimize import nnls

BLOCK = 7  # side of the parts that are judged [pixel]
BINS = 12  # of brightness
SMOOTH = 0.1  # share of the parts of a brightness that are taken to have no detail
# Of white noise, the standard deviation in BLOCK x BLOCK pixels is this share of the true one where it is lowest.
LOWEST = 0.69
ROUNDING = 1e-6  # of the brightest value; noise below is none


def noise_of(picture: np.ndarray) -> tuple[float, float]:
    """alpha and beta of the variance alpha p + beta of one channel p (h, w).

    The mixed second difference [1 -2 1] x [1 -2 1] / 6 keeps the variance of white noise and little else (Immerkaer,
    "Fast noise variance estimation", CVIU 64, 300 (1996)); of parts equally bright those where it is least have the
    least detail, and a line is put through them. (0, 0) where these have no noise.
    """
    difference = np.outer([1, -2, 1], [1, -2, 1]) / 6
    power = uniform_filter(convolve(picture, difference) ** 2, BLOCK)[::BLOCK, ::BLOCK].ravel()
    level = uniform_filter(picture, BLOCK)[::BLOCK, ::BLOCK].ravel()
    order = np.argsort(level, kind="stable")
    rows, values = [], []
    for part in np.array_split(order, min(BINS, max(1, len(order) // 10))):
        lowest = part[power[part] <= np.quantile(power[part], SMOOTH)]
        rows.append([max(float(level[lowest].mean()), 0.0), 1.0])
        values.append(float(power[lowest].mean()) / LOWEST**2)
    if not max(values) > (ROUNDING * float(np.abs(picture).max())) ** 2:  # values of few bits, or painted
        return 0.0, 0.0
    # relative errors count, so that the dark end is not lost
    weight = 1 / np.maximum(np.array(values), 1e-12 * max(values))
    (alpha, beta), _ = nnls(np.array(rows) * weight[:, None], np.array(values) * weight)
    return float(alpha), float(beta)
