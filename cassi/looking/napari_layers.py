"""A result in napari, the viewer of many microscopists: cube, truth, uncertainty and snapshot as layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from cassi.looking.color import render, top_of
from cassi.looking.report_data import ReportData

__all__ = ["layers_of", "open_in_napari"]

Layer = tuple[np.ndarray, dict[str, Any], str]


def layers_of(data: ReportData) -> list[Layer]:
    """The layers of a result, lowest first, as napari's readers give them: (array, keywords, "image").

    The cube lies on top, bands first, so that the slider moves through them; its wavelengths are in the layer's
    metadata. Truth, uncertainty, picture and snapshot are there where they are known, switched off at first.

    Args:
        data: the result.

    Returns:
        Layers for `napari.layers.Layer.create`.

    Example:
        >>> [keywords["name"] for _, keywords, _ in layers_of(ReportData(np.ones((3, 8, 8), np.float32)))]
        ['picture', 'cube']
    """
    cube = np.asarray(data.cube[:, :, :])
    limits = [0.0, max(top_of(cube), 1e-12)]
    about = {"wavelengths": None if data.wavelengths is None else np.asarray(data.wavelengths).tolist()}

    def layer(name: str, values: np.ndarray, visible: bool, **more: object) -> Layer:
        metadata = about | {"unit": data.unit, "title": data.title}
        return values, {"name": name, "visible": visible, "metadata": metadata, **more}, "image"

    found = [] if data.measurement is None else [layer("snapshot", data.measurement, False, colormap="gray")]
    found.append(layer("picture", render(cube, data.wavelengths)[0], False, rgb=True))
    if data.uncertainty is not None:
        name = "standard deviation" if data.calibrated else "spread"
        found.append(layer(name, np.asarray(data.uncertainty[:, :, :]), False, colormap="magma"))
    if data.truth is not None:
        found.append(layer("truth", np.asarray(data.truth[:, :, :]), False, colormap="gray", contrast_limits=limits))
    found.append(layer("cube", cube, True, colormap="gray", contrast_limits=limits))
    return found


def open_in_napari(data: ReportData) -> Any:
    """Show a result in a new window of napari.

    Args:
        data: the result, from `cassi.looking.report_data.report_of` or `read_report`.

    Returns:
        The `napari.Viewer`; `napari.run()` waits until it is closed.

    Raises:
        ImportError: napari is not installed.
    """
    try:
        import napari
    except ImportError as error:
        raise ImportError(f'this view needs napari: python -m pip install "cassi[napari]" ({error})') from error
    viewer = napari.Viewer(title=data.title)
    for values, keywords, _ in layers_of(data):
        viewer.add_image(values, **keywords)
    viewer.dims.axis_labels = ("wavelength" if data.wavelengths is not None else "band", "y", "x")
    return viewer
