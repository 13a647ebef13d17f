"""The common part of cameras with one coded aperture and one disperser: mask m, shifts d_c, row weights w."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from numbers import Real
from typing import Self

import torch
from torch import Tensor

from cassi.errors import InputError, counted
from cassi.optics.protocol import Camera, cached, check_weights, private_copy

# Standard deviation of the error of a mask, relative to its greatest transmission: none is known better. On nine CAVE
# windows at 10,000 electrons the default changes by -0.05 to 0.02 dB where the mask is exact (by -0.08 to 0.04 without
# noise), and gains 0.1, 0.3 and 0.2 dB on average where it is wrong by 2, 5 and 12 %.
MASK_ERROR = 0.02


@dataclass(frozen=True, eq=False)
class CodedAperture(Camera):
    """Parts and sizes of such a camera; `CASSI` and `BlurredCASSI` add the path of the light."""

    mask: Tensor
    shifts: Sequence[float]
    weights: Tensor | None = None
    mask_error: float = field(default=MASK_ERROR, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.mask, Tensor) or not self.mask.is_floating_point():
            got = self.mask.dtype if isinstance(self.mask, Tensor) else type(self.mask).__name__
            raise TypeError(
                f"mask must be a real floating-point tensor, got {got}; convert it with torch.as_tensor(mask).float()"
            )
        if not self.shifts:
            raise ValueError("shifts is empty; give one displacement per band")
        if self.mask.ndim not in (2, 3) or 0 in self.mask.shape:
            raise ValueError(f"mask must be (H, W) or (C, H, W) and not empty, got {tuple(self.mask.shape)}")
        if self.mask.ndim == 3 and self.mask.shape[0] != len(self.shifts):
            what = f"mask has {counted(self.mask.shape[0], 'band')} but there are {len(self.shifts)} shifts"
            raise ValueError(f"{what}; give one shift per mask band")
        if not (isinstance(self.mask_error, Real) and 0 <= self.mask_error < math.inf):
            raise InputError(f"mask_error must be a number >= 0, relative to the maximum, got {self.mask_error!r}")
        if self.weights is not None:
            object.__setattr__(self, "weights", check_weights(self.weights, self.measurement_shape, self.mask))
        object.__setattr__(self, "mask", private_copy(self.mask))

    def __repr__(self) -> str:
        """One line: bands, sizes, shifts, dtype and device."""
        size, detector = (" x ".join(str(n) for n in shape[-2:]) for shape in (self.cube_shape, self.measurement_shape))
        return (
            f"<{type(self).__name__}: {counted(len(self.shifts), 'band')}, scene {size} px, detector {detector} px, "
            f"shifts {min(self.shifts):g} to {max(self.shifts):g} px, {self.dtype} on {self.device}>"
        )

    @property
    def height(self) -> int:
        """H [pixel]."""
        return self.mask.shape[-2]

    @property
    def width(self) -> int:
        """W [pixel], of the scene."""
        return self.mask.shape[-1]

    @property
    def detector_width(self) -> int:
        """W' = W + ceil(max d) - floor(min d) [pixel]."""
        return self.width + math.ceil(max(self.shifts)) - math.floor(min(self.shifts))

    @property
    def cube_shape(self) -> tuple[int, int, int]:
        return len(self.shifts), self.height, self.width

    @property
    def measurement_shape(self) -> tuple[int, int]:
        return self.height, self.detector_width

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.mask.dtype

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.mask.device

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """A new operator on another device or in another floating-point type."""
        return replace(self, mask=self.mask.to(device=device, dtype=dtype))

    def weighted(self, weights: Tensor | None) -> Self:
        camera = replace(self, weights=weights)
        if "_nonnegative" in vars(self):  # still valid, as the mask is the same
            vars(camera)["_nonnegative"] = self._nonnegative
        return camera

    def absolute(self) -> Self:
        if not self.mask.requires_grad and self._nonnegative:
            return self
        return replace(self, mask=self.mask.detach().abs())

    @cached_property
    def open(self) -> Self:
        mask = self.mask.detach()
        camera = object.__new__(type(self))  # its parts were checked; to do so again would wait for a GPU
        vars(camera).update({part.name: getattr(self, part.name) for part in fields(self)})
        vars(camera).update(mask=mask.abs().amax().expand(mask.shape[-2:]).contiguous(), _nonnegative=True)
        return camera

    def mask_error_variance(self, x: Tensor) -> Tensor:
        """diag(E E^T) = (s m_max)^2 sum_c S_c x_c^2, with s = `mask_error`; where light is blurred an upper bound."""
        return self.mask_error**2 * self.open.mask.amax() * self.open.forward(x.square())

    @cached_property
    def _nonnegative(self) -> bool:
        return bool((self.mask >= 0).all())

    def response(self) -> Tensor:
        """|A| 1, see `Camera.response`."""
        return self._response.clone()

    @cached
    def _response(self) -> Tensor:
        return super().response()
