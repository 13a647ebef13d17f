"""Reconstruct a spectral cube from a coded-aperture snapshot: one file in, one file and figures out."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.cli import reading
from cassi.cli.places import check_camera_file, check_places, figures_folder, report_file
from cassi.cli.shell import say, warn
from cassi.errors import InputError, OutputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cassi.calibration.estimate import Calibration
    from cassi.calibration.pose import Alignment
    from cassi.choice.asked_for import Progress
    from cassi.optics.mask_match import MaskCheck
    from cassi.optics.measurement import Measurement
    from cassi.optics.side_picture import SidePicture
    from cassi.running.result import Reconstruction
    from cassi.running.tiled_file import TiledResult

EXAMPLES = """\
examples:
  a file that holds measurement and mask; writes m_cube.h5 and m_figures/ beside it
      {reconstruct} --measurement m.h5
  snapshot and mask in files of their own, the number of bands is known
      {reconstruct} --measurement scene.mat --mask mask.mat --num-bands 28 --wavelengths 450:650:28
  only look: what is in the file, which bands and step fit, what would be done
      {reconstruct} --measurement scene.mat --mask mask.mat --dry-run
  raw 12-bit counts, a map of dead pixels, 3.6 electrons a count, another name for the result
      {reconstruct} --measurement raw.tif --mask mask.h5 --bit-depth 12 --black-level 64 \\
          --bad-pixels dead.png --gain 3.6 --read-noise 5 --output result.h5
  raw counts of a camera that was calibrated: nothing else to give
      {reconstruct} --calibration calibration.h5 --measurement snapshot.png
  a mask that may have moved since it was measured: find out from the snapshot by how much
      {reconstruct} --measurement m.h5 --align
  a photograph of the same scene beside it, which may be moved, turned and of another size
      {reconstruct} --measurement m.h5 --side photo.png
  a folder, files or a stack of snapshots: one cube each, killed runs resume with the same command
      {reconstruct} --measurement night7/ --mask mask.h5 --output night7_cubes/
  four shots of one scene, each through its own mask; a double disperser
      {reconstruct} --measurement shot?.h5 --mask mask?.h5
      {reconstruct} --measurement m.h5 --mask aperture.h5 --optics dd --num-bands 28
  frames that follow each other: each knows what those beside it saw; a cube with a time axis, and a film
      {reconstruct} --sequence --measurement video.h5 --mask mask.h5
  the result as one page to look at in a browser
      {reconstruct} --measurement m.h5 --report
  the field's baseline with its own settings
      {reconstruct} --measurement m.h5 --solver gap-tv --iterations 100 --tv-weight 0.3

when to take
  --align        the report of a good mask says "the mask fits" but edges have colored fringes, or the mask was taken
                 out and put back; not for a mask that does not belong to the snapshot
  --quality      best: for scenes that repeat (cloth, leaves, print) with little noise; fast: for a first look
  --uncertainty  to know how far each voxel may be off; takes about half as long again
  --gain         the data sheet or a calibration says how many electrons a count is: noise is then known, not estimated
