"""What there is to see of a result: cube, snapshot, truth, history and words, from memory or from a file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cassi.calibration.found_camera import FoundCamera
from cassi.choice.outcome import FAIR
from cassi.errors import InputError
from cassi.files.container import Container, Entry
from cassi.files.names import is_result
from cassi.files.opening import open_container
from cassi.looking.color import as_array
from cassi.looking.metrics import score
from cassi.optics.imprint import STAMPED
from cassi.optics.mask_match import MaskCheck
from cassi.optics.measurement import REFLECTANCE, Measurement
from cassi.solvers.loop import Record

MAX_SCORED = 100_000_000  # values: a larger cube is not compared with its truth

Array = NDArray[Any]


class CubeLike(Protocol):
    """A cube (C, H, W) that is read in parts: a NumPy array, or one that stays in its file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, part: tuple[slice, slice, slice], /) -> Array: ...


class ResultLike(Protocol):
    """What `report_of` takes from a reconstruction (`cassi.Reconstruction` is one)."""

    @property
    def cube(self) -> Tensor: ...
    @property
    def wavelengths(self) -> Array | None: ...
    @property
    def history(self) -> Sequence[Record]: ...
    @property
    def status(self) -> str: ...
    @property
    def residual_image(self) -> Tensor: ...
    @property
    def seconds(self) -> float: ...
    @property
    def choice(self) -> Mapping[str, Any]: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...
    @property
    def unit(self) -> str: ...
    @property
    def uncertainty(self) -> Tensor | None: ...
    @property
    def calibrated(self) -> bool: ...
    @property
    def visibility(self) -> Tensor | None: ...
    @property
    def check(self) -> MaskCheck | None: ...
    @property
    def camera(self) -> FoundCamera | None: ...
    @property
    def imprint(self) -> float | None: ...


