"""How far a run is, over all of its steps: one bar with the time that is left."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate

from tqdm.auto import tqdm

from cassi.errors import writable_streams
from cassi.settings import Progress, Settings

CAMERA, TRIALS, FINAL, ERRORS, SIDE, TILES = (
    "find the camera", "trials", "final run", "error bars", "side picture", "tiles",
)  # fmt: skip
WHITE = "white reference, "  # before the steps of its reconstruction
# Shares of the time that steps usually take, measured on frames of 256 x 256 pixels and 28 bands.
USUAL = {CAMERA: 0.05, TRIALS: 0.05, FINAL: 0.5, ERRORS: 0.35, SIDE: 1.5}
DRAWN = 0.1  # [s] before the bar is drawn
WORTH_A_LINE = 0.05  # share of the time from which on a step is a line in a log
BAR = "{desc} |{bar}| {percentage:2.0f}%, {elapsed} so far, about {remaining} left"


def usual_steps(settings: Settings, frames: int = 1, *, search: bool | None = None) -> dict[str, float]:
    """The steps of a reconstruction by name, and the share of the time that each usually takes.

    Args:
        settings: of the run.
        frames: snapshots, one after the other.
        search: whether the camera is searched for; None: as the settings say.
    """
    wanted = {TRIALS: settings.solver == "auto", FINAL: True, ERRORS: settings.uncertainty, SIDE: settings.side}
    each = [name for name, so in wanted.items() if so]
    steps = {CAMERA: USUAL[CAMERA]} if (settings.searches if search is None else search) else {}
    steps |= {f"{one_of(k, frames)}{name}": USUAL[name] for k in range(frames) for name in each}
    if settings.white is not None:
        steps |= {WHITE + name: USUAL[name] for name in each if name in (TRIALS, FINAL)}
    return steps


def tiled_steps(settings: Settings) -> dict[str, float]:
    """The same of a frame that is reconstructed in tiles."""
    return {name: USUAL[name] for name in ((CAMERA, TRIALS) if settings.searches else (TRIALS,))} | {TILES: 2.0}


def one_of(k: int, frames: int) -> str:
    """What stands before the steps of one of several runs."""
    return f"run {k + 1} of {frames}, " if frames > 1 else ""


@contextmanager
def shown(progress: bool | Progress, steps: Mapping[str, float]) -> Iterator[Progress]:
    """Who is told of the steps of a reconstruction: a bar, the function that was given, or nobody."""
    if callable(progress):
        yield progress
    else:
        with writable_streams(), StepBar(steps, shown=progress) as bar:
            yield bar


class StepBar:
    """On a terminal a bar: which step of how many, how much of all is done, how long the rest may take.

    Where stderr is no terminal, a line when a step begins that takes its time. `expected`: the steps in order, by name,
    and the share of the time that each is expected to take.
    """

    def __init__(self, expected: Mapping[str, float], *, shown: bool = True) -> None:
        self._step, self.done = "", 0.0
        self._logged = shown and not on_screen()
        # What fails at once is one line without a bar. None is made where none is shown: who is interrupted while it
        # makes tqdm's lock leaves it closed, and other threads wait for it.
        self._bar = tqdm(
            total=1.0, leave=False, dynamic_ncols=True, bar_format=BAR, smoothing=0, delay=DRAWN, miniters=0,
        ) if shown and not self._logged else None  # fmt: skip
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
        if self._logged and begins and self._share[step] >= WORTH_A_LINE:
            print(f"{step}, {self.done:.0%} done", file=sys.stderr, flush=True)
        if self._bar is not None:
            several = f"step {list(self._share).index(step) + 1} of {len(self._share)}: "
            self._bar.set_description_str(f"{several if len(self._share) > 1 else ''}{step}", refresh=False)
            self._bar.update(self.done - self._bar.n)

    def __enter__(self) -> StepBar:
        return self

    def __exit__(self, failed: type[BaseException] | None = None, *_: object) -> None:
        if failed is None:
            self.done = 1.0
            if self._logged and self._step:
                print("all steps, 100% done", file=sys.stderr, flush=True)
        if self._bar is not None:
            self._bar.update(self.done - self._bar.n)
            self._bar.close()


def on_screen() -> bool:
    """Whether stderr is a terminal, or this is a notebook."""
    return sys.stderr.isatty() or hasattr(builtins, "__IPYTHON__")
