"""What is said to the user: a note, and the error every reader and writer raises, one clear line each."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def one_line(text: object, limit: int = 300) -> str:
    """Return `text` on one line, shortened to `limit` characters: parsers' messages can run over many lines.

    Characters that a terminal would obey instead of showing become their escapes: a file chooses its names.

    Example:
        >>> one_line("a\\x1b[31m b\\n c")
        'a\\\\x1b[31m b c'
    """
    line = " ".join(str(text).split())
    line = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
    return line if len(line) <= limit else line[: limit - 3] + "..."


class Note(str):
    """A sentence for the user, on one line, and what it is about, so that no program need read the words.

    Args:
        text: the sentence; of another note, what that one is about holds for this one too.
        kind: one word for programs, "" where none asks.
        cures: settings that put it right, by their names in `cassi.reconstruct` and `cassi.files.ReadOptions`.

    Example:
        >>> Note("much light lies below 0; check the black level", cures=("black_level",)).cures
        ('black_level',)
    """

    kind: str
    cures: tuple[str, ...]

    def __new__(cls, text: object, kind: str = "", cures: tuple[str, ...] = ()) -> Note:
        note = super().__new__(cls, one_line(text, limit=1000))
        note.kind = kind or getattr(text, "kind", "")
        note.cures = cures or getattr(text, "cures", ())
        return note


class InputError(ValueError):
    """A file or a value from the user that cannot be used, said in one line: what, expected, got, cure.

    Args:
        message: the line; a `Note` brings its kind and cures along.
        kind, cures: as those of a `Note`.
    """

    def __init__(self, message: object, kind: str = "", cures: tuple[str, ...] = ()) -> None:
        note = Note(message, kind, cures)
        self.kind, self.cures = note.kind, note.cures
        super().__init__(str(note))


class OutputError(InputError):
    """A file that cannot be written: it exists, its folder does not, or the disk is full."""


def import_extra(module: str, extra: str) -> Any:
    """Import a package that not every installation has; `extra` is the extra of cassi that brings it.

    Raises:
        InputError: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise InputError(f"the package {package} is missing; install it with: pip install 'cassi[{extra}]'") from error
