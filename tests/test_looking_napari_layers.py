"""Layers for napari, and a stand-in for the viewer that takes them."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from cassi.looking.napari_layers import layers_of, open_in_napari
from cassi.looking.report_data import ReportData


@pytest.fixture
def data() -> ReportData:
    cube = np.random.default_rng(0).random((4, 12, 10), dtype=np.float32)
    nm = np.array([450.0, 500.0, 550.0, 650.0])
    return ReportData(cube, nm, truth=cube / 2, uncertainty=cube / 10, measurement=np.ones((12, 16)), unit="counts")


def test_all_that_is_known_is_a_layer_and_the_cube_lies_on_top(data):
    layers = layers_of(data)
    assert [keywords["name"] for _, keywords, _ in layers] == ["snapshot", "picture", "spread", "truth", "cube"]
    assert [keywords["visible"] for _, keywords, _ in layers] == [False] * 4 + [True]
    values, keywords, kind = layers[-1]
    np.testing.assert_array_equal(values, data.cube)
    assert kind == "image" and keywords["metadata"]["wavelengths"] == [450, 500, 550, 650]
    assert keywords["contrast_limits"] == layers[-2][1]["contrast_limits"], "cube and truth on one scale"
    assert layers[1][0].shape == (12, 10, 3) and layers[1][1]["rgb"]


def test_a_calibrated_uncertainty_has_its_name(data):
    names = [
        keywords["name"] for _, keywords, _ in layers_of(ReportData(data.cube, uncertainty=data.cube, calibrated=True))
    ]
    assert names == ["picture", "standard deviation", "cube"]


def test_the_viewer_gets_them(data, monkeypatch):
    """napari itself needs a screen: a stand-in with the two calls that are used."""
    shown = []

    class Viewer:
        def __init__(self, title):
            self.title, self.dims = title, SimpleNamespace(axis_labels=())

        def add_image(self, values, *, name, visible, metadata, colormap=None, contrast_limits=None, rgb=None):
            shown.append((name, values.shape))

    napari = ModuleType("napari")
    napari.Viewer = Viewer
    monkeypatch.setitem(sys.modules, "napari", napari)
    viewer = open_in_napari(data)
    assert viewer.title == "Reconstruction" and viewer.dims.axis_labels == ("wavelength", "y", "x")
    assert shown[0] == ("snapshot", (12, 16)) and shown[-1] == ("cube", (4, 12, 10))


def test_without_napari_it_says_what_to_install(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "napari", None)
    with pytest.raises(ImportError, match=r"cassi\[napari\]"):
        open_in_napari(data)
