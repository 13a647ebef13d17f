"""The fit of a mask's error against dense linear algebra, and what counts as texture."""

import numpy as np
import pytest
import torch

from cassi.self_calibration.mask_error import Residual, fit_error, without_texture

SHIFTS = (0, 2, 3)


def dense(x: np.ndarray) -> np.ndarray:
    """The matrix of e -> sum_c S_c (e x_c) by loops, rows are detector pixels."""
    C, H, W = x.shape
    width = W + max(SHIFTS)
    matrix = np.zeros((H * width, H * W))
    for c in range(C):
        for i in range(H):
            for j in range(W):
                matrix[i * width + j + SHIFTS[c], i * W + j] += x[c, i, j]
    return matrix


def residuals(count: int) -> list[Residual]:
    g = torch.Generator().manual_seed(0)
    made = []
    for _ in range(count):
        x, r = torch.rand(3, 4, 5, generator=g).double(), torch.randn(4, 8, generator=g).double()
        weight = torch.rand(4, 8, generator=g).double() * (torch.rand(4, 8, generator=g) > 0.2)
        made.append(Residual(x, r, r, torch.rand(4, 8, generator=g).double(), weight, SHIFTS))
    return made


@pytest.mark.parametrize("gain_spread", [0.0, 0.3])
@pytest.mark.parametrize(("count", "spreads"), [(1, [0.7]), (2, [0.7]), (2, [0.7, 0.2, 0.3])])
def test_the_fit_is_the_dense_least_squares_solution(count, spreads, gain_spread):
    """Of e and g together, where the sensitivity takes part, and of an error that differs by band."""
    n = 20 * len(spreads)
    penalty = np.concatenate([np.repeat(np.power(spreads, -2.0), 20), np.full(32, (gain_spread or 1e-9) ** -2)])
    normal, right = np.diag(penalty), np.zeros(n + 32)
    matrices = []
    for one in (made := residuals(count)):
        w, t = one.weight.numpy().ravel(), np.linspace(-1, 1, len(one.x))
        polynomials = [np.ones_like(t), t, (3 * t**2 - 1) / 2][: len(spreads)]
        terms = [dense(p[:, None, None] * one.x.numpy()) for p in polynomials]
        matrices.append(np.hstack([*terms, np.diag(one.seen.numpy().ravel())]))
        normal += matrices[-1].T @ (w[:, None] * matrices[-1])
        right += matrices[-1].T @ (w * one.r.numpy().ravel())
    solution = np.linalg.solve(normal, right)
    e, g = np.split(solution, [n])
    found = fit_error(made, spreads, gain_spread, num_iters=150)
    np.testing.assert_allclose(found.e.numpy(), e.reshape(-1, 4, 5), rtol=1e-8, atol=1e-10)
    if found.g is not None:
        np.testing.assert_allclose(found.g.numpy(), g.reshape(4, 8), rtol=1e-8, atol=1e-10)
    assert (found.g is None) == (not gain_spread)
    np.testing.assert_allclose(found.of(made[0]).numpy().ravel(), matrices[0] @ solution, rtol=1e-8, atol=1e-10)


def test_where_no_light_passes_nothing_is_corrected():
    (one,) = residuals(1)
    one.x[:, :, :2] = 0
    assert not fit_error([one], [1.0]).e[..., :2].any()


def test_texture_is_accept_off_and_edges_stay():
    """In any unit."""
    g = torch.Generator().manual_seed(0)
    scene = torch.ones(6, 48, 48)
    scene[:, :, 24:] = torch.linspace(2, 4, 6)[:, None, None]  # an edge, of brightness and color
    textured = scene * (1 + 0.05 * torch.randn(48, 48, generator=g))
    flat = without_texture(textured)
    plain = (slice(None), slice(6, -6), slice(6, 18))
    assert flat[plain].std((1, 2)).mean() < 0.3 * textured[plain].std((1, 2)).mean()
    rise = (flat[:, :, 26] - flat[:, :, 21]).mean(1) / (scene[:, 0, 26] - scene[:, 0, 21])
    assert rise.min() > 0.8
    torch.testing.assert_close(without_texture(1000 * textured), 1000 * flat)
