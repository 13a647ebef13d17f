"""`reconstruct` of a folder, of files, of a stack frame by frame, or of a sequence; resumed where it stopped."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cassi.cli.places import HDF5, check_places
from cassi.cli.reading import (
    Reading,
    compare_with_mask,
    contents,
    method,
    provenance,
    reading,
    verdict,
    what_would_be_used,
)
from cassi.cli.shell import say, warn
from cassi.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassi.optics.measurement import Measurement
    from cassi.running.many import BatchReport
    from cassi.running.result import Reconstruction
    from cassi.running.stores import Frame

# Names of what lies beside snapshots and is none.
OTHERS = ("dark", "flat", "white", "mask", "slit", "background")
TOLD = 3  # of many alike
DRY_RUN_FRAMES = 100  # are looked at, one by one


def run_many(args: argparse.Namespace) -> int:
    """Reconstruct what is not finished yet: each snapshot for itself, or in a sequence with those beside it.

    Raises:
        InputError: no place for the cubes, nothing to reconstruct, or fewer than two frames of a sequence.
    """
    from cassi.running.many import reconstruct_many

    output = _sequence_file(args) if args.sequence else _place_of_many(args)
    check_places(args, Path(output) if args.sequence else None)
    frames = find_snapshots(args)
    check_places(args, snapshots=[path for frame in frames for path in frame.paths])
    if args.bit_depth is None and not args.calibrations and not args.scenes:
        args.bit_depth = common_bit_depth(args, sorted({frame.path for frame in frames}))
    read = reading(args, many=True)
    if args.sequence and len(frames) < 2:
        raise InputError(f"{frames[0].path}: one snapshot is no sequence; leave out --sequence")
    if args.dry_run:
        return (dry_run_of_sequence if args.sequence else dry_run)(args, read, frames, output)
    job = (_in_sequence if args.sequence else _one_by_one)(args, read, frames, output)
    report = reconstruct_many(
        job.frames,
        job.place,
        read=job.read,
        solve=job.solve,
        overwrite=args.overwrite,
        batch=args.batch,
        workers=args.workers,
        scheduler=args.scheduler,
        attributes=provenance(args),
        progress=not args.quiet,
    )
    for name, reason in report.failed.items():
        warn(args, f"{name}: {reason}", kind="error")
    warn_of(args, report)
    if args.sequence and report.failed:
        return 1
    made = (_gathered if args.sequence else _indexed)(args, report, frames, output)
    rate = f", {60 * report.computed / report.seconds:.1f} a minute" if report.computed else ""
    counts = {
        "were finished already": report.found,
        "failed": len(report.failed),
        "do not fit the mask": len(report.misfits),
        "in doubt": len(report.doubts),
    }
    told = "".join(f", {count} {what}" for what, count in counts.items() if count)
    what = "frames" if args.sequence else "snapshots"
    say(args, f"{report.computed} {what} in {report.seconds:.1f} s{rate}{told} -> {', '.join(made)}")
    return 1 if report.failed else 0


@dataclass(frozen=True)
class _Job:
    """What `reconstruct_many` is given: its frames, where their cubes go, how each is read and reconstructed."""

    frames: Sequence[Frame]
    place: str | Path
    read: Callable[..., Measurement]
    solve: Callable[..., Reconstruction]


def _place_of_many(args: argparse.Namespace) -> str:
    """The folder or store of the cubes.

    Raises:
        InputError: it is one file, or has to be named.
    """
    from cassi.files.formats.table import SUFFIXES

    source, suffix = Path(args.files[0]), Path(args.output or "").suffix.lower()
    if args.report or (args.report is not None and suffix == ".zarr"):
        raise InputError("--report FILE goes with a single snapshot, --report with a folder; leave it out")
    if suffix in SUFFIXES and not Path(args.output).is_dir():
        raise InputError(f"{args.output}: many snapshots need --output FOLDER or --output NAME.zarr, not one file")
    if args.output is None and not (len(args.files) == 1 and source.is_dir()):
        raise InputError(f"{args.files[0]}: many snapshots need --output FOLDER or --output NAME.zarr")
    named = source if source.name not in ("", "..") else source.resolve()  # by its name, which `.` and `..` are not
    return str(args.output or f"{named}_cubes")


def _sequence_file(args: argparse.Namespace) -> str:
    """The file of a sequence.

    Raises:
        InputError: it is no HDF5 file.
    """
    source = Path(args.files[0])
    output = Path(args.output or source.with_name(f"{source.stem}_sequence.h5"))
    if output.suffix.lower() not in HDF5:
        raise InputError(f"{args.output}: a sequence becomes one file, expected the suffix .h5")
    return str(output)


def _one_by_one(args: argparse.Namespace, read: Reading, frames: Sequence[Frame], output: str) -> _Job:
    from cassi.running.front_door import reconstruct

    return _Job(frames, output, read, partial(reconstruct, **with_common_camera(args, read, frames)))


def _in_sequence(args: argparse.Namespace, read: Reading, frames: Sequence[Frame], output: str) -> _Job:
    """One plan for all frames, made from some of them; each is reconstructed with those beside it."""
    from cassi.choice.plan import Method
    from cassi.files import check_output
    from cassi.running.sequence import LOOKED_AT, InSequence, ReadWindow, sequence_plan, windows

    check_output(output, args.overwrite)
    keywords = with_common_camera(args, read, frames)
    camera = keywords["camera"]
    spread = sorted({round((k + 0.5) * len(frames) / LOOKED_AT - 0.5) for k in range(LOOKED_AT)})
    looked_at = [read(frames[t].path, frames=frames[t].index) for t in spread]
    if not isinstance(camera, str):
        looked_at = [camera.in_place(m) for m in looked_at]
    say(args, f"  noise and spectra are chosen from {len(looked_at)} of {len(frames)} frames")
    same = {name: keywords[name] for name in ("psf", "black_level", "device", "seed")}
    plan = sequence_plan(looked_at, method=Method(prior=args.prior), **same)
    say(args, f"  one plan for {len(frames)} frames: {plan.basis}, {plan.noise_share:.0%} of the estimated noise")
    return _Job(
        windows(frames),
        Path(output).with_name(f"{Path(output).stem}_frames"),
        ReadWindow(read, len(frames) if frames[0].index is not None else 0),
        partial(InSequence(plan, args.prior, camera if not isinstance(camera, str) else "as-given", **same)),
    )


def _indexed(args: argparse.Namespace, report: BatchReport, frames: Sequence[Frame], output: str) -> list[str]:
    """What is made of a folder of cubes: a page where asked for."""
    if args.report is None or len(report.failed) == len(frames):
        return [output]
    from cassi.looking.overview import write_index

    return [output, str(write_index(output))]


def _gathered(args: argparse.Namespace, report: BatchReport, frames: Sequence[Frame], output: str) -> list[str]:
    """The file of a sequence, the film beside it, and where asked for the page of its first frame with the film."""
    from cassi.files.cube_store import gather_cubes
    from cassi.looking.film import write_film
    from cassi.looking.report_data import read_report

    results = [Path(output).with_name(f"{Path(output).stem}_frames") / f"{frame.name}_cube.h5" for frame in frames]
    gather_cubes(output, results, attributes=provenance(args), overwrite=args.overwrite)
    say(args, f"  the cubes are written: {output}")
    made, film = [output], Path(output).with_suffix(".gif")
    first = read_report(output)
    if args.figures != "none":
        count = len(frames)
        write_film(film, lambda t: read_report(output, frame=t).cube[:, :, :], count, first.wavelengths, overwrite=True)
        made.append(str(film))
    if args.report is not None:
        from cassi.looking.report_page import write_report

        page = Path(args.report or film.with_name(f"{film.stem}_report.html"))
        made.append(str(write_report(page, first, overwrite=args.overwrite)))
    return made


def warn_of(args: argparse.Namespace, report: BatchReport) -> None:
    """Name snapshots that do not fit the mask, and those that something else speaks against: the first of them."""
    for told in (report.misfits, report.doubts):
        for name, text in list(told.items())[:TOLD]:
            warn(args, f"{name}: {text}")
        if len(told) > TOLD:
            warn(args, f"... and {len(told) - TOLD} more")


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
            warn(args, f"{args.save_camera} is not written: no camera could be looked for")
        return keywords | {"camera": "as-given"}
    if found.accepted:
        say(args, f"  {found.message}")
    if args.save_camera and not found.is_saved(args.save_camera):  # as a run that was killed left it
        found.save(args.save_camera, overwrite=args.overwrite)
    return keywords | {"camera": found}


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
            if args.calibrations
            else frame_count(source, reading(args, many=True).options)
        )
    others = [f for f in (*args.masks, *args.calibrations, args.bad_pixels) if f]
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
            warn(args, f"{frame.name}: {text}")
    if len(frames) > DRY_RUN_FRAMES:
        print(f"  and {len(frames) - DRY_RUN_FRAMES} more, not looked at")
    if not good:
        raise InputError(f"none of the snapshots can be reconstructed: {first_problem}")
    print(f"\nwould reconstruct {len(frames)} snapshots, {frames[0].name} to {frames[-1].name}, into {output}")
    return 0


def dry_run_of_sequence(args: argparse.Namespace, read: Reading, frames: Sequence[Frame], output: str) -> int:
    """Say what the first frame is, and what would be done."""
    from cassi.running.evidence import of_measurement

    m = read(frames[0].path, frames=frames[0].index)
    print(f"{len(frames)} frames that follow each other, {frames[0].name} to {frames[-1].name}; the first:")
    for line in (*m.notes, *what_would_be_used(m, args)):
        print(f"  {line}")
    compare_with_mask(args, m)
    for text in of_measurement(m):
        warn(args, text)
    size = " x ".join(str(n) for n in (len(frames), len(m.shifts), *m.mask.shape[-2:]))
    print(f"\nwould reconstruct cubes {size}, each with the frames beside it, and write {output}")
    return 0
