"""Arrays as users hand them over reach the compiled kernels."""

import numpy as np
import pytest
import torch
from messages import refused, warns

from cassi import CASSI, reconstruct
from cassi.kernels import cpu
from cassi.kernels.dispatch import kernels
from cassi.looking.report_data import report_of
from cassi.optics.measurement import Measurement
from cassi.running.arguments import load
from cassi.running.scene import prepare, prepare_camera
from cassi.settings import Settings
from cassi.simulation.scene import procedural_scene

RNG = np.random.default_rng(0)
SHIFTS = (0, 2, 4)
Y, MASK, MASKS = (np.round(100 * RNG.random(shape)) for shape in ((16, 16), (16, 12), (3, 16, 12)))


def read_only(values):
    values = values.astype(np.float32)
    values.flags.writeable = False
    return values


FORMS = {
    "float64": lambda values: values, "Fortran order": lambda values: np.asfortranarray(values, dtype=np.float32),
    "integers": lambda values: values.astype(np.int16), "big-endian": lambda values: values.astype(">f4"),
    "read-only": read_only, "a turned view": lambda values: np.flip(np.flip(values, (-1, -2)).copy(), (-1, -2)),
}  # fmt: skip


def by_camera(y, mask):
    """The mask as a tensor of the same strides, where torch has such."""
    held = torch.as_tensor(mask if mask.flags.f_contiguous and mask.flags.writeable else mask.astype(np.float32).copy())
    return prepare_camera(CASSI(held.float(), SHIFTS), y, Settings())


WAYS = {
    "arrays": lambda y, mask: prepare(load(y, mask, Settings(step=2)), None, Settings()),
    "a Measurement": lambda y, mask: prepare(Measurement(y=y, mask=mask, shifts=SHIFTS), None, Settings()),
    "a camera": by_camera,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("mask", [MASK, MASKS], ids=["one mask", "a mask per band"])
def test_the_compiled_kernels_take_them(way, form, mask):
    task = WAYS[way](FORMS[form](Y), FORMS[form](mask))
    assert kernels(task.y, task.A.mask) is cpu
    unit = mask.max() if (form, way) == ("integers", "arrays") else 1  # an array of integers is no transmission
    np.testing.assert_allclose(task.A.mask.numpy() * unit, mask, rtol=1e-6)
    np.testing.assert_allclose(task.y.numpy() + task.black_levels[0], Y, rtol=1e-5)


def test_bad_pixels_are_taken_as_matlab_keeps_them():
    bad = np.asfortranarray(np.arange(Y.size).reshape(Y.shape) % 50 == 0)
    task = prepare(Measurement(y=Y, mask=MASK, shifts=SHIFTS, bad_pixels=bad), None, Settings())
    assert task.y.is_contiguous() and task.A.weights.is_contiguous() and not bool(task.y[torch.tensor(bad)].any())


def test_what_a_bad_pixel_holds_is_no_light():
    bad = np.zeros(Y.shape, bool)
    bad[3, 3] = True
    camera = CASSI(torch.from_numpy(MASK).float(), SHIFTS)
    for value in (np.nan, 1e6):
        task = prepare_camera(camera, np.where(bad, value, Y), Settings(bad_pixels=bad, black_level=5.0))
        assert float(task.y.max()) == Y[~bad].max() - 5
    refused(prepare_camera, camera, np.where(bad, 1e6, Y), Settings(bad_pixels=bad, black_level=1e3))


def test_a_camera_of_double_precision_gets_its_measurement_so():
    task = prepare_camera(CASSI(torch.from_numpy(MASK), SHIFTS), Y + 1e-9, Settings(black_level=0.0))
    np.testing.assert_array_equal(task.y.numpy(), Y + 1e-9)


def test_a_memory_map_is_taken_and_a_mask_per_band_is_not_copied(tmp_path):
    np.save(tmp_path / "y.npy", np.asfortranarray(Y))
    masks = MASKS.astype(np.float32)
    m = load(np.load(tmp_path / "y.npy", mmap_mode="r"), masks, Settings(step=2))
    assert kernels(*(torch.from_numpy(values) for values in (m.y, m.mask))) is cpu
    assert np.shares_memory(m.mask, masks)


def test_a_wrong_number_of_bands_is_not_explained_away():
    """The search for a camera can bend any mask to a snapshot: 3 bands where 8 are; the warning stays."""
    generator = torch.Generator().manual_seed(0)
    mask = (torch.rand(128, 128, generator=generator) > 0.5).float()
    scene = procedural_scene(128, 128, torch.linspace(450, 650, 8), generator=generator).float()
    y = CASSI.from_step(mask, step=2, num_bands=8).forward(scene)
    with warns("number of bands"):
        result = reconstruct(y, mask, num_bands=3, solver="gap-tv", num_iters=5)
    assert result.check.kind == "bands" and not result.check.matches
    assert report_of(result).problems()
