#!/usr/bin/env python3
"""Reconstruct a spectral cube from a coded-aperture snapshot: one file in, one file and figures out."""

from __future__ import annotations

import argparse
import glob
import os
import re
import shlex
import signal
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from cassi.calibration.estimate import Calibration
    from cassi.calibration.pose import Alignment
    from cassi.files import ReadOptions
    from cassi.optics.measurement import Measurement
    from cassi.running.front_door import Reconstruction

EXAMPLES = """\
examples:
  a file that holds measurement and mask; writes m_cube.h5 and m_figures/ beside it
      python scripts/reconstruct.py --measurement m.h5
  snapshot and mask in files of their own, the number of bands is known
      python scripts/reconstruct.py --measurement scene.mat --mask mask.mat --num-bands 28 --wavelengths 450:650:28
  only look: what is in the file, which bands and step fit, what would be done
      python scripts/reconstruct.py --measurement scene.mat --mask mask.mat --dry-run
  raw 12-bit counts, a map of dead pixels, another name for the result
      python scripts/reconstruct.py --measurement raw.tif --mask mask.h5 --bit-depth 12 --black-level 64 \\
          --bad-pixels dead.png --output result.h5
  raw counts of a camera calibrated with calibrate.py: nothing else to give
      python scripts/reconstruct.py --calibration calibration.h5 --measurement snapshot.png
  a mask that may have moved since it was measured: find out from the snapshot by how much
      python scripts/reconstruct.py --measurement m.h5 --align
  a folder, a pattern or a stack of snapshots: one cube each, killed runs resume with the same command
      python scripts/reconstruct.py --measurement night7/ --mask mask.h5 --output night7_cubes/
  the same into one Zarr store, by the workers of a running Dask scheduler
      python scripts/reconstruct.py --measurement "night7/*.mat" --mask mask.h5 --output night7.zarr \\
          --scheduler tcp://10.0.0.1:8786
  the result as one page to look at in a browser
      python scripts/reconstruct.py --measurement m.h5 --report
  the field's baseline with its own settings
      python scripts/reconstruct.py --measurement m.h5 --solver gap-tv --iterations 100 --tv-weight 0.3

exit codes: 0 done, 1 the computation failed, 2 the input or the output cannot be used, 130 interrupted
"""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (--help shows all options)\n")


def duration(text: str) -> float:
    """Seconds from "10", "10s", "2min", "1m30s" or "1h"."""
    number = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"(?:{number}h)?(?:{number}m(?:in)?)?(?:{number}s?)?", text.strip())
    if not match or not any(match.groups()):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration, expected for example 10s, 2min or 1h")
    seconds = sum(float(part or 0) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True))
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time at all")
    return seconds


