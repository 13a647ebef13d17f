"""`reconstruct` of a folder, of files, or of a stack frame by frame: one cube each, resumed where it stopped."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cassi.cli.places import check_camera_file, check_places
from cassi.cli.reading import Reading, contents, method, provenance, reading, verdict, what_would_be_used
from cassi.cli.shell import say, warn
from cassi.errors import InputError

if TYPE_CHECKING:
    from cassi.running.many import BatchReport
    from cassi.running.stores import Frame

# Names of what lies beside snapshots and is none.
OTHERS = ("dark", "flat", "white", "mask", "slit", "background")
TOLD = 3  # of many alike
DRY_RUN_FRAMES = 100  # are looked at, one by one


def run_many(args: argparse.Namespace) -> int:
    """Reconstruct what is not finished yet of a folder, of files, a pattern or a stack.

    Raises:
        InputError: options that need a single snapshot, no place for the cubes, nothing to reconstruct.
    """
    from cassi.running.front_door import reconstruct
    from cassi.running.many import reconstruct_many

    _refuse(args)
    output = args.output or f"{_named(Path(args.files[0]))}_cubes"
    check_places(args)
    frames = find_snapshots(args)
    check_camera_file(args, [path for frame in frames for path in frame.paths], many=True)
    if args.bit_depth is None and not args.calibration and not args.scenes:
        args.bit_depth = common_bit_depth(args, sorted({frame.path for frame in frames}))
    read = reading(args, many=True)
    if args.dry_run:
        return dry_run(args, read, frames, output)
    report = reconstruct_many(
        frames,
        output,
        read=read,
        solve=partial(reconstruct, **with_common_camera(args, read, frames)),
        overwrite=args.overwrite,
        batch=args.batch,
        workers=args.workers,
        scheduler=args.scheduler,
        attributes=provenance(args),
        progress=not args.quiet,
    )
    for name, reason in report.failed.items():
        warn(args.prog, f"{name}: {reason}", kind="error")
    page = ""
    if args.report is not None and len(report.failed) < len(frames):
        from cassi.looking.overview import write_index

        page = f", {write_index(output)}"
    warn_of(args, report)
    found = f", {report.found} were finished already" if report.found else ""
    rate = f", {60 * report.computed / report.seconds:.1f} a minute" if report.computed else ""
    failed = f", {len(report.failed)} failed" if report.failed else ""
    made = f"{report.computed} snapshots in {report.seconds:.1f} s"
    say(args, f"{made}{rate}{found}{failed}{counted(report)} -> {output}{page}")
    return 1 if report.failed else 0


def warn_of(args: argparse.Namespace, report: BatchReport) -> None:
    """Name snapshots that do not fit the mask, and those that something else speaks against: the first of them."""
    for told in (report.misfits, report.doubts):
        for name, text in list(told.items())[:TOLD]:
            warn(args.prog, f"{name}: {text}")
        if len(told) > TOLD:
            warn(args.prog, f"... and {len(told) - TOLD} more")


def counted(report: BatchReport) -> str:
    """How many these are, for the last line."""
    misfit = f", {len(report.misfits)} do not fit the mask" if report.misfits else ""
    return misfit + (f", {len(report.doubts)} in doubt" if report.doubts else "")


def _named(folder: Path) -> Path:
    """The folder by its name, which `.` and `..` are not."""
    return folder if folder.name not in ("", "..") else folder.resolve()


def with_common_camera(args: argparse.Namespace, read: Reading, frames: Sequence[Frame]) -> dict[str, Any]:
    """The method's keywords, with one camera found from a few of the frames: it is the same for all of them."""
    keywords = method(args)
    if keywords["camera"] != "find" or keywords["psf"] is not None:
        return keywords
    from cassi.calibration.found_camera import FRAMES, find_camera
    from cassi.running.progress import CAMERA, StepBar

    chosen = [frames[k] for k in sorted({round(k * (len(frames) - 1) / (FRAMES - 1)) for k in range(FRAMES)})]
    try:
        with StepBar({CAMERA: 1.0}, shown=not args.quiet) as bar:
            found = find_camera(
                *(read(f.where, frames=f.index) for f in chosen),
                black_level=keywords["black_level"],
                told=partial(bar, CAMERA),
            )
    except (ValueError, OSError):  # what cannot be read is told of each frame when its turn comes
        if args.save_camera:
            warn(args.prog, f"{args.save_camera} is not written: no camera could be looked for")
        return keywords | {"camera": "as-given"}
    if found.accepted:
        say(args, f"  {found.message}")
    if args.save_camera and not found.is_saved(args.save_camera):  # as a run that was killed left it
        found.save(args.save_camera, overwrite=args.overwrite)
    return keywords | {"camera": found}


