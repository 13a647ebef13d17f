"""Say what files hold, how they fit together, and what would be done with them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.atomic import PathLike
from cassi.files.container import Container, Entry
from cassi.files.names import role_of
from cassi.files.opening import open_container
from cassi.files.options import ReadOptions
from cassi.files.reading import open_measurement
from cassi.optics.geometry import fitting_geometries
from cassi.optics.mask_match import check_mask

MAX_RANGE_BYTES = 2**30  # of larger arrays the range is not looked for


def describe(path: PathLike, *, options: ReadOptions = ReadOptions()) -> str:  # noqa: B008  frozen
    """Describe a measurement: every array with its guessed part, the geometry that fits, and whether the mask belongs;
    or why it cannot be reconstructed.

    Args:
        path: its file.
        options: how it is to be read; a mask in a file of its own is described, too.

    Raises:
        InputError: a file cannot be opened.

    Example:
        >>> import h5py, numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "m.h5")
        >>> with h5py.File(path, "w") as file:
        ...     file["mask"] = np.ones((8, 8), np.float32)
        >>> print(describe(path).splitlines()[1])
          mask (8, 8) float32, 1 .. 1: mask
    """
    mask = () if options.mask is None or isinstance(options.mask, np.ndarray) else (options.mask,)
    return f"{listing(path, *mask)}\n{_as_measurement(path, options)}"


def _as_measurement(path: PathLike, options: ReadOptions) -> str:
    """As it would be read, compared with its mask; where the bands that are stated do not fit, what does."""
    try:
        m = open_measurement(path, options).read()
    except InputError as error:
        text = f"cannot be reconstructed: {error}"
        if options.step is not None or options.num_bands is not None:
            without = _as_measurement(path, replace(options, step=None, num_bands=None))
            text += f"\nwithout the step and the number of bands given:\n{without}"
        return text
    lines = ["", f"as a measurement: y {m.y.shape} [{m.unit}], mask {m.mask.shape}, {len(m.shifts)} bands"]
    lines += [f"  {note}" for note in m.notes]
    difference = m.y.shape[-1] - m.mask.shape[-1]
    if geometries := fitting_geometries(difference):
        fits = ", ".join(f"{bands} x step {own_step}" for bands, own_step in geometries)
        lines.append(f"bands and steps that fit the {difference} columns of dispersion: {fits}")
    lines += ["", str(check_mask(m.y, m.mask, m.shifts, bad_pixels=m.bad_pixels))]
    return "\n".join(lines)


def _container_lines(container: Container) -> list[str]:
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


def listing(*paths: PathLike) -> str:
    """Every array of these files and what they state, without a try to put them together.

    Raises:
        InputError: one cannot be opened.
    """
    return "\n".join(line for path in paths for line in _container_lines(open_container(Path(path))))
