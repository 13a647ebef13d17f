"""Options for reading a measurement."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cassi.errors import InputError
from cassi.optics.geometry import check_step
from cassi.types import PathLike

MAX_BANDS = 10_000


@dataclass(frozen=True)
class Levels:
    """The scale of detector counts: y = (counts - black_level) / (full scale - black_level).

    Attributes:
        bit_depth: bits of integer counts; by default the smallest of 8, 10, 12, 14, 16 that holds the maximum.
        black_level: count of a dark pixel, subtracted.
        full_scale: largest count there can be; default the largest of the bit depth.
        counts_per_unit: counts that become 1; default full scale - black level.
        saturation: count from which a pixel is bad; by default full scale for integers, none for floats. What holds a
            largest value together with many others is bad besides (`cassi.optics.outliers.remove_plateau`).

    Raises:
        InputError: a number is out of range.
    """

    bit_depth: int | None = None
    black_level: float | None = None
    saturation: float | None = None
    full_scale: float | None = None
    counts_per_unit: float | None = None

    def __post_init__(self) -> None:
        if self.bit_depth is not None and not 1 <= self.bit_depth <= 32:
            raise InputError(f"bit depth must lie in 1..32, got {self.bit_depth}")
        for name in ("black_level", "saturation", "full_scale", "counts_per_unit"):
            level = getattr(self, name)
            if level is not None and not math.isfinite(level):
                raise InputError(f"{name.replace('_', ' ')} must be finite, got {level}")


@dataclass(frozen=True)
class ReadOptions:
    """User input about a measurement; None is taken from the file or inferred. See `read_measurement`.

    Attributes:
        mask: file of the mask, or the mask itself (H, W) or (C, H, W); None: it is in the file of the measurement.
        key: name of the measurement in its file, if it is not a usual one.
        mask_key: name of the mask in its file.
        step: displacement between neighboring bands [pixel], any sign; 0 for a mask per video frame.
        num_bands: number of bands C.
        wavelengths: (C,) [nm], or text for `parse_wavelengths`.
        levels: scale of the counts.
        mask_name: file that a mask in memory was read from.
        sheared: the mask is the whole coded aperture of a double disperser, wider than the snapshot.
        pattern: filters of a mosaic sensor in place of a mask (`cassi.files.filters.read_pattern`), and pattern_offset,
            response, crosstalk: arrays or files, see `cassi.Mosaic.from_pattern`.
        bad_pixels: file with an (H, W') array, nonzero where a pixel is bad.

    Raises:
        InputError: a number is out of range.
    """

    mask: PathLike | np.ndarray | None = None
    key: str | None = None
    mask_key: str | None = None
    step: float | None = None
    num_bands: int | None = None
    wavelengths: str | np.ndarray | None = None
    levels: Levels = Levels()
    bad_pixels: PathLike | None = None
    mask_name: str = ""
    sheared: bool = False
    pattern: PathLike | np.ndarray | None = None
    pattern_offset: Sequence[int] = (0, 0)
    response: PathLike | np.ndarray | None = None
    crosstalk: PathLike | np.ndarray | None = None

    def __post_init__(self) -> None:
        if self.num_bands is not None and self.num_bands not in range(1, MAX_BANDS + 1):
            raise InputError(f"the number of bands must be at least 1 and at most {MAX_BANDS}, got {self.num_bands}")
        check_step(self.step)
