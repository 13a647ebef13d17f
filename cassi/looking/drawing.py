"""Parts that several figures share: bands side by side, points and their spectra."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from cassi.looking.color import Limits, band_colors, is_visible, shown_range, value_label
from cassi.looking.metrics import spectral_angles
from cassi.looking.style import INK, PALETTE, color_bar, note_below, show, spectral_axis

GAMMA = 1 / 2.2  # display values are not linear in light: nearly the sRGB curve
AMBER, GREY = np.array([0.95, 0.42, 0.1]), "#a0a4ab"  # of values in doubt, in pictures (linear) and spectra
MAX_TILE = 512  # side of a band in a picture of several [pixel]


def doubtful(values: np.ndarray, uncertainty: np.ndarray) -> np.ndarray:
    """Where there is too little light to tell: the error bar is larger than the value."""
    return uncertainty > values


class Strip(NamedTuple):
    """Bands as one picture (H, W, 3) in [0, 1], its height [inch], and names with their positions [pixel].

    `note`: a word about the colors of doubt, if there are any.
    """

    picture: np.ndarray
    height: float
    names: list[tuple[float, float, str]]
    limits: Limits
    note: str = ""


def strip_of(
    values: np.ndarray, centers: np.ndarray | None, chosen: Sequence[int], *, columns: int, width: float,
    signed: bool = False, tinted: bool = False, uncertainty: np.ndarray | None = None,
) -> Strip:  # fmt: skip
    """The chosen bands (C, H, W) on one scale, `width` inches wide; blue to red, around zero, where they are `signed`.

    `tinted`: each in the color of its light instead of grey. What is `doubtful` by its `uncertainty` (C, H, W) is amber
    instead, or grey.
    """
    doubt, note = AMBER, "amber: the error bar is larger than the value"
    if tinted and is_visible(centers):
        doubt, note = np.ones(3), note.replace("amber", "grey")
    colors = band_colors(centers, len(values)) if tinted and is_visible(centers) else np.ones((len(values), 3))
    limits = shown_range(values, "around zero" if signed else "zero")
    shrink = max(1, -(-max(values.shape[1:]) // MAX_TILE))
    down, across = (len(range(0, size, shrink)) for size in values.shape[1:])
    gap = max(1, round(0.03 * across))
    pixels_per_inch = (columns * (across + gap) - gap) / width
    pitch = down + max(1, round(0.25 * pixels_per_inch), gap)
    picture = np.full((-(-len(chosen) // columns) * pitch, columns * (across + gap) - gap, 3), 1.0, dtype=np.float32)
    names = []
    for k, index in enumerate(chosen):
        band = np.nan_to_num(values[index][::shrink, ::shrink], posinf=0, neginf=0)
        share = np.clip((band - limits.low) / (limits.high - limits.low), 0, 1)
        y, x = (k // columns) * pitch + pitch - down, (k % columns) * (across + gap)
        color = colors[index]
        if uncertainty is not None:
            sure = ~doubtful(band, uncertainty[index][::shrink, ::shrink])
            color = np.where(sure[..., None], color, doubt)
        tile = colormaps["RdBu_r"](share)[..., :3] if signed else (share[..., None] * color).astype(np.float32) ** GAMMA
        picture[y : y + down, x : x + across] = tile
        names.append((x - 0.5, y - 0.04 * pixels_per_inch - 0.5, band_name(centers, index)))
    return Strip(picture, picture.shape[0] / pixels_per_inch, names, limits, note if uncertainty is not None else "")


def draw_strip(axes: Axes, strip: Strip, label: str) -> None:
    """Draw the bands with their names and a color bar, and below them the label of the values."""
    show(axes, strip.picture)
    for x, y, name in strip.names:
        axes.text(x, y, name, va="baseline", fontsize=8.5, color=INK)
    signed = strip.limits.low < 0
    color_bar(axes, "RdBu_r" if signed else "gray", strip.limits, gamma=1.0 if signed else GAMMA, width=0.01)
    note_below(axes, ", ".join(filter(None, (label, strip.note))))


def draw_spectra(
    panels: Sequence[Axes], values: np.ndarray, centers: np.ndarray | None, chosen: Sequence[tuple[int, int]],
    truth: np.ndarray | None, uncertainty: np.ndarray | None, *, unit: str,
) -> None:  # fmt: skip
    """Draw one panel per point, all on one scale, with a legend above them if there are several kinds of lines."""
    legend: dict[str, Artist] = {}
    if truth is not None:  # the chosen points are flat and bright: also state the angles of all pixels
        angles = spectral_angles(values, truth)
        angles = angles[angles.isfinite()]
        tenth = float(np.quantile(angles.cpu().numpy(), 0.9)) if len(angles) else np.nan
        everywhere = f"all pixels: mean {float(angles.mean()):.1f}°, one in ten above {tenth:.1f}°"
    axis, label = spectral_axis(centers, len(values))
    order = np.argsort(axis)
    style: dict[str, Any] = {"marker": "o", "markersize": 3} if len(axis) < 12 else {}
    for k, (axes, (row, column)) in enumerate(zip(panels, chosen, strict=True)):
        color, heading = PALETTE[k % len(PALETTE)], f"row {row}, column {column}"
        spectrum = values[order, row, column]
        (line,) = axes.plot(axis[order], spectrum, color=color, zorder=3, **style)
        legend.setdefault("estimate", line)
        if uncertainty is not None:
            sigma = uncertainty[order, row, column]
            around = spectrum - sigma, spectrum + sigma
            area = axes.fill_between(axis[order], *around, color=color, alpha=0.22, linewidth=0)
            legend.setdefault("± 1 standard deviation", area)
            doubt = doubtful(spectrum, sigma)
            if doubt.any():
                (line,) = axes.plot(axis[order], np.where(doubt, spectrum, np.nan), ".-", color=GREY, zorder=5)
                legend.setdefault("grey: the error bar is larger than the value", line)
        if truth is not None:
            true = truth[order, row, column]
            (line,) = axes.plot(axis[order], true, color=INK, linestyle=(0, (4, 2)), linewidth=1.2, zorder=4)
            legend[f"truth, and the angle to it ({everywhere})"] = line
            angle = spectral_angles(values[:, row, column, None, None], truth[:, row, column, None, None]).item()
            heading += f" · {angle:.1f}°"
        axes.set_title(heading, fontsize=8.5, x=0.08)
        badge(axes, (0, 1), (4, 9), k, xycoords="axes fraction")
        axes.margins(x=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=centers is None))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.tick_params(labelleft=k == 0)
        axes.set_xlabel(label)
    panels[0].set_ylabel(value_label(unit))
    drawn = [cube[:, row, column] for cube in (values, truth) if cube is not None for row, column in chosen]
    finite = np.concatenate(drawn)[np.isfinite(np.concatenate(drawn))]
    low, high = finite.min(initial=0.0), finite.max(initial=0.0)
    for axes in panels:
        axes.set_ylim(1.05 * low, 1.05 * (high or -low or 1.0))
    if len(legend) > 1:
        panels[0].figure.legend(list(legend.values()), list(legend), ncols=3, loc="outside upper left")


def draw_points(axes: Axes, points: Sequence[tuple[int, int]]) -> None:
    """Small rings, with labels where there is room, so that objects stay in sight."""
    height, width = axes.images[0].get_size()
    ring: dict[str, Any] = {"marker": "o", "markersize": 4.5, "markerfacecolor": "none"}
    for k, (row, column) in enumerate(points):
        color = PALETTE[k % len(PALETTE)]
        for edge, thickness in (("white", 2.6), (color, 1.4)):
            axes.plot(column, row, markeredgecolor=edge, markeredgewidth=thickness, **ring)
        aside = (-17 if column > 0.9 * width else 17, -17 if row < 0.1 * height else 17)  # points
        line = {"arrowstyle": "-", "color": color, "path_effects": [withStroke(linewidth=2.2, foreground="white")]}
        badge(axes, (column, row), aside, k, arrowprops=line | {"shrinkA": 0, "shrinkB": 0})


def draw_scale_bar(axes: Axes, pixel_size: float, unit: str) -> None:
    """Draw a scale bar of round length, at most a fifth of the picture, lower right; `pixel_size` is in `unit`."""
    height, width = axes.images[0].get_size()
    longest = width * pixel_size / 5
    ten = 10.0 ** np.floor(np.log10(longest))
    length = max(k * ten for k in (1, 2, 5) if k * ten <= longest)
    right, bottom, across = 0.96 * width, 0.94 * height, length / pixel_size
    for color, thickness in (("black", 5.0), ("white", 2.5)):
        axes.plot((right - across, right), (bottom, bottom), color=color, linewidth=thickness, solid_capstyle="butt")
    place: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 8.5, "color": "white"}
    words = axes.text(right - across / 2, bottom - 0.02 * height, f"{length:g} {unit}", **place)
    words.set_path_effects([withStroke(linewidth=2, foreground="black")])


def band_name(centers: np.ndarray | None, index: int) -> str:
    """The wavelength of a band, or its number, from 1."""
    if centers is None:
        return f"band {index + 1}"
    dense = len(centers) > 1 and np.abs(np.diff(centers)).min() < 2
    return f"{centers[index]:.1f} nm" if dense else f"{centers[index]:.0f} nm"


def badge(axes: Axes, at: tuple[float, float], aside: tuple[float, float], k: int, **how: Any) -> None:
    """Draw the number of point k on a disk in its color, some points beside a place; `how` goes to `annotate`."""
    color = PALETTE[k % len(PALETTE)]
    box = {"boxstyle": "circle,pad=0.22", "facecolor": color, "edgecolor": "white", "linewidth": 0.6}
    words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7.5, "fontweight": "bold", "color": "white"}
    axes.annotate(str(k + 1), at, aside, textcoords="offset points", bbox=box, **words, **how)
