"""Pixels that no light explains, on snapshots that hold some and on those that hold none."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import cassi
from cassi.files import read_measurement, write_measurement
from cassi.optics import outliers
from cassi.optics.measurement import Measurement
from cassi.optics.outliers import impulses, remove_impulses, remove_plateau
from cassi.optics.single_disperser import CASSI
from cassi.running.arguments import load
from cassi.settings import Settings
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

C, SIZE = 12, 96


@pytest.fixture(scope="module")
def mask():
    return random_mask(SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def snapshot(mask):
    cube = procedural_scene(SIZE, SIZE, np.linspace(450, 650, C).tolist(), generator=torch.Generator().manual_seed(3))
    return CASSI.from_step(mask, step=2, num_bands=C).forward(cube).numpy()


def measured(y, mask, **more):
    return Measurement(y=y, mask=mask.numpy(), shifts=tuple(range(0, 2 * C, 2)), **more)


def spoiled(y, count=40):
    """With isolated hot pixels, some of them two side by side, and where they are."""
    rng = np.random.default_rng(5)
    hot = np.zeros(y.shape, bool)
    rows, columns = rng.permutation(y.shape[0])[:count], rng.integers(10, y.shape[1] - 10, count)
    hot[rows, columns] = True
    hot[rows[:5], columns[:5] + 1] = True
    return np.where(hot, 3 * y.max(), y).astype(np.float32), hot


def test_hot_pixels_are_found_and_no_other(snapshot):
    y, hot = spoiled(snapshot)
    assert np.array_equal(impulses(y, C), hot)


@pytest.mark.parametrize("electrons", [None, 300])
def test_a_snapshot_without_them_is_left_alone(snapshot, mask, electrons):
    y = snapshot
    if electrons:
        y = np.random.default_rng(0).poisson(y / y.max() * electrons).astype(np.float32)
    assert impulses(y, C).sum() <= 1  # of 11,000
    m = measured(snapshot, mask)
    assert remove_impulses(m) is m


@pytest.mark.parametrize("share", [0.011, 0.025])
def test_many_of_them_are_found_although_they_hide_each_other(snapshot, share):
    hot = np.random.default_rng(6).random(snapshot.shape) < share
    found = impulses(np.where(hot, 50 * snapshot.mean(), snapshot).astype(np.float32), C)
    assert not (found & ~hot).any()
    assert np.count_nonzero(found) >= 0.99 * np.count_nonzero(hot)


def test_a_few_hot_pixels_make_no_point_of_the_scene_a_bad_one(mask):
    """Spots of one band, 4 rows by 3 columns, which only the search for many would take."""
    scene = torch.full((C, SIZE, SIZE), 0.02)
    for row in range(4):
        for column in range(3):
            scene[4, 10 + row : 90 : 16, 10 + column : 90 : 16] = 1.0
    y, hot = spoiled(CASSI.from_step(torch.ones_like(mask), step=2, num_bands=C).forward(scene).numpy(), 20)
    assert not (impulses(y, C) & ~hot).any()


def test_what_stands_out_everywhere_is_left_and_told(snapshot, mask):
    """Every 23rd pixel is more than the 3 % that even a bad detector has; and few bands may make such pixels."""
    y = snapshot.copy()
    y.ravel()[::23] *= 20
    told = remove_impulses(measured(y, mask))
    assert told.bad_pixels is None
    assert [("give a map of bad pixels" in note, "exceed all" in note) for note in told.notes] == [(True, True)]
    assert remove_impulses(told).notes == told.notes
    result = cassi.reconstruct(y, mask, step=2, solver="gap-tv", num_iters=2, camera="as-given")
    inferred = f"{C} bands inferred from the widths {y.shape[1]} and {mask.shape[1]} with step 2 px"
    assert result.measurement.notes[: 1 + len(told.notes)] == (inferred, *told.notes)  # then what was found out
    y, _ = spoiled(snapshot)
    assert not impulses(y, 3).any()
    assert not impulses(np.ones((4, 5)), C).any()


def test_of_a_stack_those_of_most_frames_count(snapshot, mask):
    y, hot = spoiled(snapshot)
    assert np.array_equal(remove_impulses(measured(np.stack([y, y, snapshot]), mask)).bad_pixels, hot)
    rare = measured(np.stack([y, snapshot]), mask)
    assert remove_impulses(rare) is rare


def test_each_shot_has_hot_pixels_of_its_own(snapshot, mask):
    y, hot = spoiled(snapshot)
    both, masks = np.stack([snapshot, y]), torch.stack([mask, mask])
    found = remove_impulses(measured(both, masks, shots=2))
    assert not found.bad_pixels[0].any() and np.array_equal(found.bad_pixels[1], hot)
    stack = remove_impulses(measured(np.stack([both] * 3), masks, shots=2))
    assert np.array_equal(stack.bad_pixels, found.bad_pixels)


def test_where_light_is_not_spread_nothing_is_told(mask):
    """A star through a camera that brings the bands back to one place stands alone, as a hot pixel does."""
    y = np.random.default_rng(0).uniform(9, 11, mask.shape).astype(np.float32)
    y[40, 50] = 100
    m = Measurement(y=y, mask=np.ones((C, *mask.shape), np.float32), shifts=(0,) * C)
    assert remove_impulses(m) is m


def test_reading_says_so(tmp_path, snapshot, mask):
    y, hot = spoiled(snapshot)
    np.savez(tmp_path / "y.npz", measurement=y, mask=mask.numpy())
    m = read_measurement(tmp_path / "y.npz")
    assert np.array_equal(m.bad_pixels, hot)
    assert sum("exceed all" in note for note in m.notes) == 1


def test_light_of_one_color_is_left_alone(mask):
    """A column lit by a laser and a patch lit by another: each of their pixels stands alone in its row."""
    scene = torch.full((C, SIZE, SIZE), 0.02)
    scene[4, :, 30] = 1.0
    scene[7, 50:70, 50:70] = 1.0
    assert impulses(CASSI.from_step(mask, step=2, num_bands=C).forward(scene).numpy(), C).sum() <= 2


@pytest.mark.parametrize("electrons", [None, 300, 10_000])
def test_pixels_that_were_cut_off_are_bad_and_no_others(snapshot, mask, electrons):
    """Whatever the unit of the counts; in a stack those of any frame, of shots those of each."""
    y = snapshot / snapshot.max()
    if electrons:
        y = (np.random.default_rng(0).poisson(y * electrons) / electrons / 3).astype(np.float32)
    assert remove_plateau(m := measured(y, mask)) is m
    assert remove_plateau(m := measured(y.max() - y, mask)) is m, "inverted: its largest value is where no light is"
    cut = np.minimum(y, np.float32(0.6) * y.max())
    expected = cut == cut.max()
    found = remove_plateau(measured(cut, mask))
    assert np.array_equal(found.bad_pixels, expected) and remove_plateau(found) is found
    assert np.array_equal(remove_plateau(measured(np.stack([0.5 * y, cut]), mask)).bad_pixels, expected)
    both = measured(np.stack([0.5 * y, cut]), torch.stack([mask, mask]), shots=2)
    assert np.array_equal(remove_plateau(both).bad_pixels, np.stack([np.zeros_like(expected), expected]))
    assert (
        cassi.reconstruct(measured(cut, mask), solver="least-squares", camera="as-given").bad_pixels == expected
    ).all()


@pytest.mark.parametrize("cube", [torch.ones(C, SIZE, SIZE), torch.ones(C, SIZE, SIZE).triu()])
@pytest.mark.parametrize("open_share", [0.5, 1.0])
def test_an_even_scene_is_not_cut_off(cube, open_share):
    """Its snapshot has few values, or one in most of its pixels."""
    mask = (torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(2)) < open_share).float()
    m = measured(CASSI.from_step(mask, step=2, num_bands=C).forward(cube).numpy(), mask)
    assert remove_plateau(m) is m


def test_outliers_of_a_file_are_looked_for_once(tmp_path, monkeypatch):
    """Again where the numbers are others, or bad pixels are given in place of those found."""
    rng = np.random.default_rng(0)
    path = tmp_path / "m.h5"
    write_measurement(path, Measurement(rng.random((16, 22)), rng.random((16, 16)), (0, 2, 4, 6)))
    calls = []
    search = outliers.remove_plateau
    monkeypatch.setattr(outliers, "remove_plateau", lambda m: (calls.append(m), search(m))[1])
    m = read_measurement(path)
    load(m, None, Settings())
    assert len(calls) == 1
    load(replace(m, y=m.y - 0.1), None, Settings())
    load(m, None, Settings(bad_pixels=np.zeros(m.y.shape, bool)))
    assert len(calls) == 3
