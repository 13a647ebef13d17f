"""The common style of all figures, and their building blocks."""

import io
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure as _Figure
from matplotlib.image import AxesImage

from cassi.looking.color import Limits, shown_range


class Figure(_Figure):
    """A matplotlib figure that notebooks display without pyplot, and that is saved in its own style."""

    def savefig(self, fname: Any, **kwargs: Any) -> None:
        with rc_context(_SETTINGS):
            super().savefig(fname, **kwargs)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()


# M. Okabe and K. Ito, "Color universal design", 2008, without yellow, which is too pale for a line on white.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
INK, MUTED = "#222222", "#666666"
WARNING = {"boxstyle": "round,pad=0.4", "facecolor": "#fdecea", "edgecolor": "#b3261e"}
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 5.0,
    "axes.titley": 1.0,  # set by hand: otherwise matplotlib measures every tick
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.formatter.useoffset": False,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "lines.linewidth": 1.6,
    "image.interpolation": "nearest",
    "figure.titlesize": 11.0,
    "pdf.fonttype": 42,  # TrueType, which publishers ask for, not Type 3
    "text.parse_math": False,  # names may contain dollar signs
}
# the defaults of matplotlib under ours, so that user settings (TeX, the backend of a notebook) have no influence
_KEPT = ("backend", "svg.hashsalt")  # the latter makes equal figures equal files, see `save_figures`
_SETTINGS = {name: value for name, value in rcParamsDefault.items() if name not in _KEPT} | _STYLE
styled = rc_context(_SETTINGS)  # decorator for drawing functions; restores the settings of the user

# Margins of pictures, and of axes beside them [inch]. The sides of a picture are known beforehand, but not of its color
# bar and words too: they are placed by hand, and pictures keep their size. `plots` leaves its margins to matplotlib.
LEFT, ABOVE, BELOW, BAR, EDGE = 0.65, 0.3, 0.45, 0.85, 0.12
LINE = 0.15  # height of a line of small text


def write(figure: Figure, left: float, top: float, words: str, **how: Any) -> None:
    """Write text at `left` and `top` inches from the upper left corner of the page; `how` goes to `Figure.text`.

    Names of files are allowed: bytes that are not UTF-8 are escaped.
    """
    width, height = figure.get_size_inches()
    words = words.encode("utf-8", "backslashreplace").decode()
    figure.text(left / width, 1 - top / height, words, va="top", **how)


class Row(NamedTuple):
    """Axes side by side, with the margins of each; `indent` is added before the first. All in inches."""

    widths: Sequence[float]
    height: float
    left: float = LEFT
    right: float = BAR
    below: float = BELOW
    indent: float = 0.0


def page(*rows: Row, title: str = "", head: float = 0.0) -> tuple[Figure, list[list[Axes]]]:
    """A page with rows of axes, below its title or a head of this height [inch]."""
    top = head or ABOVE * bool(title)
    across = max(3.2, *(row.indent + sum(row.widths) + len(row.widths) * (row.left + row.right) for row in rows))
    down = top + sum(ABOVE + row.height + row.below for row in rows)
    figure = Figure(figsize=(across, down))
    if title:
        write(figure, EDGE, EDGE, title, fontsize=11)
    grid = []
    for row in rows:
        left, places = row.indent + row.left, []
        bottom = 1 - (top + ABOVE + row.height) / down
        for width in row.widths:
            axes = figure.add_axes((left / across, bottom, width / across, row.height / down))
            axes.xaxis.set_label_coords(0.5, -0.27 / row.height)
            axes.yaxis.set_label_coords(-0.48 / width, 0.5)
            places.append(axes)
            left += width + row.right + row.left
        grid.append(places)
        top += ABOVE + row.height + row.below
    return figure, grid