def parser() -> Parser:
    from cassi.running.front_door import SOLVERS
    from cassi.version import PROGRAM

    p = Parser(
        prog="reconstruct.py",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    files = p.add_argument_group("files")
    files.add_argument(
        "--measurement",
        required=True,
        metavar="FILE",
        help="the snapshot: HDF5, .mat, .npz, .npy, TIFF, PNG, ENVI or NetCDF; may hold mask, shifts and truth too. "
        "Or many: a folder, a pattern, or a stack",
    )
    files.add_argument("--mask", metavar="FILE", help="the coded aperture, where it is not in the measurement's file")
    files.add_argument(
        "--calibration",
        metavar="FILE",
        help="made with calibrate.py: corrects the raw counts, brings mask, bands and bad pixels",
    )
    files.add_argument(
        "--output",
        metavar="FILE",
        help="the result: .h5, .mat, .nc, .hdr (ENVI) or .tif (default: "
        "NAME_cube.h5); of many snapshots a folder or NAME.zarr",
    )
    files.add_argument("--overwrite", action="store_true", help="replace an existing result")
    files.add_argument(
        "--figures", metavar="DIR", help='where the figures go, or "none" (default: NAME_figures beside the result)'
    )
    files.add_argument(
        "--report",
        nargs="?",
        const="",
        metavar="FILE",
        help="also write one HTML page to look at the result in a browser (default: NAME_report.html)",
    )
    files.add_argument("--key", metavar="NAME", help="the measurement's name in its file, if it is an unusual one")
    files.add_argument("--mask-key", metavar="NAME", help="the mask's name in its file, if it is an unusual one")

    camera = p.add_argument_group("camera (what is not given is inferred, and said)")
    camera.add_argument("--num-bands", type=int, metavar="C", help="number of bands")
    camera.add_argument("--step", type=float, metavar="PX", help="displacement between neighboring bands, any sign")
    camera.add_argument(
        "--wavelengths",
        metavar="NM",
        help="band centers: start:stop:count, a list 450,460,..., a preset (tsa-net-28, mst-28, cave-31), a file, or "
        '"unknown"',
    )
    camera.add_argument("--bad-pixels", metavar="FILE", help="map that is nonzero where a detector pixel is bad")
    camera.add_argument("--bit-depth", type=int, metavar="N", help="bits of integer counts")
    camera.add_argument(
        "--black-level",
        type=float,
        metavar="VALUE",
        help="value of a dark pixel, subtracted (default: told from pixels that no light reaches; 0 keeps it)",
    )
    camera.add_argument("--white-level", type=float, metavar="COUNTS", help="count that becomes 1")
    camera.add_argument("--saturation", type=float, metavar="COUNTS", help="count from which on a pixel is bad")
    camera.add_argument(
        "--align",
        action="store_true",
        help="estimate from the snapshot how mask and dispersion are off; the estimate is used if it predicts pixels "
        "held out better",
    )
    camera.add_argument(
        "--psf",
        type=float,
        metavar="SIGMA",
        help="the instrument's blur along the dispersion, standard deviation of a Gaussian [px]",
    )
    camera.add_argument("--gain", type=float, metavar="E", help="electrons per unit of the measurement")
    camera.add_argument("--read-noise", type=float, metavar="E", help="read noise [electrons]")

    method = p.add_argument_group("method")
    method.add_argument("--solver", choices=SOLVERS, default="auto", help="default: auto, which needs no settings")
    method.add_argument(
        "--quality",
        choices=("fast", "default", "best"),
        default="default",
        help="fast: total variation alone; best: many more iterations, 3 to 17 times as long, up to 3 dB better",
    )
    method.add_argument("--budget", type=duration, metavar="TIME", help="be done in 10s, 2min ...")
    method.add_argument("--uncertainty", action="store_true", help="also estimate each voxel's standard deviation")
    method.add_argument("--iterations", type=int, metavar="N", help="iterations (default: the solver's own)")
    method.add_argument(
        "--tv-weight", type=float, metavar="W", help="weight of TV, relative to the cube's mean level (not for auto)"
    )
    method.add_argument(
        "--spectral-prior", nargs="+", metavar="FILE", help="cubes that show what spectra to expect (auto, gaussian)"
    )
    method.add_argument(
        "--tile", type=int, metavar="PX", help="frames larger than memory: reconstruct in tiles of this size"
    )
    method.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ... (default: auto)")
    method.add_argument("--seed", type=int, default=0, help="seed of random choices (default: 0)")

    many = p.add_argument_group("many snapshots (needs the extra batch)")
    many.add_argument("--batch", type=int, metavar="N", help="snapshots computed at a time (default: what fits)")
    many.add_argument("--workers", type=int, metavar="N", help="compute in N processes of one thread each instead")
    many.add_argument("--scheduler", metavar="ADDRESS", help="use the Dask scheduler running there, tcp://host:port")

    p.add_argument("--dry-run", action="store_true", help="say what is in the files and what would be done, then stop")
    p.add_argument("--quiet", action="store_true", help="print nothing but errors")
    p.add_argument("--debug", action="store_true", help="show a traceback where something fails unexpectedly")
    p.add_argument("--version", action="version", version=PROGRAM)
    return p


def main(argv: list[str] | None = None) -> int:
    """Run the program; returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    from cassi.errors import InputError, one_line

    try:
        return run(args, argv)
    except InputError as error:
        return _fail(2, str(error).replace("allow overwriting", "--overwrite"))
    except KeyboardInterrupt:
        return _fail(130, "interrupted; no half file was left")
    except FloatingPointError as error:
        return _fail(1, str(error))
    except BrokenPipeError:  # the reader of our output, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if args.debug:
            raise
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
            return _fail(1, f"out of memory: {one_line(error)}; use --device cpu or a smaller measurement")
        return _fail(1, f"internal error, {type(error).__name__}: {one_line(error)} (--debug shows where)")


def _fail(code: int, message: str) -> int:
    print(f"reconstruct.py: error: {message}", file=sys.stderr)
    return code


def run(args: argparse.Namespace, argv: list[str]) -> int:
    """Read, reconstruct, write, report."""
    if is_many(args):
        return run_many(args, argv)
    from cassi.files import check_output
    from cassi.running.front_door import pick_device, write_result

    say = (lambda text: None) if args.quiet else print
    pick_device(args.device)
    check_tiles(args)
    output, figures = output_paths(args)
    if args.dry_run:
        return dry_run(args, output)
    check_output(output, args.overwrite)
    check_figures(figures)
    report = report_path(args, output)
    m = reading(args)(args.measurement)
    say(f"{m.source}: measurement {_size(m.y.shape)}, mask {_size(m.mask.shape)}, {len(m.shifts)} bands")
    for note in m.notes:
        say(f"  {note}")
    if not args.quiet:
        compare_with_mask(m)
    m, put_in_place = with_true_camera(args, m, say)
    if args.tile is not None:
        return run_tiled(args, argv, m, output, report)
    result = put_in_place(solving(args)(m, progress=not args.quiet))
    for line in chosen(result):
        say(f"  {line}")
    write_result(output, m, result, attributes=provenance(args, argv), overwrite=args.overwrite)
    line = summary_line(m, result)
    if figures is not None:
        draw(figures, m, result, line)
    if report is not None:
        from cassi.looking.report_data import write_report

        write_report(report, output, overwrite=args.overwrite)
    made = [str(output), *([f"{figures}/"] if figures else []), *([str(report)] if report else [])]
    say(f"{line} -> {', '.join(made)}")
    if not result.residual < 1:
        print(
            f"warning: a black cube would explain the snapshot better (residual {result.residual:.2g}): the solver "
            "diverged or the camera is another; try --solver auto, and check mask, bands and --psf",
            file=sys.stderr,
        )
    return 0


def check_tiles(args: argparse.Namespace) -> None:
    """Tiles never see the whole cube: what needs it is refused.

    Raises:
        InputError: an option that does not go with --tile.
    """
    from cassi.errors import InputError

    if args.tile is None:
        return
    if args.figures and args.figures.lower() != "none":
        raise InputError("figures need the whole cube in memory; leave out --figures or --tile")
    args.figures = "none"
    given = {
        "--quality": args.quality != "default",
        "--budget": args.budget,
        "--uncertainty": args.uncertainty,
        "--psf": args.psf is not None,
    }
    for option in (name for name, value in given.items() if value):
        raise InputError(f"{option} does not go with --tile; leave one of them out")


def run_tiled(args: argparse.Namespace, argv: list[str], m: Measurement, output: Path, report: Path | None) -> int:
    """Reconstruct tile by tile into the result's file."""
    from cassi.running.tiling import reconstruct_tiled

    overrides = {name: value for name in ("gain", "read_noise") if (value := getattr(args, name)) is not None}
    result = reconstruct_tiled(
        replace(m, **overrides),
        output,
        tile=args.tile,
        solver=args.solver,
        num_iters=args.iterations,
        tv_weight=args.tv_weight,
        spectral_prior=args.spectral_prior,
        black_level=None if args.black_level is None else 0.0,  # reading took it off
        device=args.device,
        seed=args.seed,
        attributes=provenance(args, argv),
        overwrite=args.overwrite,
        progress=not args.quiet,
    )
    if report is not None:
        from cassi.looking.report_data import write_report

        write_report(report, output, overwrite=args.overwrite)
    if not args.quiet:
        tiles = f"{len(result.history)} tiles"
        print(f"{tiles}, residual {result.residual:.2e}, {result.seconds:.1f} s -> {output}")
    return 0


def is_many(args: argparse.Namespace) -> bool:
    """Whether the input is a folder or a pattern, or the output a place for many cubes."""
    source, output = Path(args.measurement), args.output
    several = source.is_dir() or (glob.has_magic(args.measurement) and not source.exists())
    return several or (bool(output) and (Path(output).is_dir() or Path(output).suffix.lower() in ("", ".zarr")))


def run_many(args: argparse.Namespace, argv: list[str]) -> int:
    """Reconstruct what is not finished yet of a folder, a pattern or a stack."""
    from cassi.calibration.estimate import calibrated_frame_count
    from cassi.errors import InputError
    from cassi.files import frame_count
    from cassi.running.front_door import pick_device
    from cassi.running.many import find_frames, reconstruct_many

    pick_device(args.device)
    source = Path(args.measurement)
    if args.tile is not None:
        raise InputError("tiles are made of a single snapshot; leave out --tile")
    if args.spectral_prior:
        args.spectral_prior = [str(Path(name).absolute()) for name in args.spectral_prior]
    if args.align:
        raise InputError("--align looks at a single snapshot; leave it out, or calibrate the camera (calibrate.py)")
    for name in ("mask", "bad_pixels", "calibration"):  # other machines have their own working folder
        if getattr(args, name):
            setattr(args, name, str(Path(getattr(args, name)).absolute()))
    if (args.figures and args.figures.lower() != "none") or args.report is not None:
        raise InputError("figures and report are made of a single snapshot; leave out --figures and --report")
    if args.output is None and not source.is_dir():
        raise InputError(f"{source}: many snapshots need --output FOLDER or --output NAME.zarr")
    output = args.output or str(source.with_name(f"{source.name}_cubes"))
    count = None
    if source.is_file() and args.calibration:
        count = calibrated_frame_count(source, key=args.key)
    elif source.is_file():
        count = frame_count(source, reading_options(args))
    others = [f for f in (args.mask, args.bad_pixels, args.calibration) if f]
    frames = find_frames(args.measurement, count=count, leave_out=others)
    if args.dry_run:
        print(f"would reconstruct {len(frames)} snapshots, {frames[0].name} to {frames[-1].name}, into {output}")
        return 0
    if args.bit_depth is None and not args.calibration:
        args.bit_depth = common_bit_depth(args, sorted({frame.path for frame in frames}))
    report = reconstruct_many(
        frames,
        output,
        read=reading(args),
        solve=solving(args),
        overwrite=args.overwrite,
        batch=args.batch,
        workers=args.workers,
        scheduler=args.scheduler,
        attributes=provenance(args, argv),
        progress=not args.quiet,
    )
    for name, reason in report.failed.items():
        print(f"reconstruct.py: error: {name}: {reason}", file=sys.stderr)
    if not args.quiet:
        found = f", {report.found} were finished already" if report.found else ""
        rate = f", {60 * report.computed / report.seconds:.1f} a minute" if report.computed else ""
        failed = f", {len(report.failed)} failed" if report.failed else ""
        print(f"{report.computed} snapshots in {report.seconds:.1f} s{rate}{found}{failed} -> {output}")
    return 1 if report.failed else 0


def common_bit_depth(args: argparse.Namespace, paths: list[str]) -> int | None:
    """The bit depth that holds the counts of all snapshots, so that their cubes have one unit; None for floats."""
    from cassi.errors import InputError
    from cassi.files import open_frames

    try:
        return open_frames(paths, reading_options(args)).bit_depth
    except InputError:  # none can be read, which is told of each when its turn comes
        return None


def output_paths(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """The result's file and the figures' folder (None: no figures).

    Raises:
        InputError: the result would replace an input.
    """
    from cassi.errors import InputError

    source = Path(args.measurement)
    output = Path(args.output) if args.output else source.with_name(f"{source.stem}_cube.h5")
    for name in (args.measurement, args.mask, args.bad_pixels, args.calibration):
        if name and output.resolve() == Path(name).resolve():
            raise InputError(f"{output}: the result would replace an input; choose another --output")
    if args.figures and args.figures.lower() == "none":
        return output, None
    default = output.with_name(f"{output.stem.removesuffix('_cube')}_figures")
    return output, Path(args.figures) if args.figures else default


def report_path(args: argparse.Namespace, output: Path) -> Path | None:
    """Where the report goes (None: no report).

    Raises:
        InputError: it exists, is no HTML file, or cannot be made.
    """
    if args.report is None:
        return None
    from importlib.util import find_spec

    from cassi.errors import InputError, OutputError

    path = Path(args.report or output.with_name(f"{output.stem.removesuffix('_cube')}_report.html"))
    if find_spec("bokeh") is None:
        raise InputError('the report needs Bokeh: python -m pip install -e ".[report]"')
    if output.suffix.lower() not in (".h5", ".hdf5"):
        raise InputError(f"the report is made from an HDF5 result, the output is {output.name}; leave one of them out")
    if path.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{path}: a report is an HTML file, expected the suffix .html")
    if not path.parent.is_dir():
        raise OutputError(f"{path}: the folder {path.parent} does not exist; make it first")
    if path.exists() and not args.overwrite:
        raise OutputError(f"{path}: exists already; choose another name or allow overwriting (--overwrite)")
    return path


def check_figures(folder: Path | None) -> None:
    """Find out before the computation whether the figures can be written.

    Raises:
        OutputError: they cannot.
    """
    from cassi.errors import OutputError, one_line

    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{folder}: the figures' folder cannot be made ({one_line(error)}); use --figures DIR or none"
        ) from error


def with_true_camera(
    args: argparse.Namespace, m: Measurement, say: Callable[[str], None]
) -> tuple[Measurement, Callable[[Reconstruction], Reconstruction]]:
    """The measurement with its camera as it is found to be, and what puts the bands of its cube in place.

    Raises:
        InputError: tiles, whose bands nobody would put in place.
    """
    import torch

    from cassi.errors import InputError

    cameras: list[Calibration | Alignment] = []
    if args.calibration:
        from cassi.calibration.estimate import Calibration

        cameras.append(Calibration.load(args.calibration))
    if args.align:
        from cassi.calibration.pose import align_measurement

        m, alignment = align_measurement(m, generator=torch.Generator().manual_seed(args.seed))
        say(f"  {alignment.message}")
        cameras.append(alignment)
    if args.tile is not None and any(any(camera.remainders) for camera in cameras):
        raise InputError("bands between pixels are put in place at the end, which tiles are not; leave out --tile")

    def put_in_place(result: Reconstruction) -> Reconstruction:
        for camera in cameras:
            spread = None if result.uncertainty is None else camera.register(result.uncertainty)
            result = replace(result, cube=camera.register(result.cube), uncertainty=spread)
        return result

    return m, put_in_place


def reading(args: argparse.Namespace) -> partial[Measurement]:
    """How measurements are read, as the options say.

    Raises:
        InputError: a calibration that cannot be used, or options that say what it says.
    """
    from cassi.files import read_measurement

    if args.calibration:
        from cassi.calibration.estimate import Calibration, read_calibrated
        from cassi.errors import InputError

        said = ("mask", "mask_key", "step", "num_bands", "wavelengths", "bit_depth", "black_level", "white_level")
        twice = [name for name in (*said, "saturation", "bad_pixels") if getattr(args, name) is not None]
        if twice:
            names = ", ".join(f"--{name.replace('_', '-')}" for name in twice)
            raise InputError(f"the calibration brings these along; leave out {names}")
        calibration = Calibration.load(args.calibration)
        if is_many(args) and any(calibration.remainders):
            raise InputError(
                f"{args.calibration}: its bands lie between pixels, which is put right for single snapshots only; "
                "calibrate with --spacing dispersion"
            )
        if calibration.psf is not None and (args.psf is not None or args.tile is not None):
            option = "--tile" if args.psf is None else "--psf"
            raise InputError(f"{args.calibration}: the camera's blur is part of the calibration; leave out {option}")
        return partial(read_calibrated, calibration=args.calibration, key=args.key)
    return partial(read_measurement, **vars(reading_options(args)))


def reading_options(args: argparse.Namespace) -> ReadOptions:
    """What the options say of the measurement."""
    from cassi.files import ReadOptions

    return ReadOptions(**{name.name: getattr(args, name.name) for name in fields(ReadOptions)})


def solving(args: argparse.Namespace) -> partial[Reconstruction]:
    """How measurements are reconstructed, as the options say."""
    from cassi.running.front_door import reconstruct

    psf: float | Tensor | None = args.psf
    if args.calibration and psf is None:
        from cassi.calibration.estimate import Calibration

        psf = Calibration.load(args.calibration).psf
    return partial(
        reconstruct,
        solver=args.solver,
        num_iters=args.iterations,
        tv_weight=args.tv_weight,
        quality=args.quality,
        budget=args.budget,
        uncertainty=args.uncertainty,
        spectral_prior=args.spectral_prior,
        psf=psf,
        black_level=None if args.black_level is None else 0.0,  # reading took it off
        gain=args.gain,
        read_noise=args.read_noise,
        device=args.device,
        seed=args.seed,
    )


def provenance(args: argparse.Namespace, argv: list[str]) -> dict[str, Any]:
    """What only the command line knows about a result."""
    from cassi.files import file_sha256

    known: dict[str, Any] = {"command_line": shlex.join(["reconstruct.py", *argv])}
    if args.calibration:
        known |= {
            "calibration_name": Path(args.calibration).name,
            "calibration_sha256": file_sha256(args.calibration),
        }
    if args.mask:
        known |= {"mask_name": Path(args.mask).name, "mask_sha256": file_sha256(args.mask)}
    return known


def chosen(result: Reconstruction) -> list[str]:
    """The choices in words; of a stack those for its first frame."""
    choice = result.choice["frames"][0] if "frames" in result.choice else result.choice
    plain = {name: value for name, value in choice.items() if isinstance(value, str | int | float)}
    if "reason" in plain:
        return [f"solver: {plain['solver']}", plain["reason"]]
    words = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in plain.items()}
    return [f"{name.replace('_', ' ')}: {value}" for name, value in words.items()]


