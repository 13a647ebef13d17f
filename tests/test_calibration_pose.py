"""Alignment from one snapshot, on cameras put out of alignment by an interpolation of another kind (quintic)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from cassi.calibration.camera_model import CameraModel
from cassi.calibration.pose import Alignment, align, align_measurement, move_mask
from cassi.optics.measurement import Measurement
from cassi.optics.single_disperser import CASSI
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

SIZE, BANDS, STEP = 128, 8, 2
SHIFTS = tuple(range(0, STEP * BANDS, STEP))


@pytest.fixture(scope="module")
def mask() -> Tensor:
    """A binary mask as a camera sees it: slightly blurred."""
    drawn = random_mask(SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    return torch.as_tensor(ndimage.gaussian_filter(drawn.numpy(), 0.7))


@pytest.fixture(scope="module")
def scene() -> Tensor:
    wavelengths = torch.linspace(450, 650, BANDS)
    return procedural_scene(SIZE, SIZE, wavelengths, generator=torch.Generator().manual_seed(1))


def photograph(mask: Tensor, scene: Tensor, *, dx=0.0, dy=0.0, rotation=0.0, stretch=0.0) -> Tensor:
    """A snapshot through the moved mask, with dispersion SHIFTS * (1 + stretch), by quintic splines throughout."""
    turn = math.radians(rotation)
    inverse = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    center = np.full(2, (SIZE - 1) / 2)
    offset = center - inverse @ (center + np.array([dy, dx]))
    moved = ndimage.affine_transform(mask.double().numpy(), inverse, offset, order=5, mode="nearest").clip(0)
    y = np.zeros((SIZE, SIZE + max(SHIFTS)))
    for band, d in zip(scene.double().numpy(), SHIFTS, strict=True):
        light = np.pad(moved * band, ((0, 0), (0, max(SHIFTS))))
        y += ndimage.shift(light, (0, d * (1 + stretch)), order=5)
    return torch.as_tensor(y).float()


def test_place_turn_and_dispersion_are_found(mask, scene):
    stretch, dy, rotation = 0.06, -0.7, 0.4
    found = align(photograph(mask, scene, dx=1.0, dy=dy, rotation=rotation, stretch=stretch), mask, SHIFTS)
    assert found.accepted and found.errors[1] < 0.9 * found.errors[0]
    assert found.model.down["1"] == pytest.approx(dy, abs=0.05)
    assert found.turn == pytest.approx(rotation, abs=0.1)  # 0.1 px at the border
    assert found.stretch == pytest.approx(stretch * max(SHIFTS), abs=0.15)
    assert found.model.right["1"] == pytest.approx(1 + stretch * max(SHIFTS) / 2, abs=0.1)
    assert f"dispersed over {found.stretch:+.2f} px more" in found.message


def test_a_camera_in_alignment_is_left_alone(mask, scene):
    m = Measurement(y=photograph(mask, scene).numpy(), mask=mask.numpy(), shifts=SHIFTS)
    same, found = align_measurement(m)
    assert not found.accepted and same.notes[-1] == found.message
    assert np.array_equal(same.mask, m.mask)
    cube = torch.ones(BANDS, 4, 4)
    assert found.register(cube) is cube


def test_the_camera_photographs_a_displaced_cube_as_it_was_taken(mask, scene):
    """y(j + d_c + f_c) = m(j) x_c(j) is y(j + d_c) = m(j - f_c) x_c(j - f_c)."""
    smooth = torch.as_tensor(np.stack([ndimage.gaussian_filter(band, 2.0) for band in scene.numpy()]))
    smooth_mask = torch.as_tensor(ndimage.gaussian_filter(mask.numpy(), 1.0))
    reach = 0.03 * max(SHIFTS)
    model = CameraModel(right={"1": reach / 2, "t": reach / 2})
    middle = CameraModel(right={"1": reach / 2}).masks(smooth_mask.numpy(), SHIFTS)
    found = Alignment(model.masks(smooth_mask.numpy(), SHIFTS), SHIFTS, model, True)
    assert found.remainders == pytest.approx(np.linspace(-reach / 2, reach / 2, BANDS))
    displaced = torch.as_tensor(
        np.stack(
            [
                ndimage.shift(band, (0, f), order=5, mode="nearest")
                for band, f in zip(smooth.numpy(), np.linspace(-reach / 2, reach / 2, BANDS), strict=True)
            ]
        )
    )
    moved = CASSI(torch.as_tensor(middle), SHIFTS).mask[0]
    y = torch.zeros(SIZE, SIZE + max(SHIFTS), dtype=torch.float64)
    for band, d, f in zip((moved * smooth).double().numpy(), SHIFTS, found.remainders, strict=True):
        y += torch.as_tensor(ndimage.shift(np.pad(band, ((0, 0), (0, max(SHIFTS)))), (0, d + f), order=5))
    inner = (slice(None), slice(16, -16))
    error = (found.operator().forward(displaced) - y)[inner]
    assert error.norm() < 2e-3 * y[inner].norm()
    assert (CASSI(moved, SHIFTS).forward(smooth) - y)[inner].norm() > 5e-3 * y[inner].norm()
    torch.testing.assert_close(found.register(displaced)[..., 4:-4], smooth[..., 4:-4], atol=2e-3, rtol=0)


def test_moving_a_mask_by_whole_pixels_moves_its_pixels(mask):
    moved = move_mask(mask, dx=3, dy=-2)
    torch.testing.assert_close(moved[:-2, 3:], mask[2:, :-3], atol=1e-5, rtol=0)


def test_a_mask_turns_counterclockwise_as_displayed():
    mask = torch.zeros(41, 41)
    mask[20, 35] = 1  # to the right of the center
    assert divmod(int(move_mask(mask, dx=0, dy=0, rotation=90).argmax()), 41) == (5, 20)  # above it


def test_a_mask_grows_about_its_center():
    mask = torch.zeros(41, 41)
    mask[20, 30] = 1
    assert divmod(int(move_mask(mask, dx=0, dy=0, scale=1.5).argmax()), 41) == (20, 35)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"y": torch.ones(SIZE, SIZE)}, "mask and shifts make 128 x 142"),
        ({"mask": torch.ones(3, SIZE, SIZE)}, "3"),
        ({"bad_pixels": torch.zeros(3, 3)}, r"bad_pixels must be \(128, 142\)"),
    ],
)
def test_errors_say_what_is_wrong(mask, change, match):
    arguments = {"y": torch.ones(SIZE, SIZE + 14), "mask": mask, "shifts": SHIFTS, **change}
    with pytest.raises(ValueError, match=match):
        align(**arguments)
