"""Metrics against scikit-image, hand-computed values and properties."""

import math

import numpy as np
import pytest
import torch
from messages import refused
from skimage.metrics import structural_similarity

from cassi.looking.metrics import psnr, residual_whiteness, sam, ssim


def pair(shape=(5, 40, 33), noise=0.05, seed=0):
    rng = np.random.default_rng(seed)
    row, column = np.mgrid[: shape[-2], : shape[-1]]
    truth = 0.5 + 0.3 * np.sin(0.3 * row + 0.2 * column + np.arange(shape[0])[:, None, None]) + 0.1 * rng.random(shape)
    return (truth + noise * rng.standard_normal(shape)).astype(np.float32), truth.astype(np.float32)


def test_psnr_by_hand():
    truth = np.zeros((2, 4, 4))
    assert psnr(np.stack([np.full((4, 4), 0.1), np.full((4, 4), 0.01)]), truth) == pytest.approx((20 + 40) / 2)
    assert psnr(truth + 40, truth, peak=4000) == pytest.approx(40.0)
    assert psnr(truth, truth) == math.inf
    assert math.isnan(psnr(np.full_like(truth, np.nan), truth))
    # in float32 a plain sum of squares of counts would lose digits
    counts = torch.full((1, 300, 300), 60000.0)
    assert psnr(counts + 1, counts, peak=65535) == pytest.approx(20 * math.log10(65535), abs=1e-9)


@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_ssim_against_scikit_image(noise):
    estimate, truth = pair(noise=noise)
    bands = [
        structural_similarity(t, e, gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=1.0)
        for e, t in zip(estimate, truth, strict=True)
    ]
    assert ssim(estimate, truth) == pytest.approx(np.mean(bands), abs=1e-5)
    assert ssim(1000 * estimate, 1000 * truth, peak=1000) == pytest.approx(np.mean(bands), abs=1e-5)


def test_ssim_of_small_pictures_against_explicit_padding():
    estimate, truth = pair((1, 9, 10))
    padded = [np.pad(band[0], 5) for band in (truth, estimate)]
    options = {"gaussian_weights": True, "sigma": 1.5, "use_sample_covariance": False, "data_range": 1.0}
    expected = structural_similarity(*padded, **options)  # scikit-image averages over the inner 9 x 10
    assert ssim(estimate, truth) == pytest.approx(expected, abs=1e-6)


def test_sam_by_hand():
    truth = np.array([1.0, 0.0])[:, None, None] * np.ones((1, 1, 3))
    assert sam(np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 5.0]])[:, None, :], truth) == pytest.approx((0 + 45 + 90) / 3)
    assert sam(-truth, truth) == pytest.approx(180)
    dark = np.array([[1.0, 0.0], [1.0, 0.0]])[:, None, :]  # second pixel black
    assert sam(dark + 1, dark) == pytest.approx(0, abs=1e-6)
    assert sam(0 * dark, dark) == pytest.approx(90)
    assert math.isnan(sam(dark, 0 * dark))


def test_sam_ignores_brightness_keeps_small_angles_and_averages_over_frames():
    estimate, truth = pair()
    assert sam(truth * np.random.default_rng(0).uniform(0.1, 9, truth.shape[-2:]), truth.astype(float)) < 1e-5
    # A rotation by 1e-7 rad: arccos in float64 would return 0 or 1.2e-6 degrees.
    a, b = (np.array(one)[:, None, None] for one in ([1.0, 0.0], [math.cos(1e-7), math.sin(1e-7)]))
    assert sam(a, b) == pytest.approx(math.degrees(1e-7), rel=1e-6)
    other, _ = pair(seed=5)
    both = sam(np.stack([estimate, other]), np.stack([truth, truth]))
    assert both == pytest.approx((sam(estimate, truth) + sam(other, truth)) / 2)


def test_whiteness_of_white_noise_stays_within_its_limit():
    generator = torch.Generator().manual_seed(3)
    inside = 0
    for _ in range(50):
        found = residual_whiteness(torch.randn(40, 60, generator=generator))
        assert found.limit == pytest.approx(1.96 / math.sqrt(2400))
        inside += (abs(found.vertical) < found.limit) + (abs(found.horizontal) < found.limit)
    assert 87 <= inside <= 100  # 95 expected, standard deviation 2.2


def test_whiteness_tells_the_directions_apart_and_leaves_out_what_is_not_finite():
    noise = torch.randn(200, 200, generator=torch.Generator().manual_seed(4))
    smeared = noise[:, 1:] + noise[:, :-1]  # correlation 1/2 along the rows, 0 across
    assert residual_whiteness(smeared)[:2] == pytest.approx((0.0, 0.5), abs=0.02)
    assert residual_whiteness(torch.ones(9, 9))[:2] == (1.0, 1.0)
    assert residual_whiteness(torch.zeros(9, 9))[:2] == (0.0, 0.0)
    dirty = torch.randn(120, 120, generator=torch.Generator().manual_seed(5)).clone()
    dirty[:, 50:60] = torch.nan
    assert 0 < max(map(abs, residual_whiteness(dirty)[:2])) < 0.03
    assert residual_whiteness(dirty[:, :60]) == pytest.approx(residual_whiteness(dirty[:, :50]))


def test_torch_and_numpy_agree():
    estimate, truth = pair()
    for metric in (psnr, ssim, sam):
        assert metric(torch.from_numpy(estimate), torch.from_numpy(truth)) == metric(estimate, truth)
        assert isinstance(metric(estimate, truth), float)


@pytest.mark.parametrize("metric", [psnr, ssim, sam])
def test_shapes_and_options_that_cannot_be(metric):
    refused(metric, np.zeros((2, 16, 16)), np.zeros((3, 16, 16)), error=ValueError)
    for shape in ((4,), (0, 16, 16)):
        refused(metric, np.zeros(shape), np.zeros(shape), error=ValueError)
    for peak in (0, -1, math.nan) if metric is not sam else ():
        refused(metric, np.zeros((16, 16)), np.zeros((16, 16)), error=ValueError, peak=peak)