def summary_line(m: Measurement, result: Reconstruction) -> str:
    """Residual, seconds, and how close the cube comes to the truth where the file has it."""
    from cassi.running.front_door import score

    parts = [f"residual {result.residual:.2e}", f"{result.seconds:.1f} s"]
    units = {
        "psnr": "PSNR {:.2f} dB",
        "ssim": "SSIM {:.3f}",
        "sam": "SAM {:.2f} deg",
        "mean_band_psnr": "mean-band PSNR {:.2f} dB",
    }
    for name, value in score(result.cube.cpu(), truth=m.cube, mean_band=m.mean_band).items():
        parts.append(units[name].format(value))
    return ", ".join(parts)


def draw(folder: Path, m: Measurement, result: Reconstruction, caption: str) -> None:
    """Write the figures; of a stack those of its first frame."""
    from cassi.kernels.covariance import covariance_sum, pixel_mean
    from cassi.looking import figures as fig

    first = (0,) if m.y.ndim == 3 else ()
    y, cube = m.y[first], result.cube.cpu().numpy()[first]
    truth = None if m.cube is None else m.cube[first] if m.cube.ndim == 4 else m.cube
    spread = None if result.uncertainty is None else result.uncertainty.cpu().numpy()[first]
    title = f"{m.source}, frame 1 of {len(m.y)}" if first else m.source
    history = result.history
    spectra = result.cube[first].cpu()
    maps = {}
    if spread is not None:
        seen = None if result.visibility is None else result.visibility.cpu().numpy()
        maps["uncertainty"] = fig.uncertainty_map(spread, seen)
    fig.save_figures(
        maps
        | {
            "summary": fig.summary(
                y,
                cube,
                result.wavelengths,
                history=history,
                truth=truth,
                uncertainty=spread,
                title=title,
                caption=caption,
            ),
            "snapshot": fig.snapshot(y, unit=m.unit, title=title),
            "bands": fig.bands(cube, result.wavelengths, title=title),
            "srgb": fig.srgb(cube, result.wavelengths),
            "spectra": fig.spectra(cube, result.wavelengths, truth=truth, uncertainty=spread),
            "convergence": fig.convergence(history),
            "covariance": fig.spectral_covariance(
                covariance_sum(spectra, mean=pixel_mean(spectra)) / cube[0].size, result.wavelengths
            ),
        },
        folder,
    )


