"""The network trained on for one scene and camera: what its examples are, that it learns them, and when it does not."""

import json
from dataclasses import replace

import pytest
import torch
from messages import refused, refuses
from shots import SIZE, Shot
from torch import Tensor

from cassi import CASSI
from cassi.choice.adaptation import Adam, Adapt, Example, _random_strip, _simulate_snapshots
from cassi.choice.chain import as_list, cost, default_stages, from_list, repeat_stages, run_chains
from cassi.choice.mirrors import MIRRORS, Axes, Views, run_stage
from cassi.choice.stages import Learned, NonLocal, Problem, Stage, State, Tv, Watch
from cassi.evidence.held_out import Split
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import synthesise
from cassi.settings import Settings
from cassi.solvers.unrolled import error, unrolled

SHORT = Tv(20), NonLocal(0.5, 4)


class Case:
    """A snapshot, a network that was not trained, and a cube to begin with."""

    def __init__(self) -> None:
        self.shot = Shot(size=32, bands=8, mode="bilinear")
        torch.manual_seed(0)
        self.problem = replace(self.shot.problem, learned=LearnedPrior(SIZE).eval().requires_grad_(False))
        self.state = repeat_stages(self.shot.A, self.shot.y, self.problem, SHORT, Watch())
        x = self.state.x.clamp(min=0)
        made = _simulate_snapshots(self.shot.A, self.shot.y, self.problem, x, SHORT, Watch(), lambda: False)
        self.photographs: list[Example] = list(made)

    def error(self, prior: LearnedPrior) -> float:
        """Mean over the photographs, after the network."""
        B, found = self.problem.smooth, []
        for e in self.photographs:
            _, z = unrolled(self.shot.A, e.y[None], B, prior, e.start[None], variance=e.variance[None])
            found.append(float(error(synthesise(z, B), e.truth[None])))
        return sum(found) / len(found)

    def adapted(self, steps: int, watch: Watch | None = None) -> State:
        return Adapt(0.5, steps).run(self.shot.A, self.shot.y, self.problem, self.state, watch or Watch())


@pytest.fixture(scope="module")
def case() -> Case:
    return Case()


def test_a_photograph_is_the_cube_elsewhere_on_the_mask_with_noise_as_stated(case):
    """Cube and start lack the same part, which the network leaves unchanged; so the misfit is noise alone."""
    A = case.shot.A
    first, *_, last = case.photographs
    assert float(((first.y - A.forward(first.truth)).square() / first.variance).mean()) == pytest.approx(1, abs=0.15)
    assert not torch.allclose(first.truth, last.truth, atol=0.05)
    for e in (first, last):
        assert error(synthesise(e.start, case.problem.smooth)[None], e.truth[None]) < -15


def test_a_random_strip_is_a_problem_of_its_own_and_has_light(case, monkeypatch):
    monkeypatch.setattr("cassi.choice.adaptation.PIXELS", 8 * 32)
    A, e = case.shot.A, case.photographs[0]
    a, part = _random_strip(A, e, torch.Generator().manual_seed(1))
    assert a.cube_shape == (8, 8, 32) and part.start.shape == (SIZE.components, 8, 32)
    assert _random_strip(A, e._replace(truth=torch.zeros_like(e.truth)), torch.Generator())[0] is A  # where no light is
    inside = a.majorizer() > 0
    misfit = (part.y - a.forward(part.truth))[inside]
    assert float((misfit.square() / part.variance[inside]).mean()) == pytest.approx(1, abs=0.3)
    dark = e._replace(y=torch.where(torch.arange(len(e.y))[:, None] < 9, e.y, 0))
    assert all(_random_strip(A, dark, torch.Generator().manual_seed(seed))[1].y.any() for seed in range(20))


def test_the_network_learns_the_photographs_and_its_cubes_are_four_of_five(case, monkeypatch):
    """The stages that follow see the network that was trained, others the one that was not, and all views."""
    monkeypatch.setattr("cassi.choice.adaptation.RATE", 2e-3)
    before = {name: value.clone() for name, value in case.problem.learned.state_dict().items()}
    seen: list[State] = []
    began: list[tuple[Tensor, ...]] = []

    class Seen(Learned):
        def run(self, A, y, problem, state, watch):
            assert case.error(problem.learned.prior) < case.error(case.problem.learned) - 0.2
            began.append((A.forward(state.x), y, state.run.z))
            seen.append(super().run(A, y, problem, state, watch))
            return seen[-1]

    monkeypatch.setattr(Adapt, "after", lambda self, noise: (Seen(),) if noise == 1 else ())
    state = case.adapted(40)
    (views,) = seen
    torch.testing.assert_close(state.x, torch.cat([case.state.x[None], views.x]).mean(0))
    for view in zip(*began[0], strict=True):
        for one, other in zip((case.shot.A.forward(case.state.x), case.shot.y, case.state.run.z), view, strict=True):
            torch.testing.assert_close(other, one)
    assert not torch.equal(views.x[0], Learned().run(case.shot.A, case.shot.y, case.problem, case.state, Watch()).x)
    for name, value in case.problem.learned.state_dict().items():
        assert torch.equal(value, before[name]), "the network of others is unchanged"


