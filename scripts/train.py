#!/usr/bin/env python3
"""Train the learned prior: any mask, step, band list and noise."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

EXAMPLES = """\
examples:
  ten minutes on two CPU cores; gone on with later for an hour in all
      python scripts/train.py --data FOLDER --output run --minutes 10
      python scripts/train.py --data FOLDER --output run --minutes 60
  on a GPU; all CPU cores but one draw examples for it
      python scripts/train.py --data FOLDER --output run --minutes 10 --device cuda --rate 8e-4
  more for the weights that come with the program, on a GPU: two cores no longer better them
      python scripts/train.py --data FOLDER --output more --minutes 10 --device cuda --rate 8e-4 \\
          --weights cassi/priors/learned.safetensors
  for one camera alone, from those weights; steps of few looks make them worse
      python scripts/train.py --data FOLDER --output mine --camera camera.h5 --minutes 120 --rate 2e-4 --cameras 8
then
      python scripts/reconstruct.py --measurement scene.h5 --weights run/weights.safetensors

FOLDER holds cave_train/*.h5 (`cube_sqrt`, (31, H, W) uint8, square root of the radiance at 400 to 700 nm); for
photographs rgb_train/*.jpg and spectra/sfu1995_400_700_10nm.npz (`reflectance`); for measured masks kaist/scene01.h5 or
*_real/mask.mat (`mask`). The output holds the checkpoint and the weights.
exit codes: 0 done, 1 the computation failed, 2 the input or the output cannot be used, 130 interrupted (the last
checkpoint is at most a minute old: the same command goes on from it)
"""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="scenes to train with")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="of checkpoint and weights")
    parser.add_argument("--minutes", type=float, default=60.0, help="of training in all (default 60)")
    parser.add_argument("--processes", type=int, help="that share a batch (default: one for each CPU core, 1 on a GPU)")
    parser.add_argument(
        "--makers", type=int, metavar="N",
        help="CPU cores that draw examples for each process while it trains (default: all but one on a GPU, else none)",
    )  # fmt: skip
    parser.add_argument("--cameras", type=int, default=2, help="in a batch, for each process (default 2)")
    parser.add_argument("--scenes", type=int, help="for each camera (default 1, 16 on a GPU)")
    parser.add_argument("--size", default="80x160", help="of an example, height x width [pixel] (default 80x160)")
    parser.add_argument("--rate", type=float, default=5e-4, help="of learning, at most (default 5e-4)")
    parser.add_argument("--weights", type=Path, metavar="FILE", help="to begin with, of a training before")
    parser.add_argument(
        "--camera", type=Path, metavar="FILE",
        help="train for this camera alone: one that was saved (reconstruct.py --save-camera), a calibration or a "
        "measurement with its mask; begins with the weights of the program",
    )  # fmt: skip
    parser.add_argument("--stages", type=int, default=4, help="times the network is applied (default 4)")
    parser.add_argument("--seed", type=int, default=0, help="of network and examples (default 0)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1 ..., auto")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args(arguments)


def check_numbers(args: argparse.Namespace) -> tuple[int, int]:
    """Height and width of an example.

    Raises:
        ValueError: a number that cannot be.
    """
    for name in ("processes", "cameras", "scenes", "stages"):
        if getattr(args, name) is not None and getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    if args.makers is not None and args.makers < 0:
        raise ValueError(f"--makers must be at least 0, got {args.makers}")
    for name in ("minutes", "rate"):
        if not 0 < getattr(args, name) < float("inf"):
            raise ValueError(f"--{name} must be positive, got {getattr(args, name)}")
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", args.size)
    if found is None:
        raise ValueError(f"--size must be height x width as in 80x160, got {args.size}")
    if min(int(found[1]), int(found[2])) < 8:
        raise ValueError(f"--size must be at least 8 x 8, got {args.size}")
    return int(found[1]), int(found[2])


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
    from torch import multiprocessing
    from training.examples import read_camera
    from training.loop import Settings, Training, train
    from training.scenes import load_scenes

    from cassi.kernels.dispatch import pick_device
    from cassi.priors.learned import WEIGHTS, load_prior

    ended_early = (multiprocessing.ProcessRaisedException, multiprocessing.ProcessExitedException)
    try:
        size = check_numbers(args)
        args.device = str(pick_device(args.device))
        load_scenes(args.data).check_size(*size)
        if args.camera:
            read_camera(args.camera).check_size(size)
            args.weights = args.weights or WEIGHTS
        if args.weights:
            load_prior(args.weights)
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        processes = args.processes or (cores if args.device == "cpu" else 1)
        if args.makers is None:
            args.makers = 0 if args.device == "cpu" else max(0, cores // processes - 1)
        args.scenes = args.scenes or (1 if args.device == "cpu" else 16)
        given = {name: value for name, value in vars(args).items() if name != "quiet"}
        settings = Settings(**given | {"size": size, "processes": processes})
        begun = Training(settings)  # its checkpoint, its device
    except (ValueError, OSError, RuntimeError) as error:
        print(f"train: error: {error}", file=sys.stderr)
        return 2
    if begun.progress.step:
        done = begun.progress.seconds / 60
        more = "; it has had its time, give it more --minutes" if done >= args.minutes else ""
        print(f"goes on from {begun.checkpoint} ({done:.1f} of {args.minutes:g} min) with the network in it{more}")
    try:
        if processes == 1:
            train(0, settings, "", not args.quiet)
        else:  # single threads are faster than as many that work on one small convolution together
            with tempfile.TemporaryDirectory() as folder:
                meeting = str(Path(folder) / "meeting")
                together = multiprocessing.spawn(train, (settings, meeting, not args.quiet), processes, join=False)
                try:
                    while not together.join():
                        pass
                finally:
                    for process in together.processes:
                        process.terminate()
    except (KeyboardInterrupt, SystemExit) as left:
        print(
            "train: error: interrupted; the same command goes on from the last checkpoint, if there is one",
            file=sys.stderr,
        )
        return 130 if isinstance(left, KeyboardInterrupt) else 128 + signal.SIGTERM
    except (ArithmeticError, RuntimeError, ValueError, OSError, *ended_early) as error:
        print(f"train: error: {error}", file=sys.stderr)
        return 1
    digest = Training(settings).export(args.output / "weights.safetensors")
    print(f"{args.output / 'weights.safetensors'}: sha256 {digest}")
    return 0


if __name__ == "__main__":
    from cassi.cli.main import program

    program(main)
