"""The benchmark: its clock and its counts, that it refuses to time what disagrees, and one small run of all of it."""

import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path

import benchmark as script
import pytest
import torch
from benchmarks import commands as whole, gpu as on_gpu, speed as module, throughput as many, timing
from benchmarks.gpu import gpu
from benchmarks.quality import simulated_scenes
from benchmarks.siblings import convolution_speed, covariance_speed, patches_speed
from benchmarks.speed import Size, iterations_to, speed, time_to_quality, tv_solvers
from benchmarks.throughput import frames_a_minute
from benchmarks.workers import PROCESSES, THREADS, Point, draw, workers
from messages import refused, refuses

from cassi import reconstruct
from cassi.priors import learned

CPU = torch.device("cpu")


@pytest.fixture
def hurried(monkeypatch):
    monkeypatch.setattr(timing, "_SETTLE", 0.0)
    monkeypatch.setattr(timing, "_TURN", 0.0)


def test_times_in_turns(monkeypatch):
    """On a clock of its own: no machine's load shows."""
    order, now = list[str](), [0.0]

    def wait(name: str, seconds: float) -> None:
        order.append(name)
        now[0] += seconds

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(timing.time, "sleep", lambda seconds: None)
    ways = {"a": lambda: wait("a", 0.002), "b": lambda: wait("b", 0.02), "slow": lambda: wait("slow", 0.3)}
    times = timing.time_in_turns(ways, device=CPU, seconds=0.5)
    assert times == pytest.approx({"a": 0.002, "b": 0.02, "slow": 0.3}) and order.count("slow") == 2
    turns = "".join(order[order.index("slow") + 4 :]).replace("slow", "")
    assert turns.startswith("aaaaaabb" + "bbaaaaaa" + "aaaaaabb")  # one call not timed, then for 10 ms; in turns
    assert order.count("a") == 2 + 3 * (order.count("b") - 2)


def test_allocations_are_those_of_torch():
    a = torch.zeros(1000)
    sizes = timing.allocations(lambda: torch.dist(a, a))
    assert sizes.count(4000) == 1 and sizes.count(-4000) == 1  # the difference, inside the operation
    assert timing.peak_memory(lambda: [torch.zeros(1000) + 1 for _ in range(5)], CPU) >= 6 * 4000
    assert timing.peak_memory(lambda: [(torch.zeros(1000) + 1).sum() for _ in range(5)], CPU) < 3 * 4000


@pytest.mark.parametrize("command", sorted(path.stem for path in Path(module.__file__).parent.glob("[a-z]*.py")))
def test_what_a_table_needs_is_there(command):
    """Tables of hours are not made here, but what they import exists."""
    import_module(f"benchmarks.{command}")


def test_what_disagrees_is_not_timed():
    with refuses(RuntimeError):
        timing.check_agreement({"a": lambda: torch.ones(3), "b": lambda: torch.full((3,), 2.0)})


def test_time_to_quality_counts_the_iterations_needed():
    pytest.importorskip("skimage", reason="scikit-image is not installed")
    (scene,) = simulated_scenes(None, size=24)
    solve = tv_solvers(scene.A, scene.y)["GAP-TV"]
    after = [scene.psnr(solve(num_iters=n).x) for n in (1, 2, 3)]
    assert after[0] < after[1] < after[2]
    assert [iterations_to(solve, scene, psnr) for psnr in (after[1] - 1e-6, 99.0)] == [2, None]


def test_a_small_run_of_everything(hurried, monkeypatch):
    pytest.importorskip("skimage", reason="scikit-image is not installed")
    small = list(simulated_scenes(None, size=24))
    monkeypatch.setattr(module, "QUICK_SIZES", (Size(1, 3, 8, 7),))
    monkeypatch.setattr(module, "simulated_scenes", lambda *_args, **_options: small)
    monkeypatch.setattr(module, "growth", lambda *_args, **_options: "growth")
    monkeypatch.setattr(module, "siblings", lambda device, *, quick: iter([f"siblings {quick}"]))
    parts: list[str] = []
    text = speed(CPU, quick=True, report=parts.append)
    assert text == "\n\n".join(p.rstrip("\n") for p in parts)
    assert all(piece in text for piece in ("Method 3", "peak memory", "siblings True", "scikit-image loop"))
    assert "| procedural | GAP-TV |" in time_to_quality(small, CPU)


