"""Where the bands lie: from widths, from the file, from masks that are stored sheared; against hand-made files."""

import numpy as np
import pytest
import scipy.io
from cases import write_h5
from messages import check_words, refused
from test_files_reading import arrays  # noqa: F401  (a fixture)

from cassi.files import read_measurement
from cassi.optics.geometry import infer_shifts
from cassi.running.arguments import load
from cassi.settings import Settings


@pytest.mark.parametrize(
    ("difference", "step", "num_bands", "expected"),
    [
        (6, None, None, (0, 2, 4, 6)), (5, None, None, (0, 1, 2, 3, 4, 5)), (6, 3, None, (0, 3, 6)),
        (6, None, 7, (0, 1, 2, 3, 4, 5, 6)), (6, -2, None, (0, -2, -4, -6)), (6, -3, 3, (0, -3, -6)),
        (0, None, 5, (0, 0, 0, 0, 0)), (0, 0, 3, (0, 0, 0)), (0, None, None, (0,)),
        (7, 2.1, 4, (0.0, 2.1, 4.2, pytest.approx(6.3))),
    ],
)  # fmt: skip
def test_shifts_from_widths(difference, step, num_bands, expected):
    assert infer_shifts((8, 20 + difference), (8, 20), None, step, num_bands, []) == expected


def test_what_does_not_fit_says_what_would():
    wide, square = (660, 714), (660, 660)
    for y, mask, step, num_bands in (
        (wide, square, None, 24), (wide, square, 4, None), (wide, square, 1, 28), ((8, 8), (8, 8), 2, 3),
        ((8, 14), (3, 8, 8), None, 4),
    ):  # fmt: skip
        refused(infer_shifts, y, mask, None, step, num_bands, [])


def test_shifts_of_the_file_any_order(tmp_path, arrays):  # noqa: F811
    for shifts in ((6, 0, 3), (0.0, 2.4, 5.5)):
        path = write_h5(tmp_path / "m.h5", shifts=np.array(shifts), **arrays)
        assert read_measurement(path).shifts == shifts
    refused(read_measurement, path, num_bands=4)
    assert read_measurement(path, step=1).shifts == tuple(range(7)), "the user overrules the file"
    refused(read_measurement, write_h5(tmp_path / "w.h5", shifts=np.array([0, 9]), **arrays))


def sheared(masks, step):
    bands, rows, width = masks.shape
    out = np.full((bands, rows, width + (bands - 1) * abs(step)), 0.25, np.float32)
    start = 0 if step > 0 else (bands - 1) * -step
    for c in range(bands):
        out[c, :, start + c * step : start + c * step + width] = masks[c]
    return out


@pytest.mark.parametrize(("step", "name"), [(1, "mask3d"), (-2, "mask3d"), (None, "mask_3d_shift")])
def test_sheared_masks_are_cut_out_at_their_shift(tmp_path, step, name):
    """A step of 2 px is taken where nothing but the name says that they are sheared."""
    mask = (np.random.default_rng(3).random((32, 24)) > 0.5).astype(np.float32)
    stored = sheared(np.stack([mask] * 5), step or 2)
    y = np.ones((32, stored.shape[-1]), np.float32)
    scipy.io.savemat(tmp_path / "m.mat", {"meas": y, name: np.moveaxis(stored, 0, -1)})
    m = read_measurement(tmp_path / "m.mat", step=step)
    assert m.shifts == tuple(c * (step or 2) for c in range(5)) and np.array_equal(m.mask, mask)
    check_words(*m.notes)


def test_masks_that_differ_by_band_stay_one_per_band(tmp_path):
    """Sheared ones; and those of a video's frames, which are not cut."""
    masks = np.random.default_rng(4).random((3, 8, 6)).astype(np.float32)
    m = read_measurement(write_h5(tmp_path / "m.h5", y=np.ones((8, 10), np.float32), mask_3d_shift=sheared(masks, 2)))
    assert m.shifts == (0, 2, 4) and np.array_equal(m.mask, masks)
    masks = (np.random.default_rng(5).random((4, 16, 16)) > 0.5).astype(np.float32)
    m = read_measurement(write_h5(tmp_path / "video.h5", y=np.ones((16, 16), np.float32), mask=masks))
    assert m.shifts == (0, 0, 0, 0) and np.array_equal(m.mask, masks)


