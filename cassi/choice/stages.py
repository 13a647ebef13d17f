"""The stages that the default solver is made of; `cassi.choice.chain` is the loop over them.

Tv(n)             n iterations of subspace TV: separates bands and pixels that the snapshot mixes
NonLocal(s, n, c) n more with a non-local prior in place of TV, c times as strong: keeps what repeats in the scene
Learned(t)        a network unrolled through the camera, started from there, for time t: trained on scenes

Three more are `cassi.choice.guided`, `mirrors` and `adaptation`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from cassi.optics.detector import brightness
from cassi.optics.protocol import Camera
from cassi.priors.learned import LearnedPrior, Size
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import analyse, coefficient_weights, smooth_basis, synthesise
from cassi.solvers.gap import Denoiser
from cassi.solvers.loop import Monitor, Record, Result
from cassi.solvers.subspace_tv import MAX_MOMENTUM, SubspaceState, subspace_tv
from cassi.solvers.unrolled import unrolled
from cassi.types import Progress

TOL = 2e-5  # relative change per iteration at which a cube counts as converged
# Of total variation, before other priors; of fast, 100 would lose 6 dB on KAIST 4, and 150 lose none.
TV_ITERS, FAST_TV_ITERS = 200, 150
PATCH = 5  # side of the patches that are compared [pixel]
# Of the reference patches [pixel], for one shot and for several: for one shot 4 gains 0.13 dB in 1.1 times the time of
# 5 (-0.5 to 0.7 on 18 windows), for several 0.3 to 0.9 dB with noise, as their residual is little but noise.
STRIDE, STRIDE_OF_SEVERAL = 5, 4
SHORT_ITERS, LONG_ITERS = 12, 40  # of the non-local prior, before a network and after the last one
# How many times noise counts before the last non-local prior, in the order of preference, and iterations from one to
# the next. The run with the first goes to its end, and the others start from there: judged after 12 iterations from the
# start, 1 was best for microscope captures, at the end 16. One that replaces the first is run twice as long again.
NOISE_FACTORS, NOISE_FACTOR_ITERS = (16.0, 64.0, 4.0, 1.0), 12


@dataclass(frozen=True, eq=False)
class Problem:
    """What all stages share: spectral basis, noise, brightness and the network.

    Attributes:
        basis: (K, C).
        variance: of y, like y or a number.
        brightness: that the weights of priors are relative to; None: of the snapshot itself. A tile has that of its
            frame.
        relative_level: of a `Plan`.
        learned: the network of `Learned`; None where there is none.
        axis: number of bands or their wavelengths, for its smooth basis.
        turn: turns around what priors see, and back; None: they see it as it is.
    """

    basis: Tensor
    variance: Tensor
    brightness: float | None = None
    relative_level: float = 1.0
    learned: LearnedPrior | None = None
    axis: int | Sequence[float] | np.ndarray | None = None
    turn: Callable[[Tensor], Tensor] | None = None

    @cached_property
    def smooth(self) -> Tensor:
        """The smooth basis of the network, which has its own."""
        if self.learned is None:
            raise ValueError("the smooth basis is that of a network, and there is none")
        axis = self.basis.shape[1] if self.axis is None else self.axis
        return smooth_basis(axis, self.learned.size.components).to(self.basis)

    @cached_property
    def relative(self) -> Tensor:
        """Relative weights of the coefficients, (K,)."""
        return coefficient_weights(len(self.basis), self.basis.device).to(self.basis)

    def level(self, A: Camera, y: Tensor) -> float:
        """Of the objects: lambda of `subspace_tv`, L of `unrolled`, the unit of the weights of priors."""
        return self.relative_level * (brightness(A, y) if self.brightness is None else self.brightness)

    def variance_with_mask_error(self, A: Camera, x: Tensor) -> Tensor:
        """`variance`, and what the unknown error of the mask adds for a scene like x."""
        return self.variance + A.mask_error_variance(x.clamp(min=0)) if A.mask_error else self.variance

    def non_local(self, A: Camera, y: Tensor, sigma: float) -> Denoiser:
        """Make a non-local denoiser, sigma in units of the weights of TV."""
        stride = STRIDE if len(A.measurement_shape) == 2 else STRIDE_OF_SEVERAL
        denoise = NonlocalDenoiser(sigma * self.level(A, y) * self.relative, patch=PATCH, stride=stride)
        turn = self.turn
        return denoise if turn is None else lambda z, k: turn(denoise(turn(z), k))


@dataclass(frozen=True, eq=False)
class State:
    """The state between two stages.

    Attributes:
        x: the cube (C, H, W), or a batch of them, of several views or frames.
        run: the state of subspace TV at its end.
        history: all records so far.
        stage_starts: the number of each stage's first record, and its name.
        stages: all so far.
        views: of a batch of views of one snapshot (`cassi.choice.mirrors`), the axes turned around in each.
    """

    x: Tensor
    run: SubspaceState | None = None
    history: tuple[Record, ...] = ()
    stage_starts: tuple[tuple[int, str], ...] = ()
    stages: tuple[Stage, ...] = ()
    views: tuple[tuple[int, ...], ...] = ()

    def followed_by(self, result: Result, run: SubspaceState | None, stage: Stage, *, again: bool = False) -> State:
        """The state after one more stage, or after more of its last one, which is `stage` now."""
        records = tuple(continue_record(self.history, record) for record in result.history)
        stages, starts = self.stages, (*self.stage_starts, (records[0].iteration, stage.name))
        if again:
            stages, starts = stages[:-1], (*starts[:-2], (starts[-2][0], stage.name))
        return State(result.x, run, (*self.history, *records), starts, (*stages, stage), self.views)

    @property
    def mean(self) -> Tensor:
        """The cube, of views their mean."""
        return self.x.mean(0) if self.views else self.x


def check_count(name: str, value: object) -> None:
    """Raise ValueError for anything but a whole number above 0."""
    if type(value) is not int or value < 1:
        raise ValueError(f"{name} of a stage must be a whole number above 0, got {value!r}")


def check_positive(name: str, value: object) -> None:
    """Raise ValueError for anything but a finite number above 0."""
    if type(value) not in (int, float) or not 0 < value < math.inf:  # type: ignore[operator]
        raise ValueError(f"{name} of a stage must be a positive number, got {value!r}")


def continue_record(history: tuple[Record, ...], record: Record) -> Record:
    """The record with iteration and seconds added to those of the last of a history."""
    if not history:
        return record
    last = history[-1]
    return record._replace(iteration=last.iteration + record.iteration, seconds=last.seconds + record.seconds)


@dataclass
class Watch:
    """Monitors the iterations of successive stages, and stops them for the user's monitor or the clock.

    Attributes:
        monitor: the user's; iterations are numbered over all stages.
        progress: called with the name of a step ("final run") and the share of it (of `expected`) that is done.
        deadline: on `time.perf_counter`.
        expected: greatest cost of all stages, in iterations of TV.
        spent, seconds: cost of the iterations so far, and what they took.
        last: when the last one ended.
        over: the run ends.
    """

    monitor: Monitor | None = None
    progress: Progress = lambda step, share: None
    deadline: float = math.inf
    expected: float = math.inf
    spent: float = 0.0
    seconds: float = 0.0
    last: float = field(default_factory=time.perf_counter)
    over: bool = False

    def stage_monitor(self, state: State | None, cost: float, *, trial: bool = False) -> Monitor:
        """The monitor of a stage that starts now, at this cost an iteration; a trial adds no records to the history."""
        self.last = time.perf_counter()
        history, views = ((), ()) if state is None else (state.history, state.views)

        def look(record: Record, z: Tensor) -> bool:
            self.ask(history[-1] if trial else continue_record(history, record), z[0] if views else z)
            return self.spend(cost * (len(views) or 1))

        return look

    def ask(self, record: Record, z: Tensor) -> bool:
        """Show an iteration to the user's monitor; whether that or the clock stops the run."""
        self.over |= self.monitor is not None and bool(self.monitor(record, z))
        return self.over

    def spend(self, cost: float) -> bool:
        """Count one more iteration, of this cost; whether it was the last."""
        now = time.perf_counter()
        self.over |= now + (now - self.last) > self.deadline  # the next takes as long
        self.seconds += now - self.last
        self.last = now
        self.spent += cost
        self.progress("final run", min(1.0, self.spent / self.expected))
        return self.over

    def affords(self, stage: Stage, state: State) -> bool:
        """Whether time is left for this stage at the pace so far; total variation is of use if time ends it early."""
        needed = (len(state.views) or 1) * stage.cost * self.seconds / max(self.spent, 1.0)
        self.over |= time.perf_counter() + (0.0 if isinstance(stage, Tv) else needed) > self.deadline
        return not self.over


