"""`reconstruct` of a folder, of files, of a stack frame by frame, or of a sequence; resumed where it stopped."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cassi.calibration import found_camera
from cassi.calibration.found_camera import FRAMES, FoundCamera
from cassi.cli.reading import Task, provenance
from cassi.cli.shell import say, warn
from cassi.errors import InputError
from cassi.files.cube_store import gather_cubes
from cassi.files.formats.table import SUFFIXES
from cassi.optics.measurement import Measurement
from cassi.running import front_door
from cassi.running.many import BatchReport, reconstruct_many
from cassi.running.progress import CAMERA, StepBar
from cassi.running.request import Request
from cassi.running.result import Reconstruction
from cassi.running.sequence import LOOKED_AT, InSequence, ReadWindow, sequence_plan, windows

TOLD = 3  # of many alike


def check_many(args: argparse.Namespace, task: Task) -> None:
    """Fill in the place of the cubes: a folder, or the file of a sequence."""
    source, suffix = Path(args.files[0]), Path(args.output or "").suffix.lower()
    if args.sequence:
        args.output = args.output or str(source.with_name(f"{source.stem}_sequence.h5"))
        if Path(args.output).suffix.lower() not in (".h5", ".hdf5"):
            raise InputError(f"{args.output}: a sequence becomes one file, expected the suffix .h5")
        if len(task.frames) < 2:
            raise InputError(f"{task.frames[0].path}: one snapshot is no sequence; leave out --sequence")
        return
    if args.report:
        raise InputError("--report FILE goes with a single snapshot, --report with a folder; leave it out")
    named = suffix not in (*SUFFIXES, ".zarr") or Path(args.output).is_dir() if args.output else len(args.files) == 1
    if not named or not (args.output or source.is_dir()):
        raise InputError(f"{args.output or source}: many snapshots need --output FOLDER, for a cube each")
    source = source if source.name not in ("", "..") else source.resolve()  # by its name, which `.` and `..` are not
    args.output = args.output or f"{source}_cubes"


def run_many(args: argparse.Namespace, task: Task) -> int:
    """Reconstruct what is not finished yet: each snapshot for itself, or in a sequence with those beside it."""
    camera = common_camera(args, task)
    frames, read, place = task.frames, task.read, Path(args.output)
    solve: Callable[..., Reconstruction] = partial(front_door.reconstruct, **task.method | {"camera": camera})
    if args.sequence:
        solve = in_sequence(args, task, camera)
        place = _parts(args)
        read = ReadWindow(task.read, len(frames) if frames[0].index is not None else 0)  # type: ignore[assignment]
        frames = windows(frames)
    how: dict[str, Any] = {"overwrite": args.overwrite, "batch": args.batch, "progress": not args.quiet}
    report = reconstruct_many(frames, place, read=read, solve=solve, attributes=provenance(args), **how)
    tell_report(args, report)
    if args.sequence and report.failed:
        warn(args, f"{args.output} is not written without all frames; those that are finished are kept in {place}")
        return 1
    made = gathered(args, task) if args.sequence else [args.output]
    if not args.sequence and args.report is not None and len(report.failed) < len(frames):
        from cassi.looking.overview import write_index

        made.append(str(write_index(args.output)))
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


def in_sequence(args: argparse.Namespace, task: Task, camera: FoundCamera | str) -> Callable[..., Reconstruction]:
    """One plan for all frames, made from some of them; each is reconstructed with those beside it."""
    count = len(task.frames)
    spread = sorted({round((k + 0.5) * count / LOOKED_AT - 0.5) for k in range(LOOKED_AT)})
    looked_at = _some(task, spread)
    if len(looked_at) < 2:
        for frame in task.frames:
            task.measurement(frame)  # says why
    if not isinstance(camera, str):
        looked_at = [camera.in_place(m) for m in looked_at]
    same = {name: task.method[name] for name in ("psf", "black_level", "weights", "device", "seed")}
    request = Request(prior=args.prior, camera="as-given" if isinstance(camera, str) else camera, **same)
    plan = sequence_plan(looked_at, request)
    say(args, f"  one plan for {count} frames, from {len(looked_at)} of them")
    return InSequence(plan, request)


def _some(task: Task, chosen: Sequence[int]) -> list[Measurement]:
    """These frames, others in place of those that cannot be read, which is told of each when its turn comes."""
    found = list[Measurement]()
    for k in (*chosen, *(k for k in range(len(task.frames)) if k not in chosen)):
        with contextlib.suppress(ValueError, OSError):
            found += [task.measurement(task.frames[k])] if len(found) < len(chosen) else []
    return found


def _parts(args: argparse.Namespace) -> Path:
    """The folder with the frames of a sequence."""
    return Path(args.output).with_name(f"{Path(args.output).stem}_frames")


def gathered(args: argparse.Namespace, task: Task) -> list[str]:
    """The file of a sequence, the film beside it, and where asked for the page of its first frame."""
    from cassi.looking.film import write_film
    from cassi.looking.report_data import read_report

    results = [_parts(args) / f"{frame.name}_cube.h5" for frame in task.frames]
    gather_cubes(args.output, results, attributes=provenance(args), overwrite=args.overwrite)
    say(args, f"  the cubes are written: {args.output}")
    made, first = [args.output], read_report(args.output)
    if args.figures != "none":
        film = Path(args.output).with_suffix(".gif")

        def frame(t: int) -> Any:
            return read_report(args.output, frame=t).cube[:, :, :]

        made.append(str(write_film(film, frame, len(results), first.wavelengths, overwrite=True)))
    if args.report is not None:
        from cassi.looking.report_page import write_report

        made.append(str(write_report(args.report, first, overwrite=args.overwrite)))
    return made


def tell_report(args: argparse.Namespace, report: BatchReport) -> None:
    """Name snapshots that failed, do not fit the mask, or that something else speaks against: the first of them."""
    for told, kind in ((report.failed, "error"), (report.misfits, "warning"), (report.doubts, "warning")):
        for name, text in list(told.items())[:TOLD]:
            warn(args, text, kind, f"{name}: ")
        if len(told) > TOLD:
            warn(args, f"... and {len(told) - TOLD} more", kind=kind)


def common_camera(args: argparse.Namespace, task: Task) -> FoundCamera | str:
    """One camera found from a few of the frames: it is the same for all of them."""
    if task.method["camera"] != "find" or task.method["psf"] is not None:
        return str(task.method["camera"])
    last = len(task.frames) - 1
    chosen: Sequence[int] = sorted({round(k * last / (FRAMES - 1)) for k in range(FRAMES)})
    try:
        with StepBar({CAMERA: 1.0}, shown=not args.quiet) as bar:
            seen = _some(task, chosen) or [task.measurement(task.frames[0])]
            found = found_camera.find_camera(
                *seen, black_level=task.method["black_level"], seed=args.seed, told=partial(bar, CAMERA)
            )
    except (ValueError, OSError):  # what cannot be read is told of each frame when its turn comes
        if args.save_camera:
            warn(args, f"{args.save_camera} is not written: no camera could be looked for")
        return "as-given"
    if found.accepted:
        say(args, f"  {found.message}")
    if args.save_camera and not found.is_saved(args.save_camera):  # as a run that was killed left it
        found.save(args.save_camera, wavelengths=seen[0].wavelengths, overwrite=args.overwrite)
    return found
