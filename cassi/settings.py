"""Every setting of a reconstruction, stated once.

A field of `Settings` carries its default, its help, its name on the command line, its limits, and what it needs or
excludes. From these follow the parser and the page of options, the checks of library and command line alike, the typed
keywords of `cassi.reconstruct` (`cassi.keywords`), and the record in a result. A new setting is a field here, and the
code that uses it. Nothing here imports PyTorch, so that `--help` is there at once.
"""

from __future__ import annotations

import argparse
import math
import numbers
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from cassi.errors import InputError
from cassi.types import PathLike

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

    from cassi.choice.plan import Plan
    from cassi.files.spectrum_files import Spectrum
    from cassi.optics.measurement import Measurement
    from cassi.photograph.picture import SidePicture
    from cassi.priors.learned import LearnedPrior
    from cassi.self_calibration.found_camera import FoundCamera

    Array = Tensor | np.ndarray

Solver = Literal["auto", "subspace", "least-squares", "gap-tv", "admm-tv", "fista-tv"]
Quality = Literal["fast", "default", "best"]
Prior = Literal["auto", "tv", "nonlocal", "learned"]
Turn = Literal["none", "90", "180", "270", "flip"]
SOLVERS: tuple[str, ...] = get_args(Solver)
TURNS: tuple[str, ...] = get_args(Turn)
QUALITIES: tuple[str, ...] = get_args(Quality)
PRIORS: tuple[str, ...] = get_args(Prior)
CAMERAS = ("find", "as-given", "align", "dd", "cacti", "mosaic")
IN_PLACE = ("cacti", "mosaic")  # those with a mask for each band that displace none

# Situations that some settings need or exclude, though they are no settings.
MANY, SHOTS = "several snapshots", "several shots"


# Values as they are typed


def whole(text: str) -> int:
    """A whole number."""
    if not re.fullmatch(r"\s*[+-]?\d+\s*", text):
        raise argparse.ArgumentTypeError(f"expected a whole number such as 2, got {text!r}")
    return int(text)


def count(text: str) -> int:
    """A number of things, at least 1."""
    if whole(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text}")
    return int(text)


