"""Signals that end a process, held back while their exception would be lost."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ENDING = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))  # signals that end a process


@contextmanager
def signals_held() -> Iterator[None]:
    """Hold SIGINT, SIGTERM and SIGHUP during the block and deliver them at its end.

    A library that calls back into Python may swallow the exception of an interrupt and continue without what it was
    writing; a module in C that is being loaded may crash of it. Signals reach only the main thread; in others this does
    nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        received.append(number)

    # SIGINT is held first and released last, so that it cannot leave the other one held.
    current = {int(number): signal.getsignal(number) for number in (signal.SIGINT, *ENDING)}
    handlers = {number: handler for number, handler in current.items() if handler is not None}  # None: not Python's
    try:
        for number in handlers:
            signal.signal(number, hold)
        yield
    finally:
        for number in reversed(handlers):
            signal.signal(number, handlers[number])
        for number in dict.fromkeys(received):
            signal.raise_signal(number)