def on_detector(masks, cube, shifts, *, down=False):
    """Masks as they lie on the detector, zero beside their bands, and the snapshot, pixel by pixel."""
    starts = np.asarray(shifts) - min(shifts)
    bands, rows, columns = cube.shape
    out = np.zeros((bands, rows, columns + starts.max()), np.float32)
    y = np.zeros(out.shape[1:], np.float32)
    for c, i, j in np.ndindex(cube.shape):
        out[c, i, j + starts[c]] = masks[c, i, j]
        y[i, j + starts[c]] += masks[c, i, j] * cube[c, i, j]
    return (out.swapaxes(1, 2), y.T) if down else (out, y)


def from_mat(folder, y, stored):
    scipy.io.savemat(folder / "m.mat", {"meas": y, "mask_3d_shift": np.moveaxis(stored, 0, -1)})
    return read_measurement(folder / "m.mat")


def from_npz(folder, y, stored):
    np.savez(folder / "m.npz", meas=y, mask3d_shift=stored)
    return read_measurement(folder / "m.npz")


FORMS = {
    "mat": from_mat, "npz": from_npz, "arrays": lambda folder, y, stored: load(y, stored, Settings()),
    "h5 of another name": lambda folder, y, phi: read_measurement(write_h5(folder / "m.h5", measurement=y, phi=phi)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["one", "grey per band", "binary per band", "dark border"])
@pytest.mark.parametrize("shifts", [(0, 1, 2, 3), (0, -2, -4, -6), (0, 3, 6, 9), (0, 1, 3, 7), (5, 0, 2, 1)])
@pytest.mark.parametrize("down", [False, True])
def test_displacements_are_read_off_what_is_dark(tmp_path, kind, shifts, down):
    rng = np.random.default_rng(6)
    masks = (0.1 + rng.random((4, 20, 16))).astype(np.float32)
    if kind != "grey per band":
        masks = (masks > 0.6).astype(np.float32)
    if kind in ("one", "dark border"):
        masks[:] = masks[0]
    if kind == "dark border":
        masks[..., :2] = masks[..., -3:] = masks[:, :4] = 0
    cube = rng.random((4, 20, 16)).astype(np.float32)
    stored, y = on_detector(masks, cube, shifts, down=down)
    expected, snapshot = on_detector(masks, cube, shifts)
    for form, read in FORMS.items():
        if down and form == "arrays":
            refused(read, tmp_path, y, stored)
            continue
        m = read(tmp_path, y, stored)
        assert tuple(np.asarray(m.shifts) - m.shifts[0]) == tuple(np.asarray(shifts) - shifts[0]), form
        found, again = on_detector(np.broadcast_to(m.mask, cube.shape), cube, m.shifts)
        assert np.array_equal(found, expected) and np.array_equal(m.y, snapshot), form
        assert any("transposed" in note for note in m.notes) == down and np.allclose(again, m.y), form


def test_displacements_that_nothing_tells_are_refused(tmp_path):
    masks = np.random.default_rng(4).random((3, 8, 6)).astype(np.float32)
    y = np.ones((8, 10), np.float32)
    grey = np.random.default_rng(5).random((3, 8, 10)).astype(np.float32)
    refused(read_measurement, write_h5(tmp_path / "m.h5", y=y, mask_3d_shift=grey))
    wrong = write_h5(tmp_path / "w.h5", y=y, mask_3d_shift=on_detector(masks, masks, (0, -2, -4))[0])
    refused(read_measurement, wrong, step=2)
    both = np.zeros((3, 12, 10), np.float32)
    for c, mask in enumerate(masks):
        both[c, 2 * c : 2 * c + 8, 2 * c : 2 * c + 6] = mask
    refused(read_measurement, write_h5(tmp_path / "b.h5", y=np.ones((12, 10), np.float32), mask_3d_shift=both))
    video = read_measurement(wrong, step=0)
    assert video.shifts == (0, 0, 0) and video.mask.shape == (3, 8, 10)
