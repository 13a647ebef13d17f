"""What a file states about itself, cell by cell of the table in docs/file-format.md: read right, or refused in words.

The right values are worked out here, never by the package: physical constants, NumPy, and files of other programs.
"""

import warnings
from pathlib import Path

import h5py
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tifffile
from containers import COUNTS, CUBE, DETECTOR, MASK, NM, PACKED, C, H, W, Y, envi, gdal, imagej, png, save, tiff
from messages import refused

import cassi
from cassi.files import Levels, ReadOptions, open_container, read_cube, read_measurement, shared_levels
from cassi.files.scaling import bit_depth_of
from cassi.files.spectrum_files import read_spectrum

ROOT = Path(__file__).resolve().parents[1]
LIGHT, PLANCK = 299_792_458.0, 1239.841984  # [m/s], h c [eV nm]
OUT = np.float32(-9999)
BAD = Y.copy()
BAD[2, 3] = OUT
UNITS = {  # by the words of files
    "nm": NM, "Nanometers": NM, "Micrometers": NM / 1e3, "µm": NM / 1e3, "μm": NM / 1e3, "microns": NM / 1e3,
    "Angstroms": 10 * NM, "Å": 10 * NM, "Meters": NM * 1e-9, "1e-9 m": NM, "mm": NM * 1e-6, "Wavenumber": 1e7 / NM,
    "cm-1": 1e7 / NM, "1/cm": 1e7 / NM, "cm^-1": 1e7 / NM, "um-1": 1e3 / NM, "GHz": LIGHT / NM, "THz": LIGHT / NM / 1e3,
    "eV": PLANCK / NM, "meV": 1e3 * PLANCK / NM,
}  # fmt: skip


def dng(tag):
    """Levels as cameras write them: a fraction, or one of each filter; the other as JSON."""
    return lambda path, b, s: tiff(path, COUNTS, (50714, *tag(b[1])), (50717, "I", (s[1],)))


def text(path, head, rows):
    path.write_text(head + "".join(f"{a};{b}\n" for a, b in rows), encoding="utf-8")
    return path


def wavelengths_are_read(path):
    nm = read_cube(path)[1]
    assert nm is not None
    np.testing.assert_allclose(nm, NM, rtol=1e-6)


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


def cube_is_read(path, expected=CUBE):
    np.testing.assert_allclose(read_cube(path)[0], expected, atol=6e-5)


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


SAVED = {"mask": MASK, "y": Y}
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


