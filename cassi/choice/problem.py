"""What the runs of the default solver have in common: spectral basis, noise, brightness."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cassi.optics.detector import brightness
from cassi.optics.protocol import Camera
from cassi.priors.nonlocal_lowrank import NonlocalDenoiser
from cassi.priors.spectral_basis import coefficient_weights
from cassi.solvers.loop import Monitor, Result
from cassi.solvers.subspace_tv import SubspaceState, subspace_tv

TOL = 2e-5  # relative change an iteration at which a cube counts as finished
PATCH = 5  # side of the patches that are compared [pixel]
# Of the patches that others are compared with [pixel]: a stride of 4 takes half as much time again as 5, and is worth
# 0.06 dB for one shot, 0.3 to 0.9 dB with noise for several, of which little but noise is left.
STRIDE, STRIDE_OF_SEVERAL = 5, 4
REMATCH = 8  # iterations after which similar patches are looked for anew


@dataclass(frozen=True, eq=False)
class Problem:
    """How `subspace_tv` is called.

    Attributes:
        basis: (K, C).
        variance: of y, like y or a number.
        brightness: that the weights of priors are relative to; None: of the snapshot at hand. A tile is given that of
            its frame.
        level: of a `Plan`; the weights are relative to brightness * level.
    """

    basis: Tensor
    variance: Tensor
    brightness: float | None = None
    level: float = 1.0

    def solve(
        self,
        A: Camera,
        y: Tensor,
        num_iters: int,
        *,
        tol: float = TOL,
        state: SubspaceState | None = None,
        sigma: float | None = None,
        monitor: Monitor | None = None,
    ) -> tuple[Result, SubspaceState]:
        """Subspace TV, or with sigma, in units of the weights of TV, the non-local denoiser in its place."""
        level = self.level * (brightness(A, y) if self.brightness is None else self.brightness)
        denoise = None
        if sigma is not None:
            weights = coefficient_weights(len(self.basis)).to(y) * level
            stride = STRIDE if len(A.measurement_shape) == 2 else STRIDE_OF_SEVERAL
            denoise = NonlocalDenoiser(sigma * weights, refresh=REMATCH, patch=PATCH, stride=stride)
        return subspace_tv(
            A,
            y,
            self.basis,
            variance=self.variance,
            tv_weight=level,
            num_iters=num_iters,
            tol=tol if sigma is None else 0.0,
            state=state,
            denoise=denoise,
            monitor=monitor,
        )
