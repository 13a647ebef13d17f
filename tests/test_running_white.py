"""Reflectance by a white reference, in Python and at the command line."""

import sys
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch

import cassi
from cassi.calibration.camera_model import CameraModel
from cassi.calibration.found_camera import FoundCamera
from cassi.cli import reconstruct as command
from cassi.cli.main import run
from cassi.looking.report_data import report_of
from cassi.optics.single_disperser import CASSI
from cassi.running.white import reflectance

front_door = sys.modules["cassi.running.front_door"]

C, SIZE = 6, 48


@pytest.fixture(scope="module")
def bench():
    """A scene of two reflectances under light that differs by place and band, and the white board in it."""
    mask = (torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(0)) > 0.5).float()
    A = CASSI.from_step(mask, step=1, num_bands=C)
    light = torch.linspace(0.4, 1.0, C).view(-1, 1, 1) * torch.linspace(0.8, 1.2, SIZE).view(1, -1, 1)
    light = light.expand(C, SIZE, SIZE)
    return A, torch.where(torch.arange(SIZE) < SIZE // 2, 0.3, 0.7).expand(C, SIZE, SIZE), light


@pytest.fixture(scope="module")
def results(bench):
    A, rho, light = bench
    how = {"step": 1, "num_bands": C, "solver": "gap-tv", "num_iters": 60, "camera": "as-given"}
    return [cassi.reconstruct(A.forward(x), A.mask, **how) for x in (rho * light, light)]


def test_the_color_of_the_light_is_gone(bench, results):
    found = reflectance(*results)
    assert found.unit == "reflectance"
    assert (report_of(found).unit, report_of(found).measured_unit) == ("reflectance", "")
    assert report_of(results[0]).measured_unit == results[0].unit
    inner = found.cube[:, 8:-8]
    for columns, true in ((slice(6, 18), 0.3), (slice(30, 42), 0.7)):
        assert inner[..., columns].mean((1, 2)).tolist() == pytest.approx([true] * C, rel=0.05)
    assert results[0].cube[0].mean() < 0.6 * results[0].cube[-1].mean()  # the light's color was in it


def test_the_factor_holds_for_the_uncertainty_and_is_0_where_hardly_any_light_falls(results):
    scene, white = results
    known = replace(scene, uncertainty=scene.cube / 10)
    found = reflectance(known, replace(white, cube=white.cube * (torch.arange(SIZE) < SIZE // 2)))
    assert torch.allclose(found.uncertainty, found.cube / 10)
    assert (found.cube[..., -8:] == 0).all() and (found.cube[:, 10:-10, 6:12] > 0).any()


def test_references_that_cannot_be_used(results):
    scene, white = results
    with pytest.raises(ValueError, match="one snapshot of the scene's size"):
        reflectance(scene, replace(white, cube=white.cube[:, :8]))
    with pytest.raises(ValueError, match="white reference is black"):
        reflectance(scene, replace(white, cube=0 * white.cube))


def test_at_the_command_line(tmp_path, bench, capsys, monkeypatch):
    A, rho, light = bench
    for name, x in (("scene", rho * light), ("white", light)):
        np.savez(tmp_path / f"{name}.npz", measurement=A.forward(x).numpy(), mask=A.mask.numpy(), shifts=range(C))
    cube = tmp_path / "cube.h5"
    words = ["--measurement", str(tmp_path / "scene.npz"), "--white", str(tmp_path / "white.npz")]
    words += ["--solver", "gap-tv", "--iterations", "40", "--figures", "none", "--output", str(cube)]
    assert run("reconstruct", words, "reconstruct.py") == 0
    assert "white.npz" in capsys.readouterr().out
    with h5py.File(cube) as h:
        assert h.attrs["unit"] == "reflectance"
        assert np.median(h["cube"][:, 8:-8, 6:18]) == pytest.approx(0.3, rel=0.1)
    found = FoundCamera(0.9 * A.mask.numpy(), tuple(range(C)), CameraModel(), True)
    seen, solve = [], front_door.reconstruct
    monkeypatch.setattr(command, "find_camera", lambda m, **settings: found)
    monkeypatch.setattr(front_door, "reconstruct", lambda m, **k: seen.append(m.mask) or solve(m, **k))
    assert run("reconstruct", [*words, "--align", "--overwrite"], "reconstruct.py") == 0
    assert len(seen) == 2 and all(np.array_equal(mask, found.mask) for mask in seen), "one camera took both"
