"""Interrupts at every call of what writes, and commands that are killed: nothing is lost, nothing wrong is left.

An interrupt is raised at a call that Python makes in the modules that write, each in turn or every few: what is left is
the file as it was before, or the new one whole. Commands are killed within the write, at such a call, and at any time.
After each kill

- every file under its final name is one that a run left alone writes, or the one that was there before;
- nothing else is left but what is hidden, and that only by SIGKILL, until the same command is given again;
- the same command, given again, ends with the results of the run that was left alone, and finished cubes are not
  touched.

By hand, minutes to hours, all commands and signals: CASSI_TRIALS=40 python -m pytest tests/test_kill.py -m slow
"""

import hashlib
import io
import os
import random
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image
from test_scripts_examples import make_data

from cassi.cli.main import program
from cassi.files import open_container, read_cube, replacing, write_cube
from cassi.files.writing import gather_cubes
from cassi.priors.learned import load_prior
from cassi.sequence import neighbors
from cassi.signals import ENDING

ROOT = Path(__file__).resolve().parents[1]
MOMENTS = 12
TRIALS = int(os.environ.get("CASSI_TRIALS", "1"))
WRITERS = ("files/atomic.py", "cassi/signals.py", "files/writing.py", "files/formats/hdf5.py",
           "running/many.py", "looking/overview.py", "simulation/optical_bench.py", "priors/learned.py",
           "training/loop.py")  # fmt: skip
CODES = {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGHUP: 128 + signal.SIGHUP, signal.SIGINT: 130}
SMALL = "--solver gap-tv --iterations 3 --camera as-given --figures none --quiet"
NIGHT = f"reconstruct night --mask mask.h5 {SMALL} --output out/cubes"
TRAIN = "train --data data --output out/t --cameras 1 --size 32x48 --stages 1 --quiet --minutes"
SIMULATE = "simulate --size 32 --num-bands 4 --quiet"
COMMANDS = {  # what is killed, run where what it reads lies, and what is run first, so that there is something to lose
    "simulate": (f"{SIMULATE} --output out/m.h5 --overwrite", f"{SIMULATE} --seed 1 --output out/m.h5"),
    "sequence": ("reconstruct video.h5 --sequence --camera as-given --prior tv --quiet --overwrite --output out/f.h5",),
    "refine": ("calibrate refine --measurement one.h5 --quiet --figures none --output out/camera.h5 --overwrite",),
    "single": tuple(f"reconstruct {one}.h5 {SMALL} --output out/cube.h5 --overwrite" for one in ("one", "two")),
    "report": tuple(f"reconstruct {k}.h5 {SMALL} --output out/cube.h5 --report --overwrite" for k in ("one", "two")),
    "mat": (f"reconstruct one.h5 {SMALL} --output out/cube.mat --overwrite",),
    "tile": (f"reconstruct wide.h5 {SMALL[16:]} --tile 64 --output out/cube.h5 --overwrite",),
    "batch": (NIGHT,), "batch anew": (f"{NIGHT} --overwrite", f"{NIGHT} --tv-weight 0.5"),
    "bench": (f"{SIMULATE} --bench out/bench",),
    "calibrate": ("calibrate bench --quiet --figures none --output out/c.h5 --overwrite",),
    "train": (f"{TRAIN} 0.02", f"{TRAIN} 0.01"),
}  # fmt: skip


class Counted:
    """Counts the calls into and out of the modules that write, and sends a signal at one of them."""

    def __init__(self, number: int | None, at: int) -> None:
        self.number, self.at, self.count = number, at, 0

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if frame.f_code.co_filename.endswith(WRITERS):
            self.count += 1
            if self.number is not None and self.count == self.at:
                os.kill(os.getpid(), self.number)


def calls_of(work: Callable[[], object], interrupt_at: int = 0) -> int:
    """Do it; how many calls it made in the modules that write, up to the one that an interrupt was raised at."""
    counted = Counted(signal.SIGINT, interrupt_at)
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
    for name in WRITERS:
        assert any((ROOT / folder / name).exists() for folder in ("cassi", "scripts", "")), name


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


def main(words: list[str]) -> int:
    if words[0] == "train":
        return int(import_module("train").main(words[1:]))
    return int(import_module("cassi.cli.main").main(words))


