"""What the calling program has set for PyTorch and NumPy, and what does not concern the arithmetic here."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
import torch

Given = ParamSpec("Given")
Value = TypeVar("Value")


def undisturbed(function: Callable[Given, Value]) -> Callable[Given, Value]:
    """The function, computing as in a fresh process: without the caller's autocast, default device or `numpy.seterr`.

    All three belong to a thread. The default dtype, which belongs to the process, is not relied on.
    """

    @wraps(function)
    def call(*args: Given.args, **options: Given.kwargs) -> Value:
        with ExitStack() as own:
            own.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
            if torch.get_default_device().type != "cpu":
                own.enter_context(torch.device("cpu"))
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    own.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **options)

    return call
