"""Write cubes, measurements and sequences: first under a hidden name, then moved into place."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from cassi.errors import InputError, OutputError, counted, import_extra, parse_json
from cassi.files.atomic import check_kept, check_place, replacing
from cassi.files.container import Attributes as Attributes, damage_as_input_error
from cassi.files.formats.envi import DATA
from cassi.files.formats.hdf5 import new_hdf5, open_file, write_hdf5
from cassi.files.opening import NEEDED, WRITERS
from cassi.optics.measurement import Measurement, any_bad
from cassi.optics.wavelengths import pair_bands, span
from cassi.signals import signals_held
from cassi.types import PathLike

FORMAT = {"format_version": 1}  # of the layout in docs/file-format.md; it grows when a reader has to change


def write_cube(
    path: PathLike, cube: np.ndarray, *, wavelengths: Sequence[float] | np.ndarray | None = None,
    history: Sequence[Any] | None = None, datasets: Mapping[str, np.ndarray] | None = None,
    attributes: Attributes | None = None, overwrite: bool = False,
) -> Path:  # fmt: skip
    """Write a cube; the suffix chooses the format: .h5, .hdf5, .nc (NetCDF-4, the same), .mat, .npz, .tif, .tiff, .hdr
    (ENVI, with .img beside it).

    HDF5, .mat and .npz hold everything, TIFF only cube and wavelengths, ENVI these and the attributes.

    Args:
        path: file to write.
        cube: (C, H, W) or (N, C, H, W); converted to float32, otherwise unchanged.
        wavelengths: (C,) [nm], or None if unknown.
        history: records with named fields (`Record`: iteration, seconds, residual, change), written as one array per
            field.
        datasets: other arrays by name.
        attributes: provenance by name; numbers and text are kept, None is omitted, anything else becomes JSON.
        overwrite: replace an existing file.

    Raises:
        InputError: the cube is not an array of 3 or 4 axes, or the wavelengths do not match it.
        OutputError: the file exists, its folder does not, or the disk is full; nothing is left behind.
    """
    cube = np.ascontiguousarray(cube, dtype=np.float32)
    if cube.ndim not in (3, 4) or cube.size == 0:
        raise InputError(f"cube must be (C, H, W) or (N, C, H, W) and not empty, got {cube.shape}")
    bands = None if wavelengths is None else np.asarray(wavelengths, dtype=np.float64).reshape(-1)
    if bands is not None and bands.size != cube.shape[-3]:
        raise InputError(f"{counted(bands.size, 'wavelength')} for a cube of {cube.shape[-3]}; give one per band")
    if taken := {"cube", "wavelengths", "history"} & set(datasets or {}):
        raise InputError(f"dataset name '{min(taken)}' is taken; choose another")
    arrays = {"cube": cube} | ({} if bands is None else {"wavelengths": bands}) | dict(datasets or {})
    for field in history[0]._fields if history else ():
        arrays[f"history/{field}"] = np.array([getattr(record, field) for record in history or ()])
    path = check_output(path, overwrite)
    stated = plain_attributes({**FORMAT, **(attributes or {})})
    with replacing(path, overwrite) as temporary, signals_held():
        WRITERS[path.suffix.lower()](temporary, arrays, stated)
    return path


def write_measurement(
    path: PathLike, measurement: Measurement, *, attributes: Attributes | None = None, overwrite: bool = False
) -> Path:
    """Write a measurement for `read_measurement`; see `write_arrays`."""
    names = ("mask", "wavelengths", "cube", "mean_band", "bad_pixels", "sensitivity")
    arrays = {"measurement": measurement.y, "shifts": np.asarray(measurement.shifts)}
    arrays |= {name: values for name in names if (values := getattr(measurement, name)) is not None}
    axes = {"measurement": "NHW", "mask": "CHW" if measurement.shots is None else "NCHW", "cube": "NCHW"}
    if measurement.shots is not None:
        axes |= {"bad_pixels": "NHW"} | ({"mask": "NHW"} if measurement.mask.ndim == 3 else {})
    stated = {name: getattr(measurement, name) for name in ("scale", "gain", "read_noise", "mask_error")}
    stated |= {"num_shots": measurement.shots} | dict(attributes or {})
    stated |= {"unit": measurement.unit} if measurement.unit else {}
    return write_arrays(path, arrays, axes=axes, attributes=stated, overwrite=overwrite)


def write_arrays(
    path: PathLike, arrays: Mapping[str, np.ndarray], *, axes: Mapping[str, str] | None = None,
    attributes: Attributes | None = None, overwrite: bool = False,
) -> Path:  # fmt: skip
    """Write named arrays to HDF5, compressed, whole or not at all; equal input gives an equal file.

    Args:
        path: .h5 or .hdf5 file to write.
        arrays: by name.
        axes: letters of the axes of an array, by its name (N frame, C band, H row, W column).
        attributes, overwrite: as for `write_cube`.

    Raises:
        InputError: the suffix is not that of HDF5.
        OutputError: as for `write_cube`.
    """
    path = Path(path)
    if path.suffix.lower() not in (".h5", ".hdf5"):
        raise InputError(f"{path}: arrays are written to HDF5, expected the suffix .h5 or .hdf5")
    stated = plain_attributes({**FORMAT, **(attributes or {})})
    with replacing(path, overwrite) as temporary, signals_held():
        write_hdf5(temporary, arrays, stated, axes or {}, compress=True)
    return path


def plain_attributes(attributes: Attributes) -> dict[str, str | int | float | bool]:
    """Attributes as numbers and text; None is omitted, anything else becomes JSON.

    File names need not be UTF-8, but attributes must be: other bytes are escaped.
    """
    plain: dict[str, str | int | float | bool] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, str | int | float | bool):
            value = json.dumps(value, default=lambda v: v.tolist() if hasattr(v, "tolist") else str(v))
        plain[name] = value if not isinstance(value, str) else value.encode("utf-8", "backslashreplace").decode()
    return plain


def check_output(path: PathLike, overwrite: bool = False) -> Path:
    """Check that a file can be written, before a long computation, and return its path.

    Raises:
        InputError: the package that writes this format is missing.
        OutputError: unknown suffix, missing folder, no permission, or the file exists and `overwrite` is False.
    """
    path = Path(path)
    if path.suffix.lower() not in WRITERS:
        raise OutputError(f"{path}: unknown output format {path.suffix!r}, expected {', '.join(sorted(WRITERS))}")
    if needed := NEEDED.get(path.suffix.lower()):
        import_extra(*needed)
    if path.suffix.lower() == ".hdr":
        check_place(path.with_suffix(DATA), overwrite)
        if path.is_symlink():
            raise OutputError(f"{path}: is a link, and an ENVI image is two files; give the name that it leads to")
    check_place(path, overwrite)
    return path


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
