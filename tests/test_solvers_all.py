"""GAP, ADMM and FISTA by theorem; test_solvers_contract.py has their equations through every camera."""

import itertools
import math
from functools import partial

import numpy as np
import oracle
import pytest
import torch
from cases import F64, camera, noisy, scene, shrink, tv_prox
from messages import refused

from cassi import CASSI, admm, admm_tv, fista, fista_tv, gap, gap_tv
from cassi.kernels.dispatch import eager

SOLVERS = {
    "gap_tv": partial(gap_tv, tv_weight=0.05),
    "gap_tv plain": partial(gap_tv, tv_weight=0.05, accelerate=False),
    "admm_tv": partial(admm_tv, tv_weight=0.05),
    "fista_tv": partial(fista_tv, tv_weight=0.05),
}
every_solver = pytest.mark.parametrize("solve", SOLVERS.values(), ids=SOLVERS.keys())


METHODS = {
    "gap": partial(gap, accelerate=True), "gap plain": partial(gap, accelerate=False), "admm": partial(admm, rho=0.4),
    "fista": fista,
}  # fmt: skip
every_method = pytest.mark.parametrize("solve", METHODS.values(), ids=METHODS)


@pytest.mark.parametrize("solve", [METHODS[name] for name in METHODS if name != "fista"])
@pytest.mark.parametrize("kind", ["per-band", "dark-column"])
def test_the_fused_step_equals_the_lines_of_the_paper(solve, kind, monkeypatch):
    A, _ = camera(kind=kind, weighted=True)
    y, x0, steps = torch.stack([noisy(A), noisy(A, 3)]), scene(A, 5).expand(2, -1, -1, -1), []
    step = CASSI.data_step_
    monkeypatch.setattr(CASSI, "data_step_", lambda *args, **options: steps.append(step(*args, **options)) or steps[-1])
    fused = solve(A, y, shrink, num_iters=7, x0=x0)
    with eager():
        lines = solve(A, y, shrink, num_iters=7, x0=x0)
    assert steps == [True] * 7 + [False] * 7
    torch.testing.assert_close(fused.x, lines.x, rtol=0, atol=1e-13)
    for one, other in zip(fused.history, lines.history, strict=True):
        assert (one.residual, one.change) == pytest.approx((other.residual, other.change), rel=1e-10)


@every_method
def test_a_denoiser_may_work_in_place_or_not(solve):
    """New tensor, own argument, a view, one buffer for every call: the same iterates."""
    A, _ = camera()
    y = noisy(A)
    buffer = torch.empty(A.cube_shape, dtype=F64)
    expected = solve(A, y, shrink, num_iters=6)
    for denoise in (
        lambda x, k: x.copy_(shrink(x, k)),
        lambda x, k: buffer.copy_(shrink(x, k)),
        lambda x, k: shrink(x.mT.contiguous().mT, k),
    ):
        result = solve(A, y, denoise, num_iters=6)
        torch.testing.assert_close(result.x, expected.x, rtol=0, atol=1e-14)
        assert [r.change for r in result.history] == pytest.approx([r.change for r in expected.history], rel=1e-12)
    flat = solve(A, y, lambda x, k: x.mean(0, keepdim=True).expand(3, -1, -1), num_iters=4)
    same = solve(A, y, lambda x, k: x.mean(0, keepdim=True).expand(3, -1, -1).contiguous(), num_iters=4)
    torch.testing.assert_close(flat.x, same.x, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["binary", "grey", "dark-column", "per-band"])
def test_plain_gap_tv_never_raises_its_objective(kind):
    """It is proximal gradient with step 1 on F(v) = 1/2 (y - Phi v)^T (Phi Phi^T)^+ (y - Phi v) + w TV(v)."""
    A, phi = camera(kind=kind)
    y, weight, values = noisy(A), 0.1, []

    def monitor(record, v):
        values.append(oracle.gap_objective(v.numpy(), y.numpy(), phi, weight))

    options = {"tv_weight": weight, "tv_iters": 100, "accelerate": False}
    gap_tv(A, y, num_iters=30, x0=torch.zeros(A.cube_shape, dtype=F64), monitor=monitor, **options)
    assert values[0] > 1.05 * values[-1]
    assert all(later <= earlier + 1e-7 * values[0] for earlier, later in itertools.pairwise(values))


