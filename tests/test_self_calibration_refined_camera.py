"""One camera fitted to several simulated captures whose camera is known, from Python and at the command line."""

import json
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from cases import moved, write_h5
from messages import refused
from scipy import ndimage

from cassi import CASSI, calibrate_from_captures
from cassi.cli.main import run
from cassi.files import read_measurement
from cassi.looking import camera_figures
from cassi.optics.measurement import Measurement, camera_difference
from cassi.self_calibration import refined_camera
from cassi.self_calibration.found_camera import FoundCamera
from cassi.self_calibration.search import find_camera

SHIFTS = tuple(range(0, -16, -2))  # a sign that the width of the frame does not tell
SIZE = 128


@pytest.fixture(scope="module")
def mask():
    return ndimage.gaussian_filter(np.random.default_rng(0).random((SIZE, SIZE)), 0.6).astype(np.float32)


@pytest.fixture(scope="module")
def captures(mask):
    """Two scenes by a camera whose mask lies 1 px lower than believed."""
    true = torch.as_tensor(moved(mask, dy=1.0))
    found = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        regions = ndimage.gaussian_filter(rng.standard_normal((3, SIZE, SIZE)), (0, 12, 12)).argmax(0)
        spectra = np.stack([0.5 + 0.3 * np.cos(2 * np.pi * (np.linspace(0, 1, 8) - phase)) for phase in (0, 0.3, 0.6)])
        y = CASSI(true, SHIFTS).forward(torch.as_tensor(spectra[regions].transpose(2, 0, 1), dtype=torch.float32))
        noisy = rng.poisson(y.numpy() * 5000) / 5000
        found.append(Measurement(y=noisy.astype(np.float32), mask=mask, shifts=SHIFTS, source=f"scene{seed}.h5"))
    return found


@pytest.fixture(scope="module")
def refined(captures):
    return calibrate_from_captures(captures, black_level=0.0)


def test_the_captures_agree_on_the_camera_and_it_predicts_each_better(refined):
    assert refined.together.accepted
    together, first, second = refined.values()["moved down [px]"]
    assert together == pytest.approx(1, abs=0.03)
    assert [first, second] == pytest.approx([1, 1], abs=0.06)
    assert f"moved down [px]: {together:+.3f} +- {abs(first - second) / 2:.3f}" in "\n".join(refined.summary())
    given, alone, together = refined.errors.T
    assert (together < 0.9 * given).all()
    assert (together < 1.05 * alone).all()


def test_the_summary_names_captures_and_doubt(refined, captures):
    text = "\n".join(refined.summary())
    assert "+-" in text and "fitted to 2 captures together" in text
    assert all(m.source in text for m in captures)
    single = replace(refined, names=refined.names[:1], alone=refined.alone[:1], errors=refined.errors[:1])
    assert "moved down" in "\n".join(single.summary()) and "+-" not in "\n".join(single.summary())
    few = slice(48)  # rows, in which nothing is found
    part = replace(captures[0], y=captures[0].y[few], mask=captures[0].mask[few])
    assert "moved down" not in "\n".join(calibrate_from_captures([part]).summary())


def test_what_a_scene_shows_again_takes_no_part(captures, refined):
    """A copy, or another capture of it, would make the camera seem surer than it is; as would a dark one."""
    noise = 0.01 * np.random.default_rng(5).standard_normal(captures[0].y.shape).astype(np.float32)
    copies = {"copy.h5": captures[0].y, "noisy.h5": captures[1].y + noise, "dark.h5": 0.02 * noise + 1e-4}
    steps = list[str]()
    more = [*captures, *(replace(captures[0], y=y, source=name) for name, y in copies.items())]
    again = calibrate_from_captures(more, black_level=0.0, progress=lambda step, share: steps.append(step))
    told = "copy.h5, noisy.h5, dark.h5: show scenes again, or none, and took no part"
    assert again.summary() == [*refined.summary()[:-3], told, *refined.summary()[-3:]]
    assert set(steps) <= set(refined_camera.fit_steps([m.source for m in more]))


