"""A camera and a second one that images each scene pixel separately: y = (Phi x, R x), stacked."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cassi.optics.blurred import BlurredCASSI
from cassi.optics.multi_shot import MultiShot
from cassi.optics.protocol import Camera, Derived, FusedStep, check_weights
from cassi.optics.single_disperser import CASSI


@dataclass(frozen=True, eq=False)
class SideView(Derived):
    """A camera Phi and a photograph of the same scene, on the grid of the scene.

        y = (Phi x, s),    s_k[i, j] = w_k[i, j] sum_c R_kc x_c[i, j]

    The K channels of the photograph follow the S snapshots of the camera, in the first W columns of the detector; the
    remaining columns are empty. Solvers step with the bound

        A A^T <= 2 diag(Phi Phi^T, w_k^2 sum_l |R R^T|_kl)                   as |a + b|^2 <= 2 |a|^2 + 2 |b|^2

    Args:
        camera: Phi, of measurement shape (H, W') or (S, H, W'), with W' >= W.
        sensitivity: R (K, C), finite and >= 0, of the dtype and on the device of the camera.
        side_weights: w (K, H, W), finite and >= 0; the photograph must be weighted alike. None for 1 everywhere.
        tol, max_iters: of inverses, see `Camera`.
    """

    camera: Camera
    sensitivity: Tensor
    side_weights: Tensor | None = None
    tol: float = 1e-4
    max_iters: int = 50

    def __post_init__(self) -> None:
        R, size = self.sensitivity, tuple(self.camera.cube_shape)
        if R.ndim != 2 or R.shape[1] != size[0] or not len(R):
            raise ValueError(f"sensitivity must be (K, {size[0]}) for this camera, got {tuple(R.shape)}")
        if not bool((R.isfinite() & (R >= 0)).all()):
            raise ValueError("sensitivity must be finite and >= 0")
        if self.camera.measurement_shape[-2] != size[1] or self.camera.measurement_shape[-1] < size[2]:
            raise ValueError(f"a photograph of {size[1:]} does not fit a detector of {self.camera.measurement_shape}")
        if self.side_weights is not None:
            object.__setattr__(self, "side_weights", check_weights(self.side_weights, (len(R), *size[1:]), R))

    @property
    def num_shots(self) -> int:
        """S, of the camera without the photograph."""
        return self.camera.num_shots

    @property
    def measurement_shape(self) -> tuple[int, int, int]:
        """(S + K, H, W')."""
        height, width = self.camera.measurement_shape[-2:]
        return self.num_shots + len(self.sensitivity), height, width

    @property
    def weights(self) -> Tensor | None:  # type: ignore[override]
        """Row weights (S + K, H, W'), 0 beyond the photograph; None if neither has any."""
        w = self.camera.weights
        if w is None and self.side_weights is None:
            return None
        return self.stack(self.sensitivity.new_ones(()) if w is None else w, self._w)

    @property
    def _w(self) -> Tensor:
        return self.sensitivity.new_ones((1, 1, 1)) if self.side_weights is None else self.side_weights

    def stack(self, first: Tensor, side: Tensor) -> Tensor:
        """Stack a measurement of the camera and a photograph (K, H, W) into (S + K, H, W')."""
        both = self.sensitivity.new_zeros(self.measurement_shape)
        self._first(both).copy_(first)
        self._side(both).copy_(side)
        return both

    def _first(self, y: Tensor) -> Tensor:
        return y[..., 0, :, :] if len(self.camera.measurement_shape) == 2 else y[..., : self.num_shots, :, :]

    def _side(self, y: Tensor) -> Tensor:
        return y[..., self.num_shots :, :, : self.cube_shape[-1]]

    def weighted(self, weights: Tensor | None) -> Camera:
        if weights is None:
            return replace(self, camera=self.camera.weighted(None), side_weights=None)
        w = check_weights(weights, self.measurement_shape, self.sensitivity)
        return replace(
            self, camera=self.camera.weighted(self._first(w).contiguous()), side_weights=self._side(w).contiguous()
        )

    def absolute(self) -> Camera:
        return replace(self, camera=self.camera.absolute())

    def forward(self, x: Tensor) -> Tensor:
        """y = (Phi x, w R x), see `Camera.forward`."""
        y = self.check_cube(x).new_zeros((*x.shape[:-3], *self.measurement_shape))
        self._first(y).copy_(self.camera.forward(x))
        self._side(y).copy_(torch.einsum("kc,...chw->...khw", self.sensitivity, x) * self._w)
        return y

    def adjoint(self, y: Tensor) -> Tensor:
        """x = Phi^T y + R^T w s, see `Camera.adjoint`."""
        side = torch.einsum("kc,...khw->...chw", self.sensitivity, self._side(self.check_measurement(y)) * self._w)
        return self.camera.adjoint(self._first(y).contiguous()) + side

    def majorizer(self) -> Tensor:
        coupled = (self.sensitivity @ self.sensitivity.T).sum(1)
        return 2 * self.stack(self.camera.majorizer(), self._w**2 * coupled.view(-1, 1, 1))

    def row_variance(self, variances: Tensor) -> Tensor:
        """diag(A V A^T): of Phi, then w_k^2 sum_c R_kc^2 v_c."""
        light = self.sensitivity.square() @ variances.to(self.sensitivity)
        return self.stack(self.camera.row_variance(variances), self._w**2 * light.view(-1, 1, 1))

    def fused_step(self, y: Tensor, B: Tensor, gamma: Tensor, omega: Tensor, step: float) -> FusedStep | None:
        """The fused step of the camera, plus the residual of the photograph, K values per pixel."""
        f, s = self._first, self._side
        # several shots step along the modes of their Gram matrix, which differ from this camera's
        if self.num_shots > 1 or y.ndim != 3:
            return None
        first = self.camera.fused_step(f(y), B, f(gamma).contiguous(), f(omega).contiguous(), step)
        RB = self.sensitivity @ B.T

        def fused(z: Tensor, z_new: Tensor, *, e: Tensor, u: Tensor | None, y_z: Tensor) -> None:
            first(z, z_new, e=f(e), u=u, y_z=f(y_z))  # type: ignore[misc]
            y_z[self.num_shots :, :, self.cube_shape[-1] :] = 0
            torch.mul(torch.einsum("kc,chw->khw", RB, z), self._w, out=s(y_z))
            r = s(y) - s(y_z)
            s(e).add_(r).mul_(s(gamma))
            r.add_(s(e)).mul_(s(omega)).mul_(self._w)
            z_new.add_(torch.einsum("kc,khw->chw", RB, r))

        return None if first is None else fused


def scale_masks(camera: Camera, light: Tensor) -> Camera | None:
    """The camera for x / L, with the light L (H, W): its masks times L. None for a camera without a known mask."""
    if isinstance(camera, CASSI | BlurredCASSI) and camera.mask.shape[-2:] == light.shape:
        return replace(camera, mask=camera.mask * light)
    if isinstance(camera, MultiShot):
        scaled = [scale_masks(shot, light) for shot in camera.shots]
        shots = [shot for shot in scaled if isinstance(shot, CASSI | BlurredCASSI)]
        return replace(camera, shots=tuple(shots)) if len(shots) == camera.num_shots else None
    return None
