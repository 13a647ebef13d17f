"""Tables of spectrometers as they come, and means over bands by an integral worked out elsewhere."""

import numpy as np
import pytest
from messages import refused
from scipy.integrate import quad

from cassi.files.spectrum_files import Spectrum, band_means, read_spectrum
from cassi.files.wavelength_files import parse_wavelengths

LIGHT = 299_792.458  # [nm THz]
TRUE = np.array([[450.5, 0.125], [550.0, 0.25], [650.0, 0.1]])
WAVENUMBERS, ENERGIES, FREQUENCIES = (
    [repr(one / nm) for nm in TRUE[:, 0].tolist()] for one in (1e7, 1239.841984, LIGHT)
)
TABLES = {  # what separators tell, headings, or what the first column does
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
    "R": '"","wavelength","reflectance"\n"1",450.5,0.125\n"2",550,0.25\n"3",650,0.1\n',
    "pandas": ",wavelength,reflectance\n0,450.5,0.125\n1,550,0.25\n2,650,0.1\n",
    "rows without a heading": "1;450,5;0,125\n2;550;0,25\n3;650;0,1\n",
    "value first": "reflectance,wavelength\n0.125,450.5\n0.25,550\n0.1,650\n",
    "spread first": "Wavelength,Std dev,Mean\n450.5,9,0.125\n550,9,0.25\n650,9,0.1\n",
    "percent": "nm;Reflectance (%)\n450,5;12,5\n550;25\n650;10\n",
    "percent of a transmission": "Wavelength (nm),%T\n450.5,12.5\n550,25\n650,10\n",
    "a row of units": "Wavelength,Reflectance\nnm,%\n450.5,12.5\n550,25\n650,10\n",
    "date first": "Date,Wavelength,R\n2026,450.5,0.125\n2026,550,0.25\n2026,650,0.1\n",
    "a unit alone": "cm-1,R\n{},0.125\n{},0.25\n{},0.1\n".format(*WAVENUMBERS),
    "wavenumber beside": "Wavenumber (cm-1)\tR\n{}\t0.125\n{}\t0.25\n{}\t0.1\n".format(*WAVENUMBERS),
    "Angstrom": "Wavelength [Å],R\n4505,0.125\n5500,0.25\n6500,0.1\n",
    "unit in a line above": "Name: x\nX Units: Wavelength (micrometers)\nY Units: Reflectance (percentage)\n\n"
    "0.4505\t12.5\n0.55\t25\n0.65\t10\n",
    "none": "wl_nm;R\n440;-1.23e+34\n450.5;.125\n500;NA\n550;0.25\n600;\n650;0.1\n700;-9999\n",
    "quoted decimal commas": 'nm,R\n"450,5","0,125"\n"550,0","0,25"\n"650,0","0,1"\n',
    "comment": "# nm value\n450.5 0.125\n550 0.25\n650 0.1\n# end\n",
    "a column of words": "nm,R,sample\n450.5,0.125,leaf\n550,0.25,leaf\n650,0.1,leaf\n",
    "R without a heading of the rows": "wavelength reflectance\n1 450.5 0.125\n2 550 0.25\n3 650 0.1\n",
    "unit without brackets": "Wavelength in Angstrom;R\n4505;0.125\n5500;0.25\n6500;0.1\n",
    "unit among others": "Wavelength (calibrated, in µm);R\n0.4505;0.125\n0.55;0.25\n0.65;0.1\n",
    "unit behind a comma": "Wavelength, Å;R\n4505;0.125\n5500;0.25\n6500;0.1\n",
    "unit in a word": "WavelengthAngstrom;R\n4505;0.125\n5500;0.25\n6500;0.1\n",
    "energies": "Photon energy eV;R\n{};0.125\n{};0.25\n{};0.1\n".format(*ENERGIES),
    "frequencies": "Frequency in THz\tR\n{}\t0.125\n{}\t0.25\n{}\t0.1\n".format(*FREQUENCIES),
    "wavenumbers in words": "Wellenzahl;R\n{};0.125\n{};0.25\n{};0.1\n".format(*WAVENUMBERS),
    "wavenumbers, 1/cm": "Wavenumbers, 1/cm;R\n{};0.125\n{};0.25\n{};0.1\n".format(*WAVENUMBERS),
    "percent above": "Reflectance of a leaf in %\nnm;R\n450.5;12.5\n550;25\n650;10\n",
    "a unit alone in words": "Angstrom;R\n4505;0.125\n5500;0.25\n6500;0.1\n",
    "per mille": "nm;R (permille)\n450.5;125\n550;250\n650;100\n",
    "ppm": "nm;R (ppm)\n450.5;125000\n550;250000\n650;1e5\n",
    "times": "nm;R x 10000\n450.5;1250\n550;2500\n650;1000\n",
    "one of several": "nm;Humidity (%);Reflectance\n450.5;40;0.125\n550;40;0.25\n650;41;0.1\n",
    "padded": "Wavelength (nm),R,,\n450.5,0.125,,\n550,0.25,,\n650,0.1,,\n",
}
LISTS = {
    "decimals": "450,5\n550,0\n650,0\n", "a line": "450.5,550,650", "rows": "1;450.5\n2;550\n3;650\n",
    "pandas": ",wavelength\n0,450.5\n1,550\n2,650\n", "unit": "Wavelength (angstrom)\n4505\n5500\n6500\n",
    "one a band": "band,centre wavelength [nm]\n1,450.5\n2,550\n3,650\n", "um": "λ [µm]\n0.4505\n0.55\n0.65\n",
    "wavenumber": "Wavenumber\n{}\n{}\n{}\n".format(*WAVENUMBERS), "Windows": "nm\r\n450.5\r\n550\r\n650\r\n",
    "a unit": "Angstrom\n4505\n5500\n6500\n", "blank first": "\r\n450.5\r\n550\r\n650\r\n",
}  # fmt: skip
NO_TABLES = [
    "no numbers\n", "", "450;0.1\n", "450;0.1\n460;x\n470;0.2\n", "450;1e999\n460;1\n", "-450;1\n460;1\n",
    "450;1\n450;2\n", "a\0b", "1;0.1\n2;0.2\n3;0.3\n", "50;0.1\n450;0.2\n650;0.3\n",
    "450,5,0,1\n550,0,0,2\n650,0,0,3\n", "Wavelength [parsec];R\n450;1\n550;2\n",
    'nm;R\n900.5;0.1\n950.5;0.2\n"1,000.5";0.3\n"1,010.5";.4\n', "nm;R\n1.010,5;0,4\n950,5;0,2\n900,5;0,1\n",
    "nm;R\n900,5;0,1\n950,5;0,2\n1 000,5;0,3\n", "Energy;R\n1.9;0.1\n2.2;.2\n", "Frequency;R\n450;0.1\n550;.2\n",
    "nm,Sample,Reference\n450,10,20\n500,11,22\n", "nm;Transmission (dB)\n450;-3\n460;-10\n",
    "nm;Absorbance\n450;1\n460;2\n",
    "##TITLE=x\n##XUNITS= NANOMETERS\n##YFACTOR=0.001\n##XYDATA=(X++(Y..Y))\n450 100 200\n480 150 220\n##END=\n",
    "Wavelength [nm];R\n0.450;1\n0.550;2\n", "band;R\n450;-9999\n550;-9999\n",
]  # fmt: skip
NO_LISTS = ["450,500\n550,600\n", "Wavelength [parsec]\n450\n500\n", "450 blue\n"]
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1")


