"""The camera found from simulated snapshots whose camera is known."""

from dataclasses import replace
from functools import partial

import h5py
import numpy as np
import pytest
import torch
from benchmarks.twin import microscope_mask, objects
from cases import moved
from messages import refused
from scipy import ndimage

import cassi
from cassi.evidence.fitting import fit, fit_basis
from cassi.evidence.held_out import Split
from cassi.evidence.judge import is_better
from cassi.files import read_measurement, write_arrays
from cassi.files.cubes import turn
from cassi.optics.building import build_shot_camera
from cassi.optics.cropping import highest_variance_window
from cassi.optics.detector import black_level_of, brightness
from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.priors.spectral_basis import smooth_basis
from cassi.self_calibration import search
from cassi.self_calibration.camera_model import BLURS, CameraModel, blur_weights, blurred_masks, box_blurred
from cassi.self_calibration.elements_of_several import MaskError
from cassi.self_calibration.found_camera import FoundCamera, read_found_mask
from cassi.self_calibration.pose import Search, directions, fit_directions
from cassi.self_calibration.regression import Snapshots, gather
from cassi.self_calibration.scenes import CPU, Scenes, first_frames, through
from cassi.self_calibration.search import _accept, find_camera, predictions
from cassi.solvers.subspace_tv import subspace_tv

SHIFTS = tuple(range(0, 16, 2))
SIZE = 128
find_placed = partial(
    find_camera, mask_error=False
)  # each element's own error: test_self_calibration_elements_of_several.py


@pytest.fixture(scope="module")
def mask():
    return ndimage.gaussian_filter(np.random.default_rng(0).random((SIZE, SIZE)), 0.6).astype(np.float32)


@pytest.fixture(scope="module")
def scene():
    """Smooth colors with edges between them, (8, H, W)."""
    rng = np.random.default_rng(1)
    regions = ndimage.gaussian_filter(rng.standard_normal((4, SIZE, SIZE)), (0, 14, 14)).argmax(0)
    t = np.linspace(0, 1, len(SHIFTS))
    spectra = np.stack([0.4 + 0.3 * np.cos(2 * np.pi * (t - phase)) for phase in (0, 0.25, 0.5, 0.75)])
    shade = 1 + 0.2 * ndimage.gaussian_filter(rng.standard_normal((SIZE, SIZE)), 20) / 0.02
    return (spectra[regions].transpose(2, 0, 1) * np.clip(shade, 0.6, 1.4)).astype(np.float32)


def photographed(scene, true_mask, mask, electrons=20_000):
    y = CASSI(torch.as_tensor(true_mask), SHIFTS).forward(torch.as_tensor(scene)).numpy()
    gain = electrons / y.max()
    y = np.random.default_rng(2).poisson(y * gain) / gain
    return Measurement(y=y.astype(np.float32), mask=mask, shifts=SHIFTS)


def test_an_exact_camera_stays_exact(scene, mask):
    m = photographed(scene, mask, mask)
    found = find_camera(m)
    assert not found.accepted and found.model.exact
    assert np.array_equal(found.mask, mask)
    assert found.in_place(m) is m and "nothing else fits the snapshot better" in found.message


@pytest.mark.parametrize(
    ("pose", "down", "right", "off"),
    [
        # farther than the search around a place reaches: it begins where the comparison with the mask says
        ({"dx": 6.0, "dy": -4.0}, {"1": -4}, {"1": 6}, 0.15),
        # at the border, 64 px from the center, 0.9 degrees are 1.0 px and 0.75 % are 0.48 px
        ({"rotation": 0.9, "scale": 1.0075}, {"x": -1.0053, "y": 0.48}, {}, 0.1),
    ],
    ids=["moved far", "turned and magnified"],
)
def test_a_mask_out_of_place_is_found(scene, mask, pose, down, right, off):
    found = find_placed(photographed(scene, moved(mask, **pose), mask))
    assert found.accepted and found.errors[1] < found.errors[0]
    assert {name: found.model.down[name] for name in down} == pytest.approx(down, abs=off)
    assert {name: found.model.right[name] for name in right} == pytest.approx(right, abs=0.15)
    assert found.model.right.get("y", 0.0) == pytest.approx(-found.model.down.get("x", 0.0))


