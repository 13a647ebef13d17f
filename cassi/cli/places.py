"""The files of a run, checked before anything is read: nothing may be lost, what is written must find its place."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from cassi.errors import InputError, OutputError


def inputs(args: argparse.Namespace) -> dict[Path, str]:
    """Every file that a run may read, resolved, and the option that names it."""
    given: dict[str, Iterable[str | None]] = {
        "--measurement": args.files,
        "--mask": args.masks,
        "--calibration": args.calibrations,
        "--bad-pixels": (args.bad_pixels,),
        "--white": (args.white,),
        "--wavelengths": (args.wavelengths,),
        "--weights": (args.weights,),
        "--spectral-prior": args.spectral_prior or (),
        "--side": (args.side,),
        "--side-response": (args.side_response,),
    }
    return {_place(name): option for option, names in given.items() for name in names if name}


def _place(name: str | Path) -> Path:
    """Where a file really lies; of a link to itself, which `Path.resolve` takes for an error, where it stands."""
    return Path(os.path.realpath(name))


def keep_inputs(output: str, read: Iterable[str | Path | None]) -> None:
    """Raise InputError where a result would replace one of the files that it is made from."""
    if _place(output) in {_place(name) for name in read if name}:
        raise InputError(f"{output}: the result would replace an input; choose another --output")


def check_places(args: argparse.Namespace, output: Path | None = None) -> None:
    """Check the files to be made against those to be read, and against each other.

    Args:
        args: whose `save_camera` and `report` are made too.
        output: the result.

    Raises:
        InputError: one would replace an input, or another of them.
    """
    read = inputs(args)
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


def check_camera_file(args: argparse.Namespace, snapshots: Iterable[str] = (), *, many: bool = False) -> None:
    """Find out before the computation whether --save-camera can do what it says.

    Args:
        args: the options.
        snapshots: files that a folder or a pattern stands for.
        many: the run goes on with what an earlier one left; a file of another camera is refused when it is known.

    Raises:
        InputError: no camera is looked for, or it would replace a snapshot.
        OutputError: the file cannot be written, or exists.
    """
    if not args.save_camera:
        return
    from cassi.files.atomic import check_place

    path = Path(args.save_camera)
    others = {
        "--camera as-given": args.camera == "as-given",
        "--psf": args.psf is not None,
        "--align": args.align,
        "--calibration": args.calibration,
    }
    for option in (name for name, given in others.items() if given):
        raise InputError(
            f"--save-camera writes the camera that is found from the snapshot; with {option} none is looked for, leave "
            "one of them out"
        )
    if path.suffix.lower() not in (".h5", ".hdf5"):
        raise OutputError(f"{path}: a camera is an HDF5 file, expected the suffix .h5")
    if _place(path) in {_place(name) for name in snapshots}:
        raise InputError(f"{path}: --save-camera's file would replace a snapshot; choose another --save-camera")
    check_place(path, args.overwrite or many)