@pytest.mark.parametrize("name", [*TABLES, *(f"list: {name}" for name in LISTS)])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_tables_and_lists_of_any_program(tmp_path, name, encoding):
    text = LISTS[name.removeprefix("list: ")] if name.startswith("list: ") else TABLES[name]
    path = tmp_path / "a.csv"
    path.write_bytes(text.encode(encoding, errors="replace"))
    if not name.startswith("list: "):
        np.testing.assert_allclose(np.stack(read_spectrum(path), axis=1), TRUE, rtol=1e-9)
    elif encoding != "latin-1":  # which has no λ
        np.testing.assert_allclose(parse_wavelengths(str(path), 3), TRUE[:, 0], rtol=1e-9)


@pytest.mark.parametrize("text", [*NO_TABLES, *NO_LISTS])
def test_what_is_none_or_unclear_is_refused(tmp_path, text):
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    for name in ("a.csv", "b.csv"):
        if text in NO_LISTS:
            refused(parse_wavelengths, str(tmp_path / name), None)
        else:
            refused(read_spectrum, tmp_path / name)


def test_micrometers_reach_to_fifteen(tmp_path):
    (tmp_path / "a.txt").write_text("0.4 0.1\n2.5 0.2\n15.4 0.3\n")
    np.testing.assert_allclose(read_spectrum(tmp_path / "a.txt").nm, [400, 2500, 15400])


def test_band_means_are_integrals():
    rng = np.random.default_rng(0)
    nm = np.sort(rng.uniform(430, 700, 40))
    spectrum = Spectrum(nm, rng.random(40))
    edges = {640: (620, 660), 450: (440, 460), 470: (460, 495), 520: (495, 560), 600: (560, 620)}
    found = band_means(spectrum, np.array([*map(float, edges)]))
    for (center, (low, high)), value in zip(edges.items(), found, strict=True):
        inner = [*nm[(nm > low) & (nm < high)], center]

        def weighted(w, low=low, center=center, high=high):
            return np.interp(w, [low, center, high], [0, 1, 0]) * np.interp(w, nm, spectrum.values)

        area = quad(weighted, low, high, points=inner, limit=200)[0]
        assert value == pytest.approx(area / ((high - low) / 2), rel=1e-8)


def test_bands_beyond_the_table_are_unknown():
    spectrum = Spectrum(np.array([500.0, 700.0]), np.array([1.0, 1.0]))
    np.testing.assert_array_equal(band_means(spectrum, np.array([480.0, 500.0, 520.0, 710.0])), [np.nan, 1, 1, np.nan])
