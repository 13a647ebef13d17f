"""Turn stored numbers into clean float32 arrays: axes, counts, checks."""

from dataclasses import dataclass

import numpy as np

from cassi.errors import InputError
from cassi.files.container import Container, Entry, Selection

BIT_DEPTHS = (8, 10, 12, 14, 16)


def to_float32(values: np.ndarray, name: str) -> np.ndarray:
    """Return finite values as contiguous float32.

    Raises:
        InputError: NaN or Inf (counted), or values too large for float32.
    """
    with np.errstate(over="ignore"):
        result = np.ascontiguousarray(values, dtype=np.float32)
    bad = int(result.size - np.count_nonzero(np.isfinite(result)))
    if bad:
        raise InputError(
            f"{name} holds {bad} values that are NaN, Inf or too large for float32, of {result.size}; "
            f"replace them and mark them as bad pixels"
        )
    return result


@dataclass(frozen=True)
class Counts:
    """How stored numbers become the measurement's unit: y = (counts - black) / scale.

    `saturation` is the stored value from which a pixel says nothing any more (None: no such value is known).
    """

    black: float
    scale: float
    saturation: float | None
    unit: str
    note: str

    def apply(self, values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return y as float32 and the saturated pixels as bool.

        Raises:
            InputError: NaN, Inf.
        """
        saturated = np.zeros(values.shape, dtype=bool) if self.saturation is None else values >= self.saturation
        if self.black == 0 and self.scale == 1:
            return to_float32(values, name), saturated
        # One float32 array at a time: 16-bit counts are exact in float32.
        wide = np.float32 if values.dtype.itemsize <= 2 else np.float64
        scaled = np.subtract(values, self.black, dtype=wide)
        scaled /= self.scale
        return to_float32(scaled, name), saturated


def plan_counts(
    dtype: np.dtype,
    maximum: float,
    bits: int | None,
    *,
    bit_depth: int | None = None,
    black_level: float | None = None,
    white_level: float | None = None,
    saturation: float | None = None,
) -> Counts:
    """Decide how stored numbers are scaled: integers by the full scale of their bit depth, floats not at all.

    y = (counts - black_level) / (white_level - black_level), white_level = 2^bits - 1 for integers.

    Args:
        dtype: stored type.
        maximum: largest stored value.
        bits: bit depth the file states, or None.
        bit_depth: bit depth the user states; without it the smallest of 8, 10, 12, 14, 16 that holds the maximum.
        black_level: count of a dark pixel, default 0.
        white_level: count that becomes 1, default full scale for integers; floats are left in their unit.
        saturation: count from which a pixel is bad, default full scale for integers, none for floats.

    Raises:
        InputError: levels out of order, a bit depth outside 1..32, or integers beyond it.

    Example:
        >>> plan_counts(np.dtype("uint16"), 4000.0, None).unit
        'fraction of full scale (4095 counts)'
    """
    black = 0.0 if black_level is None else float(black_level)
    levels = {"black level": black_level, "white level": white_level, "saturation": saturation}
    for name, level in levels.items():
        if level is not None and not np.isfinite(level):
            raise InputError(f"{name} must be finite, got {level}")
    if bit_depth is not None and not 1 <= bit_depth <= 32:
        raise InputError(f"bit depth must lie in 1..32, got {bit_depth}")
    if dtype.kind == "f" and bit_depth is None:
        if white_level is None and black_level is None:
            return Counts(0.0, 1.0, saturation, "as in the file", "float data, left in the file's own unit")
        white = black + 1.0 if white_level is None else float(white_level)
        unit = "as in the file, above black" if white_level is None else f"fraction of white level ({white:g})"
    else:
        stated = bit_depth or bits
        depth = stated or next((b for b in BIT_DEPTHS if maximum <= 2**b - 1), 32)
        full = 2.0**depth - 1
        if maximum > full:
            raise InputError(f"the largest count {maximum:g} does not fit {depth} bits ({full:g}); give the bit depth")
        white = full if white_level is None else float(white_level)
        saturation = full if saturation is None else saturation
        kind = "fraction of full scale" if white_level is None else "fraction of white level"
        unit = f"{kind} ({white:g} counts)"
    if white <= black:
        raise InputError(f"white level {white:g} must be above black level {black:g}")
    source = (
        "given" if bit_depth else "stated by the file" if bits and dtype.kind != "f" else "guessed from the maximum"
    )
    depth_note = f", bit depth {source}" if dtype.kind != "f" else ""
    note = f"counts scaled to y = (counts - {black:g}) / {white - black:g}, unit: {unit}{depth_note}"
    return Counts(black, white - black, saturation, unit, note)


def mask_to_float32(values: np.ndarray, name: str) -> tuple[np.ndarray, str | None]:
    """Return a mask as float32, integers divided by their maximum, and a note where they were.

    Raises:
        InputError: NaN, Inf, negative values, or nothing but zeros.
    """
    mask = to_float32(values, name)
    lowest, highest = float(mask.min()), float(mask.max())
    if lowest < 0:
        raise InputError(f"{name} has negative values (lowest {lowest:g}); a mask transmits, it must be >= 0")
    if highest == 0:
        raise InputError(f"{name} is zero everywhere: no light would pass; check the file")
    if values.dtype.kind in "iu" and highest > 1:
        mask /= highest
        return mask, f"mask: integers divided by their maximum {highest:g}"
    return mask, None


def scale_cube(values: np.ndarray, name: str) -> tuple[np.ndarray, str | None]:
    """Return a cube as float32, integers divided by the full scale of their bit depth, and a note where they were.

    Raises:
        InputError: NaN, Inf.
    """
    if values.dtype.kind in "iu":
        counts = plan_counts(values.dtype, float(values.max()), None)
        return counts.apply(values, name)[0], f"{name}: {counts.note}"
    return to_float32(values, name), None


def band_axis(
    container: Container, entry: Entry, *, num_bands: int | None = None, image: tuple[int, int] | None = None
) -> int | None:
    """Return which axis of a 3-D array counts the bands (or frames), or None where nothing fits.

    What the file states about its axes decides; then the sizes that are known (`num_bands`, `image` = the other two
    axes); then the shortest of the first and the last axis; then the habit of the format.
    """
    shape = entry.shape
    if entry.axes is not None and len(entry.axes) == 3:
        for letter in "CN":
            if letter in entry.axes:
                return entry.axes.index(letter)
    habit = (2, 0) if container.bands_last else (0, 2)
    fits = [axis for axis in habit if num_bands is None or shape[axis] == num_bands]
    if image is not None:
        fits = [axis for axis in fits if tuple(n for i, n in enumerate(shape) if i != axis) == image]
    if len(fits) != 2:
        return fits[0] if fits else None
    if shape[0] != shape[2] and shape[1] > min(shape[0], shape[2]):
        return 0 if shape[0] < shape[2] else 2
    return habit[0]


def read_leading(container: Container, entry: Entry, axis: int | None, frames: Selection | None = None) -> np.ndarray:
    """Read an array with the axis `axis` moved to the front; `frames` picks along it before anything is read."""
    if axis is None:
        return container.read(entry)
    selection = None
    if frames is not None:
        selection = tuple(frames[0] if i == axis else slice(None) for i in range(len(entry.shape)))
    return np.moveaxis(container.read(entry, selection), axis, 0)
