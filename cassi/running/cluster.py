"""Where many frames are computed: an executor of threads, of processes, or of the workers of a Dask cluster.

Dask (dask.distributed) is imported only where a cluster is asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

import torch

from cassi.errors import InputError, one_line

CONNECT_SECONDS = 10


class Workers(NamedTuple):
    """An executor, how many frames it computes at a time, and whether a frame that it computes is wanted no more."""

    executor: Executor
    at_once: int
    over: Callable[[], bool]


def never() -> bool:
    """Of workers that are ended otherwise."""
    return False


@contextmanager
def threads(count: int) -> Iterator[Workers]:
    """`count` frames at a time in this process, each on one thread of torch where they are several."""
    before, ended = torch.get_num_threads(), threading.Event()
    each = 1 if count > 1 else before
    executor = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(each,))
    try:
        yield Workers(executor, count, ended.is_set)
    finally:
        ended.set()
        executor.shutdown(cancel_futures=True)
        torch.set_num_threads(before)


@contextmanager
def processes(count: int) -> Iterator[Workers]:
    """`count` processes of one thread each, which end with this one."""
    others = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _begin)
    try:
        yield Workers(executor, count, never)
    except BaseException:  # what they are at is wanted no more, and what they write is written whole or not at all
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:
        executor.shutdown(cancel_futures=True)


def _begin() -> None:
    """In each new process: Ctrl-C, which a terminal sends to all, is for the parent alone, and it ends with that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    threading.Thread(target=_leave_with_the_parent, daemon=True).start()


def _leave_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def scheduler_at(address: str) -> Iterator[Workers]:
    """The workers of a running Dask scheduler, which stay when the run ends.

    Raises:
        InputError: Dask is not installed; no scheduler answers there.
    """
    try:
        import distributed
    except ImportError as error:
        raise InputError(f'a scheduler needs Dask: python -m pip install "cassi[batch]" ({error})') from error
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address} ({one_line(error)})") from error
    with client:
        yield Workers(client.get_executor(pure=False), 2 * max(1, sum(client.nthreads().values())), never)
