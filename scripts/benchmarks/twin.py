"""Simulated captures of a microscope and of a camera like TSA-Net's, through masks that are wrong: what is lost.

The scenes are what such cameras see and sets of reflectances lack: cells that absorb, fibres, bars on clear glass,
bright objects on a dark ground, all under a lamp that is weak in the blue. Of each capture the truth is known, its
noise, and by how much the mask that is given differs from the one that took it.
"""

from __future__ import annotations

import csv
import itertools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import gaussian_filter
from torch import Tensor

from benchmarks.quality import READ_NOISE
from cassi.choice.bases import scene_basis
from cassi.choice.stages import NonLocal, Problem, Tv, Watch
from cassi.evidence.held_out import Split
from cassi.evidence.texture import texture
from cassi.optics.detector import brightness, detect, object_level
from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.optics.wavelengths import PRESETS
from cassi.running.reconstruct import reconstruct
from cassi.running.result import Reconstruction
from cassi.simulation.camera import random_mask

STEP = 2  # of the dispersion [pixel a band]
ERRORS = 0.0, 0.02, 0.05, 0.12  # standard deviation of a mask's error, relative to its greatest transmission
CORRELATED = {"white": 0.0, "over 1 px": 1.0}  # its blur [pixel]


@dataclass(frozen=True)
class Row:
    """One capture. Texture and coherence (`cassi.evidence.texture`) are those of the default's cube.

    Attributes:
        default, given, tv: PSNR [dB] of the default solver, of the same with the camera as given, of total variation.
        accepted, sure: whether its mask was corrected, and by how many standard errors that explains more than texture.
        texture: of the weakest band, relative to the truth's.
        coherence, true_coherence: of the texture over the bands.
        rank, plain_rank: of the true cube among `candidates`, 1 first: by the judge, and by misfits alone.
    """

    camera: str
    error: float
    kind: str
    scene: str
    seed: int
    default: float
    given: float
    tv: float
    accepted: bool
    sure: float
    texture: float
    coherence: float
    true_coherence: float
    rank: int
    plain_rank: int
    candidates: int


def twin(
    *, size: int = 160, seeds: int = 3, scenes: Sequence[str] | None = None, white: bool = False,
    output: Path | None = None, report: Callable[[str], None] = print,
) -> str:  # fmt: skip
    """Simulate, reconstruct and judge each capture; Markdown.

    Args:
        size: of the scenes [pixel].
        seeds: of mask, scene, error and noise; 0 is the first.
        scenes: of `SCENES`; None: all.
        white: errors of masks are white alone.
        output: a CSV file of all captures, made anew.
        report: called with one line of progress at a time.
    """
    kinds = [(0.0, "exact")] + [(e, k) for e in ERRORS[1:] for k in ("white",) + ("over 1 px",) * (not white)]
    rows: list[Row] = []
    for seed, camera, scene in itertools.product(range(seeds), CAMERAS, scenes or SCENES):
        for error, kind in kinds:
            rows.append(measured(camera, scene, error, kind, seed, size))
            r = rows[-1]
            report(
                f"{camera} {scene} {error:.0%} {kind} {seed}: default {r.default:.2f}, as given {r.given:.2f}, TV "
                f"{r.tv:.2f} dB; corrected {r.accepted} ({r.sure:.1f}); texture {r.texture:.2f}, coherence "
                f"{r.coherence:.2f} (truth {r.true_coherence:.2f}); truth {r.rank}., plain {r.plain_rank}. "
                f"of {r.candidates}"
            )
            if output is not None:
                write(output, rows)
    return table(rows)


def measured(camera: str, name: str, error: float, kind: str, seed: int, size: int) -> Row:
    """One capture."""
    make, nm, electrons = CAMERAS[camera]
    rng = np.random.default_rng(seed)
    mask, truth = make(rng, size), SCENES[name](rng, size, nm)
    shifts = tuple(range(0, STEP * len(nm), STEP))
    y0 = CASSI(_tensor(wrong(mask, error, kind, rng)), shifts).forward(_tensor(truth))
    y = detect(y0, full_well=electrons, read_noise=READ_NOISE, generator=torch.Generator().manual_seed(seed)).y
    m = Measurement(y=y.numpy(), mask=mask.astype(np.float32), shifts=shifts, wavelengths=nm)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        results: dict[str, Reconstruction] = {
            "default": reconstruct(m),
            "given": reconstruct(m, camera="as-given"),
            "tv": reconstruct(m, camera="as-given", prior="tv"),
        }
    cubes = {key: result.cube for key, result in results.items()}
    scores = {key: decibels(x.numpy(), truth) for key, x in cubes.items()}
    A, gain = CASSI(_tensor(mask), shifts), electrons / float(y0.max())
    rank, plain, count = ranks(A, y, _tensor(truth), cubes, y0.clamp(min=0) / gain + (READ_NOISE / gain) ** 2, nm)
    found = results["default"].camera
    learned = None if found is None else found.mask_error
    weakest = int(truth.mean((1, 2)).argmin())
    (fine, coherence), (true_fine, true_coherence) = texture(cubes["default"]), texture(_tensor(truth))
    return Row(
        camera, error, kind, name, seed, **scores,
        accepted=learned is not None and learned.accepted, sure=0.0 if learned is None else learned.sure,
        texture=float(fine[weakest] / true_fine[weakest]), coherence=float(coherence.mean()),
        true_coherence=float(true_coherence.mean()), rank=rank, plain_rank=plain, candidates=count,
    )  # fmt: skip