def test_where_nobody_has_seen_the_mask_pixels_are_left_out(scene, mask, tmp_path):
    """Cut out one row and one column off: what lies beyond the picture is another part of the mask."""
    m = photographed(scene, np.roll(mask, (-1, 1), (0, 1)), mask)
    found = find_placed(m)
    assert found.accepted and found.errors[1] < found.errors[0]
    assert (found.model.down["1"], found.model.right["1"]) == (pytest.approx(-1, abs=0.05), pytest.approx(1, abs=0.15))
    used = found.in_place(m)
    assert used.bad_pixels[-1].all() and used.bad_pixels[5:-5, 0].all(), "the last row; the first band's first column"
    assert not used.bad_pixels[5:-5, 20:-20].all(axis=1).any()
    assert found.mask[0][-1].std() < mask[-1].std() / 3, "its local mean stands there"
    A = CASSI(torch.as_tensor(found.mask), SHIFTS).weighted(torch.as_tensor(~used.bad_pixels, dtype=torch.float32))
    x = subspace_tv(A, torch.as_tensor(used.y), smooth_basis(8, 4).float(), num_iters=60)[0].x.numpy()
    error = np.sqrt(((x - scene) ** 2).mean(axis=0))
    assert error[-1].mean() < 2 * error.mean()
    raw, nm = write_arrays(tmp_path / "raw.h5", {"measurement": m.y}), np.linspace(450, 650, len(SHIFTS))
    path = found.save(tmp_path / "camera.h5", wavelengths=nm)
    again = read_measurement(raw, mask=path)
    assert np.array_equal(again.wavelengths, nm)
    assert np.array_equal(again.bad_pixels, found.left_out) and np.array_equal(again.mask, found.mask)
    assert found.is_saved(path) and not replace(found, mask=2 * found.mask).is_saved(path)
    assert not found.is_saved(raw) and not found.is_saved(tmp_path / "none.h5")


@pytest.mark.parametrize("bands", [(), (6,)])
def test_the_file_of_a_camera_lies_along_the_rows(bands, tmp_path):
    """Also where snapshots lie along the columns."""
    rng = np.random.default_rng(0)
    y, mask = rng.random((20, 34), np.float32), rng.random((*bands, 20, 24), np.float32)
    write_arrays(tmp_path / "m.h5", {"measurement": y.T, "mask": rng.random((24, 20), np.float32)})
    m = read_measurement(tmp_path / "m.h5", num_bands=6)
    bad = rng.random(y.shape) > 0.9
    even = rng.uniform(0.9, 1.1, y.shape).astype(np.float32)
    found = replace(FoundCamera.as_given(m), mask=mask, left_out=bad, sensitivity=even, accepted=True)
    again = read_measurement(tmp_path / "m.h5", mask=found.save(tmp_path / "camera.h5"))
    assert again.transposed and np.array_equal(again.y, y)
    assert np.array_equal(again.mask, mask) and np.array_equal(again.bad_pixels, bad)
    assert np.array_equal(again.sensitivity, even)
    of_the_file = {"measurement": y.T, "mask": rng.random((24, 20), np.float32), "sensitivity": even.T}
    write_arrays(tmp_path / "own.h5", of_the_file)
    assert np.array_equal(read_measurement(tmp_path / "own.h5", num_bands=6).sensitivity, even)
    write_arrays(tmp_path / "dead.h5", of_the_file | {"sensitivity": even.T * (even.T > 0.95)})
    dead = read_measurement(tmp_path / "dead.h5", num_bands=6)
    assert np.array_equal(dead.bad_pixels, even <= 0.95) and (dead.sensitivity > 0.9).all()


def test_a_black_level_that_is_not_there_passes_for_no_contrast(scene):
    """Closed elements out of place are lit, and tell one; the mask's pattern then seems too deep."""
    mask = (np.random.default_rng(7).random((SIZE, SIZE)) > 0.5).astype(np.float32)
    m = photographed(scene, np.roll(mask, 1, axis=1), mask)
    y = torch.as_tensor(m.y)
    assert black_level_of(build_shot_camera(m, torch.device("cpu")), y) > 0.02 * float(y.mean())
    found = find_camera(m, mask_error=False)
    assert found.accepted and found.model.right["1"] == pytest.approx(1, abs=0.1)
    assert found.model.contrast == 1
    assert predictions(m, found) == pytest.approx(found.errors[1], rel=1e-3)  # nor is one taken off there


