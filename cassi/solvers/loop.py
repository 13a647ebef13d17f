"""What a solver returns, and the loop every iterative solver runs in."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from tqdm.auto import tqdm

from cassi.kernels.dispatch import kernels

Status = Literal["converged", "max_iters", "stopped"]


class Record(NamedTuple):
    """One iteration: its number from 1, seconds since the start, |y - A v| / |y|, |v - v_old| / |v_old|."""

    iteration: int
    seconds: float
    residual: float
    change: float


Monitor = Callable[[Record, Tensor], bool | None]
"""Called after each iteration, the last included, with its record and the current cube; returning True stops the
solver. The cube is the solver's own buffer, overwritten later: clone it to keep it, do not write into it."""


@dataclass(frozen=True)
class Result:
    """A reconstruction.

    Attributes:
        x: the cube, (..., C, H, W).
        history: one Record an iteration.
        status: "converged" (change fell below tol), "max_iters", or "stopped" (by the monitor).
    """

    x: Tensor
    history: tuple[Record, ...]
    status: Status

    @property
    def message(self) -> str:
        """The status in words."""
        n = len(self.history)
        return {
            "converged": f"converged after {n} iterations",
            "max_iters": f"did its {n} iterations",
            "stopped": f"was stopped after {n} iterations, by request or by the time budget",
        }[self.status]


class Loop:
    """Counts iterations, keeps the history, decides when to stop, shows progress; the numerics stay in the solver.

    loop = Loop(num_iters, tol=tol, monitor=monitor, progress=progress, name="GAP")
    for k in loop:
        ...
        loop.record(v, residual=..., change=...)
    return loop.result(v)
    """

    def __init__(self, num_iters: int, *, tol: float, monitor: Monitor | None, progress: bool, name: str) -> None:
        if num_iters < 1:
            raise ValueError(f"num_iters must be at least 1, got {num_iters}")
        if not tol >= 0:
            raise ValueError(f"tol must be >= 0, got {tol}")
        self._num_iters, self._tol, self._monitor, self._name = num_iters, tol, monitor, name
        self._progress = progress
        self._history: list[Record] = []
        self._status: Status = "max_iters"
        self._done = False

    def __iter__(self) -> Iterator[int]:
        self._start = time.perf_counter()
        with tqdm(total=self._num_iters, desc=self._name, disable=not self._progress, leave=False) as self._bar:
            for k in range(self._num_iters):
                yield k
                if self._done:
                    break

    def record(self, v: Tensor, *, residual: float, change: float) -> None:
        """Close iteration k.

        Raises:
            FloatingPointError: residual or change is not finite.
        """
        iteration = len(self._history) + 1
        if not (math.isfinite(residual) and math.isfinite(change)):
            raise FloatingPointError(
                f"{self._name} diverged: residual {residual}, change {change} at iteration {iteration}; "
                "check the measurement and mask for NaN or Inf, or use a smaller step or larger rho"
            )
        record = Record(iteration, time.perf_counter() - self._start, residual, change)
        self._history.append(record)
        self._bar.set_postfix_str(f"residual {residual:.2e}", refresh=False)
        self._bar.update()
        stop = self._monitor is not None and self._monitor(record, v)
        if change < self._tol:
            self._status, self._done = "converged", True
        elif stop:
            self._status, self._done = "stopped", True

    def result(self, x: Tensor) -> Result:
        return Result(x, tuple(self._history), self._status)


def relative_norm(difference: Tensor, reference: Tensor) -> float:
    """|difference| / |reference| in the 2-norm (a scalar reference is its own norm); against 0, 1 or 0 if both are.

    A start from 0 is thus a change of 1, not a division by zero. NaN and Inf come through.
    """
    d, r = (float(t.norm(dtype=torch.float64)) for t in (difference, reference))  # squares overflow float32
    if r == 0 and math.isfinite(d):
        return float(d > 0)
    return d / r if r else d


def relative_change(new: Tensor, old: Tensor) -> float:
    """|new - old| / |old| as `relative_norm` has it, without a temporary of the tensors' size.

    Raises:
        ValueError: tensors of different shapes.
    """
    if new.shape != old.shape:
        raise ValueError(
            f"both must have the shape {tuple(old.shape)}, got {tuple(new.shape)}; "
            "give x0 the batch axes of the measurement"
        )
    fast = kernels(new, old)
    if fast is not None:
        squared_difference, squared_reference = fast.squared_distance(new, old).tolist()
    else:
        size = max(1 << 12, -(-new.numel() // 16))
        pieces = list(zip(torch.split(new.reshape(-1), size), torch.split(old.reshape(-1), size), strict=True))
        squared_difference = float(sum((a - b).norm(dtype=torch.float64) ** 2 for a, b in pieces))
        squared_reference = float(sum(b.norm(dtype=torch.float64) ** 2 for _, b in pieces))
    if squared_reference == 0 and math.isfinite(squared_difference):
        return float(squared_difference > 0)
    return math.sqrt(squared_difference / squared_reference) if squared_reference else squared_difference


def overwrite(buffer: Tensor, value: Tensor) -> None:
    """buffer <- value, where a denoiser returned it: its argument, a new tensor, or one buffer of its own every time.

    Raises:
        ValueError: value of another shape or dtype.
    """
    if value is buffer:
        return
    if value.shape != buffer.shape or value.dtype != buffer.dtype:
        raise ValueError(
            f"the denoiser must return {buffer.dtype} of shape {tuple(buffer.shape)}, as it was given, "
            f"got {value.dtype} of shape {tuple(value.shape)}"
        )
    buffer.copy_(value)
