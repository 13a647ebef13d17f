"""Conjugate gradients and power iteration against dense solves and eigenvalues."""

import math

import numpy as np
import pytest
import torch
from cases import F64, random
from messages import refused

from cassi.kernels.linear import conjugate_gradient_steps, conjugate_gradients, largest_eigenvalue, linear_map


def spread(*, rank=8):
    """A symmetric 8 x 8 matrix with singular values from 1 to 1000, or singular."""
    factor = random(8, 8) * torch.logspace(0, 1.5, 8, dtype=F64)[:, None]
    return factor[:, :rank] @ factor[:, :rank].T


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("rank", [8, 5])
def test_a_dense_system(preconditioned, rank):
    """The residual told is the true one; M singular but consistent included."""
    M = spread(rank=rank)
    b = M @ random(8, seed=1)
    inverse = 1 / M.diagonal() if preconditioned else None
    steps = conjugate_gradient_steps(lambda x: M @ x, b, inverse=inverse)
    for (x, residual), _ in zip(steps, range(8), strict=False):
        assert residual == pytest.approx(float((b - M @ x).norm() / b.norm()), rel=1e-3, abs=1e-9)
    found = conjugate_gradients(lambda x: M @ x, b, inverse=inverse, num_iters=60, tol=1e-10)
    assert float((M @ found - b).norm()) <= 1e-9 * float(b.norm())


def test_as_many_steps_as_eigenvalues_and_one_with_the_right_preconditioner():
    M = torch.diag(torch.tensor([1.0, 1.0, 4.0, 4.0, 9.0], dtype=F64))
    found = conjugate_gradients(lambda x: M @ x, torch.ones(5, dtype=F64), num_iters=3, tol=0.0)
    torch.testing.assert_close(found, torch.tensor([1, 1, 0.25, 0.25, 1 / 9], dtype=F64))
    d = torch.tensor([1.0, 10.0, 1000.0], dtype=F64)
    found = conjugate_gradients(lambda x: d * x, torch.ones(3, dtype=F64), inverse=1 / d, num_iters=1, tol=0.0)
    torch.testing.assert_close(found, 1 / d)


def test_every_system_of_a_batch_is_solved_as_alone():
    M, b = spread(), random(3, 8, seed=3) * torch.tensor([[1.0], [1e6], [0.0]], dtype=F64)
    together = conjugate_gradients(lambda x: x @ M, b, axes=1, num_iters=60, tol=1e-10)
    for one, x in zip(b, together, strict=True):
        assert float((M @ x - one).norm()) <= 1e-9 * float(one.norm())
    early = conjugate_gradients(lambda x: x @ M, b, axes=1, num_iters=3, tol=0.0)
    for one, x in zip(b, early, strict=True):  # not only in the end
        torch.testing.assert_close(x, conjugate_gradients(lambda v: M @ v, one, num_iters=3, tol=0.0))


def test_nothing_is_solved_by_nothing():
    assert conjugate_gradients(lambda v: spread() @ v, torch.zeros(8, dtype=F64)).count_nonzero() == 0
    assert conjugate_gradients(lambda v: v, torch.zeros(0, 8), axes=1).shape == (0, 8)


def test_the_iteration_that_failed_is_named():
    refused(conjugate_gradients, lambda x: x, torch.tensor([1.0, math.nan]), error=FloatingPointError)
    calls = iter([1.0, 1.0, math.nan])
    M = torch.diag(torch.arange(1.0, 9.0))
    refused(conjugate_gradients, lambda x: next(calls) * (M @ x), torch.ones(8), error=FloatingPointError)


def test_the_largest_eigenvalue():
    M = spread()
    expected = float(np.linalg.eigvalsh(M.numpy())[-1])
    found = largest_eigenvalue(lambda x: M @ x, torch.ones(8, dtype=F64))
    assert found == pytest.approx(expected, rel=1e-3) and found <= expected * (1 + 1e-12)
    assert largest_eigenvalue(lambda x: 0 * x, torch.ones(8)) == 0


def test_the_derivative_of_a_solution():
    M = spread() + torch.eye(8, dtype=F64)
    b = random(8, seed=5).requires_grad_()
    solve = lambda b: torch.linalg.solve(M, b.detach())  # noqa: E731
    assert torch.autograd.gradcheck(lambda b: linear_map(b, solve, solve), b)
