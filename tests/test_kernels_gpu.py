"""The Triton kernels against eager torch, through Triton's interpreter: right on a machine without a GPU too."""

import importlib
import itertools
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from cases import random, tv_prox
from messages import warns
from pretend_device import pretend_cuda
from test_kernels_cpu import virtual
from torch import Tensor

from cassi import CASSI, admm_tv, gap_tv
from cassi.kernels import cpu, dispatch
from cassi.priors import nonlocal_lowrank
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.subspace_tv import subspace_tv

triton = pytest.importorskip("triton", reason="Triton is not installed (the extra `test` brings it on Linux)")


FLAG = object()  # a constant of a kernel that is true or false


@dataclass(frozen=True)
class Size:
    """A batch of snapshots: what divides no block, and what is 1."""

    batch: tuple[int, ...]
    height: int
    width: int
    shifts: tuple[int, ...]
    per_band: bool = False
    weighted: bool = False


SIZES = [
    Size((), 1, 1, (0,)), Size((), 3, 5, (0, 2, 4)), Size((2,), 1, 7, (5, 0, 1), per_band=True),
    Size((2, 2), 5, 1, (0, -3), weighted=True), Size((), 9, 65, (0, 1, 2), per_band=True, weighted=True),
    Size((1,), 8, 64, (-1, -1, 4, 2)), Size((), 2, 257, (0, 2, 4), weighted=True),
    Size((), 2, 530, (3, 0, 511), weighted=True), Size((), 17, 129, (7,)),
]  # fmt: skip


@pytest.fixture(scope="module")
def triton_kernels() -> Iterator[ModuleType]:
    """The kernels decorated while the interpreter is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        with patch.context() as asked:
            asked.setenv("TRITON_INTERPRET", "1")
            asked.delitem(sys.modules, "cassi.kernels.gpu", raising=False)
            module = importlib.import_module("cassi.kernels.gpu")
            del sys.modules["cassi.kernels.gpu"]
        yield module


def tolerance(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 1e-5, "atol": 5e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-13}


def camera(size: Size, dtype: torch.dtype) -> CASSI:
    mask = random(*((len(size.shifts),) * size.per_band + (size.height, size.width)), seed=1, dtype=dtype).abs()
    mask[..., :1] = 0  # a dark column of the detector
    A = CASSI(mask, size.shifts)
    if not size.weighted:
        return A
    weights = random(*A.measurement_shape, seed=2, dtype=dtype).abs()
    weights[:, -1] = 0
    return A.weighted(weights)


class Backend:
    """Stands for `cassi.kernels.dispatch.kernels`: counts, and gives these kernels, or none, to contiguous tensors."""

    def __init__(self, module: ModuleType | None) -> None:
        self.module, self.calls = module, 0

    def __call__(self, *tensors: Tensor | None) -> ModuleType | None:
        if not all(t.is_contiguous() for t in tensors if t is not None):
            return None
        self.calls += 1
        return self.module


@pytest.fixture
def use(monkeypatch):
    def choose(module: ModuleType | None) -> Backend:
        chosen = Backend(module)
        for place in ("kernels.shift_sum", "priors.tv", "optics.single_disperser", "solvers.loop"):
            monkeypatch.setattr(f"cassi.{place}.kernels", chosen)
        return chosen

    return choose


@pytest.fixture
def same(triton_kernels, use):
    """Whether Triton's kernels make what eager torch makes; how often kernels were asked for."""

    def compare(run: Callable[[], list[Tensor]], scaled: bool = False) -> int:
        use(None)
        expected = run()
        counter = use(triton_kernels)
        assert_near(run(), expected, scaled)
        return counter.calls

    return compare


def assert_near(found: Iterable[Tensor], expected: Iterable[Tensor], scaled: bool = False) -> None:
    for got, want in zip(found, expected, strict=True):
        scale = max(1.0, float(want.abs().max())) if scaled else 1.0
        torch.testing.assert_close(got / scale, want / scale, **tolerance(want.dtype))


CASES = [(size, torch.float32) for size in SIZES] + [(SIZES[k], torch.float64) for k in (2, 5)]


def cut(height: int, width: int) -> pytest.MarkDecorator:
    """The cases, no larger than this."""
    cases = [(replace(s, height=min(s.height, height), width=min(s.width, width)), dtype) for s, dtype in CASES]
    return pytest.mark.parametrize(("size", "dtype"), cases, ids=str)


