"""Regions: which pixels, which numbers, and files that read back; against loops and hand-made cubes."""

import csv
import io
import json

import numpy as np
import pytest
from messages import refused

from cassi.errors import OutputError
from cassi.looking.comparison import compare_spectra
from cassi.looking.regions import Region, read_regions, spectrum_of, table_of, write_regions
from cassi.looking.report_data import ReportData

CUBE = np.random.default_rng(0).random((3, 12, 15)).astype(np.float32)
NM = np.array([450.0, 550.0, 650.0])
TRIANGLE = Region(((1, 1), (1, 11), (9, 1)), "leaf")


def test_a_pixel_belongs_if_its_center_lies_inside():
    """Below the line from (1, 11) to (9, 1): (r - 1) / 8 + (c - 1) / 10 < 1 for its center."""
    expected = np.zeros((12, 15), bool)
    for i in range(12):
        for j in range(15):
            r, c = i + 0.5, j + 0.5
            expected[i, j] = r > 1 and c > 1 and (r - 1) / 8 + (c - 1) / 10 < 1
    assert np.array_equal(TRIANGLE.inside(12, 15), expected)
    assert np.array_equal(Region(TRIANGLE.corners[::-1]).inside(12, 15), expected)


@pytest.mark.parametrize(
    ("text", "rows", "columns"), [("4,5", (4, 5), (5, 6)), ("4,5,3", (3, 6), (4, 7)), (" 4 , 5, 2", (4, 6), (5, 7))]
)
def test_places_as_they_are_typed(text, rows, columns):
    expected = np.zeros((12, 15), bool)
    expected[slice(*rows), slice(*columns)] = True
    assert np.array_equal(Region.at(text).inside(12, 15), expected)


@pytest.mark.parametrize("text", ["4", "4,5,0", "a,b", "-1,2", "1,2,3,4", ""])
def test_places_that_are_none(text):
    refused(Region.at, text)


def test_spectrum_spread_and_error_bar():
    data = ReportData(CUBE, wavelengths=NM, uncertainty=CUBE / 10, truth=2 * CUBE, unit="counts")
    found = spectrum_of(data, TRIANGLE)
    picked = CUBE[:, TRIANGLE.inside(12, 15)].astype(float)
    assert found.num_pixels == picked.shape[1]
    np.testing.assert_allclose(found.mean, picked.mean(1), rtol=1e-6)
    np.testing.assert_allclose(found.std, picked.std(1), rtol=1e-5)
    np.testing.assert_allclose(found.error, picked.mean(1) / 10, rtol=1e-6)
    np.testing.assert_allclose(spectrum_of(data, TRIANGLE, of=data.truth).mean, 2 * picked.mean(1), rtol=1e-6)
    assert not found.is_cut
    refused(spectrum_of, data, Region(((50, 50), (60, 50), (60, 60)), "far"))
    refused(spectrum_of, data, Region(((5.1, 5.1), (5.2, 5.1), (5.2, 5.2)), "smaller than a pixel"))
    corner = spectrum_of(data, Region.at("0,0,5"))
    assert (corner.num_pixels, corner.is_cut) == (9, True)
    assert "outside of the scene" in str(compare_spectra(corner, CUBE[:, 0, 0]))


def test_files_read_back(tmp_path):
    path = tmp_path / "a.json"
    write_regions(path, [TRIANGLE, Region.at("2,3,3")])
    assert read_regions(path) == [TRIANGLE, Region.at("2,3,3")]
    path.write_text(json.dumps(TRIANGLE.corners))
    assert read_regions(path)[0].corners == TRIANGLE.corners
    path.write_text(json.dumps({"corners": TRIANGLE.corners, "name": "one"}))
    assert [one.name for one in read_regions(path)] == ["one"]
    refused(write_regions, path, [TRIANGLE], error=OutputError)


@pytest.mark.parametrize(
    "text",
    ["", "[1, 2]", "[]", '{"regions": []}', '{"regions": [{"name": "x"}]}', "[[1, 2], [3, 4]]", "[[1,2],[3,4],[5]]",
     '[[1,2],[3,4],["a",5]]', "[[1,2],[3,4],[NaN,5]]", "7", '{"regions": 3}', '{"regions": [null]}'],
)  # fmt: skip
def test_files_that_hold_no_region(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    refused(read_regions, tmp_path / "a.json")


def test_a_table_of_spectra():
    data = ReportData(CUBE, wavelengths=NM, uncertainty=CUBE / 10, unit="counts")
    spectra = [spectrum_of(data, one) for one in (TRIANGLE, Region.at("2,3"), TRIANGLE, Region.at("leaf=1,1"))]
    rows = list(csv.reader(io.StringIO(table_of(spectra))))
    assert rows[0][:3] == ["wavelength [nm]", "leaf (40 px) mean [counts]", "leaf (40 px) std [counts]"]
    assert rows[0][4] == "row 2, column 3 (1 px) mean [counts]"
    assert (rows[0][7], rows[0][10]) == ("leaf #2 (40 px) mean [counts]", "leaf #3 (1 px) mean [counts]")
    assert [float(row[0]) for row in rows[1:]] == NM.tolist()
    np.testing.assert_allclose([float(row[3]) for row in rows[1:]], spectra[0].error, rtol=1e-6)
