"""The content of a report: cube, snapshot, truth, history and texts, from memory or from a file."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cassi.errors import InputError, parse_json
from cassi.files.container import Container, Entry, damage_as_input_error
from cassi.files.opening import open_container
from cassi.files.wavelength_files import read_wavelengths
from cassi.looking.metrics import peak_of, score
from cassi.optics.measurement import REFLECTANCE
from cassi.solvers.loop import Record
from cassi.types import PathLike

MAX_VALUES = 40_000_000  # of all cubes in a page, about 100 MB in a browser; of larger cubes every k-th pixel is shown
MAX_SCORED = 100_000_000  # values of a cube up to which it is scored against its truth
RANKS = {"cube": 3, "truth": 3, "uncertainty": 3, "measurement": 2, "residual": 2}  # of one frame

Array = NDArray[Any]
P = ParamSpec("P")
T = TypeVar("T")


class CubeLike(Protocol):
    """A cube (C, H, W) that is read in parts: a NumPy array, or one that stays in its file."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __getitem__(self, part: tuple[slice, slice, slice], /) -> Array: ...


@dataclass(frozen=True)
class ReportData:
    """The content of figures and reports. Only the cube is required; fields that are None or empty are omitted.

    Args:
        cube: the reconstruction (C, H, W) in `unit`.
        wavelengths: (C,) band centers [nm]; None: bands are numbered from 1.
        truth: (C, H, W), if known.
        uncertainty: (C, H, W), in `unit`: one standard deviation of each value of the cube.
        measurement: (H, W'), the snapshot.
        residual: (H, W'), the snapshot minus that predicted by the cube.
        history: records of the solver.
        choice: what was chosen automatically and why; numbers, text, lists and mappings.
        parameters: settings of the run, likewise.
        provenance: further facts: input, hash, version, command line, status ...
        unit: of the cube.
        title: heading, the name of the input for example.
        markers: iterations at which the run changed, with a label: (iteration, text).
        verdict: whether mask and measurement belong together, as a sentence.
        ok: whether that verdict is good; otherwise figures and report show a warning.
        source: the file that it was read from, to which errors belong; empty for one in memory.

    Raises:
        ValueError: inconsistent shapes.
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
    markers: Sequence[tuple[int, str]] = ()
    verdict: str = ""
    ok: bool = True
    source: str = ""

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

    @property
    def measured_unit(self) -> str:
        """Unit of measurement and residual: the cube's, unless it was divided by a white reference."""
        return "" if self.unit == REFLECTANCE else self.unit

    @property
    def unexplained(self) -> float | None:
        """|y - Phi x| / |y| as stated, else of the pictures, with y minus its black level; None where unknown."""
        if (stated := _number(self.provenance, "residual")) is not None:
            return stated
        if self.residual is None or self.measurement is None:
            return None
        black = _number(self.choice, "black_level") or 0.0
        known = self.residual != 0  # it is 0 at excluded pixels
        light = float(np.linalg.norm(known * (np.nan_to_num(self.measurement).astype(np.float64) - black)))
        rest = float(np.linalg.norm(np.nan_to_num(self.residual).astype(np.float64)))
        return rest / light if light > 0 else None

    def problems(self) -> list[str]:
        """Reasons not to trust this result, one sentence each; empty if there is none."""
        stated = self.provenance.get("concerns")
        misfit = [] if self.ok else [self.verdict or "The mask does not fit the measurement."]
        return [*misfit, *map(str, stated)] if isinstance(stated, list) else misfit

    def numbers(self) -> list[tuple[str, str]]:
        """The available scores: name and value, as text."""
        scored: list[tuple[str, str]] = []
        if self.truth is not None and math.prod(self.cube.shape) <= MAX_SCORED:
            estimate, truth = (np.asarray(cube[:, :, :], dtype=np.float32) for cube in (self.cube, self.truth))
            peak = peak_of(truth, self.provenance.get("origin"))
            scores = score(estimate, truth=truth, peak=peak)
            scored += [(f"PSNR, peak {peak:.3g}", f"{scores['psnr']:.2f} dB"), ("SSIM", f"{scores['ssim']:.3f}")]
            scored.append(("mean spectral angle", f"{scores['sam']:.2f}°"))
        known = {
            "error at held-out pixels": (_number(self.choice, "held_out_error"), ".2%"),
            "residual |y - Φx| / |y|": (self.unexplained, ".2%"),
            "imprint of the mask": (_number(self.provenance, "imprint"), ".3f"),
        }
        return scored + [(name, format(value, form)) for name, (value, form) in known.items() if value is not None]


