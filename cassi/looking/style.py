"""The common style of all figures, and their building blocks."""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure as _Figure, SubFigure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox

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

EDGE, BAR, LINE = 0.12, 0.85, 0.15  # of a page; width of a color bar with its numbers; of a line of small text [inch]


class _Layout(ConstrainedLayoutEngine):
    """Twice where there are no rows, as the color bar of a picture that fills the page moves with it.

    Places are rounded, since the last digits of the solver differ from run to run, and with them the pixels.
    """

    def execute(self, fig: Any) -> None:
        super().execute(fig)
        if not fig.subfigs:
            super().execute(fig)
        for row in fig.subfigs:
            row._redo_transform_rel_fig(Bbox(row.bbox_relative.get_points().round(6)))
        for axes in fig.axes:
            axes._set_position(Bbox(axes.get_position(original=True).get_points().round(6)), which="original")


def page(width: float, height: float, title: str = "") -> Figure:
    """A page [inch], where matplotlib finds the room that labels and numbers take."""
    figure = Figure(figsize=(width, height), layout=_Layout(w_pad=EDGE, h_pad=EDGE / 2))
    if title:
        figure.suptitle(escape_bytes(title), x=EDGE / width, ha="left")
    return figure


def escape_bytes(text: str) -> str:
    """Words with names of files, whose bytes that are not UTF-8 become escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def rows_of(width: float, heights: Sequence[float], title: str = "") -> tuple[Figure, list[SubFigure]]:
    """A page with rows of these heights [inch]."""
    figure = page(width, sum(heights) + 2 * LINE * bool(title), title)
    rows: Any = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)
    return figure, list(rows[:, 0])


def plots(
    width: float, height: float, *, columns: int = 1, rows: int = 1, heights: Sequence[float] | None = None,
    title: str = "",
) -> tuple[Figure, list[Axes]]:  # fmt: skip
    """A page of plots, each `width` x `height` inches; `heights`: of the rows, relative."""
    figure = page(columns * width, rows * height, title)
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
    """Draw a picture without axes and frame; `how` goes to `imshow`. Colors are in [0, 1]."""
    if picture.ndim == 3:  # as matplotlib would convert it, in a quarter of the time
        picture = np.dstack([(255 * picture).round().astype(np.uint8), np.full(picture.shape[:2], 255, np.uint8)])
    axes.imshow(picture, **how)
    axes.set_anchor("NW")
    axes.set_title(title)
    axes.set_axis_off()


def draw_map(
    axes: Axes, picture: np.ndarray, title: str, label: str, *, limits: Limits | None = None, colors: str = "cividis",
    note: str = "",
) -> None:  # fmt: skip
    """Draw an image of values with a color bar, and below it the label of the values and a note."""
    limits = shown_range(picture) if limits is None else limits
    show(axes, picture, title, cmap=colors, vmin=limits.low, vmax=limits.high)
    color_bar(axes, colors, limits)
    note_below(axes, label, note)


def note_below(axes: Axes, *lines: str) -> None:
    """Write small text below a picture."""
    words, how = "\n".join(filter(None, lines)), {"va": "top", "fontsize": 8, "color": MUTED}
    axes.annotate(words, (0, 0), (0, -4), "axes fraction", "offset points", **how)  # type: ignore[arg-type]


def color_bar(axes: Axes, colors: str, limits: Limits, *, gamma: float = 1.0, width: float = 0.03) -> None:
    """Draw a color bar for value^gamma with three numbers; ≤ and ≥ mark values beyond its ends."""
    middle = limits.low + 0.5 ** (1 / gamma) * (limits.high - limits.low)
    below, above = "≤ " * (limits.lowest < limits.low), "≥ " * (limits.highest > limits.high)
    bar = axes.inset_axes((1 + width / 2, 0, width, 1))
    bar.imshow(np.linspace(0, 1, 256)[:, None], cmap=colors, origin="lower", aspect="auto", extent=(0, 1, 0, 1))
    bar.set_axis_off()
    numbers = ((0, below, limits.low, "bottom"), (0.5, "", middle, "center"), (1, above, limits.high, "top"))
    for at, sign, value, side in numbers:
        text = sign + (f"{value:.0f}" if 1000 <= abs(value) < 100_000 else f"{value + 0.0:.3g}")
        bar.text(1.4, at, text, va=side, fontsize=8, color=MUTED)


def spectral_axis(centers: np.ndarray | None, num_bands: int) -> tuple[np.ndarray, str]:
    """Positions of the bands on an axis, and its label."""
    return (np.arange(1.0, num_bands + 1), "band") if centers is None else (centers, "wavelength [nm]")


def evenly(total: int, count: int) -> Sequence[int]:
    """`count` evenly spaced indices of `total`, including the first and the last."""
    return [int(k) for k in np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(int))]
