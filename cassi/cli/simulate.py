"""Simulate a coded-aperture snapshot, from a spectral cube or a painted scene, with a camera's noise."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING

from cassi.cli.options import options_of
from cassi.cli.places import keep_inputs
from cassi.cli.shell import command_line, say
from cassi.errors import InputError, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import torch

    from cassi.optics.detector import Snapshot

EXAMPLES = """\
examples:
  a painted still life, 256 x 256 pixels and 28 bands, through a random mask, without noise
      {simulate} --output scene.h5
  the same with a 12-bit camera: 10,000 electrons in the brightest pixel, read noise of 5 electrons
      {simulate} --full-well 10000 --read-noise 5 --bit-depth 12 --output noisy.h5
  the last 28 bands of a cube of your own through a mask of your own, dispersed to the left
      {simulate} --cube cloth.mat --num-bands 28 --mask mask.mat --step -2 --output cloth.h5
  another arrangement, wide, in 16 bands of your choice, through a blue-noise mask that is 30 % open
      {simulate} --seed 7 --size 256x384 --wavelengths 420:720:16 --mask blue-noise \\
          --transmission 0.3 --output wide.h5
  four shots of one scene, each through another mask; a double disperser; a video camera
      {simulate} --shots 4 --output shots.h5
      {simulate} --optics dd --output double.h5
      {simulate} --optics cacti --num-bands 8 --output video.h5
  sixteen frames of a scene that moves by 0.8 pixels a frame, to be reconstructed with --sequence
      {simulate} --frames 16 --full-well 10000 --output film.h5
  a color photograph of the scene beside it, for {reconstruct} --side
      {simulate} --side photo.png --output scene.h5
  frames for a calibration, captured on a simulated optical bench, and a snapshot: 12-bit PNG in a folder
      {simulate} --bench bench
then
      {reconstruct} --measurement noisy.h5

