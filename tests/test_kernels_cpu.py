"""The compiled kernels: safe under threads and after a fork, right beyond 2^31 elements, and dispensable."""

import math
import mmap
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from cases import random as random_of, tv_prox
from messages import refused
from torch import Tensor

from cassi import CASSI, MultiShot, admm_tv, gap_tv
from cassi.kernels import cpu, cpu_lowrank, cpu_tv, threads
from cassi.kernels.convolution import convolve_rows
from cassi.kernels.dispatch import eager as eagerly, kernels
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import smooth_basis
from cassi.running.warm_up import warm_up
from cassi.solvers.subspace_tv import subspace_tv

random = partial(random_of, dtype=torch.float32)


@pytest.fixture
def three_threads(monkeypatch, torch_threads):
    """Three threads, also for the little work of a test."""
    monkeypatch.setattr(threads, "SMALL", 0)
    torch_threads(3)


def problem(seed: int = 0) -> tuple[CASSI, Tensor]:
    A = CASSI(random(40, 44, seed=seed).abs(), tuple(range(0, 48, 2)))
    return A, A.forward(random(2, *A.cube_shape, seed=seed + 1).abs())


def signatures() -> dict[str, int]:
    """How many types each kernel is compiled for in this process."""
    functions = {**vars(cpu), **vars(cpu_lowrank)}
    return {name: len(f.signatures) for name, f in functions.items() if hasattr(f, "signatures")}


def test_nothing_is_compiled_after_the_warming_up():
    """Comes first: it compiles all kernels, where they are not yet, for every test that follows."""
    warm_up(torch.device("cpu"))
    before = signatures()
    assert all(before[name] for name in ("_forward", "_data_step", "_subspace_step", "_subspace_gram", "_filtered"))
    for dtype in (torch.float32, torch.float64):
        A = CASSI(random(9, 12, seed=1, dtype=dtype).abs(), (0, 2, 1, 5))
        for camera in (A, A.weighted(random(*A.measurement_shape, seed=2, dtype=dtype).abs())):
            y = camera.forward(random(2, *A.cube_shape, seed=3, dtype=dtype).abs())
            camera.pinv(y)
            gap_tv(camera, y, tv_weight=0.1, num_iters=2)
            admm_tv(camera, y, tv_weight=0.1, num_iters=2)
            for nonnegative in (True, False):
                subspace_tv(camera, y, smooth_basis(4, 3), num_iters=2, nonnegative=nonnegative)
                shots = MultiShot([camera, camera])
                subspace_tv(shots, torch.stack([y, y], 1), smooth_basis(4, 3), num_iters=2, nonnegative=nonnegative)
        convolve_rows(y[0], y[0])
        NonlocalDenoiser(0.5)(random(3, 20, 20, seed=4, dtype=dtype), 0)
        assert dtype == torch.float64 or signatures() == before


@pytest.mark.parametrize("shots", [1, 2])
def test_what_is_not_a_number_stays_in_its_row(shots):
    """Though blocks of rows share their buffers, which 8 rows of these fill."""
    one = CASSI(random(20, 1000, seed=1).abs(), tuple(range(5)))
    A, B = one if shots == 1 else MultiShot([one, one]), smooth_basis(5, 3).float()
    y = A.forward(random(*A.cube_shape, seed=2).abs())
    y[..., 0, 3] = math.nan
    z_new, step = torch.empty(3, 20, 1000), A.fused_step(y, B, torch.ones_like(y), torch.ones_like(y), 0.3)
    assert step is not None
    step(torch.zeros_like(z_new), z_new, e=torch.zeros_like(y), u=torch.zeros(A.cube_shape), y_z=torch.empty_like(y))
    for found in (z_new, A.subspace_gram(y, B, B)):
        assert found.isnan().any(-1).view(-1, 20).any(0).nonzero().tolist() == [[0]]


@pytest.mark.parametrize("count", [1, 2, 3, 11, 12, 13, 100])
def test_ranges_cover_every_index_once(count, three_threads):
    done = np.zeros(count, dtype=int)

    def kernel(array: np.ndarray, start: int, stop: int) -> None:
        assert start < stop
        array[start:stop] += 1

    threads.share_out(kernel, count, 1 << 30, done)
    assert done.tolist() == [1] * count


def test_what_a_kernel_raises_in_another_thread_is_raised(three_threads):
    def kernel(start: int, stop: int) -> None:
        if stop == 100:
            raise RuntimeError("the last range")

    for _ in range(20):
        with pytest.raises(RuntimeError) as caught:
            threads.share_out(kernel, 100, 1 << 30)
        assert caught.value.args == ("the last range",)


def test_more_threads_than_one_change_nothing(three_threads):
    A, y = problem()
    x = random(2, *A.cube_shape, seed=5)

    def results() -> list[Tensor]:
        return [
            A.forward(x),
            A.pinv(y),
            tv_prox(x, 0.3, num_iters=4)[0],
            gap_tv(A, y, tv_weight=0.1, num_iters=5).x,
            subspace_tv(A, y, smooth_basis(A.num_bands, 8), num_iters=5)[0].x,
        ]

    several = results()
    torch.set_num_threads(1)
    for a, b in zip(several, results(), strict=True):
        assert torch.equal(a, b)


def test_several_callers_at_once(three_threads):
    problems = [problem(seed) for seed in (0, 10, 20, 30)]
    expected = [gap_tv(A, y, tv_weight=0.1, num_iters=10).x for A, y in problems]
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(gap_tv, *problems[k % 4], tv_weight=0.1, num_iters=10) for k in range(12)]
        for k, job in enumerate(jobs):
            assert torch.equal(job.result().x, expected[k % 4])


