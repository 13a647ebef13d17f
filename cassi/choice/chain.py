"""Chains of stages, and the loop over them.

What may follow total variation is a list of chains of stages in order of preference. The first chain whose cube the
judge accepts is taken (`cassi.choice.judge.accepts`). What was taken, one stage after the other, is the plan; a plan
that is given is repeated without a judge. A new prior is a new stage: a class with `run`, and a place in a chain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from cassi.choice.adaptation import Adapt
from cassi.choice.held_out import Split
from cassi.choice.judge import Verdict, accepts
from cassi.choice.stages import Learned, NonLocal, Problem, Stage, State, Tv, Watch
from cassi.optics.protocol import Camera

Chain = tuple[Stage, ...]
STAGES: dict[str, type[Any]] = {kind.key: kind for kind in (Tv, NonLocal, Learned, Adapt)}


def as_list(stages: Chain) -> list[list[Any]]:
    """Plain values, for a file: the key of each stage and its numbers."""
    return [[stage.key, *vars(stage).values()] for stage in stages]


def from_list(values: Sequence[Sequence[Any]]) -> Chain:
    """What `as_list` made.

    Raises:
        KeyError, TypeError, ValueError: no such stage, or other numbers than it may have.

    Example:
        >>> from_list([["tv", 200], ["learned"]])
        (Tv(num_iters=200), Learned())
    """
    return tuple(STAGES[key](*numbers) for key, *numbers in values)


class Trial(NamedTuple):
    """A chain of stages that was run, in words, what held-out pixels and imprint said of its cube, and the decision."""

    prior: str
    held_out_error: float
    imprint: float | None
    accepted: bool


def cost(stages: Sequence[Stage]) -> float:
    """In iterations of total variation."""
    return sum(stage.cost for stage in stages)


def final_run(
    split: Split, problem: Problem, state: State, chains: Sequence[Chain], watch: Watch, verdict: Verdict | None
) -> tuple[State, tuple[Trial, ...]]:
    """From a cube on, without the held-out pixels: of some chains of stages the first whose cube the judge accepts.

    A chain that the watch stops counts as far as it came, one that diverges does not. One that another begins with is
    not run again.

    Args:
        state, verdict: the cube to begin with, and the judge's verdict on it, which it compares others with; None: the
            first chain is taken in any case.
        chains: in order of preference.

    Returns:
        Where the loop ended, and what was compared.
    """
    A, y = split.A_train, split.y_train
    problem = replace(problem, verdict=partial(split.verdict, imprint=False))
    watch.expected = watch.spent + max(map(cost, chains), default=0.0)
    trials = list[Trial]()
    if verdict is not None:
        trials.append(Trial(_names(state.stages), verdict.error, verdict.imprint, True))
    ended, begun = dict[Chain, State](), len(state.stages)
    for chain in chains:
        new = ended.get(chain, state)
        for k, stage in enumerate(chain if new is state else (), 1):
            before = new
            try:
                new = stage.run(A, y, problem, before, watch) if watch.affords(stage) else before
            except FloatingPointError:  # a network may, on what it was not trained with
                if verdict is None:
                    raise
                trials.append(Trial(_names((*before.stages, stage)[begun:]), math.inf, None, False))
                new = state
                break
            if new is before:  # there was no time for it
                break
            ended |= {chain[:k]: new} if chain[:k] in chains else {}
        if verdict is None:
            return new, ()
        if new is state:
            continue
        found = split.verdict(new.x)
        accepted = accepts(found, verdict)
        trials.append(Trial(_names(new.stages[begun:]), found.error, found.imprint, accepted))
        if accepted:
            return new, tuple(trials)
    return state, tuple(trials)


def _names(chain: Chain) -> str:
    return ", ".join(stage.name for stage in chain)


def repeated(A: Camera, y: Tensor, problem: Problem, stages: Chain, watch: Watch) -> State:
    """The stages of a plan one after the other, with all pixels and no judge."""
    watch.expected = cost(stages)
    state: State | None = None
    for stage in stages:
        state = stage.run(A, y, problem, state, watch)
        if watch.over:
            break
    if state is None:
        raise ValueError("a plan needs at least one stage")
    return state
