"""What a file states about itself, cell by cell of the table in docs/file-format.md: read right, or refused in words.

The right values are worked out here, never by the package: physical constants, NumPy, and files of other programs.
"""

from pathlib import Path

import h5py
import numpy as np
import pytest
from containers import (
    COUNTS,
    CUBE,
    DETECTOR,
    MASK,
    NM,
    PACKED,
    SAVED,
    UNITS,
    C,
    H,
    W,
    Y,
    cube_is_read,
    envi,
    gdal,
    imagej,
    png,
    save,
    tiff,
    wavelengths_are_read,
)
from messages import refused

from cassi.cli.reading import Reading
from cassi.files import Levels, ReadOptions, read_cube, read_measurement
from cassi.files.spectrum_files import read_spectrum

ROOT = Path(__file__).resolve().parents[1]
OUT = np.float32(-9999)
BAD = Y.copy()
BAD[2, 3] = OUT


def dng(tag):
    """Levels as cameras write them: a fraction, or one of each filter; the other as JSON."""
    return lambda path, b, s: tiff(path, COUNTS, (50714, *tag(b[1])), (50717, "I", (s[1],)))


def text(path, head, rows):
    path.write_text(head + "".join(f"{a};{b}\n" for a, b in rows), encoding="utf-8")
    return path


def full_scale_is(path, full, image=COUNTS, **more):
    m = read_measurement(path, **more)
    np.testing.assert_allclose(m.y, image / full, atol=1e-6)
    assert "stated by the file" in " ".join(m.notes)


def is_marked(path, **more):
    m = read_measurement(path, **more)
    assert np.argwhere(m.bad_pixels).tolist() == [[2, 3]]
    np.testing.assert_allclose(np.delete(m.y.ravel(), 2 * DETECTOR + 3), np.delete(Y.ravel(), 2 * DETECTOR + 3))


def levels_are(write, **more):
    """Stated of 10 bits, and overruled by those that are given."""

    def check(path):
        for names in (("black_level", "saturation"), ("Dark Level", "WhiteLevel"), ("pedestal", "Saturation_Value")):
            write(path, (names[0], 40), (names[1], 800))
            for given, black, saturation in (
                ({}, 40, 800), ({"black_level": 0.0}, 0, 800), ({"black_level": 20, "saturation": 850}, 20, 850),
            ):  # fmt: skip
                m = read_measurement(path, levels=Levels(**given), **more)
                np.testing.assert_allclose(m.y, (COUNTS - float(black)) / (1023 - black), atol=1e-6)
                assert np.array_equal(m.bad_pixels, COUNTS >= saturation)
                assert ("stated by the file" in " ".join(m.notes)) == (not given)
                assert m.origin["black_level"] == black

    return check


@pytest.mark.parametrize(
    ("stated", "name", "given", "same"),
    [
        ({"step": -2}, "step", 3, -2), ({"shifts": [0, -2, -4, -6]}, "step", 3, -2),
        ({"shifts": [0, 1, 5, 6]}, "step", 3, None), ({"shifts": [0, 1, 5, 6]}, "num_bands", 7, 4),
        ({"num_bands": 4}, "num_bands", 7, 4), ({"bit_depth": 12}, "bit_depth", 14, 12),
        ({"black_level": 40}, "black_level", 0.0, 40), ({"saturation": 800}, "saturation", 850, 800),
        ({"gain": 2.0}, "gain", 3.0, 2.0), ({"gain": 2.0, "read_noise": 5.0}, "read_noise", 4.0, 5.0),
    ],
)  # fmt: skip
def test_what_is_given_comes_first_and_is_said(tmp_path, stated, name, given, same):
    """Of whatever option, and only where the file states otherwise."""
    path = str(save(tmp_path / "a.h5", y=COUNTS, mask=MASK, on={"y": stated}))
    noise = name in ("gain", "read_noise")

    def notes(value):
        how = {} if value is None else {name: value}
        of_counts = how.keys() & {"bit_depth", "black_level", "saturation"}
        how = {"levels": Levels(**how)} if of_counts else how
        m = Reading((ReadOptions(),), **how)(path) if noise else read_measurement(path, **how)
        assert name != "num_bands" or value is None or len(m.shifts) == value
        return [note for note in m.notes if " given, " in note]

    (said,) = notes(given)
    assert f"{name.replace('num_bands', 'number of bands').replace('_', ' ')} given, {given:g}, replaces" in said
    assert not notes(same) and not notes(None)


