"""All of the program on a CUDA device that is not there: nothing on two devices, the cube of the CPU, few launches.

`test_kernels_gpu.py` compares what Triton computes. Budgets may only fall.
"""

import functools
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from messages import check_refusal, check_words, refused, refuses, warns
from pretend_device import Ledger, pretend_cuda
from test_self_calibration_elements_of_several import SHIFTS, capture
from torch import Tensor

import cassi
from cassi import CASSI, MultiShot, Reconstruction, SidePicture
from cassi.choice.stages import Learned, NonLocal, Tv
from cassi.cli.main import main
from cassi.kernels.caller import undisturbed
from cassi.kernels.dispatch import pick_device
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.imprint import MOVES, _matrices
from cassi.optics.measurement import Measurement
from cassi.optics.protocol import Camera
from cassi.optics.psf import gaussian_psf
from cassi.priors.learned import shipped_prior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import smooth_basis
from cassi.priors.tv import TVDenoiser
from cassi.running.fingerprint import describe_call
from cassi.running.many import SolveWith
from cassi.self_calibration.search import find_camera
from cassi.sequence.frames import InSequence
from cassi.settings import Settings
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.solvers.subspace_tv import subspace_tv
from cassi.solvers.unrolled import unrolled

SIDE, BANDS = 32, 6
WAVELENGTHS = np.linspace(450, 650, BANDS)
CUDA = torch.device("cuda", 0)


