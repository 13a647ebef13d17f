"""cassi: spectral cubes from coded-aperture snapshots."""

import os
from importlib import import_module
from typing import TYPE_CHECKING

from cassi.version import __version__ as __version__

# Before torch is loaded: its idle threads wait awake for microseconds, then sleep. Else they do for milliseconds, and
# take the cores from our own threads and from other programs.
if not os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}:
    os.environ["GOMP_SPINCOUNT"] = "1000"

if TYPE_CHECKING:
    from cassi.calibration.estimate import Calibration as Calibration, calibrate as calibrate
    from cassi.errors import InputError as InputError
    from cassi.optics.multi_shot import MultiShot as MultiShot
    from cassi.optics.other_cameras import (
        Mosaic as Mosaic,
        double_disperser as double_disperser,
        video_camera as video_camera,
    )
    from cassi.optics.single_disperser import CASSI as CASSI
    from cassi.photograph.picture import SidePicture as SidePicture
    from cassi.running.reconstruct import reconstruct as reconstruct
    from cassi.running.result import Reconstruction as Reconstruction
    from cassi.running.tiling import reconstruct_tiled as reconstruct_tiled
    from cassi.self_calibration.refined_camera import calibrate_from_captures as calibrate_from_captures
    from cassi.self_calibration.search import align as align
    from cassi.solvers.admm import admm as admm, admm_tv as admm_tv
    from cassi.solvers.fista import fista as fista, fista_tv as fista_tv
    from cassi.solvers.gap import gap as gap, gap_tv as gap_tv
    from cassi.solvers.least_squares import least_squares as least_squares
    from cassi.solvers.loop import Record as Record, Result as Result

_ROOM = {  # public names and their modules, imported on demand so that `cassi --help` does not load PyTorch
    "CASSI": "optics.single_disperser",
    "Calibration": "calibration.estimate",
    "InputError": "errors",
    "Mosaic": "optics.other_cameras",
    "MultiShot": "optics.multi_shot",
    "Reconstruction": "running.result",
    "Record": "solvers.loop",
    "Result": "solvers.loop",
    "SidePicture": "photograph.picture",
    "admm": "solvers.admm",
    "admm_tv": "solvers.admm",
    "align": "self_calibration.search",
    "calibrate": "calibration.estimate",
    "calibrate_from_captures": "self_calibration.refined_camera",
    "double_disperser": "optics.other_cameras",
    "fista": "solvers.fista",
    "fista_tv": "solvers.fista",
    "gap": "solvers.gap",
    "gap_tv": "solvers.gap",
    "least_squares": "solvers.least_squares",
    "reconstruct": "running.reconstruct",
    "reconstruct_tiled": "running.tiling",
    "video_camera": "optics.other_cameras",
}
__all__ = list(_ROOM)


def __getattr__(name: str) -> object:
    """Import a public name."""
    if name not in _ROOM:
        raise AttributeError(f"module 'cassi' has no attribute {name!r}")
    return getattr(import_module(f"cassi.{_ROOM[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
