"""Where the bands lie: from widths, from the file, from masks that are stored sheared; against hand-made files."""

import numpy as np
import pytest
import scipy.io
from cases import write_h5
from hypothesis import given, strategies as st
from messages import refused
from test_files_reading import arrays  # noqa: F401  (a fixture)

from cassi.files import InputError, read_measurement
from cassi.optics.geometry import infer_shifts
from cassi.running.arguments import load
from cassi.settings import Settings


@given(step=st.integers(-3, 3), bands=st.integers(2, 8))
def test_shifts_from_widths(step, bands):
    """Of width, step and number of bands two state the third; the step alone is not known from which side."""
    expected, y, mask = tuple(step * c for c in range(bands)), (8, 20 + abs(step) * (bands - 1)), (8, 20)
    assert infer_shifts(y, mask, None, step, bands, []) == expected
    assert step == 0 or infer_shifts(y, mask, None, step, None, []) == expected
    assert step < 0 or infer_shifts(y, mask, None, None, bands, []) == expected


def test_usual_steps_and_steps_between_pixels():
    for difference, step, bands, expected in (
        (6, None, None, (0, 2, 4, 6)), (5, None, None, (0, 1, 2, 3, 4, 5)), (0, None, None, (0,)),
        (7, 2.1, 4, pytest.approx((0, 2.1, 4.2, 6.3))),
    ):  # fmt: skip
        assert infer_shifts((8, 20 + difference), (8, 20), None, step, bands, []) == expected


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
    assert read_measurement(path, num_bands=4).shifts == (0, 2, 4, 6), "the user overrules the file"
    assert read_measurement(path, step=1).shifts == tuple(range(7))
    refused(read_measurement, write_h5(tmp_path / "w.h5", shifts=np.array([0, 9]), **arrays))


def on_detector(masks, cube, shifts, beside=0.0):
    """Masks as they lie on the detector, of one value beside their bands, and the snapshot, pixel by pixel."""
    starts = np.asarray(shifts) - min(shifts)
    bands, rows, columns = cube.shape
    out = np.full((bands, rows, columns + starts.max()), beside, np.float32)
    y = np.zeros(out.shape[1:], np.float32)
    for c, i, j in np.ndindex(cube.shape):
        out[c, i, j + starts[c]] = masks[c, i, j]
        y[i, j + starts[c]] += masks[c, i, j] * cube[c, i, j]
    return out, y


@st.composite
def sheared(draw: st.DrawFn):
    """Masks, one or one a band, of any kind; a cube; where each band lies, in any order, but at places of their own."""
    bands, rng = draw(st.integers(2, 5)), np.random.default_rng(draw(st.integers(0, 9)))
    masks = (0.1 + rng.random((bands, 20, 16))).astype(np.float32)
    kind = draw(st.sampled_from(["one", "grey per band", "binary per band", "dark border"]))
    if kind != "grey per band":
        masks = (masks > 0.6).astype(np.float32)
    if kind in ("one", "dark border"):
        masks[:] = masks[0]
    if kind == "dark border":
        masks[..., :2] = masks[..., -3:] = masks[:, :4] = 0
    step = draw(st.sampled_from([-3, -2, -1, 1, 2, 3]))
    even = tuple(step * c for c in range(bands))
    places = draw(st.just(even) | st.lists(st.integers(0, 8), min_size=bands, max_size=bands, unique=True).map(tuple))
    return masks, rng.random(masks.shape).astype(np.float32), places


@pytest.mark.parametrize(("step", "name"), [(1, "mask3d"), (-2, "mask3d"), (None, "mask_3d_shift")])
def test_sheared_masks_are_cut_out_at_their_shift(tmp_path, step, name):
    """A step of 2 px is taken where nothing but the name says that they are sheared."""
    mask = (np.random.default_rng(3).random((1, 32, 24)) > 0.5).astype(np.float32).repeat(5, 0)
    shifts = tuple(c * (step or 2) for c in range(5))
    stored, y = on_detector(mask, np.ones(mask.shape), shifts, beside=0.25)
    scipy.io.savemat(tmp_path / "m.mat", {"meas": y, name: np.moveaxis(stored, 0, -1)})
    m = read_measurement(tmp_path / "m.mat", step=step)
    assert m.shifts == shifts and np.array_equal(m.mask, mask[0])
    assert any("cropped at its shift, 24 columns" in note for note in m.notes)


def saved(write, name):
    """A reader of a snapshot and its masks that are written in this way."""
    return lambda folder, y, masks: read_measurement(write(folder / name, y, masks) or folder / name)


FORMS = {
    "mat": saved(
        lambda path, y, m: scipy.io.savemat(path, {"meas": y, "mask_3d_shift": np.moveaxis(m, 0, -1)}), "m.mat"
    ),
    "npz": saved(lambda path, y, m: np.savez(path, meas=y, mask3d_shift=m), "m.npz"),
    "h5 of another name": saved(lambda path, y, m: write_h5(path, measurement=y, phi=m), "m.h5"),
    "arrays": lambda folder, y, masks: load(y, masks, Settings()),
}


@given(scene=sheared(), down=st.booleans(), form=st.sampled_from(sorted(FORMS)))
def test_displacements_are_read_off_what_is_dark(tmp_path, scene, down, form):
    masks, cube, shifts = scene
    expected, snapshot = on_detector(masks, cube, shifts)
    stored, y = (expected.swapaxes(1, 2), snapshot.T) if down else (expected, snapshot)
    if down and form == "arrays":
        with pytest.raises(InputError):
            FORMS[form](tmp_path, y, stored)
        return
    m = FORMS[form](tmp_path, y, stored)
    assert tuple(np.asarray(m.shifts) - m.shifts[0]) == tuple(np.asarray(shifts) - shifts[0])
    found, again = on_detector(np.broadcast_to(m.mask, cube.shape), cube, m.shifts)
    assert np.array_equal(found, expected) and np.array_equal(m.y, snapshot)
    assert any("transposed" in note for note in m.notes) == down and np.allclose(again, m.y)


def test_displacements_that_nothing_tells_are_refused(tmp_path):
    masks = np.random.default_rng(4).random((3, 8, 6)).astype(np.float32)
    y = np.ones((8, 10), np.float32)
    grey = np.random.default_rng(5).random((3, 8, 10)).astype(np.float32)
    refused(read_measurement, write_h5(tmp_path / "m.h5", y=y, mask_3d_shift=grey))
    video = read_measurement(write_h5(tmp_path / "video.h5", y=y, mask=grey))
    assert video.shifts == (0, 0, 0) and np.array_equal(video.mask, grey)
    wrong = write_h5(tmp_path / "w.h5", y=y, mask_3d_shift=on_detector(masks, masks, (0, -2, -4))[0])
    refused(read_measurement, wrong, step=2)
    both = np.zeros((3, 12, 10), np.float32)
    for c, mask in enumerate(masks):
        both[c, 2 * c : 2 * c + 8, 2 * c : 2 * c + 6] = mask
    refused(read_measurement, write_h5(tmp_path / "b.h5", y=np.ones((12, 10), np.float32), mask_3d_shift=both))
    video = read_measurement(wrong, step=0)
    assert video.shifts == (0, 0, 0) and video.mask.shape == (3, 8, 10)