@dataclass(frozen=True)
class ReportData:
    """What figures and the page of a result show. Only the cube is needed; what is None or empty is left out.

    Args:
        cube: the reconstruction (C, H, W) in `unit`.
        wavelengths: (C,) band centers [nm]; None: bands are numbered from 1.
        truth: (C, H, W), where known.
        uncertainty: (C, H, W), in `unit`: one standard deviation of each value of the cube where `calibrated`, else its
            spread, which tells uncertain places from certain ones and is no error bar.
        measurement: (H, W'), the snapshot.
        residual: (H, W'), the snapshot minus the one that the cube explains.
        history: records of the solver.
        choice: what was chosen automatically and why; numbers, text, lists and mappings.
        parameters: settings of the run, likewise.
        provenance: further facts: input, hash, version, command line, status ...
        unit: of the cube.
        title: heading, the name of the input for example.
        visibility: (C, H, W), share of each value that the snapshot alone determines, 0 to 1.
        calibrated: the uncertainty was compared with errors and covers as many of them as a standard deviation does.
        markers: iterations at which the run changed, and what changed there: (iteration, words).
        verdict: whether mask and measurement belong together, in words.
        ok: that verdict is good; if it is not, figures and page warn.
        film: an animated GIF of the sequence that the cube is a frame of.

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
    visibility: CubeLike | None = None
    calibrated: bool = False
    markers: Sequence[tuple[int, str]] = ()
    verdict: str = ""
    ok: bool = True
    film: bytes = b""

    def __post_init__(self) -> None:
        shape = tuple(self.cube.shape)
        if len(shape) != 3 or 0 in shape:
            raise ValueError(f"cube must be (C, H, W) and not empty, got {shape}: select one frame of a stack")
        cubes = {"truth": self.truth, "uncertainty": self.uncertainty, "visibility": self.visibility}
        for name, cube in cubes.items():
            if cube is not None and tuple(cube.shape) != shape:
                raise ValueError(f"{name} must have the shape of the cube {shape}, got {tuple(cube.shape)}")
        for name, picture in (("measurement", self.measurement), ("residual", self.residual)):
            if picture is not None and (np.ndim(picture) != 2 or 0 in np.shape(picture)):
                raise ValueError(f"{name} must be one snapshot (H, W'), got {np.shape(picture)}")
        if self.wavelengths is not None and np.shape(self.wavelengths) != shape[:1]:
            raise ValueError(f"wavelengths must be {shape[:1]}, one per band, got {np.shape(self.wavelengths)}")

    @property
    def measured_unit(self) -> str:
        """Of measurement and residual: the cube's, but where that was divided by a white reference."""
        return "" if self.unit == REFLECTANCE else self.unit

    @property
    def black_level(self) -> float:
        """What was taken off the measurement as its black level, in its unit."""
        black = self.choice.get("black_level", 0.0)
        return black if isinstance(black, float) else 0.0

    @property
    def unexplained(self) -> float | None:
        """|y - Phi x| / |y|, y less its black level; None where either is not known."""
        if self.residual is None or self.measurement is None:
            return None
        light = float(np.linalg.norm(np.nan_to_num(self.measurement).astype(np.float64) - self.black_level))
        rest = float(np.linalg.norm(np.nan_to_num(self.residual).astype(np.float64)))
        return rest / light if light > 0 else None

    @property
    def held_out_error(self) -> float | None:
        """Relative error at detector pixels that the solver did not see, where it was measured."""
        error = self.choice.get("held_out_error")
        return error if isinstance(error, float) and math.isfinite(error) else None

    @property
    def imprint(self) -> float | None:
        """How much of the mask's pattern is left in the cube (`cassi.optics.imprint`), where it was measured."""
        value = self.provenance.get("imprint")
        return value if isinstance(value, float) and math.isfinite(value) else None

    @property
    def found_camera(self) -> str:
        """What was found of the camera, in a sentence; empty where it was taken as given."""
        camera = self.provenance.get("camera")
        return str(camera.get("message", "")) if isinstance(camera, Mapping) and camera.get("accepted") is True else ""

    def problems(self) -> list[str]:
        """Why this result cannot be trusted, a sentence each; empty where nothing speaks against it."""
        found = [] if self.ok else [self.verdict or "The mask does not fit the measurement."]
        if (share := self.unexplained) is not None and not share < 0.5:
            found.append(f"The cube explains less than half of the snapshot: {share:.0%} is left.")
        if (error := self.held_out_error) is not None and error > FAIR:
            found.append(f"The cube does not predict pixels it has not seen: their error is {error:.0%}.")
        if (left := self.imprint) is not None and left > STAMPED:
            found.append(
                f"The mask's pattern is left in the cube (imprint {left:.2f}, good: below {STAMPED:g}): the mask does "
                "not fit, or noise was fitted."
            )
        return found

    def numbers(self) -> list[tuple[str, str]]:
        """The figures of merit that are known: name and value, as text.

        With truth those of `cassi.looking.metrics.score`; the peak is 1, or the brightest true value if that is above.
        """
        found: list[tuple[str, str]] = []
        if self.truth is not None and math.prod(self.cube.shape) <= MAX_SCORED:
            estimate, truth = (np.asarray(cube[:, :, :], dtype=np.float32) for cube in (self.cube, self.truth))
            peak = max(1.0, float(np.nanmax(truth)))
            scores = score(estimate, truth=truth, peak=peak)
            found.append((f"PSNR, peak {peak:.3g}", f"{scores['psnr']:.2f} dB"))
            found.append(("SSIM", f"{scores['ssim']:.3f}"))
            found.append(("mean spectral angle", f"{scores['sam']:.2f}°"))
        if (error := self.held_out_error) is not None:
            found.append(("error at unseen pixels", f"{error:.2%}"))
        if (share := self.unexplained) is not None:
            found.append(("residual |y - Φx| / |y|", f"{share:.2%}"))
        if self.imprint is not None:
            found.append(("imprint of the mask", f"{self.imprint:.3f}"))
        return found


