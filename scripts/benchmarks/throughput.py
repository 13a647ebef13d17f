"""Frames a minute: one by one from Python, and several at a time."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from cassi.files import read_measurement, write_measurement
from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.running.many import find_frames, reconstruct_many
from cassi.running.reconstruct import reconstruct
from cassi.running.result import write_result
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

WAYS = {"one frame at a time": 1, "two at a time": 2, "as many as it chooses": None}


def throughput(
    count: int = 24,
    *,
    size: int = 256,
    num_bands: int = 28,
    solver: str = "gap-tv",
    num_iters: int = 20,
    report: Callable[[str], None] = lambda line: None,
) -> str:
    """Reconstruct the same frames in every way and return frames a minute as Markdown.

    Reading and writing are part of it, start-up is not: the clock starts when a quarter of the frames are on the disk.

    Args:
        count: frames, at least 8.
        size: height and width of the scene [pixel].
        num_bands: of the camera, which has step 2.
        solver, num_iters: as for `cassi.reconstruct`.
        report: called with each finished row.

    Raises:
        ValueError: fewer than 8 frames.
    """
    if count < 8:
        raise ValueError(f"count must be at least 8 to leave out start-up, got {count}")
    solve = partial(reconstruct, solver=solver, num_iters=num_iters)
    lines = ["| how | frames a minute | against one by one |", "|---|---|---|"]

    def add(way: str, rate: float, alone: float) -> None:
        lines.append(f"| {way} | {rate:.1f} | {rate / alone:.2f} |")
        report(lines[-1])

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_frames(root / "in", count, size, num_bands)
        frames = find_frames(root / "in")
        solve(read_measurement(frames[0].path))  # compiles and allocates
        (root / "single").mkdir()
        for frame in frames:
            m = read_measurement(frame.path)
            write_result(root / "single" / f"{frame.name}_cube.h5", solve(m))
        alone = frames_a_minute(root / "single")
        add("one by one from Python", alone, alone)
        for way, batch in WAYS.items():
            output = root / way
            reconstruct_many(frames, output, solve=solve, batch=batch)
            add(way, frames_a_minute(output), alone)
    caption = f"{count} frames of {size} x {size} x {num_bands}, {solver}, {num_iters} iterations, start-up left out"
    return f"{caption}\n\n" + "\n".join(lines)


def frames_a_minute(folder: Path) -> float:
    """From when a quarter of the cubes in a folder were on the disk until all were."""
    times = sorted(path.stat().st_mtime_ns for path in folder.glob("*_cube.h5"))
    first = len(times) // 4
    return 60e9 * (len(times) - 1 - first) / max(times[-1] - times[first], 1)


def make_frames(folder: Path, count: int, size: int, num_bands: int) -> None:
    """Write frame0000.h5 ...: one scene that moves a pixel to the left each frame, behind one mask."""
    folder.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    wavelengths = np.linspace(450, 650, num_bands)
    scene = procedural_scene(size, size, wavelengths.tolist(), generator=generator)
    A = CASSI.from_step(random_mask(size, size, generator=generator), 2, num_bands)
    for k in range(count):
        y = A.forward(scene.roll(-k, -1)).numpy()
        m = Measurement(y=y, mask=A.mask.numpy(), shifts=A.shifts, wavelengths=wavelengths)
        write_measurement(folder / f"frame{k:04d}.h5", m)
