"""Optical flow and displacement, against motion that is known and interpolation by another library."""

import numpy as np
import pytest
import torch
from messages import refused
from scipy import ndimage

from cassi.kernels.images import displace, displacement_matrix, gaussian_blur, transpose
from cassi.sequence.motion import optical_flow, warp

F64 = torch.float64


def picture(size: int = 64, seed: int = 0) -> np.ndarray:
    smooth = ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=(size + 40, size + 40)), 2.5)
    return smooth / smooth.std()


@pytest.mark.parametrize("motion", [(0.0, 0.0), (0.4, -0.7), (2.3, 1.6), (-5.5, 4.25)])
def test_a_translation_is_found(motion):
    whole = picture()
    moved, inner = ndimage.shift(whole, motion, order=5), np.s_[20:-20, 20:-20]
    v = optical_flow(*(torch.from_numpy(one[inner].copy())[None] for one in (whole, moved)), window=4.0)
    for part, wanted in zip(v, motion, strict=True):
        assert float((part[14:-14, 14:-14] - wanted).abs().mean()) < 0.05


def test_a_part_that_moves_otherwise_is_found_too():
    base, square = picture()[20:-20, 20:-20].copy(), 3 * picture(seed=1)[20:44, 20:44]
    other = base.copy()
    base[20:44, 20:44], other[22:46, 17:41] = square, square
    v = optical_flow(torch.from_numpy(base)[None], torch.from_numpy(other)[None], window=3.0)
    assert v[:, 28:36, 28:36].mean((-1, -2)).tolist() == pytest.approx([2, -3], abs=0.2)
    assert float(v[:, :10].abs().mean()) < 0.2


def test_flat_pictures_do_not_move_and_shapes_must_agree():
    assert optical_flow(torch.ones(2, 40, 40), torch.ones(2, 40, 40)).abs().max() < 1e-6
    refused(optical_flow, torch.ones(2, 40, 40), torch.ones(2, 40, 41), error=ValueError)


def test_the_matrix_interpolates_cubics_exactly_and_its_transpose_is_one():
    i, j = torch.meshgrid(torch.arange(12, dtype=F64), torch.arange(10, dtype=F64), indexing="ij")
    v = 0.9 * torch.rand(2, 12, 10, dtype=F64, generator=torch.Generator().manual_seed(2)) - 0.45
    W = displacement_matrix(v)
    x = torch.stack([1 + i + 2 * j, i * j + 0.1 * i**2, torch.ones_like(i)])
    a, b = i + v[0], j + v[1]
    wanted = torch.stack([1 + a + 2 * b, a * b + 0.1 * a**2, torch.ones_like(a)])
    assert float((displace(x, W) - wanted)[:, 2:-2, 2:-2].abs().max()) < 1e-10
    np.testing.assert_allclose(transpose(W).to_dense(), W.to_dense().T)
    refused(displacement_matrix, torch.ones(3, 4, 4), error=ValueError)


def test_carried_brings_a_moved_picture_back():
    whole = torch.from_numpy(picture())
    back = warp(whole[None], torch.tensor([1.0, -2.0], dtype=F64).view(2, 1, 1).expand(2, 104, 104))[0]
    assert torch.allclose(back[4:-4, 4:-4], whole.roll((-1, 2), (0, 1))[4:-4, 4:-4], atol=1e-6)


def test_the_window_is_scipys_gaussian():
    image = picture()[:40, :40]
    ours = gaussian_blur(torch.from_numpy(image.copy())[None], 2.0)[0]
    np.testing.assert_allclose(ours, ndimage.gaussian_filter(image, 2.0, mode="mirror", truncate=3.0), atol=1e-6)