class Stage(Protocol):
    """A stage: a frozen dataclass of plain values, which a plan's file holds after the name of the class.

    Attributes:
        words: its prior, as a noun phrase.
        needs_network: a learned prior; of a frame and its neighbors it is given the frame's own shot alone.
        of_one_scene: it cannot solve the tiles of a frame separately without seams, nor a batch of frames.
    """

    words: ClassVar[str]
    needs_network: ClassVar[bool] = False
    of_one_scene: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """For the record of a run."""

    @property
    def cost(self) -> float:
        """In iterations of total variation."""

    def run(self, A: Camera, y: Tensor, problem: Problem, state: State | None, watch: Watch) -> State:
        """Run the stage from the state of the one before, None at first; ends when `watch` stops it."""


@dataclass(frozen=True)
class Tv(Stage):
    """Subspace TV, continued from the last state (`cassi.solvers.subspace_tv`)."""

    num_iters: int

    name = words = "total variation"

    def __post_init__(self) -> None:
        check_count("num_iters", self.num_iters)

    @property
    def cost(self) -> float:
        return self.num_iters

    def run(
        self, A: Camera, y: Tensor, problem: Problem, state: State | None = None, watch: Watch | None = None
    ) -> State:
        state, watch = state or State(y), watch or Watch()  # y stands for a cube that nobody reads
        result, run = subspace_tv(
            A, y, problem.basis, variance=problem.variance, tv_weight=problem.level(A, y), num_iters=self.num_iters,
            tol=TOL, state=state.run, monitor=watch.stage_monitor(state, 1.0),
        )  # fmt: skip
        return state.followed_by(result, run, self)


