"""Calibration from captured frames, against the simulated bench (which shares no code with it) and by hand."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from messages import check_refusal, last_line, refused
from scipy import ndimage

from cassi.calibration.dispersion import Dispersion, image_shift
from cassi.calibration.estimate import Calibration, calibrate, read_calibrated
from cassi.calibration.frames_on_disk import find_frames, read_frames
from cassi.cli.main import run
from cassi.files import read_measurement
from cassi.looking.camera_figures import detector, dispersion as dispersion_figure
from cassi.looking.metrics import psnr
from cassi.optics.measurement import Measurement
from cassi.running.reconstruct import reconstruct
from cassi.simulation.optical_bench import Bench, dispersion, simulate_bench, write_bench


@pytest.fixture(scope="module")
def bench() -> Bench:
    return simulate_bench(64, 64, num_bands=8, generator=torch.Generator().manual_seed(0))


def frames(bench: Bench) -> dict[str, np.ndarray]:
    return {name: getattr(bench, name) for name in ("dark", "flat", "mask_frames", "mask_wavelengths")}


@pytest.fixture(scope="module")
def found(bench) -> Calibration:
    return calibrate(**frames(bench))


@pytest.mark.parametrize("shift", [(0.0, 0.0), (0.3, -0.4), (-1.5, 2.25), (0.1, 13.7), (0.0, -27.5)])
def test_image_shift_finds_real_displacements(shift):
    random = np.random.default_rng(0)
    wide = ndimage.gaussian_filter(random.random((128, 200)), 1.0)
    moved = ndimage.shift(wide, shift, order=5, mode="reflect")
    cut = (slice(32, -32), slice(32, -32))
    noise = 0.02 * wide.std() * random.standard_normal((2, 64, 136))
    assert image_shift(wide[cut] + noise[0], moved[cut] + noise[1]) == pytest.approx(shift, abs=0.03)


def test_the_dispersion_is_fitted_and_inverted():
    wavelengths = np.linspace(450, 650, 5)
    scaled = wavelengths / 500
    truth = 3 + 30 * scaled + 2 * scaled**2
    curve = Dispersion(np.array([3.0, 30.0, 2.0]), wavelengths, truth, np.zeros(5))
    np.testing.assert_allclose(curve(wavelengths), truth)
    np.testing.assert_allclose(curve.residuals, 0, atol=1e-12)
    np.testing.assert_allclose(curve.wavelength(truth), wavelengths, atol=1e-3)
    left = replace(curve, coefficients=-curve.coefficients)
    np.testing.assert_allclose(left.wavelength(-truth), wavelengths, atol=1e-3)
    # a little beyond the captured wavelengths is fine, far beyond is not
    assert curve.wavelength(curve(np.array([655.0]))) == pytest.approx(655, abs=0.1)
    refused(curve.wavelength, np.array([1000.0]))
    turning = Dispersion(np.array([-9.9, 18.0, -8.18]), np.array([450.0, 550.0, 650.0]), np.zeros(3), np.zeros(3))
    refused(turning.wavelength, np.array([0.0]))


def test_the_camera_of_the_bench_is_recovered(bench, found):
    assert found.shifts == bench.shifts
    np.testing.assert_allclose(found.wavelengths, bench.wavelengths, atol=1.0)
    np.testing.assert_allclose(found.dispersion.measured, dispersion(bench.mask_wavelengths, 8), atol=0.05)
    np.testing.assert_allclose(found.dispersion.across, 0, atol=0.03)
    # each band's mask is the aperture as it lies, averaged over the two pixels that the band spreads over
    spread = ndimage.convolve1d(bench.mask, [0.25, 0.5, 0.25], axis=1)
    for mask in found.mask:
        inner = (slice(None), slice(4, -4))
        assert np.abs(mask / (mask[inner].mean() / spread[inner].mean()) - spread)[inner].mean() < 0.03
    assert found.mask.max() < 1.3
    assert np.array_equal(found.bad_pixels, bench.hot_pixels | bench.dead_pixels)
    assert found.gain / found.scale == pytest.approx(15000 / 4095, rel=0.05)
    assert found.read_noise == pytest.approx(5.0, rel=0.1)
    assert found.saturation == 4095 and found.scale == pytest.approx(4095 - 60, abs=2)
    single = calibrate(**frames(bench) | {"dark": bench.dark[0], "flat": bench.flat[0]})
    assert single.gain is single.read_noise is None, "one frame of each kind shows no noise"


def test_correction_by_hand():
    found = Calibration(
        mask=np.ones((1, 1, 3), np.float32), shifts=(0,), wavelengths=np.array([500.0]),
        dark=np.array([[10.0, 20.0, 10.0]]), flat=np.array([[1.0, 0.5, 1.5]]),
        bad_pixels=np.array([[False, False, True]]), saturation=110.0, scale=100.0, gain=None, read_noise=None,
        dispersion=Dispersion(np.zeros(1), np.array([500.0]), np.zeros(1), np.zeros(1)),
    )  # fmt: skip
    y, bad = found.correct(np.array([[60, 45, 99]], dtype=np.uint16))
    assert y.tolist() == [[0.5, 0.5, 0.0]]
    assert bad.tolist() == [[False, False, True]]
    y, bad = found.correct(np.array([[[110, 20, 0]], [[10, 110, 0]]]))
    assert bad.tolist() == [[[True, False, True]], [[False, True, True]]]
    assert y.tolist() == [[[0.0, 0.0, 0.0]], [[0.0, 0.0, 0.0]]]
    refused(found.correct, np.zeros((2, 3)))


def test_what_does_not_matter_and_what_can_be_chosen(bench, found):
    """Exposures, the order of the mask frames, a mirrored bench; the step and the number of bands."""
    level, order = bench.dark.mean(0), [3, 0, 4, 2, 1]
    dimmed = bench.mask_frames.astype(float)
    dimmed[1] = level + 0.5 * (dimmed[1] - level)
    again = calibrate(bench.dark, bench.flat, dimmed[order], bench.mask_wavelengths[order])
    assert np.abs(again.mask - found.mask).mean() < 0.01 * found.mask.mean()
    dark, flat, masks = (one[..., ::-1] for one in (bench.dark, bench.flat, bench.mask_frames))
    mirrored = calibrate(dark, flat, masks, bench.mask_wavelengths)
    assert mirrored.shifts == tuple(-d for d in found.shifts)
    np.testing.assert_allclose(mirrored.mask[..., ::-1], found.mask, atol=0.02)
    assert calibrate(**frames(bench), step=1).shifts == tuple(range(15))
    assert calibrate(**frames(bench), num_bands=4).shifts == (0, 5, 10, 15)
    assert calibrate(**frames(bench), num_bands=5, step=3).shifts == (0, 3, 6, 9, 12)


def test_what_is_saved_is_loaded(found, tmp_path):
    found.save(tmp_path / "c.h5")
    again = Calibration.load(tmp_path / "c.h5")
    for name in ("mask", "wavelengths", "dark", "flat", "bad_pixels"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert again.shifts == found.shifts and again.summary() == found.summary()
    assert not any("fits badly" in line for line in found.summary()) and repr(found).startswith("<Calibration: ")
    wrong = replace(found, dispersion=replace(found.dispersion, measured=found.dispersion.measured + 0.6))
    assert "the wavelength of a picture wrong" in wrong.summary()[1]
    assert Calibration.load(replace(found, read_noise=0.0).save(tmp_path / "silent.h5")).read_noise == 0
    refused(found.save, tmp_path / "c.h5")


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: f.__delitem__("flat"),
        lambda f: f["mask"].__setitem__(0, np.nan),
        lambda f: f.__setitem__("line_spread/sigma", [1.0]),
        lambda f: f.attrs.__setitem__("scale", np.nan),
        lambda f: f.attrs.__setitem__("scale", 0.0),
        lambda f: f.attrs.__delitem__("saturation"),
    ],
)  # fmt: skip
def test_a_damaged_calibration_is_refused(found, tmp_path, damage):
    found.save(tmp_path / "c.h5")
    with h5py.File(tmp_path / "c.h5", "r+") as file:
        damage(file)
    refused(Calibration.load, tmp_path / "c.h5")


def test_figures_are_drawn(found):
    assert len(dispersion_figure(found).axes) == 2
    dark, flat = detector(found).axes
    np.testing.assert_array_equal(dark.images[0].get_array(), found.dark)
    np.testing.assert_array_equal(flat.images[0].get_array(), found.flat)


@pytest.mark.parametrize(
    "change",
    [
        {"dark": np.zeros((2, 10, 10))}, {"flat": np.zeros(3)}, {"flat": np.full((64, 78), np.nan)},
        {"flat": np.zeros((64, 78))}, {"mask_wavelengths": [450.0, 550.0]},
        {"mask_wavelengths": [450.0, 450.0, 500.0, 600.0, 650.0]},
        {"mask_frames": np.zeros((1, 64, 78)), "mask_wavelengths": [500.0]}, {"mask_frames": np.zeros((5, 64, 78))},
        {"bit_depth": 8}, {"step": -1.0}, {"step": 1.5}, {"step": 100.0}, {"num_bands": 1},
        {"num_bands": 30, "step": 2.0}, {"order": 0},
    ],
)  # fmt: skip
def test_errors_say_what_is_wrong(bench, change):
    refused(calibrate, **{**frames(bench), **change})


def test_frames_are_found_by_their_names_and_numbers_are_sorted_as_numbers(bench, tmp_path):
    write_bench(tmp_path / "bench", bench)
    files = find_frames(tmp_path / "bench")
    assert [len(files.dark), len(files.flat), len(files.mask)] == [4, 4, 5]
    np.testing.assert_allclose(files.wavelengths, bench.mask_wavelengths)
    np.testing.assert_array_equal(read_frames(files.mask), bench.mask_frames)
    for name in ("dark", "white", "mask_1050nm", "mask_450.5nm", "mask_900nm"):
        np.save(tmp_path / f"{name}.npy", np.zeros((4, 4)))
    files = find_frames(tmp_path)
    assert files.wavelengths.tolist() == [450.5, 900, 1050] and files.flat[0].name == "white.npy"


def test_a_stack_is_read_as_its_frames(tmp_path):
    for name, shape in (("a", (2, 2, 3)), ("b", (2, 3)), ("c", (3, 3))):
        np.save(tmp_path / f"{name}.npy", np.ones(shape))
    assert read_frames([tmp_path / "a.npy", tmp_path / "b.npy"]).shape == (3, 2, 3)
    refused(read_frames, [tmp_path / "a.npy", tmp_path / "c.npy"])
    np.savez(tmp_path / "e.npz", a=np.ones((2, 3)), b=np.ones((2, 3)))
    refused(read_frames, [tmp_path / "e.npz"])


def test_missing_frames_and_wavelengths_are_named(tmp_path):
    refused(find_frames, tmp_path / "nowhere")
    np.save(tmp_path / "dark.npy", np.zeros((4, 4)))
    (tmp_path / "empty").mkdir()
    refused(find_frames, tmp_path / "empty")
    refused(find_frames, tmp_path)
    for name in ("flat", "mask_1", "mask_2"):
        np.save(tmp_path / f"{name}.npy", np.zeros((4, 4)))
    refused(find_frames, tmp_path)
    refused(find_frames, tmp_path, "unknown")
    assert find_frames(tmp_path, "500,600").wavelengths.tolist() == [500, 600]


def test_a_snapshot_is_read_through_its_calibration(bench, found, tmp_path):
    np.save(tmp_path / "snapshot.npy", bench.snapshot)
    m = read_calibrated(tmp_path / "snapshot.npy", found)
    y, bad = found.correct(bench.snapshot)
    np.testing.assert_array_equal(m.y, y)
    np.testing.assert_array_equal(m.bad_pixels, bad)
    assert (m.shifts, m.gain) == (found.shifts, found.gain)
    stack = tmp_path / "stack.npy"
    np.save(stack, np.stack([bench.snapshot, bench.dark[0], bench.dark[1]]))
    assert read_calibrated(stack, found).y.shape == (3, 64, 78)
    np.testing.assert_array_equal(read_calibrated(stack, found, frames=0).y, y)
    assert read_calibrated(stack, found, frames=slice(1, 3)).y.shape == (2, 64, 78)
    refused(read_calibrated, stack, found, frames=3)
    refused(read_calibrated, tmp_path / "snapshot.npy", found, frames=1)


def script(name: str, *words: object) -> int:
    return run(name, [str(word) for word in words], f"{name}.py")


def likeness(cube: torch.Tensor, truth: torch.Tensor) -> float:
    """PSNR at the best common scale: a cube from an uncalibrated camera has no unit."""
    return psnr(((cube * truth).sum() / cube.square().sum() * cube).clamp(0, 1), truth.clamp(0, 1))


def test_from_the_bench_to_a_cube_with_no_other_input(tmp_path, capsys):
    """Within 1 dB of the cube made with the true operator, and at least 4 dB better than without calibration."""
    bench, calibration, result = (str(tmp_path / name) for name in ("bench", "calibration.h5", "cube.h5"))
    assert script("simulate", "--bench", bench, "--size", "64x64", "--num-bands", "20", "--quiet") == 0
    assert script("calibrate", bench, "--output", calibration, "--figures", "none") == 0
    told = ["--calibration", calibration, "--measurement", f"{bench}/snapshot.png", "--output", result]
    assert script("reconstruct", *told, "--figures", "none", "--quiet") == 0

    truth = read_measurement(f"{bench}/truth.h5")
    with h5py.File(f"{bench}/truth.h5") as file:
        cube = torch.as_tensor(file["cube"][()])  # as it was written: 1 is a white surface
    with h5py.File(result) as file:
        calibrated = likeness(torch.as_tensor(file["cube"][()]), cube)
    corrected = read_calibrated(f"{bench}/snapshot.png", Calibration.load(calibration))
    # the aperture as it lies, over the two pixels that a band spreads over
    true_mask = ndimage.convolve1d(truth.mask, [0.25, 0.5, 0.25], axis=1)
    exact = reconstruct(replace(corrected, mask=true_mask, shifts=truth.shifts), camera="as-given")
    raw = read_measurement(f"{bench}/uncalibrated.h5")
    blind = Measurement(y=raw.y - np.float32(60), mask=raw.mask, shifts=raw.shifts)
    uncalibrated = reconstruct(blind, camera="as-given")
    assert calibrated > likeness(exact.cube, cube) - 1
    assert calibrated > likeness(uncalibrated.cube, cube) + 4


def test_a_calibration_reconstructs_a_folder_and_a_stack(bench, found, tmp_path, capsys):
    """The frames of both are the same snapshots, and so are their cubes; the calibration among them is none."""
    night = tmp_path / "night"
    night.mkdir()
    found.save(night / "calibration.h5")
    dimmed = (0.8 * bench.snapshot).astype(np.uint16)
    for name, frame in {"a": bench.snapshot, "b": dimmed}.items():
        np.save(night / f"{name}.npy", frame)
    np.save(tmp_path / "stack.npy", np.stack([bench.snapshot, dimmed]))
    told = ["--calibration", night / "calibration.h5", "--solver", "gap-tv"]
    assert script("reconstruct", *told, "--measurement", night, "--output", tmp_path / "cubes", "--quiet") == 0
    stack = [*told, "--measurement", tmp_path / "stack.npy", "--output", tmp_path / "of_stack"]
    assert script("reconstruct", *stack, "--quiet") == 0
    pairs = (("a_cube.h5", "stack_000000_cube.h5"), ("b_cube.h5", "stack_000001_cube.h5"))
    for of_folder, of_stack in pairs:
        with h5py.File(tmp_path / "cubes" / of_folder) as one, h5py.File(tmp_path / "of_stack" / of_stack) as other:
            assert one["cube"].shape == (8, 64, 64)
            np.testing.assert_array_equal(one["cube"], other["cube"])
    assert len(list((tmp_path / "cubes").glob("*_cube.h5"))) == 2
    # the same again computes nothing; another calibration is another camera
    assert "0 snapshots in" in last_line(capsys, script("reconstruct", *stack))
    replace(found, mask=found.mask * np.float32(0.9)).save(night / "calibration.h5", overwrite=True)
    check_refusal(capsys, script("reconstruct", *stack))
