"""What further shots of a scene, and the frames beside it in a sequence, are worth, as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.sequences import FULL_WELL, READ_NOISE, sequences
from benchmarks.side import window
from cassi.looking.metrics import psnr
from cassi.optics.detector import detect
from cassi.optics.multi_shot import MultiShot
from cassi.optics.single_disperser import CASSI
from cassi.running.reconstruct import reconstruct
from cassi.simulation.camera import random_mask

COUNTS = (1, 2, 4)


def shots(data: Path, *, size: int = 256, windows: int = 10, report: Callable[[str], None] = print) -> str:
    """One, two and four shots through grey masks of their own, the automatic solver, clean and noisy; and sequences.

    Args:
        data: folder with cave_train/*.h5.
        size: of the windows [pixel].
        windows: how many scenes.
        report: called with one line of progress at a time.
    """
    found: dict[tuple[str, int], list[float]] = {}
    for number, (name, cube) in enumerate(scenes(data, size, windows)):
        masks = [
            random_mask(size, size, kind="grey", generator=torch.Generator().manual_seed(100 + k))
            for k in range(max(COUNTS))
        ]
        for noise in ("clean", "10,000 e"):
            for count in COUNTS:
                each = tuple(CASSI.from_step(mask, step=2, num_bands=len(cube)) for mask in masks[:count])
                A = MultiShot(each) if count > 1 else each[0]
                y = A.forward(cube)
                if noise != "clean":
                    generator = torch.Generator().manual_seed(number)
                    y = detect(y, full_well=FULL_WELL, read_noise=READ_NOISE, generator=generator).y
                x = reconstruct(y, A, wavelengths="450:720:28").cube.clamp(0, 1)
                found.setdefault((noise, count), []).append(psnr(x, cube))
            values = ", ".join(f"{count}: {found[noise, count][-1]:.2f} dB" for count in COUNTS)
            report(f"{name} {noise} {values}")
    lines = ["| noise | " + " | ".join(f"{c} shot{'s' * (c > 1)} [dB]" for c in COUNTS) + " | gain of 2 | of 4 |"]
    lines.append("|---" * 6 + "|")
    for noise in ("clean", "10,000 e"):
        mean = {count: float(np.mean(found[noise, count])) for count in COUNTS}
        least = {count: min(np.subtract(found[noise, count], found[noise, 1])) for count in COUNTS[1:]}
        gains = " | ".join(f"{mean[c] - mean[1]:+.2f} (least {least[c]:+.2f})" for c in COUNTS[1:])
        lines.append(f"| {noise} | " + " | ".join(f"{mean[c]:.2f}" for c in COUNTS) + f" | {gains} |")
    return (
        f"Cube PSNR, mean over {windows} windows of {size} x {size} pixels of CAVE scenes, 28 bands, each shot through "
        "a grey mask of its own; of the noisy ones every shot has 10,000 electrons at the brightest pixel\n\n"
        + "\n".join([*lines, "", sequences(data, report=report)])
    )


def scenes(data: Path, size: int, count: int) -> Iterator[tuple[str, Tensor]]:
    """The middles of so many scenes, spread over the folder, last 28 bands, brightest value 1."""
    paths = sorted((data / "cave_train").glob("*.h5"))
    for path in [paths[round(k * (len(paths) - 1) / max(1, count - 1))] for k in range(count)]:
        yield path.stem, window(data, path.stem, size)
