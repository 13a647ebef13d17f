#!/usr/bin/env python3
"""Train the learned prior: any mask, step, band list and noise."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from pathlib import Path

EXAMPLES = """\
examples:
  ten minutes on two CPU cores, one of which makes examples; gone on with later for an hour in all
      python scripts/train.py --data FOLDER --output run --minutes 10
      python scripts/train.py --data FOLDER --output run --minutes 60
  on a GPU, sixteen scenes for each camera at a time, sixteen processes that make examples
      python scripts/train.py --data FOLDER --output run --minutes 10 --scenes 16 --workers 16 --device cuda
  an hour more for the weights that come with the program, in smaller steps
      python scripts/train.py --data FOLDER --output more --weights cassi/priors/learned.safetensors --rate 3e-4
then
      python scripts/reconstruct.py --measurement scene.h5 --prior learned --weights run/weights.safetensors

FOLDER holds cave_train/*.h5 (`cube_sqrt`, (31, H, W) uint8, square root of the radiance at 400 to 700 nm), and where
photographs are to be used rgb_train/*.jpg and spectra/sfu1995_400_700_10nm.npz (`reflectance`). The output holds the
checkpoint, the examples, the curve as a figure and the weights.
exit codes: 0 done, 1 the computation failed, 2 the input or the output cannot be used, 130 interrupted (the last
checkpoint is at most a minute old: the same command goes on from it)
"""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="scenes to train with")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="of checkpoint, curve and weights")
    parser.add_argument("--minutes", type=float, default=60.0, help="of training in all (default 60)")
    parser.add_argument("--files", type=int, default=100, help="files of 16 cameras to make (default 100)")
    parser.add_argument("--workers", type=int, default=1, help="processes that make examples (default 1)")
    parser.add_argument("--cameras", type=int, default=4, help="in a batch (default 4)")
    parser.add_argument("--scenes", type=int, default=1, help="for each camera (default 1; a GPU needs some 16)")
    parser.add_argument("--size", default="96x128", help="of an example, height x width [pixel] (default 96x128)")
    parser.add_argument("--rate", type=float, default=6e-4, help="of learning, at most (default 6e-4)")
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="to begin with, of a training before, which then correct most of the starts, up to five times; "
        "--stages and --width are theirs",
    )
    parser.add_argument("--stages", type=int, default=1, help="times the network is applied (default 1)")
    parser.add_argument("--width", type=int, default=64, help="channels at half the resolution (default 64)")
    parser.add_argument("--seed", type=int, default=0, help="of network and examples (default 0)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, cuda:1 ...")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    return parser.parse_args(arguments)


def check_numbers(args: argparse.Namespace) -> tuple[int, int]:
    """Height and width of an example.

    Raises:
        ValueError: a number that cannot be.
    """
    for name in ("files", "workers", "cameras", "scenes", "stages", "width"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(args, name)}")
    for name in ("minutes", "rate"):
        if not 0 < getattr(args, name) < float("inf"):
            raise ValueError(f"--{name} must be positive, got {getattr(args, name)}")
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", args.size)
    if found is None:
        raise ValueError(f"--size must be height x width as in 96x128, got {args.size}")
    return int(found[1]), int(found[2])


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
    # the small problems of one example gain nothing from threads; workers inherit this
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("NUMBA_NUM_THREADS", "1")
    from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
    from multiprocessing import active_children, get_context

    import torch
    from training.loop import Pool, Settings, Training, leave_with_parent, make_file, new_prior
    from training.scenes import load_scenes

    from cassi.priors.learned import Size, load_prior

    try:
        height, width = check_numbers(args)
        load_scenes(args.data).check_size(height, width)
        size = Size(stages=args.stages, width=args.width, deep_width=args.width * 3 // 2)
        prior = load_prior(args.weights) if args.weights else new_prior(size, args.seed)
    except (ValueError, OSError) as error:
        print(f"train: error: {error}", file=sys.stderr)
        return 2
    rows = min(64, height)
    settings = Settings(args.minutes, args.cameras, args.scenes, args.rate, rows, height, width, args.seed)
    training = Training(args.output, prior, settings, torch.device(args.device))
    folder = args.output / "examples"
    pool = Pool(folder)
    with ProcessPoolExecutor(args.workers, get_context("spawn"), leave_with_parent) as makers:
        try:
            made = [
                makers.submit(make_file, args.data, folder, n, settings, training.prior.size.components, args.weights)
                for n in range(args.files)
            ]
            while not pool.refresh() and not pool.groups:
                for future in wait(made, timeout=1, return_when=FIRST_COMPLETED).done:
                    future.result()
            training.run(pool, bar=not args.quiet)
        except (KeyboardInterrupt, SystemExit) as left:
            training.save()
            print("train: error: interrupted; the same command goes on from here", file=sys.stderr)
            return 130 if isinstance(left, KeyboardInterrupt) else 128 + signal.SIGTERM
        except (ArithmeticError, RuntimeError, ValueError, OSError) as error:
            print(f"train: error: {error}", file=sys.stderr)
            return 1
        finally:
            for maker in active_children():  # a file takes a minute to make
                maker.terminate()
            makers.shutdown(cancel_futures=True)
            for half in folder.glob("*.partial*"):
                half.unlink(missing_ok=True)
    training.draw(args.output / "training.png")
    digest = training.export(args.output / "weights.safetensors")
    print(f"{args.output / 'weights.safetensors'}: sha256 {digest}")
    return 0


if __name__ == "__main__":
    from cassi.cli.main import program

    program(main)
