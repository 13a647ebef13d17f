"""The single disperser: what is its alone; `test_optics_contract.py` has the rest."""

import dataclasses
import math

import numpy as np
import oracle
import pytest
import torch
from cases import BATCHES, F64, Case, camera, small_cameras
from hypothesis import given, strategies as st
from messages import refused

from cassi import CASSI


@given(case=small_cameras(), weighted=st.booleans())
def test_the_data_step_by_its_equations(case: Case, weighted: bool, device: torch.device, path: str):
    """y_v = Phi v; r = (rho + gram)^+ (y - y_v + y_x - y_v); x = v + Phi^T r; y_x = y_v + gram r; in place too."""
    rng = np.random.default_rng(13)
    A, phi = camera(case.size, case.shifts, case.kind, weighted)
    A = A.to(device=device)
    gram = np.diag(phi @ phi.T)
    for batch in BATCHES:
        v = rng.standard_normal((*batch, *A.cube_shape))
        y, y_x = (rng.standard_normal((*batch, *A.measurement_shape)) for _ in range(2))
        for rho, accelerate in [(0.0, True), (0.0, False), (0.7, True)]:
            flat = [a.reshape(*batch, -1) for a in (v, y, y_x)]
            y_v = flat[0] @ phi.T
            misfit = flat[1] - y_v + (flat[2] - y_v if accelerate else 0.0)
            total = gram + rho
            r = np.divide(misfit, total, out=np.zeros_like(misfit), where=total > 1e-12)
            expected = {"x": flat[0] + r @ phi, "y_v": y_v, "y_x": y_v + gram * r}
            given_v, given_y, given_y_x = (torch.as_tensor(a, device=device).clone() for a in (v, y, y_x))
            out_y = torch.full_like(given_y, math.nan)
            for x in (torch.full_like(given_v, math.nan), given_v):
                before = x.clone()
                y_x_now = given_y_x.clone()
                done = A.data_step_(given_v, x, given_y, y_x_now, out_y, rho=rho, accelerate=accelerate)
                assert done == (path == "default")
                if not done:
                    assert torch.equal(before.nan_to_num(), x.nan_to_num()), "nothing is written"
                    continue
                got = {"x": x, "y_v": out_y, "y_x": y_x_now}
                for name, value in expected.items():
                    flattened = got[name].cpu().numpy().reshape(value.shape)
                    np.testing.assert_allclose(flattened, value, atol=1e-12, err_msg=name)
                if x is not given_v:
                    assert torch.equal(given_v, torch.as_tensor(v, device=device)), "v is only read"
            assert torch.equal(given_y, torch.as_tensor(y, device=device))


def test_the_operator_keeps_its_own_values(generator):
    mask, weights, shifts = torch.rand(4, 5, generator=generator), torch.rand(4, 7, generator=generator), [0, 1, 2]
    A = CASSI(mask, shifts, weights)
    x = torch.randn(A.cube_shape, generator=generator)
    y, gram = A.forward(x), A.gram_diag()
    mask.zero_()
    weights.mul_(3.0)
    shifts[0] = 9
    assert torch.equal(A.forward(x), y)
    assert torch.equal(A.gram_diag(), gram)
    with pytest.raises(dataclasses.FrozenInstanceError):
        A.mask = mask


@pytest.mark.long
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("mask_shape", [(2, 3), (3, 2, 3)], ids=["shared", "per-band"])
@pytest.mark.parametrize("shifts", [(0, 1, 2), (1, -2, 0)], ids=str)
def test_derivatives_in_x_y_and_the_mask(shifts, mask_shape, weighted, generator):
    """Against finite differences: forward, adjoint, pinv, prox, gram_diag; second derivatives of the linear ones."""
    mask = (torch.rand(mask_shape, generator=generator, dtype=F64) + 0.3).requires_grad_()
    width = oracle.detector_columns(3, shifts)
    w = torch.rand(2, width, generator=generator, dtype=F64) if weighted else None
    x = torch.randn(2, 3, 2, 3, generator=generator, dtype=F64).requires_grad_()
    y = torch.randn(2, 2, width, generator=generator, dtype=F64).requires_grad_()
    check, check_twice = torch.autograd.gradcheck, torch.autograd.gradgradcheck
    assert check(lambda x, m: CASSI(m, shifts, w).forward(x), (x, mask))
    assert check(lambda y, m: CASSI(m, shifts, w).adjoint(y), (y, mask))
    assert check(lambda y, m: CASSI(m, shifts, w).pinv(y), (y, mask))
    assert check(lambda x, y, m: CASSI(m, shifts, w).prox(x, y, 0.5), (x, y, mask))
    assert check(lambda m: CASSI(m, shifts, w).gram_diag(), (mask,))
    assert check_twice(lambda x, m: CASSI(m, shifts, w).forward(x), (x, mask))
    assert check_twice(lambda y, m: CASSI(m, shifts, w).adjoint(y), (y[0].detach().requires_grad_(), mask))