Resume = Callable[..., State]  # f(state, noise, num_iters, trial=False), see `NonLocal.begin`


@dataclass(frozen=True)
class NonLocal(Stage):
    """The same with a non-local prior in place of TV, whose filters are made once, from the initial cube.

    A fixed linear denoiser is a convex prior, so the iteration converges.

    The filters pass components above the noise unchanged, with the noise in them. Where the noise counts more, less
    of it is fitted, and less of faint texture. Which is better depends on scene and noise, by up to 6 dB, and held-out
    pixels decide: noise counts 16 times unless 64, or 4, then 1, predicts them better by more than one standard error.

    To the noise is added what an error of the mask of spread s (`Camera.mask_error`) adds, s^2 sum_c S_c x_c^2, with x
    the cube that the stage starts from. Where the mask is wrong by 5 %, it gains 0 to 4 dB on five windows: errors at
    held-out pixels alone are too small, as cubes absorb some of it.

    Attributes:
        sigma: its strength, in units of the weights of TV.
        num_iters: iterations with the first noise factor, `NOISE_FACTOR_ITERS` follow with each other one.
        noise: the noise factor, how many times its variance counts; None: chosen where there is a judge, else 1.
    """

    sigma: float
    num_iters: int
    noise: float | None = 1.0

    words = "a non-local prior"
    MATCH, ITERATION = 90.0, 5.0  # cost

    def __post_init__(self) -> None:
        check_positive("sigma", self.sigma)
        check_count("num_iters", self.num_iters)
        check_positive("noise", 1.0 if self.noise is None else self.noise)

    @property
    def name(self) -> str:
        counts = "" if self.noise in (None, 1) else f", noise counted {self.noise:g} times"
        return f"non-local ({self.sigma:g}{counts})"

    @property
    def cost(self) -> float:
        more = NOISE_FACTOR_ITERS * (len(NOISE_FACTORS) - 2) if self.noise is None else 0
        return self.MATCH + self.ITERATION * (self.num_iters + more)

    def run(self, A: Camera, y: Tensor, problem: Problem, state: State | None, watch: Watch) -> State:
        return self.begin(A, y, problem, state, watch, self.noise or 1.0)[0]

    def begin(
        self, A: Camera, y: Tensor, problem: Problem, state: State | None, watch: Watch, noise: float
    ) -> tuple[State, Resume]:
        """The state after `num_iters` iterations with this noise, and what continues from there with the same filters.

        A trial shows the user's monitor no records of its own.
        """
        if state is None or state.run is None:
            raise ValueError("the non-local prior starts from a cube of total variation; put Tv before")
        denoise, level = problem.non_local(A, y, self.sigma), problem.level(A, y)
        variance = problem.variance_with_mask_error(A, state.x)

        def solve(
            run: SubspaceState | None, noise: float, num_iters: int, monitor: Monitor | None = None
        ) -> tuple[Result, SubspaceState]:
            return subspace_tv(
                A, y, problem.basis, variance=variance if noise == 1 else noise * variance, tv_weight=level,
                num_iters=num_iters, state=run, denoise=denoise, momentum=MAX_MOMENTUM, monitor=monitor,
            )  # fmt: skip

        def resume(state: State, noise: float, num_iters: int, *, trial: bool = False) -> State:
            look = watch.stage_monitor(state, self.ITERATION, trial=trial)
            return state.followed_by(*solve(state.run, noise, num_iters, look), replace(self, noise=noise), again=True)

        run = replace(state.run, e=torch.zeros_like(state.run.e))  # the multiplier of another prior
        if noise != 1:
            solve(run, 1.0, 1)  # makes filters that do not depend on `noise`
        look = watch.stage_monitor(state, self.ITERATION + self.MATCH / self.num_iters)
        new = state.followed_by(*solve(run, noise, self.num_iters, look), replace(self, noise=noise))
        return new, resume


