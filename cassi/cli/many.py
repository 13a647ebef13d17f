"""`reconstruct` of a folder, of files, of a stack frame by frame, or of a sequence; resumed where it stopped."""

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

from cassi.choice.plan import Plan
from cassi.cli.cluster import SLOWER, executor_at
from cassi.cli.messages import inform, with_white
from cassi.cli.options import options_of
from cassi.cli.places import figures_folder
from cassi.cli.reading import Task, provenance
from cassi.cli.shell import say, warn
from cassi.errors import InputError
from cassi.files.opening import SUFFIXES
from cassi.files.reading import open_measurement
from cassi.files.writing import gather_cubes
from cassi.looking.overview import write_film
from cassi.looking.report_data import ReportData, read_report
from cassi.optics.measurement import Measurement, camera_difference
from cassi.priors.learned import as_prior
from cassi.running.arguments import load, open_files
from cassi.running.many import BatchReport, SolveWith, reconstruct_many
from cassi.running.pipeline import Listener, find_with_settings, reconstruct_measurement
from cassi.running.plan_file import load_plan, save_plan
from cassi.running.progress import CAMERA, StepBar, expected_steps
from cassi.running.result import Reconstruction
from cassi.self_calibration.found_camera import FoundCamera
from cassi.self_calibration.scenes import FRAMES
from cassi.sequence.frames import PLAN_FRAMES, InSequence, ReadWindow, sequence_plan, windows
from cassi.settings import Settings

MAX_NAMED = 3  # of many alike
LOOKS = ("figure_format", "dpi", "pixel_size", "tinted", "no_markers")  # options of figures


@dataclass(frozen=True)
class Drawing:
    """The drawing of a result, in plain values, which workers can carry: of a cube in a folder its page,
    and its figures in a folder of its name."""

    look: tuple[bool, bool, float | None, str]  # as `cassi.looking.figures.Look`
    dpi: int
    formats: tuple[str, ...]
    page: bool = False
    figures: Path | None = None

    @classmethod
    def of(cls, args: argparse.Namespace, *, page: bool = False, figures: Path | None = None) -> Self:
        """As the options ask for it."""
        size, unit = args.pixel_size or (None, "")
        return cls((not args.no_markers, args.tinted, size, unit), args.dpi, args.figure_format, page, figures)

    def draw(self, data: ReportData, folder: Path, caption: str = "") -> None:
        """Draw all figures of a result."""
        from cassi.looking.figures import Look, figures_of, save_figures

        figures = figures_of(data, caption=caption, look=Look(*self.look))
        save_figures(figures, folder, dpi=self.dpi, formats=self.formats)

    def __call__(self, cube: Path) -> None:
        from cassi.looking.overview import write_report_beside

        if self.page:
            write_report_beside(cube)
        if self.figures is not None:
            self.draw(read_report(cube), self.figures / cube.stem.removesuffix("_cube"))


def drawing_of_many(args: argparse.Namespace, output: Path) -> Drawing | None:
    """The drawing of each result of a folder; None: nothing is drawn."""
    looks = (option for option in options_of("reconstruct") if option.field in LOOKS)
    wanted = args.figures is not None or any(option.is_given(getattr(args, option.field)) for option in looks)
    folder = figures_folder(args.figures, output) if wanted else None
    page = args.report is not None
    return Drawing.of(args, page=page, figures=folder) if page or folder is not None else None


def output_of_many(args: argparse.Namespace, files: Sequence[str], task: Task) -> Path:
    """The place of the cubes: a folder, or the file of a sequence."""
    source, suffix = Path(files[0]), Path(args.output or "").suffix.lower()
    if args.sequence:
        output = Path(args.output or source.with_name(f"{source.stem}_sequence.h5"))
        if output.suffix.lower() not in (".h5", ".hdf5"):
            raise InputError(f"{output}: a sequence becomes one file, expected the suffix .h5")
        return output
    if args.report:
        raise InputError("--report FILE goes with a single snapshot, --report with a folder; leave it out")
    named = suffix not in (*SUFFIXES, ".zarr") or Path(args.output).is_dir() if args.output else len(files) == 1
    if not named or not (args.output or source.is_dir()):
        raise InputError(f"{args.output or source}: many snapshots need --output FOLDER, for a cube each")
    source = source if source.name not in ("", "..") else source.resolve()  # by its name, which `.` and `..` are not
    return Path(args.output or f"{source}_cubes")


