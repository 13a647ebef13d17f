"""What a run of `reconstruct` says of measurements, masks and results; and the dry run, which does no more."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from cassi.cli.reading import Task
from cassi.cli.shell import say, warn
from cassi.errors import InputError, Note
from cassi.files import describe, read_cube
from cassi.files.side_pictures import read_side_picture
from cassi.kernels.dispatch import pick_device
from cassi.looking.metrics import score
from cassi.looking.report_data import MAX_SCORED
from cassi.optics.mask_match import check_masks
from cassi.optics.measurement import MaskCheck, Measurement, without_scene
from cassi.running.evidence import of_measurement
from cassi.running.result import Reconstruction
from cassi.running.tiled_file import TiledResult
from cassi.solvers.loop import ENDED

# What puts right a mask that does not fit.
CURES = {"displaced": ("align",), "bands or blur": ("align",), "reversed": ("step",)}


# The measurement and its mask


def tell_measurement(args: argparse.Namespace, task: Task, m: Measurement) -> None:
    """Say what a measurement is and what was inferred."""
    if not task.many and (nothing := without_scene(m)):
        raise InputError(f"{m.source}: {nothing}; look at the capture, and give another")
    shots = "" if m.shots is None else f", {m.shots} shots"
    sizes = f"measurement {_size(m.y.shape)}, mask {_size(m.mask.shape)}, {len(m.shifts)} bands{shots}"
    say(args, f"{m.source}: {sizes}")
    for note in m.notes:
        warn(args, note) if Note(note).kind == "too many" else say(args, f"  {note}")


def warn_of_measurement(args: argparse.Namespace, m: Measurement) -> Measurement:
    """Warn of what speaks against a measurement, which is kept among its notes."""
    against = of_measurement(m)
    for text in against:
        warn(args, text)
    return replace(m, notes=(*m.notes, *against))


def compare_with_mask(args: argparse.Namespace, task: Task, m: Measurement) -> MaskCheck:
    """Say whether the mask belongs to the measurement: a wrong one costs more than any choice of method."""
    check = check_masks(m)
    if check.matches:
        say(args, f"  {check.verdict}")
    elif args.align and check.kind == "wrong mask":
        raise InputError(f"there is nothing to align: {check.verdict}; leave out --align, or give another --mask")
    elif (args.align or task.finds) and _near(check):
        say(args, f"  {check.verdict}; the camera is looked for")
    else:
        warn(args, _verdict(check))
    return check


def compare_again(args: argparse.Namespace, task: Task, before: MaskCheck, after: MaskCheck | None) -> None:
    """Say whether the mask as it was found belongs to the measurement, where the one given did not."""
    if before.matches or after is None:
        return
    if after.matches:
        say(args, f"  as found, {after.verdict}")
    elif task.finds and _near(before):  # in vain
        warn(args, _verdict(before))


def _verdict(check: MaskCheck) -> Note:
    """The comparison with the mask in words, and the option that puts it right."""
    return Note(check.verdict, check.kind, ("turn_mask",) if check.turn else CURES.get(check.kind, ()))


def _near(check: MaskCheck) -> bool:
    return check.kind in ("displaced", "bands or blur")


# The result


def outcome(result: Reconstruction | TiledResult, scale: float) -> list[str]:
    """What was found out and chosen, a line each of camera and method. Of a stack, for its first frame."""
    camera = [] if result.camera is None else [result.camera.message]
    if (imprint := getattr(result, "imprint", None)) is not None:
        camera.append(f"Imprint of the mask on the cube: {imprint:.3f} (0 is none).")
    found = result.outcomes[0]
    told = [" ".join(camera)] if camera else []
    if found.plan is not None:
        return [*told, f"solver: {found.solver}. {found.explain(scale=scale)}"]
    known = {**found.settings, "level": found.level, "black_level": found.black_level or None}
    shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in known.items()}
    listed = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items() if value is not None)
    return [*told, f"solver: {found.solver}, {listed}; the run {ENDED.get(found.result.status, found.result.status)}"]


def summary_line(m: Measurement, result: Reconstruction | TiledResult) -> str:
    """Residual, seconds, and how close the cube comes to the truth where that is known; of tiles, if it is not huge."""
    cube: Any = None
    if isinstance(result, Reconstruction):
        cube = result.cube.cpu()
    elif m.cube is not None and m.cube.size <= MAX_SCORED:
        cube, _ = read_cube(result.path)
    units = {
        "psnr": "PSNR {:.2f} dB (peak 1)",
        "ssim": "SSIM {:.3f}",
        "sam": "SAM {:.2f} deg",
        "mean_band_psnr": "mean-band PSNR {:.2f} dB (peak 1)",
    }
    scores = {} if cube is None else score(cube, truth=m.cube, mean_band=m.mean_band)
    parts = [f"residual {result.residual:.2%}", f"{result.seconds:.1f} s"]
    return ", ".join([*parts, *(units[name].format(value) for name, value in scores.items())])


# The dry run


def dry_run(args: argparse.Namespace, task: Task) -> None:
    """Say what the first snapshot's files hold, how they fit together, and what would be done."""
    print(describe(*dict.fromkeys((*task.frames[0].paths, *args.mask))))
    m = task.measurement(task.frames[0])
    tell_measurement(args, task, m)
    check = compare_with_mask(args, task, m)
    warn_of_measurement(args, m)
    read_white(args, task, m)
    if args.side is not None:
        read_side_picture(args.side)
    names = [frame.name for frame in task.frames]
    many = f"{len(names)} snapshots, {names[0]} to {names[-1]}, " if task.many else ""
    beside = ", each with the frames beside it," if args.sequence else ""
    doubt = "" if check.matches else ", although the mask does not fit"
    size = _size((len(m.shifts), *m.mask.shape[-2:]))
    how = f"with solver {args.solver} on device {pick_device(args.device)}"
    print(f"\nwould reconstruct {many}cubes {size}{beside} {how} and write {args.output}{doubt}")


def read_white(args: argparse.Namespace, task: Task, m: Measurement) -> Measurement | None:
    """The capture of the white reference, where one is given."""
    if args.white is None:
        return None
    white = task.read(args.white)
    if white.y.shape != m.y.shape or m.y.ndim != 2:
        what = f"the white reference must be one snapshot like the scene's, {m.y.shape}, got {white.y.shape}"
        raise InputError(f"{args.white}: {what}; capture it with the same camera")
    if not white.y.any():
        raise InputError(f"{args.white}: the white reference is black; capture a white board in full light")
    return replace(white, check=m.check)  # one camera


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)
