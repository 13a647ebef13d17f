"""What `cassi reconstruct` refuses before it reads or computes anything: files in each other's place, idle options."""

import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from cases import write_h5
from messages import check_refusal

from cassi import CASSI
from cassi.cli.main import main
from cassi.files import OutputError, write_cube
from cassi.self_calibration.found_camera import FoundCamera

SIZE, C = 40, 6


@pytest.fixture
def bench(tmp_path: Path) -> Path:
    """A folder with a snapshot, its mask, a white reference and a cube."""
    mask = (torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(4)) > 0.5).float()
    A = CASSI.from_step(mask, 1, C)
    x = torch.rand(C, SIZE, SIZE, generator=torch.Generator().manual_seed(5)) + 1
    y, white = A.forward(x), A.forward(torch.ones_like(x))
    for name, snapshot in (("m", y), ("white", white), ("two", torch.stack([y] * 2))):
        write_h5(tmp_path / f"{name}.h5", measurement=snapshot.numpy(), shifts=np.arange(C))
    write_h5(tmp_path / "mask.h5", mask=mask.numpy())
    write_cube(tmp_path / "spectra.h5", x.numpy())
    write_cube(tmp_path / "fewer.h5", x[:3].numpy())
    (tmp_path / "curves.csv").write_text("400, 1\n700, 1\n")
    (tmp_path / "w.safetensors").write_bytes(b"")
    (tmp_path / "folder.d").mkdir()
    return tmp_path


def run(bench: Path, *options: object) -> int:
    paths = [bench / one if isinstance(one, str) and "." in one else one for one in options]
    argv = [bench / "m.h5", "--mask", bench / "mask.h5", "--num-bands", C, "--figures", "none", "--quiet", *paths]
    return main(["reconstruct", *map(str, argv)])


def computed(*_, **__):
    raise AssertionError("computed")


@pytest.mark.parametrize(
    "options",
    [
        ("--save-camera", "m.h5"), ("--save-camera", "mask.h5"), ("--white", "white.h5", "--output", "white.h5"),
        ("--white", "white.h5", "--save-camera", "white.h5"), ("--weights", "w.h5", "--output", "w.h5"),
        ("--side", "spectra.h5", "--output", "spectra.h5"), ("--bad-pixels", "white.h5", "--output", "white.h5"),
        ("--save-camera", "cube.h5", "--output", "cube.h5"), ("--output", "cube.h5", "--report", "cube.h5"),
    ],
)  # fmt: skip
def test_no_file_takes_the_place_of_another(bench, capsys, monkeypatch, options):
    monkeypatch.setattr("cassi.running.arguments.as_prior", lambda path: None)
    before = {path.name: path.read_bytes() for path in bench.glob("*.*5")}
    check_refusal(capsys, run(bench, *options, "--overwrite"))
    assert {path.name: path.read_bytes() for path in bench.glob("*.*5")} == before


@pytest.mark.parametrize(
    "argv",
    [
        ("calibrate", "refine", "--measurement", "m.h5", "--output", "m.h5"),
        ("calibrate", "refine", "--measurement", "m.h5", "--mask", "mask.h5", "--output", "mask.h5"),
        ("calibrate", "frames", "--output", "frames/mask.h5"), ("simulate", "--mask", "mask.h5", "--output", "mask.h5"),
        ("simulate", "--cube", "spectra.h5", "--output", "spectra.h5"),
    ],
)  # fmt: skip
def test_no_other_command_replaces_what_it_reads(bench, capsys, argv):
    words = [str(bench / word) if word.endswith(".h5") else word for word in argv]
    if argv[1] == "frames":
        (bench / "frames").mkdir()
        for name, source in (("dark", "white"), ("flat", "m"), ("mask", "two")):
            shutil.copy(bench / f"{source}.h5", bench / "frames" / f"{name}.h5")
        words[1:] = [str(bench / "frames"), "--wavelengths", "450,550", *words[2:]]
    before = Path(words[-1]).read_bytes()
    check_refusal(capsys, main([*words, "--overwrite", "--quiet"]))
    assert Path(words[-1]).read_bytes() == before


def test_names_that_are_none(bench, capsys):
    """An empty one would stand for the folder one is in; a link to itself is no file."""
    check_refusal(capsys, main(["reconstruct", ""]))
    (bench / "loop.h5").symlink_to("loop.h5")
    check_refusal(capsys, main(["reconstruct", str(bench / "loop.h5")]))


def test_the_cubes_of_the_folder_one_is_in_lie_beside_it(bench, capsys, monkeypatch):
    (bench / "night").mkdir()
    monkeypatch.chdir(bench / "night")
    (bench / "m.h5").rename("m.h5")
    assert main(["reconstruct", ".", "--mask", str(bench / "mask.h5"), "--num-bands", str(C), "--dry-run"]) == 0
    assert f"write {bench.resolve() / 'night_cubes'}" in capsys.readouterr().out


