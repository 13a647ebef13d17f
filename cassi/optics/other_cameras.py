"""Double disperser and video camera: CASSI with all shifts 0 and one mask per band."""

from collections.abc import Sequence

import torch
from torch import Tensor

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
