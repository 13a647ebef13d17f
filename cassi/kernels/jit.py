"""How the CPU kernels are compiled, the same for all of them, where compiled code is kept, and tensors as arrays.

Compiled code is kept beside the source, or in the user's cache where that cannot be written (`NUMBA_CACHE_DIR` names
another place): a kernel is compiled once for a machine, by whichever process needs it first, and anew when its file
or numba changes. Where no place can be written it is compiled in every process.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import hashlib
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps
from torch import Tensor

from cassi.errors import one_line

Array = np.ndarray
Kernel = Callable[..., Any]

# NaN and Inf must come through, so that a solver can name the iteration that diverged: no nnan, ninf or afn
FAST = frozenset({"nsz", "contract", "reassoc"})
_settings = partial(numba.njit, nogil=True, error_model="numpy")
# a call for a row costs as much as its arithmetic; the longer loops, inlined, are no longer vectorised
inline: Callable[[Kernel], Kernel] = _settings(inline="always", fastmath=set(FAST))
_WARNED: list[str] = []  # once a process is enough


def jit(function: Kernel, *, fastmath: frozenset[str] = FAST) -> Kernel:
    """Compile a function when it is first called, for the types it is called with; without the interpreter's lock."""
    compiled: Any = _settings(fastmath=set(fastmath))(function)
    with suppress(RuntimeError, OSError):  # there is no folder that compiled code could be kept in
        compiled._cache = _Cache(function)
    kernel: Kernel = compiled
    return kernel


class _Checked(CompileResultCacheImpl):
    """What numba keeps of a kernel, with its SHA-256: machine code of which a bit has changed is not run."""

    def get_filename_base(self, fullname: str, abiflags: str) -> str:
        return f"{super().get_filename_base(fullname, abiflags)}.sha256"

    def reduce(self, compiled: Any) -> tuple[bytes, bytes]:
        data = dumps(super().reduce(compiled))
        return hashlib.sha256(data).digest(), data

    def rebuild(self, target_context: Any, payload: tuple[bytes, bytes]) -> Any:
        digest, data = payload
        if hashlib.sha256(data).digest() != digest:
            raise ValueError("the checksum is wrong")
        return super().rebuild(target_context, pickle.loads(data))


class _Cache(FunctionCache):
    """Numba's cache of compiled code, none of whose faults ends a run.

    Files that are damaged, belong to another user or do not fit on the disk: the kernel is compiled, and kept where it
    can be.
    """

    _impl_class = _Checked

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code, or None; files that cannot be read are replaced when the kernel is kept."""
        with self._excused("read"):
            return super().load_overload(sig, target_context)
        with suppress(Exception):
            self.flush()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled code."""
        with self._excused("kept"):
            super().save_overload(sig, data)

    @contextmanager
    def _excused(self, done: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # unpickling what is damaged raises anything
            if not _WARNED:
                _WARNED.append(done)
                warnings.warn(
                    f"compiled kernels cannot be {done} in {self.cache_path} ({type(error).__name__}: "
                    f"{one_line(error, 100)}): they are compiled anew, which takes some seconds",
                    stacklevel=4,
                )


def stack(tensor: Tensor, rank: int) -> Array:
    """The tensor's memory as an array (n, ...) of items of this rank: all leading axes in one."""
    array: Array = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array.reshape((-1, *tensor.shape[tensor.ndim - rank :]))


def plain(tensor: Tensor | None, like: Array, rank: int) -> Array:
    """The tensor's memory as an array; an empty one where there is none."""
    return np.empty((0,) * rank, like.dtype) if tensor is None else tensor.detach().numpy()
