"""Figures of a measurement and its reconstruction.

Each function returns a matplotlib `Figure` and uses neither pyplot nor a display, so that it works in scripts,
notebooks and servers. Cubes are (C, H, W) tensors or arrays in any unit, wavelengths (C,) band centers [nm]; if these
are None, bands are numbered from 1.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from PIL import Image
from torch import Tensor

from cassi.errors import InputError, counted
from cassi.files.atomic import replacing
from cassi.looking.color import Array, as_cube, color_note, cube_to_srgb, shown_range, value_label, white_level
from cassi.looking.drawing import draw_points, draw_scale_bar, draw_spectra, draw_strip, strip_of
from cassi.looking.metrics import band_psnr, peak_of, residual_whiteness, spectral_angles
from cassi.looking.report_data import MAX_VALUES, ReportData, of_a_file, take_every
from cassi.looking.spectra_points import choose_points as choose_points, points_of
from cassi.looking.style import (
    BAR,
    EDGE,
    LINE,
    MUTED,
    PALETTE,
    WARNING,
    Figure,
    decades,
    draw_map,
    escape_bytes,
    evenly,
    picture_size,
    plots,
    rows_of,
    show,
    spectral_axis,
    styled,
)
from cassi.solvers.loop import Record
from cassi.types import PathLike

PAGE = 13.0  # width of the large figures [inch]
FORMATS = ("png", "pdf", "svg")
MAX_BANDS = 28  # in a figure of bands


@styled
def residual(residual: Array, *, unit: str = "") -> Figure:
    """The residual of the snapshot, y - Phi x (H, W'): ideally noise only.

    A line below states the correlation of neighboring pixels (see `residual_whiteness`).
    """
    picture = np.asarray(residual)
    white = residual_whiteness(picture)
    correlation = f"neighbors correlate {white.vertical:+.3f} down, {white.horizontal:+.3f} across"
    note = f"{correlation}; by chance ±{white.limit:.1g}"
    width, height = picture_size(picture.shape)
    figure, (axes,) = plots(max(width, 3.2) + BAR, height + 5 * LINE)
    title, limits = _sized("Residual y - Φx", picture), shown_range(picture, "around zero")
    draw_map(axes, picture, title, value_label(unit), limits=limits, colors="RdBu_r", note=note)
    return figure


@styled
def uncertainty_map(deviation: Array, *, unit: str = "") -> Figure:
    """Map of the uncertainty of a cube (C, H, W), root mean square over the bands."""
    values, _ = as_cube(deviation)
    mean = np.sqrt((values.astype(np.float64) ** 2).mean(0))
    width, height = picture_size(mean.shape)
    figure, (axes,) = plots(max(width, 3.2) + BAR, height + 4 * LINE)
    title = "Standard deviation, root mean square over bands"
    draw_map(axes, mean, title, value_label(unit), limits=shown_range(mean, "zero"))
    return figure


class Look(NamedTuple):
    """Options of the drawing.

    Args:
        markers: whether the pictures of a summary show points and their numbers; without them it suits a talk.
        tinted: bands in the color of their light instead of grey.
        pixel_size: of the scene, for a scale bar, in `pixel_unit`.
    """

    markers: bool = True
    tinted: bool = False
    pixel_size: float | None = None
    pixel_unit: str = "µm"


USUAL = Look()


@styled
def bands(
    cube: Array, wavelengths: ArrayLike | Tensor | None = None, *, unit: str = "", title: str = "",
    tinted: bool = False, uncertainty: Array | None = None,
) -> Figure:  # fmt: skip
    """A grid of at most 28 bands on one scale, in grey or in the color of their light.

    Where the `uncertainty` (C, H, W), in the unit of the cube, is larger than the value, this color is another.
    """
    values, centers = as_cube(cube, wavelengths)
    sigma = None if uncertainty is None else as_cube(uncertainty)[0]
    chosen, width = evenly(len(values), MAX_BANDS), 10.8
    ideal = np.sqrt(1.6 * len(chosen) * values.shape[1] / values.shape[2])  # for a page of about 3:2
    columns = min(len(chosen), int(np.ceil(ideal)))
    strip = strip_of(values, centers, chosen, columns=columns, width=width, tinted=tinted, uncertainty=sigma)
    heading = ", ".join(filter(None, (title, f"{len(chosen)} of {counted(len(values), 'band')}, all on one scale")))
    figure, (axes,) = plots(width + BAR, strip.height + 5 * LINE, title=heading)
    draw_strip(axes, strip, value_label(unit))
    return figure


@styled
def srgb(cube: Array, wavelengths: ArrayLike | Tensor | None = None, *, unit: str = "", look: Look = USUAL) -> Figure:
    """The cube in color; see `cube_to_srgb` and `color_note`."""
    values, centers = as_cube(cube, wavelengths)
    width, height = picture_size(values.shape[1:])
    figure, (axes,) = plots(max(width, 3.2), height + 2 * LINE)
    show(axes, cube_to_srgb(values, centers), color_note(centers, unit).capitalize())
    if look.pixel_size is not None:
        draw_scale_bar(axes, look.pixel_size, look.pixel_unit)
    return figure


@styled
def convergence(history: Sequence[Record], *, markers: Sequence[tuple[int, str]] = ()) -> Figure:
    """Residual and change of a solver against iterations, on a logarithmic axis.

    The history of a closed-form solver is empty, and the figure says so. `markers` are iterations at which the run
    changed, with a label, such as another prior.
    """
    at, seconds, *both = np.array(history, dtype=float).reshape(-1, 4).T
    notes = [f"{k} {words} ({np.interp(k, at, seconds):.3g} s)" for k, words in markers]
    notes += [f"{at[-1]:.0f} end ({seconds[-1]:.3g} s)"] if len(at) else []
    whole = ", ".join(note.replace(" ", "~") for note in notes)  # lines break only between notes
    label = [line.replace("~", " ") for line in textwrap.wrap(f"iteration: {whole}", 85, break_on_hyphens=False)]
    figure, (axes,) = plots(6.4, 3.4 + LINE * len(label), title="Convergence")
    if not len(at):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "closed form:\nno iterations", ha="center", va="center", color=MUTED)
        return figure
    names = ("residual |y - Φx| / |y|", "change |x - x'| / |x'|, x' one before")
    lowest = []
    for series, text, color, dash in zip(both, names, PALETTE, ("-", (0, (4, 1.5))), strict=False):
        shown = np.isfinite(series) & (series > 0)
        if shown.any():
            marker = "o" if len(at) < 3 else None
            axes.plot(at[shown], series[shown], color=color, linestyle=dash, marker=marker, label=text)
            lowest.append(series[shown & (series > 1e-3 * np.median(series[shown]))].min())
    decades(axes)
    if lowest:  # a start with an exact fit has a residual of rounding size, which stays below the axis
        axes.set_ylim(bottom=min(lowest) / 2)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, borderpad=0.2)
    for iteration, _ in markers:
        axes.axvline(iteration, color=MUTED, linewidth=0.8, linestyle=":")
    axes.margins(x=0.02)
    axes.set_xlabel("\n".join(label))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


@styled
@of_a_file
def summary(data: ReportData, *, caption: str = "", look: Look = USUAL) -> Figure:
    """One page: snapshot, picture, the true picture or else the residual, eight bands, and six spectra.

    Problems of the result (`ReportData.problems`) are at the top in a red frame. `caption` is a line or two under the
    title, such as the solver and its scores.
    """
    values, centers = as_cube(np.asarray(data.cube[:, :, :]), data.wavelengths)
    truth, sigma = (None if cube is None else np.asarray(cube[:, :, :]) for cube in (data.truth, data.uncertainty))
    points = points_of(values, truth, sigma)
    white = white_level(values, centers)
    colored = {color_note(centers, data.unit).capitalize(): cube_to_srgb(values, centers, white=white)}
    if truth is not None:
        colored["Truth, the same exposure"] = cube_to_srgb(truth, centers, white=white)
    measured, rest = data.measurement, data.residual if truth is None else None
    shapes = [image.shape for image in (measured, *colored.values(), rest) if image is not None]

    aspects = [shape[1] / shape[0] for shape in shapes]
    side = min(4.4, (PAGE - len(shapes) * (EDGE + BAR)) / sum(aspects))
    width, shown = PAGE - BAR - EDGE, evenly(len(values), 8)
    columns, tinted = max(len(shown), 6), look.tinted
    strip = strip_of(values, centers, shown, columns=columns, width=width, tinted=tinted, uncertainty=sigma)
    warning = "\n".join(textwrap.fill(problem, 150) for problem in data.problems())
    lines = caption.count("\n") + bool(caption)
    head = 0.4 + 0.2 * lines + (0.3 + 0.18 * warning.count("\n")) * bool(warning)
    legend = 2 * LINE * (truth is not None or sigma is not None)
    heights = [head, side + 4 * LINE, strip.height + 4 * LINE, 2.6 + legend]
    figure, (top, above, middle, below) = rows_of(PAGE, heights)

    def write(down: float, text: str, **how: Any) -> None:
        top.text(EDGE / PAGE, 1 - down / head, escape_bytes(text), va="top", **how)

    write(0.1, data.title, fontsize=14, fontweight="bold")
    write(0.4, caption, fontsize=9.5, color=MUTED, linespacing=1.4)
    if warning:
        write(0.5 + 0.2 * lines, warning, fontsize=9.5, bbox=WARNING)
    places = iter(above.subplots(1, len(shapes), squeeze=False, width_ratios=aspects)[0])
    if measured is not None:
        draw_map(next(places), measured, _sized("Snapshot", measured), value_label(data.measured_unit), colors="gray")
    for name, picture in colored.items():
        axes = next(places)
        show(axes, picture, name)
        if look.markers:
            draw_points(axes, points)
        if look.pixel_size is not None:
            draw_scale_bar(axes, look.pixel_size, look.pixel_unit)
    if rest is not None:
        limits = shown_range(rest, "around zero")
        draw_map(next(places), rest, "Residual y - Φx", value_label(data.measured_unit), limits=limits, colors="RdBu_r")
    draw_strip(middle.subplots(), strip, value_label(data.unit))
    panels = list(below.subplots(1, len(points), squeeze=False)[0])
    draw_spectra(panels, values, centers, points, truth, sigma, unit=data.unit)
    return figure


@styled
def difference(
    estimate: Array, reference: Array, wavelengths: ArrayLike | Tensor | None = None, *,
    names: tuple[str, str] = ("reconstruction", "truth"), unit: str = "", title: str = "", peak: float | None = None,
) -> Figure:  # fmt: skip
    """The difference between a cube and the truth, or another cube, by position and band.

    Above: root mean square difference over the bands; spectral angle; PSNR of each band, with the estimate clipped to
    the peak, by default that of the reference (`cassi.looking.metrics.peak_of`). Below: bands of the difference, first
    minus second.
    """
    values, centers = as_cube(estimate, wavelengths)
    other, _ = as_cube(reference)
    angles = spectral_angles(values, other).cpu().numpy()
    delta = values.astype(np.float64) - other
    peak = peak_of(other) if peak is None else peak
    width, shown = PAGE - EDGE - BAR, evenly(len(values), 6)
    strip = strip_of(delta, centers, shown, columns=max(len(shown), 4), width=width, signed=True)
    wide, side = picture_size(values.shape[1:], 3.6)
    wide, side = max(wide, 2.5) + BAR, max(side, 1.2)
    heading = ", ".join(part for part in (title, f"{names[0]} against {names[1]}") if part)
    figure, (above, below) = rows_of(PAGE, (side + 5 * LINE, strip.height + 4 * LINE), heading)
    left, middle, right = above.subplots(1, 3, width_ratios=(wide, wide, PAGE - 2 * wide))
    rms = np.sqrt((delta**2).mean(axis=0))
    heading = f"Difference, root mean square {np.sqrt(np.nanmean(delta**2)):.3g}"
    draw_map(left, rms, heading, value_label(unit), limits=shown_range(rms, "zero"))
    known = angles[np.isfinite(angles)] if np.isfinite(angles).any() else np.array([np.nan])
    draw_map(middle, angles, f"Spectral angle: mean {known.mean():.1f}°", "degrees", limits=shown_range(angles, "zero"))
    axis, label = spectral_axis(centers, len(values))
    order = np.argsort(axis)
    decibels = np.array(band_psnr(np.clip(values, 0, peak), other, peak=peak))
    right.plot(axis[order], decibels[order], "o-", color=PALETTE[0], markersize=4)
    if np.isfinite(decibels).all():
        margin = 0.05 + 0.05 * np.ptp(decibels)  # at least 0.1 dB in total
        right.set_ylim(decibels.min() - margin, decibels.max() + margin)
    right.xaxis.set_major_locator(MaxNLocator(4, integer=centers is None))
    right.set(xlabel=label, ylabel="PSNR [dB]", title=f"PSNR, mean {decibels.mean():.2f} dB (peak {peak:.3g})")
    draw_strip(below.subplots(), strip, f"difference, {value_label(unit)}")
    return figure


@of_a_file
def figures_of(data: ReportData, *, caption: str = "", look: Look = USUAL) -> dict[str, Figure]:
    """All figures that apply to a result, by name, for `save_figures`; `caption` is for the summary.

    Always "summary", with snapshot and spectra, "bands", "srgb" and "convergence"; with a residual "residual", with a
    truth "errors", with an uncertainty "uncertainty".

    Example:
        >>> sorted(figures_of(ReportData(np.random.default_rng(0).random((8, 32, 32)))))
        ['bands', 'convergence', 'srgb', 'summary']
    """
    if (every := math.ceil(math.sqrt(math.prod(data.cube.shape) / MAX_VALUES))) > 1:  # more than a page shows
        truth, spread = (
            None if image is None else take_every(image, every) for image in (data.truth, data.uncertainty)
        )
        small = replace(data, cube=take_every(data.cube, every), truth=truth, uncertainty=spread)
        look = look if look.pixel_size is None else look._replace(pixel_size=every * look.pixel_size)
        data = replace(small, title=f"{data.title}, one of {every} x {every} pixels")
    cube, nm, unit = np.asarray(data.cube[:, :, :], np.float32), data.wavelengths, data.unit
    sigma = None if data.uncertainty is None else np.asarray(data.uncertainty[:, :, :])
    made = {
        "summary": summary(data, caption=caption, look=look),
        "bands": bands(cube, nm, unit=unit, title=data.title, tinted=look.tinted, uncertainty=sigma),
        "srgb": srgb(cube, nm, unit=unit, look=look),
        "convergence": convergence(data.history, markers=data.markers),
    }
    if data.residual is not None:
        made["residual"] = residual(data.residual, unit=data.measured_unit)
    if data.truth is not None:
        truth = np.asarray(data.truth[:, :, :])
        peak = peak_of(truth, data.provenance.get("origin"))
        made["errors"] = difference(cube, truth, nm, unit=unit, title=data.title, peak=peak)
    if sigma is not None:
        made["uncertainty"] = uncertainty_map(sigma, unit=unit)
    return made


def save_figures(
    figures: Mapping[str, Figure], folder: PathLike, *, dpi: float = 120, formats: Sequence[str] = ("png",)
) -> list[Path]:
    """Write each figure to `<folder>/<name>.<format>`, whole or not at all; an older one is replaced.

    Names are plain file names without suffix; the folder is created if needed. Returns the paths in the given order.

    Args:
        dpi: pixels per inch, also for images within PDF or SVG.
        formats: of "png", "pdf" and "svg".

    Raises:
        InputError: another format.
        OutputError: a figure cannot be written; the older one is kept.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise InputError(f"{unknown[0]!r} is not a figure format, expected {', '.join(FORMATS)}")
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures.items():
        for form in formats:
            paths.append(target / f"{name}.{form}")
            with replacing(paths[-1], overwrite=True) as temporary, temporary.open("wb") as file:
                if form == "png":
                    Image.fromarray(_render(figure, dpi)).save(file, "PNG", compress_level=1, dpi=(dpi, dpi))
                else:
                    # without dates, so that equal input gives an equal file
                    metadata = {"CreationDate": None} if form == "pdf" else {"Date": None}
                    with rc_context({"svg.hashsalt": name}):
                        figure.savefig(file, format=form, dpi=dpi, metadata=metadata)
    return paths


@styled
def _render(figure: Figure, dpi: float) -> np.ndarray:
    """The pixels of a figure, (H, W, 3): without transparency, compression is faster and better."""
    before = figure.dpi
    figure.set_dpi(dpi)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_dpi(before)
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def _sized(title: str, picture: np.ndarray) -> str:
    return f"{title}, {picture.shape[0]} x {picture.shape[1]} px"
