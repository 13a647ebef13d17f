"""Read a measurement: snapshot, mask, shifts and other data of the file, with notes on what was inferred."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cassi.errors import InputError, Note, counted, one_line, parse_json
from cassi.files.atomic import file_sha256
from cassi.files.beside import (
    bad_pixels_of,
    read_bad_pixels,
    read_mean_band,
    read_sensitivity,
    read_truth,
    sensitivity_of,
    upright,
)
from cassi.files.container import NAMES, Container, Entry, naming, number_in, read_list
from cassi.files.filters import read_masks
from cassi.files.layout import displaced_down, image_size, is_found_camera, match_layout, sheared_masks, shifts_and_mask
from cassi.files.opening import open_container
from cassi.files.options import Levels, ReadOptions
from cassi.files.scaling import bit_depth_of, digits, levels_of, mask_to_float32, plan_counts, read_leading
from cassi.files.statements import replaced, stated_as
from cassi.files.wavelength_files import differing, given_wavelengths, read_wavelengths, wavelength_source
from cassi.optics.geometry import check_step
from cassi.optics.measurement import Measurement, any_bad
from cassi.optics.outliers import remove_outliers
from cassi.optics.wavelengths import PRESETS, same_bands, span
from cassi.types import PathLike

NUMBERS = {"num_bands": "number of bands", "bit_depth": "bit depth", "black_level": "black level"}  # in words
PIXEL = ("", "1", "px", "pix", "pixel", "dimensionles", "count")  # units of shifts, without the s of a plural


def read_measurement(
    path: PathLike,
    *,
    mask: PathLike | np.ndarray | None = None,
    key: str | None = None,
    mask_key: str | None = None,
    step: float | None = None,
    num_bands: int | None = None,
    wavelengths: str | np.ndarray | None = None,
    levels: Levels = Levels(),
    bad_pixels: PathLike | None = None,
    frames: int | slice | None = None,
) -> Measurement:
    """Read a snapshot and everything needed to reconstruct it.

    The geometry is  W' = W + max d_c - min d_c  with  d_c = c step:  band c is displaced c * step columns to the right.
    What is not given is inferred and reported in `notes`: the number of bands from the widths
    (C = 1 + (W' - W) / step, with step 2 by default), the orientation, the scale of integer counts.

    Args:
        path: HDF5, MATLAB (v5, v7.3), .npz, .npy, TIFF or PNG file with the snapshot.
        mask, key, mask_key, step, num_bands, wavelengths, levels, bad_pixels: see `ReadOptions`.
        frames: one frame of a stack (an int, which gives (H, W'); -1 is the last) or a slice; only these are read.

    Returns:
        The measurement, all arrays float32 and finite.

    Raises:
        InputError: unusable input, in one line: what, expected, got, cure.
    """
    options = ReadOptions(mask, key, mask_key, step, num_bands, wavelengths, levels, bad_pixels)
    return open_measurement(path, options).read(frames)


@dataclass(frozen=True)
class OpenedMeasurement:
    """A measurement file with its mask and geometry, whose frames are read on demand.

    `known` is the measurement without these; its bad pixels may be (N, H, W'), its sensitivity, too.
    """

    options: ReadOptions
    entry: Entry
    mask_entry: Entry
    stack_axis: int | None
    known: Measurement

    @property
    def frames(self) -> Sequence[int | None]:
        """The numbers of the frames of a stack; (None,) for a single snapshot."""
        return (None,) if self.stack_axis is None else range(self.entry.shape[self.stack_axis])

    def counts(self, frames: int | slice | None) -> np.ndarray:
        """The stored numbers of the frames, transposed if needed so that the dispersion runs along the rows."""
        return upright(read_leading(self.entry, self.stack_axis, frames), self.known.transposed)

    def read(self, frames: int | slice | None = None) -> Measurement:
        """Read frames and their metadata; see `read_measurement`."""
        with naming(self.entry.file.path):
            return self._read(frames)

    def _read(self, frames: int | slice | None) -> Measurement:
        known, notes, container = self.known, list(self.known.notes), self.entry.file
        declared = self.entry.declares_missing
        raw, bad, alone = bad_pixels_of(self.counts(frames), known.bad_pixels, frames, declared, notes)
        kind, levels = self.entry.dtype or raw.dtype, levels_of(self.entry, self.options.levels)
        bits = bit_depth_of(self.entry) if levels.bit_depth is None else None
        occurring = 0 if kind.kind == "f" and known.scale != 1 else digits(raw)  # what was divided holds no counts
        counts = plan_counts(kind, float(raw.min()), float(raw.max()), bits, levels, occurring)
        if (black := levels.black_level) is not None and black != self.options.levels.black_level:
            notes.append(f"the black level {black:g} is stated by the file")
        y, saturated = counts.apply(raw, self.entry.where)
        del raw
        notes.append(counts.note)
        origin = {**known.origin, **({} if black is None else {"black_level": counts.black})}
        origin |= {"missing": alone} if alone else {}
        full: np.ndarray = np.logical_or.reduce(saturated.reshape(-1, *saturated.shape[-2:]))
        if count := int(np.count_nonzero(full)):
            origin["saturated"] = count
            notes.append(f"treated as bad: {counted(count, 'saturated pixel')}")
            bad = any_bad((full, bad))
        if bad is not None and bad.all():
            what = "every detector pixel is marked bad or saturated; give their map or the saturation"
            raise InputError(f"{self.entry.where}: {what}", cures=("bad_pixels", "saturation"))
        if not y.any():
            notes.append("the measurement is zero everywhere")
        cube, peak = read_truth(self, frames, y, counts.scale, notes)
        origin |= {} if peak == 1 else {"truth_peak": peak}
        m = replace(
            known,
            y=y,
            cube=cube,
            bad_pixels=bad,
            sensitivity=sensitivity_of(known.sensitivity, frames, container.path),
            unit=counts.unit if counts.scale != 1 else one_line(known.unit or counts.unit, 80),
            scale=counts.scale if counts.scale != 1 else known.scale,
            gain=None if known.gain is None else known.gain * counts.scale,
            notes=tuple(Note(note) for note in notes),
            stored=(counts.black, counts.scale),
            sha256=file_sha256(container.path),
            origin=origin,
        )
        return remove_outliers(m)


def open_measurement(path: PathLike, options: ReadOptions) -> OpenedMeasurement:
    """Read everything in a measurement file except its frames; see `read_measurement`."""
    with naming(Path(path), options.mask, options.bad_pixels, options.pattern, options.wavelengths):
        return _open(open_container(Path(path)), options)


def _open(container: Container, options: ReadOptions) -> OpenedMeasurement:
    notes: list[str] = []
    path = container.path
    if options.key is None and container.is_result:
        raise InputError(
            f"{path}: this is a result, the cube of a reconstructed snapshot; view it, or give the snapshot",
            kind="result",
        )
    entry, note = container.pick("measurement", options.key)
    notes += [note] if note else []
    container.check_readable(entry)
    given = options
    if options.pattern is not None:
        options = replace(options, mask=read_masks(options, image_size(entry), notes), mask_key=None, step=0)
    mask_entry = _mask_source(entry, options, notes)
    notes += _replaced(entry, mask_entry, given)
    if options.sheared:
        bands = sheared_masks(mask_entry.read(), image_size(entry), options.step, options.num_bands, notes)
        name = mask_entry.file.path.name
        options = replace(options, mask=bands, mask_name=name, mask_key=None, step=0, num_bands=None)
        mask_entry = _mask_source(entry, options, notes)
    stack_axis, mask_axis, across = match_layout(entry, mask_entry, options.num_bands)
    array = read_leading(mask_entry, mask_axis)
    rows, columns = (n for i, n in enumerate(entry.shape) if i != stack_axis)
    stored, step, num_bands = _geometry(entry, mask_entry, array.ndim, options, notes)
    as_wide = array.ndim == 3 and array.shape[1:] == (rows, columns)
    in_place = step == 0 or (stored is not None and not stored.any())
    across = across or (as_wide and not in_place and displaced_down(array, mask_entry.name))
    if across:
        notes.append("the dispersion runs down the columns: measurement and mask are transposed")
    image = (columns, rows) if across else (rows, columns)
    turned = across and not is_found_camera(mask_entry.file)
    mask, note = mask_to_float32(upright(array, turned), mask_entry.where)
    notes += [note] if note else []
    sources = {entry: across} | ({} if mask_entry.file is container else {mask_entry: turned})
    bad = read_bad_pixels(sources, options.bad_pixels, image)
    sensitivity, dead = read_sensitivity(sources, image, notes)
    shifts, mask = shifts_and_mask(mask, image, stored, step, num_bands, mask_entry.name, notes)
    nm, source_of_nm = _wavelengths((entry, mask_entry), options.wavelengths, len(shifts), notes)
    filters = "given" if isinstance(options.pattern, np.ndarray) else Path(options.pattern or "").name
    of_mask = mask_entry.file
    named = filters
    if not named and of_mask.attributes.get("camera_kind") == "mosaic":
        named = str(of_mask.attributes.get("mask_kind", f"of {of_mask.path.name}"))
    source = options.mask_name if isinstance(options.mask, np.ndarray) else of_mask.path.name
    origin = {"wavelengths": source_of_nm, "refined": _refined(of_mask), "filters": named}
    origin |= {} if named else {"mask": source}
    units = stated_as(entry.attributes, "units"), stated_as(container.attributes, "units")
    known = Measurement(
        y=np.empty((0, 0), np.float32),
        mask=mask,
        shifts=shifts,
        wavelengths=nm,
        mean_band=read_mean_band({entry: across}, mask.shape[-2:], notes),
        bad_pixels=any_bad((bad, dead)),
        mask_error=0.0 if filters else number_in("mask_error", mask_entry),
        sensitivity=sensitivity,
        unit=next((str(value) for value in units if value is not None), ""),
        scale=number_in("scale", entry) or 1.0,
        gain=number_in("gain", entry),
        read_noise=number_in("read_noise", entry),
        notes=tuple(notes),
        transposed=across,
        source=container.path.name,
        origin={name: value for name, value in origin.items() if value},
    )
    return OpenedMeasurement(options, entry, mask_entry, stack_axis, known)


def frame_count(path: PathLike, options: ReadOptions) -> int | None:
    """The number of frames of a stack without reading them, or None for a single snapshot."""
    frames = open_measurement(path, options).frames
    return len(frames) if isinstance(frames, range) else None


def _mask_source(measurement: Entry, options: ReadOptions, notes: list[str]) -> Entry:
    """The mask in a separate file, in the file of the measurement, or in memory."""
    mask, key, container = options.mask, options.mask_key, measurement.file
    if isinstance(mask, np.ndarray):
        values, axes = mask, "CHW" if mask.ndim == 3 else None
        made = Entry("mask", values.shape, values.dtype, axes=axes)
        name = Path(options.mask_name or "mask")
        (entry,) = Container(name, "array", (made,), lambda _, picked: values[picked]).entries
    elif mask is not None:
        entry, note = open_container(Path(mask)).pick("mask", key)
        notes += [note] if note else []
    elif (here := measurement.beside("mask") if key is None else container.entry(key)) is not None:
        entry = here
    else:
        expected = f"expected one of {', '.join(NAMES['mask'][:5])}, or a separate mask file"
        found = f"no mask found, {expected}; found {container.listing()}"
        raise InputError(f"{container.path}: {found}", cures=("mask", "mask_key", "pattern"))
    entry.file.check_readable(entry)
    return entry


def _geometry(
    entry: Entry, mask: Entry, rank: int, options: ReadOptions, notes: list[str]
) -> tuple[np.ndarray | None, float | None, int | None]:
    """Shifts, step and number of bands for a mask of this rank, as far as they are known.

    What is given comes before what a file states: shifts, or step and bands; a mask of another file is given, with
    what that states of its camera, by shifts or by a step.
    """
    step, num_bands = options.step, options.num_bands
    if step is not None:
        return None, step, num_bands
    sources = _of_camera(entry, mask)
    shifts, others = _stated_shifts(sources), entry.beside("shifts")
    if shifts is not None and num_bands in (None, read_list(shifts).size):
        if (unit := str(shifts.attributes.get("units", "pixel"))).lower().rstrip("s") not in PIXEL:
            raise InputError(f"{shifts.where} is in {unit}, expected pixels; divide by their pitch")
        stored = read_list(shifts)
        if others is not None and not np.array_equal(stored, read_list(others)):
            notes.append(f"the shifts are those of {mask.file.path.name}, the file of the snapshot states others")
        if not np.isfinite(stored).all():
            raise InputError(f"{shifts.where} must be finite [pixel]")
        steps, stated = np.diff(stored), number_in("step", shifts)
        if stated is not None and steps.any() and np.ptp(steps) == 0 and stated != steps[0]:
            raise InputError(f"{shifts.where} are {steps[0]:g} px apart, the step is {stated:g} px; give it")
        return stored, None, num_bands
    step, bands = (number_in(name, *sources) for name in ("step", "num_bands"))
    if step is not None:
        whose = "the file" if others is None else f"{mask.file.path.name}, the file of the snapshot states shifts"
        notes.append(f"the step of {step:g} px is stated by {whose}")
    if num_bands is None and bands is not None and rank == 2:
        num_bands = round(bands)
    check_step(step)
    return None, step, num_bands


def _of_camera(entry: Entry, mask: Entry) -> tuple[Entry, ...]:
    """The arrays beside which a camera is stated, in the order in which they count."""
    return (entry,) if mask.file is entry.file else (mask, entry)


def _stated_shifts(sources: tuple[Entry, ...]) -> Entry | None:
    """Those of the first file that states how the bands are displaced; None where that is a step, or none does."""
    for one in sources:
        if (shifts := one.beside("shifts")) is not None or number_in("step", one) is not None:
            return shifts
    return None


def _replaced(entry: Entry, mask: Entry, given: ReadOptions) -> list[Note]:
    """Notes on numbers that are given where the file states others."""
    stated: dict[str, Any] = {}
    with suppress(InputError):  # what is not used may be anything
        sources = _of_camera(entry, mask)
        stated = {name: number_in(name, *sources) for name in ("step", "num_bands")}
        if (shifts := _stated_shifts(sources)) is not None:
            steps = np.diff(stored := read_list(shifts))
            stated = {"step": float(steps[0]) if steps.size and not np.ptp(steps) else np.nan, "num_bands": stored.size}
    with suppress(InputError):
        stated |= vars(levels_of(entry, Levels())) | {"bit_depth": bit_depth_of(entry)}
    numbers = {"step": given.step, "num_bands": given.num_bands, **vars(given.levels)}
    return [note for name, n in numbers.items() for note in replaced(NUMBERS.get(name, name), n, stated.get(name))]


def _wavelengths(
    entries: tuple[Entry, Entry], given: str | np.ndarray | None, num_bands: int, notes: list[str]
) -> tuple[np.ndarray | None, str]:
    """The wavelengths given, or those stated beside snapshot or mask [nm], and where they come from in words."""
    stated = [found for one in entries if (found := one.beside("wavelengths")) is not None]
    if given is not None:
        chosen = given_wavelengths(given, num_bands)
        with suppress(InputError):  # what the file holds is not used
            notes += differing(chosen, read_wavelengths(stated[0], num_bands) if stated else None)
        return chosen, "" if chosen is None else wavelength_source(given)
    if stated and (nm := read_wavelengths(stated[0], num_bands)) is not None:
        theirs = None
        with suppress(InputError):  # of something else
            theirs = read_wavelengths(stated[-1], num_bands)  # of the masks, or shifts, in their order
        names = [one.file.path.name for one in stated]
        if theirs is not None and not same_bands(nm, theirs):
            what = f"{names[0]} has {span(nm)}, {names[-1]} {span(theirs)}"
            raise InputError(f"{what}; give those of the bands", cures=("wavelengths",))
        return nm, f"the file {names[0]}"
    presets = ", ".join(name for name, preset in PRESETS.items() if len(preset.wavelengths) == num_bands)
    notes.append(f"wavelengths unknown: bands are numbered{f'; presets of {num_bands}: {presets}' if presets else ''}")
    return None, ""


def _refined(container: Container) -> Mapping[str, Any] | None:
    """What the file of a camera says was found and corrected of its mask, if anything."""
    if not is_found_camera(container):
        return None
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        camera = parse_json(str(container.attributes["camera"]))
        learned = camera.get("mask_error") or {}
        known = {"findings": camera.get("findings") or [camera["message"]], "captures": learned.get("captures", 0)}
        before = container.attributes.get("refined")  # of a camera that was saved again as it was
        return known if camera["accepted"] else None if before is None else parse_json(str(before))
    return None
