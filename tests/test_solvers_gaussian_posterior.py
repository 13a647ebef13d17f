"""Gaussian spectra as a prior: against the dense formula, by its limits, and as a program feature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cassi.errors import InputError
from cassi.files.spectral_libraries import as_spectral_prior
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.single_disperser import CASSI
from cassi.priors.gaussian_spectra import library_spectral_prior, resampling, smooth_spectral_prior
from cassi.running.front_door import reconstruct
from cassi.solvers.gaussian_posterior import gaussian_map

C, H, W = 3, 3, 4


@pytest.fixture
def problem(generator):
    mask = torch.rand(H, W, generator=generator, dtype=torch.float64)
    root = torch.rand(C, C, generator=generator, dtype=torch.float64)
    mean = torch.rand(C, generator=generator, dtype=torch.float64)
    A = CASSI(mask, (0, 2, 1))
    y = torch.rand(A.measurement_shape, generator=generator, dtype=torch.float64)
    return A, y, root @ root.T, mean


def dense_matrix(A):
    """Phi by its columns, from single lit voxels."""
    eye = torch.eye(math.prod(A.cube_shape), dtype=torch.float64).view(-1, *A.cube_shape)
    return np.stack([A.forward(one).numpy().ravel() for one in eye], axis=1)


def dense_posterior(phi, y, S, mean, variance, correlation):
    """Mean and standard deviation by the normal equations of the prior's precision, not by the formula of the code."""
    pixels = H * W
    i, j = np.divmod(np.arange(pixels), W)
    distance = np.abs(i[:, None] - i) + np.abs(j[:, None] - j)
    K = np.exp(-distance / correlation) if correlation else np.eye(pixels)
    prior = np.linalg.inv(np.kron(S, K))
    precision = prior + phi.T @ (phi / variance.reshape(-1, 1))
    mu = np.repeat(mean, pixels)
    x = np.linalg.solve(precision, phi.T @ (y.ravel() / variance.ravel()) + prior @ mu)
    return x, np.sqrt(np.diag(np.linalg.inv(precision)))


@pytest.mark.parametrize("correlation", [0.0, 2.0])
@pytest.mark.parametrize("camera", ["CASSI", "weighted", "blurred"])
def test_the_dense_formula(problem, generator, camera, correlation):
    A, y, S, mean = problem
    variance = 0.05 + 0.2 * torch.rand(y.shape, generator=generator, dtype=torch.float64)
    if camera == "weighted":
        w = 0.5 + torch.rand(y.shape, generator=generator, dtype=torch.float64)
        w[1, 2] = 0
        A, y = A.weighted(w), y * w
    elif camera == "blurred":
        A = BlurredCASSI(A.mask, (0.0, 1.7, 1.2))
    x, spread = dense_posterior(dense_matrix(A), y.numpy(), S.numpy(), mean.numpy(), variance.numpy(), correlation)
    sampling = {"samples": 2000, "generator": torch.Generator().manual_seed(3)}
    result, sampled = gaussian_map(A, y, S, mean, variance=variance, correlation=correlation, tol=1e-12, **sampling)
    assert result.status == "converged"
    np.testing.assert_allclose(result.x.numpy().ravel(), x, atol=1e-9)
    # each sampled standard deviation is good to 1 / sqrt(2 n) = 1.6 %; 36 of them lie within 4 of these
    np.testing.assert_allclose(sampled.numpy().ravel(), spread, rtol=4 / math.sqrt(2 * 2000))


def test_the_diagonal_preconditioner_is_the_diagonal(problem):
    """With one band the matrix is its diagonal: one step of conjugate gradients is the solution."""
    A = CASSI(problem[0].mask, (0,))
    y = problem[1][:, :W]
    result, _ = gaussian_map(A, y, torch.eye(1) * 0.3, torch.zeros(1), variance=0.1, tol=1e-12)
    assert len(result.history) == 1
    torch.testing.assert_close(result.x[0], 0.3 * A.mask * y / (0.3 * A.mask**2 + 0.1))


def test_a_prior_that_knows_nothing_is_the_pseudo_inverse(problem):
    """Independent bands of any variance without noise: the smallest cube that explains the snapshot."""
    A, y, _, mean = problem
    for scale in (1e-3, 1e6):
        S = scale * torch.eye(C, dtype=torch.float64)
        x = gaussian_map(A, y, S, torch.zeros_like(mean), variance=0.0, tol=1e-13)[0].x
        torch.testing.assert_close(x, A.pinv(y), rtol=1e-9, atol=1e-10)


