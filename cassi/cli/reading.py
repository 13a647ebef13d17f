"""The task in the options of `reconstruct`: which scenes, how they are read, how they are solved."""

import argparse
import glob
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cassi.calibration.dark_frame import less_dark, read_dark
from cassi.calibration.estimate import Calibration, calibrated_frame_count, read_calibrated
from cassi.cli.options import check, values_for
from cassi.cli.shell import command_line
from cassi.errors import InputError, Note, counted
from cassi.evidence.noise import CameraNoise
from cassi.files import Levels, ReadOptions, file_sha256, frame_count, shared_levels
from cassi.files.frames import find_files, frame_name, is_stack, natural, options_of_shots, stated_shots
from cassi.files.reading import open_measurement
from cassi.files.statements import replaced
from cassi.optics.mask_match import TURNS, check_masks
from cassi.optics.measurement import Measurement, check_arrays, join_shots
from cassi.running.arguments import read_options
from cassi.running.fingerprint import Frame
from cassi.running.many import by_name
from cassi.settings import MANY, SHOTS, Settings


@dataclass(frozen=True)
class Reading:
    """How a scene is read, the same for one and for many: each of its shots, with a calibration only by its key."""

    each: tuple[ReadOptions, ...]
    calibrations: tuple[Calibration, ...] = ()  # one for each shot, or none
    turn_mask: bool = False
    gain: float | None = None  # electrons per stored count, or per unit of floats that are no counts
    read_noise: float | None = None  # electrons
    dark: np.ndarray | None = None  # (H, W') counts without light

    def __call__(self, path: str | tuple[str, ...], frames: int | slice | None = None) -> Measurement:
        """Read a file, or one for each shot; `frames` counts scenes, whose shots follow each other in a stack."""
        paths, count = (path,) if isinstance(path, str) else path, len(self.each)
        if count == 1:
            return self._shot(paths[0], frames, 0)
        first = count * (frames or 0)  # type: ignore[operator]
        stack = len(paths) == 1
        shots = enumerate(paths * count if stack else paths)
        m = join_shots([self._shot(file, first + k if stack else None, k) for k, file in shots])
        check_arrays(m)
        return m

    def _shot(self, path: str, frames: int | slice | None, k: int) -> Measurement:
        if self.calibrations:
            m = read_calibrated(path, calibration=self.calibrations[k], frames=frames, key=self.each[k].key)
        else:
            m = open_measurement(path, self.each[k]).read(frames)
        m = m if self.dark is None else less_dark(m, self.dark)
        return self._with_noise(self._with_mask(m))

    def _with_noise(self, m: Measurement) -> Measurement:
        """The gain in electrons per unit of y: a count is 1 / scale of it."""
        per = m.scale if any(Note(note).kind == "counts" for note in m.notes) else 1.0
        gain = m.gain if self.gain is None else self.gain * per
        said = replaced("gain", self.gain, m.gain and m.gain / per)
        said += replaced("read noise", self.read_noise, m.read_noise)
        read_noise = m.read_noise if self.read_noise is None else self.read_noise
        m = replace(m, gain=gain, read_noise=read_noise, notes=(*m.notes, *said))
        check_arrays(m)
        if self.read_noise is not None and m.gain is None:
            raise InputError("the read noise is in electrons and needs the gain too", cures=("gain",))
        return m

    def _with_mask(self, m: Measurement) -> Measurement:
        """The measurement with its mask turned to fit, if that is asked for and one turn fits."""
        turn = check_masks(m).turn if self.turn_mask else None
        if turn is None:
            return m
        transpose, rows, columns = TURNS[turn]
        mask = m.mask.swapaxes(-1, -2) if transpose else m.mask
        return replace(m, mask=mask[..., ::rows, ::columns].copy(), notes=(*m.notes, f"mask {turn}"))


@dataclass(frozen=True)
class Task:
    """Scenes, and how each is read and solved."""

    frames: Sequence[Frame]  # the scenes
    many: bool  # each gets a cube of its own, in one place
    read: Reading  # how each is read
    settings: Settings  # how each is reconstructed
    output: Path = Path()  # file of the result, or folder of the results
    report: Path | None = None  # file of the page; None: none, or in the folder of the results

    def measurement(self, frame: Frame) -> Measurement:
        """The measurement of one scene."""
        return frame.read_by(self.read)


