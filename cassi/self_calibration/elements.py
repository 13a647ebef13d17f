"""The error of a mask's elements, proposed and judged: learned from one snapshot, or from several of other scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from cassi.optics.cropping import crop, highest_variance_window
from cassi.optics.measurement import MAX_TRANSMISSION
from cassi.optics.single_disperser import CASSI
from cassi.self_calibration.elements_of_one import learn_from_one
from cassi.self_calibration.elements_of_several import MaskError, learn_mask_error, of_other_scenes
from cassi.self_calibration.found_camera import FoundCamera
from cassi.self_calibration.scenes import Report, Scenes
from cassi.self_calibration.trials import TRIAL_SIDE

# A window decides whether the mask of a large snapshot has an error: its side is at least `TRIAL_SIDE`, and this many
# times the distance of the outermost bands, as pixels with light from beside the window are left out.
SPANS = 2


def correct_elements(scenes: Scenes, report: Report) -> FoundCamera:
    """The camera with the error of its mask's elements corrected, where the snapshots show one."""
    found, camera, m, prior = scenes.found, cast(CASSI, scenes.camera), scenes.measurement, scenes.prior
    if not scenes.shows_mask:
        return found
    snapshots = [scenes.snapshots[k] for k in of_other_scenes(scenes.snapshots)]
    if prior is not None and len(snapshots) > 1:
        found, prior = replace(found, network=prior.weights), prior.on(camera.device)

    def learn(camera: CASSI, snapshots: Sequence[torch.Tensor], report: Report) -> MaskError:
        if len(snapshots) == 1:
            return learn_from_one(camera, snapshots[0], seed=scenes.seed, report=report).on_cpu()
        return learn_mask_error(camera, snapshots, seed=scenes.seed, prior=prior, report=report).on_cpu()

    height, width = camera.cube_shape[1:]
    side = max(TRIAL_SIDE, SPANS * (max(camera.shifts) - min(camera.shifts)))
    if height * width > side**2:  # a part of them shows whether there is anything to correct
        part = highest_variance_window(torch.stack(snapshots), (height, width), side)
        blocks = [crop(camera, y, *part) for y in snapshots]
        learned = learn(cast(CASSI, blocks[0][0]), [y for _, y in blocks], lambda share: None)
        if not learned.accepted:
            return replace(found, mask_error=learned)
    learned = learn(camera, snapshots, report)
    if not learned.accepted:
        return replace(found, mask_error=learned)
    most = max(MAX_TRANSMISSION, float(m.mask.max()))
    corrected = np.clip(m.mask + learned.error.numpy(), 0, most).astype(m.mask.dtype)
    sensitivity = found.sensitivity
    if learned.gain is not None:
        sensitivity = (1 + learned.gain.numpy()) * (1 if m.sensitivity is None else m.sensitivity)
    return replace(found, mask=corrected, shifts=m.shifts, sensitivity=sensitivity, accepted=True, mask_error=learned)
