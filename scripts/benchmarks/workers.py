"""Frames a minute against the number of workers, threads and processes of a cluster, and what bounds them: a figure."""

from __future__ import annotations

import os
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from matplotlib.figure import Figure

from benchmarks.throughput import frames_a_minute, make_frames
from cassi.cli.cluster import executor_at
from cassi.files import read_measurement
from cassi.looking.figures import save_figures
from cassi.running.many import find_frames, reconstruct_many
from cassi.running.plan_file import save_plan
from cassi.running.reconstruct import reconstruct

THREADS, PROCESSES = "threads", "processes (--cluster local:N)"


class Point(NamedTuple):
    """So many workers of a kind: frames a minute, and seconds of a processor a frame."""

    way: str
    count: int
    rate: float
    work: float


def workers(
    counts: tuple[int, ...] = (1, 2, 3),
    *,
    frames: int = 12,
    size: int = 256,
    num_bands: int = 28,
    figure: Path | None = None,
    report: Callable[[str], None] = print,
) -> str:
    """Reconstruct the same frames by one plan with each number of workers, each on one thread; return Markdown.

    Reading and writing are part of it, start-up is not: the clock starts when a quarter of the frames are on the disk.
    Where other programs take the processors, the seconds of a processor stay what they are and the rates fall.

    Args:
        counts: of workers.
        frames: that are reconstructed each time.
        size, num_bands: of the scene [pixel], and of the camera, which has step 2.
        figure: file to draw to, .png.
        report: called with each finished row.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_frames(root / "in", frames, size, num_bands)
        found = find_frames(root / "in")
        plan = reconstruct(read_measurement(found[0].path), camera="as-given").plan
        if plan is None:
            raise RuntimeError("the default solver has a plan")
        save_plan(root / "plan.json", plan)
        solve = partial(reconstruct, camera="as-given", plan=str(root / "plan.json"))
        points = []
        for way in (THREADS, PROCESSES):
            for count in counts:
                output = root / f"{way[:7]}{count}"
                with executor_at(f"local:{count}" if way == PROCESSES else None, lambda line: None) as executor:
                    if executor is not None:
                        list(executor.map(_begin, range(4 * count)))
                    before = _processor_time()
                    done = reconstruct_many(found, output, solve=solve, batch=count, executor=executor)
                    if done.failed:
                        raise RuntimeError(str(done.failed))
                    work = (_processor_time() - before) / frames
                points.append(Point(way, count, frames_a_minute(output), work))
                report(_row(points[-1], points))
        read = os.path.getsize(found[0].path)
        written = os.path.getsize(output / f"{found[0].name}_cube.h5")
    head = [
        f"{frames} frames of {size} x {size} x {num_bands} by one plan, camera as given, on {os.cpu_count()} cores; a "
        f"frame reads {read / 1e6:.1f} MB and writes {written / 1e6:.1f} MB",
        "",
        "| workers | | frames a minute | against one | processor seconds a frame |",
        "|---|---|---|---|---|",
    ]
    if figure is not None:
        save_figures({figure.stem: draw(points, (read + written) / 1e6)}, figure.parent, dpi=72)
    return "\n".join([*head, *(_row(point, points) for point in points)])


def _begin(_: int) -> None:
    """Import and compile on a worker; each takes some of these, as they wait a little."""
    _compile()
    time.sleep(0.5)


@cache
def _compile() -> None:
    """Once a process."""
    mask = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # there is no scene
        reconstruct(torch.ones(64, 78), mask, num_bands=8, camera="as-given")


def _processor_time() -> float:
    """Seconds of processors that this process and those it started have taken."""
    here = psutil.Process()
    times = [process.cpu_times() for process in (here, *here.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def _row(point: Point, points: list[Point]) -> str:
    first = next(one for one in points if one.way == point.way)
    return f"| {point.count} | {point.way} | {point.rate:.1f} | {point.rate / first.rate:.2f} | {point.work:.2f} |"


def draw(points: list[Point], megabytes: float) -> Figure:
    """What was measured, and what is expected of more cores and of a disk of 200 MB/s."""
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    near, far = figure.subplots(1, 2)
    cores = os.cpu_count() or 1
    for way in dict.fromkeys(point.way for point in points):
        some = [point for point in points if point.way == way]
        near.plot([p.count for p in some], [p.rate for p in some], "o-", label=way)
    most = max(point.count for point in points)
    alone = 60 / min(point.work for point in points)
    near.plot(
        [1, min(cores, most), most],
        [alone * n for n in (1, cores, cores)],
        "k:",
        label="60 / processor seconds a frame, a core",
    )
    near.set(xlabel="workers", ylabel="frames a minute", ylim=(0, None), title=f"measured on {cores} cores")
    near.set_xticks(sorted({point.count for point in points}))
    near.legend(frameon=False, fontsize="small", loc="lower right")
    disk = 60 * 200 / megabytes
    counts = [1, disk / alone, 1000]
    far.loglog(counts, [min(n * alone, disk) for n in counts], "k:")
    here = [point for point in points if point.count <= cores]
    far.loglog([p.count for p in here], [p.rate for p in here], "o")
    far.set(xlabel="cores", ylabel="frames a minute", title="expected, with a disk of 200 MB/s")
    for axis in (far.xaxis, far.yaxis):
        axis.set_major_formatter("{x:g}")
    return figure
