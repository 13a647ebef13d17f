"""One page to look at a result: a single HTML file that needs no network and no program but a browser."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cassi.errors import InputError, OutputError, one_line
from cassi.files.container import Container, Entry
from cassi.files.opening import open_container
from cassi.solvers.loop import Record

__all__ = ["ReportData", "read_report", "write_report"]

MAX_BYTES = 100_000_000  # of a page: a browser opens it, a mail does not carry it

Array = NDArray[Any]


class CubeLike(Protocol):
    """A cube (C, H, W) that is read in parts: a NumPy array, or one that stays in its file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, part: tuple[slice, slice, slice], /) -> Array: ...


@dataclass(frozen=True)
class ReportData:
    """What a report shows. Only the cube is needed; the page leaves out what is None or empty.

    Args:
        cube: the reconstruction (C, H, W) in `unit`.
        wavelengths: (C,) band centers [nm]; None: bands are numbered from 1.
        truth: (C, H, W), where known.
        uncertainty: (C, H, W), one standard deviation of each value of the cube.
        measurement: (H, W'), the snapshot.
        residual: (H, W'), the snapshot minus the one that the cube explains.
        history: records of the solver.
        choice: what was chosen automatically and why; numbers, text, lists and mappings.
        parameters: settings of the run, likewise.
        provenance: further facts: input, hash, version, command line, status ...
        unit: of the cube.
        title: heading, the name of the input for example.

    Raises:
        ValueError: shapes that do not fit each other.
    """

    cube: CubeLike
    wavelengths: Array | None = None
    truth: CubeLike | None = None
    uncertainty: CubeLike | None = None
    measurement: Array | None = None
    residual: Array | None = None
    history: Sequence[Record] = ()
    choice: Mapping[str, object] = field(default_factory=dict)
    parameters: Mapping[str, object] = field(default_factory=dict)
    provenance: Mapping[str, object] = field(default_factory=dict)
    unit: str = ""
    title: str = "Reconstruction"

    def __post_init__(self) -> None:
        shape = tuple(self.cube.shape)
        if len(shape) != 3 or 0 in shape:
            raise ValueError(f"cube must be (C, H, W) and not empty, got {shape}: select one frame of a stack")
        for name, cube in (("truth", self.truth), ("uncertainty", self.uncertainty)):
            if cube is not None and tuple(cube.shape) != shape:
                raise ValueError(f"{name} must have the shape of the cube {shape}, got {tuple(cube.shape)}")
        for name, picture in (("measurement", self.measurement), ("residual", self.residual)):
            if picture is not None and (np.ndim(picture) != 2 or 0 in np.shape(picture)):
                raise ValueError(f"{name} must be one snapshot (H, W'), got {np.shape(picture)}")
        if self.wavelengths is not None and np.shape(self.wavelengths) != shape[:1]:
            raise ValueError(f"wavelengths must be {shape[:1]}, one per band, got {np.shape(self.wavelengths)}")


@dataclass(frozen=True)
class _Stored:
    """One cube of a file, read in parts."""

    container: Container
    entry: Entry
    frame: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape[-3:]

    def __getitem__(self, part: tuple[slice, slice, slice], /) -> Array:
        if len(self.entry.shape) == 3:
            return self.container.read(self.entry, part)
        cube: Array = self.container.read(self.entry, (slice(self.frame, self.frame + 1), *part))[0]
        return cube


