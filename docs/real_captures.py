"""The picture of real-captures.md, from results of `reconstruct.py` with `--camera as-given` and without.

python docs/real_captures.py BEFORE.h5 AFTER.h5 BEFORE.h5 AFTER.h5 ...
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
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


if __name__ == "__main__":
    save_figures({"real-captures": bands_of(sys.argv[1:])}, Path(__file__).parent / "figures")
