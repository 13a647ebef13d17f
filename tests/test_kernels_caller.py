"""What the calling program has set changes no cube: PyTorch's and NumPy's settings, the share of a job."""

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import cassi
from cassi.kernels import machine
from cassi.looking.metrics import psnr, ssim
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

GIB = 2**30


def inside(context):
    def call(compute):
        with context():
            return compute()

    return call


def default_dtype(compute):
    torch.set_default_dtype(torch.float64)
    try:
        return compute()
    finally:
        torch.set_default_dtype(torch.float32)


def deterministic(compute):
    torch.use_deterministic_algorithms(True)
    try:
        return compute()
    finally:
        torch.use_deterministic_algorithms(False)


SETTINGS = {
    "autocast to bfloat16": inside(lambda: torch.autocast("cpu", torch.bfloat16)),
    "autocast to float16": inside(lambda: torch.autocast("cpu", torch.float16)),
    "default device": inside(lambda: torch.device("meta")),
    "default dtype": default_dtype,
    "deterministic": deterministic,
    "inference mode": inside(torch.inference_mode),
    "no gradients": inside(torch.no_grad),
    "numpy raises": inside(lambda: np.errstate(all="raise")),
}


@pytest.fixture(scope="module")
def snapshot():
    generator = torch.Generator().manual_seed(0)
    x = procedural_scene(24, 24, torch.linspace(450, 650, 6), generator=generator)
    mask = random_mask(24, 24, generator=generator)
    A = cassi.CASSI.from_step(mask, 2, 6)
    return x, A, A.forward(x)


COMPUTED = {
    "fast": lambda x, A, y: cassi.reconstruct(y, A.mask, num_bands=6, quality="fast", device="cpu").cube,
    "default": lambda x, A, y: (
        cassi.reconstruct(y, A.mask, num_bands=6, camera="as-given", uncertainty=True).uncertainty
    ),
    "gap_tv": lambda x, A, y: cassi.gap_tv(A, y, tv_weight=0.1, num_iters=5).x,
    "admm_tv": lambda x, A, y: cassi.admm_tv(A, y, tv_weight=0.1, num_iters=5).x,
    "fista_tv": lambda x, A, y: cassi.fista_tv(A, y, tv_weight=0.1, num_iters=5).x,
    "least squares": lambda x, A, y: cassi.least_squares(A, y, num_iters=5).x,
    "painted": lambda x, A, y: procedural_scene(16, 16, A.mask.new_tensor([500.0, 600.0]), generator=seeded()),
    "mask": lambda x, A, y: random_mask(16, 16, generator=seeded()),
    "scores": lambda x, A, y: y.new_tensor([psnr(x, 0.9 * x), ssim(x, 0.9 * x)]),
}


def seeded():
    return torch.Generator().manual_seed(1)


@pytest.fixture(scope="module")
def plain(snapshot):
    return {name: compute(*snapshot) for name, compute in COMPUTED.items()}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", COMPUTED)
def test_what_the_caller_has_set_changes_nothing(snapshot, plain, name, setting):
    found = SETTINGS[setting](lambda: COMPUTED[name](*snapshot))
    assert found.dtype == plain[name].dtype and found.device == plain[name].device
    assert float((found - plain[name]).norm()) <= 1e-6 * float(plain[name].norm())


def test_what_the_caller_has_set_stays(snapshot):
    with torch.device("meta"), torch.autocast("cpu", torch.bfloat16), np.errstate(all="raise"):
        COMPUTED["gap_tv"](*snapshot)
        assert torch.empty(1).is_meta and torch.is_autocast_enabled("cpu") and np.geterr()["divide"] == "raise"