def _number(facts: Mapping[str, object], name: str) -> float | None:
    value = facts.get(name)
    return value if isinstance(value, float) and math.isfinite(value) else None


def take_every(cube: CubeLike, every: int) -> Array:
    """Every `every`-th row and column of a cube, read band by band."""
    bands = range(cube.shape[0])
    return np.concatenate([cube[c : c + 1, slice(None, None, every), slice(None, None, every)] for c in bands])


def of_a_file(show: Callable[Concatenate[ReportData, P], T]) -> Callable[Concatenate[ReportData, P], T]:
    """A function that shows a result; what the content of a file makes impossible is an InputError that names it."""

    @wraps(show)
    def shown(data: ReportData, /, *args: P.args, **named: P.kwargs) -> T:
        if not data.source:
            return show(data, *args, **named)
        with damage_as_input_error(Path(data.source), "a result"):
            return show(data, *args, **named)

    return shown


def report_of(result: Any, *, frame: int = 0) -> ReportData:
    """The content of a report from a reconstruction in memory, as its file would have it.

    Args:
        result: the `cassi.Reconstruction`, of one snapshot or of a stack.
        frame: which frame of a stack, from 0.

    Example:
        >>> mask = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
        >>> y = CASSI.from_step(mask, 2, 4).forward(torch.ones(4, 16, 16))
        >>> report_of(cassi.reconstruct(y, mask, num_bands=4, solver="gap-tv", num_iters=5)).cube.shape
        (4, 16, 16)
    """
    saved = result.contents()
    arrays = {"cube": saved["cube"], **saved["datasets"]}
    parts = {
        name: arrays[name] if arrays[name].ndim == rank else arrays[name][frame]
        for name, rank in RANKS.items()
        if name in arrays
    }
    facts = {name: value for name, value in saved["attributes"].items() if value is not None}
    parts |= {"wavelengths": saved["wavelengths"], "history": saved["history"], "title": "Reconstruction"}
    return _filled(parts, facts, frame, saved["cube"].shape[:-3])


@dataclass(frozen=True)
class _Stored:
    """One array of a file, or one frame of a stack, read in parts."""

    container: Container
    entry: Entry
    rank: int
    frame: int

    @property
    def shape(self) -> tuple[int, ...]:
        return self.entry.shape[-self.rank :]

    def __getitem__(self, part: tuple[slice, ...], /) -> Array:
        if len(self.entry.shape) == self.rank:
            return self.container.read(self.entry, part)
        values: Array = self.container.read(self.entry, (slice(self.frame, self.frame + 1), *part))[0]
        return values


