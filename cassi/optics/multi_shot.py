"""Several snapshots of one scene through different masks, as one camera."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from cassi.kernels.shift_sum import shift_sum
from cassi.optics.single_disperser import CASSI


@dataclass(frozen=True, eq=False)
class MultiShot:
    """K snapshots of one scene, each through its own mask: y_k = Phi_k x, stacked.

    If all snapshots share the dispersion, light that meets at one detector pixel comes from the same voxels in every
    snapshot, and Phi Phi^T is one K x K matrix per detector pixel:

        G[k, l] = w_k w_l sum_c m_{k,c} m_{l,c}        masks as they lie on the detector

    Its eigenvectors, computed once, make pseudo-inverse and proximal step exact. Otherwise (a disperser turned between
    snapshots) both are solved by conjugate gradients to the tolerance `tol`.

    Args:
        shots: K CASSI operators (also double dispersers or video cameras) with equal cube and measurement shape,
            dtype and device.
        tol: relative norm of the gradient at which conjugate gradients stop; not used where the dispersion is shared.
        num_iters: conjugate gradient steps at most.

    Raises:
        ValueError: no shots, or shapes that differ. TypeError: dtypes or devices that differ.

    Example:
        >>> masks = torch.tensor([[[1.0, 0.0, 1.0]], [[1.0, 1.0, 0.0]]])
        >>> A = MultiShot(tuple(CASSI(mask, (0, 1)) for mask in masks))
        >>> A.forward(torch.ones(2, 1, 3)).shape
        torch.Size([2, 1, 4])
    """

    shots: tuple[CASSI, ...]
    tol: float = 1e-6
    num_iters: int = 200
    _eigen: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        shots = tuple(self.shots)
        if not shots:
            raise ValueError("shots is empty: give one CASSI operator per snapshot")
        first = shots[0]
        for k, shot in enumerate(shots[1:], start=1):
            if shot.cube_shape != first.cube_shape or shot.measurement_shape != first.measurement_shape:
                raise ValueError(
                    f"all shots must map {first.cube_shape} to {first.measurement_shape} as shot 0 does, "
                    f"shot {k} maps {shot.cube_shape} to {shot.measurement_shape}"
                )
            if shot.dtype != first.dtype or shot.device != first.device:
                raise TypeError(
                    f"all shots must be {first.dtype} on {first.device} as shot 0 is, "
                    f"shot {k} is {shot.dtype} on {shot.device}; move it with .to(...)"
                )
        object.__setattr__(self, "shots", shots)
        if self.shared_dispersion and not any(shot.mask.requires_grad for shot in shots):
            object.__setattr__(self, "_eigen", self._compute_eigen())

    @property
    def num_shots(self) -> int:
        """K."""
        return len(self.shots)

    @property
    def num_bands(self) -> int:
        """C."""
        return self.shots[0].num_bands

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.shots[0].cube_shape

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(K, H, W')."""
        return self.num_shots, *self.shots[0].measurement_shape

    @property
    def dtype(self) -> torch.dtype:
        return self.shots[0].dtype

    @property
    def device(self) -> torch.device:
        return self.shots[0].device

    @property
    def shared_dispersion(self) -> bool:
        """Whether all shots displace the bands alike, which makes pseudo-inverse and proximal step exact."""
        return len({tuple(d - min(shot.shifts) for d in shot.shifts) for shot in self.shots}) == 1

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> MultiShot:
        """A new operator on another device or in another floating-point type."""
        return MultiShot(tuple(shot.to(device, dtype) for shot in self.shots), self.tol, self.num_iters)

    def weighted(self, weights: Tensor | None) -> MultiShot:
        """A new operator with these row weights (K, H, W') in place of the present ones; weigh the measurement alike.

        Raises:
            ValueError: weights of another shape.
        """
        if weights is not None and tuple(weights.shape) != self.measurement_shape:
            raise ValueError(f"weights must be {self.measurement_shape}, got {tuple(weights.shape)}")
        each = [None] * self.num_shots if weights is None else weights
        shots = tuple(shot.weighted(w) for shot, w in zip(self.shots, each, strict=True))
        return MultiShot(shots, self.tol, self.num_iters)

    def forward(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Photograph a cube K times: y_k = Phi_k x.

        Args:
            x: (..., C, H, W), dtype and device of the masks.
            out: (..., K, H, W'), overwritten (outside autograd only).

        Returns:
            (..., K, H, W').

        Raises:
            ValueError: x does not end in (C, H, W). TypeError: other dtype or device than the masks.
        """
        if out is None:
            return torch.stack([shot.forward(x) for shot in self.shots], dim=-3)
        for k, shot in enumerate(self.shots):
            shot.forward(x, out=out[..., k, :, :])
        return out

    def adjoint(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """Send all measurements back: x = sum_k Phi_k^T y_k.

        Args:
            y: (..., K, H, W'), dtype and device of the masks.
            out: (..., C, H, W), overwritten, or added to where `add` (outside autograd only).
            add: out += Phi^T y.

        Returns:
            (..., C, H, W).

        Raises:
            ValueError: y does not end in (K, H, W'). TypeError: other dtype or device than the masks.
        """
        self._check(y)
        if torch.is_grad_enabled() and (y.requires_grad or any(shot.mask.requires_grad for shot in self.shots)):
            return torch.stack([shot.adjoint(y[..., k, :, :]) for k, shot in enumerate(self.shots)]).sum(0)
        x = self.shots[0].adjoint(y[..., 0, :, :], out=out, add=add)
        for k, shot in enumerate(self.shots[1:], start=1):
            shot.adjoint(y[..., k, :, :], out=x, add=True)
        return x

    def gram_diag(self) -> Tensor:
        """The diagonal of Phi Phi^T, (K, H, W'): a preconditioner. The K x K blocks have more than their diagonal."""
        return torch.stack([shot.gram_diag() for shot in self.shots])

    def pinv(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """Moore-Penrose pseudo-inverse: of the cubes that explain y best, the smallest.

        Exact where the dispersion is shared; eigenvalues of a K x K block below K * eps of its largest count as 0 (two
        masks that agree at a pixel add no information there). Otherwise by conjugate gradients. Arguments and result as
        for `adjoint`.
        """
        self._check(y)
        if self.shared_dispersion:
            return self.adjoint(self._solve_blocks(y, rho=0.0), out=out, add=add)
        x = self._conjugate_gradients(y, rho=0.0)
        if out is None:
            return x
        return out.add_(x) if add else out.copy_(x)

    def prox(self, v: Tensor, y: Tensor, rho: float, *, out: Tensor | None = None) -> Tensor:
        """argmin_x 1/2 |Phi x - y|^2 + rho/2 |x - v|^2 = v + Phi^T (rho + Phi Phi^T)^{-1} (y - Phi v).

        Args:
            v: (..., C, H, W).
            y: (..., K, H, W').
            rho: penalty, > 0.
            out: (..., C, H, W), overwritten; may be `v` itself (outside autograd only).

        Raises:
            ValueError: rho not positive, or shapes that do not fit.
        """
        if not rho > 0:
            raise ValueError(f"rho must be positive, got {rho}; for rho -> 0 use v + A.pinv(y - A.forward(v))")
        self._check(y)
        r = y - self.forward(v)
        if not self.shared_dispersion:
            x = v + self._conjugate_gradients(r, rho)
            return x if out is None else out.copy_(x)
        z = self._solve_blocks(r, rho)
        if out is None:
            return v + self.adjoint(z)
        if out is not v:
            out.copy_(v)
        return self.adjoint(z, out=out, add=True)

    def norm(self) -> float:
        """Largest singular value of Phi: exact where the dispersion is shared, else from below to about 1e-3."""
        if self.shared_dispersion:
            return float(self._eigenpairs()[0].max().clamp(min=0).sqrt())
        # power iteration; masks are mostly >= 0, so the leading singular vector is positive and ones are near it
        x = torch.ones(self.cube_shape, dtype=self.dtype, device=self.device)
        largest = 0.0
        for _ in range(200):
            x = self.adjoint(self.forward(x / x.norm()))
            previous, largest = largest, float(x.norm())
            if largest - previous <= 1e-5 * largest:
                break
        return math.sqrt(largest)

    def _compute_eigen(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (K, H, W') and eigenvectors (K, mode, H, W') of the blocks of Phi Phi^T."""
        ones = torch.ones((), dtype=self.dtype, device=self.device).expand(self.cube_shape)
        rows = []
        for a in self.shots:
            row = [shift_sum(ones, a.mask * b.mask, a.shifts) for b in self.shots]
            weighted = [_times(_times(g, a.weights), b.weights) for g, b in zip(row, self.shots, strict=True)]
            rows.append(torch.stack(weighted))
        gram = torch.stack(rows).permute(2, 3, 0, 1)
        # in float64, so that only the cut-off of pinv decides what counts as 0
        values, vectors = torch.linalg.eigh(gram.double())
        values = values.permute(2, 0, 1).to(self.dtype).contiguous()
        return values, vectors.permute(2, 3, 0, 1).to(self.dtype).contiguous()

    def _eigenpairs(self) -> tuple[Tensor, Tensor]:
        return self._compute_eigen() if self._eigen is None else self._eigen

    def _solve_blocks(self, y: Tensor, rho: float) -> Tensor:
        """(rho + G)^{-1} y in every detector pixel; for rho = 0 the pseudo-inverse G^+ y."""
        values, vectors = self._eigenpairs()
        if rho:
            inverse = 1 / (rho + values)
        else:
            cut = self.num_shots * torch.finfo(self.dtype).eps * values.amax(0)
            kept = values > cut.clamp(min=torch.finfo(self.dtype).tiny)
            inverse = torch.where(kept, 1 / torch.where(kept, values, 1), 0)
        z = torch.zeros_like(y)
        for mode in range(self.num_shots):
            amplitude = (vectors[:, mode] * y).sum(-3) * inverse[mode]
            z = z + vectors[:, mode] * amplitude.unsqueeze(-3)
        return z

    def _conjugate_gradients(self, y: Tensor, rho: float) -> Tensor:
        """argmin_x |Phi x - y|^2 + rho |x|^2, the smallest where many are; CGLS (Bjorck 1996, alg. 7.4.1) from 0."""
        r = y
        s = self.adjoint(r)
        x, p = torch.zeros_like(s), s
        gamma = start = _squared_norm(s)
        for _ in range(self.num_iters):
            q = self.forward(p)
            alpha = _quotient(gamma, _squared_norm(q) + rho * _squared_norm(p))
            x, r = x + alpha * p, r - alpha * q
            s = self.adjoint(r) - rho * x
            gamma_old, gamma = gamma, _squared_norm(s)
            if bool((gamma <= self.tol**2 * start).all()):
                break
            p = s + _quotient(gamma, gamma_old) * p
        return x

    def _check(self, y: Tensor) -> None:
        shape = self.measurement_shape
        if y.ndim < 3 or tuple(y.shape[-3:]) != shape:
            raise ValueError(
                f"measurement must end in {shape}, got {tuple(y.shape)}: the operator has {self.num_shots} shots of "
                f"{shape[1]} x {shape[2]} pixels; stack the snapshots in the order of the shots"
            )


def _times(tensor: Tensor, weights: Tensor | None) -> Tensor:
    return tensor if weights is None else tensor * weights


def _squared_norm(t: Tensor) -> Tensor:
    """Over the last three axes, which stay as 1: every member of a batch is a system of its own."""
    return t.square().sum((-3, -2, -1), keepdim=True)


def _quotient(a: Tensor, b: Tensor) -> Tensor:
    """a / b, and 0 where b is: that member of the batch has converged exactly."""
    return torch.where(b > 0, a / torch.where(b > 0, b, 1), 0)