def report_of(
    result: ResultLike,
    measurement: Measurement | None = None,
    *,
    frame: int = 0,
) -> ReportData:
    """Take what figures and a page show from a reconstruction in memory.

    Args:
        result: the reconstruction, of one snapshot or of a stack.
        measurement: what it was made of; brings snapshot, truth and name.
        frame: which of a stack, from 0.

    Returns:
        The data.

    Raises:
        IndexError: no such frame.

    Example:
        >>> mask = torch.rand(16, 16, generator=torch.Generator().manual_seed(0))
        >>> y = CASSI.from_step(mask, 2, 4).forward(torch.ones(4, 16, 16))
        >>> report_of(cassi.reconstruct(y, mask, num_bands=4, solver="gap-tv", num_iters=5)).cube.shape
        (4, 16, 16)
    """
    stack = result.cube.ndim == 4

    def one(values: Tensor | Array | None, rank: int) -> Array | None:
        if values is None:
            return None
        array = as_array(values)
        return array[frame] if array.ndim > rank else array

    cube = one(result.cube, 3)
    if cube is None:
        raise ValueError("the result holds no cube")
    history = _of_frame(list(result.history), len(result.cube) if stack else 1, frame)
    choice = dict(result.choice["frames"][frame] if "frames" in result.choice else result.choice)
    m = measurement
    name = (m.source if m is not None else "") or "Reconstruction"
    return ReportData(
        cube=cube,
        wavelengths=result.wavelengths,
        truth=None if m is None else one(m.cube, 3),
        uncertainty=one(result.uncertainty, 3),
        calibrated=result.calibrated,
        visibility=one(result.visibility, 3),
        measurement=None if m is None else one(m.y, 2),
        residual=one(result.residual_image, 2),
        history=history,
        markers=_changes(choice, history),
        verdict="" if result.check is None else result.check.verdict,
        ok=result.check is None or result.check.matches,
        choice=choice,
        parameters=result.parameters,
        provenance={
            "status": result.status,
            "seconds": result.seconds,
            "scale": 1.0 if m is None else m.scale,
            "imprint": result.imprint,
            "camera": None if result.camera is None else result.camera.as_dict(),
        },
        unit=result.unit,
        title=f"{name}, frame {frame + 1} of {len(result.cube)}" if stack else name,
    )


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
            `uncertainty`, `visibility`, `measurement`, `residual`, `history/*` and the attributes, of which `verdict`,
            `ok`, `uncertainty_calibrated`, `markers`, `choice`, `parameters` and `unit` fill the fields of that name.
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
    container = open_container(Path(path))
    if container.format != "HDF5":
        raise InputError(f"{path}: is {container.format}, expected a result in HDF5; write the result as .h5")
    found = {entry.name: entry for entry in container.entries if entry.dtype is not None}
    if "mask" in found and not is_result(container):
        raise InputError(
            f"{path}: this is a measurement, not the result of a run; reconstruct it first", kind="measurement"
        )
    if "cube" not in found or len(found["cube"].shape) not in (3, 4):
        raise InputError(f"{path}: no cube (C, H, W) in it, expected the result of a run; found {container.listing()}")
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
    history = _of_frame([Record(int(k), float(s), float(r), float(c)) for k, s, r, c in rows], frames, frame)
    facts = {name: _from_json(value) for name, value in container.attributes.items()}
    choice, parameters = (_mapping(facts.pop(name, {})) for name in ("choice", "parameters"))
    unit, markers = str(facts.pop("unit", "")), facts.pop("markers", [])
    try:
        return ReportData(
            cube=_Stored(container, found["cube"], frame),
            wavelengths=numbers("wavelengths"),
            truth=cube("truth"),
            uncertainty=cube("uncertainty"),
            calibrated=bool(facts.pop("uncertainty_calibrated", False)),
            visibility=cube("visibility"),
            measurement=snapshot("measurement"),
            residual=snapshot("residual"),
            history=history,
            markers=_markers(markers) or _changes(choice, history),
            verdict=str(facts.pop("verdict", "")),
            ok=bool(facts.pop("ok", True)),
            choice=choice,
            parameters=parameters,
            provenance=facts,
            unit=unit,
            title=str(facts.get("input_name", Path(path).name)),
        )
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _of_frame(history: list[Record], frames: int, frame: int) -> list[Record]:
    """The records of one frame, where those of all frames stand one after the other, each from iteration 1."""
    starts = [i for i, record in enumerate(history) if record.iteration == 1]
    if frames == 1 or len(starts) != frames:
        return history
    return history[starts[frame] : [*starts, len(history)][frame + 1]]


def _from_json(value: object) -> object:
    """What an attribute holds: text that is a list or a mapping in JSON is taken for it."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _markers(value: object) -> list[tuple[int, str]]:
    pairs = value if isinstance(value, list) else []
    return [(p[0], str(p[1])) for p in pairs if isinstance(p, list) and len(p) == 2 and isinstance(p[0], int)]


def _changes(choice: Mapping[str, object], history: Sequence[Record]) -> list[tuple[int, str]]:
    """Where each stage of the default solver but the first begins, as its choice tells."""
    stages = choice.get("stages")
    return _markers(stages)[1:] if history and isinstance(stages, list) else []


def _mapping(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {"value": value}
