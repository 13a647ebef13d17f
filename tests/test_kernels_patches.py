"""Patches against loops over every pixel, F.unfold and F.fold, the dot test and reconstruction."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from cassi.kernels.patches import aggregate_patches, extract_patches, patch_corners

GRID = [  # shape, size, stride
    ((8, 8), 4, 2), ((9, 7), 4, 2), ((11, 6), (4, 3), (3, 2)), ((5, 5), 5, 5), ((7, 10), 3, 1), ((8, 9), 4, 3),
    ((1, 6), (1, 3), (1, 2)), ((13, 17), 6, 5),
]  # fmt: skip


def pair(value):
    return (value, value) if isinstance(value, int) else value


def extract_by_loops(x, size, stride):
    (p_h, p_w), (s_h, s_w) = pair(size), pair(stride)
    rows, columns = patch_corners(x.shape[0], p_h, s_h), patch_corners(x.shape[1], p_w, s_w)
    patches = torch.zeros(p_h, p_w, len(rows), len(columns), dtype=x.dtype)
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            for u in range(p_h):
                for v in range(p_w):
                    patches[u, v, i, j] = x[r + u, c + v]
    return patches


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("shape", "size", "stride"), GRID)
def test_extraction_equals_the_loops(shape, size, stride):
    x = random(*shape)
    patches = extract_patches(x, size, stride)
    assert patches.is_contiguous()
    assert torch.equal(patches, extract_by_loops(x, size, stride))


@pytest.mark.parametrize(("shape", "size", "stride"), GRID)
def test_aggregation_is_the_adjoint(shape, size, stride):
    for batch in ((), (2,), (2, 3), (0,)):
        x = random(*batch, *shape)
        patches = extract_patches(x, size, stride)
        p = random(*patches.shape, seed=1)
        back = aggregate_patches(p, shape, stride)
        assert back.shape == x.shape
        assert abs((patches * p).sum() - (x * back).sum()) <= 1e-12 * (1 + x.norm() * p.norm())


@pytest.mark.parametrize(("p", "s"), [(8, 1), (8, 4), (7, 2), (6, 4)])
def test_equals_unfold_and_fold_where_the_stride_fits(p, s):
    length = (100 - p) // s * s + p
    x = random(2, length, length)
    patches = extract_patches(x, p, s)
    assert torch.equal(patches.reshape(2, p * p, -1), F.unfold(x[:, None], p, stride=s))
    folded = F.fold(patches.reshape(2, p * p, -1), (length, length), p, stride=s)[:, 0]
    torch.testing.assert_close(aggregate_patches(patches, (length, length), s), folded)


def test_a_large_batch_passes_the_chunk_boundaries():
    x = random(5, 400, 420).float()
    patches = extract_patches(x, 8, 5)
    torch.testing.assert_close(aggregate_patches(patches, (400, 420), 5, normalize=True), x)


@pytest.mark.parametrize(("shape", "size", "stride"), GRID)
def test_normalized_aggregation_undoes_the_extraction(shape, size, stride):
    x = random(2, *shape)
    patches = extract_patches(x, size, stride)
    torch.testing.assert_close(aggregate_patches(patches, shape, stride, normalize=True), x)


def test_a_sum_by_hand():
    patches = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 2, 1, 2)  # columns 0-1 are (1, 3), columns 1-2 are (2, 4)
    assert aggregate_patches(patches, (1, 3)).tolist() == [[1.0, 5.0, 4.0]]
    assert aggregate_patches(patches, (1, 3), normalize=True).tolist() == [[1.0, 2.5, 4.0]]


def test_first_and_second_derivatives():
    x = random(4, 5).requires_grad_()
    p = random(*extract_patches(x, 3, 2).shape).requires_grad_()
    for function, t in ((lambda x: extract_patches(x, 3, 2), x), (lambda p: aggregate_patches(p, (4, 5), 2), p)):
        assert torch.autograd.gradcheck(function, (t,)) and torch.autograd.gradgradcheck(function, (t,))


def test_corners_end_at_the_border():
    for length in range(5, 30):
        for size in range(1, 6):
            for stride in range(1, size + 1):
                corners = patch_corners(length, size, stride)
                assert corners[0] == 0 and corners[-1] == length - size
                assert all(0 < b - a <= stride for a, b in itertools.pairwise(corners))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: patch_corners(4, 5, 1), "does not fit an axis of 4"),
        (lambda: patch_corners(4, 0, 1), "at least 1"),
        (lambda: patch_corners(8, 2, 3), "pixels would be missed"),
        (lambda: extract_patches(torch.ones(5), 2), r"x must be \(..., H, W\)"),
        (lambda: extract_patches(torch.ones(5, 5), (2, 2, 2)), "size must be one integer or two"),
        (lambda: aggregate_patches(torch.ones(2, 2, 4), (5, 5)), r"\(..., p_h, p_w, n_h, n_w\)"),
        (lambda: aggregate_patches(torch.ones(2, 2, 3, 4), (5, 5)), r"has \(4, 4\) patches of 2 x 2"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
