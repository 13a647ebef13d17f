"""Compile the CPU kernels before they are needed: once for a machine, at installation or in an image of a container."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch

from cassi.kernels import cpu, cpu_lowrank, cpu_rows

_SHIFTS = (0, 1)


def warm_up(report: Callable[[str, int, int], None] = lambda name, done, total: None) -> str | None:
    """Compile every kernel for float32 and float64 and keep the code, so that no later process waits for it.

    Takes a minute or two the first time, a second where all is compiled; several processes may do it at once. `report`
    is called before each kernel and at the end with its name, how many are done, and how many there are. Returns the
    folder where the code is kept; None where none can be written, so that every process compiles anew.
    """
    calls = [call for dtype in (torch.float32, torch.float64) for call in _calls(dtype)]
    for done, (name, call) in enumerate(calls):
        report(name, done, len(calls))
        call()
    report("all kernels", len(calls), len(calls))
    folder: str | None = cast(Any, cpu._forward).stats.cache_path
    return folder


def _calls(dtype: torch.dtype) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each kernel once: what is left out of a call does not make it another kernel."""
    x, z = torch.zeros(2, 4, 5, dtype=dtype), torch.zeros(1, 4, 5, dtype=dtype)
    y, mask, basis = torch.zeros(4, 6, dtype=dtype), torch.ones(4, 5, dtype=dtype), torch.ones(1, 2, dtype=dtype)
    kind = str(dtype).removeprefix("torch.")
    yield f"forward, {kind}", partial(cpu.shift_sum, x, mask, _SHIFTS, None, y)
    yield f"adjoint, {kind}", partial(cpu.shift_back, y, mask, _SHIFTS, None, x)
    yield (
        f"data step, {kind}",
        partial(cpu.data_step, x, y, mask, _SHIFTS, None, y, 0.0, True, x, y.clone(), y.clone()),
    )
    rows = (y, y.clone(), None, y.clone())
    yield (
        f"data step in a subspace, {kind}",
        partial(cpu.subspace_step, z, z.clone(), *rows, basis, mask, _SHIFTS, None, y, y, 0.3),
    )
    yield (
        f"total variation, {kind}",
        partial(cpu.tv_steps, x, mask.new_ones(()), torch.zeros(2, *x.shape).to(x), None, 1, 1.0),
    )
    yield f"distance, {kind}", partial(cpu.squared_distances, x, x, x, x)
    yield f"rows, {kind}", partial(cpu_rows.correlate_rows, y, y, torch.zeros(4, 1, dtype=dtype))
    image, groups = torch.rand(8, 8, 3).to(dtype), torch.tensor([[0, 1, 7]])
    kept = partial(cpu_lowrank.kept_groups, image, groups, 2, 0.0)
    yield f"filters of groups of patches, {kind}", kept
    yield f"groups of patches, {kind}", lambda: cpu_lowrank.filtered_groups(image, kept())