The output holds /measurement, /mask, /shifts, /wavelengths and the truth /cube.
The same seed gives the same scene, mask and noise.
"""

MASK_KINDS = ("binary", "grey", "blue-noise")
BENCH_SIZE = (128, 128)  # of the frames of a bench [pixel]


def run(args: argparse.Namespace) -> int:
    """Make the scene and the mask, photograph, write, report.

    Raises:
        InputError: an argument that cannot be.
    """
    if (args.bench is None) == (args.output is None):
        raise InputError("give --output FILE for a measurement, or --bench DIR for the frames of a calibration")
    try:
        return run_bench(args) if args.bench is not None else run_scene(args)
    except InputError:
        raise
    except ValueError as error:  # the library's word for an argument that cannot be
        raise InputError(one_line(error, limit=1000)) from error


def check_files(args: argparse.Namespace) -> None:
    """Raise InputError where what is to be written cannot be, or would replace what is read."""
    from cassi.files import check_output
    from cassi.files.atomic import check_place

    if Path(args.output).suffix.lower() not in (".h5", ".hdf5"):
        raise InputError(f"{args.output}: measurements are written to HDF5, expected the suffix .h5 or .hdf5")
    check_output(args.output, args.overwrite)
    for made in (args.output, args.side):
        if made:
            keep_inputs(made, [args.mask, args.cube, args.wavelengths])
    if args.side is not None:
        if args.optics == "cacti":
            raise InputError("a photograph shows no frames of a video; leave out --side or --optics cacti")
        if Path(args.side).suffix.lower() != ".png":
            raise InputError(f"{args.side}: the photograph is written as PNG, expected the suffix .png")
        check_place(args.side, args.overwrite)


def run_scene(args: argparse.Namespace) -> int:
    """Photograph a scene."""
    import torch

    from cassi.files import write_measurement
    from cassi.optics.detector import round_to_bits
    from cassi.optics.geometry import shifts_from_step
    from cassi.optics.measurement import Measurement
    from cassi.simulation.camera import moving, simulate
    from cassi.version import PROGRAM

    check_files(args)
    # One stream of random numbers each, so that another mask or camera does not change the scene.
    scene_source, mask_source, noise_source = (
        torch.Generator().manual_seed((args.seed % 2**32) * 3 + k) for k in range(3)
    )
    mask = None if args.mask in MASK_KINDS else read_mask(args.mask)
    cube, wavelengths = make_cube(args, None if mask is None else mask.shape[-2:], scene_source)
    if not math.isfinite(args.motion):
        raise InputError(f"--motion must be a number of pixels, got {args.motion}")
    if args.frames < 1 or (args.frames > 1 and args.shots > 1):
        raise InputError(f"--frames must be at least 1, and 1 with several shots, got {args.frames}")
    if args.truth_bits is not None:
        if not 1 <= args.truth_bits <= 20:
            raise InputError(f"--truth-bits must be 1 to 20, got {args.truth_bits}")
        cube = round_to_bits(cube, args.truth_bits)
    if args.frames > 1:
        cube = moving(cube, args.frames, args.motion)
    shifts = shifts_from_step(0 if args.optics == "cacti" else args.step, cube.shape[-3])
    mask = make_masks(args, mask, cube.shape[-3:], shifts, mask_source)
    shot = simulate(
        cube,
        mask,
        shifts,
        optics=args.optics,
        shots=args.shots,
        full_well=args.full_well,
        read_noise=args.read_noise,
        bit_depth=args.bit_depth,
        generator=noise_source,
    )
    measurement = Measurement(
        y=shot.y.numpy(),
        mask=mask.numpy(),
        shifts=shifts,
        wavelengths=wavelengths,
        cube=None if args.no_truth else cube.numpy(),
        unit="relative radiance",
        scale=1.0 if shot.count is None else 1 / shot.count,
        gain=shot.gain,
        read_noise=shot.read_noise,
        shots=None if args.shots == 1 else args.shots,
    )
    attributes = {
        "command_line": command_line(args),
        "version": PROGRAM,
        "scene": Path(args.cube).name if args.cube else args.scene,
        "mask_kind": args.mask if args.mask in MASK_KINDS else Path(args.mask).name,
        "step": 0 if args.optics == "cacti" else args.step,
        "optics": args.optics,
        "num_bands": len(shifts),
        "seed": args.seed,
        "full_well": args.full_well,
        "bit_depth": args.bit_depth,
        "noise_model": noise_model(shot),
    }
    write_measurement(args.output, measurement, attributes=attributes, overwrite=args.overwrite)
    if args.side is not None:
        write_side(args, cube, wavelengths)
    height, width = shot.y.shape[-2:]
    say(
        args,
        f"{len(shifts)} bands of {cube.shape[-2]} x {cube.shape[-1]} px, step {args.step} px, mask {args.mask} "
        f"(mean {mask.mean().item():.3f}), {taken(args)}, "
        f"detector {height} x {width} px, {noise_model(shot)} -> {args.output}",
    )
    return 0


def taken(args: argparse.Namespace) -> str:
    """What was photographed, in words."""
    if args.frames > 1:
        return f"{args.frames} frames of a scene that moves by {args.motion:g} px from one to the next"
    return "snapshot" if args.shots == 1 else f"{args.shots} shots"


def write_side(args: argparse.Namespace, cube: torch.Tensor, wavelengths: np.ndarray | None) -> None:
    """Photograph the scene with the second camera, which counts as many electrons as the first."""
    import torch

    from cassi.files.side_pictures import response_curves, write_side_picture
    from cassi.optics.similarity import Similarity
    from cassi.simulation.side_camera import side_photograph

    curves = torch.from_numpy(response_curves(args.side_response, wavelengths, cube.shape[-3]))
    picture = side_photograph(
        cube, curves, pose=Similarity(*args.side_pose), full_well=args.full_well, read_noise=args.read_noise,
        generator=torch.Generator().manual_seed((args.seed % 2**32) * 3 + 3),
    )  # fmt: skip
    write_side_picture(args.side, picture.numpy(), overwrite=args.overwrite)
    say(args, f"side picture of {picture.shape[0]} x {picture.shape[1]} px -> {args.side}")


def run_bench(args: argparse.Namespace) -> int:
    """Capture everything on a simulated optical bench.

    Raises:
        InputError: options that a bench does not take, or a folder with something in it.
    """
    import torch

    from cassi.simulation.optical_bench import simulate_bench, write_bench

    taken = ("--size", "--num-bands", "--step", "--seed", "--bench", "--frame-format", "--quiet", "--debug")
    ignored = [o.name for o in options_of("simulate") if o.name not in taken and o.given(args)]
    if ignored:
        names = ", ".join(ignored)
        raise InputError(f"--bench takes --size, --num-bands, --step and --seed; leave out {names}")
    height, width = args.size or BENCH_SIZE
    bench = simulate_bench(
        height,
        width,
        num_bands=args.num_bands or 28,
        step=args.step,
        generator=torch.Generator().manual_seed(args.seed),
    )
    files = write_bench(args.bench, bench, frame_format=args.frame_format)
    say(
        args,
        f"{len(bench.dark)} dark, {len(bench.flat)} flat and {len(bench.mask_frames)} mask frames of "
        f"{bench.snapshot.shape[0]} x {bench.snapshot.shape[1]} px, a snapshot, the truth -> {files[0].parent}/",
    )
    return 0


def make_cube(
    args: argparse.Namespace, mask_size: torch.Size | None, generator: torch.Generator
) -> tuple[torch.Tensor, np.ndarray | None]:
    """The truth (C, H, W) and its wavelengths, painted or read."""
    import torch

    from cassi.files import read_cube
    from cassi.files.wavelength_files import parse_wavelengths
    from cassi.simulation.scene import procedural_scene

    if args.num_bands is not None and not 1 <= args.num_bands <= 10_000:
        raise InputError(f"--num-bands must lie in 1..10000, got {args.num_bands}")
    if args.cube is None:
        # A range start:stop:count brings its own count; so may a preset, a list or a file.
        count = args.num_bands if args.num_bands is not None else stated_count(args.wavelengths) or 28
        evenly = f"450:650:{count}" if count > 1 else "450"
        chosen = parse_wavelengths(args.wavelengths or evenly, count)
        if chosen is None:
            raise InputError("a painted scene needs wavelengths: its colors depend on them")
        height, width = args.size or mask_size or (256, 256)
        if min(height, width) < 8:
            raise InputError(
                f"a painted scene needs at least 8 x 8 pixels, got {height} x {width}; give a larger --size"
            )
        return procedural_scene(height, width, torch.from_numpy(chosen), generator=generator), chosen
    values, wavelengths = read_cube(args.cube, key=args.key)
    count = args.num_bands or values.shape[-3]
    if count > values.shape[-3]:
        raise InputError(f"{args.cube} has {values.shape[-3]} bands, --num-bands asks for {count}")
    values = values[..., values.shape[-3] - count :, :, :]
    wavelengths = None if wavelengths is None else wavelengths[len(wavelengths) - count :]
    if args.wavelengths:
        wavelengths = parse_wavelengths(args.wavelengths, count)
    height, width = args.size or values.shape[-2:]
    if height > values.shape[-2] or width > values.shape[-1]:
        raise InputError(f"{args.cube} has {values.shape[-2]} x {values.shape[-1]} px, --size asks for more")
    top, left = (values.shape[-2] - height) // 2, (values.shape[-1] - width) // 2
    return torch.from_numpy(values[..., top : top + height, left : left + width].copy()), wavelengths


def stated_count(wavelengths: str | None) -> int | None:
    """How many bands the text names: "450:650:28", a list, or a preset; None for a file."""
    from cassi.optics.wavelengths import PRESETS

    if wavelengths is None:
        return None
    preset = PRESETS.get(wavelengths.strip().lower())
    if preset is not None:
        return len(preset.wavelengths)
    if match := re.fullmatch(r"[^:]+:[^:]+:(\d{1,4})", wavelengths.strip()):
        return int(match[1])
    return wavelengths.count(",") + 1 if "," in wavelengths else None


def read_mask(path: str) -> torch.Tensor:
    """A coded aperture (H, W) or (C, H, W) from a file."""
    import torch

    from cassi.files import open_container
    from cassi.files.names import MASK, pick
    from cassi.files.scaling import mask_to_float32

    if not Path(path).exists():
        raise InputError(f"--mask {path}: neither {', '.join(MASK_KINDS)} nor a file")
    container = open_container(Path(path))
    entry, _ = pick(container, MASK, "mask")
    return torch.from_numpy(mask_to_float32(container.read(entry), f"{path}: '{entry.name}'")[0])


def make_mask(
    args: argparse.Namespace, mask: torch.Tensor | None, wanted: Sequence[int], generator: torch.Generator
) -> torch.Tensor:
    """The coded aperture, drawn; or read, its middle if it is larger than the scene."""
    from cassi.simulation.camera import random_mask

    height, width = wanted
    if mask is None:
        return random_mask(height, width, kind=args.mask, transmission=args.transmission, generator=generator)
    if mask.shape[-2] < height or mask.shape[-1] < width:
        raise InputError(
            f"{args.mask} has {mask.shape[-2]} x {mask.shape[-1]} px, fewer than the scene's {height} x {width}: "
            "reduce --size"
        )
    top, left = (mask.shape[-2] - height) // 2, (mask.shape[-1] - width) // 2
    return mask[..., top : top + height, left : left + width].contiguous()


def make_masks(
    args: argparse.Namespace,
    given: torch.Tensor | None,
    wanted: Sequence[int],
    shifts: Sequence[int],
    generator: torch.Generator,
) -> torch.Tensor:
    """The masks of all shots and frames, (K, ...) where there are several shots; drawn, or from a stack in a file.

    Raises:
        InputError: a file with another number of masks.
    """
    from cassi.simulation.camera import stacked

    bands, height, width = wanted[-3:]
    wide = width + max(shifts) - min(shifts) if args.optics == "dd" else width
    frames = bands if args.optics == "cacti" else 1
    if args.shots < 1:
        raise InputError(f"--shots must be at least 1, got {args.shots}")
    count = args.shots * frames
    if count == 1:
        return make_mask(args, given, (height, wide), generator)
    if given is None:
        drawn = [make_mask(args, None, (height, wide), generator) for _ in range(count)]
    elif given.ndim == 3 and len(given) == count:
        drawn = [make_mask(args, one, (height, wide), generator) for one in given]
    else:
        raise InputError(f"{args.mask} holds masks {tuple(given.shape)}, expected a stack of {count}, one each")
    return stacked(drawn, args.shots, frames)


def noise_model(shot: Snapshot) -> str:
    """The noise in words, for the file and the report."""
    parts = []
    if shot.gain is not None:
        parts.append(f"photon noise at {shot.gain:.6g} e per unit")
        parts.append(f"read noise {shot.read_noise:g} e")
    if shot.count is not None:
        parts.append(f"steps of {shot.count:.6g}")
    return ", ".join(parts) or "no noise"
