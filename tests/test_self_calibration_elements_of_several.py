"""A mask that is wrong element by element, learned from simulated captures whose true mask is known."""

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
from messages import refused
from scipy import ndimage

import cassi
from cassi.choice import automatic
from cassi.choice.chain import default_stages
from cassi.choice.stages import NonLocal, Tv
from cassi.cli.main import run
from cassi.evidence import fitting
from cassi.evidence.held_out import ELEMENTS_HELD_OUT, hold_out
from cassi.evidence.noise import NoiseModel
from cassi.files import read_measurement, write_arrays, write_measurement
from cassi.looking.camera_figures import mask_error
from cassi.optics.building import build_camera
from cassi.optics.measurement import MAX_TRANSMISSION, Measurement
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import LearnedPrior
from cassi.self_calibration import elements, elements_of_several
from cassi.self_calibration.camera_model import CameraModel
from cassi.self_calibration.elements_of_several import MaskError, learn_mask_error, of_other_scenes
from cassi.self_calibration.found_camera import FoundCamera, read_found_mask
from cassi.self_calibration.refined_camera import RefinedCamera
from cassi.self_calibration.search import find_camera

SHIFTS, SIZE = tuple(range(0, 16, 2)), 96
ELECTRONS = 5000


def picture(seed: int, size: tuple[int, int]) -> torch.Tensor:
    """A scene of plain regions, (C, H, W)."""
    rng = np.random.default_rng(seed)
    regions = ndimage.gaussian_filter(rng.standard_normal((4, *size)), (0, 12, 12)).argmax(0)
    spectra = np.stack([0.5 + 0.3 * np.cos(2 * np.pi * (np.linspace(0, 1, 8) - k / 4)) for k in range(4)])
    return torch.as_tensor(spectra[regions].transpose(2, 0, 1), dtype=torch.float32)


def capture(mask: np.ndarray, seed: int, gain: np.ndarray | float = 0.0) -> torch.Tensor:
    y = (1 + gain) * CASSI(torch.from_numpy(mask), SHIFTS).forward(picture(seed, mask.shape[-2:])).numpy()
    return torch.from_numpy((np.random.default_rng(seed).poisson(y * ELECTRONS) / ELECTRONS).astype(np.float32))


@pytest.fixture(scope="module")
def given() -> np.ndarray:
    return np.random.default_rng(0).random((SIZE, SIZE)).astype(np.float32)


@pytest.fixture(scope="module")
def true(given) -> np.ndarray:
    return np.clip(given + 0.1 * np.random.default_rng(9).standard_normal(given.shape), 0, None).astype(np.float32)


def learned(given: np.ndarray, snapshots: list[torch.Tensor]):
    A = CASSI(torch.from_numpy(given), SHIFTS)
    return learn_mask_error(A, snapshots)


@pytest.fixture(scope="module")
def found_place_by_place(given, true):
    return learned(given, [capture(true, seed) for seed in range(1, 4)])


def test_a_mask_that_is_wrong_place_by_place_is_corrected(given, true, found_place_by_place):
    found = found_place_by_place
    assert found.accepted and found.gain is None
    wrong, left = true - given, true - given - found.error.numpy()
    assert left.std() < 0.6 * wrong.std()
    before, after = found.mean_errors
    assert after < before
    (one, by_one), (two, by_two) = found.growth
    assert (one, two) == (1, 2) and 0.5 < by_one < by_two - 0.03 and by_two == found.explained[-1]


def test_a_mask_that_is_right_is_left_alone(given):
    found = learned(given, [capture(given, seed) for seed in range(1, 4)])
    assert not found.accepted and found.reason


