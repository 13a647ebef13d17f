"""The learned prior among the others: taken where it predicts held-out pixels better, else as if it were not there."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from test_priors_learned import stirred

from cassi import CASSI, reconstruct
from cassi.choice import refine
from cassi.choice.automatic import reconstruct_auto
from cassi.choice.learned_step import LearnedStep, shipped_prior
from cassi.choice.plan import BETWEEN, CORRECTIONS, EFFORTS, Method, Plan, Run
from cassi.choice.problem import Problem
from cassi.choice.refine import Watch, allowed, allowed_often, corrected, corrected_often
from cassi.errors import InputError
from cassi.optics.detector import brightness
from cassi.priors.learned import LearnedPrior, Size, save_prior
from cassi.priors.spectral_basis import analyse, smooth_basis
from cassi.solvers.loop import Record, Result

SIZE = Size(components=4, stages=1, memory=1, width=8, blocks=1, deep_width=8, deep_blocks=1)


Shot = tuple[CASSI, torch.Tensor, torch.Tensor]


def photographed(size: int, parts: int, mode: str) -> Shot:
    """A camera, a snapshot with some noise, and its scene of so many parts along a side."""
    generator = torch.Generator().manual_seed(0)
    A = CASSI.from_step(torch.rand(size, size, generator=generator), 1, 6)
    low = torch.rand(1, 6, parts, parts, generator=generator)
    x = torch.nn.functional.interpolate(low, (size, size), mode=mode)[0]
    y = A.forward(x)
    return A, y + 0.02 * y.mean() * torch.randn(y.shape, generator=generator), x


@pytest.fixture(scope="module")
def shot() -> Shot:
    """Of a scene of squares."""
    return photographed(24, 5, "nearest")


@pytest.fixture(scope="module")
def smooth() -> Shot:
    """Of a scene that the non-local prior harms little."""
    return photographed(48, 3, "bilinear")


@pytest.fixture
def certain(monkeypatch) -> None:
    """As if thousands of pixels were held out, and there were many bands."""
    monkeypatch.setattr(refine, "CHANCE", 1.0)
    monkeypatch.setattr(refine, "FEWEST_BANDS", 1)


class Oracle(LearnedPrior):
    """Knows the scene."""

    def __init__(self, A: CASSI, y: torch.Tensor, x: torch.Tensor) -> None:
        super().__init__(SIZE)
        s = brightness(A, y) * math.sqrt(A.num_bands) * self.spread().view(-1, 1, 1)
        self.truth = analyse(x, smooth_basis(A.num_bands, SIZE.components)) / s

    def forward(self, z, d, seen, noise, memory, views=4):
        return self.truth - z, torch.zeros_like(z), seen


def auto(shot, **choices):
    A, y, _ = shot
    return reconstruct_auto(A, y, method=Method(**choices))


def error(found, shot) -> float:
    return float((found.result.x - shot[2]).square().mean())


def test_a_prior_that_predicts_worse_is_as_if_it_were_not_there(shot):
    without = auto(shot, learned=None) if shipped_prior() is None else None
    found = auto(shot, learned=stirred(SIZE))
    assert found.plan.learned is None
    errors = {p.prior: p.held_out_error for p in found.evidence.priors}
    assert errors[f"{found.plan.prior}, learned"] > errors[found.plan.prior]
    if without is not None:
        assert torch.equal(found.result.x, without.result.x)


def test_fast_ends_with_the_learned_prior_or_goes_on_without_it(shot):
    effort = EFFORTS["fast"]
    taken, left = auto(shot, learned=Oracle(*shot), quality="fast"), auto(shot, learned=stirred(SIZE), quality="fast")
    assert taken.plan.learned is not None and left.plan.learned is None
    assert len(taken.result.history) <= effort.tv_first + 1 < len(left.result.history) <= effort.tv_all
    assert error(taken, shot) < 0.5 * error(left, shot)
    assert not any("non-local" in p.prior for found in (taken, left) for p in found.evidence.priors)


def test_a_prior_that_predicts_better_is_taken(shot):
    oracle = Oracle(*shot)
    found, without = auto(shot, learned=oracle), auto(shot, prior="nonlocal")
    assert found.plan.learned is not None
    assert found.as_dict()["learned"] is True
    assert "learned" in found.explain()
    assert error(found, shot) < 0.5 * error(without, shot)


@pytest.mark.parametrize(
    ("before", "after", "taken"),
    [
        (0.0052, 0.0053, True),
        (0.0052, 0.0060, True),
        (0.0201, 0.0203, True),
        (0.0284, 0.0289, False),
        (0.0337, 0.0346, False),
    ],
    ids=["a scene", "a scene of fine detail", "a noisy scene", "a real capture", "another"],
)
def test_a_corrected_cube_may_predict_hardly_worse(before, after, taken):
    """Held-out errors as they were measured where the correction gains, and where it adds grain."""
    assert (after <= allowed(before)) == taken


@pytest.mark.parametrize(
    ("before", "after", "times"),
    [(0.02, 0.039, CORRECTIONS), (0.045, 0.055, 1), (0.058, 0.06, CORRECTIONS), (0.05, 0.11, 1), (0.02, 0.13, 0)],
    ids=["faint", "as on a real capture with grain", "as before", "as on a smooth scene", "as is warned of"],
)
@pytest.mark.usefixtures("certain")
def test_a_corrected_cube_may_show_the_mask_hardly_more(shot, monkeypatch, before, after, times):
    """It is the scene's cube, so that nothing else speaks against it."""

    def imprint_on(cube, A, *, moves):
        assert moves == (0.0,)
        return after if float((cube - shot[2]).square().mean()) < 0.04 else before  # total variation's: 0.06

    monkeypatch.setattr(refine, "imprint_on", imprint_on)
    found = auto(shot, learned=Oracle(*shot))
    assert (found.plan.corrections if found.plan.learned else 0) == times
    assert after in [p.imprint for p in found.evidence.priors]
    assert f"imprint {after:.2f}" in found.explain(verbose=True)
    assert auto(shot, learned=Oracle(*shot), prior="learned").plan.learned is not None


