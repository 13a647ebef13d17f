"""Whole commands: seconds and memory from the command to the picture, beside another version's where one is given.

On a busy machine compare seconds of the processor, with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
MEASUREMENT = ROOT / "data" / "example.h5"
NO_FIGURES = ("--figures", "none")


class Command(NamedTuple):
    """Arguments of `scripts/reconstruct.py`, and whether a process on each core computes beside it."""

    name: str
    arguments: tuple[str, ...] = ()
    busy: bool = False


EXAMPLE = (
    Command("gap-tv, no figures", ("--solver", "gap-tv", *NO_FIGURES)),
    Command("fast, no figures", ("--quality", "fast", *NO_FIGURES)),
    Command("default, no figures", NO_FIGURES),
    Command("default"),
    Command("default, a busy process on each core", busy=True),
)
CAPTURES = {
    "tsa_real": (("scene1", "scene2", "scene3"), "28"),
    "smem_real": (("02_fern_root", "03_dog_olfactory_membrane"), "24"),
}


def commands(
    data: Path | None, *, against: Path | None = None, turns: int = 2, report: Callable[[str], None] = print
) -> str:
    """Run `scripts/reconstruct.py` as a user does, and return the least of some turns as Markdown.

    Args:
        data: folder with tsa_real/*.mat and smem_real/*.mat, real captures; None: the example alone.
        against: another checkout, run in turn with this one.
        turns: of each command after one that is not counted, which compiles.
        report: called with each finished row.

    Raises:
        ValueError: `against` holds no such script.
    """
    checkouts = [ROOT, *([] if against is None else [against.resolve()])]
    for root in checkouts:
        if not (root / "scripts" / "reconstruct.py").is_file():
            raise ValueError(f"{root} holds no scripts/reconstruct.py; give a checkout of this project")
    units = ["s", "s of the processor", "MB"]
    head = ["command", *units, *([f"{unit}, before" for unit in units] + ["ratio"] if against else [])]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for command in listed(data):
        runs = [[timed(root, command) for root in checkouts] for _ in range(turns + 1)]
        best = [min(each) for each in zip(*runs[1:], strict=True)]
        cells = [f"{seconds:.1f} | {processor:.1f} | {memory:.0f}" for seconds, processor, memory in best]
        ratio = [f"{best[0][0] / best[1][0]:.2f}"] if against else []
        lines.append(f"| {' | '.join([command.name, *cells, *ratio])} |")
        report(lines[-1])
    return "\n".join(lines)


def listed(data: Path | None) -> Iterator[Command]:
    """Those of the example, and with data of the real captures."""
    for command in EXAMPLE:
        yield command._replace(arguments=("--measurement", str(MEASUREMENT), *command.arguments))
    for folder, (scenes, bands) in CAPTURES.items() if data is not None else ():
        for scene in scenes:
            files = ("--measurement", f"{data / folder / scene}.mat", "--mask", str(data / folder / "mask.mat"))
            yield Command(scene, (*files, "--num-bands", bands))


def timed(root: Path, command: Command) -> tuple[float, float, float]:
    """Seconds, those of the processor, and peak memory [MB] as Linux counts them, of one run in its own process."""
    with tempfile.TemporaryDirectory() as folder, beside((os.cpu_count() or 1) if command.busy else 0):
        places = ("--output", f"{folder}/cube.h5", "--figures", f"{folder}/figures", "--quiet")
        words = [sys.executable, str(root / "scripts" / "reconstruct.py"), *places, *command.arguments]
        start = time.perf_counter()
        process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": str(root)})
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1e3


@contextmanager
def beside(count: int) -> Iterator[None]:
    """So many processes that compute meanwhile, and no longer than this one is there."""
    busy = f"import os\nwhile os.getppid() == {os.getpid()}: pass"
    others = [subprocess.Popen([sys.executable, "-c", busy]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
