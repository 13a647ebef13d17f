"""Simulated captures whose truth is known: scenes, errors of masks, texture, ranks and the table."""

import csv
from dataclasses import replace

import benchmark as script
import numpy as np
import pytest
import torch
from benchmarks import twin as module
from benchmarks.twin import CAMERAS, ERRORS, SCENES, Row, ranks, table, write, wrong

from cassi import CASSI
from cassi.choice import automatic
from cassi.choice.stages import NonLocal, Tv

ROW = Row("microscope", 0.05, "white", "cells", 0, 30.0, 27.0, 26.0, True, 4.0, 1.5, 0.7, 0.8, 1, 4, 6)


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("camera", CAMERAS)
def test_light_is_weak_in_the_blue(name, camera):
    make, nm, _ = CAMERAS[camera]
    mask, x = make(np.random.default_rng(1), 48), SCENES[name](np.random.default_rng(1), 48, nm)
    assert x.shape == (len(nm), 48, 48) and x.min() >= 0 and x.std() > 0.01
    assert np.percentile(x[0], 90) < 0.5 * np.percentile(x[-1], 90) or name == "objects"
    assert 0 <= mask.min() < mask.mean() < mask.max() <= 1


def test_errors_of_masks():
    rng = np.random.default_rng(0)
    mask = np.full((256, 256), 0.5)
    for kind, neighbor in (("white", 0.0), ("over 1 px", np.exp(-1 / 4))):  # a Gaussian of 1 px, with itself
        e = wrong(mask, 0.05, kind, rng) - mask
        assert e.std() == pytest.approx(0.05)
        assert np.mean(e[:, 1:] * e[:, :-1]) / 0.05**2 == pytest.approx(neighbor, abs=0.03)
    assert np.array_equal(wrong(mask, 0.0, "exact", rng), mask)
    assert wrong(np.zeros((9, 9)), 0.1, "white", rng).min() == 0


def test_the_truth_is_ranked():
    """Misfits alone prefer any cube to a truth that another mask saw, if that cube explains the snapshot."""
    generator = torch.Generator().manual_seed(0)
    mask, truth = torch.rand(24, 24, generator=generator), torch.rand(4, 24, 24, generator=generator)
    A = CASSI.from_step(mask, 2, 4)
    nm = np.linspace(450, 650, 4)
    variance = torch.full(A.measurement_shape, 1e-4)
    y = A.forward(truth)
    assert ranks(A, y, truth, {"tv": 0.5 * truth}, variance, nm) == (1, 1, 4)
    assert ranks(A, y, 0.9 * truth, {"tv": truth, "other": 0.99 * truth}, variance, nm)[1] >= 3


def test_the_table_has_means_and_worst_cases(tmp_path):
    rows = [ROW, replace(ROW, seed=1, default=25.0, accepted=False, texture=2.5, rank=3, plain_rank=6)]
    *_, line = table(rows).splitlines()
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "microscope", "5%", "27.50", "27.00", "26.00", "-1.00", "1 of 2", "2.00 / 2.50", "0.70 (0.80)", "50 %, 100 %",
        "0 %, 0 %",
    ]  # fmt: skip
    write(tmp_path / "twin.csv", rows)
    read = list(csv.DictReader((tmp_path / "twin.csv").open()))
    assert [float(row["default"]) for row in read] == [30.0, 25.0] and read[1]["accepted"] == "False"
    assert [path.name for path in tmp_path.iterdir()] == ["twin.csv"]


@pytest.mark.long
def test_the_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(module, "ERRORS", (0.0, ERRORS[-1]))
    monkeypatch.setattr(automatic, "default_stages", lambda A, settings: (Tv(6), ((NonLocal(0.5, 2),),)))
    path = tmp_path / "twin.csv"
    few = ["--size", "32", "--seeds", "1", "--scene", "cells", "--white", "--output", str(path)]
    assert script.main(["twin", *few]) == 0
    read = list(csv.DictReader(path.open()))
    assert [(row["camera"], row["error"]) for row in read] == [(c, e) for c in CAMERAS for e in ("0.00", "0.12")]
    assert all(0 < float(row[key]) < 60 for row in read for key in ("default", "given", "tv"))
    assert all(1 <= int(row["rank"]) <= int(row["candidates"]) == 6 for row in read)
    assert capsys.readouterr().out.count("\n| ") == 5
