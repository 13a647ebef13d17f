"""Output of `reconstruct` about measurements and results; and the dry run, which does no more."""

import argparse
import os
from dataclasses import replace
from functools import partial
from typing import Any

from cassi.cli.reading import Task
from cassi.cli.shell import say, warn
from cassi.errors import InputError, Note, counted
from cassi.files import describe
from cassi.kernels.dispatch import pick_device
from cassi.looking.metrics import peak_of, score
from cassi.looking.report_data import MAX_SCORED
from cassi.optics.measurement import Measurement, no_scene_reason
from cassi.running.arguments import open_files
from cassi.running.pipeline import Listener, check
from cassi.running.result import Reconstruction
from cassi.settings import Settings
from cassi.solvers.loop import STATUS_WORDS
from cassi.types import Progress


def listener_of(args: argparse.Namespace, progress: Progress) -> Listener:
    """Prints what is inferred, indented, and warnings with the options that help."""
    return Listener(progress, inform=partial(inform, args), warn=partial(warn, args))


def inform(args: argparse.Namespace, text: str) -> None:
    """A fact below the heading of its measurement."""
    say(args, f"  {text}")


def with_white(args: argparse.Namespace, task: Task, settings: Settings) -> Settings:
    """The settings with the capture of the white reference."""
    return replace(settings, white=task.read(args.white)) if args.white else settings


def describe_measurement(args: argparse.Namespace, m: Measurement, *, many: bool = False) -> None:
    """Print what a measurement is and what was inferred; InputError for one that holds nothing of a scene."""
    if not many and (nothing := no_scene_reason(m)):
        raise InputError(f"{m.source}: {nothing}; look at the capture, and give another")
    bands = counted(len(m.shifts), "band") + ("" if m.shots is None else f", {m.shots} shots")
    say(args, f"{m.source}: measurement {_size(m.y.shape)}, mask {_size(m.mask.shape)}, {bands}")
    for note in m.notes:
        warn(args, note) if Note(note).kind == "too many" else inform(args, note)


def describe_result(result: Reconstruction) -> list[str]:
    """The camera found and the method chosen, a line each; of a stack, for its first frame."""
    outcome, camera = result.outcomes[0], result.camera
    sentences = [] if camera is None else [camera.message if outcome.plan is None else camera.optics]
    if result.imprint is not None:
        sentences.append(f"Imprint of the mask on the cube: {result.imprint:.3f} (0 is ideal).")
    lines = [" ".join(sentences)] if sentences else []
    if outcome.plan is not None:
        return [*lines, f"solver: {outcome.solver}. {result.explain()}"]
    used = {**outcome.settings, "level": outcome.brightness, "black_level": outcome.black_level or None}
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in used.items()}
    listed = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items() if value is not None)
    ended = STATUS_WORDS.get(outcome.result.status, outcome.result.status)
    return [*lines, f"solver: {outcome.solver}, {listed}; the run {ended}"]


def scores_line(result: Reconstruction) -> str:
    """How close the cube comes to the truth where that is known, if it is not huge."""
    m = result.measurement
    if m is None or result.cube.numel() > MAX_SCORED:
        return ""
    peak = 1.0 if m.cube is None else peak_of(m.cube, m.origin)
    units = {
        "psnr": f"PSNR {{:.2f}} dB (peak {peak:.3g}, clipped)",
        "ssim": "SSIM {:.3f}",
        "sam": "SAM {:.2f} deg",
        "mean_band_psnr": f"mean-band PSNR {{:.2f}} dB (peak {peak:.3g}, clipped)",
    }
    scores: dict[str, Any] = score(result.cube.cpu(), truth=m.cube, mean_band=m.mean_band, peak=peak)
    return ", ".join(units[name].format(value) for name, value in scores.items())


def finished(task: Task) -> str:
    """Why nothing is computed."""
    return f"{task.output} is finished: it was made from the same files with the same settings"


def dry_run(args: argparse.Namespace, task: Task, *, kept: bool) -> str:
    """Print what the first snapshot's files hold and how they fit together; what would be done, nothing if `kept`."""
    settings = open_files(task.settings)
    print(describe(*dict.fromkeys((*task.frames[0].paths, *args.mask))))
    m = task.measurement(task.frames[0])
    describe_measurement(args, m, many=task.many)
    m = check(m, with_white(args, task, settings), listener_of(args, lambda step, share: None))
    if kept:
        return f"{finished(task)}; nothing would be computed"
    names = [frame.name for frame in task.frames]
    there = 0 if args.sequence else sum(os.path.exists(task.output / f"{name}_cube.h5") for name in names)
    resumed = f" (existing cubes: {there}, kept where nothing has changed)" if there else ""
    many = f"{len(names)} snapshots, {names[0]} to {names[-1]}, " if task.many else ""
    beside = ", each with its neighbors," if args.sequence else ""
    doubt = "" if m.check is None or m.check.matches else ", although the mask does not fit"
    size = _size((len(m.shifts), *m.mask.shape[-2:]))
    how = f"with solver {args.solver} on device {pick_device(args.device)}"
    return f"would reconstruct {many}cubes {size}{beside} {how} and write {task.output}{doubt}{resumed}"


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)