def step_is(path, step, **more):
    assert read_measurement(path, **more).shifts == tuple(step * k for k in range(1 + (DETECTOR - W) // abs(step)))


def each_unit(write):
    def check(path):
        for unit, values in UNITS.items():
            wavelengths_are_read(write(path, unit, values))
        assert read_cube(write(path, "Index", np.arange(1.0, C + 1)))[1] is None
        assert read_cube(write(path, "Unknown", np.arange(1.0, C + 1)))[1] is None
        wavelengths_are_read(write(path, "Unknown", NM))
        refused(read_cube, write(path, "furlongs", NM))
        refused(read_cube, write(path, "um", NM))

    return check


def scaled(write):
    """Per band, s = 2e-4, 1e-4 ...; o = 0 .. 3."""
    scale, offset = 1e-4 * np.array([2, 1, 1, 1]), np.arange(C)
    expected = PACKED * scale[:, None, None] + offset[:, None, None]
    return lambda path: cube_is_read(write(path, scale.tolist(), offset.tolist()), expected)


def in_any_place(write, **more):
    def check(path):
        for step in (-2, 2, 3, 1, -1):
            step_is(write(path, step), step, **more)
        refused(read_measurement, write(path, 5), **more)
        refused(read_measurement, write(path, np.nan), **more)
        assert read_measurement(write(path, -2), step=3, **more).shifts == (0, 3, 6)  # what is given comes first
        assert read_measurement(write(path, -2), num_bands=4, **more).shifts == (0, -2, -4, -6)

    return check


def orders(write):
    """Every order of the axes of a cube that a format can state."""

    def check(path):
        for order in ("CHW", "HWC", "HCW", "CWH", "WHC", "WCH"):
            path.unlink(missing_ok=True)
            cube_is_read(write(path, order, CUBE.transpose(["CHW".index(letter) for letter in order])))
        refused(read_cube, write(path, "QQQ", CUBE))

    return check


NAMES = {"HDF5": "a.h5", "ENVI": "a.hdr", "TIFF": "a.tif", "PNG": "a.png", "MATLAB": "a.mat", "NPZ": "a.npz",
         "text": "a.csv"}  # fmt: skip


def in_each(check, hdf5, matlab, npz=None):
    """The cells of the formats that `save` writes: their words, and what holds for a file of each."""
    words = {"HDF5": hdf5, "MATLAB": matlab, "NPZ": npz or matlab}
    return {kind: (text, check) for kind, text in words.items()}


TABLE = {
    "unit of the wavelengths": in_each(
        each_unit(lambda p, unit, v: save(p, cube=CUBE, wavelengths=v, on={"wavelengths": {"units": unit}})),
        "`units`", "text `wavelength_units`", "`wavelength_units`, `wavelength_um`",
    ) | {
        "ENVI": ("`wavelength units`", each_unit(
            lambda p, unit, v: envi(p, CUBE, wavelength=list(map(repr, v.tolist())), wavelength_units=unit))),
        "TIFF": ("GDAL's, OME's, `wavelength_units`", each_unit(
            lambda p, unit, v: tiff(p, CUBE, photometric="minisblack",
                                    metadata={"axes": "CYX", "wavelengths": v.tolist(), "wavelength_units": unit}))),
        "text": ("in its heading", lambda p: [
            np.testing.assert_allclose(
                read_spectrum(text(p, f"Wavelength [{unit}];R\n", zip(v, NM, strict=True))).values, NM, rtol=1e-9)
            for unit, v in UNITS.items()]),
    },
    "scale and offset": in_each(
        lambda p: cube_is_read(
            save(p, cube=PACKED, on={"cube": {"scale_factor": 2e-4, "add_offset": 1.0}}), PACKED * 2e-4 + 1),
        "`scale_factor`, `add_offset`", "`cube_scale_factor`, `cube_add_offset`",
    ) | {
        "ENVI": ("`data gain values`, `data offset values`", scaled(
            lambda p, s, o: envi(p, PACKED, data_gain_values=s, data_offset_values=o))),
        "TIFF": ("GDAL's, ImageJ's", lambda p: [
            scaled(lambda p, s, o: gdal(p, scale=s, offset=o))(p),
            cube_is_read(imagej(p, PACKED[0], cf=0, c0=-3.0, c1=2.0), PACKED[:1] * 2.0 - 3),
            cube_is_read(imagej(p, PACKED[0], cf=20), PACKED[:1] / 16383),
            refused(read_cube, imagej(p, PACKED[0], cf=3))]),
    },
    "no value": in_each(
        lambda p: [is_marked(save(p, y=BAD, mask=MASK, on={"y": stated}))
                   for stated in ({"missing_value": OUT}, {"missing_value": [1e20, -9999.0]}, {"nodata": "-9999"},
                                  {"_FillValue": OUT}, {"valid_range": [0.0, 2.0]}, {"Data_Ignore_Value": -9999})],
        "`_FillValue`, `missing_value`, `valid_range`, `Data_Ignore_Value`", "`y_missing_value`",
    ) | {
        "ENVI": ("`data ignore value`", lambda p: is_marked(envi(p, BAD, data_ignore_value="-9999"), mask=MASK)),
        "TIFF": ("GDAL's no-data", lambda p: is_marked(tiff(p, BAD, (42113, "s", "-9999")), mask=MASK)),
        "text": ("blank, NA, NaN, -9999, -1.23e34", lambda p: np.testing.assert_allclose(
            read_spectrum(text(p, "nm;R\n", [(450, 1), (460, -9999), (470, "NA"), (480, ""), (490, -1.23e34),
                                             (500, 2)])).nm, [450, 500])),
    },
    "reflectance scale": {
        "HDF5": ("`Scale_Factor` above 1", lambda p: cube_is_read(
            save(p, cube=PACKED, on={"cube": {"Scale_Factor": 10_000.0}}))),
        "ENVI": ("`reflectance scale factor`", lambda p: cube_is_read(
            envi(p, PACKED, reflectance_scale_factor="10000"))),
        "text": ("percent in its heading", lambda p: np.testing.assert_allclose(
            read_spectrum(text(p, "nm;Reflectance [%]\n", [(450, 50), (500, 100)])).values, [0.5, 1])),
    },
    "significant bits": in_each(
        lambda p: [full_scale_is(save(p, y=COUNTS, mask=MASK, of={"bit_depth": 12}), 4095),
                   full_scale_is(save(p, y=COUNTS, mask=MASK, on={"y": {"bit_depth": 12}}), 4095),
                   refused(read_measurement, save(p, y=COUNTS, mask=MASK, of={"bit_depth": 8}))],
        "`bit_depth`", "`bit_depth`",
    ) | {
        "ENVI": ("`bit depth`", lambda p: full_scale_is(envi(p, COUNTS, bit_depth=12), 4095, mask=MASK)),
        "TIFF": ("BitsPerSample, MaxSampleValue, OME's", lambda p: [
            full_scale_is(tiff(p, COUNTS, (281, "H", (4095,))), 4095, mask=MASK),
            full_scale_is(tiff(p.with_suffix(".ome.tif"), COUNTS, metadata={"SignificantBits": 12}), 4095, mask=MASK)]),
        "PNG": ("sBIT", lambda p: [
            full_scale_is(png(p, COUNTS, (b"sBIT", b"\x0c")), 4095, mask=MASK),
            full_scale_is(png(p, 16 * COUNTS, (b"sBIT", b"\x0c")), 4095, mask=MASK),
            *(refused(read_measurement, png(p, COUNTS, (b"sBIT", bits)), mask=MASK) for bits in (b"\0", b"\x11"))]),
    },
    "black level, saturation": in_each(
        lambda p: [levels_are(lambda p, b, s: save(p, y=COUNTS, mask=MASK, of={b[0]: b[1], s[0]: s[1]}))(p),
                   levels_are(lambda p, b, s: save(p, y=COUNTS, mask=MASK, on={"y": {b[0]: b[1], s[0]: s[1]}}))(p),
                   levels_are(lambda p, b, s: save(p, y=COUNTS, mask=MASK, black_level=b[1], White_Level=s[1]))(p)],
        "`black_level`, `saturation` ...", "`y_black_level`, `saturation` ...",
    ) | {
        "ENVI": ("`black level`, `saturation`", levels_are(
            lambda p, b, s: envi(p, COUNTS, **{b[0]: b[1], s[0]: s[1]}), mask=MASK)),
        "TIFF": ("DNG's", lambda p: [
            levels_are(dng(lambda b: ("2I", (100 * b, 100))), mask=MASK)(p),
            levels_are(dng(lambda b: ("H", 4 * (b,))), mask=MASK)(p),
            refused(read_measurement, tiff(p, COUNTS, (50714, "H", (1, 2, 3, 4))), mask=MASK)]),
        "PNG": ("texts", levels_are(
            lambda p, b, s: png(p, COUNTS, *((b"tEXt", f"{k}\0{v}".encode()) for k, v in (b, s))), mask=MASK)),
    },
    "shifts, step, bands": in_each(
        lambda p: [in_any_place(lambda p, step: save(p, **SAVED, of={"step": step}))(p),
                   in_any_place(lambda p, step: save(p, **SAVED, step=step))(p),
                   p.suffix == ".h5" and in_any_place(lambda p, step: save(p, **SAVED, on={"y": {"step": step}}))(p)],
        "`shifts`; `step`, `num_bands`", "`shifts`; `step`, `num_bands`",
    ) | {
        "ENVI": ("`step`", in_any_place(lambda p, step: envi(p, Y, step=step), mask=MASK)),
        "TIFF": ("`step`", lambda p: [
            in_any_place(lambda p, step: tiff(p, Y, metadata={"step": step}), mask=MASK)(p),
            in_any_place(lambda p, step: gdal(p, Y, step=[step]), mask=MASK)(p)]),
        "PNG": ("`step`", in_any_place(
            lambda p, step: png(p, COUNTS, (b"tEXt", b"step\0%r" % step)), mask=MASK)),
    },
    "order of axes": in_each(
        lambda p: [orders(lambda p, order, cube: save(p, cube=cube, on={"cube": {"axes": order}}))(p),
                   p.suffix == ".h5" and [
                       cube_is_read(save(p, cube=CUBE.transpose(1, 0, 2), on={"cube": {"Interleave": "BIL"}})),
                       cube_is_read(named(p, ("lat", "lon", "band"), CUBE.transpose(1, 2, 0))),
                       cube_is_read(named(p, ("x", "y", "wavelength"), CUBE.transpose(2, 1, 0)))]],
        "`axes`, names of the dimensions, `Interleave`", "text `cube_axes`",
    ) | {
        "ENVI": ("`interleave`", lambda p: cube_is_read(envi(p, CUBE))),
        "TIFF": ("ImageJ's, planar configuration", lambda p: cube_is_read(
            tiff(p, CUBE, imagej=True, metadata={"axes": "CYX"}))),
    },
    "coordinates": in_each(
        lambda p: no_snapshot(save(p, x=np.arange(float(DETECTOR)), y=np.arange(float(H)), meas=Y, mask=MASK)),
        "`x` and `y` of one axis", "`x` and `y` of one axis",
    ),
}  # fmt: skip


def named(path, names, cube):
    with h5py.File(path, "w") as file:
        file["cube"] = cube
        for k, name in enumerate(names):
            file["cube"].dims[k].label = name
    return path


@pytest.mark.parametrize(
    ("names", "axis"),
    [
        (("angle", "y", "x"), 0),
        (("lat", "lon", "filters"), 2),
        (("band", "up", "aside"), 0),
        (("first", "second", "third"), 2),
    ],
)
def test_axes_of_other_names_are_known_by_those_beside_them(tmp_path, names, axis):
    """Dimension scales, as of NetCDF-4; where no name is known, by their sizes."""
    cube = np.random.default_rng(0).random((40, 24, 8), dtype=np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["cube"] = cube
        for k, (name, size) in enumerate(zip(names, cube.shape, strict=True)):
            file[f"scales/{name}"] = np.arange(size)
            file[f"scales/{name}"].make_scale(name)
            file["cube"].dims[k].attach_scale(file[f"scales/{name}"])
    assert np.array_equal(read_cube(tmp_path / "a.h5")[0], np.moveaxis(cube, axis, 0))


def no_snapshot(path):
    assert np.array_equal(read_measurement(path).y, Y)


@pytest.mark.parametrize(
    ("statement", "kind"), [(s, f) for s, row in TABLE.items() for f in (*row, *(["v7.3"] if "MATLAB" in row else []))]
)
def test_a_cell(tmp_path, statement, kind):
    cell = TABLE[statement]["MATLAB" if kind == "v7.3" else kind]
    cell[1](tmp_path / (NAMES | {"v7.3": "7.mat"})[kind])


def test_the_documented_table_has_these_cells():
    rows = [["stated", *("HDF5, NetCDF" if f == "HDF5" else f for f in NAMES)], ["---"] * (len(NAMES) + 1)]
    rows += [[s, *(row[f][0] if f in row else "-" for f in NAMES)] for s, row in TABLE.items()]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    page = (ROOT / "docs" / "file-format.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- table: statements -->\n\n")[2].partition("\n<!-- end of table -->")[0]
    assert shown == table, f"write this into docs/file-format.md:\n{table}"
