"""Frames of a sequence: neighbors help where the scene moves as one, and do no harm where they are of another scene."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from messages import refused
from scipy import ndimage

from cassi import CASSI, InputError
from cassi.choice.plan import Plan
from cassi.choice.stages import Learned, NonLocal, Tv, Watch
from cassi.optics.measurement import Measurement
from cassi.sequence.frames import InSequence, ReadWindow, neighbor_indices, sequence_plan
from cassi.sequence.moving_scene import MovingScene
from cassi.sequence.neighbors import SingleFrame, choose_common_plan, reconstruct_multi_frame, reconstruct_single_frame
from cassi.settings import Settings

C, SIZE = 5, 40
MASK = torch.rand(SIZE, SIZE, generator=torch.Generator().manual_seed(4))
A = CASSI.from_step(MASK, step=1, num_bands=C)


def scene(seed: int, moved: float = 0.0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    parts = [ndimage.gaussian_filter(rng.normal(size=(SIZE + 20, SIZE + 20)), 2) for _ in range(3)]
    spectra = np.stack([np.ones(C), np.linspace(-1, 1, C), np.cos(np.linspace(0, 3, C))])
    cube = np.einsum("kc,kij->cij", spectra, np.stack(parts) * 2) + 1
    cube = np.stack([ndimage.shift(band, (0.3 * moved, moved), order=3) for band in cube])
    return torch.from_numpy(cube[:, 10:-10, 10:-10]).float().clamp(min=0)


def error(x: torch.Tensor, truth: torch.Tensor) -> float:
    return float((x - truth).norm() / truth.norm())


@pytest.fixture(scope="module")
def film() -> tuple[list[torch.Tensor], torch.Tensor, Plan, list[SingleFrame]]:
    """Scenes, snapshots, their common plan, and each frame alone."""
    truth = [scene(0, 0.8 * t) for t in range(3)]
    noise = torch.randn(3, *A.measurement_shape, generator=torch.Generator().manual_seed(5))
    y = torch.stack([A @ x for x in truth]) + 0.02 * noise
    plan = choose_common_plan(A, y)
    return truth, y, plan, [reconstruct_single_frame(A, one, plan) for one in y]


def test_neighbors_help_where_the_scene_moves(film, monkeypatch):
    truth, _, plan, frames = film
    found = reconstruct_multi_frame(frames[1], [frames[0], frames[2]], plan, Watch())
    true = [replace(one, cube=x) for one, x in zip(frames, truth, strict=True)]  # motion is taken from that
    better = reconstruct_multi_frame(true[1], [true[0], true[2]], plan, Watch())
    assert found is not None and better is not None
    assert error(better.result.x, truth[1]) < error(found.result.x, truth[1]) < 0.8 * error(frames[1].tv_cube, truth[1])
    assert found.settings["error_together"] < found.settings["error_alone"] and bool((found.result.x >= 0).all())
    assert isinstance(plan.stages[-1], NonLocal) and plan.stages[-1].noise == 4, "held-out pixels would choose 1"
    # the non-local prior is the stronger the more frames there are, and the plan says what was taken
    monkeypatch.setattr("cassi.sequence.neighbors.accepts", lambda *verdicts: True)
    found = reconstruct_multi_frame(frames[1], [frames[0], frames[2]], plan, Watch())
    common, taken = ([s.sigma for s in one.stages if isinstance(s, NonLocal)] for one in (plan, found.plan))
    assert taken == pytest.approx([3**0.5 * sigma for sigma in common])
    assert len(found.stage_starts) == len(found.plan.stages) and found.stage_starts[0][1] == "total variation"


def test_the_network_sees_the_snapshot_of_one_frame(film):
    _, y, plan, frames = film
    seen: dict[type, tuple[int, ...]] = {}

    class Network(Learned):
        def run(self, A, y, problem, state, watch):
            seen[Learned] = tuple(y.shape)
            return state

    class Patches(NonLocal):
        def run(self, A, y, problem, state, watch):
            seen[NonLocal] = tuple(y.shape)
            return super().run(A, y, problem, state, watch)

    plan = replace(plan, stages=(Tv(150), Network(), Patches(0.2, 2)))
    reconstruct_multi_frame(frames[1], [frames[0]], plan, Watch())
    assert seen == {Learned: y[1].shape, NonLocal: (2, *y[1].shape)}


def test_a_network_that_diverges_leaves_the_joint_cube(film, monkeypatch):
    def diverges(*arguments):
        raise FloatingPointError

    _, _, plan, frames = film
    monkeypatch.setattr(Learned, "run", diverges)
    found = reconstruct_multi_frame(frames[1], [frames[0]], replace(plan, stages=(Tv(150), Learned())), Watch())
    assert found is not None and [type(stage) for stage in found.plan.stages] == [Tv]


def test_frames_of_other_scenes_do_no_harm(film):
    truth, y, plan, (_, first, _) = film
    dark, *others = (reconstruct_single_frame(A, one, plan) for one in (0 * y[1], A @ scene(7), A @ scene(8)))
    found = reconstruct_multi_frame(first, others, plan, Watch())
    x = first.tv_cube if found is None else found.result.x
    assert error(x, truth[1]) < 1.02 * error(first.tv_cube, truth[1])
    assert reconstruct_multi_frame(first, [], plan, Watch()) is None
    assert reconstruct_multi_frame(dark, [first], plan, Watch()) is None


def test_moving_scenes_are_checked():
    for motions in ([], [None, torch.zeros(2, 4, 4)]):
        refused(MovingScene, A, motions, error=ValueError)


def test_a_window_is_the_frame_and_those_beside_it(film):
    y = film[1]
    stack = Measurement(y=y.numpy(), mask=MASK.numpy(), shifts=A.shifts, cube=np.stack([t.numpy() for t in film[0]]))

    def read(path: str, frames: int) -> Measurement:
        if frames == 3:
            raise InputError("holds NaN")
        return replace(stack, y=stack.y[frames], cube=stack.cube[frames])

    m = ReadWindow(read, count=4, reach=2)("film.h5", frames=1)
    np.testing.assert_array_equal(m.y, stack.y[[1, 0, 2]])  # without the one that cannot be read
    np.testing.assert_array_equal(m.cube, stack.cube[1])
    refused(ReadWindow(read, count=4), "film.h5", frames=3)
    assert neighbor_indices(2, 3, 2) == [0, 1]


def test_a_frame_alone_is_what_it_would_be_without_a_sequence(film):
    """One that is refused its neighbors equals the default run, to the bit."""
    from cassi import reconstruct

    frames = [Measurement(y=one.numpy(), mask=MASK.numpy(), shifts=A.shifts) for one in film[1]]
    solve = InSequence(film[2], Settings(camera="as-given", device="cpu"))
    lone = solve(Measurement(y=frames[0].y[None], mask=MASK.numpy(), shifts=A.shifts))
    assert lone.parameters["together"] == 0
    joined = solve(Measurement(y=film[1][[1, 0, 2]].numpy(), mask=MASK.numpy(), shifts=A.shifts))
    assert joined.parameters["together"] == 2
    assert joined.parameters.keys() >= lone.parameters.keys() - {"common_plan"}, "both say every argument of the call"
    assert torch.equal(lone.cube, reconstruct(frames[0], camera="as-given", device="cpu").cube)
    refused(sequence_plan, frames[:1])
