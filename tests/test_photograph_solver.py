"""A photograph beside the snapshot: a better cube, or the same as without it."""

import json
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch
from messages import check_refusal, refused
from scipy.ndimage import gaussian_filter, rotate

import cassi
from cassi import CASSI, SidePicture
from cassi.choice.stages import Learned, Tv
from cassi.cli.main import main
from cassi.evidence import judge
from cassi.looking.metrics import psnr
from cassi.optics.measurement import Measurement
from cassi.photograph import solver
from cassi.photograph.picture import expected_response, read_side_picture
from cassi.photograph.similarity import Similarity
from cassi.photograph.solver import _fill_blank_corners
from cassi.priors.spectral_basis import smooth_basis
from cassi.simulation.camera import random_mask, side_photograph
from cassi.simulation.scene import procedural_scene

WAVELENGTHS = np.linspace(450, 650, 8)


@pytest.fixture(scope="module")
def snapshot():
    generator = torch.Generator().manual_seed(3)
    x = procedural_scene(48, 48, torch.from_numpy(WAVELENGTHS), generator=generator)
    mask = random_mask(48, 48, generator=generator)
    y = CASSI.from_step(mask, 2, 8).forward(x)
    return x, mask, y, cassi.reconstruct(y, mask, num_bands=8, wavelengths=WAVELENGTHS, camera="as-given")


def photograph(x: torch.Tensor) -> np.ndarray:
    R = torch.from_numpy(expected_response(3, WAVELENGTHS, 8))
    return side_photograph(x, R, pose=Similarity(1.5, 1.0, 2.0, -2.0)).numpy()


def test_a_color_picture_is_worth_decibels(snapshot, monkeypatch):
    (x, mask, y, alone), judged = snapshot, list[float]()

    def accepts(new, old):
        judged.append(float(old.squared.mean()))
        return judge.accepts(new, old)

    monkeypatch.setattr(solver, "accepts", accepts)
    side = SidePicture(photograph(x))
    found = cassi.reconstruct(y, mask, num_bands=8, wavelengths=WAVELENGTHS, camera="as-given", side=side)
    assert psnr(found.cube.clamp(0, 1), x) > psnr(alone.cube.clamp(0, 1), x) + 3
    assert found.choice["side"]["used"]
    assert 0.05 < judged[0] < 5, "errors count relative to the noise, which the snapshot is known to have"
    assert "photograph" in found.explain()
    assert json.loads(json.dumps(found.choice))["side"]["pose"][0] == pytest.approx(1.5, abs=0.01)
    assert found.plan.as_dict() == alone.plan.as_dict() == found.choice["plan"], "for snapshots without a picture, too"


def test_a_white_reference_is_solved_without_the_picture_of_the_scene(snapshot):
    (x, mask, y, _), told = snapshot, list[str]()
    A = CASSI.from_step(mask, 2, 8)
    white = Measurement(y=A.forward(torch.ones_like(x)).numpy(), mask=mask.numpy(), shifts=A.shifts)
    how = {"num_bands": 8, "camera": "as-given", "quality": "fast", "side": SidePicture(photograph(x)), "white": white}
    cassi.reconstruct(y, mask, **how, progress=lambda step, share: told.append(step))
    assert "photograph" in told and "white reference, photograph" not in told


@pytest.mark.parametrize("shape", ["as it was", "with all of it"])
def test_corners_without_data_carry_no_weight(snapshot, shape):
    """A picture that was turned by 5 degrees has black corners; one that was blurred by it, too, is worth nothing."""
    x, mask, y, alone = snapshot
    settings = {"num_bands": 8, "wavelengths": WAVELENGTHS, "camera": "as-given", "quality": "fast"}
    picture = side_photograph(x, torch.from_numpy(expected_response(3, WAVELENGTHS, 8)), pose=Similarity(2.0)).numpy()
    turned = rotate(picture, 5, axes=(0, 1), reshape=shape == "with all of it", order=3)
    found = cassi.reconstruct(y, mask, side=SidePicture(turned.clip(0)), **settings)
    assert found.choice["side"]["used"] and found.choice["side"]["pose"][1] == pytest.approx(-5, abs=0.2)
    assert psnr(found.cube.clamp(0, 1), x) > psnr(alone.cube.clamp(0, 1), x) + 2
    blurred = SidePicture(gaussian_filter(turned.clip(0), (2, 2, 0)))
    found = cassi.reconstruct(y, mask, side=blurred, **settings)
    assert not found.choice["side"]["used"] and "photograph" in found.explain()


def test_only_corners_that_are_black_in_all_channels_are_without_data():
    p = torch.full((2, 12, 12), 0.5)
    p[:, :2, :1] = 0  # a corner
    p[0, -3:, -3:] = 0  # red there
    p[:, 7, 7] = 0  # black, and in the picture
    filled, blank = _fill_blank_corners(p)
    expected = torch.zeros(12, 12, dtype=torch.bool)
    expected[:4, 0] = expected[:3, 1] = expected[:2, 2] = True  # two pixels farther
    assert torch.equal(blank, expected)
    assert bool((filled[:, blank] == 0.5).all()) and torch.equal(filled[:, ~blank], p[:, ~blank])
    assert not _fill_blank_corners(p[:, 5:-5, 5:-5])[1].any() and not _fill_blank_corners(0 * p)[1].any()


def test_what_the_monitor_has_stopped_looks_at_no_picture(snapshot):
    (x, mask, y, _), stop = snapshot, lambda record, z: True
    found = cassi.reconstruct(y, mask, num_bands=8, camera="as-given", side=SidePicture(photograph(x)), monitor=stop)
    assert found.status == "stopped" and "side" not in found.choice


