"""Write cubes and measurements: to a temporary name, then moved into place, so that no half file is ever seen."""

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cassi.errors import InputError, OutputError
from cassi.files.atomic import PathLike, check_place, replacing
from cassi.files.container import missing_package
from cassi.optics.measurement import Measurement

Attributes = Mapping[str, object]
MAX_ATTRIBUTE_BYTES = 60_000  # HDF5 keeps attributes in object headers of at most 64 KiB
PACKAGES = {".hdr": "spectral", ".nc": "h5netcdf", ".tif": "tifffile", ".tiff": "tifffile"}  # that formats need


def write_cube(
    path: PathLike,
    cube: np.ndarray,
    *,
    wavelengths: Sequence[float] | np.ndarray | None = None,
    history: Sequence[Any] | None = None,
    datasets: Mapping[str, np.ndarray] | None = None,
    attributes: Attributes | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a cube; the suffix chooses the format: .h5, .hdf5, .mat, .hdr (ENVI), .nc (NetCDF), .tif, .tiff.

    HDF5 and .mat take everything. NetCDF takes cube, wavelengths and attributes; ENVI and TIFF cube and wavelengths.

    Args:
        path: file to make.
        cube: (C, H, W) or (N, C, H, W); written as float32, no other value is changed.
        wavelengths: (C,) [nm], or None where unknown.
        history: records with named fields (`Record`: iteration, seconds, residual, change), one array per field.
        datasets: further arrays by name.
        attributes: provenance by name: numbers and text as they are, None is left out, anything else as JSON.
        overwrite: replace an existing file.

    Returns:
        The path.

    Raises:
        InputError: the cube is no array of 3 or 4 axes, the wavelengths do not fit, or ENVI cannot hold a stack.
        OutputError: the file exists, its folder does not, or the disk is full; nothing is left behind.

    Example:
        >>> import numpy as np, tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "cube.h5")
        >>> write_cube(path, np.zeros((3, 4, 5)), wavelengths=[450, 550, 650]).name
        'cube.h5'
    """
    cube = np.ascontiguousarray(cube, dtype=np.float32)
    if cube.ndim not in (3, 4) or cube.size == 0:
        raise InputError(f"cube must be (C, H, W) or (N, C, H, W) and not empty, got {cube.shape}")
    bands = None if wavelengths is None else np.asarray(wavelengths, dtype=np.float64).reshape(-1)
    if bands is not None and bands.size != cube.shape[-3]:
        raise InputError(f"{bands.size} wavelengths for {cube.shape[-3]} bands; give one per band")
    content = dict(datasets or {})
    for name in ("cube", "wavelengths", "history"):
        if name in content:
            raise InputError(f"dataset name '{name}' is taken; choose another")
    for field in history[0]._fields if history else ():
        content[f"history/{field}"] = np.array([getattr(record, field) for record in history or ()])
    path = Path(path)
    check_output(path, overwrite)
    write = WRITERS[path.suffix.lower()]
    with replacing(path, overwrite) as temporary:
        write(temporary, cube, bands, content, _plain(attributes or {}))
    return path


def write_measurement(
    path: PathLike, measurement: Measurement, *, attributes: Attributes | None = None, overwrite: bool = False
) -> Path:
    """Write a measurement to HDF5 as `read_measurement` reads it; equal input gives an equal file, byte by byte.

    Args:
        path: .h5 or .hdf5 file to make.
        measurement: what to write; arrays that are None are left out.
        attributes: further attributes (seed, bit depth, command line ...).
        overwrite: replace an existing file.

    Returns:
        The path.

    Raises:
        InputError: no HDF5 suffix.
        OutputError: the file exists, its folder does not, or the disk is full; nothing is left behind.

    Example:
        >>> import numpy as np, tempfile, os
        >>> from cassi.files import read_measurement
        >>> path = os.path.join(tempfile.mkdtemp(), "m.h5")
        >>> m = Measurement(y=np.ones((4, 6), np.float32), mask=np.ones((4, 4), np.float32), shifts=(0, 2))
        >>> _ = write_measurement(path, m)
        >>> read_measurement(path).shifts
        (0, 2)
    """
    path = Path(path)
    if path.suffix.lower() not in (".h5", ".hdf5"):
        raise InputError(f"{path}: measurements are written to HDF5, expected the suffix .h5 or .hdf5")
    arrays = {
        "measurement": measurement.y,
        "mask": measurement.mask,
        "shifts": np.asarray(measurement.shifts),
        "wavelengths": measurement.wavelengths,
        "cube": measurement.cube,
        "mean_band": measurement.mean_band,
        "bad_pixels": measurement.bad_pixels,
    }
    axes = {"measurement": "NHW", "mask": "CHW", "cube": "NCHW"}
    stated = {
        "scale": measurement.scale,
        "gain": measurement.gain,
        "read_noise": measurement.read_noise,
        **(attributes or {}),
    }
    # Text that is read back has a fixed length: the other kind cannot be read safely from an unknown file.
    unit = {"unit": np.bytes_(measurement.unit.encode())} if measurement.unit else {}
    with replacing(path, overwrite) as temporary:
        _write_arrays(
            temporary, {k: v for k, v in arrays.items() if v is not None}, axes, {**_plain(stated), **unit}, True
        )
    return path


def write_arrays(
    path: PathLike,
    arrays: Mapping[str, np.ndarray],
    *,
    axes: Mapping[str, str] | None = None,
    attributes: Attributes | None = None,
    overwrite: bool = False,
) -> Path:
    """Write named arrays to HDF5, compressed, whole or not at all; equal input gives an equal file.

    Args:
        path: .h5 or .hdf5 file to make.
        arrays: by name.
        axes: the letters of an array's axes by its name (N frame, C band, H row, W column).
        attributes: numbers and text as they are, None is left out, anything else as JSON.
        overwrite: replace an existing file.

    Returns:
        The path.

    Raises:
        InputError: no HDF5 suffix.
        OutputError: the file exists, its folder does not, or the disk is full; nothing is left behind.

    Example:
        >>> import numpy as np, tempfile, os
        >>> write_arrays(os.path.join(tempfile.mkdtemp(), "frame.h5"), {"frame": np.zeros((2, 3))}).name
        'frame.h5'
    """
    path = Path(path)
    if path.suffix.lower() not in (".h5", ".hdf5"):
        raise InputError(f"{path}: arrays are written to HDF5, expected the suffix .h5 or .hdf5")
    # Text that is read back has a fixed length: the other kind cannot be read safely from an unknown file.
    plain = {k: np.bytes_(v.encode()) if isinstance(v, str) else v for k, v in _plain(attributes or {}).items()}
    with replacing(path, overwrite) as temporary:
        _write_arrays(temporary, arrays, axes or {}, plain, True)
    return path


def _plain(attributes: Attributes) -> dict[str, str | int | float | bool]:
    """Return attributes that every format can hold: numbers and text; None is left out, the rest becomes JSON."""
    plain: dict[str, str | int | float | bool] = {}
    for name, value in attributes.items():
        if value is None:
            continue
        if isinstance(value, np.generic):
            value = value.item()
        if not isinstance(value, str | int | float | bool):
            value = json.dumps(value, default=_jsonable)
        if isinstance(value, str) and len(value.encode()) > MAX_ATTRIBUTE_BYTES:
            raise InputError(f"attribute '{name}' is longer than {MAX_ATTRIBUTE_BYTES} bytes; write it as a dataset")
        plain[name] = value
    return plain


def _jsonable(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


class _FirstError(io.FileIO):
    """A file that keeps its first write error and takes everything after it in silence.

    HDF5 cannot close a file that it cannot flush, and crashes the process when it ends; so it is not told.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            try:
                view = memoryview(data).cast("B")
                while view:  # a write may be taken in part
                    view = view[super().write(view) :]
            except OSError as error:
                self.error = error
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        if self.error is None:
            try:
                return super().truncate(size)
            except OSError as error:
                self.error = error
        return size or 0


