"""The picture of the README: a simulated snapshot and a captured one, each with its cube.

    python docs/make_front.py SIMULATED_cube.h5 CAPTURED_cube.h5

From results of `cassi reconstruct`, which hold snapshot and cube; a capture of TSA-Net with `--turn-result 180`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from cassi.looking.color import cube_to_srgb
from cassi.looking.figures import save_figures
from cassi.looking.report_data import read_report
from cassi.looking.style import show, styled


@styled
def front(paths: list[str]) -> Figure:
    """Snapshot, cube in color and three bands, of one result above the other."""
    figure = Figure(figsize=(10, 4.3), layout="constrained")
    grid = figure.subplots(len(paths), 5, width_ratios=(1.15, 1, 1, 1, 1))
    for row, (path, words) in enumerate(zip(paths, ("simulated", "captured"), strict=True)):
        data = read_report(path)
        cube, nm = np.asarray(data.cube[:, :, :]), data.wavelengths
        if data.measurement is None or nm is None:
            raise ValueError(f"{path} lacks its snapshot or wavelengths")
        side = min(300, *cube.shape[1:])  # the brightest square
        rows, columns = (
            slice(first := int(np.convolve(cube.mean((0, axis)), np.ones(side), "valid").argmax()), first + side)
            for axis in (2, 1)
        )
        part, snapshot = cube[:, rows, columns], data.measurement[rows, columns.start : columns.stop + 54]
        bright = float(np.percentile(snapshot, 99.5))
        show(grid[row, 0], np.clip(snapshot / bright, 0, 1), f"{words} snapshot", cmap="gray", aspect="equal")
        show(grid[row, 1], cube_to_srgb(part, nm), f"its cube, {len(cube)} bands", aspect="equal")
        for column, share in enumerate((0.2, 0.5, 0.9), 2):
            band = round(share * (len(cube) - 1))
            picture = np.clip(part[band] / np.percentile(part, 99.8), 0, 1) ** (1 / 2.2)
            show(grid[row, column], picture, f"{nm[band]:.0f} nm", cmap="gray", vmin=0, vmax=1, aspect="equal")
    return figure


if __name__ == "__main__":
    save_figures({"front": front(sys.argv[1:3])}, Path(__file__).parent / "figures")
