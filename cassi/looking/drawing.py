"""The parts of figures that more than one figure is made of: strips of bands, spectra, curves of a solver, marks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, PowerNorm, to_hex
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from cassi.looking.color import VISIBLE, Limits, shown_range, value_label, wavelength_to_srgb
from cassi.looking.metrics import spectral_angles
from cassi.looking.spectra_points import Point
from cassi.looking.style import INK, MUTED, PALETTE, color_bar, show, spectral_axis
from cassi.solvers.loop import Record

GAMMA = 1 / 2.2  # light is linear and the display is not: nearly the curve of the sRGB picture
MAX_TILE = 512  # [px] of a band in a strip of bands


def draw_bands(
    axes: Axes,
    values: np.ndarray,
    centers: np.ndarray | None,
    chosen: Sequence[int],
    *,
    columns: int,
    page: float,
    limits: Limits | None,
    label: str = "",
    tint: bool = False,
    names: bool = True,
) -> float:
    """One picture of all chosen bands with their names, `page` inches wide; returns its height in inches.

    Limits: one range for all bands, with a color bar and a line below that names it and says what is cut; where they
    reach below zero, blue to red around it. None: each band its own range, without a bar. `tint`: in the color of the
    wavelength, instead of grey.
    """
    shrink = max(1, -(-max(values.shape[1:]) // MAX_TILE))
    height, width = (len(range(0, size, shrink)) for size in values.shape[1:])
    gap = max(1, round(0.03 * width))
    pixels_per_inch = (columns * (width + gap) - gap) / page
    text = max(1, round(0.25 * pixels_per_inch)) if names else 0  # room for a line above each band
    pitch = height + max(text, gap)
    rows = -(-len(chosen) // columns)
    signed = limits is not None and limits.low < 0
    colors: Colormap = _RED_BLUE if signed else _GREY
    mosaic = np.ones((rows * pitch, columns * (width + gap) - gap, 3), dtype=np.float32)
    for k, index in enumerate(chosen):
        band = np.nan_to_num(values[index][::shrink, ::shrink], posinf=0, neginf=0)
        norm = _norm(limits if limits is not None else shown_range(band, "zero"))
        y, x = (k // columns) * pitch + pitch - height, (k % columns) * (width + gap)
        center = None if centers is None else float(centers[index])
        map_ = _tint(center) if tint and not signed else colors
        mosaic[y : y + height, x : x + width] = map_(np.asarray(norm(np.clip(band, norm.vmin, norm.vmax))))[..., :3]
        if names:
            parts = [(0.0, 8.5, INK, band_name(centers, index))]
            if not tint and center is not None and VISIBLE[0] <= center <= VISIBLE[1]:
                parts = [(8.0, *parts[0][1:]), (0.0, 7.0, to_hex((*wavelength_to_srgb(center),)), "■")]
            for right, size, color, words in parts:
                axes.annotate(
                    words, (x - 0.5, y - 0.5), xytext=(right, 2.5), textcoords="offset points", fontsize=size,
                    color=color, annotation_clip=False,
                )  # fmt: skip
    show(axes, mosaic)
    if limits is not None:
        color_bar(axes, ScalarMappable(_norm(limits), colors), "", limits, width=0.01)
        told = "; ".join(part for part in (label, limits.clipped) if part)
        axes.set_xlabel(told, fontsize=8, color=MUTED, loc="left")
    return len(mosaic) / pixels_per_inch


def draw_spectra(
    panels: np.ndarray,
    values: np.ndarray,
    centers: np.ndarray | None,
    chosen: Sequence[Point],
    truth: np.ndarray | None,
    uncertainty: np.ndarray | None,
    unit: str,
    calibrated: bool,
) -> dict[str, Artist]:
    """One panel per point, all on one axis; a dim spectrum is drawn larger, and its panel says how much.

    Returns what a legend needs, name to artist.
    """
    legend: dict[str, Artist] = {}
    axis, label = spectral_axis(centers, len(values))
    order = np.argsort(axis)
    rows, columns = panels.shape
    style = {"marker": "o", "markersize": 3} if len(axis) < 12 else {}
    tops = [_top_at(point, values, truth) for point in chosen]
    highest = max(tops)
    lowest = 0.0
    for k, axes in enumerate(panels.flat):
        if k >= len(chosen):
            axes.set_axis_off()
            continue
        row, column, kind = chosen[k]
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
        told = ", ".join(part for part in (kind, f"drawn x {factor:g}" if factor > 1 else "") if part)
        if told:
            axes.annotate(told, (0.99, 0.98), xycoords="axes fraction", ha="right", va="top", fontsize=8, color=MUTED)
        axes.annotate(
            str(k + 1),
            (0, 1),
            xycoords="axes fraction",
            xytext=(3, 8.5),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
            fontweight="bold",
            color="white",
            bbox={"boxstyle": "circle,pad=0.22", "facecolor": color, "edgecolor": "none"},
            annotation_clip=False,
        )
        axes.grid(True)
        axes.margins(x=0.02)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=centers is None))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if k // columns == rows - 1 or k + columns >= len(chosen):
            axes.set_xlabel(label)
            axes.tick_params(labelbottom=True)
        if k % columns == 0:
            axes.set_ylabel(value_label(unit))
        else:
            axes.tick_params(labelleft=False)
    for axes in list(panels.flat)[: len(chosen)]:
        axes.set_ylim(1.05 * lowest, 1.18 * highest)  # room for words above the curves
    return legend


def draw_convergence(axes: Axes, history: Sequence[Record], markers: Sequence[tuple[int, str]] = ()) -> None:
    """Residual and change of a solver against iterations, seconds of the run above, lines where the run changed."""
    axes.set_xlabel("iteration")
    if not history:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "closed form:\nno iterations", ha="center", va="center", color=MUTED)
        return
    at, seconds = (np.array([getattr(record, name) for record in history], float) for name in ("iteration", "seconds"))
    if (np.diff(at) <= 0).any():  # frames of a stack, one after the other
        at, seconds = np.arange(1.0, len(history) + 1), np.zeros(len(history))
        axes.set_xlabel("iteration, frames one after the other")
    drawn, lowest, highest = False, [], []
    for name, text, color, dash in (
        ("residual", "residual |y - Φx| / |y|", PALETTE[0], "-"),
        ("change", "change |x - x'| / |x'|, x' one before", PALETTE[1], (0, (4, 1.5))),
    ):
        series = np.array([getattr(record, name) for record in history], dtype=float)
        shown = np.isfinite(series) & (series > 0)
        if shown.any():
            marker = "o" if shown.sum() < 3 else None
            axes.plot(at[shown], series[shown], color=color, linestyle=dash, marker=marker, markersize=4, label=text)
            lowest.append(series[shown & (series > 1e-3 * np.median(series[shown]))].min())
            highest.append(series[shown].max())
            drawn = True
    axes.set_yscale("log")
    if lowest:  # a solver that starts at an exact fit has a first residual of rounding size: leave it below the axis
        bottom, top = min(lowest) / 2, 2 * max(highest)
        axes.set_ylim(bottom, top * (top / bottom) ** 0.25)  # room for the legend above the curves
    named = [words for _, words in markers if words]
    if lowest:  # and for the words of the markers below them, one above the other
        bottom, top = axes.get_ylim()
        axes.set_ylim(bottom * (bottom / top) ** (0.08 * len(named)))
    for k, (iteration, words) in enumerate(markers):
        axes.axvline(iteration, color=MUTED, linewidth=0.8, linestyle=":")
        late = iteration > at.mean()
        note = axes.annotate(
            f"{words} \u25b8" if late and words else words, (iteration, 0.02 + 0.06 * k),
            xycoords=("data", "axes fraction"), xytext=(-3 if late else 3, 0), textcoords="offset points",
            ha="right" if late else "left", va="bottom", fontsize=7.5, color=MUTED,
        )  # fmt: skip
        note.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
    axes.grid(True)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if len(at) > 1 and (np.diff(seconds) > 0).all():
        ticks = np.linspace(at[0], at[-1], 4)
        top_axis = axes.secondary_xaxis("top", functions=(lambda x: x, lambda x: x))
        times = np.interp(ticks, at, seconds)
        digits = 0 if times[-1] >= 20 else 1 if times[-1] >= 2 else 2
        while digits < 2 and len({f"{t:.{digits}f}" for t in times}) < len(times):
            digits += 1
        top_axis.set_xticks(ticks, [f"{t:.{digits}f}" for t in times])
        top_axis.set_xlabel("time of this run [s]", fontsize=8)
        top_axis.spines["top"].set_visible(False)
    if drawn:
        axes.legend(loc="upper right", fontsize=7.5, frameon=True, framealpha=1, edgecolor="none")  # hides lines below


def draw_points(axes: Axes, points: Sequence[Point]) -> None:
    """Numbered rings; the number stands on the side where the picture has room."""
    height, width = axes.images[0].get_size()
    for k, (row, column, _) in enumerate(points):
        color = PALETTE[k % len(PALETTE)]
        for edge, thickness in (("white", 3.0), (color, 1.6)):
            axes.plot(
                column, row, "o", markersize=7, markerfacecolor="none", markeredgecolor=edge, markeredgewidth=thickness
            )
        dx = -10 if column > 0.9 * width else 10
        dy = -9 if row < 0.1 * height else 9
        text = axes.annotate(
            str(k + 1),
            (column, row),
            xytext=(dx, dy),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=9,
            fontweight="bold",
            color=color,
        )
        text.set_path_effects([withStroke(linewidth=2.5, foreground="white")])


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


_GREY = LinearSegmentedColormap.from_list("grey", ["black", "white"])
_RED_BLUE = LinearSegmentedColormap.from_list("difference", ["#2166ac", "#92c5de", "#f7f7f7", "#f4a582", "#b2182b"])


def _norm(limits: Limits) -> Normalize:
    if limits.low < 0:
        return Normalize(limits.low, limits.high)
    return PowerNorm(GAMMA, limits.low, limits.high)


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
