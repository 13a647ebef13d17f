"""Read a measurement: snapshot, mask, shifts, and whatever else the file holds, with notes on what was inferred."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cassi.errors import InputError
from cassi.files.atomic import PathLike, file_sha256
from cassi.files.container import Container, Entry
from cassi.files.cubes import stack_order
from cassi.files.layout import Layout, match_layout, unshear_mask
from cassi.files.names import BAD_PIXELS, MASK, MEAN_BAND, MEASUREMENT, SHIFTS, TRUTH, WAVELENGTHS, find, pick
from cassi.files.opening import open_container
from cassi.files.scaling import band_axis, mask_to_float32, plan_counts, read_leading, scale_cube
from cassi.files.wavelength_files import parse_wavelengths
from cassi.optics.geometry import Shifts, infer_shifts
from cassi.optics.measurement import Measurement
from cassi.optics.wavelengths import check_wavelengths


def frame_count(
    path: PathLike,
    *,
    mask: PathLike | np.ndarray | None = None,
    key: str | None = None,
    mask_key: str | None = None,
    num_bands: int | None = None,
) -> int | None:
    """Return the number of frames of a stack without reading them, or None for a single snapshot.

    Args and Raises as for `read_measurement`.

    Example:
        >>> import h5py, numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "stack.h5")
        >>> with h5py.File(path, "w") as file:
        ...     file["measurement"], file["mask"] = np.ones((5, 8, 14), np.float32), np.ones((8, 8), np.float32)
        >>> frame_count(path)
        5
    """
    container = open_container(Path(path))
    entry, _ = pick(container, MEASUREMENT, "measurement", key)
    mask_container, mask_entry = _mask_source(container, mask, mask_key, [])
    layout = match_layout(container, entry, mask_container, mask_entry, num_bands)
    return None if layout.stack_axis is None else entry.shape[layout.stack_axis]


def read_measurement(
    path: PathLike,
    *,
    mask: PathLike | np.ndarray | None = None,
    key: str | None = None,
    mask_key: str | None = None,
    step: float | None = None,
    num_bands: int | None = None,
    wavelengths: str | np.ndarray | None = None,
    bit_depth: int | None = None,
    black_level: float | None = None,
    white_level: float | None = None,
    saturation: float | None = None,
    bad_pixels: PathLike | None = None,
    frames: int | slice | None = None,
) -> Measurement:
    """Read a snapshot and what is needed to reconstruct it.

    The geometry is  W' = W + max d_c - min d_c  with  d_c = c step:  band c lies c * step columns to the right.
    What is not given is inferred and told in `notes`: the number of bands from the widths
    (C = 1 + (W' - W) / step, step 2 where nothing says otherwise), the orientation, the scale of integer counts.

    Args:
        path: HDF5, MATLAB (v5, v7.3), .npz, .npy, TIFF, PNG, ENVI or NetCDF file with the snapshot.
        mask: file of the mask, or the mask itself (H, W) or (C, H, W); without it the mask is in `path`.
        key: name of the measurement in its file, where it is none of the usual ones.
        mask_key: name of the mask in its file.
        step: displacement between neighboring bands [pixel], any sign; 0 for a mask per video frame.
        num_bands: number of bands C.
        wavelengths: (C,) [nm], or text for `parse_wavelengths`.
        bit_depth: bits of integer counts; without it the smallest of 8, 10, 12, 14, 16 that holds the maximum.
        black_level: count of a dark pixel, subtracted.
        white_level: count that becomes y = 1; default full scale for integers.
        saturation: count from which a pixel is bad; default full scale for integers, none for floats.
        bad_pixels: file with an (H, W') array, nonzero where a pixel is bad.
        frames: of a stack, one frame (an int, gives (H, W')) or a slice; only these are read.

    Returns:
        The measurement, all arrays float32 and finite.

    Raises:
        InputError: anything that cannot be used, in one line: what, expected, found, cure.

    Example:
        >>> import h5py, numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "m.h5")
        >>> with h5py.File(path, "w") as file:
        ...     file["measurement"], file["mask"] = np.ones((8, 14), np.float32), np.ones((8, 8), np.float32)
        >>> read_measurement(path).shifts
        (0, 2, 4, 6)
    """
    opened = open_measurement(
        path,
        mask=mask,
        key=key,
        mask_key=mask_key,
        step=step,
        num_bands=num_bands,
        wavelengths=wavelengths,
        bad_pixels=bad_pixels,
    )
    levels = CountOptions(bit_depth, black_level, white_level, saturation)
    return opened.read(frames, levels, file_sha256(path))


class CountOptions(NamedTuple):
    """What the user says about integer counts; see `read_measurement`."""

    bit_depth: int | None = None
    black_level: float | None = None
    white_level: float | None = None
    saturation: float | None = None


@dataclass(frozen=True)
class OpenedMeasurement:
    """A measurement file whose mask and geometry are known, and whose frames are read on demand."""

    container: Container
    entry: Entry
    mask_entry: Entry
    layout: Layout
    mask: np.ndarray
    shifts: Shifts
    wavelengths: np.ndarray | None
    marked: np.ndarray | None
    notes: tuple[str, ...]

    @property
    def num_frames(self) -> int | None:
        """Number of frames, or None where the file holds a single snapshot."""
        axis = self.layout.stack_axis
        return None if axis is None else self.entry.shape[axis]

    def counts(self, frames: int | slice | None) -> np.ndarray:
        """Return the stored numbers of the frames, turned so that the dispersion runs along the rows."""
        stack = self.layout.stack_axis
        raw = read_leading(self.container, self.entry, stack, _frame_selection(self.entry, self.layout, frames))
        raw = raw[0] if isinstance(frames, int) and stack is not None else raw
        return np.swapaxes(raw, -1, -2) if self.layout.measurement_transposed else raw

    def read(self, frames: int | slice | None, options: CountOptions, sha256: str) -> Measurement:
        """Read frames and what belongs to them.

        Raises:
            InputError: no such frame, NaN, Inf, or counts that do not fit the bit depth.
        """
        notes = list(self.notes)
        container = self.container
        raw = _blank_bad_pixels(self.counts(frames), self.marked, notes)
        counts = plan_counts(raw.dtype, float(raw.max()), self.entry.bits, **options._asdict())
        y, saturated = counts.apply(raw, f"{container.path}: '{self.entry.name}'")
        del raw
        notes.append(counts.note)
        bad = _merge_bad_pixels(self.marked, saturated, notes)
        if not y.any():
            notes.append("the measurement is zero everywhere")
        scale, unit = counts.scale, counts.unit
        if scale == 1:
            scale = _number(container, "scale") or scale
            unit = str(container.attributes.get("unit", unit))
        gain = _number(container, "gain")
        size = (self.mask.shape[-2], self.mask.shape[-1])
        return Measurement(
            y=y,
            mask=self.mask,
            shifts=self.shifts,
            wavelengths=self.wavelengths,
            cube=_truth(self, size, frames, notes),
            mean_band=_mean_band(container, self.layout, size, notes),
            bad_pixels=bad,
            unit=unit,
            scale=scale,
            gain=None if gain is None else gain * counts.scale,
            read_noise=_number(container, "read_noise"),
            notes=tuple(notes),
            source=container.path.name,
            sha256=sha256,
        )


def open_measurement(
    path: PathLike,
    *,
    mask: PathLike | np.ndarray | None = None,
    key: str | None = None,
    mask_key: str | None = None,
    step: float | None = None,
    num_bands: int | None = None,
    wavelengths: str | np.ndarray | None = None,
    bad_pixels: PathLike | None = None,
) -> OpenedMeasurement:
    """Read all of a measurement file but its frames; arguments as in `read_measurement`.

    Raises:
        InputError: see `read_measurement`.
    """
    notes: list[str] = []
    container = open_container(Path(path))
    entry, note = pick(container, MEASUREMENT, "measurement", key)
    notes += [note] if note else []
    mask_container, mask_entry = _mask_source(container, mask, mask_key, notes)
    container.check_readable(entry)
    mask_container.check_readable(mask_entry)
    layout = match_layout(container, entry, mask_container, mask_entry, num_bands)
    notes += layout.notes

    rows, columns = (n for i, n in enumerate(entry.shape) if i != layout.stack_axis)
    image = (columns, rows) if layout.measurement_transposed else (rows, columns)
    marked = _bad_pixel_map(container, bad_pixels, image, layout.measurement_transposed)
    array = read_leading(mask_container, mask_entry, layout.mask_axis)
    array = np.swapaxes(array, -1, -2) if layout.mask_transposed else array
    mask_array, note = mask_to_float32(array, f"{mask_container.path}: '{mask_entry.name}'")
    notes += [note] if note else []
    shifts, mask_array = _geometry(container, mask_entry, image, mask_array, step, num_bands, notes)
    bands_nm = _wavelengths(container, mask_container, wavelengths, len(shifts), notes)
    return OpenedMeasurement(container, entry, mask_entry, layout, mask_array, shifts, bands_nm, marked, tuple(notes))


def _mask_source(
    container: Container, mask: PathLike | np.ndarray | None, mask_key: str | None, notes: list[str]
) -> tuple[Container, Entry]:
    """Return where the mask is: in a file of its own, beside the measurement, or in memory."""
    if isinstance(mask, np.ndarray):
        entry = Entry("mask", mask.shape, mask.dtype, axes="CHW" if mask.ndim == 3 else None)
        held = mask
        return Container(Path("mask"), "array", (entry,), lambda e, s: held if s is None else held[s]), entry
    if mask is None:
        entry_here = find(container, MASK) if mask_key is None else container.entry(mask_key)
        if entry_here is None:
            raise InputError(
                f"{container.path}: no mask found, expected one of {', '.join(MASK[:5])}, or a mask file of its own "
                f"(--mask FILE); found {container.listing()}"
            )
        return container, entry_here
    mask_container = open_container(Path(mask))
    entry, note = pick(mask_container, MASK, "mask", mask_key)
    notes += [note] if note else []
    return mask_container, entry


def _frame_selection(entry: Entry, layout: Layout, frames: int | slice | None) -> tuple[slice, ...] | None:
    if frames is None:
        return None
    if layout.stack_axis is None:
        if frames in (0, slice(None)):
            return None
        raise InputError(f"'{entry.name}' is a single snapshot of shape {entry.shape}; it has no frame {frames}")
    count = entry.shape[layout.stack_axis]
    if isinstance(frames, int):
        if not -count <= frames < count:
            raise InputError(f"'{entry.name}' has {count} frames, there is no frame {frames}")
        frames = slice(frames % count, frames % count + 1)
    if len(range(*frames.indices(count))) == 0:
        raise InputError(f"'{entry.name}' has {count} frames, {frames} picks none of them")
    return (frames,)


def _bad_pixel_map(
    container: Container, path: PathLike | None, shape: tuple[int, ...], transposed: bool
) -> np.ndarray | None:
    """Return the marked pixels of the file given, else of the measurement's own file."""
    if path is None:
        entry = find(container, BAD_PIXELS)
        source = container
    else:
        source = open_container(Path(path))
        entry, _ = pick(source, BAD_PIXELS + MASK, "bad pixel map")
    if entry is None:
        return None
    marked: np.ndarray = np.not_equal(source.read(entry), 0)
    marked = marked.T if transposed and marked.ndim == 2 else marked
    if marked.shape != shape:
        raise InputError(
            f"{source.path}: '{entry.name}' has shape {marked.shape}, expected that of the measurement {shape}"
        )
    return marked


def _blank_bad_pixels(raw: np.ndarray, marked: np.ndarray | None, notes: list[str]) -> np.ndarray:
    """Set pixels that are marked bad and hold NaN or Inf to 0; whatever stands there is never used."""
    if marked is None or raw.dtype.kind != "f":
        return raw
    blank = marked & ~np.isfinite(raw)
    if blank.any():
        notes.append(f"{np.count_nonzero(blank)} bad pixels hold NaN or Inf and were set to 0")
        raw = np.where(blank, 0, raw)
    return raw


def _merge_bad_pixels(marked: np.ndarray | None, saturated: np.ndarray, notes: list[str]) -> np.ndarray | None:
    flat: np.ndarray = np.logical_or.reduce(saturated.reshape(-1, *saturated.shape[-2:]), axis=0)
    if flat.any():
        notes.append(f"{np.count_nonzero(flat)} saturated pixels are taken as bad pixels")
        return flat if marked is None else flat | marked
    return marked


def _geometry(
    container: Container,
    mask_entry: Entry,
    image: tuple[int, int],
    mask: np.ndarray,
    step: float | None,
    num_bands: int | None,
    notes: list[str],
) -> tuple[Shifts, np.ndarray]:
    """Return the shifts and the mask, un-sheared where it was stored as it lies on the detector."""
    stored = None
    if step is None:
        entry = find(container, SHIFTS)
        if entry is not None:
            stored = np.asarray(container.read(entry), dtype=np.float64).reshape(-1)
            if not np.isfinite(stored).all():
                raise InputError(f"{container.path}: '{entry.name}' must be finite [pixel]")
            if num_bands is not None and num_bands != stored.size:
                raise InputError(f"{container.path}: 'shifts' holds {stored.size} bands, {num_bands} were asked for")
        else:
            step = _number(container, "step")
            notes += [f"step {step:g} px, from the file"] if step is not None else []
    if num_bands is None and stored is None and mask.ndim == 2:
        bands = _number(container, "num_bands")
        num_bands = None if bands is None else int(bands)
    if num_bands is not None and num_bands < 1:
        raise InputError(f"the number of bands must be at least 1, got {num_bands}")
    if step is not None and not math.isfinite(step):
        raise InputError(f"the step must be finite, got {step}")
    if mask.ndim == 3 and mask.shape[-1] == image[1] and mask.shape[0] > 1:
        sheared = unshear_mask(mask, stored, step, "shift" in mask_entry.name.lower(), mask_entry.name, notes)
        if sheared is not None:
            return sheared
    return infer_shifts(image, mask.shape, stored, step, num_bands, notes), mask


def _wavelengths(
    container: Container,
    mask_container: Container,
    given: str | np.ndarray | None,
    num_bands: int,
    notes: list[str],
) -> np.ndarray | None:
    if isinstance(given, str):
        return parse_wavelengths(given, num_bands)
    if given is not None:
        return check_wavelengths(given, num_bands, "wavelengths")
    for source in (container, mask_container):
        entry = find(source, WAVELENGTHS)
        if entry is not None:
            return check_wavelengths(source.read(entry), num_bands, f"{source.path}: '{entry.name}'")
    notes.append("wavelengths unknown: bands are numbered")
    return None


def _truth(
    opened: OpenedMeasurement, size: tuple[int, int], frames: int | slice | None, notes: list[str]
) -> np.ndarray | None:
    """Return the truth (C, H, W) or (N, C, H, W) where the file has one that fits, else None and a note."""
    container, layout, num_bands = opened.container, opened.layout, len(opened.shifts)
    entry = find(container, TRUTH)
    if entry is None or entry in (opened.entry, opened.mask_entry):
        return None
    image = size[::-1] if layout.measurement_transposed else size
    if len(entry.shape) == 4:
        order = stack_order(container, entry)
        found = tuple(entry.shape[i] for i in order)
        if layout.stack_axis is not None and found[1:] == (num_bands, *image):
            stack = order[0]
            picked = _frame_selection(entry, replace(layout, stack_axis=stack), frames)
            selection = tuple(picked[0] if picked and i == stack else slice(None) for i in range(4))
            values = np.transpose(container.read(entry, selection), order)
            values = values[0] if isinstance(frames, int) else values
            return _finish_truth(container, entry, values, layout, notes)
    elif len(entry.shape) == 3:
        axis = band_axis(container, entry, num_bands=num_bands, image=image)
        if axis is not None:
            return _finish_truth(container, entry, read_leading(container, entry, axis), layout, notes)
    notes.append(f"'{entry.name}' {entry.shape} is not the truth of {num_bands} bands of {image}: not used")
    return None


def _finish_truth(
    container: Container, entry: Entry, values: np.ndarray, layout: Layout, notes: list[str]
) -> np.ndarray:
    values = np.swapaxes(values, -1, -2) if layout.measurement_transposed else values
    cube, note = scale_cube(values, f"{container.path}: '{entry.name}'")
    notes += [note] if note else []
    return cube


def _mean_band(container: Container, layout: Layout, size: tuple[int, int], notes: list[str]) -> np.ndarray | None:
    entry = find(container, MEAN_BAND)
    if entry is None:
        return None
    values = container.read(entry)
    values = values.T if layout.measurement_transposed else values
    if values.shape != size:
        notes.append(f"'{entry.name}' {entry.shape} does not fit the image {size}: not used")
        return None
    return scale_cube(values, f"{container.path}: '{entry.name}'")[0]


def _number(container: Container, name: str) -> float | None:
    """Return a number kept as an attribute of the file or as an array of one value, or None."""
    value: object = container.attributes.get(name)
    if value is None:
        entry = container.entry(name)
        if entry is None or math.prod(entry.shape) != 1:
            return None
        value = container.read(entry)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or not np.isfinite(array.item()):
        raise InputError(f"{container.path}: '{name}' must be one finite number, got {value!r}")
    return float(array.item())