def test_plain_gap_tv_ends_at_the_fixed_point():
    """v = prox_{w TV}(v + Phi^+ (y - Phi v)), with prox and Phi^+ from outside."""
    A, phi = camera()
    y, weight = noisy(A), 0.1
    v = gap_tv(A, y, tv_weight=weight, tv_iters=30, accelerate=False, num_iters=1500).x.numpy()
    x = v + (np.linalg.pinv(phi) @ (y.numpy().ravel() - phi @ v.ravel())).reshape(v.shape)
    np.testing.assert_allclose(oracle.tv_prox(x, weight), v, atol=1e-5)


@pytest.mark.parametrize("solve", [partial(admm_tv, tv_iters=6), fista_tv], ids=["admm", "fista"])
@pytest.mark.parametrize("kind", ["grey", "dark-column"])
def test_admm_tv_and_fista_tv_reach_the_certified_minimum(kind, solve):
    """It ends at the minimum of 1/2 |Phi x - y|^2 + w TV(x), by a bound from outside.

    With x+ = prox_{w TV/L}(x - grad/L) from the outside solver and G = L (x - x+), convexity gives
    F(x+) - F(z) <= <G, x - z> for every z, so F is within |G| |x - z| of the value at any z.
    """
    A, phi = camera(kind=kind)
    y, weight = noisy(A), 0.05
    L = float(np.linalg.norm(phi, 2)) ** 2
    x = solve(A, y, tv_weight=weight, num_iters=600).x.numpy()
    gradient = (phi.T @ (phi @ x.ravel() - y.numpy().ravel())).reshape(x.shape)
    assert np.linalg.norm(L * (x - oracle.tv_prox(x - gradient / L, weight / L))) <= 2e-3 * np.linalg.norm(gradient)
    objective = oracle.tv_objective(x, y.numpy(), phi, weight)
    assert objective < 0.9 * oracle.tv_objective(A.pinv(y).numpy(), y.numpy(), phi, weight)


@every_solver
def test_single_precision_follows_double_and_a_batch_is_one_by_one(solve):
    A, _ = camera((3, 8, 7))
    y = noisy(A)
    single = solve(A.to(dtype=torch.float32), y.float(), num_iters=20)
    assert single.x.dtype == torch.float32
    torch.testing.assert_close(single.x.double(), solve(A, y, num_iters=20).x, rtol=0, atol=2e-5)
    A, _ = camera((3, 6, 7), weighted=True)
    y = torch.stack([noisy(A, seed) for seed in range(6)]).reshape(2, 3, *A.measurement_shape)
    together = solve(A, y, num_iters=12).x
    assert together.shape == (2, 3, *A.cube_shape)
    for index in np.ndindex(2, 3):
        torch.testing.assert_close(together[index], solve(A, y[index], num_iters=12).x, rtol=0, atol=1e-12)


@every_solver
def test_what_is_given_is_not_modified_and_nothing_is_remembered(solve):
    A, _ = camera((3, 6, 7))
    y, x0 = noisy(A), scene(A, 3)
    y_before, x0_before = y.clone(), x0.clone()
    first = solve(A, y, x0=x0, num_iters=9)
    kept = first.x.clone()
    assert torch.equal(y, y_before) and torch.equal(x0, x0_before)
    assert first.x.data_ptr() != x0.data_ptr()
    solve(A, noisy(A, 4), num_iters=5)
    again = solve(A, y, x0=x0, num_iters=9)
    assert torch.equal(first.x, kept), "a later call wrote into an earlier result"
    assert torch.equal(again.x, kept)
    assert [r[2:] for r in again.history] == [r[2:] for r in first.history]


@every_solver
def test_a_dark_frame_gives_a_dark_cube_and_without_a_prior_the_start_is_the_answer(solve):
    A, _ = camera((3, 6, 7))
    y = torch.zeros(A.measurement_shape, dtype=F64)
    assert solve(A, y, num_iters=3).x.count_nonzero() == 0
    assert bool(solve(A, y, num_iters=3, x0=scene(A)).x.isfinite().all())
    A, _ = camera(kind="dark-column")
    y = noisy(A)
    torch.testing.assert_close(solve(A, y, tv_weight=0.0, num_iters=10).x, A.pinv(y), rtol=0, atol=1e-13)


