"""Usual names of arrays, and the role of each array in a file."""

from cassi.errors import InputError
from cassi.files.container import Container, Entry

# In order of preference; compared in lower case and without the path inside the file.
MEASUREMENT = ("measurement", "measurements", "meas", "meas_real", "y", "snapshot", "snapshots", "frames", "g")
MASK = ("mask", "mask_3d_shift", "mask3d_shift", "mask_3d", "mask3d", "masks", "coded_aperture", "phi", "ca")
TRUTH = ("cube", "truth", "img", "hsi", "omsi", "gt", "ground_truth", "orig", "x", "data_slice", "rad", "ref")
WAVELENGTHS = ("wavelengths", "wavelength", "wl", "lambda", "lambdas", "lam28", "bands")
SHIFTS = ("shifts", "shift", "dispersion_shifts")
MEAN_BAND = ("mean_band",)
BAD_PIXELS = ("bad_pixels", "bad_pixel_mask", "badpixels", "hot_pixels")
SENSITIVITY = ("sensitivity",)
READABLE_NAMES = {
    "measurement": MEASUREMENT,
    "mask": MASK,
    "truth": TRUTH,
    "wavelengths": WAVELENGTHS,
    "shifts": SHIFTS,
    "mean band": MEAN_BAND,
    "bad pixels": BAD_PIXELS,
    "sensitivity": SENSITIVITY,
}


def role_of(entry: Entry) -> str | None:
    """The role that the name of an entry implies ("measurement", "mask", "truth" ...), or None."""
    leaf = entry.name.rsplit("/", 1)[-1].lower()
    return next((role for role, names in READABLE_NAMES.items() if leaf in names), None)


def find(container: Container, names: tuple[str, ...]) -> Entry | None:
    """The entry whose name comes first in `names`; if several match, the least nested one."""
    by_leaf: dict[str, Entry] = {}
    for entry in sorted(container.entries, key=lambda entry: entry.name.count("/"), reverse=True):
        by_leaf[entry.name.rsplit("/", 1)[-1].lower()] = entry
    return next((by_leaf[name] for name in names if name in by_leaf), None)


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
