"""Scenes of several shots: what their files mean, and what is said of wrong ones."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from messages import check_words, refused

from cassi.files import ReadOptions, write_arrays, write_measurement
from cassi.files.frames import read_scene
from cassi.optics.measurement import Measurement, check_arrays, join_shots

RNG = np.random.default_rng(3)
MASKS, Y = RNG.random((3, 6, 8)).astype(np.float32), RNG.random((3, 6, 12)).astype(np.float32)
FIVE = ReadOptions(num_bands=5)


def save(folder: Path, name: str, values: np.ndarray, key: str = "measurement") -> str:
    return str(write_arrays(folder / f"{name}.h5", {key: values}))


def test_a_written_measurement_of_several_shots_comes_back(tmp_path):
    even = (1 + Y / 10).astype(np.float32)
    m = Measurement(y=Y, mask=MASKS, shifts=(0, 2, 4), shots=3, bad_pixels=Y > 0.99, sensitivity=even)
    back = read_scene(write_measurement(tmp_path / "m.h5", m))
    assert back.shots == 3 and back.shifts == (0, 2, 4)
    np.testing.assert_array_equal(back.y, Y)
    np.testing.assert_array_equal(back.mask, MASKS)
    np.testing.assert_array_equal(back.sensitivity, even)
    one, other = back.each_shot[:2]
    np.testing.assert_array_equal(join_shots([replace(one, sensitivity=None), other]).sensitivity[0], 1)


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("masks", ["stack", "files"])
def test_stacks_and_files_are_one_scene(tmp_path, stacked, masks):
    paths = [save(tmp_path, "all", Y)] if stacked else [save(tmp_path, f"y{k}", y) for k, y in enumerate(Y)]
    given = [save(tmp_path, f"m{k}", m, "mask") for k, m in enumerate(MASKS)]
    if masks == "stack":
        given = [save(tmp_path, "masks", MASKS, "mask")]
    m = read_scene(*paths, masks=given, shots=3, options=FIVE)
    np.testing.assert_array_equal(m.y, Y)
    np.testing.assert_array_equal(m.mask, MASKS)
    assert m.shifts == (0, 1, 2, 3, 4)


def test_what_is_wrong_is_told(tmp_path):
    y, one = save(tmp_path, "y", Y), save(tmp_path, "one", MASKS[0], "mask")
    two = [save(tmp_path, f"m{k}", MASKS[k], "mask") for k in range(2)]
    refused(read_scene, y, masks=two, shots=3, options=FIVE)
    refused(read_scene, y, y, masks=[one], shots=3)


def test_shots_that_do_not_belong_together_are_refused():
    one = Measurement(y=Y[0], mask=MASKS[0], shifts=(0, 2, 4), source="a", gain=100.0)
    refused(join_shots, [])
    small = Measurement(y=Y[0, :, :10], mask=MASKS[0], shifts=(0, 1, 2), source="b")
    refused(join_shots, [one, small])
    both = join_shots([one, Measurement(y=Y[1], mask=MASKS[1], shifts=(0, 2, 4), source="b", gain=400.0)])
    assert both.gain == pytest.approx(200)
    check_words(*both.notes)
    refused(check_arrays, Measurement(y=Y, mask=MASKS, shifts=(0, 2, 4), shots=2))


def test_each_shot_is_a_measurement_of_its_own():
    bad = Y > 0.9
    shots = Measurement(y=Y, mask=MASKS, shifts=(0, 2, 4), shots=3, bad_pixels=bad).each_shot
    assert [shot.shots for shot in shots] == [None] * 3
    for k, shot in enumerate(shots):
        np.testing.assert_array_equal(shot.y, Y[k])
        np.testing.assert_array_equal(shot.mask, MASKS[k])
        np.testing.assert_array_equal(shot.bad_pixels, bad[k])
