"""The automatic solver: what it chooses and from what, what must not sway it, and how far its cubes can be trusted."""

import json
import math
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from messages import refused

from cassi import CASSI, MultiShot, gap_tv
from cassi.choice import automatic, bases, stages
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan
from cassi.evidence import fitting
from cassi.evidence.held_out import Split, hold_out
from cassi.evidence.noise import CameraNoise, fit_noise
from cassi.looking.metrics import psnr
from cassi.optics.detector import brightness, detect
from cassi.settings import Settings
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.solvers.subspace_tv import subspace_tv


def camera(C=4, H=16, W=20, step=1) -> CASSI:
    return CASSI.from_step(random_mask(H, W, generator=torch.Generator().manual_seed(1)), step=step, num_bands=C)


def reconstruct_auto(A, y, *, wavelengths=None, gain=None, read_noise=None, **settings) -> Outcome:
    """`automatic.reconstruct_auto` with the fields of its values as arguments."""
    watch = stages.Watch(settings.pop("monitor", None), settings.pop("progress", lambda step, share: None))
    watch.deadline = time.perf_counter() + settings.pop("budget", math.inf)
    return automatic.reconstruct_auto(
        A, y, wavelengths=wavelengths, noise=CameraNoise(gain, read_noise), settings=Settings(**settings), watch=watch
    )