def plots(
    width: float,
    height: float,
    *,
    columns: int = 1,
    rows: int = 1,
    heights: Sequence[float] | None = None,
    title: str = "",
) -> tuple[Figure, list[Axes]]:
    """A figure of plots, each `width` x `height` inches, where matplotlib finds the room that labels and numbers take.

    `heights`: of the rows, relative.
    """
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.06, h_pad=0.06)  # type: ignore[union-attr, call-arg]
    if title:
        figure.suptitle(title, x=EDGE / figure.get_figwidth(), ha="left")
    return figure, list(figure.subplots(rows, columns, squeeze=False, height_ratios=heights).flat)


def decades(axes: Axes) -> None:
    """A logarithmic axis down the side, with its numbers as they are: formulas are not read in these figures."""
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def picture_size(shape: tuple[int, ...], side: float = 6.0) -> tuple[float, float]:
    """Width and height [inch] of a picture of this shape whose longer side is `side` inches."""
    height, width = (max(side * size / max(shape), 0.2) for size in shape)
    return width, height


def show(axes: Axes, picture: np.ndarray, title: str = "", **how: Any) -> None:
    """Draw a picture without axes and frame that fills its area; `how` goes to `imshow`. Colors are in [0, 1]."""
    if picture.ndim == 3:  # as matplotlib would convert it, in a quarter of the time
        picture = np.dstack([(255 * picture).round().astype(np.uint8), np.full(picture.shape[:2], 255, np.uint8)])
    axes.imshow(picture, **{"aspect": "auto"} | how)
    axes.set_title(title)
    axes.set_axis_off()


def draw_map(
    axes: Axes,
    picture: np.ndarray,
    title: str,
    label: str,
    *,
    limits: Limits | None = None,
    colors: str = "cividis",
    note: str = "",
) -> None:
    """Draw an image of values with a color bar, and below it the label of the values and a note."""
    limits = shown_range(picture) if limits is None else limits
    show(axes, picture, title, cmap=colors, vmin=limits.low, vmax=limits.high)
    color_bar(axes, colors, limits)
    note_below(axes, label, note)


def inches(axes: Axes) -> tuple[float, float]:
    """Width and height of axes [inch]."""
    place, figure = axes.get_position(), cast(Figure, axes.figure)
    return place.width * figure.get_figwidth(), place.height * figure.get_figheight()


def note_below(axes: Axes, *lines: str) -> None:
    """Write small text below a picture."""
    words = "\n".join(line for line in lines if line)
    axes.text(0, -4 / 72 / inches(axes)[1], words, transform=axes.transAxes, va="top", fontsize=8, color=MUTED)


def color_bar(axes: Axes, colors: str, limits: Limits, *, gamma: float = 1.0) -> None:
    """Draw a color bar for value^gamma with three numbers; ≤ and ≥ mark values beyond its ends."""
    width, _ = inches(axes)
    bar = AxesImage(axes, cmap=colors, extent=(1 + 0.08 / width, 1 + 0.2 / width, 0, 1), origin="lower")
    bar.set(data=np.linspace(0, 1, 256)[:, None], transform=axes.transAxes, clip_on=False)
    axes.add_artist(bar)
    middle = limits.low + 0.5 ** (1 / gamma) * (limits.high - limits.low)
    below, above = "≤ " * (limits.lowest < limits.low), "≥ " * (limits.highest > limits.high)
    numbers = ((0, below, limits.low, "bottom"), (0.5, "", middle, "center"), (1, above, limits.high, "top"))
    for at, sign, value, side in numbers:
        text = sign + (f"{value:.0f}" if 1000 <= abs(value) < 100_000 else f"{value + 0.0:.3g}")
        axes.text(1 + 0.25 / width, at, text, transform=axes.transAxes, va=side, fontsize=8, color=MUTED)


def spectral_axis(centers: np.ndarray | None, num_bands: int) -> tuple[np.ndarray, str]:
    """Positions of the bands on an axis, and its label."""
    return (np.arange(1.0, num_bands + 1), "band") if centers is None else (centers, "wavelength [nm]")


def evenly(total: int, count: int) -> Sequence[int]:
    """`count` evenly spaced indices of `total`, including the first and the last."""
    return [int(k) for k in np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(int))]
