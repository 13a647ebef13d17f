"""The contract between cameras and solvers: y = A x, its adjoint, and everything derived from the two."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from cassi.kernels.linear import conjugate_gradients, largest_eigenvalue, linear_map

T = TypeVar("T")


class FusedStep(Protocol):
    """See `Camera.fused_step`."""

    def __call__(self, z: Tensor, z_new: Tensor, *, e: Tensor, u: Tensor | None, y_z: Tensor) -> None: ...


class cached(cached_property[T]):
    """A cached property; not cached while the camera is trainable, because it would hold on to an autograd graph."""

    def __get__(self, camera: Any, owner: type | None = None) -> T:  # type: ignore[override]
        trainable = camera is not None and camera.learned
        value: T = self.func(camera) if trainable else super().__get__(camera, owner)
        return value


class Camera(ABC):
    """A linear camera, y = A x; the documentation writes Phi for A. Immutable.

    A new camera defines `cube_shape`, `measurement_shape`, `forward` and `adjoint`; every solver then accepts it. It
    may override what is derived here by iteration with a closed form.

    Attributes:
        cube_shape: (C, H, W), the shape of x without batch axes.
        measurement_shape: (H, W') or (K, H, W'), the shape of y without batch axes.
        dtype, device: of all tensors that it accepts and returns; by default float32 on the CPU.
        weights: row weights w like a measurement, or None: A = diag(w) A_0. 0 excludes a detector pixel exactly.
        exact: whether `solve`, `pinv` and `prox` are exact; otherwise they iterate to `tol`.
        tol, max_iters: of that iteration, for |b - M r| / |b|.
        mask_error: standard deviation of what is unknown of the mask, relative to its maximum; see `open`.
    """

    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    weights: Tensor | None = None
    exact: bool = False
    tol: float = 1e-4
    max_iters: int = 50
    mask_error: float = 0.0

    @property
    @abstractmethod
    def cube_shape(self) -> tuple[int, int, int]: ...

    @property
    @abstractmethod
    def measurement_shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def forward(self, x: Tensor) -> Tensor:
        """Image a cube: y = A x, (..., C, H, W) -> (..., H, W'); errors as for `check_cube`."""

    @abstractmethod
    def adjoint(self, y: Tensor) -> Tensor:
        """Back-project a measurement: x = A^T y, (..., H, W') -> (..., C, H, W)."""

    @property
    def learned(self) -> bool:
        """Whether a tensor of the camera requires a gradient, or one of the cameras that it is made of."""
        return any(map(_learned, vars(self).values()))

    def __matmul__(self, x: Tensor) -> Tensor:
        """A x, see `forward`."""
        return self.forward(self.check_cube(x))

    @property
    def num_bands(self) -> int:
        """C."""
        return self.cube_shape[0]

    @property
    def num_shots(self) -> int:
        """K for a measurement (K, H, W'), 1 for (H, W')."""
        return 1 if len(self.measurement_shape) == 2 else self.measurement_shape[0]

    # row weights

    def weighted(self, weights: Tensor | None) -> Camera:
        """A new camera with a copy of these row weights instead of its own; see `check_weights`."""
        return self if weights is None else Weighted(self, weights)

    def leave_out(self, keep: Tensor) -> Camera:
        """The camera without the detector pixels where `keep` (like a measurement) is 0; other weights stay."""
        return self.weighted(keep if self.weights is None else self.weights * keep)

    @property
    def open(self) -> Camera | None:
        """The camera with its mask's greatest transmission m_max everywhere; None without one mask for all bands.

        An error e m_max of the mask, common to all bands, adds A_open (e x) to A x.
        """
        return None

    # properties of A A^T

    def absolute(self) -> Camera:
        """|A|, the camera with the absolute values of its mask; the same camera if the mask is nonnegative."""
        return self

    def gram(self, r: Tensor) -> Tensor:
        """A A^T r, like a measurement."""
        return self.forward(self.adjoint(r))

    def response(self) -> Tensor:
        """|A| 1, like a measurement: the image of a scene that is 1 everywhere."""
        one = torch.ones((), dtype=self.dtype, device=self.device)
        return self.absolute().forward(one.expand(self.cube_shape)).detach()

    def majorizer(self) -> Tensor:
        """A diagonal D >= A A^T, like a measurement; here |A| |A|^T 1 (Gershgorin). 0 where no light can arrive."""
        return self.absolute().gram(torch.ones(self.measurement_shape, dtype=self.dtype, device=self.device)).detach()

    def modes(self) -> tuple[Tensor, Tensor | None]:
        """D and V with V D V^T >= A A^T: D like a measurement; V is 1 (None) or, for K snapshots, (K, K, H, W').

        V[:, m] is a direction in the space of the K values measured at one detector pixel. Here `majorizer` and None.
        """
        return self.majorizer(), None

    def row_variance(self, variances: Tensor) -> Tensor:
        """diag(A V A^T), like a measurement, for independent voxels of variance v_c (C,); here D mean(v)."""
        return self.majorizer() * variances.mean()

    def gram_diag(self) -> Tensor:
        """diag(A A^T), like a measurement: `row_variance` for variances of 1."""
        return self.row_variance(torch.ones(self.num_bands, dtype=self.dtype, device=self.device))

    def visibility(self) -> Tensor | None:
        """diag(A^+ A), (C, H, W): the fraction of each voxel that y alone determines, 0 to 1; None if unknown."""
        return None

    def norm(self) -> float:
        """Largest singular value of A; here by power iteration, from below, to about 0.1 %."""
        generator = torch.Generator().manual_seed(0)
        start = torch.rand(self.measurement_shape, generator=generator, dtype=torch.float64, device="cpu")
        with torch.no_grad():
            return math.sqrt(largest_eigenvalue(self.gram, start.to(device=self.device, dtype=self.dtype)))

    # inverses

    @cached
    def _diagonal(self) -> Tensor:
        return self.gram_diag().detach()

    def solve(self, b: Tensor, rho: float) -> Tensor:
        """r = (A A^T + rho)^-1 b on the detector, rho >= 0; if `exact`, (A A^T)^+ b for rho = 0.

        Here by conjugate gradients from 0, preconditioned by `gram_diag`, to `tol` or `max_iters`. Components that A
        nearly erases converge last, so that for rho = 0 stopping early suppresses their noise. Where no light can
        arrive, r = b / rho, or 0 for rho = 0. Differentiable in b.
        """
        if not rho >= 0:
            raise ValueError(f"rho must be >= 0, got {rho}")
        lit = self._diagonal > 0
        inverse = torch.where(lit, 1 / torch.where(lit, self._diagonal + rho, 1), 0)

        def iterate(b: Tensor) -> Tensor:
            r = conjugate_gradients(
                lambda r: torch.where(lit, self.gram(r).add_(r, alpha=rho), 0), torch.where(lit, b, 0),
                inverse=inverse, axes=len(self.measurement_shape), num_iters=self.max_iters, tol=self.tol,
            )  # fmt: skip
            return torch.where(lit, r, b / rho) if rho > 0 else r

        return self._solve_iteratively(iterate, self.check_measurement(b))

    def pinv(self, y: Tensor) -> Tensor:
        """Moore-Penrose pseudo-inverse A^+ y: the smallest of the cubes that explain y best.

        If `exact`, A^T (A A^T)^+ y. Otherwise conjugate gradients for A^T A x = A^T y from 0, to `tol` or `max_iters`:
        components that A nearly erases converge last, so that stopping early suppresses their noise. Differentiable
        in y.
        """
        self.check_measurement(y)
        if self.exact:
            return self.adjoint(self.solve(y, 0.0))

        def iterate(b: Tensor) -> Tensor:
            return conjugate_gradients(
                lambda x: self.adjoint(self.forward(x)), b, axes=3, num_iters=self.max_iters, tol=self.tol
            )

        return self._solve_iteratively(iterate, self.adjoint(y))

    def prox(self, v: Tensor, y: Tensor, rho: float) -> Tensor:
        """argmin_x 1/2 |A x - y|^2 + rho/2 |x - v|^2 = v + A^T (A A^T + rho)^-1 (y - A v), rho > 0.

        Raises:
            ValueError: rho is not positive, or a shape is wrong.
        """
        if not rho > 0:
            raise ValueError(f"rho must be positive, got {rho}; for rho -> 0 use v + A.pinv(y - A.forward(v))")
        return v + self.adjoint(self.solve(self.check_measurement(y) - self.forward(v), rho))

    def _solve_iteratively(self, solve: Callable[[Tensor], Tensor], b: Tensor) -> Tensor:
        """M^-1 b by an iteration for symmetric M; differentiable in b, but not in the mask."""
        if self.learned and torch.is_grad_enabled():
            raise RuntimeError("an iterated inverse has no derivative in mask or weights; use torch.no_grad()")
        return linear_map(b, solve, solve)  # M is symmetric

    # used by iterative solvers

    @cached
    def inverse_modes(self) -> Tensor:
        """D^+ for D of `modes`."""
        return reciprocal(self.modes()[0])

    def first_guess(self, y: Tensor) -> Tensor:
        """The start of solvers: A^+ y if exact, else A^T D^+ y with D = `majorizer`, which amplifies no noise."""
        return self.pinv(y) if self.exact else self.adjoint(self.check_measurement(y) * self.inverse_modes)

    def data_step_(
        self, v: Tensor, x: Tensor, y: Tensor, y_x: Tensor, y_v: Tensor, *, rho: float = 0.0, accelerate: bool = True
    ) -> bool:
        """The data step of `cassi.solvers.gap` (rho = 0) or `admm` (rho > 0), fused and in place.

            y_v = A v
            b   = y - y_v + (y_x - y_v)                without the parenthesis unless accelerate
            r   = (A A^T + rho)^-1 b                   for rho = 0: (A A^T)^+ b
            x   = v + A^T r
            y_x = y_v + b - rho r                      = A x

        GAP: v and x are its own, y_v + b is its b^k. ADMM: v is its z and x its x + u. As u = x_old - v, the line is
        prox(v - u) + u with A (v - u) = 2 y_v - y_x, and u need not be stored.

        Reads the cube v and the measurement y; writes the cube x, which may be v, and y_v. y_x is A x of the previous
        step; at the start it is y for GAP and A v for ADMM. Not differentiable.

        Returns:
            Whether the step was computed. This class only checks and returns False: the solver then computes its lines
            with `forward`, `adjoint`, `pinv` and `prox`.

        Raises:
            ValueError: negative rho, or a wrong shape. RuntimeError: a gradient is required.
        """
        self.check_step(v, x, y, y_x, y_v, rho)
        return False

    def subspace_forward(self, z: Tensor, B: Tensor) -> Tensor:
        """A B^T z of coefficient images z (..., K, H, W), B (K, C)."""
        x = B.mT @ z.flatten(-2)  # products of matrices are contiguous, as kernels want them
        return self.forward(x.view(*x.shape[:-1], *self.cube_shape[1:]))

    def subspace_adjoint(self, p: Tensor, B: Tensor) -> Tensor:
        """B A^T p, (..., K, H, W), for B (K, C), or (..., K, C) with one for each snapshot of a batch."""
        x = self.adjoint(p)
        if B.ndim == 2:
            return torch.einsum("kc,...chw->...khw", B, x)
        return (B @ x.flatten(-2)).view(*x.shape[:-3], B.shape[-2], *x.shape[-2:])

    def subspace_gram(self, p: Tensor, B: Tensor, SB: Tensor) -> Tensor:
        """A B^T S B A^T p: the covariance of A B^T z for uncorrelated z of variance S, applied to p like y.

        Args:
            p: (..., H, W').
            B: (K, C). SB: S B, (..., K, C) with S diagonal.
        """
        return self.subspace_forward(self.subspace_adjoint(p, SB), B)

    def mask_error_variance(self, x: Tensor) -> Tensor:
        """The variance that an unknown error of the mask adds to A x, like y; 0 where that error is not known."""
        return x.new_zeros(())

    def common_gram(self, x: Tensor, p: Tensor) -> Tensor:
        """A x (x A^T p summed over the bands): the covariance of A (e x) for white e (H, W), applied to p like y."""
        return self.forward(x * self.adjoint(p).mul_(x).sum(-3, keepdim=True))

    def fused_step(self, y: Tensor, B: Tensor, gamma: Tensor, omega: Tensor, step: float) -> FusedStep | None:
        """One iteration of `cassi.solvers.subspace_tv` up to the prox, fused and in place; here there is none.

        Of y, B, and gamma and omega along the `modes`. It reads z; writes e, u, z_new and y_z = A B^T z; all are
        contiguous, and like y.
        """
        return None

    # checks

    def check_cube(self, x: Tensor, name: str = "cube") -> Tensor:
        """x itself; ValueError if it does not end in (C, H, W), TypeError for another dtype or device."""
        return self._check(x, name, self.cube_shape, self.measurement_shape, "a measurement")

    def check_measurement(self, y: Tensor, name: str = "measurement") -> Tensor:
        """y itself; ValueError if it does not end in (H, W'), TypeError for another dtype or device."""
        return self._check(y, name, self.measurement_shape, self.cube_shape, "a cube")

    def check_step(self, v: Tensor, x: Tensor, y: Tensor, y_x: Tensor, y_v: Tensor, rho: float) -> None:
        if not rho >= 0:
            raise ValueError(f"rho must be >= 0, got {rho}")
        if torch.is_grad_enabled() and (self.learned or any(t.requires_grad for t in (v, y, y_x))):
            raise RuntimeError("data_step_ works in place and has no gradient; call it under torch.no_grad()")
        for cube, name in ((v, "v"), (x, "x")):
            self.check_cube(cube, name)
        for measurement, name in ((y, "y"), (y_x, "y_x"), (y_v, "y_v")):
            self.check_measurement(measurement, name)
        axes = len(self.measurement_shape)
        if not v.shape[:-3] == x.shape[:-3] == y.shape[:-axes] == y_x.shape[:-axes] == y_v.shape[:-axes]:
            what = "cube and measurement must have the same batch axes"
            raise ValueError(f"{what}, got {tuple(v.shape[:-3])} and {tuple(y.shape[:-axes])}; expand one of them")

    def _check(self, tensor: Tensor, name: str, end: tuple[int, ...], other: tuple[int, ...], what: str) -> Tensor:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a torch tensor, got {type(tensor).__name__}; use torch.as_tensor(...)")
        if tuple(tensor.shape[-len(end) :]) != end:
            swapped = tuple(tensor.shape[-len(other) :]) == other
            cure = f"this is {what}: are the arguments swapped?" if swapped else "crop it, or build another camera"
            text = f"{name} must end in {end}, got {tuple(tensor.shape)}"
            raise ValueError(f"{text}: the camera maps {self.cube_shape} to {self.measurement_shape}; {cure}")
        if tensor.dtype != self.dtype or tensor.device != self.device:
            text = f"{name} is {tensor.dtype} on {tensor.device}, the camera {self.dtype} on {self.device}"
            raise TypeError(f"{text}; move one of them with .to(...)")
        return tensor


def _learned(part: object) -> bool:
    if isinstance(part, Tensor):
        return part.requires_grad
    return part.learned if isinstance(part, Camera) else isinstance(part, list | tuple) and any(map(_learned, part))


def check_measurement(A: Camera, y: Tensor) -> Tensor:
    """Check the arguments (A, y) of a solver and return y; TypeError if they are swapped."""
    if not hasattr(A, "check_measurement"):
        raise TypeError(f"the first argument must be a camera, got {type(A).__name__}; solvers are called (A, y, ...)")
    return A.check_measurement(y)


class Derived(Camera):
    """A camera made of another, with its cubes, type and device."""

    camera: Camera

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        return self.camera.cube_shape

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.camera.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.camera.device


class Weighted(Derived):
    """diag(w) A for any camera A; see `Camera.weighted`."""

    def __init__(self, camera: Camera, weights: Tensor) -> None:
        self.camera, self.tol, self.max_iters = camera, camera.tol, camera.max_iters
        like = torch.empty(0, dtype=camera.dtype, device=camera.device)
        self.weights: Tensor = check_weights(weights, camera.measurement_shape, like)

    @property
    def measurement_shape(self) -> tuple[int, ...]:
        return self.camera.measurement_shape

    def weighted(self, weights: Tensor | None) -> Camera:
        return self.camera.weighted(weights)

    def absolute(self) -> Camera:
        return Weighted(self.camera.absolute(), self.weights)

    def forward(self, x: Tensor) -> Tensor:
        return self.camera.forward(x) * self.weights

    def adjoint(self, y: Tensor) -> Tensor:
        return self.camera.adjoint(self.check_measurement(y) * self.weights)

    def row_variance(self, variances: Tensor) -> Tensor:
        return self.camera.row_variance(variances) * self.weights**2


def check_weights(weights: Tensor, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """A copy of row weights with dtype and device of `like`; ValueError unless finite, >= 0 and of this shape."""
    if not isinstance(weights, Tensor):
        raise TypeError(f"weights must be a torch tensor, got {type(weights).__name__}; convert it first")
    if tuple(weights.shape) != shape:
        raise ValueError(f"weights must be {shape}, one per detector pixel, got {tuple(weights.shape)}")
    if weights.dtype is not torch.bool and not bool((weights.isfinite() & (weights >= 0)).all()):
        raise ValueError("weights must be finite and >= 0; give bad detector pixels the weight 0")
    return private_copy(weights.to(like))


def private_copy(tensor: Tensor) -> Tensor:
    """A contiguous copy, so that nobody else can change it; a tensor that requires a gradient is returned as it is."""
    return tensor if tensor.requires_grad else tensor.clone(memory_format=torch.contiguous_format)


def reciprocal(diagonal: Tensor) -> Tensor:
    """D^+ of a diagonal D >= 0: 1 / D, and 0 where D = 0."""
    dark = diagonal <= torch.finfo(diagonal.dtype).tiny
    return diagonal.masked_fill(dark, 1).reciprocal().masked_fill(dark, 0)
