"""Least squares by closed form, conjugate gradients, scipy and dense matrices; no recorded numbers."""

import math

import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from cases import F64, Plain, camera, noisy
from messages import refused

from cassi import MultiShot, least_squares


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("kind", ["grey", "binary", "dark-column", "per-band"])
@pytest.mark.parametrize("damping", [0.0, 1e-3, 0.5])
def test_ridge_by_four_ways(damping, kind, weighted):
    """Closed form, conjugate gradients, scipy's LSQR and the dense normal equations."""
    A, phi = camera((3, 5, 6), kind=kind, weighted=weighted)
    y = torch.randn(A.measurement_shape, generator=torch.Generator().manual_seed(2), dtype=F64)  # not in the range
    closed = least_squares(A, y, damping=damping)
    assert (closed.status, len(closed.history)) == ("finished", 1)
    expected = scipy.sparse.linalg.lsqr(phi, y.numpy().ravel(), damp=damping**0.5, atol=1e-15, btol=1e-15)[0]
    np.testing.assert_allclose(closed.x.numpy().ravel(), expected, atol=1e-9)
    if damping:
        normal = np.linalg.solve(phi.T @ phi + damping * np.eye(phi.shape[1]), phi.T @ y.numpy().ravel())
    else:
        normal = np.linalg.lstsq(phi, y.numpy().ravel(), rcond=1e-12)[0]
    np.testing.assert_allclose(closed.x.numpy().ravel(), normal, atol=1e-10)
    result = least_squares(Plain(A), y, damping=damping, num_iters=500, tol=1e-12)
    assert result.status == "converged"
    torch.testing.assert_close(result.x, closed.x, rtol=0, atol=1e-9)
    assert closed.history[0].residual == pytest.approx(float((y - A.forward(closed.x)).norm() / y.norm()), rel=1e-12)


def test_snapshots_that_contradict_each_other_are_fitted_as_well_as_can_be():
    """Two shots by one camera, each with its own noise: no cube explains both; numpy's least squares is the judge."""
    A, phi = camera((3, 5, 6), kind="grey")
    twice = Plain(MultiShot((A, A)))
    y = torch.randn(twice.measurement_shape, generator=torch.Generator().manual_seed(2), dtype=F64)
    expected = np.linalg.lstsq(np.concatenate([phi, phi]), y.numpy().ravel(), rcond=1e-12)[0]
    found = least_squares(twice, y, num_iters=500, tol=1e-12)
    assert found.status == "converged"
    np.testing.assert_allclose(found.x.numpy().ravel(), expected, atol=1e-9)
    assert len(least_squares(Plain(A), y[0], damping=0.1, tol=1e-10).history) == 1, "preconditioned, one step does"


@pytest.mark.parametrize("damping", [0.0, 0.1])
@pytest.mark.parametrize("make", [lambda A: A, Plain], ids=["closed", "cg"])
def test_the_monitor_of_least_squares_sees_the_cube(make, damping):
    A, _ = camera()
    seen = []
    result = least_squares(make(A), noisy(A), damping=damping, monitor=lambda r, x: seen.append((r, x.clone())))
    assert tuple(r for r, _ in seen) == result.history
    torch.testing.assert_close(seen[-1][1], result.x)


def test_what_least_squares_refuses():
    A, _ = camera()
    y = noisy(A)
    for damping in (-1.0, math.nan):
        refused(least_squares, A, y, error=ValueError, damping=damping)
    for operator in (A, Plain(A)):
        refused(least_squares, operator, y * math.nan, error=FloatingPointError)
