"""Dead and warm detector pixels: found by what the scene around them explains, and nothing else is taken for one."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import cassi
from cassi.cli.main import main
from cassi.files import read_measurement, write_arrays
from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.self_calibration.defects import dead_areas, find_defects
from cassi.self_calibration.found_camera import FoundCamera
from cassi.self_calibration.search import find_camera
from cassi.simulation.scene import procedural_scene

SIZE, SHIFTS = 96, tuple(range(0, 32, 2))
ROUND = np.nonzero(np.hypot(*np.mgrid[-6:7, -6:7]) <= 6)  # a blot, which has no straight side


@pytest.fixture(scope="module")
def camera():
    return CASSI(torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(1)), SHIFTS)


@pytest.fixture(scope="module")
def scene():
    nm = np.linspace(450, 650, len(SHIFTS)).tolist()
    return procedural_scene(SIZE, SIZE, nm, generator=torch.Generator().manual_seed(0))


def snapshot(camera, scene, seed=0, electrons=10_000):
    """y with photon noise, of which the brightest pixel is 1."""
    y = camera.forward(scene)
    rng = np.random.default_rng(seed)
    return torch.as_tensor(rng.poisson(y * (electrons / y.max())) / electrons, dtype=torch.float32)


def spoiled(camera, scene, count, value=0.0):
    """A snapshot, and pixels of it with at least half of the mean light, not within 9 x 9 pixels of each other, times
    `value`."""
    y = snapshot(camera, scene)
    lit = np.argwhere((y > y.mean() / 2).numpy())
    where = tuple(np.random.default_rng(5).permutation(lit[(lit % 9 == 2).all(1)])[:count].T)
    y[where] = value * y[where]
    return y, where


def measured(y, camera):
    return Measurement(y=y.numpy(), mask=camera.mask.numpy(), shifts=SHIFTS)


@pytest.mark.parametrize("value", [0.0, 2.0], ids=["dead", "warm"])
def test_defects_are_found_and_nothing_beside_them(camera, scene, value):
    y, where = spoiled(camera, scene, 12, value)
    found = find_defects(camera, [y])
    assert found[where].sum() >= 11 and found.sum() == found[where].sum()
    keep = torch.ones_like(y)
    keep[where] = 0
    assert not find_defects(camera.weighted(keep), [y]).any(), "what is known as bad is not found again"


def test_two_dead_pixels_side_by_side_do_not_hide_each_other(camera, scene):
    y, ((row,), (column,)) = spoiled(camera, scene, 1)
    y[row, column + 1] = 0
    assert find_defects(camera, [y])[row, column : column + 2].all()


@pytest.mark.parametrize(
    "where",
    [
        np.s_[:, 70], np.s_[:, 70:73], np.s_[60:65, 80:85], np.s_[30:70, 60:85], np.s_[90:, 60:70], np.s_[40, :],
        (56 + ROUND[0], 76 + ROUND[1]),
    ],
)  # fmt: skip
def test_dead_columns_rows_and_blocks_are_found(camera, scene, where):
    y = snapshot(camera, scene)
    bright = (y > y.mean() / 2).numpy()[where]
    y[where] = 0
    found = find_defects(camera, [y])
    assert found[where][bright].mean() > 0.9 and found.sum() - found[where].sum() <= 1


@pytest.mark.parametrize("where", [np.s_[:, 60], np.s_[50:62, 50:62]], ids=["column", "block"])
@pytest.mark.parametrize(("bands", "electrons"), [(5, 1e9), (8, 2000), (8, 300)])
def test_dead_areas_are_left_out_through_few_bands_and_little_light(scene, where, bands, electrons):
    """Where a cube could explain them: its error stays what it is without them."""
    mask = (torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(1)) < 0.5).float()
    few = CASSI(mask, SHIFTS[:bands])
    y = snapshot(few, scene[:bands], electrons=electrons)
    before = y.clone()
    y[where] = 0
    found = find_camera(Measurement(y.numpy(), mask.numpy(), few.shifts))
    lost = np.zeros(y.shape, bool)
    lost[where] = True
    assert found.left_out is not None and (found.left_out & lost).sum() == lost.sum()
    assert (found.left_out & ~lost).sum() <= 2
    assert not dead_areas(few, before).any()


@pytest.mark.parametrize("line", [np.s_[7, 48], np.s_[7, :, 48]], ids=["row", "column"])
def test_a_line_of_one_color_is_no_defect(camera, scene, line):
    x = 0.3 * scene
    x[line] += 3
    assert find_defects(camera, [snapshot(camera, x)]).sum() <= 2


@pytest.mark.parametrize("bar", [np.s_[:, 40, :40], np.s_[:, 40:43]], ids=["short", "high"])
@pytest.mark.parametrize("lit", [SIZE, 20])
def test_a_dark_bar_is_no_dead_row(camera, scene, bar, lit):
    """Nor one through a small object on dark ground."""
    x = scene.clone()
    x[bar] = 0
    x[..., lit:] = 0
    assert find_defects(camera, [snapshot(camera, x)]).sum() <= 2


@pytest.mark.parametrize("electrons", [1e9, 1_000])
def test_a_sound_detector_has_no_defects(camera, scene, electrons):
    assert find_defects(camera, [snapshot(camera, scene, electrons=electrons)]).sum() <= 1


def test_of_several_snapshots_what_is_in_one_is_no_defect(camera, scene):
    ys = [snapshot(camera, scene, seed) for seed in range(3)]
    here, there = spoiled(camera, scene, 2)[1]
    for y in ys:
        y[here[0], there[0]] = 0
    ys[1][here[1], there[1]] = 0
    assert np.argwhere(find_defects(camera, ys)).tolist() == [[here[0], there[0]]]


def test_a_reconstruction_leaves_out_defects_as_if_a_map_had_been_given(camera, scene, tmp_path):
    """The file of the camera keeps them."""
    y, where = spoiled(camera, scene, 10)
    bad = np.zeros(y.shape, bool)
    bad[where] = True
    m = measured(y, camera)
    found = find_camera(m, mask_error=False)
    assert found.defects == 10 and "10 detector pixels contradict" in found.message
    assert (found.in_place(m).bad_pixels == bad).all()
    found.save(tmp_path / "camera.h5")
    write_arrays(tmp_path / "y.h5", {"measurement": m.y})
    np.testing.assert_array_equal(read_measurement(tmp_path / "y.h5", mask=tmp_path / "camera.h5").bad_pixels, bad)

    def error(m, camera):
        cube = cassi.reconstruct(m, camera=camera, quality="fast", prior="tv").cube
        return float((cube - scene * (cube.mean() / scene.mean())).square().mean())

    known = error(replace(m, bad_pixels=bad), "as-given")
    assert error(m, found) == pytest.approx(known, rel=1e-6) and error(m, "as-given") > 1.2 * known


def test_what_was_left_out_is_named_where_a_result_is_looked_at(camera, scene, tmp_path):
    """In the explanation, in the record of a folder, and as a map that is read as one of bad pixels."""
    y, _ = spoiled(camera, scene, 10)
    (tmp_path / "night").mkdir()
    arrays = {"measurement": y.numpy(), "mask": camera.mask.numpy(), "shifts": np.array(SHIFTS)}
    write_arrays(tmp_path / "night" / "y.h5", arrays)
    words = [str(tmp_path / "night"), "--prior", "tv", "--iterations", "2", "--quiet"]
    assert main(["reconstruct", *words, "--output", str(tmp_path / "cubes")]) == 0
    (record,) = map(json.loads, (tmp_path / "cubes" / "index.jsonl").read_text().splitlines())
    assert record["defects"] == 10
    again = read_measurement(tmp_path / "night" / "y.h5", bad_pixels=tmp_path / "cubes" / "y_cube.h5")
    assert np.argwhere(again.bad_pixels).tolist() == np.argwhere(y.numpy() == 0).tolist()
    result = cassi.reconstruct(again, camera="as-given", solver="gap-tv", num_iters=2)
    assert (result.bad_pixels == again.bad_pixels).all() and "disagree" not in result.explain()
    found = FoundCamera.as_given(again)
    assert "10 detector pixels" in replace(result, camera=replace(found, defects=10)).explain()


def test_too_many_to_be_defects_are_left_in_and_that_is_said(camera, scene, monkeypatch):
    m = measured(snapshot(camera, scene), camera)
    everywhere = np.zeros(m.y.shape, bool)
    everywhere[::4, ::4] = True
    monkeypatch.setattr("cassi.self_calibration.defects.find_defects", lambda *_: everywhere)
    found = find_camera(m, mask_error=False)
    assert found.left_out is None and found.defects == 0 and found.disputed == everywhere.sum()
    assert "more than the 3% that may be defects" in found.detector
