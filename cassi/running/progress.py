"""How far a run is: its steps one after the other, each with a bar and the time that is left."""

import builtins
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from tqdm.auto import tqdm

from cassi.errors import writable_streams
from cassi.settings import Settings
from cassi.types import Progress

CAMERA, TRIALS, FINAL, ERRORS, SIDE, TILES = (
    "find the camera", "trials", "final run", "error bars", "photograph", "tiles",
)  # fmt: skip
WHITE = "white reference, "  # before the steps of its reconstruction
DELAY = 0.1  # [s] before the bar is drawn
EVERY = 10.0  # [s] between two lines of a log
BAR = "{desc} |{bar}| {percentage:2.0f}%, {elapsed} so far, about {remaining} left"


def expected_steps(
    settings: Settings, frames: int = 1, *, search: bool | None = None, tiled: bool = False
) -> list[str]:
    """The steps of a reconstruction by name, in order.

    Args:
        settings: of the run.
        frames: snapshots, one after the other.
        search: whether the camera is searched for; None: as the settings say.
        tiled: whether the frame is reconstructed in tiles.
    """
    solving = {TRIALS: settings.solver == "auto" and settings.plan is None, TILES if tiled else FINAL: True}
    after = {} if tiled else {ERRORS: settings.uncertainty, SIDE: settings.side}
    each = [name for name, is_wanted in (solving | after).items() if is_wanted]
    steps = [CAMERA] if (settings.searches if search is None else search) else []
    steps += [WHITE + name for name in each if name in solving and settings.white is not None]
    return steps + [f"{run_label(k, frames)}{name}" for k in range(frames) for name in each]


def run_label(k: int, frames: int) -> str:
    """The label before the steps of one of several runs."""
    return f"run {k + 1} of {frames}, " if frames > 1 else ""


@contextmanager
def reporting(progress: bool | Progress, steps: Sequence[str]) -> Iterator[Progress]:
    """The receiver of the steps of a reconstruction: a bar, the function that was given, or nothing."""
    if callable(progress):
        yield progress
    else:
        with writable_streams(), StepBar(steps, shown=progress) as bar:
            yield bar


class StepBar:
    """On a terminal a bar for each step: its number, the share of it that is done, and how long the rest may take.

    Where stderr is no terminal, a line as each step begins, and every ten seconds how far it is and what time it has
    left. `steps` are their names, in order.
    """

    def __init__(self, steps: Sequence[str], *, shown: bool = True) -> None:
        self.steps, self.step, self.share = list(steps), "", 0.0
        self._begun = self._said = time.monotonic()
        self._held = ""  # the line of the first step, until it continues: an error at once is one line
        self._logged = shown and not on_screen()
        # An error at once leaves one line, without a bar. None is made unless displayed: an interrupt inside tqdm's
        # lock would block other threads.
        self._bar = tqdm(
            total=1.0, leave=False, dynamic_ncols=True, bar_format=BAR, smoothing=0, delay=DELAY, miniters=0,
        ) if shown and not self._logged else None  # fmt: skip

    def expect(self, steps: Sequence[str]) -> None:
        """Set the steps again, once they are known."""
        self.steps = list(steps)

    def __call__(self, step: str, share: float = 0.0) -> None:
        """Set a step's share; no step goes back, and unknown ones are ignored."""
        if step not in self.steps or (self.step in self.steps and self.steps.index(step) < self.steps.index(self.step)):
            return
        share, begins = min(max(share, 0.0), 1.0), step != self.step
        self.step, self.share = step, share if begins else max(self.share, share)
        if begins:
            self._begin(self.steps.index(step) + 1)
        else:
            self._log(self._time_left())
        if self._bar is not None:
            self._bar.update(self.share - self._bar.n)

    def _begin(self, number: int) -> None:
        """Name the step in the log, or on a bar that starts again."""
        count = f"step {number} of {len(self.steps)}: " if len(self.steps) > 1 else ""
        self._begun = self._said = time.monotonic()
        self._held += f"{count}{self.step}\n" if self._logged else ""
        if number > 1:
            self._log()
        if self._bar is not None:
            self._bar.reset()
            self._bar.set_description_str(f"{count}{self.step}", refresh=False)

    def _time_left(self) -> str:
        """A line of the log, where the last one was long ago."""
        now = time.monotonic()
        if not self._logged or now - self._said < EVERY or not 0 < self.share < 1:
            return ""
        self._said, past = now, now - self._begun
        left = tqdm.format_interval(past * (1 - self.share) / self.share)
        return f"{self.step}: {self.share:.0%}, {tqdm.format_interval(past)} so far, about {left} left\n"

    def _log(self, more: str = "") -> None:
        """Write what is held back of the log, and more."""
        if self._held or more:
            print(self._held + more, end="", file=sys.stderr, flush=True)
        self._held = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._log()
        if self._bar is not None:
            self._bar.close()


def on_screen() -> bool:
    """Whether stderr is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__")
