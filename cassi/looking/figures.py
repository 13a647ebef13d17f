"""Figures of a measurement and its reconstruction.

Each function returns a matplotlib `Figure`; none touches pyplot, a display or global state, so they work in a script,
a notebook, a server or a thread. Cubes are (C, H, W) tensors or arrays, in any unit.
"""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import SubFigure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from torch import Tensor

from cassi.files.atomic import replacing
from cassi.kernels.covariance import covariance_sum, pixel_mean
from cassi.looking.color import is_visible, render, shown_range, value_label, white_level
from cassi.looking.drawing import check_points, draw_bands, draw_convergence, draw_points, draw_spectra
from cassi.looking.metrics import band_psnr, residual_whiteness, spectral_angles
from cassi.looking.report_data import ReportData
from cassi.looking.spectra_points import choose_points
from cassi.looking.style import (
    MUTED,
    PALETTE,
    WARNING,
    Array,
    Figure,
    as_array,
    as_centers,
    as_cube,
    as_picture,
    draw_map,
    evenly,
    layout,
    like,
    show,
    size_for,
    spectral_axis,
    styled,
)
from cassi.solvers.loop import Record

Points = Sequence[tuple[int, int]]
WORDS = 150  # letters of a line in the heading of a page
LOWEST = 1.9  # picture that a bar with its words stands beside [inch]


@styled
def snapshot(y: Array, *, unit: str = "", title: str = "Snapshot") -> Figure:
    """The measurement as the detector saw it.

    The grey scale runs from the 0.5th to the 99.5th percentile, so that single hot pixels do not darken the rest; the
    color bar says what lies beyond.

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
    figure = Figure(figsize=size_for(picture.shape, extra=(2.3, 0.95)), layout=layout())
    draw_map(figure.add_subplot(), picture, _sized(title, picture), value_label(unit), colors="gray", ticks=True)
    return figure


@styled
def residual(residual: Array, *, unit: str = "", title: str = "Residual y - Φx") -> Figure:
    """What the cube does not explain of the snapshot: noise only, if all is well.

    Structure of the scene in it says, without a known truth, that the mask does not fit or that too much was smoothed.
    The line below gives the correlation of neighboring pixels (see `residual_whiteness`).

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
    figure = Figure(figsize=size_for(picture.shape, extra=(2.3, 1.2)), layout=layout())
    axes = figure.add_subplot()
    _draw_residual(axes, picture, unit, _sized(title, picture), ticks=True)
    return figure


@styled
def bands(
    cube: Array,
    wavelengths: ArrayLike | Tensor | None = None,
    *,
    count: int = 28,
    scale: Literal["common", "band"] = "common",
    tint: bool = False,
    unit: str = "",
    title: str = "",
) -> Figure:
    """A grid of bands, in grey so that their brightness compares; a square in the color of the wavelength beside each.

    Args:
        cube: (C, H, W).
        wavelengths: (C,) band centers [nm]; None: titles say "band 12" (counted from 1).
        count: show at most this many bands, evenly chosen.
        scale: "common": one range for all, 0 to the 99.5th percentile, so that brightness compares between bands; the
            color bar says what lies beyond. "band": each band its own range, so that a dim one shows its structure.
        tint: color each band by its wavelength. Equal values then look brighter in green than in violet.
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
    page = 11.0
    figure = Figure(layout=layout())
    height = draw_bands(
        figure.add_subplot(), values, centers, chosen, columns=_columns(len(chosen), values.shape[2] / values.shape[1]),
        page=page, limits=limits, label=value_label(unit), tint=tint,
    )  # fmt: skip
    figure.set_size_inches(page + (1.0 if limits else 0.2), height + 0.4)
    selection = f"{len(chosen)} of {len(values)} bands" if len(chosen) < len(values) else f"{len(values)} bands"
    told = "all bands on one scale" if scale == "common" else "each band on its own scale"
    figure.suptitle(", ".join(part for part in (title, selection, told) if part), x=0.01, ha="left")
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
    figure = Figure(figsize=size_for(values.shape[1:], extra=(0.2, 0.5)), layout=layout())
    picture, kind = render(values, centers, white=white, channels=channels)
    show(figure.add_subplot(), picture, title or kind)
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
    height, width = values.shape[1:]
    columns = min(3, len(chosen))
    rows = -(-len(chosen) // columns)
    left = float(np.clip(4.2 * width / height, 3.0, 6.0))
    figure = Figure(figsize=(left + 2.4 * columns + 0.2, max(4.6, 2.1 * rows)), layout=layout())
    grid = figure.add_gridspec(1, 2, width_ratios=(left, 2.4 * columns))
    image_part, plot_part = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    axes = image_part.add_subplot()
    show(axes, *render(values, centers))
    draw_points(axes, chosen)
    if reference is not None:
        axes.set_xlabel(_angles_in_words(values, reference), fontsize=8.5, loc="left")
    panels = plot_part.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    legend = draw_spectra(panels, values, centers, chosen, reference, spread, unit, calibrated)
    if len(legend) > 1:
        plot_part.legend(list(legend.values()), list(legend), loc="outside upper left", ncols=3)
    if title:
        figure.suptitle(title, x=0.01, ha="left")
    return figure


@styled
def convergence(
    history: Sequence[Record], *, markers: Sequence[tuple[int, str]] = (), title: str = "Convergence"
) -> Figure:
    """Residual and change of a solver against iterations, seconds above, on a logarithmic axis.

    The seconds are those of the run that is drawn; what came before it, the camera's search and trials, is not in them.

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
    figure = Figure(figsize=(6.4, 3.6), layout=layout())
    draw_convergence(figure.add_subplot(), history, markers)
    figure.suptitle(title, x=0.01, ha="left")
    return figure


