"""A camera whose optics blur and whose dispersion does not fall on whole pixels, y = Phi x.

    y = sum_c S_c K_c (m_c x_c)

K_c convolves the rows of band c, along the dispersion, with its point-spread function; S_c moves it by the real number
d_c, by linear interpolation between the two neighboring pixels. Light that the blur carries beyond the detector is
lost. Phi Phi^T is not diagonal any more: `pinv` and `prox` solve it by conjugate gradients, and solvers step with a
diagonal that bounds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.convolution import convolve_rows, correlate_rows
from cassi.kernels.shift_sum import shift_back, shift_sum
from cassi.optics.coded_aperture import CodedAperture


class _Band(NamedTuple):
    """Where one band falls: its first column on the detector, and its taps along the dispersion."""

    start: int
    taps: tuple[float, ...]


@dataclass(frozen=True, eq=False, repr=False)
class BlurredCASSI(CodedAperture):
    """The sensing operator Phi of a CASSI camera with blur and real-valued dispersion.

        y[i, j + t - M // 2 + d_c - floor(d_min)] += w p_c[t] m_c[i, j] x_c[i, j]

    summed over the bands and the taps t of their point-spread functions p_c, of M taps with the center at M // 2. A
    displacement between two pixels is shared between them by linear interpolation: a kernel (1 - f, f) with
    f = d_c - floor(d_c). The detector is W' = W + ceil(max d) - floor(min d) columns wide. One function for all bands
    commutes with the shifts, so it describes a blur behind the mask and one at the detector alike, and is applied once,
    on the detector.

    With whole shifts and without blur it is `CASSI`, to the bit. The camera with these parts: Wagadarikar et al.,
    Applied Optics 47, B44 (2008), eq. 8.

    Args:
        mask: coded aperture m, (H, W), or (C, H, W); float32 or float64.
        shifts: displacement d_c of each band [pixel], C real numbers.
        psf: point-spread function along the dispersion, (M,) or (C, M), >= 0; scaled to sum 1. None: no blur.
        weights: row weights w, (H, W'), >= 0; 0 leaves a detector pixel out exactly.
        tol, max_iters: of inverses, see `Camera`.

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

    shifts: tuple[float, ...]
    psf: Tensor | None = None
    tol: float = 1e-4
    max_iters: int = 50
    _bands: tuple[_Band, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        shifts = tuple(float(d) for d in self.shifts)
        if not shifts or not all(map(math.isfinite, shifts)):
            raise ValueError(f"shifts must be one finite number a band, got {shifts}")
        object.__setattr__(self, "shifts", shifts)
        super().__post_init__()
        if not (self.tol > 0 and self.max_iters >= 1):
            raise ValueError(f"tol must be positive and max_iters at least 1, got {self.tol} and {self.max_iters}")
        if self.psf is not None:
            object.__setattr__(self, "psf", _normalized(self.psf, len(shifts)).to(self.mask))
        object.__setattr__(self, "_bands", self._place_bands())

    def forward(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        """y = Phi x, see `Camera.forward`."""
        self.check_cube(x)
        self.check_out(out, (*x.shape[:-3], *self.measurement_shape), x, self.mask, self.weights)
        if torch.is_grad_enabled() and (x.requires_grad or self.mask.requires_grad):
            y: Tensor = _Spread.apply(x * self.mask, self)  # type: ignore[no-untyped-call]
        else:
            y = self._spread(x, self.mask)
        if self.weights is not None:
            y = y * self.weights if y.requires_grad or self.learned else y.mul_(self.weights)
        return y if out is None else out.copy_(y)

    def adjoint(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """x = Phi^T y, see `Camera.adjoint`."""
        self.check_measurement(y)
        self.check_out(out, (*y.shape[:-2], *self.cube_shape), y, self.mask, self.weights)
        weighted = y if self.weights is None else y * self.weights
        if torch.is_grad_enabled() and (weighted.requires_grad or self.mask.requires_grad):
            x: Tensor = _Gather.apply(weighted, self)  # type: ignore[no-untyped-call]
            return x * self.mask
        return self._gather(weighted, self.mask, out, add)

    def row_variance(self, variances: Tensor) -> Tensor:
        """diag(Phi V Phi^T): the squared entries of each row of Phi times v_c, summed."""
        squared = tuple(_Band(band.start, tuple(t * t for t in band.taps)) for band in self._bands)
        with torch.no_grad():
            each = variances.to(self.mask).view(-1, 1, 1).expand(self.cube_shape)
            light = _spread_bands(each, self.mask**2, squared, self.detector_width)
            return light if self.weights is None else light * self.weights**2

    def pinv(self, y: Tensor) -> Tensor:
        """Pseudo-inverse, Phi^+ y = Phi^T r with Phi Phi^T r = y, as far as `tol` and `max_iters` go; see `solve`."""
        return self.adjoint(self.solve(y, 0.0))

    def _place_bands(self) -> tuple[_Band, ...]:
        """Integer start and taps of every band: its point-spread function convolved with (1 - f, f)."""
        first = math.floor(min(self.shifts))
        bands = []
        for c, d in enumerate(self.shifts):
            psf, fraction = self.psf, d - math.floor(d)
            taps: tuple[float, ...] = (1.0,) if psf is None else tuple((psf if psf.ndim == 1 else psf[c]).tolist())
            start = math.floor(d) - first - len(taps) // 2
            if fraction > 0:
                taps = tuple((1 - fraction) * a + fraction * b for a, b in zip((*taps, 0.0), (0.0, *taps), strict=True))
            leading = next(i for i, tap in enumerate(taps) if tap)
            taps = taps[leading : len(taps) - next(i for i, tap in enumerate(reversed(taps)) if tap)]
            bands.append(_Band(start + leading, taps))
        return tuple(bands)

    @property
    def _plain(self) -> bool:
        """Neither blur nor fractions: the kernels of `CASSI` do it."""
        return all(
            band == _Band(start, (1.0,)) for band, (start, _) in zip(self._bands, self._split_shifts(), strict=True)
        )

    @property
    def _shared(self) -> bool:
        """One blur for all bands: it is applied once, on the detector."""
        return self.psf is None or self.psf.ndim == 1

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
        if self.psf is None or len(self.psf) == 1:
            return y
        psf, width = self.psf.flip(0) if adjoint else self.psf, y.shape[-1]
        # the flipped function has its center at the mirrored tap
        center = len(psf) - 1 - len(psf) // 2 if adjoint else len(psf) // 2
        full = convolve_rows(y.reshape(-1, width), psf)
        return full[:, center : center + width].reshape(y.shape)


def _normalized(psf: Tensor, num_bands: int) -> Tensor:
    psf = torch.as_tensor(psf)
    if psf.ndim not in (1, 2) or psf.shape[-1] == 0 or (psf.ndim == 2 and psf.shape[0] != num_bands):
        raise ValueError(f"psf must be (M,) or ({num_bands}, M), one function a band, got {tuple(psf.shape)}")
    psf = psf.detach().double()
    total = psf.sum(-1, keepdim=True)
    if not bool((psf >= 0).all()) or not bool((total > 0).all()):
        raise ValueError(f"psf must be >= 0 with a positive sum, got values from {psf.min():g} to {psf.max():g}")
    return psf / total


def _margins(bands: tuple[_Band, ...], width: int, detector_width: int) -> tuple[int, int]:
    """Columns left and right of the detector that some band's light reaches."""
    left = max(0, -min(band.start for band in bands))
    right = max(0, max(band.start + width + len(band.taps) - 1 for band in bands) - detector_width)
    return left, right


def _columns(bands: tuple[_Band, ...], like: Tensor) -> Tensor:
    """The taps, (C, most): to a GPU in one copy."""
    most = max(len(band.taps) for band in bands)
    return like.new_tensor([(*band.taps, *[0.0] * (most - len(band.taps))) for band in bands])


def _spread_bands(x: Tensor, mask: Tensor, bands: tuple[_Band, ...], detector_width: int) -> Tensor:
    """sum_c S_c K_c (m_c x_c) with a kernel of its own for each band."""
    width = x.shape[-1]
    left, right = _margins(bands, width, detector_width)
    y = x.new_zeros((*x.shape[:-3], x.shape[-2], left + detector_width + right))
    taps = _columns(bands, x)
    for c, band in enumerate(bands):
        z = x[..., c, :, :] * (mask if mask.ndim == 2 else mask[c])
        part = convolve_rows(z.reshape(-1, width), taps[c, : len(band.taps)])
        columns = part.shape[1]
        y[..., left + band.start : left + band.start + columns] += part.view(*z.shape[:-1], columns)
    return y[..., left : left + detector_width].contiguous()


def _gather_bands(y: Tensor, mask: Tensor, bands: tuple[_Band, ...], x: Tensor, add: bool) -> None:
    """x_c (+)= m_c K_c^T S_c^T y with a kernel of its own for each band."""
    width = mask.shape[-1]
    left, right = _margins(bands, width, y.shape[-1])
    padded, taps = F.pad(y, (left, right)), _columns(bands, y)
    for c, band in enumerate(bands):
        columns = width + len(band.taps) - 1
        window = padded[..., left + band.start : left + band.start + columns]
        z = correlate_rows(window.reshape(-1, columns), taps[c, : len(band.taps)]).view(*y.shape[:-1], width)
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