def test_of_many_the_camera_takes_no_snapshot_s_place(bench, capsys):
    night = bench / "night"
    night.mkdir()
    (bench / "m.h5").rename(night / "m.h5")
    before = (night / "m.h5").read_bytes()
    argv = [night, "--mask", bench / "mask.h5", "--num-bands", C, "--save-camera", night / "m.h5", "--overwrite"]
    check_refusal(capsys, main(["reconstruct", *map(str, argv)]))
    assert (night / "m.h5").read_bytes() == before


@pytest.mark.parametrize(
    "options",
    [
        ("--save-camera", "nowhere/c.h5"), ("--save-camera", "white.h5"), ("--save-camera", "camera.png"),
        ("--output", "white.h5"), ("--output", "no/cube.h5"), ("--output", "cube.docx"), ("--report", "page.pdf"),
        ("--report", "no/such/page.html"), ("--report", "--output", "cube.tif"),
        ("--save-camera", "c.h5", "--camera", "as-given"), ("--save-camera", "c.h5", "--psf", 1, "--align"),
        ("--save-camera", "c.h5", "--calibration", "mask.h5"), ("--batch", 2), ("--gain", -3),
        ("--gain", 3, "--read-noise", -1), ("--tv-weight", 0.3), ("--bit-depth", 40), ("--seed", 2**64),
        ("--sequence", "--white", "white.h5"), ("--tile", 32, "--output-bands", "450,500"),
        ("--prior", "learned", "--iterations", 5), ("--iterations", 5, "--quality", "best"), ("--white", "none.h5"),
        ("--white", "two.h5"), ("--weights", "w.safetensors"), ("--weights", "folder.d"), ("--side", "folder.d"),
        ("--figures", "w.safetensors"),
    ],
)  # fmt: skip
def test_a_dry_run_refuses_it_as_the_run_does_before_it_computes(bench, capsys, monkeypatch, options):
    monkeypatch.setattr("cassi.self_calibration.search.find_camera", computed)
    monkeypatch.setattr("cassi.running.pipeline.reconstruct_auto", computed)
    check_refusal(capsys, run(bench, *options))
    check_refusal(capsys, run(bench, *options, "--dry-run"))


def test_the_result_is_there_whatever_becomes_of_the_camera(bench, capsys, monkeypatch):
    def full(*_, **__):
        raise OutputError("the disk is full")

    monkeypatch.setattr(FoundCamera, "save", full)
    check_refusal(capsys, run(bench, "--solver", "gap-tv", "--iterations", 2, "--save-camera", "c.h5"))
    assert h5py.is_hdf5(bench / "m_cube.h5")


def test_what_the_end_needs_is_there_before_the_work(tmp_path, monkeypatch, capsys):
    """Packages, folders and rights of all commands; nothing is read or computed, and nothing is left."""
    for name in ("spectral", "spectral.io", "spectral.io.envi", "distributed"):
        monkeypatch.setitem(sys.modules, name, None)  # not installed
    for work in ("cassi.cli.reconstruct.reconstruct_measurement", "cassi.cli.many.find_with_settings"):
        monkeypatch.setattr(work, lambda *_, **__: pytest.fail("it was computed"))
    assert main(["simulate", "--size", "32", "--num-bands", "4", "--output", str(tmp_path / "m.h5"), "--quiet"]) == 0
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "out").mkdir()
    m, inside = str(tmp_path / "m.h5"), str(tmp_path / "file" / "x")
    for words in (
        ["reconstruct", m, "--output", str(tmp_path / "c.hdr")],
        ["reconstruct", m, "--output", str(tmp_path / "out"), "--cluster", "local:2"],
        ["reconstruct", m, "--output", str(tmp_path / "c.h5"), "--figures", inside],
        ["reconstruct", m, "--output", str(tmp_path / "c.mat"), "--tile", "64"],
        ["reconstruct", m, str(shutil.copy(m, tmp_path / "n.h5")), "--output", inside],
        ["calibrate", "refine", "--measurement", m, "--output", str(tmp_path / "camera.h5"), "--figures", inside],
        ["design", "--output", inside],
        ["simulate", "--bench", inside],
        ["export", m, inside, "--format", "h5"],
        ["export", m, str(tmp_path / "c.h5"), "--format", "mat"],
        ["spectra", m, "--at", "3,3", "--csv", str(tmp_path / "none" / "s.csv")],
    ):
        check_refusal(capsys, main(words))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "m.h5", "n.h5", "out"] and not list(
        (tmp_path / "out").iterdir()
    )