"""


WHITE = "white reference, "  # before the steps of its reconstruction


def run(args: argparse.Namespace) -> int:
    """Read, reconstruct, write, report.

    Raises:
        InputError: options or files that cannot be used.
    """
    from cassi.cli.scenes import is_many, settle
    from cassi.kernels.dispatch import pick_device

    args.files = [*args.files, *args.measurement]
    if not all(args.files):
        raise InputError("a measurement's name is empty; expected a file, several, a folder or a pattern")
    if not args.files:
        greedy = [f"--{name}" for name in ("mask", "calibration") if len(getattr(args, name) or ()) > 1]
        cure = f"; what follows {greedy[0]} is taken for more of them, name the measurement before" if greedy else ""
        raise InputError(f"no measurement given, expected a file, several, a folder or a pattern{cure}")
    pick_device(args.device)
    settle(args)
    many = args.sequence or is_many(args)
    check_camera_file(args, many=many)
    reading.check_method(args)
    if many:
        from cassi.cli.many import run_many

        return run_many(args)
    source = Path(args.files[0])
    output = Path(args.output) if args.output else source.with_name(f"{source.stem}_cube.h5")
    check_places(args, output)
    return dry_run(args, output) if args.dry_run else run_single(args, output)


def run_single(args: argparse.Namespace, output: Path) -> int:
    """One snapshot, or one stack into one cube: read, reconstruct, write, report."""
    from cassi.files import check_output
    from cassi.running.progress import StepBar

    check_output(output, args.overwrite)
    if args.tile is not None:
        args.figures = "none"
    figures, report = figures_folder(args, output), report_file(args, output)
    with StepBar(steps_of(args, figures, report), shown=not args.quiet) as steps:
        steps("read")
        m, check = read(args)
        steps.expect(steps_of(args, figures, report, m.num_scenes))
        if args.tile is not None:
            line, code = run_tiled(args, m, check, output, steps)
            drawn: Callable[[], None] | None = None
        else:
            m, result = solve(args, m, check, steps)
            steps("write")
            code = write(args, m, result, output)
            line = summary_line(m, result)
            drawn = None if figures is None else partial(draw, m, result, line, figures)
        try:
            if drawn is not None:
                steps("draw")
                drawn()
            if report is not None:
                from cassi.looking.report_page import write_report

                steps("report")
                write_report(report, output, overwrite=args.overwrite)
        except KeyboardInterrupt:
            text = f"interrupted; the cube is complete in {output}, what is drawn of it is not: `cassi view` shows it"
            warn(args, text, kind="error")
            return 130
    made = [str(output), *([f"{figures}/"] if figures else []), *([str(report)] if report else [])]
    say(args, f"{line} -> {', '.join(made)}")
    return code


def steps_of(args: argparse.Namespace, figures: Path | None, report: Path | None, frames: int = 1) -> dict[str, float]:
    """The steps of a run on one snapshot, or a stack, and the share of the time that each usually takes."""
    from cassi.running.progress import tiled_steps, usual_steps

    if args.tile is not None:
        solving = tiled_steps(args.solver, find=reading.looked_for(args))
    else:
        usual = partial(usual_steps, solver=args.solver)
        solving = usual(
            find=reading.looked_for(args), uncertainty=args.uncertainty, side=bool(args.side), frames=frames
        )
        solving |= usual(find=False, of=WHITE) if args.white else {}
        solving |= {"write": 0.01}
    expected = {"read": 0.01} | ({"align": 0.5} if args.align else {}) | solving
    return expected | ({"draw": 0.06} if figures else {}) | ({"report": 0.1} if report else {})


def read(args: argparse.Namespace) -> tuple[Measurement, MaskCheck]:
    """The measurement, and how its mask compares with it."""
    m = reading.read_and_tell(args)
    return m, reading.compare_with_mask(args, m)


def solve(
    args: argparse.Namespace, m: Measurement, check: MaskCheck, steps: Progress
) -> tuple[Measurement, Reconstruction]:
    """The cube, with its camera as it is found to be; the measurement gets what was found out of it."""
    from cassi.choice.doubts import of_imprint, of_result
    from cassi.running.front_door import reconstruct

    side = side_of(args, m)
    m, put_in_place, moved = with_true_camera(args, m, check, steps)
    check = reading.compare_with_mask(args, m) if moved else check
    m = replace(m, notes=(*m.notes, *reading.compare_with_blur(args, m)), check=check)
    if args.white:  # what is known of the truth is radiance
        m = replace(m, cube=None, mean_band=None)
    white = read_white(args, m)
    result = put_in_place(reconstruct(m, **reading.method(args), side=side, progress=steps))
    result, against = in_reflectance(args, result, white, steps)
    reading.compare_again(args, check, result)
    for line in reading.outcome(result, args.verbose):
        say(args, f"  {line}")
    against = (*against, *of_result(result.residual), *of_imprint(result.imprint))
    for text in against:
        warn(args, text)
    return replace(m, notes=(*m.notes, (result.check or check).verdict, *against)), result


def write(args: argparse.Namespace, m: Measurement, result: Reconstruction, output: Path) -> int:
    """Write cube and camera; the exit code."""
    from cassi.running.result import write_result

    write_result(output, m, result, attributes=reading.provenance(args), overwrite=args.overwrite)
    say(args, f"  the cube is written: {output}")
    return save_camera(args, result)


def save_camera(args: argparse.Namespace, result: Reconstruction | TiledResult) -> int:
    """Write the camera where --save-camera says; the exit code. The result stands, whatever becomes of it."""
    if not args.save_camera or result.camera is None:
        return 0
    try:
        result.camera.save(args.save_camera, overwrite=args.overwrite)
    except OutputError as error:
        warn(args, f"the cube is written, the camera is not: {error}", kind="error")
        return 2
    say(args, f"  the camera is written: {args.save_camera}")
    return 0


def draw(m: Measurement, result: Reconstruction, caption: str, folder: Path) -> None:
    from cassi.looking.figures import figures_of, save_figures
    from cassi.looking.report_data import report_of

    save_figures(figures_of(report_of(result, m), caption=caption), folder)


def run_tiled(
    args: argparse.Namespace, m: Measurement, check: MaskCheck, output: Path, steps: Progress
) -> tuple[str, int]:
    """Reconstruct tile by tile into the result's file; what came of it in words, and the exit code."""
    from cassi.choice.doubts import of_result
    from cassi.running.tiled_file import reconstruct_tiled

    m, _, moved = with_true_camera(args, m, check, steps)
    check = reading.compare_with_mask(args, m) if moved else check
    whole = {"budget", "uncertainty"}
    result = reconstruct_tiled(
        replace(m, notes=(*m.notes, check.verdict), check=check),
        output,
        tile=args.tile,
        **{name: value for name, value in reading.method(args).items() if name not in whole},
        attributes=reading.provenance(args),
        overwrite=args.overwrite,
        progress=steps,
    )
    if result.camera is not None and result.camera.accepted:
        say(args, f"  {result.camera.message}")
    for text in of_result(result.residual):
        warn(args, text)
    code = save_camera(args, result)
    return f"{len(result.history)} tiles, residual {result.residual:.2%}, {result.seconds:.1f} s", code


