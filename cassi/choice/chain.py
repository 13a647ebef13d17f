"""Chains of stages: which there are, and the loop over them.

After total variation come chains of stages, in order of preference. The first chain whose cube the judge accepts
(`cassi.evidence.judge.accepts`) is taken, and its stages are the plan; a given plan is repeated without a judge. A new
prior is a new stage: a class with `run`, in `STAGES`, and a place in a chain of `default_stages`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from torch import Tensor

from cassi.choice.adaptation import Adapt
from cassi.choice.guided import Guided
from cassi.choice.mirrors import VIEWS, Views, end_views, in_views, run_stage
from cassi.choice.stages import (
    FAST_TV_ITERS,
    NOISE_FACTOR_ITERS,
    NOISE_FACTORS,
    PATCH,
    SHORT_ITERS,
    TV_ITERS,
    Learned,
    NonLocal,
    Problem,
    Stage,
    State,
    Tv,
    Watch,
    alternating_stages,
)
from cassi.evidence.held_out import Split
from cassi.evidence.judge import Verdict, accepts, is_worth_it, not_worse
from cassi.optics.other_cameras import Mosaic
from cassi.optics.protocol import Camera
from cassi.priors.learned import MIN_BANDS, LearnedPrior, shipped_prior
from cassi.settings import Settings

Chain = tuple[Stage, ...]
STAGES: dict[str, type[Any]] = {kind.__name__.lower(): kind for kind in (Tv, NonLocal, Learned, Guided, Views, Adapt)}

# Of training the network, for quality "best": on three CAVE windows (128 x 128 px) 50 gain 0.80 dB, 100 gain 0.87.
ADAPT_STEPS = 75
# Of total variation on a mosaic sensor: it takes the stripes of a strong color for texture, and interpolation, where it
# begins, does not. On ten CAVE windows 1, 3, 10 and 200 reach 37.9, 37.8, 37.6 and 37.2 dB at 10,000 electrons.
MOSAIC_ITERS = 1
MORE_ITERS = {"fast": 50, "default": 300, "best": 1500}  # of total variation, where it stays the only prior


def as_list(stages: Chain) -> list[list[Any]]:
    """Plain values for a file: the name of each stage's class and its numbers."""
    return [[type(stage).__name__.lower(), *vars(stage).values()] for stage in stages]


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


def default_stages(A: Camera, settings: Settings) -> tuple[Tv, tuple[Chain, ...]]:
    """The stages of the default solver for this camera: total variation, and the chains that may follow."""
    if settings.num_iters is not None:
        return Tv(int(settings.num_iters)), ()
    strength = math.sqrt(A.num_shots)
    # coarse stages would blur what extra shots resolve: four are 0.4 dB better without, on ten CAVE windows with noise
    first, network, second, again, last = alternating_stages(strength)
    chain: Chain = (first, network, second, again, last) if A.num_shots == 1 else (second, network, last)
    fast = settings.quality == "fast"
    if fast:  # one network, shorter runs, and a noise factor that is not chosen
        chain = (*chain[:2], replace(cast(NonLocal, last), num_iters=2 * SHORT_ITERS, noise=NOISE_FACTORS[0]))
    if settings.prior == "tv" or min(A.cube_shape[1:]) < PATCH:
        chain = ()
    elif learned_prior(A, settings) is None:
        chain = without_network(chain)
    chains = [chain, without_network(chain), (Tv(MORE_ITERS[settings.quality]),)]
    views = settings.views or (VIEWS[-1] if settings.quality == "best" else VIEWS[0])
    if views > 1:
        chains.insert(0, (Views(views), *chain, Views(1)) if chain else ())
    if settings.quality == "best" and Learned() in chain:
        chains.insert(0, (*chain, Adapt(strength, ADAPT_STEPS, views)))
    first_tv = Tv(MOSAIC_ITERS if isinstance(A, Mosaic) else FAST_TV_ITERS if fast else TV_ITERS)
    return first_tv, tuple(dict.fromkeys(filter(None, chains)))


def without_network(chain: Chain) -> Chain:
    """The chain without its learned stages."""
    return tuple(stage for stage in chain if not stage.needs_network)


def learned_prior(A: Camera, settings: Settings) -> LearnedPrior | None:
    """The network for this camera, or None; with few bands only if the settings ask for it."""
    if settings.prior not in ("auto", "learned") or settings.num_iters is not None or min(A.cube_shape[1:]) < PATCH:
        return None
    if settings.weights is not None:
        return cast(LearnedPrior, settings.weights)  # `open_files` has read its file
    return shipped_prior() if settings.prior == "learned" or A.cube_shape[0] >= MIN_BANDS else None


def cost(stages: Sequence[Stage]) -> float:
    """In iterations of total variation."""
    total, copies = 0.0, 1
    for stage in stages:
        copies = stage.count if isinstance(stage, Views) else copies
        total += copies * stage.cost
    return total