def compare_with_mask(m: Measurement) -> None:
    """Say whether the mask belongs to the measurement: a wrong one costs more than any choice of method."""
    from cassi.optics.mask_match import check_mask

    check = check_mask(m.y, m.mask, m.shifts, bad_pixels=m.bad_pixels)
    if check.matches:
        print(f"  {check.verdict}")
    else:
        print(f"reconstruct.py: warning: {check.verdict}", file=sys.stderr)


def dry_run(args: argparse.Namespace, output: Path) -> int:
    """Say what the files hold, how they fit together, and what would be done.

    Raises:
        InputError: the measurement cannot be reconstructed.
    """
    from cassi.errors import InputError
    from cassi.files import describe

    if args.calibration:
        m = reading(args)(args.measurement)
        print("\n".join([f"{m.source}: measurement {_size(m.y.shape)}", *m.notes]))
        size = _size((len(m.shifts), *m.mask.shape[-2:]))
        print(f"\nwould reconstruct a cube {size} with solver {args.solver} and write {output}")
        warn_of_output(output, args.overwrite)
        return 0
    found = describe(args.measurement, options=reading_options(args))
    print(found.text)
    if found.problem is not None:
        raise InputError(found.problem)
    m = reading(args)(args.measurement)
    size = _size((len(m.shifts), *m.mask.shape[-2:]))
    print(f"\nwould reconstruct a cube {size} with solver {args.solver} on device {args.device} and write {output}")
    warn_of_output(output, args.overwrite)
    return 0


def warn_of_output(output: Path, overwrite: bool) -> None:
    """Say now what would stop the program later."""
    from cassi.errors import OutputError
    from cassi.files import check_output

    try:
        check_output(output, overwrite)
    except OutputError as error:
        print(f"reconstruct.py: warning: as it is, nothing could be written: {error}", file=sys.stderr)


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)


def _terminated(signum: int, frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminated)  # leave by the same door as an interrupt: temporary files are removed
    sys.exit(main())
