"""The usual ways to write a shift-sum agree with ours, and the fast solvers with their plain text."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from benchmarks import textbook_shift_sum as usual
from torch import Tensor

from cassi import CASSI, admm_tv, gap_tv
from cassi.kernels.shift_sum import data_step_, shift_back, shift_sum
from cassi.solvers.textbook import admm_tv_reference, gap_tv_reference

F64 = torch.float64
every_shifts = pytest.mark.parametrize("shifts", [(0,), (0, 2, 4), (-3, 1, 0), (2, 0, -2, -4), (5, 5)], ids=str)
every_batch = pytest.mark.parametrize("batch", [(), (3,)], ids=["single", "batch"])


def random(*shape: int, seed: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64) + 0.1


@every_shifts
@every_batch
def test_three_ways_to_sum(shifts, batch):
    z, ones = random(*batch, len(shifts), 4, 5, seed=1), np.ones((4, 5))
    cubes = z.reshape(-1, *z.shape[-3:]).numpy()
    expected = torch.as_tensor(np.stack([oracle.forward(cube, ones, shifts) for cube in cubes])).view(*batch, 4, -1)
    for way in (usual.sum_by_slices, usual.sum_by_convolution, usual.sum_by_scatter):
        torch.testing.assert_close(way(z, shifts), expected)
    torch.testing.assert_close(shift_sum(z, z.new_ones(4, 5), shifts), expected)


@every_shifts
@every_batch
def test_three_ways_back(shifts, batch):
    width = 5
    y = random(*batch, 4, width + max(shifts) - min(shifts), seed=2)
    for back, there in (
        (usual.back_by_slices, usual.sum_by_slices),
        (usual.back_by_convolution, usual.sum_by_convolution),
        (usual.back_by_gather, usual.sum_by_scatter),
    ):
        z = back(y, shifts, width)
        torch.testing.assert_close(z, shift_back(y, y.new_ones(4, width), shifts))
        other = random(*z.shape, seed=3)
        torch.testing.assert_close((z * other).sum(), (y * there(other, shifts)).sum())


def test_the_inverse_by_division_is_a_right_inverse_but_not_the_smallest():
    mask, shifts = random(4, 5, seed=4), (0, 1, 2)
    A = CASSI(mask, shifts)
    y = A.forward(random(3, 4, 5, seed=5))
    alpha = usual.overlap_count(mask, shifts)
    assert alpha[0].tolist() == [1, 2, 3, 3, 3, 2, 1]
    x = usual.inverse_by_division(y, mask, shifts, alpha)
    torch.testing.assert_close(usual.inverse_in_place(y, mask, shifts, alpha), x)
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
