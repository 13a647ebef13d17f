"""`cassi reconstruct` tells the truth: the mask, the gain, the black level, a folder; and does what a dry run says."""

import json
import re
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from cases import write_h5
from messages import check_refusal, check_words, last_line, refuses

from cassi import CASSI
from cassi.cli.main import main
from cassi.cli.reading import Reading
from cassi.files import Levels, ReadOptions
from cassi.self_calibration.found_camera import FoundCamera

H = W = 48
C, STEP, BLACK, GAIN = 5, 2, 100, 3.6
GENERATOR = torch.Generator().manual_seed(11)
MASK = (torch.rand(H, W, generator=GENERATOR) > 0.5).float()
CAMERA = CASSI.from_step(MASK, STEP, C)


def counts() -> np.ndarray:
    """12-bit counts at 3.6 electrons a count over a black level of 100 counts, read noise 5 electrons."""
    scene = torch.full((C, H, W), 0.2)
    scene[:, 8:30, 10:36] = torch.linspace(0.3, 1.0, C)[:, None, None]
    y = CAMERA.forward(scene).double().numpy()
    rng = np.random.default_rng(12)
    electrons = rng.poisson(GAIN * 3000 * y / y.max()) + rng.normal(0, 5, y.shape)
    return np.clip(np.round(electrons / GAIN + BLACK), 0, 4095).astype(np.uint16)


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    write_h5(tmp_path / "mask.h5", mask=MASK.numpy())
    write_h5(tmp_path / "wrong.h5", mask=np.random.default_rng(0).integers(0, 2, (H, W)).astype(np.float32))
    return write_h5(tmp_path / "raw.h5", measurement=counts())


def call(raw: Path, *options: object, mask: str = "mask.h5") -> int:
    argv = [raw, "--mask", raw.parent / mask, "--num-bands", C, "--figures", "none", *options]
    return main(["reconstruct", *map(str, argv)])


FAST = ("--solver", "gap-tv", "--iterations", 5)


def attributes(path: Path) -> dict[str, object]:
    with h5py.File(path) as file:
        return dict(file.attrs)


def test_the_gain_is_electrons_a_count_for_counts_and_per_unit_for_floats(raw):
    options = ReadOptions(mask=raw.parent / "mask.h5", num_bands=C, levels=Levels(bit_depth=12))
    assert Reading((options,), gain=GAIN)(str(raw)).gain == pytest.approx(GAIN * 4095)
    levels = Levels(bit_depth=12, black_level=95)
    assert Reading((replace(options, levels=levels),), gain=GAIN)(str(raw)).gain == pytest.approx(GAIN * 4000)
    floats = write_h5(raw.with_name("floats.h5"), measurement=counts().astype(np.float32) / 4095)
    assert Reading((replace(options, levels=Levels()),), gain=GAIN)(str(floats)).gain == GAIN


def test_a_gain_that_drowns_the_signal_is_told_and_kept(raw, capsys):
    assert call(raw, *FAST, "--gain", 0.0003, "--read-noise", 7, "--quiet") == 0
    captured = capsys.readouterr()
    assert captured.out == "" and "noise exceeds signal" in captured.err
    assert "noise exceeds signal" in str(attributes(raw.with_name("raw_cube.h5"))["notes"])
    assert call(raw, *FAST, "--gain", GAIN, "--read-noise", 7, "--quiet", "--overwrite") == 0
    assert capsys.readouterr().err == ""
    assert call(raw, *FAST, "--gain", "1e-320", "--read-noise", 7, "--quiet", "--overwrite") == 2
    check_words(capsys.readouterr().err.splitlines()[1])


def test_a_black_level_that_is_too_high_is_told(raw, capsys):
    for level in (BLACK, BLACK + 10, 5 * BLACK):
        assert call(raw, "--bit-depth", 12, "--black-level", level, *FAST, "--overwrite") == 0
        said = capsys.readouterr()
        assert ("negative values" in said.err) == (level == 5 * BLACK)
    assert "of |y|: the black level is too high" in str(attributes(raw.with_name("raw_cube.h5"))["notes"])


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, -1), (-1, 1), (-1, -1)])
def test_a_turned_mask_is_told_with_its_cure_and_the_cure_cures(raw, capsys, transpose, rows, columns):
    mask = MASK.numpy()[::rows, ::columns]
    write_h5(raw.with_name("turned.h5"), mask=(mask.T if transpose else mask).copy())
    assert call(raw, "--dry-run", mask="turned.h5") == 0
    captured = capsys.readouterr()
    assert "it fits when " in captured.err and "(--turn-mask)" in captured.err
    assert "although the mask does not fit" in captured.out.splitlines()[-1]
    options = ReadOptions(mask=raw.with_name("turned.h5"), num_bands=C)
    np.testing.assert_array_equal(Reading((options,), turn_mask=True)(str(raw)).mask, MASK.numpy())


def test_nothing_is_aligned_to_a_mask_that_does_not_belong(raw, capsys):
    check_refusal(capsys, call(raw, *FAST, "--align", "--quiet", mask="wrong.h5"))
    assert not raw.with_name("raw_cube.h5").exists()


