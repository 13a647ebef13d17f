"""How the CPU kernels are compiled, the same for all of them, where compiled code is kept, and tensors as arrays.

Compiled code is kept beside the source, or in the user's cache where that cannot be written (`NUMBA_CACHE_DIR` names
another place): a kernel is compiled once for a machine, by whichever process needs it first, and anew when its file
or numba changes. Where no place can be written it is compiled in every process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numba
import numpy as np
from torch import Tensor

Array = np.ndarray
Kernel = Callable[..., Any]

# NaN and Inf must come through, so that a solver can name the iteration that diverged: no nnan, ninf or afn
FAST = frozenset({"nsz", "contract", "reassoc"})
_settings = partial(numba.njit, nogil=True, error_model="numpy")
# a call for a row costs as much as its arithmetic; the longer loops, inlined, are no longer vectorised
inline: Callable[[Kernel], Kernel] = _settings(inline="always", fastmath=set(FAST))


def jit(function: Kernel, *, fastmath: frozenset[str] = FAST) -> Kernel:
    """Compile a function when it is first called, for the types it is called with; without the interpreter's lock."""
    try:
        compiled: Kernel = _settings(cache=True, fastmath=set(fastmath))(function)
    except RuntimeError:  # there is no folder that compiled code could be kept in
        compiled = _settings(fastmath=set(fastmath))(function)
    return compiled


def stack(tensor: Tensor, rank: int) -> Array:
    """The tensor's memory as an array (n, ...) of items of this rank: all leading axes in one."""
    array: Array = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array.reshape((-1, *tensor.shape[tensor.ndim - rank :]))


def plain(tensor: Tensor | None, like: Array, rank: int) -> Array:
    """The tensor's memory as an array; an empty one where there is none."""
    return np.empty((0,) * rank, like.dtype) if tensor is None else tensor.detach().numpy()
