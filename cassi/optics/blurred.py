"""A camera whose optics blur and whose dispersion does not fall on whole pixels, y = Phi x.

    y = sum_c S_c K_c (m_c x_c)

K_c convolves band c with its point-spread function, along the dispersion (columns) and, if given, across it (rows);
S_c moves it by the real number d_c, by linear interpolation between the two neighbouring pixels. Light that the blur
carries beyond the detector is lost. Phi Phi^T is not diagonal any more: `pinv` and `prox` solve it by conjugate
gradients and say how far they came.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.convolution import convolve_rows, correlate_rows
from cassi.kernels.shift_sum import shift_back, shift_sum
from cassi.optics.psf import _normalized, _taps


class Solution(NamedTuple):
    """What conjugate gradients found: r, the iterations done, |b - M r| / |b|, whether that is below the tolerance."""

    r: Tensor
    iterations: int
    residual: float
    converged: bool


class _Band(NamedTuple):
    """Where one band falls: its first column on the detector, and its taps along and across the dispersion."""

    start: int
    columns: tuple[float, ...]
    rows: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class BlurredCASSI:
    """The sensing operator Phi of a CASSI camera with blur and real-valued dispersion.

        y[i + u - u_0, j + t - t_0 + d_c - floor(d_min)] += w p_c[t] q_c[u] m_c[i, j] x_c[i, j]

    summed over the taps t, u of the point-spread functions p_c (along the dispersion) and q_c (across it) and the
    bands. A displacement between two pixels is shared between them by linear interpolation: a kernel (1 - f, f) with
    f = d_c - floor(d_c). The detector is W' = W + ceil(max d) - floor(min d) columns wide. The centre of a function
    of M taps is tap M // 2: the middle one of an odd number, the right one of the middle two of an even number; light
    at tap t is moved by t - M // 2 pixels, to the right or down. One function for all bands commutes with the shifts,
    so it describes a blur behind the mask and one at the detector alike, and is applied once, on the detector.

    With whole shifts and without blur it is `CASSI`, to the bit. The methods are those of `CASSI`; see there.
    The camera with these parts: Wagadarikar et al., Applied Optics 47, B44 (2008), eq. 8.

    Args:
        mask: coded aperture m, (H, W), or (C, H, W); float32 or float64.
        shifts: displacement d_c of each band [pixel], C real numbers; see `shifts_from_dispersion`.
        psf: point-spread function along the dispersion, (M,) or (C, M), >= 0; scaled to sum 1. None: no blur.
        psf_rows: the same across the dispersion; the 2-D function is their product.
        weights: row weights w, (H, W'), >= 0; 0 leaves a detector pixel out exactly.
        tol: `pinv` and `prox` stop when |b - M r| / |b| of their linear system falls below it.
        max_iters: and after this many iterations at the latest.

    Raises:
        TypeError: mask not a floating-point tensor.
        ValueError: wrong rank or size of an argument, shifts not finite, a negative or empty point-spread function,
            tol or max_iters not positive.

    Example:
        >>> from cassi.optics.psf import gaussian_psf
        >>> A = BlurredCASSI(torch.ones(4, 5), (0.0, 1.7, 3.4), psf=gaussian_psf(1.0))
        >>> A.forward(torch.ones(3, 4, 5)).shape
        torch.Size([4, 9])
    """

    mask: Tensor
    shifts: tuple[float, ...]
    psf: Tensor | None = None
    psf_rows: Tensor | None = None
    weights: Tensor | None = None
    tol: float = 1e-4
    max_iters: int = 50
    _bands: tuple[_Band, ...] = field(default=(), init=False, repr=False)
    _gram: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.mask, Tensor) or not self.mask.is_floating_point():
            got = self.mask.dtype if isinstance(self.mask, Tensor) else type(self.mask).__name__
            raise TypeError(f"mask must be a floating-point tensor, got {got}; convert it with .float()")
        shifts = tuple(float(d) for d in self.shifts)
        if not shifts or not all(map(math.isfinite, shifts)):
            raise ValueError(f"shifts must be one finite number a band, got {shifts}")
        if self.mask.ndim not in (2, 3) or 0 in self.mask.shape:
            raise ValueError(f"mask must be (H, W) or (C, H, W) and not empty, got {tuple(self.mask.shape)}")
        if self.mask.ndim == 3 and self.mask.shape[0] != len(shifts):
            raise ValueError(
                f"mask has {self.mask.shape[0]} bands but there are {len(shifts)} shifts; give one shift per mask band"
            )
        if not (self.tol > 0 and self.max_iters >= 1):
            raise ValueError(f"tol must be positive and max_iters at least 1, got {self.tol} and {self.max_iters}")
        object.__setattr__(self, "shifts", shifts)
        for name in ("psf", "psf_rows"):
            if (psf := getattr(self, name)) is not None:
                object.__setattr__(self, name, _normalized(psf, name, len(shifts)).to(self.mask))
        if self.weights is not None:
            if tuple(self.weights.shape) != self.measurement_shape:
                raise ValueError(
                    f"weights must be {self.measurement_shape}, one per detector pixel, got {tuple(self.weights.shape)}"
                )
            object.__setattr__(self, "weights", self.weights.to(self.mask))
        object.__setattr__(self, "_bands", self._place_bands())
        object.__setattr__(self, "_gram", self._compute_gram_diag())

    @property
    def num_bands(self) -> int:
        """C."""
        return len(self.shifts)

    @property
    def height(self) -> int:
        """H [pixel]."""
        return self.mask.shape[-2]

    @property
    def width(self) -> int:
        """W [pixel], of the scene."""
        return self.mask.shape[-1]

    @property
    def detector_width(self) -> int:
        """W' = W + ceil(max d) - floor(min d) [pixel]."""
        return self.width + math.ceil(max(self.shifts)) - math.floor(min(self.shifts))

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.num_bands, self.height, self.width

    @property
    def measurement_shape(self) -> tuple[int, int]:
        """(H, W')."""
        return self.height, self.detector_width

    @property
    def dtype(self) -> torch.dtype:
        return self.mask.dtype

    @property
    def device(self) -> torch.device:
        return self.mask.device

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> BlurredCASSI:
        """A new operator on another device or in another floating-point type."""
        return replace(self, mask=self.mask.to(device=device, dtype=dtype))

    def weighted(self, weights: Tensor | None) -> BlurredCASSI:
        """A new operator with these row weights (H, W') in place of the present ones; weigh the measurement alike."""
        return replace(self, weights=weights)

    def forward(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Photograph a cube: y = Phi x.

        Args:
            x: (..., C, H, W), dtype and device of the mask.
            out: (..., H, W'), overwritten (outside autograd only).

        Returns:
            (..., H, W').

        Raises:
            ValueError: x does not end in (C, H, W). TypeError: other dtype or device than the mask.
        """
        self._check(x, "cube", self.cube_shape)
        if torch.is_grad_enabled() and (x.requires_grad or self.mask.requires_grad):
            y: Tensor = _Spread.apply(x * self.mask, self)  # type: ignore[no-untyped-call]
        else:
            y = self._spread(x, self.mask)
        if self.weights is not None:
            y = y * self.weights if y.requires_grad else y.mul_(self.weights)
        return y if out is None else out.copy_(y)

    def adjoint(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """Send a measurement back to every voxel that could have made it: x = Phi^T y.

        Args:
            y: (..., H, W'), dtype and device of the mask.
            out: (..., C, H, W), overwritten, or added to where `add` (outside autograd only).
            add: out += Phi^T y.

        Returns:
            (..., C, H, W).

        Raises:
            ValueError: y does not end in (H, W'). TypeError: other dtype or device than the mask.
        """
        self._check(y, "measurement", self.measurement_shape)
        weighted = y if self.weights is None else y * self.weights
        if torch.is_grad_enabled() and (y.requires_grad or self.mask.requires_grad):
            x: Tensor = _Gather.apply(weighted, self)  # type: ignore[no-untyped-call]
            return x * self.mask
        return self._gather(weighted, self.mask, out, add)

    def gram(self, r: Tensor) -> Tensor:
        """Phi Phi^T r, (..., H, W') -> (..., H, W')."""
        return self.forward(self.adjoint(r))

    def gram_diag(self) -> Tensor:
        """diag(Phi Phi^T), (H, W'): the squared entries of each row of Phi, summed. Not all of it: see `gram`."""
        return self._gram

    def row_bound(self) -> Tensor:
        """D = |Phi| |Phi|^T 1, (H, W'): a diagonal that bounds Phi Phi^T from above (Gershgorin)."""
        bright = replace(self, mask=self.mask.detach().abs())
        return bright.gram(bright.mask.new_ones(self.measurement_shape))

    def diagonal_step(self, y: Tensor, bound: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """Phi^T D^-1 y, one adjoint: the cheap stand-in for `pinv`.

        v + diagonal_step(y - Phi v) never moves away from the cubes that explain y: in the norm of D^-1 the misfit
        shrinks or stays, whatever the blur.

        Args:
            y, out, add: as for `adjoint`.
            bound: D, from `row_bound`.
        """
        return self.adjoint(
            torch.where(bound > 0, y / bound.clamp(min=torch.finfo(bound.dtype).tiny), 0), out=out, add=add
        )

    def solve(
        self,
        b: Tensor,
        rho: float = 0.0,
        *,
        start: Tensor | None = None,
        tol: float | None = None,
        max_iters: int | None = None,
    ) -> Solution:
        """Conjugate gradients for (Phi Phi^T + rho) r = b on the lit pixels, preconditioned by the diagonal.

        Saad, Iterative Methods for Sparse Linear Systems (2003), algorithm 9.1; one system for each measurement of a
        batch, stopped together. Detector pixels that see no light (gram_diag = 0) are left out: there r = 0.

        Args:
            b: (..., H, W').
            rho: >= 0.
            start: r to begin with, such as that of the last call; 0 if not given.
            tol, max_iters: those of the operator if not given.

        Returns:
            Solution(r, iterations, residual, converged); residual is the largest of the batch.

        Raises:
            ValueError: rho negative, or b does not end in (H, W').
            FloatingPointError: NaN or Inf in b.
        """
        self._check(b, "measurement", self.measurement_shape)
        if not rho >= 0:
            raise ValueError(f"rho must be >= 0, got {rho}")
        tol, max_iters = tol or self.tol, max_iters or self.max_iters
        with torch.no_grad():
            lit = self.gram_diag() > 0
            inverse = torch.where(lit, 1 / torch.where(lit, self.gram_diag() + rho, 1), 0)
            b = torch.where(lit, b, 0)
            scale = _dot(b, b).sqrt()
            if not bool(torch.isfinite(scale).all()):
                raise FloatingPointError("the measurement holds NaN or Inf; give such pixels weight 0 and the value 0")
            floor = torch.where(scale > 0, scale, 1)
            if start is None:
                r, rest = torch.zeros_like(b), b.clone()
            else:
                r = torch.where(lit, start, 0)
                rest = b - torch.where(lit, self.gram(r).add_(r, alpha=rho), 0)
            residual = float((_dot(rest, rest).sqrt() / floor).max()) if b.numel() else 0.0
            z = rest * inverse
            p, rz, k = z.clone(), _dot(rest, z), 0
            while residual >= tol and k < max_iters:
                q = torch.where(lit, self.gram(p).add_(p, alpha=rho), 0)
                pq = _dot(p, q)
                alpha = torch.where(pq > 0, rz / torch.where(pq > 0, pq, 1), 0)
                r.addcmul_(p, alpha)
                rest.addcmul_(q, alpha, value=-1)
                torch.mul(rest, inverse, out=z)
                rz_old, rz = rz, _dot(rest, z)
                p.mul_(torch.where(rz_old > 0, rz / torch.where(rz_old > 0, rz_old, 1), 0)).add_(z)
                residual = float((_dot(rest, rest).sqrt() / floor).max())
                k += 1
        return Solution(r, k, residual, residual < tol)

    def pinv(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """Pseudo-inverse, Phi^+ y = Phi^T r with Phi Phi^T r = y, as far as `tol` and `max_iters` go.

        A blur nearly erases fine detail, so the exact pseudo-inverse would amplify noise without bound; conjugate
        gradients from 0 reach the strong components first, and stopping them early keeps the weak ones out. For that
        reason `gap`, which projects with it in every iteration, does not converge on noisy blurred data: take `admm`
        with `WarmStarted`, or `fista`. `solve` reports the iterations. Arguments and result as for `adjoint`;
        differentiable in y.
        """
        self._check(y, "measurement", self.measurement_shape)
        return self.adjoint(self._solved(y, 0.0), out=out, add=add)

    def prox(self, v: Tensor, y: Tensor, rho: float, *, out: Tensor | None = None) -> Tensor:
        """argmin_x 1/2 |Phi x - y|^2 + rho/2 |x - v|^2 = v + Phi^T r with (Phi Phi^T + rho) r = y - Phi v.

        Args:
            v: (..., C, H, W).
            y: (..., H, W').
            rho: penalty, > 0.
            out: (..., C, H, W), overwritten; may be `v` itself (outside autograd only).

        Raises:
            ValueError: rho not positive, or shapes that do not fit.
        """
        if not rho > 0:
            raise ValueError(f"rho must be positive, got {rho}; for rho -> 0 use v + A.pinv(y - A.forward(v))")
        self._check(y, "measurement", self.measurement_shape)
        r = self._solved(y - self.forward(v), rho)
        if out is None:
            return v + self.adjoint(r)
        if out is not v:
            out.copy_(v)
        return self.adjoint(r, out=out, add=True)

    def prox_from(
        self, v: Tensor, y: Tensor, rho: float, start: Tensor | None, *, out: Tensor | None = None
    ) -> tuple[Tensor, Solution]:
        """`prox` begun at the r of an earlier call, which it returns for the next: x, Solution. Arguments as there."""
        if not rho > 0:
            raise ValueError(f"rho must be positive, got {rho}")
        solution = self.solve(y - self.forward(v), rho, start=start)
        x = self.adjoint(solution.r, out=v.clone() if out is None else out if out is v else out.copy_(v), add=True)
        return x, solution

    def norm(self) -> float:
        """Largest singular value of Phi by power iteration, to about 0.1 % (from below)."""
        p = torch.rand(self.measurement_shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        with torch.no_grad():
            p, value = self.gram(p.to(self.mask)), 0.0
            for _ in range(200):
                length = float(p.norm())
                if length == 0 or abs(length - value) <= 1e-5 * length:
                    break
                value, p = length, self.gram(p / length)
        return math.sqrt(length)

    def _place_bands(self) -> tuple[_Band, ...]:
        """Integer start and taps of every band: its point-spread function convolved with (1 - f, f)."""
        first = math.floor(min(self.shifts))
        bands = []
        for c, d in enumerate(self.shifts):
            taps, fraction = _taps(self.psf, c), d - math.floor(d)
            start = math.floor(d) - first - len(taps) // 2
            if fraction > 0:
                taps = tuple((1 - fraction) * a + fraction * b for a, b in zip((*taps, 0.0), (0.0, *taps), strict=True))
            leading = next(i for i, tap in enumerate(taps) if tap)
            taps = taps[leading : len(taps) - next(i for i, tap in enumerate(reversed(taps)) if tap)]
            bands.append(_Band(start + leading, taps, _taps(self.psf_rows, c)))
        return tuple(bands)

    @property
    def _plain(self) -> bool:
        """Neither blur nor fractions: the kernels of `CASSI` do it."""
        return all(
            band == _Band(start, (1.0,), (1.0,))
            for band, (start, _) in zip(self._bands, self._split_shifts(), strict=True)
        )

    @property
    def _shared(self) -> bool:
        """One blur for all bands: it is applied once, on the detector."""
        return all(psf is None or psf.ndim == 1 for psf in (self.psf, self.psf_rows))

    def _spread(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """sum_c S_c K_c (m_c x_c), outside autograd."""
        m = x.new_ones(()).expand(x.shape[-2:]) if mask is None else mask
        if self._plain:
            return shift_sum(x, m, tuple(band.start for band in self._bands))
        if not self._shared:
            return _spread_bands(x, m, self._bands, self.detector_width)
        y = x.new_zeros((*x.shape[:-3], *self.measurement_shape))
        for c, (start, fraction) in enumerate(self._split_shifts()):
            m_c = m if m.ndim == 2 else m[c]
            y[..., start : start + self.width].addcmul_(x[..., c, :, :], m_c, value=1 - fraction)
            if fraction > 0:
                y[..., start + 1 : start + 1 + self.width].addcmul_(x[..., c, :, :], m_c, value=fraction)
        return self._blur(y, adjoint=False)

    def _gather(self, y: Tensor, mask: Tensor | None, out: Tensor | None, add: bool) -> Tensor:
        """m_c K_c^T S_c^T y, outside autograd."""
        m = y.new_ones(()).expand(self.height, self.width) if mask is None else mask
        if self._plain:
            return shift_back(y, m, tuple(band.start for band in self._bands), out=out, add=add)
        x = y.new_empty((*y.shape[:-2], *self.cube_shape)) if out is None else out
        if not self._shared:
            _gather_bands(y, m, self._bands, x, add)
            return x
        y = self._blur(y, adjoint=True)
        for c, (start, fraction) in enumerate(self._split_shifts()):
            m_c, x_c = m if m.ndim == 2 else m[c], x[..., c, :, :]
            here = y[..., start : start + self.width]
            beside = y[..., start + 1 : start + 1 + self.width] if fraction > 0 else here
            if add:
                x_c.addcmul_(here, m_c, value=1 - fraction)
                if fraction > 0:
                    x_c.addcmul_(beside, m_c, value=fraction)
            elif fraction > 0:
                torch.lerp(here, beside, fraction, out=x_c).mul_(m_c)
            else:
                torch.mul(here, m_c, out=x_c)
        return x

    def _split_shifts(self) -> list[tuple[int, float]]:
        """Whole and fractional part of each displacement, from the first detector column."""
        first = math.floor(min(self.shifts))
        return [(math.floor(d) - first, d - math.floor(d)) for d in self.shifts]

    def _blur(self, y: Tensor, *, adjoint: bool) -> Tensor:
        """The blur that all bands share, on the detector, (..., H, W') -> (..., H, W')."""
        if self.psf_rows is not None:
            y = _blur_rows(y, _taps(self.psf_rows, 0), adjoint)
        if self.psf is None or len(self.psf) == 1:
            return y
        psf, width = self.psf.flip(0) if adjoint else self.psf, y.shape[-1]
        # the flipped function has its centre at the mirrored tap
        center = len(psf) - 1 - len(psf) // 2 if adjoint else len(psf) // 2
        full = convolve_rows(y.reshape(-1, width), psf)
        return full[:, center : center + width].reshape(y.shape)

    def _compute_gram_diag(self) -> Tensor:
        squared = tuple(
            _Band(band.start, tuple(t * t for t in band.columns), tuple(t * t for t in band.rows))
            for band in self._bands
        )
        with torch.no_grad():
            ones = self.mask.new_ones(()).expand(self.cube_shape)
            gram = _spread_bands(ones, self.mask**2, squared, self.detector_width)
            return gram if self.weights is None else gram * self.weights**2

    def _solved(self, b: Tensor, rho: float) -> Tensor:
        if torch.is_grad_enabled() and b.requires_grad:
            r: Tensor = _Solve.apply(b, self, rho)  # type: ignore[no-untyped-call]
            return r
        return self.solve(b, rho).r

    def _check(self, tensor: Tensor, name: str, shape: tuple[int, ...]) -> None:
        if tensor.ndim < len(shape) or tuple(tensor.shape[-len(shape) :]) != shape:
            raise ValueError(
                f"{name} must end in {shape}, got {tuple(tensor.shape)}: the operator has {self.num_bands} bands of "
                f"{self.height} x {self.width} pixels on {self.detector_width} detector columns; "
                "select bands or build BlurredCASSI with other shifts"
            )
        if tensor.dtype != self.dtype or tensor.device != self.device:
            raise TypeError(
                f"{name} is {tensor.dtype} on {tensor.device}, the mask {self.dtype} on {self.device}; "
                "move one of them with .to(...)"
            )


class WarmStarted:
    """A BlurredCASSI for one run of `admm`: each prox goes on from the r of the last one.

    The systems of neighbouring iterations differ little, so one or two steps of conjugate gradients from the last
    solution do what twenty from 0 do. One WarmStarted serves one run of a solver: make a new one for each. `pinv`,
    which solvers take their start from, is the stable `diagonal_step`.

    Args:
        camera: the operator.
        max_iters: conjugate gradient steps a prox.

    Example:
        >>> from cassi.optics.psf import gaussian_psf
        >>> A = BlurredCASSI(torch.ones(8, 8), (0.0, 1.7), psf=gaussian_psf(1.0))
        >>> result = admm(WarmStarted(A), y, TVDenoiser(0.1), rho=0.1, num_iters=100)  # doctest: +SKIP
    """

    def __init__(self, camera: BlurredCASSI, *, max_iters: int = 2) -> None:
        self._camera = replace(camera, max_iters=max_iters)
        self._bound = camera.row_bound()
        self._r: Tensor | None = None

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        return self._camera.cube_shape

    @property
    def measurement_shape(self) -> tuple[int, int]:
        return self._camera.measurement_shape

    def forward(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """See `BlurredCASSI.forward`."""
        return self._camera.forward(x, out=out)

    def adjoint(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """See `BlurredCASSI.adjoint`."""
        return self._camera.adjoint(y, out=out, add=add)

    def pinv(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """See `BlurredCASSI.diagonal_step`."""
        return self._camera.diagonal_step(y, self._bound, out=out, add=add)

    def prox(self, v: Tensor, y: Tensor, rho: float, *, out: Tensor | None = None) -> Tensor:
        """See `BlurredCASSI.prox_from`."""
        x, solution = self._camera.prox_from(v, y, rho, self._r, out=out)
        self._r = solution.r
        return x

    def norm(self) -> float:
        """See `BlurredCASSI.norm`."""
        return self._camera.norm()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product of each measurement of a batch, (..., 1, 1)."""
    return (a * b).sum((-2, -1), keepdim=True)


def _blur_rows(x: Tensor, taps: tuple[float, ...], adjoint: bool) -> Tensor:
    """out[i + u - u_0] += taps[u] x[i] along the rows axis, what leaves the image is lost; or the adjoint."""
    if taps == (1.0,):
        return x
    out, height = torch.zeros_like(x), x.shape[-2]
    for u, tap in enumerate(taps):
        by = u - len(taps) // 2
        by = -by if adjoint else by
        if abs(by) < height:
            source = x[..., max(0, -by) : height - max(0, by), :]
            out[..., max(0, by) : height - max(0, -by), :].add_(source, alpha=tap)
    return out


def _margins(bands: tuple[_Band, ...], width: int, detector_width: int) -> tuple[int, int]:
    """Columns left and right of the detector that some band's light reaches."""
    left = max(0, -min(band.start for band in bands))
    right = max(0, max(band.start + width + len(band.columns) - 1 for band in bands) - detector_width)
    return left, right


def _spread_bands(x: Tensor, mask: Tensor, bands: tuple[_Band, ...], detector_width: int) -> Tensor:
    """sum_c S_c K_c (m_c x_c) with a kernel of its own for each band."""
    width = x.shape[-1]
    left, right = _margins(bands, width, detector_width)
    y = x.new_zeros((*x.shape[:-3], x.shape[-2], left + detector_width + right))
    for c, band in enumerate(bands):
        z = _blur_rows(x[..., c, :, :] * (mask if mask.ndim == 2 else mask[c]), band.rows, adjoint=False)
        part = convolve_rows(z.reshape(-1, width), z.new_tensor(band.columns))
        columns = part.shape[1]
        y[..., left + band.start : left + band.start + columns] += part.view(*z.shape[:-1], columns)
    return y[..., left : left + detector_width].contiguous()


def _gather_bands(y: Tensor, mask: Tensor, bands: tuple[_Band, ...], x: Tensor, add: bool) -> None:
    """x_c (+)= m_c K_c^T S_c^T y with a kernel of its own for each band."""
    width = mask.shape[-1]
    left, right = _margins(bands, width, y.shape[-1])
    padded = F.pad(y, (left, right))
    for c, band in enumerate(bands):
        columns = width + len(band.columns) - 1
        window = padded[..., left + band.start : left + band.start + columns]
        z = correlate_rows(window.reshape(-1, columns), y.new_tensor(band.columns)).view(*y.shape[:-1], width)
        z = _blur_rows(z, band.rows, adjoint=True)
        m_c, x_c = mask if mask.ndim == 2 else mask[c], x[..., c, :, :]
        if add:
            x_c.addcmul_(z, m_c)
        else:
            torch.mul(z, m_c, out=x_c)


class _Spread(torch.autograd.Function):
    """The unmasked operator under autograd; backward is its adjoint."""

    @staticmethod
    def forward(ctx, z: Tensor, operator: BlurredCASSI) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.operator = operator
        return operator._spread(z, None)

    @staticmethod
    def backward(ctx, grad_y: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _Gather.apply(grad_y, ctx.operator), None  # type: ignore[no-untyped-call]


class _Gather(torch.autograd.Function):
    """The adjoint of the unmasked operator under autograd; backward is the operator."""

    @staticmethod
    def forward(ctx, y: Tensor, operator: BlurredCASSI) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.operator = operator
        return operator._gather(y, None, None, False)

    @staticmethod
    def backward(ctx, grad_z: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def]
        return _Spread.apply(grad_z, ctx.operator), None  # type: ignore[no-untyped-call]


class _Solve(torch.autograd.Function):
    """(Phi Phi^T + rho)^-1 b under autograd: symmetric, so backward solves the same system."""

    @staticmethod
    def forward(ctx, b: Tensor, operator: BlurredCASSI, rho: float) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.operator, ctx.rho = operator, rho
        return operator.solve(b, rho).r

    @staticmethod
    def backward(ctx, grad_r: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[no-untyped-def]
        return ctx.operator._solved(grad_r, ctx.rho), None, None