def prepare(folder: Path) -> None:
    """The files that the commands are given."""

    def run(*words: str) -> None:
        if main([*words, "--quiet"]):
            raise RuntimeError(f"cannot be prepared: {' '.join(words)}")

    folder.mkdir(exist_ok=True)
    with chdir(folder):
        size = ("--size", "32", "--num-bands", "4")
        run("simulate", *size, "--output", "one.h5")
        run("simulate", *size, "--seed", "1", "--output", "two.h5")
        run("simulate", "--size", "32x160", "--num-bands", "4", "--output", "wide.h5")
        run("simulate", *size, "--frames", "3", "--output", "video.h5")
        run("simulate", "--size", "48", "--num-bands", "4", "--bench", "bench")
        Path("night").mkdir()
        with h5py.File("one.h5") as file:
            y, mask = file["measurement"][:], file["mask"][:]
        with h5py.File("mask.h5", "w") as file:
            file["mask"] = mask
        for k in range(3):
            with h5py.File(f"night/frame{k}.h5", "w") as file:
                file["measurement"] = y * (1 + k)
        make_data(Path("data"))


def child(folder: Path, command: str, number: int | None, at: int, told: Any) -> None:
    """The command in a process of its own, as `cassi` runs it."""
    os.chdir(folder)
    out, code, counted = io.StringIO(), object(), Counted(number, at)
    for ending in ENDING:
        signal.signal(ending, signal.SIG_DFL)
    with redirect_stdout(out), redirect_stderr(out):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if at:
            threading.setprofile(counted)
            sys.setprofile(counted)
        try:
            program(lambda: main(command.split()))
        except SystemExit as left:
            code = left.code
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            told.send((counted.count, out.getvalue()[-600:]))
    sys.exit(code)  # type: ignore[arg-type]


def run(folder: Path, command: str, *, number: int | None = None, at: int = 0, after: float = 0.0) -> tuple[Any, ...]:
    """Exit code, calls that were counted, what was said, seconds."""
    fork = get_context("fork")  # a kill every second: each child is there at once, with everything imported
    ours, theirs = fork.Pipe(duplex=False)
    began = time.perf_counter()
    process = fork.Process(target=child, args=(folder, command, number, at, theirs))
    ours_too = signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is sent before the command begins ends it at once
    process.start()
    signal.signal(signal.SIGINT, ours_too)
    theirs.close()
    if after and number is not None:
        process.join(after)
        if process.is_alive():
            os.kill(process.pid, number)  # type: ignore[arg-type]
    process.join(600)
    if process.is_alive():
        process.kill()
        process.join()
        return None, 0, "did not end in time", 600.0
    count, said = 0, ""
    with suppress(EOFError):
        count, said = ours.recv() if ours.poll() else (0, "")
    return process.exitcode, count, said, time.perf_counter() - began


def run_in_fork(work: Callable[..., object], *arguments: object) -> None:
    """So that the process that forks never computes: threads do not survive a fork."""
    process = get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == 0


def content(path: Path) -> str:
    """What a file holds but for times and its own place: arrays and attributes of HDF5, of other files their bytes."""
    digest = hashlib.sha256()
    if path.suffix in (".h5", ".mat"):
        container = open_container(path)
        for one in sorted(container.entries, key=lambda e: e.name):
            if one.dtype is not None and not one.name.endswith("seconds"):  # .mat keeps its attributes as a struct
                digest.update(one.name.encode() + np.ascontiguousarray(container.read(one)).tobytes())
        return digest.hexdigest()
    if path.suffix == ".html" or path.name == "index.jsonl":
        return "text"  # holds times; whole or not is what its size and end say
    return hashlib.sha256(path.read_bytes()).hexdigest()


def state(name: str, out: Path) -> dict[str, str]:
    """Every file that is not hidden, and what it holds; of a training, which depends on the clock, that it loads."""
    paths = {str(p.relative_to(out)): p for p in sorted(out.rglob("*")) if p.is_file()} if out.is_dir() else {}
    seen = {name: p for name, p in paths.items() if not any(part.startswith(".") for part in Path(name).parts)}
    return {file: "loads" if name == "train" and loads(path) else content(path) for file, path in seen.items()}


