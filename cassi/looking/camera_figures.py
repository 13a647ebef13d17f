"""Figures of a camera found from its captures: what moved, and how sharp the masks are."""

from __future__ import annotations

import numpy as np

from cassi.calibration.camera_model import band_positions, coordinates, polynomial
from cassi.calibration.refined_camera import RefinedCamera
from cassi.looking.color import shown_range
from cassi.looking.style import (
    BELOW,
    LINE,
    PALETTE,
    Figure,
    Row,
    draw_map,
    evenly,
    page,
    picture_size,
    row_of_masks,
    styled,
)

ARROWS = 11  # on each side of the field
DETAIL = 48  # side of the part of the masks that is shown [pixel]


@styled
def moved(camera: RefinedCamera) -> Figure:
    """How far the mask is from where it was believed to be, over the field, for the first and the last band."""
    model = camera.together.model
    height, width = camera.given.shape[-2:]
    x, y = coordinates((ARROWS, ARROWS))
    bands = band_positions(len(camera.together.shifts))
    size = picture_size((height, width), 3.4)
    figure, (places,) = page(Row([max(size[0], 2.5)] * 2, size[1], right=0.2))
    fields = [(polynomial(model.right, x, y, t), polynomial(model.down, x, y, t)) for t in (bands[0], bands[-1])]
    longest = max(0.05, *(float(np.hypot(right, down).max()) for right, down in fields))
    titles = ("first band", "last band")
    for axes, (right, down), title in zip(places, fields, titles, strict=True):
        columns, rows = (x + 1) / 2 * (width - 1), (y + 1) / 2 * (height - 1)
        arrows = axes.quiver(
            columns, rows, np.broadcast_to(right, columns.shape), np.broadcast_to(down, rows.shape), color=PALETTE[0],
            angles="xy", scale=longest * ARROWS, width=0.004,
        )  # fmt: skip
        axes.quiverkey(arrows, 0.78, 1.04, longest, f"{longest:.2f} px", labelpos="E", fontproperties={"size": 8})
        axes.set(xlim=(-width * 0.08, width * 1.08), ylim=(height * 1.08, -height * 0.08))
        axes.set(title=f"Mask moved, {title}", xlabel="column [px]", ylabel="row [px]")
    return figure


@styled
def sharpness(camera: RefinedCamera) -> Figure:
    """Blur of the mask against the band, in the middle of the field and in its corners, and over the field."""
    model, count = camera.together.model, len(camera.together.shifts)
    t = band_positions(count)
    width, height = picture_size(camera.given.shape[-2:], 2.8)
    figure, ((left, right),) = page(Row((4.0, max(width, 2.5)), height, below=BELOW + LINE))
    places = {
        "middle": (0, 0),
        "upper left": (-1, -1),
        "upper right": (1, -1),
        "lower left": (-1, 1),
        "lower right": (1, 1),
    }
    for color, (name, (across, along)) in zip(PALETTE, places.items(), strict=False):
        place = np.array([float(across)]), np.array([float(along)])
        here = [float(model.blur_at(*place, band)[0]) for band in t]
        left.plot(range(1, count + 1), here, "o-", markersize=3, color=color, label=name)
    left.set(xlabel="band", ylabel="standard deviation [px]", title="Blur of the mask")
    left.set_ylim(bottom=0)
    left.grid(True)
    left.legend(ncols=2)
    x, y = coordinates(camera.given.shape[-2:])
    draw_map(
        right, model.blur_at(x, y, t[count // 2]), f"Over the field, band {count // 2 + 1}", "standard deviation [px]"
    )
    return figure


@styled
def masks(camera: RefinedCamera) -> Figure:
    """A part of the mask as given, and as it was found for the first, the middle and the last band."""
    count = len(camera.together.shifts)
    given = camera.given if camera.given.ndim == 2 else camera.given[count // 2]
    found = np.broadcast_to(camera.together.mask, (count, *given.shape))
    height, width = given.shape
    top, left = (height - min(DETAIL, height)) // 2, (width - min(DETAIL, width)) // 2
    detail = (slice(top, top + DETAIL), slice(left, left + DETAIL))
    heading = f"as given, {given[detail].shape[0]} x {given[detail].shape[1]} px in the middle"
    panels = [(given[detail], heading)] + [(found[c][detail], f"band {c + 1}") for c in evenly(count, 3)]
    return row_of_masks(panels, shown_range(given, "zero", percent=99.9))
