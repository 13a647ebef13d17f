"""A reader for napari: `napari --plugin cassi cube.h5` shows bands, wavelengths, and error bars."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cassi.errors import InputError
from cassi.files.cubes import read_cube
from cassi.files.opening import open_container
from cassi.looking.color import shown_range

Layer = tuple[np.ndarray, dict[str, Any], str]


def reader_of(path: str | list[str]) -> Callable[[str], list[Layer]] | None:
    """The reader of a file for napari; None where it holds no cube, so that napari asks another reader."""
    if not isinstance(path, str):
        return None
    try:
        names = {entry.name for entry in open_container(Path(path)).entries}
        return layers_of if names & {"cube", "image", "pages"} else None
    except InputError:
        return None


def layers_of(path: str) -> list[Layer]:
    """The cube as a layer, and its standard deviation, hidden, as another.

    The slider is in nm where the bands are evenly spaced, else it counts them, and a label has the wavelength of the
    band; `metadata` has all wavelengths.
    """
    cube, nm = read_cube(path)
    steps = np.diff(nm) if nm is not None and len(nm) > 1 else np.zeros(0)
    even = steps.size > 0 and bool(np.all(np.abs(steps - steps.mean()) < 0.01 * abs(steps.mean())))
    place: dict[str, Any] = {"axis_labels": ("frame", "wavelength", "y", "x")[-cube.ndim :]}
    if nm is not None and even:
        before = (1.0,) * (cube.ndim - 3)
        place["scale"] = (*before, float(steps.mean()), 1.0, 1.0)
        place["translate"] = (*(0.0 for _ in before), float(nm[0]), 0.0, 0.0)
        place["units"] = (*("pixel" for _ in before), "nm", "pixel", "pixel")
    name, limits = Path(path).stem, shown_range(cube, "zero")
    common = {**place, "metadata": {"wavelengths_nm": None if nm is None else nm.tolist()}}
    layers: list[Layer] = [(cube, {**common, "name": name, "contrast_limits": (limits.low, limits.high)}, "image")]
    if open_container(Path(path)).entry("uncertainty") is not None:
        deviation, _ = read_cube(path, key="uncertainty")
        layers.append((deviation, {**common, "name": f"{name}, standard deviation", "visible": False}, "image"))
    if nm is not None and not even:  # a slider that counts, and a label that names the band
        corners = np.zeros((len(nm), cube.ndim))
        corners[:, -3] = np.arange(len(nm))
        clear = dict.fromkeys(("face_color", "border_color"), "transparent")
        text = {"string": "{nm:.1f} nm", "anchor": "upper_left", "color": "yellow", "size": 14}
        layers.append((corners, {"name": "wavelengths", "features": {"nm": nm}, "text": text, **clear}, "points"))
    return layers