class Judged(NamedTuple):
    """A state, the verdict on its cube, and the split by whose pixels it was judged; None where it was not."""

    state: State
    verdict: Verdict | None = None
    split: Split | None = None


def run_chains(
    split: Split, problem: Problem, start: State, chains: Sequence[Chain], watch: Watch, verdict: Verdict | None,
    last: Stage | None = None,
) -> tuple[Judged, tuple[ChainTrial, ...]]:  # fmt: skip
    """Run chains of stages from a cube, without the held-out pixels, until the judge accepts one's cube.

    A chain that the watch stops counts as far as it ran, one that diverges is rejected. What continues from the end of
    another chain must not be worse than that one's cube, and that one is not run again.

    Args:
        start, verdict: the state to start from, and the judge's verdict on its cube; None: the first chain is taken.
        chains: in order of preference.
        last: a stage that follows an accepted chain, if one ends with more than total variation; its cube is taken if
            it is not worse.

    Returns:
        What is believed, and all trials.
    """
    A, y = split.A_train, split.y_train
    watch.expected = watch.spent + max(map(cost, chains), default=0.0)
    ends: dict[Chain, Judged] = {(): Judged(start)}  # where chains that others continue ended

    def run(chain: Chain) -> Judged:
        """Run a chain as far as there is time, from the end of what it continues."""
        done = _continued(chain, ends)
        end = ends[done]
        for k, stage in enumerate(chain[len(done) :], len(done) + 1):
            if not watch.affords(stage, end.state):
                break
            if isinstance(stage, NonLocal) and stage.noise is None:
                end = choose_noise_factor(stage, A, y, problem, end.state, watch, split)
            else:
                end = Judged(run_stage(stage, A, y, problem, end.state, watch), split=end.split)
            if chain[:k] in chains:
                ends[chain[:k]] = end
        mean = end_views(A, y, problem, end.state, watch)
        return end if mean is end.state else Judged(mean, split=end.split)

    if verdict is None:
        return Judged(run(chains[0]).state if chains else start), ()
    trials = list[ChainTrial]()
    for chain in chains:
        try:
            new, known, fair = run(chain)
        except FloatingPointError:  # as a network may, on images unlike those it was trained with
            trials.append(ChainTrial(_names(chain), math.inf, None, False))
            continue
        if new is start:  # for lack of time
            continue
        fair = fair or split.fair_to(new.x)
        if fair is not split:  # from here on, for the cube to start from, too
            split, verdict = fair, replace(fair.verdict(start.x, imprint=False), imprint=verdict.imprint)
        judged = replace(known or split.verdict(new.x, imprint=False), imprint=split.imprint(new.x))
        accepted = accepts(judged, verdict)
        before = ends[_continued(chain[:-1], ends)].state
        if accepted and before is not start:
            accepted = not_worse(judged, split.verdict(before.x, imprint=False))
        trials.append(ChainTrial(_names(new.stages[len(start.stages) :]), judged.error, judged.imprint, accepted))
        if accepted:
            break
    else:
        new, judged = start, verdict
    best = Judged(new, judged, split)
    if last is not None and new is not start and not watch.over and not isinstance(new.stages[-1], Tv):
        new = last.run(A, y, problem, new, watch)
        found = split.verdict(new.x, imprint=False)
        accepted = not_worse(found, judged)
        trials.append(ChainTrial(last.name, found.error, None, accepted))
        best = Judged(new, found, split) if accepted else best
    first = ChainTrial(_names(start.stages), verdict.error, verdict.imprint, True)
    return best, (first, *trials)


def choose_noise_factor(
    stage: NonLocal, A: Camera, y: Tensor, problem: Problem, state: State, watch: Watch, split: Split
) -> Judged:
    """Run a non-local prior with the noise factor whose cube predicts held-out pixels best.

    The run with the first factor goes to its end. Smaller ones, or else a larger one, continue from there as long as
    each cube is worth it (`is_worth_it`), and the one that replaces the first is run on: it settles.
    """
    first, resume = stage.begin(A, *in_views(y, problem, state), state, watch, NOISE_FACTORS[0])
    split = split.fair_to(first.mean)
    best, verdict, chosen = first, split.verdict(first.mean, imprint=False), NOISE_FACTORS[0]
    for ladder in (NOISE_FACTORS[2:], NOISE_FACTORS[1:2]):
        for noise in ladder if best is first else ():
            if watch.over:
                break
            new = resume(best, noise, NOISE_FACTOR_ITERS, trial=True)
            judged = split.verdict(new.mean, imprint=False)
            if not is_worth_it(judged, verdict):
                break
            best, verdict, chosen = new, judged, noise
    if best is first or watch.over:
        return Judged(best, verdict, split)
    return Judged(resume(best, chosen, 2 * NOISE_FACTOR_ITERS), split=split)


def _continued(chain: Chain, ends: Iterable[Chain]) -> Chain:
    """The longest chain of these that this one begins with."""
    return max((end for end in ends if chain[: len(end)] == end), key=len)


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
    return end_views(A, y, problem, state, watch)
