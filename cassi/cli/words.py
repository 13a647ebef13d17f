"""What a run of `reconstruct` says of measurements, masks and results; and the dry run, which does no more."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from cassi.cli.reading import Task, transform_that_fits
from cassi.cli.shell import say, warn
from cassi.errors import InputError, Note
from cassi.files import describe, read_cube
from cassi.files.description import listing
from cassi.files.side_pictures import read_side_picture
from cassi.files.spectral_libraries import as_spectral_prior
from cassi.kernels.dispatch import pick_device
from cassi.looking.metrics import score
from cassi.looking.report_data import MAX_SCORED
from cassi.optics.mask_match import MaskCheck, check_masks
from cassi.optics.measurement import Measurement, without_scene
from cassi.optics.side_picture import SidePicture
from cassi.running.evidence import black_level_left, of_measurement
from cassi.running.result import Reconstruction
from cassi.running.tiled_file import TiledResult
from cassi.solvers.loop import ENDED

# What puts right a mask that does not fit.
CURES = {"displaced": ("align",), "bands or blur": ("align",), "reversed": ("step",)}
NEAR = 3  # [pixel] by which a displaced mask is found where the camera is looked for
OTHERS = ("dark", "flat", "white", "mask", "slit", "background")  # names of what lies beside snapshots and is none
DRY_RUN_FRAMES = 100  # are looked at, one by one


# The measurement and its mask


def tell_measurement(args: argparse.Namespace, task: Task, m: Measurement) -> None:
    """Say what a measurement is and what was inferred.

    Raises:
        InputError: there is nothing in it.
    """
    if not task.many and (nothing := without_scene(m)):
        raise InputError(f"{m.source}: {nothing}; look at the capture, and give another")
    kind = {"sd": "", "dd": ", double disperser", "cacti": ", video camera"}[args.optics]
    shots = "" if m.shots is None else f", {m.shots} shots"
    sizes = f"measurement {_size(m.y.shape)}, mask {_size(m.mask.shape)}, {len(m.shifts)} bands{shots}{kind}"
    say(args, f"{m.source}: {sizes}")
    for note in m.notes:
        if Note(note).kind == "too many":
            warn(args, note)
        else:
            say(args, f"  {note}")


def warn_of_measurement(args: argparse.Namespace, m: Measurement, name: str = "") -> Measurement:
    """Warn of what speaks against a measurement, which is kept among its notes."""
    against = of_measurement(m)
    for text in against:
        warn(args, text, of=name)
    return replace(m, notes=(*m.notes, *against))


def compare_with_mask(args: argparse.Namespace, task: Task, m: Measurement, name: str = "") -> MaskCheck:
    """Say whether the mask belongs to the measurement: a wrong one costs more than any choice of method.

    Args:
        args, task, m: what was asked for, and a measurement.
        name: of this one among many.

    Raises:
        InputError: a mask that is to be aligned and does not belong to the snapshot.
    """
    check = check_masks(m)
    if check.matches:
        say(args, f"  {name}{check.verdict}")
    elif args.align and check.kind == "wrong mask":
        raise InputError(f"there is nothing to align: {check.verdict}; leave out --align, or give another --mask")
    elif (args.align or task.finds) and _near(check):
        say(args, f"  {name}{check.verdict}; the camera is looked for")
    else:
        warn(args, _verdict(check), of=name)
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
    fits = transform_that_fits(check)
    cure = "" if fits is None else f"; --mask-transform {fits} puts it right"
    return Note(f"{check.verdict}{cure}", check.kind, CURES.get(check.kind, ()))


def _near(check: MaskCheck) -> bool:
    """Whether a search for the camera may put right what does not fit."""
    displaced = check.kind == "displaced" and max(map(abs, check.displacement)) <= NEAR
    return displaced or check.kind == "bands or blur"


# The result


def outcome(result: Reconstruction | TiledResult, scale: float, verbose: bool) -> list[str]:
    """What was found out and chosen, a line each of camera and method. Of a stack, for its first frame."""
    camera = [] if result.camera is None else [result.camera.message]
    if (imprint := getattr(result, "imprint", None)) is not None:
        camera.append(f"Imprint of the mask on the cube: {imprint:.3f} (0 is none).")
    found = result.outcomes[0]
    if found.plan is not None:
        how = ". " + found.explain(verbose=verbose, scale=scale)
    else:
        words = {**found.settings, "level": found.level}
        if found.black_level:
            words["black_level"] = found.black_level
        shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in words.items()}
        listed = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items() if value is not None)
        how = f", {listed}; the run {ENDED.get(found.result.status, found.result.status)}"
    return [*([" ".join(camera)] if camera else []), f"solver: {found.solver}{how}"]


def summary_line(m: Measurement, result: Reconstruction | TiledResult) -> str:
    """Residual, seconds, and how close the cube comes to the truth where that is known; of tiles, if it is not huge."""
    if isinstance(result, TiledResult):
        known = m.cube is not None and m.cube.size <= MAX_SCORED
        cube: Any = read_cube(result.path)[0] if known else None
    else:
        cube = result.cube.cpu()

    parts = [f"residual {result.residual:.2%}", f"{result.seconds:.1f} s"]
    units = {
        "psnr": "PSNR {:.2f} dB",
        "ssim": "SSIM {:.3f}",
        "sam": "SAM {:.2f} deg",
        "mean_band_psnr": "mean-band PSNR {:.2f} dB",
    }
    scores = {} if cube is None else score(cube, truth=m.cube, mean_band=m.mean_band)
    return ", ".join([*parts, *(units[name].format(value) for name, value in scores.items())])


# The dry run


def dry_run(args: argparse.Namespace, task: Task) -> int:
    """Say what the files hold, how they fit together, and what would be done; the exit code that the run would have.

    Raises:
        InputError: nothing can be reconstructed.
    """
    frames = task.frames
    print(_contents(args, task))
    if task.many:
        print(f"\n{len(frames)} snapshots:")
    failed: dict[str, InputError] = {}
    size = ""
    for frame in frames[:DRY_RUN_FRAMES]:
        try:
            m = task.measurement(frame)
            if not size:
                tell_measurement(args, task, m)
                for line in _would_be_used(args, task, m):
                    say(args, f"  {line}")
                size = _size((len(m.shifts), *m.mask.shape[-2:]))
            name = f"{frame.name}: " if task.many else ""
            none = "by its name no snapshot, move it away; " * frame.name.lower().startswith(OTHERS)
            check = compare_with_mask(args, task, m, name and f"{name}{none}")
            warn_of_measurement(args, m, name)
        except InputError as error:
            if not task.many:
                raise
            failed[frame.name] = error
            warn(args, error, "error", f"{frame.name}: ")
    if len(frames) > DRY_RUN_FRAMES:
        print(f"  and {len(frames) - DRY_RUN_FRAMES} more, not looked at")
    if not size:
        raise InputError(f"none of the snapshots can be reconstructed: {next(iter(failed.values()))}")
    many = f"{len(frames)} snapshots, {frames[0].name} to {frames[-1].name}, " if task.many else ""
    beside = ", each with the frames beside it," if args.sequence else ""
    doubt = "" if task.many or check.matches else ", although the mask does not fit"
    how = f"with solver {args.solver} on device {pick_device(args.device)}"
    print(f"\nwould reconstruct {many}cubes {size}{beside} {how} and write {args.output}{doubt}")
    return 1 if failed else 0


def _contents(args: argparse.Namespace, task: Task) -> str:
    """What is in the files of the first scene; of an ordinary snapshot with the geometry that fits."""
    paths = task.frames[0].paths
    if len(task.read.each) > 1 or args.optics != "sd" or args.calibration:
        return listing(*dict.fromkeys((*paths, *args.mask)))
    return describe(paths[0], options=task.read.each[0]).text


def _would_be_used(args: argparse.Namespace, task: Task, m: Measurement) -> list[str]:
    """What a run would use beside what the notes say; what it would refuse is refused.

    Raises:
        InputError: a snapshot, a white reference, a photograph or spectra to expect that cannot be used.
    """
    lines = []
    black = black_level_left(m, task.method["psf"], task.method["black_level"])
    if args.black_level is None and task.finds and not check_masks(m).matches:
        lines.append("the black level would be told once the camera is found: through this mask it cannot")
    elif args.black_level is None and black:
        counts = "" if m.scale == 1 else f" {black * m.scale:.4g} counts,"
        lines.append(f"black level {black:.4g} [{m.unit}],{counts} told from the dark pixels, would be taken off")
    elif args.black_level is None:
        lines.append("no black level would be taken off: the dark pixels tell of none")
    if m.gain is not None:
        lines.append(f"noise: {m.gain:.5g} electrons per unit, read noise {m.read_noise or 0:g} electrons")
    if m.wavelengths is not None:
        lines.append(f"bands from {m.wavelengths[0]:g} to {m.wavelengths[-1]:g} nm")
    if as_spectral_prior(args.spectral_prior, len(m.shifts), m.wavelengths) is not None:
        lines.append(f"spectra to expect from {', '.join(Path(name).name for name in args.spectral_prior)}")
    if args.align:
        lines.append("the mask's pose would be estimated first (--align)")
    if read_white(args, task, m) is not None:
        lines.append(f"the cube would be divided by the light on the white reference {Path(args.white).name}")
    if (side := read_side(args, m)) is not None:
        size = f"{_size(side.picture.shape[:2])} pixels, {side.channels} channels"
        lines.append(f"side picture {args.side}, {size}, would be registered to the snapshot and used where it fits")
    return lines


# What is beside a snapshot


def read_white(args: argparse.Namespace, task: Task, m: Measurement) -> Measurement | None:
    """The capture of the white reference, where one is given.

    Raises:
        InputError: it cannot be read, is a stack, or of another size, before anything is computed.
    """
    if args.white is None:
        return None
    white = task.read(args.white)
    if white.y.shape != m.y.shape or m.y.ndim != 2:
        raise InputError(
            f"{args.white}: the white reference must be one snapshot like the scene's, {m.y.shape}, got "
            f"{white.y.shape}; capture it with the same camera"
        )
    if not white.y.any():
        raise InputError(f"{args.white}: the white reference is black; capture a white board in full light")
    return replace(white, check=m.check)  # one camera


def read_side(args: argparse.Namespace, m: Measurement) -> SidePicture | None:
    """The photograph, where one is given."""
    if args.side is None:
        return None
    return read_side_picture(args.side, args.side_response, m.wavelengths)


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)
