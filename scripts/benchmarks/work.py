"""What each kernel of the camera and of the default solver has to do: bytes, operations, and how near the time is.

The floor of a kernel is the longer of bytes / bandwidth and operations / arithmetic speed; all of these read and write
more than they compute, so bandwidth it is. It is measured beside the kernels, by a copy of a cube.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from benchmarks.timing import time_in_turns
from cassi.optics.single_disperser import CASSI
from cassi.priors.spectral_basis import smooth_basis
from cassi.priors.tv import tv_steps
from cassi.solvers.loop import relative_change

COMPONENTS, DUAL_STEPS = 8, 3


@dataclass(frozen=True)
class Work:
    """One kernel: elements read and written, operations, launches on a GPU, and the share of the bandwidth to reach."""

    name: str
    elements: int
    operations: int
    launches: int
    goal: float
    call: Callable[[], object]


def work(A: CASSI, x: Tensor) -> list[Work]:
    """Every kernel on cubes x (B, C, H, W).

    X, Z, Y, M are the elements of cubes, coefficients, snapshots and mask. A dual step of total variation reads q and v
    and writes q (5 Z); on the CPU all steps of a call are one sweep (7 Z in all).
    """
    X, Y, M = x.numel(), A.forward(x).numel(), A.mask.numel()
    K = min(COMPONENTS, A.num_bands)
    z, u, basis = torch.rand_like(x[:, :K]), x.clone(), smooth_basis(A.num_bands, K).to(x)
    Z, y = z.numel(), A.forward(x)
    out, gram, y_x, y_v, e = torch.empty_like(x), torch.ones_like(y), y.clone(), y.clone(), y.clone()
    z_new, q = torch.empty_like(z), z.new_zeros((2, *z.shape))
    spare, weight = torch.empty_like(q), x.new_tensor(0.1)
    sweep = (5 * DUAL_STEPS + 4) * Z if x.is_cuda else 7 * Z
    return [
        Work("forward", X + M + Y, 2 * X, 1, 0.8, partial(A.forward, x, out=y_v)),
        Work("pseudo-inverse", X + M + 2 * Y, X + Y, 1, 0.8, partial(A.pinv, y, out=out)),
        Work("GAP data step", 2 * X + M + 6 * Y, 4 * X, 1, 0.7, partial(A.data_step_, x, out, y, y_x, y_v)),
        Work(
            "data step in a subspace", 2 * X + 2 * Z + M + 8 * Y, (6 * K + 9) * X, 1, 0.6,
            partial(A.subspace_step_, z, z_new, y, e, u, y_v, basis, gram, gram, 0.3),
        ),
        Work(
            f"TV of coefficients, {DUAL_STEPS} dual steps", sweep, 20 * DUAL_STEPS * Z, DUAL_STEPS + 1, 0.6,
            partial(tv_steps, z_new, weight, q, spare, num_iters=DUAL_STEPS),
        ),
        Work("residual or change", 2 * Z, 5 * Z, 2, 0.6, partial(relative_change, z_new, z)),
    ]  # fmt: skip


def work_table(A: CASSI, x: Tensor, *, seconds: float) -> str:
    """Bytes and operations of each kernel, its time on this device and the share of a copy's bandwidth it reaches."""
    found, other = work(A, x), torch.empty_like(x)
    ways: dict[str, Callable[[], object]] = {w.name: w.call for w in found}
    times = time_in_turns({**ways, "copy": lambda: other.copy_(x)}, device=x.device, seconds=seconds)
    bandwidth = 2 * x.numel() * x.element_size() / times.pop("copy")
    lines = [
        "| kernel | MB | million operations | launches | ms | of bandwidth | goal on CUDA |",
        "|---|---|---|---|---|---|---|",
    ]
    for w in found:
        size = w.elements * x.element_size()
        share = size / times[w.name] / bandwidth
        lines.append(
            f"| {w.name} | {size / 1e6:.1f} | {w.operations / 1e6:.0f} | {w.launches} | {1e3 * times[w.name]:.3g} | "
            f"{share:.2f} | {w.goal} |"
        )
    kind = "CUDA" if x.is_cuda else "not measured on CUDA in this run; the times are the CPU's"
    shape = " x ".join(str(n) for n in x.shape)
    return (
        f"Work of the kernels, {shape}, {COMPONENTS} components, {str(x.dtype).removeprefix('torch.')} without TF32 "
        f"({kind}; a copy moves {bandwidth / 1e9:.0f} GB/s)\n\n" + "\n".join(lines)
    )
