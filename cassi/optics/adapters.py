"""A camera as other libraries see one: SciPy and PyLops, deepinv. Neither is imported before it is asked for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator as ScipyOperator
from torch import Tensor

from cassi.optics.protocol import Camera

if TYPE_CHECKING:
    from deepinv.physics import LinearPhysics

Floats = NDArray[np.float64]


def as_scipy(A: Camera) -> ScipyOperator:
    """View a camera as a matrix of SciPy: x is the cube, y the measurement, both flattened in C order.

        matvec:  y = Phi x,  rmatvec:  x = Phi^T y

    For `scipy.sparse.linalg.lsqr`, `svds` and the like, and for PyLops through `pylops.aslinearoperator`. Vectors are
    float64 arrays on the CPU; the operator computes in its own type and on its own device, so that an iterative solver
    reaches full accuracy only with a camera made from a float64 mask.

    Args:
        A: any camera.

    Returns:
        A `scipy.sparse.linalg.LinearOperator` of shape (H W', C H W).

    Example:
        >>> A = CASSI.from_step(torch.ones(2, 3, dtype=torch.float64), step=1, num_bands=2)
        >>> as_scipy(A).matvec(np.ones(12)).reshape(2, 4).tolist()
        [[1.0, 2.0, 2.0, 1.0], [1.0, 2.0, 2.0, 1.0]]
    """
    cube, measurement = A.cube_shape, A.measurement_shape

    def matvec(x: Floats) -> Floats:
        return _to_numpy(A.forward(_like(A, x, cube)))

    def rmatvec(y: Floats) -> Floats:
        return _to_numpy(A.adjoint(_like(A, y, measurement)))

    shape = math.prod(measurement), math.prod(cube)
    return ScipyOperator(shape, matvec=matvec, rmatvec=rmatvec, dtype=np.float64)


def as_deepinv(A: Camera) -> LinearPhysics:
    """View a camera as a `LinearPhysics` of deepinv, for its solvers, networks and losses.

        A(x) = Phi x,   A_adjoint(y) = Phi^T y,   A_dagger(y) = Phi^+ y,
        prox_l2(z, y, gamma) = argmin_x gamma/2 |Phi x - y|^2 + 1/2 |x - z|^2

    Cubes are (B, C, H, W), measurements (B, 1, H, W'). The last two are the camera's own, closed forms
    where it has them. Gradients flow through as always.

    Args:
        A: any camera.

    Returns:
        The physics. Its tensors stay where the operator's are: move the operator, not the physics.

    Raises:
        ImportError: deepinv is not installed.

    Example:
        >>> A = CASSI.from_step(torch.ones(8, 8), step=1, num_bands=2)
        >>> physics = as_deepinv(A)  # doctest: +SKIP
        >>> physics(torch.ones(1, 2, 8, 8)).shape  # doctest: +SKIP
        torch.Size([1, 1, 8, 9])
    """
    try:
        from deepinv.physics import LinearPhysics
    except ImportError as error:
        raise ImportError(f'this view needs deepinv: python -m pip install "cassi[deepinv]" ({error})') from error

    class CameraPhysics(LinearPhysics):  # type: ignore[misc]
        # `kwargs` are deepinv's: it passes parameters of other physics and of its iterative solvers along

        def A(self, x: Tensor, **kwargs: Any) -> Tensor:
            return A.forward(x).unsqueeze(-3)

        def A_adjoint(self, y: Tensor, **kwargs: Any) -> Tensor:
            return A.adjoint(y.squeeze(-3))

        def A_dagger(self, y: Tensor, **kwargs: Any) -> Tensor:
            return A.pinv(y.squeeze(-3))

        def prox_l2(self, z: Tensor | float | None, y: Tensor, gamma: float | Tensor, **kwargs: Any) -> Tensor:
            start = z if isinstance(z, Tensor) else y.new_full((y.shape[0], *A.cube_shape), z or 0.0)
            return A.prox(start, y.squeeze(-3), 1 / float(gamma))

    return CameraPhysics(img_size=A.cube_shape)


def _like(A: Camera, values: Floats, shape: tuple[int, ...]) -> Tensor:
    """A vector as a tensor in the operator's type and on its device."""
    tensor = torch.from_numpy(np.array(values, dtype=np.float64).reshape(shape))
    return tensor.to(dtype=A.dtype, device=A.device)


def _to_numpy(tensor: Tensor) -> Floats:
    return tensor.detach().to("cpu", torch.float64).numpy().ravel()
