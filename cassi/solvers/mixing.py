"""Anderson's mixing: a fixed-point iteration that looks back at its last step."""

from __future__ import annotations

import torch
from torch import Tensor


class Mixing:
    """Accelerates v <- T(v), where T is a linear map or near one, by its last step.

        v_k+1 = T(v_k) - c (T(v_k) - T(v_k-1)),    c = argmin |f_k - c (f_k - f_k-1)|,    f_k = T(v_k) - v_k

    (D. G. Anderson, J. ACM 12, 547 (1965); H. F. Walker & P. Ni, SIAM J. Numer. Anal. 49, 1715 (2011).) Each of a batch
    has a c of its own. Looking further back is worth little here, and amplifies rounding a thousandfold; so do 40 turns
    and more, where little is left to gain. Within bounds, -2 <= c <= 1, rounding dies out, but light of one color is
    found worse.
    """

    def __init__(self) -> None:
        self._rows, self._last = torch.empty(0), torch.empty(0)

    def __call__(self, f: Tensor, *found: Tensor) -> None:
        """One turn: the parts of T(v), `found`, are mixed in place, all of shape (B, n) with any n.

        f is T(v) - v, or that part of it that the steps are judged by, in units in which errors are alike.
        """
        first, n, sizes = not len(self._rows), f.shape[1], [t.shape[1] for t in found]
        if first:
            self._rows = f.new_empty((len(f), 2, n + sum(sizes)))
        step, here = self._rows.unbind(1)
        torch.cat([f, *found], 1, out=here)
        if first:
            self._last = here.clone()
            return
        torch.sub(here, self._last, out=step)
        self._last.copy_(here)
        products = torch.bmm(self._rows[..., :n], step[:, None, :n].mT)  # of the step with itself and with f
        c = products[:, 1] / products[:, 0].clamp_(min=torch.finfo(f.dtype).tiny)
        here.addcmul_(step, c, value=-1)
        torch._foreach_copy_(found, torch.split(here[:, n:], sizes, 1))
