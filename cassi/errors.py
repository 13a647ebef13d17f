"""The error every reader and writer raises: one clear line for the user."""


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


class InputError(ValueError):
    """A file or a value from the user that cannot be used, said in one line: what, expected, got, cure."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message, limit=1000))


class OutputError(InputError):
    """A file that cannot be written: it exists, its folder does not, or the disk is full."""
