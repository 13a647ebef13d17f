"""Snapshots of mosaic sensors: the default beside interpolation, as Markdown, and a picture of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.quality import NOISES, Scene, add_noise
from benchmarks.side import SCENES
from cassi.looking.color import cube_to_srgb
from cassi.looking.metrics import psnr, sam
from cassi.optics.other_cameras import Mosaic
from cassi.running.reconstruct import reconstruct
from cassi.simulation.scene import procedural_scene

PERIOD = 4
WAVELENGTHS = np.arange(400.0, 701.0, 20.0)  # every second band of CAVE


def mosaic(
    data: Path | None, *, size: int = 128, scenes: int = 10, figure: Path | None = None,
    report: Callable[[str], None] = print,
) -> str:  # fmt: skip
    """A 4 x 4 mosaic of 16 bands, row by row, on windows of CAVE scenes, clean and noisy.

    Args:
        data: folder with cave_train/*.h5; None: the painted scene.
        size: of the window in the middle of each scene [pixel].
        scenes: how many of the ten.
        figure: file of the picture that is drawn, of the painted scene.
        report: called with one line of progress at a time.
    """
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    lines = ["| scene, 10,000 e | " + " | ".join(METHODS) + " |", "|---" * (1 + len(METHODS)) + "|"]
    cubes = {"painted": painted(size)} if data is None else {name: window(data, name, size) for name in SCENES[:scenes]}
    for name, cube in cubes.items():
        for noise, full_well in NOISES.items():
            scene = snapshot(name, cube, full_well)
            for method, solve in METHODS.items():
                x = solve(scene).clamp(0, 1)
                found.setdefault((noise, method), []).append((psnr(x, cube), sam(x, cube)))
            cells = " | ".join(f"{found[noise, method][-1][0]:.2f}" for method in METHODS)
            report(f"{name} {noise} {cells}")
            lines += [f"| {name.replace('_', ' ')} | {cells} |"] * (noise == "10,000 e")
    if figure is not None:
        draw(snapshot("painted", painted(256), 1e4)).savefig(figure, dpi=72)
    means = ["| noise | " + " | ".join(METHODS) + " |", *lines[1:2]]
    for noise in NOISES:
        each = (np.mean(found[noise, method], 0) for method in METHODS)
        means.append(f"| {noise} | " + " | ".join(f"{dB:.2f} / {angle:.1f}" for dB, angle in each) + " |")
    title = f"A {PERIOD} x {PERIOD} mosaic of 16 bands from 400 to 700 nm, {size} x {size} pixels"
    return f"{title}; mean PSNR [dB] / spectral angle [degrees]\n\n" + "\n".join([*means, "", *lines])


def interpolated(scene: Scene) -> Tensor:
    """Each band by bilinear interpolation."""
    return scene.A.first_guess(scene.y)


def with_panchromatic(scene: Scene) -> Tensor:
    """The mean over a period, where all bands are, and the differences to it, interpolated.

    After Mihoubi, Losson, Mathon & Macaire, "Multispectral demosaicing using pseudo-panchromatic image", IEEE Trans.
    Comput. Imaging 3, 982 (2017), without its weights by direction: these lose 1 dB on average here.
    """
    brightest = (scene.A.mask * scene.y).amax((1, 2))
    gain = brightest.max() / brightest  # bands of different brightness would leave their pattern in the mean
    y = scene.y * (scene.A.mask * gain[:, None, None]).sum(0)
    f = torch.ones(PERIOD + 1)
    f[[0, -1]] = 0.5
    kernel = (f[:, None] * f / PERIOD**2)[None, None]
    mean = F.conv2d(F.pad(y[None, None], (PERIOD // 2,) * 4, mode="reflect"), kernel)[0, 0]
    return (mean + scene.A.first_guess(y - mean)) / gain[:, None, None]


def by_default(scene: Scene, prior: str = "auto") -> Tensor:
    """The default solver, or with its priors up to a strongest one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return reconstruct(scene.y, scene.A, wavelengths=WAVELENGTHS, prior=prior).cube


METHODS: dict[str, Callable[[Scene], Tensor]] = {
    "bilinear": interpolated,
    "PPID-like": with_panchromatic,
    "total variation alone": lambda scene: by_default(scene, "tv"),
    "non-local prior, too": lambda scene: by_default(scene, "nonlocal"),
    "default": by_default,
}


def snapshot(name: str, cube: Tensor, full_well: float | None) -> Scene:
    """A scene through the mosaic."""
    A = Mosaic.from_pattern(np.arange(PERIOD**2).reshape(PERIOD, PERIOD), (cube.shape[-2], cube.shape[-1]))
    return add_noise(Scene(name, A, A.forward(cube), cube=cube), full_well)


def painted(size: int) -> Tensor:
    """The project's own scene."""
    return procedural_scene(size, size, WAVELENGTHS.tolist(), generator=torch.Generator().manual_seed(0))


def window(data: Path, name: str, size: int) -> Tensor:
    """The middle of a scene, every second band, maximum 1."""
    with h5py.File(data / "cave_train" / f"{name}.h5") as file:
        roots = file["cube_sqrt"][::2]
    i, j = (roots.shape[1] - size) // 2, (roots.shape[2] - size) // 2
    cube = torch.from_numpy((roots[:, i : i + size, j : j + size].astype(np.float32) / 255) ** 2)
    return cube / cube.max()


def draw(scene: Scene) -> Figure:
    """The snapshot, three cubes and the truth in color, whole and a part of them."""
    if scene.cube is None:
        raise ValueError(f"scene {scene.name} has no truth")
    cubes = {name: METHODS[name](scene).clamp(0, 1) for name in ("bilinear", "PPID-like", "default")}
    named = {f"{name}, {psnr(x, scene.cube):.1f} dB": x for name, x in cubes.items()} | {"truth": scene.cube}
    figure = Figure(figsize=(12.5, 5.2), layout="constrained")
    part = (slice(10, 74), slice(10, 74))
    pictures = {"snapshot": scene.y.numpy()}
    pictures |= {name: cube_to_srgb(x.numpy(), WAVELENGTHS, white=1.0) for name, x in named.items()}
    for (title, picture), axes in zip(pictures.items(), figure.subplots(2, len(pictures)).T, strict=True):
        for place, shown in zip(axes, (picture, picture[part]), strict=True):
            place.imshow(shown, cmap="gray", interpolation="nearest")
            place.axis("off")
        axes[0].set_title(title, loc="left", fontsize=10)
    return figure
