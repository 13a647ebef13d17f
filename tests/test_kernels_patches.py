"""Patches against loops over every pixel, the dot test and reconstruction."""

import itertools

import pytest
import torch
from cases import random
from hypothesis import given, strategies as st
from messages import refused

from cassi.kernels.patches import aggregate_patches, extract_patches


@st.composite
def patched(draw: st.DrawFn) -> tuple[tuple[int, int], int, int]:
    """The shape of an image, the size of its patches, and their stride."""
    height, width = draw(st.integers(1, 13)), draw(st.integers(1, 17))
    size = draw(st.integers(1, min(height, width, 6)))
    return (height, width), size, draw(st.integers(1, size))


def corners(length, size, stride):
    """0, s, 2 s ... and the last patch that fits."""
    return sorted({*range(0, length - size + 1, stride), length - size})


def extract_by_loops(x, size, stride):
    rows, columns = corners(x.shape[0], size, stride), corners(x.shape[1], size, stride)
    patches = torch.zeros(size, size, len(rows), len(columns), dtype=x.dtype)
    for (i, r), (j, c) in itertools.product(enumerate(rows), enumerate(columns)):
        patches[:, :, i, j] = x[r : r + size, c : c + size]
    return patches


@given(case=patched())
def test_extraction_equals_the_loops(case):
    shape, size, stride = case
    x = random(*shape)
    patches = extract_patches(x, size, stride)
    assert patches.is_contiguous()
    assert torch.equal(patches, extract_by_loops(x, size, stride))


@given(case=patched())
def test_aggregation_is_the_adjoint(case):
    shape, size, stride = case
    for batch in ((), (2,), (2, 3), (0,)):
        x = random(*batch, *shape)
        patches = extract_patches(x, size, stride)
        p = random(*patches.shape, seed=1)
        back = aggregate_patches(p, shape, stride)
        assert back.shape == x.shape
        assert abs((patches * p).sum() - (x * back).sum()) <= 1e-12 * (1 + x.norm() * p.norm())


def test_a_large_batch_passes_the_chunk_boundaries():
    """The mean of the patches that are on a pixel is the pixel."""
    x = random(5, 400, 420).float()
    patches = extract_patches(x, 8, 5)
    total, count = (aggregate_patches(p, (400, 420), 5) for p in (patches, torch.ones_like(patches)))
    torch.testing.assert_close(total / count, x)


def test_first_and_second_derivatives():
    x = random(4, 5).requires_grad_()
    p = random(*extract_patches(x, 3, 2).shape).requires_grad_()
    for function, t in ((lambda x: extract_patches(x, 3, 2), x), (lambda p: aggregate_patches(p, (4, 5), 2), p)):
        assert torch.autograd.gradcheck(function, (t,)) and torch.autograd.gradgradcheck(function, (t,))


@pytest.mark.parametrize(
    "call",
    [
        lambda: extract_patches(torch.ones(4, 6), 5),
        lambda: extract_patches(torch.ones(4, 6), 0),
        lambda: extract_patches(torch.ones(8, 8), 2, 3),
        lambda: extract_patches(torch.ones(5), 2),
        lambda: aggregate_patches(torch.ones(2, 2, 4), (5, 5)),
        lambda: aggregate_patches(torch.ones(2, 2, 3, 4), (5, 5)),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call):
    refused(call, error=ValueError)
