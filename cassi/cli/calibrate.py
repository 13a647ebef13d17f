"""Make a calibration of a camera from captured frames: dark, flat, and the coded aperture at known wavelengths."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.cli.places import keep_inputs
from cassi.cli.shell import Parser, say

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


def parser(prog: str) -> Parser:
    p = Parser(prog=prog, description=__doc__, examples=EXAMPLES)
    frames = p.add_argument_group("frames")
    frames.add_argument("folder", nargs="?", metavar="FOLDER", help="where files dark_*, flat_* and mask_* are")
    frames.add_argument("--dark", nargs="+", metavar="FILE", help="frames without light")
    frames.add_argument("--flat", nargs="+", metavar="FILE", help="frames of even white light, aperture taken out")
    frames.add_argument("--mask-frames", nargs="+", metavar="FILE", help="the aperture under narrow-band light")
    frames.add_argument(
        "--slit",
        nargs="+",
        metavar="FILE",
        help="a narrow slit across the dispersion under the light of the mask frames, or one frame: tells the blur",
    )
    frames.add_argument(
        "--slit-width", type=float, default=1.0, metavar="PX", help="of the slit's image, sharp (default: 1)"
    )
    frames.add_argument(
        "--wavelengths",
        metavar="NM",
        help="of the mask frames: a list 450,500,..., start:stop:count, or a file (default: wavelengths.txt in the "
        "folder, or the files' names, mask_532nm.png)",
    )
    frames.add_argument("--bit-depth", type=int, metavar="N", help="bits of the counts (default: what holds them)")

    bands = p.add_argument_group("bands")
    bands.add_argument("--step", type=float, metavar="PX", help="dispersion between neighboring bands (default: 2)")
    bands.add_argument("--num-bands", type=int, metavar="C", help="bands (default: what covers the wavelengths)")
    bands.add_argument(
        "--spacing",
        choices=("dispersion", "wavelength"),
        default="dispersion",
        help="bands equally far apart on the detector (default: exact, on whole pixels) or in wavelength",
    )
    bands.add_argument(
        "--model",
        choices=("polynomial", "cauchy"),
        default="polynomial",
        help="of the dispersion: in the wavelength (default) or in its inverse square, for a prism",
    )
    bands.add_argument("--order", type=int, default=3, metavar="P", help="its highest power (default: 3)")

    p.add_calibration_file("calibration.h5")
    p.add_manners()
    return p


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
