"""Spectra of places and regions of results, as a table."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.cli.places import check_files
from cassi.cli.shell import check_said, say
from cassi.errors import InputError
from cassi.files.atomic import replacing, write_text

if TYPE_CHECKING:
    from cassi.looking.comparison import SpectrumComparison
    from cassi.looking.regions import Region, RegionSpectrum


def run(args: argparse.Namespace) -> int:
    """Print the spectra, or write them, and draw them if asked to."""
    from cassi.looking.regions import spectrum_of, table_of
    from cassi.looking.report_data import read_report

    files = results_in(args.results)
    check_files("spectra", args, files)
    regions = regions_of(args)
    if not regions:
        raise InputError("say where: --at ROW,COLUMN or --regions FILE, a .json saved by a report")
    spectra = []
    for file in files:
        data = read_report(file, frame=args.frame)
        for region in regions:
            of = replace(region, name=f"{file.stem.removesuffix('_cube')}: {region.name}")
            spectra.append(spectrum_of(data, of if len(files) > 1 else region))
    write_spectra(args, spectra)
    outputs = ", ".join(name for name in (args.csv, args.figure) if name is not None)
    say(args, f"spectra -> {outputs}" if outputs else table_of(spectra).rstrip())
    if not outputs:
        check_said()
    return 0


def write_spectra(
    args: argparse.Namespace, spectra: "list[RegionSpectrum]", compared: "Sequence[SpectrumComparison]" = ()
) -> None:
    """The table and the figure that are asked for."""
    from cassi.looking.comparison import spectra_figure
    from cassi.looking.regions import table_of

    if args.csv is not None:
        write_text(args.csv, table_of(spectra, [comparison.columns for comparison in compared]), args.overwrite)
    if args.figure is not None:
        with replacing(args.figure, args.overwrite) as temporary:
            name = Path(getattr(args, "reference", "")).name
            spectra_figure(spectra, compared, name=name).savefig(temporary, dpi=150)


def regions_of(args: argparse.Namespace) -> "list[Region]":
    """The places and regions that are asked for."""
    from cassi.looking.regions import Region, read_regions

    return [Region.at(place) for place in args.at] + [region for name in args.regions for region in read_regions(name)]


def results_in(names: list[str]) -> list[Path]:
    """The files of results that are named, or lie in a folder that is: there, of a result in several formats, HDF5."""
    from cassi.files.frames import natural

    results: list[Path] = []
    for path in map(Path, names):
        inside = sorted(path.glob("*_cube.*"), key=lambda file: (file.suffix not in (".h5", ".hdf5"), natural(file)))
        found = {file.stem: file for file in reversed(inside) if file.suffix != ".img"}
        results += sorted(found.values(), key=natural) if path.is_dir() else [path]
    if not results:
        raise InputError(f"{', '.join(names)}: no results in it, expected files such as NAME_cube.h5")
    return results
