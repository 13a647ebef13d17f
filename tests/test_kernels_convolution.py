"""Row-wise convolution against numpy.convolve, on a grid of sizes, by kernels and by eager torch."""

import numpy as np
import pytest
import torch
from messages import refused

from cassi.kernels.convolution import convolve_rows, correlate_rows

SIZES = [(1, 1), (1, 4), (5, 4), (6, 6), (7, 3), (20, 31), (64, 2), (2, 64), (40, 40)]


def by_numpy(a, v):
    """Row by row, in double precision; one kernel for all rows, or one each."""
    kernels = v.expand(len(a), -1).double().numpy()
    return torch.as_tensor(np.stack([np.convolve(p, q) for p, q in zip(a.double().numpy(), kernels, strict=True)]))


def rows(n, m, seed=0, count=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, n, generator=g, dtype=dtype), torch.randn(count, m, generator=g, dtype=dtype)


def test_equals_numpy_and_correlation_is_the_adjoint(path):
    for n, m in SIZES:
        a, kernels = rows(n, m)
        y = torch.randn(3, n + m - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
        for v in (kernels, kernels[0]):
            found = convolve_rows(a, v)
            torch.testing.assert_close(found, by_numpy(a, v), rtol=0, atol=1e-12)
            left, right = (found * y).sum(), (a * correlate_rows(y, v)).sum()
            assert abs(left - right) < 1e-12 * y.norm() * a.norm() * v.norm()


def test_many_rows_pass_the_block_boundaries(path):
    for n, m in [(700, 3), (700, 90), (5, 5), (3, 700)]:
        a, v = rows(n, m, count=1500, dtype=torch.float32)
        before = a.clone(), v.clone()
        y = convolve_rows(a, v)
        assert y.dtype == torch.float32 and torch.equal(a, before[0]) and torch.equal(v, before[1])
        some = [0, 1, 63, 64, 186, 187, 1499]
        torch.testing.assert_close(y[some].double(), by_numpy(a[some], v[some]), rtol=0, atol=4e-5)
        torch.testing.assert_close(convolve_rows(a, v[7])[some].double(), by_numpy(a[some], v[7]), rtol=0, atol=4e-5)


def test_any_memory_layout(path):
    a, v = rows(12, 5, count=12)
    wide = torch.stack([a, a], dim=2)[:, :, 0]
    for one, other in ((a.t(), v[:, ::2]), (wide, v.t().contiguous().t()), (a[:, ::2], v)):
        torch.testing.assert_close(convolve_rows(one, other), by_numpy(one, other))


@pytest.mark.parametrize("shared", [False, True])
def test_first_and_second_derivatives(shared, path):
    for n, m in [(3, 2), (2, 4), (50, 50)]:
        a, v = rows(n, m, count=2)
        args = (a.requires_grad_(), (v[0].clone() if shared else v).requires_grad_())
        assert torch.autograd.gradcheck(convolve_rows, args)
        assert n == 50 or torch.autograd.gradgradcheck(convolve_rows, args)


def test_no_rows_give_no_rows(path):
    for n in (3, 200):
        assert convolve_rows(torch.ones(0, n), torch.ones(200)).shape == (0, n + 199)
        assert correlate_rows(torch.ones(0, 200), torch.ones(0, n)).shape == (0, 201 - n)


@pytest.mark.parametrize(
    ("a", "v", "error"),
    [
        (torch.ones(3), torch.ones(3), ValueError),
        (torch.ones(2, 3), torch.ones(3, 3), ValueError),
        (torch.ones(2, 0), torch.ones(2, 3), ValueError),
        (torch.ones(2, 3), torch.ones(2, 3).double(), TypeError),
        (torch.ones(2, 3).long(), torch.ones(2, 3).long(), TypeError),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(a, v, error):
    for function in (convolve_rows, correlate_rows):
        refused(function, a, v, error=error)


def test_a_kernel_longer_than_the_rows_is_refused():
    refused(correlate_rows, torch.ones(1, 3), torch.ones(1, 4), error=ValueError)