def test_threads_share_the_blocks_and_change_nothing(torch_threads):
    random = np.random.default_rng(5)
    mask, detail = random.random((256, 64)), random.standard_normal((1, 256, 78)).astype(np.float32)
    snapshots = Snapshots(detail, random.random(detail.shape) < 0.9)
    masks = blurred_masks(CameraModel(), mask, SHIFTS)
    found = []
    for count in (1, 2):
        torch_threads(count)
        found.append(gather(snapshots, masks, SHIFTS))
        assert torch.get_num_threads() == count
    for name in ("gram", "right", "energy", "count"):
        torch.testing.assert_close(getattr(found[0], name), getattr(found[1], name))
    assert len(found[0].count) == 16 and float(found[0].gram.diagonal(dim1=1, dim2=2).min()) > 0


def test_spectra_that_rise_steeply_are_no_displaced_mask():
    """Six smooth spectra to a block take this exact camera for one with its mask 0.06 px further on."""
    random = np.random.default_rng(3)
    shifts, size = tuple(range(0, 56, 2)), 128
    mask = ndimage.gaussian_filter(random.random((size, size)), 0.6).astype(np.float32)
    regions = ndimage.gaussian_filter(random.standard_normal((3, size, size)), (0, 10, 10)).argmax(0)
    spectra = np.exp(6 * (np.linspace(0, 1, 28) - 1)) * np.array([[0.85], [1.05], [1.25]])
    x = torch.as_tensor(spectra[regions].transpose(2, 0, 1).astype(np.float32))
    y = CASSI(torch.as_tensor(mask), shifts).forward(x).numpy()
    blocks = Search(Snapshots.of(y[None]), mask, shifts).blocks(CameraModel())
    assert np.abs(fit_directions(blocks, directions(mask.shape)["place"], {})).max() < 0.04


@pytest.mark.parametrize(
    ("changed", "picture", "found"),
    [
        (lambda mask: ndimage.gaussian_filter(mask, 0.8), lambda mask: mask, {"blur": (0.64, 0.2)}),
        (lambda mask: mask, lambda mask: ndimage.gaussian_filter(mask, 0.7), {"blur": (-0.7, 0.4)}),
        (lambda mask: (0.4 * mask.mean() + 0.6 * mask).clip(0), lambda mask: mask, {"contrast": (0.6, 0.08)}),
        (lambda mask: (1.4 * mask - 0.4 * mask.mean()).clip(0), lambda mask: mask, {"contrast": (1.4, 0.15)}),
        # a short reconstruction sees little of it: 1.4 standard errors
        (lambda mask: 0.2 * mask.mean() + 0.8 * mask, lambda mask: mask, {"contrast": (0.8, 0.05)}),
    ],
    ids=["blurred", "sharper than its picture", "weaker", "deeper", "a little weaker"],
)
def test_sharpness_and_contrast_are_found(scene, mask, changed, picture, found):
    camera = find_placed(photographed(scene, changed(mask), picture(mask), electrons=1e6))
    told = {"blur": camera.model.blur.get("1", 0.0), "contrast": camera.model.contrast}
    assert camera.accepted
    assert all(told[name] == pytest.approx(value, abs=off) for name, (value, off) in found.items())


@pytest.mark.parametrize("last", [1.2, 1.6])
def test_blur_that_grows_with_the_band_is_no_lack_of_contrast(scene, last):
    """A level that serves all bands helps little alone, nor does a slope without one: they are taken together."""
    mask = (np.random.default_rng(7).random((SIZE, SIZE)) > 0.5).astype(np.float32)
    true = np.stack([ndimage.gaussian_filter(mask, width) for width in np.linspace(0.3, last, len(SHIFTS))])
    found = find_placed(photographed(scene, true, mask))
    assert found.accepted and found.model.contrast == 1
    assert found.model.blur["1"] > 0.2 and found.model.blur["t"] == pytest.approx((last**2 - 0.3**2) / 2, rel=0.4)


