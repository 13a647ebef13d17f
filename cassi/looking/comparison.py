"""Two cubes side by side: how far apart they are, band by band and pixel by pixel."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from cassi.errors import InputError
from cassi.files.cubes import check_turned_alike, read_cube
from cassi.files.opening import open_container
from cassi.looking.drawing import band_name
from cassi.looking.figures import difference
from cassi.looking.metrics import band_psnr, score
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

    Estimates are clipped to [0, peak] for PSNR and SSIM, as in `cassi.looking.metrics.score`; the peak is 1, or the
    brightest value of the second cube if that is above.

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
    peak = max(1.0, float(truth.max()))
    factor = float(np.vdot(x, truth) / max(np.vdot(x, x), np.finfo(np.float32).tiny))
    psnr_scaled = float(np.mean(band_psnr(np.clip(factor * x, 0, peak), truth, peak=peak)))
    x = np.asarray(factor * x, dtype=x.dtype) if scaled else x
    numbers = {**score(x, truth=truth, peak=peak), "peak": peak, "factor": factor, "psnr_scaled": psnr_scaled}
    names = (f"{names[0]} times {factor:.4g}", names[1]) if scaled else names
    decibels = {band_name(nm, k): value for k, value in enumerate(band_psnr(np.clip(x, 0, peak), truth, peak=peak))}
    return Comparison(names, numbers, decibels, difference(x, truth, nm, names=names), scaled)


def _frame_of(name: str, cube: np.ndarray, frame: int) -> np.ndarray:
    cubes = cube if cube.ndim == 4 else cube[None]
    if not 0 <= frame < len(cubes):
        raise InputError(f"{name}: no frame {frame}, it holds {len(cubes)}; count from 0")
    return np.asarray(cubes[frame])
