"""Which camera to build: a grid of cameras, each simulated and reconstructed, and what each choice is worth."""

import csv
import io
import json
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cassi.errors import InputError, parse_json
from cassi.files.atomic import write_text
from cassi.files.cubes import read_cube, resample, resampling
from cassi.files.frames import natural
from cassi.files.opening import SUFFIXES
from cassi.looking.metrics import score
from cassi.optics.detector import MAX_ELECTRONS
from cassi.optics.measurement import Measurement
from cassi.running.arguments import load, open_files
from cassi.running.pipeline import reconstruct_measurement
from cassi.settings import Settings
from cassi.simulation.camera import random_mask, simulate
from cassi.simulation.optical_bench import FIRST, LAST, READ_NOISE
from cassi.simulation.scene import procedural_scene
from cassi.types import PathLike
from cassi.version import PROGRAM

SIZE, MIN_SIZE = 96, 16  # of a scene, usual and at least [pixel]
MIN_ELEMENTS = MIN_SIZE  # of a mask: of a few, all may be closed
MAX_RUNS = 20_000
SCORES = "psnr", "ssim", "angle"  # of a run, in its line


@dataclass(frozen=True)
class Design:
    """A camera: pixels from band to band, pixels a mask element is wide, bands, electrons in the brightest pixel."""

    step: int
    mask_element: int
    bands: int
    electrons: float


class Quality(NamedTuple):
    """The scores of a design, mean over scenes: PSNR [dB], SSIM, spectral angle [degree]; spread of the PSNR."""

    psnr: float
    ssim: float
    angle: float
    spread: float
    scenes: int


Scene = Callable[[int, int, int], Tensor]
"""f(bands, height, width) -> cube (C, H, W) in [0, 1]."""


def paint_scene(seed: int) -> Scene:
    """A scene painted for any number of bands, from 450 to 650 nm."""

    def paint(bands: int, height: int, width: int) -> Tensor:
        nm = torch.linspace(FIRST, LAST, bands, dtype=torch.float64)
        return procedural_scene(height, width, nm, generator=torch.Generator().manual_seed(seed))

    return paint


def open_scene(path: Path) -> Scene:
    """The middle of a cube in a file, its brightest value 1, at evenly spaced wavelengths over its own range.

    Raises:
        InputError: no cube of 2 bands in the file; when the scene is asked for, a cube that is smaller.
    """
    cube, nm = read_cube(path)
    cube = cube[0] if cube.ndim == 4 else cube
    if len(cube) < 2 or not cube.max() > 0:
        raise InputError(f"{path}: expected a cube of at least 2 bands with light in it, got {cube.shape}")
    axis = np.arange(float(len(cube))) if nm is None else nm

    def resampled(bands: int, height: int, width: int) -> Tensor:
        top, left = (cube.shape[1] - height) // 2, (cube.shape[2] - width) // 2
        if min(top, left) < 0:
            size = f"{cube.shape[1]} x {cube.shape[2]} px"
            raise InputError(f"{path}: {size}, smaller than {height} x {width}; --size less")
        part = torch.from_numpy(cube[:, top : top + height, left : left + width].clip(0))
        weights = resampling(axis, np.linspace(axis.min(), axis.max(), bands)).weights
        return resample(part, weights).clamp(min=0) / part.max()

    return resampled


def scenes_of(folder: PathLike | None, count: int) -> dict[str, Scene]:
    """The scenes of a study by name: the cubes of a folder, or a number of painted ones.

    Raises:
        InputError: no cube in the folder.
    """
    if folder is None:
        return {f"painted {seed}": paint_scene(seed) for seed in range(count)}
    place = Path(folder)
    files = sorted((file for file in place.glob("*") if file.suffix.lower() in SUFFIXES), key=natural)
    if not files:
        raise InputError(f"{place}: no cube in it, expected files ending in {', '.join(sorted(SUFFIXES))}")
    return {file.name: open_scene(file) for file in files}