by_row = cut(2, 1000)  # kernels with a program for each row of a snapshot see no more in many rows than in two
by_tile = cut(1000, 130)  # those with one for each tile, of 8 x 64, no more in nine columns than in three


@by_row
def test_operator(size, dtype, same):
    A = camera(size, dtype)
    x = random(*size.batch, *A.cube_shape, seed=3, dtype=dtype)
    y = random(*size.batch, *A.measurement_shape, seed=4, dtype=dtype)
    assert same(lambda: [A.forward(x), A.adjoint(y), A.pinv(y), A.prox(x, y, 0.3)]) == 5


@by_row
@pytest.mark.parametrize(("rho", "accelerate", "in_place"), [(0.0, True, False), (0.0, False, True), (0.7, True, True)])
def test_data_step(size, dtype, rho, accelerate, in_place, triton_kernels, use):
    A = camera(size, dtype)

    v = random(*size.batch, *A.cube_shape, seed=3, dtype=dtype)
    y, y_x = (random(*size.batch, *A.measurement_shape, seed=s, dtype=dtype) for s in (4, 5))
    use(None)
    y_v = A.forward(v)
    r = A.solve(y - y_v + (y_x - y_v if accelerate else 0), rho)
    expected = [v + A.adjoint(r), y_v + A.gram_diag() * r, y_v]
    x, out = v if in_place else torch.full_like(v, torch.nan), torch.full_like(y, torch.nan)
    use(triton_kernels)
    assert A.data_step_(v, x, y, y_x, out, rho=rho, accelerate=accelerate)
    assert_near((x, y_x, out), expected)


@by_tile
@pytest.mark.filterwarnings("ignore:overflow")  # a weight of 0 gives an infinite magnitude, and the dual 0
def test_total_variation(size, dtype, same):
    v = random(*size.batch, len(size.shifts), size.height, size.width, seed=3, dtype=dtype)
    weight = torch.linspace(0, 0.8, len(size.shifts), dtype=dtype)[:, None, None]
    for num_iters in (0, 3) if size in SIZES[:3] else (3,):
        same(lambda num_iters=num_iters: [*tv_prox(v, weight, num_iters=num_iters)])


@cut(2, 130)  # a program takes 128 columns at a time
@pytest.mark.parametrize(("components", "nonnegative"), [(1, True), (3, False), (8, True)])
def test_subspace_step(size, dtype, components, nonnegative, triton_kernels):
    A = camera(size, dtype)
    images = (*size.batch, components, size.height, size.width)

    def results(module: ModuleType) -> list[Tensor]:
        z, y, e = (random(*shape, seed=s, dtype=dtype) for s, shape in ((3, images), (4, frame), (5, frame)))
        u = random(*size.batch, *A.cube_shape, seed=6, dtype=dtype).abs() if nonnegative else None
        gamma, omega = (random(*frame, seed=s, dtype=dtype).abs() for s in (7, 8))
        basis = random(components, len(size.shifts), seed=9, dtype=dtype)
        z_new, y_z = torch.full_like(z, torch.nan), torch.full_like(y, torch.nan)
        module.subspace_step(z, z_new, y, e, u, y_z, basis, A.mask, A.shifts, A.weights, gamma, omega, 0.3)
        return [z_new, y_z, e, *([] if u is None else [u])]

    frame = (*size.batch, *A.measurement_shape)
    assert_near(results(triton_kernels), results(cpu), scaled=True)


@cut(2, 130)
@pytest.mark.parametrize("components", [1, 3, 8])
def test_subspace_gram(size, dtype, components, same):
    A = camera(size, dtype)
    p = random(*size.batch, *A.measurement_shape, seed=3, dtype=dtype)
    B = random(components, len(size.shifts), seed=4, dtype=dtype)
    for batch in {(), size.batch}:  # variances common to the snapshots, and of each
        SB = B * random(*batch, components, 1, seed=5, dtype=dtype).abs()
        assert same(lambda SB=SB: [A.subspace_gram(p, B, SB)], scaled=True) == 3  # without them they are four


@cut(2, 130)
def test_subspace_forward_and_adjoint(size, dtype, same):
    A = camera(size, dtype)
    B = random(3, len(size.shifts), seed=4, dtype=dtype)
    z = random(*size.batch, 3, *A.cube_shape[1:], seed=3, dtype=dtype).requires_grad_(True)
    p = random(*size.batch, *A.measurement_shape, seed=5, dtype=dtype)

    def results() -> list[Tensor]:
        y = A.subspace_forward(z, B)
        return [y.detach(), A.subspace_adjoint(p, B), *torch.autograd.grad(y, z, p)]

    same(results, scaled=True)


