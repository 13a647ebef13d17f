"""The parts of figures that more than one figure is made of: strips of bands, spectra, curves of a solver, marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, PowerNorm
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from cassi.looking.color import VISIBLE, Limits, shown_range, value_label, wavelength_to_srgb
from cassi.looking.metrics import spectral_angles
from cassi.looking.spectra_points import Point
from cassi.looking.style import INK, MUTED, PALETTE, Figure, color_bar, note_below, place, show, spectral_axis
from cassi.solvers.loop import Record

GAMMA = 1 / 2.2  # light is linear and the display is not: nearly the curve of the sRGB picture
MAX_TILE = 512  # [px] of a band in a strip of bands


def strip_height(shape: tuple[int, ...], count: int, *, columns: int, width: float, names: bool = True) -> float:
    """How high `count` bands of this shape are that `draw_bands` draws `width` inches wide [inch]."""
    tile = _Tile.of(shape, columns, width, names)
    return -(-count // columns) * tile.pitch / tile.pixels_per_inch


def draw_bands(
    figure: Figure,
    left: float,
    top: float,
    values: np.ndarray,
    centers: np.ndarray | None,
    chosen: Sequence[int],
    *,
    columns: int,
    width: float,
    limits: Limits | None,
    label: str = "",
    tint: bool = False,
    names: bool = True,
) -> Axes:
    """One picture of all chosen bands with their names, `width` inches wide, at this place on the page [inch].

    Limits: one range for all bands, with a color bar and a line below that names it and says what is cut; where they
    reach below zero, blue to red around it. None: each band its own range, without a bar. `tint`: in the color of the
    wavelength, instead of grey.
    """
    tile = _Tile.of(values.shape, columns, width, names)
    signed = limits is not None and limits.low < 0
    colors: Colormap = _RED_BLUE if signed else _GREY
    rows = -(-len(chosen) // columns)
    mosaic = np.full((rows * tile.pitch, columns * (tile.width + tile.gap) - tile.gap, 3), 255, dtype=np.uint8)
    axes = place(figure, left, top, width, len(mosaic) / tile.pixels_per_inch)
    for k, index in enumerate(chosen):
        band = np.nan_to_num(values[index][:: tile.shrink, :: tile.shrink], posinf=0, neginf=0)
        low, high = (limits if limits is not None else shown_range(band, "zero"))[:2]
        share = np.clip((band - low) / (high - low), 0, 1)
        y, x = (k // columns) * tile.pitch + tile.pitch - tile.height, (k % columns) * (tile.width + tile.gap)
        center = None if centers is None else float(centers[index])
        map_ = _tint(center) if tint and not signed else colors
        colored = map_(share if signed else share**GAMMA, bytes=True)
        mosaic[y : y + tile.height, x : x + tile.width] = np.asarray(colored)[..., :3]
        if names:
            sampled = not tint and center is not None and VISIBLE[0] <= center <= VISIBLE[1]
            if sampled and center is not None:
                above = y - tile.square // 2
                mosaic[above - tile.square : above, x : x + tile.square] = (255 * wavelength_to_srgb(center)).round()
            axes.annotate(
                band_name(centers, index), (x - 0.5, y - 0.5), xytext=(8.0 * sampled, 2.5), textcoords="offset points",
                fontsize=8.5, color=INK, annotation_clip=False,
            )  # fmt: skip
    show(axes, mosaic)
    if limits is not None:
        norm = Normalize(limits.low, limits.high) if signed else PowerNorm(GAMMA, limits.low, limits.high)
        color_bar(axes, ScalarMappable(norm, colors), limits, ticks=2)
        note_below(axes, "; ".join(part for part in (label, limits.clipped) if part), labelled=False)
    return axes


class _Tile(NamedTuple):
    """A band in a picture of many [pixel].

    `pitch` is from row to row, with room for words; `square` the side of the sample of the band's color.
    """

    shrink: int
    height: int
    width: int
    gap: int
    pitch: int
    square: int
    pixels_per_inch: float

    @classmethod
    def of(cls, shape: tuple[int, ...], columns: int, width: float, names: bool) -> _Tile:
        """The tiles of bands (C, H, W) that stand in so many columns on `width` inches."""
        shrink = max(1, -(-max(shape[1:]) // MAX_TILE))
        down, across = (len(range(0, size, shrink)) for size in shape[1:])
        gap = max(1, round(0.03 * across))
        pixels_per_inch = (columns * (across + gap) - gap) / width
        text = max(1, round(0.25 * pixels_per_inch)) if names else 0
        square = max(1, round(0.08 * pixels_per_inch))
        return cls(shrink, down, across, gap, down + max(text, gap), square, pixels_per_inch)


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
) -> dict[str, Artist]:
    """One panel per point, all on one scale; a dim spectrum is drawn larger, and its panel says how much.

    Returns what a legend needs, name to artist.
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
        axes.annotate(
            str(k + 1), (0, 1), xycoords="axes fraction", xytext=(3, 8.5), textcoords="offset points", ha="center",
            va="center", fontsize=8, fontweight="bold", color="white", annotation_clip=False,
            bbox={"boxstyle": "circle,pad=0.22", "facecolor": color, "edgecolor": "none"},
        )  # fmt: skip
        axes.grid(True)
        axes.margins(x=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=centers is None))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        last = k + columns >= len(chosen)  # of its column
        axes.tick_params(labelbottom=last, labelleft=k % columns == 0)
        axes.set(xlabel=label if last else "", ylabel=value_label(unit) if k % columns == 0 else "")
    for axes in panels:
        axes.set_ylim(1.05 * lowest, 1.18 * highest)  # room for words above the curves
    return legend


