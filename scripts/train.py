#!/usr/bin/env python3
"""Train the network of the default solver, from photographs and spectra, for any mask, step, bands and noise."""

from __future__ import annotations

import argparse
import os
import re
import sys
from dataclasses import fields
from pathlib import Path

GUIDE = """\
what goes in, a FOLDER with (MODEL_CARD.md names sources)
  free/photographs/*.jpg
  free/spectra.h5      groups `reflectance` and `light` of spectra (N, 31), 400 to 700 nm
and with --measured, for weights that are for research only
  cave_train/*.h5      `cube_sqrt`, (31, H, W) uint8, square root of the radiance
  kaist/scene01.h5 or *_real/mask.mat      `mask`, as measured
--evaluate takes from cave_train, cave and kaist what is there.

what comes out, in the other folder
  weights.safetensors  for cassi reconstruct --weights
  checkpoint.pt        at most a minute old: the same command goes on from it, also with more --minutes
  curve.jsonl          every 50 steps the error after the start and each stage
  evaluation.md        with --evaluate

how long: two CPU cores look at 28,000 examples in 80 minutes, an NVIDIA H100 at 201,000 in 8 minutes. What looks gain
stands in scripts/training/README.md.

examples:
  an hour on CPU cores
      python scripts/train.py --data FOLDER --output run --minutes 60
  another hour, from where that ended
      python scripts/train.py --data FOLDER --output run --minutes 120
  on a GPU, then a table of scenes that were not trained with
      python scripts/train.py --data FOLDER --output run --minutes 12 --device cuda --evaluate
  one network by two processes of one thread, on two cores nearly twice as fast as one, or by several GPUs
      torchrun --nproc-per-node 2 scripts/train.py --data FOLDER --output run --minutes 60
  for one camera alone, from weights that are there
      python scripts/train.py --data FOLDER --output mine --camera camera.h5 --weights run/weights.safetensors
then
      python scripts/reconstruct.py --measurement scene.h5 --weights run/weights.safetensors

exit codes: 0 done, 1 the computation failed, 2 the input or the output cannot be used, 130 interrupted
"""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=GUIDE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="scenes to train with")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="of checkpoint and weights")
    parser.add_argument("--minutes", type=float, default=60.0, help="of training in all (default 60)")
    parser.add_argument("--measured", action="store_true", help="train with measured cubes and masks too")
    parser.add_argument("--cameras", type=int, default=1, help="in a step (default 1)")
    parser.add_argument("--scenes", type=int, help="for each camera (default 4, 64 on a GPU)")
    parser.add_argument("--size", help="of an example, height x width [pixel] (default 64x96, 96x160 on a GPU)")
    parser.add_argument("--rate", type=float, default=8e-4, help="of learning, at most (default 8e-4)")
    parser.add_argument("--weights", metavar="FILE", help="to begin with, of a training before, or free or research")
    parser.add_argument(
        "--camera", type=Path, metavar="FILE",
        help="train for this camera alone: one that was saved (reconstruct.py --save-camera), a calibration or a "
        "measurement with its mask; begins with the weights of the program",
    )  # fmt: skip
    parser.add_argument("--stages", type=int, default=4, help="times the network is applied in a turn (default 4)")
    parser.add_argument("--start", type=int, default=40, help="iterations of total variation before it (default 40)")
    parser.add_argument(
        "--non-local", type=float, metavar="SHARE",
        default=0.8, help="of new examples whose first cube the non-local prior continues, as in the default solver "
        "(default 0.8)",
    )  # fmt: skip
    parser.add_argument("--photographs", type=int, metavar="N", help="at most, for a quick try")
    parser.add_argument("--evaluate", action="store_true", help="measure the weights on scenes that are held out")
    parser.add_argument("--seed", type=int, default=0, help="of network and examples (default 0)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1 ..., auto")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args(arguments)


def checked_size(args: argparse.Namespace) -> tuple[int, int]:
    """Height and width of an example.

    Raises:
        ValueError: a number out of range.
    """
    for name in ("cameras", "scenes", "stages", "photographs"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.start < 3:
        raise ValueError(f"--start must be at least 3, got {args.start}")
    if not 0 <= args.non_local <= 1:
        raise ValueError(f"--non-local must be 0 to 1, got {args.non_local}")
    for name in ("minutes", "rate"):
        if not 0 < getattr(args, name) < float("inf"):
            raise ValueError(f"--{name} must be positive, got {getattr(args, name)}")
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", args.size)
    if found is None:
        raise ValueError(f"--size must be height x width as in 64x96, got {args.size}")
    if min(int(found[1]), int(found[2])) < 16:
        raise ValueError(f"--size must be at least 16 x 16, got {args.size}")
    return int(found[1]), int(found[2])


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
    import torch
    import torch.distributed as dist
    from training.cameras import read_camera
    from training.evaluate import evaluate, table
    from training.loop import Settings, Training, described

    from cassi.files.atomic import write_text
    from cassi.kernels.dispatch import pick_device
    from cassi.priors.learned import DEFAULT, load_prior

    try:
        device = pick_device(args.device)
        if dist.is_torchelastic_launched():  # by torchrun
            dist.init_process_group()
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if device.type == "cuda" else device
        args.device, on_gpu = str(device), device.type == "cuda"
        args.scenes = (64 if on_gpu else 4) if args.scenes is None else args.scenes
        args.size = args.size or ("96x160" if on_gpu else "64x96")
        args.size = checked_size(args)
        if args.camera:
            read_camera(args.camera).check_size(args.size)
            args.weights = args.weights or DEFAULT
        if args.weights:
            load_prior(args.weights)
        args.start_iters, args.limit = args.start, args.photographs
        training = Training(Settings(**{f.name: getattr(args, f.name) for f in fields(Settings)}))
        len(training.scenes.photographs)  # read now, while it is the input's fault that they cannot be
    except (ValueError, OSError, RuntimeError) as error:
        print(f"train: error: {error}", file=sys.stderr)
        return 2
    first = not training.rank
    if training.progress.step and first:
        done = training.progress.seconds / 60
        more = "; it has had its time, give it more --minutes" if done >= args.minutes else ""
        print(f"resumes {training.checkpoint} ({done:.1f} of {args.minutes:g} min) with the network in it{more}")
    if first:
        print(f"on {described(device)}{f', {training.processes} processes' * (training.processes > 1)}")
    try:
        training.run(bar=first and not args.quiet)
        if not first:
            return 0
        weights = args.output / "weights.safetensors"
        print(f"{weights}: sha256 {training.export(weights)}")
        if args.evaluate:
            report = None if args.quiet else print
            scores = evaluate(load_prior(weights), args.data, device, start_iters=args.start, report=report)
            write_text(args.output / "evaluation.md", table(scores) + "\n")
            print(table(scores))
    except (KeyboardInterrupt, SystemExit) as left:
        print(
            "train: error: interrupted; the same command resumes from the last checkpoint, if there is one",
            file=sys.stderr,
        )
        return 130 if isinstance(left, KeyboardInterrupt) else int(left.code or 0)  # of the signal
    except FileNotFoundError as error:
        print(f"train: error: {error}", file=sys.stderr)
        return 2
    except (ArithmeticError, RuntimeError, ValueError, OSError) as error:
        print(f"train: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    from cassi.cli.main import program

    program(main)
