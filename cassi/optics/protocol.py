"""What a camera can do: the contract between optics and solvers."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class LinearOperator(Protocol):
    """What a solver may ask of a camera: A x, A^T y, and the shapes it maps between."""

    @property
    def cube_shape(self) -> tuple[int, ...]: ...

    @property
    def measurement_shape(self) -> tuple[int, ...]: ...

    def forward(self, x: Tensor, *, out: Tensor | None = None) -> Tensor: ...

    def adjoint(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor: ...


@runtime_checkable
class InvertibleOperator(LinearOperator, Protocol):
    """A camera whose pseudo-inverse, proximal step and largest singular value are known, exactly or by iteration."""

    def pinv(self, y: Tensor, *, out: Tensor | None = None, add: bool = False) -> Tensor: ...

    def prox(self, v: Tensor, y: Tensor, rho: float, *, out: Tensor | None = None) -> Tensor: ...

    def norm(self) -> float: ...
