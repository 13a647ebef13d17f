"""One camera fitted to many captures of it: pose, optics and the error of its mask, and how far the captures agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from cassi.errors import InputError
from cassi.kernels.caller import undisturbed
from cassi.optics.detector import check_light
from cassi.optics.measurement import Measurement, check_camera, no_scene_reason
from cassi.priors.learned import DEFAULT, LearnedPrior
from cassi.self_calibration.found_camera import FoundCamera
from cassi.self_calibration.search import find_camera, of_scenes_of_their_own, predictions
from cassi.types import PathLike, Progress


@dataclass(frozen=True, eq=False)
class RefinedCamera:
    """A camera found from several captures together, beside those found from each of them alone."""

    together: FoundCamera
    alone: tuple[FoundCamera, ...]
    names: tuple[str, ...]  # of the captures
    errors: np.ndarray  # (captures, 3) held-out error with the camera as given, as found from it alone, and from all
    given: np.ndarray  # (H, W) or (C, H, W), the mask as given
    repeated: tuple[str, ...] = ()  # captures that took no part, as they show a scene again or none

    def values(self) -> dict[str, tuple[float, ...]]:
        """What was fitted, in words with units: together, then from each capture alone."""
        return {
            name: tuple(look(camera) for camera in (self.together, *self.alone)) for name, look in QUANTITIES.items()
        }

    def summary(self) -> list[str]:
        """What was found, one line each, +- the standard error over the captures, and the held-out errors."""
        count = len(self.names)
        lines, found = [self.together.message], self.values() if self.together.accepted else {}
        if found:
            lines.append(f"fitted to {count} {'capture' if count == 1 else 'captures'} together:")
        for name, (value, *alone) in found.items():
            sure = "" if count == 1 else f" +- {np.std(alone, ddof=1) / math.sqrt(count):.3f}"
            lines.append(f"  {name}: {value:+.3f}{sure}")
        if (learned := self.together.mask_error) is not None and learned.accepted:
            top, error = float(self.together.mask.max()), learned.error
            by = f"{float(error.std()) / top:.1%}"
            by += "" if error.ndim == 2 else f" ({float((error - error.mean(0)).std()) / top:.1%} from band to band)"
            kept = "captures" if learned.captures > 1 else "detector pixels"
            lines.append(
                f"the mask's elements: corrected by {by}, "
                f"explaining {learned.explained[-1]:.0%} of what kept {kept} hold beyond smooth scenes"
            )
            if learned.gain is not None:
                lines[-1] += f", with a sensitivity of detector pixels that varies by {float(learned.gain.std()):.1%}"
            if len(learned.growth) > 1:
                lines.append("explained of a kept capture: " + ", ".join(f"{s:.0%} by {n}" for n, s in learned.growth))
        if self.repeated:
            again = "shows a scene again, or none" if len(self.repeated) == 1 else "show scenes again, or none"
            lines.append(f"{', '.join(self.repeated)}: {again}, and took no part")
        lines.append("held-out error as given, found from the capture alone, found from all:")
        width = max(map(len, self.names))
        for name, row in zip(self.names, self.errors, strict=True):
            lines.append(f"  {name:<{width}}  " + "  ".join(f"{error:.2%}" for error in row))
            if row[2] > 2 * row[1]:
                lines.append("  it shows another mask than the others do: leave it out")
        return lines


QUANTITIES: dict[str, Callable[[FoundCamera], float]] = {
    "moved right [px]": lambda camera: camera.model.right.get("1", 0.0),
    "moved down [px]": lambda camera: camera.model.down.get("1", 0.0),
    "turned [degree]": lambda camera: camera.turn,
    "magnified [%]": lambda camera: camera.magnification,
    "blurred, sharpest place [px]": lambda camera: camera.blur_range[0],
    "blurred, softest place [px]": lambda camera: camera.blur_range[1],
    "contrast of the mask": lambda camera: camera.model.contrast,
}


def fit_steps(names: Sequence[str]) -> list[str]:
    """The steps of `calibrate_from_captures` on captures of these names."""
    alone = [f"fit to capture {k} alone, {name}" for k, name in enumerate(names, 1)] if len(names) > 1 else []
    return ["fit to all captures", *alone, "compare on held-out pixels"]


@undisturbed
def calibrate_from_captures(
    measurements: Sequence[Measurement], *, black_level: float | None = None, seed: int = 0,
    weights: PathLike | LearnedPrior | None = DEFAULT, progress: Progress = lambda step, share: None,
) -> RefinedCamera:  # fmt: skip
    """Calibrate a camera from captures of different scenes: one camera fitted to all, and one to each for comparison.

    Pose, dispersion and optics are found as by `find_camera`; then scenes and the error of the mask's elements are
    estimated in turn, and how strongly is decided by captures that take no part (see docs/physics.md). Two captures
    tell much, some twenty nearly all.

    Args:
        measurements: one or more of one camera and one region of its detector, with its mask and shifts as believed.
        black_level, seed, weights: as for `find_camera`.
        progress: called with the name of each of the `fit_steps` and the share of it that is done.

    Returns:
        The `RefinedCamera`; its `together.save("camera.h5")` writes a mask that every command takes.

    Raises:
        InputError: no measurement, one without a scene, negative ones, snapshots of different sizes, or different
            masks or shifts.
    """
    if not measurements:
        raise InputError("no capture given to refine the camera with; give one at least")
    names = [m.source or f"capture {k}" for k, m in enumerate(measurements, 1)]
    first, *each, last = fit_steps(names)
    if len(set(names)) < len(names):  # frames of one file
        names = [f"{name} ({k})" for k, name in enumerate(names, 1)]
    for name, m in zip(names, measurements, strict=True):
        if nothing := no_scene_reason(m):
            raise InputError(f"{name}: {nothing}, and so nothing of the camera; leave it out")
        try:
            check_light(torch.as_tensor(m.y if m.bad_pixels is None else m.y * ~m.bad_pixels) - (black_level or 0))
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    shapes = {m.y.shape[-2:] for m in measurements}
    if len(shapes) > 1:
        sizes = ", ".join(f"{height} x {width}" for height, width in sorted(shapes))
        raise InputError(f"the captures must have one size, got {sizes}; give those of one camera and one region")
    check_camera(measurements)

    own = of_scenes_of_their_own(measurements, black_level)
    repeated = tuple(name for k, name in enumerate(names) if k not in own)
    measurements, names = [measurements[k] for k in own], [names[k] for k in own]
    each = [each[k] for k in own] if len(own) > 1 else []

    def fit(step: str, *chosen: Measurement) -> FoundCamera:
        together = len(chosen) == len(measurements)  # alone, only the pose is compared
        how: dict[str, Any] = {"black_level": black_level, "seed": seed, "mask_error": together, "weights": weights}
        return find_camera(*chosen, **how, report=partial(progress, step))

    together = fit(first, *measurements)
    alone = [fit(step, m) for step, m in zip(each, measurements, strict=False)] or [together]
    as_given, errors = FoundCamera.as_given(measurements[0]), list[list[float]]()
    for k, (m, one) in enumerate(zip(measurements, alone, strict=True)):
        progress(last, k / len(measurements))
        errors.append(
            [predictions(m, camera, black_level=black_level, seed=seed) for camera in (as_given, one, together)]
        )
    return RefinedCamera(together, tuple(alone), tuple(names), np.array(errors), measurements[0].mask, repeated)
