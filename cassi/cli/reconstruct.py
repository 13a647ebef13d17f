"""Reconstruct a spectral cube from a coded-aperture snapshot: one file in, one file and figures out."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cassi.calibration.found_camera import find_camera
from cassi.choice.asked_for import Progress
from cassi.choice.doubts import of_result
from cassi.cli import words
from cassi.cli.many import check_many, run_many
from cassi.cli.places import check_files, figures_folder
from cassi.cli.reading import Task, provenance, settle
from cassi.cli.shell import say, warn
from cassi.errors import InputError, OutputError
from cassi.files.side_pictures import read_side_picture
from cassi.kernels.dispatch import pick_device
from cassi.optics.measurement import MaskCheck, Measurement
from cassi.running import front_door
from cassi.running.evidence import of_cube
from cassi.running.progress import StepBar, tiled_steps, usual_steps
from cassi.running.result import Reconstruction, write_result
from cassi.running.tiled_file import TiledResult, reconstruct_tiled
from cassi.running.white import reflectance

WHITE = "white reference, "  # before the steps of its reconstruction


def run(args: argparse.Namespace) -> int:
    """Settle what is asked for, check where it goes, and say it or do it."""
    args.files = [*args.files, *args.measurement]
    if not all(args.files):
        raise InputError("a measurement's name is empty; expected a file, several, a folder or a pattern")
    if not args.files:
        greedy = [f"--{name}" for name in ("mask", "calibration") if len(getattr(args, name)) > 1]
        cure = f"; what follows {greedy[0]} is taken for more of them, name the measurement before" if greedy else ""
        raise InputError(f"no measurement given, expected a file, several, a folder or a pattern{cure}")
    pick_device(args.device)
    task = settle(args)
    source = Path(args.files[0])
    if task.many:
        check_many(args, task)
    args.output = args.output or str(source.with_name(f"{source.stem}_cube.h5"))
    check_page(args, task)
    if args.dry_run:  # and is told at the end where nothing could be written
        words.dry_run(args, task)
    check_files("reconstruct", args, [path for frame in task.frames for path in frame.paths], many=task.many)
    figures = None if task.many or args.tile is not None else figures_folder(args, Path(args.output))
    return 0 if args.dry_run else run_many(args, task) if task.many else run_single(args, task, figures)


def check_page(args: argparse.Namespace, task: Task) -> None:
    """Fill in the name of the page, of --report without one."""
    if args.report is None or (task.many and not args.sequence):
        return
    output = Path(args.output)
    if output.suffix.lower() not in (".h5", ".hdf5"):
        raise InputError(f"the report is made from an HDF5 result, the output is {output.name}; leave one of them out")
    args.report = args.report or str(output.with_name(f"{output.stem.removesuffix('_cube')}_report.html"))


def run_single(args: argparse.Namespace, task: Task, figures: Path | None) -> int:
    """One snapshot, or one stack into one cube: read, reconstruct, write, draw, report."""
    with StepBar(steps_of(args, task, figures), shown=not args.quiet) as steps:
        steps("read")
        m = task.measurement(task.frames[0])
        words.tell_measurement(args, task, m)
        check = words.compare_with_mask(args, task, m)
        m = words.warn_of_measurement(args, m)
        steps.expect(steps_of(args, task, figures, m.num_scenes))
        m, result = solve(args, task, m, check, steps)
        say(args, f"  the cube is written: {args.output}")
        code = save_camera(args, m, result)
        line = words.summary_line(m, result)
        if figures is not None:
            from cassi.looking.figures import figures_of, save_figures
            from cassi.looking.report_data import report_of

            steps("draw")
            save_figures(figures_of(report_of(result, m), caption=line), figures)
        if args.report is not None:
            from cassi.looking.report_page import write_report

            steps("report")
            write_report(args.report, args.output, overwrite=args.overwrite)
    made = [str(args.output), *([f"{figures}/"] if figures else []), *([args.report] if args.report else [])]
    say(args, f"{line} -> {', '.join(made)}")
    return code


def steps_of(args: argparse.Namespace, task: Task, figures: Path | None, frames: int = 1) -> dict[str, float]:
    """The steps of a run on one snapshot, or a stack, and the share of the time that each usually takes."""
    if args.tile is not None:
        solving = tiled_steps(find=task.finds)
    else:
        side = args.side is not None
        solving = usual_steps(
            solver=args.solver, find=task.finds, uncertainty=args.uncertainty, side=side, frames=frames
        )
        solving |= usual_steps(solver=args.solver, find=False, of=WHITE) if args.white else {}
        solving |= {"write": 0.01}
    expected = {"read": 0.01} | ({"align": 0.5} if args.align else {}) | solving
    return expected | ({"draw": 0.06} if figures else {}) | ({"report": 0.1} if args.report else {})


def solve(
    args: argparse.Namespace, task: Task, m: Measurement, check: MaskCheck, steps: Progress
) -> tuple[Measurement, Reconstruction | TiledResult]:
    """The cube, in its file, with its camera as it is found to be; the measurement gets what was found out of it."""
    side = None if args.side is None else read_side_picture(args.side)
    aligned, alignment = m, None
    if args.align:
        told = partial(steps, "align")
        alignment = find_camera(m, black_level=task.method["black_level"], seed=args.seed, dispersion=True, told=told)
        aligned = replace(alignment.in_place(m), notes=(*m.notes, alignment.message))
        say(args, f"  {alignment.message}")
        check = words.compare_with_mask(args, task, aligned) if alignment.accepted else check
    m = replace(aligned, check=check)
    facts: dict[str, Any] = {"attributes": provenance(args), "overwrite": args.overwrite}
    if args.tile is not None:
        if alignment is not None and any(alignment.remainders):
            raise InputError("bands between pixels are put in place at the end, which tiles are not; leave out --tile")
        lacking = ("solver", "tv_weight", "budget", "uncertainty")
        method = {name: value for name, value in task.method.items() if name not in lacking}
        noted = replace(m, notes=(*m.notes, check.verdict))
        tiles = reconstruct_tiled(noted, args.output, tile=args.tile, **method, **facts, progress=steps)
        tell_result(args, task, m, tiles, of_result(tiles.residual))
        return m, tiles
    white = words.read_white(args, task, m)
    if white is not None:  # what is known of the truth is radiance
        m = replace(m, cube=None, mean_band=None)
    result = front_door.reconstruct(m, **task.method, side=side, progress=steps)
    if alignment is not None:
        spread = None if result.uncertainty is None else alignment.register(result.uncertainty)
        result = replace(result, cube=alignment.register(result.cube), uncertainty=spread)
    if white is not None:
        method = task.method | {"uncertainty": False, "camera": result.camera or "as-given"}  # one camera, one solver
        white = white if alignment is None else alignment.in_place(white)
        light = front_door.reconstruct(white, **method, progress=lambda step, share: steps(WHITE + step, share))
        light = light if alignment is None else replace(light, cube=alignment.register(light.cube))
        result = reflectance(result, light)
        say(args, f"  divided by the light on the white reference {Path(args.white).name}: the cube is reflectance")
    against = of_cube(result)
    tell_result(args, task, m, result, against)
    m = replace(m, notes=(*m.notes, (result.check or check).verdict, *against))
    steps("write", 0.0)
    write_result(args.output, m, result, **facts)
    return m, result


def tell_result(
    args: argparse.Namespace, task: Task, m: Measurement, result: Reconstruction | TiledResult, against: tuple[str, ...]
) -> None:
    """What was found out and chosen, and what speaks against it."""
    if m.check is not None:
        words.compare_again(args, task, m.check, result.check)
    for line in words.outcome(result, m.scale):
        say(args, f"  {line}")
    for text in against:
        warn(args, text)


def save_camera(args: argparse.Namespace, m: Measurement, result: Reconstruction | TiledResult) -> int:
    """Write the camera where --save-camera says; the exit code. The result stands, whatever becomes of it."""
    if not args.save_camera or result.camera is None:
        return 0
    try:
        result.camera.save(args.save_camera, wavelengths=m.wavelengths, overwrite=args.overwrite)
    except OutputError as error:
        warn(args, f"the cube is written, the camera is not: {error}", kind="error")
        return 2
    say(args, f"  the camera is written: {args.save_camera}")
    return 0
