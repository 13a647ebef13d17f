"""Matches mask and measurement: axes, bands, shifts."""

import numpy as np
import torch

from cassi.errors import InputError, counted
from cassi.files.container import Container, Entry
from cassi.optics.geometry import DEFAULT_STEP, Shifts, _whole, as_shifts, infer_shifts
from cassi.optics.other_cameras import double_disperser

DARK = 1e-4  # of the largest value of a mask: what is darker is dark


def _axis_candidates(entry: Entry) -> tuple[int | None, ...]:
    """Possible axes of frames or bands, the likeliest first."""
    if len(entry.shape) == 2:
        return (None,)
    if len(entry.shape) != 3:
        raise InputError(f"{entry.where} has {len(entry.shape)} axes {entry.shape}, expected 2 or 3")
    axis = stated_axis(entry, "NC")
    return ends(entry) if axis is None else (axis,)


def stated_axis(entry: Entry, letters: str) -> int | None:
    """The axis that the file calls by the first of these letters."""
    axes = entry.axes or ""
    return next((axes.index(letter) for letter in letters if letter in axes), None)


def ends(entry: Entry) -> tuple[int, int]:
    """The first and the last axis, that one first which usually has frames or bands in files of this format."""
    last = len(entry.shape) - 1
    return (last, 0) if entry.file.bands_last else (0, last)


def band_axis(entry: Entry, *, num_bands: int | None = None, image: tuple[int, int] | None = None) -> int | None:
    """The axis of bands (or frames) of a 3-D array, or None if none fits.

    Decided by the axes that the file states; else by the known sizes (`num_bands`, and `image` for the other two axes);
    else the shorter of the first and the last axis; else as usual in the format.
    """
    if (stated := stated_axis(entry, "CN")) is not None:
        return stated
    shape, habit = entry.shape, ends(entry)
    fits = [k for k in habit if num_bands in (None, shape[k]) and image in (None, _image(shape, k))]
    if len(fits) == 2 and shape[0] != shape[2] and shape[1] > min(shape[0], shape[2]):
        return 0 if shape[0] < shape[2] else 2
    return fits[0] if fits else None


def stack_order(entry: Entry) -> tuple[int, ...]:
    """The axes of a 4-D array in the order (N, C, H, W): as stated, else (H, W, C, N) in MATLAB files."""
    if sorted(axes := entry.axes or "") == sorted("NCHW"):
        return tuple(axes.index(letter) for letter in "NCHW")
    return (3, 2, 0, 1) if entry.file.bands_last else (0, 1, 2, 3)


def bands_first(entry: Entry, count: int | None) -> np.ndarray:
    """A 3-D array with the axis of its bands in front: of this length, or the likeliest."""
    axis = band_axis(entry, num_bands=count)
    return np.moveaxis(entry.read(), (axis if axis is not None else band_axis(entry)) or 0, 0)


def _image(shape: tuple[int, ...], axis: int | None) -> tuple[int, int]:
    rows, columns = (n for i, n in enumerate(shape) if i != axis)
    return rows, columns


def image_size(entry: Entry) -> tuple[int, int]:
    """Rows and columns of a frame, by the likeliest axis of a stack."""
    return _image(entry.shape, _axis_candidates(entry)[0])


def is_found_camera(container: Container) -> bool:
    """Whether a file is one of `FoundCamera.save`."""
    return "camera" in container.attributes and container.entry("mask_3d_shift") is not None