def place(text: str) -> tuple[int, int]:
    """A row and a column from "1,2"."""
    if not (match := re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\s*", text)):
        raise argparse.ArgumentTypeError(f"expected a row and a column such as 1,2, got {text!r}")
    return int(match[1]), int(match[2])


def number(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"expected a number such as 2 or 1.5, got {text!r}")
    return value


def duration(text: str) -> float:
    """Seconds from "10", "10s", "2min", "1m30s" or "1h"."""
    part = r"(\d+(?:\.\d+)?)"
    match = re.fullmatch(rf"(?:{part}h)?(?:{part}m(?:in)?)?(?:{part}s?)?", text.strip())
    seconds = sum(float(n or 0) * unit for n, unit in zip(match.groups(), (3600, 60, 1), strict=True)) if match else 0
    if seconds <= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration, expected 10s, 2min or 1h")
    return seconds


@dataclass(frozen=True)
class Option:
    """How a value is given on the command line, and what it goes with.

    `needs` and `excludes` name other fields ("num_iters"), single values of them ("solver=auto"), or situations
    ("several shots"). A field counts as given where its value is neither the default nor `idle`.
    """

    name: str  # as it is typed; without dashes it is positional; empty: the library alone has it
    help: str
    value: str | None = None  # placeholder in the help; None for a switch, or one of a few `choices`
    field: str = ""  # of the parsed arguments, where it is not the name
    type: Callable[[str], Any] | None = None
    choices: tuple[str, ...] | None = None
    default: Any = None
    nargs: str | None = None  # as argparse has it; with "?" an empty string stands for the value that is left out
    required: bool = False
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    why: str = ""  # it excludes them
    reads: bool = False  # its values are files that are read
    writes: tuple[str, ...] = ()  # its value is a file that is made, with one of these suffixes
    idle: str | None = None  # a value that asks for nothing, beside the default

    def __post_init__(self) -> None:
        object.__setattr__(self, "field", self.field or self.name.lstrip("-").replace("-", "_"))

    def is_given(self, value: Any) -> bool:
        """Whether a value asks for anything."""
        idle = value is None or value is False or value is self.default
        return not idle and not (
            isinstance(value, str | int | float | list | tuple) and value in (self.default, self.idle)
        )


def check_together(
    options: Iterable[Option],
    values: Mapping[str, Any],
    situations: Iterable[str] = (),
    spell: Callable[[str], str] = str,
) -> None:
    """Raise InputError (kind "conflict") for values, by field, that lack what they need or exclude each other.

    `spell` turns the name of a field into the one that the user knows.
    """
    options = [option for option in options if option.field in values]
    present = {*situations}
    for option in options:
        value = values[option.field]
        present |= {option.field} if option.is_given(value) else set()
        present |= {f"{option.field}={value}"} if option.choices else set()
    for option in (option for option in options if option.field in present):
        named = spell(f"{option.field}={values[option.field]}" if option.choices else option.field)
        for other in option.needs:
            if other not in present:
                text = f"{named} needs {spell(other)}; give that too, or leave {spell(option.field)} out"
                raise InputError(text, kind="conflict")
        if clash := [other for other in option.excludes if other in present]:
            why = f": {option.why}" if option.why else ""
            text = f"{named} does not go with {', '.join(map(spell, clash))}{why}; leave one of them out"
            raise InputError(text, kind="conflict")


def setting(
    default: Any,
    help: str,
    name: str = "",
    *,
    group: str = "method",
    above: float | None = None,
    at_reading: bool = False,
    value: str | None = None,
    type: Callable[[str], Any] | None = None,
    choices: tuple[str, ...] | None = None,
    needs: tuple[str, ...] = (),
    excludes: tuple[str, ...] = (),
    why: str = "",
    reads: bool = False,
) -> Any:
    """A field of `Settings`: its default, its `Option`, the group in the help, its lower limit (exclusive).

    A field that counts `at_reading` belongs to the measurement that is read with it, and is recorded as found there;
    the others are among the `parameters` of a result.
    """
    made = Option(name, help, value, "", type, choices, default, None, False, needs, excludes, why, reads)
    return field(default=default, metadata={"option": made, "group": group, "above": above, "at_reading": at_reading})


AUTO = ("solver=auto",)
CAMERA = "camera (what is not given is inferred, and reported)"
RESULT = "the cube as it is written"


@dataclass(frozen=True, eq=False)
class Settings:
    """The settings of a reconstruction: the keywords of `cassi.reconstruct` beside snapshot and mask.

    Raises:
        InputError: a value out of range (kind "range"), or values that do not go together (kind "conflict").

    Example:
        >>> Settings(quality="fast").quality
        'fast'
    """

    shifts: Sequence[float] | None = setting(None, "displacement of each band on the detector [pixel]", at_reading=True)
    """C numbers; between pixels `cassi.optics.blurred.BlurredCASSI` is used."""
    num_bands: int | None = setting(
        None, "number of bands", "--num-bands", group=CAMERA, value="C", type=count, at_reading=True
    )
    """C. What is not given of step and num_bands follows from W' - W."""
    step: float | None = setting(
        None, "displacement between neighboring bands, any sign", "--step", group=CAMERA, value="PX", type=number,
        at_reading=True,
    )  # fmt: skip
    """[pixel], instead of shifts."""
    wavelengths: str | Sequence[float] | Array | None = setting(
        None,
        "band centers: start:stop:count, a list 450,460,..., a preset (tsa-net-28, mst-28, smem-24, cave-31), a file, "
        'or "unknown"',
        "--wavelengths", group=CAMERA, value="NM", reads=True, at_reading=True,
    )  # fmt: skip
    """(C,) [nm], or a text (`cassi.optics.wavelengths`). The default solver takes spectra to be smooth over them."""
    bad_pixels: Array | None = setting(
        None, "map of the detector, nonzero where a pixel is bad", "--bad-pixels", group=CAMERA, value="FILE",
        reads=True, at_reading=True,
    )  # fmt: skip
    """(H, W') bool, True where the detector says nothing; these pixels are left out exactly."""
    black_level: float | None = setting(
        None, "value of a dark pixel as stored (default: estimated; 0: none)",
        "--black-level", group=CAMERA, value="VALUE", type=number,
    )  # fmt: skip
    """In the unit of y; None: estimated (`choice["black_level"]`); 0: nothing is subtracted."""
    dark: PathLike | Array | None = setting(
        None, "dark frames at the exposure of the snapshot: a file, a stack or a folder",
        "--dark", group=CAMERA, value="FILE",
        excludes=("black_level",), why="a dark frame holds it", reads=True, at_reading=True,
    )  # fmt: skip
    """Or an array (H, W'), in counts where y was read from counts."""
    camera: str | FoundCamera = setting(
        "find", "find: fit the mask to the snapshot (default); as-given: do not; align: fit only its position and the "
        "dispersion; dd: a double disperser; cacti: a video camera, one mask per frame; mosaic: a filter on each "
        "detector pixel",
        "--camera", group=CAMERA, choices=CAMERAS,
    )  # fmt: skip
    """Or a `FoundCamera`. Nothing is searched for where a psf or a camera is given."""
    pattern: PathLike | Array | None = setting(
        None, "filters of a mosaic sensor: 4x4, one band each, row by row; rggb, bggr, grbg or gbrg; or a file with "
        "their numbers",
        "--pattern", group=CAMERA, value="PxQ|FILE", needs=("camera=mosaic",), excludes=(SHOTS,), reads=True,
        at_reading=True,
    )  # fmt: skip
    """Or an array (p, q), see `cassi.Mosaic.from_pattern`."""
    pattern_offset: Sequence[int] = setting(
        (0, 0), "row and column of the pattern at the first pixel of the frame", "--pattern-offset",
        group=CAMERA, value="R,C", type=place, needs=("pattern",), at_reading=True,
    )  # fmt: skip
    response: PathLike | Array | None = setting(
        None, "transmission of each filter (row) in each band (column): a table or an array", "--response",
        group=CAMERA, value="FILE", needs=("pattern",), reads=True, at_reading=True,
    )  # fmt: skip
    """Or an array (K, C); by default each filter has a band of its own."""
    crosstalk: PathLike | Array | None = setting(
        None, "share of each filter's signal (column) in the pixels of each filter (row)", "--crosstalk",
        group=CAMERA, value="FILE", needs=("pattern",), reads=True, at_reading=True,
    )  # fmt: skip
    """Or an array (K, K)."""
    psf: float | Array | None = setting(
        None, "blur along the dispersion: standard deviation of a Gaussian [px]", "--psf",
        group=CAMERA, value="SIGMA", type=number,
    )  # fmt: skip
    """> 0, or taps (M,), or (C, M) with one per band (`BlurredCASSI`)."""
    gain: float | None = setting(
        None, "electrons per count, or per unit of floats that are no counts", "--gain",
        group=CAMERA, value="E", type=number, at_reading=True,
    )  # fmt: skip
    """Electrons per unit of y, where known."""
    read_noise: float | None = setting(
        None, "read noise [electrons]", "--read-noise", group=CAMERA, value="E", type=number, at_reading=True
    )
    """Standard deviation [electron], where known."""
    white: PathLike | Measurement | None = setting(
        None, "capture of a white reference, same camera and light: the cube becomes reflectance",
        "--white", group=CAMERA, value="FILE", reads=True,
    )  # fmt: skip
    """A `Measurement` of it, or its file, read like the snapshot's."""
    white_reflectance: float | PathLike | Spectrum = setting(
        1.0, "its reflectance: 0.95, or a table over wavelength [nm] (default: 1)",
        "--white-reflectance", group=CAMERA, value="R|FILE", needs=("white",),
    )  # fmt: skip
    """Or a `cassi.files.tables.Spectrum`."""
    exposure_ratio: float = setting(
        1.0, "exposure time of the scene, divided by the reference's (default: 1)", "--exposure-ratio",
        group=CAMERA, value="E", type=number, above=0.0, needs=("white",),
    )  # fmt: skip
    solver: Solver | str = setting(
        "auto", "the method (default: auto, which needs no settings)", "--solver", choices=SOLVERS
    )
    """"auto": subspace TV, a non-local prior and a network, everything chosen from held-out pixels; "subspace":
    subspace TV with settings of your own, for clean data; "least-squares", "gap-tv", "admm-tv", "fista-tv"."""
    quality: Quality | str = setting(
        "default", "fast: about half the time, some 0.5 dB worse, corrects no single mask elements; best: much more "
        "time, with the network trained on this snapshot",
        "--quality", choices=QUALITIES, needs=AUTO,
    )  # fmt: skip
    views: int | None = setting(
        None, "mean of 1, 2 or 4 solutions with mirrored priors: slower, slightly better (default: 1; with best 4)",
        "--views",
        value="1|2|4", type=count, needs=AUTO, excludes=("prior=tv", "num_iters", "plan"),
    )  # fmt: skip
    """`cassi.choice.mirrors`; on a GPU all views are solved together."""
    prior: Prior | str = setting(
        "auto", "strongest prior (default: auto, learned unless the evidence is against it)",
        "--prior", choices=PRIORS, needs=AUTO,
    )  # fmt: skip
    weights: PathLike | LearnedPrior | None = setting(
        None, "network weights: free for any use (default), research for research only, or a file of scripts/train.py",
        "--weights", value="free|research|FILE", reads=True,
        needs=AUTO, excludes=("prior=tv", "prior=nonlocal", "num_iters"),
    )  # fmt: skip
    budget: float | None = setting(
        None, "time limit: 10s, 2min ...; start, error bars and figures come on top", "--budget", value="TIME",
        type=duration, above=0.0,
    )  # fmt: skip
    """[s]; None: no limit."""
    uncertainty: bool = setting(
        False, "also estimate the standard deviation of each voxel", "--uncertainty", needs=AUTO
    )
    num_iters: int | None = setting(
        None, "number of iterations (default: the solver's own); of solver auto, total variation alone", "--iterations",
        value="N", type=count, excludes=("quality", "prior=nonlocal", "prior=learned"),
        why="it fixes the iterations, of total variation alone",
    )  # fmt: skip
    tv_weight: float | None = setting(
        None, "weight of total variation, relative to the cube's brightness (not for auto)",
        "--tv-weight", value="W", type=number,
        above=0.0, excludes=("solver=auto", "solver=least-squares"),
    )  # fmt: skip
    """For "admm-tv" and "fista-tv" relative to the brightness times the mean of gram_diag."""
    plan: PathLike | Plan | None = setting(
        None, "repeat the choices of an earlier result (--save-plan): noise, spectra and priors",
        "--plan", value="FILE", reads=True, needs=AUTO,
        excludes=("num_iters", "quality", "prior", "gain", "read_noise"),
        why="a plan states noise, basis, priors and iterations",
    )  # fmt: skip
    """A `Plan`, as `Reconstruction.plan` of a similar snapshot, or its file: pilot and judge are left out."""
    side: PathLike | SidePicture | None = setting(
        None, "photograph of the scene from beside the camera (PNG, JPEG, TIFF, an array); used where it fits",
        "--side", value="FILE", reads=True, needs=AUTO,
        excludes=(MANY, "budget", "uncertainty", "num_iters", "prior"),
    )  # fmt: skip
    turn_result: Turn | str = setting(
        "none", "turn cube, page and regions: degrees clockwise, or flip top to bottom",
        "--turn-result", group=RESULT, choices=TURNS,
    )  # fmt: skip
    """Cube and error bars; pictures of the detector are turned where they are written."""
    output_bands: str | Sequence[float] | None = setting(
        None, "interpolate the cube at these wavelengths: start:stop:step, a list, a preset or a file",
        "--output-bands", group=RESULT, value="NM", reads=True,
    )  # fmt: skip
    """Or an array [nm]; those outside of the bands are left out."""
    device: str | torch.device = setting(
        "auto", "auto, cpu, cuda, cuda:1 ... (default: auto)", "--device", value="DEVICE"
    )
    """"auto" is CUDA where there is one."""
    seed: int = setting(0, "seed of random choices (default: 0)", "--seed", value="SEED", type=whole)

    def __post_init__(self) -> None:
        if isinstance(self.solver, str):
            object.__setattr__(self, "solver", self.solver.replace("_", "-"))
        for known in fields(self):
            made, value = known.metadata["option"], getattr(self, known.name)
            if made.choices and not (isinstance(value, str) and value in made.choices):
                if known.name == "camera" and not isinstance(value, str):
                    continue  # a FoundCamera
                allowed = ", ".join(made.choices)
                raise InputError(f"unknown {known.name} {value!r}, expected one of {allowed}", kind="range")
            if made.type in (number, whole, count, duration) and value is not None and known.name != "psf":
                above = 0 if made.type is count else known.metadata["above"]
                check_number(known.name, value, above, is_whole=made.type in (whole, count))
        if self.views not in (None, 1, 2, 4):
            raise InputError(f"views must be 1, 2 or 4, got {self.views!r}", kind="range")
        check_seed(self.seed)
        self.check_together()

    def check_together(self, way: Option | None = None, value: object = None) -> None:
        """Raise InputError where settings exclude each other, or do not go with a way to solve: `TILE`, `SEQUENCE`."""
        ways = {} if way is None else {way.field: value}
        check_together([*OPTIONS.values(), *([way] if way else [])], vars(self) | ways, (), _in_python)

    @property
    def searches(self) -> bool:
        """Whether the camera is searched for in the snapshot."""
        return isinstance(self.camera, str) and self.camera in ("find", "align") and self.psf is None

    def as_read(self) -> Settings:
        """The settings left for a measurement that was read with them, its levels and dark frame subtracted."""
        left: dict[str, Any] = {field.name: field.default for field in fields(self) if field.metadata["at_reading"]}
        level = None if self.black_level is None and self.dark is None else 0.0
        camera = "as-given" if self.camera in ("dd", *IN_PLACE) else self.camera
        return replace(self, **left, black_level=level, camera=camera)

    def without_white(self) -> Settings:
        """The same without a white reference."""
        return replace(self, white=None, white_reflectance=1.0, exposure_ratio=1.0)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for the record of a result: of files and what was read from one the name, of others "given"."""
        return {
            field.name: _plain(getattr(self, field.name)) for field in fields(self) if not field.metadata["at_reading"]
        }


OPTIONS: dict[str, Option] = {
    field.name: Option(**{**vars(field.metadata["option"]), "field": field.name}) for field in fields(Settings)
}
"""Of each field of `Settings`."""

TILE = Option(
    "--tile", "reconstruct in tiles of this size, for frames larger than memory", value="PX", type=whole, needs=AUTO,
    excludes=("budget", "side", "output_bands", MANY), why="tiles never see the whole cube",
)  # fmt: skip
SEQUENCE = Option(
    "--sequence", "frames of a slowly moving scene: solve each with its neighbors, into one file (default: "
        "NAME_sequence.h5) and a film", needs=AUTO,
    excludes=(
        "align", "white", "tile", "uncertainty", "budget", "num_iters", "quality", "views", "plan", "side", SHOTS,
    ),
)  # fmt: skip


def options_in(group: str) -> tuple[Option, ...]:
    """The options of the command line in a group of its help."""
    of = {field.name for field in fields(Settings) if field.metadata["group"] == group}
    return tuple(option for name, option in OPTIONS.items() if name in of and option.name)


def check_number(name: str, value: Any, above: float | None = None, *, is_whole: bool = False) -> None:
    """Raise InputError (kind "range") for anything but a finite number, above a limit, which is 0."""
    what = ("a whole number" if is_whole else "a finite number") if above is None else "a positive number"
    what = "a whole number, at least 1" if is_whole and above is not None else what
    right = numbers.Integral if is_whole else numbers.Real
    fits = isinstance(value, right) and not isinstance(value, bool) and math.isfinite(float(value))
    if not (fits and (above is None or float(value) > above)):
        raise InputError(f"{name} must be {what}, got {value!r}", kind="range")


def check_seed(seed: int) -> None:
    """Raise InputError (kind "range") for a seed that random numbers cannot start from."""
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"the seed must be a whole number of 64 bits, got {seed!r}", kind="range")


def _in_python(name: str) -> str:
    """A field, or a value of one, as it is written in Python."""
    name, is_value, value = name.partition("=")
    return f'{name}="{value}"' if is_value else name


def _plain(value: Any) -> Any:
    if isinstance(value, str | os.PathLike):
        return os.path.basename(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "detach"):  # a tensor
        value = value.detach().cpu().numpy()
    if hasattr(value, "tolist"):  # an array, or a number of NumPy
        return value.tolist()
    if type(value).__name__ == "device":
        return str(value)
    return value if value is None or isinstance(value, int | float) else getattr(value, "source", "") or "given"
