"""Wavelength presets and what users type."""

import numpy as np
import pytest
from cases import write_h5
from messages import refused

from cassi.files.wavelength_files import parse_wavelengths
from cassi.optics.wavelengths import PRESETS

PRESETS_AND_ENDS = {
    "tsa-net-28": (453.3, 648.1), "mst-28": (453.5, 648.0), "smem-24": (454.4, 649.3), "cave-31": (400.0, 700.0),
}  # fmt: skip


@pytest.mark.parametrize("name", PRESETS_AND_ENDS)
def test_presets(name):
    found = parse_wavelengths(name.upper(), int(name[-2:]))
    assert (found[0], found[-1]) == PRESETS_AND_ENDS[name] and np.all(np.diff(found) > 0)
    assert len(PRESETS[name].source) > 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("450:650:5", [450, 500, 550, 600, 650]), ("650:450:3", [650, 550, 450]), ("500:500:1", [500]),
        ("450, 510.5,600", [450, 510.5, 600]), ("0.45,0.6", [450, 600]),  # micrometers
        *((text, None) for text in ("unknown", "Unknown", "none")),
    ],
)  # fmt: skip
def test_ranges_and_lists(text, expected):
    found = parse_wavelengths(text, len(expected or range(28)))
    assert found is expected if expected is None else found.tolist() == expected


def test_files(tmp_path):
    (tmp_path / "w.txt").write_text("450\n500.5\n600\n")
    (tmp_path / "w.csv").write_text("450,500.5;600")
    write_h5(tmp_path / "w.h5", wavelengths=[450, 500.5, 600])
    for name in ("w.txt", "w.csv", "w.h5"):
        assert parse_wavelengths(str(tmp_path / name), 3).tolist() == [450, 500.5, 600]
    for text in ("450 blue", "1 " * 60_000):
        (tmp_path / "w.txt").write_text(text)
        refused(parse_wavelengths, str(tmp_path / "w.txt"), 2)
    np.savez(tmp_path / "w.npz", mask=np.ones((2, 2)))
    refused(parse_wavelengths, str(tmp_path / "w.npz"), 2)


WRONG = (
    "mst-29",
    "450:650",
    "450:650:2.5",
    "450:650:0",
    "450:inf:3",
    "450:650:28",
    "450,500,-600",
    "450,500,nan",
    "",
    "1e30:2e30:3",
)


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_list(text):
    refused(parse_wavelengths, text, 3)
