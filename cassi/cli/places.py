"""The files of a run, checked before anything is computed: nothing may be lost, what is written must find its place."""

import argparse
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from cassi.cli.options import options_of
from cassi.errors import InputError, OutputError
from cassi.files import check_output
from cassi.files.atomic import check_place
from cassi.settings import Option


def check_files(command: str, args: argparse.Namespace, read: Iterable[str | Path] = ()) -> None:
    """Check the files that a command makes against those that it reads, and against each other."""
    options = options_of(command)
    check_written({o: getattr(args, o.field) for o in options if o.writes}, inputs(options, args, read), args.overwrite)


def inputs(options: Iterable[Option], args: argparse.Namespace, read: Iterable[str | Path]) -> dict[str, str]:
    """The files that are read, and in words what they are."""
    taken = {os.path.realpath(name): "an input" for name in read}
    for option in (option for option in options if option.reads):
        value = getattr(args, option.field)
        for name in value if isinstance(value, list) else [value]:
            which = f", the file of {option.name}" if option.name.startswith("-") else ""
            taken[os.path.realpath(name or "")] = f"an input{which}"
    return taken


def check_written(places: Mapping[Option, object], taken: dict[str, str], overwrite: bool) -> None:
    """Check the files of options that name one against the files that are taken, and against each other."""
    for option, name in places.items():
        if not name:
            continue
        path = Path(str(name))
        place = os.path.realpath(path)
        if place in taken:
            raise InputError(f"{path}: would replace {taken[place]}; choose another {option.name}")
        taken[place] = f"the file of {option.name}"
        if not option.writes:
            check_output(path, overwrite)
        elif path.suffix.lower() not in option.writes:
            raise OutputError(f"{path}: expected the suffix {' or '.join(option.writes)} for {option.name}")
        else:
            check_place(path, overwrite)


def figures_folder(name: str | None, output: Path) -> Path | None:
    """Where the figures go (None: none)."""
    if name == "none":
        return None
    beside = output.with_name(f"{output.stem.removesuffix('_cube')}_figures")
    return check_folder(Path(name or beside), "use --figures DIR or none")


def check_folder(folder: Path, cure: str = "choose another") -> Path:
    """Check that a folder is one, or can be made, and may be written to, and return it."""
    there = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))
    if not there.is_dir():
        raise OutputError(f"{there}: is a file, expected a folder; {cure}")
    if there == folder.absolute().parent:
        check_place(folder)
    if not os.access(there, os.W_OK):
        raise OutputError(f"{folder}: {there} may not be written to; {cure}")
    return folder