def display(light: np.ndarray) -> np.ndarray:
    """sRGB, IEC 61966-2-1."""
    return np.where(light <= 0.0031308, 12.92 * light, 1.055 * np.maximum(light, 1e-9) ** (1 / 2.4) - 0.055)


@pytest.mark.parametrize(
    ("coded", "at_least", "said"),
    [
        (lambda light: np.round(255 * display(light)).astype(np.uint8), 3, "interpreted as coded for a display"),
        (lambda light: np.round(65535 * display(light)).astype(np.uint16), 3, "interpreted as coded for a display"),
        (lambda light: np.round(255 * light).astype(np.uint8), 3, "interpreted as linear"),
        (lambda light: np.round(255 * np.sin(np.pi / 2 * light**0.7)).astype(np.uint8), 1, "with a tone curve"),
    ],
    ids=["8-bit display", "16-bit display", "8-bit linear", "a camera's own curve"],
)
def test_values_of_a_picture_file_are_told_by_the_snapshot(snapshot, tmp_path, coded, at_least, said):
    x, mask, y, alone = snapshot
    picture = photograph(x).mean(2)
    np.save(tmp_path / "p.npy", coded(picture / picture.max()))
    side = read_side_picture(tmp_path / "p.npy")
    # total variation alone: enough to beat the default without the picture
    settings = {"num_bands": 8, "wavelengths": WAVELENGTHS, "camera": "as-given", "quality": "fast"}
    told: list[str] = []
    found = cassi.reconstruct(y, mask, side=side, **settings, progress=lambda step, share: told.append(step))
    steps = [step for step, _ in groupby(told)]
    assert len(steps) == len(set(steps)), "a step that was over goes on"
    assert said in found.explain()
    assert psnr(found.cube.clamp(0, 1), x) > psnr(alone.cube.clamp(0, 1), x) + at_least


@pytest.mark.parametrize("stated", ["rightly", "wrongly"])
def test_what_is_left_of_a_picture_counts_less_where_the_snapshot_alone_tells_little(stated):
    """Of bright specks a first cube leaves a fifth of the picture, however its values are read."""
    rng = np.random.default_rng(5)
    images = gaussian_filter(rng.standard_normal((3, 64, 64)), (0, 1, 1)) * np.array([1, 0.5, 0.3])[:, None, None]
    x = torch.from_numpy(np.tensordot(smooth_basis(WAVELENGTHS, 3).numpy().T, images, 1).astype(np.float32))
    x = ((x - x.min()) / (x.max() - x.min())) ** (8 if stated == "rightly" else 7)
    mask = random_mask(64, 64, generator=torch.Generator().manual_seed(1))
    y = CASSI.from_step(mask, 2, 8).forward(x)
    settings = {"num_bands": 8, "wavelengths": WAVELENGTHS, "camera": "as-given", "quality": "fast"}
    picture = photograph(x)
    side = SidePicture(picture if stated == "rightly" else display(picture / picture.max()), linear=True)
    found = cassi.reconstruct(y, mask, **settings, side=side)
    plan = replace(cassi.reconstruct(y, mask, **settings).plan, stages=(Tv(150), Learned()))
    alone = cassi.reconstruct(y, mask, num_bands=8, wavelengths=WAVELENGTHS, camera="as-given", plan=plan)
    at_least = 3 if stated == "rightly" else 0.15
    assert psnr(found.cube.clamp(0, 1), x) > psnr(alone.cube.clamp(0, 1), x) + at_least


def test_a_foreign_picture_changes_nothing(snapshot):
    _, mask, y, alone = snapshot
    other = procedural_scene(48, 48, torch.from_numpy(WAVELENGTHS), generator=torch.Generator().manual_seed(11))
    side = SidePicture(photograph(other.flip(-2)))
    found = cassi.reconstruct(y, mask, num_bands=8, wavelengths=WAVELENGTHS, camera="as-given", side=side)
    torch.testing.assert_close(found.cube, alone.cube)
    assert "photograph" in found.explain()


def test_what_does_not_go_with_a_picture_is_refused(snapshot):
    _, mask, y, _ = snapshot
    side = SidePicture(np.eye(64))
    for settings in ({"solver": "gap-tv"}, {"uncertainty": True}, {"prior": "tv"}, {"budget": 9.0}, {"num_iters": 9}):
        refused(cassi.reconstruct, y, mask, num_bands=8, camera="as-given", side=side, **settings)
    refused(cassi.reconstruct, torch.stack([y, y]), mask, num_bands=8, camera="as-given", side=side)
    curves = SidePicture(np.eye(64), np.ones((1, 5)))
    refused(cassi.reconstruct, y, mask, num_bands=8, camera="as-given", side=curves)


def test_the_command_line_makes_and_takes_one(tmp_path, capsys):
    m, p = tmp_path / "m.h5", tmp_path / "p.png"
    options = ["--size", "64", "--num-bands", "8", "--quiet"]
    assert main(["simulate", *options, "--side", str(p), "--output", str(m)]) == 0
    assert main(["reconstruct", str(m), "--side", str(p), "--dry-run"]) == 0
    check_refusal(capsys, main(["simulate", "--frames", "2", "--side", str(p), "--output", str(tmp_path / "v.h5")]))
    for bad, said in (
        (["--side", str(m)], "no photograph"),
        (["--side", str(p), "--tile", "32"], "--tile does not go with --side"),
        (["--side", str(p), "--solver", "gap-tv"], "--side needs --solver auto"),
    ):
        assert main(["reconstruct", str(m), "--dry-run", *bad]) == 2
        assert said in capsys.readouterr().err.strip().splitlines()[-1]
