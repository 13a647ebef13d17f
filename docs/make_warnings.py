"""Make the pictures of when-it-fails.md: the example with one mistake each, and what the program warns of.

    python docs/make_warnings.py

Prints the warnings of each case. The camera is used as given, because the search for it would undo some mistakes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy import ndimage

import cassi
from cassi.files import read_measurement
from cassi.looking.color import cube_to_srgb
from cassi.looking.figures import save_figures
from cassi.optics.measurement import Measurement
from cassi.simulation.camera import random_mask

HERE = Path(__file__).parent
ROWS = slice(40, 168)  # of the example


def moved(m: Measurement) -> Measurement:
    return replace(m, mask=np.roll(m.mask, (2, 1), axis=(0, 1)))


def flipped(m: Measurement) -> Measurement:
    return replace(m, mask=m.mask[::-1].copy())


def of_another_camera(m: Measurement) -> Measurement:
    generator = torch.Generator().manual_seed(5)
    return replace(m, mask=random_mask(*m.mask.shape, generator=generator).numpy())


def inverted(m: Measurement) -> Measurement:
    return replace(m, mask=1 - m.mask)


def with_too_few_bands(m: Measurement) -> Measurement:
    return replace(m, shifts=tuple(range(0, 55, 6)), wavelengths=np.linspace(450, 650, 10), cube=None)


def blurred(m: Measurement) -> Measurement:
    return replace(m, mask=ndimage.gaussian_filter(m.mask, 1.0))


def below_zero(m: Measurement) -> Measurement:
    return replace(m, y=m.y - np.float32(0.6 * m.y.mean()))


CASES: dict[str, tuple[str, Callable[[Measurement], Measurement]]] = {
    "moved": ("mask moved by 2 rows, 1 column", moved),
    "flipped": ("mask upside down", flipped),
    "another": ("mask of another camera", of_another_camera),
    "inverted": ("mask inverted", inverted),
    "bands": ("10 bands instead of 28", with_too_few_bands),
    "blurred": ("mask blurred by 1 px", blurred),
    "below-zero": ("black level too high", below_zero),
}


def example() -> Measurement:
    """Some rows of the example, without the true cube and without earlier checks."""
    m = read_measurement(HERE.parent / "data" / "example.h5")
    return replace(m, y=m.y[ROWS], mask=m.mask[ROWS], cube=None, bad_pixels=None, check=None)


def reconstruct(m: Measurement) -> tuple[np.ndarray, list[str]]:
    """The picture of the cube (H, W, 3), and the warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = cassi.reconstruct(m, camera="as-given", quality="fast", black_level=0.0)
    cube, white = result.cube.cpu().numpy(), float(np.quantile(result.cube.cpu().numpy(), 0.995))
    picture = cube_to_srgb(cube, m.wavelengths, white=white)
    return picture, [str(one.message) for one in caught if issubclass(one.category, UserWarning)]


def pair(wrong: np.ndarray, right: np.ndarray, title: str) -> Figure:
    """The cube with a mistake beside the right one."""
    figure = Figure(figsize=(6.4, 1.85), layout="constrained")
    for axes, picture, words in zip(figure.subplots(1, 2), (wrong, right), (title, "right"), strict=True):
        axes.imshow(picture)
        axes.set_title(words, loc="left", fontsize=9)
        axes.axis("off")
    return figure


def main() -> None:
    m = example()
    right, _ = reconstruct(m)
    for name, (title, change) in CASES.items():
        wrong, texts = reconstruct(change(m))
        print(f"{title}:", *texts, sep="\n  ", flush=True)
        save_figures({f"warning-{name}": pair(wrong, right, title)}, HERE / "figures", dpi=72)


if __name__ == "__main__":
    main()
