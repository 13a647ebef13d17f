"""One call from a measurement to a cube: scale, stacks, bad pixels, inference, errors."""

import json
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import two_squares
from messages import refused, refuses

from cassi import CASSI, reconstruct
from cassi.choice import automatic
from cassi.choice.stages import NonLocal, Tv
from cassi.looking.metrics import psnr
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.detector import black_level_of
from cassi.optics.measurement import Measurement
from cassi.optics.psf import gaussian_psf
from cassi.running import pipeline
from cassi.settings import SOLVERS
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

TV_SOLVERS = [name for name in SOLVERS if name.endswith("tv") or name == "subspace"]
H, W, C, STEP = 24, 20, 4, 2


@pytest.fixture(scope="module")
def camera() -> CASSI:
    return CASSI.from_step((torch.rand(H, W, generator=torch.Generator().manual_seed(1)) > 0.5).float(), STEP, C)


@pytest.fixture(scope="module")
def scene() -> torch.Tensor:
    return two_squares()


@pytest.fixture(scope="module")
def y(camera: CASSI, scene: torch.Tensor) -> torch.Tensor:
    return camera.forward(scene)


@pytest.mark.parametrize("solver", SOLVERS)
def test_each_frame_of_a_stack_is_reconstructed_as_if_it_were_alone(camera, y, solver):
    frames = torch.stack([y, 500 * y.flip(0)])
    stack = reconstruct(frames, camera.mask, num_bands=C, solver=solver, num_iters=5)
    assert stack.cube.shape == (2, C, H, W)
    assert stack.residual_image.shape == frames.shape
    for k in range(2):
        alone = reconstruct(frames[k], camera.mask, num_bands=C, solver=solver, num_iters=5)
        assert torch.equal(stack.cube[k], alone.cube)
    assert len(stack.choice["frames"]) == 2


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_stands_at_a_bad_pixel_does_not_matter(camera, y, solver):
    bad = torch.zeros(H, W + STEP * (C - 1), dtype=torch.bool)
    bad[3, 7] = bad[10, 11] = True
    cubes = []
    for value, given in ((0.0, bad), (1e6, bad.numpy()), (math.nan, bad.tolist()), (-math.inf, bad)):
        spoiled = y.masked_fill(bad, value)
        result = reconstruct(spoiled, camera.mask, num_bands=C, bad_pixels=given, solver=solver, num_iters=5)
        assert not result.residual_image[bad].any()
        cubes.append(result.cube)
    assert all(torch.equal(cubes[0], cube) for cube in cubes[1:])
    ignored = reconstruct(y.masked_fill(bad, 1e6), camera.mask, num_bands=C, solver=solver, num_iters=5)
    assert not torch.allclose(ignored.cube, cubes[0], rtol=0.1)


def test_a_measurement_object_brings_everything_along(camera, y):
    nm = np.array([450.0, 500.0, 560.0, 650.0])
    m = Measurement(y=y.numpy(), mask=camera.mask.numpy(), shifts=camera.shifts, wavelengths=nm, unit="photons")
    result = reconstruct(m, num_iters=4)
    same = reconstruct(y, camera.mask, shifts=camera.shifts, wavelengths=nm.tolist(), num_iters=4)
    assert torch.equal(result.cube, same.cube)
    assert result.unit == "photons"
    np.testing.assert_array_equal(result.wavelengths, nm)
    np.testing.assert_array_equal(same.wavelengths, nm)
    refused(reconstruct, m, camera.mask, step=2)


