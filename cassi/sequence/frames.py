"""Reconstructs the frames of a sequence from one camera, each with its neighbors.

A frame depends only on the snapshots of its neighbors, not on their results, so that each can be resumed separately.
"""

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan
from cassi.choice.stages import Watch
from cassi.errors import InputError
from cassi.optics.measurement import Measurement, any_bad
from cassi.optics.wavelengths import same_bands
from cassi.running.arguments import load, open_files
from cassi.running.fingerprint import Frame
from cassi.running.once import Once
from cassi.running.pipeline import (
    Listener,
    check,
    reconstruct_measurement,
    search_camera,
    solve_frames,
    with_scene_facts,
)  # fmt: skip
from cassi.running.result import Reconstruction
from cassi.running.scene import Scene, prepare
from cassi.self_calibration.found_camera import FoundCamera
from cassi.sequence.neighbors import SingleFrame, choose_common_plan, reconstruct_multi_frame, reconstruct_single_frame
from cassi.settings import SEQUENCE, Settings
from cassi.solvers.loop import Monitor

REACH = 2  # neighbors before and after a frame
PLAN_FRAMES = 3  # frames from which the common plan is chosen


def windows(frames: Sequence[Frame], reach: int = REACH) -> list[Frame]:
    """Each frame with the files of its neighbors, so that a result is recomputed if one of them changes."""
    if any(frame.index is not None for frame in frames):
        return list(frames)  # of one stack
    return [
        replace(frame, others=tuple(frames[s].path for s in neighbor_indices(t, len(frames), reach)))
        for t, frame in enumerate(frames)
    ]


def neighbor_indices(t: int, count: int, reach: int) -> list[int]:
    """The existing frames up to `reach` before and after t."""
    return [s for s in range(max(0, t - reach), min(count, t + reach + 1)) if s != t]


@dataclass(frozen=True)
class ReadWindow:
    """Reads a frame and its neighbors up to `reach` as a stack, the frame itself first."""

    read: Callable[..., Measurement]  # of one frame; see `cassi.running.many.reconstruct_many`
    count: int = 0  # frames of the stack; 0 if each frame is a file
    reach: int = REACH

    def __call__(self, path: str | tuple[str, ...], frames: int | None = None) -> Measurement:
        if frames is None:
            reads = [partial(self.read, file) for file in ((path,) if isinstance(path, str) else path)]
        else:
            reads = [
                partial(self.read, path, frames=s) for s in (frames, *neighbor_indices(frames, self.count, self.reach))
            ]
        window = [reads[0]()]
        for read in reads[1:]:
            with contextlib.suppress(InputError):  # an unreadable neighbor is reported when it is the frame itself
                window.append(read())
        return _stack(window)


def _stack(frames: Sequence[Measurement]) -> Measurement:
    m = frames[0]
    for other in frames:
        if other.y.shape != m.y.shape or other.y.ndim != 2 or other.shots is not None:
            what = f"the frames of a sequence must be single snapshots of one size, {m.source} is {m.y.shape}"
            raise InputError(f"{what}, {other.source} {other.y.shape}; give frames of one camera")
        if not same_bands(m.wavelengths, other.wavelengths):
            raise InputError(f"the frames {m.source} and {other.source} of a sequence have different wavelengths")
    return replace(m, y=np.stack([f.y for f in frames]), bad_pixels=any_bad(f.bad_pixels for f in frames))


@dataclass(frozen=True, eq=False)
class InSequence:
    """Reconstructs a frame from a stack with its neighbors, as read by `ReadWindow`."""

    plan: Plan  # common to all frames, see `sequence_plan`
    settings: Settings  # of frames reconstructed alone; prior, camera and seed apply to all
    camera: str | None = None  # as for `cassi.running.many.SolveWith`

    def __post_init__(self) -> None:
        self.settings.check_together(SEQUENCE, True)
        object.__setattr__(self, "_recent", Once[SingleFrame](3 * REACH))  # the latest frames, no part of the value

    def __call__(self, m: Measurement, monitor: Monitor | None = None) -> Reconstruction:
        """The cube of the first snapshot of a stack; the others are its neighbors."""
        settings, listener = self.settings, Listener(monitor=monitor)
        window = load(m, None, settings)
        own = check(replace(window, y=window.y[0], check=None), settings, listener)
        scene = prepare(replace(window, check=own.check), search_camera(own, settings, listener), settings)
        used: dict[str, Any] = {"together": 0, "common_plan": self.plan.basis}

        def solve(first: Scene, settings: Settings, listener: Listener, start: float) -> list[Outcome]:
            keys = (hashlib.sha256(y.cpu().numpy().tobytes()).hexdigest() for y in scene.frames)
            single = partial(reconstruct_single_frame, scene.A, plan=self.plan, seed=self.settings.seed)
            recent: Once[SingleFrame] = self._recent  # type: ignore[attr-defined]
            frames = [recent.get(key, partial(single, y)) for key, y in zip(keys, scene.frames, strict=True)]
            outcome = reconstruct_multi_frame(frames[0], frames[1:], self.plan, Watch(monitor))
            if outcome is None:
                return solve_frames(first, settings, listener, start)
            used.update(outcome.settings)
            return [with_scene_facts(outcome, first)]

        given = replace(window, check=None, notes=own.notes)
        first = replace(scene, y=scene.frames[0], black_levels=scene.black_levels[:1], measurement=given)
        result = reconstruct_measurement(first, settings, listener, solve)
        stated = used if self.camera is None else {**used, "camera": self.camera}
        return replace(result, parameters={**result.parameters, **stated})


def sequence_plan(measurements: Sequence[Measurement], settings: Settings = Settings()) -> Plan:
    """Noise and spectral basis for a whole sequence, from some of its frames.

    Args:
        measurements: at least two frames of one camera, spread over the sequence.
        settings: as for `cassi.reconstruct`.
    """
    if len(measurements) < 2:
        raise InputError(f"a sequence has at least two frames, got {len(measurements)}; treat it as a single snapshot")
    settings = open_files(settings)
    camera = settings.camera if isinstance(settings.camera, FoundCamera) else None
    scene = prepare(_stack(measurements), camera, settings)
    return choose_common_plan(
        scene.A, scene.frames, wavelengths=scene.wavelengths, noise=scene.noise, settings=settings
    )
