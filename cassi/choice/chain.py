"""Chains of stages, and the loop over them.

After total variation come chains of stages, in order of preference. The first chain whose cube the judge accepts
(`cassi.evidence.judge.accepts`) is taken, and its stages are the plan; a given plan is repeated without a judge. A new
prior is a new stage: a class with `run`, and a place in a chain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from torch import Tensor

from cassi.choice.adaptation import Adapt
from cassi.choice.guided import Guided
from cassi.choice.mirrors import Views, run_stage
from cassi.choice.stages import Learned, NonLocal, Problem, Stage, State, Tv, Watch
from cassi.evidence.held_out import Split
from cassi.evidence.judge import Verdict, accepts, not_worse
from cassi.optics.protocol import Camera

Chain = tuple[Stage, ...]
STAGES: dict[str, type[Any]] = {kind.key: kind for kind in (Tv, NonLocal, Learned, Guided, Views, Adapt)}


def as_list(stages: Chain) -> list[list[Any]]:
    """Plain values for a file: the key of each stage and its numbers."""
    return [[stage.key, *vars(stage).values()] for stage in stages]


def from_list(values: Sequence[Sequence[Any]]) -> Chain:
    """The stages from what `as_list` made.

    Raises:
        KeyError, TypeError, ValueError: no such stage, or other numbers than it may have.

    Example:
        >>> from_list([["tv", 200], ["learned"]])
        (Tv(num_iters=200), Learned(turn=0))
    """
    return tuple(STAGES[key](*numbers) for key, *numbers in values)


class ChainTrial(NamedTuple):
    """A chain of stages that was run, by name, held-out error and imprint of its cube, and the decision."""

    prior: str
    held_out_error: float
    imprint: float | None
    accepted: bool


def cost(stages: Sequence[Stage]) -> float:
    """In iterations of total variation."""
    total, copies = 0.0, 1
    for stage in stages:
        copies = stage.count if isinstance(stage, Views) else copies
        total += copies * stage.cost
    return total


def run_chains(
    split: Split, problem: Problem, state: State, chains: Sequence[Chain], watch: Watch, verdict: Verdict | None
) -> tuple[State, tuple[ChainTrial, ...]]:
    """Run chains of stages from a cube, without the held-out pixels, until the judge accepts one's cube.

    A chain that the watch stops counts as far as it ran, one that diverges is rejected. What continues from the end of
    another chain must not be worse than that one's cube, and a chain that was run as the beginning of another is not
    run again.

    Args:
        state, verdict: the cube to start from, and the judge's verdict on it; None: the first chain is accepted in any
            case.
        chains: in order of preference.

    Returns:
        The state of the accepted chain, or the one to start from, and all trials.
    """
    A, y = split.A_train, split.y_train
    problem = replace(problem, split=split)
    watch.expected = watch.spent + max(map(cost, chains), default=0.0)
    trials = list[ChainTrial]()
    if verdict is not None:
        trials.append(ChainTrial(_names(state.stages), verdict.error, verdict.imprint, True))
    finished: dict[Chain, State] = {(): state}
    first = len(state.stages)
    for chain in chains:
        begun = max(k for k in range(len(chain) + 1) if chain[:k] in finished)
        new = finished[chain[:begun]]
        for k, stage in enumerate(chain[begun:], begun + 1):
            before = new
            try:
                affordable = watch.affords(stage, len(before.views) or 1)
                new = run_stage(stage, A, y, problem, before, watch) if affordable else before
            except FloatingPointError:  # as a network may, on images unlike those it was trained with
                if verdict is None:
                    raise
                trials.append(ChainTrial(_names((*before.stages, stage)[first:]), math.inf, None, False))
                new = state
                break
            if new is before:  # for lack of time
                break
            finished |= {chain[:k]: new} if chain[:k] in chains else {}
        if verdict is None:
            return new, ()
        if new is state:
            continue
        fair = new.split or split.fair_to(new.x)
        if fair is not split:  # from here on, for the cube to start from, too
            split, problem = fair, replace(problem, split=fair)
            verdict = replace(fair.verdict(state.x, imprint=False), imprint=verdict.imprint)
            trials[0] = trials[0]._replace(held_out_error=verdict.error)
        judged = new.verdict or split.verdict(new.x, imprint=False)
        new_verdict = replace(judged, imprint=split.imprint(new.x))
        longest = max(k for k in range(len(chain)) if chain[:k] in finished)
        accepted = accepts(new_verdict, verdict)
        if accepted and longest:
            accepted = not_worse(new_verdict, split.verdict(finished[chain[:longest]].x, imprint=False))
        trials.append(ChainTrial(_names(new.stages[first:]), new_verdict.error, new_verdict.imprint, accepted))
        if accepted:
            return replace(new, verdict=new_verdict, split=split), tuple(trials)
    return state, tuple(trials)


def try_guided(split: Split, problem: Problem, state: State, watch: Watch) -> tuple[State, ChainTrial]:
    """Filter a cube by its brightness, and keep that where it predicts held-out pixels no worse, but for chance."""
    split = state.split or split
    new = replace(Guided().run(split.A_train, split.y_train, problem, state, watch), split=split)
    verdict = split.verdict(new.x, imprint=False)
    accepted = not_worse(verdict, state.verdict or split.verdict(state.x, imprint=False))
    return new if accepted else state, ChainTrial(Guided.name, verdict.error, None, accepted)


def _names(chain: Chain) -> str:
    return ", ".join(stage.name for stage in chain)


def repeat_stages(A: Camera, y: Tensor, problem: Problem, stages: Chain, watch: Watch) -> State:
    """Run the stages of a plan one after the other, with all pixels and no judge."""
    watch.expected = cost(stages)
    state: State | None = None
    for stage in stages:
        state = run_stage(stage, A, y, problem, state, watch)
        if watch.over:
            break
    if state is None:
        raise ValueError("a plan needs at least one stage")
    return state
