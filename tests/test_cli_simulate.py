"""`cassi simulate` with the other cameras, against the sums that define them; and what reconstructs them."""

import h5py
import numpy as np
import pytest
import torch
from cases import write_h5
from messages import check_refusal, refused
from scipy.io import savemat

import cassi
from cassi.cli.main import main
from cassi.files import read_measurement
from cassi.files.options import ReadOptions
from cassi.files.reading import open_measurement


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


def test_a_double_disperser_through_a_wide_mask_for_each_band(tmp_path, capsys):
    """The scene is as wide as fits it, and where none does, it is said what would."""
    wide = np.random.default_rng(0).random((5, 24, 40)).astype(np.float32)
    np.save(tmp_path / "m.npy", wide)
    words = ["simulate", "--camera", "dd", "--mask", str(tmp_path / "m.npy"), "--output", str(tmp_path / "dd.h5")]
    assert main(words) == 0
    m = read_measurement(tmp_path / "dd.h5")
    np.testing.assert_array_equal(m.mask, [wide[c][:, 2 * c : 2 * c + 32] for c in range(5)])
    np.testing.assert_allclose(m.y, (m.mask * m.cube).sum(0), rtol=1e-5)
    for more in (["--size", "24x33"], ["--step", "-10"], ["--camera", "cacti", "--mask", str(tmp_path / "2d.npy")]):
        np.save(tmp_path / "2d.npy", wide[0])
        check_refusal(capsys, main([*words, "--overwrite", *more]))


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


def test_a_mosaic_sensor_from_words_arrays_and_files(tmp_path):
    """The masks of a simulated one are those that its pattern makes of a raw frame; in Python and from files."""
    path, P = tmp_path / "m.h5", np.array([[2, 3, 0], [1, 4, 2]])
    words = ["--camera", "mosaic", "--pattern-offset", "1,2"]
    np.savetxt(tmp_path / "p.txt", P, fmt="%d")
    m = simulated(path, *words, "--pattern", str(tmp_path / "p.txt"))
    expected = P[(np.arange(24)[:, None] + 1) % 2, (np.arange(32) + 2) % 3] == np.arange(5)[:, None, None]
    assert np.array_equal(m.mask, expected) and set(m.shifts) == {0} and m.mask_error == 0
    np.testing.assert_allclose(m.y, (m.mask * m.cube).sum(0), rtol=1e-5)
    how = {"solver": "gap-tv", "num_iters": 5}
    A = cassi.Mosaic.from_pattern(P, (24, 32), offset=(1, 2))
    cube = cassi.reconstruct(m.y, A, **how).cube
    kind = {"camera": "mosaic", "pattern": P + 1, "pattern_offset": (1, 2)}
    assert torch.equal(cassi.reconstruct(m.y, **kind, **how).cube, cube)
    np.save(tmp_path / "y.npy", m.y)
    assert torch.equal(cassi.reconstruct(tmp_path / "y.npy", **kind, **how).cube, cube)
    np.savez(tmp_path / "p.npz", filters=P)
    raw = ["reconstruct", str(tmp_path / "y.npy"), *words, "--solver", "gap-tv", "--iterations", "5", "--quiet"]
    assert main([*raw, "--pattern", str(tmp_path / "p.npz"), "--figures", "none"]) == 0
    assert (
        main(["reconstruct", str(path), "--solver", "gap-tv", "--iterations", "5", "--quiet", "--figures", "none"]) == 0
    )
    for name in ("y_cube.h5", "m_cube.h5"):
        with h5py.File(tmp_path / name) as file:
            np.testing.assert_allclose(file["cube"][:], cube, atol=1e-5)


def test_filters_with_a_response_and_crosstalk_from_tables(tmp_path):
    R, X = np.random.default_rng(0).random((3, 7)), np.eye(3) + 0.1
    np.savetxt(tmp_path / "R.csv", R, delimiter=",", header="one row a filter")
    np.savetxt(tmp_path / "X.tsv", X, delimiter="\t")
    words = ["simulate", "--size", "24x32", "--quiet", "--camera", "mosaic", "--pattern", "GRBG"]
    files = {"--output": "m.h5", "--response": "R.csv", "--crosstalk": "X.tsv"}
    assert main(words + [word for option, name in files.items() for word in (option, str(tmp_path / name))]) == 0
    m = read_measurement(tmp_path / "m.h5")
    rows = X @ R
    np.testing.assert_allclose(m.mask[:, :2, :2], rows[[[1, 2], [0, 1]]].transpose(2, 0, 1), rtol=1e-6)