def _refuse(args: argparse.Namespace) -> None:
    from cassi.files.formats.table import SUFFIXES

    given = {"--figures": args.figures and args.figures.lower() != "none", "--report FILE": args.report}
    given |= {"--align": args.align, "--tile": args.tile is not None, "--white": args.white}
    given |= {"--report": args.report is not None and Path(args.output or "").suffix.lower() == ".zarr"}
    alone = ", ".join(option for option, value in given.items() if value)
    if alone:
        raise InputError(f"{alone} goes with a single snapshot only; leave it out")
    if Path(args.output or "").suffix.lower() in SUFFIXES and not Path(args.output).is_dir():
        raise InputError(f"{args.output}: many snapshots need --output FOLDER or --output NAME.zarr, not one file")
    if args.output is None and not (len(args.files) == 1 and Path(args.files[0]).is_dir()):
        raise InputError(f"{args.files[0]}: many snapshots need --output FOLDER or --output NAME.zarr")


def find_snapshots(args: argparse.Namespace) -> list[Frame]:
    """The scenes that the files given stand for."""
    from cassi.calibration.estimate import calibrated_frame_count
    from cassi.files import frame_count
    from cassi.running.many import find_frames

    if args.scenes:
        scenes: list[Frame] = args.scenes
        return scenes
    count, source = None, args.files[0]
    if len(args.files) == 1 and Path(source).is_file():
        count = (
            calibrated_frame_count(source, key=args.key)
            if args.calibration
            else frame_count(source, reading(args, many=True).options)
        )
    others = [f for f in (args.mask, args.bad_pixels, args.calibration) if f]
    return find_frames(args.files, count=count, leave_out=others)


def common_bit_depth(args: argparse.Namespace, paths: Sequence[str]) -> int | None:
    """The bit depth that holds the counts of all snapshots, so that their cubes have one unit; None for floats."""
    from cassi.files import open_frames

    try:
        return open_frames(list(paths), reading(args, many=True).options).bit_depth
    except InputError:  # none can be read, which is told of each when its turn comes
        return None


def dry_run(args: argparse.Namespace, read: Reading, frames: Sequence[Frame], output: str) -> int:
    """List the files, look into the first as for a single snapshot, and say of each whether it fits the mask.

    Raises:
        InputError: none of them can be reconstructed.
    """
    from cassi.optics.mask_match import check_masks
    from cassi.running.evidence import of_measurement

    print(contents(args, frames[0].path))
    print(f"\n{len(frames)} snapshots:")
    good, first_problem, told = 0, "", False
    for frame in frames[:DRY_RUN_FRAMES]:
        try:
            m = read(frame.where) if frame.index is None else read(frame.where, frames=frame.index)
            lines = () if told else (*m.notes, *what_would_be_used(m, args))
        except InputError as error:
            first_problem = first_problem or str(error)
            print(f"  {frame.name}: cannot be reconstructed: {error}")
            continue
        good += 1
        check = check_masks(m)
        none = not check.matches and frame.name.lower().startswith(OTHERS)
        print(f"  {frame.name}: {'by its name no snapshot, move it away; ' if none else ''}{verdict(check)}")
        told = True
        for line in lines:
            print(f"    {line}")
        for text in of_measurement(m):
            warn(args.prog, f"{frame.name}: {text}")
    if len(frames) > DRY_RUN_FRAMES:
        print(f"  and {len(frames) - DRY_RUN_FRAMES} more, not looked at")
    if not good:
        raise InputError(f"none of the snapshots can be reconstructed: {first_problem}")
    print(f"\nwould reconstruct {len(frames)} snapshots, {frames[0].name} to {frames[-1].name}, into {output}")
    return 0
