"""What the frames beside a frame are worth in a sequence, as Markdown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from cassi.looking.metrics import psnr
from cassi.optics.detector import detect
from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.running.reconstruct import reconstruct
from cassi.sequence.frames import PLAN_FRAMES, REACH, InSequence, neighbor_indices, sequence_plan
from cassi.settings import Settings
from cassi.simulation.camera import random_mask

FULL_WELL, READ_NOISE = 1e4, 5.0  # electrons
BANDS = np.linspace(450, 720, 28)
ON_CPU = Settings(camera="as-given", device="cpu")


def sequences(
    data: Path,
    scenes: tuple[tuple[str, float, int, bool], ...] = (
        ("jelly_beans", 0.8, 16, True),
        ("pompoms", 0.8, 16, True),
        ("jelly_beans", 0.8, 16, False),
        ("pompoms", 0.8, 16, False),
        ("jelly_beans", 12.0, 6, True),
    ),
    *,
    size: int = 64,
    report: Callable[[str], None] = print,
) -> str:
    """A window that moves over a scene, perhaps with an object that moves otherwise, 10,000 electrons a frame.

    Args:
        data: folder with cave_train/*.h5.
        scenes: name, motion [pixel a frame] and number of frames of each sequence, and whether there is an object.
        size: of the frames [pixel].
        report: called with one line of progress at a time.
    """
    lines = [
        "| sequence | frame by frame [dB] | as a sequence [dB] | gain | frames with their neighbors |",
        "|---" * 5 + "|",
    ]
    for name, speed, count, crossed in scenes:
        truth = moving(data, name, size, count, speed, crossed=crossed)
        what = f"{name}, {'an object across' if crossed else 'as one'}"
        A = CASSI.from_step(random_mask(size, size, kind="grey", generator=torch.Generator().manual_seed(100)), 2, 28)
        shot = detect(
            A.forward(truth), full_well=FULL_WELL, read_noise=READ_NOISE, generator=torch.Generator().manual_seed(1)
        )
        frames = [Measurement(y=y.numpy(), mask=A.mask.numpy(), shifts=A.shifts, wavelengths=BANDS) for y in shot.y]
        spread = [round((k + 0.5) * count / PLAN_FRAMES - 0.5) for k in range(PLAN_FRAMES)]
        solve = InSequence(sequence_plan([frames[t] for t in spread], ON_CPU), ON_CPU)
        single, joined, used = [], [], 0
        for t, m in enumerate(frames):
            near = np.stack([m.y, *(frames[s].y for s in neighbor_indices(t, count, REACH))])
            found = solve(Measurement(y=near, mask=m.mask, shifts=m.shifts, wavelengths=BANDS))
            by_itself = reconstruct(m, camera="as-given", device="cpu")
            single.append(psnr(by_itself.cube.clamp(0, 1), truth[t]))
            joined.append(psnr(found.cube.clamp(0, 1), truth[t]))
            used += bool(found.parameters["together"])
            report(f"{what} {speed} px, frame {t}: {single[-1]:.2f} dB alone, {joined[-1]:.2f} dB in the sequence")
        gain = np.subtract(joined, single)
        lines.append(
            f"| {what}, {count} frames, {speed:g} px a frame | {np.mean(single):.2f} | {np.mean(joined):.2f} | "
            f"{np.mean(gain):+.2f} (least {min(gain):+.2f}) | {used} |"
        )
    return (
        f"Sequences of {size} x {size} pixels: a window moves over a CAVE scene by parts of a pixel, an object of a "
        "quarter of its side over it in another direction, or none; one grey mask that stands still, 10,000 electrons "
        "at the brightest pixel\n\n" + "\n".join(lines)
    )


def moving(data: Path, name: str, size: int, count: int, speed: float, *, crossed: bool = True) -> Tensor:
    """(T, C, H, W): a window that moves by `speed` a frame at 30 degrees, and where `crossed` a square over it."""
    with h5py.File(data / "cave_train" / f"{name}.h5") as file:
        scene = (np.asarray(file["cube_sqrt"][-28:], dtype=np.float32) / 255) ** 2
    with h5py.File(data / "cave_train" / "watercolors.h5") as file:
        side = size // 4
        square = (np.asarray(file["cube_sqrt"][-28:, 200 : 200 + side, 200 : 200 + side], dtype=np.float32) / 255) ** 2
    down, right = speed * np.sin(np.pi / 6), speed * np.cos(np.pi / 6)
    border = 8 + int(np.ceil(speed * count))
    top, left = ((n - size) // 2 - border // 2 for n in scene.shape[1:])
    base = scene[:, top - 8 : top + size + border, left - 8 : left + size + border]
    frames = []
    for t in range(count):
        moved = np.stack([ndimage.shift(band, (-down * t, -right * t), order=3, mode="nearest") for band in base])
        frame = moved[:, 8 : 8 + size, 8 : 8 + size].clip(0)
        i, j = (round(float(p)) % (size - side) for p in (size / 2 - 0.6 * speed * t, size / 4 + 0.4 * speed * t))
        if crossed:
            frame[:, i : i + side, j : j + side] = square
        frames.append(frame)
    film = torch.from_numpy(np.stack(frames))
    return film / film.max()