def test_stacks_of_mosaic_frames_have_their_axis_where_their_format_has_it(tmp_path):
    frames = np.random.default_rng(0).random((3, 20, 24)).astype(np.float32)
    np.save(tmp_path / "s.npy", frames)
    savemat(tmp_path / "s.mat", {"meas": frames.transpose(1, 2, 0)})
    options = ReadOptions(pattern="2x3")
    for name in ("s.npy", "s.mat"):
        m = open_measurement(tmp_path / name, options).read()
        assert m.mask.shape == (6, 20, 24) and np.array_equal(m.y, frames)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("simulate", ["--camera", "mosaic"]), ("simulate", ["--pattern", "4x4"]),
        ("simulate", ["--camera", "mosaic", "--pattern", "4x"]),
        ("simulate", ["--camera", "mosaic", "--pattern", "4x4", "--num-bands", "9"]),
        ("simulate", ["--camera", "mosaic", "--pattern", "4x4", "--response", "ragged.csv"]),
        ("simulate", ["--camera", "mosaic", "--pattern", "several.npz"]),
        ("reconstruct", ["--camera", "mosaic", "--pattern", "4x4", "--mask", "y.npy"]),
        ("reconstruct", ["--camera", "mosaic"]),
        ("reconstruct", ["--camera", "mosaic", "--pattern", "40x40"]),
    ],
)  # fmt: skip
def test_what_is_no_mosaic_is_said_in_a_line(tmp_path, capsys, monkeypatch, command, options):
    monkeypatch.chdir(tmp_path)
    np.save("y.npy", np.ones((24, 64)))
    np.savez("several.npz", a=np.eye(2), b=np.eye(2))
    (tmp_path / "ragged.csv").write_text("1,2\n3\n")
    place = ["y.npy"] if command == "reconstruct" else ["--output", "m.h5"]
    check_refusal(capsys, main([command, *place, *options]))
    assert not (tmp_path / "m.h5").exists()


def test_painted_scenes_are_flat_in_the_infrared(tmp_path, capsys):
    flat = simulated(tmp_path / "nir.h5", "--wavelengths", "900:1700:5")
    assert "spectra are flat" in capsys.readouterr().err
    assert np.ptp(flat.cube, axis=0).max() < 0.05
    simulated(tmp_path / "visible.h5")
    assert capsys.readouterr().err == ""


def test_a_mask_by_band_states_the_number_of_bands(tmp_path):
    """As the file of a camera does: y = sum_c m_c x_c, displaced."""
    masks = np.random.default_rng(0).random((3, 24, 32)).astype(np.float32)
    write_h5(tmp_path / "camera.h5", mask=masks, shifts=np.arange(3) * 2, mask_3d_shift=masks)
    words = ["simulate", "--mask", str(tmp_path / "camera.h5"), "--output", str(tmp_path / "m.h5"), "--quiet"]
    assert main(words) == 0
    m = read_measurement(tmp_path / "m.h5")
    assert m.shifts == (0, 2, 4) and m.cube.shape == (3, 24, 32)
    shifted = sum(np.pad(m.cube[c] * masks[c], ((0, 0), (2 * c, 4 - 2 * c))) for c in range(3))
    np.testing.assert_allclose(m.y, shifted, rtol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        ["--seed", "99999999999999999999"], ["--seed", "99999999999999999999", "--bench"],
        ["--wavelengths", "1e30:2e30:8"], ["--wavelengths="], ["--wavelengths=", "--cube", "cube.npy"],
        ["--mask", "masks.npy", "--num-bands", "4", "--size", "24x32"], ["--full-well", "1e19"],
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_said_in_a_line(tmp_path, capsys, monkeypatch, options):
    """Seeds of more than 64 bits, and what else no camera or scene has."""
    monkeypatch.chdir(tmp_path)
    np.save("masks.npy", np.eye(24, 32, dtype=np.float32)[None].repeat(5, 0))
    np.save("cube.npy", np.ones((3, 16, 16), np.float32))
    place = tmp_path / "m.h5"
    options = [*options, str(place)] if "--bench" in options else [*options, "--output", str(place)]
    check_refusal(capsys, main(["simulate", *options]))
    assert not place.exists()


def test_what_does_not_go_together(tmp_path, capsys):
    words = ["simulate", "--camera", "dd", "--shots", "2", "--output", str(tmp_path / "x.h5")]
    assert main(words) == 2
    assert not (tmp_path / "x.h5").exists() and capsys.readouterr().err.count("\n") == 1