def test_an_error_that_differs_by_band_is_found_by_band(given, true, found_place_by_place):
    """And not where all bands share it."""
    slope = np.linspace(-1, 1, len(SHIFTS), dtype=np.float32)[:, None, None]
    by_band = slope * 0.08 * np.random.default_rng(5).standard_normal(given.shape).astype(np.float32)
    masks = np.clip(true + by_band, 0, None)
    found = learned(given, [capture(masks, seed) for seed in range(1, 4)])
    assert found.accepted and found.error.shape == masks.shape
    wrong, error = masks - given, found.error.numpy()
    rise_found, rise = ((slope * e).mean(0).ravel() for e in (error, wrong))
    assert np.corrcoef(rise_found, rise)[0, 1] > 0.5
    assert (wrong - error).std() < (wrong - error.mean(0)).std()
    assert found_place_by_place.error.shape == given.shape
    camera = replace(FoundCamera(masks, SHIFTS, CameraModel(), True), mask_error=found)
    drawn = [
        one.get_title(loc="left") for one in mask_error(RefinedCamera(camera, (), (), np.ones((3, 3)), given)).axes
    ]
    assert len(drawn) >= 2 * 3 and any("Last less first band" in words for words in drawn)


def test_a_result_holds_a_mask_that_was_corrected_by_band(given, tmp_path):
    """And gives it back, turned as the result is."""
    by_band = 0.1 * np.random.default_rng(9).standard_normal((len(SHIFTS), *given.shape)).astype(np.float32)
    m = Measurement(y=capture(given, 1).numpy(), mask=given, shifts=SHIFTS)
    masks = np.clip(given + by_band, 0, MAX_TRANSMISSION)
    learned = MaskError(torch.from_numpy(by_band), None, True, errors=((0.1, 0.05),))
    camera = FoundCamera(masks, SHIFTS, CameraModel(), True, mask_error=learned)
    for turned, axes in (("none", ()), ("180", (1, 2))):
        result = cassi.reconstruct(m, camera=camera, solver="gap-tv", num_iters=1, turn_result=turned)
        result.save(tmp_path / "x.h5", overwrite=True)
        np.testing.assert_array_equal(read_found_mask(tmp_path / "x.h5"), np.flip(masks, axes))


def test_the_file_of_a_camera_keeps_the_sensitivity(given, true, tmp_path):
    """It is found where it varies, and a reconstruction divides by it what is above the black level."""
    gain = 0.05 * np.random.default_rng(2).standard_normal((SIZE, SIZE + max(SHIFTS)))
    ms = [Measurement(y=capture(true, seed, gain).numpy(), mask=given, shifts=SHIFTS) for seed in (1, 2, 3)]
    found = find_camera(*ms)
    assert found.mask_error.accepted and (found.sensitivity - 1 - gain).std() < 0.8 * gain.std()
    before, after = found.mask_error.mean_errors
    assert after < 0.75 * before
    assert "sensitivity of detector pixels" in found.message
    found.save(tmp_path / "camera.h5")
    black = 0.1
    write_arrays(tmp_path / "y.h5", {"measurement": ms[0].y + black})
    m = read_measurement(tmp_path / "y.h5", mask=tmp_path / "camera.h5")
    np.testing.assert_array_equal(m.sensitivity, found.sensitivity.astype(np.float32))
    how = {"solver": "least-squares", "camera": "as-given"}
    result = cassi.reconstruct(m, black_level=black, **how)
    plain = replace(m, y=(m.y - np.float32(black)) / m.sensitivity, sensitivity=None)
    torch.testing.assert_close(result.cube, cassi.reconstruct(plain, black_level=0, **how).cube)
    result.save(tmp_path / "cube.h5")
    with h5py.File(tmp_path / "cube.h5") as file:
        np.testing.assert_array_equal(file["sensitivity"][:], m.sensitivity)
    refused(cassi.reconstruct, replace(m, sensitivity=0 * m.sensitivity), **how)

    # a camera that is saved again, as it was, keeps all that its file states
    m = replace(m, bad_pixels=np.random.default_rng(3).random(m.y.shape) < 0.001)
    FoundCamera.as_given(m).save(tmp_path / "again.h5", of=m)
    again = read_measurement(tmp_path / "y.h5", mask=tmp_path / "again.h5")
    for name in ("mask", "sensitivity", "bad_pixels"):
        np.testing.assert_array_equal(getattr(again, name), getattr(m, name))
    assert again.mask_error == m.mask_error == found.left and again.origin["refined"] == m.origin["refined"]
    with h5py.File(tmp_path / "y.h5") as file:
        write_arrays(tmp_path / "missing.h5", {"measurement": np.where(m.bad_pixels, np.nan, file["measurement"])})
    with h5py.File(tmp_path / "missing.h5", "a") as file:
        file["measurement"].attrs["missing_value"] = np.float32(np.nan)
    missing = read_measurement(tmp_path / "missing.h5", mask=given, step=2)
    np.testing.assert_array_equal(missing.bad_pixels, m.bad_pixels)
    for name, of in (("saturated", replace(m, origin={"saturated": 3})), ("missing", missing)):
        FoundCamera.as_given(m).save(tmp_path / f"of_{name}.h5", of=of)
        assert not np.any(read_measurement(tmp_path / "y.h5", mask=tmp_path / f"of_{name}.h5").bad_pixels), name

    # by the commands that save one, too
    write_arrays(tmp_path / "z.h5", {"measurement": ms[1].y})
    y, z = str(tmp_path / "y.h5"), str(tmp_path / "z.h5")
    for name, files in (("single", [y]), ("folder", [y, z])):
        saved, words = tmp_path / f"{name}.h5", ["--solver", "gap-tv", "--iterations", "1", "--figures", "none"]
        words += ["--mask", str(tmp_path / "camera.h5"), "--save-camera", str(saved), "--quiet"]
        place = str(tmp_path / (name if len(files) > 1 else f"{name}_cube.h5"))
        assert run("reconstruct", [*files, *words, "--output", place], "cassi reconstruct") == 0
        kept = read_measurement(y, mask=saved)
        np.testing.assert_array_equal(kept.sensitivity, m.sensitivity)
        assert kept.mask_error is not None and kept.origin["refined"]

    # what more captures would explain is said and drawn
    refined = RefinedCamera(found, (found,) * 3, ("a", "b", "c"), np.ones((3, 3)), given)
    said = ", ".join(f"{share:.0%} by {count}" for count, share in found.mask_error.growth)
    assert f"explained of a kept capture: {said}" in refined.summary() and "by 2" in said
    drawn = mask_error(refined).axes
    assert len([one for one in drawn if one.images]) == 2 * 3, "three maps and their middle"
    ((line,),) = (one.lines for one in drawn if one.lines)
    np.testing.assert_allclose(line.get_xydata(), [(n, 100 * share) for n, share in found.mask_error.growth])