def draw_legend(figure: Figure, left: float, top: float, legend: Mapping[str, Artist]) -> None:
    """What lines mean, in a line of words at this place [inch]; nothing where there is one kind of line."""
    if len(legend) > 1:
        width, height = figure.get_size_inches()
        figure.legend(
            list(legend.values()), list(legend), loc="upper left", bbox_to_anchor=(left / width, 1 - top / height),
            ncols=3, borderaxespad=0, borderpad=0,
        )  # fmt: skip


def draw_convergence(axes: Axes, history: Sequence[Record], markers: Sequence[tuple[int, str]] = ()) -> None:
    """Residual and change of a solver against iterations, seconds of the run above, lines where the run changed."""
    axes.set_xlabel("iteration")
    if not history:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "closed form:\nno iterations", ha="center", va="center", color=MUTED)
        return
    at, seconds, residual, change = np.array(history, dtype=float).T
    if (np.diff(at) <= 0).any():  # frames of a stack, one after the other
        at, seconds = np.arange(1.0, len(history) + 1), np.zeros(len(history))
        axes.set_xlabel("iteration, frames one after the other")
    lowest, highest = [], []
    for series, text, color, dash in (
        (residual, "residual |y - Φx| / |y|", PALETTE[0], "-"),
        (change, "change |x - x'| / |x'|, x' one before", PALETTE[1], (0, (4, 1.5))),
    ):
        shown = np.isfinite(series) & (series > 0)
        if shown.any():
            marker = "o" if shown.sum() < 3 else None
            axes.plot(at[shown], series[shown], color=color, linestyle=dash, marker=marker, markersize=4, label=text)
            lowest.append(series[shown & (series > 1e-3 * np.median(series[shown]))].min())
            highest.append(series[shown].max())
    logarithmic(axes)
    if lowest:  # a solver that starts at an exact fit has a first residual of rounding size: leave it below the axis
        bottom, top = min(lowest) / 2, 2 * max(highest)
        top *= (top / bottom) ** 0.25  # room for the legend above the curves
        bottom *= (bottom / top) ** (0.08 * sum(bool(words) for _, words in markers))  # and for words below them
        axes.set_ylim(bottom, top)
        axes.legend(loc="upper right", fontsize=7.5, frameon=True, framealpha=1, edgecolor="none")  # hides lines below
    for k, (iteration, words) in enumerate(markers):
        axes.axvline(iteration, color=MUTED, linewidth=0.8, linestyle=":")
        late = iteration > at.mean()
        axes.annotate(
            f"{words} \u25b8" if late and words else words, (iteration, 0.02 + 0.06 * k),
            xycoords=("data", "axes fraction"), xytext=(-3 if late else 3, 0), textcoords="offset points",
            ha="right" if late else "left", va="bottom", fontsize=7.5, color=MUTED, path_effects=_HALO,
        )  # fmt: skip
    axes.grid(True)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if len(at) > 1 and (np.diff(seconds) > 0).all():
        _draw_seconds(axes, at, seconds)


