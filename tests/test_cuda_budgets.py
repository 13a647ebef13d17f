"""On a CUDA device that is not there: kernels launched, and how often the host waits. Budgets may only fall."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from cuda_scenes import BANDS, CUDA, SIDE, close, default, in_float32, reconstruct, scene  # noqa: F401 (a fixture)
from messages import warns
from pretend_device import Ledger, pretend_cuda
from test_self_calibration_elements_of_several import SHIFTS, capture
from torch import Tensor

import cassi
from cassi import CASSI
from cassi.choice.mirrors import Views
from cassi.choice.stages import Learned, NonLocal, Tv
from cassi.cli.main import main
from cassi.optics.imprint import MOVES, _matrices
from cassi.optics.measurement import Measurement
from cassi.priors.learned import shipped_prior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import smooth_basis
from cassi.priors.tv import TVDenoiser
from cassi.self_calibration.search import find_camera
from cassi.solvers.subspace_tv import subspace_tv
from cassi.solvers.unrolled import unrolled

pytestmark = pytest.mark.usefixtures("in_float32")


def budgeted(ledger: Ledger, launches: float, waits: float) -> None:
    assert ledger.launches.total() <= launches and ledger.waits.total() <= waits, ledger.told()


def test_the_default_keeps_to_its_budget():
    """At 64 x 64 x 28, the camera as given, all stages of the default taken, as on most scenes.

    Of a scene whose patches are told apart: where two are equally alike, rounding decides which one is taken.
    """
    _, mask, y = scene(64, 28, seed=3)
    settings: dict[str, Any] = {"num_bands": 28, "step": 2, "camera": "as-given"}
    expected = cassi.reconstruct(y, mask, device="cpu", **settings)
    with pretend_cuda() as ledger:
        shipped_prior().on(CUDA)  # once a process
        for moves in (MOVES, (0.0,)):
            _matrices(64, moves, CUDA)
        ledger.launches.clear()
        ledger.waits.clear()
        found = cassi.reconstruct(y, mask, device="cuda", **settings)
        budgeted(ledger, 10_900, 105)
        assert found.plan.stages == expected.plan.stages
        close(found.cube, expected.cube)


def test_views_are_solved_together():
    """Four launch a tenth more than one does, and their cube is that of the CPU."""
    _, mask, y = scene(40, 10, seed=3)
    settings: dict[str, Any] = {"num_bands": 10, "step": 2, "camera": "as-given", "quality": "fast"}
    expected, launches = cassi.reconstruct(y, mask, device="cpu", views=4, **settings), []
    with pretend_cuda() as ledger:
        for views in (1, 4):
            ledger.launches.clear()
            found = cassi.reconstruct(y, mask, device="cuda", views=views, **settings)
            launches.append(ledger.launches.total())
        assert launches[1] <= 1.15 * launches[0], ledger.told()
        assert found.plan.stages == expected.plan.stages and Views(4) in found.plan.stages
        close(found.cube, expected.cube)


def test_the_search_for_a_camera_keeps_to_its_budget():
    """Its short reconstructions, of a mask whose elements are wrong: all of it but the model of the mask's place."""
    given = torch.rand(128, 128, generator=torch.Generator().manual_seed(0)).numpy()
    true = (given + 0.1 * np.random.default_rng(0).standard_normal(given.shape)).clip(0).astype(np.float32)
    m = Measurement(capture(true, 1).numpy(), given, SHIFTS)
    expected = find_camera(m)
    with pretend_cuda() as ledger:
        shipped_prior().on(CUDA)  # once a process
        ledger.launches.clear()
        ledger.waits.clear()
        found = find_camera(m, device=CUDA)
        budgeted(ledger, 20_820, 283)
    assert found.mask_error.accepted and found.message == expected.message
    np.testing.assert_allclose(found.mask, expected.mask, rtol=0, atol=2e-3)


def test_iterations_of_total_variation_and_what_they_wait_for():
    """Seven launches in an iteration, and two in sixteen to read the records; with a monitor."""
    _, mask, y = scene()
    basis = torch.eye(BANDS)[:4]
    seen = []

    def run(num_iters: int) -> tuple[int, int]:
        ledger.launches.clear()
        ledger.waits.clear()
        subspace_tv(
            A, y.to(CUDA), basis.to(CUDA), tv_weight=0.5, num_iters=num_iters, tol=1e-9,
            monitor=lambda record, z: seen.append(record.iteration),
        )  # fmt: skip
        return ledger.launches.total(), ledger.waits.total()

    with pretend_cuda() as ledger:
        A = CASSI.from_step(mask.to(CUDA), 2, BANDS)
        run(16)  # the camera computes what it keeps
        (few, early), (many, late) = run(128), run(192)
        assert (many - few, late - early) == (64 * 7 + 4 * 2, 4), ledger.told()
        assert many <= 1_400, ledger.told()
    assert seen == [*range(1, 17), *range(1, 129), *range(1, 193)]