def test_few_pixels_must_say_more():
    """What a choice between 64 x 64 pixels rests on are some 100 of them; a usual snapshot holds out 1500."""
    assert allowed_often(1.0, 1587) == pytest.approx(1.01)
    assert allowed_often(1.0, 106) == pytest.approx(1.01 - 2 * (1 / 212**0.5 - 0.02))
    assert allowed_often(0.5, 106) == 0.5 * allowed_often(1.0, 106)


def test_a_prior_that_is_asked_for_is_taken_in_any_case(shot):
    assert auto(shot, prior="learned", learned=stirred(SIZE)).plan.learned is not None
    tv = auto(shot, prior="tv")
    assert (tv.plan.prior, tv.plan.learned, tv.evidence.priors) == ("total variation", None, ())
    assert auto(shot, prior="nonlocal").plan.prior == "non-local, 0.5"


def test_a_plan_has_the_learned_prior_in_it(smooth):
    A, y, _ = smooth
    found = auto(smooth, learned=Oracle(*smooth))
    again = reconstruct_auto(A, y, method=Method(plan=found.plan))
    without = reconstruct_auto(A, y, method=Method(plan=Plan.from_dict(found.plan.as_dict() | {"learned": None})))
    assert error(again, smooth) < 0.5 * error(without, smooth)
    json.dumps(found.as_dict())


class SecondThoughts(Oracle):
    """Knows the scene, but not where it is asked for one view alone, as all but the last of many corrections do."""

    def forward(self, z, d, seen, noise, memory, views=4):
        f, g, h = super().forward(z, d, seen, noise, memory, views)
        return (f if views > 1 else 3 * torch.ones_like(f)), g, h


@pytest.mark.usefixtures("certain")
def test_often_where_that_predicts_as_well_else_once(smooth, monkeypatch):
    monkeypatch.setattr(refine, "imprint_on", lambda cube, A, *, moves: None)  # held-out pixels alone
    often, once = auto(smooth, learned=Oracle(*smooth)), auto(smooth, learned=SecondThoughts(*smooth))
    assert (often.plan.corrections, once.plan.corrections) == (CORRECTIONS, 1)
    assert 0 < often.plan.iterations[1] <= EFFORTS["default"].lead
    assert often.plan.final_prior.endswith("learned 4 times") and "correction, 4 times" in often.explain()
    errors = {p.prior: p.held_out_error for p in once.evidence.priors}
    assert errors[f"{once.plan.prior}, learned 4 times"] > errors[once.plan.final_prior] == once.evidence.held_out_error
    assert error(once, smooth) < 0.8 * error(auto(smooth, prior="nonlocal"), smooth)


def test_once_where_there_are_few_bands(smooth, monkeypatch):
    monkeypatch.setattr(refine, "CHANCE", 1.0)  # which alone would let several be taken
    found = auto(smooth, learned=Oracle(*smooth))
    assert found.plan.learned is not None and found.plan.corrections == 1
    assert all("times" not in p.prior for p in found.evidence.priors)


