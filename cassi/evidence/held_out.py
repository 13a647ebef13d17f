"""Detector pixels that are held out: an error estimate that needs no truth; `cassi.evidence.judge` compares by it."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from cassi.evidence.judge import Verdict
from cassi.evidence.misfit import SPREADS, Misfit
from cassi.optics.imprint import imprint_on
from cassi.optics.protocol import Camera
from cassi.solvers.loop import relative_norm

HELD_OUT = 0.02  # fraction of the detector pixels
SINGLE = 0.015  # where blocks are held out, too
MORE_HELD_OUT = 0.05  # where a few pixels would decide, and the cube is not the result
ELEMENTS_HELD_OUT = 0.1  # where they judge elements of a mask
HELD_OUT_BLOCK = 3  # side of blocks of pixels [pixel]
# Of the errors of neighboring pixels that a smooth cube leaves: snapshots simulated with noise have -0.16 to 0.01,
# through wrong masks too, those through masks that one capture corrected 0.2 to 0.37, real ones 0.14 to 0.37.
MAX_CORRELATION = 0.05
MIN_ERROR = 0.015  # of a smooth cube, below which a snapshot is without noise, and what neighbors share is texture
MIN_CENTERS = 50  # of blocks: fewer tell too little


def hold_out(lit: Tensor, seed: int, fraction: float = HELD_OUT) -> Tensor:
    """Draw detector pixels, (H, W') bool: about `fraction` of those that are lit, at least one."""
    generator = torch.Generator().manual_seed(seed)
    draw = torch.rand(lit.shape, dtype=torch.float32, generator=generator).to(lit.device).masked_fill(~lit, math.inf)
    count = max(1, round(fraction * int(lit.sum())))
    return draw <= draw.flatten().kthvalue(count).values


@dataclass(frozen=True, eq=False)
class Split:
    """A camera and its snapshot with all detector pixels, and without those held out (row weight 0, y = 0).

    Attributes:
        A, y: with all pixels.
        held: bool like y, the pixels held out.
        A_train, y_train: without these.
        judged: those of the held-out pixels at which cubes are judged, like y or one shot of it; None: all.
        centers: of blocks that are held out, like `judged`; None: there are no blocks.
        variance: of the noise of y, like y, once it is known: from then on what errors of the mask explain is taken off
            the misfit before a cube is judged (`cassi.evidence.misfit`), and squares count relative to it.
    """

    A: Camera
    y: Tensor
    held: Tensor
    A_train: Camera
    y_train: Tensor
    variance: Tensor | None = None
    judged: Tensor | None = None
    centers: Tensor | None = None

    @classmethod
    def of(cls, A: Camera, y: Tensor, seed: int, fraction: float = HELD_OUT) -> Self:
        """Hold out this fraction of the lit pixels at random, in a batch of snapshots the same in each."""
        return cls.without(A, y, hold_out(A.majorizer() > 0, seed, fraction))

    @classmethod
    def without(
        cls, A: Camera, y: Tensor, held: Tensor, *, judged: Tensor | None = None, centers: Tensor | None = None
    ) -> Self:
        """Hold out these pixels."""
        train = A.leave_out(~held), y.masked_fill(held, 0)
        return cls(A, y, held.expand(y.shape), *train, judged=judged, centers=centers)

    @classmethod
    def with_blocks(cls, A: Camera, y: Tensor, seed: int) -> Self:
        """Hold out pixels, some of them in blocks of 3 x 3, so that centers of these may judge cubes (`fair_to`).

        A small frame has a larger share in blocks, for `MIN_CENTERS` of them; where that were too much of it, none.
        Single pixels lie apart from blocks: what is beside one is predicted worse, and of a snapshot without noise a
        few such errors would be most of the noise.
        """
        lit = A.majorizer() > 0
        share = max(HELD_OUT / 2 / HELD_OUT_BLOCK**2, MIN_CENTERS / max(1, int(lit.sum())))
        if share * HELD_OUT_BLOCK**2 > HELD_OUT:
            return cls.of(A, y, seed)
        centers = hold_out(lit, seed, share)

        def around(width: int) -> Tensor:
            images = centers.reshape(-1, 1, *centers.shape[-2:]).float()
            return torch.nn.functional.max_pool2d(images, width, 1, width // 2).reshape(lit.shape) > 0

        single = hold_out(lit & ~around(HELD_OUT_BLOCK + 2), seed, SINGLE)
        return cls.without(A, y, single | around(HELD_OUT_BLOCK) & lit, judged=single, centers=centers)

    @cached_property
    def indices(self) -> Tensor:
        """Of the judged pixels in the flat `y`: indexing by a mask would wait for a GPU each time."""
        judged = self.held if self.judged is None else self.judged.expand(self.y.shape)
        return judged.flatten().nonzero()[:, 0]

    def fair_to(self, x: Tensor) -> Self:
        """The same, judged at centers of blocks where neighboring pixels have errors alike; x is a smooth cube.

        A cube that fits such errors in the pixels around predicts them at a pixel beside these, too, and the judge
        prefers texture that is noise: on a microscope capture by 21 standard errors, by none at centers of blocks.
        """
        if self.centers is None or self.variance is None or self.error(x.clamp(min=0)) < MIN_ERROR:
            return self
        alike = self.correlation(x, self.variance) > MAX_CORRELATION
        return replace(self, judged=self.centers, centers=None) if alike else self

    def correlation(self, x: Tensor, variance: Tensor) -> float:
        """The correlation of errors (y - Phi x) / variance^1/2 of fitted pixels with those beside and below them."""
        fitted = ~self.held & (self.A.majorizer() > 0) & (variance > 0)
        e = torch.where(fitted, (self.y - self.A.forward(x.clamp(min=0))) * variance.rsqrt(), 0).double()
        f = fitted.double()
        pairs = [(t[..., 1:], t[..., :-1]) for t in (e, f)], [(t[..., 1:, :], t[..., :-1, :]) for t in (e, f)]
        shared = sum((a * b).sum() / (c * d).sum() for (a, b), (c, d) in pairs) / 2
        return float(shared / (e.square().sum() / f.sum()))

    @cached_property
    def values(self) -> Tensor:
        """y at the judged pixels, (n,) float64, on the CPU."""
        return self._at_judged(self.y)

    @cached_property
    def precision(self) -> Tensor:
        """1 / variance at the judged pixels, (n,) float64, on the CPU; 0 where it is 0, and 1 where it is unknown."""
        if self.variance is None:
            return torch.ones_like(self.values)
        v = self._at_judged(self.variance)
        return torch.where(v > 0, 1 / v, 0)

    @cached_property
    def _damping(self) -> Tensor:
        """v / (v + mean(v)), like `precision`; 1 where it is unknown."""
        w = self.precision
        return w if self.variance is None else 1 / (1 + torch.where(w > 0, 1 / w, 0).mean() * w)

    def misfit(self, x: Tensor) -> Tensor:
        """y - Phi x at the judged pixels, (n,) float64, on the CPU."""
        return self.values - self._at_judged(self.A.forward(x))

    def error(self, x: Tensor) -> float:
        """|y - Phi x| / |y| at the judged pixels, for any cube x."""
        return relative_norm(self.misfit(x), self.values)

    def knowing(self, variance: Tensor) -> Self:
        """The same split once the variance of its noise is known."""
        return replace(self, variance=variance)

    def through(self, A: Camera, y: Tensor | None = None) -> Self:
        """The same pixels of the snapshot, which may have another black level, seen by another camera."""
        y = self.y if y is None else y
        return replace(self, A=A, y=y, A_train=A.leave_out(~self.held), y_train=y.masked_fill(self.held, 0))

    def verdict(self, x: Tensor, *, imprint: bool = True) -> Verdict:
        """Judge a cube (C, H, W), negative values counted as 0, or without `imprint` a batch of them.

        Where the variance v of the noise is known, squares count as e^2 / (v + mean(v)): by e^2 alone a few bright
        pixels decide, which errors of the camera change most; by e^2 / v of a noise that is estimated, a few dark ones.
        """
        pattern = self.imprint(x) if imprint else None
        x = x.clamp(min=0)
        if self.variance is not None and x.ndim == 3 and self.A.open is not None:
            squared, spread, misfit = self.without_mask_error(self.misfit_model(x))
        else:
            misfit, spread = self.misfit(x), 0.0
            squared = misfit.square() * self.precision
        return Verdict(relative_norm(misfit, self.values), squared * self._damping, pattern, spread)

    def imprint(self, x: Tensor) -> float | None:
        """The mask's imprint on a cube (C, H, W), see `imprint_on`."""
        return imprint_on(x.clamp(min=0), self.A, moves=(0.0,))

    def misfit_model(self, x: Tensor, weight: Tensor | None = None) -> Misfit:
        """The misfit of a cube (C, H, W) >= 0, known at the pixels that are not held out."""
        if self.variance is None:
            raise ValueError("what errors of the mask explain depends on the noise; give its variance first")
        fitted = ~self.held & (self.A.majorizer() > 0)
        return Misfit.of(self.A, self.y, x, fitted, self.variance, weight)

    def without_mask_error(self, model: Misfit) -> tuple[Tensor, float, Tensor]:
        """Squares at judged pixels in units of the noise, less what errors of the best spread explain; that spread,
        and the misfit itself."""
        spreads = 0.0, *SPREADS
        left = model.left(spreads, self.indices).cpu().double()
        squares = left.square() * self.precision
        best = int(squares.sum(1).argmin())
        return squares[best], spreads[best], left[0]

    def squares_over_noise(self, misfit: Tensor) -> Tensor:
        """Squares of misfits (..., *y.shape) at the judged pixels, in units of the noise, (..., n)."""
        return self._at_judged(misfit).square() * self.precision

    def _at_judged(self, y: Tensor) -> Tensor:
        return y.reshape(*y.shape[: y.ndim - self.y.ndim], -1)[..., self.indices].cpu().double()
