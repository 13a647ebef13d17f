"""cassi: spectral cubes from coded-aperture snapshots."""

from typing import TYPE_CHECKING

from cassi.align import align
from cassi.cameras import MultiShot, double_disperser, video_camera
from cassi.errors import InputError
from cassi.operator import CASSI
from cassi.priors.spectral import smooth_spectral_prior
from cassi.reconstruct import Reconstruction, reconstruct
from cassi.result import Record, Result
from cassi.solvers import admm, admm_tv, fista, fista_tv, gap, gap_tv, least_squares
from cassi.solvers.gaussian import gaussian_map
from cassi.tiles import reconstruct_tiled

if TYPE_CHECKING:
    from cassi.calibration import Calibration, calibrate

__version__ = "0.1.0"
__all__ = [
    "CASSI",
    "Calibration",
    "InputError",
    "MultiShot",
    "Reconstruction",
    "Record",
    "Result",
    "admm",
    "admm_tv",
    "align",
    "calibrate",
    "double_disperser",
    "fista",
    "fista_tv",
    "gap",
    "gap_tv",
    "gaussian_map",
    "least_squares",
    "reconstruct",
    "reconstruct_tiled",
    "smooth_spectral_prior",
    "video_camera",
]


def __getattr__(name: str) -> object:
    """What belongs to files is imported where it is asked for."""
    if name in ("Calibration", "calibrate"):
        from cassi import calibration

        return getattr(calibration, name)
    raise AttributeError(f"module 'cassi' has no attribute {name!r}")
