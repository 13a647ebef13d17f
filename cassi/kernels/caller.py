"""The calling program's settings of PyTorch and NumPy, which do not concern the arithmetic here."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import torch

Given = ParamSpec("Given")
Value = TypeVar("Value")
# The threads that are in `full_float32`, and what the process had set when the first came in.
_LOCK, _INSIDE, _SAVED = threading.Lock(), list[int](), list[str | bool]()


@contextmanager
def full_float32() -> Iterator[None]:
    """Within it a CUDA device multiplies and convolves float32 as such (no TF32).

    The settings belong to the process: the first thread that comes in makes them, the last that leaves restores those
    of the calling program.
    """
    new = hasattr(torch.backends.cudnn, "conv")  # who has set this may no longer ask for the old name
    places = getattr(torch.backends.cudnn, "conv", torch.backends.cudnn), torch.backends.cuda.matmul
    name, full = ("fp32_precision", "ieee") if new else ("allow_tf32", False)
    with _LOCK:
        if not _INSIDE:
            _SAVED[:] = [getattr(place, name) for place in places]
            for place in places:
                setattr(place, name, full)
        _INSIDE.append(threading.get_ident())
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE.remove(threading.get_ident())
            if not _INSIDE:
                for place, value in zip(places, _SAVED, strict=True):
                    setattr(place, name, value)


def undisturbed(function: Callable[Given, Value]) -> Callable[Given, Value]:
    """The function, computing as in a fresh process: without autocast, default device, `numpy.seterr` and TF32.

    Those are the caller's; the first three belong to a thread. The default dtype, which belongs to the process, is not
    relied on.
    """

    @wraps(function)
    def call(*args: Given.args, **options: Given.kwargs) -> Value:
        with ExitStack() as own:
            own.enter_context(full_float32())
            own.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
            if torch.get_default_device().type != "cpu":
                own.enter_context(torch.device("cpu"))
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    own.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **options)

    return call