def read_report(path: str | os.PathLike[str], *, frame: int = 0) -> ReportData:
    """Take what a report shows from a result file; its cubes stay there and are read in parts.

    Args:
        path: HDF5 file as `cassi.files.write_cube` makes it: `cube` and, where present, `wavelengths`, `truth`,
            `uncertainty`, `measurement`, `residual`, `history/*` and the attributes.
        frame: which cube of a stack (N, C, H, W), from 0.

    Returns:
        The data.

    Raises:
        InputError: not HDF5, no cube in it, no such frame, shapes that do not fit, damaged data.

    Example:
        >>> path = os.path.join(tempfile.mkdtemp(), "cube.h5")
        >>> _ = cassi.files.write_cube(path, np.ones((3, 4, 5)), wavelengths=[450, 550, 650])
        >>> read_report(path).cube.shape
        (3, 4, 5)
    """
    container = open_container(Path(path), trusted=True)
    if container.format != "HDF5":
        raise InputError(f"{path}: is {container.format}, expected a result in HDF5; write the result as .h5")
    found = {entry.name: entry for entry in container.entries if entry.dtype is not None}
    if "cube" not in found or len(found["cube"].shape) not in (3, 4):
        made = "make it with scripts/reconstruct.py"
        raise InputError(f"{path}: no cube (C, H, W) in it, expected a result ({made}); found {container.listing()}")
    frames = found["cube"].shape[0] if len(found["cube"].shape) == 4 else 1
    if not 0 <= frame < frames:
        raise InputError(f"{path}: no frame {frame}, the file holds {frames}; count from 0")

    def cube(name: str) -> _Stored | None:
        return _Stored(container, found[name], frame) if name in found else None

    def snapshot(name: str) -> Array | None:
        if name not in found:
            return None
        stack = len(found[name].shape) == 3
        picture = container.read(found[name], (slice(frame, frame + 1), slice(None), slice(None)) if stack else None)
        return picture[0] if stack else picture

    def numbers(name: str) -> Array | None:
        return np.ravel(container.read(found[name])).astype(np.float64) if name in found else None

    columns = [column for name in Record._fields if (column := numbers(f"history/{name}")) is not None]
    rows = list(zip(*columns, strict=True)) if len(columns) == len(Record._fields) else []
    history = [Record(int(k), float(s), float(r), float(c)) for k, s, r, c in rows]
    starts = [i for i, record in enumerate(history) if record.iteration == 1]
    if frames > 1 and len(starts) == frames:  # the frames' records, one after the other
        history = history[starts[frame] : [*starts, len(history)][frame + 1]]
    facts = {name: _from_json(value) for name, value in container.attributes.items()}
    choice, parameters = (_mapping(facts.pop(name, {})) for name in ("choice", "parameters"))
    unit = str(facts.pop("unit", ""))
    try:
        return ReportData(
            cube=_Stored(container, found["cube"], frame),
            wavelengths=numbers("wavelengths"),
            truth=cube("truth"),
            uncertainty=cube("uncertainty"),
            measurement=snapshot("measurement"),
            residual=snapshot("residual"),
            history=history,
            choice=choice,
            parameters=parameters,
            provenance=facts,
            unit=unit,
            title=str(facts.get("input_name", Path(path).name)),
        )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def write_report(
    path: str | os.PathLike[str],
    data: ReportData | str | os.PathLike[str],
    *,
    overwrite: bool = False,
    max_bytes: int = MAX_BYTES,
) -> Path:
    """Write one HTML file that shows a result in any browser of the last years, without a network.

    The cubes travel inside, each band rounded to 1/4094 of its range (the page states the error that follows).

    Args:
        path: file to make, .html or .htm; it appears complete or not at all.
        data: what to show, or a result file (see `read_report`).
        overwrite: replace an existing file.
        max_bytes: size that the page may have [byte].

    Returns:
        The path.

    Raises:
        InputError: `data` cannot be read, Bokeh is not installed, or the page would be larger than `max_bytes`.
        OutputError: another suffix, the file exists, or it cannot be written; nothing is left behind.

    Example:
        >>> path = os.path.join(tempfile.mkdtemp(), "report.html")
        >>> write_report(path, ReportData(np.random.default_rng(0).random((8, 32, 32)))).name
        'report.html'
    """
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise OutputError(f"{path}: a report is a page, expected the suffix .html")
    if path.exists() and not overwrite:
        raise OutputError(f"{path}: exists already; choose another name or allow overwriting (--overwrite)")
    shown = data if isinstance(data, ReportData) else read_report(data)
    from cassi.looking.report_page import make_page  # needs what this module defines

    page = make_page(shown).html.encode()
    if len(page) > max_bytes:
        raise InputError(
            f"{path}: the page would have {len(page) / 1e6:.0f} MB, more than {max_bytes / 1e6:.0f} MB; "
            "look at the result with scripts/view.py, which reads bands on demand"
        )
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as file:
            file.write(page)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written: {one_line(error)}") from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _from_json(value: object) -> object:
    """What an attribute holds: text that is a list or a mapping in JSON is taken for it."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {"value": value}
