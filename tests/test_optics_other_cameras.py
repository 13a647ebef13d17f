"""Double disperser, video, multi-shot and mosaic cameras: what is theirs alone."""

import numpy as np
import pytest
import torch
from messages import refused
from scipy.interpolate import RegularGridInterpolator

from cassi import CASSI, Mosaic, MultiShot, double_disperser, video_camera
from cassi.optics.mask_match import check_mask
from cassi.simulation.scene import procedural_scene


def test_the_double_disperser_shears_the_mask_and_not_the_scene():
    aperture = torch.tensor([[1.0, 2.0, 4.0, 8.0]])
    x = torch.zeros(3, 1, 2)
    x[2, 0, 1] = 1  # band 2 is filtered by the element two columns to the right of its pixel
    assert double_disperser(aperture, (0, 1, 2)).forward(x).tolist() == [[0, 8]]
    x = torch.zeros(3, 1, 2)
    x[2, 0, 0] = 1  # dispersed to the left, band 2 meets the first column
    assert double_disperser(aperture, (0, -1, -2)).forward(x).tolist() == [[1, 0]]


def test_single_precision_pinv_stays_bounded_where_masks_nearly_agree():
    mask = torch.rand(8, 8, generator=torch.Generator().manual_seed(0))
    A = MultiShot((CASSI(mask, (0, 1, 2)), CASSI(mask * (1 + 1e-7), (0, 1, 2))))
    x = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert A.pinv(A.forward(x)).norm() < 1.01 * x.norm()


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda: double_disperser(torch.ones(4, 4), (0, 2, 4)), ValueError),
        (lambda: video_camera(torch.ones(4, 4)), ValueError),
        (lambda: MultiShot(()), ValueError),
        (lambda: MultiShot((CASSI(torch.ones(4, 4), (0, 1)), CASSI(torch.ones(4, 4), (0, 2)))), ValueError),
        (lambda: MultiShot((CASSI(torch.ones(4, 4), (0, 1)), CASSI(torch.ones(4, 4).double(), (0, 1)))), TypeError),
        (lambda: double_disperser(np.ones((4, 9)), (0, 1)), TypeError),
        (lambda: video_camera(np.ones((3, 4, 4))), TypeError),
    ],
)
def test_errors_say_what_is_wrong(build, error):
    refused(build, error=error)


QUAD = np.array([[0, 1], [2, 3]])


def test_numbers_from_one_mean_the_same_and_a_map_of_the_sensor_is_not_repeated():
    A = Mosaic.from_pattern(QUAD, (5, 6), offset=(1, 2))
    assert torch.equal(Mosaic.from_pattern((QUAD + 1).tolist(), (5, 6), offset=(-1, 0)).mask, A.mask)
    assert torch.equal(Mosaic.from_pattern(np.tile(QUAD, (9, 9)), (5, 6), offset=(3, 12)).mask, A.mask)
    assert A.mask_error == 0 and A.mask.dtype == torch.float32 and set(A.shifts) == {0}
    assert torch.equal(Mosaic(A.mask).mask, A.mask) and "Mosaic: 4 bands" in repr(A)