@pytest.mark.parametrize("which", ["mask", "weights"])
def test_two_backward_passes_through_one_operator(which, generator):
    """No autograd graph is kept inside: a second loss through the same operator has its own."""
    mask, weights = torch.rand(2, 3, generator=generator), torch.rand(2, 4, generator=generator)
    leaf = {"mask": mask, "weights": weights}[which].requires_grad_()
    A = CASSI(mask, (0, 1), weights)
    y = torch.randn(2, 4, generator=generator)
    first, second = (torch.autograd.grad(A.pinv(y).square().sum(), leaf)[0] for _ in range(2))
    assert torch.equal(first, second) and float(first.norm()) > 0


def test_the_operator_with_a_learned_mask_follows_it(generator):
    """After a step in place the operator is the new mask's; the gradient is finite at dark pixels."""
    mask, y = torch.rand(2, 3, generator=generator).requires_grad_(), torch.randn(2, 4, generator=generator)
    A = CASSI(mask, (0, 1))
    with torch.no_grad():
        mask.mul_(2.0)
    fresh = CASSI(mask.detach(), (0, 1))
    torch.testing.assert_close(A.gram_diag(), fresh.gram_diag())
    torch.testing.assert_close(A.pinv(y), fresh.pinv(y))
    dark, y = torch.tensor([[0.0, 1.0]], dtype=F64, requires_grad=True), torch.tensor([[1.0, 2.0, 3.0]], dtype=F64)
    A = CASSI(dark, (0, 1))
    for value in (A.pinv(y), A.prox(A.pinv(y), y, 0.1)):
        assert bool(torch.isfinite(torch.autograd.grad(value.sum(), dark)[0]).all())


MASK = torch.ones(4, 5)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: CASSI(np.ones((4, 5)), (0, 1)), TypeError),
        (lambda: CASSI(MASK.int(), (0, 1)), TypeError),
        (lambda: CASSI(MASK, 3), TypeError),
        (lambda: CASSI(MASK, (0, 1.5)), TypeError),
        (lambda: CASSI(MASK, (0, math.nan)), TypeError),
        (lambda: CASSI(MASK, ()), ValueError),
        (lambda: CASSI(MASK[0], (0,)), ValueError),
        (lambda: CASSI(MASK[:0], (0,)), ValueError),
        (lambda: CASSI(torch.ones(3, 4, 5), (0, 1)), ValueError),
        (lambda: CASSI(MASK, (0, 1), torch.ones(4, 5)), ValueError),
        (lambda: CASSI.from_step(MASK, 2, 0), ValueError),
        (lambda: CASSI(MASK, (0, 1), mask_error="0.1"), ValueError),
        (lambda: CASSI(MASK, (0, 1), mask_error=-0.1), ValueError),
        (lambda: CASSI(MASK, (0,)).to(dtype=torch.int64), TypeError),
    ],
)  # fmt: skip
def test_what_cannot_be_a_camera(make, error):
    refused(make, error=error)


def test_shifts_that_are_whole_numbers_of_any_type_are_taken():
    for shifts in ([0, 2], np.array([0, 2]), torch.tensor([0, 2]), (0.0, 2.0)):
        A = CASSI(MASK, shifts)
        assert A.shifts == (0, 2)
        assert all(type(d) is int for d in A.shifts)