def match_layout(entry: Entry, mask_entry: Entry, num_bands: int | None) -> tuple[int | None, int | None, bool]:
    """The axes of frames and of bands with which mask and measurement have the same number of rows and the measurement
    is no narrower, and whether to transpose so that the dispersion runs along the rows.

    As stored, or otherwise transposed. In the file of a camera that was found it runs along the rows in any case.
    """
    upright = is_found_camera(mask_entry.file)
    stacks, planes = _axis_candidates(entry), _axis_candidates(mask_entry)
    pairs = [(a, b) for a in stacks for b in planes if b is None or num_bands in (None, mask_entry.shape[b])]
    if not pairs:
        raise InputError(
            f"mask '{mask_entry.name}' {mask_entry.shape} has no axis of {counted(num_bands or 0, 'band')}; for "
            "several shots, give their number (--shots)"
        )
    for transposed in (False, True):
        for stack, plane in pairs:
            rows, columns = _image(entry.shape, stack)[:: -1 if transposed else 1]
            mask_rows, mask_columns = _image(mask_entry.shape, plane)[:: -1 if transposed and not upright else 1]
            if rows == mask_rows and columns >= mask_columns:
                return stack, plane, transposed
    image, mask = _image(entry.shape, stacks[0]), _image(mask_entry.shape, planes[0])
    text = f"mask '{mask_entry.name}' {mask_entry.shape} does not fit measurement '{entry.name}' {entry.shape}: "
    if image[0] == mask[0]:
        bands = f"e.g. {mask[1] + 27 * DEFAULT_STEP} columns for 28 bands with step {DEFAULT_STEP}"
        text += f"the measurement must be at least as wide as the mask ({bands}); are the two files swapped?"
    else:
        text += f"both need equally many rows, got {mask[0]} and {image[0]}; crop both to the same rows"
    raise InputError(text)


def displacements(masks: np.ndarray) -> np.ndarray | None:
    """The columns (C,) by which the bands of a stack (C, H, W') are displaced, read off what is dark beside them.

    Dark are columns of one value, that of most such columns (0, or a background). If the lit parts of all bands are
    equally wide, their places are the displacements; else, as with masks whose outer columns are closed, those of one
    whole step for all bands, the median of the steps of both edges. None if the bands are not displaced.

    Example:
        >>> displacements(np.array([[[1, 1, 0, 0]], [[0, 1, 1, 0]], [[0, 0, 1, 1]]]).repeat(2, 1) * [[[1], [2]]])
        array([0, 1, 2])
    """
    low, high = masks.min(axis=1), masks.max(axis=1)
    even = high - low <= DARK * float(np.abs(masks).max())
    if not even.any():
        return None
    values, counts = np.unique(low[even], return_counts=True)
    lit = ~(even & (np.abs(low - values[counts.argmax()]) <= DARK * float(np.abs(masks).max())))
    bands = np.flatnonzero(lit.any(axis=1))
    if bands.size < 2:
        return None
    first, last = lit[bands].argmax(axis=1), lit[bands, ::-1].argmax(axis=1)
    if bands.size == len(masks) and np.ptp(first + last) == 0:
        return first - first[0] if np.ptp(first) else None
    steps = [np.median(np.diff(place) / np.diff(bands)) for place in (first, -last)]
    step = round(float(steps[0]))
    return step * np.arange(len(masks)) if step and np.ptp(steps) == 0 and step == steps[0] else None


def displaced_down(masks: np.ndarray, name: str) -> bool:
    """Whether the bands of a stack (C, H', W) are displaced along the columns; InputError if along the rows as well."""
    down = displacements(np.swapaxes(masks, -1, -2)) is not None
    if down and displacements(masks) is not None:
        raise InputError(
            f"the bands of the mask '{name}' are displaced along rows and columns alike; turn mask and measurement so "
            "that the dispersion runs along the rows"
        )
    return down


