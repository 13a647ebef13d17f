"""By hand, minutes to hours: every command is killed at random moments; nothing may be lost, nothing wrong may be left.

    python tests/kill.py --moments 40
    python tests/kill.py --moments 5 --only batch tile --signals KILL

For each command, each of SIGKILL, SIGTERM, SIGHUP and SIGINT, within the write and anywhere, so many seeded moments:
one that lies within the write is a number of Python's calls into the modules that write, counted in a run that is left
alone; any other a time. After each kill

- every file under its final name is one that a run left alone writes, or the one that was there before;
- nothing else is left but what is hidden, and that only by SIGKILL, until the same command is given again;
- the same command, given again, ends with the results of the run that was left alone, and finished cubes are not
  touched.

Prints a line for each and exits with 1 where something was wrong. `test_kill.py` does a few of these in the suite.
"""

import argparse
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
WRITERS = ("files/atomic.py", "cassi/signals.py", "files/writing.py", "files/formats/hdf5.py",
           "running/many.py", "looking/overview.py", "simulation/optical_bench.py", "priors/learned.py",
           "training/loop.py")  # fmt: skip
CODES = {signal.SIGTERM: 128 + signal.SIGTERM, signal.SIGHUP: 128 + signal.SIGHUP, signal.SIGINT: 130}
SIGNALS = ("KILL", "TERM", "HUP", "INT")
SMALL = ("--solver", "gap-tv", "--iterations", "3", "--camera", "as-given", "--figures", "none", "--quiet")


@dataclass(frozen=True)
class Kind:
    """A command that writes.

    Attributes:
        argv: it, run where `inputs` lie; what it writes lies in `out`.
        train: it is that of scripts/train.py.
        resumes: run again, it goes on with what it finds; the others are given --overwrite.
        before: run first, so that there is something to lose.
    """

    argv: tuple[str, ...]
    resumes: bool = False
    train: bool = False
    before: tuple[str, ...] = ()


TRAIN = ("--data", "data", "--output", "out/t", "--processes", "1", "--cameras", "1", "--size", "32x48",
         "--stages", "1", "--quiet", "--minutes")  # fmt: skip
LONGEST = 600.0  # that a command may take [s]

KINDS = {
    "single": Kind(("reconstruct", "one.h5", *SMALL, "--output", "out/cube.h5", "--overwrite"),
                   before=("reconstruct", "two.h5", *SMALL, "--output", "out/cube.h5")),
    "report": Kind(("reconstruct", "one.h5", *SMALL, "--output", "out/cube.h5", "--report", "--overwrite"),
                   before=("reconstruct", "two.h5", *SMALL, "--output", "out/cube.h5", "--report")),
    "mat": Kind(("reconstruct", "one.h5", *SMALL, "--output", "out/cube.mat", "--overwrite")),
    "tile": Kind(("reconstruct", "wide.h5", *SMALL[2:], "--tile", "64", "--output", "out/cube.h5", "--overwrite")),
    "batch": Kind(("reconstruct", "night", "--mask", "mask.h5", *SMALL, "--output", "out/cubes"), resumes=True),
    "batch anew": Kind(("reconstruct", "night", "--mask", "mask.h5", *SMALL, "--output", "out/cubes", "--overwrite"),
                       resumes=True, before=("reconstruct", "night", "--mask", "mask.h5", *SMALL, "--tv-weight", "0.5",
                                                        "--output", "out/cubes")),
    "sequence": Kind(("reconstruct", "--sequence", "video.h5", "--camera", "as-given", "--prior", "tv", "--quiet",
                      "--overwrite", "--output", "out/film.h5"), resumes=True),
    "simulate": Kind(("simulate", "--size", "32", "--num-bands", "4", "--quiet", "--output", "out/m.h5", "--overwrite"),
                     before=("simulate", "--size", "32", "--num-bands", "4", "--seed", "1", "--quiet", "--output",
                             "out/m.h5")),
    "bench": Kind(("simulate", "--size", "32", "--num-bands", "4", "--quiet", "--bench", "out/bench")),
    "calibrate": Kind(("calibrate", "bench", "--quiet", "--figures", "none", "--output", "out/c.h5", "--overwrite")),
    "refine": Kind(("calibrate", "refine", "--measurement", "one.h5", "--quiet", "--figures", "none", "--output",
                    "out/camera.h5", "--overwrite")),
    "train": Kind((*TRAIN, "0.02"), train=True, resumes=True, before=(*TRAIN, "0.01")),
}  # fmt: skip


def entry(kind: Kind) -> Callable[[list[str]], int]:
    if kind.train:
        import train

        return train.main
    from cassi.cli.main import main

    return main


def import_commands() -> None:
    """Before the forks: each of them would import it anew, which takes most of the time of a small command."""
    for name in ("simulate", "reconstruct", "calibrate"):
        import_module(f"cassi.cli.{name}")