def test_bands_dispersed_to_the_left_and_a_mask_per_band(scene):
    masks = torch.rand(C, H, W, generator=torch.Generator().manual_seed(2))
    A = CASSI(masks, (0, -1, -2, -3))
    result = reconstruct(A.forward(scene), masks, shifts=(0, -1, -2, -3), solver="least-squares")
    torch.testing.assert_close(result.cube, A.pinv(A.forward(scene)))
    precise = reconstruct(A.forward(scene), CASSI(masks.double(), A.shifts), prior="learned")
    same = reconstruct(A.forward(scene), masks, shifts=(0, -1, -2, -3), prior="learned", camera="as-given")
    torch.testing.assert_close(precise.cube.float(), same.cube, rtol=0.02, atol=0.02)
    refused(reconstruct, A.forward(scene), CASSI(masks.half(), A.shifts))


@pytest.mark.parametrize("solver", SOLVERS)
def test_dispersion_between_pixels(camera, scene, solver):
    A = BlurredCASSI(camera.mask, (0.0, 1.7, 3.6, 5.5))
    y = A.forward(scene)
    result = reconstruct(y, camera.mask, shifts=A.shifts, solver=solver, num_iters=20)
    assert result.residual < 0.1
    rounded = reconstruct(y, camera.mask, shifts=(0, 2, 4, 6), solver=solver, num_iters=20)
    assert (result.cube - scene).norm() < (rounded.cube - scene).norm()


@pytest.mark.parametrize("solver", TV_SOLVERS)
def test_the_budget_stops_the_iteration(camera, y, solver):
    result = reconstruct(y, camera.mask, num_bands=C, solver=solver, num_iters=10_000, budget=0.05)
    assert result.status == "stopped"
    assert len(result.history) < 10_000
    assert all(record.seconds < 0.05 for record in result.history[:-1])


def test_a_mask_that_is_learned_is_only_read(camera, y):
    found = reconstruct(y, CASSI(camera.mask.clone().requires_grad_(), camera.shifts), num_iters=2)
    assert not found.cube.requires_grad and not found.residual_image.requires_grad


