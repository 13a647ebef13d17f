"""A mask that is wrong element by element, learned from one simulated capture, and told from texture of its scene."""

import numpy as np
import pytest
import torch
from scipy import ndimage
from test_self_calibration_elements_of_several import SHIFTS, SIZE, capture, picture

from cassi.optics.single_disperser import CASSI
from cassi.self_calibration.elements_of_one import learn_from_one
from cassi.simulation.camera import random_mask


def test_an_error_of_the_elements_is_corrected():
    rng = np.random.default_rng(0)
    given = rng.random((SIZE, SIZE)).astype(np.float32)
    true = np.clip(given + 0.1 * rng.standard_normal(given.shape), 0, None).astype(np.float32)
    A = CASSI(torch.from_numpy(given), SHIFTS)
    found = learn_from_one(A, capture(true, 1))
    assert found.accepted and found.sure > 2 and 0.02 < found.left < 0.15
    assert (true - given - found.error.numpy()).std() < 0.9 * (true - given).std()
    assert found.errors[0][1] < found.errors[0][0]
    # held-out pixels take no part: whatever they hold, the correction is the same, up to their part in the brightness
    again = learn_from_one(A, 7 * capture(true, 1))
    torch.testing.assert_close(again.error, found.error, atol=5e-3, rtol=0)


@pytest.mark.parametrize("texture", [0.0, 0.05])
def test_a_mask_that_is_right_is_left_alone(texture):
    """Also where the scene is as fine as its mask: texture that all bands share is no error where the mask is open."""
    generator = torch.Generator().manual_seed(0)
    mask = random_mask(SIZE, SIZE, kind="binary", generator=generator)
    fine = torch.from_numpy(ndimage.gaussian_filter(np.random.default_rng(0).standard_normal((SIZE, SIZE)), 1))
    fine = (1 + texture * fine / fine.std()).float()
    light = CASSI(mask, SHIFTS).forward(picture(1, (SIZE, SIZE)) * fine)
    y = torch.poisson(5000 * light, generator=generator) / 5000
    found = learn_from_one(CASSI(mask, SHIFTS), y)
    assert not found.accepted and found.reason
