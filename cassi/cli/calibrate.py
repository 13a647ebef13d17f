"""Make a calibration of a camera from captured frames: dark, flat, and the coded aperture at known wavelengths."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.cli.places import keep_inputs
from cassi.cli.shell import say

if TYPE_CHECKING:
    from cassi.calibration.estimate import Calibration
    from cassi.calibration.frames_on_disk import BenchFrames

EXAMPLES = """\
examples:
  a folder with files dark_*, flat_*, mask_*, perhaps slit_*, and wavelengths.txt
      {calibrate} bench --output calibration.h5
  the same files by name; PNG, TIFF (stacks too), HDF5, .npy, .mat ...
      {calibrate} --dark dark.tif --flat flat.tif --mask-frames m450.png m550.png m650.png \\
          --wavelengths 450,550,650 --output calibration.h5
  28 bands equally far apart in wavelength instead of on the detector
      {calibrate} bench --spacing wavelength --num-bands 28 --output calibration.h5
  no frames of a bench, but captures of any scenes: where and how sharp the mask really is
      {calibrate} refine --help
then
      {reconstruct} --calibration calibration.h5 --measurement snapshot.png
"""


def run(args: argparse.Namespace) -> int:
    """Read the frames, calibrate, write, report."""
    from cassi.calibration.estimate import calibrate
    from cassi.calibration.frames_on_disk import read_frames
    from cassi.calibration.line_spread import Slit
    from cassi.files import check_output

    files = frames(args)
    check_output(args.output, args.overwrite)
    keep_inputs(args.output, [*files.dark, *files.flat, *files.mask, *files.slit])
    found = calibrate(
        read_frames(files.dark),
        read_frames(files.flat),
        read_frames(files.mask),
        files.wavelengths,
        step=args.step,
        num_bands=args.num_bands,
        spacing=args.spacing,
        model=args.model,
        order=args.order,
        bit_depth=args.bit_depth,
        slit=Slit(read_frames(files.slit), files.slit_wavelengths, args.slit_width) if files.slit else None,
    )
    output = found.save(args.output, overwrite=args.overwrite)
    made = [str(output)]
    if (args.figures or "").lower() != "none":
        folder = Path(args.figures) if args.figures else output.with_name(f"{output.stem}_figures")
        draw(folder, found)
        made.append(f"{folder}/")
    say(args, "\n".join([*found.summary(), f"-> {', '.join(made)}"]))
    return 0


def frames(args: argparse.Namespace) -> BenchFrames:
    """The files of each kind, from the folder or one by one.

    Raises:
        InputError: neither, or both.
    """
    from cassi.calibration.frames_on_disk import BenchFrames, find_frames, mask_wavelengths, slit_wavelengths
    from cassi.errors import InputError

    named = (args.dark, args.flat, args.mask_frames)
    if args.folder is not None:
        if any((*named, args.slit)):
            raise InputError("give a folder, or --dark, --flat, --mask-frames and --slit, not both")
        return find_frames(args.folder, args.wavelengths)
    if not all(named):
        raise InputError("give a folder with dark_*, flat_* and mask_* files, or all of --dark, --flat, --mask-frames")
    dark, flat, mask, slit = (tuple(Path(file) for file in files) for files in (*named, args.slit or []))
    return BenchFrames(dark, flat, mask, mask_wavelengths(mask, args.wavelengths), slit, slit_wavelengths(slit))


def draw(folder: Path, found: Calibration) -> None:
    """Write the figures."""
    from cassi.looking import calibration_figures as fig
    from cassi.looking.figures import save_figures

    figures = {"dispersion": fig.dispersion(found), "detector": fig.detector(found), "masks": fig.masks(found)}
    if found.line_spread is not None:
        figures["blur"] = fig.blur(found)
    save_figures(figures, folder)
