"""How far apart are two cubes, or the spectrum of a region and that of a spectrometer or another cube?"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cassi.errors import InputError, counted, parse_json
from cassi.files.cubes import check_turned_alike, read_cube
from cassi.files.opening import open_container
from cassi.files.spectrum_files import Spectrum, band_means
from cassi.looking.color import value_label
from cassi.looking.drawing import band_name
from cassi.looking.figures import difference
from cassi.looking.metrics import band_psnr, peak_of, score, spectral_angles
from cassi.looking.regions import RegionSpectrum
from cassi.looking.style import INK, PALETTE, plots, spectral_axis, styled
from cassi.optics.wavelengths import pair_bands, span
from cassi.types import PathLike


@dataclass(frozen=True, eq=False)
class Comparison:
    """The result of `compare`.

    The numbers are "psnr" [dB], "ssim", "sam" (mean spectral angle, degrees) and the "peak" of the PSNR, which
    `band_psnr` has for each band, by its name; the "factor" of the first cube that fits best, and "psnr_scaled" with
    it. The figure is `cassi.looking.figures.difference`.
    """

    names: tuple[str, str]
    numbers: dict[str, float]
    band_psnr: dict[str, float]
    figure: Figure
    scaled: bool = False  # whether the first cube was multiplied by the factor

    def __str__(self) -> str:
        n = self.numbers
        scores = f"PSNR {n['psnr']:.2f} dB, SSIM {n['ssim']:.3f} (peak {n['peak']:.3g}), mean spectral angle"
        lines = [f"{self.names[0]} against {self.names[1]}", f"{scores} {n['sam']:.2f} degrees"]
        if not (self.scaled or 0.9 < n["factor"] < 1.1):  # the first number then is about the units alone
            better = f"Multiplied by {n['factor']:.3g} the first has a PSNR of {n['psnr_scaled']:.2f} dB"
            lines[1] = f"as they are: {lines[1]}"
            lines.insert(1, f"are the units different? {better}; --fit-scale compares them that way")
        return "\n".join(lines + [f"  {name:>9}  {value:6.2f} dB" for name, value in self.band_psnr.items()])


def compare(a: PathLike, b: PathLike = "truth", *, frame: int = 0, scaled: bool = False) -> Comparison:
    """Compare a cube with the truth, or with another cube.

    Estimates are clipped to [0, peak] for PSNR and SSIM, as in `cassi.looking.metrics.score`, with the peak of the
    second cube (`cassi.looking.metrics.peak_of`).

    Args:
        a, b: files that `cassi.files.read_cube` reads; `b` may be "truth": the truth that the first file holds.
        scaled: multiply the first cube by the factor that fits best, s = <x, t> / <x, x>, where units differ.
        frame: which cube of a stack, from 0; the second file may hold a single cube, a truth for all frames.

    Raises:
        InputError: a file that cannot be read, no truth in it, no such frame, cubes of different shape or wavelengths.

    Example:
        >>> path = os.path.join(tempfile.mkdtemp(), "cube.h5")
        >>> truth = np.random.default_rng(0).random((3, 16, 16))
        >>> _ = cassi.files.write_cube(path, truth + 0.01, datasets={"truth": truth})
        >>> compare(path).numbers["psnr"] > 39
        True
    """
    own_truth = os.fspath(b) == "truth"
    if own_truth and open_container(Path(a)).entry("truth") is None:
        raise InputError(f"{Path(a).name} holds no truth to compare with; give the file of another cube")
    if not own_truth:
        check_turned_alike(a, b)
    first, nm = read_cube(a)
    second, other_nm = read_cube(a, key="truth") if own_truth else read_cube(b)
    names = (Path(a).name, "truth" if own_truth else Path(b).name)
    x = _frame_of(names[0], first, frame)
    truth = _frame_of(names[1], second, frame if second.ndim == 4 and len(second) > 1 else 0)
    if x.shape != truth.shape:
        sizes = f"{names[0]} is {x.shape}, {names[1]} {truth.shape} (C, H, W)"
        raise InputError(f"{sizes}; select the same bands and pixels")
    if nm is not None and other_nm is not None:
        if (order := pair_bands(nm, other_nm)) is None:
            what = f"{names[0]} has {span(nm)}, {names[1]} {span(other_nm)}"
            raise InputError(f"{what}; compare places (--at), or resample one of them (cassi export --output-bands)")
        truth = truth[order]
    nm = other_nm if nm is None else nm
    stated = open_container(Path(a)).attributes.get("origin", "{}") if own_truth else "{}"
    peak = peak_of(truth, parse_json(str(stated)))
    cross, square = (float(np.einsum("chw,chw->", x, other, dtype=np.float64)) for other in (truth, x))
    factor = cross / (square or 1.0)
    psnr_scaled = float(np.mean(band_psnr(np.clip(factor * x, 0, peak), truth, peak=peak)))
    x = np.asarray(factor * x, dtype=x.dtype) if scaled else x
    numbers = {**score(x, truth=truth, peak=peak), "peak": peak, "factor": factor, "psnr_scaled": psnr_scaled}
    names = (f"{names[0]} times {factor:.4g}", names[1]) if scaled else names
    decibels = {band_name(nm, k): value for k, value in enumerate(band_psnr(np.clip(x, 0, peak), truth, peak=peak))}
    return Comparison(names, numbers, decibels, difference(x, truth, nm, names=names, peak=peak), scaled)


def _frame_of(name: str, cube: np.ndarray, frame: int) -> np.ndarray:
    cubes = cube if cube.ndim == 4 else cube[None]
    if not 0 <= frame < len(cubes):
        raise InputError(f"{name}: no frame {frame}, it holds {len(cubes)}; count from 0")
    return np.asarray(cubes[frame])


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