def test_a_coefficient_that_is_not_a_number_comes_through(triton_kernels):
    z, y, u = torch.ones(2, 3, 4), torch.ones(3, 5), torch.ones(2, 3, 4)
    z[0, 1, 2] = torch.nan
    z_new, y_z = torch.empty_like(z), torch.empty_like(y)
    ones = torch.ones_like(y)
    triton_kernels.subspace_step(
        z, z_new, y, y.clone(), u, y_z, torch.eye(2), torch.ones(3, 4), (0, 1), None, ones, ones, 0.3
    )
    assert y_z.isnan().nonzero().tolist() == [[1, 2], [1, 3]]  # 0 times it is not a number either
    assert u.isnan().nonzero().tolist() == [[0, 1, 2], [1, 1, 2]]
    assert bool(z_new[0, 1, 2].isnan()) and not bool(z_new[:, 0].isnan().any())


@pytest.mark.parametrize(
    ("count", "dtype"), [(1, torch.float32), (16384, torch.float64), (16385, torch.float32), (40001, torch.float64)]
)
def test_squared_distances(count, dtype, triton_kernels):
    a, b, c, d = (random(n, seed=s, dtype=dtype) for s, n in enumerate((count, count, 700, 700)))
    expected = torch.stack([t.double().square().sum() for t in (a - b, b, c - d, d)])
    for module in (triton_kernels, cpu):
        found = module.squared_distances(a, b, c, d).sum(1)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("size", "dtype"), [((2, 6, 7), torch.float32), ((1, 6, 5), torch.float64)], ids=str)
def test_groups_of_patches(size, dtype, triton_kernels, monkeypatch):
    """Filters that were kept, on images other than those they were made of; cut into parts, whose sums are added."""
    z, other = (random(*size, seed=s, dtype=dtype) + 3 for s in (1, 2))
    results, calls = [], Backend(triton_kernels)
    monkeypatch.setattr(nonlocal_lowrank, "_CHUNK", 3 * 32 * 9 * size[0])
    for backend in (Backend(None), calls):
        monkeypatch.setattr(nonlocal_lowrank, "kernels", backend)
        denoise = nonlocal_lowrank.NonlocalDenoiser(0.5, patch=3, stride=3)
        results.append([denoise(z.clone(), 0), denoise(other.clone(), 1)])
    assert calls.calls >= 6  # kernels gather the patches when filters are made and at each call
    for got, want in zip(*results[::-1], strict=True):
        torch.testing.assert_close(got, want, **tolerance(dtype))


