"""Tables of spectrometers as they come, and means over bands by an integral worked out elsewhere."""

import numpy as np
import pytest
from messages import refused
from scipy.integrate import quad

from cassi.files.spectrum_files import Spectrum, band_means, read_spectrum

TABLES = {
    "comma": "nm,value\n450.5,0.125\n550,0.25\n650,1e-1\n",
    "comma and blank": "450.5, 0.125\n550, 0.25\n650, 0.1\n",
    "whole nm and comma": "# made by x\n450.5,0.125,7\n550,0.25,7\n650,0.1,8\n",
    "semicolon, decimal comma": "Wellenlänge [nm];Refl.\r\n450,5;0,125\r\n550,0;0,25\r\n650,0;0,1\r\n",
    "tab, decimal comma": "λ\tR\n450,5\t0,125\n550\t0,25\n650\t,1\n",
    "blanks": "   450.5   0.125\n  550.0 0.25\n 650 .1\n",
    "blanks, decimal comma": "450,5 0,125\n550,0 0,25\n650,0 0,1\n",
    "Ocean Optics": "Date: 12:00\n>>>>>Begin Data<<<<<\n450.5\t0.125\n550\t0.25\n650\t0.1\n>>>End<<<\n",
    "micrometers": "0.4505;0.125\n0.55;0.25\n0.65;0.1\n",
    "falling, one twice": "650;0.1\n550;0.2\n550;0.3\n450.5;0.125\n",
    "quoted": '"nm","v"\n"450.5","0.125"\n"550","0.25"\n"650","0.1"\n',
}


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_tables_of_any_program(tmp_path, name, encoding):
    (tmp_path / "a.csv").write_bytes(TABLES[name].encode(encoding, errors="replace"))
    nm, values = read_spectrum(tmp_path / "a.csv")
    np.testing.assert_allclose(nm, [450.5, 550, 650], rtol=1e-12)
    np.testing.assert_allclose(values, [0.125, 0.25, 0.1], rtol=1e-12)


@pytest.mark.parametrize(
    "text",
    [
        "no numbers\n",
        "",
        "450;0.1\n",
        "450;0.1\n460;x\n470;0.2\n",
        "450;1e999\n460;1\n",
        "-450;1\n460;1\n",
        "450;1\n450;2\n",
        "a\0b",
    ],
)
def test_what_is_no_table(tmp_path, text):
    (tmp_path / "a.csv").write_text(text)
    refused(read_spectrum, tmp_path / "a.csv")
    refused(read_spectrum, tmp_path / "b.csv")


def test_band_means_are_integrals():
    rng = np.random.default_rng(0)
    nm = np.sort(rng.uniform(430, 700, 40))
    spectrum = Spectrum(nm, rng.random(40))
    centers = np.array([640.0, 450.0, 470.0, 520.0, 600.0])
    found = band_means(spectrum, centers)
    edges = {450: (440, 460), 470: (460, 495), 520: (495, 560), 600: (560, 620), 640: (620, 660)}
    for center, value in zip(centers, found, strict=True):
        low, high = edges[int(center)]
        inner = nm[(nm > low) & (nm < high)]
        area = quad(lambda w: np.interp(w, nm, spectrum.values), low, high, points=inner, limit=200)[0]
        assert value == pytest.approx(area / (high - low), rel=1e-8)


def test_bands_beyond_the_table_are_unknown():
    spectrum = Spectrum(np.array([500.0, 700.0]), np.array([1.0, 1.0]))
    np.testing.assert_array_equal(band_means(spectrum, np.array([480.0, 500.0, 520.0, 710.0])), [np.nan, 1, 1, np.nan])
