"""The usual ways to write a shift-sum agree with ours, and the fast solvers with their plain text."""

from __future__ import annotations

import pytest
import torch
from benchmarks import textbook_shift_sum as usual
from torch import Tensor

from cassi import CASSI, admm_tv, gap_tv
from cassi.kernels.shift_sum import data_step_
from cassi.solvers.textbook import admm_tv_reference, gap_tv_reference

F64 = torch.float64


def random(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64) + 0.1


def test_the_inverse_by_division_is_a_right_inverse_but_not_the_smallest():
    mask, shifts = random(4, 5, seed=4), (0, 1, 2)
    A = CASSI(mask, shifts)
    y = A.forward(random(3, 4, 5, seed=5))
    alpha = usual.overlap_count(mask, shifts)
    assert alpha[0].tolist() == [1, 2, 3, 3, 3, 2, 1]
    x = usual.inverse_by_division(y, mask, shifts, alpha)
    torch.testing.assert_close(A.forward(x), y)
    assert A.pinv(y).norm() < 0.99 * x.norm()
    ones = torch.ones_like(mask)
    torch.testing.assert_close(usual.inverse_by_division(y, ones, shifts, alpha), CASSI(ones, shifts).pinv(y))


def test_the_naive_data_step_is_ours_without_acceleration():
    mask, shifts = random(4, 5, seed=6), (0, 2)
    A = CASSI(mask, shifts)
    v, y = random(2, 4, 5, seed=7), random(4, 7, seed=8)
    x, y_x, y_v = torch.empty_like(v), torch.empty_like(y), torch.empty_like(y)
    data_step_(v, x, y, y_x, y_v, mask, shifts, A.gram_diag(), accelerate=False)
    torch.testing.assert_close(usual.data_step_naive(v, y, mask, shifts, A.gram_diag()), x)


def camera(weighted: bool) -> tuple[CASSI, Tensor]:
    mask = random(3, 9, 8, seed=9)
    mask[:, :, 0] = 0
    A = CASSI(mask, (0, 3, 1))
    if weighted:
        weights = random(*A.measurement_shape, seed=10)
        weights[2, 3] = 0
        A = A.weighted(weights)
    return A, A.forward(random(2, *A.cube_shape, seed=11))


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_the_fast_solvers_compute_the_iterates_of_the_plain_ones(path, weighted):
    A, y = camera(weighted)
    options = {"tv_weight": 0.05, "num_iters": 12, "tv_iters": 3}
    plain = {"accelerate": False, "memory": 1.0}
    for extra in ({}, {"memory": 0.0}, plain, {"memory": 0.7}):
        got, expected = gap_tv(A, y, **options, **extra).x, gap_tv_reference(A, y, **options, **extra)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)
    got, expected = admm_tv(A, y, rho=0.2, **options).x, admm_tv_reference(A, y, rho=0.2, **options)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_in_single_precision_they_differ_by_rounding_alone():
    A, y = camera(weighted=False)
    A, y = A.to(dtype=torch.float32), y.float()
    options = {"tv_weight": 0.05, "num_iters": 30}
    torch.testing.assert_close(gap_tv(A, y, **options).x, gap_tv_reference(A, y, **options), rtol=0, atol=2e-5)
