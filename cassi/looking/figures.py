"""Figures of a measurement and its reconstruction.

Each function returns a matplotlib `Figure`; none touches pyplot, a display or global state, so they work in a script,
a notebook, a server or a thread. Cubes are (C, H, W) tensors or arrays, in any unit.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor

from cassi.looking.color import cube_to_srgb, wavelength_to_srgb, white_level
from cassi.looking.spectra_points import choose_points
from cassi.solvers.loop import Record

__all__ = [
    "bands",
    "choose_points",
    "convergence",
    "save_figures",
    "snapshot",
    "spectra",
    "spectral_covariance",
    "srgb",
    "summary",
    "uncertainty_map",
]

Array = Tensor | np.ndarray
Scale = Literal["common", "band"]
Points = Sequence[tuple[int, int]]

# M. Okabe and K. Ito, "Color universal design", 2008, without yellow, which is too pale for a line on white.
_PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_INK, _MUTED, _RULE = "#222222", "#666666", "#dddddd"
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "text.color": _INK,
    "axes.edgecolor": _MUTED,
    "axes.labelcolor": _INK,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titlepad": 5.0,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "axes.axisbelow": True,
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
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


@rc_context(_STYLE)
def snapshot(y: Array, *, unit: str = "", title: str = "Snapshot") -> Figure:
    """The measurement as the detector saw it.

    The grey scale runs from the 0.5th to the 99.5th percentile, so that single hot pixels do not darken the rest.

    Args:
        y: (H, W') in any unit.
        unit: what the values count, for the color bar.
        title: heading.

    Returns:
        The figure.

    Raises:
        ValueError: y is not one picture.

    Example:
        >>> figure = snapshot(np.random.default_rng(0).random((64, 80)))
    """
    picture = _picture(y, "y")
    figure = Figure(figsize=_size_for(picture.shape, extra=(1.9, 0.95)), layout=_layout())
    _draw_snapshot(figure.add_subplot(), picture, unit, title, ticks=True)
    return figure


@rc_context(_STYLE)
def bands(
    cube: Array,
    wavelengths: ArrayLike | Tensor | None = None,
    *,
    count: int = 28,
    scale: Scale = "common",
    tint: bool = True,
    unit: str = "",
    title: str = "",
) -> Figure:
    """A grid of bands, each in the color of its wavelength.

    Args:
        cube: (C, H, W).
        wavelengths: (C,) band centers [nm]; None: titles say "band 12" (counted from 1) and the pictures are grey.
        count: show at most this many bands, evenly chosen.
        scale: "common": one range for all, 0 to the 99.5th percentile, so that brightness compares between bands;
            "band": each band its own range, so that a dim one shows its structure. The heading says which.
        tint: color by wavelength; False: grey.
        unit: what the values count.
        title: first words of the heading.

    Returns:
        The figure.

    Raises:
        ValueError: not one cube, a count of wavelengths that is not C, `count` below 1, or an unknown scale.

    Example:
        >>> figure = bands(np.random.default_rng(0).random((8, 32, 32)), np.linspace(450, 650, 8))
    """
    values, centers = _cube(cube, wavelengths)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if scale not in ("common", "band"):
        raise ValueError(f"scale must be 'common' or 'band', got {scale!r}")
    chosen = _evenly(len(values), count)
    top = _robust_top(values)
    columns = _columns(len(chosen), values.shape[2] / values.shape[1])
    page = 11.0
    figure = Figure(layout=_layout())
    axes = figure.add_subplot()
    height = _draw_bands(axes, values, centers, chosen, columns, top if scale == "common" else None, tint, page)
    figure.set_size_inches(page + 0.2, height + 0.4)
    limits = f"all bands on one scale, 0 to {top:.3g} {unit}" if scale == "common" else "each band on its own scale"
    selection = f"{len(chosen)} of {len(values)} bands" if len(chosen) < len(values) else f"{len(values)} bands"
    heading = ", ".join(part for part in (title, selection, limits.rstrip()) if part)
    figure.suptitle(heading, x=0.01, ha="left")
    return figure


@rc_context(_STYLE)
def srgb(
    cube: Array, wavelengths: ArrayLike | Tensor | None = None, *, white: float | None = None, title: str = ""
) -> Figure:
    """The cube as a person would see it, through the CIE 1931 observer in daylight (see `cube_to_srgb`).

    Args:
        cube: (C, H, W).
        wavelengths: (C,) band centers [nm]; None gives a false color, and the heading says so.
        white: cube value shown as white; None: automatic.
        title: heading; empty: what kind of color it is.

    Returns:
        The figure.

    Raises:
        ValueError: not one cube, or wavelengths that do not fit.

    Example:
        >>> figure = srgb(np.random.default_rng(0).random((8, 32, 32)), np.linspace(450, 650, 8))
    """
    values, centers = _cube(cube, wavelengths)
    figure = Figure(figsize=_size_for(values.shape[1:], extra=(0.2, 0.5)), layout=_layout())
    axes = figure.add_subplot()
    picture, kind = _render(values, centers, white)
    _show(axes, picture)
    axes.set_title(title or kind)
    return figure


@rc_context(_STYLE)
def spectra(
    cube: Array,
    wavelengths: ArrayLike | Tensor | None = None,
    *,
    points: Points | None = None,
    truth: Array | None = None,
    uncertainty: Array | None = None,
    unit: str = "",
    title: str = "",
) -> Figure:
    """Spectra at marked points, beside the picture they are taken from.

    Args:
        cube: (C, H, W).
        wavelengths: (C,) band centers [nm]; None: the axis counts bands from 1.
        points: (row, column) pairs, counted from 0; None: `choose_points` takes six, from the truth if there is one.
        truth: (C, H, W), dashed; each panel then states the spectral angle between the two.
        uncertainty: (C, H, W) standard deviation, drawn as a band of one on each side.
        unit: what the values count.
        title: heading.

    Returns:
        The figure.

    Raises:
        ValueError: not one cube, shapes that differ, or a point outside the picture.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> figure = spectra(rng.random((8, 32, 32)), np.linspace(450, 650, 8), points=[(3, 4), (20, 9)])
    """
    values, centers = _cube(cube, wavelengths)
    reference, spread = _like(truth, values, "truth"), _like(uncertainty, values, "uncertainty")
    chosen = (
        _check_points(points, values)
        if points is not None
        else choose_points(values if reference is None else reference)
    )
    height, width = values.shape[1:]
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    left = float(np.clip(4.2 * width / height, 3.0, 6.0))
    figure = Figure(figsize=(left + 2.4 * columns + 0.2, max(4.6, 2.1 * rows)), layout=_layout())
    grid = figure.add_gridspec(1, 2, width_ratios=(left, 2.4 * columns))
    image_part, plot_part = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    picture, kind = _render(values, centers, None)
    axes = image_part.add_subplot()
    _show(axes, picture)
    axes.set_title(kind)
    _mark(axes, chosen)
    panels = plot_part.subplots(rows, columns, squeeze=False, sharex=True)
    legend = _draw_spectra(panels, values, centers, chosen, reference, spread, unit)
    if len(legend) > 1:
        plot_part.legend(list(legend.values()), list(legend), loc="outside upper left", ncols=3)
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    return figure


@rc_context(_STYLE)
def convergence(history: Sequence[Record], *, title: str = "Convergence") -> Figure:
    """Residual and change of a solver against iterations and seconds, on a logarithmic axis.

    Args:
        history: the records of a `Result`; empty for a closed-form solver, which the figure then says.
        title: heading.

    Returns:
        The figure.

    Example:
        >>> figure = convergence([Record(k, 0.1 * k, 0.5**k, 0.3**k) for k in range(1, 20)])
    """
    figure = Figure(figsize=(8.4, 3.3), layout=_layout())
    left = figure.add_subplot(1, 2, 1)
    right = figure.add_subplot(1, 2, 2, sharey=left)
    _draw_convergence(left, history, "iteration")
    _draw_convergence(right, history, "seconds", legend=False)
    figure.suptitle(title, x=0.01, ha="left")
    return figure


@rc_context(_STYLE)
def summary(
    y: Array,
    cube: Array,
    wavelengths: ArrayLike | Tensor | None = None,
    *,
    history: Sequence[Record] = (),
    truth: Array | None = None,
    uncertainty: Array | None = None,
    points: Points | None = None,
    unit: str = "",
    cube_unit: str = "",
    title: str = "",
    caption: str = "",
) -> Figure:
    """One page: snapshot, picture (and the true one), eight bands, spectra at marked points, convergence.

    Args:
        y: (H, W') the measurement.
        cube: (C, H, W) its reconstruction.
        wavelengths: (C,) band centers [nm] or None.
        history: records of the solver.
        truth, uncertainty: (C, H, W), as in `spectra`.
        points: (row, column) pairs, at most four; None: chosen.
        unit: what the values of `y` count.
        cube_unit: what the values of `cube` count.
        title: heading.
        caption: a line or two under it, such as the solver and its figures.

    Returns:
        The figure.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> figure = summary(rng.random((32, 46)), rng.random((8, 32, 32)), np.linspace(450, 650, 8))
    """
    picture = _picture(y, "y")
    values, centers = _cube(cube, wavelengths)
    reference, spread = _like(truth, values, "truth"), _like(uncertainty, values, "uncertainty")
    chosen = (
        _check_points(points, values)
        if points is not None
        else choose_points(values if reference is None else reference, 4)
    )[:4]
    height, width = values.shape[1:]

    page = 13.0
    aspects = [picture.shape[1] / picture.shape[0], *[width / height] * (1 if reference is None else 2)]
    picture_height = min(4.4, (page - 1.6) / sum(aspects))
    widths = [aspect * picture_height for aspect in aspects]
    widths[0] += 1.0  # the color bar and its numbers
    top_height = picture_height + 0.35
    figure = Figure(layout=_layout())
    lines = caption.count("\n") + 1 if caption else 0
    heading = 0.12 + 0.3 * bool(title) + 0.2 * lines
    shown = _evenly(len(values), 8)
    band_height = (page / max(len(shown), 6)) * height / width + 0.5
    heights = (heading, top_height, band_height, 2.5)
    figure.set_size_inches(page, sum(heights))
    grid = figure.add_gridspec(4, 1, height_ratios=heights)
    head, pictures, band_row, plots = (figure.add_subfigure(grid[k]) for k in range(4))

    if title:
        head.text(0.008, 1 - 0.1 / heading, title, fontsize=14, fontweight="bold", va="top")
    if caption:
        offset = 0.1 + 0.3 * bool(title)
        head.text(0.008, 1 - offset / heading, caption, fontsize=9.5, color=_MUTED, va="top", linespacing=1.4)

    columns = pictures.add_gridspec(1, len(widths), width_ratios=widths)
    _draw_snapshot(pictures.add_subplot(columns[0]), picture, unit, "Snapshot", ticks=False)
    rendered = pictures.add_subplot(columns[1])
    image, kind = _render(values, centers, None)
    _show(rendered, image)
    rendered.set_title(f"Reconstruction, {kind}")
    _mark(rendered, chosen)
    if reference is not None:
        true = pictures.add_subplot(columns[2])
        _show(true, _render(reference, centers, _white(values, centers))[0])
        true.set_title("Truth, the same exposure")
        _mark(true, chosen)

    top = _robust_top(values)
    strip = band_row.add_subplot()
    _draw_bands(strip, values, centers, shown, max(len(shown), 6), top, True, page)
    strip.set_xlabel(f"bands on one scale, 0 to {top:.3g} {cube_unit}".rstrip(), fontsize=8, color=_MUTED, loc="left")

    columns = plots.add_gridspec(1, len(chosen) + 1)
    panels = [plots.add_subplot(columns[k]) for k in range(len(chosen))]
    legend = _draw_spectra(np.array([panels]), values, centers, chosen, reference, spread, cube_unit)
    if len(legend) > 1:
        plots.legend(list(legend.values()), list(legend), loc="outside upper left", ncols=3)
    last = plots.add_subplot(columns[len(chosen)])
    _draw_convergence(last, history, "iteration")
    last.set_title("Convergence", fontsize=8.5)
    return figure


@rc_context(_STYLE)
def spectral_covariance(covariance: Array, wavelengths: ArrayLike | Tensor | None = None) -> Figure:
    """The covariance between bands, the correlation it means, and its eigenvalues.

    Args:
        covariance: (C, C), symmetric, >= 0 on the diagonal, in the cube's unit squared.
        wavelengths: (C,) band centers [nm] in any order; None: bands counted from 1.

    Returns:
        The figure. The last panel says how many eigenvectors hold 99 % of the variance.

    Raises:
        ValueError: not square, or a count of wavelengths that is not C.

    Example:
        >>> samples = np.random.default_rng(0).random((100, 8))
        >>> figure = spectral_covariance(np.cov(samples.T), np.linspace(450, 650, 8))
    """
    matrix = _array(covariance).astype(np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"covariance must be (bands, bands), got shape {matrix.shape}")
    size = len(matrix)
    centers = _centers(wavelengths, size)
    if centers is not None:
        order = np.argsort(centers)
        matrix, centers = matrix[np.ix_(order, order)], centers[order]
    axis, label = _spectral_axis(centers, size)
    deviation = np.sqrt(np.maximum(np.diag(matrix), 0))
    scale = np.outer(deviation, deviation)
    correlation = np.divide(matrix, scale, out=np.zeros_like(matrix), where=scale > 0)
    eigenvalues = np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1]

    figure = Figure(figsize=(12.6, 3.7), layout=_layout())
    grid = figure.add_gridspec(1, 3, width_ratios=(1.1, 1.1, 1.0))
    left, middle, right = (figure.add_subplot(grid[k]) for k in range(3))
    edges = _edges(axis)
    limit = float(np.abs(matrix).max()) or 1.0
    signed = bool((matrix < -0.01 * limit).any())
    for axes, shown, heading, colors, norm in (
        (
            left,
            matrix,
            "Covariance [unit of the cube, squared]",
            "RdBu_r" if signed else "cividis",
            Normalize(-limit * signed, limit),
        ),
        (middle, correlation, "Correlation", "RdBu_r", Normalize(-1, 1)),
    ):
        mesh = axes.pcolormesh(edges, edges, shown, cmap=colors, norm=norm, rasterized=True)
        axes.set_aspect("equal")
        axes.invert_yaxis()
        axes.set_title(heading)
        axes.set_xlabel(label)
        axes.set_ylabel(label)
        bar = figure.colorbar(mesh, ax=axes, fraction=0.05, pad=0.02)
        bar.outline.set_visible(False)
    positive = np.where(eigenvalues > 0, eigenvalues, np.nan)
    total = np.nansum(positive)
    right.semilogy(np.arange(1, size + 1), positive, "o-", color=_PALETTE[0], markersize=4)
    right.grid(True, axis="y")
    right.set_xlabel("eigenvector")
    right.set_ylabel("eigenvalue [unit of the cube, squared]")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    if total > 0:
        needed = int(np.searchsorted(np.nancumsum(positive) / total, 0.99) + 1)
        right.axvline(needed, color=_PALETTE[1], linewidth=1, linestyle="--")
        right.annotate(
            f"{needed} of {size} hold 99 % of the variance",
            (needed, 0.96),
            xycoords=("data", "axes fraction"),
            xytext=(5, 0),
            textcoords="offset points",
            color=_PALETTE[1],
            va="top",
            fontsize=8,
        )
    right.set_title("Eigenvalues")
    return figure


@rc_context(_STYLE)
def uncertainty_map(deviation: Array, visibility: Array | None = None, *, unit: str = "") -> Figure:
    """Where a cube is uncertain, and where the snapshot says little.

    Args:
        deviation: (C, H, W) standard deviation of each voxel; drawn is the root of its mean square over the bands.
        visibility: (C, H, W) share of each voxel that the measurement alone determines, 0 to 1; drawn is the sum over
            the bands, the number of unknowns of a pixel that the snapshot fixes.
        unit: of the deviation.

    Returns:
        The figure.

    Raises:
        ValueError: not (C, H, W), or shapes that differ.

    Example:
        >>> figure = uncertainty_map(np.random.default_rng(0).random((4, 32, 48)))
    """
    values, _ = _cube(deviation, None)
    seen = _like(visibility, values, "visibility")
    panels = [
        (np.sqrt((values.astype(np.float64) ** 2).mean(0)), "Standard deviation, root mean square over bands", unit)
    ]
    if seen is not None:
        panels.append((seen.sum(0), f"Of {len(seen)} unknowns of a pixel, how many the snapshot fixes", ""))
    width, height = _size_for(values.shape[1:], extra=(1.9, 0.95))
    figure = Figure(figsize=(width * len(panels), height), layout=_layout())
    for axes, (picture, title, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        finite = _sample(picture)
        high = float(np.percentile(finite, 99.5)) if finite.size else 1.0
        image = axes.imshow(picture, cmap="cividis", vmin=0, vmax=high if high > 0 else 1.0)
        axes.set_title(title)
        clipped = "max" if picture.max() > high else "neither"
        bar = figure.colorbar(image, cax=axes.inset_axes((1.015, 0, 0.03, 1)), extend=clipped)
        bar.outline.set_visible(False)
        bar.set_label(label)
        _frame(axes)
    return figure


def save_figures(figures: Mapping[str, Figure], folder: str | os.PathLike[str], *, dpi: float = 150) -> list[Path]:
    """Write each figure as `<folder>/<name>.png`; a reader never sees half a file.

    Each picture is written under a temporary name beside its place and moved there; an older one is replaced.

    Args:
        figures: name to figure; a name is a plain file name without suffix.
        folder: made if it does not exist.
        dpi: dots per inch.

    Returns:
        The paths, in the order given.

    Raises:
        ValueError: a name that would leave the folder.
        OSError: the folder cannot be made or written.

    Example:
        >>> folder = tempfile.mkdtemp()
        >>> [path.name for path in save_figures({"snapshot": snapshot(np.eye(8))}, folder, dpi=50)]
        ['snapshot.png']
    """
    for name in figures:
        if not name or Path(name).name != name:
            raise ValueError(f"figure name must be a plain file name, got {name!r}")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        path = target / f"{name}.png"
        handle, temporary = tempfile.mkstemp(prefix=f".{name}-", suffix=".png", dir=target)
        try:
            with os.fdopen(handle, "wb") as file, rc_context(_STYLE):
                figure.savefig(file, format="png", dpi=dpi, facecolor="white")
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        paths.append(path)
    return paths


# Drawing, shared by the single figures and the summary


def _draw_snapshot(axes: Axes, picture: np.ndarray, unit: str, title: str, *, ticks: bool) -> None:
    finite = _sample(picture)
    low, high = (float(v) for v in np.percentile(finite, (0.5, 99.5))) if finite.size else (0.0, 1.0)
    low = 0.0 if 0 <= low < 0.25 * high else low
    high = high if high > low else low + 1
    image = axes.imshow(picture, cmap="gray", vmin=low, vmax=high)
    axes.set_title(f"{title}, {picture.shape[0]} x {picture.shape[1]} px")
    clipped = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(
        (bool(finite.min() < low), bool(finite.max() > high)) if finite.size else (False, False), "neither"
    )
    bar = axes.figure.colorbar(image, cax=axes.inset_axes((1.015, 0, 0.03, 1)), extend=clipped)
    bar.outline.set(edgecolor=_MUTED, linewidth=0.5)  # the arrow of a cut scale is as white as the page
    bar.set_label(unit if unit else "measured value")
    bar.locator = MaxNLocator(5)
    bar.update_ticks()
    _frame(axes)
    if ticks:
        axes.set_xlabel("column [px]")
        axes.set_ylabel("row [px]")
    else:
        axes.set_xticks([])
        axes.set_yticks([])


def _draw_bands(
    axes: Axes,
    values: np.ndarray,
    centers: np.ndarray | None,
    chosen: Sequence[int],
    columns: int,
    top: float | None,
    tint: bool,
    page: float,
) -> float:
    """One picture of all chosen bands with their names, `page` inches wide; returns its height in inches."""
    shrink = max(1, -(-max(values.shape[1:]) // 512))
    height, width = (len(range(0, size, shrink)) for size in values.shape[1:])
    gap = max(1, round(0.03 * width))
    pixels_per_inch = (columns * (width + gap) - gap) / page
    pitch = height + max(1, round(0.25 * pixels_per_inch))  # room for a line of text above each band
    rows = -(-len(chosen) // columns)
    mosaic = np.ones((rows * pitch, columns * (width + gap) - gap, 3), dtype=np.float32)
    for k, index in enumerate(chosen):
        band = values[index]
        high = top if top is not None else _robust_top(band)
        # Light is linear and the display is not: the same curve as in the sRGB picture, nearly.
        shown = np.clip(np.nan_to_num(band[::shrink, ::shrink], posinf=0, neginf=0) / high, 0, 1) ** (1 / 2.2)
        y, x = (k // columns) * pitch + pitch - height, (k % columns) * (width + gap)
        colors = _band_colors(None if centers is None or not tint else float(centers[index]))
        mosaic[y : y + height, x : x + width] = colors(shown)[..., :3]
        axes.annotate(
            _band_name(centers, index),
            (x - 0.5, y - 0.5),
            xytext=(0, 2.5),
            textcoords="offset points",
            fontsize=8.5,
        )
    _show(axes, mosaic)
    return len(mosaic) / pixels_per_inch


def _draw_spectra(
    panels: np.ndarray,
    values: np.ndarray,
    centers: np.ndarray | None,
    chosen: Points,
    truth: np.ndarray | None,
    uncertainty: np.ndarray | None,
    unit: str,
) -> dict[str, Artist]:
    """One panel per point; returns what a legend needs, name to artist."""
    legend: dict[str, Artist] = {}
    axis, label = _spectral_axis(centers, len(values))
    order = np.argsort(axis)
    axis = axis[order]
    rows, columns = panels.shape
    style = {"marker": "o", "markersize": 3} if len(axis) < 12 else {}
    for k, axes in enumerate(panels.flat):
        if k >= len(chosen):
            axes.set_axis_off()
            continue
        row, column = chosen[k]
        color = _PALETTE[k % len(_PALETTE)]
        spectrum = values[:, row, column][order]
        (line,) = axes.plot(axis, spectrum, color=color, zorder=3, **style)
        legend.setdefault("estimate", line)
        heading = f"row {row}, column {column}"
        if uncertainty is not None:
            spread = uncertainty[:, row, column][order]
            band = axes.fill_between(axis, spectrum - spread, spectrum + spread, color=color, alpha=0.22, linewidth=0)
            legend.setdefault("± 1 standard deviation", band)
        if truth is not None:
            true = truth[:, row, column][order]
            (line,) = axes.plot(axis, true, color=_INK, linestyle=(0, (4, 2)), linewidth=1.2, zorder=4)
            legend.setdefault("truth (and the angle to it)", line)
            heading += f" · {_angle(spectrum, true):.1f}°"
        axes.set_title(heading, fontsize=8.5, x=0.08)
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
        low, high = axes.get_ylim()
        axes.set_ylim(min(0.0, low), max(high, 1e-12))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=centers is None))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        if k // columns == rows - 1 or k + columns >= len(chosen):
            axes.set_xlabel(label)
            axes.tick_params(labelbottom=True)
        if k % columns == 0:
            axes.set_ylabel(unit if unit else "intensity")
    return legend


def _draw_convergence(
    axes: Axes, history: Sequence[Record], against: Literal["iteration", "seconds"], *, legend: bool = True
) -> None:
    axes.set_xlabel("iteration" if against == "iteration" else "time [s]")
    if not history:
        axes.set_axis_off()
        axes.text(0.5, 0.5, "closed form:\nno iterations", ha="center", va="center", color=_MUTED)
        return
    at = np.array([getattr(record, against) for record in history], dtype=float)
    drawn, lowest, highest = False, [], []
    for name, text, color, dash in (
        ("residual", "residual |y - Φv| / |y|", _PALETTE[0], "-"),
        ("change", "change |v - v'| / |v'|", _PALETTE[1], (0, (4, 1.5))),
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
        axes.set_ylim(bottom, top * (top / bottom) ** 0.4)  # room for the legend above the curves
    axes.grid(True)
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=against == "iteration"))
    if drawn and legend:
        axes.legend(loc="upper right")


def _show(axes: Axes, picture: np.ndarray) -> None:
    axes.imshow(picture)
    axes.set_xticks([])
    axes.set_yticks([])
    _frame(axes)


def _frame(axes: Axes) -> None:
    axes.set_anchor("NW")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _mark(axes: Axes, points: Points) -> None:
    """Numbered rings; the number stands on the side where the picture has room."""
    height, width = axes.images[0].get_size()
    for k, (row, column) in enumerate(points):
        color = _PALETTE[k % len(_PALETTE)]
        axes.plot(column, row, "o", markersize=7, markerfacecolor="none", markeredgecolor="white", markeredgewidth=3)
        axes.plot(column, row, "o", markersize=7, markerfacecolor="none", markeredgecolor=color, markeredgewidth=1.6)
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


# Small helpers


def _array(values: Array) -> np.ndarray:
    array: np.ndarray = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return array


def _picture(y: Array, name: str) -> np.ndarray:
    picture = _array(y)
    if picture.ndim != 2 or 0 in picture.shape:
        raise ValueError(f"{name} must be one picture (height, width), got shape {picture.shape}: select one frame")
    return picture


def _cube(cube: Array, wavelengths: ArrayLike | Tensor | None) -> tuple[np.ndarray, np.ndarray | None]:
    values = _array(cube)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(f"cube must be (bands, height, width), got shape {values.shape}: select one frame")
    return values, _centers(wavelengths, len(values))


def _centers(wavelengths: ArrayLike | Tensor | None, num_bands: int) -> np.ndarray | None:
    if wavelengths is None:
        return None
    centers = np.asarray(wavelengths, dtype=np.float64)
    if centers.shape != (num_bands,):
        raise ValueError(f"wavelengths must have shape ({num_bands},), got {centers.shape}: one per band")
    return centers


def _like(other: Array | None, values: np.ndarray, name: str) -> np.ndarray | None:
    if other is None:
        return None
    array = _array(other)
    if array.shape != values.shape:
        raise ValueError(f"{name} must have the shape of the cube {values.shape}, got {array.shape}")
    return array


def _check_points(points: Points, values: np.ndarray) -> list[tuple[int, int]]:
    height, width = values.shape[1:]
    for row, column in points:
        if not (0 <= row < height and 0 <= column < width):
            raise ValueError(f"point (row {row}, column {column}) lies outside the picture of {height} x {width} px")
    if not points:
        raise ValueError("points must not be empty: pass None to have them chosen")
    return [(int(row), int(column)) for row, column in points]


def _layout() -> ConstrainedLayoutEngine:
    return ConstrainedLayoutEngine(w_pad=0.07, h_pad=0.06, wspace=0.02, hspace=0.02)


def _white(values: np.ndarray, centers: np.ndarray | None) -> float:
    return white_level(values, centers if _visible(centers) else None)


def _visible(centers: np.ndarray | None) -> bool:
    return centers is not None and bool(((centers >= 400) & (centers <= 700)).any())


def _render(values: np.ndarray, centers: np.ndarray | None, white: float | None) -> tuple[np.ndarray, str]:
    """The picture and what to call it; bands outside the visible range get the false color."""
    if not _visible(centers):
        return cube_to_srgb(values, None, white=white), "false color"
    return cube_to_srgb(values, centers, white=white), "sRGB (CIE 1931)"


def _sample(values: np.ndarray) -> np.ndarray:
    """At most about a million finite values, evenly taken, so that percentiles stay cheap."""
    flat: np.ndarray = values.reshape(-1)
    flat = flat[:: max(1, flat.size // 1_000_000)]
    finite: np.ndarray = flat[np.isfinite(flat)]
    return finite


def _robust_top(values: np.ndarray) -> float:
    finite = _sample(values)
    top = float(np.percentile(finite, 99.5)) if finite.size else 0.0
    return top if top > 0 else 1.0


def _evenly(total: int, count: int) -> list[int]:
    return [int(k) for k in np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(int))]


def _columns(count: int, aspect: float) -> int:
    """As many columns as make the page about 3:2, without a nearly empty last row."""
    ideal = max(1, min(count, round(np.sqrt(1.6 * count / aspect))))
    around = range(max(1, ideal - 1), min(count, ideal + 1) + 1)
    return min(around, key=lambda c: (-count % c / c, abs(c - ideal), -c))


def _size_for(shape: tuple[int, ...], *, extra: tuple[float, float]) -> tuple[float, float]:
    """Figure size [inch] for a picture of this shape, its longer side 6 inches."""
    height, width = shape
    scale = 6 / max(height, width)
    return max(width * scale, 2.5) + extra[0], max(height * scale, 1.2) + extra[1]


def _band_name(centers: np.ndarray | None, index: int) -> str:
    if centers is None:
        return f"band {index + 1}"
    dense = len(centers) > 1 and np.abs(np.diff(centers)).min() < 2
    return f"{centers[index]:.1f} nm" if dense else f"{centers[index]:.0f} nm"


def _band_colors(wavelength: float | None) -> LinearSegmentedColormap:
    """Black over the color of the wavelength to nearly white; grey where the wavelength is unknown or invisible."""
    if wavelength is None or not 400 <= wavelength <= 720:
        return LinearSegmentedColormap.from_list("grey", ["black", "white"])
    soft = 0.78 * wavelength_to_srgb(wavelength) + 0.22  # the pure color glares
    return LinearSegmentedColormap.from_list(
        "tint", [(0, "black"), (0.7, tuple(0.8 * soft)), (1, tuple(0.3 * soft + 0.7))]
    )


def _spectral_axis(centers: np.ndarray | None, num_bands: int) -> tuple[np.ndarray, str]:
    return (np.arange(1.0, num_bands + 1), "band") if centers is None else (centers, "wavelength [nm]")


def _edges(axis: np.ndarray) -> np.ndarray:
    """Cell borders around the band centers."""
    if len(axis) == 1:
        return np.array([axis[0] - 0.5, axis[0] + 0.5])
    between = (axis[1:] + axis[:-1]) / 2
    return np.concatenate([[2 * axis[0] - between[0]], between, [2 * axis[-1] - between[-1]]])


def _angle(a: np.ndarray, b: np.ndarray) -> float:
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(np.degrees(np.arccos(np.clip(a @ b / norm, -1, 1)))) if norm > 0 else float("nan")
