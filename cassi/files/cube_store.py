"""The cubes of a sequence in one file, written frame by frame."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from cassi.errors import InputError, OutputError, parse_json
from cassi.files.atomic import check_kept, replacing, signals_held
from cassi.files.container import damage_as_input_error
from cassi.files.formats.hdf5 import new_hdf5, open_file
from cassi.files.writing import Attributes, check_output, plain_attributes
from cassi.optics.measurement import any_bad
from cassi.optics.wavelengths import pair_bands, span
from cassi.types import PathLike

SIDE = 64  # of a chunk [pixel]
IMAGES = "measurement", "residual"
SHARED = "wavelengths", "bad_pixels", "sensitivity"
COPIED = "unit", "scale", "version", "parameters", "camera", "origin", "turned", "resolution_nm"  # of the first frame


def check_store(path: PathLike, overwrite: bool = False) -> Path:
    """Check that a file can be written in parts, and return its path; raises OutputError as `gather_cubes` does."""
    path = check_output(path, overwrite)
    if path.suffix.lower() not in (".h5", ".hdf5"):
        what = "only HDF5 can be written in parts, expected the suffix .h5 or .hdf5"
        raise OutputError(f"{path}: {what}; `cassi export` makes other formats of it")
    return path


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
        OutputError: the suffix is not that of HDF5, the file exists, its folder does not, or the disk is full; nothing
            is left behind.
    """
    if not results:
        raise InputError("no frames to gather; give at least one result")
    path, count = check_store(path, overwrite), len(results)
    shapes, shared, stated = dict[str, tuple[int, ...]](), dict[str, Any](), list[dict[str, Any]]()
    with replacing(path, overwrite) as temporary, new_hdf5(temporary) as file:
        for t, result in enumerate(results):
            with damage_as_input_error(Path(result), "a result"):
                arrays, known, said = _read_frame(Path(result))
                stated.append(said)
                check_kept(temporary)
                content = {name: values.shape for name, values in arrays.items()}
                if t == 0:
                    shapes, shared = content, known
                    for name, shape in shapes.items():
                        _make(file, name, (count, *shape))
                if content != shapes:
                    raise InputError(f"{result}: holds {content}, the first frame {shapes}; give frames of one run")
                nm, own = shared.get("wavelengths"), known.get("wavelengths")
                shared |= {"wavelengths": own} if nm is None and own is not None else {}
                order = pair_bands(nm, own)
                if nm is not None and own is not None and order is None:
                    raise InputError(
                        f"{result}: has {span(own)}, the first frame {span(nm)}; give frames of one camera"
                    )
                shared["bad_pixels"] = any_bad((shared.get("bad_pixels"), known.get("bad_pixels")))
                if not np.array_equal(shared.get("sensitivity", ()), known.get("sensitivity", ())):
                    shared["sensitivity"] = None  # of one frame is not of all
                with signals_held():
                    for name, values in arrays.items():
                        file[name][t] = values if order is None or name in IMAGES else values[order]
        rest = {name: values for name, values in shared.items() if values is not None}
        for name in ("residuals", "together"):
            rest[name] = np.array([said[name] for said in stated], np.float32)
        facts = {name: stated[0][name] for name in COPIED if name in stated[0]} | dict(attributes or {})
        facts |= {"choice": {"frames": [said["choice"] for said in stated]}}
        facts |= {"concerns": list(dict.fromkeys(text for said in stated for text in said["concerns"]))}
        if misfits := [said["misfit"] for said in stated if said["misfit"] is not None]:
            words = f"{len(misfits)} of {count} frames do not fit the mask; {misfits[0]}"
            facts |= {"ok": False, "verdict": words}
        with signals_held():
            for name, values in rest.items():
                file.create_dataset(name, data=values, track_times=False)
            file.attrs.update(plain_attributes(facts))
    return path


def _read_frame(path: Path) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]:
    """What a result holds: the arrays of its frame alone, those of its camera, and its attributes."""
    with open_file(path) as frame:
        arrays = {name: frame[name][:] for name in ("cube", "truth", *IMAGES) if name in frame}
        arrays |= {name: a[0] for name, a in arrays.items() if name in IMAGES and a.ndim > 2}  # precedes its neighbors'
        said = dict(frame.attrs)
        together = parse_json(str(said.get("parameters", "{}"))).get("together", 0)
        said["together"], said["residuals"] = (float(n) for n in (together, said.get("residual", np.nan)))
        said["misfit"] = None if said.get("ok", True) else str(said.get("verdict", ""))
        said["choice"] = parse_json(str(said.get("choice", "{}")))
        said["choice"].pop("plan", None)  # one for all, nearly, and large
        said["concerns"] = [*map(str, parse_json(str(said.get("concerns", "[]"))))]
        return arrays, {name: frame[name][:] for name in SHARED if name in frame}, said


def _make(file: h5py.File, name: str, shape: tuple[int, ...]) -> None:
    """Create a float32 array. A band and a spectrum are both read without the rest: a chunk holds all bands of some
    pixels."""
    letters, pixels = ("NCHW", [min(SIDE, n) for n in shape[-2:]]) if len(shape) == 4 else ("NHW", shape[-2:])
    chunks = (1, *shape[1:-2], *pixels)
    with signals_held():
        array = file.create_dataset(name, shape=shape, dtype=np.float32, chunks=chunks, track_times=False)
        array.attrs["axes"] = np.bytes_(letters)