def test_what_the_kernels_take():
    x = random(4, 6)
    assert kernels(x, None, x.clone()) is cpu
    for foreign in (x.t(), x.half(), x[:0], x.to("meta")):
        assert kernels(foreign) is None
    assert kernels(x, x.double()) is None
    wanted = x.clone().requires_grad_()
    assert kernels(wanted) is None
    with torch.no_grad():
        assert kernels(wanted) is cpu
    with eagerly():
        assert kernels(x) is None
    assert kernels(x) is cpu


def test_not_a_number_comes_through():
    A, y = problem()
    x = random(*A.cube_shape)
    x[3, 4, 5] = math.nan
    assert int(A.forward(x).isnan().sum()) == 1
    assert tv_prox(x, 0.3, num_iters=2)[0].isnan().any()
    y[0, 2, 3] = math.inf
    refused(gap_tv, A, y, error=FloatingPointError, tv_weight=0.1, num_iters=3)


@pytest.mark.parametrize("weight", [0.0, 1e-30, 1e-12, 1.0, 1e12, 1e30])
def test_total_variation_at_any_scale_of_its_weight(weight):
    v = random(2, 9, 8, dtype=torch.float64)
    expected, dual = tv_prox(v, weight, num_iters=7)
    u, q = tv_prox(v.float(), weight, num_iters=7)
    torch.testing.assert_close(u.double(), expected, rtol=0, atol=2e-6)
    assert float(q.abs().max()) <= weight * (1 + 1e-6)
    torch.testing.assert_close(q.double(), dual, rtol=0, atol=2e-6 * max(1e-20, float(dual.abs().max())))


def virtual(*shape: int) -> Tensor:
    """A float32 tensor of zeros whose pages take memory only once they are written."""
    no_reserve = 0x4000  # MAP_NORESERVE of Linux, which Python 3.11 does not name
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    try:
        memory = mmap.mmap(-1, 4 * math.prod(shape), flags=flags)
    except (OSError, ValueError) as error:
        pytest.skip(f"the system gives no address space of this size: {error}")
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


@pytest.mark.skipif(sys.platform != "linux", reason="address space without memory as Linux gives it")
def test_beyond_2_to_the_31_elements():
    """The last rows of arrays of more than 2^31 elements, as the public functions hand them to the kernels."""
    bands, height, width = 2, 1200, 1 << 20
    x, mask, out = virtual(1, bands, height, width), virtual(1, height, width), virtual(1, bands, height, width)
    y = virtual(1, height, width + 3)
    assert x.numel() > 1 << 31
    x[0, 0, -1, :5], x[0, 1, -1, -5:], mask[0, -1] = 2.0, 3.0, 0.5
    arrays = [t.numpy() for t in (x, mask, out, y)]
    offsets, none, last = np.array([0, 3]), np.empty((0, 0), np.float32), (height - 1, height)
    cpu._forward(arrays[0], arrays[1], offsets, none, arrays[3], *last)
    assert y[0, -1, :6].tolist() == [1, 1, 1, 1, 1, 0]
    assert y[0, -1, -6:].tolist() == [0, 1.5, 1.5, 1.5, 1.5, 1.5]
    cpu._adjoint(arrays[3], arrays[1], offsets, none, arrays[2], *last)
    assert out[0, 0, -1, :6].tolist() == [0.5, 0.5, 0.5, 0.5, 0.5, 0]
    assert out[0, 1, -1, -5:].tolist() == [0.75] * 5


@pytest.mark.skipif(sys.platform != "linux", reason="address space without memory as Linux gives it")
def test_total_variation_beyond_2_to_the_31_elements():
    count = (1 << 28) + 1
    u, q = virtual(count, 2, 4), virtual(2, count, 2, 4)
    v = random(1, 2, 4)
    u[-1:] = v
    weights = virtual(count)
    weights[-1] = 0.2
    cpu_tv._tv_prox(u.numpy(), weights.numpy(), q.numpy(), np.float32(1), 5, count - 1, count)
    expected, dual = tv_prox(v, 0.2, num_iters=5)
    assert torch.equal(u[-1:], expected)
    assert torch.equal(q[:, -1:], dual)


@pytest.mark.long
def test_without_the_kernels():
    code = (
        "import torch; from cassi import CASSI, gap_tv; from cassi.kernels.dispatch import kernels; "
        "A = CASSI.from_step(torch.linspace(0.1, 1, 35).view(5, 7), 2, 3); "
        "y = A.forward(torch.linspace(0, 1, 105).view(3, 5, 7)); "
        "found = float(gap_tv(A, y, tv_weight=0.1, num_iters=5).x.norm()); "
        "print(kernels(torch.ones(1)), found)"
    )
    environment = {**os.environ, "CASSI_COMPILED": "0", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    exec(code, here := {})
    kernel, found = run.stdout.split()
    assert kernel == "None" and float(found) == pytest.approx(here["found"], rel=1e-5)


FORK = """
import os, sys, time, torch
from cassi.kernels import shift_sum
torch.set_num_threads(2)
x, mask = torch.rand(8, 512, 512), torch.rand(512, 512)

def work():
    torch.nn.functional.conv2d(x[None], torch.rand(8, 8, 3, 3))  # torch's threads
    return shift_sum.shift_sum(x, mask, (0, 3, 1, 2, 7, 5, 6, 4))  # ours

before = work()
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(work(), before) and torch.get_num_threads() == 1 else 3)
for _ in range(300):
    done, status = os.waitpid(child, os.WNOHANG)
    if done:
        assert torch.get_num_threads() == 2  # of the parent
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.1)
os.kill(child, 9)
sys.exit(4)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.long
def test_a_forked_child_computes_as_its_parent():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