@contextmanager
def _hdf5_target(path: Path) -> Iterator[_FirstError]:
    """Yield a file for HDF5 to write to; raise its write error once HDF5 has let go of it."""
    with _FirstError(path, "w+") as file:
        try:
            yield file
        finally:
            if file.error is not None:
                raise file.error


def _write_arrays(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    axes: Mapping[str, str],
    attributes: Attributes,
    compress: bool,
) -> None:
    import h5py

    with _hdf5_target(path) as target, h5py.File(target, "w") as file:
        for name, values in arrays.items():
            values = np.asarray(values)
            packed = compress and values.size > 1
            # Shuffled bytes and chunks of one image: what one frame or band needs is read alone.
            options: dict[str, Any] = {}
            if packed:
                chunks = (1,) * (values.ndim - 2) + values.shape[-2:] if values.ndim > 2 else values.shape
                options = {"compression": "gzip", "compression_opts": 4, "shuffle": True, "chunks": chunks}
            dataset = file.create_dataset(name, data=values, track_times=False, **options)
            if name in axes:
                dataset.attrs["axes"] = np.bytes_(axes[name][-values.ndim :])
        if "wavelengths" in file:
            file["wavelengths"].attrs["units"] = "nm"
        file.attrs.update(attributes)


def _write_hdf5(
    path: Path,
    cube: np.ndarray,
    wavelengths: np.ndarray | None,
    datasets: dict[str, np.ndarray],
    attributes: dict[str, Any],
) -> None:
    arrays = {"cube": cube} | ({} if wavelengths is None else {"wavelengths": wavelengths}) | datasets
    _write_arrays(path, arrays, {"cube": "NCHW"}, attributes, compress=False)


