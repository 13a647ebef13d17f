"""The last and longest run of the default solver: total variation, then a non-local prior where that predicts better.

Total variation finds where light comes from among all the cubes that a snapshot allows; low rank of groups of similar
patches (`cassi.priors.nonlocal_lowrank`), started from its result, takes off what does not repeat: noise and the
mask's traces. Fine texture that does not repeat it takes off too, so it has to predict the held-out pixels as well.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from cassi.optics.detector import brightness
from cassi.optics.protocol import Camera
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import coefficient_weights, synthesise
from cassi.solvers.loop import Monitor, Record, Result, Status
from cassi.solvers.subspace_tv import SubspaceState, subspace_tv

Quality = Literal["fast", "default", "best"]
TV = "total variation"
_Solve = Callable[..., tuple[Result, SubspaceState]]

TOL = 2e-5  # relative change an iteration at which a cube counts as finished
PATCH = 5  # side of the patches that are compared [pixel]
REMATCH = 8  # iterations after which similar patches are looked for anew
CHANCE = 0.02  # errors over some 1500 held-out pixels that differ by less say nothing


@dataclass(frozen=True)
class Effort:
    """How much a final run tries.

    Attributes:
        tv_first: iterations with total variation before another prior is tried.
        tv_all: the same in all, where none predicts as well.
        sigmas: noise levels of the non-local denoiser, in units of the weights of the total variation; may be none. A
            later one is taken where it predicts better than by chance.
        first, most: iterations with each of them, and with the best of them in all.
        give_up: held-out error relative to total variation's above which one is not gone on with, from 2 iterations on.
        settled: no other prior is tried where total variation has just brought the held-out error below this share of
            what it was: as long as it still falls so fast, there is no noise to take off, and going on is worth more.
        worse: a run is over when its error is above its lowest by this share: it fits noise.
    """

    tv_first: int
    tv_all: int
    sigmas: tuple[float, ...] = ()
    first: int = 0
    most: int = 0
    give_up: float = 1.4
    settled: float = 0.0
    worse: float = 0.05


EFFORTS: dict[Quality, Effort] = {
    "fast": Effort(500, 500),
    "default": Effort(200, 500, (0.5,), 12, 12, settled=0.85, worse=CHANCE),
    "best": Effort(500, 2000, (0.5, 0.2), 24, 160, math.inf),
}


class FinalRun(NamedTuple):
    """The result (cube (C, H, W)), the name of its prior, and each prior's error; [] where none but TV was tried."""

    result: Result
    prior: str
    priors: list[dict[str, Any]]


@dataclass
class _Watch:
    """What the user's monitor sees of runs that follow each other, and whether it has stopped them."""

    monitor: Monitor | None
    deadline: float
    history: tuple[Record, ...] = ()
    stopped: bool = False
    late: bool = False

    def __post_init__(self) -> None:
        self._last = time.perf_counter()

    def __call__(self, record: Record, z: Tensor) -> bool:
        if self.monitor is not None and self.monitor(self._numbered(record), z):
            self.stopped = True
        now = time.perf_counter()
        self.late = now + 1.5 * (now - self._last) > self.deadline  # the next iteration will take as long
        self._last = now
        return self.stopped or self.late

    def add(self, history: tuple[Record, ...]) -> None:
        self.history += tuple(self._numbered(record) for record in history)

    def _numbered(self, record: Record) -> Record:
        if not self.history:
            return record
        last = self.history[-1]
        return record._replace(iteration=last.iteration + record.iteration, seconds=last.seconds + record.seconds)