def read_white(args: argparse.Namespace, m: Measurement) -> Measurement | None:
    """The capture of the white reference, where one is given.

    Raises:
        InputError: it cannot be read, is a stack, or of another size, before anything is computed.
    """
    if args.white is None:
        return None
    white = reading.reading(args)(args.white)
    if white.y.shape != m.y.shape or m.y.ndim != 2:
        raise InputError(
            f"{args.white}: the white reference must be one snapshot like the scene's, {m.y.shape}, got "
            f"{white.y.shape}; capture it with the same camera"
        )
    if not white.y.any():
        raise InputError(f"{args.white}: the white reference is black; capture a white board in full light")
    return replace(white, check=m.check)  # one camera


def white_in_words(args: argparse.Namespace, m: Measurement) -> list[str]:
    """What would be done with the white reference."""
    if read_white(args, m) is None:
        return []
    return [f"the cube would be divided by the light on the white reference {Path(args.white).name}"]


def in_reflectance(
    args: argparse.Namespace, result: Reconstruction, m: Measurement | None, steps: Progress
) -> tuple[Reconstruction, tuple[str, ...]]:
    """Divided by the cube of the white reference, where one is given: same camera, same solver. And what speaks
    against the reference."""
    if m is None:
        return result, ()
    from cassi.running.front_door import reconstruct
    from cassi.running.white import of_structure, reflectance, structure

    method = reading.method(args) | {"uncertainty": False, "camera": result.camera or "as-given"}
    white = reconstruct(m, **method, progress=lambda step, share: steps(WHITE + step, share))
    name = Path(args.white).name
    say(args, f"  divided by the light on the white reference {name}: the cube is reflectance")
    return reflectance(result, white), of_structure(structure(white))


