"""Does the mask fit the measurement: simulated snapshots with a known answer, and the real captures."""

import numpy as np
import pytest
from messages import refused
from scipy.ndimage import gaussian_filter

from cassi.files import read_measurement
from cassi.optics.mask_match import check_mask

SIZE, BANDS = 96, 8
SHIFTS = tuple(range(0, 2 * BANDS, 2))


def scene(seed, bands=BANDS):
    """A smooth scene with some edges, brighter in the middle bands."""
    blobs = gaussian_filter(np.random.default_rng(seed).standard_normal((bands, SIZE, SIZE)), (1, 6, 6))
    return ((blobs > 0) * 0.5 + 0.3) * np.exp(-((np.arange(bands) - bands / 2) ** 2) / bands)[:, None, None]


def snapshot(mask, shifts, seed=0):
    """The forward model, written out; masks (H, W) or (C, H, W)."""
    cube = scene(seed, len(shifts))
    masks = np.broadcast_to(mask, cube.shape)
    lowest = min(shifts)
    y = np.zeros((SIZE, SIZE + max(shifts) - lowest))
    for c, shift in enumerate(shifts):
        y[:, shift - lowest : shift - lowest + SIZE] += masks[c] * cube[c]
    return y + 0.02 * y.mean() * np.random.default_rng(seed + 1).standard_normal(y.shape)


@pytest.fixture
def mask():
    return (np.random.default_rng(5).random((SIZE, SIZE)) > 0.5).astype(np.float64)


@pytest.fixture
def y(mask):
    return snapshot(mask, SHIFTS)


def test_the_right_mask_fits_and_another_does_not(y, mask):
    found = check_mask(y, mask, SHIFTS)
    assert (found.kind, found.displacement) == ("fits", (0, 0))
    assert found.scores["as given"] > 3 * found.chance
    assert max(found.scores, key=found.scores.get) == "as given"
    other = (np.random.default_rng(1).random((SIZE, SIZE)) > 0.5).astype(np.float64)
    assert check_mask(y, other, SHIFTS).kind == "wrong mask"


@pytest.mark.parametrize("shape", [(16, 3), (12, 20)])
def test_of_a_few_pixels_nothing_is_claimed(shape):
    random = np.random.default_rng(0)
    y, other = random.random((shape[0], shape[1] + 2)), (random.random(shape) > 0.5).astype(float)
    found = check_mask(y, other, (0, 1, 2))
    assert found.matches and "too few to decide" in found.verdict


@pytest.mark.parametrize(
    ("turn", "name"),
    [
        (lambda m: m[:, ::-1], "flipped left-right"), (lambda m: m[::-1], "flipped up-down"),
        (lambda m: m[::-1, ::-1], "turned by 180 degrees"), (lambda m: m.T, "transposed"),
        (lambda m: m.T[:, ::-1], "transposed, flipped up-down"),
        (lambda m: m.T[::-1], "transposed, flipped left-right"),
        (lambda m: m.T[::-1, ::-1], "transposed, turned by 180 degrees"),
    ],
)  # fmt: skip
def test_turned_masks_are_named(y, mask, turn, name):
    found = check_mask(y, turn(mask), SHIFTS)
    assert (found.kind, found.turn) == ("turned", name)


def test_light_and_dark_swapped_are_named(y, mask):
    """Of the mask or of the snapshot: the correlation is as large, and has the other sign."""
    for swapped in (check_mask(y, 1 - mask, SHIFTS), check_mask(y.max() - y, mask, SHIFTS)):
        assert swapped.kind == "inverted"
    assert check_mask(y.max() - y, 1 - mask, SHIFTS).matches


@pytest.mark.parametrize("moved", [(-5, 0), (4, 1)])
def test_a_displaced_mask_is_named_with_its_way_back(y, mask, moved):
    found = check_mask(y, np.roll(mask, moved, axis=(0, 1)), SHIFTS)
    assert (found.kind, found.displacement) == ("displaced", (-moved[0], -moved[1]))


@pytest.mark.parametrize("true_step", [1, 2, 7])
@pytest.mark.parametrize("given_step", [1, 2, 7])
def test_a_wrong_step_and_band_count_is_named(mask, true_step, given_step):
    found = check_mask(snapshot(mask, range(0, 15, true_step)), mask, range(0, 15, given_step))
    assert found.matches == (given_step == true_step)
    if given_step != true_step:
        assert "number of bands" in found.verdict and f"with step {true_step} explain" in found.verdict


@pytest.mark.parametrize("step", [2, 7])
@pytest.mark.parametrize("sharper", ["mask", "picture"])
def test_a_blurred_mask_is_no_wrong_number_of_bands(mask, step, sharper):
    """Copies of the mask beside each other make up for the blur, so that more bands explain more."""
    soft = gaussian_filter(mask, 0.7)
    own, seen = (mask, soft) if sharper == "mask" else (soft, mask)
    found = check_mask(snapshot(seen, range(0, 15, step)), own, range(0, 15, step))
    assert found.matches, found.verdict


@pytest.mark.parametrize("shifts", [(0, 2, 2, 4), (0, 0, 1, 1, 2, 2, 3, 4), (4, 4, 0)])
def test_bands_at_one_place(mask, shifts):
    assert check_mask(snapshot(mask, shifts), mask, shifts).kind == "fits"


