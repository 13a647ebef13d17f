"""Anderson's mixing: a fixed-point iteration that looks back at its last steps."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-8  # of the least squares, relative to the mean of their diagonal


class Mixing:
    """Accelerates v <- T(v), where T is a linear map or near one, by its last m steps.

        v_k+1 = T(v_k) - sum_i c_i (T(v_i+1) - T(v_i)),    c = argmin |f_k - sum_i c_i (f_i+1 - f_i)|,    f = T(v) - v

    (D. G. Anderson, J. ACM 12, 547 (1965); H. F. Walker & P. Ni, SIAM J. Numer. Anal. 49, 1715 (2011).) Each stack of a
    batch has coefficients of its own. Memory: m + 1 times all that is mixed, and f.

    Args:
        depth: m.
    """

    def __init__(self, depth: int) -> None:
        self._depth, self._calls = depth, 0
        self._last: list[Tensor] = []
        self._steps: list[Tensor] = []

    def __call__(self, f: Tensor, *found: Tensor) -> None:
        """One turn: the parts of T(v), `found`, are mixed in place, all of shape (B, n) with any n.

        f is T(v) - v, or that part of it that the steps are judged by, in units in which errors are alike.
        """
        parts = [f, *found]
        if not self._last:
            self._last = [torch.empty_like(t) for t in parts]
            self._steps = [t.new_zeros((len(t), self._depth, t.shape[1])) for t in parts]
        else:
            slot = (self._calls - 1) % self._depth
            for t, last, steps in zip(parts, self._last, self._steps, strict=True):
                torch.sub(t, last, out=steps[:, slot])
        for t, last in zip(parts, self._last, strict=True):
            last.copy_(t)
        self._calls += 1
        if self._calls == 1:
            return
        F = self._steps[0]
        gram, target = torch.bmm(F, F.mT).double(), torch.bmm(F, f[:, :, None]).double()
        diagonal = gram.diagonal(dim1=1, dim2=2)
        diagonal += RIDGE * diagonal.mean(1, keepdim=True) + torch.finfo(f.dtype).tiny
        c = torch.linalg.solve_ex(gram, target).result.to(f)
        for t, steps in zip(parts[1:], self._steps[1:], strict=True):
            t[:, None].baddbmm_(c.mT, steps, alpha=-1)
