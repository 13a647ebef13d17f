"""`cassi simulate` with the other cameras, against the sums that define them; and what reconstructs them."""

import h5py
import numpy as np
import pytest
import torch
from messages import refused

import cassi
from cassi.cli.main import main
from cassi.files import read_measurement


def simulated(path, *options):
    words = ["--size", "24x32", "--num-bands", "5", "--seed", "3", "--quiet", "--output", str(path)]
    assert main(["simulate", *words, *options]) == 0
    return read_measurement(path)


def test_a_double_disperser_shears_the_mask_alone(tmp_path):
    """y[i, j] = sum_c m[i, j + 2 c] x_c[i, j]: the masks of all bands are windows of one wide mask."""
    m = simulated(tmp_path / "dd.h5", "--camera", "dd")
    assert m.y.shape == (24, 32) and m.mask.shape == (5, 24, 32) and set(m.shifts) == {0}
    assert all(np.array_equal(m.mask[c][:, 2:], m.mask[c + 1][:, :-2]) for c in range(4))
    np.testing.assert_allclose(m.y, (m.mask * m.cube).sum(0), rtol=1e-5)
    assert np.array_equal(m.cube, simulated(tmp_path / "sd.h5").cube)  # the camera does not change the scene


def test_a_video_camera_has_a_mask_a_frame_and_is_reconstructed_from_them(tmp_path):
    m = simulated(tmp_path / "v.h5", "--camera", "cacti")
    assert m.mask.shape == (5, 24, 32) and m.wavelengths is None and not np.array_equal(m.mask[0], m.mask[1])
    np.testing.assert_allclose(m.y, (m.mask * m.cube).sum(0), rtol=1e-5)
    np.testing.assert_allclose(m.cube[0], simulated(tmp_path / "sd.h5").cube.mean(0), atol=1e-5)
    assert np.abs(m.cube[4] - m.cube[0]).max() > 0.1  # it moves
    how = {"solver": "gap-tv", "num_iters": 5}
    expected = cassi.reconstruct(m.y, m.mask, step=0, camera="as-given", **how).cube
    assert torch.equal(cassi.reconstruct(m.y, m.mask, camera="cacti", **how).cube, expected)


@pytest.mark.parametrize("kind", ["dd", "cacti"])
def test_they_are_reconstructed_as_they_are(tmp_path, kind):
    path = tmp_path / "a.h5"
    simulated(path, "--camera", kind)
    assert main(["reconstruct", str(path), "--solver", "gap-tv", "--figures", "none", "--quiet"]) == 0
    with h5py.File(tmp_path / "a_cube.h5") as file:
        error = np.linalg.norm(file["cube"][:] - file["truth"][:]) / np.linalg.norm(file["truth"][:])
    assert error < 0.35


def test_a_double_disperser_from_its_whole_mask(tmp_path):
    """In Python and from files, the same cube as from a mask for each band; the widths say what is not given."""
    m = simulated(tmp_path / "dd.h5", "--camera", "dd")
    wide = np.concatenate([m.mask[0], m.mask[4][:, -8:]], axis=1)
    how = {"solver": "gap-tv", "num_iters": 5}
    expected = cassi.reconstruct(m.y, m.mask, step=0, camera="as-given", **how).cube
    assert torch.equal(cassi.reconstruct(m.y, wide, camera="dd", num_bands=5, **how).cube, expected)
    assert torch.equal(cassi.reconstruct(m.y, wide, camera="dd", step=2, **how).cube, expected)
    np.save(tmp_path / "y.npy", m.y)
    np.save(tmp_path / "mask.npy", wide)
    words = ["--mask", str(tmp_path / "mask.npy"), "--camera", "dd", "--solver", "gap-tv", "--iterations", "5"]
    assert main(["reconstruct", str(tmp_path / "y.npy"), *words, "--figures", "none", "--quiet"]) == 0
    with h5py.File(tmp_path / "y_cube.h5") as file:
        np.testing.assert_allclose(file["cube"][:], expected, atol=1e-5)
    for mask in (m.mask[0], m.mask):
        refused(cassi.reconstruct, m.y, mask, camera="dd", **how)
    refused(cassi.reconstruct, m.y, wide, camera="dd", step=3, **how)


def test_painted_scenes_are_flat_in_the_infrared(tmp_path, capsys):
    flat = simulated(tmp_path / "nir.h5", "--wavelengths", "900:1700:5")
    assert "spectra are flat" in capsys.readouterr().err
    assert np.ptp(flat.cube, axis=0).max() < 0.05
    simulated(tmp_path / "visible.h5")
    assert capsys.readouterr().err == ""


def test_what_does_not_go_together(tmp_path, capsys):
    words = ["simulate", "--camera", "dd", "--shots", "2", "--output", str(tmp_path / "x.h5")]
    assert main(words) == 2
    assert not (tmp_path / "x.h5").exists() and capsys.readouterr().err.count("\n") == 1
