"""Several snapshots of a moving scene through one fixed camera, as one camera."""

from collections.abc import Sequence

import torch
from torch import Tensor

from cassi.kernels.images import displace, displacement_matrix, transpose
from cassi.optics.protocol import Camera, Derived


class MovingScene(Derived):
    """K snapshots of a moving scene: the mask is fixed, so that each snapshot sees other voxels of the scene.

        y_s = Phi W_s x,    (W_s x)_c(p) = x_c(p + v_s(p))

    Args:
        camera: Phi.
        flows: v_s from the reconstructed scene to the scene of snapshot s, each (2, H, W), down and to the right
            [pixel]; None if nothing moves.
    """

    def __init__(self, camera: Camera, flows: Sequence[Tensor | None]) -> None:
        size = (2, *camera.cube_shape[-2:])
        for v in flows:
            if v is not None and tuple(v.shape) != size:
                raise ValueError(f"each flow must be {size}, got {tuple(v.shape)}")
        if not flows:
            raise ValueError("flows is empty; give one per snapshot, or None if nothing moves")
        self.camera = camera
        self._moves: list[tuple[Tensor, Tensor] | None] = []
        for v in flows:
            W = None if v is None else displacement_matrix(v.to(device=self.device, dtype=self.dtype))
            self._moves.append(None if W is None else (W, transpose(W)))

    @property
    def measurement_shape(self) -> tuple[int, ...]:
        return len(self._moves), *self.camera.measurement_shape

    def absolute(self) -> Camera:
        camera = MovingScene(self.camera.absolute(), [None] * len(self._moves))
        camera._moves = [None if move is None else (_magnitude(move[0]), _magnitude(move[1])) for move in self._moves]
        return camera

    def forward(self, x: Tensor) -> Tensor:
        """y_s = Phi W_s x, (..., K, H, W'), see `Camera.forward`."""
        self.check_cube(x)
        snapshots = [self.camera.forward(x if move is None else displace(x, move[0])) for move in self._moves]
        return torch.stack(snapshots, -len(self.measurement_shape))

    def adjoint(self, y: Tensor) -> Tensor:
        """x = sum_s W_s^T Phi^T y_s, see `Camera.adjoint`."""
        snapshots = self.check_measurement(y).unbind(-len(self.measurement_shape))
        x = y.new_zeros((*y.shape[: -len(self.measurement_shape)], *self.cube_shape))
        for move, snapshot in zip(self._moves, snapshots, strict=True):
            back = self.camera.adjoint(snapshot.contiguous())
            x += back if move is None else displace(back, move[1])
        return x


def _magnitude(W: Tensor) -> Tensor:
    return torch.sparse_csr_tensor(W.crow_indices(), W.col_indices(), W.values().abs(), W.shape, check_invariants=False)