@dataclass(frozen=True)
class Learned(Stage):
    """A network unrolled through the camera (`cassi.solvers.unrolled`).

    The part of the cube outside the span of its smooth basis is left unchanged.

    Attributes:
        turn: how many networks the cube so far comes from.
    """

    turn: int = 0

    name, words = "learned", "a learned prior"
    needs_network = True
    STAGE = 30.0  # cost
    cost = Size.stages * STAGE

    def __post_init__(self) -> None:
        if type(self.turn) is not int or self.turn < 0:
            raise ValueError(f"turn of a stage must be a whole number, 0 or more, got {self.turn!r}")

    def run(self, A: Camera, y: Tensor, problem: Problem, state: State | None, watch: Watch) -> State:
        if problem.learned is None or state is None:
            raise ValueError("the learned prior needs weights and a cube to start from")
        prior = problem.learned.on(y.device)
        B = problem.smooth.to(y)
        start = analyse(state.x, B)
        rest = state.x - synthesise(start, B)
        variance = torch.as_tensor(problem.variance, dtype=y.dtype, device=y.device).expand(y.shape)
        with torch.no_grad():
            result, _ = unrolled(
                A, y - A.forward(rest), B, prior, start, variance=variance, level=problem.level(A, y), turn=self.turn,
                monitor=watch.stage_monitor(state, self.STAGE),
            )  # fmt: skip
        x = result.x + rest
        run = state.run if state.run is None else replace(state.run, z=analyse(x, problem.basis.to(y)))
        return state.followed_by(replace(result, x=x), run, self)


def alternating_stages(strength: float, noise: float | None = None, turn: int = 0) -> tuple[Stage, ...]:
    """The non-local prior, each time half as strong, and the network in alternation: each starts from a better cube.

    On ten CAVE cubes strengths of 1, 1/2 and 1/4 are 0.06 dB better at 10,000 electrons and 0.18 dB at 1,000 than 1/2,
    1/4 and 1/4; without noise, and on five of KAIST, equally good.
    """
    first, second = NonLocal(strength, SHORT_ITERS), NonLocal(strength / 2, SHORT_ITERS)
    return first, Learned(turn), second, Learned(turn + 1), NonLocal(second.sigma / 2, LONG_ITERS, noise)