def sheared_masks(
    mask: np.ndarray, size: tuple[int, ...], step: float | None, num_bands: int | None, notes: list[str]
) -> np.ndarray:
    """The mask of each band (C, H, W) of a double disperser, from the whole coded aperture (H, W + spread of bands).

    m_c[i, j] = M[i, j + d_c - min d], see `cassi.double_disperser`; what is not given of step and num_bands follows
    from the widths. `size` is (H, W), of the snapshot.
    """
    if mask.ndim != 2 or mask.shape[0] != size[0] or mask.shape[1] <= size[1]:
        cure = "with a mask for each band leave the camera out" if mask.ndim == 3 else "give the whole coded aperture"
        raise InputError(
            f"the mask of a double disperser is one picture as high as the snapshot {size} and wider, by the spread of "
            f"the bands, got {mask.shape}; {cure}"
        )
    try:
        shifts = infer_shifts(mask.shape, size, None, step, num_bands, notes)
    except InputError as error:  # it speaks of a snapshot that is wider than its mask
        rest = str(error).rpartition("a difference of")[2]
        text = (
            f"the mask of a double disperser is {mask.shape[1]} columns wide, the snapshot {size[1]}: a difference of"
        )
        raise InputError(f"{text}{rest}", error.kind, error.cures) from error
    if not all(_whole(d) for d in shifts):
        raise InputError(f"the bands of a double disperser lie whole pixels apart, got {step:g} px; round it")
    whole = torch.from_numpy(np.ascontiguousarray(mask, dtype=np.float32))
    return double_disperser(whole, [round(d) for d in shifts]).mask.numpy()


def shifts_and_mask(
    mask: np.ndarray, image: tuple[int, ...], stored: np.ndarray | None, step: float | None, num_bands: int | None,
    name: str, notes: list[str],
) -> tuple[Shifts, np.ndarray]:  # fmt: skip
    """The shifts on a detector of the size `image`, and the mask, un-sheared if it is stored as displaced there.

    Masks as displaced on the detector (C, H, W') become one mask (C, H, W) per band, or one for all (H, W):
    m_c[i, j] = M_c[i, j + d_c - min d]. The shifts come from the file (`stored`), the user, or the dark columns of the
    mask; bands that are not displaced stay as they are (one mask per video frame).

    Raises:
        InputError: shifts that would cut off light, or a mask named "shift" without dark columns beside its bands.
    """
    sheared = mask.ndim == 3 and mask.shape[-1] == image[-1] and len(mask) > 1
    seen = displacements(mask) if sheared else None
    shifts = stored if stored is not None or step is None else np.arange(len(mask)) * float(step)
    if sheared and shifts is None and (seen is not None or "shift" in name.lower()):
        if seen is None:
            raise InputError(
                f"the mask '{name}' is as wide as the measurement and not dark beside its bands, so that their "
                "displacement is unknown; give the step",
                cures=("step",),
            )
        shifts = seen.astype(float)
        steps = ", ".join(f"{step:g}" for step in dict.fromkeys(np.diff(seen).tolist()))
        notes.append(f"'{name}' is displaced by {steps} px from band to band")
    if sheared and stored is not None and stored.size != len(mask):
        raise InputError(f"the mask '{name}' has {counted(len(mask), 'band')}, 'shifts' holds {stored.size}")
    if not sheared or shifts is None or np.ptp(shifts) == 0:
        return infer_shifts(image, mask.shape, stored, step, num_bands, notes), mask
    offsets = shifts - shifts.min()
    if not all(_whole(float(offset)) for offset in offsets):
        raise InputError(f"the mask '{name}' is displaced by parts of a pixel; store the masks undisplaced (C, H, W)")
    starts = [round(float(offset)) for offset in offsets]
    width = mask.shape[-1] - max(starts)
    if width < 1:
        raise InputError(f"the mask '{name}' of {mask.shape[-1]} columns cannot be displaced by {offsets.max():g}")
    outside = any(mask[c, :, :s].any() or mask[c, :, s + width :].any() for c, s in enumerate(starts))
    if outside and seen is not None and not np.array_equal(seen - seen.min(), starts):
        raise InputError(
            f"the mask '{name}' lets light through where the shifts {shifts[0]:g}, {shifts[1]:g} ... cut it off; by "
            f"what is dark in it they are {seen[0]}, {seen[1]} ...; give those, or the step",
            cures=("step",),
        )
    bands = np.stack([mask[c, :, s : s + width] for c, s in enumerate(starts)])
    notes.append(
        f"'{name}' holds the masks as displaced on the detector: band c is cropped at its shift, {width} columns"
        + ("; nonzero values outside are ignored" if outside else "")
    )
    same = all(np.array_equal(bands[0], band) for band in bands[1:])
    return as_shifts(shifts), bands[0] if same else bands
