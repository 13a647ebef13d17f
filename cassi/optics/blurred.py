"""A camera with blur and with dispersion that is not a whole number of pixels, y = sum_c S_c K_c (m_c x_c).

K_c convolves the rows of band c with its point-spread function; S_c displaces them by the real number d_c, by linear
interpolation. Light blurred beyond the detector is lost. Phi Phi^T is no longer diagonal: inverses are iterated, and
solvers step with a diagonal upper bound.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from cassi.kernels.convolution import convolve_rows, correlate_rows
from cassi.kernels.linear import is_tracked, linear_map
from cassi.optics.coded_aperture import CodedAperture


@dataclass(frozen=True, eq=False, repr=False)
class BlurredCASSI(CodedAperture):
    """The sensing operator Phi of a CASSI camera with blur and real-valued dispersion.

        y[i, j + t - M // 2 + d_c - floor(d_min)] += w p_c[t] m_c[i, j] x_c[i, j]

    summed over the bands and the M taps t of their point-spread functions p_c, centered at M // 2. A displacement
    between two pixels is shared between them by linear interpolation, with the kernel (1 - f, f), f = d_c - floor(d_c).
    A function common to all bands commutes with the shifts: it describes blur behind the mask as well as at the
    detector, and is applied once. (Wagadarikar et al., Applied Optics 47, B44 (2008), eq. 8.)

    Args:
        mask, weights, mask_error: as for `CASSI`; the detector is W' = W + ceil(max d) - floor(min d) columns wide.
        shifts: displacement d_c of each band [pixel], C real numbers.
        psf: point-spread function along the dispersion, (M,) or (C, M), >= 0; scaled to sum 1. None: no blur.
        tol, max_iters: of inverses, see `Camera`.

    Raises:
        TypeError, ValueError: wrong type, rank, size or range.

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

    def __post_init__(self) -> None:
        shifts = tuple(float(d) for d in self.shifts)
        if not shifts or not all(map(math.isfinite, shifts)):
            raise ValueError(f"shifts must be one finite number per band, got {shifts}")
        object.__setattr__(self, "shifts", shifts)
        super().__post_init__()
        if not (self.tol > 0 and self.max_iters >= 1):
            raise ValueError(f"tol must be positive and max_iters at least 1, got {self.tol} and {self.max_iters}")
        if self.psf is not None:
            object.__setattr__(self, "psf", _normalize(self.psf, len(shifts)).to(self.mask))

    def forward(self, x: Tensor) -> Tensor:
        """y = Phi x, see `Camera.forward`."""
        self.check_cube(x)
        if is_tracked(x, self.mask):
            y = linear_map(x * self.mask, self._bare.forward, self._bare.adjoint)
        elif not self._common_blur:
            y = self._blur_bands(x, self.mask, self._taps)
        else:
            y = x.new_zeros((*x.shape[:-3], *self.measurement_shape))
            for start, f, m_c, x_c in zip(self._starts, self._fractions, self._masks, x.unbind(-3), strict=True):
                y[..., start : start + self.width].addcmul_(x_c, m_c, value=1 - f)
                if f > 0:
                    y[..., start + 1 : start + 1 + self.width].addcmul_(x_c, m_c, value=f)
            y = self._blur_sum(y, adjoint=False)
        return y if self.weights is None else y * self.weights

    def adjoint(self, y: Tensor) -> Tensor:
        """x = Phi^T y, see `Camera.adjoint`."""
        self.check_measurement(y)
        y = y if self.weights is None else y * self.weights
        if is_tracked(y, self.mask):
            return linear_map(y, self._bare.adjoint, self._bare.forward) * self.mask
        x = y.new_empty((*y.shape[:-2], *self.cube_shape))
        for m_c, z, x_c in zip(self._masks, self._split_bands(y), x.unbind(-3), strict=True):
            torch.mul(z, m_c, out=x_c)
        return x

    def row_variance(self, variances: Tensor) -> Tensor:
        """diag(Phi V Phi^T): the squared entries of each row of Phi times v_c, summed."""
        with torch.no_grad():
            each = variances.to(self.mask).view(-1, 1, 1).expand(self.cube_shape)
            light = self._blur_bands(each, self.mask**2, self._taps**2)
            return light if self.weights is None else light * self.weights**2

    def pinv(self, y: Tensor) -> Tensor:
        """Pseudo-inverse, Phi^+ y = Phi^T r with Phi Phi^T r = y, to `tol` or `max_iters`; see `solve`."""
        return self.adjoint(self.solve(y, 0.0))

    @cached_property
    def _bare(self) -> Self:
        """The optics alone, without mask and weights."""
        ones = torch.ones(self.mask.shape[-2:], dtype=self.dtype, device=self.device)
        return replace(self, mask=ones, weights=None)

    @cached_property
    def _starts(self) -> tuple[int, ...]:
        """The first detector column of each band."""
        return tuple(math.floor(d) - math.floor(min(self.shifts)) for d in self.shifts)

    @cached_property
    def _fractions(self) -> tuple[float, ...]:
        """The position of each band between that column and the next."""
        return tuple(d - math.floor(d) for d in self.shifts)

    @cached_property
    def _taps(self) -> Tensor:
        """(C, M + 1): the point-spread function of each band, convolved with (1 - f, f)."""
        psf = self.mask.new_ones(1) if self.psf is None else self.psf
        f = self.mask.new_tensor(self._fractions).unsqueeze(1)
        return (1 - f) * F.pad(psf, (0, 1)) + f * F.pad(psf, (1, 0))

    @property
    def _masks(self) -> tuple[Tensor, ...]:
        return self.mask.expand(self.cube_shape).unbind(0)

    @property
    def _common_blur(self) -> bool:
        """Whether all bands share one blur, which is then applied once, on the detector."""
        return self.psf is None or self.psf.ndim == 1

    def _split_bands(self, y: Tensor) -> Iterator[Tensor]:
        """K_c^T S_c^T y, band by band."""
        if self._common_blur:
            y = self._blur_sum(y, adjoint=True)
            for start, f in zip(self._starts, self._fractions, strict=True):
                here = y[..., start : start + self.width]
                yield torch.lerp(here, y[..., start + 1 : start + 1 + self.width], f) if f > 0 else here
            return
        M = self._taps.shape[1] - 1
        padded, columns = F.pad(y, (M // 2, M - M // 2)), self.width + M
        for start, taps in zip(self._starts, self._taps, strict=True):
            window = padded[..., start : start + columns].reshape(-1, columns)
            yield correlate_rows(window, taps).view(*y.shape[:-1], self.width)

    def _blur_bands(self, x: Tensor, mask: Tensor, taps: Tensor) -> Tensor:
        """sum_c S_c K_c (m_c x_c) with a separate kernel for each band."""
        M = taps.shape[1] - 1
        y = x.new_zeros((*x.shape[:-3], self.height, self.detector_width + M))
        masks = mask.expand(self.cube_shape)
        for start, taps_c, m_c, x_c in zip(self._starts, taps, masks, x.unbind(-3), strict=True):
            part = convolve_rows((x_c * m_c).reshape(-1, self.width), taps_c)
            y[..., start : start + self.width + M] += part.view(*y.shape[:-1], self.width + M)
        return y[..., M // 2 : M // 2 + self.detector_width].contiguous()

    def _blur_sum(self, y: Tensor, *, adjoint: bool) -> Tensor:
        """The common blur of all bands, on the detector, (..., H, W') -> (..., H, W')."""
        if self.psf is None:
            return y
        psf, width = self.psf.flip(0) if adjoint else self.psf, y.shape[-1]
        # the flipped function has its center at the mirrored tap
        center = len(psf) - 1 - len(psf) // 2 if adjoint else len(psf) // 2
        full = convolve_rows(y.reshape(-1, width), psf)
        return full[:, center : center + width].reshape(y.shape)


def _normalize(psf: Tensor, num_bands: int) -> Tensor:
    psf = torch.as_tensor(psf)
    if psf.ndim not in (1, 2) or psf.shape[-1] == 0 or (psf.ndim == 2 and psf.shape[0] != num_bands):
        raise ValueError(f"psf must be (M,) or ({num_bands}, M), one function per band, got {tuple(psf.shape)}")
    psf = psf.detach().double()
    total = psf.sum(-1, keepdim=True)
    if not bool((psf >= 0).all()) or not bool((total > 0).all()):
        raise ValueError(f"psf must be >= 0 with a positive sum, got values from {psf.min():g} to {psf.max():g}")
    return psf / total
