"""The unrolled solver: its data step against dense linear algebra, units, batches, gradients, other cameras."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch
from cases import make_mask
from test_priors_learned import SMALL, stirred

import cassi.solvers.unrolled as module
from cassi import CASSI
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.multi_shot import MultiShot
from cassi.optics.psf import gaussian_psf
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.unrolled import unrolled

F64 = torch.float64


def camera(dtype=F64, weights=None) -> CASSI:
    mask = torch.from_numpy(make_mask("grey", 6, 8, 9)).to(dtype)
    return CASSI(mask, tuple(range(0, 12, 2)), weights)


def snapshot(A, seed: int = 0, batch: tuple[int, ...] = ()) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """y, its variance and a start, of a cube of random numbers."""
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.random((*batch, *A.cube_shape)))
    y = A.forward(x)
    start = torch.from_numpy(rng.standard_normal((*batch, 4, *A.cube_shape[1:])))
    return y, torch.from_numpy(rng.uniform(1e-3, 1e-1, y.shape)), start


def idle(gate: float) -> LearnedPrior:
    """A prior that corrects nothing and takes a share of the data step, in float64."""
    prior = LearnedPrior(SMALL).double().eval().requires_grad_(False)
    for value in (prior.net.leave.weight, prior.net.leave.bias):
        value.zero_()
    prior.net.leave.bias[4 * SMALL.components : 8 * SMALL.components] = (math.log(gate / (1 - gate)) + 2) / 4
    prior.log_tau += torch.linspace(-1, 1, prior.log_tau.numel(), dtype=F64).view_as(prior.log_tau)
    return prior


def test_the_data_step_is_the_best_linear_estimate(monkeypatch):
    """z + g R (y - G z), then z + R (y - G z), with R = S G^T (G S G^T + N)^-1 and G = Phi B^T, by dense matrices."""
    monkeypatch.setattr(module, "CG_ITERS", 200)
    monkeypatch.setattr(module, "LAST_CG_ITERS", 200)
    A = camera()
    y, variance, start = snapshot(A)
    B = smooth_basis(A.num_bands, 4)
    prior = idle(0.75)
    _, z = unrolled(A, y, B, prior, start, variance=variance)
    H, W = A.cube_shape[1:]
    G = oracle.matrix(A.mask.numpy(), A.shifts) @ np.kron(B.numpy().T, np.eye(H * W))
    level = float(y.sum() / A.forward(torch.ones(A.cube_shape, dtype=F64)).sum())
    s = level * math.sqrt(A.num_bands) * np.arange(1.0, 5.0) ** -1.4
    S = np.kron((np.exp(prior.log_tau[1].numpy()) * s) ** 2, np.ones(H * W))
    N = variance.numpy().ravel() + math.exp(float(prior.log_floor[1])) * level**2 * A.gram_diag().numpy().ravel()
    expected = start.numpy().ravel()
    for gate in (0.75, 1):
        r = y.numpy().ravel() - G @ expected
        expected = expected + gate * S * (G.T @ np.linalg.solve(G * S @ G.T + np.diag(N), r))
    np.testing.assert_allclose(z.numpy().ravel(), expected, rtol=1e-6, atol=1e-8)


def test_row_weights_of_zero_leave_a_pixel_out():
    weights = torch.ones(8, 19, dtype=F64)
    weights[::2, ::3] = 0
    A = camera(weights=weights)
    y, variance, start = snapshot(A)
    B, prior = smooth_basis(6, 4), stirred().double()
    expected = unrolled(A, y, B, prior, start, variance=variance)[1]
    other = torch.where(weights > 0, variance, 7.0)
    torch.testing.assert_close(unrolled(A, y, B, prior, start, variance=other)[1], expected)


@pytest.mark.parametrize("unit", [1e-4, 1e5])
def test_the_unit_of_the_measurement_does_not_matter(unit):
    A = camera()
    y, variance, start = snapshot(A)
    B, prior = smooth_basis(6, 4), stirred().double()
    result, z = unrolled(A, y, B, prior, start, variance=variance)
    scaled, z_scaled = unrolled(A, unit * y, B, prior, unit * start, variance=unit**2 * variance)
    torch.testing.assert_close(z_scaled / unit, z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(scaled.x / unit, result.x, rtol=1e-9, atol=1e-9)


def test_a_batch_is_one_after_the_other():
    A = camera()
    y, variance, start = snapshot(A, batch=(3,))
    y, start = y * torch.tensor([1.0, 5.0, 0.2]).view(3, 1, 1), start * torch.tensor([1.0, 5.0, 0.2]).view(3, 1, 1, 1)
    B, prior = smooth_basis(6, 4), stirred().double()
    together = unrolled(A, y, B, prior, start, variance=variance)[1]
    for i in range(3):
        alone = unrolled(A, y[i], B, prior, start[i], variance=variance[i])[1]
        torch.testing.assert_close(together[i], alone, rtol=1e-10, atol=1e-12)


def test_gradients_are_those_of_finite_differences():
    A = camera()
    y, variance, start = snapshot(A)
    B, prior = smooth_basis(6, 4), stirred().double().requires_grad_(True)
    prior.eval()

    def value() -> torch.Tensor:
        return unrolled(A, y, B, prior, start, variance=variance)[1].square().sum()

    value().backward()
    for p in (prior.log_tau, prior.log_floor, prior.net.enter.weight, prior.net.leave.bias):
        index = tuple(n // 2 for n in p.shape)
        with torch.no_grad():
            kept = p[index].clone()
            p[index] = kept + 1e-5
            above = value()
            p[index] = kept - 1e-5
            below = value()
            p[index] = kept
        assert float(p.grad[index]) == pytest.approx(float(above - below) / 2e-5, rel=1e-4, abs=1e-6)


def test_the_history_has_one_record_a_stage_and_the_monitor_can_stop():
    A = camera()
    y, variance, start = snapshot(A)
    seen = []
    result, _ = unrolled(
        A, y, smooth_basis(6, 4), stirred().double(), start, variance=variance, monitor=lambda r, z: seen.append(r)
    )
    assert [r.iteration for r in result.history] == [r.iteration for r in seen] == [1]
    assert result.x.shape == A.cube_shape


@pytest.mark.parametrize("kind", ["blurred", "multi-shot"])
def test_other_cameras(kind):
    A = camera()
    if kind == "blurred":
        A = BlurredCASSI(A.mask, A.shifts, psf=gaussian_psf(0.8).to(F64))
    else:
        A = MultiShot((A, CASSI(A.mask.flip(0), A.shifts)))
    y, variance, start = snapshot(A)
    result, z = unrolled(A, y, smooth_basis(6, 4), stirred().double(), start, variance=variance)
    assert z.shape == start.shape
    assert bool(result.x.isfinite().all())


def test_what_does_not_fit_is_refused():
    A = camera()
    y, variance, start = snapshot(A)
    B, prior = smooth_basis(6, 4), stirred().double()
    good = {"y": y, "basis": B, "start": start, "variance": variance}
    for wrong, words in (
        ({"y": y[:-1]}, r"measurement must end in \(8, 19\)"),
        ({"variance": variance[1:]}, r"variance must be like y, \(8, 19\)"),
        ({"basis": smooth_basis(6, 5)}, r"basis must be \(K, 6\) with K at most 4"),
        ({"start": start[:, 1:]}, r"start must be \(4, 8, 9\)"),
    ):
        with pytest.raises(ValueError, match=words):
            unrolled(A=A, prior=prior, **good | wrong)
    with pytest.raises(FloatingPointError, match="at iteration 1"):
        unrolled(A, y * math.nan, B, prior, start, variance=variance)
