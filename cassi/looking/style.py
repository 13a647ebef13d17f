"""How every figure looks, the pieces all of them use, and the checks of what they are given."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor

from cassi.looking.color import Limits, shown_range

Array = Tensor | np.ndarray

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
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
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
    "figure.dpi": 100.0,
    "figure.titlesize": 11.0,
}
styled = rc_context(_STYLE)  # decorates a function that draws; matplotlib's settings are as before when it returns


def layout() -> ConstrainedLayoutEngine:
    """The room around and between the parts of a figure."""
    return ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.06, wspace=0.02, hspace=0.02)


def size_for(shape: tuple[int, ...], *, extra: tuple[float, float], side: float = 6.0) -> tuple[float, float]:
    """Figure size [inch] for a picture of this shape, its longer side `side` inches, and `extra` around it."""
    height, width = shape
    scale = side / max(height, width)
    return max(width * scale, 2.5) + extra[0], max(height * scale, 1.2) + extra[1]


def show(axes: Axes, picture: np.ndarray, title: str = "", **how: Any) -> Any:
    """A picture without axis and frame, in the upper left of its place; `how` goes to `imshow`."""
    image = axes.imshow(picture, **how)
    axes.set(xticks=[], yticks=[], title=title)
    axes.set_anchor("NW")
    for spine in axes.spines.values():
        spine.set_visible(False)
    return image


def draw_map(
    axes: Axes,
    picture: np.ndarray,
    title: str,
    label: str,
    *,
    limits: Limits | None = None,
    colors: str = "cividis",
    ticks: bool = False,
) -> None:
    """A picture of numbers with its color bar, which says what is cut; `ticks` adds rows and columns."""
    limits = shown_range(picture) if limits is None else limits
    image = show(axes, picture, title, cmap=colors, vmin=limits.low, vmax=limits.high)
    color_bar(axes, image, label, limits)
    if ticks:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.set(xlabel="column [px]", ylabel="row [px]")


def color_bar(axes: Axes, mappable: ScalarMappable, label: str, limits: Limits, *, width: float = 0.03) -> Colorbar:
    """A color bar right of a picture, as high as it; arrows and words say what lies beyond its ends."""
    bar = axes.figure.colorbar(mappable, cax=axes.inset_axes((1 + width / 2, 0, width, 1)), extend=limits.extend)
    bar.outline.set(edgecolor=MUTED, linewidth=0.5)  # the arrow of a cut scale can be as white as the page
    bar.set_label("\n".join(part for part in (label, limits.clipped) if label and part), fontsize=8)
    bar.locator = MaxNLocator(5 if label else 2)
    bar.update_ticks()
    return bar


# What figures are given, checked


def as_array(values: Array) -> np.ndarray:
    """A tensor or an array as an array in memory."""
    array: np.ndarray = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return array


def as_picture(y: Array, name: str) -> np.ndarray:
    """One picture (H, W).

    Raises:
        ValueError: another rank, or empty.
    """
    picture = as_array(y)
    if picture.ndim != 2 or 0 in picture.shape:
        raise ValueError(f"{name} must be one picture (height, width), got shape {picture.shape}: select one frame")
    return picture


def as_cube(cube: Array, wavelengths: ArrayLike | Tensor | None) -> tuple[np.ndarray, np.ndarray | None]:
    """One cube (C, H, W) and its band centers (C,).

    Raises:
        ValueError: another rank, empty, or a count of wavelengths that is not C.
    """
    values = as_array(cube)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(f"cube must be (bands, height, width), got shape {values.shape}: select one frame")
    return values, as_centers(wavelengths, len(values))


def as_centers(wavelengths: ArrayLike | Tensor | None, num_bands: int) -> np.ndarray | None:
    """Band centers (C,) or None.

    Raises:
        ValueError: their count is not C.
    """
    if wavelengths is None:
        return None
    centers = np.asarray(wavelengths, dtype=np.float64)
    if centers.shape != (num_bands,):
        raise ValueError(f"wavelengths must have shape ({num_bands},), got {centers.shape}: one per band")
    return centers


def like(other: Array | None, values: np.ndarray, name: str) -> np.ndarray | None:
    """Another cube of the same shape, or None.

    Raises:
        ValueError: another shape.
    """
    if other is None:
        return None
    array = as_array(other)
    if array.shape != values.shape:
        raise ValueError(f"{name} must have the shape of the cube {values.shape}, got {array.shape}")
    return array


def spectral_axis(centers: np.ndarray | None, num_bands: int) -> tuple[np.ndarray, str]:
    """Where bands stand on an axis, and its label."""
    return (np.arange(1.0, num_bands + 1), "band") if centers is None else (centers, "wavelength [nm]")


def evenly(total: int, count: int) -> Sequence[int]:
    """`count` of `total` things, evenly chosen, first and last among them."""
    return [int(k) for k in np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(int))]
