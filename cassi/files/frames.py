"""Many frames, one at a time: stacks, folders, patterns."""

import glob
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np

from cassi.errors import InputError
from cassi.files.atomic import PathLike, file_sha256
from cassi.files.reading import CountOptions, OpenedMeasurement, open_measurement
from cassi.files.scaling import BIT_DEPTHS
from cassi.optics.measurement import Measurement

# Files of a folder with other endings are passed over; the format itself is told from the content.
SUFFIXES = {".h5", ".hdf5", ".mat", ".npz", ".npy", ".tif", ".tiff", ".png", ".hdr", ".nc"}


class Frames(Sequence[Measurement]):
    """Frames of a stack or of many files; indexing reads one, nothing else is held in memory.

    `names` has one name per frame, unique, fit for the names of results; `bit_depth` is what integer counts are scaled
    by, None where there are none. A frame that cannot be read raises
    `InputError` when it is read, so that the others can still be used.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        places: tuple[tuple[Path, int | None], ...],
        files: dict[Path, OpenedMeasurement | InputError],
        options: CountOptions,
    ) -> None:
        self.names = names
        self.bit_depth = options.bit_depth
        self._places = places
        self._files = files
        self._options = options

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Measurement: ...
    @overload
    def __getitem__(self, index: slice) -> "Frames": ...
    def __getitem__(self, index: int | slice) -> "Measurement | Frames":
        if isinstance(index, slice):
            return Frames(self.names[index], self._places[index], self._files, self._options)
        path, frame = self._places[index]
        opened = self._files[path]
        if isinstance(opened, InputError):
            raise opened
        return opened.read(frame, self._options, file_sha256(path))

    def __iter__(self) -> Iterator[Measurement]:
        return (self[i] for i in range(len(self)))


def open_frames(
    source: PathLike | Sequence[PathLike],
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
) -> Frames:
    """Open a stack, the files of a folder, a pattern such as "run/*.tif", or a list of files, to read frame by frame.

    All frames share one scale: where integers come without a bit depth, every frame is looked through once for the
    largest count. Give `bit_depth` to save that pass.

    Args:
        source: file with one snapshot or a stack (N, H, W'), folder, pattern, or list of these files.
        mask, key, mask_key, step, num_bands, wavelengths, bit_depth, black_level, white_level, saturation,
            bad_pixels: as in `read_measurement`, for all files.

    Returns:
        The frames in natural order of the names (2 before 10).

    Raises:
        InputError: nothing found, or not one of the files can be opened.

    Example:
        >>> import h5py, numpy as np, os, tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "run.h5")
        >>> with h5py.File(path, "w") as file:
        ...     file["measurement"], file["mask"] = np.ones((3, 8, 14), np.float32), np.ones((8, 8), np.float32)
        >>> frames = open_frames(path)
        >>> frames.names, frames[1].y.shape
        (('run_0000', 'run_0001', 'run_0002'), (8, 14))
    """
    paths = _find_files(source, mask)
    files: dict[Path, OpenedMeasurement | InputError] = {}
    places: list[tuple[Path, int | None]] = []
    for path in paths:
        try:
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
        except InputError as error:
            files[path] = error
            places.append((path, None))
            continue
        files[path] = opened
        count = opened.num_frames
        places += [(path, None)] if count is None else [(path, i) for i in range(count)]
    errors = [found for found in files.values() if isinstance(found, InputError)]
    if len(errors) == len(files):
        raise errors[0]
    if bit_depth is None:
        bit_depth = _common_bit_depth(places, files)
    options = CountOptions(bit_depth, black_level, white_level, saturation)
    return Frames(_names(places), tuple(places), files, options)


def _find_files(source: PathLike | Sequence[PathLike], mask: PathLike | np.ndarray | None) -> list[Path]:
    if not isinstance(source, str | os.PathLike):
        return [Path(path) for path in source]
    path = Path(source)
    if path.is_dir():
        found = [file for file in path.iterdir() if file.suffix.lower() in SUFFIXES]
    elif path.exists() or not glob.has_magic(str(path)):
        return [path]
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]
    own = None if mask is None or isinstance(mask, np.ndarray) else Path(mask).resolve()
    found = [file for file in found if file.is_file() and not file.name.startswith(".") and file.resolve() != own]
    if not found:
        raise InputError(f"{source}: no measurement files found; expected {', '.join(sorted(SUFFIXES))}")
    return sorted(found, key=_natural)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Order names with numbers in them by the numbers."""
    parts = re.split(r"(\d+)", str(path))
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _names(places: Sequence[tuple[Path, int | None]]) -> tuple[str, ...]:
    stems: dict[str, set[Path]] = {}
    for path, _ in places:
        stems.setdefault(path.stem, set()).add(path)
    taken: dict[str, int] = {}
    names = []
    for path, frame in places:
        name = path.stem if len(stems[path.stem]) == 1 else path.name
        name = name if frame is None else f"{name}_{frame:04d}"
        taken[name] = taken.get(name, 0) + 1
        names.append(name if taken[name] == 1 else f"{name}_{taken[name]}")
    return tuple(names)


def _common_bit_depth(
    places: Sequence[tuple[Path, int | None]], files: dict[Path, OpenedMeasurement | InputError]
) -> int | None:
    """Return the smallest usual bit depth that holds every integer count; None where some frames are not integers."""
    highest = None
    for path, frame in places:
        opened = files[path]
        if isinstance(opened, InputError) or opened.entry.dtype is None:
            continue
        if opened.entry.dtype.kind not in "iu":  # floats have a unit of their own, which a bit depth would change
            return None
        if opened.entry.bits is not None:
            largest = 2**opened.entry.bits - 1
        else:
            try:
                largest = int(opened.counts(frame).max())
            except InputError:  # told when the frame is read
                continue
        highest = largest if highest is None else max(highest, largest)
    if highest is None:
        return None
    return next((bits for bits in BIT_DEPTHS if highest <= 2**bits - 1), 32)
