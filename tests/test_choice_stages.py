"""The stages of the default solver, the loop over them, and the judge that lets their cubes pass."""

import json
import math
import time
from dataclasses import dataclass, replace

import numpy as np
import oracle
import pytest
import torch
from messages import check_words, refused
from scipy import stats
from test_priors_learned import stirred

from cassi import CASSI, Record, Result, reconstruct
from cassi.choice.automatic import default_stages, explore_snapshot, reconstruct_auto
from cassi.choice.chain import Chain, ChainTrial, repeat_stages, run_chains, try_guided
from cassi.choice.guided import Guided
from cassi.choice.plan import Plan
from cassi.choice.stages import STRENGTH_ITERS, Learned, NonLocal, Problem, Stage, State, Tv, Watch, alternating_stages
from cassi.evidence.held_out import Split
from cassi.evidence.judge import Verdict, accepts, is_better, z
from cassi.evidence.noise import CameraNoise
from cassi.optics.detector import brightness
from cassi.priors.learned import KINDS, LearnedPrior, Size, load_prior, packed, shipped_prior
from cassi.priors.spectral_basis import analyse, smooth_basis, synthesise
from cassi.running.plan_file import save_plan
from cassi.settings import Settings
from cassi.solvers.subspace_tv import subspace_tv

SIZE = Size(components=4, stages=1, memory=1, width=8, blocks=1, deep_width=8, deep_blocks=2, far_width=8, far_blocks=1)


class Shot:
    """A camera, a snapshot with some noise, and its scene of squares, or of smooth blobs."""

    def __init__(self, size: int = 24, bands: int = 6, parts: int = 5, mode: str = "nearest") -> None:
        generator = torch.Generator().manual_seed(0)
        self.A = CASSI.from_step(torch.rand(size, size, generator=generator), 1, bands)
        low = torch.rand(1, bands, parts, parts, generator=generator)
        self.x = torch.nn.functional.interpolate(low, (size, size), mode=mode)[0]
        y = self.A.forward(self.x)
        self.y = y + 0.02 * y.mean() * torch.randn(y.shape, generator=generator)
        self.split = Split.of(self.A, self.y, 0)
        self.problem = Problem(smooth_basis(bands, 5).float(), torch.full_like(y, 1e-4))

    def error(self, x: torch.Tensor) -> float:
        return float((x - self.x).square().mean())


@pytest.fixture(scope="module")
def shot() -> Shot:
    return Shot()


def gone_on(
    split: Split, problem: Problem, first: Tv, chains: list[Chain], watch: Watch | None = None, judged: bool = True
) -> tuple[State, tuple[ChainTrial, ...]]:
    """Total variation and what follows it."""
    watch = watch or Watch()
    state = first.run(split.A_train, split.y_train, problem, None, watch)
    verdict = split.verdict(state.x) if judged else None
    return run_chains(split, problem, state, () if watch.over else chains, watch, verdict)


class Oracle(LearnedPrior):
    """Knows the scene."""

    def __init__(self, shot: Shot) -> None:
        super().__init__(SIZE)
        A = shot.A
        s = brightness(A, shot.y) * math.sqrt(A.num_bands) * self.spread().view(-1, 1, 1)
        self.truth = analyse(shot.x, smooth_basis(A.num_bands, SIZE.components)) / s

    def forward(self, z, d, seen, noise, memory, stage, light):
        return self.truth - z, torch.zeros_like(z), seen


def auto(shot, **choices):
    return reconstruct_auto(shot.A, shot.y, settings=Settings(**choices))


def run(stage, shot, state=None, problem=None, watch=None) -> State:
    return stage.run(shot.A, shot.y, problem or shot.problem, state, watch or Watch())


def with_network(shot) -> Problem:
    return replace(shot.problem, learned=stirred(SIZE))


def test_total_variation_goes_on_where_it_was_left(shot):
    once, twice = run(Tv(30), shot), run(Tv(20), shot, run(Tv(10), shot))
    torch.testing.assert_close(twice.x, once.x, rtol=1e-4, atol=1e-5)
    assert [r.iteration for r in twice.history] == list(range(1, 31))
    assert twice.stage_starts == ((1, "total variation"), (11, "total variation"))


