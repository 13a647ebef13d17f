"""The other solvers by name, with hyper-parameters in units that are independent of the snapshot's."""

from typing import Any

import numpy as np
from torch import Tensor

from cassi.choice.outcome import Outcome
from cassi.choice.stages import Watch
from cassi.optics.protocol import Camera
from cassi.priors.spectral_basis import smooth_basis
from cassi.settings import Settings
from cassi.solvers.admm import admm_tv
from cassi.solvers.fista import fista_tv
from cassi.solvers.gap import gap_tv
from cassi.solvers.least_squares import least_squares
from cassi.solvers.subspace_tv import subspace_tv

NUM_ITERS = {"subspace": 200, "gap-tv": 60, "admm-tv": 60, "fista-tv": 100, "least-squares": 100}
BLURRED_DAMPING = 0.01  # of "least-squares" for a camera with blur, in units of the mean of gram_diag
# In units of the cube's brightness; of the last two, with TV beside the squared misfit, times the mean of gram_diag
TV_WEIGHT = {"subspace": 1.0, "gap-tv": 0.3, "admm-tv": 0.03, "fista-tv": 0.03}
COMPONENTS = 8  # of the spectral basis of "subspace"


def solve_by_name(A: Camera, y: Tensor, *, wavelengths: np.ndarray | None, settings: Settings, watch: Watch) -> Outcome:
    """Solve one snapshot of brightness 1, which the hyper-parameters are relative to; see `reconstruct_auto`."""
    solver = settings.solver
    n = NUM_ITERS[solver] if settings.num_iters is None else settings.num_iters
    watch.expected = n
    monitor = watch.stage_monitor(None, 1.0)
    gram = float(A.gram_diag().mean())
    if solver == "least-squares":
        # blur makes Phi Phi^T nearly singular: without damping, noise or a wrong blur is amplified without bound
        damping = 0.0 if A.exact else BLURRED_DAMPING * gram
        fit = least_squares(A, y, damping=damping, num_iters=n, monitor=monitor)
        return Outcome(fit, solver, {"damping": damping})
    weight = TV_WEIGHT[solver] if settings.tv_weight is None else settings.tv_weight
    used: dict[str, Any] = {"num_iters": n, "tv_weight": weight}
    if solver == "subspace":
        B = smooth_basis(A.cube_shape[0] if wavelengths is None else wavelengths, COMPONENTS)
        used["components"] = len(B)
        result, _ = subspace_tv(A, y, B, tv_weight=weight, num_iters=n, monitor=monitor)
    elif solver == "gap-tv":
        result = gap_tv(A, y, tv_weight=weight, num_iters=n, monitor=monitor)
    else:  # these weigh TV against the squared misfit
        result = (admm_tv if solver == "admm-tv" else fista_tv)(
            A, y, tv_weight=weight * gram, num_iters=n, monitor=monitor
        )
    return Outcome(result, solver, used)
