"""Figures of a measurement and its reconstruction.

Each function returns a matplotlib `Figure`; none touches pyplot, a display or global state, so they work in a script,
a notebook, a server or a thread. Cubes are (C, H, W) tensors or arrays, in any unit.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

from cassi.files.atomic import replacing
from cassi.kernels.covariance import covariance_sum, pixel_mean
from cassi.looking.color import Limits, as_array, is_visible, render, shown_range, value_label, white_level
from cassi.looking.drawing import check_points, draw_points, draw_spectra, draw_strip, logarithmic, strip_of
from cassi.looking.metrics import band_psnr, residual_whiteness, spectral_angles
from cassi.looking.report_data import ReportData
from cassi.looking.spectra_points import choose_points
from cassi.looking.style import (
    ABOVE,
    BAR,
    BELOW,
    EDGE,
    LEFT,
    LINE,
    MUTED,
    PALETTE,
    WARNING,
    Array,
    Figure,
    Row,
    as_centers,
    as_cube,
    as_picture,
    color_bar,
    draw_map,
    evenly,
    like,
    note_below,
    page,
    picture_size,
    show,
    spectral_axis,
    styled,
    write,
)
from cassi.solvers.loop import Record

Points = Sequence[tuple[int, int]]
PAGE = 13.0  # width of the large figures [inch]
WORDS = 150  # letters of a line in the heading of a page
LOWEST = 1.8  # picture of the summary, where fewer side by side make it higher [inch]


@styled
def snapshot(y: Array, *, unit: str = "", title: str = "Snapshot") -> Figure:
    """The measurement as the detector saw it.

    The grey scale runs from the 0.5th to the 99.5th percentile, so that hot pixels do not darken the rest.

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
    picture = as_picture(y, "y")
    width, height = picture_size(picture.shape)
    figure, ((axes,),) = page(Row((width,), height, below=BELOW + 2 * LINE))
    draw_map(axes, picture, _sized(title, picture), value_label(unit), colors="gray", ticks=True)
    return figure


@styled
def residual(residual: Array, *, unit: str = "", title: str = "Residual y - Φx") -> Figure:
    """What the cube does not explain of the snapshot: noise only, if all is well.

    A line below gives the correlation of neighboring pixels (see `residual_whiteness`).

    Args:
        residual: y - Phi x, (H, W') in any unit.
        unit: of the values.
        title: heading.

    Returns:
        The figure.

    Raises:
        ValueError: not one picture.

    Example:
        >>> figure = residual(np.random.default_rng(0).standard_normal((64, 80)))
    """
    picture = as_picture(residual, "residual")
    width, height = picture_size(picture.shape)
    figure, ((axes,),) = page(Row((width,), height, below=BELOW + 3 * LINE))
    _draw_residual(axes, picture, unit, _sized(title, picture), ticks=True)
    return figure


@styled
def bands(
    cube: Array,
    wavelengths: ArrayLike | Tensor | None = None,
    *,
    count: int = 28,
    scale: Literal["common", "band"] = "common",
    unit: str = "",
    title: str = "",
) -> Figure:
    """A grid of bands, in grey so that their brightness compares; a square in the color of the wavelength beside each.

    Args:
        cube: (C, H, W).
        wavelengths: (C,) band centers [nm]; None: titles say "band 12" (counted from 1).
        count: show at most this many bands, evenly chosen.
        scale: "common": one range for all, 0 to the 99.5th percentile. "band": each band its own range, so that a dim
            one shows its structure.
        unit: what the values count.
        title: first words of the heading.

    Returns:
        The figure.

    Raises:
        ValueError: not one cube, a count of wavelengths that is not C, `count` below 1, or an unknown scale.

    Example:
        >>> figure = bands(np.random.default_rng(0).random((8, 32, 32)), np.linspace(450, 650, 8))
    """
    values, centers = as_cube(cube, wavelengths)
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}")
    if scale not in ("common", "band"):
        raise ValueError(f"scale must be 'common' or 'band', got {scale!r}")
    chosen = evenly(len(values), count)
    limits = shown_range(values, "zero") if scale == "common" else None
    width, columns = 10.8, _columns(len(chosen), values.shape[2] / values.shape[1])
    strip = strip_of(values, centers, chosen, columns=columns, width=width, limits=limits)
    selection = f"{len(chosen)} of {len(values)} bands" if len(chosen) < len(values) else f"{len(values)} bands"
    how = "all bands on one scale" if scale == "common" else "each band on its own scale"
    heading = ", ".join(part for part in (title, selection, how) if part)
    row = Row((width,), strip.height(width), left=EDGE, right=BAR if limits else EDGE, below=2 * LINE)
    figure, ((axes,),) = page(row, title=heading)
    draw_strip(axes, strip, value_label(unit))
    return figure


