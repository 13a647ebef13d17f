"""Say what files hold."""

from pathlib import Path

from cassi.errors import one_line
from cassi.files.atomic import PathLike
from cassi.files.names import role_of
from cassi.files.opening import open_container


def describe(*paths: PathLike) -> str:
    """Every array of these files with the part that its name gives it, and what the files state.

    Raises:
        InputError: one cannot be opened.
    """
    lines = []
    for container in (open_container(Path(path)) for path in paths):
        parts = [(entry, role_of(entry)) for entry in container.entries]
        shown = [(name, value) for name, value in container.attributes.items() if not name.startswith("_")]
        lines += [f"{container.path} ({container.format})"]
        lines += [f"  {entry}: {role}" if role else f"  {entry}" for entry, role in parts] or ["  no arrays"]
        lines += [f"  attribute {one_line(name, 80)} = {one_line(value, 80)}" for name, value in shown]
    return "\n".join(lines)
