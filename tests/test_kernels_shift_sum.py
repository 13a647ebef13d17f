"""The two kernels against voxel loops: small sizes of every kind, and sizes that exercise vector and block code."""

import numpy as np
import oracle
import pytest
import torch
from cases import Case, make_mask, small_cameras
from hypothesis import given
from messages import refused

from cassi.kernels.shift_sum import detector_width, shift_back, shift_sum

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}


def relative_error(got: torch.Tensor, expected: np.ndarray) -> float:
    assert tuple(got.shape) == expected.shape
    size = np.abs(expected).max(initial=0.0)
    return float(np.abs(got.detach().cpu().double().numpy() - expected).max(initial=0.0) / (size or 1.0))


@given(case=small_cameras())
def test_against_voxel_loops(case: Case, device: torch.device, path: str):
    rng = np.random.default_rng(1)
    mask, shifts, (_, height, width) = case.mask, case.shifts, case.size
    columns = oracle.detector_columns(width, shifts)
    assert detector_width(width, shifts) == columns
    x, y = rng.standard_normal(case.size), rng.standard_normal((height, columns))
    summed, back = oracle.forward(x, mask, shifts), oracle.adjoint(y, mask, shifts)
    for dtype, tolerance in TOLERANCE.items():
        tx, ty, tm = (torch.as_tensor(a, dtype=dtype, device=device) for a in (x, y, mask))
        assert relative_error(shift_sum(tx, tm, shifts), summed) <= tolerance
        assert relative_error(shift_back(ty, tm, shifts), back) <= tolerance
        assert shift_sum(tx, tm, shifts).dtype == shift_back(ty, tm, shifts).dtype == dtype


@pytest.mark.parametrize(
    ("batch", "size", "shifts"),
    [
        ((), (28, 33, 130), tuple(range(0, 56, 2))), ((3,), (5, 65, 127), (0, 1, 2, 3, 4)),
        ((), (70, 3, 257), tuple(range(70))), ((2, 2), (4, 17, 33), (0, -2, -4, -6)), ((), (2, 1, 1025), (0, 600)),
    ],
    ids=str,
)  # fmt: skip
def test_batches_of_sizes_that_divide_no_block(batch, size, shifts, device, path, torch_threads):
    rng, mask = np.random.default_rng(3), make_mask("per-band", *size)
    x = rng.standard_normal((*batch, *size))
    y = rng.standard_normal((*batch, size[1], oracle.detector_columns(size[2], shifts)))
    summed, back = np.zeros_like(y), np.zeros_like(x)
    for index in np.ndindex(*batch):
        summed[index] = oracle.forward(x[index], mask, shifts)
        back[index] = oracle.adjoint(y[index], mask, shifts)
    for dtype, tolerance in TOLERANCE.items():
        tx, ty, tm = (torch.as_tensor(a, dtype=dtype, device=device) for a in (x, y, mask))
        for threads in (1, 3):
            torch_threads(threads)
            assert relative_error(shift_sum(tx, tm, shifts), summed) <= 5 * tolerance
            assert relative_error(shift_back(ty, tm, shifts), back) <= tolerance


@pytest.mark.parametrize("shifts", [(0, 2, 4), (2, 0, -3), (0, 0, 0)], ids=str)
def test_any_memory_layout(shifts, device, path, generator):
    """Transposed, sliced with an offset, strided and expanded inputs give what their contiguous copies give."""
    width = detector_width(5, shifts)
    mask = torch.rand(5, 8, generator=generator).to(device)[:, 1:5].T  # (4, 5), transposed with an offset

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    for function, tensors in {
        shift_sum: (
            random(2, 4, 5, 3).permute(0, 3, 1, 2), random(3, 3, 6, 9)[1:, :, 2:, 3:8],
            random(2, 3, 8, 10)[..., ::2, ::2], random(1, 1, 4, 1).expand(2, 3, 4, 5),
        ),
        shift_back: (
            random(2, width, 4).transpose(-1, -2), random(3, 6, width + 2)[1:, 2:, 2:],
            random(2, 8, 2 * width)[..., ::2, ::2], random(4, 1).expand(2, 4, width),
        ),
    }.items():  # fmt: skip
        for t in tensors:
            torch.testing.assert_close(function(t, mask, shifts), function(t.contiguous(), mask.contiguous(), shifts))


def test_bad_arguments_are_named(path):
    x, y, mask, shifts = torch.ones(2, 3, 4), torch.ones(3, 5), torch.ones(3, 4), (0, 1)
    for bad in ((3, 3, 4), (2, 4, 4), (2, 3, 5), (3, 4)):
        refused(shift_sum, torch.ones(bad), mask, shifts, error=ValueError)
    for bad in ((4, 5), (3, 4), (5,)):
        refused(shift_back, torch.ones(bad), mask, shifts, error=ValueError)
    for bad in ((3, 3, 4), (1, 2, 3, 4), (4,)):
        refused(shift_sum, x, torch.ones(bad), shifts, error=ValueError)
        refused(shift_back, y, torch.ones(bad), shifts, error=ValueError)