@functools.cache
def scene(side: int = SIDE, bands: int = BANDS, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Cube, mask, and snapshot with a step of 2."""
    generator = torch.Generator().manual_seed(seed)
    x = procedural_scene(side, side, torch.linspace(450, 650, bands, dtype=torch.float64), generator=generator).float()
    mask = random_mask(side, side, generator=generator).float()
    return x, mask, CASSI.from_step(mask, 2, bands).forward(x)


def reconstruct(device: str, measurement: Any = None, mask: Any = None, **options: Any) -> Reconstruction:
    y = scene()[2] if measurement is None else measurement
    if isinstance(mask, Camera):
        return cassi.reconstruct(y.to(device), mask.to(device), **options)
    settings = {"num_bands": BANDS, "step": 2, "wavelengths": WAVELENGTHS, "camera": "as-given", "device": device}
    return cassi.reconstruct(y, scene()[1], **{**settings, **options})


def named(solver: str) -> dict[str, Any]:
    return {"solver": solver, "num_iters": 12}


def bad_pixels() -> np.ndarray:
    bad = np.zeros(tuple(scene()[2].shape), bool)
    bad[3, 5:9] = True
    return bad


def of_several() -> dict[str, Any]:
    x, mask, _ = scene()
    A = MultiShot((CASSI.from_step(mask, 2, BANDS), CASSI.from_step(mask.flip(0).contiguous(), 2, BANDS)))
    return {"measurement": A.forward(x), "mask": A, "num_iters": 30}


def blurred() -> dict[str, Any]:
    x, mask, _ = scene()
    A = BlurredCASSI(mask, tuple(2.0 * c for c in range(BANDS)), psf=gaussian_psf(0.7))
    return {"measurement": A.forward(x), "psf": 0.7, "solver": "subspace", "num_iters": 12}


def between_pixels() -> dict[str, Any]:
    x, mask, _ = scene()
    shifts = tuple(1.7 * c for c in range(BANDS))
    y = BlurredCASSI(mask, shifts).forward(x)
    return {"measurement": y, "step": None, "shifts": shifts, "prior": "tv", "quality": "fast"}


SOLVERS = ("gap-tv", "admm-tv", "fista-tv", "least-squares", "subspace")
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "fast": lambda: {"quality": "fast"},
    **{solver: functools.partial(named, solver) for solver in SOLVERS},
    "stack": lambda: {"measurement": torch.stack([scene()[2], 0.5 * scene()[2]]), **named("gap-tv")},
    "bad pixels": lambda: {"bad_pixels": bad_pixels(), "quality": "fast"},
    "blur": blurred,
    "shifts between pixels": between_pixels,
    "two shots": of_several,
    "error bars": lambda: {"uncertainty": True, "num_iters": 20},
}  # fmt: skip


@pytest.fixture(autouse=True)
def in_float32(monkeypatch):
    """Networks compute as on a GPU, that what the CPU computed can be compared."""
    monkeypatch.setattr("cassi.priors.learned._bfloat16_is_fast", lambda device: False)


@pytest.fixture(scope="module", autouse=True)
def _weights() -> None:
    """Read once, before the device is there."""
    shipped_prior()


def close(found: Tensor, expected: Tensor) -> None:
    assert found.device == CUDA
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")  # a few iterations explain no snapshot
def test_the_cube_is_that_of_the_cpu(case):
    options = CASES[case]()
    expected = reconstruct("cpu", **options)
    with pretend_cuda():
        found = reconstruct("cuda", **options)
        close(found.cube, expected.cube)
        if found.uncertainty is not None and case == "error bars":
            close(found.uncertainty, expected.uncertainty)
        assert found.parameters["device"] == "cuda:0"


@functools.cache
def default() -> Reconstruction:
    return reconstruct("cpu")


def test_a_plan_is_repeated_and_the_result_saved_and_drawn(tmp_path):
    plan = replace(default().plan, stages=(Tv(30),))
    expected = reconstruct("cpu", plan=plan)
    with pretend_cuda():
        found = reconstruct("cuda", plan=plan)
        close(found.cube, expected.cube)
        found.save(tmp_path / "cube.h5")
        found.plot()
    assert (tmp_path / "cube.h5").stat().st_size > 4 * expected.cube.numel()


def test_many_stages():
    stages = (Tv(20), NonLocal(0.5, 9), Learned(), NonLocal(0.25, 2))
    plan = replace(default().plan, stages=stages, learned=shipped_prior())
    expected = reconstruct("cpu", plan=plan)
    with pretend_cuda():
        close(reconstruct("cuda", plan=plan).cube, expected.cube)


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


@pytest.mark.parametrize("alone", ["a monitor", "a budget", "no memory", "a stage of its own"])
def test_frames_that_are_solved_alone(monkeypatch, alone):
    plan, options = replace(default().plan, stages=(Tv(4),)), {}
    if alone == "a monitor":
        options = {"monitor": lambda record, z: len(z.shape) > 3}
    elif alone == "a budget":
        options = {"budget": 1000.0}
    elif alone == "a stage of its own":
        monkeypatch.setattr(Tv, "together", False)
    monkeypatch.setattr("cassi.running.pipeline.solve_together", None)
    stack = torch.stack([scene()[2], 0.5 * scene()[2]])
    with pretend_cuda(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if alone == "no memory":
            monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 16 << 30))
        assert len(reconstruct("cuda", stack, plan=plan, **options).cube) == 2


@pytest.mark.slow
def test_a_side_photograph():
    picture = scene()[0].mean(0).numpy()
    expected = reconstruct("cpu", side=SidePicture(picture), quality="fast")
    with pretend_cuda():
        close(reconstruct("cuda", side=SidePicture(picture), quality="fast").cube, expected.cube)


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
    """Four launch less than a quarter more than one does, and their cube is that of the CPU."""
    _, mask, y = scene(64, 28, seed=3)
    settings: dict[str, Any] = {"num_bands": 28, "step": 2, "camera": "as-given"}
    expected, launches = cassi.reconstruct(y, mask, device="cpu", views=4, **settings), []
    with pretend_cuda() as ledger:
        for views in (1, 4):
            ledger.launches.clear()
            found = cassi.reconstruct(y, mask, device="cuda", views=views, **settings)
            launches.append(ledger.launches.total())
        assert launches[1] <= 1.25 * launches[0], ledger.told()
        assert found.plan.stages == expected.plan.stages
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


def test_what_is_wrong_with_numbers_on_the_device_is_said_when_they_are_read():
    """The same errors as on the CPU, without a wait of their own."""
    _, mask, y = scene()
    z = torch.randn(4, SIDE, SIDE, generator=torch.Generator().manual_seed(1))
    z[1, 3, 3] = torch.nan
    with pretend_cuda():
        A = CASSI.from_step(mask.to(CUDA), 2, BANDS)
        with refuses(ValueError):
            subspace_tv(A, y.to(CUDA), torch.eye(BANDS)[:4].to(CUDA), variance=-y.to(CUDA), num_iters=3)
        refused(NonlocalDenoiser(0.5), z.to(CUDA), 0, error=FloatingPointError)
        with refuses(ValueError):
            NonlocalDenoiser(torch.tensor([1.0, -1.0, 1.0, 1.0]).to(CUDA))(z.nan_to_num().to(CUDA), 0)


def test_other_weights_of_total_variation_are_converted_once():
    x = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(1))
    with pretend_cuda() as ledger:
        denoise = TVDenoiser(0.1)
        u = denoise(x.to(CUDA), 0)
        ledger.waits.clear()
        denoise(u, 1)
        assert not ledger.waits.total(), ledger.told()


def test_a_sequence():
    """A frame that drifts and its neighbors: all motion and masks of them on the device."""
    x, mask, _ = scene()
    ys = np.stack([CASSI.from_step(mask, 2, BANDS).forward(x.roll(t, -1)).numpy() for t in (1, 0, 2)])
    stack = Measurement(y=ys, mask=mask.numpy(), shifts=tuple(range(0, 2 * BANDS, 2)))
    plan = replace(default().plan, stages=(Tv(30),))
    expected = InSequence(plan, Settings(prior="tv", camera="as-given", device="cpu"))(stack)
    with pretend_cuda():
        close(InSequence(plan, Settings(prior="tv", camera="as-given", device="cuda"))(stack).cube, expected.cube)


def test_tiles(tmp_path):
    _, mask, y = scene()
    m = Measurement(y=y.numpy(), mask=mask.numpy(), shifts=tuple(range(0, 2 * BANDS, 2)))
    cubes = {}
    for device in ("cpu", "cuda"):
        with pretend_cuda() if device == "cuda" else nullcontext():
            path = tmp_path / f"{device}.h5"
            cassi.reconstruct_tiled(m, path, num_iters=5, camera="as-given", tile=20, reach=4, device=device)
        with h5py.File(path) as file:
            cubes[device] = file["cube"][()]
    np.testing.assert_allclose(cubes["cuda"], cubes["cpu"], rtol=0, atol=1e-4 * cubes["cpu"].max())


def test_the_second_device_is_honoured():
    with pretend_cuda(1):
        found = reconstruct("cuda:1", **named("gap-tv"))
        assert found.cube.device == torch.device("cuda:1") and found.parameters["device"] == "cuda:1"
        refused(pick_device, "cuda:2")


def precision() -> list[object]:
    places = getattr(torch.backends.cudnn, "conv", torch.backends.cudnn), torch.backends.cuda.matmul
    return [getattr(place, "fp32_precision", None) or place.allow_tf32 for place in places]


def test_float32_is_full_within_and_the_callers_without():
    """In the process: the first of some threads makes it so, the last puts back what the caller had set."""
    torch.set_float32_matmul_precision("high")
    before, entered, leave = precision(), threading.Barrier(3), threading.Event()

    @undisturbed
    def inside(stay: bool) -> None:
        entered.wait(60)
        assert not stay or leave.wait(60)

    try:
        with ThreadPoolExecutor(2) as pool:
            first, last = (pool.submit(inside, stay) for stay in (False, True))
            entered.wait(60)
            first.result(60)
            assert all(value in ("ieee", False) for value in precision()), "one is still inside"
            leave.set()
            last.result(60)
        assert precision() == before
    finally:
        torch.set_float32_matmul_precision("highest")


def test_many_components_are_no_business_of_unrolled_loops():
    _, mask, y = scene(bands=40)
    with pretend_cuda() as ledger:
        A, B = CASSI.from_step(mask.to(CUDA), 2, 40), torch.eye(40).to(CUDA)
        found = subspace_tv(A, y.to(CUDA), B, tv_weight=0.5, num_iters=3)[0]
        assert not any("subspace_step" in what for what, _ in ledger.launches), ledger.told()
        close(found.x, subspace_tv(CASSI.from_step(mask, 2, 40), y, torch.eye(40), tv_weight=0.5, num_iters=3)[0].x)


def test_results_of_another_device_are_not_gone_on_with():
    def device_of(solve: object) -> str:
        return describe_call(solve)["settings"]["device"]

    assert [device_of(SolveWith(Settings(device=name))) for name in ("cpu", "auto")] == ["cpu", str(pick_device())]
    with pretend_cuda():
        solves = (SolveWith(Settings()), InSequence(default().plan, Settings()))
        assert [device_of(solve) for solve in solves] == 2 * ["cuda"]


def test_without_triton_eager_torch_does_the_work_and_says_so_once():
    expected = reconstruct("cpu", **named("gap-tv"))
    with pretend_cuda(triton=False), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = reconstruct("cuda", **named("gap-tv"))
        reconstruct("cuda", **named("gap-tv"))
        close(found.cube, expected.cube)
    assert len([w for w in told if "Triton does not run on cuda:0" in str(w.message)]) == 1


def test_the_warming_up_launches_what_a_default_run_takes(monkeypatch, capsys):
    monkeypatch.setattr("cassi.running.warm_up.SIDE", 24)
    monkeypatch.setattr("cassi.running.warm_up.BANDS", 8)  # as few as the network takes
    with pretend_cuda() as ledger:
        assert main(["warm-up", "--device", "cuda"]) == 0
    check_words(capsys.readouterr().out.splitlines()[-1])
    launched = {what for what, _ in ledger.launches}
    kernels = "shift_sum", "shift_back", "subspace_step", "squared_distances", "tv_steps", "gather_groups", "put_back"
    assert launched >= {f"triton {name}" for name in kernels} | {"convolution"}
    monkeypatch.setattr("cassi.running.warm_up.reconstruct", lambda *given, **how: None)
    with pretend_cuda(triton=False), warns():
        assert main(["warm-up", "--device", "cuda"]) == 0
    check_words(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_the_warming_up_of_a_device_that_is_not_there(capsys):
    check_refusal(capsys, main(["warm-up", "--device", "cuda"]))


def test_what_a_gpu_refuses_is_refused():
    with pretend_cuda() as ledger:
        here, there = torch.ones(3, device="cuda"), torch.ones(3)
        with refuses(RuntimeError):
            here + there
        refused(here.numpy, error=TypeError)
        with refuses(RuntimeError):
            there[here.long()]
        refused(torch.rand, 3, error=RuntimeError, device="cuda", generator=torch.Generator())
        before = ledger.launches.total(), ledger.waits.total()
        total = ((here + 1) * 2).sum()
        assert (ledger.launches.total() - before[0], ledger.waits.total() - before[1]) == (3, 0)
        assert float(total) == 12 and ledger.waits.total() == before[1] + 1