def test_a_network_keeps_to_its_budget():
    """Each call with a snapshot, a noise and a level of its own."""
    x, mask, y = scene()
    B, prior = smooth_basis(BANDS, 5).float(), shipped_prior()
    start = torch.einsum("kc,chw->khw", B, x)

    def solve(device: str) -> list[Tensor]:
        A, b, on = CASSI.from_step(mask.to(device), 2, BANDS), B.to(device), prior.on(torch.device(device))
        calls = [(scale * t).to(device) for scale in (1.0, 0.8, 0.5) for t in (y, start, torch.full_like(y, 1e-3))]
        return [
            unrolled(A, y, b, on, z, variance=variance, level=0.3 + k / 10)[1]
            for k, (y, z, variance) in enumerate(zip(*[iter(calls)] * 3, strict=True))
        ]

    with torch.no_grad():
        expected = solve("cpu")
        with pretend_cuda() as ledger:
            prior.on(CUDA)  # once a process
            ledger.waits.clear()
            found = solve("cuda:0")
            budgeted(ledger, 3_803, 14)  # eleven copies of the test's own, the records of each call
            close(torch.stack(found), torch.stack(expected))


def test_a_call_with_kept_filters():
    z = torch.randn(4, SIDE, SIDE, generator=torch.Generator().manual_seed(1)).cumsum(1)
    expected = NonlocalDenoiser(0.5)
    expected = [expected(z.clone(), k) for k in (0, 1)]
    with pretend_cuda() as ledger:
        on_device, denoise = z.to(CUDA), NonlocalDenoiser(torch.full((4,), 0.5).to(CUDA))
        close(denoise(on_device.clone(), 0), expected[0])
        budgeted(ledger, 82, 8)  # three copies of the test's own, one look at sigma, three decompositions, one count
        first = on_device.clone()
        ledger.launches.clear()
        ledger.waits.clear()
        found = denoise(first, 1)
        budgeted(ledger, 8, 0)
        close(found, expected[1])


def test_frames_of_a_stack_with_a_plan_are_solved_together(monkeypatch):
    """Of different brightness and noise, one of another scene: each cube is that of its frame alone, to rounding."""
    stages = (Tv(20), NonLocal(0.5, 9), Learned(), NonLocal(0.25, 2, 4.0))
    plan = replace(default().plan, stages=stages, learned=shipped_prior())
    x, mask, y = scene()
    A = CASSI.from_step(mask, 2, BANDS)
    stack = torch.stack([y, 0.5 * y, 3 * A.forward(x.flip(-2)), 0.1 * y, A.forward(x.flip(0))])
    expected = [reconstruct("cpu", one, plan=plan) for one in stack]
    monkeypatch.setattr("cassi.running.pipeline.MAX_BATCH", 3)
    said = []
    with pretend_cuda() as ledger:
        reconstruct("cuda", stack[:1], plan=plan)  # what is kept is computed
        ledger.launches.clear()
        reconstruct("cuda", stack[:1], plan=plan)
        alone = ledger.launches.total()
        ledger.launches.clear()
        found = reconstruct("cuda", stack, plan=plan, progress=lambda step, share: said.append(step))
        assert alone <= 1_960 and ledger.launches.total() <= 4_724, ledger.told()
        assert list(dict.fromkeys(said)) == ["run 1 of 5, final run", "run 4 of 5, final run"]
        for cube, one in zip(found.cube, expected, strict=True):
            close(cube, one.cube)
    for outcome, one in zip(found.outcomes, expected, strict=True):
        assert outcome.brightness == pytest.approx(one.outcomes[0].brightness, rel=1e-6)
        assert outcome.discrepancy == pytest.approx(one.outcomes[0].discrepancy, rel=1e-3)
        assert outcome.plan.noise.beta == pytest.approx(one.plan.noise.beta, rel=1e-6)


def test_other_weights_of_total_variation_are_converted_once():
    x = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(1))
    with pretend_cuda() as ledger:
        denoise = TVDenoiser(0.1)
        u = denoise(x.to(CUDA), 0)
        ledger.waits.clear()
        denoise(u, 1)
        assert not ledger.waits.total(), ledger.told()


def test_many_components_are_no_business_of_unrolled_loops():
    _, mask, y = scene(bands=40)
    with pretend_cuda() as ledger:
        A, B = CASSI.from_step(mask.to(CUDA), 2, 40), torch.eye(40).to(CUDA)
        found = subspace_tv(A, y.to(CUDA), B, tv_weight=0.5, num_iters=3)[0]
        assert not any("subspace_step" in what for what, _ in ledger.launches), ledger.told()
        close(found.x, subspace_tv(CASSI.from_step(mask, 2, 40), y, torch.eye(40), tv_weight=0.5, num_iters=3)[0].x)


def test_the_warming_up_launches_what_a_default_run_takes(monkeypatch, capsys):
    monkeypatch.setattr("cassi.running.warm_up.SIDE", 24)
    monkeypatch.setattr("cassi.running.warm_up.BANDS", 8)  # as few as the network takes
    with pretend_cuda() as ledger:
        assert main(["warm-up", "--device", "cuda"]) == 0
    assert "Triton is ready for a default run on cuda" in capsys.readouterr().out
    launched = {what for what, _ in ledger.launches}
    kernels = "shift_sum", "shift_back", "subspace_step", "squared_distances", "tv_steps", "gather_groups", "put_back"
    assert launched >= {f"triton {name}" for name in kernels} | {"convolution"}
    monkeypatch.setattr("cassi.running.warm_up.reconstruct", lambda *given, **how: None)
    with pretend_cuda(triton=False), warns("Triton does not run"):
        assert main(["warm-up", "--device", "cuda"]) == 0
    assert "eager torch did a default run on cuda" in capsys.readouterr().out