def test_what_tells_the_direction(y, mask):
    """Not equal steps and one mask, which lie at the same columns; unequal steps do, and a mask for each band."""
    found = check_mask(y, mask, tuple(-s for s in SHIFTS))
    assert found.matches and "dispersion reversed" not in found.scores
    shifts = (0, 1, 3, 6, 10, 15)
    left = tuple(-s for s in shifts)
    assert check_mask(snapshot(mask, shifts), mask, shifts).matches
    assert check_mask(snapshot(mask, shifts), mask, left).kind == "reversed"
    assert check_mask(snapshot(mask, left), mask, left).matches
    masks = np.stack([np.roll(mask, 20 * c, axis=0) for c in range(BANDS)])
    y = snapshot(masks, SHIFTS)
    assert check_mask(y, masks, SHIFTS).matches
    assert check_mask(y, masks, SHIFTS[::-1]).kind == "reversed"
    assert check_mask(y, masks[:, ::-1], SHIFTS).turn == "flipped up-down"


def test_units_sub_pixel_shifts_stacks_and_bad_pixels_do_not_matter(y, mask):
    one, other = check_mask(y, mask, SHIFTS), check_mask(1e4 * y + 500, 3 * mask, SHIFTS)
    assert one.scores["as given"] == pytest.approx(other.scores["as given"], rel=1e-3)
    assert check_mask(y, mask, tuple(1.02 * s for s in SHIFTS)).matches
    assert check_mask(np.stack([y, snapshot(mask, SHIFTS, seed=9)]), mask, SHIFTS).matches
    spoiled = y.copy()
    spoiled[10, ::2] = 1e6
    assert check_mask(spoiled, mask, SHIFTS, bad_pixels=spoiled > 1e5).scores["as given"] == pytest.approx(
        one.scores["as given"], rel=0.05
    )


@pytest.mark.parametrize("level", [0.0, 1.0, 1234.5])
def test_without_detail_nothing_is_claimed(y, mask, level):
    for found in (check_mask(np.full_like(y, level), mask, SHIFTS), check_mask(y, np.full_like(mask, level), SHIFTS)):
        assert found.kind == "no detail"


@pytest.mark.parametrize(
    ("y", "mask", "shifts"),
    [
        (np.ones(5), np.ones((4, 4)), (0,)), (np.ones((4, 6)), np.ones(4), (0, 2)),
        (np.ones((4, 6)), np.ones((4, 4)), ()), (np.ones((4, 6)), np.ones((3, 4, 4)), (0, 2)),
        (np.ones((5, 6)), np.ones((4, 4)), (0, 2)), (np.ones((4, 3)), np.ones((4, 4)), (0, 2)),
        (np.full((4, 6), np.nan), np.ones((4, 4)), (0, 2)),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(y, mask, shifts):
    refused(check_mask, y, mask, shifts, error=ValueError)


CAPTURES = {
    "tsa_real/scene3.mat": ("tsa_real/mask.mat", 28),
    "smem_real/02_fern_root.mat": ("smem_real/mask.mat", 24),
    "kaist/scene01.h5": (None, 28),
}


@pytest.mark.parametrize("name", CAPTURES)
def test_real_captures(name, shared_data):
    own, bands = CAPTURES[name]
    m = read_measurement(shared_data / name, mask=own and shared_data / own, num_bands=bands)
    rows = slice(m.y.shape[0] // 4, -m.y.shape[0] // 4)  # enough, and quick
    y, mask = m.y[rows], m.mask[rows]
    found = check_mask(y, mask, m.shifts)
    assert found.matches, found.verdict
    assert found.scores["as given"] > 4 * found.chance
    assert check_mask(y, mask[:, ::-1], m.shifts).turn == "flipped left-right"
    if bands == 28:
        assert check_mask(y, mask, tuple(range(0, 55, 3))).kind == "bands"


def test_the_mask_of_another_instrument(shared_data):
    m = read_measurement(shared_data / "tsa_real/scene3.mat", mask=shared_data / "smem_real/mask.mat", num_bands=28)
    assert check_mask(m.y, m.mask, m.shifts).kind == "wrong mask"


@pytest.mark.parametrize(
    ("shape", "step"),
    [((128, 128, 24), (1, 0)), ((128, 128, 24), (1, 1)),
     *(((48, 96, 28), step) for step in ((1, 0), (-1, 0), (2, 0), (0, 1), (1, 1)))],
)  # fmt: skip
def test_masks_that_are_copies_of_one(shape, step):
    """A double disperser's, moved along either axis: the right ones fit, others and displaced ones do not."""
    (height, width, bands), (down, right), rng = shape, step, np.random.default_rng(0)
    base = (rng.random((height + 120, width + 120)) < 0.5).astype(float)
    places = [(60 + down * c, 60 + right * c) for c in range(bands)]
    masks = np.stack([base[top : top + height, left : left + width] for top, left in places])
    i, j = np.mgrid[:height, :width] / height
    scene = np.stack([0.1 + np.exp(-8 * ((i - 0.4) ** 2 + (j - c / bands) ** 2)) for c in range(bands)])
    check = check_mask((masks * scene).sum(0), masks, np.zeros(bands))
    assert check.matches and check.scores["as given"] > 3 * check.chance
    others = rng.random(masks.shape) < 0.5
    assert check_mask((others * scene).sum(0), masks, np.zeros(bands)).kind == "wrong mask"
    moved = check_mask((np.roll(masks, (5, 3), (1, 2)) * scene).sum(0), masks, np.zeros(bands))
    assert moved.kind == "displaced" and moved.displacement == (5, 3)
