"""Figures of cameras: a calibration on a bench, a fit to captures, and the worth of each choice in a design."""

from collections.abc import Mapping, Sequence

import numpy as np

from cassi.calibration.estimate import Calibration
from cassi.calibration.filter_response import FilterResponse
from cassi.looking.color import Limits, shown_range
from cassi.looking.style import BAR, LINE, MUTED, PALETTE, Figure, draw_map, picture_size, plots, rows_of, styled
from cassi.self_calibration.camera_model import band_positions, coordinates, polynomial
from cassi.self_calibration.refined_camera import RefinedCamera

ARROWS = 11  # along each side of the field
PLOT = 1.6  # height of a plot below maps [inch]
DETAIL = 32  # half the side of the part of a mask that is shown larger [pixel]


@styled
def dispersion(calibration: Calibration) -> Figure:
    """Displacement against wavelength, measured and fitted, with the bands and the residuals."""
    curve = calibration.dispersion
    ends = [*curve.wavelengths, *calibration.wavelengths]
    grid = np.linspace(min(ends), max(ends), 400)
    figure, (upper, lower) = plots(6.8, 2.4, rows=2, heights=(2.8, 1))
    upper.plot(grid, curve(grid), color=PALETTE[0], label=f"polynomial, {len(curve.coefficients)} coefficients")
    count = len(calibration.shifts)
    upper.plot(calibration.wavelengths, calibration.shifts, "|", color=PALETTE[0], markersize=9, label=f"{count} bands")
    upper.plot(curve.wavelengths, curve.measured, "o", color=PALETTE[1], label="measured")
    upper.set(ylabel="displacement [px]", title="Dispersion")
    upper.tick_params(labelbottom=False)
    upper.legend()
    lower.axhline(0, color=PALETTE[0], linewidth=1)
    lower.plot(curve.wavelengths, curve.residuals, "o", color=PALETTE[1], label="measured - fitted")
    lower.plot(curve.wavelengths, curve.across, "s", color=PALETTE[2], markersize=4, label="across the dispersion")
    limit = 1.3 * max(0.02, float(np.abs(curve.residuals).max()), float(np.abs(curve.across).max()))
    lower.set(xlim=upper.get_xlim(), ylim=(-limit, limit), xlabel="wavelength [nm]", ylabel="[px]")
    lower.legend(loc="best", ncols=2)
    return figure


@styled
def detector(calibration: Calibration) -> Figure:
    """Dark level and relative response of the pixels; bad pixels are circled."""
    rows, columns = np.nonzero(calibration.bad_pixels)
    width, height = picture_size(calibration.dark.shape, 3.6)
    bad = f"{len(rows)} bad pixels, {100 * calibration.bad_pixels.mean():.2f} %"
    figure, places = plots(max(width, 2.5) + BAR, height + 6 * LINE, columns=2, title=bad)
    panels = ((calibration.dark, "Dark level", "counts"), (calibration.flat, "Relative response", "of the mean"))
    for axes, (picture, heading, label) in zip(places, panels, strict=True):
        draw_map(axes, picture, heading, label, limits=shown_range(picture, percent=99))
        if len(rows):
            axes.scatter(columns, rows, s=14, facecolors="none", edgecolors=PALETTE[1], linewidths=0.7)
    return figure


@styled
def response(filters: FilterResponse) -> Figure:
    """The transmission of each filter of a mosaic sensor."""
    figure, (axes,) = plots(6.4, 3.6)
    for k, curve in enumerate(filters.response):
        axes.plot(filters.wavelengths, curve, "o-", markersize=3, color=PALETTE[k % len(PALETTE)])
        axes.annotate(str(k), (filters.wavelengths[curve.argmax()], curve.max()), ha="center", va="bottom")
    axes.set(xlabel="wavelength [nm]", ylabel="of the most sensitive", title="Response of the filters")
    axes.set_ylim(0, 1.1)
    return figure


@styled
def displacement(camera: RefinedCamera) -> Figure:
    """Displacement of the mask from its assumed position over the field, for the first and the last band."""
    model = camera.together.model
    height, width = camera.given.shape[-2:]
    x, y = coordinates((ARROWS, ARROWS))
    columns, rows = (x + 1) / 2 * (width - 1), (y + 1) / 2 * (height - 1)
    bands = band_positions(len(camera.together.shifts))
    size = picture_size((height, width), 3.4)
    figure, places = plots(max(size[0], 2.5) + 0.9, size[1] + 0.9, columns=2)
    fields = [(polynomial(model.right, x, y, t), polynomial(model.down, x, y, t)) for t in (bands[0], bands[-1])]
    longest = max(0.05, *(float(np.hypot(right, down).max()) for right, down in fields))
    side = "width" if width < height else "height"  # along which the arrows are closest
    for axes, (right, down), title in zip(places, fields, ("first band", "last band"), strict=True):
        arrows = axes.quiver(
            columns, rows, np.broadcast_to(right, columns.shape), np.broadcast_to(down, rows.shape), color=PALETTE[0],
            angles="xy", scale=1.5 * longest * ARROWS, scale_units=side, width=0.004,
        )  # fmt: skip
        axes.quiverkey(arrows, 0.78, 1.04, longest, f"{longest:.2f} px", labelpos="E", fontproperties={"size": 8})
        axes.set(xlim=(-width * 0.08, width * 1.08), ylim=(height * 1.08, -height * 0.08))
        axes.set(title=f"Mask moved, {title}", xlabel="column [px]", ylabel="row [px]")
        axes.grid(False)
    return figure


