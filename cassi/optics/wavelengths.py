"""Which wavelength is each band: named presets with their source, ranges, files."""

import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from cassi.errors import InputError

MAX_TEXT_BYTES = 1 << 20


class Preset(NamedTuple):
    """A published band list: `wavelengths` [nm], and `source`, where it was published."""

    wavelengths: tuple[float, ...]
    source: str


# fmt: off
_TSA_NET_28 = (
    453.3, 457.6, 462.1, 466.8, 471.6, 476.5, 481.6, 486.9, 492.4, 498.0, 503.9, 509.9, 516.2, 522.7,
    529.5, 536.5, 543.8, 551.4, 558.6, 567.5, 575.3, 584.3, 594.4, 604.2, 614.4, 625.1, 636.3, 648.1,
)
_MST_28 = (
    453.5, 457.5, 462.0, 466.0, 471.5, 476.5, 481.5, 487.0, 492.5, 498.0, 504.0, 510.0, 516.0, 522.5,
    529.5, 536.5, 544.0, 551.5, 558.5, 567.5, 575.5, 584.5, 594.5, 604.0, 614.5, 625.0, 636.5, 648.0,
)
# fmt: on

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "tsa-net-28": Preset(
            _TSA_NET_28,
            "TSA-Net (Meng, Ma, Yuan, ECCV 2020), as quoted in github.com/caiyuanhao1998/MST/issues/92",
        ),
        "mst-28": Preset(
            _MST_28,
            "MST toolbox (Cai et al., CVPR 2022), visualization/show_simulation.m of github.com/caiyuanhao1998/MST",
        ),
        "cave-31": Preset(
            tuple(float(w) for w in range(400, 701, 10)),
            "CAVE multispectral image database (Yasuma et al. 2008): 400 to 700 nm in steps of 10 nm",
        ),
    }
)


def parse_wavelengths(text: str, num_bands: int, *, of: str = "bands") -> np.ndarray | None:
    """Return the wavelength of each band from what a user types.

    `start:stop:count` means  lambda_c = start + c (stop - start) / (count - 1),  both ends included.

    Args:
        text: a preset ("tsa-net-28", "mst-28", "cave-31"), a range "450:650:28" [nm], a list "450,500,550" [nm], the
            name of a file (.txt or .csv with one number per band, or any data file with a `wavelengths` array), or
            "unknown".
        num_bands: bands C of the measurement, which the list must have.
        of: what the wavelengths belong to, for the error.

    Returns:
        (C,) float64 wavelengths [nm], or None for "unknown".

    Raises:
        InputError: nothing of the above, another number of bands, or values that are not positive and finite.

    Example:
        >>> parse_wavelengths("450:650:5", 5)
        array([450., 500., 550., 600., 650.])
    """
    text = text.strip()
    if text.lower() in ("unknown", "none", ""):
        return None
    if text.lower() in PRESETS:
        values = np.array(PRESETS[text.lower()].wavelengths)
    elif text.count(":") == 2 and not Path(text).exists():
        values = _from_range(text)
    elif Path(text).is_file():
        values = _from_file(Path(text))
    else:
        try:
            values = np.array([float(part) for part in text.split(",")])
        except ValueError:
            presets = ", ".join(sorted(PRESETS))
            raise InputError(
                f"wavelengths {text!r}: expected a preset ({presets}), start:stop:count, a list of numbers, "
                f"an existing file, or unknown"
            ) from None
    return check_wavelengths(values, num_bands, f"wavelengths {text!r}", of=of)


def check_wavelengths(values: np.ndarray, num_bands: int, name: str, *, of: str = "bands") -> np.ndarray:
    """Return the list as (C,) float64 [nm]; values below 10 are taken as micrometers.

    Raises:
        InputError: another number than `num_bands`, or values that are not positive and finite.

    Example:
        >>> check_wavelengths([0.45, 0.55], 2, "wavelengths")
        array([450., 550.])
    """
    values = np.asarray(values, dtype=np.float64).reshape(-1)
    if values.size != num_bands:
        raise InputError(f"{name}: {values.size} values, there are {num_bands} {of}; give one for each")
    if not np.all(np.isfinite(values)) or np.any(values <= 0):
        raise InputError(f"{name}: wavelengths must be positive and finite [nm]")
    # No optical band lies at 10 nm: such numbers are micrometers. Rounding keeps 0.45 um at 450 nm exactly.
    return np.round(values * 1e3, 9) if values.max() < 10 else values


def _from_range(text: str) -> np.ndarray:
    try:
        start, stop, count = (float(part) for part in text.split(":"))
        if not (math.isfinite(start) and math.isfinite(stop)) or count != int(count) or not 1 <= count <= 100_000:
            raise ValueError
    except (ValueError, OverflowError):
        raise InputError(f"wavelengths {text!r}: expected start:stop:count in nm, for example 450:650:28") from None
    return np.linspace(start, stop, int(count))


def _from_file(path: Path) -> np.ndarray:
    if path.suffix.lower() in (".txt", ".csv", ".tsv"):
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise InputError(f"{path}: {path.stat().st_size} bytes, expected a short list of wavelengths")
        words = path.read_text(errors="replace").replace(",", " ").replace(";", " ").split()
        try:
            return np.array([float(word) for word in words])
        except ValueError as error:
            raise InputError(f"{path}: expected numbers only, one wavelength [nm] per band ({error})") from None
    from cassi.files.container import open_container
    from cassi.files.names import WAVELENGTHS, find

    container = open_container(path)
    entry = find(container, WAVELENGTHS)
    if entry is None:
        raise InputError(f"{path}: no wavelengths found; it holds {container.listing()}")
    return container.read(entry)