@styled
def summary(
    data: ReportData, *, points: Points | None = None, channels: Sequence[float] | None = None, caption: str = ""
) -> Figure:
    """One page: snapshot, picture, the true picture or else the residual, eight bands, spectra, convergence.

    What speaks against the result (`ReportData.problems`) stands at the top in a red frame.

    Args:
        data: the result; what is None or empty is left out.
        points: (row, column) pairs, at most four; None: chosen.
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
    chosen = (
        check_points(points, values) if points is not None else choose_points(values if truth is None else truth, 4)
    )
    chosen = chosen[:4]
    height, width = values.shape[1:]
    snapshots = [p for p in (data.measurement, data.residual if truth is None else None) if p is not None]
    pictures = 1 if truth is None else 2

    page = 13.0
    bars = 1.0  # [inch] a color bar and its numbers
    aspects = [p.shape[1] / p.shape[0] for p in snapshots] + [width / height] * pictures
    order = [*range(len(snapshots))[:1], *range(len(snapshots), len(aspects)), *range(1, len(snapshots))]
    for side in (len(order), 2, 1):  # by side: fewer of wide ones, until the bars beside them have room for their words
        rows = [order[k : k + side] for k in range(0, len(order), side)]
        room = [
            (page - 0.6 - bars * sum(k < len(snapshots) for k in row)) / sum(aspects[k] for k in row) for row in rows
        ]
        picture_height = min(4.4, *room)
        if picture_height > LOWEST:
            break
    shown = evenly(len(values), 8)
    band_height = ((page - bars) / max(len(shown), 6)) * height / width + 0.5
    warning = "\n".join(data.problems())
    caption = "\n".join(filter(None, (caption, *textwrap.wrap(data.found_camera, WORDS))))
    heading = 0.42 + 0.2 * (caption.count("\n") + bool(caption)) + (0.3 + 0.18 * warning.count("\n")) * bool(warning)
    heights = (heading, len(rows) * (max(picture_height, LOWEST) + 0.35), band_height, 2.7)
    figure = Figure(figsize=(page, sum(heights)), layout=layout())
    grid = figure.add_gridspec(4, 1, height_ratios=heights)
    head, top, strip, plots = (figure.add_subfigure(grid[k]) for k in range(4))
    _draw_heading(head, heading, data.title, caption, warning)

    axes_of = []
    lines = top.add_gridspec(len(rows), 1)
    for n, row in enumerate(rows):
        widths = [aspects[k] * picture_height + bars * (k < len(snapshots)) for k in row]
        places_in_it = lines[n].subgridspec(1, len(row), width_ratios=widths)
        axes_of += [top.add_subplot(places_in_it[k]) for k in range(len(row))]
    places = iter(axes_of)
    if data.measurement is not None:
        y = as_picture(data.measurement, "measurement")
        draw_map(next(places), y, _sized("Snapshot", y), value_label(data.measured_unit), colors="gray")
    white = None if channels is not None else white_level(values, centers if is_visible(centers) else None)
    for name, cube in (("Reconstruction", values), ("Truth, the same exposure", truth)):
        if cube is not None:
            picture, kind = render(cube, centers, white=white, channels=channels)
            axes = next(places)
            show(axes, picture, f"{name}, {kind}" if cube is values else name)
            draw_points(axes, chosen)
    if truth is None and data.residual is not None:
        rest = as_picture(data.residual, "residual")
        _draw_residual(next(places), rest, data.measured_unit, "Residual y - Φx", ticks=False)

    draw_bands(
        strip.add_subplot(), values, centers, shown, columns=max(len(shown), 6), page=page - bars,
        limits=shown_range(values, "zero"), label=value_label(data.unit),
    )  # fmt: skip

    columns = plots.add_gridspec(1, len(chosen) + 1)
    panels = [plots.add_subplot(columns[k]) for k in range(len(chosen))]
    legend = draw_spectra(np.array([panels]), values, centers, chosen, truth, spread, data.unit, data.calibrated)
    if len(legend) > 1:
        plots.legend(list(legend.values()), list(legend), loc="outside upper left", ncols=3)
    draw_convergence(plots.add_subplot(columns[len(chosen)]), data.history, [(k, "") for k, _ in data.markers])
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

    Above: root mean square of the difference over the bands; spectral angle; PSNR of each band. Below: bands of both,
    and the difference, first minus second.

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
    shown = evenly(len(values), 6)
    height, width = values.shape[1:]
    page, side = 13.0, min(4.0, 4.2 * height / width)
    band_height = (page - 1.2) / max(len(shown), 4) * height / width
    heights = (side + 0.6, band_height + 0.7, band_height + 0.45, band_height + 0.45)
    figure = Figure(figsize=(page, sum(heights) + 0.5), layout=layout())
    grid = figure.add_gridspec(4, 1, height_ratios=heights)

    wide = side * width / height + 1.0
    row = grid[0].subgridspec(1, 3, width_ratios=(wide, wide, max(page - 2 * wide, 2.5)))
    rms = np.sqrt((delta**2).mean(axis=0))
    draw_map(
        figure.add_subplot(row[0]), rms, f"Difference, root mean square {np.sqrt(np.nanmean(delta**2)):.3g}",
        value_label(unit), limits=shown_range(rms, "zero"),
    )  # fmt: skip
    angles = spectral_angles(values, other).cpu().numpy()
    draw_map(
        figure.add_subplot(row[1]),
        angles,
        _angles_in_words(values, other),
        "degrees",
        limits=shown_range(angles, "zero"),
    )
    axes = figure.add_subplot(row[2])
    axis, label = spectral_axis(centers, len(values))
    order = np.argsort(axis)
    decibels = np.array(band_psnr(np.clip(values, 0, peak), other, peak=peak))
    axes.plot(axis[order], decibels[order], "o-", color=PALETTE[0], markersize=4)
    if np.isfinite(decibels).all():
        axes.axhline(decibels.mean(), color=MUTED, linewidth=1, linestyle="--")
    axes.grid(True)
    axes.set(xlabel=label, ylabel="PSNR [dB]", title=f"PSNR, mean {decibels.mean():.2f} dB (peak {peak:.3g})")

    light = shown_range(other, "zero")
    for k, (name, cube, limits) in enumerate(
        ((names[0], values, light), (names[1], other, light), ("difference", delta, shown_range(delta, "around zero")))
    ):
        axes = figure.add_subplot(grid[k + 1])
        if cube is values:
            limits = limits._replace(lowest=float(np.nanmin(values)), highest=float(np.nanmax(values)))
        draw_bands(
            axes, cube, centers, shown, columns=max(len(shown), 4), page=page - 1.2, limits=limits,
            label=value_label(unit), names=k == 0,
        )  # fmt: skip
        axes.set_ylabel(name)
    figure.suptitle(", ".join(part for part in (title, f"{names[0]} against {names[1]}") if part), x=0.01, ha="left")
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

    figure = Figure(figsize=(12.6, 3.7), layout=layout())
    grid = figure.add_gridspec(1, 3, width_ratios=(1.1, 1.1, 1.0))
    left, middle, right = (figure.add_subplot(grid[k]) for k in range(3))
    edges = _edges(axis)
    largest = float(np.abs(matrix).max()) or 1.0
    for axes, shown, heading, high in ((left, matrix, "Covariance", largest), (middle, correlation, "Correlation", 1)):
        signed = bool((shown < -0.01 * high).any())
        colors, norm = ("RdBu_r" if signed else "cividis"), Normalize(-high * signed, high)
        mesh = axes.pcolormesh(edges, edges, shown, cmap=colors, norm=norm, rasterized=True)
        axes.set(aspect="equal", title=heading, xlabel=label, ylabel=label)
        axes.invert_yaxis()
        bar = figure.colorbar(mesh, ax=axes, fraction=0.05, pad=0.02)
        bar.outline.set_visible(False)
        bar.set_label(squared if axes is left else "")
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
        calibrated: the uncertainty is a standard deviation; else it is called spread, which compares places and is no
            error bar.
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
    width, height = size_for(values.shape[1:], extra=(2.3, 0.95))
    figure = Figure(figsize=(width * len(panels), height), layout=layout())
    for axes, (picture, title, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        draw_map(axes, picture, title, label, limits=shown_range(picture, "zero"), ticks=True)
    return figure


def figures_of(data: ReportData, *, channels: Sequence[float] | None = None, caption: str = "") -> dict[str, Figure]:
    """All figures that a result has something for, by name, for `save_figures`.

    Always "summary", "bands", "srgb", "spectra", "convergence" and "covariance"; with a measurement "snapshot", with a
    residual "residual", with truth "errors", with an uncertainty "uncertainty".

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
        ['bands', 'convergence', 'covariance', 'spectra', 'srgb', 'summary']
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
        "spectra": spectra(cube, nm, truth=truth, uncertainty=spread, calibrated=data.calibrated, unit=unit),
        "convergence": convergence(data.history, markers=data.markers),
        "covariance": spectral_covariance(
            covariance_sum(tensor, mean=pixel_mean(tensor)) / cube[0].size,
            nm,
            basis=components if isinstance(components, int) else None,
            unit=unit,
        ),
    }
    if data.measurement is not None:
        made["snapshot"] = snapshot(data.measurement, unit=data.measured_unit, title=data.title)
    if data.residual is not None:
        made["residual"] = residual(data.residual, unit=data.measured_unit)
    if truth is not None:
        made["errors"] = difference(cube, truth, nm, unit=unit, title=data.title)
    if spread is not None:
        made["uncertainty"] = uncertainty_map(spread, seen, calibrated=data.calibrated, unit=unit)
    return made


