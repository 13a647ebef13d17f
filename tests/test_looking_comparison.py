"""Comparing two cubes, or a region and a spectrometer: the numbers by hand, and what cannot be compared."""

import json
import re

import numpy as np
import pytest
import torch
from messages import refused

from cassi import CASSI
from cassi.cli.main import run
from cassi.files import write_arrays, write_cube
from cassi.files.spectrum_files import Spectrum
from cassi.looking.comparison import compare, compare_spectra, spectra_figure
from cassi.looking.figures import figures_of
from cassi.looking.regions import Region, spectrum_of
from cassi.looking.report_data import ReportData, read_report
from cassi.looking.report_page import make_page
from cassi.simulation.scene import procedural_scene

BANDS = [450.0, 550.0, 650.0]


@pytest.fixture(scope="module")
def truth():
    return np.random.default_rng(0).uniform(0.1, 0.9, (3, 16, 20)).astype(np.float32)


@pytest.fixture
def files(tmp_path, truth):
    """Two cubes: the first is off by 0.1 in its last band and holds the truth."""
    off = truth.copy()
    off[2] += 0.1
    first = write_cube(tmp_path / "a.h5", off, wavelengths=BANDS, datasets={"truth": truth})
    return first, write_cube(tmp_path / "b.h5", truth, wavelengths=BANDS)


@pytest.mark.parametrize("own", [True, False], ids=["own truth", "another file"])
def test_the_numbers_by_hand(files, truth, own):
    first, second = files
    found = compare(first) if own else compare(first, second)
    assert found.names == ("a.h5", "truth" if own else "b.h5")
    assert list(found.band_psnr) == ["450 nm", "550 nm", "650 nm"]
    assert found.band_psnr["450 nm"] == np.inf
    off = np.clip(truth[2] + 0.1, 0, 1) - truth[2]
    assert found.band_psnr["650 nm"] == pytest.approx(-10 * np.log10(np.mean(off.astype(float) ** 2)), abs=1e-4)
    assert found.numbers["psnr"] == np.inf and "650 nm" in str(found)
    assert any(axes.get_ylabel() == "PSNR [dB]" for axes in found.figure.axes)


def test_a_frame_of_a_stack(tmp_path, truth):
    stack = write_cube(tmp_path / "stack.h5", np.stack([truth, truth + 0.05]))
    single = write_cube(tmp_path / "one.h5", truth[None])
    assert compare(stack, single, frame=1).numbers["psnr"] == pytest.approx(-20 * np.log10(0.05), abs=1e-3)
    found = compare(write_cube(tmp_path / "dim.h5", truth / 4), single)
    assert found.numbers["factor"] == pytest.approx(4, rel=1e-5) and found.numbers["psnr_scaled"] > 90
    assert "another unit" not in str(compare(stack, single))
    for unit in (1e28, 1e-25):
        far = write_cube(tmp_path / f"{unit}.h5", np.float32(unit) * truth)
        assert compare(far, far).numbers["factor"] == pytest.approx(1)
    assert "are the units different? Multiplied by 4 " in str(found)
    for first, frame in ((stack, 2), (stack, -1), (single, 1)):
        refused(compare, first, single, frame=frame)


@pytest.mark.parametrize(
    ("dtype", "electrons", "in_counts"),
    [("f4", 1.0, 1.0), ("f4", 1e-3, 1.0), ("f4", 3000.0, 1.0), ("u2", 5000.0, 1.0), ("u2", 5000.0, 5000.0)],
)
def test_the_psnr_of_a_snapshot_is_the_same_in_any_unit(tmp_path, capsys, dtype, electrons, in_counts):
    """Of snapshot and truth: by hand in the truth's own unit, with peak 1; in the terminal, the page, the figures."""
    x = procedural_scene(32, 32, torch.linspace(450, 650, 4), generator=torch.Generator().manual_seed(0))
    mask = np.random.default_rng(0).random((32, 32)).astype(np.float32)
    y = (electrons * CASSI.from_step(torch.from_numpy(mask), 2, 4).forward(x).numpy()).astype(dtype)
    path, out = tmp_path / "m.h5", tmp_path / "m_cube.h5"
    write_arrays(path, {"measurement": y, "mask": mask, "cube": in_counts * x.numpy()})
    words = [str(path), "--solver", "gap-tv", "--iterations", "5", "--num-bands", "4", "--figures", "none"]
    assert run("reconstruct", words, "cassi reconstruct") == 0
    data = read_report(out)
    cube, stored = (np.asarray(one[:, :, :], np.float64) for one in (data.cube, data.truth))
    unit = stored.max() / float(x.max())
    psnr = np.mean(-10 * np.log10(((np.clip(cube / unit, 0, 1) - x.numpy()) ** 2).mean((1, 2))))
    told = re.search(r"PSNR (\S+) dB", capsys.readouterr().out)[1]
    facts = re.search(r'<script type="application/json" id="facts">(.*?)</script>', make_page(data), re.DOTALL)
    titles = " ".join(axes.get_title(loc) for axes in figures_of(data)["errors"].axes for loc in ("left", "center"))
    found = [told, {name.split(",")[0]: value for name, value in data.numbers()}["PSNR"].split()[0]]
    found += [
        titles.split("PSNR, mean ")[1].split()[0],
        compare(out).numbers["psnr"],
        np.mean(json.loads(facts[1])["psnr"]),
    ]
    assert [float(value) for value in found] == pytest.approx([psnr] * 5, abs=0.011)