def test_the_automatic_choice_tells_its_evidence(camera, y):
    result = reconstruct(y, camera.mask, num_bands=C, gain=1000.0, read_noise=3.0, uncertainty=True, num_iters=20)
    assert result.choice["bases"]
    assert "Held-out error" in result.choice["reason"]
    assert json.loads(json.dumps(result.choice)) == result.choice
    assert result.uncertainty.shape == result.cube.shape
    assert (result.uncertainty >= 0).all() and result.uncertainty.any()
    # Phi^+ Phi is a projection: the trace is the number of lit detector pixels
    assert result.visibility.shape == result.cube.shape
    assert float(result.visibility.sum()) == pytest.approx(int((camera.gram_diag() > 0).sum()), rel=1e-4)
    assert (result.cube >= 0).all()
    scaled = reconstruct(100 * y, camera.mask, num_bands=C, gain=10.0, read_noise=3.0, uncertainty=True, num_iters=20)
    torch.testing.assert_close(scaled.cube / 100, result.cube, rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(scaled.uncertainty / 100, result.uncertainty, rtol=2e-2, atol=2e-3)


def test_the_monitor_sees_every_iteration_and_may_stop(camera, y):
    seen = []

    def monitor(record, cube):
        seen.append((record.iteration, float(cube.mean())))
        return record.iteration == 3

    result = reconstruct(y, camera.mask, num_bands=C, solver="gap-tv", monitor=monitor)
    assert [iteration for iteration, _ in seen] == [1, 2, 3] and result.status == "stopped"
    assert seen[-1][1] == pytest.approx(1, rel=0.2)  # the cube at mean level 1


def test_a_black_measurement_gives_a_black_cube(camera, y):
    result = reconstruct(torch.zeros_like(y), camera.mask, num_bands=C)
    assert not result.cube.any() and result.residual == 0


WRONG = {
    "no mask": {"mask": None}, "rank": {"measurement": torch.ones(5)}, "empty": {"measurement": torch.ones(0, 4)},
    "complex": {"measurement": torch.ones(H, W, dtype=torch.complex64)}, "mask rank": {"mask": torch.ones(W)},
    "rows": {"mask": torch.ones(H - 1, W)}, "nan": {"measurement": torch.full((H, W + 6), math.nan)},
    "inf mask": {"mask": torch.full((H, W), math.inf)}, "dark mask": {"mask": torch.zeros(H, W)},
    "width": {"num_bands": 6}, "twice": {"step": 2, "shifts": (0, 2, 4, 6)},
    "count": {"num_bands": 3, "shifts": (0, 2, 4, 6)}, "wavelengths": {"wavelengths": [450.0, 550.0]},
    "solver": {"solver": "magic"}, "quality": {"quality": "superb"},
    "quality of another": {"quality": "best", "solver": "gap-tv"}, "iterations": {"num_iters": 0},
    "weight": {"tv_weight": -1.0}, "weight of auto": {"tv_weight": 1.0},
    "uncertain": {"uncertainty": True, "solver": "gap-tv"}, "weightless": {"tv_weight": 1.0, "solver": "least-squares"},
    "budget": {"budget": 0.0}, "bad shape": {"bad_pixels": np.zeros((3, 3), bool)},
    "bad type": {"bad_pixels": np.zeros((H, W + 6))}, "all bad": {"bad_pixels": np.ones((H, W + 6), bool)},
    "gain": {"gain": -2.0}, "masked": {"measurement": np.ma.masked_equal(np.eye(H, W + 6), 1)},
    "negative mask": {"mask": -torch.ones(H, W)}, "in meters": {"wavelengths": [4.5e-7, 5e-7, 5.5e-7, 6e-7]},
    "read noise": {"read_noise": -2.0}, "noise of no gain": {"read_noise": 5.0},
    "black level": {"black_level": math.nan}, "bands": {"num_bands": -1}, "shifts": {"shifts": (0.0, math.nan)},
    "blur": {"psf": -1}, "device": {"device": "toaster"}, "no such device": {"device": "cuda:99"},
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_used_is_said_in_one_line(camera, y, case):
    call = {"measurement": y, "mask": camera.mask} | WRONG[case]
    with refuses() as caught:
        reconstruct(call.pop("measurement"), call.pop("mask"), **call)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "settings"),
    [(lambda y: -y, {}), (lambda y: y.max() - y, {}), (lambda y: y, {"black_level": 0.99, "camera": "as-given"})],
)
def test_light_is_not_negative(changed, settings):
    A = CASSI.from_step(random_mask(40, 40, generator=torch.Generator().manual_seed(2)), 1, 8)
    y = A.forward(torch.rand(8, 40, 40, generator=torch.Generator().manual_seed(3)) + 1)
    settings = {name: value * float(y.max()) if name == "black_level" else value for name, value in settings.items()}
    refused(reconstruct, changed(y), A.mask, num_bands=8, **settings)
    refused(reconstruct, changed(y), A, **{"black_level": settings.get("black_level")})


def test_a_plan_leaves_nothing_to_choose_and_is_for_its_bands(camera, y):
    plan = reconstruct(y, camera, quality="fast").plan
    for settings in (
        {"num_iters": 5}, {"quality": "best"}, {"gain": 1000.0}, {"gain": 1000.0, "read_noise": 2.0},
    ):  # fmt: skip
        refused(reconstruct, y, camera, plan=plan, **settings)
    other = CASSI.from_step(camera.mask, STEP, C - 1)
    less = other.forward(torch.ones(C - 1, H, W))
    for mask, settings in ((other, {}), (camera.mask, {"num_bands": C - 1})):
        refused(reconstruct, less, mask, plan=plan, **settings)


