#!/usr/bin/env python
"""Measure the package against the usual ways to do the same; prints Markdown."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, else announces itself

import torch
from benchmarks.camera import camera
from benchmarks.quality import quality
from benchmarks.sections import replace_section
from benchmarks.sequences import sequences
from benchmarks.shots import shots
from benchmarks.speed import speed
from benchmarks.tiles import tiles


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_speed(commands)
    add_quality(commands)
    add_tiles(commands)
    add_camera(commands)
    add_shots(commands)
    args = parser.parse_args(argv)
    try:
        text: str = args.run(args)
        if args.output is not None:
            replace_section(args.output, args.command, args.title, told(args), text)
            print(f"written to {args.output}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def add_speed(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("speed", help="operators and solvers: time, memory, growth")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes, within a minute")
    add_shared(parser)
    parser.set_defaults(run=run_speed, title="Speed")


def add_quality(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("quality", help="every solver on every scene, clean and noisy, and real captures")
    parser.add_argument("--quick", action="store_true", help="the painted scene alone, small")
    parser.add_argument("--best", action="store_true", help='also the automatic solver at quality "best"')
    parser.add_argument("--plans", action="store_true", help="also how far the automatic plan is behind the best one")
    add_shared(parser)
    parser.set_defaults(run=run_quality, title="Quality")


def add_tiles(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("tiles", help="frames in tiles: agreement with the whole frame, seams, memory")
    parser.add_argument("--large", action="store_true", help="also the memory of a 2048 x 2048 x 28 frame (an hour)")
    parser.add_argument("--iterations", type=int, help="of each solver (default: its own choice)")
    add_output(parser)
    parser.set_defaults(run=run_tiles, title="Tiles")


def add_camera(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("camera", help="what calibration, alignment and more snapshots are worth")
    parser.add_argument("--trials", type=int, default=6, help="random poses a scene (default: %(default)s)")
    add_shared(parser)
    parser.set_defaults(run=run_camera, title="Camera")


def add_shots(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("shots", help="what further shots, and the frames beside it, are worth")
    parser.add_argument("--size", type=int, default=256, help="of the windows [pixel] (default: %(default)s)")
    parser.add_argument("--windows", type=int, default=10, help="scenes (default: %(default)s)")
    add_shared(parser)
    parser.set_defaults(run=run_shots, title="Several shots and sequences")


def add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="folder with kaist/*.h5 and cave/*.mat (default: a painted scene)")
    add_output(parser)


def add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--output", type=Path, help="also put the tables into their section of this page, such as docs/results.md"
    )


def told(args: argparse.Namespace) -> str:
    """The command that makes these tables again, but for names of files."""
    words = ["python scripts/benchmark.py", args.command]
    for name, value in vars(args).items():
        if name in ("command", "output", "run", "title") or value in (None, False):
            continue
        words.append(f"--{name}" if value is True else f"--{name} {'FOLDER' if isinstance(value, Path) else value}")
    return " ".join(words)


def run_speed(args: argparse.Namespace) -> str:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return speed(torch.device(args.device), data=folder(args.data), quick=args.quick)


def run_quality(args: argparse.Namespace) -> str:
    text = quality(folder(args.data), quick=args.quick, best=args.best, plans=args.plans)
    print(text)
    return text


def run_tiles(args: argparse.Namespace) -> str:
    text = tiles(large=2048 if args.large else 0, num_iters=args.iterations)
    print(text)
    return text


def run_camera(args: argparse.Namespace) -> str:
    text = camera(folder(args.data), trials=args.trials)
    print("\n" + text)
    return text


def run_shots(args: argparse.Namespace) -> str:
    data = folder(args.data)
    if data is None or not (data / "cave_train").is_dir():
        raise ValueError("this needs --data FOLDER with cave_train/*.h5")
    text = f"{shots(data, size=args.size, windows=args.windows)}\n\n{sequences(data, size=args.size)}"
    print("\n" + text)
    return text


def folder(path: Path | None) -> Path | None:
    if path is not None and not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    return path


if __name__ == "__main__":
    sys.exit(main())
