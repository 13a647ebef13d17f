"""Every solver through every camera; GAP, ADMM and FISTA against their equations by dense matrices."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from cases import F64, shrink
from messages import refused
from test_optics_contract import close, each, flat, masks, pair  # noqa: F401 (each: the fixture `case`)
from torch import Tensor

from cassi import CASSI, admm, admm_tv, fista, gap, gap_tv, least_squares
from cassi.choice.automatic import reconstruct_auto
from cassi.optics.protocol import Camera
from cassi.priors.spectral_basis import smooth_basis
from cassi.settings import Settings
from cassi.solvers.subspace_tv import subspace_tv

Denoiser = Callable[[np.ndarray, int], np.ndarray]


def dense_gap(A, phi, y, v, denoise: Denoiser, num_iters, accelerate):
    bound = flat(A.majorizer())[0]
    inverse = phi.T * np.divide(1, bound, out=np.zeros_like(bound), where=bound > 0)
    if A.exact:
        inverse = np.linalg.pinv(phi, rcond=1e-10)
    b = y
    for k in range(num_iters):
        y_v = phi @ v
        b = b + (y - y_v) if accelerate else y
        yield (v := denoise(v + inverse @ (b - y_v), k)), y_v


def dense_admm(A, phi, y, z, prox: Denoiser, num_iters, rho):
    u, left = 0, phi.T @ phi + rho * np.eye(phi.shape[1])
    for k in range(num_iters):
        y_z, x = phi @ z, np.linalg.solve(left, phi.T @ y + rho * (z - u))
        z = prox(x + u, k)
        u = u + x - z
        yield z, y_z


def dense_fista(A, phi, y, x, prox: Denoiser, num_iters):
    v, t, L = x, 1.0, float(A.majorizer().max())
    for k in range(num_iters):
        y_v, x_old, t_old = phi @ v, x, t
        x = prox(v - phi.T @ (y_v - y) / L, k)
        t = (1 + (1 + 4 * t * t) ** 0.5) / 2
        v = x + (t_old - 1) / t * (x - x_old)
        yield x, y_v


METHODS = {
    "gap": (partial(gap, accelerate=True), partial(dense_gap, accelerate=True)),
    "gap plain": (partial(gap, accelerate=False), partial(dense_gap, accelerate=False)),
    "admm": (partial(admm, rho=0.4), partial(dense_admm, rho=0.4)),
    "fista": (fista, dense_fista),
}


@pytest.mark.parametrize(("solve", "dense"), METHODS.values(), ids=METHODS)
def test_the_iterates_are_those_of_the_equations(case, solve, dense):
    """From a start that is given and from the camera's; a snapshot of a batch as alone."""
    A, phi = case
    x0, y = pair(A)
    if type(A) is CASSI:
        assert close(A.first_guess(y), np.linalg.pinv(phi, rcond=1e-10) @ flat(y)[0], 1e-9)

    def denoise(x: np.ndarray, k: int) -> np.ndarray:
        return flat(shrink(torch.from_numpy(x).view(A.cube_shape), k))[0]

    for start in (x0, None):
        x = flat(A.first_guess(y) if start is None else start)[0]
        result = solve(A, y, shrink, num_iters=7, x0=start)
        assert (result.status, len(result.history)) == ("finished", 7)
        for record, (new, y_x) in zip(result.history, dense(A, phi, flat(y)[0], x, denoise, 7), strict=True):
            assert record.residual == pytest.approx(np.linalg.norm(flat(y)[0] - y_x) / np.linalg.norm(y), rel=1e-6)
            assert record.change == pytest.approx(np.linalg.norm(new - x) / np.linalg.norm(x), rel=1e-6)
            x = new
        assert close(result.x, x, 1e-11 if type(A) is CASSI else 1e-7)
    several = solve(A, torch.stack([y.flip(-1), y]), shrink, num_iters=7)
    assert close(several.x[1], result.x, 1e-8)


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