@styled
def srgb(
    cube: Array,
    wavelengths: ArrayLike | Tensor | None = None,
    *,
    white: float | None = None,
    channels: Sequence[float] | None = None,
    title: str = "",
) -> Figure:
    """The cube as a person would see it, through the CIE 1931 observer in daylight (see `cube_to_srgb`).

    Args:
        cube: (C, H, W).
        wavelengths: (C,) band centers [nm]; None gives a false color, and the heading says so.
        white: cube value shown as white; None: automatic.
        channels: what to show as red, green and blue instead, see `cassi.looking.color.render`.
        title: heading; empty: what kind of color it is.

    Returns:
        The figure.

    Raises:
        ValueError: not one cube, or wavelengths or channels that do not fit.

    Example:
        >>> figure = srgb(np.random.default_rng(0).random((8, 32, 32)), np.linspace(450, 650, 8))
    """
    values, centers = as_cube(cube, wavelengths)
    picture, kind = render(values, centers, white=white, channels=channels)
    width, height = picture_size(values.shape[1:])
    figure, ((axes,),) = page(Row((width,), height, left=EDGE, right=EDGE, below=EDGE))
    show(axes, picture, title or kind)
    return figure


@styled
def spectra(
    cube: Array,
    wavelengths: ArrayLike | Tensor | None = None,
    *,
    points: Points | None = None,
    truth: Array | None = None,
    uncertainty: Array | None = None,
    calibrated: bool = False,
    unit: str = "",
    title: str = "",
) -> Figure:
    """Spectra at marked points, beside the picture they are taken from, all on one axis.

    A spectrum less than a tenth as high as the highest is drawn 10, 100 ... times larger, and its panel says so. With
    truth, a line below states the mean and the 90th percentile of the spectral angle over all pixels.

    Args:
        cube: (C, H, W).
        wavelengths: (C,) band centers [nm]; None: the axis counts bands from 1.
        points: (row, column) pairs, counted from 0; None: `choose_points` takes six, difficult ones among them, from
            the truth if there is one.
        truth: (C, H, W), dashed; each panel then states the spectral angle between the two.
        uncertainty: (C, H, W), drawn as a band of one on each side.
        calibrated: the uncertainty is a standard deviation; else it is called spread.
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
    values, centers = as_cube(cube, wavelengths)
    reference, spread = like(truth, values, "truth"), like(uncertainty, values, "uncertainty")
    given = values if reference is None else reference
    chosen = choose_points(given) if points is None else check_points(points, values)
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    width, height = picture_size(values.shape[1:], 4.0)
    picture = Row((width,), height, below=2 * LINE + ABOVE)
    panels = [Row([2.2] * columns, 1.6, left=LEFT, right=EDGE, below=BELOW) for _ in range(rows)]
    figure, ((axes,), *places) = page(picture, *panels, title=title)
    show(axes, *render(values, centers))
    draw_points(axes, chosen)
    if reference is not None:
        note_below(axes, _angles_in_words(values, reference), labelled=False)
    several = [axes for row in places for axes in row]
    for unused in several[len(chosen) :]:
        unused.remove()
    draw_spectra(
        several[: len(chosen)], values, centers, chosen, reference, spread, columns=columns, unit=unit,
        calibrated=calibrated,
    )  # fmt: skip
    return figure


@styled
def convergence(
    history: Sequence[Record], *, markers: Sequence[tuple[int, str]] = (), title: str = "Convergence"
) -> Figure:
    """Residual and change of a solver against iterations, on a logarithmic axis.

    Where the run changed there is a dotted line; a note below says what changed, and after how many seconds of the run
    that is drawn, without the camera's search and trials.

    Args:
        history: the records of a `Result`; empty for a closed-form solver, which the figure then says.
        markers: iterations at which the run changed, and what changed: a trial that ended, another prior.
        title: heading.

    Returns:
        The figure.

    Example:
        >>> records = [Record(k, 0.1 * k, 0.5**k, 0.3**k) for k in range(1, 20)]
        >>> figure = convergence(records, markers=[(8, "non-local prior")])
    """
    at, seconds, *both = np.array(history, dtype=float).reshape(-1, 4).T
    frames = bool((np.diff(at) <= 0).any())  # of a stack, one after the other
    notes = [] if frames else [f"{k} {words} ({np.interp(k, at, seconds):.3g} s)".lstrip() for k, words in markers]
    if len(at) and not frames:
        notes.append(f"{at[-1]:.0f} end ({seconds[-1]:.3g} s)")
    lines = textwrap.wrap("iterations: " + ", ".join(notes), 95) if notes else []
    figure, ((axes,),) = page(Row((5.6,), 2.6, right=EDGE, below=BELOW + LINE * (1 + len(lines))), title=title)
    if not len(at):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "closed form:\nno iterations", ha="center", va="center", color=MUTED)
        return figure
    at = np.arange(1.0, len(at) + 1) if frames else at
    names = ("residual |y - Φx| / |y|", "change |x - x'| / |x'|, x' one before")
    lowest = []
    for series, text, color, dash in zip(both, names, PALETTE, ("-", (0, (4, 1.5))), strict=False):
        shown = np.isfinite(series) & (series > 0)
        if shown.any():
            marker = "o" if shown.sum() < 3 else None
            axes.plot(at[shown], series[shown], color=color, linestyle=dash, marker=marker, markersize=4, label=text)
            lowest.append(series[shown & (series > 1e-3 * np.median(series[shown]))].min())
    logarithmic(axes)
    if lowest:  # a solver that starts at an exact fit has a first residual of rounding size: leave it below the axis
        axes.set_ylim(bottom=min(lowest) / 2)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, borderpad=0.2)
    for iteration, _ in markers:
        axes.axvline(iteration, color=MUTED, linewidth=0.8, linestyle=":")
    axes.grid(True)
    axes.margins(x=0.02)
    axes.set_xlabel("iteration, frames one after the other" if frames else "iteration")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    note_below(axes, *lines)
    return figure


@styled
def summary(
    data: ReportData, *, points: Points | None = None, channels: Sequence[float] | None = None, caption: str = ""
) -> Figure:
    """One page: snapshot, picture, the true picture or else the residual, eight bands, and spectra.

    What speaks against the result (`ReportData.problems`) stands at the top in a red frame.

    Args:
        data: the result; what is None or empty is left out.
        points: (row, column) pairs, at most six; None: those of `spectra`.
        channels: what to show as red, green and blue, see `cassi.looking.color.render`.
        caption: a line or two under the title, such as the solver and its numbers.

    Returns:
        The figure.

    Raises:
        ValueError: shapes, points or channels that do not fit.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> figure = summary(ReportData(rng.random((8, 32, 32)), np.linspace(450, 650, 8), title="A scene"))
    """
    values, centers = as_cube(np.asarray(data.cube[:, :, :]), data.wavelengths)
    truth, spread = (None if cube is None else np.asarray(cube[:, :, :]) for cube in (data.truth, data.uncertainty))
    chosen = choose_points(values if truth is None else truth) if points is None else check_points(points, values)
    chosen = chosen[:6]
    white = None if channels is not None else white_level(values, centers if is_visible(centers) else None)
    picture, kind = render(values, centers, white=white, channels=channels)
    pictures = {f"Reconstruction, {kind}": picture}
    if truth is not None:
        pictures["Truth, the same exposure"] = render(truth, centers, white=white, channels=channels)[0]
    if data.measurement is not None:
        pictures = {"Snapshot": as_picture(data.measurement, "measurement")} | pictures
    if truth is None and data.residual is not None:
        pictures["Residual y - Φx"] = as_picture(data.residual, "residual")

    aspects = [one.shape[1] / one.shape[0] for one in pictures.values()]
    for beside in (len(aspects), min(2, len(aspects)), 1):  # fewer of wide ones, so that none is small
        rows = [aspects[k : k + beside] for k in range(0, len(aspects), beside)]
        side = min(4.4, *((PAGE - beside * (EDGE + BAR)) / sum(row) for row in rows))
        if side > LOWEST:
            break
    width, shown = PAGE - BAR - EDGE, evenly(len(values), 8)
    limits = shown_range(values, "zero")
    strip = strip_of(values, centers, shown, columns=max(len(shown), 6), width=width, limits=limits)
    warning = "\n".join(data.problems())
    caption = "\n".join(filter(None, (caption, *textwrap.wrap(data.found_camera, WORDS))))
    lines = caption.count("\n") + bool(caption)
    figure, (*above, (band_axes,), panels) = page(
        *(Row([side * aspect for aspect in row], side, left=EDGE, below=LINE + LINE * (truth is None)) for row in rows),
        Row((width,), strip.height(width), left=EDGE, below=2 * LINE + ABOVE),
        Row([(PAGE - LEFT) / len(chosen) - 0.2] * len(chosen), 1.7, left=0.2, right=0, indent=LEFT - 0.2),
        head=0.4 + 0.2 * lines + (0.3 + 0.18 * warning.count("\n")) * bool(warning),
    )
    write(figure, EDGE, 0.1, data.title, fontsize=14, fontweight="bold")
    write(figure, EDGE, 0.4, caption, fontsize=9.5, color=MUTED, linespacing=1.4)
    if warning:
        write(figure, EDGE + 0.06, 0.5 + 0.2 * lines, warning, fontsize=9.5, bbox=WARNING)
    for axes, (name, one) in zip((axes for row in above for axes in row), pictures.items(), strict=True):
        if name == "Snapshot":
            draw_map(axes, one, _sized(name, one), value_label(data.measured_unit), colors="gray")
        elif one.ndim == 2:
            _draw_residual(axes, one, data.measured_unit, name)
        else:
            show(axes, one, name)
            draw_points(axes, chosen)
    draw_strip(band_axes, strip, value_label(data.unit))
    draw_spectra(
        panels, values, centers, chosen, truth, spread, columns=len(chosen), unit=data.unit, calibrated=data.calibrated
    )
    return figure


@styled
def difference(
    estimate: Array,
    reference: Array,
    wavelengths: ArrayLike | Tensor | None = None,
    *,
    names: tuple[str, str] = ("reconstruction", "truth"),
    peak: float | None = None,
    unit: str = "",
    title: str = "",
) -> Figure:
    """Where and in which bands a cube differs from the truth, or from another cube.

    Above: root mean square of the difference over the bands; spectral angle; PSNR of each band. Below: bands of the
    reference, and of the difference, first minus second.

    Args:
        estimate: (C, H, W).
        reference: the same shape and unit.
        wavelengths: (C,) band centers [nm] or None.
        names: of the two.
        peak: of the PSNR, to which the estimate is clipped; None: 1, or the brightest value of the reference if that
            is above.
        unit: of both.
        title: first words of the heading.

    Returns:
        The figure.

    Raises:
        ValueError: not one cube, or shapes that differ.

    Example:
        >>> truth = np.random.default_rng(0).random((8, 32, 32))
        >>> figure = difference(truth + 0.01, truth, np.linspace(450, 650, 8))
    """
    values, centers = as_cube(estimate, wavelengths)
    other = like(reference, values, names[1])
    if other is None:
        raise ValueError("reference must be a cube, got None")
    delta = values.astype(np.float64) - other
    peak = max(1.0, float(np.nanmax(other))) if peak is None else peak
    width, shown = PAGE - LEFT - BAR, evenly(len(values), 6)
    cubes = (
        (names[1], other, shown_range(other, "zero")),
        ("difference", delta, shown_range(delta, "around zero")),
    )
    strips = [
        strip_of(cube, centers, shown, columns=max(len(shown), 4), width=width, limits=limits)
        for _, cube, limits in cubes
    ]
    wide, side = picture_size(values.shape[1:], 3.6)
    wide = max(wide, 2.5)
    figure, ((left, middle, right), *below) = page(
        Row((wide, wide, PAGE - 2 * wide - 3 * (0.4 + BAR)), max(side, 1.2), left=0.4),
        *(Row((width,), strip.height(width), below=0) for strip in strips[:-1]),
        Row((width,), strips[-1].height(width), below=2 * LINE),
        title=", ".join(part for part in (title, f"{names[0]} against {names[1]}") if part),
    )
    rms = np.sqrt((delta**2).mean(axis=0))
    heading = f"Difference, root mean square {np.sqrt(np.nanmean(delta**2)):.3g}"
    draw_map(left, rms, heading, value_label(unit), limits=shown_range(rms, "zero"))
    angles = spectral_angles(values, other).cpu().numpy()
    draw_map(middle, angles, _angles_in_words(values, other), "degrees", limits=shown_range(angles, "zero"))
    axis, label = spectral_axis(centers, len(values))
    order = np.argsort(axis)
    decibels = np.array(band_psnr(np.clip(values, 0, peak), other, peak=peak))
    right.plot(axis[order], decibels[order], "o-", color=PALETTE[0], markersize=4)
    if np.isfinite(decibels).all():
        right.axhline(decibels.mean(), color=MUTED, linewidth=1, linestyle="--")
        margin = 0.05 + 0.05 * np.ptp(decibels)  # at least 0.1 dB from end to end
        right.set_ylim(decibels.min() - margin, decibels.max() + margin)
    right.grid(True)
    right.xaxis.set_major_locator(MaxNLocator(4, integer=centers is None))
    right.set(xlabel=label, ylabel="PSNR [dB]", title=f"PSNR, mean {decibels.mean():.2f} dB (peak {peak:.3g})")
    for (axes,), strip, (name, *_) in zip(below, strips, cubes, strict=True):
        draw_strip(axes, strip, value_label(unit))
        axes.text(-0.02, 0.5, name, transform=axes.transAxes, rotation=90, ha="right", va="center")
    return figure


@styled
def spectral_covariance(
    covariance: Array, wavelengths: ArrayLike | Tensor | None = None, *, basis: int | None = None, unit: str = ""
) -> Figure:
    """The covariance between bands, the correlation it means, and its eigenvalues.

    Args:
        covariance: (C, C), symmetric, >= 0 on the diagonal, in the cube's unit squared.
        wavelengths: (C,) band centers [nm] in any order; None: bands counted from 1.
        basis: number of spectra that the solver built the cube from. What lies beyond is not the scene's: it is drawn
            pale, and the end of the basis is marked.
        unit: of the cube.

    Returns:
        The figure. The last panel says how many eigenvectors hold 99 % of the variance.

    Raises:
        ValueError: not square, or a count of wavelengths that is not C.

    Example:
        >>> samples = np.random.default_rng(0).random((100, 8))
        >>> figure = spectral_covariance(np.cov(samples.T), np.linspace(450, 650, 8))
    """
    matrix = as_array(covariance).astype(np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not len(matrix):
        raise ValueError(f"covariance must be (bands, bands), got shape {matrix.shape}")
    size = len(matrix)
    centers = as_centers(wavelengths, size)
    if centers is not None:
        order = np.argsort(centers)
        matrix, centers = matrix[np.ix_(order, order)], centers[order]
    axis, label = spectral_axis(centers, size)
    deviation = np.sqrt(np.maximum(np.diag(matrix), 0))
    scale = np.outer(deviation, deviation)
    correlation = np.divide(matrix, scale, out=np.zeros_like(matrix), where=scale > 0)
    squared = f"({value_label(unit)})²"

    figure, ((left, middle, right),) = page(Row((2.9, 2.9, 2.9), 2.9, below=BELOW + 3 * LINE))
    edges = _edges(axis)
    largest = float(np.abs(matrix).max()) or 1.0
    for axes, shown, heading, high in ((left, matrix, "Covariance", largest), (middle, correlation, "Correlation", 1)):
        signed = bool(shown.min() < 0)  # then zero is white, and both ends are as far from it
        limits = Limits(-high * signed, high, -high * signed, high)
        colors = "RdBu_r" if signed else "cividis"
        axes.pcolormesh(edges, edges, shown, cmap=colors, vmin=limits.low, vmax=high)
        axes.set(title=heading, xlabel=label, ylabel=label)
        axes.invert_yaxis()
        axes.xaxis.set_major_locator(MaxNLocator(6))
        color_bar(axes, colors, limits)
    note_below(left, squared)
    _draw_eigenvalues(right, np.linalg.eigvalsh((matrix + matrix.T) / 2)[::-1], basis)
    right.set_ylabel(f"eigenvalue [{squared}]")
    return figure


@styled
def uncertainty_map(
    deviation: Array, visibility: Array | None = None, *, calibrated: bool = False, unit: str = ""
) -> Figure:
    """Where a cube is uncertain, and where the snapshot says little.

    Args:
        deviation: (C, H, W) uncertainty of each voxel; drawn is the root of its mean square over the bands.
        visibility: (C, H, W) share of each voxel that the measurement alone determines, 0 to 1; drawn is the sum over
            the bands, the number of unknowns of a pixel that the snapshot fixes.
        calibrated: the uncertainty is a standard deviation; else it is called spread, which is no error bar.
        unit: of the deviation.

    Returns:
        The figure.

    Raises:
        ValueError: not (C, H, W), or shapes that differ.

    Example:
        >>> figure = uncertainty_map(np.random.default_rng(0).random((4, 32, 48)))
    """
    values, _ = as_cube(deviation, None)
    seen = like(visibility, values, "visibility")
    name = "Standard deviation" if calibrated else "Spread (not an error bar)"
    mean = np.sqrt((values.astype(np.float64) ** 2).mean(0))
    panels = [(mean, f"{name}, root mean square over bands", value_label(unit))]
    if seen is not None:
        panels.append((seen.sum(0), f"Of {len(seen)} unknowns of a pixel, how many the snapshot fixes", "unknowns"))
    width, height = picture_size(values.shape[1:])
    figure, (places,) = page(Row([max(width, 3.2)] * len(panels), height, below=BELOW + 2 * LINE))
    for axes, (picture, title, label) in zip(places, panels, strict=True):
        draw_map(axes, picture, title, label, limits=shown_range(picture, "zero"), ticks=True)
    return figure


def figures_of(data: ReportData, *, channels: Sequence[float] | None = None, caption: str = "") -> dict[str, Figure]:
    """All figures that a result has something for, by name, for `save_figures`.

    Always "summary", which holds snapshot and spectra, "bands", "srgb", "convergence" and "covariance"; with a residual
    "residual", with truth "errors", with an uncertainty "uncertainty".

    Args:
        data: the result.
        channels: what to show as red, green and blue, see `cassi.looking.color.render`.
        caption: of the summary.

    Returns:
        Name to figure.

    Raises:
        ValueError: channels that do not fit.

    Example:
        >>> sorted(figures_of(ReportData(np.random.default_rng(0).random((8, 32, 32)))))
        ['bands', 'convergence', 'covariance', 'srgb', 'summary']
    """
    truth, spread, seen = (
        None if one is None else np.asarray(one[:, :, :]) for one in (data.truth, data.uncertainty, data.visibility)
    )
    cube, nm, unit = np.asarray(data.cube[:, :, :], np.float32), data.wavelengths, data.unit
    tensor = torch.from_numpy(cube)
    components = data.choice.get("components")
    made = {
        "summary": summary(data, channels=channels, caption=caption),
        "bands": bands(cube, nm, unit=unit, title=data.title),
        "srgb": srgb(cube, nm, channels=channels),
        "convergence": convergence(data.history, markers=data.markers),
        "covariance": spectral_covariance(
            covariance_sum(tensor, mean=pixel_mean(tensor)) / cube[0].size,
            nm,
            basis=components if isinstance(components, int) else None,
            unit=unit,
        ),
    }
    if data.residual is not None:
        made["residual"] = residual(data.residual, unit=data.measured_unit)
    if truth is not None:
        made["errors"] = difference(cube, truth, nm, unit=unit, title=data.title)
    if spread is not None:
        made["uncertainty"] = uncertainty_map(spread, seen, calibrated=data.calibrated, unit=unit)
    return made


def save_figures(figures: Mapping[str, Figure], folder: str | os.PathLike[str], *, dpi: float = 120) -> list[Path]:
    """Write each figure as `<folder>/<name>.png`, whole or not at all; an older one is replaced.

    Args:
        figures: name to figure; a name is a plain file name without suffix.
        folder: made if it does not exist.
        dpi: dots per inch.

    Returns:
        The paths, in the order given.

    Raises:
        ValueError: a name that would leave the folder.
        OutputError: a picture cannot be written; the older one is still there.
        OSError: the folder cannot be made.

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
    paths = [target / f"{name}.png" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        with replacing(path, overwrite=True) as temporary, temporary.open("wb") as file:
            Image.fromarray(_painted(figure, dpi)).save(file, "PNG", compress_level=1, dpi=(dpi, dpi))
    return paths


@styled
def _painted(figure: Figure, dpi: float) -> np.ndarray:
    """The pixels of a figure, (H, W, 3): without transparency they are packed faster and smaller."""
    own = figure.dpi
    figure.set_dpi(dpi)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_dpi(own)
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def _draw_residual(axes: Axes, picture: np.ndarray, unit: str, title: str, *, ticks: bool = False) -> None:
    white = residual_whiteness(picture)
    draw_map(
        axes, picture, title, value_label(unit), limits=shown_range(picture, "around zero"), colors="RdBu_r",
        ticks=ticks, note=f"neighbors correlate {white.vertical:+.3f} down, {white.horizontal:+.3f} across; "
        f"by chance ±{white.limit:.1g}",
    )  # fmt: skip


def _draw_eigenvalues(axes: Axes, eigenvalues: np.ndarray, basis: int | None) -> None:
    size = len(eigenvalues)
    positive = np.where(eigenvalues > 0, eigenvalues, np.nan)
    number = np.arange(1, size + 1)
    end = size if basis is None else min(basis, size)
    axes.plot(number[:end], positive[:end], "o-", color=PALETTE[0], markersize=4)
    axes.plot(number[end:], positive[end:], "o", color=MUTED, alpha=0.35, markersize=3)
    logarithmic(axes)
    notes = []
    total = np.nansum(positive)
    if total > 0:
        needed = int(np.searchsorted(np.nancumsum(positive) / total, 0.99) + 1)
        axes.axvline(needed, color=PALETTE[1], linewidth=1, linestyle="--")
        notes.append(f"dashed: {needed} of {size} hold 99 % of the variance")
    if end < size:
        axes.axvline(end + 0.5, color=MUTED, linewidth=1, linestyle=":")
        notes.append(f"dotted: the solver's basis of {end} ends; beyond it is\nrounding, not the scene")
    axes.grid(True, axis="y")
    axes.set(xlabel="eigenvector", title="Eigenvalues")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    note_below(axes, *notes)


def _angles_in_words(values: np.ndarray, reference: np.ndarray) -> str:
    angles = spectral_angles(values, reference).cpu().numpy()
    known = angles[np.isfinite(angles)]
    if not known.size:
        return "spectral angle unknown"
    return f"Spectral angle: mean {known.mean():.1f}°, 90 % below {np.percentile(known, 90):.1f}°"


def _sized(title: str, picture: np.ndarray) -> str:
    return f"{title}, {picture.shape[0]} x {picture.shape[1]} px"


def _columns(count: int, aspect: float) -> int:
    """As many columns as make the page about 3:2, without a nearly empty last row."""
    ideal = max(1, min(count, round(np.sqrt(1.6 * count / aspect))))
    around = range(max(1, ideal - 1), min(count, ideal + 1) + 1)
    return min(around, key=lambda c: (-count % c / c, abs(c - ideal), -c))


def _edges(axis: np.ndarray) -> np.ndarray:
    """Cell borders around the band centers."""
    if len(axis) == 1:
        return np.array([axis[0] - 0.5, axis[0] + 0.5])
    between = (axis[1:] + axis[:-1]) / 2
    return np.concatenate([[2 * axis[0] - between[0]], between, [2 * axis[-1] - between[-1]]])
