"""By hand, minutes to hours: many frames under kills, their memory over time, and frames a minute by workers.

    python tests/stress_batch.py kill --frames 200 --size 256 --bands 28
    python tests/stress_batch.py memory --frames 500
    python tests/stress_batch.py throughput --frames 24

What the small versions in test_batch.py check, at the size of real work.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import torch

from cassi import CASSI
from cassi.scene import procedural_scene
from cassi.simulate import random_mask

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


def kill(root: Path, args: argparse.Namespace) -> None:
    """Kill at random moments; in the end every cube equals that of an uninterrupted run, none computed over twice."""
    folder, whole, killed = root / "in", root / "whole", root / "killed"
    make_frames(folder, args)
    start = time.perf_counter()
    subprocess.run(command(folder, whole, args), check=True)
    seconds = time.perf_counter() - start
    print(f"uninterrupted: {args.frames} frames in {seconds:.0f} s", flush=True)
    draw = random.Random(args.seed)
    begun: Counter[str] = Counter()
    for k in range(args.kills):
        before = finished(killed)
        with subprocess.Popen(command(folder, killed, args)) as run:
            moment = draw.uniform(0, seconds / args.kills)
            while run.poll() is None and finished(killed) == before:
                time.sleep(0.01)
            time.sleep(moment)
            run.kill()
        for path in killed.glob("*_cube.h5"):
            with h5py.File(path) as file:
                assert file["cube"].shape == (args.bands, args.size, args.size)
        print(f"kill {k + 1}: {finished(killed)} frames finished", flush=True)
    lines = [json.loads(line) for line in (killed / "index.jsonl").read_text().splitlines()]
    begun.update(line["frame"] for line in lines if line["status"] == "begun")
    done = {path.name.removesuffix("_cube.h5") for path in killed.glob("*_cube.h5")}
    stamps = {path: path.stat().st_mtime_ns for path in killed.glob("*_cube.h5")}
    subprocess.run(command(folder, killed, args), check=True)
    begun.update(f"frame{k:04d}" for k in range(args.frames) if f"frame{k:04d}" not in done)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    assert finished(killed) == args.frames
    for path in whole.glob("*_cube.h5"):
        with h5py.File(path) as one, h5py.File(killed / path.name) as other:
            np.testing.assert_array_equal(one["cube"][:], other["cube"][:])
    print(
        f"{args.kills} kills: all {args.frames} cubes equal; begun at most {max(begun.values(), default=1)} times",
        flush=True,
    )
    assert max(begun.values(), default=1) <= 2


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


def throughput(root: Path, args: argparse.Namespace) -> None:
    """Frames a minute: one by one from Python, in one process, and by workers; start-up left out."""
    from functools import partial

    import cassi
    from cassi.batch import find_frames, reconstruct_many
    from cassi.io import read_measurement
    from cassi.reconstruct import write_result

    make_frames(root / "in", args)
    read = partial(read_measurement, mask=root / "mask.h5", num_bands=args.bands)
    solve = partial(cassi.reconstruct, solver=args.solver, num_iters=args.iterations)
    frames = find_frames(root / "in")
    solve(read(frames[0].path))
    start = time.perf_counter()
    for k, frame in enumerate(frames):
        m = read(frame.path)
        write_result(root / f"single{k}.h5", m, solve(m))
    alone = 60 * len(frames) / (time.perf_counter() - start)
    print("| how | frames a minute | against one by one |\n|---|---|---|")
    print(f"| one by one from Python | {alone:.1f} | 1.00 |", flush=True)
    rows = [("batch of 1", {"batch": 1}), ("batch of 2", {"batch": 2}), ("batch as chosen", {})]
    rows += [(f"{n} worker{'s' * (n > 1)}", {"workers": n}) for n in (1, 2)]
    for name, options in rows:
        times = []
        half = len(frames) // 2
        for part, label in ((frames[:half], "half"), (frames, "all")):  # the difference is free of start-up
            output = root / f"{name} {label}"
            times.append(reconstruct_many(part, output, read=read, solve=solve, **options).seconds)
        rate = 60 * (len(frames) - half) / (times[1] - times[0])
        print(f"| {name} | {rate:.1f} | {rate / alone:.2f} |", flush=True)


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("kill", "memory", "throughput"))
    p.add_argument("--frames", type=int, default=200)
    p.add_argument("--size", type=int, default=256)
    p.add_argument("--bands", type=int, default=28)
    p.add_argument("--kills", type=int, default=10)
    p.add_argument("--solver", default="gap-tv")
    p.add_argument("--iterations", type=int, default=20)
    p.add_argument("--seed", type=int, default=0)
    given = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"kill": kill, "memory": memory, "throughput": throughput}[given.what](Path(folder), given)