def _draw_seconds(axes: Axes, at: np.ndarray, seconds: np.ndarray) -> None:
    """The time of four iterations, on an axis above."""
    ticks = np.linspace(at[0], at[-1], 4)
    times = np.interp(ticks, at, seconds)
    digits = 0 if times[-1] >= 20 else 1 if times[-1] >= 2 else 2
    while digits < 2 and len({f"{t:.{digits}f}" for t in times}) < len(times):
        digits += 1
    above = axes.secondary_xaxis("top")
    above.set_xticks(ticks, [f"{t:.{digits}f}" for t in times])
    above.set_xlabel("time of this run [s]", fontsize=8)
    up = 0.3 / (axes.get_position().height * cast(Figure, axes.figure).get_figheight())
    above.xaxis.set_label_coords(0.5, 1 + up, transform=axes.transAxes)
    above.spines["top"].set_visible(False)


def logarithmic(axes: Axes) -> None:
    """A logarithmic y-axis with plain numbers at some powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(numticks=7))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: "10" + f"{np.log10(value):.0f}".translate(_RAISED)))
    axes.yaxis.set_minor_locator(NullLocator())


def draw_points(axes: Axes, points: Sequence[Point]) -> None:
    """Numbered rings; the number stands on the side where the picture has room."""
    height, width = axes.images[0].get_size()
    for k, (row, column, _) in enumerate(points):
        color = PALETTE[k % len(PALETTE)]
        for edge, thickness in (("white", 3.0), (color, 1.6)):
            axes.plot(
                column, row, "o", markersize=7, markerfacecolor="none", markeredgecolor=edge, markeredgewidth=thickness
            )
        axes.annotate(
            str(k + 1), (column, row), xytext=(-10 if column > 0.9 * width else 10, -9 if row < 0.1 * height else 9),
            textcoords="offset points", ha="center", va="center", fontsize=9, fontweight="bold", color=color,
            path_effects=_HALO,
        )  # fmt: skip


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
_HALO = (withStroke(linewidth=2.5, foreground="white"),)
_GREY = LinearSegmentedColormap.from_list("grey", ["black", "white"])
_RED_BLUE = LinearSegmentedColormap.from_list("difference", ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"])


def _tint(wavelength: float | None) -> Colormap:
    """Black over the color of the wavelength to nearly white; grey where the wavelength is unknown or invisible."""
    if wavelength is None or not VISIBLE[0] <= wavelength <= VISIBLE[1]:
        return _GREY
    soft = 0.78 * wavelength_to_srgb(wavelength) + 0.22  # the pure color glares
    return LinearSegmentedColormap.from_list(
        "tint", [(0, "black"), (0.7, tuple(0.8 * soft)), (1, tuple(0.3 * soft + 0.7))]
    )


def _top_at(point: Point, values: np.ndarray, truth: np.ndarray | None) -> float:
    """The highest value that is drawn at a point; tiny where there is none."""
    spectra = [cube[:, point.row, point.column] for cube in (values, truth) if cube is not None]
    finite = np.concatenate(spectra)
    finite = finite[np.isfinite(finite)]
    return max(float(finite.max(initial=0.0)), 1e-12)


def _magnification(top: float, highest: float) -> float:
    """A power of ten that brings a spectrum into sight on the axis of the highest; 1 where it is in sight."""
    return 1.0 if 10 * top > highest else float(10.0 ** np.floor(np.log10(min(highest / top, 1e6))))
