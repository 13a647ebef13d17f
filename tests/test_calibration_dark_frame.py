"""Dark frames: y - (D - b) / s, from files as from arrays, for the snapshot and the white board."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from messages import refused
from PIL import Image

import cassi
from cassi.calibration.dark_frame import less_dark, read_dark
from cassi.cli.main import run
from cassi.files import read_measurement
from cassi.optics.single_disperser import CASSI

C, SIZE, LEVEL, FULL = 6, 48, 300, 4095
HOW = ["--solver", "gap-tv", "--iterations", "40", "--figures", "none", "--camera", "as-given"]


@pytest.fixture(scope="module")
def counts():
    """A camera, and counts of 12 bits of a scene, of a white board, and of no light, whose pattern is that of both."""
    rng = np.random.default_rng(0)
    A = CASSI.from_step(torch.as_tensor(rng.random((SIZE, SIZE)) > 0.5).float(), step=1, num_bands=C)
    light = torch.linspace(0.4, 1.0, C).view(-1, 1, 1).expand(C, SIZE, SIZE)
    scene = light * torch.where(torch.arange(SIZE) < SIZE // 2, 0.3, 0.7)
    dark = LEVEL + 60 * rng.random((SIZE, SIZE + C - 1))  # a fixed pattern, which a black level leaves
    return A, dark, *((dark + 600 * A.forward(x).numpy()).round().astype(np.uint16) for x in (scene, light))


@pytest.fixture(scope="module")
def bench(counts, tmp_path_factory):
    """The same in files: 16-bit PNG and a stack of dark frames."""
    A, dark, scene, white = counts
    folder = tmp_path_factory.mktemp("dark")
    np.save(folder / "mask.npy", A.mask.numpy())
    np.save(folder / "dark.npy", np.stack([dark - 2, dark + 2]).round().astype(np.uint16))
    for name, y in (("scene", scene), ("white", white)):
        Image.fromarray(y).save(folder / f"{name}.png")
    return folder


def test_what_is_left_is_the_light(counts, bench):
    """By hand: counts less dark, over full scale; whatever black level reading took off before."""
    _A, dark, scene, _ = counts
    options = {"mask": bench / "mask.npy", "num_bands": C}
    m = less_dark(read_measurement(bench / "scene.png", **options), read_dark(bench / "dark.npy"))
    stored, scale = read_measurement(bench / "scene.png", **options).stored
    assert (stored, scale) == (0, FULL)
    np.testing.assert_allclose(m.y, (scene - dark.round()) / FULL, atol=1e-6)
    other = read_measurement(bench / "scene.png", **options, levels=cassi.files.Levels(black_level=200))
    assert other.stored[0] == 200
    y = less_dark(other, read_dark(bench / "dark.npy")).y
    np.testing.assert_allclose(y * other.stored[1], scene - dark.round(), atol=1e-3)
    assert m.stored[0] == pytest.approx(dark.mean(), abs=1)


def test_file_and_arrays_library_and_command_line_agree(counts, bench, capsys):
    A, dark, scene, _white = counts
    cube = bench / "cube.h5"
    words = ["--measurement", str(bench / "scene.png"), "--mask", str(bench / "mask.npy"), "--num-bands", str(C)]
    words += ["--step", "1", "--white", str(bench / "white.png"), "--dark", str(bench / "dark.npy"), *HOW]
    assert run("reconstruct", [*words, "--output", str(cube)], "reconstruct.py") == 0
    said = capsys.readouterr().out
    assert "a dark frame was subtracted, 330" in said and "the cube is reflectance" in said
    with h5py.File(cube) as file:
        typed, unit = file["cube"][:], file.attrs["unit"]
    assert unit == "reflectance"
    assert np.median(typed[:, 8:-8, 6:18]) == pytest.approx(0.3, rel=0.1)
    options = {"mask": bench / "mask.npy", "num_bands": C, "step": 1}
    how = {"solver": "gap-tv", "num_iters": 40, "camera": "as-given"}
    board = read_measurement(bench / "white.png", **options)
    for dark_given in (bench / "dark.npy", dark.round(), torch.as_tensor(dark.round())):
        result = cassi.reconstruct(
            bench / "scene.png", bench / "mask.npy", num_bands=C, step=1, white=board, dark=dark_given, **how
        )
        np.testing.assert_allclose(result.cube.numpy(), typed, rtol=1e-3, atol=1e-4)
    y, d = (torch.as_tensor(values.astype(np.float32)) for values in (scene, dark.round()))
    ours = cassi.reconstruct(y, A.mask, num_bands=C, dark=d, **how).cube / FULL
    torch.testing.assert_close(
        ours, cassi.reconstruct(y - d, A.mask, num_bands=C, black_level=0, **how).cube / FULL, rtol=1e-4, atol=1e-6
    )


def test_a_detector_that_is_read_the_other_way_round(counts, bench, tmp_path):
    """Dispersion down the columns: a dark frame lies as its snapshot does."""
    A, dark, scene, _ = counts
    np.savez(tmp_path / "turned.npz", measurement=scene.T, mask=A.mask.numpy().T, shifts=range(C))
    np.savez(tmp_path / "straight.npz", measurement=scene, mask=A.mask.numpy(), shifts=range(C))
    turned, straight = (read_measurement(tmp_path / f"{name}.npz") for name in ("turned", "straight"))
    assert turned.transposed and not straight.transposed
    np.testing.assert_array_equal(less_dark(turned, dark.T).y, less_dark(straight, dark).y)


def test_in_tiles_many_and_by_a_plan(counts, bench, tmp_path, capsys):
    """A folder whose dark frame lies in it: the frame is no snapshot, and each cube is that of a single run."""
    _, _, scene, _ = counts
    folder = tmp_path / "night"
    folder.mkdir()
    for name in ("a", "b"):
        Image.fromarray(scene).save(folder / f"{name}.png")
    (folder / "dark.npy").write_bytes((bench / "dark.npy").read_bytes())
    words = ["--mask", str(bench / "mask.npy"), "--num-bands", str(C), "--step", "1", *HOW]
    dark = ["--dark", str(folder / "dark.npy")]
    many = ["--measurement", str(folder), "--output", str(tmp_path / "cubes"), *words, *dark]
    assert run("reconstruct", [one for one in many if one not in ("--figures", "none")], "reconstruct.py") == 0
    assert run("reconstruct", ["--measurement", str(folder / "a.png"), *words, *dark], "reconstruct.py") == 0
    capsys.readouterr()
    assert {path.name for path in (tmp_path / "cubes").glob("*.h5")} == {"a_cube.h5", "b_cube.h5"}
    with h5py.File(tmp_path / "cubes" / "a_cube.h5") as one, h5py.File(folder / "a_cube.h5") as other:
        np.testing.assert_allclose(one["cube"][:], other["cube"][:], rtol=1e-4, atol=1e-6)


def test_frames_that_are_none_are_refused(counts, bench):
    A, dark, scene, white = counts
    m = read_measurement(bench / "scene.png", mask=bench / "mask.npy", num_bands=C)
    for wrong in (dark[:-1], scene, white):
        refused(less_dark, m, wrong)
    np.save(bench / "holes.npy", np.full_like(dark, np.nan))
    refused(read_dark, bench / "holes.npy")
    refused(cassi.reconstruct, replace(m), dark=dark, black_level=3)
    refused(cassi.reconstruct, scene.astype(np.float32), A, dark=dark)