def test_between_two_corrections_the_nonlocal_prior_goes_on_from_the_first(shot):
    """x <- x + 0.7 f(x) with four iterations of the non-local prior between, which keep most of the misfit."""
    A, y, _ = shot
    step, variance = LearnedStep.of(stirred(SIZE), A, None), torch.full_like(y, 1e-4)
    problem = Problem(smooth_basis(6, 5).float(), variance)
    result, state = problem.solve(A, y, 6)
    seen: list[Record] = []
    watch = Watch(Run(monitor=lambda record, z: seen.append(record)))
    watch.add(result.history)

    found, times = corrected_often(step, A, y, result, problem, state, watch, 2)
    assert times == 2

    x = step(A, y, result.x, variance, share=0.7, views=1).x
    gone_on = replace(state, z=analyse(x, problem.basis), e=0.8 * state.e)
    x = problem.solve(A, y, 4, state=gone_on, sigma=0.25)[0].x
    torch.testing.assert_close(found.x, step(A, y, x, variance, share=0.7).x)
    assert [record.iteration for record in seen] == [8, 9, 10, 11]
    assert [record.iteration for record in found.history] == list(range(1, 13))

    stop = Watch(Run(monitor=lambda record, z: True))
    halted, times = corrected_often(step, A, y, result, problem, state, stop, 2)
    assert times == 1
    torch.testing.assert_close(halted.x, step(A, y, result.x, variance, share=0.7, views=1).x)


@pytest.mark.usefixtures("certain")
def test_a_plan_repeats_as_many_corrections(smooth):
    A, y, _ = smooth
    found = auto(smooth, learned=Oracle(*smooth))
    plan = Plan.from_dict(found.plan.as_dict())
    assert plan.corrections == found.plan.corrections == CORRECTIONS
    plan = replace(plan, learned=found.plan.learned)
    again, once = (reconstruct_auto(A, y, method=Method(plan=p)) for p in (plan, replace(plan, corrections=1)))
    assert len(again.result.history) == len(once.result.history) + (CORRECTIONS - 1) * (BETWEEN + 1)
    older = {key: value for key, value in found.plan.as_dict().items() if key != "corrections"}
    assert Plan.from_dict(older).corrections == 1


@pytest.mark.usefixtures("certain")
def test_a_plan_that_is_stopped_tells_how_often_it_corrected(smooth):
    A, y, _ = smooth
    plan = auto(smooth, learned=Oracle(*smooth)).plan
    first, second, *_ = reconstruct_auto(A, y, method=Method(plan=plan)).as_dict()["corrected_at"]
    corrections = []
    for stop_at in (first + 1, second + 1, 3):
        run = Run(monitor=lambda record, z, stop_at=stop_at: record.iteration >= stop_at)
        stopped = reconstruct_auto(A, y, method=Method(plan=plan), run=run)
        corrections.append(len(stopped.as_dict()["corrected_at"]))
        assert stopped.result.history[-1].iteration == (stopped.as_dict()["corrected_at"] or [3])[-1]
    assert corrections == [1, 2, 0]


def test_a_tile_is_corrected_in_units_of_its_frame(shot):
    A, y, _ = shot
    step, B, x = LearnedStep.of(stirred(SIZE), A, None), smooth_basis(6, 4).float(), A.pinv(y)
    start = Result(x, (Record(1, 0.0, 0.1, 0.1),), "max_iters")

    def of(level: float | None) -> torch.Tensor:
        return corrected(step, A, y, start, Problem(B, torch.full_like(y, 1e-4), level)).x

    own = brightness(A, y)
    torch.testing.assert_close(of(own), of(None))
    assert float((of(2 * own) - of(own)).norm()) > 1e-3 * float(x.norm())
    # what lies beside a tile may be twice as bright: its network sees what that of the frame sees
    wanted = step(A, y, x, torch.full_like(y, 1e-4), level=2 * own).x
    torch.testing.assert_close(of(2 * own), wanted)


def test_weights_from_a_file(shot, tmp_path):
    A, y, _ = shot
    save_prior(stirred(SIZE), tmp_path / "w.safetensors")
    found = reconstruct(y, A.mask, step=1, prior="learned", weights=tmp_path / "w.safetensors")
    assert found.choice["learned"] is True
    assert found.parameters["weights"] == "w.safetensors"


def test_what_does_not_go_together_is_refused(shot, tmp_path):
    with pytest.raises(InputError, match="unknown prior 'x', expected one of auto, tv, nonlocal, learned"):
        Method(prior="x")
    with pytest.raises(InputError, match="prior 'tv' is a choice of solver \"auto\" without a plan"):
        Method("gap-tv", prior="tv")
    with pytest.raises(InputError, match="quality fast has no non-local prior, got prior 'nonlocal'"):
        Method(prior="nonlocal", quality="fast")
    with pytest.raises(InputError, match="means total variation alone, got prior 'learned'"):
        Method(prior="learned", num_iters=5)
    with pytest.raises(InputError, match="weights of a learned prior are of no use"):
        Method(prior="tv", learned=stirred(SIZE))
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="holds no learned prior"):
        reconstruct(shot[1], shot[0].mask, step=1, weights=tmp_path / "w.safetensors")
    if shipped_prior() is None:
        with pytest.raises(InputError, match="comes without a learned prior"):
            auto(shot, prior="learned")