@pytest.mark.parametrize("kind", ["DataFrame", "coo_array", "csr_matrix", "list", "sparse tensor"])
def test_arrays_of_other_libraries(snapshot, kind):
    _, A, y = snapshot
    bad = np.zeros(y.shape, bool)
    bad[3, 4] = True
    if kind == "DataFrame":
        other = pytest.importorskip("pandas").DataFrame
    elif kind == "list":
        other = np.ndarray.tolist
    elif kind == "sparse tensor":

        def other(values):
            return torch.from_numpy(values).to_sparse()
    else:
        import scipy.sparse

        other = getattr(scipy.sparse, kind)
    mask = A.mask.numpy()
    given = {"num_bands": 6, "solver": "gap-tv", "num_iters": 3}
    right = cassi.reconstruct(y, mask, bad_pixels=bad, **given).cube
    torch.set_warn_always(True)  # also of what it has warned of before
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not writable")  # as what pandas gives is
        found = cassi.reconstruct(other(y.numpy()), other(mask), bad_pixels=other(bad), **given).cube
    torch.set_warn_always(False)
    assert torch.equal(found, right)


def test_numba_without_its_compiler_is_eager(tmp_path):
    """Not a loop of Python: the whole default in seconds, which would take minutes."""
    code = (
        "import torch, cassi; from cassi.kernels.dispatch import kernels; assert kernels(torch.ones(1)) is None\n"
        "A = cassi.CASSI.from_step(torch.rand(24, 24, generator=torch.Generator().manual_seed(0)), 1, 4)\n"
        "print(float(cassi.reconstruct(A @ torch.ones(4, 24, 24), A, quality='fast').cube.mean()))"
    )
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert abs(float(done.stdout) - 1) < 0.05, done.stderr


# Containers and jobs


def group(place: Path, **files: object) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A tree of control groups in which this process is at /job/step."""
    monkeypatch.setattr(machine, "CGROUPS", tmp_path)
    monkeypatch.setattr(machine, "PROCESS", tmp_path / "of_process")

    def of(*lines):
        (tmp_path / "of_process").write_text("\n".join(lines) + "\n")
        return tmp_path

    return of


VERSION_1 = ("5:memory:/job/step", "3:cpu,cpuacct:/job/step", "1:name=systemd:/")


def test_memory_of_a_job(groups):
    assert machine.free_memory() > 0
    top = groups("0::/job/step")
    free = machine.free_memory()
    group(top / "job", memory__max="max", memory__high="max", memory__current=1)
    assert machine.free_memory() > 0.5 * free
    group(top / "job", memory__max=GIB, memory__current=GIB // 2, memory__stat=f"anon 1\ninactive_file {GIB // 8}")
    assert machine.free_memory() == GIB // 2 + GIB // 8
    group(top / "job/step", memory__max="max", memory__high=GIB // 4, memory__current=GIB // 8)  # the nearest decides
    assert machine.free_memory() == GIB // 8
    group(top / "job/step", memory__high=GIB // 16)
    assert machine.free_memory() == 0


def test_memory_of_a_job_of_version_1(groups):
    top = groups(*VERSION_1)
    group(top / "memory", memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=1)
    assert machine.free_memory() != 2**63 - 4097
    group(top / "memory/job", memory__limit_in_bytes=GIB, memory__usage_in_bytes=GIB // 2)
    assert machine.free_memory() == GIB // 2


def test_share_of_processors(groups, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    top = groups("0::/job/step")
    assert machine.num_cores() == 8
    group(top, cpu__max="max 100000")
    assert machine.num_cores() == 8
    group(top / "job/step", cpu__max="250000 100000")
    assert machine.num_cores() == 3
    group(top / "job", cpu__max="50000 100000")
    assert machine.num_cores() == 1


def test_share_of_processors_of_version_1(groups, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    top = groups(*VERSION_1)
    group(top / "cpu,cpuacct/job/step", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    assert machine.num_cores() == 8
    group(top / "cpu/job", cpu__cfs_quota_us=200000, cpu__cfs_period_us=100000)
    assert machine.num_cores() == 2


def test_settings_of_a_thread_are_those_of_the_call(snapshot, plain):
    """A default device belongs to the thread that calls."""
    found = []

    def call():
        with torch.device("meta"):
            found.append(COMPUTED["gap_tv"](*snapshot))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join()
    assert torch.equal(found[0], plain["gap_tv"])
