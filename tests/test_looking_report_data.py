"""What the report takes from a result file, and what is no result."""

import os
from pathlib import Path

import numpy as np
import pytest
from cases import write_h5
from messages import refused, refuses
from test_looking_report import HEIGHT, HOSTILE, WAVELENGTHS, WIDTH, result_file, scene  # noqa: F401  (a fixture)

from cassi import Record
from cassi.files import OutputError, write_cube
from cassi.looking.report_data import ReportData, read_report
from cassi.looking.report_page import write_report


def test_read_report_takes_everything_from_the_file(result_file: Path) -> None:  # noqa: F811
    data, (cube, truth, uncertainty) = read_report(result_file), scene()
    np.testing.assert_array_equal(data.cube[:, :, :], cube)
    np.testing.assert_array_equal(data.truth[1:3, 4:6, 7:9], truth[1:3, 4:6, 7:9])
    np.testing.assert_array_equal(data.uncertainty[:, 5:6, :], uncertainty[:, 5:6, :])
    np.testing.assert_array_equal(data.wavelengths, WAVELENGTHS)
    assert data.measurement.shape == data.residual.shape == (HEIGHT, WIDTH + 8)
    assert data.history[2] == Record(3, pytest.approx(0.3), 0.125, pytest.approx(0.027))
    assert (data.title, data.unit, data.provenance["status"]) == (HOSTILE[0], HOSTILE[3], "converged")
    assert data.parameters["num_iters"] == 8 and data.choice["plan"] == "subspace"


def test_read_report_picks_the_frame_of_a_stack(tmp_path: Path) -> None:
    cubes = np.random.default_rng(0).random((3, 2, 4, 5), np.float32)
    snapshots = np.random.default_rng(1).random((3, 4, 6), np.float32)
    history = [Record(k, 0.1 * k, 0.5, 0.1 * frame) for frame in range(3) for k in range(1, 4 + frame)]
    path = write_cube(
        tmp_path / "stack.h5", cubes, history=history, datasets={"measurement": snapshots},
        attributes={"notes": ["seen", "so"], "choice": "none"},
    )  # fmt: skip
    data = read_report(path, frame=2)
    assert [(record.iteration, record.change) for record in data.history] == [(k, 0.2) for k in range(1, 6)]
    assert (data.provenance["notes"], data.choice) == (["seen", "so"], {}) and data.title == "stack.h5, frame 3 of 3"
    np.testing.assert_array_equal(data.cube[:, 1:3, :], cubes[2, :, 1:3])
    np.testing.assert_array_equal(data.measurement, snapshots[2])
    for frame in (3, -1):
        refused(read_report, path, frame=frame)


def test_read_report_refuses_what_is_no_result(tmp_path: Path) -> None:
    np.savez(tmp_path / "cube.npz", cube=np.ones((2, 3, 4)))
    refused(read_report, tmp_path / "cube.npz")
    refused(read_report, write_h5(tmp_path / "other.h5", picture=np.ones((3, 4))))
    # with its truth, as `cassi simulate` writes it
    write_h5(tmp_path / "m.h5", measurement=np.ones((3, 6)), mask=np.ones((3, 4)), cube=np.ones((3, 3, 4)))
    with refuses() as caught:
        read_report(tmp_path / "m.h5")
    assert caught.value.kind == "measurement"
    masks = np.ones((3, 3, 4))
    with refuses() as caught:
        read_report(write_h5(tmp_path / "camera.h5", mask=masks, shifts=np.arange(3), mask_3d_shift=masks))
    assert caught.value.kind == "no result" and "camera" in str(caught.value)
    refused(read_report, write_cube(tmp_path / "odd.h5", np.ones((2, 3, 4)), datasets={"truth": np.ones((2, 3, 5))}))
    for part, shape in (("cube", (2, 3, 4, 5)), ("uncertainty", (2, 3, 3)), ("residual", (5,)), ("wavelengths", (3,))):
        refused(ReportData, error=ValueError, **{"cube": np.ones((2, 3, 4))} | {part: np.ones(shape)})


def test_write_report_leaves_nothing_half_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = ReportData(np.random.default_rng(0).random((3, 16, 16)))
    path = write_report(tmp_path / "report.html", data)
    before = path.read_bytes()
    for place in (tmp_path / "report.pdf", path, tmp_path / "no folder" / "report.html"):
        refused(write_report, place, data, error=OutputError)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    refused(write_report, path, data, error=OutputError, overwrite=True)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["report.html"]


def test_a_full_size_result_stays_below_10_megabytes(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    y, x = np.mgrid[0:256, 0:256] / 256
    smooth = [np.sin((3 + c / 9) * x * np.pi) * np.cos(5 * y + c / 5) + 1 for c in range(28)]
    truth = np.stack(smooth).astype(np.float32)
    cube = truth + generator.normal(0, 0.02, truth.shape).astype(np.float32)  # a noisy one: it packs badly
    snapshot = generator.random((256, 310), np.float32)
    data = ReportData(cube, np.linspace(450, 650, 28), truth, np.abs(cube - truth), snapshot, snapshot - 0.5)
    assert 2e6 < write_report(tmp_path / "report.html", data).stat().st_size < 9e6


def test_what_speaks_against_a_result():
    cube, stated = np.ones((2, 4, 5)), {"concerns": ["the residual bends"]}
    assert ReportData(cube, ok=False, provenance=stated).problems() == [
        "The mask does not fit the measurement.",
        "the residual bends",
    ]
    assert ReportData(cube).problems() == []


def test_what_is_unexplained_is_a_share_of_the_light_of_pixels_that_were_not_left_out():
    y, rest = np.diag([9e9, 1, 1, 1]), np.diag([0, 0.6, 0.6, 0.6])  # pixels that are left out read anything
    assert ReportData(np.ones((2, 4, 5)), measurement=y, residual=rest).unexplained == pytest.approx(0.6)
