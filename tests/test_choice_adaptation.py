"""The network trained on for one scene and camera: what its examples are, that it learns them, and when it does not."""

import json
from dataclasses import replace

import pytest
import torch
from messages import refused, refuses
from test_choice_stages import SIZE, Shot
from torch import Tensor

from cassi import CASSI
from cassi.choice.adaptation import Adam, Adapt, Example, _random_strip, _simulate_snapshots
from cassi.choice.automatic import default_stages
from cassi.choice.chain import as_list, cost, from_list, repeat_stages
from cassi.choice.mirrors import MIRRORS, Mirrored
from cassi.choice.stages import Learned, NonLocal, State, Tv, Watch
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
    """The stages that follow see the network that was trained, others the one that was not, and mirrored problems."""
    monkeypatch.setattr("cassi.choice.adaptation.RATE", 2e-3)
    before = {name: value.clone() for name, value in case.problem.learned.state_dict().items()}
    seen: list[State] = []
    began: list[tuple[Tensor, ...]] = []

    class Seen(Learned):
        def run(self, A, y, problem, state, watch):
            assert case.error(problem.learned) < case.error(case.problem.learned) - 0.2
            began.append((A.forward(state.x), y, state.run.z))
            seen.append(super().run(A, y, problem, state, watch))
            return seen[-1]

    monkeypatch.setattr(Adapt, "after", lambda self, noise: (Seen(),) if noise == 1 else ())
    state = case.adapted(40)
    turned = [new.x.flip(axes) for axes, new in zip(((), *MIRRORS), seen, strict=True)]
    torch.testing.assert_close(state.x, torch.stack([case.state.x, *turned]).mean(0))
    for axes, mirrored in zip(MIRRORS, began[1:], strict=True):
        for one, other in zip(began[0], mirrored, strict=True):
            torch.testing.assert_close(other.flip(axes), one)
    assert not torch.equal(seen[0].x, Learned().run(case.shot.A, case.shot.y, case.problem, case.state, Watch()).x)
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
    assert case.adapted(3, watch) is case.state and watch.late
    seen = []
    watch = Watch(lambda record, z: seen.append(record) or len(seen) == 30)  # within the photographs
    assert case.adapted(3, watch) is case.state and watch.stopped and len(seen) == 30
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


def test_mirrored_problems_are_solved_as_the_first_and_their_mean_is_taken(case):
    """By hand: the camera with everything turned around; cube and mean do not change where all was mirrored."""
    A, y, problem = case.shot.A, case.shot.y, replace(case.problem, variance=torch.rand_like(case.shot.y) * 1e-3)
    stages = (Tv(20), NonLocal(1.0, 3))
    first = repeat_stages(A, y, problem, stages, Watch())
    cubes = [first.x]
    for axes in ((-2,), (-1,), (-2, -1)):
        shifts = [-d for d in A.shifts] if -1 in axes else list(A.shifts)
        turned = CASSI(A.mask.flip(axes), tuple(shifts))
        here = replace(problem, variance=problem.variance.flip(axes))
        cubes.append(repeat_stages(turned, y.flip(axes), here, stages, Watch()).x.flip(axes))
    state = repeat_stages(A, y, problem, (*stages, Mirrored()), Watch())
    torch.testing.assert_close(state.x, torch.stack(cubes).mean(0), rtol=1e-4, atol=1e-5)
    assert state.stages == (*stages, Mirrored()) and state.stage_starts[-1][1] == "mirrored"
    mirrored = replace(problem, variance=problem.variance.flip(-1))
    again = repeat_stages(A.mirrored((-1,)), y.flip(-1), mirrored, state.stages, Watch())
    torch.testing.assert_close(again.x.flip(-1), state.x, rtol=1e-3, atol=1e-4)
    asked = []
    stopped = Watch(lambda record, z: asked.append(record.iteration) or len(asked) == 30)
    assert Mirrored().run(A, y, problem, first, stopped) is first and len(asked) == 30
    assert Mirrored().run(A, y, problem, first, Watch(deadline=0.0)) is first
    refused(Mirrored().run, A, y, problem, None, Watch(), error=ValueError)


def test_best_adapts_where_there_is_a_network(case):
    _, chains = default_stages(case.shot.A, Settings(quality="best", weights=case.problem.learned))
    names = [[type(stage) for stage in chain] for chain in chains]
    assert names[0].count(Learned) == 2 and chains[0][-1] == Adapt(1.0, 75)
    assert chains[0][:4] == (NonLocal(1.0, 12), Learned(), NonLocal(0.5, 12), Learned(turn=1))
    assert chains[1:3] == ((*chains[0][:-1], Mirrored()), chains[0][:-1])
    assert Adapt(1.0, 75).before == (Tv(200), *chains[0][:3])
    later = Learned(turn=2), NonLocal(0.5, 12), Learned(turn=3), chains[0][4]
    assert Adapt(1.0, 60).after(None) == later
    assert Mirrored().cost == 3 * (200 + cost(chains[2]))
    fast = default_stages(case.shot.A, Settings(quality="fast", weights=case.problem.learned))
    assert fast[0] == Tv(200) and fast[1][0] == (NonLocal(1.0, 12), Learned(), NonLocal(0.25, 56, None))
    assert all(Adapt not in chain and Learned not in chain for chain in names[3:])
    assert not any(Mirrored in chain for chain in names[3:])

    class Own(CASSI):
        def mirrored(self, axes):
            return None

    own = default_stages(Own(case.shot.A.mask, case.shot.A.shifts), Settings(quality="best"))[1]
    assert own and not any(Mirrored() in chain for chain in own), "what a mirrored camera of one's own is, nobody knows"
    refused(Adapt(0.5, 1).run, case.shot.A, case.shot.y, case.shot.problem, case.state, Watch(), error=ValueError)
    with torch.inference_mode(), refuses():
        case.adapted(1)
