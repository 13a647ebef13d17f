"""A CUDA device that is not there: tensors in memory which say that they are on it.

What a GPU would refuse is refused: operands on two devices, `.numpy()`, a generator of the CPU. What would take time is
counted: launches of kernels, and waits of the host (numbers that are read, masks that index, copies to and fro,
decompositions that report whether they went well). The Triton kernels are stood in for by those of the CPU. Computed is
what the CPU computes: whether the kernels themselves are right, `test_kernels_gpu.py` asks Triton's interpreter.

    with pretend_cuda() as ledger:
        reconstruct(..., device="cuda")
    ledger.launches.total(), ledger.waits.total()
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from cassi.kernels import cpu, dispatch
from cassi.optics import imprint
from cassi.priors import nonlocal_lowrank
from cassi.priors.learned import shipped_prior

# operations that launch nothing: views, memory that is not written
NO_LAUNCH = """
    view _unsafe_view reshape _reshape_alias permute transpose t expand slice select unsqueeze squeeze as_strided
    detach alias unfold unbind split split_with_sizes unsafe_split chunk diagonal movedim narrow view_as_real
    lift_fresh empty empty_strided empty_like new_empty new_empty_strided is_same_size set_ resize_
    _local_scalar_dense item
"""
# functions that read numbers off the device, or copy some there
NUMBERS = """
    item __bool__ __float__ __int__ __index__ tolist nonzero masked_select is_nonzero equal allclose unique
    bincount repeat_interleave new_tensor
"""
FREE, READ = frozenset(NO_LAUNCH.split()), frozenset(NUMBERS.split())
CHECKED = frozenset({torch.linalg.eigh, torch.linalg.cholesky, torch.linalg.solve, torch.linalg.inv, torch.linalg.qr})


@dataclass
class Ledger:
    """Launches and waits, by the operation and the line of the package that asked for it."""

    device: torch.device
    launches: Counter[tuple[str, str]] = field(default_factory=Counter)
    waits: Counter[tuple[str, str]] = field(default_factory=Counter)
    inside: int = 0  # operations of the device that are under way, one within the other

    def told(self, most: int = 12) -> str:
        """Where most of both come from."""
        lines = []
        for name, counter in (("launches", self.launches), ("waits", self.waits)):
            places = (f"  {n} {what} {where}" for (what, where), n in counter.most_common(most))
            lines += [f"{counter.total()} {name}", *places]
        return "\n".join(lines)


_ledger: Ledger | None = None  # of the device that is there now


def _there() -> Ledger:
    if _ledger is None:
        raise RuntimeError("a tensor of the pretend device is used after it was put away")
    return _ledger


def _site() -> str:
    """The innermost line of the package that is being run."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/cassi/" in name or "/training/" in name:
            return f"{name[name.rindex('/') + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def _wait(what: str) -> None:
    _there().waits[what, _site()] += 1


def _launch(what: str, count: int = 1) -> None:
    _there().launches[what, _site()] += count


def on_device(t: object) -> bool:
    return isinstance(t, OnDevice)


def _map(f: Callable[[Any], Any], value: Any) -> Any:
    """`tree_map`, which takes most of the time, where something else is nested than plain tuples, lists and dicts."""
    if type(value) in (tuple, list):
        return type(value)([_map(f, one) for one in value])
    if type(value) is dict:
        return {name: _map(f, one) for name, one in value.items()}
    return tree_map(f, value) if isinstance(value, tuple) else f(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple | list | dict):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leaves(one)
    else:
        yield value


def _is_foreign(t: object) -> bool:
    """Whether it is a tensor in memory that is not taken for a number."""
    return isinstance(t, Tensor) and not on_device(t) and t.ndim > 0 and t.layout == torch.strided


def _put(value: Any) -> Any:
    """The strided tensors in it, on the device; a sparse one cannot be marked, and passes for one of either."""
    return _map(lambda t: t.as_subclass(OnDevice) if isinstance(t, Tensor) and t.layout == torch.strided else t, value)


def _bare(value: Any) -> Any:
    return _map(lambda t: t.as_subclass(Tensor) if on_device(t) else t, value)