def test_three_filters_see_many_bands_by_rows_or_by_columns():
    R = torch.rand(3, 31, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    A, B = (Mosaic.from_pattern([[0, 1], [1, 2]], (4, 4), one) for one in (R, R.T))
    assert A.mask.shape == (31, 4, 4) and A.dtype == torch.float64 and torch.equal(A.mask, B.mask)
    assert torch.equal(A.mask[:, 1, 3], R[2]) and torch.equal(A.mask[:, 2, 1], R[1])


def test_filters_that_are_alike_are_a_camera_all_the_same():
    """Two filters that see the same mixture: A^+ shares it out evenly, as the smallest cube has it."""
    R = np.eye(4)
    R[:2, :2] = 0.5
    A = Mosaic.from_pattern(QUAD, (2, 2), R).to(dtype=torch.float64)
    x = A.pinv(torch.tensor([[2.0, 4.0], [6.0, 8.0]], dtype=torch.float64))
    np.testing.assert_allclose(x[:, 0, 0], [2, 2, 0, 0], atol=1e-12)
    np.testing.assert_allclose(A @ x, [[2, 4], [6, 8]])


@pytest.mark.parametrize(
    "arguments",
    [
        {"pattern": [0, 1]}, {"pattern": [[0.5, 1]]}, {"pattern": [[np.nan, 1]]}, {"pattern": np.zeros((0, 2))},
        {"pattern": [["r", "g"]]}, {"pattern": [[0, 1], [3, 4]]}, {"pattern": [[-1, 0], [1, 2]]}, {"pattern": [[2, 3]]},
        {"pattern": np.tile(QUAD, (9, 9)), "offset": (14, 0)}, {"pattern": np.tile(QUAD, (9, 9)), "offset": (-1, 0)},
        {"offset": (1,)}, {"offset": (0.5, 0)}, {"response": np.ones((5, 7))}, {"response": np.ones(4)},
        {"response": np.full((4, 4), np.nan)}, {"response": -np.eye(4)}, {"response": np.eye(4, 6)},
        {"crosstalk": np.eye(3)}, {"crosstalk": np.ones((4, 4))}, {"crosstalk": np.linalg.inv(np.eye(4) + 0.1)},
    ],
)  # fmt: skip
def test_what_is_no_mosaic_is_refused(arguments):
    refused(Mosaic.from_pattern, **{"pattern": QUAD, "size": (5, 6)} | arguments)


def test_a_mosaic_has_a_mask_for_each_band_in_one_place():
    refused(Mosaic, torch.ones(4, 4), error=ValueError)
    refused(Mosaic, torch.ones(2, 4, 4), (0, 1), error=ValueError)
    refused(Mosaic, np.ones((2, 4, 4)), error=TypeError)


def test_the_first_guess_is_bilinear_interpolation():
    """SciPy's between the pixels of each filter; of pixels that are left out their neighbors' mean."""
    A = Mosaic.from_pattern(np.arange(9).reshape(3, 3), (13, 13)).to(dtype=torch.float64)
    y = torch.rand(2, 13, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    inside = np.mgrid[3:10, 3:10]
    for k, guess in enumerate(A.first_guess(y)[1].numpy()):
        i, j = np.arange(k // 3, 13, 3), np.arange(k % 3, 13, 3)
        expected = RegularGridInterpolator((i, j), y[1].numpy()[np.ix_(i, j)])(np.moveaxis(inside, 0, -1))
        np.testing.assert_allclose(guess[3:10, 3:10], expected, atol=5e-3)
    flat = A.cube_shape[0] * torch.ones(A.cube_shape, dtype=torch.float64) + torch.arange(9.0).view(9, 1, 1)
    keep = torch.ones(13, 13, dtype=torch.float64)
    keep[4:7, 4] = 0
    np.testing.assert_allclose(A.leave_out(keep).first_guess(keep * (A @ flat)), flat, rtol=1e-12)


@pytest.mark.parametrize("offset", [(0, 0), (1, 2)])
def test_a_snapshot_is_not_said_to_fit_or_not_to_fit_filters_that_repeat(offset):
    """With the bands in another order any place of the pattern explains it as well."""
    scene = torch.rand(16, 63, 66, generator=torch.Generator().manual_seed(0))
    A = Mosaic.from_pattern(np.arange(16).reshape(4, 4), (63, 66))
    given = Mosaic.from_pattern(np.arange(16).reshape(4, 4), (63, 66), offset=offset)
    check = check_mask((A @ scene).numpy(), given.mask.numpy(), given.shifts)
    assert check.matches and "does not show which band is which" in check.verdict


@pytest.mark.parametrize("pattern", [(2, 2), (3, 2), (4, 4), (5, 5)])
@pytest.mark.parametrize("size", [32, 40, 64])
def test_texture_of_a_small_scene_is_no_pattern(pattern, size):
    filters, nm = np.arange(np.prod(pattern)).reshape(pattern), torch.linspace(450, 650, int(np.prod(pattern)))
    A = Mosaic.from_pattern(filters, (size, size))
    for seed in range(3):
        x = procedural_scene(size, size, nm, generator=torch.Generator().manual_seed(seed))
        assert check_mask((A @ x).numpy(), A.mask.numpy(), A.shifts).matches


@pytest.mark.parametrize(("true", "given"), [(4, 4), (4, 5), (4, 3), (4, 2), (5, 4), (3, 4), (2, 3), (4, 8), (2, 4)])
def test_a_snapshot_repeats_as_its_filters_do(true, given):
    """Of a scene whose bands differ. Twice the period repeats, too, whatever the offset."""
    levels = torch.linspace(1, 3, true * true).view(-1, 1, 1)
    scene = levels * (1 + torch.rand(50, 63, generator=torch.Generator().manual_seed(0)))
    A = Mosaic.from_pattern(np.arange(true * true).reshape(true, true), (50, 63), offset=(1, 2))
    B = Mosaic.from_pattern(np.arange(given * given).reshape(given, given), (50, 63))
    check = check_mask((A @ scene).numpy(), B.mask.numpy(), B.shifts)
    assert check.matches == (given % true == 0)
    assert check.matches or f"every {given} x {given} pixels, the snapshot every {true} x {true}" in check.verdict