SHARPENED = CameraModel(down={"1": -1.0}, right={"1": 1.0}, blur={"1": -0.2})


def test_a_camera_that_the_snapshot_does_not_show_is_not_taken(scene, monkeypatch):
    """Of another mask's snapshot: one without a pattern, or any that predicts better, predicts badly all the same."""
    ours, theirs = ((np.random.default_rng(k).random((SIZE, SIZE)) > 0.5).astype(np.float32) for k in (7, 8))
    found = find_camera(photographed(scene, theirs, ours))
    assert not found.accepted and found.model.contrast == 1
    monkeypatch.setattr("cassi.self_calibration.search.find_model", lambda *_: SHARPENED)
    monkeypatch.setattr("cassi.self_calibration.search.refine_pose", lambda search, model, mask: model)
    monkeypatch.setattr("cassi.self_calibration.search.not_worse", lambda *_: True)
    found = find_camera(photographed(scene, theirs, ours))
    assert not found.accepted and "shows neither the mask as given nor another" in found.message
    assert np.array_equal(found.mask, ours) and found.left_out is None
    assert find_placed(photographed(scene, moved(ours, dx=1.0, dy=-1.0), ours)).accepted


def test_a_camera_that_predicts_worse_is_not_taken(scene, mask, monkeypatch):
    monkeypatch.setattr(search, "find_model", lambda *_: CameraModel(down={"1": 1.0}, right={"1": 1.0}))
    monkeypatch.setattr(search, "refine_pose", lambda search, model, mask: model)
    found = find_placed(photographed(scene, mask, mask))
    assert not found.accepted and found.errors[1] > found.errors[0] and "predicts worse" in found.message


@pytest.mark.parametrize("fineness", [1.0, 3.0])
def test_light_in_one_band_is_no_other_camera(scene, fineness):
    """Smooth spectra give some of it to the bands beside, whose masks then seem to have no detail."""
    mask = (np.random.default_rng(7).random((SIZE, SIZE)) > 0.5).astype(np.float32)
    texture = ndimage.gaussian_filter(np.random.default_rng(3).standard_normal((SIZE, SIZE)), fineness)
    x = np.zeros_like(scene)
    x[3] = scene.mean(axis=0) * (1 + 0.5 * fineness * texture)
    assert not find_camera(photographed(x, mask, mask)).accepted


def test_the_part_that_was_not_looked_for_is_told(scene, mask):
    m = photographed(scene, mask, mask)
    between = replace(m, shifts=tuple(2.05 * c for c in range(len(SHIFTS))))
    assert "bands on whole pixels only" in find_camera(between).message
    assert not find_camera(replace(m, shifts=tuple(d + 0.5 for d in SHIFTS))).accepted
    ones = replace(m, mask=np.ones_like(mask))
    assert find_camera(ones).mask is ones.mask and "this mask has none" in find_camera(ones).message
    assert "too small" in find_camera(replace(m, y=m.y[:64, :78], mask=m.mask[:64, :64])).message


def test_a_mask_is_no_sharper_than_its_picture_without_need(scene, mask, monkeypatch):
    """The detail of a scene passes for it; what it is worth to the held-out pixels decides."""
    m = photographed(scene, moved(mask, dx=1.0, dy=-1.0), mask)
    monkeypatch.setattr("cassi.self_calibration.search.find_model", lambda *_: SHARPENED)
    found = find_placed(m)
    assert found.accepted and found.model.blur == {} and found.model.contrast == 1
    assert found.model.down["1"] == pytest.approx(-1, abs=0.02) and found.model.right["1"] == pytest.approx(1, abs=0.02)


def test_the_contrast_of_bright_objects_is_not_the_masks():
    """In the dark between them the pattern is fainter than light is on average: a contrast of 1.7 explains it."""
    rng, shifts = np.random.default_rng(0), tuple(range(0, 48, 2))
    dark = microscope_mask(rng, 160)
    y = CASSI(torch.as_tensor(dark), shifts).forward(torch.as_tensor(objects(rng, 160, np.linspace(450, 650, 24))))
    y = np.random.default_rng(2).poisson(y / y.max() * 2000) / 2000
    found = find_placed(Measurement(y=y.astype(np.float32), mask=dark.astype(np.float32), shifts=shifts))
    assert found.errors is not None and not found.accepted and found.model.exact


