"""Which camera and which scenes the options and files of `reconstruct` speak of: optics, shots a scene, their files."""

from __future__ import annotations

import argparse
import glob
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.cli.options import DOUBLE, MANY, OTHER_OPTICS, SHOTS, check, options_of
from cassi.errors import InputError

if TYPE_CHECKING:
    from cassi.running.stores import Frame


def settle(args: argparse.Namespace) -> None:
    """Fill in `masks`, `calibrations`, `optics`, `shots` (None: one) and, of several shots, `scenes`; check what goes
    with what.

    Raises:
        InputError: options that contradict each other, or files that do not make whole scenes.
    """
    if args.calibration and all(map(holds_camera, args.calibration)):
        _take_cameras(args)
    args.masks, args.calibrations = args.mask or [], args.calibration or []
    stated = _stated(args.files[0]) if Path(args.files[0]).is_file() else (None, None)
    args.optics = args.optics or stated[0] or "sd"
    given = max(len(args.masks), len(args.calibrations))
    shots = args.shots or (given if given > 1 else stated[1]) or 1
    args.shots = None if shots == 1 else shots
    args.scenes = []
    for option, count in (("--mask", len(args.masks)), ("--calibration", len(args.calibrations))):
        if count > 1 and count != shots:
            raise InputError(f"{count} files of {option} for {shots} shots; give one per shot, in their order")
    if args.calibration and shots > len(args.calibrations):
        raise InputError(f"a calibration holds one mask; give one for each of the {shots} shots")
    if args.shots is not None:
        args.scenes = _scenes(args)
    situations = {
        MANY: args.sequence or is_many(args),
        SHOTS: shots > 1,
        OTHER_OPTICS: args.optics != "sd",
        DOUBLE: args.optics == "dd",
    }
    check("reconstruct", args, [name for name, so in situations.items() if so])


def is_many(args: argparse.Namespace) -> bool:
    """Whether the input is several files, a folder or a pattern, or the output a place for many cubes."""
    source, output = Path(args.files[0]), args.output
    several = (
        len(args.scenes) > 1
        if args.scenes
        else len(args.files) > 1 or source.is_dir() or (glob.has_magic(args.files[0]) and not source.exists())
    )
    return several or (bool(output) and (Path(output).is_dir() or not Path(output).suffix))


def _take_cameras(args: argparse.Namespace) -> None:
    """Cameras found from snapshots are masks, one per band, that are believed."""
    brought = ("--mask", "--mask-transform", "--psf", "--save-camera")
    names = ", ".join(o.name for o in options_of("reconstruct") if o.name in brought and o.given(args))
    if names:
        raise InputError(f"--calibration does not go with {names}: it brings these along; leave one of them out")
    args.mask, args.calibration, args.camera = args.calibration, None, "as-given"


def holds_camera(path: str) -> bool:
    """Whether a file is a camera found from snapshots, not a calibration made on the bench."""
    from cassi.files import open_container

    names = {entry.name for entry in open_container(path).entries}
    return "mask_3d_shift" in names and "dark" not in names


def _stated(path: str) -> tuple[str | None, int | None]:
    from cassi.files.other_optics import stated_camera

    try:
        return stated_camera(path)
    except InputError as error:
        if error.kind == "optics":
            raise
        return None, None  # what is wrong with the file is told when it is read


def _scenes(args: argparse.Namespace) -> list[Frame]:
    """The scenes of K shots: stacks, or K files after each other; integer counts of all get one bit depth."""
    from cassi.calibration.estimate import calibrated_frame_count
    from cassi.cli.reading import reading
    from cassi.files import common_bit_depth, frame_count
    from cassi.files.frames import find_files, frame_name
    from cassi.files.other_optics import is_stack, with_optics
    from cassi.running.stores import Frame

    others = [*args.masks, *args.calibrations, *([args.bad_pixels] if args.bad_pixels else [])]
    apart = {Path(name).resolve() for name in others}
    files = [str(f) for f in find_files(args.files, others) if f.resolve() not in apart]
    if not files:
        raise InputError("no shots among the files given; they are all masks, calibrations or maps of bad pixels")
    K = args.shots
    stack = is_stack(files[0], args.key)
    # enough to tell how its masks are kept
    args.scenes = [Frame("", files[0], others=() if stack else tuple(files[1:K]))]
    if not stack:
        if len(files) % K:
            raise InputError(f"{len(files)} files for scenes of {K} shots; give {K} for each scene, or a stack")
        groups = [tuple(files[k : k + K]) for k in range(0, len(files), K)]
        scenes = [Frame(Path(group[0]).stem, group[0], others=group[1:]) for group in groups]
    else:
        first = reading(args).shots[0]
        count = (
            calibrated_frame_count(files[0], key=args.key)
            if args.calibrations
            else frame_count(files[0], with_optics(files[0], first.options, args.optics))
        )
        if count is None or count % K or (len(files) > 1 and count != K):
            raise InputError(f"{files[0]}: holds {count or 1} snapshots, expected the {K} shots of a scene")
        scenes = [Frame(Path(file).stem, file) for file in files]
        if count > K:
            scenes = [Frame(frame_name(Path(files[0]).stem, k), files[0], k) for k in range(count // K)]
    names = [scene.name for scene in scenes]
    if len(set(names)) < len(names):
        raise InputError(f"the results of {len(names)} scenes would have one name, {names[0]}; rename the files")
    args.scenes = scenes
    if args.bit_depth is None and not args.calibrations:
        one = reading(args).shots[0].options
        with suppress(InputError):  # told when the scene is read
            args.bit_depth = common_bit_depth(files, with_optics(files[0], one, args.optics))
    return scenes
