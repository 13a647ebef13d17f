"""What a photograph from beside the camera is worth, as Markdown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from benchmarks.quality import READ_NOISE, Scene, add_noise
from cassi.choice.automatic import reconstruct_auto
from cassi.choice.stages import Watch
from cassi.files import read_measurement
from cassi.looking.metrics import psnr, sam
from cassi.optics.detector import brightness
from cassi.optics.single_disperser import CASSI
from cassi.photograph.picture import SidePicture
from cassi.photograph.similarity import Similarity
from cassi.photograph.solver import solve_beside
from cassi.settings import Settings
from cassi.simulation.camera import side_photograph

# Constants were set on others: clay, fake_and_real_beers, glass_tiles, jelly_beans, sponges, watercolors.
SCENES = (
    "beads", "cd", "egyptian_statue", "fake_and_real_sushi", "paints", "photo_and_face", "pompoms",
    "real_and_fake_peppers", "stuffed_toys", "superballs",
)  # fmt: skip
WAVELENGTHS = np.arange(430.0, 701.0, 10.0)
SENSOR = "Nikon 5100 (NPL)"  # of colour-science; Darrodi et al., JOSA A 32, 381 (2015)
MOVED = Similarity(1.5, 1.0, 2.1, -2.1)  # by 3 px, turned by 1 degree, 1.5 times the size
MARGIN = 6  # scene pixels that the photograph sees beyond the snapshot on each side, so that it sees all when moved
NOISES: dict[str, float | None] = {"clean": None, "10,000 e": 1e4}
KINDS = ("rgb", "rgb moved", "rgb, curves unknown", "pan", "foreign")


@dataclass(frozen=True)
class Row:
    scene: str
    noise: str
    kind: str
    psnr: float
    sam: float
    used: bool
    seconds: float


def side(data: Path, *, scenes: int = 10, size: int = 256, report: Callable[[str], None] = print) -> str:
    """Run the comparison and return it as Markdown.

    Args:
        data: folder with kaist/scene01.h5, whose mask is taken, and cave_train/*.h5.
        scenes: how many of the ten.
        size: of the window in the middle of each [pixel].
        report: called with one line of progress at a time.
    """
    rows: list[Row] = []
    for name in SCENES[:scenes]:
        for noise, full_well in NOISES.items():
            for row in measured(data, name, noise, full_well, size):
                rows.append(row)
                report(
                    f"{row.scene:22} {row.noise:9} {row.kind:20} {row.psnr:6.2f} dB {row.sam:5.1f} {row.seconds:6.1f} s"
                )
    return f"{intro(size)}\n\n{mean_table(rows)}"


def intro(size: int) -> str:
    """What the tables hold."""
    return (
        f"Windows of {size} x {size} pixels from the middle of CAVE scenes that took no part in choosing\n"
        "constants, the grey mask of the KAIST benchmark, 28 bands, step 2. The photograph has 10,000 electrons at\n"
        f"its brightest pixel and sees {MARGIN} scene pixels more on each side. rgb: the measured sensitivities of a\n"
        "Nikon 5100 (colour-science), given as curves, or unknown; pan: evenly sensitive. Moved: by 3 px, turned by\n"
        "1 degree, 1.5 times as fine. Foreign: of another scene. Gain over `auto` without a photograph."
    )


def measured(data: Path, name: str, noise: str, full_well: float | None, size: int) -> Iterator[Row]:
    """One scene: the default solver alone, and with each photograph."""
    mask = torch.from_numpy(read_measurement(data / "kaist" / "scene01.h5").mask)[:size, :size].clone()
    cube = window(data, name, size)
    A = CASSI.from_step(mask, step=2, num_bands=len(cube))
    y = add_noise(Scene(name, A, A.forward(cube), cube=cube), full_well).y
    level = brightness(A, y)
    y = y / level
    start = time.perf_counter()
    alone = reconstruct_auto(A, y, wavelengths=WAVELENGTHS)
    own = time.perf_counter() - start

    def row(kind: str, x: Tensor, used: bool, seconds: float) -> Row:
        x = (x * level).clamp(0, 1)
        return Row(name, noise, kind, psnr(x, cube), sam(x, cube), used, seconds)

    yield row("alone", alone.result.x, False, own)
    other = window(data, SCENES[(SCENES.index(name) + 1) % len(SCENES)], size)
    for kind in KINDS:
        picture = photographed(other if kind == "foreign" else cube, kind)
        start = time.perf_counter()
        found = solve_beside(A, y, alone, picture, WAVELENGTHS, Settings(), Watch())
        used = found.side is not None and found.side.used
        yield row(kind, found.result.x, used, own + time.perf_counter() - start)


def photographed(cube: Tensor, kind: str) -> SidePicture:
    """With photon noise at 10,000 electrons and read noise, by a color camera or an evenly sensitive one."""
    grey = kind.startswith("pan")
    R = torch.full((1, len(cube)), 1 / len(cube)) if grey else sensor()
    pose = MOVED if kind.endswith("moved") else Similarity(1.0)
    generator = torch.Generator().manual_seed(2)
    size = round((cube.shape[-2] + 2 * MARGIN) * pose.scale), round((cube.shape[-1] + 2 * MARGIN) * pose.scale)
    picture = side_photograph(cube, R, size=size, pose=pose, full_well=1e4, read_noise=READ_NOISE, generator=generator)
    known = kind in ("rgb", "rgb moved")
    return SidePicture(picture.numpy(), R.numpy() if known else None)


def sensor() -> Tensor:
    """The measured sensitivities of a color camera at the bands, (3, C), each of sum 1."""
    import colour

    curves = colour.MSDS_CAMERA_SENSITIVITIES[SENSOR]
    R = np.stack([np.interp(WAVELENGTHS, curves.wavelengths, curves.values[:, k]) for k in range(3)])
    return torch.from_numpy(R / R.sum(1, keepdims=True)).float()


def window(data: Path, name: str, size: int) -> Tensor:
    """The middle of a scene, its last 28 bands, maximum 1."""
    with h5py.File(data / "cave_train" / f"{name}.h5") as file:
        roots = file["cube_sqrt"][-len(WAVELENGTHS) :]
    i, j = (roots.shape[1] - size) // 2, (roots.shape[2] - size) // 2
    cube = torch.from_numpy((roots[:, i : i + size, j : j + size].astype(np.float32) / 255) ** 2)
    return cube / cube.max()


def mean_table(rows: list[Row]) -> str:
    """Mean, least and most gain over the default solver alone."""
    lines = [
        "| noise | photograph | used | mean gain [dB] | least | most | SAM, alone [degrees] | SAM |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for noise in dict.fromkeys(r.noise for r in rows):
        alone = {r.scene: r for r in rows if r.noise == noise and r.kind == "alone"}
        for kind in KINDS:
            these = [r for r in rows if r.noise == noise and r.kind == kind]
            gains = [r.psnr - alone[r.scene].psnr for r in these]
            used = f"{sum(r.used for r in these)} of {len(these)}"
            angles = np.mean([alone[r.scene].sam for r in these]), np.mean([r.sam for r in these])
            lines.append(
                f"| {noise} | {kind} | {used} | {np.mean(gains):+.2f} | {min(gains):+.2f} | {max(gains):+.2f} | "
                f"{angles[0]:.1f} | {angles[1]:.1f} |"
            )
    return "\n".join(lines)
