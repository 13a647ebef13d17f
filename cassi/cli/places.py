"""The files of a run, checked before anything is computed: nothing may be lost, what is written must find its place."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from cassi.cli.options import options_of
from cassi.errors import InputError, OutputError
from cassi.files import check_output
from cassi.files.atomic import check_place


def check_files(command: str, args: argparse.Namespace, read: Iterable[str | Path] = (), *, many: bool = False) -> None:
    """Check the files that a command makes against those that it reads, and against each other."""
    taken = {os.path.realpath(name): "an input" for name in read}
    for option in options_of(command):
        value = getattr(args, option.field)
        for name in (value if isinstance(value, list) else [value]) if option.reads else ():
            taken[os.path.realpath(name or "")] = f"an input, that of {option.name}"
    for option in options_of(command):
        name = getattr(args, option.field)
        if not name or not (option.writes or (option.name == "--output" and (not many or args.sequence))):
            continue
        path = Path(name)
        place = os.path.realpath(path)
        if place in taken:
            raise InputError(f"{path}: would replace {taken[place]}; choose another {option.name}")
        taken[place] = f"the file of {option.name}"
        if not option.writes:
            check_output(path, args.overwrite)
        elif path.suffix.lower() not in option.writes:
            raise OutputError(f"{path}: expected the suffix {' or '.join(option.writes)} for {option.name}")
        else:
            check_place(path, args.overwrite or (many and option.name == "--save-camera"))


def figures_folder(args: argparse.Namespace, output: Path) -> Path | None:
    """Where the figures go (None: none)."""
    if args.figures == "none":
        return None
    folder = Path(args.figures or output.with_name(f"{output.stem.removesuffix('_cube')}_figures"))
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder}: is a file, the figures need a folder; use --figures DIR or none")
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not os.access(there, os.W_OK):
        raise OutputError(f"{folder}: {there} may not be written to; use --figures DIR or none")
    return folder
