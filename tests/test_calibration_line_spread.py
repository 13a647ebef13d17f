"""The blur of the optics from a slit, against brute force and the simulated bench (which shares no code with it)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage

from cassi.calibration.estimate import Calibration, calibrate
from cassi.calibration.line_spread import Slit, fit_line_spread, sharpen, slit_profile
from cassi.errors import InputError
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.single_disperser import CASSI
from cassi.simulation.optical_bench import Bench, simulate_bench


def slit(sigma: float, *, width: float = 1.0, tilt: float = 0.02, noise: float = 0.0) -> np.ndarray:
    """By brute force, on a grid fifty times finer: a tilted slit, blurred, averaged over the pixels."""
    fine, rows = 50, []
    grid = (np.arange(60 * fine) + 0.5) / fine - 30
    for i in range(24):
        center = 0.37 + tilt * i
        light = (np.abs(grid - center) < width / 2).astype(float)
        rows.append(ndimage.gaussian_filter1d(light, sigma * fine).reshape(60, fine).mean(1))
    random = np.random.default_rng(0)
    return np.stack(rows) / width + 0.01 + noise * random.standard_normal((24, 60))


def hot_pixel() -> np.ndarray:
    image = 0.01 + 0.002 * np.random.default_rng(0).standard_normal((24, 60))
    image[5, 40] = 5
    return image


@pytest.mark.parametrize("sigma", [0.3, 0.8, 1.7])
@pytest.mark.parametrize("width", [0.5, 1.0, 3.0])
def test_the_blur_is_told_from_the_width_of_the_slit(sigma, width):
    found = fit_line_spread(slit(sigma, width=width, noise=0.002)[None], np.array([550.0]), slit_width=width)
    assert found.sigma[0] == pytest.approx(sigma, abs=0.04)


@pytest.mark.parametrize("column", [31, 40])
def test_hot_pixels_and_rows_without_light_change_nothing(column):
    image = slit(1.0, noise=0.002)
    image[5, column] = 30
    dark = 0.01 + 0.002 * np.random.default_rng(1).standard_normal((30, 60))
    found = fit_line_spread(np.concatenate([image, dark])[None], np.array([550.0]))
    assert found.sigma[0] == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("column", [30.0, 30.2])
def test_what_is_measured_of_an_upright_slit_belongs_to_the_middle_of_the_bins(column):
    offsets = np.arange(60) - column
    found = fit_line_spread(np.tile(slit_profile(offsets, 1.0, 1.0), (24, 1))[None], np.array([550.0]))
    drawn = np.isfinite(found.profiles[0])
    np.testing.assert_allclose(found.profiles[0][drawn], slit_profile(found.offsets[drawn], 1.0, 1.0), atol=0.01)
    assert found.profiles[0][drawn].sum() == pytest.approx(1, abs=0.01)


def test_a_sharp_slit_says_that_it_is_sharp_and_no_more():
    assert fit_line_spread(slit(0.03)[None], np.array([550.0])).sigma[0] == pytest.approx(0.1)


def test_the_profile_is_that_of_the_slit():
    image = slit(1.0, width=2.0, tilt=0.0)
    columns = np.arange(60) - 29.5
    np.testing.assert_allclose(slit_profile(columns - 0.37, 1.0, 2.0), image[0] - 0.01, atol=2e-3)
    assert slit_profile(np.arange(-30.0, 31.0), 1.0, 2.0).sum() == pytest.approx(1)


def test_wavelengths_are_sorted_and_interpolated():
    images = np.stack([slit(1.5), slit(0.5)])
    found = fit_line_spread(images, np.array([650.0, 450.0]))
    assert found.wavelengths.tolist() == [450, 650]
    np.testing.assert_allclose(found.at(np.array([400.0, 550.0, 700.0])), [0.5, 1.0, 1.5], atol=0.03)


def test_sharpening_takes_a_blur_out_again():
    random = np.random.default_rng(0)
    sharp = ndimage.zoom((random.random((16, 24)) < 0.5).astype(float), 3, order=0)
    soft = ndimage.gaussian_filter1d(sharp, 1.0, axis=1, mode="nearest")
    again = sharpen(soft, 1.0, largest=1.0)
    assert np.abs(again - sharp).mean() < 0.4 * np.abs(soft - sharp).mean()
    assert again.min() >= 0
    assert again.max() <= 1


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"images": np.ones((1, 24, 60))}, "slit frame at 550 nm shows no slit"),
        ({"slit_width": 0.0}, "width of the slit's image must be positive"),
        ({"wavelengths": np.array([450.0, 550.0])}, "1 slit frames but the wavelengths"),
        ({"wavelengths": np.array([np.nan])}, "1 slit frames but the wavelengths"),
        ({"images": np.zeros((1, 0, 5))}, "must be"),
        ({"images": np.full((1, 24, 60), np.inf)}, "must be .* finite"),
        ({"images": np.ones((1, 1, 60))}, "shows no slit"),
        ({"images": slit(1.0, noise=0.002).T[None]}, "shows no slit"),
        ({"images": slit(1.0, tilt=0.5)[None]}, "no slit across the dispersion"),
        ({"images": slit(7.0)[None]}, "blurred by more than 6 px"),
        ({"images": slit(0.3)[None], "slit_width": 5.0}, "does not look like a slit 5 px wide"),
        ({"images": (slit(1.0) + np.roll(slit(1.0), 7, axis=1))[None]}, "does not look like a slit"),
        ({"images": hot_pixel()[None]}, "shows no slit"),
    ],
)
def test_errors_say_what_is_wrong(change, match):
    with pytest.raises(InputError, match=match):
        fit_line_spread(**{"images": slit(1.0)[None], "wavelengths": np.array([550.0]), **change})


# on the bench


def bench(*ends: float) -> Bench:
    return simulate_bench(64, 64, num_bands=8, blur=ends, generator=torch.Generator().manual_seed(0))


def calibrated(b: Bench, **options: object) -> Calibration:
    return calibrate(b.dark, b.flat, b.mask_frames, b.mask_wavelengths, slit=Slit(b.slit_frames), **options)


def test_the_blur_of_the_bench_is_found_and_becomes_part_of_the_camera(tmp_path):
    b = bench(0.8, 1.6)
    found = calibrated(b)
    np.testing.assert_allclose(found.line_spread.sigma, np.linspace(0.8, 1.6, 5), atol=0.04)
    A = found.operator()
    assert isinstance(A, BlurredCASSI)
    assert found.psf.shape[0] == 8
    spread = (found.psf * torch.arange(-(found.psf.shape[1] // 2), found.psf.shape[1] // 2 + 1) ** 2).sum(1).sqrt()
    np.testing.assert_allclose(spread, found.line_spread.at(found.wavelengths), rtol=0.01)
    # the masks are nearer to the aperture as it lies than those imaged
    as_imaged = calibrate(b.dark, b.flat, b.mask_frames, b.mask_wavelengths)
    assert as_imaged.psf is None
    truth = ndimage.convolve1d(b.mask, [0.25, 0.5, 0.25], axis=1)

    def error(masks: np.ndarray) -> float:
        inner = (..., slice(4, -4))
        return float(np.abs(masks[inner] / masks[inner].mean() - truth[inner] / truth[inner].mean()).mean())

    assert error(found.mask) < 0.75 * error(as_imaged.mask)
    assert any(
        "blur along the dispersion: sigma 0." in line and "part of the camera" in line for line in found.summary()
    )
    found.save(tmp_path / "c.h5")
    torch.testing.assert_close(Calibration.load(tmp_path / "c.h5").psf, found.psf)


def test_one_function_serves_all_bands_where_they_blur_alike():
    b = bench(1.0, 1.1)
    assert calibrated(b).psf.ndim == 1
    single = calibrate(b.dark, b.flat, b.mask_frames, b.mask_wavelengths, slit=Slit(b.slit_frames[2]))
    assert single.line_spread.sigma[0] == pytest.approx(1.05, abs=0.04)


def test_a_negligible_blur_leaves_the_fast_operator():
    b = bench(0.0, 0.0)
    found = calibrated(b)
    plain = calibrate(b.dark, b.flat, b.mask_frames, b.mask_wavelengths)
    assert found.line_spread.sigma.max() < 0.2
    assert isinstance(found.operator(), CASSI)
    np.testing.assert_array_equal(found.mask, plain.mask)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"frames": np.ones((5, 3, 3))}, "slit frames are .3, 3. pixels"),
        ({"wavelengths": [450.0, 650.0]}, "5 slit frames but 2 wavelengths"),
        ({"width": -1.0}, "width of the slit's image must be positive"),
    ],
)
def test_slit_frames_that_do_not_fit_are_refused(change, match):
    b = bench(0.0, 0.0)
    frames = replace(Slit(b.slit_frames), **change)
    with pytest.raises(InputError, match=match):
        calibrate(b.dark, b.flat, b.mask_frames, b.mask_wavelengths, slit=frames)
