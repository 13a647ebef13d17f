"""Blurred images against SciPy's."""

import math

import numpy as np
import pytest
import torch
from scipy import ndimage

from cassi.kernels.images import gaussian_blur


@pytest.mark.parametrize(("border", "mode"), [("reflect", "mirror"), ("constant", "constant")])
@pytest.mark.parametrize(("shape", "sigma"), [((3, 20, 31), 1.0), ((1, 40, 9), 2.6), ((2, 5, 60), 4.0)])
def test_a_blur_is_that_of_scipy(border, mode, shape, sigma):
    """Also where the Gaussian is wider than the image, which then ends it."""
    images = np.random.default_rng(0).random(shape)
    radius = min(math.ceil(3 * sigma), min(shape[1:]) - 1)
    expected = [ndimage.gaussian_filter(image, sigma, mode=mode, radius=radius) for image in images]
    found = gaussian_blur(torch.from_numpy(images), sigma, border)
    assert found.is_contiguous()
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
