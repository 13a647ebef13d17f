"""Cameras handed to other libraries: theirs against dense matrices."""

import sys

import numpy as np
import pytest
import torch
from cases import F64, camera, noisy, scene
from messages import refused

from cassi import MultiShot
from cassi.optics.bridges import deepinv_physics, pylops_operator, scipy_operator


def test_scipy_has_the_matrix_and_its_transpose_in_either_precision():
    A, phi = camera(weighted=True)
    operator = scipy_operator(A)
    assert (operator.shape, operator.dtype) == (phi.shape, np.float64)
    np.testing.assert_allclose(operator @ np.eye(phi.shape[1]), phi, atol=1e-15)
    np.testing.assert_allclose(operator.H @ np.eye(phi.shape[0]), phi.T, atol=1e-15)
    single = scipy_operator(A.to(dtype=torch.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single @ np.ones(phi.shape[1]), phi.sum(1), rtol=1e-5)


def test_pylops_combines_it():
    pylops = pytest.importorskip("pylops")
    A, phi = camera()
    y = noisy(A).numpy().ravel()
    damped = pylops.optimization.leastsquares.regularized_inversion(
        pylops_operator(A), y, [pylops.Identity(phi.shape[1])], epsRs=[0.3], iter_lim=300, atol=1e-13, btol=1e-13
    )[0]
    np.testing.assert_allclose(damped, np.linalg.solve(phi.T @ phi + 0.09 * np.eye(phi.shape[1]), phi.T @ y), atol=1e-8)


@pytest.mark.parametrize("shots", [1, 2])
def test_deepinv_has_forward_adjoint_inverse_and_prox(shots):
    pytest.importorskip("deepinv")
    A, phi = camera()
    if shots == 2:
        other, lower = camera(kind="binary")
        A, phi = MultiShot([A, other]), np.concatenate([phi, lower])
    physics, x = deepinv_physics(A), torch.stack([scene(camera()[0], 1), scene(camera()[0], 2)])
    y = physics(x)
    assert y.shape == (2, shots, *A.measurement_shape[-2:])
    flat = x.flatten(1).numpy()
    np.testing.assert_allclose(y.flatten(1), flat @ phi.T, atol=1e-12)
    assert float(physics.adjointness_test(x)) == pytest.approx(0, abs=1e-10)
    small = {"atol": 1e-8} if shots == 1 else {"atol": 1e-2}  # of two shots by iteration
    np.testing.assert_allclose(physics.A_dagger(y).flatten(1), y.flatten(1).numpy() @ np.linalg.pinv(phi).T, **small)
    gamma, z = 0.7, torch.ones(2, *A.cube_shape, dtype=F64)
    normal = gamma * phi.T @ phi + np.eye(phi.shape[1])
    right = gamma * y.flatten(1).numpy() @ phi + z.flatten(1).numpy()
    found = physics.prox_l2(z, y, torch.tensor(gamma))
    np.testing.assert_allclose(found.flatten(1), np.linalg.solve(normal, right.T).T, **small)


@pytest.mark.parametrize(("bridge", "package"), [(pylops_operator, "pylops"), (deepinv_physics, "deepinv")])
def test_a_missing_package_is_named_with_its_extra(bridge, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)  # as Python has it: an import of it fails
    monkeypatch.setitem(sys.modules, "deepinv.physics", None)
    refused(bridge, camera()[0])