def test_without_noise_the_snapshot_is_explained(problem):
    A, y, S, mean = problem
    exact = gaussian_map(A, y, S, mean, variance=0.0, tol=1e-12, num_iters=500)[0].x
    torch.testing.assert_close(A.forward(exact), y, rtol=1e-8, atol=1e-8)
    little = gaussian_map(A, y, S, mean, variance=1e-10, tol=1e-12, num_iters=500)[0].x
    torch.testing.assert_close(little, exact, rtol=1e-4, atol=1e-4)


def test_a_prior_without_doubt_gives_the_mean(problem):
    A, y, S, mean = problem
    expected = mean.view(-1, 1, 1).expand(A.cube_shape)
    for variance in (0.0, 0.1):
        result, spread = gaussian_map(
            A, y, 0 * S, mean, variance=variance, samples=2, generator=torch.Generator().manual_seed(0)
        )
        torch.testing.assert_close(result.x, expected.contiguous())
        assert float(spread.abs().max()) == 0


def test_a_dark_pixel_without_noise_is_ignored(problem):
    A, y, S, mean = problem
    mask = A.mask.clone()
    mask[0] = 0
    A = CASSI(mask, A.shifts)
    dark = y.clone()
    dark[0] = 1e6
    seen = [gaussian_map(A, v, S, mean, variance=0.0, tol=1e-12)[0].x for v in (y, dark)]
    torch.testing.assert_close(seen[0], seen[1])
    torch.testing.assert_close(seen[0][:, 0], mean[:, None].expand(C, W).contiguous())


def test_batch_and_monitor(problem):
    A, y, S, mean = problem
    stack = torch.stack([y, 2 * y])
    records = []
    result, _ = gaussian_map(A, stack, S, mean, variance=0.1, tol=1e-12, monitor=lambda r, x: records.append(x.shape))
    for k, one in enumerate(stack):
        torch.testing.assert_close(result.x[k], gaussian_map(A, one, S, mean, variance=0.1, tol=1e-12)[0].x)
    assert records == [(2, C, H, W)] * len(result.history)


