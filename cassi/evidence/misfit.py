"""What errors of the mask explain of a misfit, so that a cube is judged by what is left.

An element of the mask that is wrong by e reaches one detector pixel in each band. Of a cube x it leaves

    r = y - Phi x = E e + n,    E e = sum_c S_c (e x_c),    e ~ N(0, s^2 P),    n ~ N(0, V)

and a cube whose texture absorbs E e in the fitted pixels f predicts held-out pixels h, too: by r_h alone the true cube
comes last where the mask is wrong by 5 %. What the fitted pixels tell of e is therefore predicted, and taken off:

    r_h - K_hf (K_ff + V_f)^-1 r_f,    K = s^2 E P E^T

which is kriging of the misfit (Rasmussen & Williams, "Gaussian Processes for Machine Learning" (2006), eq. 2.23). With
B = V_f^-1/2 E P E^T V_f^-1/2 and b = V_f^-1/2 r_f, one Lanczos decomposition B Q = Q T, q_1 = b / |b|, serves all s:

    (K_ff + V_f)^-1 r_f = V_f^-1/2 Q (T + s^-2)^-1 |b| e_1 / s^2

(Golub & Van Loan, "Matrix Computations" (2013), section 10.1.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from cassi.optics.protocol import Camera

# Of Lanczos. With 15, large spreads have not converged where noise is low, and corrections of masks that are wrong by
# 12 % lose 1.2 dB on average of ten windows; with 80 they gain nothing more.
STEPS = 40
SPREADS = 0.01, 0.02, 0.05, 0.1, 0.2  # s that are tried beside 0, relative to the mask's greatest transmission


@dataclass(frozen=True, eq=False)
class Misfit:
    """The misfit of a cube, and what errors of the mask of any spread explain of it.

    Attributes:
        r: y - Phi x, (H, W') or (S, H, W').
        Q: V_f^-1/2 times the Lanczos vectors, (k, *r.shape).
        KQ: E P E^T of these, the same shape.
        T: (k, k), Q^T B Q, tridiagonal but for rounding, float64 on the CPU.
        length: |b|.
        x, weight: of E and P, see `of`.
        open: the camera without a mask, times its greatest transmission.
    """

    r: Tensor
    Q: Tensor
    KQ: Tensor
    T: Tensor
    length: Tensor
    x: Tensor
    weight: Tensor | None
    open: Camera

    @classmethod
    def of(
        cls, A: Camera, y: Tensor, x: Tensor, fitted: Tensor, variance: Tensor, weight: Tensor | None = None
    ) -> Self:
        """Of a cube x (C, H, W) >= 0, known at the pixels `fitted` (bool, like y) with this variance V > 0 (like y).

        Args:
            weight: P, (H, W); 1 if None: an error that is equally large everywhere.
        """
        camera = A.open
        if camera is None:
            raise ValueError("this camera has no mask that could be wrong")
        r = y - A.forward(x)
        w = torch.where(fitted & (variance > 0), variance, torch.inf).rsqrt()
        X = x if weight is None else x * weight.sqrt()
        b = w * r
        length = b.norm()
        tiny, least = torch.finfo(r.dtype).tiny, length
        Q, KQ = r.new_empty((STEPS + 1, *r.shape)), r.new_empty((STEPS, *r.shape))
        Q[0] = b / length.clamp(min=tiny)
        flat = Q.flatten(1)
        for k in range(STEPS):
            KQ[k] = camera.common_gram(X, w * Q[k])
            u = (w * KQ[k]).flatten()
            least = 10 * torch.finfo(r.dtype).eps * u.norm() if k == 0 else least
            for first in (max(0, k - 1), 0):  # to the two it depends on, then, for what rounding leaves, to all
                u = torch.addmv(u, flat[first : k + 1].T, flat[first : k + 1] @ u, alpha=-1)
            norm = u.norm()  # where nothing but rounding is left, the vectors before span all
            flat[k + 1] = torch.where(norm > least, u / norm, 0)
        Q = w * Q[:STEPS]
        T = (Q.flatten(1) @ KQ.flatten(1).T).cpu().double()  # all at once: on a GPU each number would be a launch
        return cls(r, Q, KQ, (T + T.T) / 2, length, x, weight, camera)

    def left(self, spreads: Sequence[float], at: Tensor) -> Tensor:
        """r - E e for the mean of e given the fitted pixels, for each spread at n pixels of the flat r, (S, n)."""
        none = torch.zeros(len(self.T), dtype=self.T.dtype)
        u = torch.stack([none if s == 0 else self._solved(s) for s in spreads]).to(self.r) * self.length
        return self.r.flatten()[at] - u @ self.KQ.flatten(1)[:, at]

    def error(self, s: float) -> Tensor:
        """The mean of e given the fitted pixels, (H, W), in the unit of the mask's greatest transmission."""
        if s == 0:
            return torch.zeros_like(self.x[0])
        v = torch.tensordot(self._solved(s).to(self.r) * self.length, self.Q, 1)
        e: Tensor = self.open.adjoint(v).mul_(self.x).sum(-3)
        return e if self.weight is None else e * self.weight

    def image(self, e: Tensor) -> Tensor:
        """E e, like r, of an error (H, W) in the unit of the mask's greatest transmission."""
        return self.open.forward(self.x * e)

    def _solved(self, s: float) -> Tensor:
        """(T + s^-2)^-1 e_1."""
        u: Tensor = torch.linalg.inv(self.T + torch.eye(len(self.T), dtype=self.T.dtype) / s**2)[:, 0]
        return u
