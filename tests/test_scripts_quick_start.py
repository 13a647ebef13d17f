"""The quick start: a batch is one snapshot after the other, it is subspace TV, and it finds the noise."""

import pytest
import torch
from training.quick_start import MIN_VARIANCE, quick_start, variance_at

from cassi import CASSI
from cassi.optics.detector import object_levels
from cassi.priors.spectral_basis import smooth_basis, synthesise
from cassi.simulation.scene import procedural_scene
from cassi.solvers.subspace_tv import subspace_tv

NM = torch.linspace(450, 650, 10)


def snapshots(noise: float = 0.0, seed: int = 0, side: int = 48):
    """Three scenes whose levels differ by 100, a camera, and what it sees, with a deviation of so many levels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.stack([k * procedural_scene(side, side, NM, generator=generator) for k in (0.1, 1.0, 10.0)])
    A = CASSI.from_step(torch.rand(side, side, generator=generator), 2, len(NM))
    y = A.forward(x)
    y = y + noise * object_levels(A, y)[:, None, None] * torch.randn(y.shape, generator=generator)
    seen = (torch.rand(y.shape[1:], generator=generator) >= 0.03).float()
    return x, A, y, seen, smooth_basis(len(NM), 8).float()


def test_a_batch_is_one_after_the_other():
    _, A, y, seen, B = snapshots(0.02)
    together = quick_start(A, y, B, seen, num_iters=9)
    for i in range(3):
        for a, b in zip(together, quick_start(A, y[i], B, seen, num_iters=9), strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))


def test_it_is_subspace_tv():
    """With the noise known, in two runs."""
    _, A, y, seen, B = snapshots(0.05)
    lam = float(object_levels(A, y[1]))
    given = torch.full_like(y[1], (0.05 * lam) ** 2)
    found, variance = quick_start(A, y[1], B, seen, num_iters=12, variance=given)
    train, least = A.leave_out(seen > 0), MIN_VARIANCE * lam**2 * float(A.gram_diag().mean())
    assert float(given.min()) > least
    _, state = subspace_tv(train, y[1] * seen, B, variance=least, tv_weight=lam, num_iters=4)
    _, state = subspace_tv(train, y[1] * seen, B, variance=given * seen, tv_weight=lam, num_iters=8, state=state)
    torch.testing.assert_close(found, state.z, rtol=1e-4, atol=1e-5)
    assert torch.equal(variance, given)


def test_it_finds_the_noise_and_the_scene():
    deviations = []
    for noise in (0.05, 0.2):
        x, A, y, seen, B = snapshots(noise, side=96)
        z, variance = quick_start(A, y, B, seen)
        level = object_levels(A, y)
        deviations.append((variance.mean((1, 2)).sqrt() / level).numpy())
        errors = (synthesise(z, B) - x).flatten(1).norm(dim=1) / x.flatten(1).norm(dim=1)
        assert float(errors.max()) < 0.45
    low, high = deviations  # of noise, and what the cube lacks
    assert bool((low > 0.05).all()) and bool((high > 0.2).all())
    assert bool((high < 0.35).all()) and bool((low < 0.7 * high).all())


@pytest.mark.parametrize(("alpha", "beta"), [(0.1, 0.5), (0.0, 2.0), (3.0, 0.01)])
def test_a_line_of_variance_is_found_again(alpha, beta):
    level = torch.linspace(0, 5, 400, dtype=torch.float64).view(1, 20, 20)
    held = (torch.arange(400) % 3 == 0).double().view(20, 20)
    wrong_elsewhere = torch.where(held > 0, alpha * level + beta, 1e9)
    found = variance_at(level, wrong_elsewhere, held)
    dark = level[(held > 0).expand_as(level) & (level <= level[:, held > 0].mean())]
    least = 0.1 * (alpha * float(dark.mean()) + beta)  # of what the darker half has
    slope = min(alpha, 9 * least / float(dark.mean()))
    expected = slope * level + alpha * float(dark.mean()) + beta - slope * float(dark.mean())
    torch.testing.assert_close(found, expected)


def test_where_no_light_arrives_noise_is_not_divided_by_next_to_nothing():
    x, A, y, seen, B = snapshots(0.05)
    mask = A.mask.clone()
    mask[10:14] = 1e-9
    A = CASSI(mask, A.shifts)
    z, _ = quick_start(A, y, B, seen)
    assert float(synthesise(z, B)[1].abs().max()) < 3 * float(x[1].max())