@pytest.mark.parametrize("nonnegative", [True, False])
def test_the_default_solver(nonnegative, triton_kernels, use):
    A = camera(Size((2,), 2, 7, (0, 3, 1, 5), per_band=True, weighted=True), torch.float64)
    y = A.forward(random(2, *A.cube_shape, seed=3, dtype=torch.float64).abs())
    run = partial(subspace_tv, A, y, smooth_basis(4, 2), variance=0.01, num_iters=3, nonnegative=nonnegative)
    use(None)
    expected, state = run()
    counter = use(triton_kernels)
    assert state.z.is_contiguous()  # of others the kernels take none: einsum gives a batch other strides
    found, same = run()
    assert counter.calls > 1 + 2 * 3  # data step of all, dual steps and comparison of each iteration
    torch.testing.assert_close(found.x, expected.x, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(same.q, state.q, rtol=1e-9, atol=1e-10)
    for a, b in zip(found.history, expected.history, strict=True):
        assert (a.residual, a.change) == pytest.approx((b.residual, b.change), rel=1e-9)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize(("size", "dtype"), CASES, ids=str)
def test_on_the_device(size, dtype):
    A = camera(size, dtype)
    x = random(*size.batch, *A.cube_shape, seed=3, dtype=dtype)
    y = A.forward(x)
    on_device = A.to("cuda")
    torch.testing.assert_close(on_device.forward(x.cuda()).cpu(), y, **tolerance(dtype))
    torch.testing.assert_close(on_device.pinv(y.cuda()).cpu(), A.pinv(y), **tolerance(dtype))
    for solve in (gap_tv, partial(admm_tv, rho=None if A.norm() > 0 else 0.1)):  # a dark camera has none
        expected = solve(A, y, tv_weight=0.1, num_iters=3).x
        got = solve(on_device, y.cuda(), tv_weight=0.1, num_iters=3).x
        torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-4)
    basis = smooth_basis(len(size.shifts), 1)
    expected = subspace_tv(A, y, basis, num_iters=3)[0].x
    got = subspace_tv(on_device, y.cuda(), basis, num_iters=3)[0].x
    torch.testing.assert_close(got.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.skipif(sys.platform != "linux", reason="address space without memory as Linux gives it")
def test_beyond_2_to_the_31_elements(triton_kernels):
    """The first program of a grid, in a cube whose second band lies beyond 2^31 elements."""
    height, width = 1 << 16, (1 << 15) + 3
    x = virtual(2, height, width)
    x[0, 0, :4], x[1, 0, :4] = 1.0, 2.0
    mask, offsets, y = torch.full((1, width), 0.5), torch.tensor([0, 1], dtype=torch.int32), torch.zeros(1, width + 1)
    sizes = (2, height, width, width + 1)
    triton_kernels._forward[(1, 1)](x, mask, offsets, mask, y, *sizes, False, False, 256)
    assert y[0, :6].tolist() == [0.5, 1.5, 1.5, 1.5, 1, 0]
    y_x, y_v, back = y.clone(), torch.zeros_like(y), torch.zeros_like(y)
    gram = torch.ones_like(y)
    rows, to = (y, y_x, y_v, back), (mask, offsets, mask, gram, gram)
    for value, second in ((0, [2, 2, 2, 2, 0]), (1, [2.5, 2.5, 2.5, 2.5, 0.5])):
        y += value
        triton_kernels._damped_misfit[(1, 1)](x, *rows, *to, *sizes, False, False, False, 1 << 16)
        assert torch.equal(y_v, y - value)
        triton_kernels._add_back[(1, 1, 2)](x, x, back, mask, offsets, *sizes, False, 1 << 16)
        assert x[1, 0, :5].tolist() == second


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError(), RuntimeError("Triton Error [CUDA]: out of memory")], ids=str
)
def test_a_full_gpu_is_no_reason_to_do_without_triton(monkeypatch, error):
    module = SimpleNamespace(squared_distances=mock.Mock(side_effect=[error, None]))
    monkeypatch.setattr(dispatch, "import_module", lambda name: module)
    dispatch._triton.cache_clear()
    try:
        with pytest.raises(type(error)):
            dispatch._triton(torch.device("cpu"))
        assert dispatch._triton(torch.device("cpu")) is module
    finally:
        dispatch._triton.cache_clear()


class Broken:
    """Triton's kernels on a machine without a C compiler: the first launch fails."""

    def squared_distances(self, *given: Tensor) -> Tensor:
        raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable")


@pytest.mark.parametrize(("module", "cause"), [(None, "ModuleNotFoundError"), (Broken(), "RuntimeError: Failed to")])
def test_without_triton_there_is_one_warning(monkeypatch, module, cause):
    if module is None:
        monkeypatch.setitem(sys.modules, "cassi.kernels.gpu", None)
    else:
        monkeypatch.setattr(dispatch, "import_module", lambda name: module)
    dispatch._triton.cache_clear()
    device = torch.device("cpu")
    try:
        with warns(cause):
            assert dispatch._triton(device) is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert dispatch._triton(device) is None
    finally:
        dispatch._triton.cache_clear()


