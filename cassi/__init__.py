"""cassi: spectral cubes from coded-aperture snapshots."""

from cassi.errors import InputError
from cassi.operator import CASSI
from cassi.reconstruct import Reconstruction, reconstruct
from cassi.result import Record, Result
from cassi.solvers import admm, admm_tv, fista, fista_tv, gap, gap_tv, least_squares

__version__ = "0.1.0"
__all__ = [
    "CASSI",
    "InputError",
    "Reconstruction",
    "Record",
    "Result",
    "admm",
    "admm_tv",
    "fista",
    "fista_tv",
    "gap",
    "gap_tv",
    "least_squares",
    "reconstruct",
]
