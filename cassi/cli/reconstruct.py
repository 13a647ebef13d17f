"""Reconstruct a spectral cube from a coded-aperture snapshot: one file in, one file and figures out."""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from cassi.cli import messages
from cassi.cli.many import Drawing, draw_sequence, output_of_many, run_many
from cassi.cli.options import options_of
from cassi.cli.places import check_folder, check_written, figures_folder, inputs
from cassi.cli.reading import Task, make_task, provenance
from cassi.cli.shell import check_said, say, warn
from cassi.errors import InputError, OutputError, import_extra
from cassi.files.atomic import check_place
from cassi.files.writing import Attributes, check_store
from cassi.kernels.dispatch import pick_device, unused_gpu
from cassi.looking.report_data import ReportData, read_report, report_of
from cassi.optics.measurement import Measurement
from cassi.running.arguments import load, open_files
from cassi.running.fingerprint import Stamps, changed_since, fingerprints, named_files, stamps_of
from cassi.running.many import SolveWith, read_record
from cassi.running.pipeline import Listener, reconstruct_measurement
from cassi.running.plan_file import save_plan
from cassi.running.progress import StepBar, expected_steps
from cassi.running.result import Reconstruction, write_result
from cassi.running.tiling import tile_measurement
from cassi.settings import Settings


def run(args: argparse.Namespace) -> int:
    """Settle what is asked for, check where it goes, and say it or do it."""
    files = [*args.files, *args.measurement]
    if not all(files):
        raise InputError("a measurement's name is empty; expected a file, several, a folder or a pattern")
    if not files:
        greedy = [f"--{name}" for name in ("mask", "calibration") if len(getattr(args, name)) > 1]
        cure = f"; what follows {greedy[0]} is read as more of them; name the measurement before it" if greedy else ""
        page = f"; {args.report} is read as the page of --report; name the measurement before it"
        cure = cure or (page if args.report else "")
        raise InputError(f"no measurement given, expected a file, several, a folder or a pattern{cure}")
    pick_device(args.device)
    if args.device == "auto" and (reason := unused_gpu()):
        warn(args, reason, kind="note")
    task = with_places(args, files, make_task(args, files))
    stamps = stamps_of(named_files(task.frames, task.read, task.settings))
    fingerprint = "" if task.many and not args.sequence else fingerprint_of(args, task)
    is_finished = fingerprint != "" and (read_record(task.output) or {}).get("fingerprint") == fingerprint
    kept = is_finished and not args.overwrite
    would = messages.dry_run(args, task, kept=kept) if args.dry_run else ""
    check_places(args, files, task, args.overwrite or is_finished)
    figures = None if task.many else figures_folder(args.figures, task.output)
    lacking = [path for path in (args.save_camera, args.save_plan) if path and not Path(path).exists()]
    if kept and lacking:
        text = f"{task.output} is finished, and {lacking[0]} is written by the run that computes it; allow overwriting"
        raise InputError(text, cures=("overwrite",))
    if args.dry_run:
        print(f"\n{would}")
        check_said()
        return 0
    if kept:
        say(args, messages.finished(task))
        data = read_report(task.output)
        made = draw_sequence(args, task) if args.sequence else draw(args, task, data, figures, "", lambda step: None)
        say(args, f"-> {', '.join([str(task.output), *made])}")
        return 0
    if task.many:
        return run_many(args, task, fingerprint)
    return run_single(args, task, figures, fingerprint, stamps)


def fingerprint_of(args: argparse.Namespace, task: Task) -> str:
    """The fingerprint of all that goes into the one file that is written."""
    paths = dict.fromkeys(path for frame in task.frames for path in frame.paths)
    whole = replace(task.frames[0], index=None, others=tuple(paths)[1:])
    return fingerprints(task.read, SolveWith(task.settings), args.sequence or args.tile)(whole)


def with_places(args: argparse.Namespace, files: Sequence[str], task: Task) -> Task:
    """The task with the names of its result and its page."""
    source = Path(files[0])
    if task.many:
        output = output_of_many(args, files, task)
    else:
        output = Path(args.output or source.with_name(f"{source.stem}_cube.h5"))
    if args.report is None or (task.many and not args.sequence):
        return replace(task, output=output)
    if output.suffix.lower() not in (".h5", ".hdf5"):
        raise InputError(f"the report is made from an HDF5 result, the output is {output.name}; leave one of them out")
    report = Path(args.report or output.with_name(f"{output.stem.removesuffix('_cube')}_report.html"))
    return replace(task, output=output, report=report)


