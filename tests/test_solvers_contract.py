"""Every solver through every camera, GAP and ADMM against their equations by dense matrices."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from cases import F64
from messages import refused
from test_optics_contract import close, each, flat, masks, pair  # noqa: F401 (each: the fixture `case`)
from torch import Tensor

from cassi import CASSI, admm, admm_tv, gap, gap_tv, least_squares
from cassi.choice.automatic import reconstruct_auto
from cassi.optics.protocol import Camera
from cassi.priors.spectral_basis import smooth_basis
from cassi.settings import Settings
from cassi.solvers.subspace_tv import subspace_tv


def halve(x: Tensor, k: int) -> Tensor:
    """Stands for a denoiser."""
    return 0.5 * x


@pytest.mark.parametrize("accelerate", [True, False])
def test_gap_by_its_equations(case, accelerate):
    A, matrix = case
    v, y = pair(A, 2)
    bound = flat(A.majorizer())[0]
    inverse = np.where(bound > 0, 1 / np.maximum(bound, 1e-9), 0)[:, None] * matrix
    if A.exact:
        inverse = np.linalg.pinv(matrix, rcond=1e-10).T
    b, v_hand = flat(y, (2,)).copy(), flat(v, (2,))
    for _ in range(3):
        y_v = v_hand @ matrix.T
        b = b + flat(y, (2,)) - y_v if accelerate else flat(y, (2,))
        v_hand = 0.5 * (v_hand + (b - y_v) @ inverse)
    result = gap(A, y, halve, num_iters=3, accelerate=accelerate, x0=v)
    residual = np.linalg.norm(flat(y, (2,)) - y_v) / np.linalg.norm(y)
    assert close(result.x, v_hand, 1e-7) and result.history[-1].residual == pytest.approx(residual, rel=1e-6)


def test_admm_by_its_equations(case):
    A, matrix = case
    z, y, rho = *pair(A), 0.7
    z_hand, u = flat(z)[0], 0
    left = matrix.T @ matrix + rho * np.eye(matrix.shape[1])
    for _ in range(3):
        y_z = matrix @ z_hand
        x = np.linalg.solve(left, matrix.T @ flat(y)[0] + rho * (z_hand - u))
        z_hand = 0.5 * (x + u)
        u = u + x - z_hand
    result = admm(A, y, halve, rho=rho, num_iters=3, x0=z)
    residual = np.linalg.norm(flat(y)[0] - y_z) / np.linalg.norm(y)
    assert close(result.x, z_hand, 1e-9) and result.history[-1].residual == pytest.approx(residual, rel=1e-6)


SOLVERS: dict[str, Callable[[Camera, Tensor], Tensor]] = {
    "gap": lambda A, y: gap_tv(A, y, tv_weight=0.01, num_iters=10).x,
    "admm": lambda A, y: admm_tv(A, y, tv_weight=0.01, num_iters=10).x,
    "least squares": lambda A, y: least_squares(A, y, damping=0.1).x,
    "subspace": lambda A, y: subspace_tv(A, y, smooth_basis(getattr(A, "num_bands", 3), 2), num_iters=20)[0].x,
    "auto": lambda A, y: reconstruct_auto(A, y, settings=Settings(num_iters=20)).result.x,
}  # fmt: skip


@pytest.mark.long
def test_every_solver_takes_every_camera(case):
    A = case.A
    y = A @ torch.full(A.cube_shape, 0.7, dtype=F64)
    for name, solve in SOLVERS.items():
        x = solve(A, y)
        assert tuple(x.shape) == A.cube_shape and float((y - A @ x).norm()) < 0.5 * float(y.norm()), name


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_tell_what_was_swapped(solver):
    A = CASSI(masks(4, 5), (0, 1, 2))
    refused(SOLVERS[solver], torch.ones(4, 7), A, error=TypeError)
    refused(SOLVERS[solver], A, np.ones((4, 7)), error=TypeError)
    refused(SOLVERS[solver], A, torch.ones(3, 4, 5, dtype=F64), error=ValueError)
