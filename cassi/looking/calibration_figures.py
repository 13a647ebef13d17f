"""Figures of a calibration: the dispersion and how well it fits, the frames, the masks."""

from __future__ import annotations

import numpy as np

from cassi.calibration.estimate import Calibration
from cassi.looking.color import shown_range
from cassi.looking.style import (
    EDGE,
    LEFT,
    LINE,
    PALETTE,
    Figure,
    Row,
    draw_map,
    page,
    picture_size,
    row_of_masks,
    styled,
)


@styled
def dispersion(calibration: Calibration) -> Figure:
    """Displacement against wavelength, measured and fitted; the bands on it; what the fit leaves.

    Example:
        >>> from cassi.simulation.optical_bench import simulate_bench
        >>> from cassi.calibration.estimate import calibrate
        >>> b = simulate_bench(64, 64, num_bands=8, generator=torch.Generator().manual_seed(0))
        >>> figure = dispersion(calibrate(b.dark, b.flat, b.mask_frames, b.mask_wavelengths))
    """
    curve = calibration.dispersion
    ends = [*curve.wavelengths, *calibration.wavelengths]
    grid = np.linspace(min(ends), max(ends), 400)
    width = 6.8 - LEFT - EDGE
    figure, ((upper,), (lower,)) = page(Row((width,), 2.7, right=EDGE, below=0), Row((width,), 0.95, right=EDGE))
    upper.plot(grid, curve(grid), color=PALETTE[0], label=f"polynomial, {len(curve.coefficients)} coefficients")
    count = len(calibration.shifts)
    upper.plot(calibration.wavelengths, calibration.shifts, "|", color=PALETTE[0], markersize=9, label=f"{count} bands")
    upper.plot(curve.wavelengths, curve.measured, "o", color=PALETTE[1], label="measured")
    upper.set(ylabel="displacement [px]", title="Dispersion")
    upper.tick_params(labelbottom=False)
    upper.grid(True)
    upper.legend()
    lower.axhline(0, color=PALETTE[0], linewidth=1)
    lower.plot(curve.wavelengths, curve.residuals, "o", color=PALETTE[1], label="measured - fitted")
    lower.plot(curve.wavelengths, curve.across, "s", color=PALETTE[2], markersize=4, label="across the dispersion")
    limit = 1.3 * max(0.02, float(np.abs(curve.residuals).max()), float(np.abs(curve.across).max()))
    lower.set(xlim=upper.get_xlim(), ylim=(-limit, limit), xlabel="wavelength [nm]", ylabel="[px]")
    lower.grid(True)
    lower.legend(loc="best", ncols=2)
    return figure


@styled
def detector(calibration: Calibration) -> Figure:
    """Dark level and relative response of the pixels, bad ones ringed."""
    rows, columns = np.nonzero(calibration.bad_pixels)
    width, height = picture_size(calibration.dark.shape, 3.6)
    bad = f"{len(rows)} bad pixels, {100 * calibration.bad_pixels.mean():.2f} %"
    figure, (places,) = page(Row([max(width, 2.5)] * 2, height, left=EDGE, below=3 * LINE), title=bad)
    panels = ((calibration.dark, "Dark level", "counts"), (calibration.flat, "Relative response", "of the mean"))
    for axes, (picture, heading, label) in zip(places, panels, strict=True):
        draw_map(axes, picture, heading, label, limits=shown_range(picture, percent=99))
        if len(rows):
            axes.scatter(columns, rows, s=14, facecolors="none", edgecolors=PALETTE[1], linewidths=0.7)
    return figure


@styled
def masks(calibration: Calibration) -> Figure:
    """The masks of the first, middle and last band: the same detail, enlarged, and the whole of the first."""
    count, height, width = calibration.mask.shape
    size = min(48, height, width)
    top, left = (height - size) // 2, (width - size) // 2
    detail = (slice(top, top + size), slice(left, left + size))
    panels = [(calibration.mask[0], f"{calibration.wavelengths[0]:.1f} nm")]
    panels += [
        (calibration.mask[c][detail], f"{calibration.wavelengths[c]:.1f} nm, {size} x {size} px in the middle")
        for c in (0, count // 2, count - 1)
    ]
    limits = shown_range(calibration.mask, "zero", percent=99.9)
    return row_of_masks(panels, limits)
