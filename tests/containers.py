"""Small arrays, and writers of the containers that hold them, with what is stated of each."""

import struct
import zlib

import h5py
import numpy as np
import pytest
import scipy.io
import tifffile
from PIL import Image

from cassi.files import read_cube

RNG = np.random.default_rng(0)
C, H, W, DETECTOR = 4, 9, 8, 14
MASK = (RNG.random((H, W)) < 0.5).astype(np.float32)
Y = RNG.random((H, DETECTOR)).astype(np.float32)
COUNTS = RNG.integers(1, 900, (H, DETECTOR)).astype(np.uint16)
CUBE = RNG.random((C, H, W)).astype(np.float32)
PACKED = np.round(CUBE * 10_000).astype(np.int16)
NM = np.array([450.0, 500, 550, 650])
SAVED = {"mask": MASK, "y": Y}
LIGHT, PLANCK = 299_792_458.0, 1239.841984  # [m/s], h c [eV nm]
UNITS = {  # by the words of files
    "nm": NM, "Nanometers": NM, "Micrometers": NM / 1e3, "µm": NM / 1e3, "μm": NM / 1e3, "microns": NM / 1e3,
    "Angstroms": 10 * NM, "Å": 10 * NM, "Meters": NM * 1e-9, "1e-9 m": NM, "mm": NM * 1e-6, "Wavenumber": 1e7 / NM,
    "cm-1": 1e7 / NM, "1/cm": 1e7 / NM, "cm^-1": 1e7 / NM, "um-1": 1e3 / NM, "GHz": LIGHT / NM, "THz": LIGHT / NM / 1e3,
    "eV": PLANCK / NM, "meV": 1e3 * PLANCK / NM,
}  # fmt: skip


def write_v73(path, **datasets):
    """A file as MATLAB -v7.3 writes it: a text header, reversed axes, the class of each variable."""
    kinds = {"float32": "single", "float64": "double", "bool": "logical"}
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in datasets.items():
            is_text = isinstance(values, str)
            stored = np.array([list(map(ord, values))], np.uint16) if is_text else np.asarray(values)
            dataset = file.create_dataset(name, data=stored.T)
            kind = "char" if is_text else kinds.get(str(stored.dtype), str(stored.dtype))
            dataset.attrs["MATLAB_class"] = np.bytes_(kind)
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: test".ljust(124) + b"\x00\x02IM")
    return path


def save(path, *, of=None, on=None, **arrays):
    """HDF5 with attributes of the file and on arrays; MATLAB (v7.3: "7.mat") and NPZ with arrays in their place, as
    y_step on y."""
    path.unlink(missing_ok=True)
    if path.suffix == ".h5":
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[name] = values
                file[name].attrs.update((on or {}).get(name, {}))
            file.attrs.update(of or {})
        return path
    flat = {f"{name}_{word}": value for name, stated in (on or {}).items() for word, value in stated.items()}
    if path.suffix == ".npz":
        np.savez(path, **arrays, **flat, **(of or {}))
        return path
    last = {} if "cube_axes" in flat else {n: np.moveaxis(a, 0, -1) for n, a in arrays.items() if np.ndim(a) == 3}
    content = arrays | last | flat | (of or {})
    if path.stem == "7":
        return write_v73(path, **{n: v if isinstance(v, str) else np.atleast_2d(v) for n, v in content.items()})
    scipy.io.savemat(path, content)
    return path


def envi(path, image, **stated):
    module = pytest.importorskip("spectral.io.envi")
    metadata = {name.replace("_", " "): value for name, value in stated.items()}
    image = image[..., None] if image.ndim == 2 else np.moveaxis(image, 0, -1)
    module.save_image(str(path), image, ext=".img", metadata=metadata, force=True)
    return path


def tiff(path, image, *tags, **options):
    extra = [
        (code, kind, (len(value) + (kind == "s")) // (1 + (kind == "2I")), value, True) for code, kind, value in tags
    ]
    tifffile.imwrite(path, image, extratags=extra, **options)
    return path


def gdal(path, image=None, **items):
    """One page with the bands last and the items of each band, as GDAL writes them."""
    roles = ("scale", "offset")
    lines = [
        f'<Item name="{name}" sample="{k}"{f" role={chr(34)}{name}{chr(34)}" if name in roles else ""}>{value}</Item>'
        for name, values in items.items()
        for k, value in enumerate(values)
    ]
    tag = (42112, "s", f"<GDALMetadata>{''.join(lines)}</GDALMetadata>")
    if image is not None:
        return tiff(path, image, tag, metadata=None)
    return tiff(path, np.moveaxis(PACKED, 0, -1), tag, photometric="minisblack", planarconfig="contig", metadata=None)


def imagej(path, image, **stated):
    lines = "".join(f"{name}={value}\n" for name, value in stated.items())
    return tiff(path, image.astype(np.uint16), (270, "s", f"ImageJ=1.53t\n{lines}"), metadata=None)


def png(path, image, *chunks):
    """With chunks before its data: kind and bytes."""
    Image.fromarray(image).save(path)
    data = path.read_bytes()
    more = [struct.pack(">I", len(b)) + k + b + struct.pack(">I", zlib.crc32(k + b)) for k, b in chunks]
    path.write_bytes(data[:33] + b"".join(more) + data[33:])
    return path


def wavelengths_are_read(path):
    nm = read_cube(path)[1]
    assert nm is not None
    np.testing.assert_allclose(nm, NM, rtol=1e-6)


def cube_is_read(path, expected=CUBE):
    np.testing.assert_allclose(read_cube(path)[0], expected, atol=6e-5)
