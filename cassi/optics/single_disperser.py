"""The physics of a single-disperser coded-aperture camera, y = Phi x."""

from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Self

import torch
from torch import Tensor

from cassi.kernels import cpu
from cassi.kernels.dispatch import kernels
from cassi.kernels.linear import is_tracked, linear_map
from cassi.kernels.shift_sum import shift_back, shift_sum
from cassi.optics.coded_aperture import CodedAperture
from cassi.optics.protocol import FusedStep, cached, reciprocal

MAX_UNROLLED = 32  # components of which a kernel on a GPU has a line of code each


@dataclass(frozen=True, eq=False, repr=False)
class CASSI(CodedAperture):
    """The sensing operator Phi of a single-disperser CASSI camera.

        y[i, j + d_c - d_min] = w[i, j + d_c - d_min] * sum_c m_c[i, j] x_c[i, j]

    One detector pixel per mask pixel; no border is lost: the detector is W' = W + max d - min d columns wide. Two
    detector pixels never see the same voxel, so Phi Phi^T is diagonal, and pseudo-inverse and proximal step have an
    exact closed form. (Wagadarikar, John, Willett & Brady, "Single disperser design for coded aperture snapshot
    spectral imaging", Applied Optics 47, B44 (2008).)

    Args:
        mask: coded aperture m, (H, W), or (C, H, W) with one calibrated mask per band; any real values [transmission],
            float32 or float64. The operator takes its dtype and device. Copied, unless it requires a gradient.
        shifts: displacement d_c of each band on the detector [pixel]: C integers of any sign, order and spacing.
        weights: optional row weights w, (H, W'), finite and >= 0. 0 excludes a detector pixel from the data term
            exactly (bad or held-out pixels); 1/sigma whitens the noise. The measurement must be weighted alike.
        mask_error: standard deviation of what is unknown of the mask, relative to its greatest transmission (2 %); for
            solvers that reckon with it.

    Raises:
        TypeError, ValueError: wrong type, rank, size or range.

    Example:
        >>> A = CASSI.from_step(torch.ones(4, 5), step=2, num_bands=3)
        >>> A.forward(torch.ones(3, 4, 5)).shape
        torch.Size([4, 9])
    """

    shifts: tuple[int, ...]

    exact = True

    def __post_init__(self) -> None:
        try:
            displacements = tuple(float(d) for d in self.shifts)
        except (TypeError, ValueError) as error:
            raise TypeError(f"shifts must be a sequence of integers, got {self.shifts!r}") from error
        if not all(d.is_integer() for d in displacements):
            what = f"shifts must be whole pixels, got {tuple(self.shifts)!r}"
            raise TypeError(f"{what}; round them, or use BlurredCASSI for sub-pixel dispersion")
        object.__setattr__(self, "shifts", tuple(int(d) for d in displacements))
        super().__post_init__()

    @classmethod
    def from_step(cls, mask: Tensor, step: int, num_bands: int) -> Self:
        """The usual camera: band c = 0 .. num_bands - 1 is displaced by c * step pixels to the right (left if < 0)."""
        if num_bands < 1:
            raise ValueError(f"num_bands must be at least 1, got {num_bands}")
        return cls(mask, tuple(c * step for c in range(num_bands)))

    def forward(self, x: Tensor) -> Tensor:
        """y = Phi x, see `Camera.forward`."""
        return shift_sum(self.check_cube(x), self.mask, self.shifts, scale=self.weights)

    def adjoint(self, y: Tensor) -> Tensor:
        """x_c[i, j] = m_c[i, j] (w y)[i, j + d_c - d_min], see `Camera.adjoint`."""
        return shift_back(self.check_measurement(y), self.mask, self.shifts, scale=self.weights)

    def row_variance(self, variances: Tensor) -> Tensor:
        """diag(Phi V Phi^T)[i, j] = w^2 sum_c m_c[i, j - d_c + d_min]^2 v_c, (H, W')."""
        each = variances.to(self.mask).view(-1, 1, 1).expand(self.cube_shape)
        light = shift_sum(each, self.mask**2, self.shifts)
        return light if self.weights is None else light * self.weights**2

    def gram_diag(self) -> Tensor:
        """diag(Phi Phi^T)[i, j] = w^2 sum_c m_c[i, j - d_c + d_min]^2, (H, W'); the off-diagonal part is exactly 0."""
        return self._gram[0].clone()

    def majorizer(self) -> Tensor:
        """Phi Phi^T itself, which is diagonal: D of `modes`."""
        return self._gram[0].clone()

    @cached
    def _gram(self) -> tuple[Tensor, Tensor]:
        """The diagonal of Phi Phi^T, w^2 sum_c m_c^2, and its pseudo-inverse."""
        gram = self.row_variance(self.mask.new_ones(self.num_bands))
        return gram, reciprocal(gram)

    def solve(self, b: Tensor, rho: float) -> Tensor:
        """(Phi Phi^T + rho)^+ b = b / (gram_diag + rho), 0 where both are."""
        gram, inverse = self._gram
        return self.check_measurement(b) / (gram + rho) if rho > 0 else self.check_measurement(b) * inverse

    def data_step_(
        self, v: Tensor, x: Tensor, y: Tensor, y_x: Tensor, y_v: Tensor, *, rho: float = 0.0, accelerate: bool = True
    ) -> bool:
        """`Camera.data_step_` in one pass over the cube, which is exact because Phi Phi^T is diagonal."""
        self.check_step(v, x, y, y_x, y_v, rho)
        gram, mask, weights = self._gram[0], self.mask, self.weights
        fast = kernels(v, x, y, y_x, y_v, mask, gram, weights)
        if fast is None:
            return False
        fast.data_step(v, y, mask, self.shifts, weights, gram, rho, accelerate, x, y_x, y_v)
        return True

    def _gpu(self, t: Tensor, B: Tensor) -> ModuleType | None:
        """Kernels of a GPU that leave out the cube between t and coefficients in B."""
        fast = kernels(B, self.mask, self.weights)
        return fast if fast is not cpu and t.dtype == B.dtype and B.shape[-2] <= MAX_UNROLLED else None

    def subspace_forward(self, z: Tensor, B: Tensor) -> Tensor:
        """`Camera.subspace_forward`, on a GPU in one kernel."""
        fast = self._gpu(z, B)
        if fast is None:
            return super().subspace_forward(z, B)

        def function(z: Tensor) -> Tensor:
            y = z.new_empty((*z.shape[:-3], *self.measurement_shape))
            fast.see(z.contiguous(), B, self.mask, self.shifts, self.weights, y)
            return y

        return linear_map(z, function, partial(self.subspace_adjoint, B=B))

    def subspace_adjoint(self, p: Tensor, B: Tensor) -> Tensor:
        """`Camera.subspace_adjoint`, on a GPU in one kernel."""
        fast = self._gpu(p, B)
        if fast is None or (is_tracked(p) and B.ndim > 2):
            return super().subspace_adjoint(p, B)

        def function(p: Tensor) -> Tensor:
            z = p.new_empty((*p.shape[:-2], B.shape[-2], *self.cube_shape[1:]))
            fast.see_back(p.contiguous(), B, self.mask, self.shifts, self.weights, z)
            return z

        return linear_map(p, function, partial(self.subspace_forward, B=B))

    def subspace_gram(self, p: Tensor, B: Tensor, SB: Tensor) -> Tensor:
        """`Camera.subspace_gram`, without the cube."""
        out = torch.empty_like(p)
        if kernels(p, B, SB, self.mask, self.weights, out) is not cpu:
            return super().subspace_gram(p, B, SB)
        cpu.subspace_gram(p, B, SB, self.mask, self.shifts, self.weights, out)
        return out

    def common_gram(self, x: Tensor, p: Tensor) -> Tensor:
        """`Camera.common_gram`, on the CPU in one kernel if the bands share a mask."""
        out = torch.empty_like(p)
        if self.mask.ndim == 3 or kernels(p, x, self.mask, self.weights, out) is not cpu:
            return super().common_gram(x, p)
        cpu.common_gram(p, x, self.mask, self.shifts, self.weights, out)
        return out

    def fused_step(self, y: Tensor, B: Tensor, gamma: Tensor, omega: Tensor, step: float) -> FusedStep | None:
        """`Camera.fused_step` without the cube, if the device has a kernel for it."""
        fast = kernels(y, B, self.mask, self.weights, gamma, omega)
        if fast is None or (fast is not cpu and len(B) > MAX_UNROLLED):
            return None
        return partial(
            fast.subspace_step, y=y, basis=B, mask=self.mask, shifts=self.shifts, weights=self.weights, gamma=gamma,
            omega=omega, step=step,
        )  # fmt: skip

    def visibility(self) -> Tensor:
        """diag(Phi^+ Phi) = w^2 m_c^2 / gram_diag, (C, H, W); 0 behind a closed mask element or a bad pixel.

        Its mean is at most (detector pixels) / (voxels).
        """
        share = self._gram[1] if self.weights is None else self._gram[1] * self.weights
        return self.adjoint(share) * self.mask

    def norm(self) -> float:
        """Largest singular value of Phi, sqrt(max gram_diag)."""
        return float(self._gram[0].detach().max().sqrt())
