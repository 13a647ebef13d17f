"""Whole commands: seconds and memory from the command to the picture, beside another version's where one is given."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_FIGURES = ("--figures", "none")
EXAMPLE = {
    "gap-tv, no figures": ("--solver", "gap-tv", *NO_FIGURES),
    "fast, no figures": ("--quality", "fast", *NO_FIGURES),
    "default, no figures": NO_FIGURES,
    "default": (),
    "default, a busy process on each core": (),
}
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
    head = ["command", "s", "MB"] + (["s, before", "MB, before", "ratio"] if against else [])
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, arguments in named(data):
        runs = [[timed(root, arguments, name) for root in checkouts] for _ in range(turns + 1)]
        best = [min(each) for each in zip(*runs[1:], strict=True)]
        cells = [f"{seconds:.1f} | {memory:.0f}" for seconds, memory in best]
        ratio = [f"{best[0][0] / best[1][0]:.2f}"] if against else []
        lines.append(f"| {' | '.join([name, *cells, *ratio])} |")
        report(lines[-1])
    return "\n".join(lines)


def named(data: Path | None) -> Iterator[tuple[str, Sequence[str]]]:
    """The commands by name, and their arguments."""
    for name, options in EXAMPLE.items():
        yield name, ("--measurement", str(ROOT / "data" / "example.h5"), *options)
    for folder, (scenes, bands) in CAPTURES.items() if data is not None else ():
        for scene in scenes:
            mask = data / folder / "mask.mat"
            yield scene, ("--measurement", f"{data / folder / scene}.mat", "--mask", str(mask), "--num-bands", bands)


def timed(root: Path, arguments: Sequence[str], name: str) -> tuple[float, float]:
    """Seconds and peak memory [MB] of one run, as a process of its own."""
    busy = (os.cpu_count() or 1) if "busy" in name else 0
    with tempfile.TemporaryDirectory() as folder, beside(busy):
        command = [sys.executable, str(root / "scripts" / "reconstruct.py"), *arguments]
        places = ["--output", f"{folder}/cube.h5", "--quiet"]
        places += [] if "--figures" in arguments else ["--figures", f"{folder}/figures"]
        start = time.perf_counter()
        process = subprocess.Popen([*command, *places], env={**os.environ, "PYTHONPATH": str(root)})
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return seconds, usage.ru_maxrss / 1e3


@contextmanager
def beside(count: int) -> Iterator[None]:
    """So many processes that compute meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
