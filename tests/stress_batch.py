"""By hand, minutes to hours: the memory of a long run of many frames.

    python tests/stress_batch.py --frames 500

`tests/kill.py` kills the program, and `python scripts/benchmark.py` counts frames a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import torch

from cassi import CASSI
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

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


if __name__ == "__main__":
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--frames", type=int, default=200)
    p.add_argument("--size", type=int, default=256)
    p.add_argument("--bands", type=int, default=28)
    p.add_argument("--solver", default="gap-tv")
    p.add_argument("--iterations", type=int, default=20)
    given = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        memory(Path(folder), given)
