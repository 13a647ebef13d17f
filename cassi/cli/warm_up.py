"""Compile the kernels now, once for a machine, so that no reconstruction waits for it."""

import argparse
import time

import torch

from cassi.cli.shell import say
from cassi.kernels.dispatch import pick_device
from cassi.running.warm_up import warm_up


def run(args: argparse.Namespace) -> int:
    """Small runs on the CPU, which a run on a GPU takes too, and on a GPU that was named."""
    device = pick_device(args.device)
    for place in dict.fromkeys((torch.device("cpu"), device)):
        start = time.perf_counter()
        say(args, f"{warm_up(place, progress=not args.quiet)}, {time.perf_counter() - start:.1f} s")
    return 0
