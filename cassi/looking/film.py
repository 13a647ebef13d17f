"""A sequence of cubes as a short film in color."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.animation import PillowWriter
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from cassi.files.atomic import check_place, replacing
from cassi.looking.color import render, white_level
from cassi.looking.report_page import thinning

SIDE = 256  # [px] of the film, at most
RATE = 8  # frames a second


def write_film(
    path: str | os.PathLike[str],
    frame: Callable[[int], np.ndarray],
    count: int,
    wavelengths: ArrayLike | None = None,
    *,
    rate: int = RATE,
    overwrite: bool = False,
) -> Path:
    """Write an animated GIF, a frame in memory at a time; all frames share the white of the first.

    Args:
        path: the .gif file to make.
        frame: f(t) -> cube (C, H, W), t from 0.
        count: frames, at least 1.
        wavelengths: (C,) [nm]; None gives a false color.
        rate: frames a second.
        overwrite: replace an existing file.

    Returns:
        The path.

    Raises:
        ValueError: no frames.
        OutputError: the file exists, or its folder does not.

    Example:
        >>> cubes = np.random.default_rng(0).random((3, 8, 16, 16))
        >>> write_film(os.path.join(tempfile.mkdtemp(), "film.gif"), lambda t: cubes[t], 3).name
        'film.gif'
    """
    if count < 1:
        raise ValueError(f"a film needs a frame at least, got {count}")
    path = check_place(Path(path), overwrite)
    first = frame(0)
    every = thinning(first.shape[-2], first.shape[-1], SIDE)
    white = white_level(first, wavelengths)
    height, width = first[0, ::every, ::every].shape
    figure = Figure(figsize=(width / 100, height / 100), dpi=100)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    picture = axes.imshow(np.zeros((height, width, 3)), interpolation="nearest", aspect="auto")
    writer = PillowWriter(fps=rate)
    with replacing(path, overwrite) as temporary:
        gif = temporary.with_name(f"{temporary.name}.gif")
        try:
            with writer.saving(figure, str(gif), dpi=100):
                for t in range(count):
                    cube = first if t == 0 else frame(t)
                    picture.set_data(render(cube[:, ::every, ::every], wavelengths, white=white)[0])
                    writer.grab_frame()
            gif.replace(temporary)
        finally:
            gif.unlink(missing_ok=True)
    return path
