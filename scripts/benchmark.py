#!/usr/bin/env python
"""Measure the package against the usual ways to do the same; prints Markdown."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, else announces itself

from benchmarks.sections import replace_section


def parse(argv: list[str] | None) -> argparse.Namespace:
    data, output = (argparse.ArgumentParser(add_help=False) for _ in range(2))
    data.add_argument(
        "--data", type=Path, help="folder with kaist/*.h5, cave/*.mat and cave_train/*.h5 (default: a painted scene)"
    )
    output.add_argument(
        "--output", type=Path, help="also put the tables into their section of this page, such as docs/results.md"
    )
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("speed", help="operators and solvers: time, memory, growth", parents=[data, output])
    one.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: %(default)s")
    one.add_argument("--quick", action="store_true", help="small sizes, within a minute")
    words = "every solver on every scene, clean and noisy, and real captures"
    one = commands.add_parser("quality", help=words, parents=[data, output])
    one.add_argument("--quick", action="store_true", help="the painted scene alone, small")
    one.add_argument("--best", action="store_true", help='also the automatic solver at quality "best"')
    words = "frames in tiles: agreement with the whole frame, seams, memory"
    one = commands.add_parser("tiles", help=words, parents=[output])
    one.add_argument("--large", action="store_true", help="also the memory of a 2048 x 2048 x 28 frame (an hour)")
    one.add_argument("--iterations", type=int, help="of each solver (default: its own choice)")
    words = "what calibration, a search for the camera and more snapshots are worth"
    one = commands.add_parser("camera", help=words, parents=[data, output])
    one.add_argument("--trials", type=int, default=6, help="random poses a scene (default: %(default)s)")
    words = "how many true errors lie within the uncertainty"
    one = commands.add_parser("coverage", help=words, parents=[data, output])
    one.add_argument("--quick", action="store_true", help="two small windows of the painted scene")
    one = commands.add_parser("side", help="what a photograph from beside the camera is worth", parents=[data, output])
    one.add_argument("--scenes", type=int, choices=range(1, 11), metavar="1..10", default=10, help="default: 10")
    one.add_argument("--size", type=int, default=256, help="of the windows [pixel] (default: %(default)s)")
    words = "what further shots of a scene, and the frames beside it, are worth"
    one = commands.add_parser("shots", help=words, parents=[data, output])
    one.add_argument("--size", type=int, default=256, help="of the windows [pixel] (default: %(default)s)")
    words = "a GPU against the CPU: its tests, speed and profiles, within eight minutes"
    one = commands.add_parser("gpu", help=words)
    page = Path(__file__).parents[1] / "docs" / "results.md"
    one.add_argument("--output", type=Path, default=page, help="page with their section (default: docs/results.md)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    try:
        text = run(args)
        if args.output is not None:
            replace_section(
                args.output,
                args.command,
                args.command.upper() if args.command == "gpu" else args.command.capitalize(),
                told(args),
                text,
            )
            print(f"written to {args.output}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(args: argparse.Namespace) -> str:
    """Measure, print and return the tables; those of speed are printed as they come."""
    data = getattr(args, "data", None)
    if data is not None and not data.is_dir():
        raise ValueError(f"{data} is not a folder")
    if args.command in ("side", "shots") and data is None:
        raise ValueError("these tables need true cubes; give --data FOLDER")
    text = tables(args, data)
    if args.command != "speed":
        print(f"\n{text}")
    return text


def tables(args: argparse.Namespace, data: Path | None) -> str:
    """Those of a command; what measures them is imported now, as it takes seconds."""
    match args.command:
        case "speed":
            import torch
            from benchmarks.speed import speed

            if args.device == "cuda" and not torch.cuda.is_available():
                raise ValueError("there is no CUDA device here; use --device cpu")
            return speed(torch.device(args.device), data=data, quick=args.quick)
        case "gpu":
            import torch

            if not torch.cuda.is_available():
                raise ValueError("no CUDA device: nothing was measured")
            from benchmarks.gpu import gpu

            return gpu(torch.device("cuda", 0))
        case "quality":
            from benchmarks.quality import quality

            return quality(data, quick=args.quick, best=args.best)
        case "tiles":
            from benchmarks.tiles import tiles

            return tiles(large=2048 if args.large else 0, num_iters=args.iterations)
        case "side":
            from benchmarks.side import side

            return side(data, scenes=args.scenes, size=args.size)
        case "shots":
            from benchmarks.sequences import sequences
            from benchmarks.shots import shots

            return "\n\n".join([shots(data, size=args.size), sequences(data)])
        case "coverage":
            from benchmarks.coverage import coverage

            return coverage(data, quick=args.quick)
    from benchmarks.camera import camera

    return camera(data, trials=args.trials)


def told(args: argparse.Namespace) -> str:
    """The command that makes these tables again, but for names of files."""
    words = ["python scripts/benchmark.py", args.command]
    for name, value in vars(args).items():
        if name in ("command", "output") or value in (None, False):
            continue
        words.append(f"--{name}" if value is True else f"--{name} {'FOLDER' if isinstance(value, Path) else value}")
    return " ".join(words)


if __name__ == "__main__":
    sys.exit(main())