def save_figures(figures: Mapping[str, Figure], folder: str | os.PathLike[str], *, dpi: float = 150) -> list[Path]:
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
            # as small as with the usual level 6, to 3 %, in two fifths of the time
            styled(figure.savefig)(file, format="png", dpi=dpi, facecolor="white", pil_kwargs={"compress_level": 3})
    return paths


def _draw_residual(axes: Axes, picture: np.ndarray, unit: str, title: str, *, ticks: bool) -> None:
    limits = shown_range(picture, "around zero")
    draw_map(axes, picture, title, value_label(unit), limits=limits, colors="RdBu_r", ticks=ticks)
    white = residual_whiteness(picture)
    told = (
        f"neighbors correlate {white.vertical:+.3f} down, {white.horizontal:+.3f} across; by chance ±{white.limit:.1g}"
    )
    axes.set_xlabel(f"{axes.get_xlabel()}\n{told}".strip(), fontsize=8)


def _draw_heading(head: SubFigure, height: float, title: str, caption: str, warning: str) -> None:
    """Title, caption and the warning in its frame, from the top of a strip `height` inches high."""
    at = 0.1
    head.text(0.008, 1 - at / height, title, fontsize=14, fontweight="bold", va="top")
    at += 0.3
    if caption:
        head.text(0.008, 1 - at / height, caption, fontsize=9.5, color=MUTED, va="top", linespacing=1.4)
        at += 0.2 * (caption.count("\n") + 1)
    if warning:
        head.text(0.012, 1 - (at + 0.1) / height, warning, fontsize=9.5, va="top", bbox=WARNING)


