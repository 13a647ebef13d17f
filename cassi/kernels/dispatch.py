"""Selects the kernels for a call: compiled ones on the CPU, Triton's on a CUDA device, or none, for eager torch."""

import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from cassi.errors import InputError, counted
from cassi.kernels import cpu
from cassi.kernels.jit import is_off

OFF = is_off()
_EAGER: ContextVar[bool] = ContextVar("eager", default=OFF)


@contextmanager
def eager() -> Iterator[None]:
    """Context in which eager torch does all the work on every device, for comparisons.

    `CASSI_COMPILED=0` in the environment does the same for a whole process, and so does `NUMBA_DISABLE_JIT=1`.
    """
    token = _EAGER.set(True)
    try:
        yield
    finally:
        _EAGER.reset(token)


def kernels(*tensors: Tensor | None) -> ModuleType | None:
    """The module whose kernels accept these tensors (None among them is ignored), or None.

    All must be contiguous, not empty, of one dtype (float32 or float64), on one device (CPU or CUDA), and need no
    gradient. Inside `eager()`, and while torch compiles, the answer is None.
    """
    given = [t for t in tensors if t is not None]
    first = given[0]
    if _EAGER.get() or first.dtype not in (torch.float32, torch.float64) or torch.compiler.is_compiling():
        return None
    gradients = torch.is_grad_enabled()
    for t in given:
        if t.device != first.device or t.dtype != first.dtype or not t.is_contiguous() or t.numel() == 0:
            return None
        if gradients and t.requires_grad:
            return None
    if first.device.type == "cpu":
        return cpu
    return _triton(first.device) if first.is_cuda else None


@cache
def _triton(device: torch.device) -> ModuleType | None:
    """The Triton kernels, after a trial on this device: they need a C compiler, Python's headers and a recent GPU."""
    try:
        module = import_module("cassi.kernels.gpu")
        one = torch.ones(1, dtype=torch.float32, device=device)
        module.squared_distances(one, one, one, one)
    except Exception as error:  # a missing compiler and an old GPU raise different types
        if isinstance(error, torch.OutOfMemoryError) or "out of memory" in str(error):
            raise  # another time there may be room; eager torch needs more of it
        warnings.warn(
            f"Triton does not run on {device} ({type(error).__name__}: {str(error).strip()[:200]}): using "
            "eager torch, which is slower; install triton, a C compiler and Python's headers",
            stacklevel=4,
        )
        return None
    return module


def pick_device(name: str | torch.device = "auto") -> torch.device:
    """The device to compute on: "auto" is the first CUDA device, else the CPU.

    Raises:
        InputError: an unknown name, or a device that this machine lacks.
    """
    if str(name) == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"unknown device {str(name)!r}: expected auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"device {str(name)!r} is not supported: expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        available = counted(count, "CUDA device") if count else "no CUDA device"
        raise InputError(f"device {str(name)!r} is not available: this machine has {available}; use auto or cpu")
    return device


def unused_gpu(drivers: Path = Path("/proc/driver/nvidia/gpus")) -> str:
    """Why a GPU of this machine is not used, in a sentence; empty where there is none, or it is."""
    if torch.cuda.is_available() or not (shutil.which("nvidia-smi") or drivers.is_dir()):
        return ""
    why = "this torch is built without CUDA" if torch.version.cuda is None else "torch cannot use it (its driver?)"
    return f"this machine has an NVIDIA GPU, but {why}: the CPU computes; see https://pytorch.org/get-started/locally"
