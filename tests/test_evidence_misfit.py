"""What errors of the mask explain of a misfit, against dense matrices and a scene whose truth is known."""

import numpy as np
import oracle
import pytest
import torch
from scipy import ndimage

from cassi.evidence.held_out import Split
from cassi.evidence.misfit import SPREADS, Misfit
from cassi.optics.single_disperser import CASSI
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.subspace_tv import subspace_tv

SHIFTS = (0, 2, 3)


@pytest.mark.parametrize("weighted", [False, True])
def test_it_is_kriging_of_the_misfit(weighted):
    rng = np.random.default_rng(0)
    mask, x, P = rng.random((2, 5)), rng.random((3, 2, 5)), rng.random((2, 5)) if weighted else np.ones((2, 5))
    A = CASSI(torch.from_numpy(mask), SHIFTS)
    y, variance = rng.random(A.measurement_shape), 0.01 + 0.1 * rng.random(A.measurement_shape)
    fitted = rng.random(y.shape) < 0.8
    model = Misfit.of(
        A, *(torch.from_numpy(v) for v in (y, x, fitted, variance)), torch.from_numpy(P) if weighted else None
    )

    # E e = sum_c S_c (e x_c) in units of the mask's maximum: a camera whose mask is e, for the scene x
    E = np.stack([oracle.forward(x, e.reshape(2, 5), SHIFTS).ravel() for e in np.eye(10)], 1) * mask.max()
    r, f = (y - oracle.forward(x, mask, SHIFTS)).ravel(), fitted.ravel()
    everywhere = torch.arange(r.size)
    for s in SPREADS:
        prior = s**2 * np.diag(P.ravel())
        K = E @ prior @ E.T
        v = np.linalg.solve(K[f][:, f] + np.diag(variance.ravel()[f]), r[f])
        np.testing.assert_allclose(model.left([s], everywhere)[0].numpy(), r - K[:, f] @ v, atol=1e-9)
        np.testing.assert_allclose(model.error(s).numpy().ravel(), prior @ E[f].T @ v, atol=1e-9)
    np.testing.assert_allclose(model.left([0.0], everywhere)[0].numpy(), r)
    assert not model.error(0.0).any()


def test_the_truth_comes_first_through_a_wrong_mask_and_through_an_exact_one():
    """A cube that absorbs the error of the mask predicts held-out pixels better than the true one, until it is judged
    by what is left."""
    generator, bands = torch.Generator().manual_seed(0), 12
    i, j = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    truth = torch.stack([1 + 0.5 * torch.sin((i + c) / 9) * torch.cos((j - c / 2) / 7) for c in range(bands)]) / bands
    given, shifts = torch.rand(64, 64, generator=generator), tuple(range(0, 2 * bands, 2))
    for error in (0.0, 0.05, 0.1):
        true = CASSI((given + error * torch.randn(64, 64, generator=generator)).clamp(min=0), shifts)
        light = true.forward(truth)
        variance = light / 2000
        y = light + variance.sqrt() * torch.randn(light.shape, generator=generator)
        split = Split.of(CASSI(given, shifts), y, 0, 0.1)
        cube = subspace_tv(split.A_train, split.y_train, smooth_basis(bands, 4), num_iters=100)[0].x
        plain = [split.verdict(x, imprint=False) for x in (truth, cube)]
        aware = [split.knowing(variance).verdict(x, imprint=False) for x in (truth, cube)]
        assert (plain[0].squared.sum() < plain[1].squared.sum()) == (error == 0)
        assert aware[0].squared.sum() < 0.8 * aware[1].squared.sum()
        assert aware[0].spread == pytest.approx(error, abs=0.01) and plain[0].spread == 0
        assert aware[0].error == pytest.approx(plain[0].error), "what is reported is the misfit itself"


def test_errors_are_judged_relative_to_the_noise():
    A = CASSI(torch.ones(8, 8), SHIFTS)
    x, y = torch.ones(3, 8, 8), A.forward(torch.ones(3, 8, 8)) + 0.1
    variance = torch.where(torch.arange(y.shape[1]) % 2 == 0, 0.01, 0.04).expand(y.shape)
    plain = Split.of(A, y, 0, 0.5)
    known = plain.knowing(variance)
    v = variance.flatten()[known.indices].double()
    torch.testing.assert_close(known.squares_over_noise(y - A.forward(x)), 0.01 / v, rtol=1e-5, atol=0)
    left, *_ = known.without_mask_error(known.misfit_model(x))
    torch.testing.assert_close(known.verdict(x).squared, left * v / (v + v.mean()))
    torch.testing.assert_close(plain.verdict(x).squared, torch.full_like(v, 0.01), rtol=1e-5, atol=0)


@pytest.mark.parametrize("width", [0.0, 0.7])
def test_where_neighbors_have_errors_alike_centers_of_blocks_judge(width):
    """A cube that has the noise of the pixels around predicts pixels beside these, but no center of a block."""
    rng, A = np.random.default_rng(0), CASSI(torch.ones(256, 256), (0,))
    n = rng.standard_normal(A.measurement_shape)
    n = ndimage.gaussian_filter(n, width) if width else n
    noise = torch.from_numpy(0.1 * n / n.std()).float()
    y, smooth = 1 + noise, torch.ones(1, 256, 256)
    variance = torch.full(y.shape, 0.01)
    split = Split.with_blocks(A, y, 0).knowing(variance)
    assert split.correlation(smooth, variance) == pytest.approx(np.exp(-1 / (4 * width**2)) if width else 0, abs=0.02)
    fair = split.fair_to(smooth)
    assert (fair is split) == (width == 0) and fair.fair_to(smooth) is fair
    faint = Split.with_blocks(A, 1 + noise / 10, 0).knowing(variance / 100)
    assert faint.fair_to(smooth) is faint, "where there is no noise, it is texture"
    share = ndimage.uniform_filter(1.0 * ~split.held.numpy(), 3)
    around = ndimage.uniform_filter(np.where(split.held, 0, noise), 3) / np.where(share > 0.01, share, np.inf)
    rough = smooth + torch.from_numpy(around).float()
    for judge, fooled in ((split, width > 0), (fair, False)):
        assert (judge.verdict(rough, imprint=False).squared.sum() < judge.verdict(smooth).squared.sum()) == fooled
    if width:
        assert ndimage.minimum_filter(split.held, 3, mode="nearest").ravel()[fair.indices].all(), "with all around"
        assert len(fair.indices) == pytest.approx(0.01 / 9 * y.numel(), rel=0.02)
        beside = ndimage.maximum_filter(split.centers, 5).ravel()[split.indices]
        assert not beside.any(), "single pixels lie apart from blocks"
    assert len(split.indices) == pytest.approx(0.015 * (1 - 0.01 * 25 / 9) * y.numel(), rel=0.02)
