"""Functions that are recorded as CUDA graphs: on a device that is not there, which finds out what a graph cannot hold.

The last tests need a GPU, and compare the graphs themselves.
"""

import gc
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from messages import warns
from pretend_device import Ledger, pretend_cuda
from torch import Tensor

from cassi import CASSI
from cassi.kernels import graphs
from cassi.kernels.graphs import Repeated
from cassi.priors.learned import shipped_prior
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import smooth_basis
from cassi.simulation.camera import random_mask
from cassi.solvers.subspace_tv import subspace_tv
from cassi.solvers.unrolled import Steps, unrolled


def rotate(a: Tensor, b: Tensor, workspace: Tensor | None, c: Tensor) -> tuple[Tensor | None, ...]:
    """a and b change places, with sums in them; c is only read."""
    a.add_(b)
    return b, a, workspace, c, (a * b.add_(c))[:1]


def follow(times: int, device: str) -> list[Tensor]:
    """What `rotate` leaves after each of some calls in a row: all that matters to the caller."""
    repeated = Repeated(rotate, 2)
    tensors = [torch.arange(3.0).to(device), torch.ones(3).to(device), None]
    seen, founds = [], []
    for n in range(times):
        *tensors, _, found = repeated(*tensors[:3], torch.full((3,), 1.0 + n).to(device))
        seen += [t.clone() for t in tensors[:2]]
        founds.append(found)
    return [t.cpu() for t in (*seen, *founds)]


def launched(ledger: Ledger, name: str) -> int:
    return sum(n for (what, _), n in ledger.launches.items() if what == name)


def test_a_graph_computes_what_its_function_does():
    """Also where tensors change places an odd number of times, and where others are given."""
    expected = follow(5, "cpu")
    with pretend_cuda() as ledger:
        found = follow(5, "cuda")
        assert (launched(ledger, "graph"), launched(ledger, "add_")) == (4, 4)  # eager, and recorded
    assert all(map(torch.equal, found, expected))


def recorded(f: Callable[[Tensor], object], times: int = 4) -> Tensor:
    repeated, t = Repeated(lambda t: [f(t)], 1), torch.ones(3, device="cuda")
    for _ in range(times):
        (t,) = repeated(t)
    return t.cpu()


class Hoard:
    """Keeps what it allocated, as its function may not."""

    def __init__(self) -> None:
        self.last = torch.zeros(3, device="cuda")
        self.number = 0.0

    def outcome(self, t: Tensor) -> Tensor:
        self.last = t + self.last
        return self.last

    def count(self, t: Tensor) -> Tensor:
        self.number += 1
        return t + self.number

    def branch(self, t: Tensor) -> Tensor:
        self.number += 1
        return t + 1 if self.number < 3 else t * 2

    def first_use(self, t: Tensor) -> Tensor:
        if self.number == 1:
            self.last = t * 2
        self.number += 1
        return t + self.last


@pytest.mark.parametrize("what", ["outcome", "count", "branch", "first_use"])
def test_what_a_graph_cannot_hold_is_found_out(what):
    """A tensor that moves, a number or a branch that changes, a cache that is filled while it is recorded."""
    with pretend_cuda(), pytest.raises(AssertionError, match="a graph holds"):
        recorded(getattr(Hoard(), what))


def test_a_function_that_reads_a_number_goes_on_without_a_graph_and_says_so_once():
    with pretend_cuda() as ledger:
        with warns():
            found = recorded(lambda t: t * 2 if float(t.sum()) > 0 else t)
        assert torch.equal(found, torch.full((3,), 16.0)) and not launched(ledger, "graph")


def test_what_is_tracked_is_not_recorded(monkeypatch):
    weight = torch.ones(3, requires_grad=True)
    with pretend_cuda() as ledger, warnings.catch_warnings():
        warnings.simplefilter("error")
        repeated, w = Repeated(lambda t: [t * w], 0), weight.to("cuda")
        for _ in range(3):
            (y,) = repeated(torch.ones(3, device="cuda"))
        assert y.requires_grad
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)  # somebody else records
        recorded(lambda t: t + 1)
        assert not launched(ledger, "graph")


def test_other_sizes_are_computed_without_the_graph():
    with pretend_cuda() as ledger:
        repeated = Repeated(lambda t: [t, t * 2], 0)
        for n in (3, 3, 1, 3, 4):
            assert repeated(torch.ones(n, device="cuda"))[1].shape == (n,)
        assert launched(ledger, "graph") == 2


