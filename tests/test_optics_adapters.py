"""Views of an operator: equal to the operator itself, and accepted by the solvers of other libraries."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from cases import tv
from oracle import matrix
from scipy.sparse.linalg import lsqr
from torch import Tensor

from cassi import CASSI, admm_tv
from cassi.optics.adapters import as_deepinv, as_scipy
from cassi.optics.protocol import Camera

HEIGHT, WIDTH, SHIFTS = 6, 7, (3, 0, 1)


def camera(dtype: torch.dtype = torch.float64) -> CASSI:
    mask = torch.rand(HEIGHT, WIDTH, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return CASSI(mask.to(dtype), SHIFTS)


def dense(A: CASSI) -> np.ndarray:
    return matrix(A.mask.numpy(), SHIFTS)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class OnlyForwardAndAdjoint(Camera):
    """A camera without closed forms."""

    dtype, tol, max_iters = torch.float64, 1e-10, 200
    cube_shape, measurement_shape = (3, 6, 7), (6, 10)

    def __init__(self, A: CASSI) -> None:
        self.forward, self.adjoint = A.forward, A.adjoint

    def forward(self, x, *, out=None): ...

    def adjoint(self, y, *, out=None, add=False): ...


# SciPy


def test_the_scipy_view_is_the_dense_matrix() -> None:
    A = camera()
    view = as_scipy(A)
    phi = dense(A)
    assert view.shape == phi.shape == (6 * 10, 3 * 6 * 7)
    assert view.dtype == np.float64
    np.testing.assert_allclose(view @ np.eye(phi.shape[1]), phi, atol=1e-15)
    np.testing.assert_allclose(view.H @ np.eye(phi.shape[0]), phi.T, atol=1e-15)
    x = normal(phi.shape[1]).numpy()
    x.setflags(write=False)
    np.testing.assert_allclose(view.matvec(x), phi @ x, rtol=1e-12)


def test_the_scipy_view_of_a_single_precision_camera_takes_and_gives_float64() -> None:
    view = as_scipy(camera(torch.float32))
    y = view.matvec(np.ones(view.shape[1]))
    assert y.dtype == np.float64
    np.testing.assert_allclose(y, dense(camera()) @ np.ones(view.shape[1]), rtol=1e-6)


def test_lsqr_finds_the_pseudo_inverse_and_the_damped_solution() -> None:
    A = camera()
    y = normal(*A.measurement_shape)
    x = lsqr(as_scipy(A), y.numpy().ravel(), atol=1e-14, btol=1e-14)[0]
    np.testing.assert_allclose(x.reshape(A.cube_shape), A.pinv(y), atol=1e-9)
    damped = lsqr(as_scipy(A), y.numpy().ravel(), damp=0.5, atol=1e-14, btol=1e-14)[0]
    np.testing.assert_allclose(
        damped.reshape(A.cube_shape), A.prox(torch.zeros(A.cube_shape).double(), y, 0.25), atol=1e-9
    )


def test_pylops_takes_the_scipy_view() -> None:
    pylops = pytest.importorskip("pylops", reason="PyLops is not installed: pip install pylops")
    A = camera()
    y = normal(*A.measurement_shape)
    operator = pylops.aslinearoperator(as_scipy(A))
    assert pylops.utils.dottest(operator, *operator.shape, rtol=1e-10)
    x = pylops.optimization.leastsquares.regularized_inversion(
        operator, y.numpy().ravel(), [pylops.Identity(operator.shape[1])], epsRs=[0.5], show=False,
        engine="scipy", **{"atol": 1e-14, "btol": 1e-14},
    )[0]  # fmt: skip
    np.testing.assert_allclose(x.reshape(A.cube_shape), A.prox(torch.zeros(A.cube_shape).double(), y, 0.25), atol=1e-8)


# deepinv


@pytest.fixture(scope="module")
def deepinv() -> ModuleType:
    try:
        import deepinv
    except Exception as error:  # a torchvision that does not fit the installed torch fails in many ways
        pytest.skip(f"deepinv cannot be imported here: {error}")
    return deepinv


def test_without_deepinv_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepinv.physics", None)
    with pytest.raises(ImportError, match=r'pip install "cassi\[deepinv\]"'):
        as_deepinv(camera())


def test_the_deepinv_view_is_the_dense_matrix(deepinv: ModuleType) -> None:
    A = camera()
    physics, phi = as_deepinv(A), dense(A)
    assert isinstance(physics, deepinv.physics.LinearPhysics)
    x, y = normal(2, *A.cube_shape), normal(2, 1, *A.measurement_shape, seed=1)
    np.testing.assert_allclose(physics(x).reshape(2, -1), x.reshape(2, -1).numpy() @ phi.T, rtol=1e-10)
    assert physics(x).shape == (2, 1, 6, 10)
    np.testing.assert_allclose(physics.A_adjoint(y).reshape(2, -1), y.reshape(2, -1).numpy() @ phi, rtol=1e-10)
    found = physics.A_dagger(y)
    assert found.shape == (2, *A.cube_shape)
    np.testing.assert_allclose(found.reshape(2, -1), y.reshape(2, -1).numpy() @ np.linalg.pinv(phi).T, atol=1e-10)
    assert abs(float(physics.adjointness_test(x))) < 1e-10


@pytest.mark.parametrize("z", ["tensor", 0.5, None])
def test_the_deepinv_prox_is_the_ridge_solution(deepinv: ModuleType, z: object) -> None:
    A = camera()
    y, gamma = normal(2, 1, *A.measurement_shape), 0.7
    start = normal(2, *A.cube_shape, seed=1) if z == "tensor" else z
    phi = dense(A)
    around = np.full((2, phi.shape[1]), z or 0.0) if z != "tensor" else start.reshape(2, -1).numpy()
    right = gamma * y.reshape(2, -1).numpy() @ phi + around
    wanted = np.linalg.solve(gamma * phi.T @ phi + np.eye(phi.shape[1]), right.T).T
    np.testing.assert_allclose(as_deepinv(A).prox_l2(start, y, gamma).reshape(2, -1), wanted, atol=1e-10)
    iterated = as_deepinv(OnlyForwardAndAdjoint(A)).prox_l2(start, y, gamma, max_iter=300, tol=1e-10)
    np.testing.assert_allclose(iterated.reshape(2, -1), wanted, atol=1e-5)


def test_a_camera_without_closed_forms_is_inverted_by_iteration(deepinv: ModuleType) -> None:
    A = camera()
    y = A.forward(normal(1, *A.cube_shape)).unsqueeze(1)
    physics = as_deepinv(OnlyForwardAndAdjoint(A))
    np.testing.assert_allclose(physics.A(physics.A_dagger(y)), y, atol=1e-5)


def test_gradients_flow_through_the_deepinv_view(deepinv: ModuleType) -> None:
    A = camera()
    x = normal(1, *A.cube_shape).requires_grad_()
    physics = as_deepinv(A)
    y = normal(1, 1, *A.measurement_shape, seed=1)
    (physics.A(x) * y).sum().backward()
    torch.testing.assert_close(x.grad, physics.A_adjoint(y))


def test_deepinvs_admm_agrees_with_ours(deepinv: ModuleType) -> None:
    """The same objective, 1/2 |Phi x - y|^2 + w TV(x), two implementations of solver and prior."""
    A = camera()
    truth = torch.zeros(A.cube_shape, dtype=torch.float64)
    truth[:, 1:4, 2:6] = torch.tensor([1.0, 0.5, 0.8], dtype=torch.float64)[:, None, None]
    y = A.forward(truth) + 0.05 * normal(*A.measurement_shape)
    ours = admm_tv(A, y, tv_weight=0.05, num_iters=1500, tv_iters=20).x
    prior = deepinv.optim.prior.TVPrior(def_crit=1e-12, n_it_max=40)
    prior.TVModel.tau = 0.2  # its own step of 0.01 is far too short for values of this size
    solver = deepinv.optim.ADMM(
        data_fidelity=deepinv.optim.L2(),
        prior=prior,
        lambda_reg=0.05,
        stepsize=1.0,
        max_iter=200,
        early_stop=False,
    )
    theirs = solver(y[None, None], as_deepinv(A))[0]
    assert float((theirs - ours).norm() / ours.norm()) < 2e-3

    def objective(x: Tensor) -> float:
        return float((A.forward(x) - y).square().sum() / 2 + 0.05 * tv(x))

    assert objective(ours) <= objective(theirs) < objective(ours) * (1 + 1e-5)
    assert float((A.pinv(y) - ours).norm() / ours.norm()) > 0.1  # which is not where they started
