"""Common settings for compiling CPU kernels, the cache of compiled code, and tensors as arrays.

Compiled code is stored beside the source, or in the user's cache if that cannot be written (`NUMBA_CACHE_DIR` names
another folder): a kernel is compiled once per machine, by the first process that needs it, and again when its file or
numba changes. If no folder can be written, every process compiles.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import hashlib
import os
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

from cassi.errors import one_line

if TYPE_CHECKING:
    from torch import Tensor

Array = np.ndarray
Kernel = Callable[..., Any]

# NaN and Inf must be preserved, so that a solver can name the iteration that diverged: no nnan, ninf or afn
FAST = frozenset({"nsz", "contract", "reassoc"})
_settings = partial(numba.njit, nogil=True, error_model="numpy")
# for short loops: a call per row costs as much as its arithmetic; longer loops, if inlined, are not vectorized
inline: Callable[[Kernel], Kernel] = _settings(inline="always", fastmath=set(FAST))
_WARNED: list[str] = []  # one warning per process is enough


def jit(function: Kernel, *, fastmath: frozenset[str] = FAST) -> Kernel:
    """Compile a function at its first call, for the types of its arguments; it releases the interpreter lock."""
    compiled: Any = _settings(fastmath=set(fastmath))(function)
    with suppress(RuntimeError, OSError):  # no folder for compiled code can be written
        compiled._cache = _Cache(function)
    kernel: Kernel = compiled
    return kernel


def is_off() -> bool:
    """Whether nothing is to be compiled: `CASSI_COMPILED=0`, or numba's own `NUMBA_DISABLE_JIT=1`."""
    return os.environ.get("CASSI_COMPILED", "1") == "0" or bool(vars(numba.config)["DISABLE_JIT"])


def cache_folder() -> str | None:
    """The folder of compiled code; None where no folder can be written, so that every process compiles again."""
    with suppress(RuntimeError, OSError):
        folder: str = _Cache(stack).cache_path  # of this file as of its neighbors
        return folder
    return None


class _Checked(CompileResultCacheImpl):
    """The cache entry of a kernel with its SHA-256, so that damaged machine code is not run."""

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
    """The numba cache, whose failures never end a run.

    If its files are damaged, belong to another user or do not fit on the disk, the kernel is compiled.
    """

    _impl_class = _Checked

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code, or None; unreadable files are replaced when the kernel is saved."""
        with self._warn_only("read"):
            return super().load_overload(sig, target_context)
        with suppress(Exception):
            self.flush()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save the compiled code."""
        with self._warn_only("saved"):
            super().save_overload(sig, data)

    @contextmanager
    def _warn_only(self, done: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # unpickling damaged data can raise anything
            if not _WARNED:
                _WARNED.append(done)
                warnings.warn(
                    f"compiled kernels cannot be {done} in {self.cache_path} ({type(error).__name__}: "
                    f"{one_line(error, 100)}): they are compiled again, which takes some seconds",
                    stacklevel=4,
                )


def stack(tensor: Tensor, rank: int) -> Array:
    """The memory of a tensor as an array (n, ...) of items of this rank, with all leading axes joined."""
    array: Array = (tensor.detach() if tensor.requires_grad else tensor).numpy()
    return array.reshape((-1, *tensor.shape[tensor.ndim - rank :]))


def plain(tensor: Tensor | None, like: Array, rank: int) -> Array:
    """The memory of a tensor as an array; an empty array for None."""
    return np.empty((0,) * rank, like.dtype) if tensor is None else tensor.detach().numpy()
