"""Drives that can do less than POSIX asks: no locks, no flush of folders, short names; and what is no file at all."""

import builtins
import errno
import json
import mmap
import os
import stat
import subprocess
import sys
import threading
import warnings
from multiprocessing import get_context

import h5py
import numpy as np
import pytest
import tifffile
from messages import refused

from cassi.cli.main import main
from cassi.files import (
    InputError,
    OutputError,
    open_container,
    read_cube,
    read_measurement,
    write_cube,
    write_measurement,
)
from cassi.files.atomic import check_place, file_sha256, write_text
from cassi.files.spectrum_files import read_spectrum
from cassi.files.writing import gather_cubes
from cassi.looking.regions import read_regions
from cassi.optics.measurement import Measurement
from cassi.photograph.picture import read_side_picture
from cassi.priors.learned import load_prior
from cassi.running.many import find_frames, lock_folder, reconstruct_many
from cassi.running.plan_file import load_plan

fcntl = pytest.importorskip("fcntl", reason="POSIX is what these drives lack")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="POSIX is what these drives lack")
NAME_MAX = 143  # bytes, as on encrypted folders


@pytest.fixture(params=[errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS], ids=lambda number: errno.errorcode[number])
def poor_drive(request, monkeypatch):
    """A drive that locks nothing, flushes files only, and holds names of `NAME_MAX` bytes."""

    def unable(*_):
        raise OSError(request.param, os.strerror(request.param))

    fsync, opened = os.fsync, h5py.File

    def flush(handle):
        return unable() if stat.S_ISDIR(os.fstat(handle).st_mode) else fsync(handle)

    def limited(function, count=1):
        def call(*args, **options):
            for name in args[:count]:
                named = isinstance(name, str | bytes | os.PathLike)
                if named and max(map(len, os.fsencode(name).split(b"/"))) > NAME_MAX:
                    raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), str(name))
            return function(*args, **options)

        return call

    class Unlocked(opened):
        def __init__(self, name, *args, locking=None, **options):
            if not hasattr(name, "write") and locking is not False:
                unable()
            super().__init__(name, *args, locking=locking, **options)

    monkeypatch.setattr(h5py, "File", Unlocked)
    for name in ("flock", "lockf"):
        monkeypatch.setattr(fcntl, name, unable)
    monkeypatch.setattr(os, "fsync", flush)
    monkeypatch.setattr(builtins, "open", limited(open))
    for name, count in (("stat", 1), ("open", 1), ("mkdir", 1), ("replace", 2)):
        monkeypatch.setattr(os, name, limited(getattr(os, name), count))
    return request.param


def snapshot():
    mask = np.random.default_rng(0).random((24, 24)).astype(np.float32)
    y = np.zeros((24, 30), np.float32)
    for c in range(4):
        y[:, 2 * c : 2 * c + 24] += mask
    return Measurement(y=y, mask=mask, shifts=(0, 2, 4, 6))


@pytest.mark.parametrize("suffix", [".h5", ".mat", ".tif", ".hdr"])
def test_what_is_written_there_is_there(tmp_path, poor_drive, suffix):
    cube = np.arange(24.0).reshape(2, 3, 4)
    for name in ("a", "n" * (NAME_MAX - len(suffix))):
        path = tmp_path / f"{name}{suffix}"
        write_cube(path, np.zeros((2, 3, 4)))
        write_cube(path, cube, overwrite=True)
        assert np.array_equal(read_cube(path)[0], cube)
        assert not [left for left in tmp_path.iterdir() if left.name.startswith(".")]
    refused(write_cube, tmp_path / f"{'n' * NAME_MAX}{suffix}", cube, error=OutputError)


def test_measurements_sequences_and_texts_are_there(tmp_path, poor_drive):
    m = snapshot()
    write_measurement(tmp_path / "s.h5", m)
    assert np.array_equal(read_measurement(tmp_path / "s.h5").y, m.y)
    write_cube(tmp_path / "a.h5", np.ones((2, 3, 4)), attributes={"residual": 0.1})
    gather_cubes(tmp_path / "all.h5", [tmp_path / "a.h5"] * 2)
    assert read_cube(tmp_path / "all.h5")[0].shape == (2, 2, 3, 4)
    write_text(tmp_path / "t.txt", "text")
    assert (tmp_path / "t.txt").read_text() == "text"


