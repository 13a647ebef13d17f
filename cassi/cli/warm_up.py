"""Compile the kernels now, once for a machine, so that no reconstruction waits for it."""

from __future__ import annotations

import argparse
import time

from cassi.cli.shell import say

EXAMPLES = """\
examples:
  after installation; without a word where an image of a container is made
      {warm-up}
      {warm-up} --quiet

Compiled code is kept beside the program, or in the user's cache where that cannot be written; the environment variable
NUMBA_CACHE_DIR names another place.
"""


def run(args: argparse.Namespace) -> int:
    """Compile, with a bar of how many kernels are done."""
    from tqdm.auto import tqdm

    from cassi.kernels.warm_up import warm_up

    start = time.perf_counter()
    with tqdm(desc="compile", unit="kernel", leave=False, mininterval=0, disable=args.quiet) as bar:

        def report(name: str, done: int, total: int) -> None:
            bar.total = total
            bar.set_postfix_str(name, refresh=False)
            bar.update(done - bar.n)

        folder = warm_up(report)
    kept = "nothing is kept: name a folder that can be written in NUMBA_CACHE_DIR" if folder is None else f"-> {folder}"
    say(args, f"the kernels are compiled, {time.perf_counter() - start:.1f} s, {kept}")
    return 0