def test_the_found_camera_holds_the_corrected_mask(tmp_path):
    rng = np.random.default_rng(0)
    given = rng.random((128, 128)).astype(np.float32)
    true = np.clip(given + 0.1 * rng.standard_normal(given.shape), 0, None).astype(np.float32)
    m = Measurement(y=capture(true, 1).numpy(), mask=given, shifts=SHIFTS)
    found = find_camera(m)
    assert found.accepted and found.mask_error.accepted
    assert 0.7 < found.mask_error.left / (true - found.mask).std() < 3, "it knows about how much is left"
    assert (found.in_place(m).mask - true).std() < 0.95 * (given - true).std()
    assert "its elements corrected by" in found.message
    assert found.as_dict()["mask_error"]["accepted"]
    write_measurement(tmp_path / "m.h5", m)
    for corrected in (found.in_place(m), read_measurement(tmp_path / "m.h5", mask=found.save(tmp_path / "camera.h5"))):
        assert build_camera(corrected, torch.device("cpu")).mask_error == found.mask_error.left
    assert find_camera(m, mask_error=False).mask_error is None


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, "free"), ({"weights": "research"}, "research"), ({"prior": "nonlocal"}, ""), ({"solver": "gap-tv"}, ""),
        ({"num_iters": 60}, ""), ({"plan": True}, "research"),
    ],
)  # fmt: skip
def test_a_run_uses_no_other_weights_than_its_own(monkeypatch, given, how, expected):
    """Weights differ in what they may be used for, and the search for a camera in several frames has a network, too."""

    def in_few_iterations(A, settings):
        chain = default_stages(A, settings)[1][0] if settings.num_iters is None else ()
        brief = tuple(replace(one, num_iters=2) if isinstance(one, NonLocal) else one for one in chain)
        return Tv(6), (brief,) * bool(brief)

    monkeypatch.setattr(automatic, "default_stages", in_few_iterations)
    m = Measurement(y=np.stack([capture(given, k).numpy() for k in (1, 2)]), mask=given, shifts=SHIFTS)
    if "plan" in how:
        first = replace(m, y=m.y[0])
        how = {"plan": cassi.reconstruct(first, camera="as-given", prior="learned", weights="research").plan}
    used = set()

    def nothing(self, z, d, seen, *_):  # which weights they are is what counts
        used.add(self.source)
        return 0 * z, 0 * z, seen

    def noted(*given, **more):
        used.add(more["prior"].source if more["prior"] is not None else "")
        return learn_mask_error(*given, **more)

    monkeypatch.setattr(elements, "learn_mask_error", noted)
    monkeypatch.setattr(LearnedPrior, "forward", nothing)
    found = cassi.reconstruct(m, **how).camera.as_dict()
    assert used == {expected} and (f"the {expected} weights" in found["network"] if expected else not found["network"])


