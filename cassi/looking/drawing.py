"""The parts of figures that more than one figure is made of: bands side by side, spectra, marks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import Transform

from cassi.looking.color import VISIBLE, Limits, shown_range, value_label, wavelength_to_srgb
from cassi.looking.metrics import spectral_angles
from cassi.looking.spectra_points import Point
from cassi.looking.style import ABOVE, INK, MUTED, PALETTE, color_bar, inches, note_below, show, spectral_axis

GAMMA = 1 / 2.2  # light is linear and the display is not: nearly the curve of the sRGB picture
MAX_TILE = 512  # [px] of a band in a picture of several


class Strip(NamedTuple):
    """Bands side by side as one picture (H, W, 3) in [0, 1], their names and where those stand in it [pixel]."""

    picture: np.ndarray
    names: list[tuple[float, float, str]]
    limits: Limits | None

    def height(self, width: float) -> float:
        """How high it is where it is so wide [inch]."""
        return float(width * self.picture.shape[0] / self.picture.shape[1])


def strip_of(
    values: np.ndarray,
    centers: np.ndarray | None,
    chosen: Sequence[int],
    *,
    columns: int,
    width: float,
    limits: Limits | None,
) -> Strip:
    """One picture of all chosen bands (C, H, W) with room for their names, to be drawn `width` inches wide.

    Limits: one range for all bands; where they reach below zero, blue to red around it. None: each band its own range.
    """
    shrink = max(1, -(-max(values.shape[1:]) // MAX_TILE))
    down, across = (len(range(0, size, shrink)) for size in values.shape[1:])
    gap = max(1, round(0.03 * across))
    pixels_per_inch = (columns * (across + gap) - gap) / width
    room, square = (max(1, round(inches * pixels_per_inch)) for inches in (0.25, 0.08))
    pitch = down + max(room, gap)
    rows = -(-len(chosen) // columns)
    picture = np.full((rows * pitch, columns * (across + gap) - gap, 3), 1.0, dtype=np.float32)
    names = []
    for k, index in enumerate(chosen):
        band = np.nan_to_num(values[index][::shrink, ::shrink], posinf=0, neginf=0)
        low, high = (limits or shown_range(band, "zero"))[:2]
        share = np.clip((band - low) / (high - low), 0, 1)
        y, x = (k // columns) * pitch + pitch - down, (k % columns) * (across + gap)
        tile = colormaps["RdBu_r"](share)[..., :3] if low < 0 else share[..., None].astype(np.float32) ** GAMMA
        picture[y : y + down, x : x + across] = tile
        if centers is not None and VISIBLE[0] <= centers[index] <= VISIBLE[1]:
            above = y - square // 2
            picture[above - square : above, x : x + square] = wavelength_to_srgb(centers[index])
        names.append((x + 0.11 * pixels_per_inch - 0.5, y - 0.04 * pixels_per_inch - 0.5, band_name(centers, index)))
    return Strip(picture, names, limits)


def draw_strip(axes: Axes, strip: Strip, label: str) -> None:
    """The bands with their names; with one range for all a color bar, and below what the values are and what is cut."""
    show(axes, strip.picture)
    for x, y, name in strip.names:
        axes.text(x, y, name, va="baseline", fontsize=8.5, color=INK)
    if strip.limits is not None:
        signed = strip.limits.low < 0
        color_bar(axes, "RdBu_r" if signed else "gray", strip.limits, gamma=1.0 if signed else GAMMA)
        note_below(axes, "; ".join(part for part in (label, strip.limits.clipped) if part), labelled=False)


def draw_spectra(
    panels: Sequence[Axes],
    values: np.ndarray,
    centers: np.ndarray | None,
    chosen: Sequence[Point],
    truth: np.ndarray | None,
    uncertainty: np.ndarray | None,
    *,
    columns: int,
    unit: str,
    calibrated: bool,
) -> None:
    """One panel per point, all on one scale; a dim spectrum is drawn larger, and its panel says how much.

    Where there are lines of several kinds, a legend stands above the first.
    """
    legend: dict[str, Artist] = {}
    axis, label = spectral_axis(centers, len(values))
    order = np.argsort(axis)
    style: dict[str, Any] = {"marker": "o", "markersize": 3} if len(axis) < 12 else {}
    tops = [_top_at(point, values, truth) for point in chosen]
    highest, lowest = max(tops), 0.0
    for k, (axes, (row, column, kind)) in enumerate(zip(panels, chosen, strict=True)):
        factor = _magnification(tops[k], highest)
        color = PALETTE[k % len(PALETTE)]
        spectrum = factor * values[order, row, column]
        (line,) = axes.plot(axis[order], spectrum, color=color, zorder=3, **style)
        legend.setdefault("estimate", line)
        heading = f"row {row}, column {column}"
        lowest = min(lowest, float(np.nanmin(spectrum, initial=0.0)))
        if uncertainty is not None:
            spread = factor * uncertainty[order, row, column]
            band = axes.fill_between(
                axis[order], spectrum - spread, spectrum + spread, color=color, alpha=0.22, linewidth=0
            )
            legend.setdefault("± 1 standard deviation" if calibrated else "± spread (not an error bar)", band)
        if truth is not None:
            true = factor * truth[order, row, column]
            (line,) = axes.plot(axis[order], true, color=INK, linestyle=(0, (4, 2)), linewidth=1.2, zorder=4)
            legend.setdefault("truth (and the angle to it)", line)
            angle = spectral_angles(values[:, row, column, None, None], truth[:, row, column, None, None]).item()
            heading += f" · {angle:.1f}°"
        axes.set_title(heading, fontsize=8.5, x=0.08)
        said = ", ".join(part for part in (kind, f"drawn x {factor:g}" if factor > 1 else "") if part)
        if said:
            axes.text(0.99, 0.98, said, transform=axes.transAxes, ha="right", va="top", fontsize=8, color=MUTED)
        _badge(axes, 0.04 / inches(axes)[0], 1 + 0.12 / inches(axes)[1], k, axes.transAxes)
        axes.grid(True)
        axes.margins(x=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=centers is None))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        last = k + columns >= len(chosen)  # of its column
        axes.tick_params(labelbottom=last, labelleft=k % columns == 0)
        axes.set(xlabel=label if last else "", ylabel=value_label(unit) if k % columns == 0 else "")
    for axes in panels:
        axes.set_ylim(1.05 * lowest, 1.18 * highest)  # room for words above the curves
    if len(legend) > 1:
        panels[0].legend(
            list(legend.values()), list(legend), loc="upper left", ncols=3, borderaxespad=0, borderpad=0,
            bbox_to_anchor=(0, 1 + 2.2 * ABOVE / inches(panels[0])[1]),
        )  # fmt: skip


def logarithmic(axes: Axes) -> None:
    """A logarithmic y-axis with plain numbers at some powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: "10" + f"{np.log10(value):.0f}".translate(_RAISED)))
    axes.yaxis.set_minor_locator(NullLocator())


