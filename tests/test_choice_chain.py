"""The loop over chains of stages: which are run, which are taken, and when it ends."""

import math
import time
from dataclasses import dataclass, replace

import pytest
import torch
from messages import refused
from shots import SIZE, Oracle, Shot, auto, gone_on, run, small_shot, with_network  # noqa: F401 (the fixture `shot`)
from test_priors_learned import stirred

from cassi import CASSI, Record, Result
from cassi.choice.automatic import reconstruct_auto
from cassi.choice.chain import default_stages, repeat_stages, run_chains
from cassi.choice.guided import Guided
from cassi.choice.stages import Learned, NonLocal, Stage, State, Tv, Watch
from cassi.evidence.held_out import Split
from cassi.priors.spectral_basis import synthesise
from cassi.settings import Settings


@dataclass(frozen=True)
class Faded(Stage):
    """A stage that makes the cube darker, and so worse, black, or leaves it as it is."""

    factor: float

    name = words = "faded"
    cost = 1.0

    def run(self, A, y, problem, state, watch) -> State:
        record = Record(1, 0.0, 1.0, 1.0)
        return state.followed_by(Result(self.factor * state.x, (record,), "finished"), state.run, self)


def test_the_first_chain_that_passes_is_taken_and_none_after_it(shot):
    hopeless, good = Faded(0.0), Tv(5)
    (state, *_), trials = gone_on(shot.split, shot.problem, Tv(20), [(hopeless,), (good,), (Tv(7),)])
    assert state.stages == (Tv(20), good) and len(state.history) == 25
    assert [t.prior for t in trials] == ["total variation", "faded", "total variation"]
    assert [t.accepted for t in trials] == [True, False, True]
    assert trials[-1].held_out_error == pytest.approx(shot.split.error(state.x.clamp(min=0)))
    (state, *_), trials = gone_on(shot.split, shot.problem, Tv(20), [(hopeless,)], judged=False)
    assert state.stages == (Tv(20), hopeless) and trials == (), "without a judge the first is taken"


def test_no_stage_sees_the_held_out_pixels(shot):
    other = replace(shot.split, y=torch.where(shot.split.held, 7.0, shot.split.y))
    chains = [(NonLocal(0.3, 2),)]
    one, two = (gone_on(split, shot.problem, Tv(10), chains, judged=False)[0].state.x for split in (shot.split, other))
    torch.testing.assert_close(one, two)


def test_a_plan_repeats_its_stages(shot):
    stages = (Tv(10), NonLocal(0.3, 2), Learned())
    problem, state = with_network(shot), None
    for stage in stages:
        state = run(stage, shot, state, problem)
    again = repeat_stages(shot.A, shot.y, problem, stages, Watch())
    torch.testing.assert_close(again.x, state.x)
    assert [r.iteration for r in again.history] == list(range(1, 14))


@pytest.mark.parametrize(("judged", "when"), [(True, 1), (True, 12), (False, 1), (False, 10), (False, 12), (False, 13)])
def test_a_monitor_stops_the_loop(shot, judged, when):
    seen = []
    watch = Watch(lambda r, z: seen.append(r.iteration) or len(seen) == when)
    (state, *_), _ = gone_on(
        shot.split, with_network(shot), Tv(10), [(NonLocal(0.3, 2), Learned())], watch, judged=judged
    )
    assert seen == list(range(1, when + 1)) and watch.over and len(state.history) == when
    assert len(state.stages) == 1 + (when > 10) + (when > 12)  # those that ran
    assert bool(torch.isfinite(state.x).all())


def test_a_chain_that_begins_like_one_that_was_refused_is_not_run_again(shot):
    seen, good = [], (NonLocal(0.3, 2), NonLocal(0.3, 3))
    watch = Watch(lambda record, z: seen.append(record))
    (state, *_), trials = gone_on(shot.split, shot.problem, Tv(10), [(*good, Faded(0.0)), good], watch)
    assert state.stages == (Tv(10), *good) and len(seen) == 15
    assert [trial.accepted for trial in trials] == [True, False, True]