def test_what_cannot_be_compared(tmp_path, files, truth):
    first, second = files
    refused(compare, second)
    small = write_cube(tmp_path / "small.h5", truth[:, :8])
    other = write_cube(tmp_path / "other.h5", truth, wavelengths=[460, 560, 660])
    for reference in (small, other, tmp_path / "none.h5"):
        refused(compare, first, reference)


NM = np.array([450.0, 500.0, 550.0, 600.0])
VALUES = np.array([1.0, 2.0, 2.0, 4.0])
DATA = ReportData(
    VALUES[:, None, None] * np.ones((4, 6, 6)), wavelengths=NM, uncertainty=np.full((4, 6, 6), 0.25), unit="counts"
)
FOUND = spectrum_of(DATA, Region.at("2,2,3"))


def test_the_same_light_in_another_unit_is_the_same_spectrum():
    fine = np.linspace(400, 650, 251)
    table = Spectrum(fine, 0.01 * np.interp(fine, NM, VALUES))  # bands are means of it: nearly the samples
    same = compare_spectra(FOUND, 0.01 * VALUES)
    assert (same.scale, same.angle, same.rmse, same.share) == pytest.approx((100, 0, 0, 1), abs=1e-5)
    assert compare_spectra(FOUND, table).angle < 5
    assert compare_spectra(FOUND, 0.01 * VALUES, scaled=False).rmse == pytest.approx(0.99 * 2.5)  # rms of VALUES: 2.5


def test_numbers_by_hand():
    reference = np.array([1.0, 2.0, 2.0, np.nan])
    one = compare_spectra(FOUND, reference)
    assert (one.bands, one.scale, one.angle) == (3, pytest.approx(1), pytest.approx(0, abs=1e-5))
    other = compare_spectra(FOUND, np.array([2.0, 2.0, 2.0, 2.0]), scaled=False)
    assert other.angle == pytest.approx(np.degrees(np.arccos(18 / (5 * 4))), abs=1e-4)
    assert other.rmse == pytest.approx(np.sqrt(5 / 4))
    assert other.share == 0.5  # 0 and 0 are within 2 x 0.25, 1 and 2 are not
    text = str(other)
    assert "9 px, 4 of 4 bands: angle 25.84 degrees, RMSE 1.12 (55.9% of the reference), scale 1" in text
    assert text.split("600 nm")[1].split() == ["4", "0", "0.25", "2", "2"]


def test_spectra_that_cannot_be_compared():
    wide = np.array([400.0, 800.0])
    for table in (
        Spectrum(np.array([700.0, 800.0]), np.ones(2)), Spectrum(wide, np.zeros(2)),
        Spectrum(wide, -np.ones(2)),  # an absorbance, say: it would fit perfectly, upside down
    ):  # fmt: skip
        refused(compare_spectra, FOUND, table)
    refused(compare_spectra, spectrum_of(ReportData(np.ones((4, 6, 6))), Region.at("1,1")), Spectrum(wide, np.ones(2)))


def test_the_figure_has_a_panel_a_region():
    figure = spectra_figure([FOUND, FOUND], [compare_spectra(FOUND, VALUES)] * 2, name="leaf.csv")
    assert len(figure.axes) == 2
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["± std of pixels", "leaf.csv", "cube ± error bar"]
    (line, _) = figure.axes[0].get_lines()[:2]
    assert np.array_equal(line.get_xdata(), NM)
