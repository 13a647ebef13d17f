"""The last and longest run of the default solver: total variation, then other priors where they predict better.

Total variation finds where light comes from among all the cubes that a snapshot allows; low rank of groups of similar
patches (`cassi.priors.nonlocal_lowrank`), started from its result, removes what does not repeat: noise and the mask's
traces. Fine texture that does not repeat it removes too, so it has to predict the held-out pixels as well. A learned
prior (`cassi.choice.learned_step`) corrects what they found, on the same condition: once, or several times with the
non-local prior between, which then finds its groups in a better cube.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from cassi.choice.held_out import Split
from cassi.choice.learned_step import LearnedStep
from cassi.choice.outcome import PriorError
from cassi.choice.plan import BETWEEN, CHANCE, TV, Effort, Plan, Run, with_learned
from cassi.choice.problem import Problem
from cassi.optics.imprint import STAMPED, imprint_on
from cassi.optics.protocol import Camera
from cassi.priors.learned import VIEWS
from cassi.priors.spectral_basis import analyse, synthesise
from cassi.solvers.loop import Record, Result, relative_norm
from cassi.solvers.subspace_tv import SubspaceState

# What a corrected cube may add to the held-out error, by so much of it, and once corrected by so much of |y|: the
# network does not look at single detector pixels. Several corrections, which go on with the misfit, explain them as
# well as before on all scenes that they serve.
MORE, SLACK = 0.01, 0.003
# The mask's imprint on a cube corrected several times may be so much, once as much as is not warned of; or so many
# times that before. On very smooth scenes one correction gains 0.5 to 0.9 dB and takes it from 0.05 to 0.09.
FAINT, RISE = 0.04, 1.1
# Of few bands, which overlap less, one correction after all iterations with the non-local prior is better than several:
# by 0.7 dB on average with 8 bands and with 12 (1.2 to 1.7 dB at 1,000 electrons), 0.2 dB with 16, not with 20.
FEWEST_BANDS = 18
# Of the non-local prior between two corrections: its strength, and how much of the misfit that the run before has added
# up it goes on with. With all of it noise comes back, with none what the prior takes away is never made up for.
SIGMA_BETWEEN, KEPT = 0.25, 0.8


class FinalRun(NamedTuple):
    """The result (cube (C, H, W)), its prior, iterations with TV and with that, and errors of the priors compared.

    `corrections` is how many times a learned prior has corrected it.
    """

    result: Result
    prior: str
    iterations: tuple[int, int]
    priors: tuple[PriorError, ...]
    corrections: int = 0


NONLOCAL_COST = 20.0  # of an iteration with the non-local prior, in iterations with total variation


@dataclass
class Watch:
    """What the user's monitor sees of runs that follow each other, and whether it, or the clock, has stopped them.

    It tells how far they are: `spent` of `expected` iterations with total variation, `cost` of which are one.
    """

    run: Run
    deadline: float = math.inf
    history: tuple[Record, ...] = ()
    stopped: bool = False
    late: bool = False
    last: float = field(default_factory=lambda: time.perf_counter())
    expected: float = math.inf
    spent: float = 0.0
    cost: float = 1.0

    def __call__(self, record: Record, z: Tensor) -> bool:
        return self.see(after(self.history, record), z)

    def see(self, record: Record, z: Tensor) -> bool:
        """A record that is numbered already; whether to stop."""
        if self.run.monitor is not None and self.run.monitor(record, z):
            self.stopped = True
        now = time.perf_counter()
        self.late = now + 1.5 * (now - self.last) > self.deadline  # the next iteration will take as long
        self.last = now
        self.spent += self.cost
        self.run.tell("final run", min(1.0, self.spent / self.expected))
        return self.over

    @property
    def over(self) -> bool:
        return self.stopped or self.late

    def add(self, history: tuple[Record, ...]) -> None:
        self.history += tuple(after(self.history, record) for record in history)


def after(history: tuple[Record, ...], record: Record) -> Record:
    """The record with iteration and seconds counted on from the last of a history."""
    if not history:
        return record
    last = history[-1]
    return record._replace(iteration=last.iteration + record.iteration, seconds=last.seconds + record.seconds)


def final_run(
    split: Split,
    problem: Problem,
    state: SubspaceState,
    effort: Effort,
    watch: Watch,
    *,
    step: LearnedStep | None = None,
    forced: bool = False,
) -> FinalRun:
    """Run to the end, and judge by the held-out pixels which prior's cube to return.

    Of `FEWEST_BANDS` or more the learned prior first corrects several times, after a few iterations with the non-local
    prior and with more of them between; that is taken where held-out pixels and the mask's imprint allow it, see
    `_Judge`. Else the non-local prior runs on: its cube is that of the last iteration whose error is within the limit,
    see `Effort`, and is taken where there is one. It is made without the held-out pixels; the run with total variation
    alone goes on with all of them. The learned prior corrects either of them once, on the same conditions. (An effort
    without `lead` corrects several times only then.) Total variation's cube it is tried on before, and corrects again
    when all pixels are in; where no other prior is to be tried, the cube corrected first is taken.

    Args:
        split: the snapshot.
        problem: noise and basis.
        state: to start from.
        effort: see `Effort`.
        watch: sees every prior's iterations, numbered on from those of total variation.
        step: the learned prior; None: without.
        forced: take its correction in any case.
    """
    split_off = bool(effort.sigmas) or step is not None
    A, y = (split.A_train, split.y_train) if split_off else (split.A, split.y)
    B = problem.basis.to(y)
    before = split.error(synthesise(state.z, B)) if split_off else math.inf
    first = effort.tv_first if split_off else effort.tv_all
    single = len(A.measurement_shape) == 2  # of several shots nothing has been tried yet
    often = effort.corrections if step is not None and single and A.cube_shape[0] >= FEWEST_BANDS else 1
    watch.expected = first + NONLOCAL_COST * (effort.first * len(effort.sigmas) + BETWEEN * (often - 1))
    smooth, state = problem.solve(A, y, first, state=state, monitor=watch)
    watch.add(smooth.history)
    if not split_off or watch.over:
        return FinalRun(smooth, TV, (len(smooth.history), 0), ())
    reference = split.error(smooth.x)
    tried = [PriorError(TV, reference)]
    judge = _Judge(split, problem, watch, step, forced, tried)
    if not effort.sigmas:
        better, times = judge.corrected(smooth, state, reference, TV)
        if times:
            return FinalRun(better, TV, (len(smooth.history), 0), tuple(tried), times)
        return _gone_on(split, problem, smooth, state, effort, watch, tried)
    smooth = replace(smooth, status="stopped")  # unless a run follows
    limit = effort.limit(before, reference)
    sigmas = effort.strengths(before, reference)
    runs = [_NonlocalRun(split, problem, sigma, fresh(state), reference, limit, effort) for sigma in sigmas]
    if often > 1 and effort.lead:
        lead = runs[0]
        watch.cost = NONLOCAL_COST
        lead.go_on(effort.lead, watch)
        watch.cost = 1.0
        history = watch.history + tuple(after(watch.history, record) for record in lead.history)
        start = Result(synthesise(lead.state.z, B), history, "max_iters")
        better, times = judge.corrected(start, lead.state, reference, lead.name, often)
        if times:
            return FinalRun(better, lead.name, (len(smooth.history), len(lead.history)), tuple(tried), times)
    chosen = _best_of(runs, reference, effort, watch)
    tried += [PriorError(run.name, run.kept_error) for run in runs if run.kept_at > 0]
    if chosen.kept_error <= limit:
        watch.add(chosen.history[: chosen.kept_at])
        result = Result(synthesise(chosen.kept, B), watch.history, "stopped" if watch.over else "max_iters")
        better, times = result, 0
        for many in (1,) if effort.lead else sorted({1, often}, reverse=True):
            if not times:
                better, times = judge.corrected(result, chosen.state, chosen.kept_error, chosen.name, many)
        iterations = (len(smooth.history), chosen.kept_at)
        return FinalRun(better, chosen.name, iterations, tuple(tried), times)
    if watch.over:
        return FinalRun(smooth, TV, (len(smooth.history), 0), tuple(tried))
    _, times = judge.corrected(smooth, state, reference, TV)
    final = _gone_on(split, problem, smooth, state, effort, watch, tried)
    if step is None or not times or watch.over:
        return final
    return final._replace(result=corrected(step, split.A, split.y, final.result, problem), corrections=times)


@dataclass(frozen=True)
class _Judge:
    """Whether a learned prior's correction of a cube is taken.

    Where its held-out error is `allowed`, and the mask's imprint on it not clearly above that on the cube before: a
    network that takes noise, or what the camera gets wrong, for the scene leaves the mask's pattern in it.

    Attributes:
        split, problem, watch: of the final run.
        step: the learned prior; None: nothing is corrected.
        forced: take the correction in any case.
        tried: the errors are added to it.
    """

    split: Split
    problem: Problem
    watch: Watch
    step: LearnedStep | None
    forced: bool
    tried: list[PriorError]

    def corrected(
        self, result: Result, state: SubspaceState, error: float, name: str, times: int = 1
    ) -> tuple[Result, int]:
        """A cube corrected, made without the held-out pixels, and how many times; as it was, and 0, where not taken.

        Args:
            result, state: of the run with the prior of this name.
            error: that it may hardly exceed.
            times: to correct it.
        """
        if self.step is None or self.watch.over:
            return result, 0
        split = self.split
        better, done = corrected_often(
            self.step, split.A_train, split.y_train, result, self.problem, state, self.watch, times
        )
        stamp = self._imprint(better.x)
        self.tried.append(PriorError(with_learned(name, done), split.error(better.x.clamp(min=0)), stamp))
        limit, faint = allowed(error), STAMPED
        if done > 1:
            limit, faint = allowed_often(error, int(split.held.sum())), FAINT
        within = self.tried[-1].held_out_error <= limit
        within = within and (stamp is None or stamp <= faint or stamp <= RISE * (self._imprint(result.x) or 0.0))
        return (better, done) if within or (self.forced and times == 1) else (result, 0)

    def _imprint(self, x: Tensor) -> float | None:
        return imprint_on(x.clamp(min=0), self.split.A, moves=(0.0,))


def _gone_on(
    split: Split,
    problem: Problem,
    smooth: Result,
    state: SubspaceState,
    effort: Effort,
    watch: Watch,
    tried: list[PriorError],
) -> FinalRun:
    """Total variation to the end, with all pixels."""
    rest = smooth
    if effort.tv_all > effort.tv_first:
        rest, _ = problem.solve(split.A, split.y, effort.tv_all - effort.tv_first, state=state, monitor=watch)
        watch.add(rest.history)
    return FinalRun(replace(rest, history=watch.history), TV, (len(watch.history), 0), tuple(tried))


def corrected(
    step: LearnedStep, A: Camera, y: Tensor, result: Result, problem: Problem, *, views: int = VIEWS
) -> Result:
    """The result with a learned prior's correction of its cube, which is one more iteration."""
    began = time.perf_counter()
    x = step(A, y, result.x, problem.variance, level=problem.brightness, views=views).x
    last, change = result.history[-1], relative_norm(x - result.x, result.x)
    seconds = last.seconds + time.perf_counter() - began
    record = Record(last.iteration + 1, seconds, relative_norm(y - A.forward(x), y), change)
    return replace(result, x=x, history=(*result.history, record))


