"""A cube written in parts: tiles of a frame larger than memory, or frames of a sequence."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from cassi.errors import InputError, OutputError, parse_json
from cassi.files.atomic import PathLike, check_kept, hdf5_target, replacing, signals_held
from cassi.files.container import damage_as_input_error
from cassi.files.formats.hdf5 import label_axes, open_file
from cassi.files.writing import Attributes, check_output, plain_attributes
from cassi.optics.measurement import any_bad
from cassi.optics.wavelengths import pair_bands, span

SIDE = 64  # of a chunk [pixel]
COPIED = "unit", "scale", "version", "parameters", "camera", "origin", "turned", "resolution_nm"  # of the first frame


class CubeStore:
    """An HDF5 result being written, see `cube_store`. Its arrays are 0 at first; parts are added in any order."""

    def __init__(self, file: h5py.File, path: Path) -> None:
        self._file, self._path = file, path

    def make(self, name: str, shape: tuple[int, ...], *, axes: str) -> None:
        """Create a float32 array of zeros; `axes` are the letters of its axes (N frame, C band, H row, W column).

        A band and a spectrum are both read without the rest: a chunk holds all bands of some pixels.
        """
        pixels = [min(SIDE, n) for n in shape[-2:]] if "C" in axes else list(shape[-2:])
        chunks = (*(1 if letter == "N" else n for letter, n in zip(axes, shape[:-2], strict=False)), *pixels)
        with signals_held():
            array = self._file.create_dataset(name, shape=shape, dtype=np.float32, chunks=chunks, track_times=False)
            array.attrs["axes"] = np.bytes_(axes)

    def add(self, name: str, where: Any, values: np.ndarray) -> None:
        """Add values to an array at `where`, a NumPy index; OutputError if the file was removed meanwhile."""
        check_kept(self._path)
        with signals_held():
            self._file[name][where] += values

    def read(self, name: str, where: Any) -> np.ndarray:
        """The current values of an array at `where`."""
        return np.asarray(self._file[name][where])

    def put(self, name: str, values: np.ndarray) -> None:
        """Write a whole array."""
        with signals_held():
            self._file.create_dataset(name, data=values, track_times=False)

    def state(self, attributes: Attributes) -> None:
        """Write attributes; anything but text and numbers becomes JSON."""
        with signals_held():
            self._file.attrs.update(plain_attributes(attributes))


def check_store(path: PathLike, overwrite: bool = False) -> Path:
    """Check that a file can be written in parts, and return its path; raises OutputError as `cube_store` does."""
    path = check_output(path, overwrite)
    if path.suffix.lower() not in (".h5", ".hdf5"):
        what = "only HDF5 can be written in parts, expected the suffix .h5 or .hdf5"
        raise OutputError(f"{path}: {what}; `cassi export` makes other formats of it")
    return path


@contextmanager
def cube_store(path: PathLike, *, overwrite: bool = False) -> Iterator[CubeStore]:
    """Yield a `CubeStore` to fill; at the end of the block the file is moved into place, whole or not at all.

    Raises:
        OutputError: the suffix is not that of HDF5, the file exists, its folder does not, or the disk is full; nothing
            is left behind.
    """
    path = check_store(path, overwrite)
    with replacing(path, overwrite) as temporary, hdf5_target(temporary) as target:
        file = h5py.File(target, "w")
        try:
            yield CubeStore(file, temporary)
            with signals_held():
                label_axes(file)
        finally:
            with signals_held():  # closing writes the buffers of HDF5
                file.close()


def gather_cubes(
    path: PathLike, results: Sequence[PathLike], *, attributes: Attributes | None = None, overwrite: bool = False
) -> Path:
    """Write the results of all frames of a sequence to one HDF5 file, with one frame in memory at a time.

    Args:
        path: .h5 or .hdf5 file to write: `/cube` (T, C, H, W), `/measurement` and `/residual` (T, H, W'), `/truth`,
            `/wavelengths`, `/residuals` (T,), and `/together` (T,), the number of neighboring frames used for each;
            `/bad_pixels` (H, W'), what was left out of any, and `/sensitivity` (H, W') where all have it; the
            attributes `ok` and `verdict` state whether all frames fit the mask, `choice` what was chosen for each.
        results: files of `cassi.running.result.write_result`, in order of time. The first determines the arrays and
            the order of the bands.
        attributes, overwrite: as for `write_arrays`.

    Raises:
        InputError: no results, or cubes that differ in size or bands.
        OutputError: see `cube_store`.
    """
    if not results:
        raise InputError("no frames to gather; give at least one result")
    residuals, together, misfits = np.full(len(results), np.nan, "f4"), np.zeros(len(results), "f4"), []
    choices, concerns = list[dict[str, Any]](), dict[str, None]()
    shapes: dict[str, tuple[int, ...]] = {}
    bad: np.ndarray | None = None
    even: np.ndarray | None = None
    nm: np.ndarray | None = None
    with cube_store(path, overwrite=overwrite) as store:
        for t, result in enumerate(results):
            with damage_as_input_error(Path(result), "a result"), open_file(Path(result)) as frame:
                # of snapshot and residual only that of the frame itself, which precedes its neighbors
                images = {name: frame[name].shape[-2:] for name in ("measurement", "residual") if name in frame}
                content = images | {name: frame[name].shape for name in ("cube", "truth") if name in frame}
                if t == 0:
                    shapes = content
                    for name, shape in shapes.items():
                        store.make(name, (len(results), *shape), axes="NCHW" if len(shape) == 3 else "NHW")
                    if "wavelengths" in frame:
                        store.put("wavelengths", frame["wavelengths"][:])
                    copied = {name: frame.attrs[name] for name in COPIED if name in frame.attrs}
                    store.state(copied | dict(attributes or {}))
                    even = frame["sensitivity"][:] if "sensitivity" in frame else None
                if content != shapes:
                    raise InputError(f"{result}: holds {content}, the first frame {shapes}; give frames of one run")
                own = frame["wavelengths"][:] if "wavelengths" in frame else None
                nm = own if nm is None else nm
                order = pair_bands(nm, own)
                if nm is not None and own is not None and order is None:
                    what = f"{result}: has {span(own)}, the first frame {span(nm)}"
                    raise InputError(f"{what}; give frames of one camera")
                for name, shape in shapes.items():
                    values = frame[name][0] if frame[name].ndim > len(shape) else frame[name][:]
                    store.add(name, t, values if order is None or len(shape) < 3 else values[order])
                if "bad_pixels" in frame:
                    bad = any_bad((bad, frame["bad_pixels"][:]))
                if even is not None and not ("sensitivity" in frame and np.array_equal(even, frame["sensitivity"][:])):
                    even = None
                residuals[t] = frame.attrs.get("residual", np.nan)
                together[t] = parse_json(str(frame.attrs.get("parameters", "{}"))).get("together", 0)
                concerns |= dict.fromkeys(parse_json(str(frame.attrs.get("concerns", "[]"))))
                choices.append(parse_json(str(frame.attrs.get("choice", "{}"))))
                choices[-1].pop("plan", None)  # one for all, nearly, and large
                if not frame.attrs.get("ok", True):
                    misfits.append(str(frame.attrs.get("verdict", "")))
        store.put("residuals", residuals)
        store.put("together", together)
        store.state({"choice": {"frames": choices}, "concerns": list(concerns)})
        if bad is not None:
            store.put("bad_pixels", bad)
        if even is not None:
            store.put("sensitivity", even)
        if misfits:
            verdict = f"{len(misfits)} of {len(results)} frames do not fit the mask; {misfits[0]}"
            store.state({"ok": False, "verdict": verdict})
    return Path(path)