def run_many(args: argparse.Namespace, task: Task, fingerprint: str) -> int:
    """Reconstruct what is not finished yet: each snapshot for itself, or in a sequence, whose file has the fingerprint,
    with those beside it."""
    begun = time.time()
    open_files(task.settings)  # raises what is wrong with them, before a camera is searched for
    asked = with_white(args, task, task.settings)
    followed = replace(asked, plan=args.save_plan, prior="auto", quality="default", num_iters=None)
    if args.save_plan and Path(args.save_plan).is_file() and not args.overwrite:  # as an interrupted run left it
        load_plan(args.save_plan, as_prior(followed.weights))  # raises what is wrong with it
        settings = replace(followed, camera=common_camera(args, task, followed))
    else:
        settings = replace(asked, camera=common_camera(args, task, asked))
        if args.save_plan:
            save_common_plan(args, task, settings)
            settings = replace(followed, camera=settings.camera)
    if isinstance(plan := open_files(settings).plan, Plan):
        inform(args, f"the plan {plan.source} is followed{f', with {plan.network}' if plan.network else ''}")
    frames, place = task.frames, task.output
    read: Callable[..., Measurement] = task.read
    solve: Callable[..., Reconstruction] = SolveWith(settings, str(task.settings.camera))
    if args.sequence:
        solve, place = in_sequence(args, task, settings), _parts(task)
        if len(frames) > 1:
            read = ReadWindow(task.read, len(frames) if frames[0].index is not None else 0)
            frames = windows(frames)
    how: dict[str, Any] = {"overwrite": args.overwrite, "batch": args.batch, "progress": not args.quiet}
    reports = args.report is not None and not args.sequence
    how["after"] = draw = None if args.sequence else drawing_of_many(args, task.output)
    if (args.cluster or "").partition(":")[0] == "local":
        inform(args, SLOWER)
    with executor_at(args.cluster, partial(inform, args)) as executor:
        how |= {"executor": executor, "attributes": provenance(args)}
        report = reconstruct_many(frames, place, read=read, solve=solve, **how)
    warn_of_problems(args, report)
    if len(methods := set(report.methods.values())) > 1 and not args.sequence:
        differ = f"the method differs between snapshots ({'; '.join(sorted(methods))})"
        warn(args, f"{differ}: --save-plan uses one plan for all")
    if args.sequence and report.failed:
        warn(args, f"{task.output} is not written without all frames; those that are finished are kept in {place}")
        return 1
    made = [str(task.output)]
    if args.sequence:
        results = [place / f"{frame.name}_cube.h5" for frame in task.frames]
        attributes = provenance(args) | {"fingerprint": fingerprint}
        gather_cubes(task.output, results, attributes=attributes, overwrite=args.overwrite)
        inform(args, f"the cubes are written: {task.output}")
        made += draw_sequence(args, task)
    if draw is not None and len(report.failed) < len(frames):
        from cassi.looking.overview import has_report, write_index

        cubes = [task.output / f"{frame.name}_cube.h5" for frame in frames if frame.name not in report.failed]
        for cube in cubes:  # of an earlier run without it
            page = draw.page and not has_report(cube)
            is_new = cube.stat().st_mtime >= begun  # and drawn as it was written
            try:
                replace(draw, page=page, figures=None if is_new else draw.figures)(cube)
            except InputError as error:
                warn(args, f"{error}; it is not drawn")
        made += [str(write_index(task.output, partial(warn, args)))] if reports else []
        made += [f"{draw.figures}/"] if draw.figures is not None else []
    rate = f", {60 * report.computed / report.seconds:.1f} a minute" if report.computed else ""
    counts = {
        "already finished": report.found,
        "failed": len(report.failed),
        "not fitting the mask": len(report.misfits),
        "in doubt": len(report.doubts),
    }
    others = "".join(f", {count} {what}" for what, count in counts.items() if count)
    what = f"{'frame' if args.sequence else 'snapshot'}{'' if report.computed == 1 else 's'}"
    say(args, f"{report.computed} {what} in {report.seconds:.1f} s{rate}{others} -> {', '.join(made)}")
    return 1 if report.failed else 0


def in_sequence(args: argparse.Namespace, task: Task, settings: Settings) -> InSequence | SolveWith:
    """One plan for all frames, made from some of them; each is reconstructed with those beside it, if there are any."""
    count = len(task.frames)
    asked = str(task.settings.camera)
    if count == 1:
        return SolveWith(settings, asked)
    spread = sorted({round((k + 0.5) * count / PLAN_FRAMES - 0.5) for k in range(PLAN_FRAMES)})
    some = _read_some(task, spread)
    if len(some) < 2:
        for frame in task.frames:
            task.measurement(frame)  # raises what is wrong
    plan = sequence_plan(some, settings)
    inform(args, f"one plan for {count} frames, chosen from {len(some)} of them")
    return InSequence(plan, settings, asked)


