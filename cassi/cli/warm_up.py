"""Compile the kernels now, once for a machine, so that no reconstruction waits for it."""

from __future__ import annotations

import argparse
import time

from cassi.cli.shell import say
from cassi.kernels import warm_up
from cassi.kernels.dispatch import pick_device
from cassi.running.device_warm_up import default_run


def run(args: argparse.Namespace) -> int:
    """Compile, with a bar of how many kernels are done; then a small default run on a GPU that was named."""
    from tqdm.auto import tqdm

    device = pick_device(args.device)
    start = time.perf_counter()
    with tqdm(desc="compile", unit="kernel", leave=False, mininterval=0, disable=args.quiet) as bar:

        def report(name: str, done: int, total: int) -> None:
            bar.total = total
            bar.set_postfix_str(name, refresh=False)
            bar.update(done - bar.n)

        folder = warm_up.warm_up(report)
    kept = "nothing is kept: name a folder that can be written in NUMBA_CACHE_DIR" if folder is None else f"-> {folder}"
    say(args, f"the kernels are compiled, {time.perf_counter() - start:.1f} s, {kept}")
    if device.type == "cuda":
        start = time.perf_counter()
        does = default_run(device, not args.quiet)
        say(args, f"{does} a default run on {device}, {time.perf_counter() - start:.1f} s")
    return 0
