"""Compares the spectrum of a region with a spectrometer, or with the same region of another cube."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cassi.errors import InputError, counted
from cassi.files.spectrum_files import Spectrum, band_means
from cassi.looking.color import value_label
from cassi.looking.drawing import band_name
from cassi.looking.metrics import spectral_angles
from cassi.looking.regions import RegionSpectrum
from cassi.looking.style import INK, PALETTE, plots, spectral_axis, styled
from cassi.optics.wavelengths import pair_bands


@dataclass(frozen=True, eq=False)
class SpectrumComparison:
    """The spectrum of a region beside a reference.

    Attributes:
        estimate: the spectrum of the region in the cube.
        reference: (C,) mean over each band, times `scale`; NaN outside the range of the reference.
        scale: factor of the reference; 1 unless fitted.
        angle: between the two [degrees], independent of the scale.
        rmse: root mean square of the difference over the bands, in the unit of the cube.
        share: of the bands with a difference of at most 2 error bars; None without error bars.
    """

    estimate: RegionSpectrum
    reference: np.ndarray
    scale: float
    angle: float
    rmse: float
    share: float | None

    @property
    def bands(self) -> int:
        """The number of bands compared."""
        return int(np.isfinite(self.reference).sum())

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Reference and difference, for a table, by their names."""
        times = "" if self.scale == 1 else f" times {self.scale:.4g}"
        return {f"reference{times}": self.reference, "difference": self.estimate.mean - self.reference}

    def __str__(self) -> str:
        estimate, level = self.estimate, float(np.sqrt(np.nanmean(self.reference**2)))
        outside = " (the rest of it lies outside of the scene)" if estimate.is_cut else ""
        bands = f"{self.bands} of {counted(len(estimate.mean), 'band')}"
        lines = [
            f"{estimate.region.name}, {estimate.num_pixels} px{outside}, {bands}: "
            f"angle {self.angle:.2f} degrees, RMSE {self.rmse:.3g} ({self.rmse / level:.1%} of the reference), scale "
            f"{self.scale:.4g}"
        ]
        if self.share is not None:
            lines.append(f"within 2 error bars in {self.share:.0%} of the bands (95% if error bars are right)")
        bar = ["error bar"] if estimate.error is not None else []
        heads = ["band", "cube", "std", *bar, "reference", "difference"]
        lines.append("  " + "".join(f"{head:>12}" for head in heads))
        error = [estimate.error] if estimate.error is not None else []
        columns = [estimate.mean, estimate.std, *error, self.reference, estimate.mean - self.reference]
        for k in range(len(estimate.mean)):
            cells = "".join(f"{column[k]:>12.4g}" for column in columns)
            lines.append(f"  {band_name(estimate.wavelengths, k):>12}{cells}")
        return "\n".join(lines)


def paired_spectrum(
    estimate: RegionSpectrum, spectrum: np.ndarray, nm: np.ndarray | None
) -> np.ndarray | Spectrum | None:
    """The spectrum (C',) of another cube, with wavelengths `nm`, as the reference of `compare_spectra` for `estimate`.

    The values of the same bands in the order of `estimate`, where both cubes hold the same; else a table to be averaged
    over its bands. Band by band where wavelengths are unknown; None if these are not equally many.
    """
    if estimate.wavelengths is None or nm is None:
        return spectrum if len(spectrum) == len(estimate.mean) else None
    if (order := pair_bands(estimate.wavelengths, nm)) is not None:
        return np.asarray(spectrum[order])
    rising = np.argsort(nm)
    return Spectrum(np.asarray(nm)[rising], spectrum[rising])


