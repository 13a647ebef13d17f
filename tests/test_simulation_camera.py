"""The simulated camera against its statistics, masks and scene by their properties, the script as a program."""

import math
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from messages import check_refusal, last_line, refused

from cassi import CASSI
from cassi.cli.main import script
from cassi.files import read_measurement, write_cube
from cassi.optics.detector import detect
from cassi.simulation.camera import random_mask, simulate
from cassi.simulation.scene import procedural_scene

ROOT = Path(__file__).resolve().parents[1]
BANDS = torch.linspace(450, 650, 28)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_poisson_variance_is_the_mean_over_the_gain():
    light = torch.cat([torch.full((300, 100), level) for level in (0.05, 0.5, 2.0)], dim=1)
    shot = detect(light, full_well=5000, generator=seeded())
    assert shot.gain == pytest.approx(2500)
    for k, level in enumerate((0.05, 0.5, 2.0)):
        part = shot.y[:, 100 * k : 100 * k + 100]
        # Of 30,000 samples the variance has a relative standard deviation of sqrt(2 / 30000) = 0.8 %.
        assert part.var().item() == pytest.approx(level / 2500, rel=0.04)
        assert part.mean().item() == pytest.approx(level, abs=5 * math.sqrt(level / 2500 / 30000))


def test_the_noise_has_the_variance_that_is_stated():
    cube = procedural_scene(48, 48, BANDS, generator=seeded())
    mask = random_mask(48, 48, generator=seeded(1))
    shifts = tuple(range(0, 56, 2))
    shot = simulate(cube, mask, shifts, full_well=2000, read_noise=20, bit_depth=10, generator=seeded(2))
    light = CASSI(mask, shifts).forward(cube)
    variance = light / shot.gain + (20 / shot.gain) ** 2 + shot.count**2 / 12
    lit = shot.y > 60 / shot.gain  # away from zero, where the digitizer cuts
    assert ((shot.y - light) ** 2 / variance)[lit].mean().item() == pytest.approx(1, abs=0.1)


def test_quantization_levels():
    light = torch.linspace(0, 3, 1000).view(10, 100)
    shot = detect(light, bit_depth=4)
    assert len(shot.y.unique()) == 16
    assert shot.count == pytest.approx(3 / 15)
    assert shot.y.min() == 0 and shot.y.max().item() == pytest.approx(3)
    assert (shot.y - light).abs().max() <= 0.1 + 1e-6
    assert (shot.y - light).var().item() == pytest.approx(0.2**2 / 12, rel=0.1)