def _write_matlab(
    path: Path,
    cube: np.ndarray,
    wavelengths: np.ndarray | None,
    datasets: dict[str, np.ndarray],
    attributes: dict[str, Any],
) -> None:
    from scipy.io import savemat

    if cube.nbytes >= 2**31:
        raise InputError(f"a .mat file holds arrays below 2 GiB, the cube takes {cube.nbytes} bytes; write .h5")
    # MATLAB's habit: rows, columns, bands, frames.
    order = (1, 2, 0) if cube.ndim == 3 else (2, 3, 1, 0)
    content: dict[str, object] = {"cube": np.transpose(cube, order), "cube_axes": "HWC" if cube.ndim == 3 else "HWCN"}
    if wavelengths is not None:
        content["wavelengths"] = wavelengths
    for name, values in datasets.items():
        content[name.replace("/", "_")] = values
    content["attributes"] = attributes or {"none": 0}
    savemat(path, content, do_compression=False, long_field_names=True, oned_as="row")


def _write_envi(
    path: Path,
    cube: np.ndarray,
    wavelengths: np.ndarray | None,
    datasets: dict[str, np.ndarray],
    attributes: dict[str, Any],
) -> None:
    try:
        from spectral.io import envi
    except ImportError as error:
        raise missing_package(path, "spectral", error) from error
    if cube.ndim != 3:
        raise InputError(f"ENVI holds one cube (C, H, W), got a stack {cube.shape}; write .h5 or one file per frame")
    metadata: dict[str, object] = {}
    if wavelengths is not None:
        metadata = {"wavelength": [repr(float(w)) for w in wavelengths], "wavelength units": "nm"}
    image = np.transpose(cube, (1, 2, 0))
    envi.save_image(os.fspath(path), image, dtype=np.float32, interleave="bsq", ext=".img", metadata=metadata)


def _write_netcdf(
    path: Path,
    cube: np.ndarray,
    wavelengths: np.ndarray | None,
    datasets: dict[str, np.ndarray],
    attributes: dict[str, Any],
) -> None:
    try:
        import h5netcdf
    except ImportError as error:
        raise missing_package(path, "h5netcdf", error) from error
    band = "band" if wavelengths is None else "wavelength"
    names = ("frame", band, "y", "x")[-cube.ndim :]
    with _hdf5_target(path) as target, h5netcdf.File(target, "w") as file:
        file.dimensions = dict(zip(names, cube.shape, strict=True))
        variable = file.create_variable("cube", names, data=cube)
        variable.attrs["axes"] = "NCHW"[-cube.ndim :]
        if wavelengths is not None:
            coordinate = file.create_variable(band, (band,), data=wavelengths)
            coordinate.attrs["units"] = "nm"
        for name, value in attributes.items():
            file.attrs[name] = int(value) if isinstance(value, bool) else value


def _write_tiff(
    path: Path,
    cube: np.ndarray,
    wavelengths: np.ndarray | None,
    datasets: dict[str, np.ndarray],
    attributes: dict[str, Any],
) -> None:
    try:
        import tifffile
    except ImportError as error:
        raise missing_package(path, "tifffile", error) from error
    metadata: dict[str, object] = {"axes": "TCYX"[-cube.ndim :]}
    if wavelengths is not None:
        metadata["wavelengths"] = [float(w) for w in wavelengths]
    tifffile.imwrite(path, cube, photometric="minisblack", metadata=metadata)


Writer = Callable[[Path, np.ndarray, np.ndarray | None, dict[str, np.ndarray], dict[str, Any]], None]
WRITERS: dict[str, Writer] = {
    ".h5": _write_hdf5,
    ".hdf5": _write_hdf5,
    ".mat": _write_matlab,
    ".hdr": _write_envi,
    ".nc": _write_netcdf,
    ".tif": _write_tiff,
    ".tiff": _write_tiff,
}


def check_output(path: PathLike, overwrite: bool = False) -> Path:
    """Return the path after checking that a file can be made there: to be called before a long computation.

    Raises:
        OutputError: unknown suffix, a format whose package is not installed, no such folder, no right to write, or the
            file exists and `overwrite` is False.

    Example:
        >>> check_output("cube.docx")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        cassi.errors.OutputError: cube.docx: unknown output format '.docx', expected .h5, .hdf5, .hdr, .mat, ...
    """
    path = Path(path)
    if path.suffix.lower() not in WRITERS:
        raise OutputError(f"{path}: unknown output format {path.suffix!r}, expected {', '.join(sorted(WRITERS))}")
    package = PACKAGES.get(path.suffix.lower())
    if package is not None and find_spec(package) is None:
        raise OutputError(f'{path}: writing this format needs {package}: python -m pip install "cassi[formats]"')
    return check_place(path, overwrite)