def final_run(
    A: Camera,
    y: Tensor,
    A_train: Camera,
    y_train: Tensor,
    basis: Tensor,
    *,
    variance: Tensor,
    prior_strength: float,
    state: SubspaceState,
    error: Callable[[Tensor], float],
    effort: Effort,
    deadline: float = math.inf,
    monitor: Monitor | None = None,
    progress: bool = False,
) -> FinalRun:
    """Run to the end, and judge by the held-out pixels which prior's cube to return.

    A cube of the non-local prior is kept from the last iteration whose error is the lowest, up to chance, and taken
    where that is no worse than total variation's, up to chance. It is made without the held-out pixels; the run with
    total variation alone goes on with all of them.

    Args:
        A, y, A_train, y_train: the camera and its measurement with all pixels, and without those held out.
        basis, variance, prior_strength, state: of `subspace_tv`; the state is gone on from.
        error: of a cube, at the held-out pixels.
        effort: see `Effort`.
        deadline: on the clock of `time.perf_counter` [s], up to the iteration at hand.
        monitor, progress: as for `subspace_tv`; the monitor sees every prior's iterations, numbered on from those of
            total variation.
    """
    watch = _Watch(monitor, deadline)
    solve = partial(subspace_tv, basis=basis, variance=variance, prior_strength=prior_strength, progress=progress)
    camera, measured = (A_train, y_train) if effort.sigmas else (A, y)
    before = error(synthesise(state.z, basis.to(y))) if effort.sigmas else math.inf
    smooth, state = solve(camera, measured, num_iters=effort.tv_first, tol=TOL, state=state, monitor=watch)
    watch.add(smooth.history)
    if not effort.sigmas or watch.stopped or watch.late:
        return FinalRun(smooth, TV, [])
    smooth = replace(smooth, status="stopped")  # of which one hears only where it is the end
    usual = error(smooth.x)
    tried: list[dict[str, Any]] = [{"prior": TV, "held_out_error": usual}]
    if usual >= effort.settled * before:
        # what the multiplier e holds back from one prior means nothing to another
        begin = replace(state, e=torch.zeros_like(state.e))
        runs = [_NonlocalRun(A_train, y_train, basis, sigma, begin, error, usual, effort) for sigma in effort.sigmas]
        chosen = _best_of(runs, usual, effort, watch, solve)
        tried += [{"prior": run.name, "held_out_error": run.kept_error} for run in runs if run.kept_at > 0]
        if chosen.kept_error <= (1 + CHANCE) * usual:
            watch.add(chosen.history[: chosen.kept_at])
            x = synthesise(chosen.kept, basis.to(y))
            status: Status = "stopped" if watch.stopped or watch.late else "max_iters"
            return FinalRun(Result(x, watch.history, status), chosen.name, tried)
        if watch.stopped or watch.late:
            return FinalRun(smooth, TV, tried)
    rest, _ = solve(A, y, num_iters=effort.tv_all - effort.tv_first, tol=TOL, state=state, monitor=watch)
    watch.add(rest.history)
    return FinalRun(replace(rest, history=watch.history), TV, tried)


def _best_of(runs: list[_NonlocalRun], usual: float, effort: Effort, watch: _Watch, solve: _Solve) -> _NonlocalRun:
    """Run each for a while, and go on with the one that predicts best."""
    for run in runs:
        run.go_on(effort.first, watch, solve)
    chosen = runs[0]
    for run in runs[1:]:
        if run.lowest < (1 - CHANCE) * chosen.lowest:
            chosen = run
    if effort.most > effort.first and chosen.lowest < 1.3 * usual:
        chosen.go_on(effort.most - effort.first, watch, solve)
    return chosen


@dataclass
class _NonlocalRun:
    """A run with the non-local prior that can be gone on with, and the best of it so far."""

    A: Camera
    y: Tensor
    basis: Tensor
    sigma: float
    state: SubspaceState
    error: Callable[[Tensor], float]
    usual: float
    effort: Effort
    lowest: float = math.inf
    kept_error: float = math.inf
    kept_at: int = 0
    history: tuple[Record, ...] = ()

    def __post_init__(self) -> None:
        self.kept = self.state.z
        self.over = False

    @property
    def name(self) -> str:
        return f"non-local, {self.sigma:g}"

    def go_on(self, num_iters: int, watch: _Watch, solve: _Solve) -> None:
        if self.over or watch.stopped or watch.late:
            return
        B = self.basis.to(self.y)
        before = self.history[-1] if self.history else Record(0, 0.0, 0.0, 0.0)

        def numbered(record: Record) -> Record:
            return record._replace(
                iteration=before.iteration + record.iteration, seconds=before.seconds + record.seconds
            )

        def judge(record: Record, z: Tensor) -> bool:
            k = numbered(record).iteration
            if k % 2 == 0:
                found = self.error(synthesise(z, B).clamp_(min=0))
                self.lowest = min(self.lowest, found)
                if found == self.lowest or found <= (1 + CHANCE) * min(self.lowest, self.usual):
                    self.kept, self.kept_error, self.kept_at = z.clone(), found, k
                self.over = found > min(self.effort.give_up * self.usual, (1 + self.effort.worse) * self.lowest)
            return watch(numbered(record), z) or self.over

        weights = coefficient_weights(len(B)).to(B) * brightness(self.A, self.y)
        result, self.state = solve(
            self.A,
            self.y,
            num_iters=num_iters,
            state=self.state,
            denoise=NonlocalDenoiser(self.sigma * weights, refresh=REMATCH, patch=PATCH),
            monitor=judge,
        )
        self.history += tuple(map(numbered, result.history))