def test_seeds_make_the_noise_and_dtype_and_batch_follow_the_cube():
    light = torch.rand(20, 20, generator=seeded())
    first, again, other = (detect(light, full_well=100, read_noise=3, generator=seeded(s)).y for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    cube = torch.rand(2, 3, 6, 5, generator=seeded(), dtype=torch.float64)
    shot = simulate(cube, torch.ones(6, 5), (0, 1, 2), full_well=1e3, generator=seeded())
    assert shot.y.shape == (2, 6, 7) and shot.y.dtype == torch.float64


def test_cameras_that_cannot_be():
    light = torch.ones(4, 4)
    for options in (
        {"full_well": math.inf, "generator": seeded()}, {"full_well": 100.0, "read_noise": -1, "generator": seeded()},
        {"read_noise": 1.0}, {"bit_depth": 0}, {"full_well": 100.0}, {"full_well": 1e19, "generator": seeded()},
        {"full_well": 1e-9, "generator": seeded()}, {"full_well": 1e4, "read_noise": 1e300, "generator": seeded()},
    ):  # fmt: skip
        refused(detect, light, error=ValueError, **options)
    for broken in (-light, light * math.nan):
        refused(detect, broken, error=ValueError)
    refused(detect, 0 * light, error=ValueError, bit_depth=8)


def test_masks_and_scenes_that_cannot_be():
    for transmission in (0.0, 1.0):
        refused(random_mask, 4, 4, error=ValueError, transmission=transmission, generator=seeded())
    for wavelengths in ([], [math.nan], [[450.0]]):
        refused(procedural_scene, 8, 8, wavelengths, error=ValueError, generator=seeded())
    for make in (random_mask, lambda *size, generator: procedural_scene(*size, BANDS, generator=generator)):
        refused(make, 0, 4, error=ValueError, generator=seeded())


@pytest.mark.parametrize("kind", ["binary", "grey"])
@pytest.mark.parametrize("transmission", [0.3, 0.8])
def test_mask_range_and_mean(kind, transmission):
    mask = random_mask(120, 90, kind=kind, transmission=transmission, generator=seeded())
    assert mask.shape == (120, 90) and mask.dtype == torch.float32
    assert mask.min() >= 0 and mask.max() <= 1
    assert mask.mean().item() == pytest.approx(transmission, abs=0.02)
    if kind != "grey":
        assert set(mask.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(mask, random_mask(120, 90, kind=kind, transmission=transmission, generator=seeded()))


def test_scene_range_and_reproducibility():
    scene = procedural_scene(96, 128, BANDS, generator=seeded(3))
    assert scene.shape == (28, 96, 128) and scene.dtype == torch.float32
    assert scene.isfinite().all() and scene.min() >= 0 and scene.max() <= 1
    assert 0.2 < scene.mean() < 0.5
    assert torch.equal(scene, procedural_scene(96, 128, BANDS, generator=seeded(3)))
    assert (scene - procedural_scene(96, 128, BANDS, generator=seeded(4))).abs().mean() > 0.02


def test_scene_spectra_are_smooth_yet_many():
    spectra = procedural_scene(128, 128, BANDS, generator=seeded()).reshape(28, -1).double()
    assert (spectra[2:] - 2 * spectra[1:-1] + spectra[:-2]).square().mean() < 1e-3 * spectra.square().mean()
    eigenvalues = torch.linalg.eigvalsh(torch.cov(spectra)).flip(0)
    share = eigenvalues.cumsum(0) / eigenvalues.sum()
    assert share[2] < 0.99 < share[7]  # more than three pigments, fewer than eight directions for 99 %


def test_scene_is_a_function_of_wavelength_at_any_size():
    scene = procedural_scene(40, 40, torch.tensor([650.0, 450.0, 550.0]), generator=seeded())
    many = procedural_scene(40, 40, torch.tensor([450.0, 500, 550, 600, 650]), generator=seeded())
    torch.testing.assert_close(scene, many[[4, 0, 2]])
    for size in ((1, 1), (2, 3), (16, 5), (7, 40)):
        assert procedural_scene(*size, [550.0], generator=seeded()).isfinite().all()


def main(*arguments: object) -> int:
    return script("simulate")([str(argument) for argument in arguments])


def test_the_script_writes_a_measurement_that_fits_its_truth(tmp_path, capsys):
    output = tmp_path / "m.h5"
    options = ("--size", "40x48", "--wavelengths", "440:700:6", "--step", -3, "--full-well", 1e6)
    assert "6 bands of 40 x 48 px, step -3 px" in last_line(capsys, main(*options, "--output", output))
    m = read_measurement(output)
    assert m.shifts == (0, -3, -6, -9, -12, -15) and m.y.shape == (40, 63)
    np.testing.assert_allclose(m.wavelengths, np.linspace(440, 700, 6))
    exact = CASSI(torch.from_numpy(m.mask), m.shifts).forward(torch.from_numpy(m.cube)).numpy()
    assert m.gain * exact.max() == pytest.approx(1e6, rel=1e-5) and m.read_noise == 0
    assert ((m.y - exact) ** 2 * m.gain).sum() / exact.sum() == pytest.approx(1, abs=0.15)


def test_the_script_takes_cube_and_mask_from_files(tmp_path):
    cube = np.random.default_rng(0).random((5, 20, 16)).astype(np.float32)
    write_cube(tmp_path / "cube.h5", cube, wavelengths=[500, 520, 540, 560, 580])
    np.savez(tmp_path / "mask.npz", mask=np.eye(18, 14, dtype=np.float32))
    options = ("--size", "18x14", "--num-bands", 3, "--step", 1, "--output", tmp_path / "m.h5")
    assert main("--cube", tmp_path / "cube.h5", "--mask", tmp_path / "mask.npz", *options) == 0
    m = read_measurement(tmp_path / "m.h5")
    np.testing.assert_array_equal(m.cube, cube[2:, 1:19, 1:15])
    np.testing.assert_array_equal(m.mask, np.eye(18, 14))
    np.testing.assert_array_equal(m.wavelengths, [540, 560, 580])
    assert m.y.shape == (18, 16)


def test_the_script_refuses_bad_input_in_one_line(tmp_path, capsys):
    out, existing = tmp_path / "m.h5", tmp_path / "there.h5"
    existing.write_bytes(b"precious")
    write_cube(tmp_path / "cube.h5", np.ones((3, 8, 8)))
    for arguments in (
        (existing,), (out, "--cube", tmp_path / "absent.h5"), (out, "--cube", tmp_path / "cube.h5", "--num-bands", 4),
        (out, "--read-noise", 5, "--size", 8), (out, "--size", "0x8"), (out, "--step", "1.5"),
        (out, "--motion", "nan"), (out, "--mask", "red", "--size", 8), (tmp_path / "m.png",),
    ):  # fmt: skip
        try:
            code = main("--output", *arguments)
        except SystemExit as leave:  # argparse's way out
            code = leave.code
        check_refusal(capsys, code)
    assert existing.read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cube.h5", "there.h5"]


def test_example_is_what_its_readme_says():
    path = ROOT / "data" / "example.h5"
    assert path.stat().st_size < 2_000_000
    m = read_measurement(path)
    assert m.y.shape == (256, 310) and m.mask.shape == (256, 256) and m.cube.shape == (28, 256, 256)
    assert m.shifts == tuple(range(0, 56, 2)) and m.read_noise == 5
    np.testing.assert_array_equal(m.cube * 512, np.round(m.cube * 512))
    exact = CASSI(torch.from_numpy(m.mask), m.shifts).forward(torch.from_numpy(m.cube)).numpy()
    assert m.gain * exact.max() == pytest.approx(20_000, rel=1e-5)
    variance = (m.gain * exact + 5**2 + (m.gain / m.scale) ** 2 / 12) / m.gain**2
    assert ((m.y - exact) ** 2 / variance)[exact * m.gain > 50].mean() == pytest.approx(1, abs=0.03)
    with h5py.File(path) as file:
        command = file.attrs["command_line"]
    assert command in (ROOT / "data" / "README.md").read_text()
    painted = procedural_scene(256, 256, torch.linspace(450, 650, 28, dtype=torch.float64), generator=seeded(0))
    assert np.abs(painted.numpy() - m.cube).max() < 1.1 / 1024
