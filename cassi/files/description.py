"""Say what files hold."""

from pathlib import Path

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.atomic import PathLike
from cassi.files.container import Container, Entry
from cassi.files.names import role_of
from cassi.files.opening import open_container

MAX_RANGE_BYTES = 2**30  # of larger arrays the range is not looked for


def describe(*paths: PathLike) -> str:
    """Every array of these files with its range and the part that its name gives it, and what the files state.

    Raises:
        InputError: one cannot be opened.

    Example:
        >>> import h5py, numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "m.h5")
        >>> with h5py.File(path, "w") as file:
        ...     file["mask"] = np.ones((8, 8), np.float32)
        >>> print(describe(path).splitlines()[1])
          mask (8, 8) float32, 1 .. 1: mask
    """
    return "\n".join(line for path in paths for line in _lines(open_container(Path(path))))


def _lines(container: Container) -> list[str]:
    lines = [f"{container.path} ({container.format})"]
    lines += [f"  {_entry_line(container, entry)}" for entry in container.entries] or ["  no arrays"]
    shown = [(name, value) for name, value in container.attributes.items() if not name.startswith("_")]
    return lines + [f"  attribute {one_line(name, 80)} = {one_line(value, 80)}" for name, value in shown]


def _entry_line(container: Container, entry: Entry) -> str:
    if entry.dtype is None:
        return str(entry)
    role = role_of(entry)
    part = f": {role}" if role else ""
    if np.prod(entry.shape, dtype=float) * entry.dtype.itemsize > MAX_RANGE_BYTES:
        return f"{entry}{part}"
    try:
        values = container.read(entry)
    except InputError as error:
        return f"{entry}{part} ({error})"
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    if finite.size == 0:
        return f"{entry}, no finite value{part}"
    bad = f", {values.size - finite.size} NaN or Inf" if finite.size < values.size else ""
    return f"{entry}, {float(finite.min()):g} .. {float(finite.max()):g}{bad}{part}"
