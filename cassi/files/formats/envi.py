"""Read and write ENVI images, a header .hdr beside its data, with the package `spectral`."""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cassi.errors import InputError, import_extra
from cassi.files.container import Arrays, Attributes, Container, Entry, Selection, damage_as_input_error
from cassi.files.statements import of_file, stated
from cassi.files.tables import BYTE_ORDER_MARKS, decode

SIGNATURES = tuple(mark + "ENVI".encode(name) for mark, name in ((b"", "utf-8"), *BYTE_ORDER_MARKS))
DATA = ".img"
MAX_STATED = 500  # letters of an attribute that the header, which people read, has
SUFFIXES = (DATA, ".dat", ".sli", ".hyspex", ".raw", ".bin", ".bsq", ".bil", ".bip")  # of the data


def open_envi(path: Path) -> Container:
    """Open the image that a header .hdr describes, as one entry (H, W, C), or (H, W) of one band, and its wavelengths.

    Raises:
        InputError: its data are missing, shorter than stated or packed; a spectral library; `spectral` is missing.
    """
    envi = import_extra("spectral.io.envi", "envi")
    with damage_as_input_error(path, "ENVI"):
        try:
            image = _open(path)
        except envi.EnviDataFileNotFoundError as error:
            raise InputError(f"{path}: its data are missing, expected {path.stem}{DATA} beside it") from error
        if not isinstance(image, envi.BilFile | envi.BipFile | envi.BsqFile):
            raise InputError(f"{path}: a spectral library, expected an image; it holds spectra without pixels")
        if str(image.metadata.get("file compression", "0")).strip() != "0":
            raise InputError(f"{path}: packed ENVI data are not read; save them plain")
        if min(image.shape) < 1:
            raise InputError(f"{path}: an image of the size {image.shape}; copy the file again")
        stored, count = Path(image.filename).stat().st_size, int(np.prod(image.shape, dtype=object))
        if stored < image.offset + count * np.dtype(image.dtype).itemsize:
            raise InputError(f"{path}: {image.shape} values are stated, its data end before; copy the file again")
        if any(str(image.metadata.get(f"{kind} frame offsets", "0")).strip("{} ,0[]'") for kind in ("major", "minor")):
            raise InputError(f"{path}: ENVI data with gaps (frame offsets) are not read; save them without")
        shape = image.shape[:2] if image.shape[2] == 1 else image.shape
        attributes = {
            name: value for name, value in image.metadata.items() if name not in ("interleave", "description", "bands")
        }
        entries = [stated(Entry("image", tuple(shape), np.dtype(image.dtype), "HWC"[: len(shape)]), attributes)]

    def read(entry: Entry, picked: Selection) -> np.ndarray:
        if image.using_memmap:
            values = image.open_memmap(interleave="bip", writable=False)
        else:  # a drive that cannot
            values = np.asarray(image.load(dtype=image.dtype, scale=False))
        return np.array(values.reshape(entry.shape)[picked])

    return Container(path, "ENVI", tuple(entries), read, of_file(attributes), bands_last=True)


def _open(path: Path) -> Any:
    """The image of a header, which `spectral` reads as UTF-8 without a mark, with names in lower case only."""
    envi, data = import_extra("spectral.io.envi", "envi"), path.read_bytes()
    text = re.sub(r"(?m)^[^={}\n]+=", lambda name: name[0].lower(), decode(data))  # it warns of other names
    if text.encode() == data:
        return envi.open(str(path))
    beside = (path.with_suffix(suffix) for suffix in ("", *SUFFIXES, *map(str.upper, SUFFIXES)))
    image = next((str(file.absolute()) for file in beside if file.is_file()), None)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / path.name
        copy.write_text(text, encoding="utf-8")
        return envi.open(str(copy), image)


def write_envi(path: Path, arrays: Arrays, attributes: Attributes) -> None:
    """Write cube, wavelengths and short provenance: the header, and the data as .img beside it.

    Raises:
        InputError: a stack of cubes, which ENVI cannot hold.
    """
    cube, nm = arrays["cube"], arrays.get("wavelengths")
    if cube.ndim != 3:
        raise InputError(f"{path.name}: ENVI holds one cube, got a stack {cube.shape}; write .h5")
    stated = {name: value for name, value in attributes.items() if len(str(value)) <= MAX_STATED}
    metadata: dict[str, object] = {name: in_round(str(value)) for name, value in of_file(stated).items()}
    metadata["description"] = in_round(json.dumps(stated))
    if nm is not None:
        metadata |= {"wavelength": [*map(repr, nm.tolist())], "wavelength units": "Nanometers"}
    image = np.moveaxis(cube, 0, -1)
    envi = import_extra("spectral.io.envi", "envi")
    envi.save_image(str(path), image, dtype=np.float32, interleave="bsq", ext=DATA, metadata=metadata)


def in_round(text: str) -> str:
    """A text as a header can hold it: braces end a value there, and lines too."""
    return " ".join(text.replace("{", "(").replace("}", ")").split())
