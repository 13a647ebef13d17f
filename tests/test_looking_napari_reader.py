"""What napari is given; that its manifest names what exists."""

from importlib import import_module
from pathlib import Path

import numpy as np
import yaml
from cases import write_h5

from cassi.files import write_cube
from cassi.looking.napari_reader import reader_of

CUBE = np.random.default_rng(0).random((3, 4, 5)).astype(np.float32)


def test_a_result_is_two_layers_on_an_axis_in_nm(tmp_path):
    path = str(write_cube(tmp_path / "c.h5", CUBE, wavelengths=[450, 500, 550], datasets={"uncertainty": CUBE / 10}))
    (cube, how, kind), (deviation, hidden, _) = reader_of(path)(path)
    assert kind == "image" and np.array_equal(cube, CUBE)
    assert np.array_equal(deviation, CUBE / 10) and hidden["visible"] is False
    assert (how["scale"], how["translate"]) == ((50, 1, 1), (450, 0, 0))
    assert (how["axis_labels"], how["units"]) == (("wavelength", "y", "x"), ("nm", "pixel", "pixel"))


def test_uneven_bands_are_listed_and_what_holds_no_cube_is_left_to_others(tmp_path):
    path = str(write_cube(tmp_path / "c.h5", CUBE, wavelengths=[450, 470, 550]))
    (_, how, _), (corners, label, kind) = reader_of(path)(path)
    assert "scale" not in how and how["metadata"]["wavelengths_nm"] == [450, 470, 550]
    assert kind == "points" and corners.tolist() == [[0, 0, 0], [1, 0, 0], [2, 0, 0]], "one on each band"
    named = [label["text"]["string"].format(nm=nm) for nm in label["features"]["nm"]]
    assert named == ["450.0 nm", "470.0 nm", "550.0 nm"]
    other, mask = tmp_path / "a.tif", write_h5(tmp_path / "m.h5", mask=np.ones((3, 3)))
    other.write_bytes(b"nothing")
    assert [reader_of(one) for one in (str(mask), str(other), [str(other)])] == [None] * 3


def test_the_manifest_names_what_exists():
    folder = Path(import_module("cassi.looking").__file__).parent
    manifest = yaml.safe_load((folder / "napari.yaml").read_text())["contributions"]
    module, _, name = manifest["commands"][0]["python_name"].partition(":")
    assert getattr(import_module(module), name) is reader_of
    assert manifest["readers"][0]["command"] == manifest["commands"][0]["id"]
