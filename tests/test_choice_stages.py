"""The stages of the default solver, one by one."""

import math
from dataclasses import dataclass, replace

import numpy as np
import oracle
import pytest
import torch
from messages import refused
from shots import run, small_shot, with_network  # noqa: F401 (the fixture `shot`)
from test_evidence_judge import verdict

from cassi.choice.automatic import explore_snapshot
from cassi.choice.chain import choose_noise_factor
from cassi.choice.stages import NOISE_FACTOR_ITERS, Learned, NonLocal, Tv, Watch, alternating_stages
from cassi.evidence.held_out import Split
from cassi.evidence.judge import Verdict
from cassi.evidence.noise import CameraNoise
from cassi.optics.detector import brightness
from cassi.priors.learned import LearnedPrior
from cassi.priors.spectral_basis import analyse, smooth_basis
from cassi.settings import Settings
from cassi.solvers.subspace_tv import subspace_tv


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


@dataclass
class Verdicts:
    """A judge of cubes whose verdicts are given."""

    given: list[Verdict]

    def fair_to(self, x):
        return self

    def verdict(self, x, *, imprint):
        assert x.ndim == 3 and not imprint
        return self.given.pop(0)


@pytest.mark.parametrize(
    ("errors", "chosen"),  # at noise factors 16, 4, and then 1 or 64
    [((2, 3, 2.1), 16), ((2, 1, 3), 4), ((3, 2, 1), 1), ((2, 3, 1), 64), ((2, math.nan, 2), 16)],
)
def test_held_out_pixels_choose_how_much_the_noise_counts(shot, errors, chosen):
    """The run with the first factor goes to its end, and the others go on from there."""
    start, seen = run(Tv(10), shot), list[int]()
    verdicts = [verdict(error, seed=k) for k, error in enumerate(errors)]
    stage, watch = NonLocal(0.3, 60, None), Watch(lambda record, z: seen.append(record.iteration))
    found = choose_noise_factor(stage, shot.A, shot.y, shot.problem, start, watch, Verdicts(verdicts)).state
    better = {16: 0, 4: 1, 1: 2, 64: 1}[chosen]
    assert verdicts == [] and found.stages == (Tv(10), NonLocal(0.3, 60, chosen))
    settles = 2 * NOISE_FACTOR_ITERS * (better > 0)
    count = 71 + NOISE_FACTOR_ITERS * better + settles
    assert [r.iteration for r in found.history] == list(range(1, count)), "others were trials"
    assert seen[:60] == list(range(11, 71)) and len(seen) == 60 + 2 * NOISE_FACTOR_ITERS + settles
    assert found.stages[-1].name == f"non-local (0.3{'' if chosen == 1 else f', noise counted {chosen} times'})"
    assert found.stage_starts == ((1, "total variation"), (11, found.stages[-1].name)), "in the record, too"
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


def test_an_exploration_of_bright_objects_in_the_dark_raises_the_level(shot):
    x = torch.zeros_like(shot.x)
    x[:, 10:14, 10:14] = 1.0
    levels = []
    for scene in (shot.x, x):
        y = shot.A.forward(scene)
        levels.append(explore_snapshot(Split.of(shot.A, y, 0), 6, CameraNoise(), Settings(), y)[0].relative_level)
    assert levels[0] == 1.0 and levels[1] > 2