def scene(A: CASSI, seed: int = 3) -> torch.Tensor:
    C, H, W = A.cube_shape
    return procedural_scene(H, W, np.linspace(450, 650, C).tolist(), generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def still_life():
    """64 x 64 pixels in 12 bands: camera, truth, and the measurement clean and with 1,000 electrons and read noise."""
    A = camera(12, 64, 64, step=2)
    truth = scene(A)
    y = A.forward(truth)
    return A, truth, y, detect(y, full_well=1e3, read_noise=5.0, generator=torch.Generator().manual_seed(4))


@pytest.fixture(scope="module")
def found(still_life):
    """What the solver does with either, told nothing."""
    A, _, y, noisy = still_life
    return {"clean": reconstruct_auto(A, y), "noisy": reconstruct_auto(A, noisy.y)}


@pytest.fixture(scope="module")
def small():
    A = camera()
    y = A.forward(scene(A))
    return A, y, detect(y, full_well=1e3, read_noise=5.0, generator=torch.Generator().manual_seed(4)).y


@pytest.mark.parametrize("noise", ["clean", "noisy"])
def test_it_beats_gap_tv_with_the_weight_chosen_by_the_truth(still_life, found, noise):
    A, truth, clean, noisy = still_life
    y = clean if noise == "clean" else noisy.y
    others = [psnr(gap_tv(A, y, tv_weight=w, num_iters=50).x.clamp(0, 1), truth) for w in (0.05, 0.1, 0.2)]
    assert psnr(found[noise].result.x.clamp(0, 1), truth) > max(others) + 0.5


def test_clean_data_are_explained_and_noise_is_found_and_not_fitted(still_life, found):
    """The variance at the mean level is estimated within a factor of 3; the residual is not far below the noise."""
    A, _, y, noisy = still_life
    x = found["clean"].result.x
    assert float((y - A.forward(x)).norm() / y.norm()) < 0.03 and float(x.min()) >= 0
    noise, clean = (found[name].as_dict()["noise"] for name in ("noisy", "clean"))
    level = float(noisy.y.mean())
    true = level / noisy.gain + (5 / noisy.gain) ** 2
    assert true / 3 < noise["alpha"] * level + noise["beta"] < 3 * true
    assert noise["source"] == "errors at the held-out pixels"
    assert clean["alpha"] * level + clean["beta"] < 0.5 * (noise["alpha"] * level + noise["beta"])
    residual = noisy.y - A.forward(found["noisy"].result.x)
    assert 0.2 < float((residual**2 / (y / noisy.gain + (5 / noisy.gain) ** 2)).mean()) < 2


def test_unknown_noise_is_what_total_variation_leaves(still_life, found):
    A, _, _y, noisy = still_life
    split = Split.with_blocks(A, noisy.y, 0)
    first = automatic.explore_snapshot(split, 12, CameraNoise(), Settings(), split.y)[0]
    problem, watch = first.problem(noisy.y, brightness(split.A_train, split.y_train)), stages.Watch()
    x = stages.Tv(200).run(split.A_train, split.y_train, problem, None, watch).x
    left, plan = fit_noise(split, split.misfit(x.clamp(min=0)).square()), found["noisy"].plan
    assert (plan.noise.alpha, plan.noise.beta) == pytest.approx((left.alpha, left.beta), rel=1e-3)
    assert plan.noise != first.noise
    dark = replace(split, y=torch.where(noisy.y < noisy.y.quantile(0.6), 0, noisy.y))  # half of it reads 0
    assert fit_noise(dark, 0.01 * dark.values + 1e-8).alpha == pytest.approx(0.01, rel=0.01)


def test_other_held_out_pixels_give_nearly_the_same_cube(still_life, found):
    A, truth, y, _ = still_life
    assert abs(psnr(reconstruct_auto(A, y, seed=1).result.x, truth) - psnr(found["clean"].result.x, truth)) < 0.7
    for prior in ("tv", "nonlocal"):
        one, two = (reconstruct_auto(A, y, seed=seed, prior=prior).result.x for seed in (0, 1))
        assert float((one - two).norm() / two.norm()) < 0.1


def test_known_gain_and_read_noise_are_used(still_life, small):
    """Gain alone means no read noise."""
    A, _, y = small
    found = reconstruct_auto(A, y, gain=250.0, num_iters=5)
    assert found.as_dict()["noise"]["beta"] == 0 and len(found.result.history) == 5
    A, truth, _, noisy = still_life
    told = reconstruct_auto(A, noisy.y, gain=noisy.gain, read_noise=5.0, num_iters=200)
    noise = told.as_dict()["noise"]
    assert math.isclose(noise["alpha"], 1 / noisy.gain) and math.isclose(noise["beta"], 25 / noisy.gain**2)
    assert "gain" in noise["source"]
    best = max(psnr(gap_tv(A, noisy.y, tv_weight=w, num_iters=50).x.clamp(0, 1), truth) for w in (0.1, 0.2))
    assert psnr(told.result.x.clamp(0, 1), truth) > best
    # the discrepancy is the mean of residual^2 / variance where light arrives
    lit = A.gram_diag() > 0
    variance = noisy.y.clamp(min=0) / noisy.gain + 25 / noisy.gain**2
    expected = float(((noisy.y - A.forward(told.result.x))[lit] ** 2 / variance[lit]).mean())
    assert math.isclose(told.as_dict()["discrepancy"], expected, rel_tol=1e-3)


def test_the_choice_is_complete_and_json_can_hold_it(found):
    for each in found.values():
        choice = each.as_dict()
        assert json.loads(json.dumps(choice, allow_nan=False)) == choice
        assert {"solver", "basis", "components", "trials", "held_out_error", "seed", "noise", "reason"} <= set(choice)
        taken = [trial for trial in choice["trials"] if trial["accepted"]]
        assert taken[-1]["held_out_error"] == choice["held_out_error"]
        assert choice["components"] == len(each.plan.vectors) == int(choice["basis"].rpartition("-")[2])
        assert choice["iterations"] == len(each.result.history)
        assert f"Built from {choice['components']} spectra learned from the scene" in choice["reason"]
        assert choice["reason"].count(". ") <= 2
        assert len(choice["stages"]) == len(each.plan.stages)
        assert Plan.from_dict(choice["plan"]).as_dict() == each.plan.as_dict()


@pytest.mark.parametrize("part", [320, 12], ids=["small", "large"])
def test_every_run_is_without_the_held_out_pixels(small, monkeypatch, part):
    monkeypatch.setattr(automatic, "PLAN_SIDE", part)
    A, y, _ = small
    split, seen = Split.with_blocks(A, y, 7), []
    held, marked = split.held, 2 * y.max()

    def spy(camera, measurement, *args, **settings):
        seen.append((camera.weights, measurement.clone()))
        return subspace_tv(camera, measurement, *args, **settings)

    for module in (fitting, stages):
        monkeypatch.setattr(module, "subspace_tv", spy)
    choice = reconstruct_auto(A, torch.where(held, marked, y), num_iters=5, seed=7).as_dict()
    assert len(seen) == 2 if part == 320 else len(seen) > 2
    assert choice["held_out_pixels"] == len(split.indices)
    for weights, measurement in seen:
        assert not bool((measurement == marked).any())
        if part == 320 or measurement.shape == y.shape:  # others see a window
            assert torch.equal(weights == 0, held) and not bool(measurement[held].any())
    assert seen[-1][1].shape == y.shape


def test_the_spectra_of_a_large_frame_are_learned_from_all_of_it(monkeypatch):
    """The window that the plan is chosen on lies where the texture is, most of the light has another spectrum."""
    monkeypatch.setattr(automatic, "PLAN_SIDE", 24)
    monkeypatch.setattr(bases, "SCENE_COMPONENTS", 2)
    generator = torch.Generator().manual_seed(3)
    rising, arched = torch.linspace(0, 1, 6), torch.tensor([0.0, 0.6, 1.0, 1.0, 0.6, 0.0])
    x = arched[:, None, None].expand(6, 48, 48).clone()
    x[:, :24, :24] = rising[:, None, None] * 3 * (torch.rand(24, 24, generator=generator) > 0.5)
    A = CASSI.from_step(torch.rand(48, 48, generator=generator), step=1, num_bands=6)
    chosen, evidence = automatic.choose_plan(A, A.forward(x), settings=Settings(num_iters=5))
    assert evidence.part == (slice(0, 24), slice(0, 24))
    B = chosen.vectors.float()
    assert float((arched - B.T @ (B @ arched)).norm() / arched.norm()) < 0.05


@pytest.mark.parametrize("size", [(1, 16, 20), (2, 4, 4), (4, 4, 4), (1, 1, 1), (9, 1, 1), (3, 1, 5)])
def test_tiny_cameras(size):
    A = camera(*size)
    y = A.forward(torch.rand(size, generator=torch.Generator().manual_seed(0)))
    each = reconstruct_auto(A, y, num_iters=20, uncertainty=True)
    json.dumps(each.as_dict(), allow_nan=False)
    assert each.result.x.shape == size and bool(torch.isfinite(each.result.x).all()) and float(each.result.x.min()) >= 0
    assert each.uncertainty.shape == size and bool((each.uncertainty >= 0).all())


@pytest.mark.parametrize("kind", ["dark", "negative", "all bad", "closed mask"])
def test_measurements_that_say_nothing(small, kind):
    A, y, _ = small
    A = {"all bad": A.weighted(torch.zeros_like(y)), "closed mask": CASSI(torch.zeros(16, 20), A.shifts)}.get(kind, A)
    each = reconstruct_auto(A, -y if kind == "negative" else torch.zeros_like(y), num_iters=20)
    json.dumps(each.as_dict(), allow_nan=False)
    assert bool(torch.isfinite(each.result.x).all())
    if kind != "negative":
        assert not bool(each.result.x.any())


@pytest.mark.parametrize("dim", [0.0, 0.02])
def test_read_noise_in_the_dark_stays_bounded(dim):
    """An offset-corrected frame with next to no light: negative half the time."""
    A = camera(8, 32, 32)
    y = dim * A.forward(scene(A)) + 0.2 * torch.randn(A.measurement_shape, generator=torch.Generator().manual_seed(0))
    assert float(reconstruct_auto(A, y, num_iters=100).result.x.max()) < 3 * float(y.max())


def test_several_shots_take_the_fine_stages_of_one_with_a_stronger_prior():
    """Patches of two shots hold twice the light, which a coarse run would wash out."""
    several = MultiShot((camera(), CASSI(camera().mask.flip(0), (0, 1, 2, 3))))
    one, two = (
        [s for s in automatic.default_stages(A, Settings())[1][0] if isinstance(s, stages.NonLocal)]
        for A in (camera(), several)
    )
    assert [s.sigma for s in two] == pytest.approx([2**0.5 * s.sigma for s in one if s.sigma < one[0].sigma])
    wide = MultiShot((camera(8), CASSI(camera(8).mask.flip(0), tuple(range(8)))))
    for quality in ("fast", "default", "best"):
        assert stages.Learned() in automatic.default_stages(wide, Settings(quality=quality))[1][0]


def test_errors(small):
    A, y, _ = small
    for changed in [{"y": y[None]}, *({"gain": gain} for gain in (0.0, math.nan))]:
        refused(reconstruct_auto, error=ValueError, **{"A": A, "y": y, "num_iters": 3, **changed})


def test_hold_out():
    lit = torch.rand(40, 50, generator=torch.Generator().manual_seed(0)) < 0.7
    held = hold_out(lit, 3)
    assert int(held.sum()) == round(0.02 * int(lit.sum())) and not bool((held & ~lit).any())
    assert torch.equal(held, hold_out(lit, 3)) and not torch.equal(held, hold_out(lit, 4))
    assert int(hold_out(lit, 3, 0.5).sum()) == round(0.5 * int(lit.sum()))
    assert int(hold_out(torch.ones(2, 2, dtype=torch.bool), 0).sum()) == 1


def test_bad_pixels_of_several_shots_are_left_out(monkeypatch):
    """Holding pixels out keeps the weights of the shots: no run, short or long, sees a bad pixel."""
    generator = torch.Generator().manual_seed(3)
    masks = (torch.rand(2, 24, 24, generator=generator) > 0.5).float()
    scene = torch.linspace(0.2, 1, 24).expand(24, 24) * torch.linspace(1, 2, 4).view(4, 1, 1)
    A = MultiShot(tuple(CASSI(mask, (0, 1, 2, 3)) for mask in masks))
    good = (torch.rand(A.measurement_shape, generator=generator) > 0.2).float()
    seen = []

    def watched(camera, *args, **settings):
        seen.append(camera.forward(torch.ones_like(scene)))
        return subspace_tv(camera, *args, **settings)

    for module in (fitting, stages):
        monkeypatch.setattr(module, "subspace_tv", watched)
    x = reconstruct_auto(A.weighted(good), A.forward(scene) * good).result.x
    assert len(seen) > 2 and all(not y[good == 0].any() for y in seen)
    assert float((x - scene).norm() / scene.norm()) < 0.05


@pytest.mark.parametrize("alike", [False, True])
def test_where_errors_are_alike_centers_of_blocks_judge_all_that_stages_choose(monkeypatch, alike):
    """Errors of the cube to start from are those at the same pixels."""
    seen, verdict = dict[float, int](), Split.verdict

    def spy(split, x, *, imprint=True):
        found = verdict(split, x, imprint=imprint)
        seen[found.error] = len(found.squared)
        return found

    monkeypatch.setattr(Split, "verdict", spy)
    monkeypatch.setattr(Split, "correlation", lambda split, x, variance: 0.2 if alike else 0.0)
    generator = torch.Generator().manual_seed(0)
    A = CASSI(torch.rand(152, 152, generator=generator), (0, 1, 2, 3))
    y = A.forward(torch.ones(4, 152, 152))
    evidence = reconstruct_auto(A, y + 0.05 * torch.randn(y.shape, generator=generator)).evidence
    assert evidence is not None and len(evidence.trials) > 1
    lit = int((A.majorizer() > 0).sum())
    assert evidence.held_out_pixels == pytest.approx(50 if alike else 0.015 * lit, rel=0.07)
    assert {seen[trial.held_out_error] for trial in evidence.trials} == {evidence.held_out_pixels}
