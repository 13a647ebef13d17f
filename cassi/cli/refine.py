"""Refine a camera from its own captures of different scenes: where and how sharp the mask of each band really is."""

import argparse
from dataclasses import replace
from pathlib import Path

from cassi.calibration.dark_frame import less_dark, read_dark
from cassi.cli.calibrate import draw_and_say
from cassi.cli.messages import describe_measurement
from cassi.cli.options import check, values_for
from cassi.cli.places import check_files, figures_folder
from cassi.cli.shell import warn
from cassi.files import Levels, ReadOptions, shared_levels
from cassi.files.frames import find_files
from cassi.files.reading import open_measurement
from cassi.optics.mask_match import check_masks
from cassi.optics.measurement import Measurement
from cassi.priors.learned import DEFAULT
from cassi.running.concerns import OF_MEASUREMENT, concerns_of
from cassi.running.progress import StepBar
from cassi.running.scene import recheck_mask
from cassi.self_calibration import refined_camera
from cassi.settings import check_seed

MAX_CAPTURES = 12  # captures that a camera is fitted to


def run(args: argparse.Namespace) -> int:
    """Read the captures, fit the camera, write, report."""
    from cassi.looking import camera_figures as fig

    check_seed(args.seed)
    folder = figures_folder(args.figures, Path(args.output))
    measurements = _captures(args)
    describe_measurement(args, measurements[0], many=True)
    with StepBar(refined_camera.fit_steps([m.source for m in measurements]), shown=not args.quiet) as bar:
        refined = refined_camera.calibrate_from_captures(
            measurements, seed=args.seed, weights=DEFAULT if args.weights is None else args.weights, progress=bar
        )
    for m in measurements:
        for note in concerns_of(OF_MEASUREMENT, m):
            warn(args, note, of=f"{m.source}: ")
        if not (check := recheck_mask(check_masks(m), refined.together.in_place(m))).matches:
            warn(args, f"{m.source}: {check.verdict}; the camera as found does not fit it either")
    first = measurements[0]
    refined.together.save(args.output, of=first, wavelengths=first.wavelengths, overwrite=args.overwrite)
    drawn = {} if folder is None or (elements := fig.mask_error(refined)) is None else {"mask_error": elements}
    if folder is not None and not refined.together.model.exact:
        drawn |= {"moved": fig.displacement(refined), "sharpness": fig.sharpness(refined)}
    folder = folder if drawn else None
    draw_and_say(args, refined.summary(), drawn, folder)
    return 0


def _captures(args: argparse.Namespace) -> list[Measurement]:
    """The frames of all captures, a file that is named twice once; of many, some that are spread over them."""
    levels = Levels(**values_for(Levels, args))
    options = ReadOptions(**values_for(ReadOptions, args), levels=levels)
    check("refine", args)
    others = [*filter(None, [args.bad_pixels, args.dark])]
    given = find_files(args.measurement, others, [args.mask] if args.mask else [])
    files = list({file.resolve(): file for file in given}.values())
    check_files("refine", args, files)
    options = replace(options, levels=shared_levels(files, options))
    frames = [(opened, k) for opened in (open_measurement(file, options) for file in files) for k in opened.frames]
    chosen = [opened.read(k) for opened, k in frames[:: max(1, -(-len(frames) // MAX_CAPTURES))]]
    if args.dark is None:
        return chosen
    dark = read_dark(args.dark)
    return [less_dark(m, dark) for m in chosen]