def _is_cuda(device: object) -> bool:
    return not isinstance(device, int) and torch.device(device).type == "cuda"  # type: ignore[arg-type]


def _moved(source: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to`."""
    target, dtype = ("cuda" if on_device(source) else "cpu"), None
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            target, dtype = value.device.type, value.dtype
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, str | torch.device):
            target = torch.device(value).type
    with torch._C.DisableTorchFunctionSubclass():
        bare = source.as_subclass(Tensor)
        found = bare if dtype is None else bare.to(dtype)
        if (target == "cuda") != on_device(source):
            _wait(f"copy to {target}")
            found = found.clone() if found is bare else found
        elif on_device(source) and found is not bare:
            _launch("to")
        elif found is bare:
            return source
        return _put(found) if target == "cuda" else found


class OnDevice(Tensor):
    """A tensor in memory that says it is on the device."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        ledger, name = _there(), getattr(func, "__name__", "")
        if name == "__get__" and func.__self__.__name__ in ("device", "is_cuda", "is_cpu"):
            return {"device": ledger.device, "is_cuda": True, "is_cpu": False}[func.__self__.__name__]
        if name == "_has_compatible_shallow_copy_type":
            return False
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError(f"can't convert {ledger.device} device type tensor to numpy ({_site()})")
        if func is Tensor.to:
            return _moved(*args, **kwargs)
        if func is Tensor.cpu:
            return _moved(args[0], "cpu")
        if name in READ or func in CHECKED:
            _wait(name)
        cls._check(func, name, args, kwargs)
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = "cpu"
        ledger.inside += 1
        try:
            with torch._C.DisableTorchFunctionSubclass():
                if device is not None and not _is_cuda(device):
                    return _bare(func(*args, **kwargs))
                found = func(*args, **kwargs)
        finally:
            ledger.inside -= 1
        return found if func is Tensor.__setitem__ else _put(found)

    @classmethod
    def _check(cls, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> None:
        """Refuse operands on two devices: numbers, and indices that are copied over, may lie in memory."""
        here = _there().device
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            indices = args[1] if isinstance(args[1], tuple) else (args[1],)
            for index in indices:
                if not isinstance(index, int | slice | type(None) | type(Ellipsis)) and not (
                    on_device(index) and index.dtype != torch.bool
                ):
                    _wait("index by a mask or from memory")
            if not on_device(args[0]) and any(on_device(index) for index in indices):
                raise RuntimeError(f"indices should be either on cpu or on the device of the tensor ({_site()})")
            return
        if any(map(_is_foreign, _leaves((args, kwargs)))):
            raise RuntimeError(f"Expected all tensors to be on the same device, {here} and cpu: {name} ({_site()})")
        _check_generator(kwargs)


def _check_generator(kwargs: dict[str, Any]) -> None:
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type != "cuda":
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu' ({_site()})")


class _Generator(torch.Generator):
    """Of the device it was asked for; drawn from in memory."""

    def __new__(cls, device: object = "cpu") -> _Generator:
        made = super().__new__(cls)
        made.asked = torch.device(device)
        return made

    def __init__(self, device: object = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.asked


class _Made(TorchFunctionMode):
    """Tensors that are made on the device, or moved there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.as_tensor and isinstance(args[0], Tensor):
            return _moved(args[0], **{key: kwargs[key] for key in ("device", "dtype") if kwargs.get(key) is not None})
        if func is Tensor.to and not on_device(args[0]):
            return _moved(*args, **kwargs)
        device = kwargs.get("device")
        if device is None or not _is_cuda(device) or any(on_device(t) for t in _leaves((args, kwargs))):
            return func(*args, **kwargs)
        kwargs["device"] = "cpu"
        _check_generator(kwargs)
        if func in (torch.tensor, torch.as_tensor):
            _wait(f"{func.__name__} from memory")
        _there().inside += 1
        try:
            return _put(func(*args, **kwargs))
        finally:
            _there().inside -= 1


class _Launches(TorchDispatchMode):
    """Counts what the operations of the device are made of."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.split("::")[1]
        if _there().inside and name not in FREE:
            _launch(name)
        return func(*args, **(kwargs or {}))


def _put_back(
    y: Tensor, mean: Tensor, order: Tensor, start: Tensor, patch: int, scale: Tensor, out: Tensor, add: bool
) -> None:
    groups = torch.empty(len(order), dtype=torch.long)
    groups[order.long()] = torch.repeat_interleave(start.diff().long())
    nonlocal_lowrank._put_back(y, mean, groups.view(len(mean), -1), patch, scale, out, add)


def _see(z: Tensor, basis: Tensor, mask: Tensor, shifts: tuple[int, ...], weights: Tensor | None, y: Tensor) -> None:
    cpu.shift_sum((basis.mT @ z.flatten(-2)).view(*z.shape[:-3], -1, *z.shape[-2:]), mask, shifts, weights, y)


def _see_back(
    p: Tensor, basis: Tensor, mask: Tensor, shifts: tuple[int, ...], weights: Tensor | None, z: Tensor
) -> None:
    x = z.new_empty((*z.shape[:-3], len(shifts), *z.shape[-2:]))
    cpu.shift_back(p, mask, shifts, weights, x)
    z.copy_((basis @ x.flatten(-2)).view_as(z))


def _stand_in() -> SimpleNamespace:
    """The kernels of `cassi.kernels.gpu`, as many launches as there, computed by those of the CPU."""

    def run(name: str, launches: int, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not all(on_device(t) for t in _leaves((args, kwargs)) if isinstance(t, Tensor)):
            raise ValueError(f"Pointer argument (at {name}) cannot be accessed from Triton (cpu tensor?) ({_site()})")
        _launch(f"triton {name}", launches)
        with torch._C.DisableTorchFunctionSubclass():
            return _put(function(*_bare(args), **_bare(kwargs)))

    def tv_steps(u: Tensor, weight: Tensor, q: Tensor, spare: Tensor | None, num_iters: int, memory: float) -> Any:
        launches = num_iters + 1 + (memory != 1)
        run("tv_steps", launches, cpu.tv_steps, u, weight, q, None, num_iters, memory)
        return q, torch.empty_like(q) if spare is None else spare

    kernels: dict[str, Callable[..., Any]] = {"gather_groups": nonlocal_lowrank._gather_groups, "put_back": _put_back}
    kernels |= {"see": _see, "see_back": _see_back}
    for name in ("shift_sum", "shift_back", "data_step", "subspace_step", "squared_distances"):
        kernels[name] = getattr(cpu, name)
    launches = {"data_step": 2, "subspace_step": 2}
    counted = {name: partial(run, name, launches.get(name, 1), f) for name, f in kernels.items()}
    return SimpleNamespace(tv_steps=tv_steps, **counted)


def _sparse(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: make(*_bare(args), **_bare({**kwargs, "device": None}))


@contextmanager
def pretend_cuda(index: int = 0, *, triton: bool = True) -> Iterator[Ledger]:
    """Within it there is a CUDA device; its ledger.

    Args:
        index: of the device that is used.
        triton: whether Triton works there.
    """
    global _ledger
    _ledger = Ledger(torch.device("cuda", index))
    with ExitStack() as stack:
        stack.callback(dispatch._triton.cache_clear)
        stack.callback(shipped_prior()._copies.clear)  # of it on this device
        stack.callback(imprint._matrices.cache_clear)
        dispatch._triton.cache_clear()
        module = _stand_in() if triton else None
        stack.enter_context(mock.patch.object(dispatch, "import_module", return_value=module))
        for name, value in {
            "is_available": lambda: True, "device_count": lambda: index + 1, "is_bf16_supported": lambda *args: True,
            "mem_get_info": lambda device: (8 << 30, 16 << 30), "synchronize": lambda *args: None,
        }.items():  # fmt: skip
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for name in ("sparse_coo_tensor", "sparse_csr_tensor"):
            stack.enter_context(mock.patch.object(torch, name, _sparse(getattr(torch, name))))
        stack.enter_context(mock.patch.object(torch, "Generator", _Generator))
        stack.enter_context(_Made())
        stack.enter_context(_Launches())
        try:
            yield _ledger
        finally:
            _ledger = None
