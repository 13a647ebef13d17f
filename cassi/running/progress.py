"""How far a run is, over all of its steps: one bar with the time that is left."""

from __future__ import annotations

import builtins
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
USUAL = {CAMERA: 0.05, TRIALS: 0.05, FINAL: 0.5, ERRORS: 0.35, SIDE: 1.5}
DRAWN = 0.1  # [s] between two states of the bar
LOGGED = 60.0  # [s] after which a log gets a line although no step begins; twice that, and so on
WORTH_A_LINE = 0.05  # share of the time from which on a step is a line in a log
TELLS = 0.02  # share from which on the time that is left can be told
BAR = "{desc} |{bar}| {percentage:2.0f}%{postfix}"


def usual_steps(
    *, solver: str, find: bool, uncertainty: bool = False, side: bool = False, frames: int = 1, of: str = ""
) -> dict[str, float]:
    """The steps of a reconstruction by name, and the share of the time that each usually takes.

    Args:
        solver, uncertainty, side: what is asked for; `find`: the camera is looked for.
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
    """Who is told of the steps of a reconstruction: a bar, the function that was given, or nobody."""
    if callable(progress):
        yield progress
    else:
        with StepBar(steps, shown=progress) as bar:
            yield bar


class StepBar:
    """On a terminal a bar: which step of how many, how much of all is done, how long the rest may take.

    Where stderr is no terminal, a line when a step begins that takes its time, and each time the run is twice as old.

    Args:
        expected: the steps in order, by name, and the share of the time that each is expected to take.
        shown: draw it.

    Example:
        >>> with StepBar({"read": 1, "solve": 3}, shown=False) as bar:
        ...     bar("read", 1.0)
        ...     bar("solve", 0.5)
        ...     bar.done
        0.625
        >>> bar.done
        1.0
    """

    def __init__(self, expected: Mapping[str, float], *, shown: bool = True) -> None:
        self._step, self.done = "", 0.0
        self._start = time.monotonic()
        self._drawn = shown and on_screen()
        self._next = 0.0 if self._drawn else LOGGED  # [s] after the start, when the next line is due
        self._logged = shown and not self._drawn
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
        self.done = max(self.done, self._before[step] + min(max(share, 0.0), 1.0) * self._share[step])
        begins, self._step = step != self._step, step
        several = f"step {list(self._share).index(step) + 1} of {len(self._share)}: "
        what = f"{several if len(self._share) > 1 else ''}{step}"
        if self._drawn:
            self._draw(what)
        elif self._logged and (self._age() > self._next or (begins and self._share[step] >= WORTH_A_LINE)):
            self._next = max(self._next, 2 * self._age())
            said = [what, f"{self.done:.0%} done", *self._time_left()]
            print(", ".join(said), file=sys.stderr, flush=True)

    def _age(self) -> float:
        return time.monotonic() - self._start

    def _time_left(self) -> list[str]:
        if self.done < TELLS:
            return []
        so_far, left = (tqdm.format_interval(t) for t in (self._age(), self._age() * (1 / self.done - 1)))
        return [f"{so_far} so far, about {left} left"]

    def _draw(self, what: str) -> None:
        if self.done == 0 or (self._bar is not None and what == self._bar.desc and self._age() < self._next):
            return  # what fails at once is one line without a bar
        if self._bar is None:
            self._bar = tqdm(total=1.0, leave=False, dynamic_ncols=True, bar_format=BAR)
        self._next = self._age() + DRAWN
        self._bar.n = self.done
        self._bar.set_postfix_str(*self._time_left(), refresh=False)
        self._bar.set_description_str(what)

    def __enter__(self) -> StepBar:
        return self

    def __exit__(self, failed: type[BaseException] | None = None, *_: object) -> None:
        if failed is None:
            self.done = 1.0
        if self._bar is not None:
            self._bar.n = self.done
            self._bar.refresh()
            self._bar.close()


def on_screen() -> bool:
    """Whether stderr is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__")
