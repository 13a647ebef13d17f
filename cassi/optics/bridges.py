"""A camera as other libraries have them: SciPy and PyLops (LinearOperator), deepinv (LinearPhysics)."""

import math
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from cassi.errors import import_extra
from cassi.optics.protocol import Camera


def scipy_operator(A: Camera) -> LinearOperator:
    """Phi as a matrix that is never formed, (H W') x (C H W), for `scipy.sparse.linalg`.

    Cubes and measurements are flattened in C order; they are computed in the camera's dtype, on its device.

    Example:
        >>> A = CASSI.from_step(torch.ones(2, 3, dtype=torch.float64), step=1, num_bands=2)
        >>> scipy_operator(A).shape
        (8, 12)
    """

    def tensor(values: np.ndarray, shape: tuple[int, ...]) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(values), dtype=A.dtype, device=A.device).reshape(shape)

    def matvec(x: np.ndarray) -> np.ndarray:
        return np.asarray(A.forward(tensor(x, A.cube_shape)).detach().cpu()).ravel()

    def rmatvec(y: np.ndarray) -> np.ndarray:
        return np.asarray(A.adjoint(tensor(y, A.measurement_shape)).detach().cpu()).ravel()

    shape = (math.prod(A.measurement_shape), math.prod(A.cube_shape))
    return LinearOperator(shape, matvec=matvec, rmatvec=rmatvec, dtype=torch.empty(0, dtype=A.dtype).numpy().dtype)


def pylops_operator(A: Camera) -> Any:
    """Phi as a `pylops.LinearOperator`, which combines with PyLops' regularizations and solvers; see `scipy_operator`.

    Raises:
        InputError: PyLops is not installed (`pip install 'cassi[pylops]'`).
    """
    return import_extra("pylops", "pylops").aslinearoperator(scipy_operator(A))


def deepinv_physics(A: Camera) -> Any:
    """Phi as a `deepinv.physics.LinearPhysics`, for deepinv's solvers and networks.

    Cubes are (B, C, H, W), measurements (B, 1, H, W'), or (B, K, H, W') of K shots. Its pseudo-inverse and the proximal
    step of its data term, argmin_x gamma/2 |Phi x - y|^2 + 1/2 |x - z|^2, are the camera's: exact, and without an inner
    iteration where the camera has them in closed form.

    Raises:
        InputError: deepinv is not installed (`pip install 'cassi[deepinv]'`).
    """
    one_shot = len(A.measurement_shape) == 2

    def plain(y: Tensor) -> Tensor:
        return y.squeeze(-3) if one_shot else y

    def forward(x: Tensor, **_: object) -> Tensor:
        return A.forward(x).unsqueeze(-3) if one_shot else A.forward(x)

    def adjoint(y: Tensor, **_: object) -> Tensor:
        return A.adjoint(plain(y))

    def pseudo_inverse(y: Tensor, **_: object) -> Tensor:
        return A.pinv(plain(y))

    def prox(z: Tensor, y: Tensor, gamma: float | Tensor, **_: object) -> Tensor:
        return A.prox(z, plain(y), 1 / float(gamma))

    linear = import_extra("deepinv.physics", "deepinv").LinearPhysics
    physics = linear(A=forward, A_adjoint=adjoint, img_size=A.cube_shape, device=A.device)
    physics.A_dagger, physics.prox_l2 = pseudo_inverse, prox
    return physics