def test_a_dry_run_says_what_the_run_says(raw, capsys):
    options = ("--bit-depth", 12, "--black-level", BLACK, "--wavelengths", "450:650:5", *FAST)
    assert call(raw, *options, "--dry-run") == 0
    dry = capsys.readouterr().out
    assert call(raw, *options) == 0
    real = capsys.readouterr().out
    for line in ("  counts scaled to y = (counts - 100) / 3995", "  the mask fits the measurement"):
        assert any(text.startswith(line) for text in dry.splitlines())
        assert any(text.startswith(line) for text in real.splitlines())
    assert "wavelengths unknown" not in dry + real
    for again in (("--dry-run",), ()):
        assert call(raw, *options, *again) == 0
        said = capsys.readouterr().out
        assert "would reconstruct" not in said and "raw_cube.h5" in said.splitlines()[-1]
    for again in (("--dry-run",), ()):  # what it would have to be computed for
        check_refusal(capsys, call(raw, *options, "--save-camera", raw.with_name("camera.h5"), *again))
    for again in (("--dry-run",), ()):  # by other settings
        check_refusal(capsys, call(raw, *options, "--seed", 1, *again))


def test_a_black_level_that_is_found_is_told_in_counts(raw, capsys):
    assert call(raw, "--bit-depth", 12, "--quality", "fast") == 0
    said = re.search(r"black level of \S+ \((\S+) counts\) was subtracted", capsys.readouterr().out)
    assert float(said[1]) == pytest.approx(BLACK, abs=3)


@pytest.fixture
def night(raw: Path) -> Path:
    folder = raw.parent / "night"
    folder.mkdir()
    for name in ("snap1", "snap2", "snap10"):
        write_h5(folder / f"{name}.h5", measurement=counts())
    dark = BLACK + np.random.default_rng(3).normal(0, 2, (H, W + (C - 1) * STEP))
    write_h5(folder / "dark.h5", measurement=np.round(dark).astype(np.uint16))
    return folder


def test_a_dry_run_of_a_folder_looks_at_the_first(night, capsys):
    assert call(night, "--dry-run") == 0
    said = capsys.readouterr()
    assert "wrong mask" in said.err and "would reconstruct 4 snapshots, dark to snap10, cubes 5 x 48 x 48" in said.out
    assert not list(night.parent.glob("night_cubes*"))
    (night.parent / "night_cubes").mkdir()
    write_h5(night.parent / "night_cubes" / "snap2_cube.h5", cube=[0])
    assert "existing cubes: 1, kept" in last_line(capsys, call(night, "--dry-run"))


def test_of_a_folder_is_told_what_speaks_against_its_cubes(night, capsys):
    """A gain that cannot be; and of a finished cube also by the run that finds it finished."""
    (night / "dark.h5").unlink()
    output = ("--output", night.parent / "cubes", *FAST, "--camera", "as-given")
    for _ in range(2):
        assert call(night, "--gain", 0.002, "--read-noise", 5, *output) == 0
        said = capsys.readouterr()
        assert said.err.count("noise exceeds signal") == 3 and ", 3 in doubt -> " in said.out
    assert "noise exceeds signal" in str(attributes(night.parent / "cubes" / "snap1_cube.h5")["notes"])


def test_a_folder_goes_on_beside_the_camera_that_it_saved(night, capsys, monkeypatch):
    monkeypatch.setattr("cassi.self_calibration.search.find_camera", lambda m, *_, **__: FoundCamera.as_given(m))
    argv = ("--output", night.parent / "cubes", "--save-camera", night.parent / "camera.h5", *FAST)
    assert call(night, *argv) == call(night, *argv) == 0
    assert "4 already finished, 1 not fitting the mask" in capsys.readouterr().out
    write_h5(night.parent / "camera.h5", mask=np.ones((C, H, W)))
    check_refusal(capsys, call(night, *argv))


def test_frames_that_do_not_fit_the_mask_are_counted(night, capsys):
    output = night.parent / "cubes"
    for found in (0, 4):  # now, and by what is on the disk
        assert call(night, *FAST, "--output", output) == 0
        captured = capsys.readouterr()
        assert "1 not fitting the mask" in captured.out and captured.err.count("warning: dark: wrong mask") == 1
        assert (f"{found} already finished" in captured.out) == bool(found)
    index = [json.loads(line) for line in (output / "index.jsonl").read_text().splitlines()]
    assert [line["ok"] for line in index] == [False, True, True, True]


def test_of_many_that_do_not_fit_the_first_are_named_in_order(night, capsys):
    assert call(night, *FAST, "--camera", "as-given", mask="wrong.h5") == 0
    assert re.findall(r"warning: (\S+)", capsys.readouterr().err)[:4] == ["dark:", "snap1:", "snap2:", "..."]