# of each kernel what is fixed when it is compiled, with both values of its flags
CONSTANTS: dict[str, dict[str, Any]] = {
    "_forward": {"PER_BAND": FLAG, "SCALED": FLAG, "BLOCK": 256},
    "_adjoint": {"PER_BAND": FLAG, "SCALED": FLAG, "BLOCK": 256},
    "_damped_misfit": {"PER_BAND": FLAG, "WEIGHTED": FLAG, "ACCELERATE": FLAG, "BLOCK": 256},
    "_add_back": {"PER_BAND": FLAG, "BLOCK": 256},
    "_misfit": {"PER_BAND": FLAG, "WEIGHTED": FLAG, "COMPONENTS": 7, "BLOCK": 128},
    "_step_back": {"PER_BAND": FLAG, "NONNEGATIVE": FLAG, "COMPONENTS": 7, "STEP": 0.3, "K": 8, "BLOCK": 128},
    "_see": {"PER_BAND": FLAG, "WEIGHTED": FLAG, "COMPONENTS": 7, "BLOCK": 128},
    "_see_back": {"PER_BAND": FLAG, "WEIGHTED": FLAG, "COMPONENTS": 7, "OF_EACH": FLAG, "K": 8, "BLOCK": 128},
    "_squared_distances": {"CHUNK": 1 << 12, "BLOCK": 128},
    "_dual_step": {"ROWS": 8, "COLUMNS": 64},
    "_primal": {"ROWS": 8, "COLUMNS": 64},
    "_gather_groups": {"PATCH": 5, "BLOCK": 32},
    "_put_back": {"ADD": FLAG, "PATCH": 5, "BLOCK": 16},
}  # fmt: skip
KINDS = {"offsets": "*i32", "partial": "*fp64", "groups": "*i64", "order": "*i64", "start": "*i64"}
KINDS |= dict.fromkeys(("size", "first_size", "second_size"), "i64")
NUMBERS = ("C", "H", "W", "D", "K", "M", "programs")


def once(constants: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value is FLAG or value for name, value in constants.items()}]


def variants(constants: dict[str, Any]) -> list[dict[str, Any]]:
    choices = [(False, True) if value is FLAG else (value,) for value in constants.values()]
    return [dict(zip(constants, chosen, strict=True)) for chosen in itertools.product(*choices)]


@pytest.mark.parametrize("capability", [75, 80, 90])
@pytest.mark.parametrize(
    ("real", "chosen"),
    [("fp32", once), *(pytest.param(real, variants, marks=pytest.mark.slow) for real in ("fp32", "fp64"))],
)
def test_the_kernels_compile_for_a_device_that_is_not_here(capability, real, chosen):
    """To machine code of a compute capability: the interpreter takes what the compiler refuses."""
    compiler = pytest.importorskip("triton.compiler")
    target = pytest.importorskip("triton.backends.compiler").GPUTarget("cuda", capability, 32)
    module = importlib.import_module("cassi.kernels.gpu")
    if not hasattr(module._forward, "arg_names") or os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("kernels are interpreted in this run")
    for name, constants in CONSTANTS.items():
        kernel = getattr(module, name)
        for values in chosen(constants):
            signature = {
                arg: "constexpr" if arg in values else "i32" if arg in NUMBERS else KINDS.get(arg, f"*{real}")
                for arg in kernel.arg_names
            }
            indexed = {(kernel.arg_names.index(arg),): value for arg, value in values.items()}
            source = compiler.ASTSource(fn=kernel, signature=signature, constexprs=indexed)
            made = triton.compile(source, target=target, options={"enable_fp_fusion": True})
            assert "cubin" in made.asm, (name, values)


def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch):
    """Triton launches on the current device of the thread, which is cuda:0 where nobody says otherwise."""
    module = importlib.import_module("cassi.kernels.gpu")
    current: list[torch.device | None] = [None]
    seen: list[torch.device | None] = []

    @contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", entered)
    kernel = defaultdict(lambda: lambda *args, **kwargs: seen.append(current[-1]))  # launched with any grid
    for name in CONSTANTS:
        monkeypatch.setattr(module, name, kernel)
    with pretend_cuda(1) as ledger:
        here = ledger.device
        x, y, z = (torch.ones(shape, device=here) for shape in ((2, 3, 4), (3, 5), (1, 3, 4)))
        groups = torch.zeros(2, 2, dtype=torch.long, device=here)
        module.shift_sum(x, y[:, :4], (0, 1), None, y)
        module.shift_back(y, y[:, :4], (0, 1), None, x)
        module.data_step(x, y, y, (0, 1), None, y, 0.0, True, x, y, y)
        module.subspace_step(z, z, y, y, None, y, x, y, (0, 1), None, y, y, 0.3)
        module.see(z, x[:1, 0, :2], y[:, :4], (0, 1), None, y)
        module.see_back(y, x[:1, 0, :2], y[:, :4], (0, 1), None, z)
        module.squared_distances(x, x, z, z)
        module.tv_steps(x, x.new_ones(()), torch.stack([x, x]), None, 1, 1.0)
        patches, mean = module.gather_groups(z, z.new_ones(1), groups, 2)
        module.put_back(patches.mT.contiguous(), mean, groups, groups, 2, z, z, False)
    module._offsets.cache_clear()
    assert len(seen) == len(CONSTANTS) and set(seen) == {torch.device("cuda:1")}