def compare_spectra(
    estimate: RegionSpectrum, reference: Spectrum | np.ndarray, *, scaled: bool = True
) -> SpectrumComparison:
    """Compare the spectrum of a region with a reference.

    Args:
        estimate: see `cassi.looking.regions.spectrum_of`.
        reference: a table of a spectrometer, averaged over each band (see
            `cassi.files.tables.band_means`), or the values of the bands, (C,).
        scaled: multiply the reference by the factor that fits best, s = <r, x> / <r, r>, because the unit of a
            spectrometer differs.

    Raises:
        InputError: bands without wavelengths, fewer than 2 bands within the range of the table, a reference of 0, or
            one that fits only with a negative factor.

    Example:
        >>> from cassi.looking.regions import Region, spectrum_of
        >>> from cassi.looking.report_data import ReportData
        >>> cube = np.linspace(1, 3, 3)[:, None, None] * np.ones((3, 4, 4))
        >>> leaf = spectrum_of(ReportData(cube, wavelengths=np.array([450.0, 550.0, 650.0])), Region.at("1,1"))
        >>> round(compare_spectra(leaf, Spectrum(np.array([300.0, 800.0]), np.array([0.0, 0.05]))).angle, 1)
        4.1
    """
    if isinstance(reference, Spectrum):
        if estimate.wavelengths is None or len(estimate.mean) < 2:
            raise InputError("the bands have no wavelengths to compare with a spectrometer; give --wavelengths")
        values = band_means(reference, estimate.wavelengths)
    else:
        values = np.asarray(reference, dtype=np.float64)
    known = np.isfinite(values)
    x, r = estimate.mean[known], values[known]
    if known.sum() < 2:
        reach = f"{reference.nm[0]:g} to {reference.nm[-1]:g} nm" if isinstance(reference, Spectrum) else "no band"
        raise InputError(f"the reference covers {reach}, which contains fewer than 2 bands of the cube")
    if not float(r @ r) > 0:
        raise InputError("the reference is 0 in all bands of the cube; is the second column the value?")
    scale = float(r @ x) / float(r @ r) if scaled else 1.0
    if scale < 0:
        what = f"the reference fits only times {scale:.3g}: one of the two is negative"
        raise InputError(f"{what}; is it an absorbance, or another column? Give reflectance or radiance, or --unscaled")
    difference = x - scale * r
    angle = spectral_angles(x[:, None, None], r[:, None, None]).item()
    share = None if estimate.error is None else float(np.mean(np.abs(difference) <= 2 * estimate.error[known]))
    rmse = math.sqrt(float(np.mean(difference**2)))
    return SpectrumComparison(estimate, scale * values, scale, angle, rmse, share)


@styled
def spectra_figure(
    spectra: Sequence[RegionSpectrum], compared: Sequence[SpectrumComparison] = (), *, name: str = "reference"
) -> Figure:
    """One panel per region: its mean with spread and error bars, and what it is compared with, if anything, dashed."""
    columns = min(3, len(spectra))
    figure, panels = plots(5.0, 3.4, columns=columns, rows=-(-len(spectra) // columns))
    for axes in panels[len(spectra) :]:
        axes.remove()
    for k, (axes, estimate) in enumerate(zip(panels, spectra, strict=False)):
        color, comparison = PALETTE[k % len(PALETTE)], compared[k] if compared else None
        axis, label = spectral_axis(estimate.wavelengths, len(estimate.mean))
        order = np.argsort(axis)
        x, mean, std = axis[order], estimate.mean[order], estimate.std[order]
        if estimate.num_pixels > 1:
            axes.fill_between(x, mean - std, mean + std, color=color, alpha=0.18, linewidth=0, label="± std of pixels")
        error = None if estimate.error is None else estimate.error[order]
        bars = "" if error is None else " ± error bar"
        axes.errorbar(x, mean, yerr=error, color=color, linewidth=1.6, elinewidth=0.9, capsize=2, label=f"cube{bars}")
        lowest, heading = float(mean.min()), f"{estimate.region.name} ({estimate.num_pixels} px)"
        if comparison is not None:
            dash: dict[str, Any] = {"color": INK, "linestyle": (0, (4, 2)), "linewidth": 1.3, "zorder": 4}
            factor = "" if comparison.scale == 1 else f" x {comparison.scale:.3g}"
            axes.plot(x, comparison.reference[order], label=f"{name}{factor}", **dash)
            lowest = min(lowest, float(np.nanmin(comparison.reference)))
            heading = f"{heading} · {comparison.angle:.1f}°"
        axes.set(title=heading, xlabel=label, ylabel=value_label(estimate.unit))
        axes.set_ylim(bottom=min(0.0, lowest))
        axes.legend(fontsize=8)
    return figure