def check_places(args: argparse.Namespace, files: Sequence[str], task: Task, overwrite: bool) -> None:
    """Check what is written before anything is computed."""
    options = {option.name: option for option in options_of("reconstruct")}
    read = [*files, *(path for frame in task.frames for path in frame.paths)]
    taken = inputs(options.values(), args, read)
    if not task.many or args.sequence:
        places: dict[str, object] = {"--output": task.output, "--report": task.report}
        check_written({options[name]: place for name, place in places.items()}, taken, overwrite)
    if args.tile is not None and not task.many:
        check_store(task.output, overwrite)
    if task.many:
        check_folder(task.output.with_name(f"{task.output.stem}_frames") if args.sequence else task.output)
    if args.sequence and args.figures != "none":
        check_place(task.output.with_suffix(".gif"), overwrite=True)
    if args.cluster:
        import_extra("distributed", "cluster")
    saved = {options["--save-camera"]: args.save_camera, options["--save-plan"]: args.save_plan}
    check_written(saved, taken, overwrite or task.many)


def draw(
    args: argparse.Namespace, task: Task, data: ReportData, figures: Path | None, caption: str,
    report: Callable[[str], None],
) -> list[str]:  # fmt: skip
    """Draw the figures and write the page that are asked for; their names."""
    if figures is not None:
        report("draw figures")
        Drawing.of(args).draw(data, figures, caption)
    if task.report is not None:
        from cassi.looking.report_page import write_report

        report("write the page")
        write_report(task.report, data, overwrite=True)  # its place was checked
    return [*([f"{figures}/"] if figures else []), *([str(task.report)] if task.report else [])]


def run_single(args: argparse.Namespace, task: Task, figures: Path | None, fingerprint: str, stamps: Stamps) -> int:
    """One snapshot, or one stack into one cube: read, reconstruct, write, draw, report.

    A result does not count as finished if a file has changed since its fingerprint was taken.
    """
    settings = messages.with_white(args, task, open_files(task.settings))
    with StepBar(steps_of(args, task, settings, figures), shown=not args.quiet) as steps:
        steps("read")
        m = task.measurement(task.frames[0])
        if changed := changed_since(stamps):
            raise InputError(changed)
        messages.describe_measurement(args, m)
        steps.expect(steps_of(args, task, settings, figures, m.num_scenes))
        attributes = provenance(args) | {"fingerprint": fingerprint}
        result = solve_and_write(args, task, load(m, None, settings), settings, steps, attributes, stamps)
        code = save_camera(args, result)
        if args.save_plan and result.plan is not None:
            save_plan(args.save_plan, result.plan, overwrite=args.overwrite)
            messages.inform(args, f"the plan is written: {args.save_plan}")
        scores, made = messages.scores_line(result), list[str]()
        if figures is not None or task.report is not None:
            made = draw(args, task, report_of(result), figures, scores, steps)
    said = ", ".join(filter(None, (f"residual {result.residual:.2%}, {result.seconds:.1f} s", scores)))
    say(args, f"{said} -> {', '.join([str(task.output), *made])}")
    return code


def steps_of(
    args: argparse.Namespace, task: Task, settings: Settings, figures: Path | None, frames: int = 1
) -> list[str]:
    """The steps of a run on one snapshot, or a stack."""
    solving = expected_steps(settings, frames, tiled=args.tile is not None)
    drawn = ["draw figures"] * (figures is not None) + ["write the page"] * (task.report is not None)
    return ["read", *solving, "write", *drawn]


def solve_and_write(
    args: argparse.Namespace, task: Task, m: Measurement, settings: Settings, steps: StepBar, attributes: Attributes,
    stamps: Stamps,
) -> Reconstruction:  # fmt: skip
    """The cube in its file, and what is printed of it."""
    listener: Listener = messages.listener_of(args, steps)
    if args.tile is None:
        result = reconstruct_measurement(m, settings, listener)
    else:
        result = tile_measurement(m, settings, listener, folder=task.output.parent, tile=args.tile)
    steps("write")
    if changed := changed_since(stamps):
        warn(args, f"{changed}; this result does not count as finished")
        attributes = {**attributes, "fingerprint": ""}
    write_result(task.output, result, attributes=attributes, overwrite=args.overwrite)
    for line in messages.describe_result(result):
        messages.inform(args, line)
    messages.inform(args, f"the cube is written: {task.output}")
    return result


def save_camera(args: argparse.Namespace, result: Reconstruction) -> int:
    """Write the camera where --save-camera says; the exit code. The result stands, whatever becomes of it."""
    if not args.save_camera or result.camera is None:
        return 0
    try:
        m = result.measurement
        result.camera.save(args.save_camera, of=m, wavelengths=result.wavelengths, overwrite=args.overwrite)
    except OutputError as error:
        warn(args, f"the cube is written, the camera is not: {error}", kind="error")
        return 2
    messages.inform(args, f"the camera is written: {args.save_camera}")
    return 0
