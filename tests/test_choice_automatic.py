"""The automatic solver: what it chooses and from what, what must not sway it, and how far its cubes can be trusted."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import oracle
import pytest
import torch
from cases import make_mask

from cassi import CASSI, gap_tv
from cassi.choice import automatic, candidates, noise, plan, problem, refine
from cassi.choice.held_out import held_out_error, hold_out
from cassi.choice.noise import CameraNoise
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Effort, Method, Plan, Run, with_learned
from cassi.looking.metrics import psnr
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.detector import detect
from cassi.optics.multi_shot import MultiShot
from cassi.priors.gaussian_spectra import SpectralPrior
from cassi.priors.spectral_basis import smooth_basis
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.solvers.subspace_tv import subspace_tv


def camera(C=4, H=16, W=20, step=1) -> CASSI:
    return CASSI.from_step(random_mask(H, W, generator=torch.Generator().manual_seed(1)), step=step, num_bands=C)


def reconstruct_auto(A, y, *, wavelengths=None, gain=None, read_noise=None, library=None, **settings) -> Outcome:
    """`automatic.reconstruct_auto` with the fields of its values as arguments."""
    prior = None if library is None else SpectralPrior(torch.zeros(len(library)), library)
    run = Run(**{name: settings.pop(name) for name in ("seed", "budget", "monitor", "progress") if name in settings})
    return automatic.reconstruct_auto(
        A,
        y,
        wavelengths=wavelengths,
        noise=CameraNoise(gain, read_noise),
        method=Method(spectral_prior=prior, **settings),
        run=run,
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


def plain(choice: dict) -> object:
    """A choice to five digits: sums of a few thousand numbers may differ in the last from run to run."""
    return json.loads(json.dumps(choice), parse_float=lambda digits: f"{float(digits):.4e}")


# --- how good ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", ["clean", "noisy"])
def test_it_beats_gap_tv_with_the_weight_chosen_by_the_truth(still_life, found, noise):
    A, truth, clean, noisy = still_life
    y = clean if noise == "clean" else noisy.y
    others = [psnr(gap_tv(A, y, tv_weight=w, num_iters=50).x.clamp(0, 1), truth) for w in (0.05, 0.1, 0.2)]
    assert psnr(found[noise].result.x.clamp(0, 1), truth) > max(others) + 0.5


def test_clean_data_are_explained(still_life, found):
    A, _, y, _ = still_life
    x = found["clean"].result.x
    assert float((y - A.forward(x)).norm() / y.norm()) < 0.03
    assert float(x.min()) >= 0


def test_the_noise_is_found_and_not_fitted(still_life, found):
    """The variance at the mean level is estimated within a factor of 3; the residual is not far below the noise."""
    A, _, _y, noisy = still_life
    noise = found["noisy"].as_dict()["noise"]
    level = float(noisy.y.mean())
    true = level / noisy.gain + (5 / noisy.gain) ** 2
    assert true / 3 < noise["alpha"] * level + noise["beta"] < 3 * true
    assert noise["source"] == "errors at the held-out pixels"
    clean = found["clean"].as_dict()["noise"]
    assert clean["alpha"] * level + clean["beta"] < 0.5 * (noise["alpha"] * level + noise["beta"])
    residual = noisy.y - A.forward(found["noisy"].result.x)
    assert 0.2 < float((residual**2 / noisy.variance.clamp(min=(5 / noisy.gain) ** 2)).mean()) < 2


def test_other_held_out_pixels_give_nearly_the_same_cube(still_life, found):
    A, truth, y, _ = still_life
    other = reconstruct_auto(A, y, seed=1)
    assert abs(psnr(other.result.x, truth) - psnr(found["clean"].result.x, truth)) < 0.7
    assert float((other.result.x - found["clean"].result.x).norm() / other.result.x.norm()) < 0.1


def test_known_gain_and_read_noise_are_used(still_life):
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
    residual = (noisy.y - A.forward(told.result.x))[lit]
    expected = float((residual**2 / (variance[lit] * told.as_dict()["noise_share"])).mean())
    assert math.isclose(told.as_dict()["discrepancy"], expected, rel_tol=1e-3)


def test_gain_alone_means_no_read_noise(small):
    A, _, y = small
    assert reconstruct_auto(A, y, gain=250.0, num_iters=5).as_dict()["noise"]["beta"] == 0


# --- what it says --------------------------------------------------------------------------------------------------


def test_the_choice_is_complete_and_json_can_hold_it(found):
    for each in found.values():
        choice = each.as_dict()
        assert json.loads(json.dumps(choice, allow_nan=False)) == choice
        assert {"solver", "basis", "components", "candidates", "held_out_error", "seed", "noise", "reason"} <= set(
            choice
        )
        (best,) = (c for c in choice["candidates"] if all(c[k] == choice[k] for k in ("basis", "noise_share")))
        errors = [c["held_out_error"] for c in choice["candidates"]]
        assert best["held_out_error"] <= min(errors) / 0.95  # hardly behind the best
        assert choice["learned"] == bool(choice["corrected_at"])
        last = with_learned(choice["prior"], len(choice["corrected_at"]))
        assert {p["prior"]: p["held_out_error"] for p in choice["priors"]}[last] == choice["held_out_error"]
        assert choice["components"] == int(choice["basis"].rpartition("-")[2])
        assert choice["iterations"] == len(each.result.history)
        assert choice["basis"] in choice["evidence"]
        assert f"Built from {choice['components']} spectra learned from the scene" in choice["reason"]
        assert choice["reason"].count(". ") <= 2
        # the plan comes back from the file
        assert Plan.from_dict(choice["plan"]).as_dict() == each.plan.as_dict()


def test_candidates_are_run_without_the_held_out_pixels(small, monkeypatch):
    """Every run but the last leaves the same 2 % of the lit pixels out; the last has them all."""
    A, y, _ = small
    seen = []

    def spy(camera, measurement, *args, **settings):
        seen.append((camera.weights, measurement.clone()))
        return subspace_tv(camera, measurement, *args, **settings)

    for module in (noise, problem):
        monkeypatch.setattr(module, "subspace_tv", spy)
    choice = reconstruct_auto(A, y, num_iters=5, seed=7).as_dict()
    held = hold_out(A.gram_diag() > 0, 7)
    assert len(seen) >= 3 and choice["held_out_pixels"] == int(held.sum())
    for weights, measurement in seen[:-1]:
        assert torch.equal(weights == 0, held) and not bool(measurement[held].any())
    assert (seen[-1][0] is None or bool((seen[-1][0] == 1).all())) and torch.equal(seen[-1][1], y)


def test_who_is_behind_at_half_way_is_not_gone_on_with(still_life, found, monkeypatch):
    """And whoever wins was ahead there of all that were best before; a full run of a dropped one would not have won."""
    A, _, y, _ = still_life
    tried = found["clean"].as_dict()["candidates"]
    assert {c["iterations"] for c in tried} == {candidates.CANDIDATE_ITERS // 2, candidates.CANDIDATE_ITERS}
    assert tried[0]["iterations"] == candidates.CANDIDATE_ITERS
    dropped = [c for c in tried if c["iterations"] < candidates.CANDIDATE_ITERS]
    errors = {}

    def watched(camera, measurement, basis, *, num_iters, monitor=None, **settings):
        """No candidate is ever stopped."""
        if num_iters == candidates.CANDIDATE_ITERS:
            monitor = None
        return subspace_tv(camera, measurement, basis, num_iters=num_iters, monitor=monitor, **settings)

    monkeypatch.setattr(problem, "subspace_tv", watched)
    monkeypatch.setitem(plan.EFFORTS, "default", Effort(5, 5))
    whole = reconstruct_auto(A, y).as_dict()
    errors = {(c["basis"], c["noise_share"]): c["held_out_error"] for c in whole["candidates"]}
    best = found["clean"].as_dict()
    for c in dropped:
        assert errors[c["basis"], c["noise_share"]] > 0.95 * errors[best["basis"], best["noise_share"]]
        assert f"{c['held_out_error']:.2%}, dropped after half of the iterations" in best["evidence"]


@pytest.mark.parametrize("basis", ["smooth-4", "scene-10"])
def test_a_plan_is_followed(small, basis):
    A, _, y = small
    found = reconstruct_auto(A, y, plan=Plan(basis, 0.3), num_iters=5)
    assert (found.as_dict()["basis"], found.as_dict()["noise_share"]) == (basis, 0.3)
    assert [(c["basis"], c["noise_share"]) for c in found.as_dict()["candidates"]] == [(basis, 0.3)]


def test_the_plan_of_a_choice_gives_its_cube_again(small):
    A, _, y = small
    first = reconstruct_auto(A, y, num_iters=20)
    again = reconstruct_auto(A, y, plan=Plan(first.as_dict()["basis"], first.as_dict()["noise_share"]), num_iters=20)
    torch.testing.assert_close(again.result.x, first.result.x, rtol=1e-4, atol=1e-4)


def test_a_plan_with_an_unknown_basis_is_refused(small):
    A, y, _ = small
    with pytest.raises(ValueError, match=r"the plan's basis must be one of smooth-4, scene-10, got 'smooth-16'"):
        reconstruct_auto(A, y, plan=Plan("smooth-16", 0.4))


@pytest.mark.parametrize("budget", [0.0, -1.0, math.inf, math.nan])
def test_a_budget_that_is_no_time_is_refused(small, budget):
    A, y, _ = small
    with pytest.raises(ValueError, match="budget must be a positive number of seconds"):
        reconstruct_auto(A, y, budget=budget)


def test_a_library_of_spectra_competes(small):
    A, y, _ = small
    flat = torch.eye(4) * 1e-6 + torch.ones(4, 4)
    names = {c["basis"] for c in reconstruct_auto(A, y, library=flat, num_iters=5).as_dict()["candidates"]}
    assert any(n.startswith("library") for n in names) and any(n.startswith("smooth") for n in names)


def test_wavelengths_shape_the_basis(small):
    A, y, _ = small
    even = reconstruct_auto(A, y, num_iters=30)
    told = reconstruct_auto(A, y, wavelengths=[450, 500, 550, 600], num_iters=30)
    torch.testing.assert_close(told.result.x, even.result.x, rtol=1e-3, atol=1e-3)  # equal spacing: the same basis


def test_the_spectra_of_a_large_frame_are_learned_from_all_of_it(monkeypatch):
    """The window that the plan is chosen on lies where the texture is, most of the light has another spectrum."""
    monkeypatch.setattr(automatic, "PART", 24)
    for module in (automatic, candidates):
        monkeypatch.setattr(module, "SCENE_COMPONENTS", 2)
    generator = torch.Generator().manual_seed(3)
    rising, arched = torch.linspace(0, 1, 6), torch.tensor([0.0, 0.6, 1.0, 1.0, 0.6, 0.0])
    x = arched[:, None, None].expand(6, 48, 48).clone()
    x[:, :24, :24] = rising[:, None, None] * 3 * (torch.rand(24, 24, generator=generator) > 0.5)
    A = CASSI.from_step(torch.rand(48, 48, generator=generator), step=1, num_bands=6)
    chosen, evidence = automatic.choose_plan(A, A.forward(x), method=Method(num_iters=5))
    assert evidence.part == (slice(0, 24), slice(0, 24))
    B = chosen.vectors.float()
    assert float((arched - B.T @ (B @ arched)).norm() / arched.norm()) < 0.05


# --- what must not matter ------------------------------------------------------------------------------------------


def test_deterministic(small):
    A, _, y = small
    one, two = (reconstruct_auto(A, y, num_iters=30, seed=5) for _ in range(2))
    torch.testing.assert_close(one.result.x, two.result.x)
    assert plain(one.as_dict()) == plain(two.as_dict())


@pytest.mark.parametrize("scale", [4096.0, 2.0**-10, 1000.0])
def test_counts_or_unit_interval(small, scale):
    """A power of two changes no digit; another constant changes rounding only."""
    A, _, y = small
    one, other = reconstruct_auto(A, y, num_iters=60), reconstruct_auto(A, y * scale, num_iters=60)
    assert all(one.as_dict()[k] == other.as_dict()[k] for k in ("basis", "noise_share", "components", "iterations"))
    tolerance = 1e-3 if scale == 1000.0 else 1e-6
    torch.testing.assert_close(other.result.x / scale, one.result.x, rtol=tolerance, atol=tolerance)
    assert math.isclose(other.as_dict()["held_out_error"], one.as_dict()["held_out_error"], rel_tol=1e-3)
    told = [reconstruct_auto(A, s * y, gain=300 / s, read_noise=3.0, num_iters=60).result.x / s for s in (1.0, scale)]
    torch.testing.assert_close(told[0], told[1], rtol=tolerance, atol=tolerance)


def test_bad_pixels_have_no_say(small):
    """Weight 0 in the operator: absurd values there, zeroed with the weights, change nothing, nor are they held out."""
    A, _, y = small
    bad = torch.rand(y.shape, generator=torch.Generator().manual_seed(6)) < 0.05
    seen = A.weighted((~bad).float())
    cubes = []
    for absurd in (0.0, 1e6, -1e6):
        z = torch.where(bad, absurd, y) * seen.weights
        cubes.append(reconstruct_auto(seen, z, num_iters=60))
    for each in cubes[1:]:
        torch.testing.assert_close(each.result.x, cubes[0].result.x)
        assert plain(each.as_dict()) == plain(cubes[0].as_dict())
    assert not bool((hold_out(seen.gram_diag() > 0, 0) & bad).any())
    whole = reconstruct_auto(A, y, num_iters=60).result.x
    assert float((cubes[0].result.x - whole).norm() / whole.norm()) < 0.3


def test_monitor_and_num_iters(small):
    A, y, _ = small
    seen = []
    result = reconstruct_auto(A, y, num_iters=40, monitor=lambda r, z: (seen.append(r.iteration), len(seen) == 3)[1])
    assert seen == [1, 2, 3] and result.result.status == "stopped"
    assert len(reconstruct_auto(A, y, num_iters=7).result.history) == 7


class Clock:
    """A clock that each iteration moves on: by 10 ms, twenty times as much with a prior other than total variation."""

    def __init__(self) -> None:
        self.now, self.iterations = 0.0, 0

    def perf_counter(self) -> float:
        return self.now

    def run(self, *args, monitor=None, **settings):
        def tick(record, z):
            self.now += 0.2 if settings.get("denoise") else 0.01
            self.iterations = record.iteration
            return monitor is not None and monitor(record, z)

        return subspace_tv(*args, monitor=tick, **settings)


@pytest.mark.parametrize("quality", ["fast", "default", "best"])
@pytest.mark.parametrize("budget", [5.0, 10.0, 40.0, 1e9])
def test_the_budget_is_kept(small, monkeypatch, budget, quality):
    """Within the budget where the least that is done fits in it, most of it used, and not without end."""
    A, _, y = small
    clock = Clock()
    for module in (automatic, refine):
        monkeypatch.setattr(module, "time", clock)
    for module in (noise, problem):
        monkeypatch.setattr(module, "subspace_tv", clock.run)
    monkeypatch.setattr(problem.Problem.solve, "__kwdefaults__", {**problem.Problem.solve.__kwdefaults__, "tol": 0.0})
    choice = reconstruct_auto(A, y, budget=budget, quality=quality).as_dict()
    assert clock.now <= max(budget, 2.5)
    assert choice["iterations"] <= 3 * plan.EFFORTS[quality].tv_all
    assert any("non-local" in p["prior"] for p in choice["priors"]) == (quality != "fast")
    if budget <= 10 and quality == "fast":
        assert clock.now > 0.6 * budget, "half the time is left unused"


# --- odd measurements ----------------------------------------------------------------------------------------------


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
    A = {
        "all bad": A.weighted(torch.zeros_like(y)),
        "closed mask": CASSI(torch.zeros(16, 20), A.shifts),
    }.get(kind, A)
    y = -y if kind == "negative" else torch.zeros_like(y)
    each = reconstruct_auto(A, y, num_iters=20)
    json.dumps(each.as_dict(), allow_nan=False)
    assert bool(torch.isfinite(each.result.x).all())
    if kind != "negative":
        assert not bool(each.result.x.any())


@pytest.mark.parametrize("dim", [0.0, 0.02])
def test_read_noise_in_the_dark_stays_bounded(dim):
    """An offset-corrected frame with next to no light: negative half the time."""
    A = camera(8, 32, 32)
    y = dim * A.forward(scene(A))
    y = y + 0.2 * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
    each = reconstruct_auto(A, y, num_iters=100)
    assert float(each.result.x.max()) < 3 * float(y.max())


def test_other_cameras():
    mask = random_mask(16, 20, generator=torch.Generator().manual_seed(1))
    other = random_mask(16, 20, generator=torch.Generator().manual_seed(2))
    shifts = (0, 1, 2, 3)
    for A in (BlurredCASSI(mask, (0.0, 1.5, 3.0, 4.5)), MultiShot((CASSI(mask, shifts), CASSI(other, shifts)))):
        truth = scene(camera())
        each = reconstruct_auto(A, A.forward(truth), num_iters=60)
        assert psnr(each.result.x, truth) > psnr(torch.full_like(truth, float(truth.mean())), truth)


def test_several_shots_always_end_with_the_non_local_prior(short, monkeypatch):
    """Whatever the held-out pixels say, and without the learned prior, which has never seen several shots."""
    monkeypatch.setattr(automatic, "EFFORTS", {"default": replace(short["default"], tolerance=-1.0, give_up=0.1)})
    monkeypatch.setattr(automatic, "shipped_prior", lambda: pytest.fail("asked for"))
    generator = torch.Generator().manual_seed(1)
    shots = tuple(CASSI(random_mask(16, 20, generator=generator), (0, 1, 2, 3)) for _ in range(2))
    truth = scene(camera())
    several = MultiShot(shots)
    found = reconstruct_auto(several, several.forward(truth))
    assert [p.prior for p in found.evidence.priors] == ["total variation", "non-local, 0.71", "non-local, 0.35"]
    assert found.plan.sigma is not None
    assert found.plan.iterations[1] == short["default"].first
    assert found.plan.noise_share == 1  # all that is estimated is noise


def test_errors(small):
    A, y, _ = small

    cases = [
        ({"y": y[None]}, r"one snapshot at a time: y must be \(16, 23\), got \(1, 16, 23\)"),
        ({"gain": 0.0}, "gain must be positive"),
        ({"gain": math.nan}, "gain must be positive"),
        ({"gain": 1.0, "read_noise": -1.0}, "the read noise must be >= 0"),
        ({"quality": "good"}, "unknown quality 'good', expected one of fast, default, best"),
        ({"library": torch.eye(3)}, r"spectral prior must have 4 bands, got \(3, 3\)"),
    ]
    for changed, message in cases:
        with pytest.raises(ValueError, match=message):
            reconstruct_auto(**{"A": A, "y": y, "num_iters": 3, **changed})


# --- parts ---------------------------------------------------------------------------------------------------------


def test_hold_out():
    lit = torch.rand(40, 50, generator=torch.Generator().manual_seed(0)) < 0.7
    held = hold_out(lit, 3)
    assert int(held.sum()) == round(0.02 * int(lit.sum())) and not bool((held & ~lit).any())
    assert torch.equal(held, hold_out(lit, 3)) and not torch.equal(held, hold_out(lit, 4))
    assert int(hold_out(lit, 3, 0.5).sum()) == round(0.5 * int(lit.sum()))
    assert int(hold_out(torch.ones(2, 2, dtype=torch.bool), 0).sum()) == 1


def test_held_out_error_by_hand():
    A = CASSI(torch.ones(1, 3, dtype=torch.float64), (0,))
    y, x = torch.tensor([[3.0, 4.0, 9.0]], dtype=torch.float64), torch.tensor([[[3.0, 1.0, 0.0]]], dtype=torch.float64)
    held = torch.tensor([[True, True, False]])
    assert held_out_error(A, y, x, held) == 0.6  # |(0, 3)| / |(3, 4)|


@pytest.mark.parametrize("kind", ["grey", "signed", "per-band", "dark-column"])
@pytest.mark.parametrize("weighted", [False, True])
def test_visibility_is_the_diagonal_of_the_projection(kind, weighted):
    mask, shifts = make_mask(kind, 3, 4, 5), (2, 0, -1)
    weights = None
    if weighted:
        rng = np.random.default_rng(0)
        weights = rng.uniform(0.5, 2, (4, 8)) * (rng.random((4, 8)) < 0.8)
    phi = oracle.matrix(mask, shifts, weights)
    A = CASSI(torch.from_numpy(mask), shifts, None if weights is None else torch.from_numpy(weights))
    expected = np.diag(np.linalg.pinv(phi) @ phi).reshape(3, 4, 5)
    np.testing.assert_allclose(A.visibility().numpy(), expected, atol=1e-12)


# --- the prior of the final run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bright():
    """A repeating pattern, which the non-local prior knows from elsewhere in the picture."""
    A = camera(6, 40, 40, step=1)
    tile = scene(camera(6, 8, 8), seed=7)
    return A, tile.repeat(1, 5, 5)


@pytest.fixture
def short(monkeypatch):
    """Efforts for a small scene, without a learned prior after them."""
    monkeypatch.setattr(automatic, "shipped_prior", lambda: None)
    monkeypatch.setattr(automatic, "NOISY", math.inf)  # a scene this small is never predicted well, noise or not
    efforts = {
        "fast": Effort(60, 60),
        "default": Effort(40, 60, (0.5,), 12, 12, give_up=1.5),
        "best": Effort(60, 240, (0.5, 0.2), 24, 64),
    }
    monkeypatch.setattr(automatic, "EFFORTS", efforts)
    return efforts


def test_best_takes_the_prior_that_predicts_the_held_out_pixels(bright, short):
    A, truth = bright
    y = A.forward(truth)
    usual, best = (reconstruct_auto(A, y, quality=q) for q in ("fast", "best"))
    tried = {p["prior"]: p["held_out_error"] for p in best.as_dict()["priors"]}
    assert list(tried) == ["total variation", "non-local, 0.5", "non-local, 0.2"]
    assert usual.as_dict()["priors"] == [] and usual.as_dict()["prior"] == "total variation"
    assert best.as_dict()["prior"] == min(tried, key=tried.get) != "total variation"
    assert best.as_dict()["held_out_error"] == tried[best.as_dict()["prior"]]
    assert psnr(best.result.x, truth) > psnr(usual.result.x, truth) + 1
    assert float(best.result.x.min()) >= 0
    history = best.result.history
    assert [r.iteration for r in history] == list(range(1, len(history) + 1))
    assert short["best"].tv_first + 24 < len(history) <= short["best"].tv_first + 64
    assert all(a.seconds < b.seconds for a, b in itertools.pairwise(history))
    assert f"Prior of the final run: {best.as_dict()['prior']}" in best.explain(verbose=True)
    # the cube is the one that was judged
    held = hold_out(A.gram_diag() > 0, seed=0)
    assert held_out_error(A, y, best.result.x, held) == pytest.approx(best.as_dict()["held_out_error"], rel=1e-4)


def test_the_default_ends_with_the_non_local_prior_where_there_is_noise(bright, short):
    A, truth = bright
    y = detect(A.forward(truth), full_well=1e4, read_noise=5.0, generator=torch.Generator().manual_seed(4)).y
    fast, usual = (reconstruct_auto(A, y, quality=q) for q in ("fast", "default"))
    errors = [p["held_out_error"] for p in usual.as_dict()["priors"]]
    assert usual.as_dict()["prior"] == "non-local, 0.5"
    assert errors[1] <= (1 + plan.CHANCE) * errors[0]
    assert psnr(usual.result.x, truth) > psnr(fast.result.x, truth) + 0.3


@pytest.mark.parametrize("quality", ["default", "best"])
def test_total_variation_goes_on_where_no_other_prior_predicts_as_well(bright, short, monkeypatch, quality):
    A, truth = bright
    effort = replace(short[quality], sigmas=(50.0,), first=8, most=8)  # smooths everything away
    monkeypatch.setattr(automatic, "EFFORTS", {quality: effort})
    found = reconstruct_auto(A, A.forward(truth), quality=quality)
    tried = [p["held_out_error"] for p in found.as_dict()["priors"]]
    assert tried[1] > 1.1 * tried[0]
    assert found.as_dict()["prior"] == "total variation"
    assert [r.iteration for r in found.result.history] == list(range(1, effort.tv_all + 1))


def test_a_hopeless_prior_is_given_up_at_half_way(bright, short, monkeypatch):
    A, truth = bright
    effort = replace(short["default"], sigmas=(50.0,), first=8, most=8, give_up=1.1)
    monkeypatch.setattr(automatic, "EFFORTS", {"default": effort})
    seen = []
    reconstruct_auto(A, A.forward(truth), monitor=lambda record, z: seen.append(record.iteration))
    others = len(seen) - effort.tv_all
    assert others == 4  # of 8


def test_a_run_that_fits_noise_is_over(small):
    """Once its error is 5 % above its lowest; the cube is the last within the limit."""
    A, _, y = small
    errors = iter([9.0, 8.0, 7.0, 7.2, 7.3, 7.4, 7.0])
    told = SimpleNamespace(A_train=A, y_train=y, y=y, error=lambda x: next(errors))
    task = problem.Problem(smooth_basis(4, 4).to(y), torch.zeros_like(y))
    _, state = task.solve(A, y, 2)
    run = refine._NonlocalRun(told, task, 0.1, refine.fresh(state), 7.0, 7.25, Effort(2, 2, (0.1,), 20, 20))
    run.go_on(20, refine.Watch(Run()))
    assert (len(run.history), run.kept_at, run.kept_error, run.lowest) == (12, 8, 7.2, 7.0)


@pytest.mark.parametrize(
    ("before", "after", "limit"), [(0.0069, 0.0054, 0.0060), (0.0180, 0.0178, 0.01869), (0.01, 0.02, 0.021)]
)
def test_what_another_prior_may_give_back(before, after, limit):
    """Of what total variation has gained two fifths, or 5 %."""
    assert plan.EFFORTS["default"].limit(before, after) == pytest.approx(limit)
    assert plan.EFFORTS["best"].limit(before, after) == pytest.approx(1.02 * after)
    assert plan.EFFORTS["default"].strengths(before, after) == ((0.35,) if after < 0.93 * before else (0.5,))


def test_the_non_local_prior_is_left_out_where_asked_or_impossible(bright, short):
    A, truth = bright
    assert reconstruct_auto(A, A.forward(truth), quality="best", num_iters=5).as_dict()["priors"] == []
    narrow = camera(4, 16, 4)
    assert reconstruct_auto(narrow, narrow.forward(torch.ones(4, 16, 4)), quality="best").as_dict()["priors"] == []


@pytest.mark.parametrize("when", [3, 50, 61, 63])
def test_a_monitor_stops_all_runs(bright, short, when):
    """In the first run, in it once more, and in the one that follows; the cube so far is returned."""
    A, truth = bright
    seen = []
    found = reconstruct_auto(
        A, A.forward(truth), quality="best", monitor=lambda r, z: seen.append(r.iteration) or len(seen) == when
    )
    assert seen == list(range(1, when + 1))
    assert len(found.result.history) <= when and found.result.status == "stopped"
    assert bool(torch.isfinite(found.result.x).all())


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

    for module in (noise, problem):
        monkeypatch.setattr(module, "subspace_tv", watched)
    x = reconstruct_auto(A.weighted(good), A.forward(scene) * good).result.x
    assert len(seen) > 3 and all(not y[good == 0].any() for y in seen)
    assert float((x - scene).norm() / scene.norm()) < 0.05