def wrong(mask: np.ndarray, error: float, kind: str, rng: np.random.Generator) -> np.ndarray:
    """The mask that takes the snapshot; one seed has the same error in each size."""
    e = gaussian_filter(rng.normal(size=mask.shape), CORRELATED.get(kind, 0.0))
    return np.asarray((mask + e * (error / e.std())).clip(min=0))


def ranks(
    A: CASSI, y: Tensor, truth: Tensor, cubes: dict[str, Tensor], variance: Tensor, nm: np.ndarray
) -> tuple[int, int, int]:
    """Rank of the true cube by the judge and by misfits at held-out pixels alone, and the number of candidates.

    These are the truth, `cubes`, and two stages of the default that fit noise less and more than it would.
    """
    unit = brightness(A, y)
    y, variance = y / unit, variance / unit**2
    split = Split.of(A, y, 0)
    problem = Problem(scene_basis(cubes["tv"] / unit), variance, 1.0, float(object_level(y, y.ndim)), axis=nm)
    start = Tv(60).run(split.A_train, split.y_train, problem)
    stages = (NonLocal(1.0, 12, 16.0), NonLocal(0.25, 56, 1.0))
    ends = [stage.run(split.A_train, split.y_train, problem, start, Watch()).x for stage in stages]
    candidates = [truth / unit, *(x / unit for x in cubes.values()), *ends]
    judge = split.knowing(variance)
    aware = [float(judge.verdict(x, imprint=False).squared.sum()) for x in candidates]
    plain = [float(split.misfit(x.clamp(min=0)).square().sum()) for x in candidates]
    return 1 + sum(s < aware[0] for s in aware), 1 + sum(s < plain[0] for s in plain), len(candidates)


def decibels(x: np.ndarray, truth: np.ndarray) -> float:
    """PSNR over all bands together, peak their maximum: bands that the lamp leaves dark count as little as they are."""
    error = np.square(x.astype(float) - truth).mean()
    return float(10 * np.log10(truth.max() ** 2 / error))


def microscope_mask(rng: np.random.Generator, size: int) -> np.ndarray:
    """Soft elements, whose neighbors correlate by 0.6, to the power 2.5: most are dark."""
    field = gaussian_filter(rng.normal(size=(size, size)), 0.72)
    return np.asarray(np.clip(0.5 + 0.6 * field / field.std(), 0.01, 1) ** 2.5)


def grey_mask(rng: np.random.Generator, size: int) -> np.ndarray:
    """Independent transmissions."""
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    return random_mask(size, size, kind="grey", generator=generator).double().numpy()


# mask, wavelengths [nm], electrons in the brightest detector pixel
CAMERAS: dict[str, tuple[Callable[[np.random.Generator, int], np.ndarray], np.ndarray, float]] = {
    "microscope": (microscope_mask, np.array(PRESETS["smem-24"].wavelengths), 2000.0),
    "like TSA-Net": (grey_mask, np.linspace(450, 650, 28), 5000.0),
}


def lamp(nm: np.ndarray) -> np.ndarray:
    """Of a quarter of the greatest radiance at 450 nm, which is reached at 600 nm; (C, 1, 1)."""
    return np.clip(0.25 + 0.75 * (nm - 450) / 150, 0.25, 1)[:, None, None]


def absorption(nm: np.ndarray, *peaks: tuple[float, float, float]) -> np.ndarray:
    """Transmission with Gaussian dips (depth, center [nm], width [nm]); (C, 1, 1)."""
    dips = [depth * np.exp(-(((nm - center) / width) ** 2)) for depth, center, width in peaks]
    return np.asarray(1 - sum(dips))[:, None, None]


def discs(rng: np.random.Generator, size: int, count: int, smallest: float, largest: float, hole: float) -> np.ndarray:
    """Soft discs of these radii [pixel], half as thick inside a hole (relative radius), one upon the other."""
    rows, columns = np.mgrid[:size, :size]
    image = np.zeros((size, size))
    for _ in range(count):
        distance = np.hypot(rows - rng.uniform(0, size), columns - rng.uniform(0, size))
        radius = rng.uniform(smallest, largest)
        image += rng.uniform(0.3, 1) * ((distance < radius) - 0.5 * (distance < hole * radius))
    return gaussian_filter(image, 1.2)