def _draw_eigenvalues(axes: Axes, eigenvalues: np.ndarray, basis: int | None) -> None:
    size = len(eigenvalues)
    positive = np.where(eigenvalues > 0, eigenvalues, np.nan)
    number = np.arange(1, size + 1)
    end = size if basis is None else min(basis, size)
    axes.semilogy(number[:end], positive[:end], "o-", color=PALETTE[0], markersize=4)
    if end < size:
        axes.semilogy(number[end:], positive[end:], "o", color=MUTED, alpha=0.35, markersize=3)
        axes.axvline(end + 0.5, color=MUTED, linewidth=1, linestyle=":")
        axes.annotate(
            f"the solver's basis of {end} ends;\nbeyond it is rounding,\nnot the scene", (end + 0.5, 0.5),
            xycoords=("data", "axes fraction"), xytext=(5, 0), textcoords="offset points", color=MUTED, fontsize=8,
        )  # fmt: skip
    axes.grid(True, axis="y")
    axes.set(xlabel="eigenvector", title="Eigenvalues")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    total = np.nansum(positive)
    if total > 0:
        needed = int(np.searchsorted(np.nancumsum(positive) / total, 0.99) + 1)
        axes.axvline(needed, color=PALETTE[1], linewidth=1, linestyle="--")
        note = axes.annotate(
            f"{needed} of {size} hold 99 % of the variance", (needed, 0.96), xycoords=("data", "axes fraction"),
            xytext=(5, 0), textcoords="offset points", color=PALETTE[1], va="top", fontsize=8,
        )  # fmt: skip
        note.set_path_effects([withStroke(linewidth=3, foreground="white")])


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