def test_what_goes_on_from_a_chain_must_not_be_worse_than_its_cube():
    """It may be better than total variation and yet worse than the cube it began with, which is kept."""
    seen, good, shot = [], (NonLocal(0.3, 12),), Shot(48, parts=3, mode="bilinear")
    chains = [(*good, Faded(0.95)), (*good, Faded(1.0001)), good]
    (state, *_), trials = gone_on(shot.split, shot.problem, Tv(1), chains, Watch(lambda record, z: seen.append(record)))
    assert trials[1].held_out_error < 0.3 * trials[0].held_out_error, "better than total variation"
    assert [trial.accepted for trial in trials] == [True, False, True]
    assert state.stages == (Tv(1), *good, Faded(1.0001)), "as good, but for chance"
    assert len(seen) == 13, "the beginning of both is run once"


def test_a_stage_is_not_begun_without_time_for_it_and_the_deadline_ends_it(shot):
    watch = Watch(spent=10.0, seconds=1e6, deadline=time.perf_counter() + 1e4)  # 1e5 seconds an iteration
    assert not watch.affords(NonLocal(0.3, 2), State(shot.y)) and watch.over
    watch = Watch(spent=10.0, seconds=1e-6, deadline=time.perf_counter() + 1e4)
    assert watch.affords(NonLocal(0.3, 2), State(shot.y)) and not watch.over
    watch = Watch(deadline=0.0)
    (state, *_), _ = gone_on(shot.split, shot.problem, Tv(50), [(NonLocal(0.3, 3),)], watch)
    assert watch.over and len(state.history) == 1 and state.stages == (Tv(50),)


@pytest.mark.parametrize("stage", [NonLocal(0.3, 3), NonLocal(0.3, 20, None)])
def test_progress_rises_to_its_end(shot, stage):
    told = []
    watch = Watch(progress=lambda name, share: told.append(share), expected=10 + stage.cost)
    gone_on(shot.split, shot.problem, Tv(10), [(stage,)], watch)
    assert told == sorted(told) and told[0] < 0.1 and told[-1] == pytest.approx(1.0)


