"""Compile the kernels now, once for a machine, so that no reconstruction waits for it."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from cassi.cli.shell import say

if TYPE_CHECKING:
    import torch

EXAMPLES = """\
examples:
  after installation; without a word where an image of a container is made
      {warm-up}
      {warm-up} --quiet
  on a machine with a GPU, for it too
      {warm-up} --device cuda

Compiled code is kept beside the program, or in the user's cache where that cannot be written; the environment variable
NUMBA_CACHE_DIR names another place, TRITON_CACHE_DIR that of a GPU's kernels.
"""


BANDS, SIDE = 28, 64  # of the scene whose default run is done on a GPU


def run(args: argparse.Namespace) -> int:
    """Compile, with a bar of how many kernels are done; then a small default run on a GPU that was named."""
    from tqdm.auto import tqdm

    from cassi.kernels.dispatch import pick_device
    from cassi.kernels.warm_up import warm_up

    device = pick_device(args.device)
    start = time.perf_counter()
    with tqdm(desc="compile", unit="kernel", leave=False, mininterval=0, disable=args.quiet) as bar:

        def report(name: str, done: int, total: int) -> None:
            bar.total = total
            bar.set_postfix_str(name, refresh=False)
            bar.update(done - bar.n)

        folder = warm_up(report)
    kept = "nothing is kept: name a folder that can be written in NUMBA_CACHE_DIR" if folder is None else f"-> {folder}"
    say(args, f"the kernels are compiled, {time.perf_counter() - start:.1f} s, {kept}")
    if device.type == "cuda":
        start = time.perf_counter()
        does = _default_run(device, not args.quiet)
        say(args, f"{does} a default run on {device}, {time.perf_counter() - start:.1f} s")
    return 0


def _default_run(device: torch.device, progress: bool) -> str:
    """Reconstruct a small painted scene there, for which Triton compiles and keeps its kernels; who does the work."""
    import torch

    from cassi.kernels.dispatch import kernels
    from cassi.optics.single_disperser import CASSI
    from cassi.running.front_door import reconstruct
    from cassi.simulation.camera import random_mask
    from cassi.simulation.scene import procedural_scene

    generator = torch.Generator().manual_seed(0)
    mask = random_mask(SIDE, SIDE, generator=generator).float()
    wavelengths = torch.linspace(450, 650, BANDS, dtype=torch.float64)
    y = CASSI.from_step(mask, 2, BANDS).forward(procedural_scene(SIDE, SIDE, wavelengths, generator=generator).float())
    reconstruct(y, mask, num_bands=BANDS, step=2, camera="as-given", device=device, progress=progress)
    return "Triton is ready for" if kernels(torch.ones(1, device=device)) is not None else "eager torch did"
