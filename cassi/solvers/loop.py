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
READ_EVERY = 16  # iterations after which numbers are fetched from a GPU


Relative = float | Tensor
"""|a| / |b|, or, off the CPU, terms of |a|^2 and |b|^2, (2, ...), not waited for: `Loop.record` sums them."""


class Record(NamedTuple):
    """One iteration: its number from 1, seconds since the start, |y - A v| / |y|, |v - v_old| / |v_old|."""

    iteration: int
    seconds: float
    residual: float
    change: float


Monitor = Callable[[Record, Tensor], bool | None]
"""Called for each iteration, the last included, with its record and the current cube; returning True stops the solver.
The cube is the solver's own buffer, overwritten later: clone it to keep it, do not write into it. On a GPU records come
`READ_EVERY` at a time, as each time the GPU is waited for: the cube is then that of the last of them. A monitor with a
number `every` gets its records, and that cube, so often."""


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
        self._every: int = min(READ_EVERY, getattr(monitor, "every", READ_EVERY))
        self._progress = progress
        self._history: list[Record] = []
        self._pending: list[tuple[float, Relative, Relative]] = []
        self._required: list[tuple[Tensor, str]] = []
        self._status: Status = "max_iters"
        self._done = False

    def require(self, condition: Tensor, message: str) -> None:
        """Raise ValueError with this message where a condition does not hold: of a GPU with the first records.

        Args:
            condition: one truth value.
            message: what is wrong.
        """
        if not condition.is_cpu:
            self._required.append((condition.double().expand(2, 1), message))  # is read as 1 / 1, or 0
        elif not bool(condition):
            raise ValueError(message)

    def __iter__(self) -> Iterator[int]:
        self._start = time.perf_counter()
        with tqdm(total=self._num_iters, desc=self._name, disable=not self._progress, leave=False) as self._bar:
            for k in range(self._num_iters):
                yield k
                if self._done:
                    break

    def record(self, v: Tensor, *, residual: Relative, change: Relative) -> None:
        """Close iteration k.

        Squares that lie on a device are fetched some iterations together, as that waits for the device; only then does
        the loop stop. Their seconds are those of the launch.

        Raises:
            FloatingPointError: residual or change is not finite.
        """
        self._pending.append((time.perf_counter() - self._start, residual, change))
        self._bar.update()
        last = len(self._history) + len(self._pending) == self._num_iters
        if isinstance(residual, Tensor) and not last and len(self._pending) < self._every:
            return
        records = self._read()
        self._bar.set_postfix_str(f"residual {records[-1].residual:.2%}", refresh=False)
        for record in records:
            stop = self._monitor is not None and self._monitor(record, v)
            if record.change < self._tol or stop:
                self._status, self._done = "converged" if record.change < self._tol else "stopped", True
                return

    def _read(self) -> list[Record]:
        """Take what is pending into the history, with one transfer for all of it."""
        pending, self._pending = self._pending, []
        seconds, residuals, changes = zip(*pending, strict=True)
        required, self._required = self._required, []
        conditions, *kinds = _read_together(tuple(condition for condition, _ in required), residuals, changes)
        for (_, message), holds in zip(required, conditions, strict=True):
            if not holds:
                raise ValueError(message)
        sizes = zip(seconds, *kinds, strict=True)
        records = []
        for at, residual, change in sizes:
            record = Record(len(self._history) + 1, at, residual, change)
            if not (math.isfinite(record.residual) and math.isfinite(record.change)):
                raise FloatingPointError(
                    f"{self._name} diverged: residual {record.residual}, change {record.change} at iteration "
                    f"{record.iteration}; check the measurement and mask for NaN or Inf, or use a smaller step or "
                    "larger rho"
                )
            self._history.append(record)
            records.append(record)
        return records

    def result(self, x: Tensor) -> Result:
        """What the iterations came to."""
        return Result(x, tuple(self._history), self._status)


def _read_together(*kinds: tuple[Relative, ...]) -> list[list[float]]:
    """Numbers of some kinds, each kind of one shape, with one transfer for all of them."""
    sums = [torch.stack(tensors).sum(2) for kind in kinds if (tensors := [t for t in kind if isinstance(t, Tensor)])]
    squares = iter(torch.cat(sums).tolist() if sums else ())
    return [[_ratio(*next(squares)) if isinstance(number, Tensor) else number for number in kind] for kind in kinds]


def relative_norm(difference: Tensor, reference: Tensor) -> float:
    """|difference| / |reference| in the 2-norm (a scalar reference is its own norm); against 0, 1 or 0 if both are.

    A start from 0 is thus a change of 1, not a division by zero. NaN and Inf come through.
    """
    norms = torch.stack([t.norm(dtype=torch.float64) for t in (difference, reference)])  # squares overflow float32
    d, r = (float(norm) for norm in norms.tolist())
    if r == 0 and math.isfinite(d):
        return float(d > 0)
    return d / r if r else d


def relative_change(new: Tensor, old: Tensor) -> Relative:
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
        squares: Tensor = fast.squared_distance(new, old)
    else:
        size = max(1 << 12, -(-new.numel() // 16))
        pieces = list(zip(torch.split(new.reshape(-1), size), torch.split(old.reshape(-1), size), strict=True))
        differences, references = zip(*((_square(a - b), _square(b)) for a, b in pieces), strict=True)
        squares = torch.stack([torch.stack(differences).sum(), torch.stack(references).sum()])
    return _or_later(squares)


def relative_size(part: Tensor, whole: Tensor) -> Relative:
    """|part| / |whole| as `relative_norm` has it."""
    squares = torch.stack([_square(part), _square(whole)])
    return _or_later(squares)


def _or_later(squares: Tensor) -> Relative:
    """The ratio of squares (2, ...) on the CPU; elsewhere they themselves."""
    terms = squares.reshape(2, -1)
    return _ratio(*terms.sum(1).tolist()) if terms.is_cpu else terms


def _ratio(difference: float, reference: float) -> float:
    """sqrt(difference / reference) of two squared norms."""
    if reference == 0 and math.isfinite(difference):
        return float(difference > 0)
    return math.sqrt(difference / reference) if reference else difference


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