@every_solver
def test_the_monitor_sees_the_history_and_may_stop(solve):
    A, _ = camera()
    seen = []

    def monitor(record, x):
        seen.append((record, x.clone()))
        return record.iteration == 4

    result = solve(A, noisy(A), num_iters=9, monitor=monitor)
    assert (result.status, len(result.history)) == ("stopped", 4)
    assert tuple(record for record, _ in seen) == result.history
    assert torch.equal(seen[-1][1], result.x)
    assert torch.equal(seen[1][1], solve(A, noisy(A), num_iters=2).x), "the monitor sees the cube of its iteration"


@every_solver
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_measurements_stop_at_the_first_iteration(solve, bad):
    A, _ = camera()
    y = noisy(A)
    y[2, 3] = bad
    refused(solve, A, y, error=FloatingPointError, num_iters=5)


@every_method
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_failing_denoiser_is_named_by_its_iteration(solve, bad):
    A, _ = camera()
    refused(solve, A, noisy(A), lambda x, k: x * bad if k == 2 else x * 0.9, error=FloatingPointError, num_iters=9)


@every_solver
def test_what_solvers_refuse(solve):
    A, _ = camera()
    y = noisy(A)
    for options in [
        {"num_iters": 0},
        {"num_iters": 2.5},
        {"tv_weight": -0.1},
        {"tv_weight": math.inf},
        {"x0": torch.zeros(2, 5, 4, dtype=F64)},
    ]:
        refused(solve, A, y, error=ValueError, **{"num_iters": 3, **options})
    for shape in [(2, 3, 5, 4), (1, 3, 5, 4)]:
        refused(solve, A, y, error=ValueError, num_iters=3, x0=torch.zeros(shape, dtype=F64))
    refused(solve, A, torch.zeros(5, 7, dtype=F64), error=ValueError, num_iters=3)
    refused(solve, A, y.float(), error=TypeError, num_iters=3)


@pytest.mark.parametrize("rho", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("solve", [partial(admm, prox_g=shrink), partial(admm_tv, tv_weight=0.1)])
def test_admm_needs_a_positive_penalty(solve, rho):
    A, _ = camera()
    refused(solve, A, noisy(A), error=ValueError, rho=rho, num_iters=3)


@every_solver
@pytest.mark.parametrize("which", ["measurement", "mask"])
def test_a_wanted_gradient_never_gives_a_stale_cube(solve, which):
    """The loops work in place: they refuse, and under no_grad the cube is the one found without gradients."""
    A, _ = camera()
    y = noisy(A)
    expected = solve(A, y, num_iters=5).x
    if which == "mask":
        A = CASSI(A.mask.clone().requires_grad_(), A.shifts)
    else:
        y.requires_grad_()
    refused(solve, A, y, error=RuntimeError, num_iters=5)
    with torch.no_grad():
        assert torch.equal(solve(A, y, num_iters=5).x, expected)


def warm_started(weight: float):
    """The TV prox with its dual handed on from call to call."""
    dual = None

    def prox(v: torch.Tensor, k: int) -> torch.Tensor:
        nonlocal dual
        u, dual = tv_prox(v, weight, num_iters=3, dual=dual)
        return u

    return prox


def test_each_tv_solver_is_its_solver_with_the_tv_prox():
    """gap with weight w, admm with w / rho (rho a tenth of max gram_diag if not given)."""
    A, _ = camera()
    y, w, L = noisy(A), 0.05, A.norm() ** 2
    steps = {"num_iters": 6}
    for got, expected in [
        (gap_tv(A, y, tv_weight=w, tv_iters=3, memory=1.0, **steps), gap(A, y, warm_started(w), **steps)),
        (admm_tv(A, y, tv_weight=w, rho=0.3, **steps), admm(A, y, warm_started(w / 0.3), rho=0.3, **steps)),
        (admm_tv(A, y, tv_weight=w, **steps), admm(A, y, warm_started(10 * w / L), rho=L / 10, **steps)),
    ]:
        torch.testing.assert_close(got.x, expected.x, rtol=0, atol=1e-13)