def test_texture_that_brightness_does_not_show_goes_where_held_out_pixels_agree(shot):
    """Of noise in the weaker coefficients most goes; where one brightness has two colors it is rejected."""
    generator = torch.Generator().manual_seed(0)
    A, B = CASSI.from_step(torch.rand(48, 48, generator=generator), 1, 6), shot.problem.basis
    rows, columns = torch.meshgrid(torch.arange(48), torch.arange(48), indexing="ij")
    z = torch.zeros(5, 48, 48)
    z[0] = 2 + torch.sin(rows / 5) * torch.cos(columns / 7)
    board = 0.8 * torch.where((rows // 2 + columns // 2) % 2 == 0, 1.0, -1.0)
    for second, noise, accepted in ((0.3 * z[0], 0.05, True), (board, 0.0, False)):
        z[1] = second
        x = synthesise(z, B)
        y = A.forward(x)
        split = Split.of(A, y, 0).knowing(torch.full_like(y, 1e-3))
        e = noise * torch.randn(z.shape, generator=generator)
        e[0] = 0
        start = State(x + synthesise(e, B), history=(Record(1, 0.0, 0.0, 0.0),))
        made = [(Faded(1.0),)]
        (state, *_), (*_, trial) = run_chains(
            split, shot.problem, start, made, Watch(), split.verdict(start.x), Guided()
        )
        assert trial.accepted == accepted == (state.stages == (Faded(1.0), Guided()))
        assert not accepted or (state.x - x).norm() < 0.5 * synthesise(e, B).norm()
    refused(run, Guided(), shot, error=ValueError)
    one = replace(shot.problem, basis=B[:1])
    assert run(Guided(), shot, State(x, history=(Record(1, 0.0, 0.0, 0.0),)), one).x is x, (
        "there is no other coefficient"
    )


def test_a_network_that_diverges_is_as_if_it_were_not_there(shot):
    wild = stirred(SIZE)
    wild.net.leave.bias.data[:] = math.nan
    found = auto(shot, weights=wild)
    assert not found.plan.is_learned and math.isinf(found.evidence.trials[1].held_out_error)
    refused(auto, shot, error=FloatingPointError, weights=wild, prior="learned")


def test_a_network_that_harms_is_as_if_it_were_not_there(shot):
    found, without = auto(shot, weights=stirred(SIZE)), auto(shot, prior="nonlocal")
    assert not found.plan.is_learned and "rejected" in found.explain(verbose=True)
    assert shot.error(found.result.x) < 1.2 * shot.error(without.result.x)


@pytest.mark.parametrize(("quality", "share"), [("fast", 0.5), ("default", 0.85)])
def test_a_network_that_knows_the_scene_is_taken(quality, share):
    shot = Shot(48, parts=3, mode="bilinear")
    found, without = auto(shot, weights=Oracle(shot), quality=quality), auto(shot, prior="tv")
    assert found.plan.is_learned and found.as_dict()["learned"] is True
    assert "a learned prior" in found.explain()
    assert shot.error(found.result.x) < share * shot.error(without.result.x)


def test_what_is_asked_for_is_taken_in_any_case(shot):
    assert auto(shot, prior="learned", weights=stirred(SIZE)).plan.is_learned
    tv, nonlocal_ = auto(shot, prior="tv"), auto(shot, prior="nonlocal")
    assert tv.plan.stages == (Tv(200), Tv(300)) and tv.evidence.trials == ()
    assert [type(stage) for stage in nonlocal_.plan.stages] == [Tv, NonLocal, NonLocal, NonLocal]


def test_cameras_of_few_bands_go_without_a_network(shot):
    found = auto(shot)
    tried = [trial.prior for trial in found.evidence.trials]
    assert not found.plan.is_learned and tried[1].startswith("non-local (1), non-local (0.5), non-local (0.25")
    assert not any("learned" in prior for prior in tried)


def test_small_frames_are_left_to_total_variation():
    narrow = CASSI.from_step(torch.rand(16, 4, generator=torch.Generator().manual_seed(0)), 1, 4)
    for quality in ("fast", "default", "best"):
        _, chains = default_stages(narrow, Settings(quality=quality))
        assert [[type(stage) for stage in chain] for chain in chains] == [[Tv]]


def test_a_budget_is_kept_where_one_stage_fits(shot, monkeypatch):
    """A clock that each iteration moves on by 10 ms, twenty times as much with another prior."""
    from cassi.choice import stages

    class Clock:
        now = 0.0

        def perf_counter(self) -> float:
            return self.now

    clock, solve = Clock(), stages.subspace_tv

    def ticking(*args, monitor=None, **settings):
        def tick(record, z):
            clock.now += 0.2 if settings.get("denoise") else 0.01
            return monitor is not None and monitor(record, z)

        return solve(*args, monitor=tick, **settings)

    monkeypatch.setattr(stages, "time", clock)
    monkeypatch.setattr(stages, "subspace_tv", ticking)
    for budget in (1.0, 4.0, 50.0):
        clock.now = 0.0
        found = reconstruct_auto(shot.A, shot.y, settings=Settings(prior="nonlocal"), watch=Watch(deadline=budget))
        assert clock.now <= budget
        assert found.result.status == ("stopped" if budget < 6 else "finished")
    clock.now = 0.0
    cut = reconstruct_auto(shot.A, shot.y, settings=Settings(plan=found.plan), watch=Watch(deadline=1.0))
    count = len(cut.plan.stages)
    assert 0 < count < len(found.plan.stages) and cut.plan.stages == found.plan.stages[:count], "those that ran"
