"""A small default run on a device, for which Triton compiles and keeps its kernels."""

from __future__ import annotations

import torch

from cassi.kernels.dispatch import kernels
from cassi.optics.single_disperser import CASSI
from cassi.running.front_door import reconstruct

BANDS, SIDE = 28, 64  # of the scene


def default_run(device: torch.device, progress: bool) -> str:
    """Reconstruct a small gray picture there; in words, who does the work."""
    generator = torch.Generator().manual_seed(0)
    mask, gray = torch.rand(2, SIDE, SIDE, generator=generator)
    y = CASSI.from_step(mask, 2, BANDS).forward(gray.expand(BANDS, -1, -1))
    reconstruct(y, mask, num_bands=BANDS, step=2, camera="as-given", device=device, progress=progress)
    return "Triton is ready for" if kernels(torch.ones(1, device=device)) is not None else "eager torch did"