def make_task(args: argparse.Namespace, files: Sequence[str]) -> Task:
    """The task in the options, checked before a snapshot is read; its places are not settled yet."""
    source, output = Path(files[0]), Path(args.output or "")
    stated = _stated_shots(files[0]) if os.path.isfile(source) else None
    given = max(len(args.mask), len(args.calibration))
    shots = args.shots or (given if given > 1 else stated) or 1
    for option, count in (("--mask", len(args.mask)), ("--calibration", len(args.calibration))):
        if count > 1 and count != shots:
            raise InputError(f"{count} files of {option} for {shots} shots; give one per shot, in their order")
    if args.calibration and shots > len(args.calibration):
        raise InputError(f"a calibration holds one mask; give one for each of the {shots} shots")
    several = len(files) > 1 or os.path.isdir(source) or (glob.has_magic(files[0]) and not os.path.exists(source))
    place = bool(args.output) and (os.path.isdir(output) or not output.suffix)
    many = args.sequence or place or (several and shots == 1)
    check("reconstruct", args, [SHOTS] * (shots > 1) + [MANY] * many)
    names = [files[0]]
    if many or shots > 1:  # of one shot in the order of the numbers in their names
        others = [*filter(None, [args.bad_pixels, args.dark])]
        names = [str(file) for file in find_files(files, others, [*args.mask, *args.calibration])]
    settings = _settings(args)
    read = _reading(args, settings, names, shots, together=many or shots > 1)
    alone = len(files) == 1 and names == list(files)
    frames = _frames(args, names, read, alone=alone) if many or shots > 1 else [_scene(names)]
    if len(frames) > 1 and not many:
        many = True
        check("reconstruct", args, [SHOTS] * (shots > 1) + [MANY])
    return Task(frames, many, read, settings.as_read())


def _stated_shots(path: str) -> int | None:
    try:
        return stated_shots(path)
    except InputError as error:
        if error.kind == "optics":
            raise
        return None  # the reader reports errors in the file


def _settings(args: argparse.Namespace) -> Settings:
    """The settings that are asked for; those that a measurement is read with, too."""
    values = values_for(Settings, args)
    if args.align or args.calibration:
        values["camera"] = "align" if args.align else "as-given"
    CameraNoise(args.gain, None if args.gain is None else args.read_noise)
    return Settings(**values)


def _reading(
    args: argparse.Namespace, settings: Settings, files: Sequence[str], shots: int, *, together: bool
) -> Reading:
    """How each shot is read; where scenes belong together, integer counts by one bit depth."""
    mask = args.mask[0] if len(args.mask) == 1 else None
    levels = Levels(args.bit_depth, settings.black_level, args.saturation)
    named = {name: getattr(args, name) for name in ("key", "mask_key", "bad_pixels")}
    options = replace(read_options(settings), mask=mask, levels=levels, **named)
    each = (options,) * shots
    if shots > 1 and not args.calibration:
        each = options_of_shots(files[0], options, shots, args.mask, own=not is_stack(files[0], args.key))
    if together and args.bit_depth is None and not args.calibration:
        with suppress(InputError):  # none can be read, which each frame reports
            levels = shared_levels(files, each[0])
        each = tuple(replace(options, levels=levels) for options in each)
    calibrations = tuple(Calibration.load(path) for path in args.calibration)
    dark = None if args.dark is None else read_dark(args.dark)
    return Reading(each, calibrations, args.turn_mask, settings.gain, settings.read_noise, dark)


def _frames(args: argparse.Namespace, files: Sequence[str], read: Reading, *, alone: bool) -> list[Frame]:
    """The scenes: of a stack, or of K files after each other for each; `one` file may be a stack."""
    shots, first, count = len(read.each), files[0], None
    if is_stack(first, args.key) if shots > 1 else alone:
        count = calibrated_frame_count(first, key=args.key) if args.calibration else frame_count(first, read.each[0])
        if shots > 1 and (count is None or count % shots or (len(files) > 1 and count != shots)):
            raise InputError(f"{first}: holds {counted(count or 1, 'snapshot')}, expected the {shots} shots of a scene")
    if count is not None and (count != shots or count == 1):
        return [Frame(frame_name(Path(first).stem, k), first, k) for k in range(count // shots)]
    size = 1 if count == shots else shots
    if len(files) % size:
        what = f"{counted(len(files), 'file')} for scenes of {shots} shots"
        raise InputError(f"{what}; give {shots} for each scene, or a stack")
    files = sorted(files, key=natural) if shots == 1 else files
    return by_name(_scene(files[k : k + size]) for k in range(0, len(files), size))


def _scene(files: Sequence[str]) -> Frame:
    return Frame(Path(files[0]).stem, files[0], others=tuple(files[1:]))


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    """Facts about a result that only the command line knows."""
    known: dict[str, Any] = {"command_line": command_line(args)}
    for name, paths in (("calibration", args.calibration), ("mask", args.mask)):
        if paths:
            known[f"{name}_name"] = ", ".join(Path(path).name for path in paths)
            known[f"{name}_sha256"] = " ".join(file_sha256(path) for path in paths)
    return known
