"""Interrupts at every call of what writes, in this process; tests/kill.py does the same to whole commands, by hand.

An interrupt is raised at a call that Python makes in the modules that write, each in turn or every few: what is left is
the file as it was before, or the new one whole.
"""

import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import kill
import numpy as np
import pytest

from cassi.files import read_cube, replacing, write_cube
from cassi.files.writing import gather_cubes

MOMENTS = 12


def calls_of(work: Callable[[], object], interrupt_at: int = 0) -> int:
    """Do it; how many calls it made in the modules that write, up to the one that an interrupt was raised at."""
    counted = kill.Counted(signal.SIGINT, interrupt_at)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(counted)
    try:
        with suppress(KeyboardInterrupt):
            work()
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, handler)
    return counted.count


def test_what_writes_has_the_name_it_is_counted_by():
    for name in kill.WRITERS:
        assert any((kill.ROOT / folder / name).exists() for folder in ("cassi", "scripts", "")), name


@pytest.mark.parametrize("suffix", ["h5", "mat", "tif"])
def test_a_cube_is_the_old_or_the_new_one(tmp_path, suffix):
    old, new = (np.full((2, 8, 9), value, np.float32) for value in (1, 2))
    path = tmp_path / f"cube.{suffix}"
    count = calls_of(lambda: write_cube(path, new, overwrite=True))
    for at in random.Random(0).sample(range(1, count + 1), MOMENTS):
        write_cube(path, old, overwrite=True)
        calls_of(lambda: write_cube(path, new, overwrite=True), at)
        files = [file.name for file in tmp_path.iterdir()]
        assert float(read_cube(path)[0].min()) == float(read_cube(path)[0].max()) in (1, 2)
        assert files == [path.name]


def test_a_folder_comes_whole_or_not_at_all(tmp_path):
    whole = tmp_path / "bench"
    with pytest.raises(KeyboardInterrupt), replacing(whole) as place:  # noqa: PT012
        place.mkdir()
        (place / "dark_01.png").write_bytes(b"1")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with replacing(whole) as place:
        place.mkdir()
        (place / "dark_01.png").write_bytes(b"1")
    assert [file.name for file in whole.iterdir()] == ["dark_01.png"]
    assert [file.name for file in tmp_path.iterdir()] == ["bench"]


def test_a_sequence_is_gathered_wholly_or_not_at_all(tmp_path):
    """What it is gathered from stays."""
    cubes, film = np.random.default_rng(0).random((2, 3, 4, 8, 9)).astype(np.float32), tmp_path / "film.h5"
    names = [[write_cube(tmp_path / f"{run}{t}.h5", cubes[run, t]) for t in range(3)] for run in range(2)]
    count = calls_of(lambda: gather_cubes(film, names[1], overwrite=True))
    for at in random.Random(0).sample(range(1, count + 1), MOMENTS):
        gather_cubes(film, names[0], overwrite=True)
        calls_of(lambda: gather_cubes(film, names[1], overwrite=True), at)
        found = read_cube(film)[0]
        assert any(np.array_equal(found, whole) for whole in cubes)
        assert {file.name for file in tmp_path.iterdir()} == {
            "film.h5",
            *(f"{run}{t}.h5" for run in "01" for t in "012"),
        }


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What the commands are given; on a system that can fork."""
    if not hasattr(kill.os, "fork") or sys.platform == "darwin":
        pytest.skip("the script kills forks of itself: Windows has none, and on macOS they are not safe after imports")
    folder = tmp_path_factory.mktemp("prepared")
    kill.import_commands()
    kill.run_in_fork(kill.prepare, folder)
    return folder


@pytest.mark.parametrize("name", ["simulate", "sequence", "refine"])
def test_a_command_that_is_killed(prepared, name):
    """The script itself, a moment of each place."""
    told: list[str] = []
    signals = [signal.SIGHUP, signal.SIGINT] if name == "simulate" else [signal.SIGKILL]
    assert kill.tried(prepared, name, moments=1, signals=signals, say=told.append) == 0, "\n".join(told)
    assert len(told) == 2 * len(signals) and all("1 moments" in line for line in told)
