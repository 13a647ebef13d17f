"""Frames of several threads are solved together, and each gets what it would have got alone."""

import copy
import functools
import threading
import time
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from cuda_scenes import CUDA, close, default, scene
from pretend_device import pretend_cuda

from cassi.choice.stages import Learned, NonLocal, Tv
from cassi.files import read_cube, write_measurement
from cassi.optics.measurement import Measurement
from cassi.priors.learned import shipped_prior
from cassi.running import many, pipeline
from cassi.running.many import SolveWith, find_frames, reconstruct_many
from cassi.running.pipeline import Listener, prepare_scene, reconstruct_measurement, solve_frames
from cassi.running.turns import Turns
from cassi.settings import Settings


@functools.cache
def settings(device: str = "cpu") -> Settings:
    stages = (Tv(12), NonLocal(0.5, 4), Learned())
    prior = copy.deepcopy(shipped_prior())
    prior.coarse = False  # as on a GPU: only there frames are solved together
    plan = replace(default().plan, stages=stages, learned=prior)
    return Settings(plan=plan, camera="as-given", device=device)


def snapshot(k: int) -> Measurement:
    """Of another brightness each; the fourth with a bad pixel."""
    _, mask, y = scene()
    bad = np.zeros(y.shape, bool)
    bad[5, 7] = True
    return Measurement(y.numpy() / (1 + k), mask.numpy(), tuple(range(0, 12, 2)), bad_pixels=bad if k == 3 else None)


def prepared(ks: range, device: str = "cpu") -> list[pipeline.Scene]:
    return [prepare_scene(snapshot(k), settings(str(device)), Listener()) for k in ks]


@pytest.fixture
def sizes(monkeypatch) -> list[int]:
    """Three frames are solved at a time, on a CPU too; how many were, each time."""
    found, solve = list[int](), pipeline.solve_together

    def counted(scene, settings, listener, ks):
        found.append(len(ks))
        return solve(scene, settings, listener, ks)

    monkeypatch.setattr(pipeline, "solve_together", counted)
    monkeypatch.setattr(pipeline, "may_join", lambda *given: True)
    monkeypatch.setattr(pipeline, "most_together", lambda *given: 3)
    monkeypatch.setattr(many, "_in_turns", lambda solve: True)
    return found


def call_at_once(turns: Turns, scenes: list[pipeline.Scene]) -> list[Future]:
    """One thread a scene, all of which wait when the first is solved."""
    with ThreadPoolExecutor(len(scenes)) as threads:
        with turns.turn:
            calls = [threads.submit(turns, scene, settings(), Listener(), 0.0) for scene in scenes]
            while len(turns.waiting) < len(scenes):
                time.sleep(0.001)
        return calls


def test_frames_that_wait_are_solved_together_and_others_alone(sizes):
    scenes = prepared(range(6))
    expected = [solve_frames(scene, settings(), Listener(), 0.0)[0] for scene in scenes]
    calls = call_at_once(Turns(3), scenes)
    for call, one in zip(calls, expected, strict=True):
        (found,) = call.result()
        torch.testing.assert_close(found.result.x, one.result.x, rtol=0, atol=1e-4 * float(one.result.x.max()))
        assert found.brightness == pytest.approx(one.brightness)
    assert sizes == [3, 2], "five of six share their pixels"


def test_memory_is_measured_when_no_other_turn_fills_it(sizes, monkeypatch):
    turns, scenes, measured = Turns(3), prepared(range(2)), []
    monkeypatch.setattr(pipeline, "most_together", lambda *given: measured.append(1) or 3)
    with ThreadPoolExecutor(2) as threads:
        with turns.turn:
            calls = [threads.submit(turns, scene, settings(), Listener(), 0.0) for scene in scenes]
            while len(turns.waiting) < 2:
                time.sleep(0.001)
            assert not measured
        assert all(call.result() for call in calls)
    assert measured and sizes == [2]


def test_one_that_fails_does_not_take_the_others_with_it(sizes, monkeypatch):
    scenes, bright = prepared(range(3)), pipeline.brightness
    worst = scenes[1].frames[0]

    def brightness(A, y):
        if torch.equal(y, worst):
            raise FloatingPointError("diverged")
        return bright(A, y)

    monkeypatch.setattr(pipeline, "brightness", brightness)
    calls = call_at_once(Turns(3), scenes)
    assert sizes == [3]
    assert isinstance(calls[1].exception(), FloatingPointError)
    assert all(calls[k].result()[0].result.x.isfinite().all() for k in (0, 2))


def test_an_interrupt_ends_those_that_wait_too(sizes):
    calls = call_at_once(Turns(3, is_over=lambda: True), prepared(range(3)))
    assert sizes == [3] and all(isinstance(call.exception(), CancelledError) for call in calls)


def test_a_folder(sizes, tmp_path, monkeypatch, device):
    """All frames are read before the first is solved, one of them cannot be; a second run finds those that were."""
    (tmp_path / "night").mkdir()
    for k in range(6):
        write_measurement(tmp_path / "night" / f"frame{k}.h5", snapshot(k))
    (tmp_path / "night" / "frame4.h5").write_text("no measurement")
    frames, solve, every = find_frames(tmp_path / "night"), SolveWith(settings(str(device))), threading.Barrier(5)
    call = Turns.__call__

    def together(self, *given):
        every.wait(60)
        return call(self, *given)

    monkeypatch.setattr(Turns, "__call__", together)
    report = reconstruct_many(frames, tmp_path / "cubes", solve=solve, batch=3)
    assert (report.computed, set(report.failed)) == (5, {"frame4"})
    near = 1e-4 if str(device) == "cpu" else 1e-2  # there rounding may choose between patches that are equally alike
    for k in (0, 1, 2, 3, 5):
        cube = read_cube(tmp_path / "cubes" / f"frame{k}_cube.h5")[0]
        one = reconstruct_measurement(snapshot(k), settings(str(device))).cube.cpu().numpy()
        np.testing.assert_allclose(cube, one, rtol=0, atol=near * float(one.max()))
    again = reconstruct_many(frames, tmp_path / "cubes", solve=solve)
    assert (again.computed, again.found, set(again.failed)) == (0, 5, {"frame4"})


def test_on_a_gpu_as_a_stack_is():
    """The same launches, and half of what the frames take alone."""
    expected = [solve_frames(scene, settings(), Listener(), 0.0)[0] for scene in prepared(range(3))]
    on_gpu, turns = settings("cuda"), Turns(16)
    with pretend_cuda() as ledger:
        scenes = prepared(range(3), "cuda")
        solve_frames(scenes[0], on_gpu, Listener(), 0.0)  # what is kept is computed
        ledger.launches.clear()
        solve_frames(scenes[0], on_gpu, Listener(), 0.0)
        alone = ledger.launches.total()
        turns.waiting += [(scene, Future()) for scene in scenes[1:]]
        others = [future for _, future in turns.waiting]
        ledger.launches.clear()
        found = [*turns(scenes[0], on_gpu, Listener(), 0.0), *(one for other in others for one in other.result())]
        assert ledger.launches.total() < 1.5 * alone, ledger.told()
        for one, wanted in zip(found, expected, strict=True):
            assert one.result.x.device == CUDA
            close(one.result.x, wanted.result.x)