@hypothesis.settings(max_examples=8)
@hypothesis.given(st.permutations(["run/a", "run/b", "c", ""]))
def test_what_lies_beside_an_array_is_its_own(tmp_path, groups):
    """Of several masks, truths and lists; what an array states of itself comes first."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k, group in enumerate(groups):
            for name, values in (("y", Y), ("mask", MASK + k), ("wl", NM + k), ("bit_depth", 8 + k), ("cube", CUBE)):
                file[f"{group}/{name}"] = values
        file["run/a/cube"].attrs["wavelengths"], file["run/a/y"].attrs["bit_depth"] = NM[::-1], 31
    for k, group in enumerate(groups):
        path = tmp_path / "a.h5"
        m = read_measurement(path, key=f"{group}/y")
        assert m.mask[0, 0] == MASK[0, 0] + k and m.wavelengths.tolist() == (NM + k).tolist()
        own = group == "run/a"
        _, nm = read_cube(path, key=f"{group}/cube")
        assert nm.tolist() == (NM[::-1] if own else NM + k).tolist()
        assert bit_depth_of(open_container(path).entry(f"{group}/y")) == (31 if own else 8 + k)


def test_the_bands_of_a_truth_are_paired_with_those_of_its_snapshot(tmp_path):
    for nm, expected in ((NM[::-1], CUBE[::-1]), (NM, CUBE), (NM + 100, None)):
        path = save(tmp_path / "a.h5", **SAVED, cube=CUBE, wavelengths=NM, on={"cube": {"wavelengths": nm}})
        for given in (None, "unknown", "400:700:4"):
            m = read_measurement(path, wavelengths=given)
            assert (m.cube is None) == (expected is None)
            found = None if m.cube is None else m.cube / m.cube.max()
            assert found is None or np.allclose(found, expected / expected.max())
            assert ("of other wavelengths" in " ".join(m.notes)) == (expected is None)


def test_shifts_are_in_pixels_or_refused(tmp_path):
    for name in ("a.h5", "a.npz", "a.mat"):
        for unit in ("pixels", "px"):
            path = save(tmp_path / name, **SAVED, shifts=[0, -2, -4, -6], on={"shifts": {"units": unit}})
            assert read_measurement(path).shifts == (0, -2, -4, -6)
        refused(read_measurement, save(tmp_path / name, **SAVED, shifts=[0, 1, 2], on={"shifts": {"units": "mm"}}))


def test_every_group_of_a_file_is_heard(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["run/y"], file["run/mask"] = COUNTS, MASK
        file["run"].attrs.update({"shifts": [0, -2, -4, -6], "bit_depth": 12, "Wavelengths": NM, "read_noise": 3.0})
    m = read_measurement(tmp_path / "a.h5")
    assert (m.shifts, m.scale, m.read_noise) == ((0, -2, -4, -6), 4095, 3)
    assert m.wavelengths.tolist() == NM.tolist()


@pytest.mark.parametrize("stated", [{"step": -2}, {"shifts": np.array([0, -2, -4, -6])}])
def test_the_file_of_the_mask_states_what_the_snapshot_does_not(tmp_path, stated):
    np.save(tmp_path / "y.npy", Y)
    mask = save(tmp_path / "m.h5", mask=MASK, **stated)
    assert read_measurement(tmp_path / "y.npy", mask=mask).shifts == (0, -2, -4, -6)


def test_noise_and_unit_may_be_stated_of_the_file_or_of_its_array(tmp_path):
    of, error = {"gain": 2.0, "read_noise": 3.0, "scale": 100.0}, {"mask_error": 0.05}
    for stated in ({"of": of | error | {"unit": "W"}}, {"on": {"y": of | {"units": "W"}, "mask": error}}):
        for name in ("a.h5", "a.npz", "a.mat"):
            m = read_measurement(save(tmp_path / name, **SAVED, **stated))
            assert (m.gain, m.read_noise, m.scale, m.mask_error, m.unit) == (2, 3, 100, 0.05, "W")
    assert read_measurement(save(tmp_path / "b.h5", **SAVED, of={"unit": [1, 2]})).unit == "[1 2]"
    m = read_measurement(envi(tmp_path / "a.hdr", Y, gain="2", read_noise="3", scale="100", units="W"), mask=MASK)
    assert (m.gain, m.read_noise, m.scale, m.unit) == (2, 3, 100, "W")


def test_statements_are_heard_in_any_spelling(tmp_path):
    stated = {"Step": -2, "BIT DEPTH": 12, "Read Noise": 3.0}
    m = read_measurement(save(tmp_path / "a.h5", y=COUNTS, mask=MASK, of=stated))
    assert (m.shifts, m.scale, m.read_noise) == ((0, -2, -4, -6), 4095, 3)
    nm = {"wavelengths": NM / 1e3, "Wavelength_Units": "um"}
    wavelengths_are_read(save(tmp_path / "b.npz", cube=CUBE, **nm))


def test_bands_that_do_not_fit_are_refused(tmp_path):
    refused(read_measurement, save(tmp_path / "a.npz", **SAVED, num_bands=5))
    for name in ("num_bands", "bands"):
        assert read_measurement(save(tmp_path / "a.npz", **SAVED, **{name: 7})).shifts == tuple(range(7))
    assert read_measurement(save(tmp_path / "a.npz", **SAVED, bands=NM)).wavelengths.tolist() == NM.tolist()


def test_levels_are_in_counts_whatever_the_file_made_of_these(tmp_path):
    """Floats divided by the counts per unit; numbers with a scale and an offset."""
    at = {"black_level": 40, "saturation": 800}
    of_counts = {"on": {"y": at | {"scale_factor": 0.5, "add_offset": 7.0}}}
    made = ((COUNTS / 500, {"of": at | {"scale": 500.0}}, 500), (COUNTS, of_counts, 2), (COUNTS * 1.0, {"of": at}, 1))
    for values, stated, scale in made:
        for name in ("a.h5", "a.mat", "a.npz"):
            m = read_measurement(save(tmp_path / name, y=values, mask=MASK, **stated))
            np.testing.assert_allclose(m.y, (COUNTS - 40.0) / scale, rtol=1e-5)
            assert np.array_equal(m.bad_pixels, COUNTS >= 800)


def test_files_with_levels_of_their_own_share_a_unit(tmp_path):
    """Also beside floats; a level that is 0 lets counts be negative."""
    y = np.where(COUNTS == COUNTS.max(), 1023, COUNTS)
    files = [save(tmp_path / f"{b}.h5", y=y + b, mask=MASK, of={"black_level": b}) for b in (0, 50)]
    files.append(save(tmp_path / "f.h5", y=(y + 30) / 2.0 + 0.25, mask=MASK, of={"black_level": 15.25}))
    first, *others = (read_measurement(path, levels=shared_levels(files[:k], ReadOptions())) for k, path in
                      ((2, files[0]), (2, files[1]), (1, files[0])))  # fmt: skip
    assert np.allclose(first.y, others[0].y) and first.unit == others[0].unit and np.allclose(others[1].y, y / 1023)
    levels = shared_levels(files, ReadOptions())
    assert levels.counts_per_unit == 1 and np.allclose(read_measurement(files[0], levels=levels).y, y)
    signed = save(tmp_path / "s.h5", y=y.astype(np.int16) - 9, mask=MASK, of={"black_level": 0})
    assert np.allclose(read_measurement(signed).y * 1023, y - 9.0, atol=1e-3)


def test_a_level_that_is_stated_is_not_estimated_again(tmp_path):
    """Nor is it subtracted under a level that is given, in the unit of y."""
    y, mask = np.full((24, 40), 300, np.uint16), np.ones((24, 34), np.float32)
    y[:, :8], mask[:, :8] = 100, 0  # where almost no light can arrive
    how = {"num_bands": 4, "solver": "gap-tv", "num_iters": 1, "camera": "as-given"}
    for stated, given, left, taken in (
        ({}, {}, 100 / 511, 0), ({"black_level": 90}, {}, 0, 90), ({"black_level": 0}, {}, 0, 0),
        ({"black_level": 90}, {"black_level": 0.1}, 0.1, 0),
    ):  # fmt: skip
        path = save(tmp_path / "a.h5", y=y, mask=mask, of={"bit_depth": 9} | stated)
        result = cassi.reconstruct(path, **how, **given)
        assert result.outcomes[0].black_level == pytest.approx(left, abs=1e-3)
        assert result.measurement.stored[0] == taken


def test_what_is_given_comes_before_statements_that_cannot_be(tmp_path):
    stated = {"black_level": "dark", "saturation": COUNTS, "bit_depth": 64, "step": "two", "num_shots": "one"}
    given = {"levels": Levels(bit_depth=12, black_level=40, saturation=800), "step": -2}
    m = read_measurement(save(tmp_path / "a.h5", y=COUNTS, mask=MASK, of=stated), **given)
    assert (m.scale, m.shifts, m.bad_pixels.sum()) == (4055, (0, -2, -4, -6), (COUNTS >= 800).sum())


def test_light_above_the_stated_bits_is_saturated(tmp_path):
    """As `simulate` writes it: floats, the counts per unit and the bit depth."""
    y = Y.copy()
    y[4, 5] = 4095 / 2000
    m = read_measurement(save(tmp_path / "a.h5", y=y, mask=MASK, of={"bit_depth": 12, "scale": 2000.0}))
    assert np.argwhere(m.bad_pixels).tolist() == [[4, 5]]


@pytest.mark.parametrize(("y", "of"), [(Y, {}), (Y, {"bit_depth": 12}), (COUNTS * 1.0, {"scale": 2000.0})])
def test_floats_in_a_unit_of_their_own_are_no_counts_of_a_bit_depth(tmp_path, y, of):
    path = save(tmp_path / "a.h5", y=y, mask=MASK, of=of)
    refused(read_measurement, path, levels=Levels(bit_depth=12))
    whole = save(tmp_path / "b.h5", y=COUNTS * 1.0, mask=MASK)
    assert read_measurement(whole, levels=Levels(bit_depth=12)).scale == 4095


def test_a_scale_of_one_leaves_counts(tmp_path):
    path = save(tmp_path / "a.h5", y=COUNTS, mask=MASK, on={"y": {"scale_factor": 1.0, "add_offset": 0}})
    np.testing.assert_allclose(read_measurement(path).y, COUNTS / 1023, rtol=1e-6)


def test_the_reflectance_of_an_airborne_campaign(tmp_path):
    stated = {"Scale_Factor": 10_000.0, "Data_Ignore_Value": -9999.0, "Dimension_Labels": "Line, Sample, Wavelength"}
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["SITE/Reflectance/Reflectance_Data"] = np.moveaxis(PACKED, 0, -1)
        file["SITE/Reflectance/Reflectance_Data"].attrs.update(stated)
        file["SITE/Reflectance/Metadata/Spectral_Data/Wavelength"] = NM
        file["SITE/Reflectance/Metadata/Spectral_Data/Wavelength"].attrs["Units"] = "nanometers"
    cube_is_read(tmp_path / "a.h5")
    wavelengths_are_read(tmp_path / "a.h5")


def test_a_list_may_be_an_attribute(tmp_path):
    for unit, values in UNITS.items():
        stated = {"wavelengths": values, "Wavelength Unit": unit}
        for where in ({"of": stated}, {"on": {"cube": stated}}):
            wavelengths_are_read(save(tmp_path / "a.h5", cube=CUBE, **where))


def test_wavelengths_of_gdal_and_of_the_channels_of_a_microscope(tmp_path):
    units = ["Nanometers"] * C
    wavelengths_are_read(gdal(tmp_path / "a.tif", wavelength=NM.tolist(), wavelength_units=units))
    wavelengths_are_read(gdal(tmp_path / "b.tif", CENTRAL_WAVELENGTH_UM=(NM / 1e3).tolist()))
    for unit, scale in ((None, 1), ("µm", 1e-3)):
        channels = {"EmissionWavelength": (NM * scale).tolist()} | (
            {"EmissionWavelengthUnit": [unit] * C} if unit else {}
        )
        tifffile.imwrite(tmp_path / "c.ome.tif", CUBE, metadata={"axes": "CYX", "Channel": channels})
        wavelengths_are_read(tmp_path / "c.ome.tif")


def test_what_a_parser_warns_of_is_no_damage(tmp_path):
    """Nor an attribute that holds nothing, as NetCDF writes empty texts."""
    path = envi(tmp_path / "a.hdr", CUBE, wavelength=list(map(repr, NM.tolist())))
    path.write_text(path.read_text() + "Sensor Type = X\nWavelength Units = nm\n")
    with warnings.catch_warnings(action="error"), np.errstate(all="raise"):
        wavelengths_are_read(path)
    nothing = {"units": h5py.Empty("S1"), "step": h5py.Empty("f4")}
    m = read_measurement(save(tmp_path / "a.h5", **SAVED, of=nothing, on={"y": nothing}))
    assert m.shifts == (0, 2, 4, 6) and m.unit == "relative radiance"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8", "utf-8-sig", "utf-16"])
def test_headers_in_any_encoding_are_read(tmp_path, encoding):
    path = envi(tmp_path / "a.hdr", CUBE, wavelength=list(map(repr, NM.tolist())))
    more = "wavelength units = nm\nsensor type = µm-Kamera, 20 °C\n"
    path.write_bytes((path.read_text() + more).encode(encoding))
    cube_is_read(path)
    wavelengths_are_read(path)
