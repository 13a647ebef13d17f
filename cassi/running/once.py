"""Values that several workers need, computed once."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Once(Generic[Value]):
    """Values by name: if several threads need one, the first computes it. A copy of another process is empty.

    Example:
        >>> Once[int]().get("two", lambda: 2)
        2
    """

    def __init__(self, most: int | None = None) -> None:
        self._most, self._known = most, dict[str, Future[Value]]()

    def __reduce__(self) -> tuple[object, ...]:
        return Once, (self._most,)

    def get(self, name: str, compute: Callable[[], Value]) -> Value:
        """A value, which is computed at first; of more than `most` the oldest are forgotten."""
        mine: Future[Value] = Future()
        future = self._known.setdefault(name, mine)
        if future is mine:
            for old in list(self._known)[: -self._most] if self._most else ():
                self._known.pop(old, None)
            try:
                mine.set_result(compute())
            except BaseException as error:
                self._known.pop(name, None)
                mine.set_exception(error)
        return future.result()
