"""Frames of one camera that follow each other, each reconstructed with the frames beside it.

A frame depends on its neighbors' snapshots alone, not on their results: each is finished and resumed by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from cassi.calibration.found_camera import FoundCamera
from cassi.choice.neighbors import Alone, alone, common_plan, together
from cassi.choice.outcome import Outcome
from cassi.choice.plan import Plan, Run
from cassi.errors import InputError
from cassi.optics.mask_match import compared
from cassi.optics.measurement import Measurement, any_bad
from cassi.running.front_door import as_in, assembled, reconstructed
from cassi.running.many import Frame
from cassi.running.preparing import as_found, prepare
from cassi.running.request import Request
from cassi.running.result import Reconstruction
from cassi.solvers.loop import Monitor

REACH = 2  # frames before and after that take part
LOOKED_AT = 3  # frames that the common plan is chosen on


def windows(frames: Sequence[Frame], reach: int = REACH) -> list[Frame]:
    """Each frame with the files of its neighbors, so that a result is made anew where one of them changes."""
    if any(frame.index is not None for frame in frames):
        return list(frames)  # of one stack
    return [
        replace(frame, others=tuple(frames[s].path for s in beside(t, len(frames), reach)))
        for t, frame in enumerate(frames)
    ]


def beside(t: int, count: int, reach: int) -> list[int]:
    """The frames up to so far before and after t that there are."""
    return [s for s in range(max(0, t - reach), min(count, t + reach + 1)) if s != t]


@dataclass(frozen=True)
class ReadWindow:
    """Reads a frame and those up to `reach` beside it as a stack, the frame itself first.

    Attributes:
        read: of one frame; see `cassi.running.many.reconstruct_many`.
        count: frames of the stack; 0 where each frame is a file.
    """

    read: Callable[..., Measurement]
    count: int = 0
    reach: int = REACH

    def __call__(self, path: str | tuple[str, ...], frames: int | None = None) -> Measurement:
        if frames is None:
            reads = [partial(self.read, one) for one in ((path,) if isinstance(path, str) else path)]
        else:
            reads = [partial(self.read, path, frames=s) for s in (frames, *beside(frames, self.count, self.reach))]
        window = [reads[0]()]
        for read in reads[1:]:
            with contextlib.suppress(InputError):  # a neighbor that cannot be read is told of when its turn comes
                window.append(read())
        return _stacked(window)


def _stacked(frames: Sequence[Measurement]) -> Measurement:
    m = frames[0]
    for other in frames:
        if other.y.shape != m.y.shape or other.y.ndim != 2 or other.shots is not None:
            raise InputError(
                f"the frames of a sequence must be single snapshots of one size, {m.source} is {m.y.shape}, "
                f"{other.source} {other.y.shape}; give one camera's frames"
            )
    return replace(m, y=np.stack([f.y for f in frames]), bad_pixels=any_bad(f.bad_pixels for f in frames))


@dataclass(frozen=True, eq=False)
class InSequence:
    """Reconstructs a frame from a stack of it and its neighbors, as `ReadWindow` reads them.

    Attributes:
        plan: common to all frames, see `sequence_plan`.
        request: of which prior, quality and weights are those of frames that stay alone.
    """

    plan: Plan
    request: Request

    def __post_init__(self) -> None:
        known: dict[str, Future[Alone]] = {}  # of the frames looked at last; no part of the value
        object.__setattr__(self, "_known", known)

    def __call__(self, m: Measurement, monitor: Monitor | None = None) -> Reconstruction:
        """The cube of the first snapshot of a stack; the others are those beside it."""
        start = time.perf_counter()
        own = replace(m, y=m.y[0], check=None)
        check = compared(own)
        camera, seed = self.request.camera, self.request.seed
        own, fit = replace(own, check=check), camera if isinstance(camera, FoundCamera) else None
        check = check if fit is None else as_found(check, fit.in_place(own))
        in_place = replace(m if fit is None else fit.in_place(m), check=check)
        scene = prepare(in_place, self.request)
        frames = [self._alone(scene.A, y) for y in scene.frames]
        joined = together(frames[0], frames[1:], self.plan, Run(seed, monitor=monitor))
        if joined is None:
            result = reconstructed(own, None, self.request, monitor=monitor)
            alone_too = {"together": 0, "common_plan": self.plan.as_dict()["basis"]}
            return replace(result, parameters={**result.parameters, **alone_too})
        before, after = joined.errors
        settings = {"together": joined.neighbors, "error_alone": before, "error_together": after}
        outcome = Outcome(joined.result, "subspace-tv", settings, joined.plan, begun=joined.begun)
        first = replace(scene, y=scene.frames[0], black_levels=scene.black_levels[:1], measurement=m, fit=fit)
        parameters = self.request.as_dict() | settings
        return assembled(first, [as_in(scene, outcome, scene.black_levels[0])], parameters, start)

    def _alone(self, A: Any, y: torch.Tensor) -> Alone:
        """A frame by itself, kept until its neighbors are done. Of workers that want the same, the first makes it."""
        known: dict[str, Future[Alone]] = self._known  # type: ignore[attr-defined]
        mine: Future[Alone] = Future()
        key = hashlib.sha256(y.cpu().numpy().tobytes()).hexdigest()
        found = known.setdefault(key, mine)
        if found is mine:
            for old in list(known)[: -3 * REACH]:
                known.pop(old, None)
            try:
                mine.set_result(alone(A, y, self.plan, seed=self.request.seed))
            except BaseException as error:
                known.pop(key, None)
                mine.set_exception(error)
        return found.result()


def sequence_plan(measurements: Sequence[Measurement], request: Request = Request()) -> Plan:  # noqa: B008  frozen
    """Noise and spectral basis for a whole sequence, from some of its frames.

    Args:
        measurements: two frames or more, spread over the sequence, of one camera.
        request: as for `cassi.reconstruct`.
    """
    if len(measurements) < 2:
        raise InputError(f"a sequence has two frames at least, got {len(measurements)}; leave it a single snapshot")
    scene = prepare(_stacked(measurements), request)
    return common_plan(
        scene.A,
        scene.frames,
        wavelengths=scene.wavelengths,
        noise=scene.noise,
        method=request.method,
        seed=request.seed,
    )
