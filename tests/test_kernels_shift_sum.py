"""The two kernels against voxel loops: small sizes of every kind, and sizes that exercise vector and block code."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch
from benchmarks import textbook_shift_sum as usual
from cases import BATCHES, GRID, Case, make_mask

from cassi.kernels.shift_sum import detector_width, shift_back, shift_sum

TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}


def relative_error(got: torch.Tensor, expected: np.ndarray) -> float:
    assert tuple(got.shape) == expected.shape
    size = np.abs(expected).max(initial=0.0)
    return float(np.abs(got.detach().cpu().double().numpy() - expected).max(initial=0.0) / (size or 1.0))


def test_direction_and_band_order_by_hand():
    """Band c lands d_c pixels to the right; rows never mix. Pixel numbers written by hand."""
    shifts = (0, 2, 3)
    mask = torch.tensor([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]])
    for (c, i, j), (row, column, value) in {
        (0, 0, 0): (0, 0, 1.0),
        (0, 1, 3): (1, 3, 8.0),
        (1, 0, 1): (0, 3, 2.0),
        (1, 1, 0): (1, 2, 5.0),
        (2, 0, 0): (0, 3, 1.0),
        (2, 1, 3): (1, 6, 8.0),
    }.items():
        x = torch.zeros(3, 2, 4)
        x[c, i, j] = 1.0
        y = shift_sum(x, mask, shifts)
        assert y.shape == (2, 7)
        assert y[row, column] == value
        assert y.count_nonzero() == 1
        back = shift_back(y / value, mask, shifts)
        assert back[c, i, j] == value


def test_the_smallest_shift_lands_in_column_zero():
    """Shifts (5, 3): band 1 starts at column 0, band 0 two columns further right."""
    x = torch.tensor([[[1.0, 10.0]], [[100.0, 1000.0]]])
    assert shift_sum(x, torch.ones(1, 2), (5, 3)).tolist() == [[100.0, 1000.0, 1.0, 10.0]]
    assert shift_back(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.ones(1, 2), (5, 3)).tolist() == [
        [[3.0, 4.0]],
        [[1.0, 2.0]],
    ]


def test_a_negative_step_disperses_to_the_left():
    x = torch.tensor([[[1.0, 2.0]], [[10.0, 20.0]], [[100.0, 200.0]]])
    assert shift_sum(x, torch.ones(1, 2), (0, -1, -2)).tolist() == [[100.0, 210.0, 21.0, 2.0]]


def test_a_mask_per_band_is_not_moved_with_the_band():
    """m_c is indexed in scene pixels: band 1 sees its own mask before it is displaced."""
    mask = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    assert shift_sum(torch.ones(2, 1, 2), mask, (0, 1)).tolist() == [[1.0, 0.0, 1.0]]


@pytest.mark.parametrize("case", GRID, ids=str)
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


@pytest.mark.parametrize("case", [case for case in GRID if case.kind in ("grey", "per-band")], ids=str)
def test_the_four_ways_agree(case: Case, device: torch.device):
    """Loop of slice adds, one-hot convolution, scatter-add and ours, there and back, on every size of the grid."""
    rng, shifts, width = np.random.default_rng(14), case.shifts, case.size[2]
    mask = torch.as_tensor(case.mask, device=device)
    x = torch.as_tensor(rng.standard_normal((2, *case.size)), device=device)
    y = shift_sum(x, mask, shifts)
    for way in (usual.sum_by_slices, usual.sum_by_convolution, usual.sum_by_scatter):
        torch.testing.assert_close(way(mask * x, shifts), y)
    torch.testing.assert_close(mask * usual.back_by_slices(y, shifts, width), shift_back(y, mask, shifts))


@pytest.mark.parametrize("shifts", [(0, 2, 4), (2, 0, -3), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("kind", ["grey", "per-band"])
def test_leading_axes_are_a_batch(shifts: tuple[int, ...], kind: str, device: torch.device, path: str):
    rng, mask, columns = np.random.default_rng(2), make_mask(kind, 3, 4, 5), oracle.detector_columns(5, shifts)
    for batch in BATCHES:
        x, y = rng.standard_normal((*batch, 3, 4, 5)), rng.standard_normal((*batch, 4, columns))
        tx, ty, tm = (torch.as_tensor(a, device=device) for a in (x, y, mask))
        summed, back = shift_sum(tx, tm, shifts), shift_back(ty, tm, shifts)
        for index in np.ndindex(*batch):
            assert relative_error(summed[index], oracle.forward(x[index], mask, shifts)) <= 1e-14
            assert relative_error(back[index], oracle.adjoint(y[index], mask, shifts)) <= 1e-14


@pytest.mark.parametrize(
    ("batch", "size", "shifts"),
    [
        ((), (28, 33, 130), tuple(range(0, 56, 2))),
        ((3,), (5, 65, 127), (0, 1, 2, 3, 4)),
        ((2,), (6, 64, 64), (0, 3, 4, 9, 11, 30)),
        ((), (70, 3, 257), tuple(range(70))),
        ((2, 2), (4, 17, 33), (0, -2, -4, -6)),
        ((), (2, 1, 1025), (0, 600)),
    ],
    ids=str,
)
def test_sizes_that_divide_no_block(batch, size, shifts, device, path, torch_threads):
    rng = np.random.default_rng(3)
    x = rng.standard_normal((*batch, *size))
    y = rng.standard_normal((*batch, size[1], oracle.detector_columns(size[2], shifts)))
    for kind in ("grey", "per-band"):
        mask = make_mask(kind, *size)
        summed, back = oracle.forward_rolled(x, mask, shifts), oracle.adjoint_rolled(y, mask, shifts)
        for dtype, tolerance in TOLERANCE.items():
            tx, ty, tm = (torch.as_tensor(a, dtype=dtype, device=device) for a in (x, y, mask))
            for threads in (1, 3):
                torch_threads(threads)
                assert relative_error(shift_sum(tx, tm, shifts), summed) <= 5 * tolerance
                assert relative_error(shift_back(ty, tm, shifts), back) <= tolerance


def test_a_large_snapshot(path):
    """Beyond the size up to which one strided product is faster than the kernel."""
    mask, shifts = torch.rand(600, 700, generator=torch.Generator().manual_seed(0)), (0, 2, 4)
    y = torch.rand(600, 704, generator=torch.Generator().manual_seed(1))
    expected = torch.stack([mask * y[:, d : d + 700] for d in shifts])
    assert torch.equal(shift_back(y, mask, shifts), expected)


def test_the_two_oracles_agree():
    """The fast oracle of the large sizes is itself checked against the voxel loops."""
    rng = np.random.default_rng(4)
    for shifts in [(0, 2, 4), (4, -1, 0)]:
        for kind in ("grey", "per-band"):
            mask = make_mask(kind, 3, 4, 5)
            x, y = rng.standard_normal((3, 4, 5)), rng.standard_normal((4, oracle.detector_columns(5, shifts)))
            phi = oracle.matrix(mask, shifts)
            summed, back = oracle.forward(x, mask, shifts), oracle.adjoint(y, mask, shifts)
            np.testing.assert_allclose(oracle.forward_rolled(x, mask, shifts), summed, atol=1e-14)
            np.testing.assert_allclose(oracle.adjoint_rolled(y, mask, shifts), back, atol=1e-14)
            np.testing.assert_allclose((phi @ x.ravel()).reshape(summed.shape), summed, atol=1e-14)
            np.testing.assert_allclose((phi.T @ y.ravel()).reshape(back.shape), back, atol=1e-14)


@pytest.mark.parametrize("shifts", [(0, 2, 4), (2, 0, -3), (0, 0, 0)], ids=str)
def test_any_memory_layout(shifts, device, path, generator):
    """Transposed, sliced with an offset, strided and expanded inputs give what their contiguous copies give."""
    width = detector_width(5, shifts)
    mask = torch.rand(5, 8, generator=generator).to(device)[:, 1:5].T  # (4, 5), transposed with an offset
    xs = {
        "bands last": torch.randn(2, 4, 5, 3, generator=generator).permute(0, 3, 1, 2),
        "offset": torch.randn(3, 3, 6, 9, generator=generator)[1:, :, 2:, 3:8],
        "strided": torch.randn(2, 3, 8, 10, generator=generator)[..., ::2, ::2],
        "expanded": torch.randn(1, 1, 4, 1, generator=generator).expand(2, 3, 4, 5),
    }
    for name, x in xs.items():
        x = x.to(device)
        expected = shift_sum(x.contiguous(), mask.contiguous(), shifts)
        torch.testing.assert_close(shift_sum(x, mask, shifts), expected, msg=name)
    ys = {
        "transposed": torch.randn(2, width, 4, generator=generator).transpose(-1, -2),
        "offset": torch.randn(3, 6, width + 2, generator=generator)[1:, 2:, 2:],
        "strided": torch.randn(2, 8, 2 * width, generator=generator)[..., ::2, ::2],
        "expanded": torch.randn(4, 1, generator=generator).expand(2, 4, width),
    }
    for name, y in ys.items():
        y = y.to(device)
        expected = shift_back(y.contiguous(), mask.contiguous(), shifts)
        torch.testing.assert_close(shift_back(y, mask, shifts), expected, msg=name)


@pytest.mark.parametrize("shifts", [(0, 2, 4), (2, 0, -3)], ids=str)
@pytest.mark.parametrize("mask_shape", [(2, 3), (3, 2, 3)], ids=["shared", "per-band"])
def test_gradients_of_both_kernels(shifts, mask_shape, generator):
    """First and second derivatives in the input and in the mask, against finite differences."""
    mask = torch.randn(mask_shape, generator=generator, dtype=torch.float64).requires_grad_()
    for batch in BATCHES:
        x = torch.randn((*batch, 3, 2, 3), generator=generator, dtype=torch.float64).requires_grad_()
        size = (*batch, 2, detector_width(3, shifts))
        y = torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
        assert torch.autograd.gradcheck(lambda x, m: shift_sum(x, m, shifts), (x, mask))
        assert torch.autograd.gradcheck(lambda y, m: shift_back(y, m, shifts), (y, mask))
        if batch != (2, 3):
            assert torch.autograd.gradgradcheck(lambda x, m: shift_sum(x, m, shifts), (x, mask))
            assert torch.autograd.gradgradcheck(lambda y, m: shift_back(y, m, shifts), (y, mask))


def test_shapes_that_do_not_fit_are_refused(path):
    """Before a kernel reads beyond its tensors."""
    x, y, mask = torch.ones(2, 3, 4), torch.ones(3, 5), torch.ones(3, 4)
    shifts = (0, 1)
    for bad in (torch.ones(3, 3, 4), torch.ones(2, 4, 4), torch.ones(2, 3, 5), torch.ones(3, 4)):
        with pytest.raises(ValueError, match=r"x must end in \(2, 3, 4\), got"):
            shift_sum(bad, mask, shifts)
    for bad in (torch.ones(4, 5), torch.ones(3, 4), torch.ones(5)):
        with pytest.raises(ValueError, match=r"y must end in \(3, 5\), got"):
            shift_back(bad, mask, shifts)
    for bad in (torch.ones(3, 3, 4), torch.ones(1, 2, 3, 4), torch.ones(4)):
        with pytest.raises(ValueError, match=r"mask must be \(H, W\) or \(2, H, W\), got"):
            shift_sum(x, bad, shifts)
        with pytest.raises(ValueError, match=r"mask must be \(H, W\) or \(2, H, W\), got"):
            shift_back(y, bad, shifts)
