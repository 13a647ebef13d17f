"""The mask's imprint against cubes that carry a known share of its pattern."""

import numpy as np
import pytest
import torch
from messages import refused
from scipy import ndimage

from cassi import CASSI, MultiShot
from cassi.optics.imprint import imprint, imprint_on


def noise(seed, shape):
    return np.random.default_rng(seed).random(shape)


def test_a_cube_that_is_the_mask_is_stamped_wholly_and_a_scene_that_knows_nothing_of_it_is_clean():
    """25 moves are tried: of N(0, 1 / n) correlations the largest stays below 4 / sqrt(n). Equal parts of mask and
    independent noise of one variance correlate by 1 / sqrt(2)."""
    mask = noise(0, (96, 96))
    assert imprint(np.stack([1 + 0.1 * mask] * 2), mask) == pytest.approx(1, abs=0.02)
    assert imprint(1 + 0.1 * noise(1, (6, 96, 96)), mask) < 4 / 96
    mask = noise(0, (128, 128))
    assert imprint(1 + 0.1 * (mask + noise(1, (4, 128, 128))), mask) == pytest.approx(0.5**0.5, abs=0.03)


def test_brightness_and_small_moves_do_not_matter():
    mask = noise(0, (64, 64))
    cube = np.stack([1 + 0.1 * mask] * 2)
    for unit in (1e-12, 1000):
        assert imprint(unit * cube, mask) == pytest.approx(imprint(cube, mask), rel=1e-3)
    aside = np.stack([1 + 0.1 * np.roll(mask, 1, 1)] * 2)
    assert imprint(aside, mask) > 0.9 > 0.2 > imprint(aside, mask, moves=(0.0,))
    assert imprint(np.stack([1 + 0.1 * ndimage.shift(mask, (1, -1), order=1, mode="nearest")] * 2), mask) > 0.9
    refused(imprint, np.ones((2, 8, 8)), np.ones((8, 9)), error=ValueError)


def test_the_mask_of_a_camera_on_its_cube():
    """Of several shots that whose mask shows; a camera without a mask, or with a small one, tells nothing."""
    shown, other = noise(0, (64, 64)), noise(1, (64, 64))
    cube = torch.from_numpy(np.stack([1 + 0.1 * shown] * 3))
    cameras = [CASSI(torch.from_numpy(mask), (0, 1, 2)) for mask in (shown, other)]
    assert imprint_on(cube, cameras[0], moves=(0.0,)) == imprint(cube.numpy(), shown, moves=(0.0,)) > 0.9
    assert imprint_on(cube, cameras[1]) < 0.1
    each = CASSI(torch.from_numpy(np.stack([shown, other, shown])), (0, 1, 2))  # of a mask per band the mean
    assert imprint_on(cube, each) == pytest.approx(imprint(cube.numpy(), each.mask.numpy().mean(0)), rel=1e-6)
    assert imprint_on(cube, MultiShot(cameras)) == imprint_on(cube, cameras[0])
    assert imprint_on(cube[:, :16], CASSI(torch.from_numpy(shown[:16]), (0, 1, 2))) is None