def test_the_lines_of_the_readme_run(monkeypatch, capsys):
    root = Path(__file__).parent.parent
    monkeypatch.chdir(root)
    # that the lines run is what is tested
    monkeypatch.setattr(automatic, "default_stages", lambda A, method: (Tv(10), ()))
    monkeypatch.setattr("cassi.self_calibration.search.find_camera", lambda m, **settings: None)
    monkeypatch.setattr("cassi.sequence.neighbors.alternating_stages", lambda sigma, *noise: (NonLocal(sigma, 2),))
    for part in ("SINGLE_FRAME_ITERS", "MULTI_FRAME_ITERS"):
        monkeypatch.setattr(f"cassi.sequence.neighbors.{part}", 5)
    code = re.search(r"```python\n(.*?)```", (root / "README.md").read_text(), re.DOTALL)
    assert code is not None
    names: dict[str, object] = {}
    exec(code[1], names)
    assert names["x"].shape == (28, 256, 256)
    assert "with total variation" in capsys.readouterr().out.splitlines()[-1]


def test_knowing_the_blur_is_worth_3_db():
    """A dispersion of 1.7 px a band and a Gaussian blur of 1 px, against whole pixels and no blur."""
    generator = torch.Generator().manual_seed(0)
    truth = procedural_scene(40, 40, torch.linspace(450, 650, 6).tolist(), generator=generator)
    mask = random_mask(40, 40, generator=generator)
    shifts = [1.7 * c for c in range(6)]
    y = BlurredCASSI(mask, tuple(shifts), psf=gaussian_psf(1.0).float()).forward(truth)
    settings = {"solver": "subspace", "num_iters": 25}
    right = reconstruct(y, mask, shifts=shifts, psf=1.0, **settings).cube
    taps = reconstruct(y, mask, shifts=shifts, psf=gaussian_psf(1.0), **settings).cube
    whole = [round(d) for d in shifts]
    wrong = reconstruct(y[:, : 40 + whole[-1]], mask, shifts=whole, **settings).cube
    assert torch.equal(right, taps)
    assert psnr(right, truth) > psnr(wrong, truth) + 3


@pytest.fixture(scope="module")
def dim():
    """A camera with many pixels that no light reaches, and a snapshot of a scene through it."""
    generator = torch.Generator().manual_seed(3)
    A = CASSI.from_step((torch.rand(64, 64, generator=generator) > 0.5).float(), step=2, num_bands=8)
    return A, A.forward(torch.rand(8, 64, 64, generator=generator).cumsum(-1) / 40)


@pytest.mark.parametrize("solver", ["auto", "gap-tv"])
def test_a_black_level_left_in_is_found_and_taken_off(dim, solver):
    A, y = dim
    noisy = y + 0.01 * torch.randn(y.shape, generator=torch.Generator().manual_seed(4))
    settings = {"num_bands": 8, "solver": solver, "num_iters": 30}
    clean, lifted = reconstruct(noisy, A.mask, **settings), reconstruct(noisy + 0.5, A.mask, **settings)
    assert "black_level" not in clean.choice
    assert lifted.choice["black_level"] == pytest.approx(0.5, abs=0.005)
    torch.testing.assert_close(lifted.cube, clean.cube, atol=0.05 * float(clean.cube.max()), rtol=0)
    torch.testing.assert_close(lifted.residual_image.mean(), clean.residual_image.mean(), atol=0.005, rtol=0)
    assert "black_level" not in reconstruct(noisy + 0.5, A.mask, black_level=0.0, **settings).choice
    told = reconstruct(noisy + 0.5, A.mask, black_level=0.5, **settings)
    torch.testing.assert_close(told.cube, clean.cube, atol=1e-3, rtol=1e-3)
    if solver == "auto":
        assert "black level of 0.5" in lifted.choice["reason"]


def test_frames_of_a_stack_have_black_levels_of_their_own(dim):
    A, y = dim
    found = reconstruct(torch.stack([y + 0.5, y, y + 1]), A.mask, num_bands=8, solver="least-squares")
    levels = [choice.get("black_level", 0.0) for choice in found.choice["frames"]]
    assert levels == pytest.approx([0.5, 0.0, 1.0], abs=0.01)


