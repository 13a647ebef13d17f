"""Sums of outer products against the loop over images and pixels, on shapes that reach every product."""

from functools import partial

import pytest
import torch
from benchmarks.timing import allocations
from messages import refused

from cassi.kernels.covariance import covariance_sum, pixel_mean

SHAPES = [(1, 3, 4, 5), (3, 1, 2, 2), (5, 4, 1, 1), (9, 40, 1, 2), (7, 12, 8, 9), (3000, 4, 3, 3), (300, 64, 2, 2)]
SHAPES += [(4, 70, 50, 60), (6, 28, 80, 80), (500, 30, 6, 5)]


def by_loops(x, mean=None):
    """For each image, for each pixel, add the outer product of its spectrum (large inputs: by one float64 einsum)."""
    x = x.double()
    z = x if mean is None else x - mean.double()[:, None, None]
    if x.numel() > 2000:
        return torch.einsum("nchw,ndhw->cd", z, z)
    total = torch.zeros(x.shape[1], x.shape[1], dtype=torch.float64)
    for n in range(x.shape[0]):
        for i in range(x.shape[2]):
            for j in range(x.shape[3]):
                total += torch.outer(z[n, :, i, j], z[n, :, i, j])
    return total


def spectra(shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_loop(shape):
    x = spectra(shape) + 3
    for mean in (None, pixel_mean(x)):
        torch.testing.assert_close(covariance_sum(x, mean=mean), by_loops(x, mean), rtol=1e-11, atol=1e-9)


def test_a_large_mean_does_not_cancel():
    x = spectra((20, 5, 16, 16)).float()
    s = covariance_sum(x + 1000, mean=pixel_mean(x + 1000))
    torch.testing.assert_close(s, covariance_sum(x, mean=pixel_mean(x)), rtol=1e-3, atol=1.0)


def test_no_copy_of_the_images_is_made():
    x = spectra((32, 4, 128, 128), torch.float32)  # 8 MiB
    for options in ({}, {"mean": torch.zeros(4)}):
        assert 64 <= max(allocations(partial(covariance_sum, x, **options))) < 2**21


def test_transposed_images_and_derivatives():
    x = spectra((3, 4, 5, 6))
    y = x.permute(3, 1, 2, 0)
    torch.testing.assert_close(covariance_sum(y), by_loops(y))
    small = spectra((2, 3, 2, 2)).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, m: covariance_sum(x, mean=m), (small, spectra((3,)).requires_grad_()))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: covariance_sum(torch.ones(3, 4)), ValueError),
        (lambda: covariance_sum(torch.ones(3, 0, 4, 4)), ValueError),
        (lambda: covariance_sum(torch.ones(3, 4, 4).int()), TypeError),
        (lambda: covariance_sum(torch.ones(3, 4, 4), mean=torch.ones(4)), ValueError),
        (lambda: pixel_mean(torch.ones(3)), ValueError),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, error):
    refused(call, error=error)
