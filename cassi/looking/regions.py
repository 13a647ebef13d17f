"""Regions of a scene: their spectra with spread and error bars, and files of both."""

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from matplotlib.path import Path as Outline

from cassi.errors import InputError, one_line, parse_json
from cassi.files.atomic import check_readable, write_text
from cassi.looking.color import value_label
from cassi.looking.drawing import band_name
from cassi.looking.report_data import CubeLike, ReportData, of_a_file
from cassi.optics.measurement import same_values
from cassi.types import PathLike

MAX_CORNERS = 10_000


@dataclass(frozen=True)
class Region:
    """A polygon on the scene.

    Args:
        corners: (row, column) of each, in pixels: pixel (i, j) covers i to i + 1 and j to j + 1, and belongs to the
            region if its center lies inside.
        name: of the object.
    """

    corners: tuple[tuple[float, float], ...]
    name: str = ""

    @classmethod
    def box(cls, row: int, column: int, height: int = 1, width: int = 1, name: str = "") -> Self:
        """The pixels from (row, column) on, height x width of them."""
        bottom, right = row + height, column + width
        name = name or (f"row {row}, column {column}" + (f", {height} x {width} px" if height * width > 1 else ""))
        return cls(((row, column), (row, right), (bottom, right), (bottom, column)), name)

    @classmethod
    def at(cls, text: str) -> Self:
        """From "ROW,COLUMN", a pixel, or "ROW,COLUMN,SIZE", a square of SIZE pixels around it, or "NAME=..." of these.

        Example:
            >>> Region.at("leaf=10,20,3")
            Region(corners=((9, 19), (9, 22), (12, 22), (12, 19)), name='leaf')
        """
        given, _, numbers = text.rpartition("=")
        match = re.fullmatch(r"\s*(\d{1,6})\s*,\s*(\d{1,6})\s*(?:,\s*(\d{1,6}))?\s*", numbers)
        size = int(match[3] or 1) if match else 0
        if match is None or size < 1:
            raise InputError(f"{text!r} is not a position, expected ROW,COLUMN or ROW,COLUMN,SIZE such as 120,85,5")
        row, column = int(match[1]), int(match[2])
        name = one_line(given.strip(), 60)
        name = name or (f"{size} x {size} px around row {row}, column {column}" if size > 1 else "")
        return cls.box(row - (size - 1) // 2, column - (size - 1) // 2, size, size, name)

    def inside(self, height: int, width: int) -> np.ndarray:
        """The pixels of the scene (H, W) that belong to the region, bool.

        Raises:
            InputError: there is none.
        """
        rows, columns = np.indices((height, width))
        centers = np.column_stack([rows.ravel() + 0.5, columns.ravel() + 0.5])
        picked = Outline(np.array(self.corners)).contains_points(centers).reshape(height, width)
        if not picked.any():
            cure = "move it into the scene" if self.reaches_out(height, width) else "enlarge it"
            raise InputError(f"region {self.name!r} contains no pixel of the scene, {height} x {width} px; {cure}")
        return np.asarray(picked)

    def reaches_out(self, height: int, width: int) -> bool:
        """Whether a part of it lies outside of the scene."""
        corners = np.array(self.corners)
        return bool((corners < 0).any() or (corners > (height, width)).any())


@dataclass(frozen=True, eq=False)
class RegionSpectrum:
    """The spectrum of a region; all arrays (C,) in `unit`.

    Attributes:
        mean, std: over its pixels; std of a single pixel is 0.
        error: mean of the standard deviations stated by the reconstruction, or None. It is not divided by the root of
            the number of pixels, because errors of neighbors are correlated.
        num_pixels: of the region, as far as it lies in the scene.
        wavelengths: (C,) [nm], or None.
    """

    region: Region
    mean: np.ndarray
    std: np.ndarray
    error: np.ndarray | None
    num_pixels: int
    wavelengths: np.ndarray | None
    unit: str
    is_cut: bool = False  # a part of the region lies outside of the scene


@of_a_file
def spectrum_of(data: ReportData, region: Region, *, of: CubeLike | None = None) -> RegionSpectrum:
    """The spectrum of a region of a result.

    Args:
        data: see `cassi.looking.report_data.read_report` and `report_of`.
        region: polygon, box or pixel.
        of: another cube of the same size, instead of the result's.

    Raises:
        InputError: the region contains no pixel of the scene.

    Example:
        >>> found = spectrum_of(ReportData(np.ones((3, 8, 8))), Region.at("4,4,3"))
        >>> found.num_pixels, found.mean.tolist()
        (9, [1.0, 1.0, 1.0])
    """
    height, width = data.cube.shape[1:]
    picked, is_cut = region.inside(height, width), region.reaches_out(height, width)
    (top, bottom), (left, right) = ((int(n.min()), int(n.max()) + 1) for n in np.nonzero(picked))
    part, within = (slice(None), slice(top, bottom), slice(left, right)), picked[top:bottom, left:right]
    values = np.asarray((data.cube if of is None else of)[part])[:, within].astype(np.float64)
    error = None
    if of is None and data.uncertainty is not None:
        error = np.asarray(data.uncertainty[part])[:, within].astype(np.float64).mean(1)
    count, nm = values.shape[1], data.wavelengths
    return RegionSpectrum(region, values.mean(1), values.std(1), error, count, nm, data.unit, is_cut)


def read_regions(path: PathLike) -> list[Region]:
    """Read regions in the format exported by a report.

    JSON: `{"regions": [{"name": "leaf", "corners": [[row, column], ...]}, ...]}`, one of these, or a list of corners.

    Raises:
        InputError: missing file, or no region in it.
    """
    where, wanted = Path(path), 'expected {"regions": [{"name": ..., "corners": [[row, column], ...]}]}'
    try:
        content: Any = parse_json(check_readable(where).read_text(encoding="utf-8"))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{where}: not JSON ({error}); {wanted}") from error
    listed = content.get("regions", [content]) if isinstance(content, dict) else [{"corners": content}]
    try:
        regions = []
        for k, entry in enumerate(listed, 1):
            if "corners" not in entry:
                raise ValueError(f"region {k} without corners")
            corners = np.array(entry["corners"], dtype=np.float64)
            if not (corners.ndim == 2 and corners.shape[1] == 2 and 3 <= len(corners) <= MAX_CORNERS):
                raise ValueError(f"region {k} has corners of shape {corners.shape}")
            if not np.isfinite(corners).all():
                raise ValueError(f"region {k} has a corner that is not a number")
            name = one_line(entry.get("name") or f"region {k}", 60)
            regions.append(Region(tuple((float(row), float(column)) for row, column in corners), name))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{where}: {error}; {wanted}") from error
    if not regions:
        raise InputError(f"{where}: no region in it; {wanted}")
    return regions


def write_regions(path: PathLike, regions: Iterable[Region], *, overwrite: bool = False) -> None:
    """Write regions for `read_regions` and reports."""
    listed = [{"name": region.name, "corners": region.corners} for region in regions]
    write_text(path, json.dumps({"regions": listed}, indent=1) + "\n", overwrite)


def table_of(spectra: Sequence[RegionSpectrum], beside: Sequence[Mapping[str, np.ndarray]] = ()) -> str:
    """Spectra as CSV with one line per band: mean, std and error bar of each region, with pixels and unit.

    Regions of one name are numbered, from the second on.

    Args:
        spectra: of one or several cubes with the same bands.
        beside: further columns (C,) of each by their names; NaN stays empty.

    Raises:
        InputError: spectra of other bands than the first.
    """
    first, file, times = spectra[0], io.StringIO(), Counter[str]()
    table = csv.writer(file, lineterminator="\n")
    columns: list[Sequence[object]] = [[band_name(first.wavelengths, k) for k in range(len(first.mean))]]
    heads = ["band"]
    if first.wavelengths is not None:
        heads, columns = ["wavelength [nm]"], [[f"{w:g}" for w in first.wavelengths]]
    for spectrum, more in zip(spectra, [*beside, *[{}] * (len(spectra) - len(beside))], strict=True):
        if not same_values(spectrum.wavelengths, first.wavelengths) or len(spectrum.mean) != len(first.mean):
            names = f"{spectrum.region.name} and {first.region.name}"
            raise InputError(f"{names} have different bands; write a table of each")
        times[own := spectrum.region.name] += 1
        name = own if times[own] == 1 else f"{own} #{times[own]}"
        known = {"mean": spectrum.mean, "std": spectrum.std, "error bar": spectrum.error, **more}
        for what, values in known.items():
            if values is not None:
                heads.append(f"{name} ({spectrum.num_pixels} px) {what} [{value_label(spectrum.unit)}]")
                columns.append(["" if np.isnan(value) else f"{value:.7g}" for value in values])
    table.writerow(heads)
    table.writerows(zip(*columns, strict=True))
    return file.getvalue()
