"""Iterative solvers: each a function whose loop reads like the equations in its docstring."""

from cassi.solvers.admm import admm, admm_tv
from cassi.solvers.fista import fista, fista_tv
from cassi.solvers.gap import gap, gap_tv
from cassi.solvers.least_squares import conjugate_gradients, least_squares

__all__ = [
    "admm",
    "admm_tv",
    "conjugate_gradients",
    "fista",
    "fista_tv",
    "gap",
    "gap_tv",
    "least_squares",
]