def test_a_graph_is_freed_with_its_object():
    with pretend_cuda():
        constant = torch.ones(3, device="cuda")
        held = weakref.ref(constant)
        repeated = Repeated(lambda t, c=constant: [t + c], 1)
        for _ in range(3):
            repeated(torch.ones(3, device="cuda"))
        del constant, repeated
        gc.disable()
        try:
            assert held() is None  # there is no cycle
        finally:
            gc.enable()


on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")


def test_on_a_cpu_the_function_works_in_place():
    t = torch.ones(3)
    (found,) = Repeated(lambda t: [t.add_(1)], 1)(t)
    assert found is t and float(t[0]) == 2


def snapshots(bands: int, count: int, components: int) -> tuple[CASSI, Tensor, list[Tensor], list[Tensor]]:
    """A camera on the device, a basis, scenes and what it sees of them."""
    generator = torch.Generator().manual_seed(0)
    A = CASSI.from_step(random_mask(40, 48, generator=generator).float(), 2, bands).to("cuda")
    scenes = [torch.rand(bands, 40, 48, generator=generator).cumsum(-1).cuda() for _ in range(count)]
    return A, smooth_basis(bands, components).float().cuda(), scenes, [A.forward(x) for x in scenes]


@on_cuda
@pytest.mark.parametrize("prior", ["total variation", "non-local"])
def test_graphs_on_cuda_give_the_cube_of_eager_launches(monkeypatch, prior):
    A, B, _, (y,) = snapshots(8, 1, 4)
    _, start = subspace_tv(A, y, B, num_iters=5)

    def solve() -> tuple[Tensor, list[object]]:
        denoise = NonlocalDenoiser(0.5) if prior == "non-local" else None
        how = {"variance": 0.01, "state": start, "momentum": 1 / 3 if denoise else 0.0, "tol": 0}
        run, _ = subspace_tv(A, y, B, num_iters=50, denoise=denoise, **how)
        return run.x, [record[2:] for record in run.history]

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = solve()
    monkeypatch.setattr(Repeated, "__call__", lambda self, *tensors: list(self.f(*tensors)))
    eager = solve()
    if prior == "total variation":
        assert torch.equal(graph[0], eager[0]) and graph[1] == eager[1]
    torch.testing.assert_close(graph[0], eager[0], rtol=1e-4, atol=1e-4)  # cuBLAS may choose by its stream


@on_cuda
def test_a_network_on_cuda_gives_with_graphs_what_it_gives_without(monkeypatch):
    A, B, (x,), (y,) = snapshots(12, 1, 12)
    prior = shipped_prior().on(torch.device("cuda", 0))
    start, steps = torch.einsum("kc,chw->khw", B, x), Steps.of(A, B, prior).repeated()

    def solve(scale: float) -> Tensor:
        variance = torch.full_like(y, 1e-3 * scale)
        return unrolled(A, scale * y, B, prior, start, variance=variance, level=12.0 * scale, steps=steps)[1]

    with torch.no_grad():
        graphs = [solve(scale) for scale in (1.0, 0.7, 0.5)]
        monkeypatch.setattr(Repeated, "__call__", lambda self, *tensors: list(self.f(*tensors)))
        torch.testing.assert_close(torch.stack(graphs), torch.stack([solve(scale) for scale in (1.0, 0.7, 0.5)]))


@on_cuda
def test_on_cuda_threads_record_side_by_side():
    """As those of many snapshots do."""
    A, B, _, frames = snapshots(8, 8, 4)

    def solve(y: Tensor) -> Tensor:
        _, start = subspace_tv(A, y, B, num_iters=100)
        return subspace_tv(A, y, B, num_iters=50, state=start, denoise=NonlocalDenoiser(0.5), momentum=1 / 3)[0].x

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected = [solve(y) for y in frames]
        with ThreadPoolExecutor(4) as pool:
            for found, one in zip(pool.map(solve, frames), expected, strict=True):
                torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-4)


@on_cuda
def test_on_cuda_a_recording_that_is_refused_leaves_the_device_usable():
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert torch.equal(recorded(lambda t: t * 2 if float(t.sum()) > 0 else t), torch.full((3,), 16.0))
    assert len(told) == 1
    assert torch.equal(recorded(lambda t: t + 1), torch.full((3,), 5.0))
    assert graphs.record(lambda: [torch.ones(2, device="cuda")], torch.device("cuda", 0))[1][0].shape == (2,)