def test_each_capture_needs_light(captures):
    """However bright the others are; a black level far too high leaves none."""
    dim = replace(captures[0], y=captures[0].y - 2 * captures[0].y.max(), source="dim.h5")
    refused(calibrate_from_captures, [*captures, dim])


def test_captures_that_do_not_go_together(captures):
    refused(calibrate_from_captures, [], error=ValueError)
    m = captures[0]
    refused(calibrate_from_captures, [m, replace(m, y=m.y[:, :100])], error=ValueError)


OTHERS = {
    "mask": lambda m: replace(m, mask=m.mask[::-1].copy()),
    "masks": lambda m: replace(m, mask=np.stack([m.mask] * 8)),
    "shifts": lambda m: replace(m, shifts=tuple(-d for d in m.shifts)),
    "wavelengths": lambda m: replace(m, wavelengths=np.linspace(450, 650, 8)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_captures_of_two_cameras_are_refused(captures, other):
    """Whatever makes the camera another one; which two they are is said."""
    m, same = (replace(one, wavelengths=nm) for one, nm in zip(captures, (np.linspace(400, 600, 8), None), strict=True))
    assert not camera_difference([m, same])
    wrong = replace(OTHERS[other](m), source="other.h5")
    for call in (calibrate_from_captures, lambda of: find_camera(*of)):
        refused(call, [m, same, wrong])


def test_dark_frames_are_subtracted_from_captures(tmp_path, captures, refined, files, monkeypatch):
    def fitted(measurements, **_):
        for m, given in zip(measurements, captures, strict=True):
            np.testing.assert_allclose(m.y, given.y - 0.01, atol=1e-6)
            assert m.black_level_left(None) == 0
        return replace(refined, names=tuple(m.source for m in measurements))

    monkeypatch.setattr(refined_camera, "calibrate_from_captures", fitted)
    np.save(tmp_path / "dark.npy", np.full_like(captures[0].y, 0.01))
    words = ["refine", "--measurement", str(tmp_path / "scene*.h5"), "--mask", str(tmp_path / "mask.npy"), "--step=-2"]
    words += ["--dark", str(tmp_path / "dark.npy"), "--output", str(tmp_path / "camera.h5"), "--figures", "none"]
    assert run("calibrate", words, "calibrate.py") == 0
    assert run("calibrate", [*words, "--black-level", "3"], "calibrate.py") == 2


def test_every_figure_is_drawn(refined):
    arrows = camera_figures.displacement(refined).axes[0].collections[0]
    assert np.allclose(arrows.V, 1, atol=0.1) and np.allclose(arrows.U, 0, atol=0.1)
    assert len(camera_figures.sharpness(refined).axes[0].lines[0].get_xdata()) == len(SHIFTS)


@pytest.fixture
def files(tmp_path, captures, mask):
    np.save(tmp_path / "mask.npy", mask)
    for m in captures:
        write_h5(tmp_path / m.source, measurement=m.y)
    return [str(tmp_path / m.source) for m in captures]


def test_from_files_to_a_calibration_that_reconstruct_reads(tmp_path, captures, refined, files, capsys, monkeypatch):
    def fitted(measurements, **_):
        assert all(np.array_equal(m.y, other.y) for m, other in zip(measurements, captures, strict=True))
        return replace(refined, names=tuple(m.source for m in measurements))

    monkeypatch.setattr(refined_camera, "calibrate_from_captures", fitted)
    (tmp_path / "sub").mkdir()
    files = [files[0], files[0], files[1], str(tmp_path / "sub" / ".." / captures[0].source)]  # the first counts once
    output = tmp_path / "camera.h5"
    words = ["refine", "--measurement", *files, "--mask", str(tmp_path / "mask.npy"), "--step", "-2"]
    assert run("calibrate", [*words, "--output", str(output)], "calibrate.py") == 0
    printed = capsys.readouterr().out
    assert float(printed.split("moved down [px]: ")[1].split()[0]) == pytest.approx(1, abs=0.03)
    assert "scene2.h5" in printed
    assert {p.name for p in (tmp_path / "camera_figures").iterdir()} == {"moved.png", "sharpness.png"}
    bad = np.zeros(captures[0].y.shape, bool)
    bad[3, 4] = True
    np.save(tmp_path / "bad.npy", bad)
    words = [*words, "--bad-pixels", str(tmp_path / "bad.npy"), "--output", str(tmp_path / "as-given.h5")]
    as_given = FoundCamera.as_given(captures[0])
    monkeypatch.setattr(
        refined_camera,
        "calibrate_from_captures",
        lambda *_, **__: replace(refined, together=as_given, alone=(as_given,)),
    )
    assert run("calibrate", words, "calibrate.py") == 0
    assert not (tmp_path / "as-given_figures").exists() and "figures" not in capsys.readouterr().out
    np.testing.assert_array_equal(read_measurement(files[0], mask=tmp_path / "as-given.h5").bad_pixels, bad)
    m = read_measurement(files[0], mask=output)
    assert m.shifts == SHIFTS and m.mask.shape == (8, SIZE, SIZE)
    cube = tmp_path / "cube.h5"
    again = ["--measurement", files[0], "--mask", str(output), "--output", str(cube), "--figures", "none"]
    assert run("reconstruct", [*again, "--solver", "gap-tv", "--iterations", "2"], "reconstruct.py") == 0
    with h5py.File(cube) as h:
        assert json.loads(h.attrs["shifts"]) == list(SHIFTS)


def test_a_mask_of_another_camera_is_told(tmp_path, captures, refined, mask, files, capsys, monkeypatch):
    """However the fit turned out; the true mask, displaced as it is, goes by without a word."""
    monkeypatch.setattr(refined_camera, "calibrate_from_captures", lambda measurements, **_: found)
    np.save(tmp_path / "other.npy", np.random.default_rng(7).permutation(mask))
    words = ["refine", "--measurement", *files, "--step", "-2"]
    words += ["--output", str(tmp_path / "camera.h5"), "--figures", "none", "--overwrite"]
    found = refined
    assert run("calibrate", [*words, "--mask", str(tmp_path / "mask.npy")], "calibrate.py") == 0
    assert capsys.readouterr().err == ""
    found = replace(refined, together=FoundCamera.as_given(replace(captures[0], mask=np.load(tmp_path / "other.npy"))))
    assert run("calibrate", [*words, "--mask", str(tmp_path / "other.npy")], "calibrate.py") == 0
    told = capsys.readouterr().err
    assert all(told.count(f"warning: {m.source}: wrong mask") == 1 for m in captures)
    assert told.count("\n") == len(captures)


def test_a_black_level_that_is_too_high_is_told(tmp_path, refined, files, mask, capsys, monkeypatch):
    monkeypatch.setattr(refined_camera, "calibrate_from_captures", lambda measurements, **_: refined)
    words = ["refine", "--measurement", *files, "--step=-2", "--mask", str(tmp_path / "mask.npy"), "--figures", "none"]
    level = str(float(np.median(read_measurement(files[0], mask=mask, step=-2).y)))
    assert run("calibrate", [*words, "--output", str(tmp_path / "c.h5"), "--black-level", level], "refine") == 0
    assert "warning: scene1.h5: negative values make up" in capsys.readouterr().err


def test_a_file_that_is_no_capture_is_one_line(tmp_path, capsys):
    for files in (["none.h5"], ["none.h5", "none.h5"]):
        argv = ["refine", "--measurement", *(str(tmp_path / name) for name in files)]
        assert run("calibrate", argv, "calibrate.py") == 2
        assert capsys.readouterr().err.count("\n") == 1