@styled
def sharpness(camera: RefinedCamera) -> Figure:
    """Blur of the mask by band, at the center and in the corners of the field."""
    model, count = camera.together.model, len(camera.together.shifts)
    figure, (axes,) = plots(6.4, 3.6)
    corners = {"upper left": (-1, -1), "upper right": (1, -1), "lower left": (-1, 1), "lower right": (1, 1)}
    for color, (name, place) in zip(PALETTE, {"middle": (0, 0), **corners}.items(), strict=False):
        x, y = np.array(place, dtype=float)[:, None]
        blur = [float(model.blur_at(x, y, band)[0]) for band in band_positions(count)]
        axes.plot(range(1, count + 1), blur, "o-", markersize=3, color=color, label=name)
    axes.set(xlabel="band", ylabel="standard deviation [px]", title="Blur of the mask")
    axes.set_ylim(bottom=0)
    axes.legend(ncols=2)
    return figure


@styled
def mask_error(camera: RefinedCamera) -> Figure | None:
    """The mask as given, the correction of its elements, what differs of it by band, and the sensitivity of detector
    pixels, where these were found.

    Above whole, below a part from the middle, and what more captures explain; None where the mask was not corrected.
    """
    learned, detector = camera.together.mask_error, camera.together.sensitivity
    if learned is None or not learned.accepted:
        return None
    given = camera.given if camera.given.ndim == 2 else camera.given.mean(0)
    error = learned.error.numpy()
    mean = error if error.ndim == 2 else error.mean(0)
    maps = [("Mask as given", given, shown_range(given, percent=99)), ("Correction", mean, None)]
    maps += [] if error.ndim == 2 else [("Last less first band", error[-1] - error[0], None)]
    maps += [] if detector is None else [("Sensitivity less 1", detector - 1, None)]
    side = max(picture_size(given.shape, 3.0)[0], 2.5), picture_size(given.shape, 3.0)[1]
    title = f"The correction explains {learned.explained[-1]:.0%} of the misfit in captures kept out of the fit"
    heights = [side[1] + 3 * LINE] * 2 + [PLOT + 4 * LINE] * (len(learned.growth) > 1)
    figure, rows = rows_of(len(maps) * (side[0] + BAR), heights, title)
    panels = [row.subplots(1, len(maps), squeeze=False)[0] for row in rows[:2]]
    for axes, (words, image, limits) in zip(zip(*panels, strict=True), maps, strict=True):
        most = float(np.percentile(np.abs(image), 99.5)) or 1.0
        limits = limits or Limits(-most, most, float(image.min()), float(image.max()))
        middle = tuple(slice(max(0, n // 2 - DETAIL), n // 2 + DETAIL) for n in image.shape)
        draw_map(axes[0], image, words if limits.low >= 0 else f"{words} (std {image.std():.3f})", "", limits=limits)
        draw_map(axes[1], image[middle], f"{words}, middle", "", limits=limits)
    for plot in (row.subplots() for row in rows[2:]):
        counts, shares = zip(*learned.growth, strict=True)
        plot.plot(counts, [100 * share for share in shares], "o-", color=PALETTE[0])
        plot.set(xticks=counts, yticks=(0, 50, 100), ylim=(0, 100), xlabel="captures fitted to", ylabel="[%]")
        plot.set_title("Misfit explained in a capture kept out")
    return figure


LABELS = {
    "step": "dispersion between bands [pixel]",
    "mask_element": "side of a mask element [pixel]",
    "bands": "bands",
    "electrons": "electrons in the brightest pixel",
}


@styled
def choices_figure(rows: Sequence[Mapping[str, float]], *, value: str = "psnr", label: str = "PSNR [dB]") -> Figure:
    """A panel for each choice of which there is more than one value.

    Dots and the thick line are means over all other choices; a thin line joins cameras that differ in this alone.

    Args:
        rows: of each camera its choices, by the names in `LABELS`, and what it reached.
        value, label: which of these is shown, and what it is called.
    """
    varied = [name for name in LABELS if len({row[name] for row in rows}) > 1] or ["step"]
    figure, panels = plots(max(3.4, 4.8 / len(varied)), 3.5, columns=len(varied), title="What each choice is worth")
    for axes, name, color in zip(panels, varied, PALETTE, strict=False):
        others = [other for other in LABELS if other != name]
        lines: dict[tuple[float, ...], list[tuple[float, float]]] = {}
        for row in rows:
            lines.setdefault(tuple(row[other] for other in others), []).append((row[name], row[value]))
        for line in lines.values():
            axes.plot(*np.array(sorted(line)).T, color=MUTED, linewidth=0.6, alpha=0.45)
        ticks = sorted({row[name] for row in rows})
        means = [np.mean([row[value] for row in rows if row[name] == tick]) for tick in ticks]
        axes.plot(ticks, means, "o-", color=color, linewidth=2.2, markersize=5, zorder=3)
        if name == "electrons":
            axes.set_xscale("log")
            axes.minorticks_off()
        axes.set_xticks(ticks, [f"{tick:,.10g}" for tick in ticks])
        axes.set_xlabel(LABELS[name])
    panels[0].set_ylabel(label)
    low, high = (f(row[value] for row in rows) for f in (min, max))
    for axes in panels:
        axes.set_ylim(low - 0.05 * (high - low) - 0.1, high + 0.05 * (high - low) + 0.1)
        axes.tick_params(labelleft=axes is panels[0])
    return figure