def with_true_camera(
    args: argparse.Namespace, m: Measurement, check: MaskCheck, steps: Progress
) -> tuple[Measurement, Callable[[Reconstruction], Reconstruction], bool]:
    """The measurement with its camera as it is found to be, what puts the bands of its cube in place, and whether the
    mask was moved.

    Raises:
        InputError: tiles, whose bands nobody would put in place; a mask that does not belong to the snapshot.
    """
    cameras: list[Calibration | Alignment] = []
    moved = False
    if args.calibrations:
        from cassi.calibration.estimate import Calibration

        cameras.append(Calibration.load(args.calibrations[0]))
    if args.align:
        import torch

        from cassi.calibration.pose import align_measurement

        steps("align", 0.0)
        if check.kind == "wrong mask":
            raise InputError(f"there is nothing to align: {check.verdict}; leave out --align, or give another --mask")
        m, alignment = align_measurement(m, generator=torch.Generator().manual_seed(args.seed))
        say(args, f"  {alignment.message}")
        cameras.append(alignment)
        moved = alignment.accepted
    if args.tile is not None and any(any(camera.remainders) for camera in cameras):
        raise InputError("bands between pixels are put in place at the end, which tiles are not; leave out --tile")

    def put_in_place(result: Reconstruction) -> Reconstruction:
        for camera in cameras:
            spread = None if result.uncertainty is None else camera.register(result.uncertainty)
            result = replace(result, cube=camera.register(result.cube), uncertainty=spread)
        return result

    return m, put_in_place, moved


def side_of(args: argparse.Namespace, m: Measurement) -> SidePicture | None:
    """The photograph, None where there is none."""
    if args.side is None:
        return None
    from cassi.files.side_pictures import read_side_picture

    return read_side_picture(args.side, args.side_response, m.wavelengths)


def side_in_words(args: argparse.Namespace, m: Measurement) -> list[str]:
    """What would be done with the photograph."""
    side = side_of(args, m)
    if side is None:
        return []
    height, width = side.picture.shape[:2]
    how = "a table" if isinstance(side.response, type(side.picture)) else side.response or "by its channels"
    return [
        f"side picture {args.side}: {height} x {width} pixels, {side.channels} channels, {side.picture.dtype}, "
        f"response {how}; it would be registered to the snapshot, and used unless held-out pixels speak against it"
    ]


def summary_line(m: Measurement, result: Reconstruction) -> str:
    """Residual, seconds, and how close the cube comes to the truth where the file has it."""
    from cassi.looking.metrics import score

    parts = [f"residual {result.residual:.2%}", f"{result.seconds:.1f} s"]
    units = {
        "psnr": "PSNR {:.2f} dB",
        "ssim": "SSIM {:.3f}",
        "sam": "SAM {:.2f} deg",
        "mean_band_psnr": "mean-band PSNR {:.2f} dB",
    }
    for name, value in score(result.cube.cpu(), truth=m.cube, mean_band=m.mean_band).items():
        parts.append(units[name].format(value))
    return ", ".join(parts)


def dry_run(args: argparse.Namespace, output: Path) -> int:
    """Say what the file holds, how it fits together, and what would be done.

    Raises:
        InputError: the measurement cannot be reconstructed.
    """
    from cassi.files import check_output

    print(reading.contents(args, args.files[0]))
    m, check = read(args)
    reading.compare_with_blur(args, m)
    used = reading.what_would_be_used(m, args, fits=check.matches)
    for line in (*used, *white_in_words(args, m), *side_in_words(args, m)):
        print(f"  {line}")
    size = " x ".join(str(n) for n in (len(m.shifts), *m.mask.shape[-2:]))
    doubt = "" if check.matches else ", although the mask does not fit"
    done = f"a cube {size} with solver {args.solver} on device {args.device} and write {output}{doubt}"
    print(f"\nwould reconstruct {done}")
    try:
        check_output(output, args.overwrite)
    except OutputError as error:
        warn(args, f"as it is, nothing could be written: {error}")
    return 0
