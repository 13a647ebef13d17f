"""The pictures of real-captures.md and one of the README, from results.

python docs/real_captures.py real-captures AS_GIVEN.h5 FOUND.h5 AS_GIVEN.h5 FOUND.h5 ...
python docs/real_captures.py mask-error POSE_ALONE.h5 FOUND.h5 REFINED.h5 POSE_ALONE.h5 ...
python docs/real_captures.py refined POSE_ALONE.h5 REFINED.h5 POSE_ALONE.h5 ...

Captures of TSA-Net with `--turn-result 180`, to be upright. The first are of `reconstruct.py` with and without
`--camera as-given`, the others of `cassi.reconstruct(m, camera=...)` with the camera of `find_camera(m,
mask_error=False)`, of `reconstruct.py`, and of that with the camera of `calibrate.py refine`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cassi.files import read_cube
from cassi.looking.figures import save_figures
from cassi.looking.style import show, styled

BANDS = (0.1, 0.35, 0.65, 0.95)  # of the way from the first band to the last


@styled
def bands_of(paths: list[str]) -> Figure:
    """Four bands of each capture, the camera as given above and as found below, each band on one scale."""
    cubes = [np.asarray(read_cube(path)[0]) for path in paths]
    every = 4
    figure = Figure(figsize=(6.4, 1.65 * len(cubes)), layout="constrained")
    grid = figure.subplots(len(cubes), len(BANDS), squeeze=False)
    for pair in range(0, len(cubes), 2):
        for column, share in enumerate(BANDS):
            band = round(share * (len(cubes[pair]) - 1))
            white = float(np.percentile(cubes[pair + 1][band], 99.8))
            for row, words in ((pair, "as given"), (pair + 1, "found")):
                title = f"{words}, band {band + 1}" if column == 0 else f"band {band + 1}"
                picture = np.clip(cubes[row][band][::every, ::every] / white, 0, 1) ** 0.7
                show(grid[row, column], picture, title, cmap="gray", vmin=0, vmax=1, aspect="equal")
    return figure


CROP = np.s_[200:420, 150:390]  # of a capture, pixel by pixel
MASKS = "mask as in its file", "corrected by this capture", "refined from four"


@styled
def crops_of(paths: list[str]) -> Figure:
    """Two bands of a part of each capture, with the `MASKS` from left to right."""
    cubes = [np.asarray(read_cube(path)[0]) for path in paths]
    rows = [(cubes[k : k + len(MASKS)], share) for k in range(0, len(cubes), len(MASKS)) for share in (0.3, 0.75)]
    figure = Figure(figsize=(6.4, 2.15 * len(rows)), layout="constrained")
    for axes, (shown, share) in zip(figure.subplots(len(rows), len(MASKS), squeeze=False), rows, strict=True):
        _crops(axes, shown, share, MASKS)
    return figure


@styled
def pairs_of(paths: list[str]) -> Figure:
    """A band of a part of each capture, with the first and the last of the `MASKS`, all in one row."""
    cubes = [np.asarray(read_cube(path)[0]) for path in paths]
    figure = Figure(figsize=(8, 2.1), layout="constrained")
    axes = figure.subplots(1, len(cubes))
    for k in range(0, len(cubes), 2):
        _crops(axes[k : k + 2], cubes[k : k + 2], 0.75, MASKS[::2])
    return figure


def _crops(axes: Sequence[Axes], cubes: Sequence[np.ndarray], share: float, masks: Sequence[str]) -> None:
    """The band of each cube at this share of the way, on one scale."""
    band = round(share * (len(cubes[0]) - 1))
    white = float(np.percentile(cubes[0][band][CROP], 99.5))
    for column, (cube, words) in enumerate(zip(cubes, masks, strict=True)):
        picture = np.clip(cube[band][CROP] / white, 0, 1) ** 0.7
        title = f"{words}, band {band + 1}" if column == 0 else words
        show(axes[column], picture, title, cmap="gray", vmin=0, vmax=1, aspect="equal")


DRAWN = {"real-captures": bands_of, "mask-error": crops_of, "refined": pairs_of}

if __name__ == "__main__":
    save_figures({sys.argv[1]: DRAWN[sys.argv[1]](sys.argv[2:])}, Path(__file__).parent / "figures")
