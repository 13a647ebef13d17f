"""Reconstruct a spectral cube from a coded-aperture snapshot: one file in, one file and figures out."""

from __future__ import annotations

import argparse
import glob
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.cli.beside import add_side, check_side_options, side_in_words, side_of
from cassi.cli.places import check_camera_file, check_places
from cassi.cli.shell import Parser, Steps, say, warn
from cassi.errors import InputError, OutputError, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassi.calibration.estimate import Calibration
    from cassi.calibration.found_camera import FoundCamera
    from cassi.optics.mask_match import MaskCheck
    from cassi.optics.measurement import Measurement
    from cassi.running.result import Reconstruction

EXAMPLES = """\
examples:
  a file that holds measurement and mask; writes m_cube.h5 and m_figures/ beside it
      {reconstruct} --measurement m.h5
  snapshot and mask in files of their own, the number of bands is known
      {reconstruct} --measurement scene.mat --mask mask.mat --num-bands 28 --wavelengths 450:650:28
  only look: what is in the file, which bands and step fit, what would be done
      {reconstruct} --measurement scene.mat --mask mask.mat --dry-run
  raw 12-bit counts, a map of dead pixels, 3.6 electrons a count, another name for the result
      {reconstruct} --measurement raw.tif --mask mask.h5 --bit-depth 12 --black-level 64 \\
          --bad-pixels dead.png --gain 3.6 --read-noise 5 --output result.h5
  raw counts of a camera that was calibrated: nothing else to give
      {reconstruct} --calibration calibration.h5 --measurement snapshot.png
  a mask that may have moved since it was measured: find out from the snapshot by how much
      {reconstruct} --measurement m.h5 --align
  a photograph of the same scene beside it, which may be moved, turned and of another size
      {reconstruct} --measurement m.h5 --side photo.png
  a folder, files or a stack of snapshots: one cube each, killed runs resume with the same command
      {reconstruct} --measurement night7/ --mask mask.h5 --output night7_cubes/
  the same into one Zarr store, by the workers of a running Dask scheduler
      {reconstruct} --measurement night7/*.mat --mask mask.h5 --output night7.zarr \\
          --scheduler tcp://10.0.0.1:8786
  four shots of one scene, each through its own mask; a double disperser
      {reconstruct} --measurement shot?.h5 --mask mask?.h5
      {reconstruct} --measurement m.h5 --mask aperture.h5 --optics dd --num-bands 28
  frames that follow each other: each knows what those beside it saw; a cube with a time axis, and a film
      {reconstruct} --sequence --measurement video.h5 --mask mask.h5
  the result as one page to look at in a browser
      {reconstruct} --measurement m.h5 --report
  the field's baseline with its own settings
      {reconstruct} --measurement m.h5 --solver gap-tv --iterations 100 --tv-weight 0.3

when to take
  --align        the report of a good mask says "the mask fits" but edges have colored fringes, or the mask was taken
                 out and put back; not for a mask that does not belong to the snapshot
  --quality      best: for scenes that repeat (cloth, leaves, print) with little noise; fast: for a first look
  --uncertainty  to know how far each voxel may be off; takes about half as long again
  --gain         the data sheet or a calibration says how many electrons a count is: noise is then known, not estimated
"""


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


def parser(prog: str) -> Parser:
    p = Parser(prog=prog, description=__doc__, examples=EXAMPLES)
    p.add_argument("files", nargs="*", metavar="FILE", help="the same as --measurement")
    _add_files(p.add_argument_group("files"))
    _add_camera(p.add_argument_group("camera (what is not given is inferred, and said)"))
    _add_method(p.add_argument_group("method"))
    many = p.add_argument_group("many snapshots")
    many.add_argument(
        "--sequence",
        action="store_true",
        help="the snapshots follow each other, of a scene that moves little: each is reconstructed with those beside "
        "it, into one file with a time axis (default: NAME_sequence.h5), and a film",
    )
    many.add_argument("--batch", type=int, metavar="N", help="snapshots computed at a time (default: what fits)")
    many.add_argument("--workers", type=int, metavar="N", help="compute in N processes of one thread each instead")
    many.add_argument(
        "--scheduler", metavar="ADDRESS", help="use the Dask scheduler running there, tcp://host:port (extra batch)"
    )
    p.add_argument("--dry-run", action="store_true", help="say what is in the files and what would be done, then stop")
    p.add_argument("--verbose", action="store_true", help="say also on what evidence the method was chosen")
    p.add_manners()
    return p


