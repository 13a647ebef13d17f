"""cassi: spectral cubes from coded-aperture snapshots."""

from typing import TYPE_CHECKING

from cassi.calibration.pose import align
from cassi.errors import InputError
from cassi.optics.multi_shot import MultiShot
from cassi.optics.other_cameras import double_disperser, video_camera
from cassi.optics.single_disperser import CASSI
from cassi.priors.gaussian_spectra import smooth_spectral_prior
from cassi.running.front_door import reconstruct
from cassi.running.result import Reconstruction
from cassi.running.tiled_file import reconstruct_tiled
from cassi.solvers.admm import admm, admm_tv
from cassi.solvers.fista import fista, fista_tv
from cassi.solvers.gap import gap, gap_tv
from cassi.solvers.gaussian_posterior import gaussian_map
from cassi.solvers.least_squares import least_squares
from cassi.solvers.loop import Record, Result
from cassi.version import __version__ as __version__

if TYPE_CHECKING:
    from cassi.calibration.estimate import Calibration, calibrate

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
        from cassi.calibration import estimate

        return getattr(estimate, name)
    raise AttributeError(f"module 'cassi' has no attribute {name!r}")
