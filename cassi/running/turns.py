"""Frames of several threads, solved together: who comes while others are solved waits, and the next turn takes all."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from cassi.choice.outcome import Outcome
from cassi.optics.measurement import camera_difference
from cassi.running import pipeline
from cassi.running.pipeline import Listener
from cassi.running.scene import Scene
from cassi.settings import Settings


@dataclass(eq=False)
class Turns:
    """A `solve_frames` for several threads, each with a scene, all with the same settings.

    Where frames may be solved at a time (`most_together`), one thread solves its own with all that wait and share its
    camera, while others read and write. So as many are solved together as come in the time of the turn before.

    Attributes:
        most: frames of a turn.
        is_over: whether the run was interrupted; asked each iteration.
        waiting: frames that nobody has taken; only who holds `turn` takes some, and solves them.
    """

    most: int
    is_over: Callable[[], bool] = bool
    waiting: list[tuple[Scene, Future[list[Outcome]]]] = field(default_factory=list)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, scene: Scene, settings: Settings, listener: Listener, start: float) -> list[Outcome]:
        if self.most == 1 or not pipeline.may_join(scene.A, settings):
            return pipeline.solve_frames(scene, settings, listener, start)
        mine = scene, Future[list[Outcome]]()
        self.waiting.append(mine)
        with self.turn:
            if not mine[1].done():  # not taken along by another, who is done with it
                most = min(self.most, pipeline.most_together(scene.A, settings))  # what is free beside no other turn
                others = [entry for entry in self.waiting if entry is not mine and share_camera(entry[0], scene)]
                taken = [mine, *others[: most - 1]]
                for entry in taken:
                    self.waiting.remove(entry)
                self._solve(taken, settings)
        return mine[1].result()

    def _solve(self, taken: Sequence[tuple[Scene, Future[list[Outcome]]]], settings: Settings) -> None:
        """Solve some together; each by itself where that fails, as it may for one of them."""
        outcomes: list[Outcome] = []
        try:
            scene = join_scenes([scene for scene, _ in taken])
            outcomes = pipeline.solve_frames(scene, settings, Listener(self._stop), time.perf_counter())
        except Exception as error:
            if len(taken) == 1 or self.is_over():
                for _, future in taken:
                    future.set_exception(error)
                return
        if not outcomes:  # now the error no longer holds the memory of all of them
            for entry in taken:
                self._solve([entry], settings)
            return
        for scene, future in taken:
            own, outcomes = outcomes[: scene.num_scenes], outcomes[scene.num_scenes :]
            future.set_result([pipeline.with_scene_facts(outcome, scene, k) for k, outcome in enumerate(own)])

    def _stop(self, step: str, share: float) -> None:
        if self.is_over():
            raise CancelledError("the run was interrupted")


def share_camera(a: Scene, b: Scene) -> bool:
    """Whether one camera took both, with the same pixels left out."""
    if a.measurement is None or b.measurement is None or a.found is not b.found:
        return False
    left_out = (a.measurement.bad_pixels, b.measurement.bad_pixels)
    return np.array_equal(*left_out) and not camera_difference((a.measurement, b.measurement))  # type: ignore[arg-type]


def join_scenes(scenes: Sequence[Scene]) -> Scene:
    """Scenes of one camera as one, with their frames in this order."""
    black_levels = tuple(black for scene in scenes for black in scene.black_levels)
    return replace(scenes[0], y=torch.cat([scene.frames for scene in scenes]), black_levels=black_levels)