def test_errors(problem):
    A, y, S, mean = problem
    for options, words in (
        ({"covariance": S[:2, :2]}, r"must be \(3,\) and \(3, 3\)"),
        ({"covariance": torch.triu(S)}, "symmetric"),
        ({"covariance": -S}, "positive semi-definite"),
        ({"variance": -0.1}, "variance must be >= 0"),
        ({"correlation": -1.0}, "correlation must be >= 0"),
        ({"samples": 2}, "come with a generator"),
        (
            {"samples": 2, "generator": torch.Generator(), "variance": torch.ones(2, *y.shape)},
            "one variance for all snapshots",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            gaussian_map(A, y, **{"covariance": S, "mean": mean, "variance": 0.1, **options})


# the priors


def test_smooth_prior_by_hand():
    mean, S = smooth_spectral_prior([400.0, 600.0, 500.0], 2.0, brightness=0.5, color=0.25, length=0.5)
    assert mean.tolist() == [2.0, 2.0, 2.0]
    assert float(S[0, 0]) == pytest.approx(4 * (0.25 + 0.0625))
    assert float(S[0, 1]) == pytest.approx(4 * (0.25 + 0.0625 * math.exp(-2)))  # the whole range apart
    assert float(S[0, 2]) == pytest.approx(4 * (0.25 + 0.0625 * math.exp(-0.5)))  # half the range
    assert smooth_spectral_prior(1).covariance.shape == (1, 1)
    one = smooth_spectral_prior(5)
    torch.testing.assert_close(one.scaled(3.0).covariance, smooth_spectral_prior(5, 3.0).covariance)
    for bad in ({"level": 0.0}, {"length": 0.0}, {"color": -1.0}):
        with pytest.raises(ValueError, match="must be positive"):
            smooth_spectral_prior(3, **bad)
    with pytest.raises(ValueError, match="finite wavelengths"):
        smooth_spectral_prior([400.0, math.nan])


def test_library_prior_is_the_covariance_of_all_pixels(generator):
    cubes = [torch.rand(4, 5, 6, generator=generator) + 0.1, 50 * torch.rand(2, 4, 3, 3, generator=generator)]
    mean, S = library_spectral_prior(cubes)
    parts = [c.double().numpy() for c in cubes]
    spectra = [parts[0].reshape(4, -1), np.moveaxis(parts[1], 1, 0).reshape(4, -1)]
    spectra = [s / s.mean() for s in spectra]
    weights = np.concatenate([np.full(s.shape[1], 0.5 / s.shape[1]) for s in spectra])
    both = np.concatenate(spectra, axis=1)
    np.testing.assert_allclose(mean.numpy(), both @ weights, rtol=1e-6)
    np.testing.assert_allclose(S.numpy(), np.cov(both, aweights=weights, ddof=0), rtol=1e-5)


def test_resampling():
    R = resampling([600.0, 400.0, 500.0], [450.0, 600.0, 620.0])
    assert R.tolist() == [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    cube = torch.tensor([2.0, 1.0, 3.0]).view(3, 1, 1)
    assert library_spectral_prior([cube], resample=[R]).mean.tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match="take a cube that covers them"):
        resampling([400.0, 500.0], [400.0, 700.0])
    with pytest.raises(ValueError, match="at least one cube"):
        library_spectral_prior([])
    with pytest.raises(ValueError, match="must be positive"):
        library_spectral_prior([-cube])
    with pytest.raises(ValueError, match="the same bands"):
        library_spectral_prior([cube, cube[:2]])


# the program


@pytest.fixture
def snapshot():
    from cassi.simulation.camera import random_mask
    from cassi.simulation.scene import procedural_scene

    generator = torch.Generator().manual_seed(5)
    wavelengths = np.linspace(450, 650, 8)
    truth = procedural_scene(24, 32, wavelengths.tolist(), generator=generator)
    A = CASSI.from_step(random_mask(24, 32, generator=generator), 2, 8)
    return A, A.forward(truth), truth, wavelengths


def test_reconstruct_by_name_scales_with_the_unit(snapshot):
    A, y, _, wavelengths = snapshot
    made = [
        reconstruct(s * y, A.mask, step=2, wavelengths=wavelengths, solver="gaussian", uncertainty=True, device="cpu")
        for s in (1.0, 4096.0)
    ]
    torch.testing.assert_close(made[0].cube * 4096, made[1].cube)
    torch.testing.assert_close(made[0].uncertainty * 4096, made[1].uncertainty)
    assert made[0].choice["solver"] == "gaussian"
    # the less the noise of a known camera, the better the snapshot is explained
    good, poor = (
        reconstruct(y, A.mask, step=2, solver="gaussian", gain=gain, read_noise=1.0, num_iters=300, device="cpu")
        for gain in (1e5, 10.0)
    )
    assert 4 * good.residual < poor.residual


def test_a_library_of_the_scene_itself_helps(snapshot, tmp_path):
    from cassi.files import write_cube
    from cassi.looking.metrics import psnr

    A, y, truth, wavelengths = snapshot
    # the library has other bands, in another unit
    other = np.linspace(445, 655, 15)
    R = resampling(np.r_[440.0, wavelengths, 660.0], other)
    wide = torch.cat([truth[:1], truth, truth[-1:]]).double()
    path = write_cube(tmp_path / "a.h5", 7 * torch.einsum("dc,chw->dhw", R, wide).float().numpy(), wavelengths=other)
    settings = {"step": 2, "wavelengths": wavelengths, "device": "cpu", "solver": "gaussian"}
    plain = reconstruct(y, A.mask, **settings)
    learnt = reconstruct(y, A.mask, spectral_prior=[path], **settings)
    assert psnr(learnt.cube, truth) > psnr(plain.cube, truth)
    assert learnt.parameters["spectral_prior"] == ["a.h5"]
    same = reconstruct(y, A.mask, spectral_prior=as_spectral_prior([path], 8, wavelengths), **settings)
    torch.testing.assert_close(learnt.cube, same.cube)
    names = [c["basis"] for c in reconstruct(
        y, A.mask, **{**settings, "solver": "auto"}, spectral_prior=[path], num_iters=2
    ).choice["bases"]]  # fmt: skip
    assert "library-4" in names


def test_errors_of_the_library(snapshot, tmp_path):
    from cassi.files import write_cube

    A, y, truth, wavelengths = snapshot
    path = write_cube(tmp_path / "a.h5", truth[:5].numpy(), wavelengths=wavelengths[:5])
    with pytest.raises(InputError, match="has 5 bands, the measurement 8"):
        reconstruct(y, A.mask, step=2, solver="gaussian", spectral_prior=[path], device="cpu")
    with pytest.raises(InputError, match="take a cube that covers them"):
        as_spectral_prior([path], 8, wavelengths)
    with pytest.raises(InputError, match="at least one file"):
        as_spectral_prior([], 8)
    with pytest.raises(InputError, match="takes no spectral prior"):
        reconstruct(y, A.mask, step=2, solver="gap-tv", spectral_prior=[path], device="cpu")
    with pytest.raises(InputError, match="the spectral prior has 5 bands"):
        reconstruct(y, A.mask, step=2, solver="gaussian", spectral_prior=smooth_spectral_prior(5), device="cpu")
