"""The simulated bench: what its frames must show, from the numbers that its docstring states."""

import numpy as np
import pytest
import torch
from messages import refused, refuses

from cassi.files import open_container, read_measurement
from cassi.simulation.optical_bench import Bench, dispersion, simulate_bench, write_bench


@pytest.fixture(scope="module")
def bench() -> Bench:
    return simulate_bench(64, 64, num_bands=8, generator=torch.Generator().manual_seed(0))


def test_dispersion_is_2_3_px_a_band_at_the_blue_end_and_1_8_at_the_red():
    band = 200 / 27
    d = dispersion(np.array([450.0, 450.001, 649.999, 650.0]), 28)
    assert d[0] == 0
    assert (d[1] - d[0]) / 0.001 * band == pytest.approx(2.3, rel=1e-4)
    assert (d[3] - d[2]) / 0.001 * band == pytest.approx(1.8, rel=1e-4)


def test_frames_are_twelve_bit_counts_of_one_size(bench):
    stacks = (bench.dark, bench.flat, bench.mask_frames, bench.snapshot[None])
    assert all(stack.dtype == np.uint16 and stack.shape[1:] == (64, 78) for stack in stacks)
    assert max(int(stack.max()) for stack in stacks) <= 4095
    assert bench.cube.shape == (8, 64, 64)
    assert bench.shifts == (0, 2, 4, 6, 8, 10, 12, 14)


def test_dark_frames_hold_the_dark_level_and_hot_pixels(bench):
    mean = bench.dark.mean(0)
    assert np.median(mean) == pytest.approx(60, abs=1)
    assert (mean[bench.hot_pixels] > 300).all()
    # 5 electrons of read noise at 15000 / 4095 electrons a count, and rounding
    spread = bench.dark[:, ~bench.hot_pixels].std(0, ddof=1)
    assert np.sqrt((spread**2).mean()) == pytest.approx(np.hypot(5 * 4095 / 15000, 12**-0.5), rel=0.02)


def test_the_mask_lies_where_it_was_put(bench):
    """Its difference from the drawn one is what a displacement by (0.4, -0.3) makes: a slope along each axis."""
    from scipy import ndimage

    drawn = ndimage.gaussian_filter(bench.design, 0.5)
    right, down = np.gradient(drawn, axis=1), np.gradient(drawn, axis=0)
    change = (bench.mask - drawn)[4:-4, 4:-4]
    assert (change * right[4:-4, 4:-4]).sum() < 0
    assert (change * down[4:-4, 4:-4]).sum() > 0


def test_the_snapshot_is_the_cube_through_the_mask_up_to_the_optics(bench):
    """The triple loop of the textbook, from the truth: it cannot be exact, the bench is continuous, but it is close."""
    y = np.zeros((64, 78))
    for band, d in zip(bench.cube, bench.shifts, strict=True):
        y[:, d : d + 64] += bench.mask * band
    response = (bench.flat - bench.dark.mean(0)).mean(0)
    good = ~(bench.hot_pixels | bench.dead_pixels)
    seen = (bench.snapshot - bench.dark.mean(0)) / (response / response.max()) / bench.counts_per_unit
    ratio = seen[good].sum() / y[good].sum()
    assert ratio == pytest.approx(1, abs=0.2)
    assert np.linalg.norm(seen[good] / ratio - y[good]) < 0.15 * np.linalg.norm(y[good])


@pytest.mark.parametrize("num_bands", [8, 28])
def test_a_white_surface_is_1_in_every_band(num_bands, monkeypatch):
    """However wide the bands are: the truth is a mean over each, not a count of samples."""
    white = "cassi.simulation.optical_bench.procedural_scene"
    monkeypatch.setattr(white, lambda height, width, light, generator: torch.ones(len(light), height, width))
    bench = simulate_bench(32, 32, num_bands=num_bands, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(bench.cube, 1, rtol=1e-6)


def test_the_seed_decides(bench):
    again, other = (simulate_bench(64, 64, num_bands=8, generator=torch.Generator().manual_seed(k)) for k in (0, 1))
    assert np.array_equal(bench.snapshot, again.snapshot) and not np.array_equal(bench.snapshot, other.snapshot)


def test_frames_are_read_back_equal(bench, tmp_path):
    assert len(write_bench(tmp_path / "bench", bench)) == len(list((tmp_path / "bench").iterdir()))
    names = {"dark_04": bench.dark[3], "flat_01": bench.flat[0], "mask_05": bench.mask_frames[4]}
    for name, frame in {**names, "snapshot": bench.snapshot}.items():
        container = open_container(tmp_path / "bench" / f"{name}.png")
        assert np.array_equal(container.read(container.entries[0]).reshape(frame.shape), frame)
    np.testing.assert_allclose(np.loadtxt(tmp_path / "bench" / "wavelengths.txt"), bench.mask_wavelengths)
    truth = read_measurement(tmp_path / "bench" / "truth.h5")
    assert truth.shifts == bench.shifts
    factor = truth.cube.sum() / bench.cube.sum()  # the reader takes it to the unit of the snapshot, counts
    np.testing.assert_allclose(truth.cube, factor * bench.cube, rtol=1e-5)
    assert factor == pytest.approx(bench.counts_per_unit, rel=0.1)
    assert read_measurement(tmp_path / "bench" / "uncalibrated.h5").cube is None


@pytest.mark.parametrize("change", [{"height": 8}, {"step": 5}])
def test_errors_say_what_is_wrong(bench, tmp_path, change):
    with refuses(ValueError):
        simulate_bench(**{"height": 32, "width": 32, "num_bands": 8, **change}, generator=torch.Generator())
    (tmp_path / "mine.txt").write_text("mine")
    refused(write_bench, tmp_path, bench)  # a folder in use is left alone
