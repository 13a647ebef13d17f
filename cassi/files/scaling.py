"""Turns stored numbers into valid float32 arrays: axes, counts, checks."""

from dataclasses import dataclass, replace

import numpy as np

from cassi.errors import InputError, Note, counted
from cassi.files.container import Entry, number_in
from cassi.files.options import Levels
from cassi.files.statements import is_packed, scaled
from cassi.optics.measurement import MASK_RANGE, RELATIVE, as_transmission

BIT_DEPTHS = (8, 10, 12, 14, 16)
MIN_NUMBERS = 12  # different counts, too many to be all even by chance
MAX_SIZE, MIN_SIZE = 1e30, 1e-30  # squares and ratios of values beyond leave the range of float32


def to_float32(values: np.ndarray, name: str) -> np.ndarray:
    """Finite values as a contiguous, writable float32 array; InputError for NaN, Inf or values out of range."""
    with np.errstate(over="ignore"):
        result = np.require(values, np.float32, ("C", "W"))
    bad = int(result.size - np.count_nonzero(np.isfinite(result)))
    if bad:
        raise InputError(
            f"{name} holds NaN, Inf or numbers too large for float32 in {bad} of {result.size} values; "
            "replace them; in a snapshot, mark their pixels as bad (--bad-pixels, bad_pixels)"
        )
    size = max(float(result.max(initial=0)), -float(result.min(initial=0)))
    if size > MAX_SIZE or (size < MIN_SIZE and np.any(values)):
        raise InputError(f"{name}: values of size {size:g} do not suit float32 arithmetic; save them in another unit")
    return result


@dataclass(frozen=True)
class Counts:
    """Conversion of stored numbers to the unit of the measurement: y = (counts - black) / scale."""

    black: float
    scale: float
    saturation: float | None
    unit: str
    note: str

    def apply(self, values: np.ndarray, name: str) -> tuple[np.ndarray, np.ndarray]:
        """y as float32, and the pixels at or above `saturation` as bool; InputError for NaN and Inf."""
        saturated = np.zeros(values.shape, dtype=bool) if self.saturation is None else values >= self.saturation
        if self.black == 0 and self.scale == 1:
            return to_float32(values, name), saturated
        # a single float32 array: 16-bit counts are exact in float32
        wide = np.float32 if values.dtype.itemsize <= 2 else np.float64
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            scaled = np.subtract(values, self.black, dtype=wide)
            scaled /= self.scale
        return to_float32(scaled, name), saturated


def bit_depth_of(entry: Entry) -> int | None:
    """The significant bits of an array that its file states."""
    bits = number_in("bit_depth", entry)
    return None if bits is None else round(bits)


def levels_of(entry: Entry, given: Levels) -> Levels:
    """The levels that are given, and for those that are not what the file states of the counts of an array.

    Counts are the numbers stored. Floats may have been divided by the counts per unit, if the file states that `scale`.
    """
    divided = entry.dtype is not None and entry.dtype.kind == "f" and not is_packed(entry.attributes)
    scale, whole = number_in("scale", entry) if divided else None, (slice(None),) * len(entry.shape)

    def level(name: str) -> float | None:
        if getattr(given, name) is not None:
            return float(getattr(given, name))
        if (
            (stated := number_in(name, entry)) is None
            and name == "saturation"
            and scale
            and (bits := bit_depth_of(entry))
        ):
            stated = 2.0**bits - 1.5
        return None if stated is None else float(scaled(entry, np.array(stated), whole)) / (scale or 1.0)

    return replace(given, black_level=level("black_level"), saturation=level("saturation"))


