"""Several snapshots of one scene through different masks, as one camera."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Self, cast

import torch
from torch import Tensor

from cassi.kernels import cpu
from cassi.kernels.dispatch import kernels
from cassi.kernels.shift_sum import shift_sum
from cassi.optics.blurred import BlurredCASSI
from cassi.optics.protocol import Derived, FusedStep, cached, check_weights, reciprocal
from cassi.optics.single_disperser import CASSI


@dataclass(frozen=True, eq=False)
class MultiShot(Derived):
    """K snapshots of one scene, each through its own mask: y_k = Phi_k x, stacked.

    If all snapshots share the dispersion, a detector pixel collects light from the same voxels in every snapshot, and
    Phi Phi^T is one K x K matrix per detector pixel:

        G[k, l] = w_k w_l sum_c m_{k,c} m_{l,c}        masks as displaced on the detector

    Its eigenvectors, computed once, make the inverses exact. Otherwise (a disperser rotated between snapshots, or
    blur) they are iterated to `tol`.

    Args:
        shots: K CASSI operators (also double dispersers, video cameras or cameras with blur) with equal cube and
            measurement shape, dtype and device; otherwise ValueError or TypeError.
        tol, max_iters: of inexact inverses, see `Camera`.

    Example:
        >>> masks = torch.tensor([[[1.0, 0.0, 1.0]], [[1.0, 1.0, 0.0]]])
        >>> A = MultiShot(tuple(CASSI(mask, (0, 1)) for mask in masks))
        >>> A.forward(torch.ones(2, 1, 3)).shape
        torch.Size([2, 1, 4])
    """

    shots: tuple[CASSI | BlurredCASSI, ...]
    tol: float = 1e-6
    max_iters: int = 200

    def __post_init__(self) -> None:
        shots = tuple(self.shots)
        if not shots:
            raise ValueError("shots is empty; give one CASSI operator per snapshot")
        first = shots[0]
        for k, shot in enumerate(shots[1:], start=1):
            if shot.cube_shape != first.cube_shape or shot.measurement_shape != first.measurement_shape:
                what = f"all shots must map {first.cube_shape} to {first.measurement_shape} like shot 0"
                raise ValueError(f"{what}; shot {k} maps {shot.cube_shape} to {shot.measurement_shape}")
            if shot.dtype != first.dtype or shot.device != first.device:
                what = f"all shots must be {first.dtype} on {first.device} like shot 0"
                raise TypeError(f"{what}; shot {k} is {shot.dtype} on {shot.device}; move it with .to(...)")
        object.__setattr__(self, "shots", shots)

    @property
    def camera(self) -> CASSI | BlurredCASSI:  # type: ignore[override]
        """Of the first shot."""
        return self.shots[0]

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H, W')."""
        return len(self.shots), *self.camera.measurement_shape

    @property
    def exact(self) -> bool:  # type: ignore[override]
        """Whether all shots displace the bands alike, without blur, so that the inverses are exact."""
        sharp = all(isinstance(shot, CASSI) for shot in self.shots)
        return sharp and len({tuple(d - min(shot.shifts) for d in shot.shifts) for shot in self.shots}) == 1

    @property
    def weights(self) -> Tensor | None:  # type: ignore[override]
        """Row weights (K, H, W'), or None if no shot has any."""
        if all(shot.weights is None for shot in self.shots):
            return None
        one = self.shots[0].mask.new_ones(self.measurement_shape[1:])
        return torch.stack([one if shot.weights is None else shot.weights for shot in self.shots])

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """A new operator on another device or in another floating-point type."""
        return replace(self, shots=tuple(shot.to(device, dtype) for shot in self.shots))

    def weighted(self, weights: Tensor | None) -> Self:
        if weights is not None:
            weights = check_weights(weights, self.measurement_shape, self.shots[0].mask)
        each = [None] * self.num_shots if weights is None else weights
        return replace(self, shots=tuple(shot.weighted(w) for shot, w in zip(self.shots, each, strict=True)))

    def absolute(self) -> Self:
        return replace(self, shots=tuple(shot.absolute() for shot in self.shots))

    def forward(self, x: Tensor) -> Tensor:
        """y_k = Phi_k x, (..., K, H, W'), see `Camera.forward`."""
        self.check_cube(x)
        return torch.stack([shot.forward(x) for shot in self.shots], dim=-3)

    def adjoint(self, y: Tensor) -> Tensor:
        """x = sum_k Phi_k^T y_k, see `Camera.adjoint`."""
        first, *others = (self.check_measurement(y)[..., k, :, :] for k in range(self.num_shots))
        x = self.shots[0].adjoint(first)
        for shot, y_k in zip(self.shots[1:], others, strict=True):
            x.add_(shot.adjoint(y_k))
        return x

    def row_variance(self, variances: Tensor) -> Tensor:
        """diag(Phi V Phi^T), (K, H, W')."""
        return torch.stack([shot.row_variance(variances) for shot in self.shots])

    def modes(self) -> tuple[Tensor, Tensor | None]:
        """If `exact`, eigenvalues and eigenvectors of the K x K blocks: V D V^T = Phi Phi^T.

        Eigenvalues below K * eps times the largest of their block are set to 0: masks that agree there add nothing.
        """
        if not self.exact:
            return super().modes()
        values, vectors = self._eigen
        cut = self.num_shots * torch.finfo(self.dtype).eps * values.amax(0)
        return torch.where(values > cut.clamp(min=torch.finfo(self.dtype).tiny), values, 0), vectors

    def visibility(self) -> Tensor | None:
        """diag(Phi^+ Phi) = sum_m (Phi^T v_m)^2 / D_m over the `modes`, (C, H, W); None if unknown."""
        values, vectors = self.modes()
        if vectors is None:
            return None
        roots = reciprocal(values).sqrt()
        seen = torch.zeros(self.cube_shape, dtype=self.dtype, device=self.device)
        for m in range(self.num_shots):
            seen += self.adjoint(vectors[:, m] * roots[m]).square_()
        return seen

    def solve(self, b: Tensor, rho: float) -> Tensor:
        """(Phi Phi^T + rho)^-1 b, exact by the `modes` if the dispersion is shared; see `Camera.solve`."""
        if not self.exact:
            return super().solve(b, rho)
        self.check_measurement(b)
        values, vectors = self._eigen
        inverse = 1 / (rho + values) if rho else self.inverse_modes
        z = torch.zeros_like(b)
        for mode in range(self.num_shots):
            amplitude = (vectors[:, mode] * b).sum(-3) * inverse[mode]
            z = z + vectors[:, mode] * amplitude.unsqueeze(-3)
        return z

    def norm(self) -> float:
        """Largest singular value of Phi: exact if the dispersion is shared, else from below, to about 0.1 %."""
        return float(self._eigen[0].max().clamp(min=0).sqrt()) if self.exact else super().norm()

    def fused_step(self, y: Tensor, B: Tensor, gamma: Tensor, omega: Tensor, step: float) -> FusedStep | None:
        """`Camera.fused_step` in one kernel, on the CPU and for a single scene."""
        if not self.exact or y.ndim != 3:
            return None
        vectors = self._eigen[1]
        masks, weights = self._stacked
        if kernels(y, B, vectors, masks, weights, gamma, omega) is not cpu:
            return None
        shifts = cast(CASSI, self.camera).shifts
        return partial(
            cpu.subspace_step, y=y, basis=B, mask=masks, shifts=shifts, weights=weights, gamma=gamma, omega=omega,
            step=step, modes=vectors,
        )  # fmt: skip

    @cached
    def _stacked(self) -> tuple[Tensor, Tensor | None]:
        """Masks (K, 1, H, W) or (K, C, H, W), and row weights (K, H, W') or None."""
        each = [shot.mask if shot.mask.ndim == 3 else shot.mask[None] for shot in self.shots]
        return torch.stack([mask.expand(max(map(len, each)), -1, -1) for mask in each]), self.weights

    @cached
    def _eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (K, H, W') and eigenvectors (K, mode, H, W') of the blocks of Phi Phi^T."""
        ones, shifts = self.camera.mask.new_ones(()).expand(self.cube_shape), cast(CASSI, self.camera).shifts
        rows = [torch.stack([shift_sum(ones, a.mask * b.mask, shifts) for b in self.shots]) for a in self.shots]
        gram, weights = torch.stack(rows), self.weights
        gram = (gram if weights is None else weights[:, None] * gram * weights).permute(2, 3, 0, 1)
        # in float64, so that only the cut-off in `modes` decides what counts as 0; cuSOLVER fails on 2^21 at once
        parts = [torch.linalg.eigh(part.double()) for part in torch.split(gram.flatten(0, 1), 1 << 18)]
        values, vectors = (torch.cat(each) for each in zip(*parts, strict=True))
        values, vectors = values.view(gram.shape[:3]), vectors.view(gram.shape)
        values = values.permute(2, 0, 1).to(self.dtype).contiguous()
        return values, vectors.permute(2, 3, 0, 1).to(self.dtype).contiguous()
