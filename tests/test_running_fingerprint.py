"""What changes while a run reads it, if only for a while, does not count as finished."""

import os
import shutil
from functools import partial

import h5py
import numpy as np
import pytest

import cassi
from cassi.cli.main import main
from cassi.files import read_measurement
from cassi.running.fingerprint import Frame, changed_since, named_files, stamps_of
from cassi.running.many import SolveWith, find_frames, reconstruct_many
from cassi.running.pipeline import reconstruct_measurement
from cassi.settings import Settings

GAP = {"solver": "gap-tv", "num_iters": 2, "camera": "as-given"}
QUICK = ("--solver", "gap-tv", "--iterations", "2", "--camera", "as-given", "--quiet", "--figures", "none")


@pytest.fixture
def files(tmp_path):
    """Two snapshots, a mask for both, and another of each."""
    for k in range(2):
        size = ("--size", "32", "--num-bands", "4", "--seed", str(k))
        assert main(["simulate", *size, "--output", str(tmp_path / f"{k}.h5"), "--quiet"]) == 0
        with h5py.File(tmp_path / f"{k}.h5") as file, h5py.File(tmp_path / f"mask{k}.h5", "w") as mask:
            mask["mask"] = file["mask"][:]
    (tmp_path / "night").mkdir()
    for name in "ab":
        shutil.copy2(tmp_path / "0.h5", tmp_path / "night" / f"{name}.h5")
    shutil.copy2(tmp_path / "mask0.h5", tmp_path / "mask.h5")
    return tmp_path


WAYS = {
    "as it is": lambda source, place: shutil.copy(source, place),
    "with its times": lambda source, place: shutil.copy2(source, place),
    "renamed": lambda source, place: os.replace(shutil.copy2(source, f"{place}.new"), place),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", ["snapshot", "mask"])
@pytest.mark.parametrize("when", ["before it is read", "while it is solved"])
def test_a_file_that_changes_and_changes_back_fails_its_frame_alone(files, way, what, when):
    put, place = WAYS[way], files / ("night/b.h5" if what == "snapshot" else "mask.h5")
    other, own = files / ("1.h5" if what == "snapshot" else "mask1.h5"), files / f"{'mask' * (what == 'mask')}0.h5"
    times = os.stat(place).st_atime_ns, os.stat(place).st_mtime_ns
    read = partial(read_measurement, mask=files / "mask.h5")

    def solve(m, monitor=None):
        if when == "while it is solved" and m.source.startswith("b"):
            put(other, place)
            put(own, place)
        return cassi.reconstruct(m, **GAP)

    def after(cube):
        if when == "before it is read" and cube.name.startswith("a"):
            put(other, place)
            os.utime(place, ns=times)

    def run(**more):
        return reconstruct_many(find_frames(files / "night"), files / "out", read=read, solve=solve, batch=1, **more)

    report = run(after=after)
    assert list(report.failed) == ["b"] and report.computed == 1
    put(own, place)
    os.utime(place, ns=times)
    again = run()
    assert (again.found, again.computed, dict(again.failed)) == (1, 1, {}) or when == "while it is solved"
    with h5py.File(files / "out/a_cube.h5") as a:
        assert "b_cube.h5" not in os.listdir(files / "out") or np.array_equal(
            a["cube"], h5py.File(files / "out/b_cube.h5")["cube"]
        )


def test_a_single_result_does_not_count_as_finished(files, monkeypatch, capsys):
    source, output = files / "a.h5", files / "a_cube.h5"
    shutil.copy2(files / "0.h5", source)

    def solved(*given, **more):
        shutil.copy2(files / "1.h5", source)
        shutil.copy2(files / "0.h5", source)
        return reconstruct_measurement(*given, **more)

    monkeypatch.setattr("cassi.cli.reconstruct.reconstruct_measurement", solved)
    assert main(["reconstruct", str(source), *QUICK]) == 0
    assert "does not count as finished" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["reconstruct", str(source), *QUICK, "--overwrite"]) == 0
    before = output.stat().st_mtime_ns
    assert main(["reconstruct", str(source), *QUICK]) == 0 and output.stat().st_mtime_ns == before


def test_which_files_a_run_depends_on(tmp_path):
    for name in ("y", "mask", "side", "dark"):
        (tmp_path / name).write_text(name)
    settings = Settings(side=str(tmp_path / "side"))
    read = partial(read_measurement, mask=tmp_path / "mask", dark=[tmp_path / "dark", "absent"])
    found = list(named_files(Frame("y", str(tmp_path / "y")), read, SolveWith(settings), {"a": ("b", 3)}))
    assert sorted(found) == sorted(str(tmp_path / name) for name in ("y", "mask", "side", "dark"))
    stamps = stamps_of(found)
    assert not changed_since(stamps)
    (tmp_path / "side").unlink()
    assert str(tmp_path / "side") in changed_since(stamps)