def corrected_often(
    step: LearnedStep,
    A: Camera,
    y: Tensor,
    result: Result,
    problem: Problem,
    state: SubspaceState,
    watch: Watch,
    times: int,
) -> tuple[Result, int]:
    """The result corrected so many times, freed between by the non-local prior of what does not repeat.

        x <- x + 0.7 f(x),    x <- the non-local prior's after 4 iterations from B x, 0.8 e      but the last time
        x <- x + 0.7 f(x)

    with f a learned prior's correction, in one view and at last the mean of two, and e the misfit added up before, see
    `cassi.solvers.subspace_tv`.

    Args:
        step: the learned prior.
        A, y, problem: what the result was found with.
        result: the cube to begin with.
        state: where its run ended.
        watch: sees the iterations between; where it stops them, the cube as corrected before is returned.
        times: 1 or more.

    Returns:
        The result, and how many times it was corrected.
    """
    B = problem.basis.to(y)
    for done in range(1, times):
        once = corrected(step, A, y, result, problem, views=1)
        watch.cost = NONLOCAL_COST
        state = replace(state, z=analyse(once.x, B), e=KEPT * state.e)

        def seen(record: Record, z: Tensor, before: tuple[Record, ...] = once.history) -> bool:
            return watch.see(after(before, record), z)

        rest, state = problem.solve(A, y, BETWEEN, state=state, sigma=SIGMA_BETWEEN, monitor=seen)
        watch.cost = 1.0
        if watch.over:
            return once, done
        history = once.history + tuple(after(once.history, record) for record in rest.history)
        result = replace(result, x=rest.x, history=history)
    return corrected(step, A, y, result, problem), times


