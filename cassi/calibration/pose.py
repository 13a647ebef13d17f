"""Alignment: the search for the camera, with another dispersion looked for too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from cassi.calibration.camera_model import move_mask, shift_columns
from cassi.calibration.found_camera import FoundCamera, find_camera
from cassi.errors import InputError
from cassi.optics.building import camera_of_shot
from cassi.optics.measurement import Measurement

__all__ = ["Alignment", "align", "align_measurement", "move_mask", "shift_columns"]

Alignment = FoundCamera


def align(
    y: Tensor, mask: Tensor, shifts: Sequence[float], *, bad_pixels: Tensor | None = None, seed: int = 0
) -> FoundCamera:
    """Find from a snapshot of an unknown scene where the mask lies and how far the bands are spread: `find_camera`.

    Args:
        y: snapshot (H, W'), any unit.
        mask: coded aperture (H, W), or (C, H, W) with one per band, as believed to lie.
        shifts: displacement d_c of each band as believed [pixel], C whole numbers.
        bad_pixels: (H, W') bool, pixels to leave out.
        seed: of the held-out pixels.

    Returns:
        The `FoundCamera`; check `accepted`, and `register` the cube that is reconstructed with it.

    Raises:
        ValueError: shapes that do not fit.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> mask = torch.rand(64, 64, generator=generator)
        >>> y = torch.ones(64, 67)
        >>> align(y, mask, (0, 1, 2, 3)).accepted
        False
    """
    y, mask = y.detach().cpu(), mask.detach().cpu()
    bad = None if bad_pixels is None else bad_pixels.cpu().numpy()
    whole = tuple(int(d) if float(d).is_integer() else float(d) for d in shifts)
    found = align_measurement(Measurement(y=y.numpy(), mask=mask.numpy(), shifts=whole, bad_pixels=bad), seed=seed)
    return found[1]


def align_measurement(measurement: Measurement, *, seed: int = 0) -> tuple[Measurement, FoundCamera]:
    """`align` for a measurement from a file.

    Args:
        measurement: with the mask and the shifts as believed.
        seed: see `align`.

    Returns:
        The measurement with the camera that was found, what was found among its notes, and the `FoundCamera`, whose
        `register` belongs to the cube reconstructed from it.

    Raises:
        InputError: shapes that do not fit.
    """
    m = measurement
    try:
        camera_of_shot(m, torch.device("cpu")).check_measurement(torch.as_tensor(m.y, dtype=torch.float32))
    except ValueError as error:
        raise InputError(str(error)) from error
    if m.bad_pixels is not None and m.bad_pixels.shape != m.y.shape[-2:]:
        raise InputError(f"bad_pixels must be {m.y.shape[-2:]} as y is, got {m.bad_pixels.shape}")
    found = find_camera(m, dispersion=True, seed=seed)
    return replace(found.in_place(m), notes=(*m.notes, found.message)), found
