"""Usual names of arrays, and the role of each array in a file."""

import itertools
import math
from dataclasses import replace

import numpy as np

from cassi.errors import InputError, one_line
from cassi.files.container import Container, Entry
from cassi.files.statements import in_memory

# In order of preference; compared in lower case and without the path inside the file.
MEASUREMENT = (
    "measurement",
    "measurements",
    "meas",
    "meas_real",
    "y",
    "snapshot",
    "snapshots",
    "frames",
    "g",
    "cassiinput",
)
MASK = ("mask", "mask_3d_shift", "mask3d_shift", "mask_3d", "mask3d", "masks", "coded_aperture", "phi", "ca")
TRUTH = ("cube", "truth", "img", "hsi", "omsi", "gt", "ground_truth", "orig", "x", "data_slice", "rad", "ref")
WAVELENGTHS = ("wavelengths", "wavelength", "wl", "lambda", "lambdas", "lam28", "lambda_calib", "bands")
SHIFTS = ("shifts", "shift", "dispersion_shifts")
MEAN_BAND = ("mean_band",)
PHOTOGRAPH = ("photograph", "side", "pan_img", "paninput", "pan", "rgb")
BAD_PIXELS = ("bad_pixels", "bad_pixel_mask", "badpixels", "hot_pixels")
SENSITIVITY = ("sensitivity",)
STEP = ("step",)
NUM_BANDS = ("num_bands", "bands")  # where several are listed under the second, they are wavelengths
BIT_DEPTH = ("bit_depth",)
IMAGES = (MEASUREMENT, MASK, TRUTH)
UNITS = ("nm", "um", "angstrom", "cm1", "ghz", "thz", "ev", "m")  # at the end of a name
READABLE_NAMES = {
    "measurement": MEASUREMENT,
    "mask": MASK,
    "truth": TRUTH,
    "wavelengths": WAVELENGTHS,
    "shifts": SHIFTS,
    "mean band": MEAN_BAND,
    "photograph": PHOTOGRAPH,
    "bad pixels": BAD_PIXELS,
    "sensitivity": SENSITIVITY,
}


def role_of(entry: Entry) -> str | None:
    """The role that the name of an entry implies ("measurement", "mask", "truth" ...), or None."""
    leaf = entry.name.rsplit("/", 1)[-1].lower()
    return next((role for role, names in READABLE_NAMES.items() if leaf in names), None)


def find(container: Container, names: tuple[str, ...]) -> Entry | None:
    """The entry whose name comes first in `names`; if several match, the least nested one.

    A vector is no image, as `x` and `y` where these are coordinates, and an image no list. A list may be an attribute
    of the file, and the name of wavelengths end in their unit.
    """
    is_list, by_leaf = names in (WAVELENGTHS, SHIFTS), dict[str, Entry]()
    if is_list:
        for attributes in (*(entry.attributes for entry in container.entries), container.attributes):
            stated = {name: value for name, value in attributes.items() if name.lower() in names}
            by_leaf |= {name.lower(): in_memory(name, value) for name, value in stated.items() if np.size(value) > 1}  # type: ignore[arg-type]
    for entry in sorted(container.entries, key=lambda entry: entry.name.count("/"), reverse=True):
        leaf = entry.name.rsplit("/", 1)[-1].lower()
        long = sum(n > 1 for n in entry.shape)
        counts = leaf in ("x", "y") or entry.attributes.get("CLASS") == "DIMENSION_SCALE"  # the axis of another array
        if entry.dtype is not None and (long > 1 if is_list else names in IMAGES and long < 2 and counts):
            continue
        if names == WAVELENGTHS and leaf in NUM_BANDS and long == 0:
            continue
        stem, _, unit = leaf.rpartition("_")
        if names == WAVELENGTHS and stem in names and unit in UNITS:
            leaf, entry = stem, replace(entry, attributes={"units": unit} | dict(entry.attributes))
        by_leaf[leaf] = entry
    return next((by_leaf[name] for name in names if name in by_leaf), None)


def lookup(names: tuple[str, ...], *sources: Container) -> tuple[Container, Entry] | None:
    """What the first of these files holds that has an array of such a name: the measurement's before the mask's."""
    found = ((source, find(source, names)) for source in sources)
    return next(((source, entry) for source, entry in found if entry is not None), None)


def number_in(names: tuple[str, ...], *sources: Container | Entry) -> float | None:
    """A number that the first of these files or arrays states, as an attribute or as an array of one value; or None.

    Raises:
        InputError: it is stated, and is not one finite number.
    """
    for source, name in itertools.product(sources, names):
        value = source.attributes.get(name)
        if name in WAVELENGTHS and np.size(value) > 1:  # type: ignore[arg-type]
            continue
        if isinstance(source, Container) and value is None and (entry := find(source, (name,))) is not None:
            if name in WAVELENGTHS and math.prod(entry.shape) > 1:
                continue
            value = source.read(entry) if entry.dtype is not None else "what is no number"
        if value is None:
            continue
        try:
            (number,) = np.asarray(value, dtype=float).reshape(-1)
        except (TypeError, ValueError):
            number = math.nan
        if not math.isfinite(number):
            where = source.path if isinstance(source, Container) else f"'{source.name}'"
            raise InputError(f"{where}: '{name}' must be one finite number, got {one_line(repr(value), 60)}")
        return float(number)
    return None


def is_result(container: Container) -> bool:
    """Whether a file is the result of a reconstruction: a cube with a residual."""
    names = {entry.name for entry in container.entries}
    return "cube" in names and ("residual" in names or "residual" in container.attributes)


def pick(container: Container, names: tuple[str, ...], what: str, key: str | None = None) -> tuple[Entry, str | None]:
    """The entry named `key`, one with a usual name, or the only image in the file, with a note on that.

    Raises:
        InputError: there is none, or several with unknown names; the message lists the arrays.
    """
    if key is not None:
        entry = container.entry(key)
        if entry is None:
            raise InputError(f"{container.path}: no array '{key}'; found {container.listing()}")
        return entry, None
    entry = find(container, names)
    if entry is not None:
        return entry, None
    images = [e for e in container.entries if e.dtype is not None and (e.axes or _is_image(e.shape))]
    unnamed = [entry for entry in images if role_of(entry) is None]
    if len(unnamed) == 1 and len(images) == 1:
        (only,) = unnamed
        return only, f"{container.path.name}: '{only.name}', the only image in the file, is used as the {what}"
    raise InputError(
        f"{container.path}: no {what} found, expected one of {', '.join(names[:6])}; found {container.listing()}",
        cures=("mask" if what == "mask" else "key", "mask_key"),
    )


def _is_image(shape: tuple[int, ...]) -> bool:
    """Whether this is the shape of an image; MATLAB stores vectors and numbers as matrices of one row or column."""
    return 3 <= len(shape) <= 4 or (len(shape) == 2 and min(shape) > 1)
