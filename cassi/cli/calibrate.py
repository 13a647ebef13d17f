"""Make a calibration of a camera from captured frames: dark, flat, and the coded aperture at known wavelengths."""

import argparse
from pathlib import Path

from cassi.calibration.estimate import calibrate
from cassi.calibration.filter_response import calibrate_filters
from cassi.calibration.frames_on_disk import find_frames, read_frames
from cassi.cli.options import check
from cassi.cli.places import check_files, figures_folder
from cassi.cli.shell import say
from cassi.files.filters import read_pattern
from cassi.looking.style import Figure


def run(args: argparse.Namespace) -> int:
    """Read the frames, calibrate, write, report."""
    from cassi.looking import camera_figures as fig

    check("calibrate", args)
    files = find_frames(args.folder, args.wavelengths)
    check_files("calibrate", args, [*files.dark, *files.flat, *files.mask])
    folder = figures_folder(args.figures, Path(args.output))
    dark, flat, mask = (read_frames(group) for group in (files.dark, files.flat, files.mask))
    if args.camera == "mosaic":
        pattern, offset = read_pattern(args.pattern), args.pattern_offset
        filters = calibrate_filters(dark, flat, mask, files.wavelengths, pattern, offset=offset)
        filters.save(args.output, overwrite=args.overwrite)
        draw_and_say(args, filters.summary(), {"response": fig.response(filters)}, folder)
        return 0
    bands = {"step": args.step, "num_bands": args.num_bands, "order": args.order}
    calibration = calibrate(dark, flat, mask, files.wavelengths, **bands, bit_depth=args.bit_depth)
    calibration.save(args.output, overwrite=args.overwrite)
    figures = {"dispersion": fig.dispersion(calibration), "detector": fig.detector(calibration)}
    draw_and_say(args, calibration.summary(), figures, folder)
    return 0


def draw_and_say(args: argparse.Namespace, lines: list[str], drawn: dict[str, Figure], folder: Path | None) -> None:
    """Draw what was found beside its file, and print it."""
    from cassi.looking.figures import save_figures

    if folder is not None:
        save_figures(drawn, folder)
    say(args, "\n".join([*lines, f"-> {args.output}" + (f", {folder}/" if folder else "")]))