def test_the_script_says_what_is_wrong(tmp_path, capsys, monkeypatch):
    assert script.main(["speed", "--data", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err
    if not torch.cuda.is_available():
        for arguments in (["speed", "--device", "cuda"], ["gpu", "--no-tests"]):
            assert script.main(arguments) == 2
            assert capsys.readouterr().err == "error: there is no CUDA device here: nothing was measured\n"
    monkeypatch.setattr(module, "speed", lambda device, *, data, quick: f"{device} {data} {quick}")
    assert script.main(["speed", "--quick"]) == 0
    assert capsys.readouterr().out == "\ncpu None True\n"


def test_the_tables_of_a_gpu_are_made(hurried, monkeypatch):
    """On the CPU, which shows that everything in them runs; the device itself is pretended in `test_cuda_equality.py`.

    Of short runs and a small network: what is slow is the profile of many operations.
    """
    short = partial(reconstruct, num_iters=5)
    monkeypatch.setattr(
        on_gpu,
        "reconstruct",
        lambda *y, plan=None, **how: reconstruct(*y, plan=plan, **how) if plan else short(*y, **how),
    )
    monkeypatch.setattr(on_gpu, "Size", lambda stages, light: learned.Size(stages=1, light=light))
    monkeypatch.setattr(on_gpu, "MAX_BATCH", 4)
    said = list[str]()
    text = gpu(CPU, size=16, bands=4, seconds=0.01, tests=False, report=said.append)
    assert text == "\n".join(said) and text.startswith("the CPU; not measured on a GPU")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in said if line.startswith("| ")]
    names = [name for name, *_ in rows]
    assert names[1:4] == ["a frame", "a frame with a plan", "4 frames with a plan, each"]
    assert names[4:7] == ["8 files with a plan, each, read and written", "41 x 45", "step"] and len(rows) == 20
    assert all(float(value) >= 0 for _, *values in rows for value in values if value[:1].isdigit())
    assert "failed" not in text and "out of time" not in text
    assert "Largest difference between cubes of a stack and of its frames alone: 0.0e+00." in text
    assert text.count("Self CPU time total") == 2


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_when_the_time_is_up_rows_say_so(monkeypatch):
    """The one that is measured is given up, whatever it catches; nothing is begun after it."""
    clock = on_gpu.Clock(time.monotonic() + 0.05, [].append)

    def endless() -> str:
        while True:
            with suppress(Exception):
                time.sleep(0.01)

    for measure in (lambda: "3 | 4", lambda: str(1 / 0), endless, lambda: "never"):
        clock.row("a", measure)
    out = "| a | not measured, out of time |"
    assert clock.lines == ["| a | 3 | 4 |", "| a | failed, ZeroDivisionError: division by zero |", out, out]
    text = gpu(CPU, size=16, bands=4, budget=0, report=lambda line: None)
    assert text.count("not measured, out of time") == 21


def test_frames_a_minute_of_workers_are_counted_and_drawn(tmp_path):
    points = [Point(way, n, 10.0 * n, 6.0) for way in (THREADS, PROCESSES) for n in (1, 2)]
    near, far = draw(points, 8.0).axes
    assert [line.get_ydata().tolist() for line in near.lines[:2]] == [[10, 20], [10, 20]]
    assert max(far.lines[0].get_ydata()) == 60 * 200 / 8  # where the disk is full


def test_the_table_of_workers_is_made(monkeypatch):
    """By a thread in place of the processes, which `test_cli_cluster.py` starts."""
    one = contextmanager(lambda address, inform: iter([ThreadPoolExecutor(1) if address else None]))
    monkeypatch.setattr("benchmarks.workers.executor_at", one)
    text = workers((1,), frames=4, size=24, num_bands=4, report=lambda line: None)
    assert text.count("| 1 | ") == 2 and "4 frames of 24 x 24 x 4 by one plan" in text


def test_frames_a_minute_leave_out_the_start(tmp_path):
    for k, second in enumerate([100, 101, 110, 112, 114, 116, 118, 120]):  # the third is the first that counts
        path = tmp_path / f"{k}_cube.h5"
        path.touch()
        os.utime(path, (second, second))
    assert frames_a_minute(tmp_path) == pytest.approx(30)


def test_whole_commands_are_run(monkeypatch, tmp_path):
    """By a script that notes what it is given, in two checkouts, beside a busy process."""
    assert whole.MEASUREMENT.is_file() and (whole.ROOT / "scripts" / "reconstruct.py").is_file()
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "reconstruct.py").write_text("import sys; open('told', 'a').write(f'{sys.argv[3:]}\\n')")
    fast = whole.Command("busy", ("--solver", "least-squares", *whole.NO_FIGURES), busy=True)
    for name, value in {"ROOT": tmp_path, "EXAMPLE": (fast,)}.items():
        monkeypatch.setattr(whole, name, value)
    monkeypatch.setattr(whole.os, "cpu_count", lambda: 1)
    monkeypatch.chdir(tmp_path)
    text = whole.commands(None, against=tmp_path, turns=1)
    assert re.fullmatch(r"\| command .*\n.*\n\| busy(( \| [\d.]+){2} \| \d+){2} \| [\d.]+ \|", text)
    told = (tmp_path / "told").read_text().splitlines()
    assert len(told) == 4 and all(line.endswith("'--solver', 'least-squares', '--figures', 'none']") for line in told)
    refused(whole.commands, None, against=tmp_path / "none", error=ValueError)


def test_every_way_to_work_through_frames(monkeypatch):
    monkeypatch.setattr(many, "WAYS", {"one process": 1})
    text = many.throughput(8, size=16, num_bands=3, num_iters=2)
    assert text.startswith("8 frames of 16 x 16 x 3, gap-tv, 2 iterations, start-up left out\n\n| how |")
    assert [line.split(" | ")[0] for line in text.splitlines()[4:]] == ["| one by one from Python", "| one process"]
    refused(many.throughput, 7, error=ValueError)


def test_every_way_to_compute_a_row_agrees():
    rows = [
        *convolution_speed((20,), (3, 30), seconds=0),
        *patches_speed((2,), (24,), ((8, 4), (5, 1)), seconds=0),
        *covariance_speed((4,), (4,), (16,), seconds=0),
    ]
    patches = ["extract patches", "aggregate patches"]
    assert [row.task for row in rows] == ["convolution"] * 3 + patches * 2 + ["covariance"]
    for row in rows:
        assert row.milliseconds > 0 and row.others and row.speedup == min(row.others.values()) / row.milliseconds