def test_another_prior_forgets_the_multiplier(shot):
    start = run(Tv(10), shot)
    found = run(NonLocal(0.3, 2), shot, start)
    denoise = shot.problem.non_local(shot.A, shot.y, 0.3)
    expected, _ = subspace_tv(
        shot.A, shot.y, shot.problem.basis, variance=shot.problem.variance_with_mask_error(shot.A, start.x),
        tv_weight=shot.problem.level(shot.A, shot.y), num_iters=2, denoise=denoise, momentum=1 / 3,
        state=replace(start.run, e=0 * start.run.e),
    )  # fmt: skip
    torch.testing.assert_close(found.x, expected.x)
    refused(run, NonLocal(0.3, 2), shot, error=ValueError)


@pytest.mark.parametrize(
    ("errors", "chosen"),  # at strengths 16, 4, and then 1 or 64
    [((2, 3, 2.1), 16), ((2, 1, 3), 4), ((3, 2, 1), 1), ((2, 3, 1), 64), ((2, math.nan, 2), 16)],
)
def test_held_out_pixels_choose_how_much_the_noise_counts(shot, errors, chosen):
    """The run with the first strength goes to its end, and the others go on from there."""
    start, seen = run(Tv(10), shot), list[int]()
    verdicts = [verdict(error, seed=k) for k, error in enumerate(errors)]
    problem = replace(shot.problem, verdict=lambda x: verdicts.pop(0))
    stage = NonLocal(0.3, 60, None)
    found = run(stage, shot, start, problem, Watch(lambda record, z: seen.append(record.iteration)))
    better = {16: 0, 4: 1, 1: 2, 64: 1}[chosen]
    assert verdicts == [] and found.stages == (Tv(10), NonLocal(0.3, 60, chosen))
    settles = 2 * STRENGTH_ITERS * (better > 0)
    count = 71 + STRENGTH_ITERS * better + settles
    assert [r.iteration for r in found.history] == list(range(1, count)), "others were trials"
    assert seen[:60] == list(range(11, 71)) and len(seen) == 60 + 2 * STRENGTH_ITERS + settles
    assert found.stages[-1].name == f"non-local (0.3{'' if chosen == 1 else f', noise counted {chosen} times'})"
    given = run(found.stages[-1], shot, start)
    assert float((found.x - given.x).norm() / given.x.norm()) < 0.03, "a plan begins with the strength chosen"
    assert run(stage, shot, start).stages[-1].noise == 1, "without a judge"


def test_an_error_of_the_mask_adds_to_the_noise(shot):
    """s^2 m_max^2 sum_c S_c x_c^2, by the dense matrix of a camera whose mask is open."""
    A = replace(shot.A, mask=3 * shot.A.mask, mask_error=0.1)
    x = shot.x.double().numpy()
    top = float(A.mask.max())
    expected = sum(
        (0.1 * top * oracle.forward(x * (np.arange(len(x)) == c)[:, None, None], np.ones(x.shape[1:]), A.shifts)) ** 2
        for c in range(len(x))
    )
    found = shot.problem.variance_with_mask_error(A, shot.x) - shot.problem.variance
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-6)
    exact = replace(A, mask_error=0.0)
    assert shot.problem.variance_with_mask_error(exact, shot.x) is shot.problem.variance


@pytest.mark.parametrize("stage", [Tv(5), NonLocal(0.5, 2), Learned()])
def test_every_prior_is_relative_to_the_level_of_the_objects(shot, stage):
    problem, start = with_network(shot), run(Tv(10), shot)
    settings = (replace(problem, brightness=b, relative_level=r) for b, r in ((3.0, 1.0), (1.0, 3.0), (1.0, 1.0)))
    bright, prominent, neither = (run(stage, shot, start, one).x for one in settings)
    assert torch.equal(bright, prominent) and not torch.allclose(bright, neither, rtol=1e-3)


def test_the_network_leaves_what_its_basis_cannot_hold(shot):
    problem, start = with_network(shot), run(Tv(10), shot)
    found = run(Learned(), shot, start, problem)
    B = smooth_basis(6, 4).float()
    change = found.x - start.x
    outside = change - torch.einsum("kc,khw->chw", B, analyse(change, B))
    assert float(outside.abs().max()) < 1e-5 < 1e-3 < float(change.abs().max())
    torch.testing.assert_close(found.run.z, analyse(found.x, problem.basis))
    assert found.stage_starts[-1] == (11, "learned")


def test_a_network_is_given_its_turn(shot, monkeypatch):
    seen = []
    of_turn = LearnedPrior.of_turn
    monkeypatch.setattr(LearnedPrior, "of_turn", lambda self, turn: (seen.append(turn), of_turn(self, turn))[1])
    problem, state = with_network(shot), run(Tv(5), shot)
    for stage in alternating_stages(1.0):
        state = run(stage, shot, state, problem)
    assert seen == [0, 1]