def test_a_folder_there_is_reconstructed_but_for_names_too_long(tmp_path, poor_drive):
    (tmp_path / "night").mkdir()
    long = "夜" * ((NAME_MAX - 3) // 3)
    for name in ("a", "b", long):
        write_measurement(tmp_path / "night" / f"{name}.h5", snapshot())
    frames = find_frames(tmp_path / "night")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = reconstruct_many(frames, tmp_path / "cubes", batch=1, read=read_measurement, solve=of_zeros)
    assert (report.computed, list(report.failed)) == (2, [long])
    lines = [json.loads(line) for line in (tmp_path / "cubes" / "index.jsonl").read_text().splitlines()]
    assert [line["status"] for line in lines] == ["done", "done", "failed"]
    again = reconstruct_many(frames, tmp_path / "cubes", batch=1, read=read_measurement, solve=of_zeros)
    assert (again.computed, again.found, list(again.failed)) == (0, 2, [long])


def of_zeros(m, monitor=None):
    import cassi

    return cassi.reconstruct(m, solver="gap-tv", num_iters=1)


def test_a_folder_there_is_held_by_one_run(tmp_path, poor_drive):
    def hold():
        try:
            with lock_folder(tmp_path):
                os._exit(0)
        except OutputError as error:
            os._exit(7 if "another run is writing there" in str(error) else 1)

    with lock_folder(tmp_path):
        process = get_context("fork").Process(target=hold)
        process.start()
        process.join()
    assert process.exitcode == 7
    with lock_folder(tmp_path):
        pass


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EINVAL])
@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_folder_that_cannot_be_flushed_is_no_loss_a_file_is_not_there(tmp_path, monkeypatch, number, what):
    fsync = os.fsync

    def flush(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode) == (what == "folder"):
            raise OSError(number, os.strerror(number))
        return fsync(handle)

    write_text(tmp_path / "t", "old")
    monkeypatch.setattr(os, "fsync", flush)
    if what == "folder" or number == errno.EINVAL:  # a drive that flushes nothing
        write_text(tmp_path / "t", "new")
    else:
        refused(write_text, tmp_path / "t", "new", error=OutputError)
    assert (tmp_path / "t").read_text() == ("old" if what == "file" and number != errno.EINVAL else "new")


@pytest.mark.parametrize("name", ["a.npy", "f.npy", "a.npz", "a.tif", "a.hdr"])
def test_a_drive_that_maps_no_file_into_memory(tmp_path, monkeypatch, name):
    """As some of a virtual machine: plain arrays are read from their start, in any order of axes."""
    cube, path = np.random.default_rng(0).random((5, 6, 7)).astype(np.float32), tmp_path / name
    if path.suffix == ".npy":
        np.save(path, np.asfortranarray(cube) if path.stem == "f" else cube)
    elif path.suffix == ".npz":
        np.savez(path, cube=cube)
    elif path.suffix == ".tif":
        tifffile.imwrite(path, cube, imagej=True, truncate=True)
    else:
        write_cube(path, cube)
    container, picked = open_container(path), (slice(1, 3), slice(None), slice(2, 5))
    expected = container.read(container.entries[0], picked)

    def unable(*_, **__):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(mmap, "mmap", unable)
    container = open_container(path)
    assert np.array_equal(container.read(container.entries[0], picked), expected)
    assert np.array_equal(np.sort(container.read(container.entries[0]), axis=None), np.sort(cube, axis=None))


READERS = (open_container, load_plan, read_side_picture, load_prior, read_regions, read_spectrum, file_sha256)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_pipes_are_called_pipes(tmp_path, capsys, read):
    """And neither waited for nor replaced."""
    os.mkfifo(tmp_path / "p.h5")
    ended = list[None]()
    thread = threading.Thread(target=lambda: ended.append(refused(read, tmp_path / "p.h5")), daemon=True)
    thread.start()
    thread.join(20)  # it would wait for ever
    assert ended == [None]
    for overwrite in (False, True):
        refused(check_place, tmp_path / "p.h5", overwrite, error=OutputError)
    assert main(["reconstruct", str(tmp_path / "p.h5"), "--dry-run"]) == 2
    assert "is a pipe" in capsys.readouterr().err


def test_what_a_drive_says_is_not_called_damage(tmp_path, monkeypatch):
    path = tmp_path / "a.h5"
    write = "import h5py, sys; file = h5py.File(sys.argv[1], 'w'); file['cube'] = [[[1.0]]]; print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", write, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with pytest.raises(InputError) as caught:
            read_cube(path)
        other.communicate(b"\n")
    assert "another program has it open to write it" in str(caught.value) and "damaged" not in str(caught.value)
    for number in (errno.EACCES, errno.EIO, errno.ESTALE):

        def fails(*_, number=number, **__):
            raise OSError(number, os.strerror(number))

        with monkeypatch.context() as patch:
            patch.setattr(h5py, "File", fails)
            refused(open_container, path)


@pytest.mark.parametrize("option", ["--output", "--report", "--figures"])
def test_names_that_are_too_long_are_refused_before_anything_is_computed(tmp_path, monkeypatch, capsys, option):
    write_measurement(tmp_path / "s.h5", snapshot())
    monkeypatch.chdir(tmp_path)
    suffix = {"--output": ".h5", "--report": ".html", "--figures": ""}[option]
    words = ["reconstruct", "s.h5", "--solver", "gap-tv", "--quiet", option, "n" * 256 + suffix]
    assert main(words) == 2
    assert "choose a shorter name" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["s.h5"]