def _add_files(files: argparse._ArgumentGroup) -> None:
    files.add_argument(
        "--measurement",
        nargs="+",
        default=[],
        metavar="FILE",
        help="the snapshot: HDF5, .mat, .npz, .npy, TIFF, PNG, ENVI or NetCDF; may hold mask, shifts and truth too. "
        "Or many: files, a folder, a pattern, or a stack",
    )
    files.add_argument(
        "--mask",
        nargs="+",
        metavar="FILE",
        help="the coded aperture, where it is not in the measurement's file; of several shots one each",
    )
    files.add_argument(
        "--calibration",
        nargs="+",
        metavar="FILE",
        help="corrects the raw counts, brings mask, bands and bad pixels; see the subcommand calibrate",
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
    from cassi.cli.reading import TRANSFORMS

    files.add_argument(
        "--mask-transform",
        choices=("none", *TRANSFORMS, "auto"),
        default="none",
        help="turn the mask before it is used; auto takes the one that fits, where one does (default: none)",
    )


def _add_camera(camera: argparse._ArgumentGroup) -> None:
    from cassi.cli.scenes import add_options

    add_options(camera)
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
        help="value of a dark pixel as stored, subtracted (default: told from pixels that no light reaches; 0 keeps "
        "it)",
    )
    camera.add_argument("--white-level", type=float, metavar="COUNTS", help="count that becomes 1")
    camera.add_argument(
        "--white",
        metavar="FILE",
        help="capture of a white reference by the same camera under the same light: the cube becomes reflectance",
    )
    camera.add_argument("--saturation", type=float, metavar="COUNTS", help="count from which on a pixel is bad")
    camera.add_argument(
        "--camera",
        choices=("find", "as-given"),
        default="find",
        help="find: where and how sharp the mask really is, found from the snapshot and taken where the evidence is "
        "clear (default); as-given: leave it",
    )
    camera.add_argument(
        "--save-camera",
        metavar="FILE",
        help="write the camera that was used, to be given as --mask: mask of each band, shifts, mask_3d_shift (.h5)",
    )
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
    camera.add_argument(
        "--gain",
        type=float,
        metavar="E",
        help="electrons a count, as data sheets have it; of floats that are no counts, electrons per unit",
    )
    camera.add_argument("--read-noise", type=float, metavar="E", help="read noise [electrons]")


def _add_method(method: argparse._ArgumentGroup) -> None:
    from cassi.choice.asked_for import PRIORS, SOLVERS

    method.add_argument(
        "--solver",
        choices=SOLVERS,
        type=lambda name: name.replace("_", "-"),
        default="auto",
        help="default: auto, which needs no settings",
    )
    method.add_argument(
        "--quality",
        choices=("fast", "default", "best"),
        default="default",
        help="fast: half the time, 1 to 2 dB less; best: more iterations, 3 to 17 times as long, up to 3 dB better",
    )
    method.add_argument(
        "--prior",
        choices=PRIORS,
        default="auto",
        help="of the last run: tv, then perhaps non-local, then perhaps learned (default: what predicts best)",
    )
    method.add_argument("--weights", metavar="FILE", help="of a learned prior that you trained (scripts/train.py)")
    method.add_argument("--budget", type=duration, metavar="TIME", help="be done in 10s, 2min ...")
    method.add_argument(
        "--uncertainty", action="store_true", help="also estimate how far each voxel's value may be off"
    )
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
    add_side(method)
    method.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1 ... (default: auto)")
    method.add_argument("--seed", type=int, default=0, help="seed of random choices (default: 0)")


def run(args: argparse.Namespace) -> int:
    """Read, reconstruct, write, report.

    Raises:
        InputError: options or files that cannot be used.
    """
    from cassi.cli import reading
    from cassi.cli.scenes import settle
    from cassi.kernels.dispatch import pick_device

    args.files = [*args.files, *args.measurement]
    if not all(args.files):
        raise InputError("a measurement's name is empty; expected a file, several, a folder or a pattern")
    if not args.files:
        greedy = [f"--{name}" for name in ("mask", "calibration") if len(getattr(args, name) or ()) > 1]
        cure = f"; what follows {greedy[0]} is taken for more of them, name the measurement before" if greedy else ""
        raise InputError(f"no measurement given, expected a file, several, a folder or a pattern{cure}")
    pick_device(args.device)
    settle(args)
    check_camera_file(args, many=args.sequence or is_many(args))
    reading.check_options(args)
    check_side_options(args, many=is_many(args))
    if args.sequence:
        from cassi.cli.sequence import run_sequence

        return run_sequence(args)
    if is_many(args):
        from cassi.cli.folder import run_many

        return run_many(args)
    check_tiles(args)
    check_single(args)
    output, figures = output_paths(args)
    check_places(args, output)
    if args.dry_run:
        return dry_run(args, output)
    return run_single(args, output, figures)