def loads(path: Path) -> bool:
    """Whether what a training left can be read."""
    if path.suffix == ".pt":
        torch.load(path, map_location="cpu", weights_only=True)
    elif path.suffix == ".safetensors":
        load_prior(path)
    elif path.suffix == ".png":
        Image.open(path).load()
    return path.suffix != ".partial"


def hidden(out: Path) -> list[str]:
    """What a run left that nobody asked for."""
    left = [p for p in out.rglob("*") if p.name.endswith((".part", ".partial"))] if out.is_dir() else []
    return [str(p.relative_to(out)) for p in left]


def begin(root: Path, name: str) -> None:
    """What lies in `out` before the command: nothing, or what was there before."""
    out, before = root / "out", root / "before" / name
    shutil.rmtree(out, ignore_errors=True)
    if before.exists():
        shutil.copytree(before, out, copy_function=shutil.copy2)
    else:
        out.mkdir()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """What the commands are given; on a system that can fork."""
    if not hasattr(os, "fork") or sys.platform == "darwin":
        pytest.skip("forks of this process are killed: Windows has none, and on macOS they are not safe after imports")
    folder = tmp_path_factory.mktemp("prepared")
    for name in ("simulate", "reconstruct", "calibrate"):  # each fork would import them again, most of its time
        import_module(f"cassi.cli.{name}")
    run_in_fork(prepare, folder)
    return folder


def killed_once(root: Path, name: str, whole: dict[str, str], old: dict[str, str], sent: int, **moment: Any) -> None:
    """Kill one run, look at what is left, run it again, compare."""
    (command, *_), out = COMMANDS[name], root / "out"
    begin(root, name)
    code, _, said, _ = run(root, command, number=sent, **moment)
    assert code in (0, CODES.get(sent, -sent), -sent), said  # before the program has begun, a signal ends it at once
    left = state(name, out)
    assert all(holds in (whole.get(file), old.get(file)) for file, holds in left.items()), "neither the old nor the new"
    assert old.keys() <= left.keys(), "a file is lost"
    assert sent == signal.SIGKILL or not hidden(out)
    if name == "bench" and left:
        return  # a folder that is there is whole; the same command refuses to write there
    finished = {p: p.stat().st_mtime_ns for p in out.glob("*/*_cube.h5")} if name == "batch" else {}
    code, _, said, _ = run(root, command)
    assert code == 0, said
    assert name == "train" or not hidden(out)
    assert {file: holds for file, holds in state(name, out).items() if file in whole} == whole
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in finished.items()), "what was finished is made again"


SHORT = {"simulate": ("HUP", "INT"), "sequence": ("KILL",), "refine": ("KILL",), "batch": ("KILL",)}


@pytest.mark.parametrize(
    ("name", "signals"),
    [
        *SHORT.items(),
        *(pytest.param(name, ("KILL", "TERM", "HUP", "INT"), marks=pytest.mark.slow) for name in COMMANDS),
    ],
)
def test_a_command_that_is_killed(prepared, name, signals, monkeypatch):
    """A moment of each place, or more: one that lies within the write is a number of calls, any other a time."""
    for part in ("SINGLE_FRAME_ITERS", "MULTI_FRAME_ITERS"):  # what is written counts, not what is computed
        monkeypatch.setattr(neighbors, part, 5)
    command, *before = COMMANDS[name]
    out, old = prepared / "out", dict[str, str]()
    begin(prepared, name)
    if before:
        assert run(prepared, before[0])[0] == 0
        old = state(name, out)
        shutil.copytree(out, prepared / "before" / name, dirs_exist_ok=True)
    begin(prepared, name)
    code, calls, said, _ = run(prepared, command, at=-1)
    assert code == 0, said
    whole = state(name, out)
    begin(prepared, name)
    *_, seconds = run(prepared, command)
    draw = random.Random(name)
    for sent in (getattr(signal, f"SIG{one}") for one in signals):
        for moments in ("at", "after"):
            for _ in range(TRIALS):
                moment = {moments: draw.randint(1, calls) if moments == "at" else draw.uniform(0.01, seconds)}
                killed_once(prepared, name, whole, old, sent, **moment)
