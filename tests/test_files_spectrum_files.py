"""Tables of spectrometers as they come, and means over bands by an integral worked out elsewhere."""

import numpy as np
import pytest
from messages import refused
from scipy.integrate import quad

from cassi.files.spectrum_files import Spectrum, band_means, read_spectrum
from cassi.files.wavelength_files import parse_wavelengths

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


TRUE = np.array([[450.5, 0.125], [550.0, 0.25], [650.0, 0.1]])
COLUMNS = {  # what is told by headings, or by what the first column does
    "R": '"","wavelength","reflectance"\n"1",450.5,0.125\n"2",550,0.25\n"3",650,0.1\n',
    "pandas": ",wavelength,reflectance\n0,450.5,0.125\n1,550,0.25\n2,650,0.1\n",
    "rows without a heading": "1;450,5;0,125\n2;550;0,25\n3;650;0,1\n",
    "value first": "reflectance,wavelength\n0.125,450.5\n0.25,550\n0.1,650\n",
    "spread first": "Wavelength,Std dev,Mean\n450.5,9,0.125\n550,9,0.25\n650,9,0.1\n",
    "percent": "nm;Reflectance (%)\n450,5;12,5\n550;25\n650;10\n",
    "wavenumber beside": f"Wavenumber (cm-1)\tR\n{1e7 / 450.5!r}\t0.125\n{1e7 / 550!r}\t0.25\n{1e7 / 650!r}\t0.1\n",
    "Angstrom": "Wavelength [Å],R\n4505,0.125\n5500,0.25\n6500,0.1\n",
    "unit in a line above": "Name: x\nX Units: Wavelength (micrometers)\nY Units: Reflectance (percentage)\n\n"
    "0.4505\t12.5\n0.55\t25\n0.65\t10\n",
    "none": "wl_nm;R\n440;-1.23e+34\n450.5;.125\n500;NA\n550;0.25\n600;\n650;0.1\n700;-9999\n",
    "quoted decimal commas": 'nm,R\n"450,5","0,125"\n"550,0","0,25"\n"650,0","0,1"\n',
    "comment": "# nm value\n450.5 0.125\n550 0.25\n650 0.1\n# end\n",
    "a column of words": "nm,R,sample\n450.5,0.125,leaf\n550,0.25,leaf\n650,0.1,leaf\n",
    "R without a heading of the rows": "wavelength reflectance\n1 450.5 0.125\n2 550 0.25\n3 650 0.1\n",
    "padded": "Wavelength (nm),R,,\n450.5,0.125,,\n550,0.25,,\n650,0.1,,\n",
}


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_and_units_are_what_the_headings_say(tmp_path, name):
    (tmp_path / "a.csv").write_text(COLUMNS[name], encoding="utf-8")
    np.testing.assert_allclose(np.stack(read_spectrum(tmp_path / "a.csv"), axis=1), TRUE, rtol=1e-9)


def test_micrometers_reach_to_fifteen(tmp_path):
    (tmp_path / "a.txt").write_text("0.4 0.1\n2.5 0.2\n15.4 0.3\n")
    np.testing.assert_allclose(read_spectrum(tmp_path / "a.txt").nm, [400, 2500, 15400])


@pytest.mark.parametrize(
    "text",
    [
        "1;0.1\n2;0.2\n3;0.3\n",  # counts its rows
        "50;0.1\n450;0.2\n650;0.3\n",
        "450,5,0,1\n550,0,0,2\n650,0,0,3\n",  # decimal commas?
        "Wavelength [parsec];R\n450;1\n550;2\n",
        "Wavelength [nm];R\n0.450;1\n0.550;2\n",
        "band;R\n450;-9999\n550;-9999\n",
    ],
)
def test_what_is_unclear_is_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    refused(read_spectrum, tmp_path / "a.csv")


def test_band_means_are_integrals():
    rng = np.random.default_rng(0)
    nm = np.sort(rng.uniform(430, 700, 40))
    spectrum = Spectrum(nm, rng.random(40))
    centers = np.array([640.0, 450.0, 470.0, 520.0, 600.0])
    found = band_means(spectrum, centers)
    edges = {450: (440, 460), 470: (460, 495), 520: (495, 560), 600: (560, 620), 640: (620, 660)}
    for center, value in zip(centers, found, strict=True):
        low, high = edges[int(center)]
        inner = [*nm[(nm > low) & (nm < high)], center]

        def weight(w, low=low, center=center, high=high):
            return (w - low) / (center - low) if w < center else (high - w) / (high - center)

        def weighted(w, weight=weight):
            return weight(w) * np.interp(w, nm, spectrum.values)

        area = quad(weighted, low, high, points=inner, limit=200)[0]
        assert value == pytest.approx(area / ((high - low) / 2), rel=1e-8)


def test_bands_beyond_the_table_are_unknown():
    spectrum = Spectrum(np.array([500.0, 700.0]), np.array([1.0, 1.0]))
    np.testing.assert_array_equal(band_means(spectrum, np.array([480.0, 500.0, 520.0, 710.0])), [np.nan, 1, 1, np.nan])


LISTS = {
    "decimals": "450,5\n550,0\n650,0\n", "a line": "450.5,550,650", "rows": "1;450.5\n2;550\n3;650\n",
    "pandas": ",wavelength\n0,450.5\n1,550\n2,650\n", "unit": "Wavelength (angstrom)\n4505\n5500\n6500\n",
    "one a band": "band,centre wavelength [nm]\n1,450.5\n2,550\n3,650\n", "um": "λ [µm]\n0.4505\n0.55\n0.65\n",
    "wavenumber": f"Wavenumber\n{1e7 / 450.5!r}\n{1e7 / 550!r}\n{1e7 / 650!r}\n",
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_wavelengths_have_headings_too(tmp_path, name):
    (tmp_path / "w.csv").write_text(LISTS[name], encoding="utf-8")
    np.testing.assert_allclose(parse_wavelengths(str(tmp_path / "w.csv"), 3), TRUE[:, 0], rtol=1e-9)


@pytest.mark.parametrize("text", ["450,500\n550,600\n", "Wavelength [parsec]\n450\n500\n", "450 blue\n"])
def test_lists_that_are_unclear(tmp_path, text):
    (tmp_path / "w.csv").write_text(text, encoding="utf-8")
    refused(parse_wavelengths, str(tmp_path / "w.csv"), None)
