"""The threads that kernels run on: ranges of rows or images, shared out among `torch.get_num_threads()` threads.

The calling thread is one of them, and several Python threads may call at once. torch's own threads are left alone with
what is small: waking them costs more than they save.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar

import torch

Item = TypeVar("Item")
Value = TypeVar("Value")

SMALL = 1 << 20  # elements below which waking another thread (0.1 ms) costs more than it saves


def share_out(kernel: Callable[..., None], count: int, work: int, *args: Any) -> None:
    """kernel(*args, start, stop) over ranges that cover 0 .. count; threads take the next range as they come free.

    torch's own parallel loops are not used: their idle threads spin, and would take the cores from these.
    """
    threads = min(torch.get_num_threads(), count) if work > SMALL else 1
    if threads == 1:
        kernel(*args, 0, count)
        return
    pieces = min(count, threads if work < 32 * SMALL else 4 * threads)
    bounds = [count * k // pieces for k in range(pieces + 1)]
    ranges = iter(list(itertools.pairwise(bounds)))

    def work_off() -> None:
        for start, stop in ranges:
            kernel(*args, start, stop)

    helpers = [_pool().submit(work_off) for _ in range(threads - 1)]
    work_off()
    for helper in helpers:
        if not helper.cancel():
            helper.result()


def side_by_side(function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
    """function(item) of each, on as many threads as torch has, torch's own operations within each of them on one."""
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


os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
