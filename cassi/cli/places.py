"""The files of a run, checked before anything is read: nothing may be lost, what is written must find its place."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from cassi.cli.options import files_read
from cassi.errors import InputError, OutputError, one_line

HDF5 = (".h5", ".hdf5")


def _place(name: str | Path) -> Path:
    """Where a file really lies; of a link to itself, which `Path.resolve` takes for an error, where it stands."""
    return Path(os.path.realpath(name))


def keep_inputs(output: str, read: Iterable[str | Path | None]) -> None:
    """Raise InputError where a result would replace one of the files that it is made from."""
    if _place(output) in {_place(name) for name in read if name}:
        raise InputError(f"{output}: the result would replace an input; choose another --output")


def check_places(args: argparse.Namespace, output: Path | None = None, snapshots: Iterable[str] = ()) -> None:
    """Check the files that `reconstruct` makes against those that it reads, and against each other.

    Args:
        args: whose `save_camera` and `report` are made too.
        output: the result.
        snapshots: files that a folder or a pattern stands for.

    Raises:
        InputError: one would replace an input, or another of them.
    """
    read = {_place(name): "--measurement" for name in snapshots}
    read |= {_place(name): option for name, option in files_read("reconstruct", args).items()}
    made: dict[Path, str] = {}
    for option, name in (("--output", output), ("--save-camera", args.save_camera), ("--report", args.report)):
        if not name:
            continue
        path = Path(name)
        what = "the result" if option == "--output" else f"{option}'s file"
        for file in (path, path.with_suffix(".img")) if path.suffix.lower() == ".hdr" else (path,):
            place = _place(file)
            if place in read:
                raise InputError(
                    f"{file}: {what} would replace an input, that of {read[place]}; choose another {option}"
                )
            if place in made:
                raise InputError(f"{file}: {what} would replace that of {made[place]}; choose another {option}")
            made[place] = option


def check_camera_file(args: argparse.Namespace, *, many: bool) -> None:
    """Find out before the computation whether --save-camera can be written.

    Args:
        args: the options.
        many: the run goes on with what an earlier one left; a file of another camera is refused when it is known.

    Raises:
        OutputError: it cannot, or exists.
    """
    if not args.save_camera:
        return
    from cassi.files.atomic import check_place

    path = Path(args.save_camera)
    if path.suffix.lower() not in HDF5:
        raise OutputError(f"{path}: a camera is an HDF5 file, expected the suffix .h5")
    check_place(path, args.overwrite or many)


def figures_folder(args: argparse.Namespace, output: Path) -> Path | None:
    """Where the figures go (None: none).

    Raises:
        OutputError: the folder cannot be made.
    """
    if args.figures == "none":
        return None
    folder = Path(args.figures or output.with_name(f"{output.stem.removesuffix('_cube')}_figures"))
    there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not there:  # a run that fails leaves nothing behind
            folder.rmdir()
    except OSError as error:
        raise OutputError(
            f"{folder}: the figures' folder cannot be made ({one_line(error)}); use --figures DIR or none"
        ) from error
    return folder


def report_file(args: argparse.Namespace, output: Path) -> Path | None:
    """Where the report goes (None: no report).

    Raises:
        InputError: it exists, is no HTML file, or cannot be made.
    """
    if args.report is None:
        return None
    from cassi.files.atomic import check_place

    path = Path(args.report or output.with_name(f"{output.stem.removesuffix('_cube')}_report.html"))
    if output.suffix.lower() not in HDF5:
        raise InputError(f"the report is made from an HDF5 result, the output is {output.name}; leave one of them out")
    if path.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{path}: a report is an HTML file, expected the suffix .html")
    return check_place(path, args.overwrite)
