"""The physics of a single-disperser coded-aperture camera, y = Phi x: the only module that knows the optics."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cassi.kernels.shift_sum import data_step_, detector_width, shift_back, shift_sum


@dataclass(frozen=True, eq=False)
class CASSI:
    """The sensing operator Phi of a single-disperser CASSI camera.

        y[i, j + d_c - d_min] = w[i, j + d_c - d_min] * sum_c m_c[i, j] x_c[i, j]

    Discretisation: one detector pixel per mask pixel, integer shifts; no border is lost, the detector is
    W' = W + max d - min d columns wide. Phi Phi^T is diagonal (two detector pixels never see the same voxel), which
    makes pseudo-inverse and proximal step exact in closed form. The camera: Wagadarikar, John, Willett & Brady,
    "Single disperser design for coded aperture snapshot spectral imaging", Applied Optics 47, B44 (2008).

    A frozen value: a new mask is a new operator. With all shifts 0 and one mask per band it is the video camera CACTI.

    Args:
        mask: coded aperture m, (H, W), or (C, H, W) with one calibrated mask per band; any real values [transmission],
            float32 or float64. Its dtype and device are the operator's. Copied, unless it wants a gradient.
        shifts: displacement d_c of each band on the detector [pixel]: C integers of any sign, order and spacing.
        weights: optional row weights w, (H, W'), finite and >= 0. 0 leaves a detector pixel out of the data term
            exactly (bad or held-out pixels); 1/sigma whitens noise. The measurement must carry the same weights.

    Raises:
        TypeError: mask not a floating-point tensor, or shifts not integers.
        ValueError: wrong rank or size of mask, shifts or weights; weights negative or not finite.

    Example:
        >>> A = CASSI.from_step(torch.ones(4, 5), step=2, num_bands=3)
        >>> A.forward(torch.ones(3, 4, 5)).shape
        torch.Size([4, 9])
    """

    mask: Tensor
    shifts: tuple[int, ...]
    weights: Tensor | None = None
    _gram: Tensor | None = field(default=None, init=False, repr=False)
    _inverse_gram: Tensor | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.mask, Tensor) or not self.mask.is_floating_point():
            got = self.mask.dtype if isinstance(self.mask, Tensor) else type(self.mask).__name__
            raise TypeError(
                f"mask must be a real floating-point tensor, got {got}; convert it with torch.as_tensor(mask).float()"
            )
        try:
            displacements = tuple(float(d) for d in self.shifts)
        except (TypeError, ValueError) as error:
            raise TypeError(f"shifts must be a sequence of integers, got {self.shifts!r}") from error
        if not all(d.is_integer() for d in displacements):
            raise TypeError(
                f"shifts must be whole pixels, got {tuple(self.shifts)!r}; "
                "round them, or use BlurredCASSI for sub-pixel dispersion"
            )
        shifts = tuple(int(d) for d in displacements)
        if not shifts:
            raise ValueError("shifts is empty: give one displacement per band")
        if self.mask.ndim not in (2, 3) or 0 in self.mask.shape:
            raise ValueError(f"mask must be (H, W) or (C, H, W) and not empty, got {tuple(self.mask.shape)}")
        if self.mask.ndim == 3 and self.mask.shape[0] != len(shifts):
            raise ValueError(
                f"mask has {self.mask.shape[0]} bands but there are {len(shifts)} shifts; give one shift per mask band"
            )
        object.__setattr__(self, "shifts", shifts)
        if self.weights is not None:
            if tuple(self.weights.shape) != self.measurement_shape:
                raise ValueError(
                    f"weights must be {self.measurement_shape}, one per detector pixel, got {tuple(self.weights.shape)}"
                )
            if not bool((self.weights.isfinite() & (self.weights >= 0)).all()):
                raise ValueError("weights must be finite and >= 0; give a bad detector pixel the weight 0")
            object.__setattr__(self, "weights", _own(self.weights.to(self.mask)))
        object.__setattr__(self, "mask", _own(self.mask))
        if not (self.mask.requires_grad or (self.weights is not None and self.weights.requires_grad)):
            # a pure function of the fields, computed once; never kept where it would pin an autograd graph
            object.__setattr__(self, "_gram", self._compute_gram())
            object.__setattr__(self, "_inverse_gram", self._compute_inverse_gram())

    @classmethod
    def from_step(cls, mask: Tensor, step: int, num_bands: int) -> CASSI:
        """The usual camera: band c lies c * step pixels to the right, c = 0 .. num_bands - 1.

        Args:
            mask: (H, W) or (C, H, W).
            step: dispersion between neighbouring bands [pixel]; any integer, negative disperses to the left.
            num_bands: number of bands C, at least 1.

        Raises:
            ValueError: num_bands below 1.
        """
        if num_bands < 1:
            raise ValueError(f"num_bands must be at least 1, got {num_bands}")
        return cls(mask, tuple(c * step for c in range(num_bands)))

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
        """W' = W + max d - min d [pixel]."""
        return detector_width(self.width, self.shifts)

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

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> CASSI:
        """A new operator on another device or in another floating-point type."""
        mask = self.mask.to(device=device, dtype=dtype)
        weights = None if self.weights is None else self.weights.to(device=device, dtype=dtype)
        return CASSI(mask, self.shifts, weights)

    def weighted(self, weights: Tensor | None) -> CASSI:
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
        return shift_sum(x, self.mask, self.shifts, scale=self.weights, out=out)

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
        return shift_back(y, self.mask, self.shifts, scale=self.weights, out=out, add=add)

    def gram_diag(self) -> Tensor:
        """diag(Phi Phi^T)[i, j] = w^2 sum_c m_c[i, j - d_c + d_min]^2, (H, W'); the off-diagonal part is exactly 0."""
        return self._compute_gram() if self._gram is None else self._gram.clone()

    def _gram_or_computed(self) -> Tensor:
        return self._compute_gram() if self._gram is None else self._gram

    def _compute_gram(self) -> Tensor:
        squared = self.mask**2
        gram = shift_sum(self.mask.new_ones(()).expand(self.cube_shape), squared, self.shifts)
        return gram if self.weights is None else gram * self.weights**2

    def gram_pinv(self) -> Tensor:
        """(Phi Phi^T)^+ as its diagonal (H, W'): 1 / gram_diag, and 0 where no light can arrive."""
        return self._compute_inverse_gram() if self._inverse_gram is None else self._inverse_gram.clone()

    def _compute_inverse_gram(self) -> Tensor:
        gram = self._gram_or_computed()
        lit = gram > torch.finfo(gram.dtype).tiny
        return torch.where(lit, 1 / torch.where(lit, gram, 1), 0)

    def pinv(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor:
        """Moore-Penrose pseudo-inverse, Phi^+ y = Phi^T (Phi Phi^T)^+ y: the smallest cube that explains y.

        Exact, also where a detector pixel is dark (there y is ignored). Arguments and result as for `adjoint`.
        """
        self._check(y, "measurement", self.measurement_shape)
        inverse = self._compute_inverse_gram() if self._inverse_gram is None else self._inverse_gram
        scale = inverse if self.weights is None else inverse * self.weights
        return shift_back(y, self.mask, self.shifts, scale=scale, out=out, add=add)

    def prox(self, v: Tensor, y: Tensor, rho: float, *, out: Tensor | None = None) -> Tensor:
        """argmin_x 1/2 |Phi x - y|^2 + rho/2 |x - v|^2 = v + Phi^T [(y - Phi v) / (rho + gram_diag)].

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
        r = (y - self.forward(v)) / (rho + self._gram_or_computed())
        if out is None:
            return v + self.adjoint(r)
        if out is not v:
            out.copy_(v)
        return self.adjoint(r, out=out, add=True)

    def data_step_(
        self, v: Tensor, x: Tensor, y: Tensor, y_x: Tensor, y_v: Tensor, *, rho: float = 0.0, accelerate: bool = True
    ) -> None:
        """The data step of ADMM (rho > 0) and of accelerated GAP (rho = 0) in one pass over the cube, in place.

            y_v = Phi v
            r   = (rho + gram_diag)^+ (y - y_v + y_x - y_v)      without the y_x - y_v where not accelerate
            x   = v + Phi^T r
            y_x = y_v + gram_diag r                              = Phi x, ready for the next step

        Exact because Phi Phi^T is diagonal. GAP: with b = y + y_x - y_v this is x = v + Phi^+ (b - Phi v), and
        y_x = b wherever light arrives. ADMM: x is the cube handed to the prior, the scaled multiplier after the prior
        is u = x_old - v, and the line is prox(v - u) + u, where Phi (v - u) = 2 y_v - y_x: u need not be kept.
        No gradient flows through it.

        Args:
            v: (..., C, H, W), read.
            x: (..., C, H, W), written; may be `v` itself.
            y: (..., H, W'), read.
            y_x: (..., H, W'), Phi x of the last step; at the start y for GAP, Phi v for ADMM. Overwritten.
            y_v: (..., H, W'), written.
            rho: penalty, >= 0.
            accelerate: False is plain GAP: x = v + Phi^+ (y - Phi v).

        Raises:
            ValueError: negative rho, or shapes that do not fit. TypeError: other dtype or device than the mask.
            RuntimeError: a gradient is wanted.
        """
        if not rho >= 0:
            raise ValueError(f"rho must be >= 0, got {rho}")
        if torch.is_grad_enabled() and any(t.requires_grad for t in (v, y, y_x, self.mask)):
            raise RuntimeError(
                "data_step_ works in place and cannot be used where a gradient is wanted; call under torch.no_grad()"
            )
        for cube, name in ((v, "v"), (x, "x")):
            self._check(cube, name, self.cube_shape)
        for measurement, name in ((y, "y"), (y_x, "y_x"), (y_v, "y_v")):
            self._check(measurement, name, self.measurement_shape)
        if not v.shape[:-3] == x.shape[:-3] == y.shape[:-2] == y_x.shape[:-2] == y_v.shape[:-2]:
            raise ValueError(
                f"cube and measurement must have the same batch axes, got {tuple(v.shape[:-3])} and "
                f"{tuple(y.shape[:-2])}; expand one of them"
            )
        gram, weights = self._gram_or_computed(), self.weights
        data_step_(v, x, y, y_x, y_v, self.mask, self.shifts, gram, weights=weights, rho=rho, accelerate=accelerate)

    def norm(self) -> float:
        """Largest singular value of Phi, sqrt(max gram_diag)."""
        return float(self._gram_or_computed().detach().max().sqrt())

    def open_count(self) -> Tensor:
        """Number of open mask elements (m_c != 0) that each detector pixel sees, (H, W')."""
        opened = (self.mask != 0).to(self.dtype)
        return shift_sum(self.mask.new_ones(()).expand(self.cube_shape), opened, self.shifts)

    def right_inverse(self, y: Tensor) -> Tensor:
        """Share each detector pixel equally among its bands and divide by the mask: x_c = shift_back_c(y / n) / m_c.

        n counts the open mask elements a detector pixel sees. A right inverse, Phi right_inverse(y) = y, wherever at
        least one element is open; not the pseudo-inverse: among all cubes that explain y it takes one that is large
        where the mask is dim. Where the mask is 0 the cube is 0 and the pixel's light goes to its other bands.

        Args:
            y: (..., H, W').

        Returns:
            (..., C, H, W).

        Raises:
            ValueError: y does not end in (H, W'), or the operator carries weights.
        """
        self._check(y, "measurement", self.measurement_shape)
        if self.weights is not None:
            raise ValueError("right_inverse is defined without weights; call weighted(None) first")
        opened = self.mask != 0
        inverse_mask = torch.where(opened, 1 / torch.where(opened, self.mask, 1), 0)
        return shift_back(y / self.open_count().clamp(min=1), inverse_mask, self.shifts)

    def _check(self, tensor: Tensor, name: str, shape: tuple[int, ...]) -> None:
        if tensor.ndim < len(shape) or tuple(tensor.shape[-len(shape) :]) != shape:
            raise ValueError(
                f"{name} must end in {shape}, got {tuple(tensor.shape)}: the operator has {self.num_bands} bands of "
                f"{self.height} x {self.width} pixels on {self.detector_width} detector columns; "
                "select bands or build CASSI with other shifts"
            )
        if tensor.dtype != self.dtype or tensor.device != self.device:
            raise TypeError(
                f"{name} is {tensor.dtype} on {tensor.device}, the mask {self.dtype} on {self.device}; "
                "move one of them with .to(...)"
            )


def _own(tensor: Tensor) -> Tensor:
    """A copy that no one else writes into; a tensor that wants a gradient stays itself, so that it can be learned."""
    return tensor if tensor.requires_grad else tensor.clone()
