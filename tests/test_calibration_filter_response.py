"""The filters of a mosaic sensor from frames of a bench whose truth is known."""

import h5py
import numpy as np
import pytest
from messages import check_refusal, refused

from cassi.calibration.filter_response import calibrate_filters
from cassi.cli.main import main
from cassi.files.options import ReadOptions
from cassi.files.reading import open_measurement

P = np.array([[0, 1, 2], [2, 0, 1]])
LIGHT = np.array([500.0, 450.0, 600.0, 550.0])


@pytest.fixture(name="bench")
def captured():
    """Dark, flat and narrow-band frames of 40 x 42 pixels, light that falls off, two bad pixels; R, and that."""
    rng = np.random.default_rng(0)
    R, k = rng.random((3, 4)) + 0.05, P[np.arange(40)[:, None] % 2, np.arange(42) % 3]
    even = 1 - 0.3 * ((np.mgrid[:40, :42] / 40 - 0.5) ** 2).sum(0)
    dark = np.full((2, 40, 42), 60.0)
    dark[:, 7, 9] = 900
    flat = dark + 2000 * even * np.array([0.2, 0.5, 1.0])[k]
    flat[:, 20, 21] = 60
    return dark, flat, dark[0] + 1500 * even * R.T[:, k], R, even


def test_responses_and_sensitivities_are_measured(bench):
    dark, flat, frames, R, even = bench
    found = calibrate_filters(dark, flat, frames, LIGHT, P)
    assert np.array_equal(found.wavelengths, np.sort(LIGHT))
    np.testing.assert_allclose(found.response, R[:, np.argsort(LIGHT)] / R.max(), rtol=0.02)
    assert {*zip(*map(list, np.nonzero(found.bad_pixels)), strict=True)} == {(7, 9), (20, 21)}
    good = ~found.bad_pixels
    np.testing.assert_allclose(found.sensitivity[good], (even / even[good].mean())[good], rtol=0.02)
    assert "450" in found.summary()[0]


def test_the_program_writes_a_camera_that_reads_raw_frames(bench, tmp_path, capsys):
    dark, flat, frames, R, _ = bench
    folder = tmp_path / "bench"
    folder.mkdir()
    for name, values in (("dark", dark), ("flat", flat), ("mask", frames)):
        np.save(folder / f"{name}_1.npy", np.round(values).astype(np.uint16))
    np.savetxt(folder / "wavelengths.txt", LIGHT)
    np.savetxt(tmp_path / "P.txt", P, fmt="%d")
    words = ["calibrate", str(folder), "--camera", "mosaic", "--output", str(tmp_path / "camera.h5")]
    check_refusal(capsys, main(words))
    assert main([*words, "--pattern", str(tmp_path / "P.txt")]) == 0
    assert (tmp_path / "camera_figures" / "response.png").is_file()
    np.save(tmp_path / "raw.npy", frames[0])
    m = open_measurement(tmp_path / "raw.npy", ReadOptions(mask=tmp_path / "camera.h5")).read()
    assert m.mask.shape == (4, 40, 42) and set(m.shifts) == {0} and m.mask_error == 0
    assert m.bad_pixels is not None and m.bad_pixels.sum() == 2 and m.sensitivity is not None
    assert np.array_equal(m.wavelengths, np.sort(LIGHT))
    with h5py.File(tmp_path / "camera.h5") as file:
        np.testing.assert_allclose(file["response"], R[:, np.argsort(LIGHT)] / R.max(), rtol=0.02)


def test_what_measures_no_filters_is_refused(bench):
    dark, flat, frames, *_ = bench
    refused(calibrate_filters, dark, flat, frames, LIGHT[:3], P)
    refused(calibrate_filters, dark, dark, frames, LIGHT, P)
    refused(calibrate_filters, dark, flat, frames, LIGHT, P[:, :2])
    refused(calibrate_filters, dark, flat, np.stack([*frames[:3], dark[0]]), LIGHT, P)
    refused(calibrate_filters, dark, flat[:, 1:], frames, LIGHT, P)
