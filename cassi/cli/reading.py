"""What the options of `reconstruct` say, as values: how snapshots are read, how they are reconstructed, where from."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cassi.cli.options import TRANSFORMS
from cassi.cli.shell import command_line, say, warn
from cassi.errors import InputError, Note

if TYPE_CHECKING:
    from cassi.files import ReadOptions
    from cassi.optics.mask_match import MaskCheck
    from cassi.optics.measurement import Measurement
    from cassi.running.result import Reconstruction

# What puts right a mask that does not fit.
CURES = {"displaced": ("align",), "bands or blur": ("align",), "reversed": ("step",)}
NEAR = 3  # [pixel] by which a displaced mask is found where the camera is looked for


@dataclass(frozen=True)
class Reading:
    """How a scene is read, the same for one and for many: file, calibration, the mask's pose, noise, optics, shots.

    Attributes:
        options: what the user says of the measurement; with a calibration only its key.
        calibration: its file, or None.
        mask_transform: how the mask is turned, or "auto".
        gain: electrons per stored count (per unit of floats that are no counts).
        read_noise: [electrons].
        optics: of `cassi.files.other_optics`.
        shots: how each shot of a scene is read, where it has several.
    """

    options: ReadOptions
    calibration: str | None = None
    mask_transform: str = "none"
    gain: float | None = None
    read_noise: float | None = None
    optics: str = "sd"
    shots: tuple[Reading, ...] = ()

    def __call__(self, path: str | tuple[str, ...], frames: int | slice | None = None) -> Measurement:
        """Of a file, or of several with a shot each; `frames` counts scenes."""
        if self.shots:
            return self._with_shots((path,) if isinstance(path, str) else path, frames)
        if not isinstance(path, str):
            raise InputError(f"{len(path)} files for a scene of one shot, {', '.join(path)}; say how many shots it has")
        if self.calibration is not None:
            from cassi.calibration.estimate import read_calibrated

            m = read_calibrated(path, calibration=self.calibration, frames=frames, key=self.options.key)
        else:
            from cassi.files.other_optics import with_optics
            from cassi.files.reading import open_measurement

            m = open_measurement(path, with_optics(path, self.options, self.optics)).read(frames)
        return self._with_noise(self._with_mask(m))

    def _with_shots(self, paths: tuple[str, ...], scene: int | slice | None) -> Measurement:
        """The shots of a scene: in a stack one after the other, or each in a file of its own."""
        from cassi.optics.measurement import check_arrays, join_shots

        count = len(self.shots)
        if len(paths) not in (1, count):
            raise InputError(f"{len(paths)} files for a scene of {count} shots; give one file per shot, or a stack")
        if not (scene is None or isinstance(scene, int)):
            raise InputError(f"scenes of several shots are read one by one, got {scene}")
        first = count * (scene or 0)
        m = join_shots(
            [
                read(paths[0], first + k) if len(paths) == 1 < count else read(paths[k])
                for k, read in enumerate(self.shots)
            ]
        )
        check_arrays(m)
        return m

    def _with_noise(self, m: Measurement) -> Measurement:
        """The gain in electrons per unit of y: a count is 1 / scale of it."""
        from cassi.optics.measurement import check_arrays

        counts = any(Note(note).kind == "counts" for note in m.notes)
        gain = m.gain if self.gain is None else self.gain * (m.scale if counts else 1.0)
        m = replace(m, gain=gain, read_noise=m.read_noise if self.read_noise is None else self.read_noise)
        check_arrays(m)
        if self.read_noise is not None and m.gain is None:
            raise InputError("the read noise is in electrons and needs the gain too", cures=("gain",))
        return m

    def _with_mask(self, m: Measurement) -> Measurement:
        if self.mask_transform == "none":
            return m
        if self.mask_transform != "auto":
            return _turned(m, self.mask_transform)
        from cassi.optics.mask_match import check_masks

        check = check_masks(m)
        fits = transform_that_fits(check)
        return m if fits is None else _turned(m, fits)


def _turned(m: Measurement, name: str) -> Measurement:
    from cassi.optics.mask_match import TURNS

    transpose, rows, columns = TURNS[TRANSFORMS[name]]
    if transpose and m.mask.shape[-1] != m.mask.shape[-2]:
        raise InputError(f"--mask-transform {name} needs a square mask, got {m.mask.shape[-2]} x {m.mask.shape[-1]}")
    mask = m.mask.swapaxes(-1, -2) if transpose else m.mask
    return replace(m, mask=mask[..., ::rows, ::columns].copy(), notes=(*m.notes, f"mask {TRANSFORMS[name]}"))


def transform_that_fits(check: MaskCheck) -> str | None:
    """The option that makes the mask fit, where it is a turned one."""
    return next((name for name, turn in TRANSFORMS.items() if turn == check.turn), None)


def reading(args: argparse.Namespace, many: bool = False) -> Reading:
    """How snapshots are read, as the options say.

    Raises:
        InputError: a calibration that cannot be used.
    """
    from cassi.files import Levels, ReadOptions

    levels = Levels(**{field.name: getattr(args, field.name) for field in fields(Levels)})
    names = [field.name for field in fields(ReadOptions) if field.name not in ("levels", "mask")]
    mask = args.masks[0] if len(args.masks) == 1 else None
    options = ReadOptions(mask=mask, levels=levels, **{name: getattr(args, name) for name in names})
    one = Reading(options, None, args.mask_transform, args.gain, args.read_noise, args.optics)
    if not args.calibrations:
        return one if args.shots is None else replace(one, shots=_each_shot(args, one))
    from cassi.calibration.estimate import Calibration

    path = args.calibrations[0]
    calibration = Calibration.load(path)
    if many and any(calibration.remainders):
        raise InputError(
            f"{path}: its bands lie between pixels, which is put right for single snapshots only; "
            "calibrate with --spacing dispersion"
        )
    if calibration.psf is not None and args.psf is not None:
        raise InputError(f"{path}: the camera's blur is part of the calibration; leave out --psf")
    if args.shots is None:
        return replace(one, calibration=path)
    return replace(one, shots=tuple(replace(one, calibration=path) for path in args.calibrations))


def _each_shot(args: argparse.Namespace, one: Reading) -> tuple[Reading, ...]:
    """How each shot is read: alike, but for its mask; integer counts by one bit depth."""
    from cassi.files.other_optics import options_of_shots

    options = options_of_shots(
        args.scenes[0].path, one.options, args.shots, args.masks, own=bool(args.scenes[0].others)
    )
    return tuple(replace(one, options=each) for each in options)


def method(args: argparse.Namespace) -> dict[str, Any]:
    """How measurements are reconstructed, as the options say: keywords of `cassi.reconstruct`."""
    psf: Any = args.psf
    if args.calibrations and psf is None:
        from cassi.calibration.estimate import Calibration

        psf = Calibration.load(args.calibrations[0]).psf
    names = (
        "solver", "tv_weight", "quality", "prior", "weights", "budget", "uncertainty", "spectral_prior", "device",
        "seed",
    )  # fmt: skip
    return {name: getattr(args, name) for name in names} | {
        "num_iters": args.iterations,
        "psf": psf,
        "camera": "as-given" if args.align or args.calibrations else args.camera,
        "black_level": None if args.black_level is None else 0.0,  # reading took it off
    }


def check_method(args: argparse.Namespace) -> None:
    """Check what the method's options say, before any snapshot is opened.

    Raises:
        InputError: values out of range, or a method that is none.
    """
    from cassi.choice.noise import CameraNoise
    from cassi.choice.plan import Method, Run, check_prior
    from cassi.running.request import read_weights

    learned = read_weights(args.weights) if args.weights else None
    Method(
        args.solver, args.iterations, args.tv_weight, args.quality, args.uncertainty, prior=args.prior, learned=learned
    )
    check_prior(args.solver, args.spectral_prior)
    Run(args.seed, args.budget)
    CameraNoise(args.gain, None if args.gain is None else args.read_noise)


def verdict(check: MaskCheck) -> Note:
    """The comparison with the mask in words, and the option that puts it right."""
    fits = transform_that_fits(check)
    cure = "" if fits is None else f"; --mask-transform {fits} puts it right"
    return Note(f"{check.verdict}{cure}", check.kind, CURES.get(check.kind, ()))


def read_and_tell(args: argparse.Namespace) -> Measurement:
    """The one measurement; what was inferred is said, and what speaks against its noise kept among its notes.

    Raises:
        InputError: it cannot be read, or there is nothing in it.
    """
    from cassi.optics.measurement import without_scene
    from cassi.running.evidence import of_measurement

    m = reading(args)(args.scenes[0].paths if args.scenes else args.files[0])
    if nothing := without_scene(m):
        raise InputError(f"{m.source}: {nothing}; look at the capture, and give another")
    kind = {"sd": "", "dd": ", double disperser", "cacti": ", video camera"}[args.optics]
    shots = "" if m.shots is None else f", {m.shots} shots"
    say(
        args,
        f"{m.source}: measurement {_size(m.y.shape)}, mask {_size(m.mask.shape)}, {len(m.shifts)} bands{shots}{kind}",
    )
    for note in m.notes:
        if Note(note).kind == "too many":
            warn(args, note)
        else:
            say(args, f"  {note}")
    against = of_measurement(m)
    for text in against:
        warn(args, text)
    return replace(m, notes=(*m.notes, *against))


def compare_with_mask(args: argparse.Namespace, m: Measurement) -> MaskCheck:
    """Say whether the mask belongs to the measurement: a wrong one costs more than any choice of method."""
    from cassi.optics.mask_match import check_masks

    check = check_masks(m)
    if check.matches:
        say(args, f"  {check.verdict}")
    elif (args.align or looked_for(args)) and _near(check):
        say(args, f"  {check.verdict}; the camera is looked for")
    else:
        warn(args, verdict(check))
    return check


def looked_for(args: argparse.Namespace) -> bool:
    """Whether a run looks for the camera of a single snapshot."""
    how = method(args)
    return args.shots is None and how["camera"] == "find" and how["psf"] is None


def _near(check: MaskCheck) -> bool:
    """Whether a search for the camera may put right what does not fit."""
    displaced = check.kind == "displaced" and max(map(abs, check.displacement)) <= NEAR
    return displaced or check.kind == "bands or blur"


def compare_again(args: argparse.Namespace, before: MaskCheck, result: Reconstruction) -> None:
    """Say whether the mask as it was found belongs to the measurement, where the one given did not."""
    if before.matches or result.check is None:
        return
    if result.check.matches:
        say(args, f"  as found, {result.check.verdict}")
    elif looked_for(args) and _near(before):  # in vain
        warn(args, verdict(before))


def compare_with_blur(args: argparse.Namespace, m: Measurement) -> tuple[str, ...]:
    """Say where another blur than --psf predicts pixels clearly better: no solver makes up for a wrong one."""
    if args.psf is None or m.shots is not None:
        return ()
    from cassi.calibration.found_camera import better_blur

    found = better_blur(m, args.psf, black_level=method(args)["black_level"])
    if found is None:
        return ()
    width, before, after = found
    words = f"one of {width:g} px" if width else "none"
    text = (
        f"the blur of {args.psf:g} px predicts pixels left out {before / after:.1f} times worse ({before:.1%}) than "
        f"{words} ({after:.1%}); check --psf, or leave it out and the camera is looked for"
    )
    warn(args, text)
    return (text,)


def contents(args: argparse.Namespace, path: str) -> str:
    """What is in the files: every array with its guessed part, the geometry that fits, all hypotheses on the mask.

    Raises:
        InputError: the measurement cannot be reconstructed.
    """
    if args.calibrations:
        return ""
    if args.shots is not None or args.optics != "sd":
        from cassi.files.description import listing

        return listing(*dict.fromkeys((*(args.scenes[0].paths if args.scenes else (path,)), *args.masks)))
    from cassi.files import describe

    found = describe(path, options=reading(args).options)
    if found.problem is not None:
        print("\n".join(line for line in found.text.splitlines() if not line.endswith(found.problem)).strip())
        raise InputError(found.problem)
    return found.text


def what_would_be_used(m: Measurement, args: argparse.Namespace, *, fits: bool = True) -> list[str]:
    """What a run would use beside what the notes say: black level, bad pixels, gain, alignment, spectra to expect.

    Args:
        m: the measurement.
        args: the options.
        fits: whether its mask does; the black level is told through the mask.

    Raises:
        InputError: a snapshot that a run would refuse, cubes of --spectral-prior that cannot be used.
    """
    from cassi.files.spectral_libraries import as_spectral_prior
    from cassi.running.evidence import black_level_left

    lines = []
    how = method(args)
    black = black_level_left(m, how["psf"], how["black_level"])
    if args.black_level is None and not fits and looked_for(args):
        lines.append("the black level would be told once the camera is found: through this mask it cannot")
    elif args.black_level is None:
        counts = "" if m.scale == 1 else f" {black * m.scale:.4g} counts,"
        lines.append(
            f"black level {black:.4g} [{m.unit}],{counts} told from the dark pixels, would be taken off"
            if black
            else "no black level would be taken off: the dark pixels tell of none"
        )
    else:
        lines.append(f"black level {args.black_level:g} taken off, as told")
    if m.bad_pixels is not None and m.bad_pixels.any():
        lines.append(f"{int(m.bad_pixels.sum())} bad pixels would be left out")
    if m.gain is not None:
        lines.append(f"noise: {m.gain:.5g} electrons per unit, read noise {m.read_noise or 0:g} electrons")
    if m.wavelengths is not None:
        lines.append(f"bands from {m.wavelengths[0]:g} to {m.wavelengths[-1]:g} nm")
    if as_spectral_prior(args.spectral_prior, len(m.shifts), m.wavelengths) is not None:
        lines.append(f"spectra to expect from {', '.join(Path(name).name for name in args.spectral_prior)}")
    if args.align:
        lines.append("the mask's pose would be estimated first (--align)")
    return lines


def provenance(args: argparse.Namespace) -> dict[str, Any]:
    """What only the command line knows about a result."""
    from cassi.files import file_sha256

    known: dict[str, Any] = {"command_line": command_line(args)}
    for name, paths in (("calibration", args.calibrations), ("mask", args.masks)):
        if paths:
            known[f"{name}_name"] = ", ".join(Path(path).name for path in paths)
            known[f"{name}_sha256"] = " ".join(file_sha256(path) for path in paths)
    return known


def outcome(result: Reconstruction, verbose: bool) -> list[str]:
    """What was found out and chosen, a line each of camera and method. Of a stack, for its first frame."""
    from cassi.solvers.loop import ENDED

    camera = [] if result.camera is None else [result.camera.message]
    if result.imprint is not None:
        camera.append(f"Imprint of the mask on the cube: {result.imprint:.3f} (0 is none).")
    found = result.outcomes[0]
    if found.plan is not None:
        how = f"solver: {found.solver}. {result.explain(verbose=verbose)}"
    else:
        words = {**found.settings, "level": found.level}
        if found.black_level:
            words["black_level"] = found.black_level
        shown = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in words.items()}
        listed = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in shown.items() if name != "status")
        how = f"solver: {found.solver}, {listed}; the run {ENDED.get(result.status, result.status)}"
    return [" ".join(camera), how] if camera else [how]


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(str(n) for n in shape)
