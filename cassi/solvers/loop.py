"""The result of a solver, and the loop that all iterative solvers share."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cassi.kernels.dispatch import kernels

Status = Literal["converged", "finished", "stopped"]
STATUS_WORDS = {"finished": "finished", "converged": "converged", "stopped": "was stopped"}  # in words
READ_EVERY = 16  # iterations between two transfers of residuals from a GPU


class Record(NamedTuple):
    """One iteration: its number, from 1; seconds since the start; |y - A v| / |y|; |v - v_old| / |v_old|."""

    iteration: int
    seconds: float
    residual: float
    change: float


Monitor = Callable[[Record, Tensor], bool | None]
"""Called with the record and the cube of every iteration; returning True stops the solver. The cube is the solver's own
buffer: do not write into it, and clone it to keep it. On a GPU records arrive `READ_EVERY` at a time, because each
transfer waits for the device; the cube then belongs to the last record. A monitor with an attribute `every` receives
them at that interval instead."""


@dataclass(frozen=True)
class Result:
    """A reconstruction.

    Attributes:
        x: the cube, (..., C, H, W).
        history: one Record per iteration.
        status: "converged" (change fell below tol), "finished" (did all its iterations) or "stopped" (by the monitor).
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
            "finished": f"did its {n} iterations",
            "stopped": f"was stopped after {n} iterations, by request or by the time budget",
        }[self.status]


class Loop:
    """Counts iterations, records the history and decides when to stop; the numerics stay in the solver.

    loop = Loop(num_iters, tol=tol, monitor=monitor, name="GAP")
    for k in loop:
        ...
        loop.compare(v, v_old, y_v, y)
    return loop.result(v)

    Without `records` it only counts: the history stays empty, and nothing waits for a GPU.
    """

    def __init__(self, num_iters: int, *, tol: float, monitor: Monitor | None, name: str, records: bool = True) -> None:
        if not hasattr(num_iters, "__index__") or num_iters < 1:  # 2.5
            raise ValueError(f"num_iters must be a whole number, at least 1, got {num_iters!r}")
        if not tol >= 0:
            raise ValueError(f"tol must be >= 0, got {tol}")
        self._num_iters, self._tol, self._monitor, self._name = num_iters, tol, monitor, name
        self._records = records
        self._every: int = min(READ_EVERY, getattr(monitor, "every", READ_EVERY))
        self._history: list[Record] = []
        self._pending: list[tuple[float, Tensor]] = []  # seconds and sums of squares (4, n), not transferred yet
        self._required: list[tuple[Tensor, str]] = []
        self._status: Status = "finished"
        self._done = False

    def require(self, condition: Tensor, message: str) -> None:
        """Raise ValueError with this message unless the scalar condition holds; on a GPU, with the first records."""
        if not condition.is_cpu:
            self._required.append((condition, message))
        elif not bool(condition):
            raise ValueError(message)

    def __iter__(self) -> Iterator[int]:
        self._start = time.perf_counter()
        for k in range(self._num_iters):
            yield k
            if self._done:
                break

    def compare(self, v: Tensor, v_old: Tensor, y_v: Tensor, y: Tensor) -> None:
        """Close iteration k with the residual |y_v - y| / |y| and the change |v - v_old| / |v_old|.

        On a GPU one launch sums the squares, and the sums of several iterations are transferred together, because a
        transfer waits for the device; the loop can stop only then. The recorded time is when it was launched.

        Raises:
            ValueError: v and v_old differ in shape.
            FloatingPointError: residual or change is not finite.
        """
        if not self._records:
            return
        squares = _squares(v, v_old, y_v, y)
        self._pending.append((time.perf_counter() - self._start, squares))
        last = len(self._history) + len(self._pending) == self._num_iters
        if squares.is_cpu or last or len(self._pending) >= self._every:
            self._append(v, self._transfer())

    def record(self, v: Tensor, *, residual: float, change: float) -> None:
        """Close iteration k with a known residual and change; FloatingPointError as for `compare`."""
        self._append(v, [(time.perf_counter() - self._start, residual, change)])

    def _transfer(self) -> list[tuple[float, float, float]]:
        """Seconds, residual and change of the pending iterations, in a single transfer."""
        pending, self._pending = self._pending, []
        required, self._required = self._required, []
        values = torch.stack([squares for _, squares in pending]).sum(-1)
        if required:
            values = torch.cat([values.flatten(), *(condition.double().view(1) for condition, _ in required)])
        numbers = values.flatten().tolist()
        for (_, message), holds in zip(required, numbers[4 * len(pending) :], strict=True):
            if not holds:
                raise ValueError(message)
        return [
            (seconds, _ratio(*numbers[4 * n : 4 * n + 2]), _ratio(*numbers[4 * n + 2 : 4 * n + 4]))
            for n, (seconds, _) in enumerate(pending)
        ]

    def _append(self, v: Tensor, numbers: list[tuple[float, float, float]]) -> None:
        """Append iterations to the history; stop if one of them converged or the monitor asks for it."""
        records = [Record(len(self._history) + n, *values) for n, values in enumerate(numbers, 1)]
        for record in records:
            if not (math.isfinite(record.residual) and math.isfinite(record.change)):
                raise FloatingPointError(
                    f"{self._name} diverged: residual {record.residual}, change {record.change} at iteration "
                    f"{record.iteration}; check the measurement and mask for NaN or Inf, or use a smaller step or "
                    "larger rho"
                )
        self._history += records
        for record in records:
            stop = self._monitor is not None and self._monitor(record, v)
            if record.change < self._tol or stop:
                self._status, self._done = "converged" if record.change < self._tol else "stopped", True
                return

    def result(self, x: Tensor) -> Result:
        """The result of the iterations so far."""
        return Result(x, tuple(self._history), self._status)