def test_the_same_each_time_also_as_plain_values(case):
    stages = (Tv(20), Adapt(0.5, 3))
    assert from_list(json.loads(json.dumps(as_list(stages)))) == stages
    with torch.no_grad():
        one, two = (repeat_stages(case.shot.A, case.shot.y, case.problem, stages, Watch()).x for _ in range(2))
    torch.testing.assert_close(one, two)


def test_the_clock_stops_it_and_nothing_is_changed(case):
    watch = Watch(deadline=0.0)
    assert case.adapted(3, watch) is case.state and watch.over
    seen = []
    watch = Watch(lambda record, z: seen.append(record) or len(seen) == 30)  # within the photographs
    assert case.adapted(3, watch) is case.state and watch.over and len(seen) == 30
    assert [name for _, name in case.adapted(2).stage_starts][2] == "adaptation of the network"


def test_adam_is_that_of_torch():
    ours, theirs = (torch.nn.Parameter(torch.linspace(-1, 1, 6)) for _ in range(2))
    adam, other = Adam([ours]), torch.optim.Adam([theirs], lr=0.1, betas=(0.9, 0.99))
    for _ in range(5):
        for w in (ours, theirs):
            w.grad = None
            (w**4 - w).sum().backward()
        adam.step(0.1)
        other.step()
    torch.testing.assert_close(ours, theirs)


def turned_by_hand(case: Case, problem: Problem, start: State, stages: tuple[Stage, ...], axes: Axes) -> Tensor:
    """M^-1 of what the stages make of M y through M Phi M^-1: the camera with everything turned around."""
    A, y, run = case.shot.A, case.shot.y, start.run
    turned = CASSI(A.mask.flip(axes), tuple(-d for d in A.shifts) if -1 in axes else A.shifts)
    u = None if run.u is None else run.u.flip(axes)
    state = State(start.x.flip(axes), replace(run, z=run.z.flip(axes), e=run.e.flip(axes), u=u))
    for stage in stages:
        state = stage.run(turned, y.flip(axes), replace(problem, variance=problem.variance.flip(axes)), state, Watch())
    return state.x.flip(axes)


def test_views_are_the_mirrored_problems(case):
    A, y, problem = case.shot.A, case.shot.y, replace(case.problem, variance=torch.rand_like(case.shot.y) * 1e-3)
    stages, start = (NonLocal(1.0, 3), Learned(), NonLocal(0.5, 3)), repeat_stages(A, y, problem, (Tv(20),), Watch())
    by_hand = torch.stack([turned_by_hand(case, problem, start, stages, axes) for axes in MIRRORS])
    for count in (2, 4):
        chain = Tv(20), Views(count), *stages
        batch: State | None = None
        for stage in chain:
            batch = run_stage(stage, A, y, problem, batch, Watch())
        torch.testing.assert_close(batch.x, by_hand[:count], rtol=1e-4, atol=1e-5)
        state = repeat_stages(A, y, problem, (*chain, Views(1)), Watch())
        torch.testing.assert_close(state.x, by_hand[:count].mean(0), rtol=1e-4, atol=1e-5)
        assert state.stages == (*chain, Views(1)) and state.run.z.shape == start.run.z.shape
    assert cost(state.stages) == 20 + 4 * cost(stages)


def test_views_of_a_batch_of_snapshots(case):
    A, y, variance = case.shot.A, case.shot.y, torch.rand_like(case.shot.y) * 1e-3
    chain = Tv(20), Views(4), NonLocal(1.0, 3), Learned(), Views(1)
    batch = replace(case.problem, variance=torch.stack([variance, 9 * variance]))
    x = repeat_stages(A, torch.stack([y, y]), batch, chain, Watch()).x
    for one, factor in zip(x, (1, 9), strict=True):
        alone = repeat_stages(A, y, replace(case.problem, variance=factor * variance), chain, Watch()).x
        torch.testing.assert_close(one, alone, rtol=1e-3, atol=1e-3)


