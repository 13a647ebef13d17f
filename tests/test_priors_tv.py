"""Total variation: the prox by closed forms, certificates and an outside solver."""

import math

import numpy as np
import oracle
import pytest
import torch
from cases import F64, differences, random, tv, tv_prox
from messages import refused

from cassi.priors.tv import TVDenoiser

SIZES = [(1, 1, 1), (1, 1, 6), (2, 5, 1), (3, 4, 4), (2, 5, 3), (1, 7, 6)]


def tv_gap(u: torch.Tensor, q: torch.Tensor, weight: float) -> float:
    """weight TV(u) - <D u, q> >= 1/2 |u - u*|^2, with u* the exact solution: needs no reference."""
    return weight * float(tv(u)) - float((differences(u) * q).sum())


def differences_adjoint(q: torch.Tensor) -> torch.Tensor:
    x = torch.zeros_like(q[0], requires_grad=True)
    return torch.autograd.grad((differences(x) * q).sum(), x)[0]


def test_weight_zero_and_a_constant_change_nothing_and_a_huge_weight_leaves_the_mean_of_each_band(path):
    v = random(2, 3, 5, 6)
    constant = torch.tensor([2.5, -1.0], dtype=F64)[:, None, None].expand(2, 5, 6).contiguous()
    for image, weight in ((v, 0.0), (constant, 3.0)):
        u, dual = tv_prox(image, weight, num_iters=20)
        assert torch.equal(u, image)
        assert float(dual.abs().max()) < 1e-18
    v = random(2, 3, 3, 4)
    u, _ = tv_prox(v, 1e3, num_iters=800)
    torch.testing.assert_close(u, v.mean((-2, -1), keepdim=True).expand_as(v), rtol=0, atol=1e-9)


@pytest.mark.parametrize("size", SIZES[1:], ids=str)
@pytest.mark.parametrize("weight", [0.05, 0.5])
def test_the_prox_against_an_outside_solver(size, weight, path):
    v = random(*size)
    u, dual = tv_prox(v, weight, num_iters=1000)
    np.testing.assert_allclose(u.numpy(), oracle.tv_prox(v.numpy(), weight), atol=2e-5)
    assert tv_gap(u, dual, weight) <= 1e-7


@pytest.mark.parametrize("num_iters", [0, 1, 3, 10, 100])
def test_the_gap_certifies_the_distance_to_the_solution(num_iters, path):
    """1/2 |u - u*|^2 <= gap at every stage, with u* from outside; u = v - D^T q, and q feasible."""
    v, weight = random(2, 5, 6, seed=3), 0.4
    exact = torch.as_tensor(oracle.tv_prox(v.numpy(), weight))
    u, dual = tv_prox(v, weight, num_iters=num_iters)
    gap = tv_gap(u, dual, weight)
    assert 0.5 * float((u - exact).square().sum()) <= gap + 1e-9
    torch.testing.assert_close(u, v - differences_adjoint(dual))
    assert float(dual.square().sum(0).sqrt().max()) <= weight * (1 + 1e-12)
    d = oracle.difference_matrix(5, 6)
    by_hand = weight * oracle.tv(u.numpy())
    by_hand -= sum(float((d @ u[c].numpy().ravel()) @ dual[:, c].reshape(-1).numpy()) for c in range(2))
    assert gap == pytest.approx(by_hand, rel=1e-10)


def prox(v: torch.Tensor, weight: float | torch.Tensor = 0.3, **options) -> torch.Tensor:
    return tv_prox(v, weight, num_iters=40, **options)[0]


def test_symmetries(path):
    """Transposition, order of bands, a constant, a common factor: each iterate follows exactly."""
    v = random(3, 6, 7)
    u = prox(v)
    close = {"rtol": 0, "atol": 1e-12}
    torch.testing.assert_close(prox(v.mT.contiguous()).mT, u, **close)
    torch.testing.assert_close(prox(v.flip(0).contiguous()).flip(0), u, **close)
    torch.testing.assert_close(prox(v + 5.0), u + 5.0, **close)
    torch.testing.assert_close(prox(-v), -u, **close)
    torch.testing.assert_close(prox(1e3 * v, 300.0) / 1e3, u, **close)
    torch.testing.assert_close(u.mean((-2, -1)), v.mean((-2, -1)), **close)


def test_a_weight_for_each_band(path):
    v, weights = random(2, 3, 5, 6), torch.tensor([0.0, 0.2, 0.9], dtype=F64)[:, None, None]
    u, _ = tv_prox(v, weights, num_iters=12)
    for c, w in enumerate((0.0, 0.2, 0.9)):
        torch.testing.assert_close(u[:, c], tv_prox(v[:, c : c + 1], w, num_iters=12)[0][:, 0], rtol=0, atol=1e-13)
    per_cube = torch.tensor([0.1, 0.5], dtype=F64)[:, None, None, None]
    found, alone = tv_prox(v, per_cube, num_iters=12)[0][1], tv_prox(v[1], 0.5, num_iters=12)[0]
    torch.testing.assert_close(found, alone, rtol=0, atol=1e-13)


def test_a_warm_start_goes_on_exactly(path):
    """n + m steps are n steps and then m from the dual handed over, bit for bit; nothing given is modified."""
    v = random(2, 3, 6, 7)
    before = v.clone()
    whole = tv_prox(v, 0.3, num_iters=11)
    _, dual = tv_prox(v, 0.3, num_iters=4)
    kept = dual.clone()
    resumed = tv_prox(v, 0.3, num_iters=7, dual=dual)
    assert torch.equal(whole[0], resumed[0]) and torch.equal(whole[1], resumed[1])
    assert torch.equal(dual, kept) and torch.equal(v, before)
    tv_prox(random(3, 6, 7), 0.1, num_iters=3)  # another call between: nothing is stored
    again = tv_prox(v, 0.3, num_iters=11)
    assert torch.equal(whole[0], again[0]) and torch.equal(whole[1], again[1])


def test_zero_steps_apply_the_dual(path):
    v, dual = random(2, 5, 6), 0.1 * differences(random(2, 5, 6, seed=1))
    u, same = tv_prox(v, 1.0, num_iters=0, dual=dual)
    torch.testing.assert_close(u, v - differences_adjoint(dual))
    assert torch.equal(same, dual)


def test_any_memory_layout(path):
    v = random(6, 7, 3).permute(2, 0, 1)
    torch.testing.assert_close(prox(v), prox(v.contiguous()), rtol=0, atol=1e-13)
    sliced = random(3, 8, 9)[:, 1:7, 1:8]
    torch.testing.assert_close(prox(sliced), prox(sliced.contiguous()), rtol=0, atol=1e-13)


def test_the_denoiser_is_the_warm_started_prox(path):
    """The dual of call k is that of call k - 1, gone on with in place."""
    denoise = TVDenoiser(0.2, num_iters=3)
    dual = None
    for k in range(3):
        v = random(2, 5, 6, seed=k)
        expected, dual = tv_prox(v, 0.2, num_iters=3, dual=dual)
        x = v.clone()
        assert denoise(x, k) is x
        torch.testing.assert_close(x, expected, rtol=0, atol=1e-13)


def test_what_is_refused():
    for bad in (-0.1, math.nan, torch.tensor([1.0, -2.0])[:, None, None]):
        refused(TVDenoiser, bad, error=ValueError)
    refused(TVDenoiser, 0.1, error=ValueError, memory=2)
    refused(TVDenoiser, 0.1, error=ValueError, num_iters=2.5)
