"""A function of tensors that is called again and again, as a CUDA graph: recorded once, then launched as a whole.

A GPU computes many steps of a solver faster than Python launches them. A graph launches all of them at once, with the
tensors and numbers of its recording. On a CPU the function is simply called.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

_ONE_AT_A_TIME = threading.Lock()  # a process may record one graph at a time


class Repeated:
    """f(*tensors), recorded on a GPU when it is called for the second time; the first call compiles and fills caches.

    f depends on its tensors and on what never changes, and allocates nothing that outlives the call but what it
    returns. It reads no number on the host, or the recording fails and eager calls go on with a warning, as they do
    without one where a gradient is required. Tensors of other sizes than the recorded ones are computed eagerly. The
    graph lives as long as this object.

    Args:
        f: returns as many tensors as it is given, to be given to the next call, then what it found. It may overwrite
            them. None may stand for any of them.
        kept: the number of tensors, the first ones, with values that the next call needs; others are workspace.
    """

    def __init__(self, f: Callable[..., Sequence[Any]], kept: int) -> None:
        self.f, self._kept = f, kept
        self._called = self._refused = False
        self._replay: Callable[[], None] | None = None
        self._tensors: list[Tensor | None] = []  # what the graph reads and writes
        self._found: list[Tensor] = []

    def __call__(self, *tensors: Tensor | None) -> list[Any]:
        """What f returns. Give its tensors to the next call: that overwrites them."""
        if self._replay is None:
            device = next(t.device for t in tensors if t is not None)
            eager = device.type != "cuda" or torch.cuda.is_current_stream_capturing()
            if eager or self._refused or not self._called:
                values = list(self.f(*tensors))
                self._called = not eager
                self._refused |= any(t is not None and t.requires_grad for t in values)
                return values
            self._tensors = _copies(tensors)
            try:
                self._replay, self._found = record(self._step, device)
            except RuntimeError as error:
                self._refused = True
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                warnings.warn(f"no CUDA graph, launches go on one by one: {reason}", stacklevel=3)
                return list(self.f(*tensors))
        elif [_layout(t) for t in tensors] == [_layout(t) for t in self._tensors]:
            _put(self._tensors, tensors)
        else:
            return list(self.f(*tensors))
        self._replay()
        return [*self._tensors, *_copies(self._found)]

    def _step(self) -> list[Tensor]:
        values = list(self.f(*self._tensors))
        _put(self._tensors[: self._kept], values[: self._kept])
        return values[len(self._tensors) :]


def _layout(t: Tensor | None) -> object:
    return None if t is None else (t.shape, t.dtype, t.device)


def _copies(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The same values in memory of their own, by one launch for all."""
    new = [None if t is None else torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
    _put(new, tensors)
    return new


def _put(places: Sequence[Tensor | None], values: Sequence[Tensor | None]) -> None:
    """Copy values into places, from places too."""
    pairs = [(p, v) for p, v in zip(places, values, strict=True) if p is not None and v is not None]
    moved = [(p, v) for p, v in pairs if p.data_ptr() != v.data_ptr()]
    taken = {p.data_ptr() for p, _ in moved}
    if moved:
        torch._foreach_copy_([p for p, _ in moved], [v.clone() if v.data_ptr() in taken else v for _, v in moved])


def record(f: Callable[[], list[Tensor]], device: torch.device) -> tuple[Callable[[], None], list[Tensor]]:
    """What f launches, not computed yet: a function that computes it, and the tensors it will fill.

    Raises:
        RuntimeError: what f does cannot be recorded.
    """
    graph = torch.cuda.CUDAGraph()
    with _ONE_AT_A_TIME, torch.cuda.device(device), torch.cuda.stream(_aside(device)):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            found = f()
        finally:
            graph.capture_end()
    return graph.replay, found


@cache
def _aside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
