"""Double disperser, video camera and mosaic sensor: CASSI with all shifts 0 and one mask per band."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d

from cassi.errors import InputError
from cassi.kernels.shift_sum import detector_width
from cassi.optics.single_disperser import CASSI


def double_disperser(mask: Tensor, shifts: Sequence[int], *, weights: Tensor | None = None) -> CASSI:
    """The double-disperser camera: the second prism undoes the first, so that only the mask is sheared, not the scene.

        y[i, j] = sum_c m_c[i, j + d_c - d_min] x_c[i, j]

    A detector pixel sees the spectrum of one scene pixel, filtered by C neighboring elements of the aperture. (Gehm,
    John, Brady, Willett & Schulz, "Single-shot compressive spectral imaging with a dual-disperser architecture", Optics
    Express 15, 14013 (2007).)

    Args:
        mask: coded aperture m, (H, W + max d - min d), or one per band (C, ...); floating point [transmission].
        shifts: displacement d_c of each band on the coded aperture [pixel], C integers.
        weights: optional row weights (H, W), see `CASSI`.

    Raises:
        ValueError: the mask is narrower than the spread of the bands. TypeError: the mask is not a tensor.

    Example:
        >>> A = double_disperser(torch.tensor([[1.0, 10.0, 100.0]]), (0, 1))
        >>> A.forward(torch.ones(2, 1, 2))
        tensor([[ 11., 110.]])
    """
    if not isinstance(mask, Tensor):
        what = f"mask must be a real floating-point tensor, got {type(mask).__name__}"
        raise TypeError(f"{what}; convert it with torch.as_tensor(mask).float()")
    displacements = tuple(shifts)
    width = mask.shape[-1] - detector_width(0, displacements)
    if width < 1:
        what = f"mask must be wider than the spread of the bands, {detector_width(0, displacements)} columns"
        raise ValueError(f"{what}, got {tuple(mask.shape)}; give the whole coded aperture or smaller shifts")
    bands = mask.expand(len(displacements), *mask.shape[-2:])
    d_min = min(displacements)
    windows = [band[:, d - d_min : d - d_min + width] for band, d in zip(bands, displacements, strict=True)]
    return CASSI(torch.stack(windows), (0,) * len(displacements), weights)


def video_camera(masks: Tensor, *, weights: Tensor | None = None) -> CASSI:
    """The coded-aperture video camera CACTI: C frames, each through its own mask, summed within one exposure.

        y[i, j] = sum_c m_c[i, j] x_c[i, j]

    Frames take the place of bands. (Llull, Liao, Yuan, Yang, Kittle, Carin, Sapiro & Brady, "Coded aperture compressive
    temporal imaging", Optics Express 21, 10526 (2013).)

    Args:
        masks: (C, H, W), the mask during each frame; floating point. ValueError for another rank.
        weights: optional row weights (H, W), see `CASSI`.

    Example:
        >>> A = video_camera(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))
        >>> A.forward(torch.tensor([[[3.0, 3.0]], [[5.0, 5.0]]]))
        tensor([[3., 5.]])
    """
    if masks.ndim != 3:
        raise ValueError(f"masks must be (C, H, W), one per frame, got {tuple(masks.shape)}; repeat a fixed mask")
    return CASSI(masks, (0,) * len(masks), weights)


MAX_PERIOD = 16  # of a pattern that is repeated [pixel]; a larger one is a map of the whole sensor

Matrix = Tensor | np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Mosaic(CASSI):
    """The camera of a mosaic sensor: a detector pixel sees one scene pixel, through its own filter.

        y[i, j] = sum_c m_c[i, j] x_c[i, j]

    Exact in all that `CASSI` is, as all shifts are 0. The filters are taken as known, so `mask_error` is 0. (Lapray,
    Wang, Thomas & Gouton, "Multispectral filter arrays", Sensors 14, 21626 (2014).)

    Args:
        mask: m, (C, H, W), what the filter of each pixel transmits of each band; see `from_pattern`.
        shifts: all 0, and need not be given. weights, mask_error: as for `CASSI`.

    Raises:
        TypeError, ValueError: see `CASSI`; or a shift that is not 0.

    Example:
        >>> A = Mosaic.from_pattern([[0, 1], [2, 3]], (2, 3))
        >>> A.forward(torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1).expand(4, 2, 3).contiguous())
        tensor([[1., 2., 1.],
                [3., 4., 3.]])
    """

    shifts: tuple[int, ...] = ()
    mask_error: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.mask, Tensor) and self.mask.ndim != 3:
            raise ValueError(f"mask must be (C, H, W), one per band, got {tuple(self.mask.shape)}; see from_pattern")
        if any(self.shifts):
            raise ValueError(f"a mosaic sensor displaces no band, got shifts {tuple(self.shifts)}; use CASSI")
        object.__setattr__(self, "shifts", tuple(self.shifts) or (0,) * len(self.mask))
        super().__post_init__()

    def first_guess(self, y: Tensor) -> Tensor:
        """Each band interpolated from the pixels that see it, a start without the stripes of A^+ y.

            x_c = F * (m_c v y / s) / F * (m_c v),    s = |A| 1,    v = 1 where w > 0

        F is a triangle, as wide as such pixels lie apart (bilinear interpolation), and one twice as wide and 1000 times
        lower, for places whose next pixels are left out.
        """
        s = self._response
        seen = self.mask.detach().abs() * (s > 0)
        light = seen * (self.check_measurement(y) / torch.where(s > 0, s, 1)).unsqueeze(-3)
        apart = max(1, round(math.sqrt(seen[0].numel() / max(1, int((seen > 0).sum((1, 2)).min())))))
        shape, (near, known) = light.shape, (_spread(t.flatten(0, -3), apart) for t in (light, seen))
        return (near.view(shape) / known.clamp(min=torch.finfo(y.dtype).tiny)).contiguous()

    @classmethod
    def from_pattern(
        cls,
        pattern: Matrix | Sequence[Sequence[int]],
        size: tuple[int, int],
        response: Matrix | None = None,
        *,
        crosstalk: Matrix | None = None,
        offset: Sequence[int] = (0, 0),
    ) -> Self:
        """The camera of a pattern P of K filters, float32, or as the response R, with crosstalk X:

            m_c[i, j] = (X R)_kc,    k = P[i + r, j + s]

        Args:
            pattern: P, whole numbers from 0 or from 1: the filter of each pixel. Up to 16 x 16 pixels it is repeated; a
                larger one is a map of the whole sensor.
            size: (H, W) of the frame [pixel].
            response: R, (K, C) or (C, K), >= 0 [transmission]; without it filter k transmits band k alone.
            crosstalk: X, (K, K), >= 0: what a pixel of filter k holds of the signal of filter l; by default none.
            offset: (r, s), where on the pattern the frame begins, as of a region of interest.

        Raises:
            InputError: a pattern with gaps, or that does not cover the frame; matrices of another size, negative or not
                finite; a singular crosstalk; a band that no filter transmits.
        """
        P, start = _filters(pattern), tuple(offset)
        if len(start) != 2 or not all(isinstance(n, int | np.integer) for n in start):
            raise InputError(f"the offset of a pattern must be two whole numbers, row and column, got {offset!r}")
        covers = all(0 <= n <= n + m <= p for n, m, p in zip(start, size, P.shape, strict=True))
        if max(P.shape) > MAX_PERIOD and not covers:
            raise InputError(
                f"the map of filters, {P.shape[0]} x {P.shape[1]} pixels, does not cover {size[0]} x {size[1]} from "
                f"({start[0]}, {start[1]}) on; give the map of the whole sensor, or at most {MAX_PERIOD} x "
                f"{MAX_PERIOD} pixels to be repeated"
            )
        K = int(P.max()) + 1
        R = _matrix("response", np.eye(K, dtype=np.float32) if response is None else response)
        R = R.T if R.shape[0] != K == R.shape[1] else R
        X = np.eye(K, dtype=R.dtype) if crosstalk is None else _matrix("crosstalk", crosstalk).astype(R.dtype)
        if R.shape[0] != K or X.shape != (K, K):
            text = f"the pattern has {K} filters: the response must be ({K}, C), the crosstalk ({K}, {K})"
            raise InputError(f"{text}, got {R.shape} and {X.shape}")
        if np.linalg.matrix_rank(X) < K:
            raise InputError("the crosstalk is singular: some filters hold the same mixture of all; check it")
        R = X @ R
        if not (lit := R.any(0)).all():
            raise InputError(f"no filter transmits band {np.flatnonzero(~lit)[0]} of 0 to {len(lit) - 1}; leave it out")
        rows, columns = (np.arange(n, n + m) % p for n, m, p in zip(start, size, P.shape, strict=True))
        return cls(torch.from_numpy(R.T[:, P[np.ix_(rows, columns)]]))


def _spread(images: Tensor, apart: int) -> Tensor:
    """F * v for each image v of (N, H, W)."""
    total = torch.zeros_like(images)
    for n, height in ((apart, 1.0), (2 * apart, 1e-3)):
        f = 1 - torch.arange(1 - n, n, dtype=images.dtype, device=images.device).abs() / n
        along = conv2d(images[:, None], f.view(1, 1, 1, -1), padding=(0, n - 1))
        total.add_(conv2d(along, f.view(1, 1, -1, 1), padding=(n - 1, 0))[:, 0], alpha=height)
    return total


def _filters(pattern: Matrix | Sequence[Sequence[int]]) -> np.ndarray:
    """The pattern with filters from 0 to K - 1."""
    P = np.asarray(pattern)
    if P.ndim != 2 or P.size == 0 or P.dtype.kind not in "biuf" or not np.array_equal(P, np.rint(P)):
        raise InputError(f"a pattern of filters must be (p, q) whole numbers, got {P.dtype} {P.shape}")
    numbers = np.unique(P)
    if not np.array_equal(numbers, np.arange(len(numbers)) + (numbers[0] == 1)):
        given = ", ".join(f"{k:g}" for k in numbers[:20])
        raise InputError(f"a pattern numbers its filters from 0 or 1 on without gaps, got {given}; number them so")
    return P.astype(np.int64) - int(numbers[0] == 1)


def _matrix(name: str, values: Matrix) -> np.ndarray:
    M = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    M = M if M.dtype.kind == "f" else M.astype(np.float32)
    if M.ndim != 2 or not np.isfinite(M).all():
        raise InputError(f"the {name} of the filters must be a matrix of finite numbers, got {M.dtype} {M.shape}")
    if (M < 0).any():
        cure = "set noise to 0; a matrix that corrects crosstalk is the inverse of the one that is meant"
        raise InputError(f"the {name} of the filters must be >= 0, its lowest value is {M.min():.3g}; {cure}")
    return M