def element_mask(height: int, width: int, element: int, *, generator: torch.Generator) -> Tensor:
    """A random binary mask whose elements are squares of `element` pixels, (H, W) float32."""
    rows, columns = (-(-size // element) for size in (height, width))
    drawn = random_mask(rows, columns, generator=generator)
    return drawn.repeat_interleave(element, 0).repeat_interleave(element, 1)[:height, :width].contiguous()


def evaluate(
    design: Design, scene: Scene, *, size: int = SIZE, quality: str = "fast", seed: int = 0
) -> dict[str, float]:
    """Photograph a scene with a camera of this design, reconstruct it, and compare with the truth.

    Photon noise and 5 electrons of read noise; the mask is known exactly. The same arguments give the same numbers.

    Returns:
        "psnr" [dB, peak 1], "ssim", "angle" [degree].
    """
    key = json.dumps([astuple(design), size, 0])
    cube = scene(design.bands, size, size)
    mask_source, noise = (torch.Generator().manual_seed(zlib.crc32(key.encode()) + k) for k in range(2))
    mask = element_mask(size, size, design.mask_element, generator=mask_source)
    shifts = tuple(c * design.step for c in range(design.bands))
    shot = simulate(cube, mask, shifts, full_well=design.electrons, read_noise=READ_NOISE, generator=noise)
    m = Measurement(shot.y.numpy(), mask.numpy(), shifts, gain=shot.gain, read_noise=shot.read_noise)
    settings = open_files(Settings(quality=quality, camera="as-given"))
    numbers = score(reconstruct_measurement(load(m, None, settings), settings).cube, truth=cube)
    return {"psnr": numbers["psnr"], "ssim": numbers["ssim"], "angle": numbers["sam"]}


def study(
    designs: Sequence[Design], scenes: dict[str, Scene], folder: PathLike, *, size: int = SIZE, quality: str = "fast",
    progress: Callable[[Iterable[tuple[Design, str]]], Iterable[tuple[Design, str]]] = lambda todo: todo,
) -> dict[Design, Quality]:  # fmt: skip
    """Evaluate every design on every scene; what `folder` holds already, from a run that was interrupted, is kept.

    The folder gets `design.jsonl`, a line a run, and `design.csv`, a line a design.

    Args:
        designs: see `grid`.
        scenes: see `scenes_of`.
        folder: is made if it does not exist.
        size: of the scenes [pixel].
        quality: of the reconstructions, "fast", "default" or "best".
        progress: wraps what is left to do, `tqdm` for example.

    Raises:
        InputError: more than 20,000 runs; scenes of less than 16 pixels, or one smaller than asked for; electrons that
            no detector counts; masks of fewer than 16 elements.
    """
    if size < MIN_SIZE:
        raise InputError(f"scenes of {size} x {size} px are too small; use at least {MIN_SIZE}, better {SIZE} or more")
    for design in designs:
        if not 1 <= design.electrons <= MAX_ELECTRONS:
            raise InputError(f"{design.electrons:g} electrons in the brightest pixel: expected 1 to {MAX_ELECTRONS:g}")
        if design.mask_element**2 * MIN_ELEMENTS > size**2:
            what = f"{size} x {size} px hold fewer than {MIN_ELEMENTS} mask elements of {design.mask_element} px"
            raise InputError(f"{what}; take smaller elements or larger scenes")
    if len(designs) * len(scenes) > MAX_RUNS:
        raise InputError(f"{len(designs)} designs of {len(scenes)} scenes are over {MAX_RUNS:,} runs; ask for fewer")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    log, known = place / "design.jsonl", {}
    before = log.read_text(encoding="utf-8") if log.exists() else ""
    for line in before.splitlines():
        try:
            row = parse_json(line)
            known[tuple(row["key"])] = {name: float(row[name]) for name in SCORES}
        except (ValueError, KeyError, TypeError):  # cut off by the end of an earlier run
            continue

    def key(design: Design, name: str) -> tuple[object, ...]:
        return (*astuple(design), name, size, quality, PROGRAM)

    todo = [(design, name) for design in designs for name in scenes if key(design, name) not in known]
    with log.open("a", encoding="utf-8") as file:
        file.write("\n" * (before[-1:] not in ("", "\n")))
        for design, name in progress(todo):
            numbers = evaluate(design, scenes[name], size=size, quality=quality)
            known[key(design, name)] = numbers
            file.write(json.dumps({"key": key(design, name), **numbers}) + "\n")
            file.flush()
    qualities = {}
    for design in designs:
        rows = [known[key(design, name)] for name in scenes]
        psnr, ssim, angle = (np.array([row[what] for row in rows]) for what in SCORES)
        qualities[design] = Quality(psnr.mean(), ssim.mean(), angle.mean(), psnr.std(), len(rows))
    write_text(place / "design.csv", as_csv(qualities, size))
    return qualities


def as_csv(qualities: dict[Design, Quality], size: int) -> str:
    """A line a design: the camera, the columns of its detector, and what it reached."""
    file = io.StringIO()
    table = csv.writer(file)
    heads = [*(field.name for field in fields(Design)), "detector_columns", "psnr_db", "ssim", "angle_deg"]
    table.writerow([*heads, "psnr_spread_db", "scenes"])
    for design, q in qualities.items():
        columns = size + abs(design.step) * (design.bands - 1)
        numbers = (f"{q.psnr:.2f}", f"{q.ssim:.4f}", f"{q.angle:.2f}", f"{q.spread:.2f}", q.scenes)
        table.writerow([*asdict(design).values(), columns, *numbers])
    return file.getvalue()


def grid(
    steps: Sequence[int], elements: Sequence[int], bands: Sequence[int], electrons: Sequence[float]
) -> list[Design]:
    """Every combination of these choices."""
    return [Design(*values) for values in product(steps, elements, bands, electrons)]


def values_between(text: str, *, whole: bool = True) -> list[float]:
    """The values that a user asks for: "3", a list "1,2,4", or "start:stop", both ends included.

    Of whole numbers all, of more than four the ends and the middle; else a value a decade.

    Raises:
        InputError: nothing of these, or a value that is not positive.

    Example:
        >>> values_between("1:3"), values_between("16:31"), values_between("1e3:1e5", whole=False)
        ([1, 2, 3], [16, 24, 31], [1000.0, 10000.0, 100000.0])
    """
    try:
        parts = [float(part) for part in text.replace(":", ",").split(",")]
    except ValueError:
        parts = []
    if not parts or not all(math.isfinite(v) and v > 0 and (v == int(v) or not whole) for v in parts):
        kind = "whole numbers" if whole else "numbers"
        raise InputError(f"{text!r}: expected positive {kind}, such as 3, a list 1,2,4 or start:stop")
    if ":" not in text:
        return [int(v) for v in parts] if whole else parts
    if len(parts) != 2 or "," in text or parts[0] >= parts[1]:
        raise InputError(f"{text!r}: expected start:stop with start below stop")
    low, high = parts
    if not whole:
        count = max(2, round(math.log10(high / low)) + 1)
        return [float(f"{v:.3g}") for v in np.geomspace(low, high, count)]
    count = int(high - low) + 1
    return [int(v) for v in (np.arange(low, high + 1) if count <= 4 else (low, math.ceil((low + high) / 2), high))]
