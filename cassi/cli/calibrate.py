"""Make a calibration of a camera from captured frames: dark, flat, and the coded aperture at known wavelengths."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from cassi.calibration.estimate import calibrate
from cassi.calibration.frames_on_disk import find_frames, read_frames
from cassi.cli.places import check_files, figures_folder
from cassi.cli.shell import say
from cassi.looking.style import Figure

Found = TypeVar("Found")


def run(args: argparse.Namespace) -> int:
    """Read the frames, calibrate, write, report."""
    from cassi.looking import calibration_figures as fig

    files = find_frames(args.folder, args.wavelengths)
    check_files("calibrate", args, [*files.dark, *files.flat, *files.mask])
    found = calibrate(
        read_frames(files.dark),
        read_frames(files.flat),
        read_frames(files.mask),
        files.wavelengths,
        step=args.step,
        num_bands=args.num_bands,
        order=args.order,
        bit_depth=args.bit_depth,
    )
    found.save(args.output, overwrite=args.overwrite)
    drawn = {"dispersion": fig.dispersion, "detector": fig.detector, "masks": fig.masks}
    say(args, "\n".join([*found.summary(), f"-> {drawings(args, found, drawn)}"]))
    return 0


def drawings(args: argparse.Namespace, found: Found, drawn: Mapping[str, Callable[[Found], Figure]]) -> str:
    """Draw what was found, beside its file; the names of all that was made."""
    from cassi.looking.figures import save_figures

    folder = figures_folder(args, Path(args.output))
    if folder is None:
        return str(args.output)
    save_figures({name: draw(found) for name, draw in drawn.items()}, folder)
    return f"{args.output}, {folder}/"