def prepare(folder: Path) -> None:
    """The files that the commands are given."""
    import h5py
    import numpy as np

    from cassi.cli.main import main

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
        Path("data/cave_train").mkdir(parents=True)
        rng = np.random.default_rng(0)
        for name in ("one", "two"):
            with h5py.File(f"data/cave_train/{name}.h5", "w") as file:
                file["cube_sqrt"] = rng.integers(0, 255, (31, 64, 64)).astype(np.uint8)


class Counted:
    """Counts the calls into and out of the modules that write, and sends a signal at one of them."""

    def __init__(self, number: int | None, at: int) -> None:
        self.number, self.at, self.count = number, at, 0

    def __call__(self, frame: Any, event: str, argument: object) -> None:
        if frame.f_code.co_filename.endswith(WRITERS):
            self.count += 1
            if self.number is not None and self.count == self.at:
                os.kill(os.getpid(), self.number)


def child(folder: Path, kind: Kind, argv: tuple[str, ...], number: int | None, at: int, told: Any) -> None:
    """The command in a process of its own, as `cassi` runs it."""
    from cassi.cli.main import program

    os.chdir(folder)
    out = io.StringIO()
    counted = Counted(number, at)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, signal.SIG_DFL)
    code: object = 1
    with redirect_stdout(out), redirect_stderr(out):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if at:
            threading.setprofile(counted)
            sys.setprofile(counted)
        try:
            program(lambda: entry(kind)(list(argv)))
        except SystemExit as left:
            code = left.code
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            told.send((counted.count, out.getvalue()[-600:]))
    sys.exit(code)  # type: ignore[arg-type]


def run(
    folder: Path, kind: Kind, argv: tuple[str, ...] = (), *, number: int | None = None, at: int = 0, after: float = 0.0
) -> tuple[int | None, int, str, float]:
    """Exit code, calls that were counted, what was said, seconds."""
    fork = get_context("fork")  # a kill every second: each child is there at once, with everything imported
    ours, theirs = fork.Pipe(duplex=False)
    began = time.perf_counter()
    process = fork.Process(target=child, args=(folder, kind, argv or kind.argv, number, at, theirs))
    ours_too = signal.signal(signal.SIGINT, signal.SIG_DFL)  # what is sent before the command begins ends it at once
    process.start()
    signal.signal(signal.SIGINT, ours_too)
    theirs.close()
    if after and number is not None:
        process.join(after)
        if process.is_alive():
            os.kill(process.pid, number)  # type: ignore[arg-type]
    process.join(LONGEST)
    if process.is_alive():
        process.kill()
        process.join()
        return None, 0, "did not end in time", LONGEST
    count, said = 0, ""
    try:
        if ours.poll():
            count, said = ours.recv()
    except EOFError:
        pass
    return process.exitcode, count, said, time.perf_counter() - began


def content(path: Path) -> str:
    """What a file holds but for times and its own place: arrays and attributes of HDF5, of other files their bytes."""
    digest = hashlib.sha256()
    if path.suffix in (".h5", ".mat"):
        import numpy as np

        from cassi.files import open_container

        container = open_container(path)
        for one in sorted(container.entries, key=lambda e: e.name):
            if one.dtype is not None and not one.name.endswith("seconds"):  # .mat keeps its attributes as a struct
                digest.update(one.name.encode() + np.ascontiguousarray(container.read(one)).tobytes())
        return digest.hexdigest()
    if path.suffix == ".html" or path.name == "index.jsonl":
        return "text"  # holds times; whole or not is what its size and end say
    return hashlib.sha256(path.read_bytes()).hexdigest()


def state(kind: str, out: Path) -> dict[str, str]:
    """Every file that is not hidden, and what it holds; of a training, which depends on the clock, that it loads."""
    paths = {str(p.relative_to(out)): p for p in sorted(out.rglob("*")) if p.is_file()} if out.is_dir() else {}
    seen = {name: p for name, p in paths.items() if not any(part.startswith(".") for part in Path(name).parts)}
    if kind == "train":
        return {name: "loads" for name, path in seen.items() if loads(path)}
    return {name: content(path) for name, path in seen.items()}


def loads(path: Path) -> bool:
    """Whether what a training left can be read."""
    import torch

    from cassi.priors.learned import load_prior

    if path.suffix == ".pt":
        torch.load(path, map_location="cpu", weights_only=True)
    elif path.suffix == ".safetensors":
        load_prior(path)
    elif path.suffix == ".png":
        from PIL import Image

        with Image.open(path) as image:
            image.load()
    return path.suffix != ".partial"


def hidden(out: Path) -> list[str]:
    """What a run left that nobody asked for."""
    left = [p for p in out.rglob("*") if p.name.endswith((".part", ".partial"))] if out.is_dir() else []
    return [str(p.relative_to(out)) for p in left]


