"""Simulate a coded-aperture snapshot, from a spectral cube or a painted scene, with a camera's noise."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cassi.cli.options import check, options_of, values_for
from cassi.cli.places import check_files, check_folder
from cassi.cli.shell import command_line, say, warn
from cassi.errors import InputError, counted, one_line
from cassi.files import read_cube, write_measurement
from cassi.files.cubes import read_mask
from cassi.files.filters import read_masks
from cassi.files.options import ReadOptions
from cassi.files.wavelength_files import differing, parse_wavelengths
from cassi.optics.measurement import RELATIVE, Measurement
from cassi.optics.other_cameras import double_disperser
from cassi.photograph.picture import expected_response, write_side_picture
from cassi.photograph.similarity import Similarity
from cassi.settings import check_seed
from cassi.simulation.camera import move_scene, random_mask, side_photograph, simulate, stack_masks, video_of
from cassi.simulation.optical_bench import simulate_bench, write_bench
from cassi.simulation.scene import procedural_scene
from cassi.version import PROGRAM

MASK_KINDS = ("binary", "grey")
PAINTED = (400, 700)  # where the colors of painted scenes differ [nm]
BENCH_SIZE = (128, 128)  # of the frames of a bench [pixel]
SIDE_POSE = (1.5, 1.0, 2.0, -2.0)  # of the photograph: pixels a scene pixel, turned by [degree], moved [scene pixel]


def run(args: argparse.Namespace) -> int:
    """Make the scene and the mask, photograph, write, report."""
    if (args.bench is None) == (args.output is None):
        raise InputError("give --output FILE for a measurement, or --bench DIR for the frames of a calibration")
    check_seed(args.seed)
    try:
        return run_bench(args) if args.bench is not None else run_scene(args)
    except InputError:
        raise
    except ValueError as error:  # an invalid argument, as the library reports it
        raise InputError(one_line(error, limit=1000)) from error


def run_scene(args: argparse.Namespace) -> int:
    """Photograph a scene."""
    check("simulate", args, [])
    check_files("simulate", args)
    # One stream of random numbers each, so that another mask or camera does not change the scene.
    scene_source, mask_source, noise_source, side_source = (
        torch.Generator().manual_seed((args.seed % 2**32) * 4 + k) for k in range(4)
    )
    filters = ReadOptions(**values_for(ReadOptions, args) | {"mask": None, "key": None})
    if args.camera == "mosaic":
        count, args.step = len(read_masks(filters, (1, 1), [])), 0
        if args.num_bands not in (None, count):
            raise InputError(f"the filters have {count} bands, {args.num_bands} were asked for; leave their number out")
        args.num_bands = count
    mask = None
    if args.mask not in MASK_KINDS:
        if not os.path.exists(args.mask):
            raise InputError(f"--mask {args.mask}: neither {', '.join(MASK_KINDS)} nor a file")
        mask = torch.from_numpy(read_mask(args.mask, count=args.shots if args.shots > 1 else args.num_bands))
        if mask.ndim == 3 and args.shots == 1:  # a mask for each band
            if args.num_bands not in (None, len(mask)):
                what = f"{args.mask} has a mask for each of {counted(len(mask), 'band')}"
                raise InputError(f"{what}, --num-bands asks for {args.num_bands}; leave it out")
            args.num_bands = len(mask)
    cube, wavelengths = make_cube(args, None if mask is None else mask.shape[-2:], scene_source)
    if args.truth_bits is not None:
        if not 1 <= args.truth_bits <= 20:
            raise InputError(f"--truth-bits must be 1 to 20, got {args.truth_bits}")
        cube = (cube * 2**args.truth_bits).round() / 2**args.truth_bits
    if args.frames > 1:
        cube = move_scene(cube, args.frames, args.motion)
    shifts = tuple(c * args.step for c in range(cube.shape[-3]))
    if args.camera == "cacti":
        cube, wavelengths = video_of(cube, args.motion), None
    if args.camera != "mosaic":
        mask = make_masks(args, mask, shifts, cube.shape[-2:], mask_source)
    else:
        args.mask, mask = args.pattern, torch.from_numpy(read_masks(filters, cube.shape[-2:], []))
    if args.camera != "sd":  # the scene itself is not displaced
        shifts = (0,) * len(shifts)
    noise = {name: getattr(args, name) for name in ("full_well", "read_noise", "bit_depth")}
    shot = simulate(cube, mask, shifts, shots=args.shots, **noise, generator=noise_source)
    measurement = Measurement(
        y=shot.y.numpy(),
        mask=mask.numpy(),
        shifts=shifts,
        wavelengths=wavelengths,
        cube=cube.numpy(),
        mask_error=0.0 if args.camera == "mosaic" else None,
        unit=RELATIVE,
        scale=1.0 if shot.count is None else 1 / shot.count,
        gain=shot.gain,
        read_noise=shot.read_noise,
        shots=None if args.shots == 1 else args.shots,
    )
    attributes = {
        "command_line": command_line(args),
        "version": PROGRAM,
        "scene": Path(args.cube).name if args.cube else "procedural",
        "mask_kind": args.mask if args.mask in MASK_KINDS else Path(args.mask).name,
        "camera_kind": args.camera,
        "num_bands": len(shifts),
        **{name: getattr(args, name) for name in ("step", "seed", "full_well", "bit_depth")},
    }
    write_measurement(args.output, measurement, attributes=attributes, overwrite=args.overwrite)
    if args.side is not None:  # the second camera counts as many electrons as the first
        channels = 3 if args.side_response == "rgb" else 1
        curves = torch.from_numpy(expected_response(channels, wavelengths, cube.shape[-3]))
        camera = {"full_well": args.full_well, "read_noise": args.read_noise, "generator": side_source}
        picture = side_photograph(cube, curves, pose=Similarity(*SIDE_POSE), **camera)
        write_side_picture(args.side, picture.numpy(), overwrite=args.overwrite)
        say(args, f"photograph of {picture.shape[0]} x {picture.shape[1]} px -> {args.side}")
    noise_text = "no noise"
    if shot.gain is not None:
        noise_text = f"photon noise at {shot.gain:.6g} e per unit, read noise {shot.read_noise:g} e"
    taken = "snapshot" if args.shots == 1 else f"{args.shots} shots"
    if args.frames > 1:
        taken = f"{args.frames} frames of a scene that moves by {args.motion:g} px from one to the next"
    scene, detector = (f"{height} x {width} px" for height, width in (cube.shape[-2:], shot.y.shape[-2:]))
    optics = f"step {args.step} px, mask {args.mask} (mean {mask.mean().item():.3f})"
    whole = f"{len(shifts)} bands of {scene}, {optics}, {taken}, detector {detector}"
    say(args, f"{whole}, {noise_text} -> {args.output}")
    return 0


def run_bench(args: argparse.Namespace) -> int:
    """Capture everything on a simulated optical bench."""
    taken = ("--size", "--num-bands", "--step", "--seed", "--bench", "--quiet", "--debug")
    ignored = ", ".join(
        o.name for o in options_of("simulate") if o.name not in taken and o.is_given(getattr(args, o.field))
    )
    if ignored:
        raise InputError(f"--bench takes --size, --num-bands, --step and --seed; leave out {ignored}")
    check_folder(Path(args.bench))
    source = torch.Generator().manual_seed(args.seed)
    size = args.size or BENCH_SIZE
    bench = simulate_bench(*size, num_bands=args.num_bands or 28, step=args.step, generator=source)
    files = write_bench(args.bench, bench)
    frames = f"{len(bench.dark)} dark, {len(bench.flat)} flat and {len(bench.mask_frames)} mask frames"
    height, width = bench.snapshot.shape
    say(args, f"{frames} of {height} x {width} px, a snapshot, the truth -> {files[0].parent}/")
    return 0


def make_cube(
    args: argparse.Namespace, mask_size: torch.Size | None, generator: torch.Generator
) -> tuple[torch.Tensor, np.ndarray | None]:
    """The truth (C, H, W) and its wavelengths, painted or read."""
    if args.cube is None:
        usual = f"450:650:{args.num_bands or 28}"
        chosen = parse_wavelengths(usual if args.wavelengths is None else args.wavelengths, args.num_bands)
        if chosen is None:
            raise InputError("a painted scene needs wavelengths: its colors depend on them")
        if chosen.min() < PAINTED[0] or chosen.max() > PAINTED[1]:
            colors = f"painted scenes have colors from {PAINTED[0]} to {PAINTED[1]} nm"
            warn(args, f"{colors}; beyond, their spectra are flat")
        height, width = args.size or mask_size or (256, 256)
        if args.camera == "dd" and args.size is None and mask_size is not None:  # its mask is that much wider
            width = max(1, width - (len(chosen) - 1) * abs(args.step))
        return procedural_scene(height, width, torch.from_numpy(chosen), generator=generator), chosen
    values, wavelengths = read_cube(args.cube, key=args.key)
    count = args.num_bands or values.shape[-3]
    if count > values.shape[-3]:
        raise InputError(f"{args.cube} has {values.shape[-3]} bands, --num-bands asks for {count}")
    wavelengths = None if wavelengths is None else wavelengths[len(wavelengths) - count :]
    if args.wavelengths is not None:
        chosen = parse_wavelengths(args.wavelengths, count)
        for note in differing(chosen, wavelengths):
            warn(args, note)
        wavelengths = chosen
    values = middle(values[..., values.shape[-3] - count :, :, :], args.size or values.shape[-2:], args.cube)
    return torch.from_numpy(values.copy()), wavelengths


def make_masks(
    args: argparse.Namespace, given: torch.Tensor | None, shifts: tuple[int, ...], wanted: Sequence[int],
    generator: torch.Generator,
) -> torch.Tensor:  # fmt: skip
    """The masks of all shots, (K, ...) where there are several; drawn, or the middle of those from a file.

    Of a double disperser each band sees another part of one wide mask, in a video camera each frame a mask of its own.
    """
    (height, width), count, beside = wanted, args.shots, 0
    if args.camera == "cacti":
        count = len(shifts)
    elif args.camera == "dd":
        beside = max(shifts) - min(shifts)
    if given is None:
        kind = {"kind": args.mask, "transmission": args.transmission, "generator": generator}
        each = [random_mask(height, width + beside, **kind) for _ in range(count)]
    elif count > 1 and (given.ndim != 3 or len(given) != count):
        what = "frame" if args.camera == "cacti" else "shot"
        raise InputError(
            f"{args.mask} holds masks {tuple(given.shape)}, expected a stack of {count}, one for each {what}"
        )
    else:
        each = [middle(mask, wanted, args.mask, beside).contiguous() for mask in (given if count > 1 else [given])]
    if args.camera == "dd":
        each = [double_disperser(mask, shifts).mask for mask in each]
    return each[0] if count == 1 else stack_masks(each)


def middle(picture: Any, wanted: Sequence[int], name: str, beside: int = 0) -> Any:
    """The middle (..., h, w + `beside`) of a mask or a cube, which may be larger than what is wanted."""
    (height, width), (h, w) = picture.shape[-2:], (wanted[0], wanted[1] + beside)
    if height < h or width < w:
        why = f" (the {wanted[1]} columns of the scene, and {beside} for the dispersion)" if beside else ""
        cure = "reduce --size, --step or the number of bands" if beside else "reduce --size"
        raise InputError(f"{name} has {height} x {width} px, fewer than {h} x {w}{why}: {cure}")
    top, left = (height - h) // 2, (width - w) // 2
    return picture[..., top : top + h, left : left + w]
