"""The names the field gives its arrays, and which array of a file plays which part."""

from cassi.errors import InputError
from cassi.files.container import Container, Entry

# In order of preference; compared in lower case, without the path inside the file.
MEASUREMENT = ("measurement", "measurements", "meas", "meas_real", "y", "snapshot", "snapshots", "frames", "g")
MASK = ("mask", "mask_3d_shift", "mask3d_shift", "mask_3d", "mask3d", "masks", "coded_aperture", "phi", "ca")
TRUTH = ("cube", "truth", "img", "hsi", "omsi", "gt", "ground_truth", "orig", "x", "data_slice", "rad", "ref")
WAVELENGTHS = ("wavelengths", "wavelength", "wl", "lambda", "lambdas", "lam28", "bands")
SHIFTS = ("shifts", "shift", "dispersion_shifts")
MEAN_BAND = ("mean_band",)
BAD_PIXELS = ("bad_pixels", "bad_pixel_mask", "badpixels", "hot_pixels")
READABLE_NAMES = {
    "measurement": MEASUREMENT,
    "mask": MASK,
    "truth": TRUTH,
    "wavelengths": WAVELENGTHS,
    "shifts": SHIFTS,
    "mean band": MEAN_BAND,
    "bad pixels": BAD_PIXELS,
}


def role_of(entry: Entry) -> str | None:
    """The part the name of an entry gives it ("measurement", "mask", "truth" ...), or None."""
    leaf = entry.name.rsplit("/", 1)[-1].lower()
    return next((role for role, names in READABLE_NAMES.items() if leaf in names), None)


def find(container: Container, names: tuple[str, ...]) -> Entry | None:
    """Return the entry whose name comes first in `names`; the least nested one where several match."""
    by_leaf: dict[str, Entry] = {}
    for entry in sorted(container.entries, key=lambda entry: entry.name.count("/"), reverse=True):
        by_leaf[entry.name.rsplit("/", 1)[-1].lower()] = entry
    return next((by_leaf[name] for name in names if name in by_leaf), None)


def is_result(container: Container) -> bool:
    """Whether a file is what a reconstruction wrote: a cube, and what of the snapshot it leaves unexplained."""
    names = {entry.name for entry in container.entries}
    return "cube" in names and ("residual" in names or "residual" in container.attributes)


def pick(container: Container, names: tuple[str, ...], what: str, key: str | None = None) -> tuple[Entry, str | None]:
    """The entry called `key`, of one of the known names, or the only image there is, which a note then says.

    Raises:
        InputError: none, or several of unknown name; the message lists what was found.
    """
    if key is not None:
        entry = container.entry(key)
        if entry is None:
            raise InputError(f"{container.path}: no array '{key}'; found {container.listing()}")
        return entry, None
    entry = find(container, names)
    if entry is not None:
        return entry, None
    images = [e for e in container.entries if e.dtype is not None and _is_image(e.shape)]
    unnamed = [entry for entry in images if role_of(entry) is None]
    if len(unnamed) == 1 and len(images) == 1:
        (only,) = unnamed
        return only, f"{container.path.name}: '{only.name}', the only image in the file, is taken as the {what}"
    raise InputError(
        f"{container.path}: no {what} found, expected one of {', '.join(names[:6])}; found {container.listing()}",
        cures=("mask" if what == "mask" else "key", "mask_key"),
    )


def _is_image(shape: tuple[int, ...]) -> bool:
    """MATLAB stores vectors and numbers as matrices of one row or column: they are no images."""
    return 3 <= len(shape) <= 4 or (len(shape) == 2 and min(shape) > 1)