def test_the_part_that_is_compared_lies_where_the_light_is():
    y = torch.zeros(256, 263)
    y[200:, 210:] = torch.rand(56, 53, generator=torch.Generator().manual_seed(0))
    assert highest_variance_window(y, (256, 256), 192) == (slice(64, 256), slice(64, 256))
    assert highest_variance_window(y[:100, :107], (100, 100), 192) == (slice(0, 100), slice(0, 100))


def test_several_snapshots_count_together(scene, mask):
    true = moved(mask, dx=0.0, dy=0.5)
    one, other = (photographed(s, true, mask) for s in (scene, scene[:, ::-1].copy()))
    bad = np.zeros(other.y.shape, bool)
    bad[20:60, 30:70] = True  # pixels that the second alone leaves out
    other = replace(other, y=np.where(bad, 9 * other.y.max(), other.y), bad_pixels=bad)
    assert find_placed(one, other).model.down["1"] == pytest.approx(0.5, abs=0.03)


def test_what_cannot_be_used_is_refused_before_the_search(scene, mask, monkeypatch):
    monkeypatch.setattr("cassi.self_calibration.search.find_model", lambda *_: pytest.fail("searched"))
    refused(find_camera, error=ValueError)
    m = Measurement(y=np.ones((40, 54), np.float32), mask=mask[:40, :40], shifts=SHIFTS)
    refused(find_camera, m, replace(m, y=np.ones((40, 55), np.float32)), error=ValueError)
    m = photographed(scene, mask, mask)
    for changed, black in ((replace(m, y=-m.y), None), (m, float(m.y.max()))):
        refused(find_camera, changed, black_level=black)


@pytest.mark.parametrize("kind", ["grey", "binary"])
def test_blurs_between_are_interpolated(mask, kind):
    sharp = mask if kind == "grey" else (mask > mask.mean()).astype(np.float64)
    levels = [ndimage.gaussian_filter(sharp, v**0.5) if v else sharp for v in BLURS]
    for variance in (0.4, 0.5, 0.8, 1.0, 1.3, 1.7, 2.5, 3.5, 4.5):
        made = sum(w * level for w, level in zip(blur_weights(np.array(variance)), levels, strict=True))
        assert (made - ndimage.gaussian_filter(sharp, variance**0.5)).std() < sharp.std() / 30


def test_a_box_covers_pixels_in_part_and_an_exact_model_hands_the_mask_back(mask):
    """Two pixels wide and centered on a pixel: that pixel wholly, and half of either neighbor."""
    line = np.zeros((1, 7))
    line[0, 3] = 4.0
    assert box_blurred(line, 2.0)[0].tolist() == [0, 0, 1, 2, 1, 0, 0]
    assert box_blurred(line, 1.0) is line and CameraModel().masks(mask, SHIFTS) is mask
    assert np.allclose(CameraModel(tone=2.0).masks(mask, SHIFTS)[3], mask.astype(np.float64) ** 2, atol=1e-6)


@pytest.mark.parametrize("how", ["none", "90", "flip"])
@pytest.mark.parametrize("dispersion", [0.0, 0.7])
def test_a_result_holds_the_model_and_the_error_of_its_mask_not_the_masks(tmp_path, monkeypatch, how, dispersion):
    """And gives the masks back, whichever way the result is turned."""
    draw = torch.Generator().manual_seed(3)
    given = torch.rand(40, 48, generator=draw).numpy()
    shifts = (0, 2, 4, 6)
    y = CASSI(torch.as_tensor(given), shifts).forward(torch.rand(4, 40, 48, generator=draw)).numpy()
    m = Measurement(y, given, shifts)
    model = CameraModel(down={"1": 0.4, "x": 0.1}, right={"1": -0.3, "t": dispersion}, blur={"1": 0.5}, tone=1.1)
    found = _accept(FoundCamera.as_given(m), m, model, model.masks(given, shifts))
    error = 0.02 * torch.randn(40, 48, generator=draw)
    learned = MaskError(error, None, True, errors=((0.1, 0.05),))
    found = replace(found, mask=np.clip(found.mask + error.numpy(), 0, 2), mask_error=learned)
    monkeypatch.setattr("cassi.self_calibration.search.find_camera", lambda m, **settings: found)
    result = cassi.reconstruct(m, solver="least-squares", turn_result=how)
    result.save(tmp_path / "cube.h5")
    with h5py.File(tmp_path / "cube.h5") as file:
        assert file["mask_given"].ndim == file["mask_error"].ndim == 2
    np.testing.assert_allclose(read_found_mask(tmp_path / "cube.h5"), turn(found.mask, how), atol=2e-6)
    each = np.repeat(given[None], 4, 0)  # one for each band is not repeated in a result
    cassi.reconstruct(replace(m, mask=each), solver="least-squares", turn_result=how).save(tmp_path / "bands.h5")
    refused(read_found_mask, tmp_path / "bands.h5")
    np.testing.assert_allclose(read_found_mask(tmp_path / "bands.h5", each), turn(found.mask, how), atol=2e-6)
    cassi.reconstruct(m, solver="least-squares", camera="as-given").save(tmp_path / "plain.h5")
    refused(read_found_mask, tmp_path / "plain.h5")


