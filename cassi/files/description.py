"""Say what files hold, how they fit together, and what would be done with them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cassi.errors import InputError, Note, one_line
from cassi.files.atomic import PathLike
from cassi.files.container import Container, Entry
from cassi.files.names import MASK, MEASUREMENT, find, role_of
from cassi.files.opening import open_container
from cassi.files.options import ReadOptions
from cassi.files.reading import open_measurement
from cassi.optics.geometry import fitting_geometries
from cassi.optics.mask_match import MaskCheck, check_mask
from cassi.optics.measurement import Measurement

MAX_RANGE_BYTES = 2**30  # of larger arrays the range is not looked for


@dataclass(frozen=True)
class Description:
    """What `describe` found.

    Attributes:
        text: all of it in lines, to be printed.
        measurement: the measurement as it would be read, or None where that is not possible.
        geometries: the (num_bands, step) that fit the widths of measurement and mask, the likeliest first.
        mask_check: comparison of measurement and mask, or None where there are not both.
        problem: why the measurement cannot be read, or None.
    """

    text: str
    measurement: Measurement | None
    geometries: tuple[tuple[int, int], ...]
    mask_check: MaskCheck | None
    problem: str | None

    def __str__(self) -> str:
        return self.text


def describe(*paths: PathLike, options: ReadOptions | None = None) -> Description:
    """Describe files: every array with its guessed part, the geometry that fits, and whether the mask belongs.

    Args:
        paths: any number of data files; the first that holds a measurement is paired with the mask of the options,
            with its own mask, or with the first other file that holds one.
        options: how the measurement is to be read.

    Returns:
        The description; files that cannot be read are named in its text.

    Raises:
        InputError: no file given, or none of them can be opened.

    Example:
        >>> import h5py, numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "m.h5")
        >>> with h5py.File(path, "w") as file:
        ...     file["mask"] = np.ones((8, 8), np.float32)
        >>> print(describe(path).text.splitlines()[1])
          mask (8, 8) float32, 1 .. 1: mask
    """
    if not paths:
        raise InputError("no file to describe; give at least one")
    options = options or ReadOptions()
    mask, key, mask_key = options.mask, options.key, options.mask_key
    lines: list[str] = []
    opened: list[Container] = []
    problems: list[InputError] = []
    for path in [*paths, *([] if mask is None or isinstance(mask, np.ndarray) else [mask])]:
        try:
            container = open_container(Path(path))
        except InputError as error:
            problems.append(error)
            lines.append(str(error))
            continue
        opened.append(container)
        lines += _container_lines(container)
    if not opened:
        raise problems[0]

    source = _holder(opened, MEASUREMENT, key) or _holder([c for c in opened if c.path not in options.files])
    if source is None:
        lines.append("no measurement among the files: nothing to reconstruct")
        return Description(
            "\n".join(lines), None, (), None, Note("no measurement among the files", "", ("key", "mask_key"))
        )
    if mask is None and _holder([source], MASK, mask_key) is None:
        others = [c for c in opened if c is not source]
        beside = _holder(others, MASK, mask_key) or _holder(others)
        options = replace(options, mask=None if beside is None else beside.path)
    return _pair(lines, source, options)


def _pair(lines: list[str], source: Container, options: ReadOptions) -> Description:
    """Read the measurement as it would be read, and compare it with its mask; where what the user says of the bands
    does not fit, say what does."""
    try:
        m = open_measurement(source.path, options).read()
    except InputError as error:
        lines.append(f"cannot be reconstructed: {error}")
        if options.step is None and options.num_bands is None:
            return Description("\n".join(lines), None, (), None, Note(error))
        lines.append("without the step and the number of bands given:")
        without = _pair(lines, source, replace(options, step=None, num_bands=None))
        return replace(without, measurement=None, problem=Note(error))
    lines += ["", f"as a measurement: y {m.y.shape} [{m.unit}], mask {m.mask.shape}, {len(m.shifts)} bands"]
    lines += [f"  {note}" for note in m.notes]
    difference = m.y.shape[-1] - m.mask.shape[-1]
    geometries = tuple(fitting_geometries(difference))
    if geometries:
        fits = ", ".join(f"{bands} x step {own_step}" for bands, own_step in geometries)
        lines.append(f"bands and steps that fit the {difference} columns of dispersion: {fits}")
    check = check_mask(m.y, m.mask, m.shifts, bad_pixels=m.bad_pixels)
    lines += ["", str(check)]
    return Description("\n".join(lines), m, geometries, check, None)


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


def _holder(containers: Sequence[Container], names: tuple[str, ...] = (), key: str | None = None) -> Container | None:
    """The first that has the array `key`, or one of these names; without names, one image of unknown name."""
    for container in containers:
        if names and (container.entry(key) if key is not None else find(container, names)) is not None:
            return container
        images = [e for e in container.entries if e.dtype is not None and len(e.shape) in (2, 3)]
        if not names and len(images) == 1 and role_of(images[0]) is None:
            return container
    return None


def listing(*paths: PathLike) -> str:
    """Every array of these files and what they state, without a try to put them together.

    Raises:
        InputError: one cannot be opened.
    """
    return "\n".join(line for path in paths for line in _container_lines(open_container(Path(path))))
