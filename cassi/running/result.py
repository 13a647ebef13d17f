"""A spectral cube with how it came about, and the file it is kept in."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from cassi.calibration.found_camera import FoundCamera
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan
from cassi.files import write_cube
from cassi.optics.measurement import Measurement
from cassi.solvers.loop import Record
from cassi.version import PROGRAM

if TYPE_CHECKING:
    import xarray


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """A spectral cube and how it came about.

    Attributes:
        cube: (C, H, W), or (N, C, H, W) for a stack of snapshots, float32, in the unit of the measurement per unit of
            mask transmission; on the device it was computed on.
        wavelengths: (C,) float64 [nm], or None where unknown.
        history: one Record an iteration; for a stack the frames' records one after the other, each from iteration 1.
        status: "converged", "max_iters" or "stopped"; for a stack the least finished of its frames'.
        residual: |y - Phi x| / |y| over the good detector pixels, y less its black level.
        residual_image: y - Phi x like the measurement, in its unit; 0 at bad pixels.
        seconds: wall time of the computation.
        outcomes: what was chosen for each snapshot, and on what evidence.
        parameters: every argument of the call, as given or by default; plain values.
        unit: of the cube, in words.
        uncertainty: like `cube`, in its unit, where the solver estimates it, else None.
        visibility: with it, (C, H, W): how much of each voxel the snapshot alone determines, 0 to 1
            (`Camera.visibility`); the rest comes from the prior. None for cameras with blur.
        camera: as it was found from the snapshot, or left; None where it was not looked for.
        imprint: how much of the mask's pattern is left in the (first) cube, 0 none (`cassi.optics.imprint`); None where
            the camera has no mask or the frame is small.
    """

    cube: Tensor
    wavelengths: np.ndarray | None
    history: tuple[Record, ...]
    status: str
    residual: float
    residual_image: Tensor
    seconds: float
    outcomes: tuple[Outcome, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ""
    uncertainty: Tensor | None = None
    visibility: Tensor | None = None
    camera: FoundCamera | None = None
    imprint: float | None = None

    @property
    def choice(self) -> dict[str, Any]:
        """What was chosen, and on what evidence; plain values, one entry a decision; for a stack under "frames"."""
        each = [outcome.as_dict() for outcome in self.outcomes]
        return each[0] if self.cube.ndim == 3 else {"frames": each}

    @property
    def plan(self) -> Plan | None:
        """The plan of the (first) snapshot, for `reconstruct(plan=...)` of others like it; None from other solvers."""
        return self.outcomes[0].plan

    def explain(self, *, verbose: bool = False) -> str:
        """The choice in a few sentences, for a stack that of its first snapshot; with `verbose` all the evidence."""
        return self.outcomes[0].explain(verbose=verbose)

    def to_xarray(self) -> xarray.DataArray:
        """The cube as a labelled array with dimensions (frame,) wavelength or band, y, x (needs xarray).

        Raises:
            ImportError: xarray is not installed.
        """
        try:
            import xarray
        except ImportError as error:
            raise ImportError(f'to_xarray needs xarray: python -m pip install "cassi[formats]" ({error})') from error
        known = self.wavelengths is not None
        band = "wavelength" if known else "band"
        values = self.cube.detach().cpu().numpy()
        labels = self.wavelengths if known else np.arange(1, values.shape[-3] + 1)
        return xarray.DataArray(
            values,
            dims=("frame", band, "y", "x")[-values.ndim :],
            coords={band: (band, labels, {"units": "nm"} if known else {})},
            name="cube",
            attrs={"unit": self.unit, "status": self.status, "residual": self.residual, "seconds": self.seconds},
        )


def write_result(
    path: str | os.PathLike[str],
    measurement: Measurement,
    result: Reconstruction,
    *,
    attributes: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a reconstruction with the measurement it came from and its provenance, whole or not at all.

    Beside `/cube`, `/wavelengths` and `/history`: `/measurement`, `/residual` (y - Phi x), and `/truth` and
    `/uncertainty` and `/visibility` where they are known. The suffix chooses the format, see `cassi.files.write_cube`.

    Args:
        path: the file to make.
        measurement: what was reconstructed.
        result: its reconstruction.
        attributes: further provenance by name (command line, name of the mask's file ...).
        overwrite: replace an existing file.

    Raises:
        OutputError: the file exists, its folder does not, or the disk is full; nothing is left behind.
    """
    datasets = {
        "measurement": measurement.y,
        "residual": result.residual_image.cpu().numpy(),
        "truth": measurement.cube,
        "uncertainty": _array(result.uncertainty),
        "visibility": _array(result.visibility),
        "camera_mask": None if result.camera is None or not result.camera.accepted else result.camera.mask,
    }
    write_cube(
        path,
        result.cube.cpu().numpy(),
        wavelengths=result.wavelengths,
        history=result.history,
        datasets={name: values for name, values in datasets.items() if values is not None},
        attributes={
            "version": PROGRAM,
            "input_name": measurement.source,
            "input_sha256": measurement.sha256,
            "unit": result.unit,
            "scale": measurement.scale,
            "notes": list(measurement.notes),
            "shifts": [float(d) for d in measurement.shifts],
            "status": result.status,
            "residual": result.residual,
            "seconds": result.seconds,
            "choice": json.dumps(result.choice),
            "parameters": json.dumps(dict(result.parameters)),
            "imprint": result.imprint,
            "camera": None if result.camera is None else json.dumps(result.camera.as_dict()),
            **(attributes or {}),
        },
        overwrite=overwrite,
    )


def _array(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.detach().cpu().numpy()
