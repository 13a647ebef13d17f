"""ENVI: written and read by the package `spectral`, whole or not at all; damaged headers are refused in one line."""

import numpy as np
import pytest
from messages import refused

from cassi.files import OutputError, check_output, open_container, read_cube, read_measurement, write_cube

envi = pytest.importorskip("spectral.io.envi")
CUBE = np.random.default_rng(0).standard_normal((3, 5, 7)).astype(np.float32)
NM = np.array([450.123456789, 500.5, 650.0])


@pytest.mark.parametrize("interleave", ["bsq", "bil", "bip"])
@pytest.mark.parametrize("order", ["little", "big"])
def test_what_another_program_wrote_is_read(tmp_path, interleave, order):
    path = tmp_path / "theirs.hdr"
    metadata = {"wavelength": [repr(w) for w in (1e-3 * NM).tolist()], "wavelength units": "Micrometers"}
    code = 0 if order == "little" else 1
    envi.save_image(
        str(path), CUBE.transpose(1, 2, 0), dtype=np.float64, interleave=interleave, byteorder=code, metadata=metadata
    )
    cube, nm = read_cube(path)
    assert np.array_equal(cube, CUBE)
    np.testing.assert_allclose(nm, NM, rtol=1e-12)
    entry = open_container(path).entries[0]
    part = open_container(path).read(entry, (slice(1, 3), slice(2, 5), slice(0, 2)))
    assert np.array_equal(part, CUBE.transpose(1, 2, 0)[1:3, 2:5, :2])


def test_what_is_written_another_program_reads(tmp_path):
    path = write_cube(tmp_path / "ours.hdr", CUBE, wavelengths=NM, attributes={"unit": "counts {raw}", "n": {"a": 1}})
    image = envi.open(str(path))
    assert np.array_equal(np.asarray(image.load()), CUBE.transpose(1, 2, 0))
    assert image.bands.centers == NM.tolist() and image.bands.band_unit == "Nanometers"
    assert "counts" in image.metadata["description"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["ours.hdr", "ours.img"]


def test_a_frame_of_one_band_is_a_measurement(tmp_path):
    counts = np.arange(35, dtype=np.uint16).reshape(5, 7)
    for name, values in (("y", counts), ("m", counts[:, :5] % 2)):
        envi.save_image(str(tmp_path / f"{name}.hdr"), values[..., None])
    m = read_measurement(tmp_path / "y.hdr", mask=tmp_path / "m.hdr", num_bands=2)
    np.testing.assert_allclose(m.y * m.scale, counts, atol=1e-4)


def test_neither_of_the_two_files_is_replaced_unasked(tmp_path):
    (tmp_path / "c.img").write_bytes(b"theirs")
    for make in (lambda: check_output(tmp_path / "c.hdr"), lambda: write_cube(tmp_path / "c.hdr", CUBE)):
        refused(make, error=OutputError)
    assert [one.name for one in tmp_path.iterdir()] == ["c.img"]
    write_cube(tmp_path / "c.hdr", CUBE, overwrite=True)
    assert np.array_equal(read_cube(tmp_path / "c.hdr")[0], CUBE)
    refused(write_cube, tmp_path / "d.hdr", CUBE[None])
    assert not list(tmp_path.glob("*d.hdr*"))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lines = 5", "lines = 5000000"), ("samples = 7", "samples = x"), ("bands = 3", "bands = -3"),
        ("header offset = 0", "header offset = 99"), ("data type = 4", "data type = 77"),
        ("file type = ENVI Standard", "file type = ENVI Spectral Library"),
        ("byte order = 0", "byte order = 0\nfile compression = 1"),
    ],
)  # fmt: skip
def test_damaged_headers_and_missing_data_are_refused(tmp_path, old, new):
    path = write_cube(tmp_path / "c.hdr", CUBE)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    refused(read_cube, path)
    path.with_suffix(".img").unlink()
    refused(read_cube, path)