def allowed(error: float) -> float:
    """The error of a cube corrected once up to which it is taken, for that of the cube it started from."""
    return math.hypot((1 + MORE) * error, SLACK)


def allowed_often(error: float, held: int) -> float:
    """The same of a cube corrected several times; `held` pixels were held out.

    Of n pixels a root mean square is known to a share of (2 n)^-1/2: where that is more than usual, the error must be
    lower by twice the excess.
    """
    return (1 + MORE - 2 * max(0.0, 1 / math.sqrt(2 * held) - CHANCE)) * error


def planned_problem(plan: Plan, y: Tensor, brightness: float | None) -> Problem:
    """The problem of a plan whose noise and basis are known.

    Raises:
        ValueError: they are not.
    """
    if plan.vectors is None or plan.noise is None:
        raise ValueError("the plan is not complete: it has no noise model or no basis")
    return Problem(plan.vectors, plan.noise.variance(y) * plan.noise_share, brightness, plan.level)


def planned_run(A: Camera, y: Tensor, problem: Problem, plan: Plan, watch: Watch) -> tuple[Result, int]:
    """The final run of a plan that is complete: iterations with total variation, with its prior, the learned one.

    Returns the result, and how many corrections the learned prior has made.
    """
    first, then = plan.iterations or (0, 0)
    between = 0 if plan.learned is None else BETWEEN * (plan.corrections - 1)
    watch.expected = max(1.0, first + NONLOCAL_COST * (then + between))
    result, state = problem.solve(A, y, first, monitor=watch)
    watch.add(result.history)
    if plan.sigma is not None and then > 0 and not watch.over:
        watch.cost = NONLOCAL_COST
        result, state = problem.solve(A, y, then, state=fresh(state), sigma=plan.sigma, monitor=watch)
        watch.add(result.history)
    result = replace(result, history=watch.history)
    if plan.learned is None or watch.over:
        return result, 0
    return corrected_often(plan.learned, A, y, result, problem, state, watch, plan.corrections)


