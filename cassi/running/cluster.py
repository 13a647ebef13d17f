"""Where many frames are computed: on threads of this process, in processes of its own, or by a running Dask cluster.

Each is a `concurrent.futures.Executor`. Dask (dask.distributed) is imported only where a cluster is asked for.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any, ClassVar, NamedTuple

import torch

from cassi.errors import InputError, one_line

CONNECT_SECONDS = 10


class ThreadTurn:
    """Leave to compute, for `count` threads at a time; one more may read the next frame. `over`: the run has ended."""

    def __init__(self, count: int) -> None:
        self._places = threading.Semaphore(count)
        self.ended = threading.Event()

    def __enter__(self) -> None:
        self._places.acquire()

    def __exit__(self, *error: object) -> None:
        self._places.release()

    def over(self) -> bool:
        return self.ended.is_set()


class ProcessTurn:
    """Leave to compute for a process with a single thread, until its parent ends the run or is no more."""

    ended: ClassVar[Event | None] = None

    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

    def over(self) -> bool:
        return self.ended is not None and self.ended.is_set()

    @classmethod
    def begin(cls, ended: Event) -> None:
        """In each new process."""
        cls.ended = ended
        threading.Thread(target=_leave_with_the_parent, daemon=True).start()


def _leave_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


Turn = ThreadTurn | ProcessTurn


class Engine(NamedTuple):
    """What makes an executor (again, where its processes have died), frames in flight, torch's threads for each."""

    start: Callable[[], Executor]
    window: int
    threads: int | None
    turn: Turn


@contextmanager
def threads(count: int) -> Iterator[Engine]:
    """`count` frames at a time in this process, each on one thread of torch where they are several."""
    before, turn = torch.get_num_threads(), ThreadTurn(count)
    with ThreadPoolExecutor(count + 1) as executor:
        try:
            yield Engine(lambda: executor, count + 1, 1 if count > 1 else before, turn)
        finally:
            turn.ended.set()
            executor.shutdown(cancel_futures=True)
            torch.set_num_threads(before)


@contextmanager
def processes(count: int) -> Iterator[Engine]:
    """`count` processes of one thread each."""
    context = multiprocessing.get_context("spawn")
    ended = context.Event()
    pools: list[Executor] = []

    def start() -> Executor:
        pools.append(_Pool(count, mp_context=context, initializer=ProcessTurn.begin, initargs=(ended,)))
        return pools[-1]

    try:
        yield Engine(start, count, 1, ProcessTurn())
    finally:
        ended.set()
        for pool in pools:
            pool.shutdown(cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """Its processes ignore Ctrl-C, which a terminal sends to all: their parent ends them in good order."""

    def submit(self, *args: Any, **kwargs: Any) -> Future[Any]:
        if threading.current_thread() is not threading.main_thread():
            return super().submit(*args, **kwargs)
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a process that is started here inherits
        try:
            return super().submit(*args, **kwargs)
        finally:
            signal.signal(signal.SIGINT, before)


@contextmanager
def scheduler_at(address: str) -> Iterator[Engine]:
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
        at_once = max(1, sum(client.nthreads().values()))
        executor = client.get_executor(pure=False)
        yield Engine(lambda: executor, 2 * at_once, None, ProcessTurn())
