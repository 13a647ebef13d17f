#!/usr/bin/env python
"""Measure the package against the usual ways to do the same; prints Markdown."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # torch's profiler, which counts memory, else announces itself

import torch

from cassi.benchmarks.quality import quality
from cassi.benchmarks.speed import speed


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_speed(commands)
    add_quality(commands)
    args = parser.parse_args(argv)
    try:
        text: str = args.run(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if args.output is not None:
        args.output.parent.mkdir(parents=True, exist_ok=True)
        args.output.write_text(f"# {args.title}\n\n`python scripts/benchmark.py {args.command}`\n\n{text}")
        print(f"written to {args.output}")
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
    add_shared(parser)
    parser.set_defaults(run=run_quality, title="Quality")


def add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, help="folder with kaist/*.h5 and cave/*.mat (default: a painted scene)")
    parser.add_argument("--output", type=Path, help="also write the tables to this file, such as docs/results.md")


def run_speed(args: argparse.Namespace) -> str:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("there is no CUDA device here; use --device cpu")
    return speed(torch.device(args.device), data=folder(args.data), quick=args.quick)


def run_quality(args: argparse.Namespace) -> str:
    text = quality(folder(args.data), quick=args.quick, best=args.best)
    print(text)
    return text


def folder(path: Path | None) -> Path | None:
    if path is not None and not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    return path


if __name__ == "__main__":
    sys.exit(main())