def fresh(state: SubspaceState) -> SubspaceState:
    """To go on with another prior: what the multiplier e holds back from one means nothing to another."""
    return replace(state, e=torch.zeros_like(state.e))


def _best_of(runs: list[_NonlocalRun], reference: float, effort: Effort, watch: Watch) -> _NonlocalRun:
    """Run each for a while, and go on with the one that predicts best."""
    watch.cost = NONLOCAL_COST
    for run in runs:
        run.go_on(effort.first - len(run.history), watch)
    chosen = runs[0]
    for run in runs[1:]:
        if run.lowest < (1 - CHANCE) * chosen.lowest:
            chosen = run
    if effort.most > effort.first and chosen.lowest < 1.3 * reference:
        chosen.go_on(effort.most - effort.first, watch)
    watch.cost = 1.0
    return chosen


@dataclass
class _NonlocalRun:
    """A run with the non-local prior that can be gone on with, and the best of it so far."""

    split: Split
    problem: Problem
    sigma: float
    state: SubspaceState
    reference: float
    limit: float
    effort: Effort
    lowest: float = math.inf
    kept_error: float = math.inf
    kept_at: int = 0
    history: tuple[Record, ...] = ()
    over: bool = False
    kept: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.kept = self.state.z

    @property
    def name(self) -> str:
        return f"non-local, {self.sigma:g}"

    def go_on(self, num_iters: int, watch: Watch) -> None:
        if self.over or watch.over:
            return
        split, B = self.split, self.problem.basis.to(self.split.y)
        done = self.history

        def judge(record: Record, z: Tensor) -> bool:
            numbered = after(done, record)
            if numbered.iteration % 2 == 0:
                found = split.error(synthesise(z, B).clamp_(min=0))
                self.lowest = min(self.lowest, found)
                halfway = numbered.iteration == self.effort.first // 2
                behind = halfway and found > self.effort.give_up * self.reference
                self.over = behind or found > (1 + self.effort.worse) * self.lowest
                if found == self.lowest or (found <= self.limit and not self.over):
                    self.kept = self.kept.copy_(z) if self.kept_at else z.clone()
                    self.kept_error, self.kept_at = found, numbered.iteration
            return watch(numbered, z) or self.over

        result, self.state = self.problem.solve(
            split.A_train, split.y_train, num_iters, state=self.state, sigma=self.sigma, monitor=judge
        )
        self.history += tuple(after(done, record) for record in result.history)
