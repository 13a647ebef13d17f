"""Comparing two cubes: the numbers by hand, and what cannot be compared."""

import numpy as np
import pytest
from messages import refused

from cassi.files import write_cube
from cassi.looking.comparison import compare

BANDS = [450.0, 550.0, 650.0]


@pytest.fixture(scope="module")
def truth():
    return np.random.default_rng(0).uniform(0.1, 0.9, (3, 16, 20)).astype(np.float32)


@pytest.fixture
def files(tmp_path, truth):
    """Two cubes: the first is off by 0.1 in its last band and holds the truth."""
    off = truth.copy()
    off[2] += 0.1
    first = write_cube(tmp_path / "a.h5", off, wavelengths=BANDS, datasets={"truth": truth})
    return first, write_cube(tmp_path / "b.h5", truth, wavelengths=BANDS)


@pytest.mark.parametrize("own", [True, False], ids=["own truth", "another file"])
def test_the_numbers_by_hand(files, truth, own):
    first, second = files
    found = compare(first) if own else compare(first, second)
    assert found.names == ("a.h5", "truth" if own else "b.h5")
    assert list(found.band_psnr) == ["450 nm", "550 nm", "650 nm"]
    assert found.band_psnr["450 nm"] == np.inf
    off = np.clip(truth[2] + 0.1, 0, 1) - truth[2]
    assert found.band_psnr["650 nm"] == pytest.approx(-10 * np.log10(np.mean(off.astype(float) ** 2)), abs=1e-4)
    assert found.numbers["psnr"] == np.inf and "650 nm" in str(found)
    assert any(axes.get_ylabel() == "PSNR [dB]" for axes in found.figure.axes)


def test_a_frame_of_a_stack(tmp_path, truth):
    stack = write_cube(tmp_path / "stack.h5", np.stack([truth, truth + 0.05]))
    single = write_cube(tmp_path / "one.h5", truth[None])
    assert compare(stack, single, frame=1).numbers["psnr"] == pytest.approx(-20 * np.log10(0.05), abs=1e-3)
    found = compare(write_cube(tmp_path / "dim.h5", truth / 4), single)
    assert found.numbers["factor"] == pytest.approx(4, rel=1e-5) and found.numbers["psnr_scaled"] > 90
    assert "another unit" not in str(compare(stack, single))
    assert "are the units different? Multiplied by 4 " in str(found)
    for first, frame in ((stack, 2), (stack, -1), (single, 1)):
        refused(compare, first, single, frame=frame)


def test_what_cannot_be_compared(tmp_path, files, truth):
    first, second = files
    refused(compare, second)
    small = write_cube(tmp_path / "small.h5", truth[:, :8])
    other = write_cube(tmp_path / "other.h5", truth, wavelengths=[460, 560, 660])
    for reference in (small, other, tmp_path / "none.h5"):
        refused(compare, first, reference)