def test_hot_pixels_do_not_lift_the_black_level(dim):
    """One dark pixel in ten reads twenty times the noise too much, which would lift their mean by twice the noise."""
    A, y = dim
    generator = torch.Generator().manual_seed(5)
    lifted = y + 0.5 + 0.1 * torch.randn(y.shape, generator=generator)
    dark = A.response() < 0.05 * A.response().median()
    hot = dark & (torch.rand(y.shape, generator=generator) < 0.1)
    assert int(hot.sum()) >= 5
    assert black_level_of(A, torch.where(hot, lifted + 2, lifted)) == pytest.approx(black_level_of(A, lifted), abs=0.01)


def test_light_that_leaks_through_closed_elements_is_no_black_level():
    """A tenth of the light passes them; it goes with the light of the scene, which falls to a tenth over the frame."""
    mask = (torch.rand(64, 64, generator=torch.Generator().manual_seed(6)) > 0.5).float()
    scene = torch.linspace(1, 0.2, 64).expand(6, 64, 64) * torch.linspace(1, 0.5, 64)[:, None]
    A, leaking = (CASSI.from_step(m, step=2, num_bands=6) for m in (mask, 0.9 * mask + 0.1))
    y = leaking.forward(scene)
    assert black_level_of(A, y) == 0
    assert black_level_of(A, A.forward(scene) + 1) == pytest.approx(1)
    good = torch.ones_like(y)
    good[30, 30], y[30, 30] = 0, torch.nan
    assert black_level_of(A.weighted(good), y) == 0


def test_light_is_no_black_level(dim):
    """Bad pixels are not looked at, and where light reaches every pixel there is nothing to tell it from."""
    A, y = dim
    bad = torch.zeros(A.measurement_shape, dtype=torch.bool)
    bad[:5] = True
    lifted = torch.where(bad, y + 100, y)
    assert "black_level" not in reconstruct(lifted, A.mask, num_bands=8, bad_pixels=bad, solver="least-squares").choice
    # where elements of both signs cancel, light arrives all the same
    signs = torch.ones(2, 32, 32)
    signs[1, :, ::4] = -1
    y = CASSI(signs, (0, 0)).forward(torch.stack([torch.full((32, 32), 3.0), torch.ones(32, 32)]))
    assert "black_level" not in reconstruct(y, signs, shifts=(0, 0), solver="least-squares").choice
    full = CASSI.from_step(torch.ones(16, 16), step=0, num_bands=3)
    y = full.forward(torch.ones(3, 16, 16)) + 1
    assert "black_level" not in reconstruct(y, full.mask, shifts=(0, 0, 0), solver="least-squares").choice


def test_least_squares_with_a_wrong_blur_stays_bounded(dim):
    A, y = dim
    assert reconstruct(y, A.mask, num_bands=8, solver="least-squares", psf=1.0, num_iters=200).residual < 1


def test_the_time_that_finding_the_camera_takes_counts_against_the_budget(monkeypatch):
    original, budgets = pipeline.reconstruct_auto, []
    monkeypatch.setattr("cassi.self_calibration.search.find_camera", lambda m, **settings: time.sleep(0.3))

    def solve(*a, watch, **k):
        budgets.append(watch.deadline - time.perf_counter())
        return original(*a, watch=watch, **k)

    monkeypatch.setattr(pipeline, "reconstruct_auto", solve)
    mask = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
    y = CASSI.from_step(mask, 2, 4).forward(torch.ones(4, 16, 16))
    for camera in ("find", "as-given"):
        reconstruct(y, mask, num_bands=4, num_iters=2, budget=100.0, camera=camera)
    assert budgets[0] <= 99.7 and budgets[0] < budgets[1]
    reconstruct(torch.stack([y, y]), mask, num_bands=4, num_iters=2, budget=100.0, camera="as-given")
    assert budgets[2] <= 50 < budgets[3] <= 100, "a stack shares it"
