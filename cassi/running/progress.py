"""How far a run is, over all of its steps: one bar with the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import NoReturn

from tqdm.auto import tqdm

from cassi.choice.plan import Progress

CAMERA, TRIALS, FINAL, ERRORS, SIDE, TILES = (
    "find the camera", "trials", "final run", "error bars", "side picture", "tiles",
)  # fmt: skip
# Shares of the time that steps usually take, measured on frames of 256 x 256 pixels and 28 bands.
USUAL = {CAMERA: 0.25, TRIALS: 0.25, FINAL: 0.5, ERRORS: 0.35, SIDE: 1.5}
LOGGED = 10.0  # [s] between two states of the bar where no terminal shows them, but a file keeps them all
BAR = "{desc} |{bar}| {percentage:2.0f}%, {elapsed} so far, about {remaining} left"


def usual_steps(
    *, solver: str, find: bool, uncertainty: bool = False, side: bool = False, frames: int = 1, of: str = ""
) -> dict[str, float]:
    """The steps of a reconstruction by name, and the share of the time that each usually takes.

    Args:
        solver: its name; only "auto" makes trials.
        find: the camera is looked for.
        uncertainty, side: what is asked for.
        frames: snapshots, one after the other.
        of: what is reconstructed, where that has to be told.

    Example:
        >>> list(usual_steps(solver="auto", find=True, frames=2))[:3]
        ['find the camera', 'run 1 of 2, trials', 'run 1 of 2, final run']
    """
    wanted = {TRIALS: solver == "auto", FINAL: True, ERRORS: uncertainty, SIDE: side}
    each = [name for name, so in wanted.items() if so]
    steps = {f"{of}{CAMERA}": USUAL[CAMERA]} if find else {}
    return steps | {f"{of}{one_of(k, frames)}{name}": USUAL[name] for k in range(frames) for name in each}


def tiled_steps(solver: str, *, find: bool = False) -> dict[str, float]:
    """The same of a frame that is reconstructed in tiles."""
    wanted = {CAMERA: find, TRIALS: solver == "auto"}
    return {name: USUAL[name] for name, so in wanted.items() if so} | {TILES: 2.0}


def one_of(k: int, frames: int) -> str:
    """What stands before the steps of one of several runs."""
    return f"run {k + 1} of {frames}, " if frames > 1 else ""


@contextmanager
def shown(progress: bool | Progress, steps: Mapping[str, float]) -> Iterator[Progress]:
    """Who is told of the steps of a reconstruction: a bar, the function that was given, or nobody.

    Args:
        progress: show a bar, or a function.
        steps: of the bar, see `StepBar`.
    """
    if callable(progress):
        yield progress
    else:
        with StepBar(steps, shown=progress) as bar:
            yield bar


class StepBar:
    """A bar on stderr: which step of how many, how much of all of them is done, and how long the rest may take.

    Args:
        expected: the steps in order, by name, and the share of the time that each is expected to take.
        shown: draw it.

    Example:
        >>> with StepBar({"read": 1, "solve": 3}, shown=False) as bar:
        ...     bar("read", 1.0)
        ...     bar("solve", 0.5)
        ...     bar.done
        0.625
    """

    def __init__(self, expected: Mapping[str, float], *, shown: bool = True) -> None:
        self._step, self.done = "", 0.0
        self._shown, self._start = shown, time.time()
        self._bar: tqdm[NoReturn] | None = None
        self.expect(expected)

    def expect(self, expected: Mapping[str, float]) -> None:
        """The steps, where they are known better now."""
        whole = sum(expected.values())
        self._share = {name: value / whole for name, value in expected.items()}
        self._before = dict(zip(expected, accumulate(self._share.values(), initial=0.0), strict=False))

    def __call__(self, step: str, share: float = 0.0) -> None:
        """So much of a step is done, and all before it; none goes back. What was not expected is not shown."""
        if step not in self._share:
            return
        done = self._before[step] + min(max(share, 0.0), 1.0) * self._share[step]
        self.done, ahead = max(self.done, done), max(0.0, done - self.done)
        if self._bar is None and self._shown and self.done > 0:  # what fails at once is one line without a bar
            often = 0.1 if sys.stderr.isatty() else LOGGED
            self._bar = tqdm(total=1.0, leave=False, smoothing=0, dynamic_ncols=True, bar_format=BAR, mininterval=often)
            self._bar.start_t = self._start
        if self._bar is None:
            return
        if step != self._step:
            self._step = step
            self._bar.set_description_str(f"step {list(self._share).index(step) + 1} of {len(self._share)}: {step}")
        self._bar.update(ahead)

    def __enter__(self) -> StepBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
