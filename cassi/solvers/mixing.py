"""Anderson's mixing: a fixed-point iteration that looks back at its last steps."""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-8  # of the least squares, relative to their diagonal


class Mixing:
    """Accelerates v <- T(v), where T is a linear map or near one, by its last m steps i < k.

        v_k+1 = T(v_k) - sum_i c_i (T(v_i+1) - T(v_i)),    c = argmin |f_k - sum_i c_i (f_i+1 - f_i)|,    f = T(v) - v

    (D. G. Anderson, J. ACM 12, 547 (1965); H. F. Walker & P. Ni, SIAM J. Numer. Anal. 49, 1715 (2011).) Each of a batch
    has coefficients of its own. Memory: m + 2 times all that is mixed, and f.

    Args:
        depth: m.
    """

    def __init__(self, depth: int) -> None:
        self._depth, self._calls = depth, 0
        self._rows, self._last = torch.empty(0), torch.empty(0)

    def __call__(self, f: Tensor, *found: Tensor) -> None:
        """One turn: the parts of T(v), `found`, are mixed in place, all of shape (B, n) with any n.

        f is T(v) - v, or that part of it that the steps are judged by, in units in which errors are alike.
        """
        m, n = self._depth, f.shape[1]
        if not self._calls:  # m steps, and what T came to
            self._rows = f.new_zeros((len(f), m + 1, n + sum(t.shape[1] for t in found)))
            self._last = torch.empty_like(self._rows[:, m])
        steps, here = self._rows[:, :m], self._rows[:, m]
        torch.cat([f, *found], 1, out=here)
        if self._calls:
            torch.sub(here, self._last, out=steps[:, (self._calls - 1) % m])
        self._last.copy_(here)
        self._calls += 1
        if self._calls == 1:
            return
        gram = torch.bmm(steps[..., :n], self._rows[..., :n].mT).double()  # of the steps, and with f in the last column
        gram.diagonal(dim1=1, dim2=2).mul_(1 + RIDGE).add_(torch.finfo(f.dtype).tiny)
        c = torch.linalg.solve_ex(gram[..., :m], gram[..., m:]).result.to(f)
        mixed = torch.baddbmm(self._rows[:, m:, n:], c.mT, steps[..., n:], alpha=-1)[:, 0]
        torch._foreach_copy_(found, torch.split(mixed, [t.shape[1] for t in found], 1))