def test_a_folder_gets_a_page_and_many_cubes_a_place(night, capsys):
    assert call(night, *FAST, "--report") == 0
    page = (night.parent / "night_cubes" / "index.html").read_text()
    assert "4 results, 1 of them in doubt" in page
    linked = re.findall(r'href="([^"]+)"', page)
    assert len(linked) == 4 and all(name.endswith("_report.html") for name in linked)
    assert all((night.parent / "night_cubes" / name).is_file() for name in linked)
    assert "index.html" in capsys.readouterr().out.splitlines()[-1]
    files = [str(night / f"snap{k}.h5") for k in (10, 2, 1)]  # as a shell expands a pattern
    argv = ["reconstruct", *files, "--mask", str(night.parent / "mask.h5"), "--num-bands", str(C), *map(str, FAST)]
    for place in ([], ["--output", str(night.parent / "cubes.h5")]):
        check_refusal(capsys, main([*argv, *place, "--dry-run"]))
    assert main([*argv, "--output", str(night.parent / "out")]) == 0
    names = sorted(path.name for path in (night.parent / "out").glob("*.h5"))
    assert names == ["snap10_cube.h5", "snap1_cube.h5", "snap2_cube.h5"]


def test_what_the_library_says_gets_its_option_here(raw, capsys):
    write_h5(raw.with_name("odd.h5"), Bild1=counts(), blende=MASK.numpy(), third=MASK.numpy())
    check_refusal(capsys, main(["reconstruct", str(raw.with_name("odd.h5"))]))
    with refuses(ValueError) as caught:
        Reading((ReadOptions(mask=raw.parent / "mask.h5", num_bands=C),), read_noise=5.0)(str(raw))
    assert "--" not in str(caught.value)
    assert call(raw, *FAST, "--read-noise", 5) == 2
    assert "(--gain)" in capsys.readouterr().err


@pytest.mark.parametrize(("pixels", "depth"), [(np.full((H, 56), 300, np.uint16), (12,)), (np.zeros((H, 56)), ())])
def test_a_snapshot_without_a_scene_is_refused(raw, capsys, pixels, depth):
    write_h5(raw, measurement=pixels)
    options = ("--num-bands", C, *(word for bits in depth for word in ("--bit-depth", bits)))
    for dry in ((), ("--dry-run",)):
        check_refusal(capsys, call(raw, *FAST, *options, *dry))
    argv = ["calibrate", "refine", "--measurement", raw, "--mask", raw.with_name("mask.h5"), *options]
    check_refusal(capsys, main([*map(str, argv), "--output", str(raw.with_name("camera.h5"))]))
    assert {path.name for path in raw.parent.iterdir()} == {"raw.h5", "mask.h5", "wrong.h5"}


def test_among_many_a_snapshot_without_a_scene_is_named(night, capsys):
    write_h5(night / "snap2.h5", measurement=np.zeros((H, W + STEP * (C - 1)), np.uint16))
    assert call(night, *FAST) == 0
    captured = capsys.readouterr()
    assert "snap2: the snapshot is black" in captured.err and "2 not fitting the mask" in captured.out


@pytest.mark.parametrize("suffix", ["h5", "mat"])
def test_a_result_is_no_snapshot(raw, capsys, suffix):
    result = raw.with_name(f"result.{suffix}")
    assert call(raw, *FAST, "--quiet", "--output", result) == 0
    assert call(result, *FAST) == 2
    assert "this is a result" in (err := capsys.readouterr().err) and "`cassi view` shows it" in err
    if suffix == "h5":  # it keeps its snapshot, which can be asked for
        assert call(result, *FAST, "--key", "measurement", "--output", raw.with_name("again.h5")) == 0


def test_a_gpu_that_torch_cannot_use_is_named_in_one_line(tmp_path, monkeypatch, capsys):
    """By its driver or its tool; nothing is said where there is none, or it is used, or another device is named."""
    from cassi.kernels import dispatch

    said = dispatch.unused_gpu
    monkeypatch.setattr(dispatch.shutil, "which", lambda name: None)
    monkeypatch.setattr(dispatch.torch.cuda, "is_available", lambda: False)
    assert said(tmp_path / "none") == "" and "NVIDIA GPU" in said(tmp_path)
    monkeypatch.setattr(dispatch.shutil, "which", lambda name: f"/usr/bin/{name}")
    for version, words in ((None, "built without CUDA"), ("12.8", "cannot use it")):
        monkeypatch.setattr(dispatch.torch.version, "cuda", version)
        assert words in said(tmp_path / "none")
    assert main(["simulate", "--size", "32", "--num-bands", "4", "--output", str(tmp_path / "m.h5"), "--quiet"]) == 0
    for device, count in (("auto", 1), ("cpu", 0)):
        how = ["--solver", "least-squares", "--figures", "none", "--overwrite", "--device", device]
        assert main(["reconstruct", str(tmp_path / "m.h5"), *how]) == 0
        assert capsys.readouterr().err.count("this machine has an NVIDIA GPU") == count
    monkeypatch.setattr(dispatch.torch.cuda, "is_available", lambda: True)
    assert said(tmp_path) == ""