def _read_some(task: Task, chosen: Sequence[int]) -> list[Measurement]:
    """The chosen frames; others replace unreadable ones, whose own run reports the error."""
    measurements = list[Measurement]()
    for k in (*chosen, *(k for k in range(len(task.frames)) if k not in chosen)):
        with contextlib.suppress(ValueError, OSError):
            measurements += [task.measurement(task.frames[k])] if len(measurements) < len(chosen) else []
    return measurements


def _parts(task: Task) -> Path:
    """The folder with the frames of a sequence."""
    return task.output.with_name(f"{task.output.stem}_frames")


def draw_sequence(args: argparse.Namespace, task: Task) -> list[str]:
    """The film beside the file of a sequence, and where asked for the page of its first frame; their names."""
    made, first = list[str](), read_report(task.output)
    if args.figures != "none":
        film = task.output.with_suffix(".gif")

        def frame(t: int) -> Any:
            return read_report(task.output, frame=t).cube[:, :, :]

        made.append(str(write_film(film, frame, len(task.frames), first.wavelengths, overwrite=True)))
    if task.report is not None:
        from cassi.looking.report_page import write_report

        made.append(str(write_report(task.report, first, overwrite=True)))  # its place was checked
    return made


def warn_of_problems(args: argparse.Namespace, report: BatchReport) -> None:
    """Name snapshots that failed, do not fit the mask, or that something else speaks against: the first of them."""
    for problems, kind in ((report.failed, "error"), (report.misfits, "warning"), (report.doubts, "warning")):
        for name, text in list(problems.items())[:MAX_NAMED]:
            warn(args, text, kind, f"{name}: ")
        if len(problems) > MAX_NAMED:
            warn(args, f"... and {len(problems) - MAX_NAMED} more", kind=kind)


def save_common_plan(args: argparse.Namespace, task: Task, settings: Settings) -> None:
    """Write the plan of the first snapshot that can be read."""
    measurements = _read_some(task, [0]) or [task.measurement(task.frames[0])]
    settings = settings.without_white()
    with StepBar(expected_steps(settings), shown=not args.quiet) as bar:
        m = load(measurements[0], None, settings)
        plan = reconstruct_measurement(m, settings, Listener(bar)).plan
    if plan is None:
        raise ValueError("the default solver has a plan")
    save_plan(args.save_plan, plan, overwrite=True)
    inform(args, f"all snapshots follow the plan of {measurements[0].source}: {args.save_plan}")


def _difference(task: Task, some: Sequence[Measurement]) -> str:
    """How the cameras of two files differ, in words, by all that a file holds beside its snapshots."""
    if (difference := camera_difference(some)) or len(task.read.each) > 1:
        return difference
    first: Measurement | None = None
    for path in dict.fromkeys(frame.path for frame in task.frames):
        with contextlib.suppress(ValueError, OSError):  # the frame reports why it cannot be read
            opened = open_measurement(path, task.read.each[0])
            stated = {name: getattr(opened.known, name) for name in ("mask", "shifts", "wavelengths")}
            other = replace(some[0], source=Path(path).name, **stated)
            first = first or other
            if difference := camera_difference((first, other)):
                return difference
    return ""


def common_camera(args: argparse.Namespace, task: Task, settings: Settings) -> FoundCamera | str:
    """One camera found from a few of the frames: it is the same for all of them."""
    if not settings.searches:
        return settings.camera
    last = len(task.frames) - 1
    chosen: Sequence[int] = sorted({round(k * last / (FRAMES - 1)) for k in range(FRAMES)})
    try:
        with StepBar([CAMERA], shown=not args.quiet) as bar:
            some = _read_some(task, chosen) or [task.measurement(task.frames[0])]
            if difference := _difference(task, some):
                inform(args, f"{difference}: each snapshot's camera is searched for separately")
                if args.save_camera:
                    warn(args, f"{args.save_camera} is not written: the snapshots have no camera in common")
                return settings.camera
            camera = find_with_settings(some, settings, partial(bar, CAMERA))
    except (ValueError, OSError):  # each frame reports why it cannot be read
        if args.save_camera:
            warn(args, f"{args.save_camera} is not written: no camera could be found")
        return "as-given"
    if camera.accepted or camera.detector:
        inform(args, camera.message)
    if args.save_camera and not camera.is_saved(args.save_camera):  # as a run that was killed left it
        camera.save(args.save_camera, of=some[0], wavelengths=some[0].wavelengths, overwrite=args.overwrite)
    return camera