def run_single(args: argparse.Namespace, output: Path, figures: Path | None) -> int:
    """One snapshot, or one stack into one cube."""
    from cassi.files import check_output

    check_output(output, args.overwrite)
    check_figures(figures)
    report = report_path(args, output)
    with Steps(args, steps_of(args, figures, report)) as steps:
        return _run_single(args, output, figures, report, steps)


def steps_of(args: argparse.Namespace, figures: Path | None, report: Path | None, frames: int = 1) -> dict[str, float]:
    """The steps of a run on one snapshot, or a stack, and the share of the time that each usually takes."""
    from cassi.cli.reading import looked_for
    from cassi.running.progress import tiled_steps, usual_steps

    if args.tile is not None:
        solving = tiled_steps(args.solver)
    else:
        solving = usual_steps(
            solver=args.solver,
            find=looked_for(args),
            uncertainty=args.uncertainty,
            side=bool(args.side),
            frames=frames,
        )
        solving |= usual_steps(solver=args.solver, find=False, of="white reference, ") if args.white else {}
    expected = {"read": 0.02} | ({"align": 0.5} if args.align else {}) | solving
    expected |= {} if args.tile is not None else {"write": 0.02}
    return expected | ({"draw": 0.2} if figures else {}) | ({"report": 0.2} if report else {})


def _run_single(args: argparse.Namespace, output: Path, figures: Path | None, report: Path | None, steps: Steps) -> int:
    from cassi.cli import reading
    from cassi.running.evidence import of_imprint, of_result
    from cassi.running.front_door import reconstruct
    from cassi.running.result import write_result

    steps.begin("read")
    m = reading.read_and_tell(args)
    steps.expect(steps_of(args, figures, report, m.num_scenes))
    side = side_of(args, m)
    check = reading.compare_with_mask(args, m)
    m, put_in_place, moved = with_true_camera(args, m, check, steps)
    check = reading.compare_with_mask(args, m) if moved else check
    m = replace(m, notes=(*m.notes, *reading.compare_with_blur(args, m)), check=check)
    if args.white:  # what is known of the truth is radiance
        m = replace(m, cube=None, mean_band=None)
    attributes = reading.provenance(args)
    if args.tile is not None:
        return run_tiled(args, replace(m, notes=(*m.notes, check.verdict)), output, report, attributes, steps)
    white = read_white(args, m)
    result = put_in_place(reconstruct(m, **reading.method(args), side=side, progress=steps))
    result, uneven = in_reflectance(args, result, white, steps)
    reading.compare_again(args, check, result)
    for line in reading.outcome(result, args.verbose):
        say(args, f"  {line}")
    against = (*uneven, *of_result(result.residual), *of_imprint(result.imprint))
    for text in against:
        warn(args.prog, text)
    steps.begin("write")
    m = replace(m, notes=(*m.notes, (result.check or check).verdict, *against))
    write_result(output, m, result, attributes=attributes, overwrite=args.overwrite)
    code = save_camera(args, result)
    line = summary_line(m, result)
    try:
        if figures is not None:
            from cassi.looking.figures import figures_of, save_figures
            from cassi.looking.report_data import report_of

            steps.begin("draw")
            save_figures(figures_of(report_of(result, m), caption=line), figures)
        write_report_of(args, output, report, steps)
    except KeyboardInterrupt:
        told = f"interrupted; the cube is complete in {output}, what is drawn of it is not: `cassi view` shows it"
        warn(args.prog, told, kind="error")
        return 130
    made = [str(output), *([f"{figures}/"] if figures else []), *([str(report)] if report else [])]
    say(args, f"{line} -> {', '.join(made)}")
    return code


def save_camera(args: argparse.Namespace, result: Reconstruction) -> int:
    """Write the camera where --save-camera says; the exit code. The result stands, whatever becomes of it."""
    if not args.save_camera or result.camera is None:
        return 0
    try:
        result.camera.save(args.save_camera, overwrite=args.overwrite)
    except OutputError as error:
        warn(args.prog, f"the cube is written, the camera is not: {error}", kind="error")
        return 2
    return 0


