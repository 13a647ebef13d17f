"""Colors against colour-science (where installed), against a plain integral, and by properties."""

import colorsys

import numpy as np
import pytest
import torch
from messages import refused

from cassi.looking.color import cube_to_srgb

BANDS = np.linspace(450, 650, 28)


def color_of(spectrum, wavelengths, **options):
    return cube_to_srgb(np.float32(spectrum)[:, None, None], wavelengths, **options)[0, 0]


def hue(rgb):
    return 360 * colorsys.rgb_to_hsv(*(float(v) for v in rgb))[0]


@pytest.mark.filterwarnings("ignore:Aligning")
def test_srgb_of_reflectances_against_colour_science():
    with np.printoptions():  # colour-science changes how numpy prints, for the whole process
        colour = pytest.importorskip("colour", reason="colour-science is not installed")
    wavelengths = np.arange(380, 781, 5.0)
    spectra = {
        "red": 0.05 + 0.6 / (1 + np.exp(-(wavelengths - 600) / 15)),
        "leaf": 0.06 + 0.2 * np.exp(-0.5 * ((wavelengths - 552) / 30) ** 2),
        "sky": 0.6 - 0.0012 * (wavelengths - 380),
    }
    for name, spectrum in spectra.items():
        distribution = colour.SpectralDistribution(dict(zip(wavelengths, spectrum, strict=True)))
        expected = colour.XYZ_to_sRGB(colour.sd_to_XYZ(distribution, illuminant=colour.SDS_ILLUMINANTS["D65"]) / 100)
        assert 0 < expected.min() and expected.max() < 1, "the test needs colors inside sRGB"
        np.testing.assert_allclose(color_of(spectrum, wavelengths, white=1.0), expected, atol=2e-3, err_msg=name)


def test_partial_range_and_unequal_spacing_against_a_plain_integral():
    from cassi.looking.color import _observer

    table = _observer()
    wavelengths = np.array([450.0, 455, 470, 500, 506, 540, 590, 600, 650])
    spectrum = np.array([0.3, 0.32, 0.4, 0.5, 0.52, 0.45, 0.3, 0.28, 0.2])
    grid = np.arange(380, 780.01, 0.5)
    seen = np.interp(grid, wavelengths, spectrum) * np.interp(grid, table[:, 0], table[:, 4])
    white = np.interp(grid, table[:, 0], table[:, 4])
    y_bar = np.interp(grid, table[:, 0], table[:, 2])
    luminance = np.trapezoid(seen * y_bar, grid) / np.trapezoid(white * y_bar, grid)
    srgb = color_of(spectrum, wavelengths, white=1.0).astype(float)
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    assert linear @ [0.2126, 0.7152, 0.0722] == pytest.approx(luminance, abs=2e-4)


@pytest.mark.parametrize("wavelengths", [BANDS, BANDS[::-1], np.array([400.0, 410, 700]), np.array([550.0])])
def test_flat_spectrum_is_neutral_gray(wavelengths):
    for level, encoded in ((1.0, 1.0), (0.5, 0.735357), (0.18, 0.461356), (0.0, 0.0)):
        found = color_of(np.full(len(wavelengths), level), wavelengths, white=1.0)
        np.testing.assert_allclose(found, encoded, atol=1e-5)


def test_single_bands_have_the_hue_of_their_wavelength():
    hues = {460: (215, 260), 500: (130, 175), 550: (80, 130), 590: (15, 50), 630: (-20, 15)}
    for wavelength, (low, high) in hues.items():
        spectrum = np.exp(-0.5 * ((BANDS - wavelength) / 6) ** 2)
        assert low <= (hue(color_of(spectrum, BANDS)) + 90) % 360 - 90 <= high, wavelength


def test_gamut_keeps_hue_and_never_leaves_the_unit_cube():
    cube = np.random.default_rng(1).normal(0.3, 1.0, (28, 40, 40))
    cube[:, 0, 0] = np.nan
    picture = cube_to_srgb(cube, BANDS)
    assert picture.shape == (40, 40, 3) and picture.dtype == np.float32
    assert np.isfinite(picture).all() and picture.min() >= 0 and picture.max() <= 1 and not picture[0, 0].any()
    orange = 1 / (1 + np.exp(-(BANDS - 575) / 5))
    moderate, bright = (color_of(scale * orange, BANDS, white=1.0) for scale in (0.3, 1.3))
    assert hue(bright) == pytest.approx(hue(moderate), abs=12)


def test_order_of_bands_and_scale_do_not_matter_and_unknown_wavelengths_give_the_documented_false_color():
    rng = np.random.default_rng(0)
    cube, shuffled = rng.random((28, 6, 5)).astype(np.float32), rng.permutation(28)
    expected = cube_to_srgb(cube, BANDS)
    np.testing.assert_allclose(cube_to_srgb(cube[shuffled], BANDS[shuffled]), expected, atol=1e-6)
    np.testing.assert_allclose(cube_to_srgb(torch.from_numpy(cube), torch.from_numpy(BANDS)), expected)
    np.testing.assert_allclose(cube_to_srgb(4095 * cube, BANDS), expected, atol=1e-5)
    for unseen in (None, BANDS + 500):
        np.testing.assert_array_equal(cube_to_srgb(cube, unseen), expected)
    assert not cube_to_srgb(0 * cube, BANDS).any()
    assert cube_to_srgb(np.zeros((28, 0, 4)), BANDS).shape == (0, 4, 3)
    for wrong, nm in ((cube[0], BANDS), (cube, BANDS[:5]), (cube, np.full(28, 500.0))):
        refused(cube_to_srgb, wrong, nm, error=ValueError)