def correct_rows(scenes, report):
    """A proposal of another kind: the gain of each row, by its light relative to the rows beside it."""
    A, y = scenes.camera, scenes.snapshots[0] / brightness(scenes.camera, scenes.snapshots[0])
    light = y.sum(1).numpy()
    gain = torch.as_tensor(light / ndimage.gaussian_filter1d(light, 2.0))[:, None].expand(y.shape)
    given = fit(Split.of(A, y, scenes.seed), fit_basis(A))
    found = fit(given.split.through(A, y / gain), fit_basis(A))
    as_given, as_found = (one.verdict(found.variance) for one in (given, found))
    if not is_better(as_found, as_given):
        return scenes.found
    errors = as_given.error, as_found.error
    return replace(scenes.found, sensitivity=gain.numpy(), accepted=True, errors=errors)


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_another_proposal_is_one_function_in_a_table(scene, mask, monkeypatch, spread):
    """The judge takes what the snapshot shows, and leaves what only its texture looks like."""
    monkeypatch.setattr(search, "PROPOSALS", (correct_rows, *search.PROPOSALS))
    gain = (1 + spread * np.random.default_rng(3).standard_normal((SIZE, 1))).astype(np.float32)
    m = photographed(scene, mask, mask)
    found = find_camera(replace(m, y=m.y * gain))
    assert found.accepted == (spread > 0)
    if spread:
        assert np.corrcoef(found.sensitivity[:, 0], gain[:, 0])[0, 1] > 0.9
        assert "the sensitivity of detector pixels by" in found.message
        assert np.array_equal(find_placed(replace(m, y=m.y * gain)).sensitivity, found.sensitivity)


def test_a_black_level_is_estimated_of_those_captures_alone_that_were_read_without_one(mask, scene):
    """What the file of one states says nothing of the next."""
    closed = mask * (np.arange(SIZE) >= 8)
    y = CASSI(torch.as_tensor(closed), SHIFTS).forward(torch.as_tensor(scene)).numpy()
    for origin, taken in (({}, y.mean()), ({"black_level": 5.0}, 0), ({"dark": 5.0}, 0)):
        m = Measurement(y=y + y.mean(), mask=closed, shifts=SHIFTS, origin=origin)
        (left,) = first_frames(m, through(m, m.mask), None, None)
        assert float(np.median(m.y - left.numpy())) == pytest.approx(taken, rel=0.05)


def test_a_proposal_sees_the_snapshots_through_the_camera_believed_so_far(mask, scene):
    """Divided by the sensitivity that one before it found, whatever the file states."""
    y = CASSI(torch.as_tensor(mask), SHIFTS).forward(torch.as_tensor(scene)).numpy()
    m = Measurement(y=y, mask=mask, shifts=SHIFTS)
    even = 1 + 0.1 * np.random.default_rng(0).random(y.shape).astype(np.float32)
    found = replace(FoundCamera.as_given(m), sensitivity=even)
    for stated in (None, 2 * even):
        (seen,) = Scenes(found, [replace(m, sensitivity=stated)], 0.0, 0, None, CPU).snapshots
        np.testing.assert_allclose(seen.numpy(), y / even, rtol=1e-6)
