"""By hand, minutes to hours: many frames while their workers are killed, and the memory of a long run.

    python tests/stress_batch.py memory --frames 500
    python tests/stress_batch.py worker --frames 200 --workers 2

What the small versions in test_running_many.py check, at the size of real work. `tests/kill.py` kills the program
itself, and `python scripts/benchmark.py` counts frames a minute.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import psutil
import torch

from cassi import CASSI, Reconstruction, reconstruct
from cassi.files import read_measurement
from cassi.optics.measurement import Measurement
from cassi.running.many import BatchReport, find_frames, reconstruct_many
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene
from cassi.solvers.loop import Monitor

SCRIPT = Path(__file__).parent.parent / "scripts" / "reconstruct.py"


def make_frames(folder: Path, args: argparse.Namespace) -> None:
    """One scene that moves a pixel to the left each frame, behind one mask."""
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    scene = procedural_scene(args.size, args.size, np.linspace(450, 650, args.bands), generator=generator)
    A = CASSI.from_step(random_mask(args.size, args.size, generator=generator), 2, args.bands)
    for k in range(args.frames):
        with h5py.File(folder / f"frame{k:04d}.h5", "w") as file:
            file["measurement"] = A.forward(scene.roll(-k, -1)).numpy()
    with h5py.File(folder.parent / "mask.h5", "w") as file:
        file["mask"] = A.mask.numpy()


def command(folder: Path, output: Path, args: argparse.Namespace, *more: object) -> list[str]:
    argv = [sys.executable, SCRIPT, "--measurement", folder, "--mask", folder.parent / "mask.h5", "--output", output]
    argv += ["--num-bands", args.bands, "--solver", args.solver, "--iterations", args.iterations, "--quiet", *more]
    return [str(a) for a in argv]


def finished(output: Path) -> int:
    return sum(1 for _ in output.glob("*_cube.h5"))


def memory(root: Path, args: argparse.Namespace) -> None:
    """Resident memory of one run, from the 50th frame to the last."""
    make_frames(root / "in", args)
    samples: list[tuple[int, int]] = []
    with subprocess.Popen(command(root / "in", root / "out", args)) as run:
        while run.poll() is None:
            status = Path(f"/proc/{run.pid}/status").read_text()
            found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")]
            if found:
                samples.append((finished(root / "out"), int(found[0]) // 1024))
            time.sleep(0.2)
    for edge in range(50, args.frames + 1, 50):
        print(f"up to frame {edge}: {max(mib for count, mib in samples if edge - 50 < count <= edge)} MiB")
    early = max(mib for count, mib in samples if count <= 50)
    late = max(mib for count, mib in samples if count > args.frames - 50)
    print(
        f"{args.frames} frames: at most {early} MiB in the first 50, {late} MiB in the last 50: {late / early - 1:+.1%}"
    )


def noted(measurement: Measurement, monitor: Monitor, log: str, solver: str, iterations: int) -> Reconstruction:
    """Reconstruct, and write down beginning and end."""
    for what in ("begun", "ended"):
        with open(log, "a") as file:  # one short line: appended whole, whoever else writes
            file.write(f"{what} {measurement.source}\n")
        if what == "begun":
            result = reconstruct(measurement, solver=solver, num_iters=iterations, monitor=monitor)
    return result


def notes(log: Path, what: str) -> Counter[str]:
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(line.split()[1] for line in lines if line.startswith(what))


def worker(root: Path, args: argparse.Namespace) -> None:
    """Kill worker processes at random moments; every cube equals that of an uninterrupted run, none begun over twice.

    The next worker is killed some time after the frames that the last one took with it have ended: a frame hit a
    second time would have to be computed a third time by any program.
    """
    make_frames(root / "in", args)
    frames = find_frames(root / "in")
    read = partial(read_measurement, mask=root / "mask.h5", num_bands=args.bands)
    draw = random.Random(args.seed)

    def run(name: str) -> BatchReport:
        solve = partial(noted, log=str(root / f"{name}.log"), solver=args.solver, iterations=args.iterations)
        return reconstruct_many(frames, root / name, read=read, solve=solve, workers=args.workers)

    whole = run("whole")
    print(f"uninterrupted: {args.frames} frames in {whole.seconds:.0f} s", flush=True)
    log, over, kills = root / "killed.log", threading.Event(), 0

    def killer() -> None:
        nonlocal kills
        while kills < args.kills and not over.is_set():
            time.sleep(draw.uniform(0, whole.seconds / args.kills))
            workers = [p for p in psutil.Process().children() if "spawn_main" in " ".join(p.cmdline())]
            if over.is_set() or not workers or not notes(log, "begun"):
                continue
            draw.choice(workers).kill()
            kills += 1
            hit = notes(log, "begun").keys() - notes(log, "ended").keys()
            print(f"kill {kills}: {finished(root / 'killed')} frames finished", flush=True)
            while hit - notes(log, "ended").keys() and not over.is_set():
                time.sleep(0.01)

    thread = threading.Thread(target=killer)
    thread.start()
    try:
        report = run("killed")
    finally:
        over.set()
        thread.join()
    assert (report.computed, dict(report.failed)) == (args.frames, {}), report
    for path in (root / "whole").glob("*_cube.h5"):
        with h5py.File(path) as one, h5py.File(root / "killed" / path.name) as other:
            np.testing.assert_array_equal(one["cube"][:], other["cube"][:])
    most = max(notes(log, "begun").values())
    print(
        f"{kills} workers killed, {report.seconds:.0f} s: all {args.frames} cubes equal; begun at most {most} times, "
        f"{sum(notes(log, 'begun').values()) - args.frames} frames begun again"
    )
    assert most <= 2
    assert kills == args.kills, f"done after {kills} kills; give more frames or iterations"


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("memory", "worker"))
    p.add_argument("--frames", type=int, default=200)
    p.add_argument("--size", type=int, default=256)
    p.add_argument("--bands", type=int, default=28)
    p.add_argument("--kills", type=int, default=10)
    p.add_argument("--workers", type=int, default=2, help="of `worker`")
    p.add_argument("--solver", default="gap-tv")
    p.add_argument("--iterations", type=int, default=20)
    p.add_argument("--seed", type=int, default=0)
    given = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"memory": memory, "worker": worker}[given.what](Path(folder), given)