def test_views_are_judged_and_shown_as_one_cube(case, monkeypatch):
    shown, judged = [], []
    split = Split.of(case.shot.A, case.shot.y, 0)
    watch = Watch(lambda record, z: shown.append(z.shape))
    start = Tv(20).run(case.shot.A, case.shot.y, case.problem, None, watch)
    verdict = split.verdict(start.x)
    judge = Split.verdict
    monkeypatch.setattr(Split, "verdict", lambda self, x, **how: judged.append(x.shape) or judge(self, x, **how))
    chain = Views(2), NonLocal(1.0, 14, None), Views(1)
    (state, *_), trials = run_chains(split, case.problem, start, (chain,), watch, verdict)
    assert {*shown} == {start.run.z.shape} and {*judged} == {start.x.shape} and len(judged) > 2
    assert state.x.shape == start.x.shape and trials[-1].prior.startswith("2 views, non-local")
    late = Watch(deadline=0.0)
    assert run_chains(split, case.problem, start, (chain,), late, verdict)[0].state is start
    for stage, given in ((Views(2), None), (Views(1), start), (NonLocal(1.0, 2), State(case.shot.y))):
        refused(stage.run, case.shot.A, case.shot.y, case.problem, given, Watch(), error=ValueError)
    refused(Views, 3, error=ValueError)
    refused(Settings, views=3)


@pytest.mark.parametrize("judged", [True, False, None])
def test_a_run_that_is_stopped_among_views_ends_with_their_mean(case, judged):
    """In a chain, judged or not, or a plan: the cube is one, and the stages that ran are a plan."""
    A, y, chain = case.shot.A, case.shot.y, (Views(2), NonLocal(1.0, 14, None), NonLocal(0.5, 9), Views(1))
    split, shown = Split.of(A, y, 0), list[int]()
    watch = Watch(lambda record, z: shown.append(record.iteration) or len(shown) == 30)
    if judged is None:
        state = repeat_stages(A, y, case.problem, (Tv(20), *chain), watch)
    else:
        start = Tv(20).run(split.A_train, split.y_train, case.problem, None, watch)
        verdict = split.verdict(start.x) if judged else None
        state = run_chains(split, case.problem, start, (chain,), watch, verdict)[0].state
    assert len(shown) == 30 and watch.over
    assert state.x.shape == case.state.x.shape and state.views == () and state.stages[-1] == Views(1)
    again = repeat_stages(A, y, case.problem, state.stages, Watch())
    assert again.x.shape == state.x.shape and again.stages == state.stages


def test_best_adapts_where_there_is_a_network(case):
    _, chains = default_stages(case.shot.A, Settings(quality="best", weights=case.problem.learned))
    names = [[type(stage) for stage in chain] for chain in chains]
    assert names[0].count(Learned) == 2 and chains[0][-1] == Adapt(1.0, 75)
    assert chains[0][:4] == (NonLocal(1.0, 12), Learned(), NonLocal(0.5, 12), Learned(turn=1))
    assert chains[1:3] == ((Views(4), *chains[0][:-1], Views(1)), chains[0][:-1])
    assert Adapt(1.0, 75).before == (Tv(200), *chains[0][:3])
    later = Learned(turn=2), NonLocal(0.5, 12), Learned(turn=3), chains[0][4]
    assert Adapt(1.0, 60).after(None) == later
    fast = default_stages(case.shot.A, Settings(quality="fast", weights=case.problem.learned))
    assert fast[0] == Tv(150) and fast[1][0] == (NonLocal(1.0, 12), Learned(), NonLocal(0.25, 24, 16.0))
    assert all(Adapt not in chain and Learned not in chain for chain in names[3:])
    assert not any(Views in chain for chain in names[3:])
    for quality in ("fast", "default", "best"):
        two = default_stages(case.shot.A, Settings(quality=quality, weights=case.problem.learned, views=2))[1]
        assert two[-4] == (Views(2), *two[-3], Views(1)), "the others are there if it is rejected"
        assert quality != "best" or two[0] == (*two[-3], Adapt(1.0, 75, 2))

    refused(Adapt(0.5, 1).run, case.shot.A, case.shot.y, case.shot.problem, case.state, Watch(), error=ValueError)
    with torch.inference_mode(), refuses():
        case.adapted(1)
