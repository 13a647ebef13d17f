"""A photograph is found in its place, its response and noise are told, and files say what is wrong with them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from messages import refused, refuses
from PIL import Image
from scipy.ndimage import gaussian_filter

from cassi import CASSI, SidePicture
from cassi.photograph.picture import read_side_picture, write_side_picture
from cassi.photograph.registration import MIN_CORRELATION, _fit, register
from cassi.photograph.response import estimate_noise, fit_gain, fit_response, fit_tone_curve, misfit
from cassi.photograph.similarity import Similarity
from cassi.simulation.camera import side_photograph


def scene(seed: int = 0, size: int = 64) -> torch.Tensor:
    """Blobs of three spectra, (6, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    maps = F.avg_pool2d((torch.rand(3, size, size, generator=generator) > 0.9).float(), 5, 1, 2)
    spectra = torch.tensor(
        [[1.0, 0.8, 0.6, 0.4, 0.3, 0.2], [0.2, 0.5, 1.0, 1.0, 0.5, 0.2], [0.1, 0.1, 0.2, 0.5, 0.8, 1]]
    )
    return torch.einsum("khw,kc->chw", maps, spectra) + 0.05


def camera(size: int = 64) -> CASSI:
    return CASSI.from_step(torch.rand(size, size, generator=torch.Generator().manual_seed(1)), step=1, num_bands=6)


def test_a_moved_turned_larger_picture_is_found_to_a_few_hundredths_of_a_pixel():
    x, A = scene(), camera()
    blurred = F.avg_pool2d(x, 3, 1, 1)  # a first cube is not sharp
    true = Similarity(1.5, 2.0, 1.5, -2.5)
    R = torch.full((1, 6), 1 / 6)
    found = register(side_photograph(x, R, pose=true).permute(2, 0, 1), A, A.forward(x), blurred, R)
    assert found.correlation > 0.8 > MIN_CORRELATION
    corner = 32  # a pixel at the border
    assert abs(found.pose.scale / true.scale - 1) * corner < 0.1
    assert abs(np.radians(found.pose.angle - true.angle)) * corner < 0.1
    assert abs(found.pose.rows - true.rows) < 0.1
    assert abs(found.pose.columns - true.columns) < 0.1


def test_a_picture_of_another_scene_does_not_fit():
    x, A = scene(), camera()
    R = torch.full((1, 6), 1 / 6)
    assert register(side_photograph(scene(5), R).permute(2, 0, 1), A, A.forward(x), x, R).correlation < MIN_CORRELATION


def test_a_scale_that_runs_away_stays_within_what_pictures_have():
    ways = (lambda pose: torch.tensor([pose.scale, 0, 0, 0]), lambda pose: torch.tensor([1 / pose.scale, 0, 0, 0]))
    least, most = (_fit(Similarity(2.0), (64, 64), misfit).scale for misfit in ways)
    assert 0.05 < least < 2 < most < 41


def test_response_and_gain_of_a_known_scene():
    x, w = scene(), torch.ones(64, 64)
    R = torch.tensor([[0.0, 0.0, 0.1, 0.2, 0.4, 0.3], [0.4, 0.4, 0.2, 0.0, 0.0, 0.0]])
    s = 3 * torch.einsum("kc,chw->khw", R, x)
    torch.testing.assert_close(fit_gain(R, x, s, w), 3 * R)
    flat = torch.full((2, 6), 1 / 6)
    wrong = misfit(fit_gain(flat, x, s, w), x, s, w)
    found = fit_response(flat, x, s, w)
    assert misfit(found, x, s, w) < min(0.05, wrong / 3) and bool((found >= 0).all())
    assert misfit(fit_response(flat, x, s, 0 * w), x, s, 0 * w) == float("inf"), "where nothing is seen"


def test_noise_is_told_from_smooth_parts_beside_detail():
    rng = np.random.default_rng(0)
    light = np.linspace(0.1, 1, 200) * np.ones((200, 1))
    light[:, 100:] *= 1 + 0.5 * (rng.random((200, 100)) > 0.5)  # half of it is all detail
    alpha, beta = estimate_noise(light + np.sqrt(4e-4 * light) * rng.standard_normal(light.shape))
    assert 0.5 < (alpha * 0.3 + beta) / (4e-4 * 0.3) < 2


@pytest.mark.parametrize("rounding", [0.0, 1e-9])
def test_a_picture_without_noise_has_none(rounding):
    """Painted, or of few bits: its smooth parts are all alike but for rounding, and its edges are no noise."""
    picture = np.full((60, 80), 0.5)
    picture[20:30, 30:50] = 0.1
    assert estimate_noise(picture + rounding * np.random.default_rng(0).random(picture.shape)) == (0.0, 0.0)


def test_an_eight_bit_picture_comes_back_as_it_was_written(tmp_path):
    light = np.random.default_rng(0).random((20, 30, 3))
    write_side_picture(tmp_path / "p.png", light)
    side = read_side_picture(tmp_path / "p.png")
    assert side.channels == 3 and side.linear is None and side.clip == 255
    coded = side.picture / 255
    linear = np.where(coded <= 0.04045, coded / 12.92, ((coded + 0.055) / 1.055) ** 2.4)
    np.testing.assert_allclose(linear, light, atol=0.006)


def test_files_that_cannot_be_used(tmp_path):
    refused(read_side_picture, tmp_path / "none.png")
    (tmp_path / "text.png").write_text("no picture")
    refused(read_side_picture, tmp_path / "text.png")
    Image.fromarray(9 * np.eye(20, dtype=np.uint8)).save(tmp_path / "grey.png")
    refused(write_side_picture, tmp_path / "two.png", np.ones((20, 20, 2)))
    assert isinstance(read_side_picture(tmp_path / "grey.png"), SidePicture)


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 2 2\n%%EndComments\n(any program)\n%%EOF\n"


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".tif", ".eps"])
@pytest.mark.parametrize("kind", ["EPS", "BMP", "GIF", "PPM", "TGA"])
def test_only_the_parsers_of_the_named_formats_see_a_picture(tmp_path, monkeypatch, suffix, kind):
    """That of PostScript would start a program, which is in the file."""
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("it was run"))
    path = tmp_path / f"p{suffix}"
    path.write_bytes(EPS) if kind == "EPS" else Image.new("L", (20, 20)).save(path, format=kind)
    with refuses(hide=r"p\.\w+"):
        read_side_picture(path)


@pytest.mark.parametrize("coding", ["linear", "display", "camera"])
def test_a_tone_curve_is_found_from_a_blurred_scene(coding):
    generator = torch.Generator().manual_seed(5)
    light = torch.rand(2, 12, 12, generator=generator).repeat_interleave(8, 1).repeat_interleave(8, 2)
    light = light * (0.7 + 0.3 * torch.rand(2, 96, 96, generator=generator))
    display = light ** (1 / 2.2)
    values = {"linear": light, "display": display, "camera": display**2 * (3 - 2 * display)}[coding]
    scene = torch.from_numpy(gaussian_filter(light.numpy(), (0, 2, 2)))
    found = fit_tone_curve(values, torch.ones(96, 96), 0.3 * scene)(values)

    def error(image: torch.Tensor) -> float:
        return float((light - ((light * image).sum() / image.square().sum()) * image).norm() / light.norm())

    assert error(found) < 0.07
    assert coding == "linear" or error(values) > 2 * error(found)
    assert bool((found.flatten()[values.flatten().argsort()].diff() >= -1e-6).all())
