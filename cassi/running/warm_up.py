"""Small runs that compile the kernels which runs take, once for a machine."""

from typing import Any

import torch

from cassi.kernels.dispatch import kernels
from cassi.kernels.jit import cache_folder
from cassi.optics.single_disperser import CASSI
from cassi.running.reconstruct import reconstruct

BANDS, SIDE = 28, 64  # of the scene
STEP = -2  # to the left: of equal steps to the right a small snapshot is sent back without a kernel


def warm_up(device: torch.device, *, progress: bool = False) -> str:
    """Reconstruct a small gray picture by the default and by GAP-TV; in a sentence, what is ready.

    Takes a minute the first time, some seconds where all is compiled; several processes may do it at once. Kernels for
    float64 and for several shots are compiled when they are first called.
    """
    generator = torch.Generator().manual_seed(0)
    mask, gray = torch.rand(2, SIDE, SIDE, dtype=torch.float32, generator=generator)
    y = CASSI.from_step(mask, STEP, BANDS).forward(gray.expand(BANDS, -1, -1))
    how: dict[str, Any] = {"num_bands": BANDS, "step": STEP, "camera": "as-given", "device": device}
    reconstruct(y, mask, progress=progress, **how)
    reconstruct(y, mask, solver="gap-tv", **how)
    compiled = kernels(torch.ones(1, dtype=torch.float32, device=device)) is not None
    if compiled and device.type == "cpu":
        lost, folder = "nothing is kept: set NUMBA_CACHE_DIR to a writable folder", cache_folder()
        return f"the kernels are compiled, {lost if folder is None else f'-> {folder}'}"
    return f"{'Triton is ready for' if compiled else 'eager torch did'} a default run on {device}"