def read_white(args: argparse.Namespace, m: Measurement) -> Measurement | None:
    """The capture of the white reference, where one is given.

    Raises:
        InputError: it cannot be read, is a stack, or of another size, before anything is computed.
    """
    if args.white is None:
        return None
    from cassi.cli import reading

    white = reading.reading(args)(args.white)
    if white.y.shape != m.y.shape or m.y.ndim != 2:
        raise InputError(
            f"{args.white}: the white reference must be one snapshot like the scene's, {m.y.shape}, got "
            f"{white.y.shape}; capture it with the same camera"
        )
    if not white.y.any():
        raise InputError(f"{args.white}: the white reference is black; capture a white board in full light")
    return replace(white, check=m.check)  # one camera


def white_in_words(args: argparse.Namespace, m: Measurement) -> list[str]:
    """What would be done with the white reference."""
    if read_white(args, m) is None:
        return []
    return [f"the cube would be divided by the light on the white reference {Path(args.white).name}"]


def in_reflectance(
    args: argparse.Namespace, result: Reconstruction, m: Measurement | None, steps: Steps
) -> tuple[Reconstruction, tuple[str, ...]]:
    """Divided by the cube of the white reference, where one is given: same camera, same solver. And what speaks
    against the reference."""
    if m is None:
        return result, ()
    from cassi.cli import reading
    from cassi.running.front_door import reconstruct
    from cassi.running.white import of_structure, reflectance, structure

    method = reading.method(args) | {"uncertainty": False, "camera": result.camera or "as-given"}
    white = reconstruct(m, **method, progress=lambda step, share: steps(f"white reference, {step}", share))
    name = Path(args.white).name
    say(args, f"  divided by the light on the white reference {name}: the cube is reflectance")
    return reflectance(result, white), of_structure(structure(white))


def write_report_of(args: argparse.Namespace, output: Path, report: Path | None, steps: Steps) -> None:
    if report is not None:
        from cassi.looking.report_page import write_report

        steps.begin("report")
        write_report(report, output, overwrite=args.overwrite)


def check_single(args: argparse.Namespace) -> None:
    """Raise InputError for options that say how many snapshots are computed, where there is one cube."""
    given = {"--batch": args.batch, "--workers": args.workers, "--scheduler": args.scheduler}
    for option in (name for name, value in given.items() if value is not None):
        raise InputError(
            f"{option} is for many snapshots, a cube each, and here is one; leave it out, or give --output FOLDER"
        )


def check_tiles(args: argparse.Namespace) -> None:
    """Tiles never see the whole cube: what needs it is refused.

    Raises:
        InputError: an option that does not go with --tile.
    """
    if args.tile is None:
        return
    if args.figures and args.figures.lower() != "none":
        raise InputError("figures need the whole cube in memory; leave out --figures or --tile")
    args.figures = "none"
    given = {
        "--white": args.white,
        "--quality": args.quality != "default",
        "--prior": args.prior != "auto",
        "--weights": args.weights,
        "--budget": args.budget,
        "--uncertainty": args.uncertainty,
        "--psf": args.psf is not None,
    }
    for option in (name for name, value in given.items() if value):
        raise InputError(f"{option} does not go with --tile; leave one of them out")


def run_tiled(
    args: argparse.Namespace,
    m: Measurement,
    output: Path,
    report: Path | None,
    attributes: dict[str, object],
    steps: Steps,
) -> int:
    """Reconstruct tile by tile into the result's file."""
    from cassi.cli import reading
    from cassi.running.evidence import of_result
    from cassi.running.tiled_file import reconstruct_tiled

    whole = {"quality", "prior", "weights", "budget", "uncertainty", "psf", "camera"}
    method = {name: value for name, value in reading.method(args).items() if name not in whole}
    result = reconstruct_tiled(
        m,
        output,
        tile=args.tile,
        **method,
        attributes=attributes,
        overwrite=args.overwrite,
        progress=steps,
    )
    for text in of_result(result.residual):
        warn(args.prog, text)
    write_report_of(args, output, report, steps)
    tiles = f"{len(result.history)} tiles"
    say(args, f"{tiles}, residual {result.residual:.2%}, {result.seconds:.1f} s -> {output}")
    return 0


def is_many(args: argparse.Namespace) -> bool:
    """Whether the input is several files, a folder or a pattern, or the output a place for many cubes."""
    source, output = Path(args.files[0]), args.output
    several = (
        len(args.scenes) > 1
        if args.scenes
        else len(args.files) > 1 or source.is_dir() or (glob.has_magic(args.files[0]) and not source.exists())
    )
    return several or (bool(output) and (Path(output).is_dir() or Path(output).suffix.lower() in ("", ".zarr")))