def test_a_tile_is_corrected_in_units_of_its_frame(shot):
    start, own = run(Tv(5), shot), brightness(shot.A, shot.y)
    levels = (own, None, 2 * own)
    frame, alone, other = (run(Learned(), shot, start, replace(with_network(shot), brightness=b)).x for b in levels)
    torch.testing.assert_close(frame, alone)
    assert float((other - frame).norm()) > 1e-3 * float(start.x.norm())


def verdict(error: float, imprint: float | None = None, seed: int = 0) -> Verdict:
    misfit = error * torch.randn(400, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Verdict(error, misfit.square(), imprint)


@pytest.mark.parametrize(
    ("new", "old", "accepted"),
    [
        (verdict(0.02), verdict(0.02), True), (verdict(0.0219), verdict(0.02), True),
        (verdict(0.0221), verdict(0.02), False), (verdict(math.nan), verdict(0.02), False),
        (verdict(0.02, 0.1), verdict(0.02, 0.01), True), (verdict(0.02, 0.13), verdict(0.02, 0.01), False),
        (verdict(0.02, 0.21), verdict(0.02, 0.2), True),
        (verdict(0.0215, seed=1), verdict(0.02), True), (verdict(0.0225, seed=1), verdict(0.02), False),  # chance
    ],
)  # fmt: skip
def test_a_cube_passes_that_harms_little(new, old, accepted):
    assert accepts(new, old) == accepted


def test_better_means_by_more_than_chance():
    better = [is_better(verdict(error), verdict(0.02, seed=1)) for error in (0.01, 0.0199, 0.03)]
    assert better == [True, False, False]


def test_z_is_the_paired_t_statistic():
    old, new = (verdict(error, seed=seed).squared for error, seed in ((0.02, 0), (0.019, 1)))
    assert z(new, old) == pytest.approx(stats.ttest_rel(old, new).statistic)
    assert z(new, old, allowance=0.1) == pytest.approx(stats.ttest_rel(1.21 * old, new).statistic)
    assert z(old, old) == 0 and z(2 * old[:1], old[:1]) == -math.inf and z(old[:1], 2 * old[:1]) == math.inf
    assert math.isnan(z(math.nan * new, old))
    weight = torch.tensor([1.0, 3.0]).repeat(200)
    w = (weight / weight.sum()).double()
    mean = (w * (old - new)).sum()
    assert z(new, old, weight=weight) == pytest.approx(float(mean / (w * (old - new - mean)).norm()))


def test_a_verdict_by_hand():
    A, y = CASSI(torch.ones(1, 3), (0,)), torch.tensor([[3.0, 4.0, 9.0]])
    found = Split(A, y, torch.tensor([[True, True, False]]), A, y).verdict(torch.tensor([[[3.0, 1.0, 0.0]]]))
    assert found.error == pytest.approx(0.6) and found.squared.tolist() == [0.0, 9.0]  # |(0, 3)| / |(3, 4)|


@dataclass(frozen=True)
class Black(Stage):
    """A stage that ends with a black cube."""

    key = name = words = "black"
    cost = 1.0

    def run(self, A, y, problem, state, watch) -> State:
        record = Record(1, 0.0, 1.0, 1.0)
        return state.followed_by(Result(torch.zeros_like(state.x), (record,), "finished"), state.run, self)


def test_the_first_chain_that_passes_is_taken_and_none_after_it(shot):
    hopeless, good = Black(), Tv(5)
    state, trials = gone_on(shot.split, shot.problem, Tv(20), [(hopeless,), (good,), (Tv(7),)])
    assert state.stages == (Tv(20), good) and len(state.history) == 25
    assert [t.prior for t in trials] == ["total variation", "black", "total variation"]
    assert [t.accepted for t in trials] == [True, False, True]
    assert trials[-1].held_out_error == pytest.approx(shot.split.error(state.x.clamp(min=0)))
    state, trials = gone_on(shot.split, shot.problem, Tv(20), [(hopeless,)], judged=False)
    assert state.stages == (Tv(20), hopeless) and trials == (), "without a judge the first is taken"


def test_no_stage_sees_the_held_out_pixels(shot):
    other = replace(shot.split, y=torch.where(shot.split.held, 7.0, shot.split.y))
    chains = [(NonLocal(0.3, 2),)]
    one, two = (gone_on(split, shot.problem, Tv(10), chains, judged=False)[0].x for split in (shot.split, other))
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
    state, _ = gone_on(shot.split, with_network(shot), Tv(10), [(NonLocal(0.3, 2), Learned())], watch, judged=judged)
    assert seen == list(range(1, when + 1)) and watch.stopped and len(state.history) == when
    assert len(state.stages) == 1 + (when > 10) + (when > 12)  # those that ran
    assert bool(torch.isfinite(state.x).all())


def test_a_chain_that_begins_like_one_that_was_refused_is_not_run_again(shot):
    seen, good = [], (NonLocal(0.3, 2), NonLocal(0.3, 3))
    watch = Watch(lambda record, z: seen.append(record))
    state, trials = gone_on(shot.split, shot.problem, Tv(10), [(*good, Black()), good], watch)
    assert state.stages == (Tv(10), *good) and len(seen) == 15
    assert [trial.accepted for trial in trials] == [True, False, True]


@dataclass(frozen=True)
class Faded(Stage):
    """A stage that makes a cube somewhat worse."""

    factor: float

    key = name = words = "faded"
    cost = 1.0

    def run(self, A, y, problem, state, watch) -> State:
        record = Record(1, 0.0, 1.0, 1.0)
        return state.followed_by(Result(self.factor * state.x, (record,), "finished"), state.run, self)


def test_what_goes_on_from_a_chain_must_not_be_worse_than_its_cube():
    """It may be better than total variation and yet worse than the cube it began with, which is kept."""
    seen, good, shot = [], (NonLocal(0.3, 12),), Shot(48, parts=3, mode="bilinear")
    chains = [(*good, Faded(0.95)), (*good, Faded(1.0001)), good]
    state, trials = gone_on(shot.split, shot.problem, Tv(1), chains, Watch(lambda record, z: seen.append(record)))
    assert trials[1].held_out_error < 0.3 * trials[0].held_out_error, "better than total variation"
    assert [trial.accepted for trial in trials] == [True, False, True]
    assert state.stages == (Tv(1), *good, Faded(1.0001)), "as good, but for chance"
    assert len(seen) == 13, "the beginning of both is run once"


def test_a_network_that_diverges_is_as_if_it_were_not_there(shot):
    wild = stirred(SIZE)
    wild.net.leave.bias.data[:] = math.nan
    found = auto(shot, weights=wild)
    assert not found.plan.is_learned and math.isinf(found.evidence.trials[1].held_out_error)
    check_words(found.explain())
    refused(auto, shot, error=FloatingPointError, weights=wild, prior="learned")


def test_a_stage_is_not_begun_without_time_for_it_and_the_deadline_ends_it(shot):
    watch = Watch(spent=10.0, seconds=1e6, deadline=time.perf_counter() + 1e4)  # 1e5 seconds an iteration
    assert not watch.affords(NonLocal(0.3, 2)) and watch.late
    watch = Watch(spent=10.0, seconds=1e-6, deadline=time.perf_counter() + 1e4)
    assert watch.affords(NonLocal(0.3, 2)) and not watch.late
    watch = Watch(deadline=0.0)
    state, _ = gone_on(shot.split, shot.problem, Tv(50), [(NonLocal(0.3, 3),)], watch)
    assert watch.late and len(state.history) == 1 and state.stages == (Tv(50),)


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
        state, trial = try_guided(
            split, shot.problem, State(x + synthesise(e, B), history=(Record(1, 0.0, 0.0, 0.0),)), Watch()
        )
        assert trial.accepted == accepted == (state.stages == (Guided(),))
        assert not accepted or (state.x - x).norm() < 0.5 * synthesise(e, B).norm()
    refused(run, Guided(), shot, error=ValueError)
    one = replace(shot.problem, basis=B[:1])
    assert run(Guided(), shot, State(x, history=(Record(1, 0.0, 0.0, 0.0),)), one).x is x, (
        "there is no other coefficient"
    )


def test_a_network_that_harms_is_as_if_it_were_not_there(shot):
    found, without = auto(shot, weights=stirred(SIZE)), auto(shot, prior="nonlocal")
    assert not found.plan.is_learned and "rejected" in found.explain(verbose=True)
    assert shot.error(found.result.x) < 1.2 * shot.error(without.result.x)


@pytest.mark.parametrize(("quality", "share"), [("fast", 0.5), ("default", 0.85)])
def test_a_network_that_knows_the_scene_is_taken(quality, share):
    shot = Shot(48, parts=3, mode="bilinear")
    found, without = auto(shot, weights=Oracle(shot), quality=quality), auto(shot, prior="tv")
    assert found.plan.is_learned and found.as_dict()["learned"] is True
    check_words(found.explain())
    assert shot.error(found.result.x) < share * shot.error(without.result.x)


def test_what_is_asked_for_is_taken_in_any_case(shot):
    assert auto(shot, prior="learned", weights=stirred(SIZE)).plan.is_learned
    tv, nonlocal_ = auto(shot, prior="tv"), auto(shot, prior="nonlocal")
    assert tv.plan.stages == (Tv(200), Tv(300)) and tv.evidence.trials == ()
    assert [type(stage) for stage in nonlocal_.plan.stages] == [Tv, NonLocal, NonLocal, NonLocal]


def test_a_plan_comes_back_from_plain_values_and_is_repeated(shot):
    found = auto(shot, weights=Oracle(shot))
    values = json.loads(json.dumps(found.plan.as_dict()))
    plan = Plan.from_dict(values, found.plan.learned)
    assert plan.as_dict() == found.plan.as_dict()
    again = reconstruct_auto(shot.A, shot.y, settings=Settings(plan=plan))
    assert again.plan.stages == found.plan.stages and again.evidence is None
    assert shot.error(again.result.x) < 1.2 * shot.error(found.result.x)
    plain = found.plan.as_dict()
    for wrong in (
        {}, *(plain | {"stages": [stage]} for stage in (["none", 1], ["tv", 1, 2], ["tv", -3], ["nonlocal", 1, 2.5])),
        plain | {"stages": [["nonlocal", 0, 2]]}, plain | {"stages": [["learned", 0]]}, plain | {"stages": []},
        plain | {"axis": [500.0] * 6}, plain | {"level": 1e300},
        plain | {"noise": plain["noise"] | {"alpha": "a"}}, plain | {"level": math.nan}, plain | {"axis": "x"},
        plain | {"vectors": [[math.nan] * 6]}, plain | {"axis": 5}, plain | {"vectors": []},
    ):  # fmt: skip
        refused(Plan.from_dict, wrong, found.plan.learned)


def test_a_plan_names_its_weights(shot, tmp_path):
    """A series goes on with the weights that it began with: what they may be used for differs."""
    values = auto(shot, weights=stirred(SIZE), prior="learned").plan.as_dict()
    refused(Plan.from_dict, values)
    for kind in KINDS:
        plan = Plan.from_dict(values | {"weights": kind})
        assert plan.learned is shipped_prior(kind) and plan.as_dict()["weights"] == kind
    del values["weights"]
    assert Plan.from_dict(values).learned is shipped_prior("research"), "as those before had it"
    own = tmp_path / "w.safetensors"
    own.write_bytes(packed(stirred(SIZE)))
    save_plan(tmp_path / "plan.json", Plan.from_dict(values, load_prior(own)))
    how = {"step": 1, "plan": tmp_path / "plan.json"}
    for plan in (how["plan"], Plan.from_dict(values)):
        found = reconstruct(shot.y, shot.A.mask, step=1, plan=plan, weights=own)
        assert found.plan.learned.source == own.name
        check_words(found.explain())
    refused(reconstruct, shot.y, shot.A.mask, **how)


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


def test_an_exploration_of_bright_objects_in_the_dark_raises_the_level(shot):
    x = torch.zeros_like(shot.x)
    x[:, 10:14, 10:14] = 1.0
    levels = []
    for scene in (shot.x, x):
        y = shot.A.forward(scene)
        levels.append(explore_snapshot(Split.of(shot.A, y, 0), 6, CameraNoise(), Settings(), y)[0].relative_level)
    assert levels[0] == 1.0 and levels[1] > 2


def test_weights_from_a_file(shot, tmp_path):
    (tmp_path / "w.safetensors").write_bytes(packed(stirred(SIZE)))
    found = reconstruct(shot.y, shot.A.mask, step=1, prior="learned", weights=tmp_path / "w.safetensors")
    assert found.choice["learned"] is True
    assert found.parameters["weights"] == "w.safetensors"


def test_what_does_not_go_together_is_refused(shot, tmp_path):
    refused(Settings, prior="x")
    refused(Settings, solver="gap-tv", prior="tv")
    refused(Settings, prior="learned", num_iters=5)
    refused(Settings, prior="tv", weights=stirred(SIZE))
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    refused(reconstruct, shot.y, shot.A.mask, step=1, weights=tmp_path / "w.safetensors")


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
