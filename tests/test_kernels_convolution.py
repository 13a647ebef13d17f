"""Row-wise convolution against numpy.convolve and the double loop, on a grid of sizes, methods and types."""

import contextlib

import numpy as np
import pytest
import torch

from cassi.kernels.convolution import METHODS, choose_method, convolve_rows, correlate_rows, fft_length
from cassi.kernels.dispatch import eager

SIZES = [(1, 1), (1, 4), (4, 1), (5, 4), (4, 5), (6, 6), (7, 3), (20, 31), (31, 20), (64, 2), (2, 64), (40, 40)]


def double_loop(a, v):
    """The two nested loops over both axes that the fast ways replace."""
    n, m = a.shape[1], v.shape[1]
    y = torch.zeros(len(a), n + m - 1, dtype=a.dtype)
    for i in range(n):
        for j in range(m):
            y[:, i + j] += a[:, i] * v[:, j]
    return y


def rows(n, m, seed=0, count=3, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(count, n, generator=g, dtype=dtype), torch.randn(count, m, generator=g, dtype=dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_equals_numpy_and_the_double_loop(n, m, method):
    a, v = rows(n, m)
    y = convolve_rows(a, v, method=method)
    expected = np.stack([np.convolve(p, q) for p, q in zip(a.numpy(), v.numpy(), strict=True)])
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(y, double_loop(a, v), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_one_kernel_for_all_rows_is_the_repeated_kernel(n, m, method):
    a, v = rows(n, m)
    y = convolve_rows(a, v[0], method=method)
    torch.testing.assert_close(y, double_loop(a, v[:1].expand(3, -1)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "m"), [(700, 3), (700, 40), (5, 5), (3, 700)])
def test_many_rows_pass_the_block_boundaries(n, m, method):
    count = 1500
    a, v = rows(n, m, count=count, dtype=torch.float32)
    y = convolve_rows(a, v, method=method)
    for r in (0, 1, 63, 64, 186, 187, count - 1):
        np.testing.assert_allclose(y[r], np.convolve(a[r].double(), v[r].double()), atol=2e-5)
    shared = convolve_rows(a, v[7], method=method)
    np.testing.assert_allclose(shared[-1], np.convolve(a[-1].double(), v[7].double()), atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS)
def test_type_is_kept_and_arguments_are_not_changed(method, dtype):
    a, v = rows(30, 25, dtype=dtype)
    before = a.clone(), v.clone()
    assert convolve_rows(a, v, method=method).dtype == dtype
    assert torch.equal(a, before[0]) and torch.equal(v, before[1])


def test_rows_that_are_not_contiguous():
    a, v = rows(12, 5, count=12)
    torch.testing.assert_close(convolve_rows(a.t(), v[:, ::2]), double_loop(a.t(), v[:, ::2]))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("n", "m"), SIZES)
def test_correlation_is_the_adjoint(n, m, shared, method):
    a, v = rows(n, m, seed=1)
    v = v[0] if shared else v
    y = torch.randn(3, n + m - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    left = (convolve_rows(a, v, method=method) * y).sum()
    right = (a * correlate_rows(y, v, method=method)).sum()
    assert abs(left - right) < 1e-12 * y.norm() * a.norm() * v.norm()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("n", "m"), [(3, 2), (2, 4)])
def test_first_and_second_derivatives(n, m, shared, method):
    a, v = rows(n, m, count=2)
    v = v[0].clone() if shared else v
    args = (a.requires_grad_(), v.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, v: convolve_rows(a, v, method=method), args)
    assert torch.autograd.gradgradcheck(lambda a, v: convolve_rows(a, v, method=method), args)


def test_an_impulse_moves_the_row():
    a, _ = rows(6, 1)
    impulse = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    y = convolve_rows(a, impulse)
    assert torch.equal(y[:, 2:], a) and torch.equal(y[:, :2], torch.zeros(3, 2, dtype=torch.float64))


@pytest.mark.parametrize("n", range(1, 300))
def test_transform_lengths_are_long_enough_and_never_twice_as_long(n):
    assert n <= fft_length(n) <= max(8, 2 * n)


def test_the_rule_picks_each_method_somewhere():
    sizes = [(10**4, 5, 5), (10**4, 100, 5), (10**4, 100, 100), (100, 5, 5)]
    without = [choose_method(*size, torch.float32, kernels=False) for size in sizes]
    assert without == ["conv1d", "loop", "fft", "loop"]
    assert choose_method(10**4, 5, 5, torch.float64, kernels=False) == "loop"
    kernels = [choose_method(*size, torch.float32, kernels=True) for size in sizes]
    assert kernels == ["conv1d", "compiled", "fft", "compiled"]
    assert choose_method(10**4, 5, 5, torch.float64, kernels=True) == "compiled"


@pytest.mark.parametrize("automatic", ["kernels", "eager"])
def test_both_rules_give_the_same(automatic):
    a, v = rows(12, 5)
    with eager() if automatic == "eager" else contextlib.nullcontext():
        found = convolve_rows(a, v), correlate_rows(a, v)
    torch.testing.assert_close(found[0], double_loop(a, v))
    torch.testing.assert_close(found[1], torch.stack([(a.unfold(1, 5, 1)[r] @ v[r]) for r in range(3)]))


def test_rows_that_do_not_lie_side_by_side_are_taken():
    a, v = rows(12, 5)
    wide = torch.stack([a, a], dim=2)[:, :, 0]
    torch.testing.assert_close(convolve_rows(wide, v.t().contiguous().t()), double_loop(a, v))
    torch.testing.assert_close(convolve_rows(a[:, ::2], v), double_loop(a[:, ::2].contiguous(), v))


@pytest.mark.parametrize("automatic", ["kernels", "eager"])
@pytest.mark.parametrize("n", [3, 200])
def test_no_rows_give_no_rows(n, automatic):
    with eager() if automatic == "eager" else contextlib.nullcontext():
        assert convolve_rows(torch.ones(0, n), torch.ones(200)).shape == (0, n + 199)
        assert correlate_rows(torch.ones(0, 200), torch.ones(0, n)).shape == (0, 201 - n)


def test_kernels_asked_for_where_they_cannot_work_are_refused():
    with pytest.raises(ValueError, match='method "compiled" needs float32 or float64 on the CPU'):
        convolve_rows(torch.ones(2, 3).half(), torch.ones(2, 3).half(), method="compiled")
    with pytest.raises(ValueError, match="leave it to"), eager():
        correlate_rows(torch.ones(2, 3), torch.ones(2, 3), method="compiled")


@pytest.mark.parametrize(
    ("a", "v", "method", "error", "words"),
    [
        (torch.ones(3), torch.ones(3), "auto", ValueError, "flatten leading axes"),
        (torch.ones(2, 3), torch.ones(3, 3), "auto", ValueError, r"got \(2, 3\) and \(3, 3\)"),
        (torch.ones(2, 0), torch.ones(2, 3), "auto", ValueError, "must not be empty"),
        (torch.ones(2, 3), torch.ones(2, 3).double(), "auto", TypeError, "one dtype and device"),
        (torch.ones(2, 3).long(), torch.ones(2, 3).long(), "auto", TypeError, "floating point"),
        (torch.ones(2, 3), torch.ones(2, 3), "double", ValueError, "method must be one of auto, compiled, loop"),
    ],
)
def test_bad_arguments_are_named(a, v, method, error, words):
    with pytest.raises(error, match=words):
        convolve_rows(a, v, method=method)
    with pytest.raises(error, match=words):
        correlate_rows(a, v, method=method)


def test_correlation_needs_a_valid_position():
    with pytest.raises(ValueError, match="no valid position"):
        correlate_rows(torch.ones(1, 3), torch.ones(1, 4))
