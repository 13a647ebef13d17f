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
ENDED = {"max_iters": "did all its iterations", "converged": "converged", "stopped": "was stopped"}  # in words
READ_EVERY = 16  # iterations after which numbers are fetched from a GPU where nobody waits for them


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
        self._waited_for = tol > 0 or monitor is not None
        self._history: list[Record] = []
        self._pending: list[tuple[float, float | Tensor, float | Tensor]] = []
        self._status: Status = "max_iters"
        self._done = False

    def __iter__(self) -> Iterator[int]:
        self._start = time.perf_counter()
        with tqdm(total=self._num_iters, desc=self._name, disable=not self._progress, leave=False) as self._bar:
            for k in range(self._num_iters):
                yield k
                if self._done:
                    break

    def record(self, v: Tensor, *, residual: float | Tensor, change: float | Tensor) -> None:
        """Close iteration k.

        Numbers that lie on a device stay there until someone needs them, as reading waits for the device: with a
        monitor or a tolerance at once, else after `READ_EVERY` iterations. Their seconds are then those of the launch.

        Raises:
            FloatingPointError: residual or change is not finite.
        """
        self._pending.append((time.perf_counter() - self._start, residual, change))
        self._bar.update()
        if isinstance(residual, Tensor) and not self._waited_for and len(self._pending) < READ_EVERY:
            return
        record = self._read()
        self._bar.set_postfix_str(f"residual {record.residual:.2%}", refresh=False)
        stop = self._monitor is not None and self._monitor(record, v)
        if record.change < self._tol:
            self._status, self._done = "converged", True
        elif stop:
            self._status, self._done = "stopped", True

    def _read(self) -> Record:
        """Take what is pending into the history, with one transfer for all of it; the last record."""
        pending, self._pending = self._pending, []
        numbers = [number for _, *both in pending for number in both]
        if isinstance(numbers[0], Tensor):
            numbers = torch.stack([torch.as_tensor(n, device=numbers[0].device) for n in numbers]).tolist()
        for (seconds, *_), residual, change in zip(pending, numbers[::2], numbers[1::2], strict=True):
            record = Record(len(self._history) + 1, seconds, float(residual), float(change))
            if not (math.isfinite(record.residual) and math.isfinite(record.change)):
                raise FloatingPointError(
                    f"{self._name} diverged: residual {record.residual}, change {record.change} at iteration "
                    f"{record.iteration}; check the measurement and mask for NaN or Inf, or use a smaller step or "
                    "larger rho"
                )
            self._history.append(record)
        return record

    def result(self, x: Tensor) -> Result:
        """What the iterations came to.

        Raises:
            FloatingPointError: see `record`.
        """
        if self._pending:
            self._read()
        return Result(x, tuple(self._history), self._status)


def relative_norm(difference: Tensor, reference: Tensor) -> float:
    """|difference| / |reference| in the 2-norm (a scalar reference is its own norm); against 0, 1 or 0 if both are.

    A start from 0 is thus a change of 1, not a division by zero. NaN and Inf come through.
    """
    d, r = (float(t.norm(dtype=torch.float64)) for t in (difference, reference))  # squares overflow float32
    if r == 0 and math.isfinite(d):
        return float(d > 0)
    return d / r if r else d


def relative_change(new: Tensor, old: Tensor) -> float | Tensor:
    """|new - old| / |old| as `relative_norm` has it, without a temporary of the tensors' size.

    Off the CPU a tensor without axes, so that nobody waits for the device; `Loop.record` takes either.

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
        squares = fast.squared_distance(new, old)
    else:
        size = max(1 << 12, -(-new.numel() // 16))
        pieces = list(zip(torch.split(new.reshape(-1), size), torch.split(old.reshape(-1), size), strict=True))
        differences, references = zip(*((_square(a - b), _square(b)) for a, b in pieces), strict=True)
        squares = torch.stack([torch.stack(differences).sum(), torch.stack(references).sum()])
    if squares.is_cpu:
        difference, reference = squares.tolist()
        if reference == 0 and math.isfinite(difference):
            return float(difference > 0)
        return math.sqrt(difference / reference) if reference else difference
    return _root_of_ratio(squares)


def _root_of_ratio(squares: Tensor) -> Tensor:
    """The same where the squares are, on a device."""
    difference, reference = squares
    against_zero = torch.where(difference.isfinite(), (difference > 0).to(difference), difference)
    return torch.where(reference == 0, against_zero, (difference / reference).sqrt())


def _square(t: Tensor) -> Tensor:
    squared: Tensor = t.norm(dtype=torch.float64) ** 2
    return squared


def overwrite(buffer: Tensor, value: Tensor) -> None:
    """buffer <- value, where a denoiser returned it: its argument, a new tensor, or one buffer of its own every time.

    Raises:
        ValueError: value of another shape or dtype.
        TypeError: no tensor.
    """
    if value is buffer:
        return
    if not isinstance(value, Tensor):
        raise TypeError(f"the denoiser must return a tensor, got {type(value).__name__}")
    if value.shape != buffer.shape or value.dtype != buffer.dtype:
        raise ValueError(
            f"the denoiser must return {buffer.dtype} of shape {tuple(buffer.shape)}, as it was given, "
            f"got {value.dtype} of shape {tuple(value.shape)}"
        )
    buffer.copy_(value)