def relative_norm(difference: Tensor, reference: Tensor) -> float:
    """|difference| / |reference| in the 2-norm; for a reference of 0 it is 1, or 0 if both are 0.

    A start from 0 is thus a change of 1, not a division by zero. NaN and Inf are preserved.
    """
    norms = torch.stack([t.norm(dtype=torch.float64) for t in (difference, reference)])  # float32 squares overflow
    return _ratio(*norms.square().tolist())


def _squares(v: Tensor, v_old: Tensor, y_v: Tensor, y: Tensor) -> Tensor:
    """Terms of |y_v - y|^2, |y|^2, |v - v_old|^2 and |v_old|^2 in float64, (4, n), without full-size temporaries.

    Raises:
        ValueError: v and v_old differ in shape.
    """
    if v.shape != v_old.shape:
        raise ValueError(
            f"x0 must have the shape {tuple(v_old.shape)}, got {tuple(v.shape)}; "
            "give x0 the batch axes of the measurement"
        )
    fast = kernels(y_v, y, v, v_old)
    if fast is not None:
        squares: Tensor = fast.squared_distances(y_v, y, v, v_old)
        return squares
    return torch.cat([_sum_in_parts(y_v, y), _sum_in_parts(v, v_old)])[:, None]


def _sum_in_parts(new: Tensor, old: Tensor) -> Tensor:
    size = max(1 << 12, -(-new.numel() // 16))
    pieces = zip(torch.split(new.reshape(-1), size), torch.split(old.reshape(-1), size), strict=True)
    norms = [torch.stack([(a - b).norm(dtype=torch.float64), b.norm(dtype=torch.float64)]) for a, b in pieces]
    return torch.stack(norms).square().sum(0)


def _ratio(difference: float, reference: float) -> float:
    """sqrt(difference / reference) of squared norms; for a reference of 0 it is 1, or 0 if both are 0."""
    if reference == 0 and math.isfinite(difference):
        return float(difference > 0)
    return math.sqrt(difference / reference) if reference else difference


def overwrite(buffer: Tensor, value: Tensor) -> Tensor:
    """The buffer, holding what a denoiser returned: its own argument, a new tensor, or the same buffer every time.

    Raises:
        ValueError: value of another shape or dtype.
        TypeError: value is not a tensor.
    """
    if value is buffer:
        return buffer
    if not isinstance(value, Tensor):
        raise TypeError(f"the denoiser must return a tensor, got {type(value).__name__}")
    if value.shape != buffer.shape or value.dtype != buffer.dtype:
        raise ValueError(
            f"the denoiser must return {buffer.dtype} of shape {tuple(buffer.shape)}, as it was given, "
            f"got {value.dtype} of shape {tuple(value.shape)}"
        )
    return buffer.copy_(value)
