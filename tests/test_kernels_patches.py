"""Patches against loops over every pixel, F.unfold and F.fold, the dot test and reconstruction."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from cassi.kernels.patches import aggregate_patches, extract_patches, patch_corners

GRID = [  # shape, size, stride, padding
    ((8, 8), 4, 2, 0), ((9, 7), 4, 2, 0), ((11, 6), (4, 3), (3, 2), 0), ((5, 5), 5, 5, 0), ((7, 10), 3, 1, 1),
    ((8, 9), 4, 3, (2, 1)), ((1, 6), (1, 3), (1, 2), 0), ((13, 17), 6, 5, 3),
]  # fmt: skip


def pair(value):
    return (value, value) if isinstance(value, int) else value


def extract_by_loops(x, size, stride, padding):
    (p_h, p_w), (s_h, s_w), (pad_h, pad_w) = pair(size), pair(stride), pair(padding)
    height, width = x.shape
    rows, columns = patch_corners(height + 2 * pad_h, p_h, s_h), patch_corners(width + 2 * pad_w, p_w, s_w)
    patches = torch.zeros(p_h, p_w, len(rows), len(columns), dtype=x.dtype)
    for i, r in enumerate(rows):
        for j, c in enumerate(columns):
            for u in range(p_h):
                for v in range(p_w):
                    row, column = r + u - pad_h, c + v - pad_w
                    if 0 <= row < height and 0 <= column < width:
                        patches[u, v, i, j] = x[row, column]
    return patches


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("shape", "size", "stride", "padding"), GRID)
def test_extraction_equals_the_loops(shape, size, stride, padding):
    x = random(*shape)
    patches = extract_patches(x, size, stride, padding=padding)
    assert patches.is_contiguous()
    assert torch.equal(patches, extract_by_loops(x, size, stride, padding))


@pytest.mark.parametrize(("shape", "size", "stride", "padding"), GRID)
def test_aggregation_is_the_adjoint(shape, size, stride, padding):
    for batch in ((), (2,), (2, 3), (0,)):
        x = random(*batch, *shape)
        patches = extract_patches(x, size, stride, padding=padding)
        p = random(*patches.shape, seed=1)
        back = aggregate_patches(p, shape, stride, padding=padding)
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


@pytest.mark.parametrize(("shape", "size", "stride", "padding"), GRID)
def test_normalized_aggregation_undoes_the_extraction(shape, size, stride, padding):
    x = random(2, *shape)
    patches = extract_patches(x, size, stride, padding=padding)
    p_h, p_w, n_h, n_w = patches.shape[-4:]
    each, window, full = random(n_h, n_w), random(p_h, p_w, 1, 1), random(*patches.shape)
    for weights in (None, torch.tensor(3.0).double(), *(w.abs() + 0.1 for w in (each, window, full))):
        y = aggregate_patches(patches, shape, stride, padding=padding, weights=weights, normalize=True)
        torch.testing.assert_close(y, x)


def test_weights_by_hand():
    patches = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 2, 1, 2)  # columns 0-1 are (1, 3), columns 1-2 are (2, 4)
    weights = torch.tensor([[1.0, 3.0]])
    assert aggregate_patches(patches, (1, 3)).tolist() == [[1.0, 5.0, 4.0]]
    assert aggregate_patches(patches, (1, 3), weights=weights).tolist() == [[1.0, 9.0, 12.0]]
    assert aggregate_patches(patches, (1, 3), weights=weights, normalize=True).tolist() == [[1.0, 2.25, 4.0]]


@pytest.mark.parametrize(("shape", "size", "stride", "padding"), [((4, 5), 3, 2, 0), ((4, 3), 3, 2, (1, 0))])
def test_first_and_second_derivatives(shape, size, stride, padding):
    x = random(*shape).requires_grad_()
    p = random(*extract_patches(x, size, stride, padding=padding).shape).requires_grad_()
    w = random(*p.shape[-2:]).abs().requires_grad_()

    def extract(x):
        return extract_patches(x, size, stride, padding=padding)

    def aggregate(p, w):
        return aggregate_patches(p, shape, stride, padding=padding, weights=w)

    assert torch.autograd.gradcheck(extract, (x,)) and torch.autograd.gradgradcheck(extract, (x,))
    assert torch.autograd.gradcheck(aggregate, (p, w)) and torch.autograd.gradgradcheck(aggregate, (p, w))


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
        (lambda: extract_patches(torch.ones(5, 5), 2, padding=2), "smaller than the patch"),
        (lambda: extract_patches(torch.ones(5, 5), (2, 2, 2)), "size must be one integer or two"),
        (lambda: aggregate_patches(torch.ones(2, 2, 4), (5, 5)), r"\(..., p_h, p_w, n_h, n_w\)"),
        (lambda: aggregate_patches(torch.ones(2, 2, 3, 4), (5, 5)), r"has \(4, 4\) patches of 2 x 2"),
        (lambda: aggregate_patches(torch.ones(2, 2, 4, 4), (5, 5), weights=torch.ones(3)), "weights must broadcast"),
    ],
)
def test_bad_arguments_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
