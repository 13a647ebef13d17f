#!/usr/bin/env python
"""Measure the package against the usual ways to do the same; prints Markdown."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, else announces itself


def parse(argv: list[str] | None) -> argparse.Namespace:
    data = argparse.ArgumentParser(add_help=False)
    data.add_argument(
        "--data", type=Path, help="folder with kaist/*.h5, cave/*.mat and cave_train/*.h5 (default: a painted scene)"
    )
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("speed", help="operators and solvers: time, memory, growth", parents=[data])
    one.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: %(default)s")
    one.add_argument("--quick", action="store_true", help="small sizes, within a minute")
    words = "whole commands, from start to picture, also beside another checkout"
    one = commands.add_parser("commands", help=words, parents=[data])
    one.add_argument("--against", type=Path, metavar="FOLDER", help="a checkout that is run in turn with this one")
    words = "every solver on every scene, clean and noisy, and real captures"
    one = commands.add_parser("quality", help=words, parents=[data])
    one.add_argument("--quick", action="store_true", help="the painted scene alone, small")
    words = "auto alone, with these weights, on windows of CAVE scenes too"
    one.add_argument("--weights", metavar="NAME", help=words)
    one = commands.add_parser("tiles", help="frames in tiles: agreement with the whole frame, seams, memory")
    words = "also the memory of a 2048 x 2048 x 28 frame (an hour)"
    one.add_argument("--large", action="store_const", const=2048, default=0, help=words)
    one.add_argument("--iterations", type=int, dest="num_iters", help="of each solver (default: its own choice)")
    words = "what calibration, a search for the camera and more snapshots are worth"
    one = commands.add_parser("camera", help=words, parents=[data])
    one.add_argument("--trials", type=int, default=6, help="random poses a scene (default: %(default)s)")
    one = commands.add_parser("coverage", help="how many true errors lie within the uncertainty", parents=[data])
    one.add_argument("--quick", action="store_true", help="two small windows of the painted scene")
    one = commands.add_parser("side", help="what a photograph from beside the camera is worth", parents=[data])
    one.add_argument("--scenes", type=int, choices=range(1, 11), metavar="1..10", default=10, help="default: 10")
    one.add_argument("--size", type=int, default=256, help="of the windows [pixel] (default: %(default)s)")
    words = "what further shots of a scene, and the frames beside it, are worth"
    one = commands.add_parser("shots", help=words, parents=[data])
    one.add_argument("--size", type=int, default=256, help="of the windows [pixel] (default: %(default)s)")
    words = "the default on snapshots of a mosaic sensor, beside interpolation"
    one = commands.add_parser("mosaic", help=words, parents=[data])
    one.add_argument("--scenes", type=int, choices=range(1, 11), metavar="1..10", default=10, help="default: 10")
    one.add_argument("--size", type=int, default=128, help="of the windows [pixel] (default: %(default)s)")
    one.add_argument("--figure", type=Path, metavar="FILE.png", help="draw the painted scene")
    words = "what a number set by hand is worth: the default beside the same with another value of it"
    one = commands.add_parser("ablate", help=words, parents=[data])
    words = "a constant of a module, choice.stages.STRIDE=4, and its other value"
    one.add_argument("changes", nargs="+", metavar="NAME=VALUE", help=words)
    one.add_argument("--size", type=int, default=128, help="of the windows [pixel] (default: %(default)s)")
    one.add_argument("--scenes", type=int, choices=range(1, 7), metavar="1..6", default=6, help="default: 6")
    one.add_argument("--noise", action="append", choices=["clean", "10,000 e", "1,000 e"], dest="noises", help="all")
    one.add_argument("--quality", choices=["fast", "default", "best"], default="default", help="default: %(default)s")
    one.add_argument("--output", type=Path, metavar="FILE.csv", help="lines are added to it")
    words = "simulated captures of a microscope and another camera, through masks that are wrong"
    one = commands.add_parser("twin", help=words)
    one.add_argument("--size", type=int, default=160, help="of the scenes [pixel] (default: %(default)s)")
    one.add_argument("--seeds", type=int, choices=range(1, 10), metavar="1..9", default=3, help="default: 3")
    kinds = ["cells", "fibres", "glass", "objects"]
    one.add_argument("--scene", action="append", choices=kinds, dest="scenes", help="default: all")
    one.add_argument("--white", action="store_true", help="errors of masks without correlation alone")
    one.add_argument("--output", type=Path, metavar="FILE.csv", help="all captures")
    one = commands.add_parser("workers", help="frames a minute against the number of workers")
    one.add_argument("--figure", type=Path, metavar="FILE.png", help="draw it")
    words = "a GPU against the CPU: speed, profiles and tests, within six minutes"
    one = commands.add_parser("gpu", help=words)
    words = "cpu shows that everything runs (default: %(default)s)"
    one.add_argument("--device", choices=["cpu", "cuda"], default="cuda", help=words)
    one.add_argument("--size", type=int, default=256, help="of the scene [pixel] (default: %(default)s)")
    one.add_argument("--bands", type=int, default=28, help="of the camera (default: %(default)s)")
    words = "after which nothing more is measured [s] (default: %(default)s)"
    one.add_argument("--budget", type=float, default=340.0, help=words)
    one.add_argument("--no-tests", action="store_false", dest="tests", help="without its tests")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = vars(parse(argv))
    try:
        print(f"\n{tables(args.pop('command'), args)}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def tables(command: str, options: dict[str, object]) -> str:
    """Those of a command; what measures them is imported now, as it takes seconds."""
    data = options.get("data")
    if isinstance(data, Path) and not data.is_dir():
        raise ValueError(f"{data} is not a folder")
    if command in ("side", "shots") and data is None:
        raise ValueError("these tables need true cubes; give --data FOLDER")
    if options.get("noises", ()) is None:
        del options["noises"]
    if "device" in options:
        import torch

        if options["device"] == "cuda" and not torch.cuda.is_available():
            raise ValueError("there is no CUDA device here: nothing was measured")
        options["device"] = torch.device(str(options["device"]))
    found: str = getattr(import_module(f"benchmarks.{command}"), command)(**options)
    return found


if __name__ == "__main__":
    sys.exit(main())
