"""Optical flow, motion found in a snapshot, and displacement, against motion that is known and dense solutions."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from messages import refused
from scipy import ndimage

from cassi import CASSI
from cassi.kernels.images import displace, displacement_matrix, gaussian_blur, transpose
from cassi.sequence import motion as module
from cassi.sequence.motion import estimate_motion, optical_flow, warp

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


C, HEIGHT, WIDTH = 4, 40, 48


def cube(seed: int = 0) -> torch.Tensor:
    images = ndimage.gaussian_filter(np.random.default_rng(seed).normal(size=(C, HEIGHT, WIDTH)), (0, 2, 2)) * 5 + 2
    return torch.from_numpy(images)


def camera() -> CASSI:
    return CASSI.from_step(torch.rand(HEIGHT, WIDTH, dtype=F64, generator=torch.Generator().manual_seed(1)), 2, C)


def wave(size: float) -> torch.Tensor:
    """A motion of this size in pixels that changes slowly over the picture."""
    i, j = torch.meshgrid(torch.linspace(0, 1, HEIGHT), torch.linspace(0, 1, WIDTH), indexing="ij")
    return size * torch.stack([torch.cos(2 * i) + j, i - torch.sin(3 * j)]).double()


@pytest.mark.parametrize("size", [0.0, 0.8])
def test_the_motion_is_found(size):
    A, x, wanted = camera(), cube(), wave(size)
    y = A.forward(warp(x, wanted))
    v = estimate_motion(A, y, x, wanted + 0.4 * wave(1.0).flip(0), torch.full_like(y, 1e-4))
    assert float((v - wanted)[:, 4:-4, 4:-4].abs().mean()) < 0.04
    dim = replace(A, mask=A.mask / 100)  # its unit says nothing
    again = estimate_motion(dim, y / 100, x, wanted + 0.4 * wave(1.0).flip(0), torch.full_like(y, 1e-8))
    torch.testing.assert_close(again, v, rtol=0, atol=1e-3)


def test_where_something_else_is_seen_the_motion_stays_smooth():
    A, x, wanted = camera(), cube(), wave(0.8)
    moved = warp(x, wanted)
    moved[:, 10:18, 20:28] += 6
    v = estimate_motion(A, A.forward(moved), x, wave(0.5), torch.full(A.measurement_shape, 1e-4, dtype=F64))
    assert float((v - wanted)[:, 4:-4, 4:-4].abs().mean()) < 0.12


def test_pixels_of_weight_0_say_nothing():
    A, x = camera(), cube()
    keep = (torch.rand(A.measurement_shape, generator=torch.Generator().manual_seed(2)) > 0.1).double()
    y = A.forward(warp(x, wave(0.5)))
    variance = torch.full_like(y, 1e-4)
    found = estimate_motion(A.weighted(keep), y * keep, x, wave(0.2), variance)
    wild = torch.where(keep > 0, y, torch.rand_like(y) * 9)
    torch.testing.assert_close(estimate_motion(A.weighted(keep), wild * keep, x, wave(0.2), variance), found)
    assert float((found - wave(0.5))[:, 4:-4, 4:-4].abs().mean()) < 0.04


def test_a_step_is_that_of_dense_matrices(monkeypatch):
    monkeypatch.setattr(module, "NEWTON_STEPS", 1)
    monkeypatch.setattr(module, "CG_ITERS", 500)
    A, x, start = camera(), cube(), wave(0.3)
    y = A.forward(warp(x, wave(0.5)))
    variance = torch.rand(y.shape, dtype=F64, generator=torch.Generator().manual_seed(3)) + 0.5
    n, m = HEIGHT // 8 + 1, WIDTH // 8 + 1
    # U by numpy's interpolation, J by small differences of the nodes' values
    hats = [
        np.stack([np.interp(np.linspace(0, k - 1, s), np.arange(k), e) for e in np.eye(k)])
        for k, s in ((n, HEIGHT), (m, WIDTH))
    ]
    U = torch.from_numpy(np.einsum("ai,bj->abij", *hats)).reshape(n * m, HEIGHT, WIDTH)
    slopes = [warp(g, start) for g in torch.gradient(x, dim=(-2, -1))]
    J = torch.stack([A.forward(g * u).flatten() for g in slopes for u in U]).T
    r = y - A.forward(warp(x, start))
    w = (1 / (variance + gaussian_blur(r.square()[None], 2.0)[0])).flatten()
    D = [np.kron(np.diff(np.eye(n), axis=0), np.eye(m)), np.kron(np.eye(n), np.diff(np.eye(m), axis=0))]
    rough = torch.from_numpy(sum(d.T @ d for d in D))
    scale = A.mask.square().mean() * w.mean() * sum(g.square().sum() for g in slopes) / (2 * n * m)
    normal = J.T @ (w[:, None] * J) + scale * (0.24 * torch.block_diag(rough, rough) + 1e-3 * torch.eye(2 * n * m))
    d = torch.linalg.solve(normal, J.T @ (w * r.flatten())).view(2, n * m)
    step = torch.einsum("kn,nij->kij", d, U)
    assert float(step.norm(dim=0).max()) < 1
    torch.testing.assert_close(estimate_motion(A, y, x, start, variance), start + step, rtol=0, atol=2e-3)
