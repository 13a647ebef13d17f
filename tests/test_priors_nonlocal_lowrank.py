"""Non-local low-rank denoising: on photographs against total variation, and by its properties."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from cases import tv_prox
from messages import refused

from cassi.kernels.dispatch import eager
from cassi.priors.nonlocal_lowrank import GroupFilters, NonlocalDenoiser, _features, _match, singular_value_gain


def denoised_once(z, sigma, **options):
    """A call of a new denoiser, on a copy."""
    return NonlocalDenoiser(sigma, **options)(z.clone(), 0)


def photograph(name):
    data = pytest.importorskip("skimage.data", reason="scikit-image holds the photographs")
    image = torch.from_numpy(getattr(data, name)().astype(np.float32) / 255)
    image = image[None] if image.ndim == 2 else image.permute(2, 0, 1)
    return F.avg_pool2d(image, 2)[:, 20:180, 60:220].contiguous()


def noise_like(x, seed=0):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype)


def psnr(x, truth):
    return -10 * math.log10(float((x - truth).square().mean()))


@pytest.fixture(scope="module")
def scene():
    """Three images with edges and a repeated texture, and their noisy version, sigma 0.1."""
    i, j = torch.meshgrid(torch.arange(48.0), torch.arange(40.0), indexing="ij")
    base = 0.5 + 0.3 * torch.sign(torch.sin(i / 4)) * (j > 18) + 0.2 * (i + j > 50)
    x = torch.stack([base, 0.5 * base, 0.3 - 0.1 * base])
    return x, x + 0.1 * noise_like(x)


@pytest.mark.parametrize("name", ["camera", "astronaut"])
@pytest.mark.parametrize("sigma", [0.05, 0.1])
def test_beats_total_variation_on_photographs(name, sigma):
    x = photograph(name)
    y = x + sigma * noise_like(x)
    total_variation = max(psnr(tv_prox(y, weight * sigma, num_iters=60)[0], x) for weight in (0.5, 0.75, 1.0))
    patch = 7 if name == "camera" else 5
    assert psnr(denoised_once(y, sigma, patch=patch), x) > total_variation + 0.7


def test_tiny_noise_changes_little_and_pure_noise_goes(scene):
    x, _ = scene
    assert float((denoised_once(x, 1e-5) - x).abs().max()) < 1e-3
    assert float(denoised_once(noise_like(torch.empty(2, 64, 64)), 1.0).square().mean()) < 0.1


def groups_of(y, sigma, *, patch=5, stride=4, window=10, group=32):
    """What the search finds."""
    return _match(_features(y / sigma, patch), stride, window, group)


def denoised(y, sigma, groups):
    """With groups that are given."""
    level = torch.as_tensor(sigma, dtype=y.dtype).expand(len(y)).reshape(-1, 1, 1).contiguous()
    u = y.clone()
    GroupFilters(y, level, groups, 5).apply_(u)
    return u


def test_groups_hold_the_reference_and_only_the_window(scene):
    _, y = scene
    patch, stride, window = 5, 4, 6
    groups = groups_of(y, 0.1, patch=patch, stride=stride, window=window, group=20)
    n_h, n_w = 44, 36
    assert groups.shape == (12 * 10, 20)
    rows, columns = [*range(0, n_h, stride), n_h - 1], [*range(0, n_w, stride), n_w - 1]
    for g, (r, c) in enumerate((r, c) for r in rows for c in columns):
        members = groups[g].tolist()
        assert r * n_w + c in members and len(set(members)) == 20
        assert all(abs(k // n_w - r) <= window and abs(k % n_w - c) <= window for k in members)


def test_the_nearest_patches_are_found_without_noise():
    tile = torch.rand(1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = tile.repeat(1, 5, 5)  # period 8: only positions 8 apart are equal
    groups = groups_of(y, 1e-3, group=4)
    assert len({(int(k) // 36 % 8, int(k) % 36 % 8) for k in groups[len(groups) // 2]}) == 1


def test_scales_constants_and_rotations_of_the_images_among_each_other_pass_through(scene):
    _, y = scene
    u, groups = denoised_once(y, 0.1), groups_of(y, 0.1)
    torch.testing.assert_close(denoised(1000 * y, 100.0, groups), 1000 * u, rtol=1e-3, atol=0.5)
    scales = torch.tensor([1.0, 10.0, 0.1])
    v = denoised(scales[:, None, None] * y, 0.1 * scales, groups)
    torch.testing.assert_close(v, scales[:, None, None] * u, rtol=1e-3, atol=5e-3)
    y = y.double()
    u, groups = denoised_once(y, 0.1), groups_of(y, 0.1)
    torch.testing.assert_close(denoised(y + 5, 0.1, groups), u + 5)
    rotation, _ = torch.linalg.qr(noise_like(torch.empty(3, 3, dtype=torch.float64), seed=4))
    v = denoised(torch.einsum("kc,chw->khw", rotation, y), 0.1, groups)
    torch.testing.assert_close(v, torch.einsum("kc,chw->khw", rotation, u), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("shape", [(1, 5, 5), (2, 5, 9), (1, 7, 30), (4, 13, 17)])
def test_any_size_is_covered(shape):
    y = 1 + 0.1 * noise_like(torch.empty(shape))
    for options in ({}, {"stride": 5}, {"stride": 1}, {"patch": 3, "stride": 2}):
        u = denoised_once(y, 0.1, **options)
        assert u.shape == y.shape and bool(torch.isfinite(u).all())
        assert float((u - 1).abs().max()) < 0.5, options


def test_gain_is_the_published_shrinkage_and_the_best_of_all():
    # Gavish & Donoho in their normalization: noise of variance 1/b, aspect ratio beta = a/b, singular value y
    a, b = 20, 50
    beta, y = a / b, torch.tensor([1.0, 1.7, 2.0, 4.0], dtype=torch.float64)
    eta = torch.where(y > 1 + math.sqrt(beta), ((y**2 - beta - 1) ** 2 - 4 * beta).clamp(min=0).sqrt() / y, 0)
    torch.testing.assert_close(singular_value_gain(b * y**2, a, b), eta / y)
    torch.testing.assert_close(singular_value_gain(b * y**2, b, a), eta / y)
    # on a matrix of rank one in noise no other factor for the first singular value does better
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(200, 1, generator=generator), torch.randn(1, 300, generator=generator)
    signal = 40 * (left / left.norm()) @ (right / right.norm())
    u, s, v = torch.linalg.svd(signal + torch.randn(200, 300, generator=generator), full_matrices=False)
    gains = torch.linspace(0, 1, 101)
    errors = [float((g * s[0] * torch.outer(u[:, 0], v[0]) - signal).norm()) for g in gains]
    assert abs(float(gains[int(np.argmin(errors))]) - float(singular_value_gain(s[0] ** 2, 200, 300))) < 0.03


def test_denoiser_for_solvers(scene):
    x, y = scene
    denoise = NonlocalDenoiser(0.1, stride=5)
    first = denoise(y.clone(), 0)
    torch.testing.assert_close(first, denoised_once(y, 0.1, stride=5))
    torch.testing.assert_close(denoise(2 * y, 1), 2 * first)  # by the filters of the first call
    torch.testing.assert_close(NonlocalDenoiser(0.1, stride=5)(torch.stack([y, y.flip(0)]).clone(), 0)[0], first)
    assert psnr(NonlocalDenoiser(0.05, stride=5)(y.clone(), 0), x) < psnr(first, x)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda y: denoised_once(y[0], 0.1), ValueError),
        (lambda y: denoised_once(y.int(), 0.1), ValueError),
        (lambda y: denoised_once(y[:, :4], 0.1), ValueError),
        (lambda y: denoised_once(y, torch.ones(2)), ValueError),
        (lambda y: denoised_once(y * math.nan, 0.1), FloatingPointError),
        (lambda y: denoised_once(y * 1e18, 0.1), FloatingPointError),
        (lambda y: denoised_once(y, 1e-45), FloatingPointError),
        (lambda y: NonlocalDenoiser(-0.1), ValueError),
        (lambda y: NonlocalDenoiser(torch.tensor([0.1, 0.0, 0.1])), ValueError),
        (lambda y: NonlocalDenoiser(0.1, stride=6), ValueError),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(scene, call, error):
    refused(call, scene[1], error=error)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("patch", "count"), [(5, 3), (7, 1), (4, 2)])
def test_the_compiled_kernel_and_torch_agree(scene, dtype, patch, count):
    y = scene[1][:count].to(dtype)
    with eager():
        expected = denoised_once(y, 0.1, patch=patch, stride=3)
    found = denoised_once(y, 0.1, patch=patch, stride=3)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_constant_and_huge_images(path):
    for value in (0.0, 0.1, 3.7, 1e9):
        flat = torch.full((3, 39, 29), value)
        for options in ({}, {"patch": 2, "stride": 2}):
            torch.testing.assert_close(denoised_once(flat, 0.5, **options), flat)
    assert bool(torch.isfinite(denoised_once(1e10 * noise_like(torch.zeros(3, 20, 20)), 0.5)).all())


def test_the_number_of_threads_changes_nothing(scene, torch_threads):
    results = []
    for n in (1, 3):
        torch_threads(n)
        results.append(denoised_once(scene[1], 0.1))
    assert torch.equal(*results)
