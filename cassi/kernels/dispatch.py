"""Which kernels take a call: compiled ones on the CPU, Triton's on a CUDA device, or none: then eager torch does it."""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from cassi.kernels import cpu


def kernels(*tensors: Tensor | None) -> ModuleType | None:
    """The module whose kernels take these tensors (None among them is ignored), or None.

    All must be contiguous, not empty, of one dtype, float32 or float64, on one device, and want no gradient.
    """
    if cpu.usable(*tensors):
        return cpu
    given = [t for t in tensors if t is not None]
    first = given[0]
    fits = first.is_cuda and not cpu.switched_off() and first.dtype in (torch.float32, torch.float64)
    if fits and all(
        t.device == first.device
        and t.dtype == first.dtype
        and t.is_contiguous()
        and t.numel() > 0
        and not (t.requires_grad and torch.is_grad_enabled())
        for t in given
    ):
        return _triton()
    return None


@cache
def _triton() -> ModuleType | None:
    try:
        return import_module("cassi.kernels.gpu")
    except ImportError as error:
        warnings.warn(
            f"Triton is not installed ({error}): eager torch does the work on the GPU, more slowly", stacklevel=4
        )
        return None
