"""Snapshots of unknown scenes, and the camera that is believed so far, from which each proposal of another starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from cassi.optics.building import build_shot_camera
from cassi.optics.cropping import Shot
from cassi.optics.detector import black_level_of
from cassi.optics.mask_match import compare_with_mask
from cassi.optics.measurement import Measurement, any_bad
from cassi.optics.protocol import Camera
from cassi.optics.single_disperser import CASSI
from cassi.priors.learned import MIN_BANDS, LearnedPrior
from cassi.self_calibration.elements_of_several import MIN_SIDE
from cassi.self_calibration.found_camera import FoundCamera

Report = Callable[[float], None]  # of the share of the work that is done

CPU = torch.device("cpu")
FRAMES = 4  # of a stack that are looked at


@dataclass(frozen=True, eq=False)
class Scenes:
    """Snapshots, and the camera that is believed so far.

    Attributes:
        found: that camera.
        measurements: with the mask and the shifts as given.
        black_level: subtracted, in the unit of y; None: estimated.
        seed: of held-out pixels.
        prior: the network that may be used; None: total variation alone.
        device: of short reconstructions.
    """

    found: FoundCamera
    measurements: Sequence[Measurement]
    black_level: float | None
    seed: int
    prior: LearnedPrior | None
    device: torch.device

    @cached_property
    def measurement(self) -> Measurement:
        """The first one, with the camera in place."""
        return self.found.in_place(self.measurements[0])

    @cached_property
    def shows_mask(self) -> bool:
        """Whether the snapshot shows the mask of the camera, in bands enough to tell a scene from it."""
        m = self.measurement
        m = m if m is self.measurements[0] else replace(m, check=None)  # its own stands
        return len(m.shifts) >= MIN_BANDS and compare_with_mask(m).matches

    @cached_property
    def camera(self) -> CASSI | None:
        """The camera without bad pixels; None where single elements and pixels cannot be looked at."""
        if not_looked_for(self.measurement):
            return None
        camera, bad = self._built
        if not isinstance(camera, CASSI) or min(camera.cube_shape[1:]) < MIN_SIDE:
            return None
        return camera if bad is None else camera.weighted((~bad).to(camera.dtype))

    @cached_property
    def snapshots(self) -> list[torch.Tensor]:
        """The first frames of each measurement, divided by the sensitivity found so far, 0 at bad pixels."""
        camera, bad = self._built
        each = [self.found.in_place(m) for m in self.measurements]
        return [y for m in each for y in first_frames(m, camera, bad, self.black_level)]

    @cached_property
    def _built(self) -> tuple[Shot, torch.Tensor | None]:
        """The camera with all pixels, and which of them are bad."""
        m = self.measurement
        left_out = any_bad((m.bad_pixels, *(one.bad_pixels for one in self.measurements)))
        bad = bad_pixels_of(replace(m, bad_pixels=left_out), self.device)
        return through(m, m.mask, self.device), bad


def not_looked_for(m: Measurement) -> str:
    """Why the camera of a measurement is not looked for; empty where it is."""
    if m.shots is not None:
        return "it is found from scenes of one shot only"
    if len(m.shifts) > 1 and len(set(m.shifts)) == 1:
        return "it is found for single dispersers only, not where all bands lie in one place"
    if not np.ptp(m.mask, axis=(-2, -1)).any():
        return "it is found from the mask's pattern, and this mask has none"
    if not all(float(d).is_integer() for d in m.shifts):
        return "it is found for bands on whole pixels only, and some of these lie between"
    return ""


def through(m: Measurement, mask: np.ndarray, on: torch.device = CPU) -> Shot:
    """The camera of a measurement with this mask."""
    return build_shot_camera(replace(m, mask=mask), on)


def bad_pixels_of(m: Measurement, on: torch.device = CPU) -> torch.Tensor | None:
    return None if m.bad_pixels is None else torch.tensor(m.bad_pixels, device=on)  # may be read-only


def first_frames(m: Measurement, A: Camera, bad: torch.Tensor | None, black_level: float | None) -> list[torch.Tensor]:
    """The first snapshots less their black level, 0 at bad pixels."""
    known, black_level = A if bad is None else A.weighted((~bad).to(A.dtype)), m.black_level_left(black_level)
    frames = []
    for frame in m.y.reshape(-1, *m.y.shape[-2:])[:FRAMES]:
        y = torch.as_tensor(frame, dtype=torch.float32, device=A.device)
        y = y - (black_level_of(known, y) if black_level is None else black_level)
        y = y if m.sensitivity is None else y / torch.tensor(m.sensitivity, device=A.device)
        frames.append(y if bad is None else torch.where(bad, 0, y))
    return frames