def output_paths(args: argparse.Namespace) -> tuple[Path, Path | None]:
    """The result's file and the figures' folder (None: no figures)."""
    source = Path(args.files[0])
    output = Path(args.output) if args.output else source.with_name(f"{source.stem}_cube.h5")
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

    from cassi.files.atomic import check_place

    path = Path(args.report or output.with_name(f"{output.stem.removesuffix('_cube')}_report.html"))
    if find_spec("bokeh") is None:
        raise InputError('the report needs Bokeh: python -m pip install "cassi[report]"')
    if output.suffix.lower() not in (".h5", ".hdf5"):
        raise InputError(f"the report is made from an HDF5 result, the output is {output.name}; leave one of them out")
    if path.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{path}: a report is an HTML file, expected the suffix .html")
    return check_place(path, args.overwrite)


def check_figures(folder: Path | None) -> None:
    """Find out before the computation whether the figures can be written.

    Raises:
        OutputError: they cannot.
    """
    if folder is None:
        return
    there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not there:  # a run that fails leaves nothing behind
            folder.rmdir()
    except OSError as error:
        raise OutputError(
            f"{folder}: the figures' folder cannot be made ({one_line(error)}); use --figures DIR or none"
        ) from error


def with_true_camera(
    args: argparse.Namespace, m: Measurement, check: MaskCheck, steps: Steps
) -> tuple[Measurement, Callable[[Reconstruction], Reconstruction], bool]:
    """The measurement with its camera as it is found to be, what puts the bands of its cube in place, and whether the
    mask was moved.

    Raises:
        InputError: tiles, whose bands nobody would put in place; a mask that does not belong to the snapshot.
    """
    cameras: list[Calibration | FoundCamera] = []
    moved = False
    if args.calibration:
        from cassi.calibration.estimate import Calibration

        cameras.append(Calibration.load(args.calibration))
    if args.align:
        from cassi.calibration.pose import align_measurement

        steps.begin("align")
        if check.kind == "wrong mask":
            raise InputError(f"there is nothing to align: {check.verdict}; leave out --align, or give another --mask")
        m, alignment = align_measurement(m, seed=args.seed)
        say(args, f"  {alignment.message}")
        cameras.append(alignment)
        moved = alignment.accepted
    if args.tile is not None and any(any(camera.remainders) for camera in cameras):
        raise InputError("bands between pixels are put in place at the end, which tiles are not; leave out --tile")

    def put_in_place(result: Reconstruction) -> Reconstruction:
        for camera in cameras:
            spread = None if result.uncertainty is None else camera.register(result.uncertainty)
            result = replace(result, cube=camera.register(result.cube), uncertainty=spread)
        return result

    return m, put_in_place, moved


def summary_line(m: Measurement, result: Reconstruction) -> str:
    """Residual, seconds, and how close the cube comes to the truth where the file has it."""
    from cassi.looking.metrics import score

    parts = [f"residual {result.residual:.2%}", f"{result.seconds:.1f} s"]
    units = {
        "psnr": "PSNR {:.2f} dB",
        "ssim": "SSIM {:.3f}",
        "sam": "SAM {:.2f} deg",
        "mean_band_psnr": "mean-band PSNR {:.2f} dB",
    }
    for name, value in score(result.cube.cpu(), truth=m.cube, mean_band=m.mean_band).items():
        parts.append(units[name].format(value))
    return ", ".join(parts)


def dry_run(args: argparse.Namespace, output: Path) -> int:
    """Say what the file holds, how it fits together, and what would be done.

    Raises:
        InputError: the measurement cannot be reconstructed.
    """
    from cassi.cli import reading
    from cassi.files import check_output

    print(reading.contents(args, args.files[0]))
    m = reading.read_and_tell(args)
    check = reading.compare_with_mask(args, m)
    reading.compare_with_blur(args, m)
    for line in (
        *reading.what_would_be_used(m, args, fits=check.matches),
        *white_in_words(args, m),
        *side_in_words(args, m),
    ):
        print(f"  {line}")
    size = " x ".join(str(n) for n in (len(m.shifts), *m.mask.shape[-2:]))
    doubt = "" if check.matches else ", although the mask does not fit"
    done = f"a cube {size} with solver {args.solver} on device {args.device} and write {output}{doubt}"
    print(f"\nwould reconstruct {done}")
    try:
        check_output(output, args.overwrite)
    except OutputError as error:
        warn(args.prog, f"as it is, nothing could be written: {error}")
    return 0
