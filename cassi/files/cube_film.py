"""The cubes of a sequence gathered in one file with a time axis, one after the other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from cassi.errors import InputError, OutputError
from cassi.files.atomic import hdf5_target, replacing, signals_held
from cassi.files.writing import check_output, plain_attributes

if TYPE_CHECKING:
    import h5py

GATHERED = ("cube", "measurement", "residual", "truth")  # of each frame; what not all of them have is left out


def gather_cubes(
    path: str | os.PathLike[str],
    results: Sequence[str | os.PathLike[str]],
    *,
    attributes: Mapping[str, object] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write the results of frames into one HDF5 file, a frame in memory at a time.

    Args:
        path: .h5 or .hdf5 file to make: `/cube` (T, C, H, W), `/measurement` and `/residual` (T, H, W'), `/truth`,
            `/wavelengths`, `/residuals` (T,), and `/together` (T,), how many frames beside it took part in each; the
            attributes `ok` and `verdict` say whether all of them fit the mask.
        results: files as `cassi.running.result.write_result` makes them, in the order of time.
        attributes: provenance by name; unit and scale are those of the first frame.
        overwrite: replace an existing file.

    Returns:
        The path.

    Raises:
        InputError: no results, or cubes that differ in size.
        OutputError: no HDF5 suffix, the file exists, its folder does not, or the disk is full; nothing is left behind.

    Example:
        >>> from cassi.files import read_cube, write_cube
        >>> folder = tempfile.mkdtemp()
        >>> frames = [write_cube(os.path.join(folder, f"{t}.h5"), np.full((2, 3, 4), t)) for t in (1, 2)]
        >>> read_cube(gather_cubes(os.path.join(folder, "film.h5"), frames))[0].shape
        (2, 2, 3, 4)
    """
    import h5py

    if not results:
        raise InputError("no frames to gather; give one result at least")
    path = check_output(path, overwrite)
    if path.suffix.lower() not in (".h5", ".hdf5"):
        raise OutputError(f"{path}: a sequence is gathered in HDF5, expected the suffix .h5 or .hdf5")
    with (
        replacing(path, overwrite) as temporary,
        signals_held(),
        hdf5_target(temporary) as target,
        h5py.File(target, "w") as file,
    ):
        misfits = []
        for t, result in enumerate(results):
            with h5py.File(result) as frame:
                if t == 0:
                    _prepare(file, frame, len(results), dict(attributes or {}))
                for name in GATHERED:
                    if name in file:
                        _put(file, frame, name, t, str(result))
                file["residuals"][t] = frame.attrs.get("residual", np.nan)
                stated = json.loads(frame.attrs.get("parameters", "{}"))
                file["together"][t] = stated.get("together", 0)
                if not frame.attrs.get("ok", True):
                    misfits.append(str(frame.attrs.get("verdict", "")))
        if misfits:
            verdict = f"{len(misfits)} of {len(results)} frames do not fit the mask; {misfits[0]}"
            file.attrs.update(plain_attributes({"ok": False, "verdict": verdict}))
    return path


def _prepare(file: h5py.File, frame: h5py.File, count: int, attributes: dict[str, object]) -> None:
    """Empty arrays for all frames, of the sizes of the first."""
    for name in GATHERED:
        if name in frame:
            shape = _one(frame[name], name).shape
            file.create_dataset(name, (count, *shape), "f4", chunks=(1, *shape))
    file["cube"].attrs["axes"] = np.bytes_("NCHW")
    if "wavelengths" in frame:
        file["wavelengths"] = frame["wavelengths"][:]
        file["wavelengths"].attrs["units"] = "nm"
    for name in ("residuals", "together"):
        file.create_dataset(name, (count,), "f4")
    kept = {name: frame.attrs[name] for name in ("unit", "scale", "version", "parameters") if name in frame.attrs}
    for name, value in plain_attributes(kept | attributes).items():
        file.attrs[name] = value


def _one(array: h5py.Dataset, name: str) -> np.ndarray:
    """A frame's own part: the first snapshot of those beside it."""
    values = np.asarray(array)
    return values[0] if name in ("measurement", "residual") and values.ndim == 3 else values


def _put(file: h5py.File, frame: h5py.File, name: str, t: int, source: str) -> None:
    if name not in frame:
        if name != "cube":
            del file[name]
            return
        raise InputError(f"{source}: no cube in it, expected the result of a run")
    values = _one(frame[name], name)
    if values.shape != file[name].shape[1:]:
        raise InputError(f"{source}: '{name}' {values.shape} differs from the first frame's {file[name].shape[1:]}")
    file[name][t] = values