def cells(rng: np.random.Generator, size: int, nm: np.ndarray) -> np.ndarray:
    """Red cells on a bright ground: the absorption of oxygenated haemoglobin, with its dips at 542 and 577 nm."""
    red = absorption(nm, (0.35, 542, 12), (0.35, 577, 10), (0.3, 450, 30))
    thick = discs(rng, size, round(size**2 / 600), 8, 14, 0.5).clip(max=2)
    ground = 1 + 0.1 * discs(rng, size, round(size**2 / 1500), 8, 14, 0.0)
    return np.asarray(lamp(nm) * ground * red**thick)


def fibres(rng: np.random.Generator, size: int, nm: np.ndarray) -> np.ndarray:
    """Bent fibres of 2 to 5 px in three dyes on a bright ground, one upon the other."""
    dyes = [absorption(nm, dip) for dip in ((0.7, 480, 40), (0.7, 550, 35), (0.7, 610, 40))]
    rows, columns = np.mgrid[:size, :size] - size / 2
    x = np.ones((len(nm), size, size))
    for k in range(round(size / 6)):
        angle, bend = rng.uniform(0, np.pi), rng.uniform(-0.5, 0.5) / size
        along = rows * np.cos(angle) + columns * np.sin(angle)
        across = columns * np.cos(angle) - rows * np.sin(angle) - rng.uniform(-0.6, 0.6) * size - bend * along**2
        x *= dyes[k % 3] ** gaussian_filter((np.abs(across) < rng.uniform(1, 2.5)).astype(float), 0.7)
    return np.asarray(lamp(nm) * x)


def glass(rng: np.random.Generator, size: int, nm: np.ndarray) -> np.ndarray:
    """Groups of opaque bars of 2 to 8 px, upright and lying, on a plain bright ground."""
    clear = np.ones((size, size))
    for k in range(10):
        width = 2 + k % 5 * 1.5
        group = np.zeros((size, size))
        top, left = (int(v) for v in rng.integers(0, size, 2))
        length = round(5 * width)
        for bar in range(3):
            start = round(2 * width * bar)
            group[top : top + length, left + start : left + start + round(width)] = 1
        clear *= 1 - 0.95 * (group if k % 2 else group.T)
    return np.asarray(lamp(nm) * gaussian_filter(clear, 0.5))


def objects(rng: np.random.Generator, size: int, nm: np.ndarray) -> np.ndarray:
    """Bright discs and blocks in colors of their own, faintly shaded, on a ground of 2 %."""
    rows, columns = np.mgrid[:size, :size]
    x = np.full((len(nm), size, size), 0.02)
    for k in range(round(size**2 / 1600)):
        down, right = rows - rng.uniform(0, size), columns - rng.uniform(0, size)
        distance = np.hypot(down, right) if k % 2 else np.maximum(np.abs(down), np.abs(right))
        color = 1 - absorption(nm, (rng.uniform(0.5, 0.9), rng.uniform(450, 650), rng.uniform(40, 120)))
        shade = 1 + 0.1 * np.sin(0.4 * (down * rng.normal() + right * rng.normal()))
        x = np.where(distance < rng.uniform(5, 16), (0.05 + color) * shade, x)
    return np.asarray(lamp(nm) * gaussian_filter(x, (0, 0.7, 0.7)))


SCENES = {"cells": cells, "fibres": fibres, "glass": glass, "objects": objects}


def _tensor(a: np.ndarray) -> Tensor:
    return torch.as_tensor(a, dtype=torch.float32)


def write(path: Path, rows: Sequence[Row]) -> None:
    """All captures as CSV."""
    part = path.with_suffix(".part")
    with part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])))
        writer.writeheader()
        for row in rows:
            plain = asdict(row).items()
            writer.writerow({key: f"{v:.2f}" if isinstance(v, float) else v for key, v in plain})
    part.replace(path)


def table(rows: Sequence[Row]) -> str:
    """By camera and error of the mask: means over scenes, kinds of error and seeds, and the worst case."""
    lines = [
        "| camera | mask wrong by | default [dB] | as given [dB] | total variation [dB] | least gain over it [dB] "
        "| corrected | texture, mean / most | coherence (truth) | truth first, among three | by misfits alone |",
        "|---" * 11 + "|",
    ]
    for camera, error in dict.fromkeys((row.camera, row.error) for row in rows):
        own = [row for row in rows if (row.camera, row.error) == (camera, error)]

        def mean(name: str, own: Sequence[Row] = own) -> float:
            return float(np.mean([getattr(row, name) for row in own]))

        def first(name: str, own: Sequence[Row] = own) -> str:
            return ", ".join(f"{100 * np.mean([getattr(row, name) <= k for row in own]):.0f} %" for k in (1, 3))

        lines.append(
            f"| {camera} | {error:.0%} | {mean('default'):.2f} | {mean('given'):.2f} | {mean('tv'):.2f} "
            f"| {min(row.default - row.tv for row in own):+.2f} | {sum(row.accepted for row in own)} of {len(own)} "
            f"| {mean('texture'):.2f} / {max(row.texture for row in own):.2f} "
            f"| {mean('coherence'):.2f} ({mean('true_coherence'):.2f}) | {first('rank')} | {first('plain_rank')} |"
        )
    return "\n".join(lines)
