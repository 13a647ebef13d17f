"""Alignment from one snapshot, on cameras put out of alignment by an interpolation of another kind (quintic)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from cassi.calibration.pose import (
    Alignment,
    _block_misfit,
    _clearly_less,
    _differentiated,
    _FieldMisfit,
    _Geometry,
    _Snapshot,
    align,
    move_mask,
)
from cassi.files import read_measurement
from cassi.optics.single_disperser import CASSI
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

SIZE, BANDS, STEP = 64, 8, 2
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


@pytest.mark.parametrize(
    "pose",
    [
        {"dx": 1.2, "dy": -0.7, "rotation": 0.4, "stretch": 0.05},
        {"dx": -1.6, "dy": 1.8, "rotation": -0.3, "stretch": -0.04},
    ],
)
def test_the_pose_is_found_and_the_held_out_error_falls(mask, scene, pose):
    found = align(photograph(mask, scene, **pose), mask, SHIFTS, max_scale_error=0, max_step_error=0.08)
    assert found.accepted
    assert found.message.startswith("aligned: mask moved by")
    assert found.misfit_after < 0.9 * found.misfit_before
    assert found.dx == pytest.approx(pose["dx"], abs=0.1)
    assert found.dy == pytest.approx(pose["dy"], abs=0.1)
    # a picture of 64 pixels and a spectrum of 14 turn and stretch by less than those of a camera
    assert found.rotation == pytest.approx(pose["rotation"], abs=0.15)
    assert (found.step_factor - 1) * max(SHIFTS) == pytest.approx(pose["stretch"] * max(SHIFTS), abs=0.15)
    assert found.scale == 1
    assert found.curvature == 0


def test_a_camera_in_alignment_is_left_alone(mask, scene):
    found = align(photograph(mask, scene), mask, SHIFTS, max_scale_error=0, max_step_error=0)
    assert abs(found.dx) < 0.1
    assert abs(found.dy) < 0.1
    if not found.accepted:
        assert torch.equal(found.mask, mask)
        assert found.operator().shifts == SHIFTS


def test_the_dispersion_stays_as_given_where_the_spectrum_fades_out(mask, scene):
    """Less and less light towards both ends looks like a compressed spectrum: nobody can tell from one snapshot."""
    fading = torch.exp(-((torch.linspace(-1, 1, BANDS) / 0.5) ** 2))[:, None, None]
    y = photograph(mask, scene * fading, dx=0.5, dy=-0.6)
    found = align(y, mask, SHIFTS, max_rotation=0, max_scale_error=0, max_step_error=0.08)
    assert found.step_factor == 1
    assert found.dy == pytest.approx(-0.6, abs=0.1)


def test_the_spectrum_of_the_likeliest_scene_fades_where_the_scene_does(mask, scene):
    fading = torch.linspace(0.1, 1.9, BANDS)[:, None, None]
    spectra = []
    for light in (scene, scene * fading):
        snapshot = _Snapshot(photograph(mask, light), None)
        geometry = _Geometry(mask.shape, tuple(map(float, SHIFTS)), snapshot)
        spectra.append(_FieldMisfit(snapshot, mask, geometry).spectrum(torch.zeros(6, dtype=torch.float64)))
    flat, tilted = spectra
    assert flat.square().mean() == pytest.approx(1)
    assert tilted[0] < 0.8 * flat[0]
    assert tilted[-1] > 1.2 * flat[-1]


def test_clearly_less_is_more_than_the_scatter_over_the_folds():
    others = np.array([1.0, 1.1, 1.2])
    assert _clearly_less(others - 0.01, others)
    assert not _clearly_less(others, others)
    assert not _clearly_less(others - [0.02, -0.01, 0.0], others)
    assert _clearly_less(others - [0.03, 0.01, 0.02], others)


def test_a_camera_that_is_right_is_kept():
    """A part of the painted example: GAP-TV, which takes each band alone, likes a wrong dispersion better than none."""
    m = read_measurement(Path(__file__).parents[1] / "data" / "example.h5")
    cube, mask = (torch.as_tensor(array)[..., 64:128, 64:192].contiguous() for array in (m.cube, m.mask))
    clean = CASSI(mask, m.shifts).forward(cube)
    electrons = 2e4 / clean.max()
    y = torch.poisson(electrons * clean, generator=torch.Generator().manual_seed(0)) / electrons
    found = align(y, mask, m.shifts)
    assert max(abs(found.dx), abs(found.dy)) < 0.05 and abs(found.rotation) < 0.02 and found.step_factor == 1
    assert found.misfit_before < 0.03


def test_a_snapshot_without_light_is_refused(mask):
    found = align(torch.zeros(SIZE, SIZE + max(SHIFTS)), mask, SHIFTS)
    assert not found.accepted
    assert found.message.startswith("not aligned, the camera as given does as well or better")
    assert (found.dx, found.dy, found.rotation, found.scale, found.step_factor, found.curvature) == (0, 0, 0, 1, 1, 0)
    assert torch.equal(found.mask, mask)


def test_bad_pixels_do_not_move_the_estimate(mask, scene):
    y = photograph(mask, scene, dx=1.0)
    bad = torch.rand(y.shape, generator=torch.Generator().manual_seed(2)) < 0.01
    y = torch.where(bad, 10 * y.max(), y)
    limits = {"max_rotation": 0.0, "max_scale_error": 0.0, "max_step_error": 0.0}
    found = align(y, mask, SHIFTS, bad_pixels=bad, **limits)
    assert found.dx == pytest.approx(1.0, abs=0.1)
    assert found.accepted


def test_a_mask_per_band_is_moved_as_a_whole(mask, scene):
    bands = mask * torch.linspace(0.8, 1.0, BANDS)[:, None, None]
    limits = {"max_rotation": 0.0, "max_scale_error": 0.0, "max_step_error": 0.0}
    found = align(photograph(mask, scene, dx=-1.0, dy=0.5), bands, SHIFTS, **limits)
    assert found.mask.shape == bands.shape
    torch.testing.assert_close(found.mask[0], move_mask(bands, dx=found.dx, dy=found.dy)[0])
    assert found.dx == pytest.approx(-1.0, abs=0.1)


def test_two_calls_agree(mask, scene):
    y = photograph(mask, scene, dx=0.5)
    limits = {"max_shift": 1.0, "max_rotation": 0.0, "max_scale_error": 0.0, "max_step_error": 0.0}
    first, second = (align(y, mask, SHIFTS, **limits) for _ in range(2))
    assert (first.dx, first.dy, first.misfit_after) == (second.dx, second.dy, second.misfit_after)


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


def given(mask: Tensor, shifts: tuple[float, ...], nominal: tuple[float, ...]) -> Alignment:
    return Alignment(0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.5, True, "", mask, shifts, nominal)


def test_whole_shifts_keep_the_detector_of_the_camera_given():
    nominal = tuple(range(0, 56, 2))
    for factor in (0.97, 1.0, 1.03):
        found = given(torch.ones(32, 32), tuple(d * factor for d in nominal), nominal)
        assert found.operator().measurement_shape == (32, 32 + 54)
        assert all(abs(f) <= 0.5 for f in found.remainders[1:-3])
    assert max(map(abs, found.remainders)) == pytest.approx(54 * 0.03)


def test_the_operator_photographs_a_displaced_cube_as_the_camera_does(mask, scene):
    smooth = torch.as_tensor(np.stack([ndimage.gaussian_filter(band, 2.0) for band in scene.numpy()]))
    smooth_mask = torch.as_tensor(ndimage.gaussian_filter(mask.numpy(), 1.0))
    found = given(smooth_mask, tuple(1.03 * d for d in SHIFTS), tuple(map(float, SHIFTS)))
    y = photograph(smooth_mask, smooth, stretch=0.03)
    displaced = torch.stack(
        [
            torch.as_tensor(ndimage.shift(band, (0, f), order=5, mode="nearest"))
            for band, f in zip(smooth.numpy(), found.remainders, strict=True)
        ]
    )
    inner = (slice(None), slice(16, -16))
    error = (found.operator().forward(displaced) - y)[inner]
    assert error.norm() < 2e-3 * y[inner].norm()
    assert (CASSI(smooth_mask, SHIFTS).forward(smooth) - y)[inner].norm() > 1e-2 * y[inner].norm()
    torch.testing.assert_close(found.register(displaced)[..., 4:-4], smooth[..., 4:-4], atol=2e-3, rtol=0)


def test_an_alignment_without_dispersion_error_uses_one_mask(mask):
    found = given(mask, tuple(map(float, SHIFTS)), tuple(map(float, SHIFTS)))
    assert found.operator().mask.ndim == 2
    cube = torch.ones(BANDS, SIZE, SIZE)
    assert found.register(cube) is cube


@pytest.mark.parametrize("kind", ["blocks", "field"])
def test_the_gradients_of_the_misfits_are_exact(mask, scene, kind):
    snapshot = _Snapshot(photograph(mask, scene, dx=0.5), None)
    geometry = _Geometry(mask.shape, tuple(map(float, SHIFTS)), snapshot)
    theta = torch.tensor([0.2, -0.3, 0.1, 0.05, 0.1, 0.2], dtype=torch.float64)
    if kind == "blocks":
        objective = _differentiated(_block_misfit(snapshot, mask, geometry, sigma=1.0, block=16))
    else:
        objective = _FieldMisfit(snapshot, mask, geometry, dtype=torch.float64, first=2000, steps=2000)
    _, gradient = objective(theta)
    for k in range(6):
        step = torch.zeros(6, dtype=torch.float64)
        step[k] = 1e-3
        slope = (objective(theta + step)[0] - objective(theta - step)[0]) / 2e-3
        assert slope == pytest.approx(float(gradient[k]), rel=2e-3, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"max_shift": -1.0}, "the bound on dx must be >= 0, got -1.0"),
        ({"max_curvature": math.nan}, "the bound on curvature must be >= 0"),
        ({"y": torch.ones(SIZE, SIZE)}, r"y must be \(64, 78\)"),
        ({"y": torch.ones(2, SIZE, SIZE + 14)}, r"y must be \(64, 78\)"),
        ({"mask": torch.ones(3, SIZE, SIZE)}, r"mask must be \(H, W\) or \(C, H, W\) with C = 8"),
        ({"mask": torch.ones(20, 20), "y": torch.ones(20, 34)}, "too small to align"),
        ({"bad_pixels": torch.zeros(3, 3)}, r"bad_pixels must be \(64, 78\)"),
    ],
)
def test_errors_say_what_is_wrong(mask, change, match):
    arguments = {"y": torch.ones(SIZE, SIZE + 14), "mask": mask, "shifts": SHIFTS, **change}
    with pytest.raises(ValueError, match=match):
        align(**arguments)
