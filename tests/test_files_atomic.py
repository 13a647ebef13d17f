"""Temporary folders: whose they are, who may remove them; and what a new file takes over from the one it replaces."""

import os
import signal
import stat
import subprocess
import sys
import time
from multiprocessing import get_context

import numpy as np
import pytest
from messages import refuses

from cassi.cli.main import program
from cassi.files import OutputError, read_cube, replacing, write_cube
from cassi.files.atomic import file_sha256, remove_abandoned, write_text
from cassi.files.writing import gather_cubes
from cassi.signals import signals_held

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX")
LONG = "n" * 120


def left_by_a_killed_process(folder, name):
    """The temporary folder that a process leaves which is killed as it writes a file."""
    before = set(folder.iterdir())

    def die():
        with replacing(folder / name) as temporary:
            temporary.write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)

    process = get_context("fork").Process(target=die)
    process.start()
    process.join()
    (left,) = set(folder.iterdir()) - before
    return left


@posix
@pytest.mark.parametrize("name", ["a_cube.h5", LONG, "[ab].h5", "a.b.12345678.part"])
def test_what_a_killed_process_left_goes_with_the_next_of_its_name(tmp_path, name):
    left = left_by_a_killed_process(tmp_path, name)
    for other in ("b_cube.h5", "a_cube", "cube.h5", "12345678", ""):
        remove_abandoned(tmp_path, {other})
    write_text(tmp_path / "b_cube.h5", "another")
    assert left.is_dir() and len(os.fsencode(left.name)) < 64
    write_text(tmp_path / name, "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["b_cube.h5", name])


@pytest.mark.parametrize(
    "theirs", [".thesis.part", ".a_cube.h5.part", ".a_cube.h5.20260101.part", ".a_cube.h5.xyz.part", "a_cube.h5.part"]
)
def test_what_others_call_part_is_theirs(tmp_path, theirs):
    (tmp_path / theirs).mkdir()
    (tmp_path / theirs / "a_cube.h5").write_text("precious")
    write_text(tmp_path / "a_cube.h5", "mine")
    remove_abandoned(tmp_path, {"a_cube.h5"})
    assert (tmp_path / theirs / "a_cube.h5").read_text() == "precious"


def test_two_write_one_file_and_neither_disturbs_the_other(tmp_path):
    with replacing(tmp_path / "c.h5", overwrite=True) as first:
        first.write_text("first")
        with replacing(tmp_path / "c.h5", overwrite=True) as second:
            second.write_text("second")
        assert (tmp_path / "c.h5").read_text() == "second" and first.read_text() == "first"
    assert (tmp_path / "c.h5").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["c.h5"]


def test_who_has_lost_the_folder_hears_of_it_at_the_next_part(tmp_path):
    class Frames(list):
        def __iter__(self):
            yield self[0]
            (left,) = tmp_path.glob(".c.h5.*.part")
            left.rename(tmp_path / "elsewhere")
            yield self[1]
            pytest.fail("it goes on")

    frames = Frames([write_cube(tmp_path / "a.h5", np.ones((2, 8, 8)))] * 2)
    with refuses(OutputError, hide=r"\.c\S*|\.d\S*"):
        gather_cubes(tmp_path / "c.h5", frames)
    with refuses(OutputError, hide=r"\.c\S*|\.d\S*"), replacing(tmp_path / "d.h5") as temporary:
        temporary.parent.rename(tmp_path / "there")


@posix
@pytest.mark.parametrize("suffix", ["h5", "mat", "tif", "hdr"])
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_replaced_keeps_its_rights(tmp_path, suffix, mode):
    """And nobody else reads what is being written."""
    path, new = tmp_path / f"c.{suffix}", np.ones((2, 3, 4))
    write_cube(path, np.zeros((2, 3, 4)))
    files = list(tmp_path.iterdir())
    for file in files:
        file.chmod(mode)
    write_cube(path, new, overwrite=True)
    assert all(stat.S_IMODE(file.stat().st_mode) == mode for file in files)
    assert np.array_equal(read_cube(path)[0], new)
    with replacing(path, overwrite=True) as temporary:
        temporary.touch()
        assert stat.S_IMODE(temporary.parent.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("there", [True, False])
def test_a_link_is_followed(tmp_path, there):
    (tmp_path / "drive").mkdir()
    kept = tmp_path / "drive" / "kept.h5"
    if there:
        write_cube(kept, np.zeros((2, 3, 4)))
    (tmp_path / "c.h5").symlink_to(kept)
    (tmp_path / "d.h5").symlink_to("c.h5")
    write_cube(tmp_path / "d.h5", np.ones((2, 3, 4)), overwrite=there)
    assert (tmp_path / "c.h5").is_symlink() and (tmp_path / "d.h5").is_symlink()
    assert float(read_cube(kept)[0].min()) == 1 and [file.name for file in kept.parent.iterdir()] == ["kept.h5"]
    (tmp_path / "e.hdr").symlink_to(kept.with_name("e.hdr"))
    (tmp_path / "f.h5").symlink_to(tmp_path / "nowhere" / "f.h5")
    for name in ("d.h5", "e.hdr", "f.h5"):
        with pytest.raises(OutputError):
            write_cube(tmp_path / name, np.ones((2, 3, 4)))


@posix
def test_a_hash_is_of_what_lies_there_now_whatever_its_time_says(tmp_path):
    path = tmp_path / "a"
    path.write_text("one")
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    first = file_sha256(path)
    path.write_text("two")
    os.utime(path, ns=times)
    assert file_sha256(path) != first
    path.write_text("one")
    assert file_sha256(path) == first


@posix
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM] if os.name != "nt" else [])
@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_is_closed_ends_a_run_like_a_signal_to_end(tmp_path, number, ignored):
    """Nothing is left; `nohup` is respected."""

    def entry():
        with replacing(tmp_path / "c.h5") as temporary:
            temporary.write_text("all")
            os.kill(os.getpid(), number)
            time.sleep(0.2)
        return 0

    def run():
        signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL)
        program(entry)

    process = get_context("fork").Process(target=run)
    process.start()
    process.join()
    assert process.exitcode == (0 if ignored else 128 + number)
    assert [path.name for path in tmp_path.iterdir()] == (["c.h5"] if ignored else [])


@posix
def test_a_second_signal_while_python_ends_leaves_no_traceback():
    """Some send two, as `timeout` does to its process and then to the group."""
    code = "import atexit, os; from cassi.cli.main import program; sent = lambda: os.kill(os.getpid(), 15)"
    twice = f"{code}; atexit.register(sent); program(sent)"
    ended = subprocess.run([sys.executable, "-c", twice], capture_output=True, check=False)
    assert (ended.returncode, ended.stderr) == (-signal.SIGTERM, b"")


@posix
def test_signals_wait_for_the_end_of_the_block():
    """Each is then heard once, and at once from then on."""
    heard: list[int] = []
    numbers = signal.SIGHUP, signal.SIGTERM, signal.SIGINT
    before = {number: signal.signal(number, lambda n, _: heard.append(n)) for number in numbers}
    try:
        with signals_held():
            for number in (*numbers, *numbers):
                os.kill(os.getpid(), number)
            assert heard == []
        assert sorted(heard) == sorted(numbers)
        signal.raise_signal(signal.SIGTERM)
        assert heard[-1] == signal.SIGTERM and len(heard) == 4
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
