"""A spectral cube with how it came about, and the file it is kept in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan
from cassi.errors import Note, counted
from cassi.files import write_cube
from cassi.files.cubes import TURNS, resample, resampling, turn
from cassi.optics.measurement import MaskCheck, Measurement, any_bad
from cassi.priors.spectral_basis import resolution, smooth_basis
from cassi.self_calibration.found_camera import FoundCamera
from cassi.settings import Settings
from cassi.solvers.loop import STATUS_WORDS, Record
from cassi.types import PathLike
from cassi.version import PROGRAM

CONCERN = "concern"  # kind of a note that speaks against a measurement or a result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, kw_only=True)
class Reconstruction:
    """A spectral cube and how it came about.

    Attributes:
        cube: (C, H, W), or (N, C, H, W) for a stack of snapshots, float32, in the unit of the measurement per unit of
            mask transmission; on the device it was computed on. That of tiles lies in a file without a name.
        residual_image: y - Phi x like the measurement, in its unit; 0 at bad pixels.
        uncertainty: like `cube`, in its unit, where it was asked for, else None: a standard deviation.
        visibility: with it, (C, H, W): how much of each voxel the snapshot alone determines, 0 to 1
            (`Camera.visibility`); the rest comes from the prior. None for cameras with blur, and of tiles.
        wavelengths: (C,) float64 [nm], or None where unknown.
        history: one Record an iteration; for a stack the frames' records one after the other, each from iteration 1;
            in tiles one a tile, its residual over the detector pixels it was solved from.
        status: "converged", "finished" or "stopped"; for a stack the least finished of its frames'.
        residual: |y - Phi x| / |y| over the good detector pixels, y less its black level.
        seconds: wall time of the computation.
        outcomes: what was chosen for each snapshot, once for all tiles, and on what evidence; without cubes.
        parameters: every argument of the call, as given or by default; plain values.
        unit: of the cube, in words.
        camera: as it was found from the snapshot, or left; None where it was not searched for.
        imprint: how much of the mask's pattern is left in the (first) cube, 0 none (`cassi.optics.imprint`); None where
            the camera has no mask or the frame is small.
        bend: how the residual bends with brightness (`cassi.running.concerns.bend_of`); None where unknown.
        unresolved: numbers of the bands whose fine texture is not the scene's (`cassi.evidence.texture`).
        measurement: what it was made of, with all that was inferred and doubted among its notes; None where a camera
            took the mask's place.
        check: whether snapshot and mask belong together, `verdict` in words (`cassi.optics.mask_match`); None where the
            camera has no mask.
        turned: how cube and truth are turned against the detector, and in a file all pictures (`cassi.files.cubes`).
    """

    cube: Tensor
    residual_image: Tensor
    uncertainty: Tensor | None = None
    visibility: Tensor | None = None
    wavelengths: np.ndarray | None
    history: tuple[Record, ...]
    status: str
    residual: float
    seconds: float
    outcomes: tuple[Outcome, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ""
    camera: FoundCamera | None = None
    imprint: float | None = None
    bend: float | None = None
    unresolved: tuple[int, ...] = ()
    measurement: Measurement | None = None
    check: MaskCheck | None = None
    turned: str = "none"

    @property
    def choice(self) -> dict[str, Any]:
        """The choices and their evidence; plain values, one entry a decision; for a stack under "frames"."""
        each = [outcome.as_dict() for outcome in self.outcomes]
        return each[0] if self.cube.ndim == 3 else {"frames": each}

    @property
    def plan(self) -> Plan | None:
        """The plan of the (first) snapshot, for `reconstruct(plan=...)` of others like it; None from other solvers."""
        return self.outcomes[0].plan_alone or self.outcomes[0].plan

    @property
    def resolution(self) -> float | None:
        """The resolution of the (first) cube's spectral basis [nm], median over bands; None where it is unknown."""
        plan, m = self.outcomes[0].plan, self.measurement
        nm = self.wavelengths if m is None else m.wavelengths  # the cube may be at others
        if plan is None or nm is None or plan.vectors.shape[-1] != len(nm):
            return None
        bases = [plan.vectors]
        if plan.is_learned and plan.learned is not None:
            bases.append(smooth_basis(nm, plan.learned.size.components))
        return min(float(np.median(resolution(basis, nm))) for basis in bases)

    @property
    def method(self) -> str:
        """The method of the (first) cube: the solver, or the priors of the default one."""
        plan = self.outcomes[0].plan
        return self.outcomes[0].solver if plan is None else ", ".join(dict.fromkeys(s.words for s in plan.stages))

    @property
    def concerns(self) -> tuple[str, ...]:
        """The concerns about measurement and result, a sentence each."""
        notes = () if self.measurement is None else self.measurement.notes
        return tuple(note for note in notes if Note(note).kind == CONCERN)

    def explain(self, *, verbose: bool = False) -> str:
        """The choice (in a stack, for the first snapshot) in a few sentences; with `verbose` all the evidence.

        Then what is wrong with the detector, where something was found.
        """
        scale = 1.0 if self.measurement is None else self.measurement.scale
        choice = self.outcomes[0].explain(verbose=verbose, scale=scale)
        return choice if self.camera is None or not self.camera.detector else f"{choice} {self.camera.detector}"

    @property
    def bad_pixels(self) -> np.ndarray | None:
        """(H, W') bool, of K shots (K, H, W'): detector pixels that were left out, as given or as found; None: none."""
        given = None if self.measurement is None else self.measurement.bad_pixels
        return any_bad((given, None if self.camera is None else self.camera.left_out))

    @property
    def sensitivity(self) -> np.ndarray | None:
        """(H, W') of the detector pixels, as given or as found, by which the light was divided; None: it was not."""
        if self.camera is not None and self.camera.sensitivity is not None:
            return self.camera.sensitivity
        return None if self.measurement is None else self.measurement.sensitivity

    def attributes(self) -> dict[str, object]:
        """The facts in the file of a result, by name; None where nothing is known."""
        m, camera, check = self.measurement, self.camera, self.check
        origin = {} if m is None else {
            "input_name": m.source,
            "input_sha256": m.sha256,
            "scale": m.scale,
            "shots": m.shots,
            "notes": list(m.notes),
            "shifts": [float(d) for d in m.shifts],
            "origin": dict(m.origin) or None,
            "num_bad_pixels": None if self.bad_pixels is None else int(self.bad_pixels.sum()),
        }  # fmt: skip
        facts = ("unit", "status", "residual", "seconds", "choice", "imprint", "bend")
        return {
            "version": PROGRAM,
            **origin,
            "camera": None if camera is None else camera.as_dict(),
            "verdict": None if check is None else check.verdict,
            "ok": None if check is None else check.matches,
            **{name: getattr(self, name) for name in facts},
            "parameters": dict(self.parameters),
            "unresolved_bands": list(self.unresolved),
            "concerns": list(self.concerns),
            "resolution_nm": self.resolution,
            "turned": None if self.turned == "none" else self.turned,
        }

    def save(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write the cube with its measurement, history and provenance to .h5, .mat or .tif; see `write_result`."""
        write_result(path, self, overwrite=overwrite)

    def contents(self) -> dict[str, Any]:
        """The content of the file of a result, as `cassi.files.write_cube` takes it."""
        m = self.measurement
        datasets = {
            "measurement": None if m is None else m.y,
            "residual": _array(self.residual_image),
            "truth": None if m is None else m.cube,
            "uncertainty": _array(self.uncertainty),
            "visibility": _array(self.visibility),
            "bad_pixels": self.bad_pixels,
            "sensitivity": self.sensitivity,
            **({} if self.camera is None or m is None else self.camera.images(m.mask)),
        }
        on_detector = {"measurement", "residual", "bad_pixels", "sensitivity", "mask_given", "mask_error"}
        turned = {name: turn(v, self.turned) for name, v in datasets.items() if name in on_detector and v is not None}
        return {
            "cube": _array(self.cube),
            "wavelengths": self.wavelengths,
            "history": self.history,
            "datasets": {name: values for name, values in (datasets | turned).items() if values is not None},
            "attributes": self.attributes(),
        }

    def to_xarray(self) -> Any:
        """Cube and uncertainty with labelled axes, an `xarray.Dataset`; see `cassi.files.cubes.to_xarray`."""
        from cassi.files.cubes import to_xarray

        saved = self.contents()
        spread, facts = saved["datasets"].get("uncertainty"), saved["attributes"]
        return to_xarray(saved["cube"], self.wavelengths, uncertainty=spread, unit=self.unit, attributes=facts)

    def plot(self, *, frame: int = 0) -> Figure:
        """The cube (of a stack, of one frame) at a glance: a matplotlib figure (`cassi.looking.figures.summary`)."""
        from cassi.looking.figures import summary
        from cassi.looking.report_data import report_of

        return summary(report_of(self, frame=frame))

    def __repr__(self) -> str:
        """One line: size, solver, how it ended."""
        *frames, bands, height, width = self.cube.shape
        many = (f"{frames[0]} cubes of " if frames else "") + counted(bands, "band")
        range_ = "" if self.wavelengths is None else f", {self.wavelengths[0]:g} to {self.wavelengths[-1]:g} nm"
        return (
            f"<Reconstruction: {many}{range_}, {height} x {width} px, by {self.outcomes[0].solver} in "
            f"{self.seconds:.3g} s ({STATUS_WORDS[self.status]}), residual {self.residual:.2%}>"
        )

    def _repr_html_(self) -> str:
        """The view in a notebook: a small picture and the numbers, in a stack of the first cube."""
        from cassi.looking.overview import inline_html
        from cassi.looking.report_data import report_of

        return inline_html(report_of(self))


def write_result(
    path: PathLike, result: Reconstruction, *, attributes: Mapping[str, object] | None = None, overwrite: bool = False
) -> None:
    """Write a reconstruction with the measurement it came from and its provenance, see `cassi.files.write_cube`.

    Beside `/cube`, `/wavelengths` and `/history`: `/measurement`, `/residual` (y - Phi x), and where they are known
    `/truth`, `/uncertainty`, `/visibility` and `/bad_pixels`; `attributes` are further provenance by name.
    """
    contents = result.contents()
    contents["attributes"] |= attributes or {}
    write_cube(path, **contents, overwrite=overwrite)


def turn_and_resample(
    result: Reconstruction, settings: Settings, inform: Callable[[str], None] = lambda text: None
) -> Reconstruction:
    """The result at the wavelengths, and turned, as the settings want it."""
    m, nm, how = result.measurement, result.wavelengths, settings.turn_result
    known = {name: getattr(result, name) for name in ("cube", "uncertainty", "visibility")}
    cubes = {name: values for name, values in known.items() if values is not None}
    truth = {} if m is None else {name: v for name in ("cube", "mean_band") if (v := getattr(m, name)) is not None}
    if settings.output_bands is not None:
        nm, weights, words = resampling(nm, settings.output_bands, result.resolution)
        inform(words)
        cubes = {name: resample(values, weights, spread=name == "uncertainty") for name, values in cubes.items()}
        truth |= {"cube": resample(truth["cube"], weights)} if "cube" in truth else {}
    if how != "none":
        cubes = {name: turn_in_place(values, how) for name, values in cubes.items()}
        truth = {name: turn(values, how) for name, values in truth.items()}
    return replace(result, wavelengths=nm, measurement=None if m is None else replace(m, **truth), turned=how, **cubes)


def turn_in_place(cube: Tensor, how: str) -> Tensor:
    """`turn` a cube in its place, image by image, as it may be larger than memory."""
    height, width = cube.shape[-2:]
    size = (width, height) if TURNS[how] % 2 else (height, width)
    images = cube.contiguous().view(-1, height, width)
    for image in images:
        image.view(size).copy_(turn(image, how))
    return images.view(*cube.shape[:-2], *size)


def _array(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.detach().cpu().numpy()
