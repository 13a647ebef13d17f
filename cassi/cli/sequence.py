"""`reconstruct --sequence`: frames that follow each other, into one file with a time axis, and a film."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cassi.cli.folder import common_bit_depth, counted, find_snapshots, warn_of, with_common_camera
from cassi.cli.places import check_camera_file, check_places
from cassi.cli.reading import compare_with_mask, provenance, reading, what_would_be_used
from cassi.cli.shell import say, warn
from cassi.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cassi.optics.measurement import Measurement
    from cassi.running.stores import Frame


def run_sequence(args: argparse.Namespace) -> int:
    """Reconstruct the frames that are not finished yet, each with those beside it, and gather them.

    Raises:
        InputError: options that a sequence does not take, or fewer than two frames.
    """
    from cassi.choice.plan import Method
    from cassi.files import check_output
    from cassi.files.cube_store import gather_cubes
    from cassi.running.many import reconstruct_many
    from cassi.running.sequence import LOOKED_AT, InSequence, ReadWindow, sequence_plan, windows

    _refuse(args)
    frames = find_snapshots(args)
    source = Path(args.files[0])
    output = Path(args.output or source.with_name(f"{source.stem}_sequence.h5"))
    check_places(args, output)
    check_camera_file(args, [path for frame in frames for path in frame.paths], many=True)
    if args.bit_depth is None and not args.calibration:
        args.bit_depth = common_bit_depth(args, sorted({frame.path for frame in frames}))
    read = reading(args, many=True)
    if len(frames) < 2:
        raise InputError(f"{frames[0].path}: one snapshot is no sequence; leave out --sequence")
    if args.dry_run:
        return _dry_run(args, read, frames, output)
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
    folder = output.with_name(f"{output.stem}_frames")
    report = reconstruct_many(
        windows(frames),
        folder,
        read=ReadWindow(read, len(frames) if frames[0].index is not None else 0),
        solve=partial(InSequence(plan, args.prior, camera if not isinstance(camera, str) else "as-given", **same)),
        overwrite=args.overwrite,
        batch=args.batch,
        workers=args.workers,
        scheduler=args.scheduler,
        attributes=provenance(args),
        progress=not args.quiet,
    )
    for name, reason in report.failed.items():
        warn(args.prog, f"{name}: {reason}", kind="error")
    warn_of(args, report)
    if report.failed:
        return 1
    results = [folder / f"{frame.name}_cube.h5" for frame in frames]
    gather_cubes(output, results, attributes=provenance(args), overwrite=args.overwrite)
    made = [str(output), *_film(args, output, len(frames))]
    found = f", {report.found} were finished already" if report.found else ""
    say(args, f"{report.computed} frames in {report.seconds:.1f} s{found}{counted(report)} -> {', '.join(made)}")
    return 0


def _film(args: argparse.Namespace, output: Path, count: int) -> list[str]:
    """The film beside the result, and the page of its first frame with the film in it where asked for."""
    from cassi.looking.film import write_film
    from cassi.looking.report_data import read_report

    made = []
    first = read_report(output)
    film = output.with_suffix(".gif")
    if args.figures is None or args.figures.lower() != "none":
        write_film(film, lambda t: read_report(output, frame=t).cube[:, :, :], count, first.wavelengths, overwrite=True)
        made.append(str(film))
    if args.report is not None:
        from cassi.looking.report_page import write_report

        page = Path(args.report or output.with_name(f"{output.stem}_report.html"))
        data = replace(first, film=film.read_bytes() if made else b"")
        made.append(str(write_report(page, data, overwrite=args.overwrite)))
    return made


def _refuse(args: argparse.Namespace) -> None:
    given: dict[str, Any] = {
        "--shots": args.shots,
        "--align": args.align,
        "--white": args.white,
        "--tile": args.tile is not None,
        "--uncertainty": args.uncertainty,
        "--budget": args.budget,
        "--iterations": args.iterations,
        "--spectral-prior": args.spectral_prior,
        "--quality": args.quality != "default",
        "--solver": args.solver != "auto",
        "--weights": args.weights,
        "--figures DIR": args.figures and args.figures.lower() != "none",
    }
    alone = ", ".join(option for option, value in given.items() if value)
    if alone:
        raise InputError(f"{alone} does not go with --sequence; leave one of them out")
    if args.output and Path(args.output).suffix.lower() not in (".h5", ".hdf5"):
        raise InputError(f"{args.output}: a sequence becomes one file, expected the suffix .h5")


def _dry_run(args: argparse.Namespace, read: Callable[..., Measurement], frames: Sequence[Frame], output: Path) -> int:
    """Say what the first frame is, and what would be done."""
    from cassi.running.evidence import of_measurement

    m = read(frames[0].path, frames=frames[0].index)
    print(f"{len(frames)} frames that follow each other, {frames[0].name} to {frames[-1].name}; the first:")
    for line in (*m.notes, *what_would_be_used(m, args)):
        print(f"  {line}")
    compare_with_mask(args, m)
    for text in of_measurement(m):
        warn(args.prog, text)
    size = " x ".join(str(n) for n in (len(frames), len(m.shifts), *m.mask.shape[-2:]))
    print(f"\nwould reconstruct cubes {size}, each with the frames beside it, and write {output}")
    return 0