def test_bands_far_apart_leave_pixels_to_look_at():
    """Of a window narrower than they are apart no pixel is seen by all bands alone."""
    shifts = tuple(range(0, 160, 20))
    mask = np.random.default_rng(0).random((96, 400)).astype(np.float32)
    middle = (torch.arange(400) - 200).abs() < 60
    y = CASSI(torch.from_numpy(mask), shifts).forward(picture(1, mask.shape) * middle).numpy()
    noisy = (np.random.default_rng(1).poisson(y * ELECTRONS) / ELECTRONS).astype(np.float32)
    assert find_camera(Measurement(y=noisy, mask=mask, shifts=shifts)).mask_error is not None


def test_a_dark_capture_beside_others_changes_nothing(given, true):
    ms = [Measurement(y=capture(true, seed).numpy(), mask=given, shifts=SHIFTS) for seed in (1, 2)]
    dark = 1e-4 * np.random.default_rng(3).standard_normal(ms[0].y.shape).astype(np.float32)
    found, beside = find_camera(*ms, black_level=0.0), find_camera(*ms, replace(ms[0], y=dark), black_level=0.0)
    assert found.accepted and beside.mask_error.captures == 2
    np.testing.assert_array_equal(beside.mask, found.mask)


def test_a_snapshot_too_small_for_the_place_of_its_mask_shows_its_elements(given, true):
    m = Measurement(y=capture(true, 1).numpy(), mask=given, shifts=SHIFTS)
    found = find_camera(m)
    assert "too small" in found.reason and found.model.exact and found.corrected is not None
    assert (found.mask - true).std() < 0.9 * (given - true).std() and "elements corrected" in found.message


def test_held_out_pixels_take_no_part(given, true, monkeypatch):
    """Whatever they hold, the correction is the same, where the noise is."""
    A = CASSI(torch.from_numpy(given), SHIFTS)
    one, beside = (capture(true, seed) for seed in (1, 2))
    held = hold_out(A.gram_diag() > 0, 0, ELEMENTS_HELD_OUT)
    noise = NoiseModel(1 / ELECTRONS, 1e-6, "known")
    monkeypatch.setattr(elements_of_several, "fit", lambda split, basis: fitting.Fit(split, split.y, noise))
    monkeypatch.setattr(elements_of_several, "brightness", lambda *_: 1.0)
    first, second = (learn_mask_error(A, [y, beside]) for y in (one, torch.where(held, 1.01 * one, one)))
    assert first.accepted and second.accepted and first.sure != second.sure
    assert torch.equal(first.error, second.error) and first.explained == second.explained


def test_captures_of_one_scene_count_once(given):
    """What repeats in them is the scene."""
    one, other = (capture(given, seed) for seed in (1, 2))
    again = capture(given, 1) * torch.linspace(0.8, 1.2, one.shape[1])
    assert of_other_scenes([one, again, other]) == [0, 2] and of_other_scenes([1e-3 * one, other, one]) == [1, 2]
    ms = [Measurement(y=y.numpy(), mask=given, shifts=SHIFTS) for y in (one, again)]
    found = find_camera(*ms)
    assert not found.accepted and found.mask_error.captures == 1
    told = find_camera(ms[0]).message
    assert "The mask's elements were left as they are: " in told and told.count(".") > 1
