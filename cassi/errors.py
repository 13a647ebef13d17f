"""Messages to the user: notes, and the errors of readers and writers, one clear line each."""

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any, Self, SupportsFloat

MAX_DEPTH = 32  # of lists and mappings in a text from a file


class Lossy:
    """A text stream that fails nowhere: what it cannot write (full disk, closed pipe) is lost, and all after it.

    Attributes:
        lost: why it is, "" if nothing is.
    """

    def __init__(self, stream: Any, lost: str = "") -> None:
        self._stream, self.lost = stream, lost

    def _try(self, call: Callable[[], object]) -> None:
        try:
            if not self.lost:
                call()
        except (OSError, ValueError) as error:  # of a closed one
            self.lost = getattr(error, "strerror", None) or str(error) or "closed"

    def write(self, text: str) -> int:
        self._try(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def writable_streams() -> Iterator[None]:
    """Context in which stdout and stderr accept every line, so that a message cannot end a computation.

    Without a stream (a service, pythonw), or if it is closed, nothing is written; what it cannot write is lost, see
    `Lossy`; characters outside its encoding become escapes.
    """
    before = sys.stdout, sys.stderr
    errors = [getattr(stream, "errors", None) for stream in before]
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        usable = (Lossy(nothing, "closed") if s is None or getattr(s, "closed", False) else s for s in before)
        sys.stdout, sys.stderr = (s if isinstance(s, Lossy) else Lossy(s) for s in usable)
        try:
            _set_errors(before, ["backslashreplace"] * 2)
            yield
        finally:
            sys.stdout, sys.stderr = before
            _set_errors(before, errors)


def _set_errors(streams: tuple[Any, ...], errors: list[str | None]) -> None:
    for stream, how in zip(streams, errors, strict=True):
        if hasattr(stream, "reconfigure") and how is not None and not stream.closed:
            with suppress(OSError):  # it writes what it holds back
                stream.reconfigure(errors=how)


def one_line(text: object, limit: int = 300) -> str:
    """`text` on one line of at most `limit` characters, as messages of parsers can span many lines.

    Control characters become escapes, because names in a file can contain any.

    Example:
        >>> one_line("a\\x1b[31m b\\n c")
        'a\\\\x1b[31m b c'
    """
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."


def counted(number: SupportsFloat, noun: str) -> str:
    """A number and what it counts, in the singular for one.

    Example:
        >>> counted(1, "band"), counted(28, "band")
        ('1 band', '28 bands')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def parse_json(text: str) -> Any:
    """The value of a JSON text from a file; ValueError for one that is none, or nested more than `MAX_DEPTH` deep."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    if level:
        raise ValueError("nested too deeply")
    return value


class Note(str):
    """A sentence for the user, on one line, with its kind, so that programs need not parse it.

    Args:
        text: the sentence; kind and cures of another note are kept.
        kind: one word for programs, or "".
        cures: settings that solve the problem, by their names in `cassi.reconstruct` and `cassi.files.ReadOptions`.

    Example:
        >>> Note("much light lies below 0; check the black level", cures=("black_level",)).cures
        ('black_level',)
    """

    kind: str
    cures: tuple[str, ...]

    def __new__(cls, text: object, kind: str = "", cures: tuple[str, ...] = ()) -> Self:
        note = super().__new__(cls, one_line(text, limit=1000))
        note.kind = kind or getattr(text, "kind", "")
        note.cures = cures or getattr(text, "cures", ())
        return note


class InputError(ValueError):
    """Unusable input, described in one line: what, expected, got, cure.

    Args:
        message: the line; kind and cures of a `Note` are kept.
        kind, cures: as for a `Note`.
    """

    def __init__(self, message: object, kind: str = "", cures: tuple[str, ...] = ()) -> None:
        note = Note(message, kind, cures)
        self.kind, self.cures = note.kind, note.cures
        super().__init__(str(note))


class OutputError(InputError):
    """A file cannot be written: it exists, its folder does not, or the disk is full."""


def import_extra(module: str, extra: str) -> Any:
    """Import an optional package; `extra` is the extra of cassi that installs it.

    Raises:
        InputError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(f"the package {package} is missing; install it with: pip install 'cassi[{extra}]'") from error
