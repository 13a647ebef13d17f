"""The unrolled solver: its data step against dense linear algebra, units, batches, gradients, other cameras."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import oracle
import pytest
import torch
from cases import F64, make_mask
from messages import refused
from test_priors_learned import SMALL, stirred

import cassi.solvers.unrolled as module
from cassi import CASSI, MultiShot
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.detector import brightness, object_level
from cassi.optics.psf import gaussian_psf
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.unrolled import corrections, unrolled


def camera(dtype=F64, weights=None) -> CASSI:
    return CASSI(torch.from_numpy(make_mask("grey", 6, 8, 9)).to(dtype), tuple(range(0, 12, 2)), weights)


def given(A, batch: tuple[int, ...] = ()) -> dict[str, Any]:
    """What the solver takes: a snapshot of random numbers, its variance, a start, and a prior that does something."""
    rng = np.random.default_rng(0)
    y = A.forward(torch.from_numpy(rng.random((*batch, *A.cube_shape))))
    start = torch.from_numpy(rng.standard_normal((*batch, 4, *A.cube_shape[1:])))
    variance = torch.from_numpy(rng.uniform(1e-3, 1e-1, y.shape))
    prior = stirred().double()
    return {"A": A, "y": y, "basis": smooth_basis(A.num_bands, 4), "prior": prior, "start": start, "variance": variance}


def idle(gate: float) -> LearnedPrior:
    """A prior that corrects nothing and takes a share of the data step, in float64."""
    prior = LearnedPrior(SMALL).double().eval().requires_grad_(False)
    for value in (prior.net.leave.weight, prior.net.leave.bias):
        value.zero_()
    prior.net.leave.bias[4 * SMALL.components : 8 * SMALL.components] = (math.log(gate / (1 - gate)) + 2) / 4
    prior.log_tau += torch.linspace(-1, 1, prior.log_tau.numel(), dtype=F64).view_as(prior.log_tau)
    return prior


@pytest.mark.parametrize("mask_error", [0.0, 0.1])
def test_the_data_step_is_the_best_linear_estimate(monkeypatch, mask_error):
    """z + g R (y - G z), then z + R (y - G z), R = S G^T (G S G^T + E E^T + N)^-1 and G = Phi B^T, by dense matrices.

    Column p of E is what an error of the mask at p, as large as is expected, adds to the snapshot of the start.
    """
    monkeypatch.setattr(module, "CG_ITERS", 200)
    case = given(replace(camera(), mask_error=mask_error)) | {"prior": idle(0.75)}
    _, z = unrolled(**case)
    A, y, B, prior, start, variance = case.values()
    H, W = A.cube_shape[1:]
    G = oracle.matrix(A.mask.numpy(), A.shifts) @ np.kron(B.numpy().T, np.eye(H * W))
    level = float(y.sum() / A.forward(torch.ones(A.cube_shape, dtype=F64)).sum())
    s = level * math.sqrt(A.num_bands) * np.arange(1.0, 5.0) ** -1.4
    S = np.kron((np.exp(prior.log_tau[1].numpy()) * s) ** 2, np.ones(H * W))
    N = variance.numpy().ravel() + math.exp(float(prior.log_floor[1])) * level**2 * A.gram_diag().numpy().ravel()
    expected = start.numpy().ravel()
    light = np.clip((np.kron(B.numpy().T, np.eye(H * W)) @ expected).reshape(A.num_bands, H * W), 0, None)
    top = mask_error * float(A.mask.max())
    E = oracle.matrix(np.full((H, W), top), A.shifts) @ np.concatenate([np.diag(x) for x in light])
    for gate in (0.75, 1):
        r = y.numpy().ravel() - G @ expected
        expected = expected + gate * S * (G.T @ np.linalg.solve(G * S @ G.T + E @ E.T + np.diag(N), r))
    np.testing.assert_allclose(z.numpy().ravel(), expected, rtol=1e-6, atol=1e-8)


def test_each_turn_has_numbers_of_its_own():
    """As if it were the only one of its network; later ones are like the last."""
    case, one = given(camera()), stirred().double()
    several = LearnedPrior(replace(one.size, turns=2)).double().eval().requires_grad_(False)
    other = {name: one.state_dict()[name] + 0.5 for name in ("net.stage_bias", "log_tau", "log_floor")}
    several.load_state_dict(
        one.state_dict() | {name: torch.cat([other[name], one.state_dict()[name]]) for name in other}
    )
    first = LearnedPrior(one.size).double().eval().requires_grad_(False)
    first.load_state_dict(one.state_dict() | other)
    for turn, alone in enumerate((first, one, one)):
        expected = unrolled(**case | {"prior": alone})[1]
        torch.testing.assert_close(unrolled(**case | {"prior": several}, turn=turn)[1], expected)
        A, y, B, _, start, variance = case.values()
        *_, z = corrections(A, y, B, several, start, variance, mask_error=A.mask_error, turn=torch.tensor([turn]))
        torch.testing.assert_close(z, expected)


def test_what_is_solved_stays_solved():
    """Where noise is strong, conjugate gradients are done before their last turn."""
    case = given(camera())
    case["variance"] = 1e4 * case["variance"]
    expected = unrolled(**case)[1]
    single = {name: t.float() for name, t in case.items() if isinstance(t, torch.Tensor)}
    found = unrolled(**case | single | {"A": camera(torch.float32), "prior": case["prior"].float()})[1]
    torch.testing.assert_close(found, expected.float(), rtol=1e-3, atol=1e-4)


def test_objects_in_the_dark_are_at_the_level_of_all_priors():
    case = given(camera())
    case["y"][:, 4:] *= 0.01
    mean = brightness(case["A"], case["y"])
    level = mean * float(object_level(case["y"], 2))
    assert level > 1.2 * mean
    torch.testing.assert_close(unrolled(**case)[1], unrolled(**case, level=level)[1])


def test_row_weights_of_zero_leave_a_pixel_out():
    weights = torch.ones(8, 19, dtype=F64)
    weights[::2, ::3] = 0
    case = given(camera(weights=weights))
    other = torch.where(weights > 0, case["variance"], 7.0)
    torch.testing.assert_close(unrolled(**case | {"variance": other})[1], unrolled(**case)[1])


@pytest.mark.parametrize("unit", [1e-4, 1e5])
def test_the_unit_of_the_measurement_does_not_matter(unit):
    case = given(camera())
    result, z = unrolled(**case)
    units = {"y": unit, "start": unit, "variance": unit**2}
    scaled, z_scaled = unrolled(**case | {name: by * case[name] for name, by in units.items()})
    torch.testing.assert_close(z_scaled / unit, z, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(scaled.x / unit, result.x, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("factor", [2.0**-20, 2.0, 1024.0])
@pytest.mark.parametrize("psf", [None, gaussian_psf(0.8).to(F64)])
def test_a_mask_times_a_power_of_two_divides_the_cube_to_the_last_digit(factor, psf):
    """Rows that no open element reaches included."""
    mask = camera().mask.clone()
    mask[:3] = 0
    cameras = [
        CASSI(scale * mask, tuple(range(0, 12, 2)))
        if psf is None
        else BlurredCASSI(scale * mask, [1.5 * c for c in range(6)], psf=psf)
        for scale in (1.0, factor)
    ]
    case, other = map(given, cameras)
    other |= {"y": case["y"], "start": case["start"] / factor}
    assert torch.equal(unrolled(**other)[1] * factor, unrolled(**case)[1])


def test_a_batch_is_one_after_the_other():
    case, sizes = given(camera(), batch=(3,)), torch.tensor([1.0, 5.0, 0.2])
    case |= {"y": case["y"] * sizes.view(3, 1, 1), "start": case["start"] * sizes.view(3, 1, 1, 1)}
    together = unrolled(**case)[1]
    for i in range(3):
        alone = unrolled(**case | {name: case[name][i] for name in ("y", "start", "variance")})[1]
        torch.testing.assert_close(together[i], alone, rtol=1e-10, atol=1e-12)


def test_gradients_are_those_of_finite_differences(monkeypatch):
    monkeypatch.setattr(module, "CG_ITERS", 60)  # they are those of a data step that has converged
    case = given(camera())
    prior = case["prior"].requires_grad_(True).eval()

    def value() -> torch.Tensor:
        return unrolled(**case)[1].square().sum()

    value().backward()
    for p in (prior.log_tau, prior.log_floor, prior.net.enter.weight, prior.net.leave.bias):
        index = tuple(n // 2 for n in p.shape)
        with torch.no_grad():
            kept = p[index].clone()
            p[index] = kept + 1e-5
            above = value()
            p[index] = kept - 1e-5
            below = value()
            p[index] = kept
        assert float(p.grad[index]) == pytest.approx(float(above - below) / 2e-5, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("kind", ["blurred", "multi-shot", "single disperser"])
def test_other_cameras_and_the_history_has_one_record_a_stage(kind):
    A, seen = camera(), []
    if kind == "blurred":
        A = BlurredCASSI(A.mask, A.shifts, psf=gaussian_psf(0.8).to(F64))
    elif kind == "multi-shot":
        A = MultiShot((A, CASSI(A.mask.flip(0), A.shifts)))
    result, z = unrolled(**given(A), monitor=lambda r, z: seen.append(r))
    assert [r.iteration for r in result.history] == [r.iteration for r in seen] == [1]
    assert result.x.shape == (6, 8, 9) and z.shape == (4, 8, 9) and bool(result.x.isfinite().all())


def test_what_does_not_fit_is_refused():
    good = given(camera())
    for wrong in (
        {"y": good["y"][:-1]},
        {"variance": good["variance"][1:]},
        {"basis": smooth_basis(6, 5)},
        {"start": good["start"][:, 1:]},
    ):
        refused(unrolled, error=ValueError, **good | wrong)
    refused(unrolled, error=FloatingPointError, **good | {"y": good["y"] * math.nan})
