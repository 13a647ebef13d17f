"""A study of cameras: what each costs and reaches, the same in any order and after an interruption."""

import csv
import io
import json
import warnings

import numpy as np
import pytest
import torch
from messages import refused

from cassi.files import write_cube
from cassi.looking.camera_figures import choices_figure
from cassi.running import design as module
from cassi.running.design import Design, as_csv, element_mask, evaluate, grid, open_scene, paint_scene, scenes_of, study
from cassi.version import PROGRAM


@pytest.mark.parametrize(
    ("text", "whole", "expected"),
    [("2", True, [2]), ("1:3", True, [1, 2, 3]), ("1,2,4", True, [1, 2, 4]), ("16:31", True, [16, 24, 31]),
     ("1e3:1e5", False, [1e3, 1e4, 1e5]), ("500", False, [500]), ("1000:3000", False, [1000, 3000])],
)  # fmt: skip
def test_values_as_they_are_typed(text, whole, expected):
    assert module.values_between(text, whole=whole) == expected


@pytest.mark.parametrize("text", ["", "a", "0", "-1:3", "1.5", "3:1", "1:2:3", "1,2:3", "inf", "nan"])
def test_values_that_are_none(text):
    refused(module.values_between, text)


def test_elements_are_squares():
    mask = element_mask(10, 11, 3, generator=torch.Generator().manual_seed(0))
    assert mask.shape == (10, 11) and set(mask.unique().tolist()) == {0, 1}
    for i in range(0, 10, 3):
        for j in range(0, 11, 3):
            assert mask[i : i + 3, j : j + 3].unique().numel() == 1


def test_a_measured_scene_is_interpolated_over_its_own_range(tmp_path):
    nm = np.array([500.0, 400.0, 600.0])  # in any order
    cube = np.array([2.0, 1.0, 3.0])[:, None, None] * np.ones((3, 20, 30))
    write_cube(tmp_path / "a.h5", cube, wavelengths=nm)
    (scene,) = scenes_of(tmp_path, 9).values()
    np.testing.assert_allclose(scene(5, 8, 10)[:, 0, 0], np.array([1, 1.5, 2, 2.5, 3]) / 3, rtol=1e-6)
    assert scene(5, 8, 10).shape == (5, 8, 10)
    refused(scene, 5, 24, 24)
    (tmp_path / "empty").mkdir()
    refused(scenes_of, tmp_path / "empty", 1)
    refused(open_scene, write_cube(tmp_path / "dark.h5", np.zeros((3, 20, 30))))


def test_more_light_and_more_detector_are_better():
    """What must hold of any camera; and the same design gives the same numbers again."""
    dim, usual, wide = (evaluate(one, paint_scene(0), size=48) for one in (
        Design(1, 1, 8, 200.0), Design(1, 1, 8, 20_000.0), Design(4, 1, 8, 20_000.0)))  # fmt: skip
    assert dim["psnr"] + 1 < usual["psnr"] and dim["angle"] > usual["angle"]
    assert usual["psnr"] < wide["psnr"]
    with warnings.catch_warnings(action="error"):  # doubts about a cube are not those of a study
        assert evaluate(Design(1, 1, 8, 5.0), paint_scene(0), size=48)["psnr"] < dim["psnr"]


def test_a_study_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    calls = []

    def pretended(design, scene, *, size, quality):
        calls.append(design)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {"psnr": 10.0 * design.step + scene(1, 1, 1).item(), "ssim": 0.5, "angle": 2.0}

    monkeypatch.setattr(module, "evaluate", pretended)
    scenes = {name: lambda *_, v=value: torch.tensor(v) for name, value in (("a", 1.0), ("b", 3.0))}
    designs = grid([1, 2], [1], [8], [1e4])
    with pytest.raises(KeyboardInterrupt):
        study(designs, scenes, tmp_path, size=16)
    with (tmp_path / "design.jsonl").open("a") as file:
        key = json.dumps([2, 1, 8, 1e4, "b", 16, "fast", PROGRAM])
        file.write(f'{{"key": {key}}}\n{{"key": {key}, "psnr": "x", "ssim": 0.5, "angle": 2.0}}\n')  # by another hand
        file.write('{"key": [1, 1, 8')  # a line that was cut off
    found = study(designs, scenes, tmp_path, size=16)
    assert len(calls) == 5  # two done, the third anew, and the fourth
    assert [(q.psnr, q.spread, q.scenes) for q in found.values()] == [(12, 1, 2), (22, 1, 2)]
    study(designs, scenes, tmp_path, size=16)
    assert len(calls) == 5
    (first, second) = csv.DictReader(io.StringIO((tmp_path / "design.csv").read_text()))
    assert (first["step"], first["detector_columns"], first["psnr_db"]) == ("1", "23", "12.00")
    assert second["detector_columns"] == "30" and as_csv(found, 16).count("\n") == 3
    refused(study, designs * 10_001, scenes, tmp_path)


@pytest.mark.parametrize("design", [Design(2, 64, 8, 1e4), Design(2, 1, 8, 1e300), Design(2, 1, 8, 1e-3)])
def test_cameras_that_nobody_can_build(tmp_path, design):
    refused(study, [Design(2, 1, 8, 1e4), design], {"painted": paint_scene(0)}, tmp_path / "new", size=32)
    assert not (tmp_path / "new").exists()


def test_the_figure_shows_what_varies():
    rows = [{"step": s, "mask_element": 1, "bands": 8, "electrons": e, "psnr": s + np.log10(e)}
            for s in (1, 2) for e in (1e3, 1e5)]  # fmt: skip
    figure = choices_figure(rows)
    assert [axes.get_xlabel().split()[0] for axes in figure.axes] == ["dispersion", "electrons"]
    mean = figure.axes[0].lines[-1]
    assert mean.get_xydata().tolist() == [[1, 5], [2, 6]]
    assert figure.axes[1].get_xscale() == "log"
