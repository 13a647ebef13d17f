"""Threads for the kernels: ranges of rows or images are divided among `torch.get_num_threads()` threads.

The calling thread is one of them, and several Python threads may call at once. Small jobs stay in the calling thread:
waking others costs more than it saves.
"""

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Value = TypeVar("Value")

SMALL = 1 << 20  # elements up to which waking another thread (0.1 ms) does not pay


def share_out(kernel: Callable[..., None], count: int, work: int, *args: Any) -> None:
    """Call kernel(*args, start, stop) on ranges that cover 0 .. count; each free thread takes the next range.

    torch's own parallel loops are not used: their idle threads spin and would compete for the cores.
    """
    threads = min(torch.get_num_threads(), count) if work > SMALL else 1
    if threads == 1:
        kernel(*args, 0, count)
        return
    pieces = min(count, threads if work < 32 * SMALL else 4 * threads)
    bounds = [count * k // pieces for k in range(pieces + 1)]
    ranges = iter(list(itertools.pairwise(bounds)))

    def run_ranges() -> None:
        for start, stop in ranges:
            kernel(*args, start, stop)

    helpers = [_pool().submit(run_ranges) for _ in range(threads - 1)]
    run_ranges()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


def side_by_side(function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
    """[function(item) for item in items] on as many threads as torch has, each running torch on a single thread."""
    threads = torch.get_num_threads()

    def alone(item: Item) -> Value:
        torch.set_num_threads(1)
        return function(item)

    try:
        if threads == 1 or len(items) <= 1:
            return [alone(item) for item in items]
        with ThreadPoolExecutor(min(threads, len(items))) as pool:
            return list(pool.map(alone, items))
    finally:
        torch.set_num_threads(threads)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="cassi")


def _in_child() -> None:
    """Threads do not survive a fork: a child that waited for torch's or ours would hang; on one thread it does not."""
    _pool.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