class Wrong(Exception):
    """Something was lost, or is wrong."""


def begin(root: Path, name: str) -> None:
    """What lies in `out` before the command: nothing, or what was there before."""
    out, before = root / "out", root / "before" / name
    shutil.rmtree(out, ignore_errors=True)
    if before.exists():
        shutil.copytree(before, out, copy_function=shutil.copy2)
    else:
        out.mkdir()


def killed_once(
    root: Path, name: str, whole: dict[str, str], old: dict[str, str], sent: signal.Signals, **moment: Any
) -> bool:
    """Kill one run, look at what is left, run it again, compare. Whether it was killed in time.

    Raises:
        Wrong: see the head of this file.
    """
    kind, out = KINDS[name], root / "out"
    begin(root, name)
    code, _, said, _ = run(root, kind, number=sent, **moment)
    stopped = code != 0
    expected = CODES.get(sent, -sent)
    if code not in (0, expected, -sent):  # before the program has begun, a signal ends it at once
        raise Wrong(f"ended with {code}, expected {expected}: {said}")
    left = state(name, out)
    for file, holds in left.items():
        if holds not in (whole.get(file), old.get(file)):
            raise Wrong(f"{file} is neither the old nor the new one")
    for file in old:
        if file not in left:
            raise Wrong(f"{file} is lost")
    if sent != signal.SIGKILL and (rest := hidden(out)):
        raise Wrong(f"left behind: {rest}")
    if name == "bench" and left:
        return stopped  # a folder that is there is whole; the same command refuses to write there
    finished = {p: p.stat().st_mtime_ns for p in out.glob("*/*_cube.h5")} if name == "batch" else {}
    code, _, said, _ = run(root, kind)
    if code != 0:
        raise Wrong(f"the same command, given again, ended with {code}: {said}")
    if name != "train" and (rest := hidden(out)):
        raise Wrong(f"given again, it leaves {rest}")
    again = state(name, out)
    for file, holds in whole.items():
        if again.get(file) != holds:
            raise Wrong(f"given again: {file} is {'missing' if file not in again else 'another one'}")
    if any(path.stat().st_mtime_ns != stamp for path, stamp in finished.items()):
        raise Wrong("a finished cube was computed again")
    return stopped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=40, help="of each kind, signal and place (default 40)")
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--signals", nargs="+", choices=(*SIGNALS,), default=[*SIGNALS])
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ["OMP_NUM_THREADS"] = "1"  # threads of OpenMP do not outlive a fork, and the child waits for them

    wrong = 0
    signals = [signal.Signals[f"SIG{one}"] for one in args.signals]
    import_commands()
    with tempfile.TemporaryDirectory() as folder:
        run_in_fork(prepare, Path(folder))
        for name in args.only:
            wrong += tried(Path(folder), name, moments=args.moments, signals=signals, seed=args.seed)
    print(f"{wrong} wrong" if wrong else "nothing lost, nothing wrong", flush=True)
    return int(wrong > 0)


def run_in_fork(work: Callable[..., object], *arguments: object) -> None:
    """So that the process that forks never computes: threads do not survive a fork."""
    process = get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join()
    if process.exitcode != 0:
        raise RuntimeError(f"{work.__name__} ended with {process.exitcode}")


def tried(
    root: Path, name: str, *, moments: int, signals: Sequence[signal.Signals], seed: int = 0,
    say: Callable[[str], object] = print,
) -> int:  # fmt: skip
    """All moments of one kind; how many were wrong."""
    kind, out = KINDS[name], root / "out"
    old: dict[str, str] = {}

    def done(argv: tuple[str, ...] = (), at: int = 0) -> tuple[int, float]:
        code, calls, said, seconds = run(root, kind, argv, at=at)
        if code != 0:
            raise RuntimeError(f"{name}: {said}")
        return calls, seconds

    begin(root, name)
    if kind.before:
        done(kind.before)
        old = state(name, out)
        shutil.copytree(out, root / "before" / name)
    begin(root, name)
    calls, _ = done(at=-1)
    whole = state(name, out)
    begin(root, name)
    _, seconds = done()
    draw, wrong = random.Random(json.dumps([seed, name])), 0
    for sent in signals:
        for place in ("in the write", "anywhere"):
            stopped = 0
            for _ in range(moments):
                written = place == "in the write"
                moment = {"at": draw.randint(1, calls)} if written else {"after": draw.uniform(0.01, seconds)}
                try:
                    stopped += killed_once(root, name, whole, old, sent, **moment)
                except Wrong as error:
                    wrong += 1
                    say(f"  {name}, {sent.name} {place}, {moment}: {error}")
            say(f"{name}: {sent.name} {place}: {moments} moments, {stopped} stopped in time")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