def draw_points(axes: Axes, points: Sequence[Point]) -> None:
    """Rings with their numbers, which stand on the side where the picture has room."""
    height, width = axes.images[0].get_size()
    for k, (row, column, _) in enumerate(points):
        color = PALETTE[k % len(PALETTE)]
        for edge, thickness in (("white", 3.0), (color, 1.6)):
            axes.plot(
                column, row, "o", markersize=7, markerfacecolor="none", markeredgecolor=edge, markeredgewidth=thickness
            )
        beside = np.array((width, height)) * 0.17 / inches(axes)  # pixels
        across, down = (-1 if column > 0.9 * width else 1), (1 if row < 0.1 * height else -1)
        _badge(axes, column + across * beside[0], row + down * beside[1], k, axes.transData)


def check_points(points: Sequence[tuple[int, int]], values: np.ndarray) -> list[Point]:
    """Points given by hand, in the picture.

    Raises:
        ValueError: none, or one outside.
    """
    height, width = values.shape[1:]
    for row, column in points:
        if not (0 <= row < height and 0 <= column < width):
            raise ValueError(f"point (row {row}, column {column}) lies outside the picture of {height} x {width} px")
    if not points:
        raise ValueError("points must not be empty: pass None to have them chosen")
    return [Point(int(row), int(column)) for row, column in points]


def band_name(centers: np.ndarray | None, index: int) -> str:
    """The wavelength of a band, or its number from 1."""
    if centers is None:
        return f"band {index + 1}"
    dense = len(centers) > 1 and np.abs(np.diff(centers)).min() < 2
    return f"{centers[index]:.1f} nm" if dense else f"{centers[index]:.0f} nm"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _badge(axes: Axes, x: float, y: float, k: int, transform: Transform) -> None:
    """The number of point k on its color."""
    box = {
        "boxstyle": "circle,pad=0.22",
        "facecolor": PALETTE[k % len(PALETTE)],
        "edgecolor": "white",
        "linewidth": 0.6,
    }
    axes.text(
        x, y, str(k + 1), transform=transform, ha="center", va="center", fontsize=7.5, fontweight="bold", color="white",
        bbox=box,
    )  # fmt: skip


def _top_at(point: Point, values: np.ndarray, truth: np.ndarray | None) -> float:
    """The highest value that is drawn at a point; tiny where there is none."""
    spectra = [cube[:, point.row, point.column] for cube in (values, truth) if cube is not None]
    finite = np.concatenate(spectra)
    finite = finite[np.isfinite(finite)]
    return max(float(finite.max(initial=0.0)), 1e-12)


def _magnification(top: float, highest: float) -> float:
    """A power of ten that brings a spectrum into sight on the axis of the highest; 1 where it is in sight."""
    return 1.0 if 10 * top > highest else float(10.0 ** np.floor(np.log10(min(highest / top, 1e6))))