def digits(values: np.ndarray) -> int:
    """The binary digits that occur in whole numbers, combined by OR; 0 if there are other numbers.

    A few different numbers may be even by chance, so that their last digit counts as occurring.
    """
    if values.dtype.kind == "f":
        if values.size == 0 or not (np.abs(values) < np.float64(2**53)).all() or (values != np.rint(values)).any():
            return 0
        values = values.astype(np.int64)
    if values.dtype.kind not in "iu" or values.size == 0:
        return 0
    occurring = int(np.bitwise_or.reduce(values, axis=None))
    few = occurring % 2 == 0 and np.unique(values.reshape(-1)[:: 1 + values.size // 10**5]).size < MIN_NUMBERS
    return occurring | few


def full_scale(bit_depth: int, maximum: float, occurring: int) -> float:
    """The largest count of a bit depth b: 2^b - 2^k if all counts are multiples of 2^k, that is, fewer bits stored at
    the top of b. If counts exceed a stated depth b, this is the number of those bits: (2^b - 1) 2^k.

    Fewer than 8 remaining bits are considered chance.
    """
    k = (occurring & -occurring).bit_length() - 1 if occurring > 0 else 0
    if maximum > 2.0**bit_depth - 1:
        return float((2**bit_depth - 1) << k)
    return float(2**bit_depth - (1 << k if bit_depth - k >= BIT_DEPTHS[0] else 1))


def smallest_depth(maximum: float) -> int:
    """The smallest usual bit depth that holds this count."""
    return next((b for b in BIT_DEPTHS if maximum <= 2**b - 1), 32)


def plan_counts(
    dtype: np.dtype, minimum: float, maximum: float, bits: int | None, levels: Levels = Levels(), occurring: int = 0
) -> Counts:
    """Decide how to scale stored numbers: integers by the full scale of their bit depth, floats not at all.

        y = (counts - black_level) / (full scale - black_level)    integers, see `full_scale`
        y = counts - black_level                                   floats

    `occurring` are the `digits` of the numbers. Whole floats that reach the full scale of a usual bit depth saturate
    there like integers.

    Raises:
        InputError: levels out of order, integers beyond the bit depth, a bit depth of floats that are no whole numbers,
            or negative counts without a black level.
    """
    bit_depth, black_level, saturation = levels.bit_depth, levels.black_level, levels.saturation
    black = 0.0 if black_level is None else float(black_level)
    if dtype.kind == "b":
        raise InputError("values of one bit are not counts: expected the numbers read out by the detector")
    if dtype.kind == "i" and minimum < 0 and black_level is None and bit_depth is None:
        raise InputError(
            f"the counts go down to {minimum:g}: give the count of a dark pixel (black level) or the bit depth, or "
            "save them unsigned"
        )
    if dtype.kind == "f" and bit_depth is not None and not occurring:
        raise InputError(
            f"a bit depth of {bit_depth} is given for counts, but the values are floats in a unit of their own "
            f"({minimum:g} to {maximum:g}); expected whole numbers: leave the bit depth out"
        )
    if dtype.kind == "f" and bit_depth is None:
        full = full_scale(smallest_depth(maximum), maximum, occurring) if occurring else 0.0
        saturation = full if saturation is None and maximum == full > 0 else saturation
        if black == 0:
            return Counts(0.0, 1.0, saturation, RELATIVE, "float data, kept in the unit of the file")
        note = f"counts scaled to y = counts - {black:g}"
        return Counts(black, 1.0, saturation, f"{RELATIVE}, above black", Note(note, "counts"))
    depth = bit_depth or bits or smallest_depth(maximum)
    full = levels.full_scale or full_scale(depth, maximum, occurring)
    if maximum > full:
        raise InputError(f"the largest count {maximum:g} does not fit {depth} bits ({full:g}); give the bit depth")
    if full <= black:
        raise InputError(f"full scale {full:g} must be above black level {black:g}")
    scale = levels.counts_per_unit or full - black
    unit = f"fraction of full scale ({full:g} counts)" if levels.counts_per_unit is None else f"{scale:g} counts"
    source = "" if bit_depth else f", bit depth {'stated by the file' if bits else 'guessed from the maximum'}"
    if levels.full_scale is not None:
        source = ", that of the floats in the other files" if scale == 1 else ", as all of these files"
    note = f"counts scaled to y = (counts - {black:g}) / {scale:g}, unit: {unit}{source}"
    return Counts(black, scale, full if saturation is None else saturation, unit, Note(note, "counts"))


def mask_to_float32(values: np.ndarray, name: str) -> tuple[np.ndarray, str | None]:
    """A mask as float32, and a note if it was divided by its maximum: integers, or floats of unusual size."""
    if min(values.shape[-2:]) < 2:
        raise InputError(f"{name} {values.shape} is a single row or column, expected the image of a mask")
    stored, values = values, values if values.dtype.kind == "f" else values.astype(np.float64)
    if not np.isfinite(values).all():
        to_float32(values, name)  # reports how many
    lowest, highest = float(values.min()), float(values.max())
    if lowest < 0:
        raise InputError(f"{name} has negative values (lowest {lowest:g}); a transmission must be >= 0")
    if highest == 0:
        raise InputError(f"{name} is zero everywhere: no light would pass; check the file")
    light = values[values > 0]
    usual = float(np.quantile(light[:: 1 + light.size // 10**6], 0.5, method="lower"))
    if highest > MASK_RANGE[1] * usual:
        raise InputError(f"{name} holds {highest:g} where its usual value is {usual:g}; replace that damaged value")
    scaled, note = as_transmission(stored)
    if note is None and not MASK_RANGE[0] <= highest <= MASK_RANGE[1]:
        scaled, note = values / highest, f"mask: its values divided by their maximum {highest:g}"
    return to_float32(scaled, name), note


def scale_cube(values: np.ndarray, name: str, bits: int | None = None) -> tuple[np.ndarray, str | None]:
    """A cube as float32, with integers divided by the full scale of their bit depth, and a note if they were."""
    if values.dtype.kind in "iu":
        counts = plan_counts(values.dtype, 0.0, float(values.max()), bits)  # negative values are radiance
        return counts.apply(values, name)[0], f"{name}: {counts.note}"
    return to_float32(values, name), None


def read_leading(entry: Entry, axis: int | None, frames: int | slice | None = None) -> np.ndarray:
    """Read `frames` of an array (-1 is the last one, None are all), with the axis of frames or bands moved to the
    front, or dropped for an int; InputError for frames that there are not."""
    if axis is None:
        if frames not in (None, 0, -1, slice(None)):
            raise InputError(f"'{entry.name}' is a single snapshot of shape {entry.shape}; it has no frame {frames}")
        return entry.read()
    count, part = entry.shape[axis], slice(None) if frames is None else frames
    if isinstance(part, int):
        if not -count <= part < count:
            raise InputError(f"'{entry.name}' has {counted(count, 'frame')}, there is no frame {frames}")
        part = slice(part % count, part % count + 1)
    if frames is not None and not range(count)[part]:
        raise InputError(f"'{entry.name}' has {counted(count, 'frame')}, {frames} selects none of them")
    selection = tuple(part if k == axis else slice(None) for k in range(len(entry.shape)))
    values = np.moveaxis(entry.read(selection), axis, 0)
    return values[0] if isinstance(frames, int) else values
