"""All of the program on a CUDA device that is not there: nothing on two devices, and the cube of the CPU.

`test_kernels_gpu.py` compares what Triton computes.
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
from cuda_scenes import BANDS, CUDA, SIDE, close, default, in_float32, named, reconstruct, scene  # noqa: F401 (a fixture)
from messages import check_refusal, refused, refuses
from pretend_device import pretend_cuda

import cassi
from cassi import CASSI, MultiShot, SidePicture
from cassi.choice.stages import Learned, NonLocal, Tv
from cassi.cli.main import main
from cassi.kernels.caller import undisturbed
from cassi.kernels.dispatch import pick_device
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.measurement import Measurement
from cassi.optics.psf import gaussian_psf
from cassi.priors.learned import shipped_prior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.running.fingerprint import describe_call
from cassi.running.many import SolveWith
from cassi.sequence.frames import InSequence
from cassi.settings import Settings
from cassi.solvers.subspace_tv import subspace_tv

pytestmark = pytest.mark.usefixtures("in_float32")


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


@pytest.mark.parametrize("alone", ["a monitor", "a budget", "no memory", "a stage of its own"])
def test_frames_that_are_solved_alone(monkeypatch, alone):
    plan, options = replace(default().plan, stages=(Tv(4),)), {}
    if alone == "a monitor":
        options = {"monitor": lambda record, z: len(z.shape) > 3}
    elif alone == "a budget":
        options = {"budget": 1000.0}
    elif alone == "a stage of its own":
        monkeypatch.setattr(Tv, "of_one_scene", True)
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
