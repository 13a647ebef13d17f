"""Where a file may state something, and what counts where several places do, or where a statement cannot be."""

import warnings

import h5py
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tifffile
from containers import (
    COUNTS,
    CUBE,
    MASK,
    NM,
    PACKED,
    SAVED,
    UNITS,
    C,
    Y,
    cube_is_read,
    envi,
    gdal,
    save,
    wavelengths_are_read,
)
from messages import refused

import cassi
from cassi.files import Levels, ReadOptions, open_container, read_cube, read_measurement, shared_levels
from cassi.files.scaling import bit_depth_of
from cassi.self_calibration.camera_model import CameraModel
from cassi.self_calibration.found_camera import FoundCamera


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


@pytest.mark.parametrize("stated", [{"shifts": [0, -2, -4, -6]}, {"step": -2}, {"step": 3}, {}])
def test_a_mask_that_is_given_brings_the_shifts_of_its_camera(tmp_path, stated):
    """Whatever the file of the snapshot states, which is another camera's; a step that is given comes before both."""
    path = save(tmp_path / "y.h5", y=Y, mask=MASK, on={"y": stated})
    masks, shifts = np.stack([MASK] * 4), (0, 1, 4, 6)
    FoundCamera(masks, shifts, CameraModel(), True).save(tmp_path / "camera.h5")
    m = read_measurement(path, mask=tmp_path / "camera.h5")
    assert m.shifts == shifts and len(read_measurement(path).shifts) in (3, 4)
    assert any("states others" in note for note in m.notes) == ("shifts" in stated)
    assert read_measurement(path, mask=tmp_path / "camera.h5", step=2).shifts == (0, 2, 4, 6)
    of_step = read_measurement(path, mask=save(tmp_path / "mask.h5", mask=MASK, of={"step": 1}), num_bands=7)
    assert of_step.shifts == tuple(range(7))
    assert any("states shifts" in note for note in of_step.notes) == ("shifts" in stated)


def test_a_mask_that_is_given_brings_the_sensitivity_of_its_camera(tmp_path):
    """A refined camera's is the product of what a snapshot's file states with what was learned."""
    own, refined = 1 + np.random.default_rng(0).random((2, *Y.shape)).astype(np.float32)
    path = save(tmp_path / "y.h5", y=Y, mask=MASK, sensitivity=own)
    for name, theirs, expected in (("a", refined, refined), ("b", refined[:, 1:], own), ("c", None, own)):
        more = {} if theirs is None else {"sensitivity": theirs}
        m = read_measurement(path, mask=save(tmp_path / f"{name}.h5", mask=MASK, **more))
        assert np.array_equal(m.sensitivity, expected)
        assert any(f"of {'a' if expected is refined else 'y'}.h5" in note for note in m.notes)


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
    assert "as all of these files" in " ".join(first.notes) and "floats" not in " ".join(first.notes)
    assert "floats" in " ".join(read_measurement(files[0], levels=levels).notes)
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
