"""The mask's place and the dispersion, found by `align` from simulated snapshots whose camera is known."""

import numpy as np
import pytest
import torch
from cases import moved
from messages import refused
from scipy import ndimage

from cassi.cli.main import run
from cassi.files import write_arrays
from cassi.optics.single_disperser import CASSI
from cassi.self_calibration.search import align
from cassi.simulation.camera import random_mask
from cassi.simulation.scene import procedural_scene

SHIFTS = tuple(range(0, 16, 2))
SIZE = 128


@pytest.fixture(scope="module")
def drawn():
    """A binary mask as a camera sees it, slightly blurred, and a scene of curves and textures (8, H, W)."""
    elements = random_mask(SIZE, SIZE, generator=torch.Generator().manual_seed(1)).numpy()
    wavelengths = torch.linspace(450, 650, len(SHIFTS))
    painted = procedural_scene(SIZE, SIZE, wavelengths, generator=torch.Generator().manual_seed(1)).numpy()
    return ndimage.gaussian_filter(elements, 0.7), painted


def dispersed(scene, mask, *, stretch=0.0, **pose):
    """A snapshot with dispersion SHIFTS * (1 + stretch), by quintic splines throughout."""
    true, span = moved(mask, **pose), max(SHIFTS)
    y = np.zeros((SIZE, SIZE + span))
    for band, d in zip(scene.astype(np.float64), SHIFTS, strict=True):
        y += ndimage.shift(np.pad(true * band, ((0, 0), (0, span))), (0, d * (1 + stretch)), order=5)
    return torch.as_tensor(y.clip(0).astype(np.float32))


HERE = {"dx": 1.2, "dy": -0.7, "rotation": 0.4, "stretch": 0.05}
THERE = {"dx": 0.5, "dy": -0.6, "rotation": 0.0, "stretch": 0.0}


@pytest.mark.parametrize(("per_band", "pose"), [(False, HERE), (True, HERE), (False, THERE)])
def test_place_and_dispersion_are_found(drawn, per_band, pose):
    mask, scene = drawn
    y = dispersed(scene, mask, **pose)
    if per_band:
        share = np.linspace(0.8, 1.0, len(SHIFTS), dtype=np.float32)[:, None, None]
        mask, scene = mask * share, scene / share
    found = align(y, torch.as_tensor(mask), SHIFTS)
    assert found.accepted and found.errors[1] < 0.9 * found.errors[0] and "moved" in found.message
    assert found.model.right["1"] == pytest.approx(pose["dx"], abs=0.1)
    assert found.model.down["1"] == pytest.approx(pose["dy"], abs=0.1)
    # a picture of 128 pixels and a spectrum of 14 turn and stretch by less than those of a camera
    assert found.turn == pytest.approx(pose["rotation"], abs=0.15)
    assert found.dispersion * max(SHIFTS) == pytest.approx(pose["stretch"] * max(SHIFTS), abs=0.15)
    assert found.model.blur == {} and found.model.contrast == 1
    # its operator photographs a cube whose bands lie where it says as the camera does
    A, remainders = CASSI(torch.as_tensor(found.mask), found.shifts), found.remainders or (0.0,) * len(SHIFTS)
    assert A.measurement_shape == y.shape and max(map(abs, remainders[1:-1])) <= 0.5
    bands = [ndimage.shift(band, (0, f), order=3, mode="nearest") for band, f in zip(scene, remainders, strict=True)]
    displaced, inner = torch.as_tensor(np.stack(bands)), (slice(8, -8), slice(24, -24))
    as_given = CASSI(torch.as_tensor(mask), SHIFTS).forward(torch.as_tensor(scene))
    assert (A.forward(displaced) - y)[inner].norm() < 0.3 * (as_given - y)[inner].norm()
    assert float((found.register(displaced) - torch.as_tensor(scene))[..., 4:-4].abs().mean()) < 0.01


@pytest.mark.parametrize("fading", [False, True])
def test_a_dispersion_that_is_right_is_kept(drawn, fading):
    """Less and less light towards both ends looks much like a compressed spectrum."""
    mask, scene = drawn
    light = np.exp(-((np.linspace(-1, 1, len(SHIFTS)) / 0.5) ** 2))[:, None, None] if fading else 1
    found = align(dispersed(scene * light, mask, dy=-0.6 * fading), torch.as_tensor(mask), SHIFTS)
    assert found.dispersion == 0 and found.remainders == () and found.shifts == SHIFTS
    assert found.model.down.get("1", 0.0) == pytest.approx(-0.6 * fading, abs=0.1)


def test_what_cannot_be_aligned(drawn):
    y, mask = torch.ones(SIZE, SIZE + max(SHIFTS)), torch.as_tensor(drawn[0])
    refused(align, y[:, :SIZE], mask, SHIFTS)
    dark = align(torch.zeros_like(y), mask, SHIFTS)
    assert not dark.accepted and torch.equal(torch.as_tensor(dark.mask), mask)


def test_align_on_the_command_line_says_what_it_found(drawn, tmp_path, capsys):
    mask, scene = drawn
    y = dispersed(scene, mask, dx=1.2, dy=-0.7, stretch=0.05).numpy()
    write_arrays(tmp_path / "m.h5", {"measurement": y, "mask": mask, "shifts": np.array(SHIFTS)})
    told = ["--measurement", str(tmp_path / "m.h5"), "--solver", "gap-tv", "--figures", "none", "--align"]
    assert run("reconstruct", told, "reconstruct.py") == 0
    said = capsys.readouterr().out
    assert "displaced mask: it fits when moved by -1 rows (down) and +1 columns (right)" in said
    assert "with the camera that was found, the mask fits" in said
