"""Wavelength presets and what users type."""

import numpy as np
import pytest
from cases import write_h5
from messages import refused

from cassi.files.wavelength_files import parse_wavelengths
from cassi.optics.wavelengths import PRESETS


@pytest.mark.parametrize(
    ("name", "ends"),
    [
        ("tsa-net-28", (453.3, 648.1)),
        ("mst-28", (453.5, 648.0)),
        ("smem-24", (454.4, 649.3)),
        ("cave-31", (400.0, 700.0)),
    ],
)
def test_presets(name, ends):
    found = parse_wavelengths(name.upper(), int(name[-2:]))
    assert (found[0], found[-1]) == ends and np.all(np.diff(found) > 0)
    assert len(PRESETS[name].source) > 20


@pytest.mark.parametrize("text", ["unknown", "Unknown", "none", " "])
def test_unknown(text):
    assert parse_wavelengths(text, 28) is None


def test_ranges_and_lists():
    assert parse_wavelengths("450:650:5", 5).tolist() == [450, 500, 550, 600, 650]
    assert parse_wavelengths("650:450:3", 3).tolist() == [650, 550, 450]
    assert parse_wavelengths("500:500:1", 1).tolist() == [500]
    assert parse_wavelengths("450, 510.5,600", 3).tolist() == [450, 510.5, 600]
    assert parse_wavelengths("0.45,0.6", 2).tolist() == [450, 600]  # micrometers


def test_files(tmp_path):
    (tmp_path / "w.txt").write_text("450\n500.5\n600\n")
    (tmp_path / "w.csv").write_text("450,500.5;600")
    write_h5(tmp_path / "w.h5", wavelengths=[450, 500.5, 600])
    for name in ("w.txt", "w.csv", "w.h5"):
        assert parse_wavelengths(str(tmp_path / name), 3).tolist() == [450, 500.5, 600]


@pytest.mark.parametrize(
    "text",
    [
        "mst-29",
        "450:650", "450:650:2.5",
        "450:650:0", "450:inf:3",
        "450:650:28",
        "450,500,-600", "450,500,nan",
    ],
)  # fmt: skip
def test_what_is_no_list(text):
    refused(parse_wavelengths, text, 3)


def test_files_without_wavelengths(tmp_path):
    (tmp_path / "w.txt").write_text("450 blue")
    refused(parse_wavelengths, str(tmp_path / "w.txt"), 2)
    (tmp_path / "w.txt").write_text("1 " * 600_000)
    refused(parse_wavelengths, str(tmp_path / "w.txt"), 2)
    np.savez(tmp_path / "w.npz", mask=np.ones((2, 2)))
    refused(parse_wavelengths, str(tmp_path / "w.npz"), 2)
