"""Anderson's mixing: exact where it must be, faster where it is used, and each of a batch for itself."""

from __future__ import annotations

from functools import partial

import torch

from cassi import CASSI
from cassi.priors.spectral_basis import smooth_basis
from cassi.solvers.mixing import Mixing
from cassi.solvers.subspace_tv import subspace_tv


def linear_map(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """M with its eigenvalues in (0, 0.99), and b, of v <- M v + b."""
    generator = torch.Generator().manual_seed(seed)
    Q, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    values = torch.linspace(0.1, 0.99, n, dtype=torch.float64)
    return (Q * values) @ Q.T, torch.randn(n, generator=generator, dtype=torch.float64)


def iterated(maps: list[tuple[torch.Tensor, torch.Tensor]], depth: int, turns: int) -> torch.Tensor:
    v, mixing = torch.zeros(len(maps), len(maps[0][1]), dtype=torch.float64), Mixing(depth)
    for _ in range(turns):
        found = torch.stack([M @ one + b for (M, b), one in zip(maps, v, strict=True)])
        if depth:
            mixing(found - v, found)
        v = found
    return v


def test_n_steps_solve_n_linear_equations():
    M, b = linear_map(4, 0)
    solution = torch.linalg.solve(torch.eye(4, dtype=torch.float64) - M, b)
    assert float((iterated([(M, b)], 4, 8) - solution).norm()) < 1e-5 * float(solution.norm())
    assert float((iterated([(M, b)], 0, 8) - solution).norm()) > 0.1 * float(solution.norm())


def test_each_of_a_batch_is_mixed_for_itself():
    maps = [linear_map(12, 1), linear_map(12, 2)]
    both = iterated(maps, 3, 10)
    for one, v in zip(maps, both, strict=True):
        torch.testing.assert_close(iterated([one], 3, 10)[0], v, rtol=1e-9, atol=1e-12)


def test_a_linear_prior_settles_in_fewer_iterations():
    generator = torch.Generator().manual_seed(3)
    A = CASSI.from_step(torch.rand(24, 24, generator=generator), step=1, num_bands=6)
    y = A @ torch.rand(6, 24, 24, generator=generator)
    pool = torch.nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    half = {"variance": 1e-2, "nonnegative": False, "denoise": lambda z, k: 0.5 * (z + pool(z))}
    run = partial(subspace_tv, A, y, smooth_basis(6, 4), **half)
    settled = run(num_iters=2000)[0].x
    plain, mixed = (float((run(num_iters=40, mixed=depth)[0].x - settled).norm()) for depth in (0, 4))
    assert mixed < 0.1 * plain
