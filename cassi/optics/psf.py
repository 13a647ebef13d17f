"""Gaussians: a point-spread function and a local mean."""

import math

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor


def gaussian_psf(sigma: float) -> Tensor:
    """A Gaussian averaged over each pixel, for `BlurredCASSI`: odd number of taps, float64, sum 1.

        p[t] = (erf((t + 1/2) / (sqrt(2) sigma)) - erf((t - 1/2) / (sqrt(2) sigma))) / 2,   |t| <= 4 sigma

    sigma > 0 is the standard deviation [pixel].

    Example:
        >>> gaussian_psf(0.25).round(decimals=4)
        tensor([0.0228, 0.9545, 0.0228], dtype=torch.float64)
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be positive, got {sigma}")
    half = math.ceil(4 * sigma)
    edge = torch.arange(2 * half + 2, dtype=torch.float64, device="cpu") - half - 0.5
    edges = torch.erf(edge / (math.sqrt(2) * sigma))
    psf = edges.diff()
    return psf / psf.sum()


def local_mean(image: np.ndarray, known: np.ndarray, width: float) -> np.ndarray:
    """Gaussian mean around each pixel, with standard deviation `width`, over the pixels where `known` is 1, not 0."""
    mean: np.ndarray = ndimage.gaussian_filter(image * known, width)
    return np.asarray(mean / np.maximum(ndimage.gaussian_filter(known, width), 1e-6))