def read_report(path: PathLike, *, frame: int = 0) -> ReportData:
    """The content of a report from a result file, whose cubes are read in parts.

    Args:
        path: HDF5 file written by `cassi.files.write_cube`, see docs/file-format.md.
        frame: which cube of a stack (N, C, H, W), from 0.

    Raises:
        InputError: not HDF5, no cube, no such frame, inconsistent shapes, or damaged data.

    Example:
        >>> path = os.path.join(tempfile.mkdtemp(), "cube.h5")
        >>> _ = cassi.files.write_cube(path, np.ones((3, 4, 5)), wavelengths=[450, 550, 650])
        >>> read_report(path).cube.shape
        (3, 4, 5)
    """
    container = open_container(Path(path))
    if container.format != "HDF5":
        raise InputError(f"{path}: is {container.format}, expected a result in HDF5; write the result as .h5")
    entries = {entry.name: entry for entry in container.entries if entry.dtype is not None}
    if "mask" in entries and not container.is_result:
        if container.find("measurement") is None:
            what = "this is the file of a camera, not the result of a run; reconstruct a snapshot through it"
            raise InputError(f"{path}: {what}", kind="no result")
        what = "this is a measurement, not the result of a run; reconstruct it first"
        raise InputError(f"{path}: {what}", kind="measurement")
    if "cube" not in entries or len(entries["cube"].shape) not in (3, 4):
        what = f"no cube (C, H, W) in it, expected the result of a run; found {container.listing()}"
        raise InputError(f"{path}: {what}", kind="no result" if "cube" not in entries else "")
    frames = entries["cube"].shape[:-3]
    if not 0 <= frame < (frames[0] if frames else 1):
        raise InputError(f"{path}: no frame {frame}, the file holds {frames[0] if frames else 1}; count from 0")
    with damage_as_input_error(Path(path), "a result"):

        def numbers(name: str) -> Array | None:
            return np.ravel(container.read(entries[name])).astype(np.float64) if name in entries else None

        columns = [column for name in Record._fields if (column := numbers(f"history/{name}")) is not None]
        rows = zip(*columns, strict=True) if len(columns) == len(Record._fields) else ()
        parts: dict[str, Any] = {
            name: _Stored(container, entries[name], rank, frame)
            for name, rank in RANKS.items()
            if name in entries and len(entries[name].shape) in (rank, rank + 1)
        }
        parts |= {name: parts[name][:, :] for name in ("measurement", "residual") if name in parts}
        parts["history"] = [Record(int(k), float(s), float(r), float(c)) for k, s, r, c in rows]
        bands = entries["cube"].shape[-3]
        nm = read_wavelengths(entries["wavelengths"], bands) if "wavelengths" in entries else None
        parts |= {"wavelengths": nm, "title": Path(path).name, "source": os.fspath(path)}
        facts = {name: _from_json(value) for name, value in container.attributes.items()}
        try:
            return _filled(parts, facts, frame, frames)
        except ValueError as error:
            raise InputError(f"{path}: {error}") from error


def _filled(parts: Mapping[str, Any], facts: dict[str, Any], frame: int, frames: tuple[int, ...]) -> ReportData:
    """The data of one frame: its arrays, and the part of the history and attributes of the file that belongs to it."""
    choice, parameters = (
        value if isinstance(value := facts.pop(name, None), dict) else {} for name in ("choice", "parameters")
    )
    choice = dict(choice["frames"][frame] if "frames" in choice else choice)
    if frames:
        facts.pop("residual", None)  # of all frames together
    history = list(parts["history"])  # of all frames in a row, each from iteration 1
    starts = [i for i, record in enumerate(history) if record.iteration == 1]
    if frames and len(starts) == frames[0]:
        history = history[starts[frame] : [*starts, len(history)][frame + 1]]
    stages = [(at, str(words)) for at, words in choice.get("stages") or ()]
    if stages:
        choice = {**choice, "stages": {f"from iteration {at}": words for at, words in stages}}
    title = str(facts.get("input_name") or parts["title"])
    named: dict[str, Any] = {
        "history": history,
        "markers": stages[1:] if history else [],  # the start of each stage but the first
        "verdict": str(facts.pop("verdict", "")),
        "ok": bool(facts.pop("ok", True)),
        "choice": choice,
        "parameters": parameters,
        "unit": str(facts.pop("unit", "")),
        "provenance": facts,
        "title": f"{title}, frame {frame + 1} of {frames[0]}" if frames else title,
    }
    return ReportData(**{**parts, **named})


def _from_json(value: object) -> object:
    """The value of an attribute; text with a JSON list or mapping is decoded."""
    try:
        return parse_json(value) if isinstance(value, str) and value.lstrip().startswith(("{", "[")) else value
    except ValueError:
        return value
